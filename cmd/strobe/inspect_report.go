package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"strobe/internal/chat"
	"strobe/internal/draft/dflash"
	"strobe/internal/draft/eagle3"
	"strobe/internal/draft/mtp"
	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/tokenizer"
)

// report is everything inspect knows of a file; its JSON form is part of the
// command's interface.
type report struct {
	File          string         `json:"file"`
	Bytes         int64          `json:"bytes"`
	Version       uint32         `json:"gguf_version"`
	Parts         int            `json:"parts"`
	Model         modelInfo      `json:"model"`
	Drafter       *drafterInfo   `json:"drafter,omitempty"`
	Vision        *visionInfo    `json:"vision,omitempty"`
	FileType      string         `json:"file_type,omitempty"`
	BitsPerWeight float64        `json:"bits_per_weight"`
	TensorBytes   int64          `json:"tensor_bytes"`
	Types         []typeCount    `json:"types"`
	Tokenizer     *tokenizerInfo `json:"tokenizer,omitempty"`
	Template      string         `json:"template,omitempty"`
	Target        string         `json:"target,omitempty"`
	Checks        []check        `json:"checks"`
	Against       []againstInfo  `json:"against,omitempty"`
	Keys          []keyInfo      `json:"keys,omitempty"`
	Tensors       []tensorInfo   `json:"tensors,omitempty"`
}

type modelInfo struct {
	Arch        string `json:"architecture"`
	Name        string `json:"name,omitempty"`
	SizeLabel   string `json:"size_label,omitempty"`
	Parameters  int64  `json:"parameters"`
	Layers      int    `json:"layers"`
	NextN       int    `json:"nextn_layers,omitempty"`
	Recurrent   int    `json:"recurrent_layers,omitempty"`
	Sliding     int    `json:"sliding_layers,omitempty"`
	Width       int    `json:"width"`
	Context     int    `json:"context"`
	Heads       int    `json:"heads,omitempty"`
	KVHeads     string `json:"kv_heads,omitempty"`
	HeadDim     int    `json:"head_dim,omitempty"`
	Experts     int    `json:"experts,omitempty"`
	ExpertsUsed int    `json:"experts_used,omitempty"`
}

func (m *modelInfo) layerNote() string {
	var notes []string
	if m.Recurrent > 0 {
		notes = append(notes, fmt.Sprintf("%d recurrent", m.Recurrent))
	}
	if m.Sliding > 0 {
		notes = append(notes, fmt.Sprintf("%d with a sliding window", m.Sliding))
	}
	if m.NextN > 0 {
		notes = append(notes, fmt.Sprintf("and %d for multi-token prediction", m.NextN))
	}
	if notes == nil {
		return ""
	}
	return " (" + strings.Join(notes, ", ") + ")"
}

