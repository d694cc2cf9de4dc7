package convert

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// quantVersion is general.quantization_version, the version of the block
// formats.
const quantVersion = 2

// Options choose how a checkpoint is converted. The zero value converts to the
// type the checkpoint is stored in.
type Options struct {
	// Type is "auto" (or ""), "f32", "f16", "bf16", "q8_0" or any name that
	// quant.ParseMix knows. auto is bf16 or f16, whichever the first matrix of
	// the checkpoint is stored in, and f16 when it is neither.
	Type string
	// Target is the folder of the target's checkpoint; drafters need it for the
	// tokenizer and to check that they fit.
	Target string
	// TargetFile is the target's GGUF file, in place of Target.
	TargetFile *gguf.File
	// NoMTP leaves out the NextN layers, MTPOnly everything else that a drafter can do without: the other layers.
	NoMTP, MTPOnly bool
	// MMProj converts the vision tower of a multimodal checkpoint instead of its text model: an mmproj file.
	MMProj bool
	// NoVocab leaves the tokenizer out of a drafter: the target's file has it.
	NoVocab bool
	// Pre overrides the recognised pre-tokenizer.
	Pre string
	// Name overrides general.name.
	Name string
	// SplitBytes starts a new file of a split model after this much data; 0
	// writes one file.
	SplitBytes int64
	// Plan, if set, is told what will be written before the first tensor.
	Plan func(Plan)
	// Progress, if set, is called with the number of bytes just written.
	Progress func(n int64)
	// Warn, if set, is told of decisions a user may want to know.
	Warn func(msg string)
}

// Plan describes a file about to be written.
type Plan struct {
	Arch    string
	Type    string // name of the mix
	Tensors int
	Bytes   int64 // of tensor data
}

func (o *Options) warn(format string, args ...any) {
	if o.Warn != nil {
		o.Warn(fmt.Sprintf(format, args...))
	}
}

// HF converts the Hugging Face checkpoint in dir to the GGUF file out.
func HF(ctx context.Context, dir, out string, opt Options) error {
	if opt.MMProj {
		return convertTower(ctx, dir, out, opt)
	}
	m, w, list, err := openCheckpoint(dir, opt)
	if err != nil {
		return err
	}
	defer w.Close()
	vocabDir := dir
	if m.drafts() || opt.MTPOnly && opt.Target != "" {
		vocabDir = opt.Target
	}
	var tok *hfTokenizer // nil: that of the target's file
	if !m.drafts() || opt.TargetFile == nil {
		if tok, err = readTokenizer(vocabDir); err != nil {
			return err
		}
	}
	rows := 0
	if m.gemma() {
		rows = len(tok.vocab) + len(tok.added)
	}
	b, err := m.buildTensors(list, rows)
	if err != nil {
		return err
	}
	if m.drafts() {
		if b.fc == nil {
			return fieldErr(list[0].file, "tensor fc.weight", "is missing")
		}
		if m.family == eagle3 {
			err = m.checkEagle3(b, list[0].file)
		} else {
			err = m.checkDrafter(b.fc, b.fcFile)
		}
		if err != nil {
			return err
		}
	}
	if err := m.checkBlocks(b, list[0].file, opt.MTPOnly); err != nil {
		return err
	}
	if opt.MTPOnly {
		b.out = slices.DeleteFunc(b.out, func(t *outTensor) bool {
			bid, ok := blockOf(t.name)
			return ok && bid < m.layers
		})
	}
	mix, types, err := m.chooseTypes(b, opt.Type, list)
	if err != nil {
		return err
	}
	specs := make([]gguf.TensorSpec, len(b.out))
	for i, t := range b.out {
		specs[i] = gguf.TensorSpec{Name: t.name, Type: types[i], Shape: t.shape()}
	}
	kvs, err := m.metadata(specs, tok, mix, opt)
	if err != nil {
		return err
	}
	if _, ok := plain[mix.Name()]; !ok {
		kvs = quantisedKeys(kvs, mix)
		for i := range specs {
			specs[i].Shape = trimShape(specs[i].Shape)
		}
	}
	return writeFile(ctx, dir, out, Plan{Arch: m.name, Type: mix.Name()}, kvs, specs, b.out, opt)
}

// writeFile writes a file whose tensors have the types of specs. Of plan it fills in the sizes.
func writeFile(ctx context.Context, dir, out string, plan Plan, kvs []gguf.KV, specs []gguf.TensorSpec,
	tensors []*outTensor, opt Options) error {
	plan.Tensors = len(specs)
	for _, s := range specs {
		plan.Bytes += tensorBytes(s)
	}
	wr, err := gguf.Create(out, kvs, specs, gguf.WriteOptions{SplitBytes: opt.SplitBytes, Keep: checkpointFiles(dir)})
	if err != nil {
		return err
	}
	if opt.Plan != nil {
		opt.Plan(plan)
	}
	for i, t := range tensors {
		if err := writeSource(ctx, wr, t, specs[i].Type, opt.Progress); err != nil {
			wr.Abort()
			return err
		}
	}
	return wr.Close()
}

// checkpointFiles are the files of a folder that converting must not replace. GGUF files are no part of a checkpoint.
func checkpointFiles(dir string) (list []string) {
	entries, _ := os.ReadDir(dir) // it has been read before
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".gguf" {
			list = append(list, filepath.Join(dir, e.Name()))
		}
	}
	return list
}

// openCheckpoint reads what a folder holds: the model's configuration, and the tensors of it that are converted.
func openCheckpoint(dir string, opt Options) (m *model, w *weights, list []stored, err error) {
	if st, err := os.Stat(dir); err != nil {
		return nil, nil, nil, err
	} else if !st.IsDir() {
		return nil, nil, nil, fmt.Errorf("%s: is not a folder; expected a Hugging Face checkpoint", dir)
	}
	if m, err = readModel(dir, opt); err != nil {
		return nil, nil, nil, err
	}
	if w, err = openWeights(dir); err != nil {
		return nil, nil, nil, err
	}
	m.countMTP(w.list, opt.NoMTP)
	for _, st := range w.list {
		if name, keep := m.cleanName(st.name); keep {
			st.name = name
			list = append(list, st)
		}
	}
	switch {
	case opt.MTPOnly && m.mtp == 0:
		err = fmt.Errorf("%s: no multi-token-prediction layers to convert", dir)
	case len(list) == 0:
		err = fmt.Errorf("%s: no text model in this checkpoint", dir)
	}
	if err != nil {
		w.Close()
	}
	return m, w, list, err
}

// readModel reads the configuration, for a drafter also its target's.
func readModel(dir string, opt Options) (*model, error) {
	c, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	a, class, err := findArch(c)
	if err != nil {
		return nil, err
	}
	if isReranker(dir, class) {
		return nil, fieldErr(c.path, "architectures", "rerankers are not supported")
	}
	if d := a.headDim(); d > 0 && !c.has("head_dim") {
		c.m["head_dim"] = json.Number(strconv.Itoa(d))
	}
	m := &model{arch: a, class: class, dir: dir, c: c, rope: ropeOf(c)}
	m.layers = c.need("num_hidden_layers", "n_layer", "num_layers")
	if err := c.failed(); err != nil {
		return nil, err
	}
	if !m.drafts() {
		if opt.NoVocab && !opt.MTPOnly {
			return nil, fmt.Errorf("%s: is no drafter; only a drafter can do without a tokenizer", dir)
		}
		return m, nil
	}
	if opt.TargetFile != nil {
		m.target = targetConfig(opt.TargetFile)
		return m, nil
	}
	if opt.Target == "" {
		kind := "a DFlash"
		if m.family == eagle3 {
			kind = "an EAGLE-3"
		}
		return nil, fmt.Errorf("%s: is %s drafter; give the folder of its target with --target, it has the tokenizer",
			dir, kind)
	}
	if m.target, err = readConfig(opt.Target); err != nil {
		return nil, err
	}
	if t, _, err := findArch(m.target); err != nil {
		return nil, err
	} else if t.drafts() {
		return nil, fieldErr(m.target.path, "architectures", "the target is a drafter itself")
	}
	return m, nil
}

// countMTP finds out how many NextN layers will be converted.
func (m *model) countMTP(list []stored, skip bool) {
	if !m.hybrid() || skip {
		return
	}
	for _, st := range list {
		m.mtp = max(m.mtp, mtpLayer(st.name)+1)
	}
}