type typeCount struct {
	Type    string `json:"type"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

type tokenizerInfo struct {
	Model string   `json:"model"`
	Pre   string   `json:"pre,omitempty"`
	Size  int      `json:"size"`
	BOS   string   `json:"bos,omitempty"`
	EOS   string   `json:"eos,omitempty"`
	Ends  []string `json:"end_of_generation,omitempty"`
}

func (t *tokenizerInfo) endNote() string {
	if len(t.Ends) == 0 {
		return ""
	}
	return ", generation ends at " + strings.Join(t.Ends, " ")
}

type keyInfo struct {
	Key   string `json:"key"`
	Kind  string `json:"kind"`
	Value any    `json:"value,omitempty"` // absent for long arrays
}

type tensorInfo struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Shape []int  `json:"shape"`
	Bytes int64  `json:"bytes"`
}

// check is one thing that was verified. Result is "ok", "note" or "FAIL".
type check struct {
	Result string `json:"result"`
	What   string `json:"what"`
}

func (r *report) ok(format string, args ...any) {
	r.Checks = append(r.Checks, check{"ok", fmt.Sprintf(format, args...)})
}

func (r *report) note(format string, args ...any) {
	r.Checks = append(r.Checks, check{"note", fmt.Sprintf(format, args...)})
}

func (r *report) fail(format string, args ...any) {
	r.Checks = append(r.Checks, check{"FAIL", fmt.Sprintf(format, args...)})
}

func (r *report) failed() int {
	n := 0
	for _, c := range r.Checks {
		if c.Result == "FAIL" {
			n++
		}
	}
	return n
}

// archKeys reads keys under the file's architecture; wrong types read as absent,
// the checks report them.
type archKeys struct {
	f    *gguf.File
	arch string
}

func (k archKeys) int(key string) (int, bool) {
	v, ok, err := k.f.Int(k.arch + "." + key)
	return int(v), ok && err == nil
}

// bools counts the true entries of a pattern.
func (k archKeys) bools(key string) int {
	v, _, _ := k.f.Bools(k.arch + "." + key)
	n := 0
	for _, b := range v {
		if b {
			n++
		}
	}
	return n
}

// inspectFile collects what a file says and checks that it is consistent.
func inspectFile(f *gguf.File) (*report, error) {
	r := &report{File: f.Path(), Bytes: f.Size(), Version: f.Version(), Parts: f.Parts()}
	r.ok("the file is complete: %d tensors lie inside it", len(f.Tensors()))
	r.readModel(f)
	r.countTypes(f)
	if isVision(f) {
		r.readVision(f)
		r.checkNorms(f)
		return r, nil
	}
	r.readTokenizer(f)
	r.readTemplate(f)
	r.readDrafter(f)
	r.checkBlocks(f)
	r.checkNorms(f)
	r.checkLoads(f)
	return r, nil
}

func (r *report) readModel(f *gguf.File) {
	m := &r.Model
	m.Arch = f.Arch()
	if m.Arch == "" {
		r.fail("general.architecture is missing")
	}
	m.Name, _, _ = f.String("general.name")
	m.SizeLabel, _, _ = f.String("general.size_label")
	k := archKeys{f, m.Arch}
	m.Layers, _ = k.int("block_count")
	if n, ok := k.int("nextn_predict_layers"); ok && n < m.Layers {
		m.NextN = n
		m.Layers -= n
	}
	m.Recurrent, m.Sliding = k.bools("attention.recurrent_layers"), k.bools("attention.sliding_window_pattern")
	m.Width, _ = k.int("embedding_length")
	m.Context, _ = k.int("context_length")
	m.Heads, _ = k.int("attention.head_count")
	if n, ok := k.int("attention.head_count_kv"); ok {
		m.KVHeads = strconv.Itoa(n)
	} else if ns, ok, _ := f.Ints(m.Arch + ".attention.head_count_kv"); ok {
		kinds := slices.Compact(slices.Sorted(slices.Values(ns)))
		m.KVHeads = strings.ReplaceAll(joinInts(kinds), ", ", " or ")
	}
	m.HeadDim, _ = k.int("attention.key_length")
	m.Experts, _ = k.int("expert_count")
	m.ExpertsUsed, _ = k.int("expert_used_count")
	for _, t := range f.Tensors() {
		m.Parameters += int64(t.Elems())
	}
	if v, ok, err := f.Uint("general.file_type"); ok && err == nil {
		r.FileType = quant.FileTypeName(uint32(v))
	}
}

func (r *report) countTypes(f *gguf.File) {
	counts := map[quant.Type]*typeCount{}
	for _, t := range f.Tensors() {
		c := counts[t.Type]
		if c == nil {
			c = &typeCount{Type: t.Type.String()}
			counts[t.Type] = c
		}
		c.Tensors++
		c.Bytes += int64(len(t.Data))
		r.TensorBytes += int64(len(t.Data))
	}
	for _, c := range counts {
		r.Types = append(r.Types, *c)
	}
	slices.SortFunc(r.Types, func(a, b typeCount) int {
		if a.Bytes != b.Bytes {
			return int(min(1, max(-1, b.Bytes-a.Bytes)))
		}
		return strings.Compare(a.Type, b.Type)
	})
	if r.Model.Parameters > 0 {
		r.BitsPerWeight = float64(r.TensorBytes) * 8 / float64(r.Model.Parameters)
	}
	for _, t := range f.Tensors() {
		if !t.Type.Dequantizable() && t.Type != quant.I64 && t.Type != quant.I32 {
			r.note("tensor %s is %v, a type this program cannot use", t.Name, t.Type)
			return
		}
	}
}

func (r *report) readTokenizer(f *gguf.File) {
	if !f.Has("tokenizer.ggml.tokens") {
		return
	}
	t, err := tokenizer.FromGGUF(f)
	if err != nil {
		r.fail("tokenizer: %v", err)
		return
	}
	info := &tokenizerInfo{Model: t.Model(), Pre: t.Pre(), Size: t.Size()}
	if id, ok := t.BOS(); ok && t.AddBOS() {
		info.BOS = t.Text(id)
	}
	if id, ok := t.EOS(); ok {
		info.EOS = t.Text(id)
	}
	for _, id := range t.EOG() {
		info.Ends = append(info.Ends, t.Text(id))
	}
	r.Tokenizer = info
	if w := t.Warning(); w != "" {
		r.note("%s", w)
	}
	if e := f.Tensor("token_embd.weight"); e != nil {
		if rows := e.Rows(); rows != t.Size() {
			r.fail("token_embd.weight has %d rows for %d tokens", rows, t.Size())
		} else {
			r.ok("tokenizer and embedding agree on %d tokens", rows)
		}
	}
}

func (r *report) readTemplate(f *gguf.File) {
	text, ok, err := f.String("tokenizer.chat_template")
	if err != nil {
		r.fail("%v", err)
	}
	if !ok {
		return
	}
	t, err := chat.ParseTemplate("tokenizer.chat_template", text)
	if err != nil {
		r.Template = fmt.Sprintf("%d characters", len(text))
		r.fail("chat template: %v", err)
		return
	}
	var can []string
	if t.Tools() {
		can = append(can, "tools")
	}
	if t.Thinking() {
		can = append(can, "thinking")
	}
	r.Template = fmt.Sprintf("%d characters", len(text))
	if can != nil {
		r.Template += ", knows " + strings.Join(can, " and ")
	}
}

// checkBlocks makes sure every block has tensors and none is left over.
func (r *report) checkBlocks(f *gguf.File) {
	k := archKeys{f, f.Arch()}
	n, ok := k.int("block_count")
	if !ok || n <= 0 || n > 1<<20 {
		if len(f.Tensors()) > 0 {
			r.fail("%s.block_count is missing or wrong", f.Arch())
		}
		return
	}
	if len(f.Tensors()) == 0 {
		r.note("the file holds no weights, only metadata")
		return
	}
	have := make([]bool, n)
	if mtp.Supported(f) && model.Supported(f.Arch()) {
		for i := range r.Model.Layers { // those of the model it drafts for
			have[i] = true
		}
	}
	for _, t := range f.Tensors() {
		rest, ok := strings.CutPrefix(t.Name, "blk.")
		if !ok {
			continue
		}
		digits, _, _ := strings.Cut(rest, ".")
		if i, err := strconv.Atoi(digits); err == nil && i >= n {
			r.fail("%s belongs to block %d, but there are %d blocks", t.Name, i, n)
			return
		} else if err == nil && i >= 0 {
			have[i] = true
		}
	}
	if i := slices.Index(have, false); i >= 0 {
		r.fail("block %d of %d has no tensors", i, n)
		return
	}
	r.ok("all %d blocks have tensors", n)
}

// checkNorms looks for numbers that are not finite among the float32 vectors,
// which is where damaged files show first and which costs next to nothing.
func (r *report) checkNorms(f *gguf.File) {
	vectors := 0
	for _, t := range f.Tensors() {
		if t.Type != quant.F32 || t.Rows() > 1 {
			continue
		}
		vectors++
		for i := 0; i+4 <= len(t.Data); i += 4 {
			v := float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data[i:])))
			bound := strings.HasSuffix(t.Name, "put_min") || strings.HasSuffix(t.Name, "put_max") // infinite: there is none
			if math.IsNaN(v) || math.IsInf(v, 0) && !bound {
				r.fail("%s: value %d is %v", t.Name, i/4, v)
				return
			}
		}
	}
	if vectors > 0 {
		r.ok("norms and other vectors are finite")
	}
}

// checkLoads makes of a file what run and serve make of it, so that they all say the same.
func (r *report) checkLoads(f *gguf.File) {
	if len(f.Tensors()) == 0 || mtp.Supported(f) || dflash.Supported(f) || eagle3.Supported(f) {
		return
	}
	if why := model.WhyNot(f); why != "" {
		r.fail("the model cannot run: %s", why)
		return
	}
	if err := engine.Check(f); err != nil {
		r.fail("the model does not load: %v", err)
		return
	}
	r.ok("the model loads")
	if mtp.InModel(f) {
		r.ok("its layer for multi-token prediction loads, too: it drafts for the model")
	} else if r.Model.NextN > 0 {
		r.note("the layer for multi-token prediction is missing, so it cannot draft")
	}
}

func (r *report) listTensors(f *gguf.File) {
	for _, t := range f.Tensors() {
		r.Tensors = append(r.Tensors, tensorInfo{t.Name, t.Type.String(), t.Shape, int64(len(t.Data))})
	}
}

func (r *report) listKeys(f *gguf.File) error {
	for _, key := range f.Keys() {
		kind, _ := f.Kind(key)
		info := keyInfo{Key: key, Kind: kind.String()}
		if !kind.IsArray() || kind.Len <= 256 {
			v, _, err := f.Value(key)
			if err != nil {
				return err
			}
			if a, ok := v.(gguf.Array); ok {
				v = a.Values
			}
			// JSON has no infinities.
			if x, ok := v.(float32); ok && (math.IsInf(float64(x), 0) || x != x) {
				v = fmt.Sprint(x)
			}
			info.Value = v
		}
		r.Keys = append(r.Keys, info)
	}
	return nil
}