// checkBlocks makes sure that every block the config announces has weights, and
// that none has more. NextN layers that are written alone may be all there is:
// the rest is the target's.
func (m *model) checkBlocks(b *builder, file string, alone bool) error {
	have := make([]bool, m.blocks())
	for _, t := range b.out {
		bid, ok := blockOf(t.name)
		if !ok {
			continue
		}
		if bid >= len(have) {
			return fieldErr(m.c.path, "num_hidden_layers", "is %d, but %s belongs to layer %d", m.layers, b.names[t.name], bid)
		}
		have[bid] = true
	}
	for i, ok := range have {
		if !ok && !(alone && i < m.layers) {
			return fieldErr(file, fmt.Sprintf("layer %d", i), "has no tensors, but num_hidden_layers is %d", m.layers)
		}
	}
	if alone {
		return nil
	}
	need := []string{"output_norm.weight"}
	if !m.drafts() {
		need = append(need, "token_embd.weight")
	}
	for _, name := range need {
		if b.names[name] == "" {
			return fieldErr(file, "tensor "+name, "is missing from the checkpoint")
		}
	}
	return nil
}

// blockOf is the number of the block a tensor of the file belongs to.
func blockOf(name string) (bid int, ok bool) {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return 0, false
	}
	_, err := fmt.Sscanf(rest, "%d.", &bid)
	return bid, err == nil
}

// plain are the types the conversion itself applies to every matrix; anything
// else is a mix that treats tensors differently.
var plain = map[string]quant.Type{"F32": quant.F32, "F16": quant.F16, "BF16": quant.BF16, "Q8_0": quant.Q8_0}

// chooseTypes decides the type of every tensor. For a mix the tensors are also
// put into the order the quantiser writes them in.
func (m *model) chooseTypes(b *builder, name string, list []stored) (quant.Mix, []quant.Type, error) {
	stored := guessType(list)
	if name == "" || strings.EqualFold(name, "auto") {
		name = stored
	}
	mix, err := quant.ParseMix(name)
	if err != nil {
		return mix, nil, err
	}
	if base, ok := plain[mix.Name()]; ok {
		types := make([]quant.Type, len(b.out))
		for i, t := range b.out {
			types[i] = t.typeFor(base)
		}
		return mix, types, nil
	}
	quant.SortTensors(b.out, func(t *outTensor) string { return t.name })
	infos := make([]quant.TensorInfo, len(b.out))
	for i, t := range b.out {
		if t.ids == nil && t.src.typ == quant.MXFP4 {
			mix = mix.With(t.name, quant.MXFP4)
		}
		infos[i] = quant.TensorInfo{Name: t.name, Shape: t.shape(), Type: t.typeFor(plain[stored])}
	}
	types, err := mix.Plan(m.name, infos)
	return mix, types, err
}

// guessType looks at the first matrix stored in 16 bits.
func guessType(list []stored) string {
	for _, st := range list {
		if len(st.t.Shape) < 2 {
			continue
		}
		if st.t.DType == "BF16" || st.t.DType == "F16" {
			return st.t.DType
		}
	}
	return "F16"
}

// metadata assembles all keys in file order.
func (m *model) metadata(tensors []gguf.TensorSpec, tok *hfTokenizer, mix quant.Mix, opt Options) ([]gguf.KV, error) {
	l := &keyList{}
	l.set("general.architecture", m.name)
	l.set("general.type", "model")
	a, err := readAuthorship(m.dir, countParams(tensors))
	if err != nil {
		return nil, err
	}
	if opt.Name != "" {
		a.text["name"] = opt.Name
	}
	a.setKeys(l)
	if err := m.setKeys(l, mix.FileType()); err != nil {
		return nil, err
	}
	l.set("general.quantization_version", uint32(quantVersion))
	vocab, _ := m.c.int("vocab_size")
	switch {
	case opt.NoVocab:
		l.set(m.name+".vocab_size", uint32(vocab))
	case tok == nil:
		kvs, err := opt.TargetFile.KVs()
		if err != nil {
			return nil, err
		}
		for _, kv := range kvs {
			if strings.HasPrefix(kv.Key, "tokenizer.") {
				l.set(kv.Key, kv.Value)
			}
		}
	default:
		if err := tok.setVocab(l, m, opt.Pre, vocab); err != nil {
			return nil, err
		}
	}
	if n, ok := m.c.int("sliding_window"); ok && m.class == mistral {
		opt.warn("config.json: sliding_window is %d, which llama files do not have: farther tokens stay visible", n)
	}
	if tok != nil && tok.note != "" {
		opt.warn("%s", tok.note)
	}
	if m.family == dflash {
		if id, ok := m.maskID(); ok {
			l.set("tokenizer.ggml.mask_token_id", uint32(id))
		}
	}
	return l.kvs, nil
}

func tensorBytes(t gguf.TensorSpec) int64 {
	n := int64(t.Type.RowBytes(t.Shape[0]))
	for _, d := range t.Shape[1:] {
		n *= int64(d)
	}
	return n
}
