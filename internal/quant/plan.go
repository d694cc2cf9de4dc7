package quant

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// TensorInfo is what planning needs to know of a tensor.
type TensorInfo struct {
	Name  string
	Shape []int // ne order: Shape[0] is the contiguous axis
	Type  Type  // as it is now; kept where the mix leaves the tensor alone
}

// dims counts the axes up to the last one that is longer than 1, so {n, 1} is a
// vector.
func (t TensorInfo) dims() int {
	n := len(t.Shape)
	for n > 1 && t.Shape[n-1] <= 1 {
		n--
	}
	return n
}

// SortTensors orders tensors the way llama.cpp's quantiser visits and writes
// them: tensors outside the blocks first, then block by block, by name.
func SortTensors[T any](ts []T, name func(T) string) {
	slices.SortStableFunc(ts, func(a, b T) int {
		na, nb := name(a), name(b)
		return cmp.Or(cmp.Compare(blockOf(na), blockOf(nb)), strings.Compare(na, nb))
	})
}

// blockOf is N for a name that starts with "blk.N.", else -1.
func blockOf(name string) int {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return -1
	}
	digits, _, ok := strings.Cut(rest, ".")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 0 {
		return -1
	}
	return n
}

// Plan chooses a type for each tensor of a model, in the order given. arch is
// general.architecture. The choice is the one llama.cpp's quantiser
// (src/llama-quant.cpp) makes without an importance matrix, so files come out
// with the sizes people know; the few hyper-parameters its rules look at are
// read off the tensor shapes.
//
// A matrix whose rows are no multiple of the block length gets a type with
// shorter blocks, F16 in the last resort.
func (m Mix) Plan(arch string, tensors []TensorInfo) ([]Type, error) {
	order := make([]int, len(tensors))
	for i := range order {
		order[i] = i
	}
	SortTensors(order, func(i int) string { return tensors[i].Name })

	p := newPlanner(m, arch, tensors)
	out := make([]Type, len(tensors))
	for _, i := range order {
		t := tensors[i]
		if len(t.Shape) == 0 {
			return nil, fmt.Errorf("tensor %q: has no shape", t.Name)
		}
		typ, err := p.choose(t)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if typ != t.Type {
			if !typ.Quantizable() {
				return nil, fmt.Errorf("tensor %q: cannot quantise to %v", t.Name, typ)
			}
			if !t.Type.Dequantizable() {
				return nil, fmt.Errorf("tensor %q: cannot convert from %v", t.Name, t.Type)
			}
		}
		out[i] = typ
	}
	return out, nil
}

// role is the part of a tensor's name the rules distinguish.
type role int

const (
	roleOther role = iota
	roleOutput
	roleEmbedding
	roleValue // attention values, alone or fused with queries and keys
	roleKey
	roleAttnOut
	roleDown
)

func roleOf(name string) role {
	switch {
	case name == "output.weight":
		return roleOutput
	case name == "token_embd.weight", name == "per_layer_token_embd.weight":
		return roleEmbedding
	case strings.Contains(name, "attn_qkv.weight"), strings.Contains(name, "attn_kv_b.weight"),
		strings.Contains(name, "attn_v.weight"):
		return roleValue
	case strings.Contains(name, "attn_k.weight"):
		return roleKey
	case strings.Contains(name, "attn_output.weight"):
		return roleAttnOut
	case strings.Contains(name, "ffn_down"):
		return roleDown
	}
	return roleOther
}

// planner carries the model's traits and the running counts the rules use.
type planner struct {
	mix     Mix
	tied    bool // no output.weight: the embedding doubles as the output
	blocks  int
	experts int
	gqa     int // query heads per key/value head
	big     bool

	values, seenValues int // value tensors in the model, and so far
	seenDown           int
}

func newPlanner(m Mix, arch string, tensors []TensorInfo) *planner {
	p := &planner{mix: m, tied: true}
	for _, t := range tensors {
		p.blocks = max(p.blocks, blockOf(t.Name)+1)
		if strings.Contains(t.Name, "_exps.") && len(t.Shape) > 2 {
			p.experts = max(p.experts, t.Shape[2])
		}
		switch roleOf(t.Name) {
		case roleOutput:
			p.tied = false
		case roleValue:
			p.values++
		}
	}
	p.gqa = headsPerGroup(arch, tensors)
	p.big = arch == "llama" && p.blocks == 80 && p.gqa > 1
	return p
}

// headsPerGroup reads the number of query heads per key/value head from the
// first block that has both projections.
func headsPerGroup(arch string, tensors []TensorInfo) int {
	rows := func(name string) map[int]int {
		found := map[int]int{}
		for _, t := range tensors {
			if b := blockOf(t.Name); b >= 0 && len(t.Shape) > 1 && strings.HasSuffix(t.Name, "."+name+".weight") {
				found[b] = t.Shape[1]
			}
		}
		return found
	}
	q, k := rows("attn_q"), rows("attn_k")
	first := -1
	for b := range q {
		if k[b] > 0 && (first < 0 || b < first) {
			first = b
		}
	}
	if first < 0 {
		return 0
	}
	heads := q[first]
	switch arch {
	case "qwen35", "qwen35moe", "qwen3next":
		heads /= 2 // half of the rows are the output gate
	}
	return heads / k[first]
}

func (p *planner) choose(t TensorInfo) (Type, error) {
	if forced, ok := p.mix.overrides[t.Name]; ok {
		if forced.Known() && t.Shape[0]%forced.BlockLen() != 0 {
			return 0, fmt.Errorf("rows of %d cannot be %v, which has blocks of %d", t.Shape[0], forced, forced.BlockLen())
		}
		return forced, nil
	}
	if !quantizes(t) {
		return t.Type, nil
	}
	base := p.mix.Base()
	if !base.Quantized() {
		return base, nil
	}
	typ, err := p.prefer(t, base)
	return fit(typ, t.Shape[0]), err
}

// never lists name parts of matrices that stay as they are: routers, tiny or
// convolutional weights, positions.
var never = []string{
	"_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d",
	"shortconv.conv.weight", "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight",
	"time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight",
	"time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight",
	"time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight",
	"time_mix_lerp_fused.weight", "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.",
	"sam.net_", ".rel_pos", ".patch_embd", ".patch_merger",
}

// quantizes reports whether a mix changes the tensor at all: only matrices
// named like weights, and not those in never.
func quantizes(t TensorInfo) bool {
	if t.dims() < 2 || !strings.HasSuffix(t.Name, "weight") {
		return false
	}
	if t.Name == "position_embd.weight" || t.Name == "token_types.weight" {
		return false
	}
	return !slices.ContainsFunc(never, func(part string) bool { return strings.Contains(t.Name, part) })
}

// prefer picks the type for one matrix before its shape is considered. It must
// be called in the order of SortTensors, because some rules count.
func (p *planner) prefer(t TensorInfo, base Type) (Type, error) {
	name := p.mix.Name()
	medium := name == "Q4_K_M" || name == "Q5_K_M"
	nonlinear := name == "IQ4_NL" || name == "IQ4_XS"
	typ := base
	switch r := roleOf(t.Name); {
	case r == roleOutput, r == roleEmbedding && p.tied:
		if t.Shape[0]%base.BlockLen() != 0 || base == Q8_0 {
			return Q8_0, nil
		}
		return Q6_K, nil

	case r == roleValue:
		i := p.seenValues
		p.seenValues++
		switch {
		case name == "Q2_K" && p.gqa >= 4, name == "Q3_K_M" && i >= 2:
			typ = Q4_K
		case name == "Q2_K":
			typ = Q3_K
		case nonlinear && p.gqa >= 4, name == "Q3_K_M", name == "Q3_K_L":
			typ = Q5_K
		case medium && moreBits(i, p.values):
			typ = Q6_K
		case name == "Q4_K_S" && i < 4:
			typ = Q5_K
		}
		if p.big && (typ == Q3_K || typ == Q4_K) {
			typ = Q5_K
		}
		if p.experts == 8 {
			typ = Q8_0
		}

	case r == roleKey && p.experts == 8:
		typ = Q8_0

	case r == roleDown:
		i := p.seenDown
		p.seenDown++
		if p.experts > 1 {
			// Several of these per block: only the name tells which.
			if i = blockOf(t.Name); i < 0 {
				return 0, fmt.Errorf("which block it belongs to is not in its name")
			}
		}
		switch {
		case name == "Q2_K":
			typ = Q3_K
		case name == "Q3_K_L", name == "Q3_K_M" && i < p.blocks/16:
			typ = Q5_K
		case name == "Q3_K_M":
			typ = Q4_K
		case medium && moreBits(i, p.blocks):
			typ = Q6_K
		case (nonlinear || name == "Q4_K_S") && i < p.blocks/8:
			typ = Q5_K
		}

	case r == roleAttnOut && p.experts == 8:
		if base == Q4_K || nonlinear || base == Q2_K || base == Q3_K && name != "Q3_K_L" {
			typ = Q5_K
		}

	case r == roleAttnOut:
		switch name {
		case "Q2_K":
			typ = Q3_K
		case "Q3_K_M":
			typ = Q4_K
		case "Q3_K_L":
			typ = Q5_K
		}
	}
	return typ, nil
}

// moreBits says which of n layers deserve a larger type: the first and last
// eighth, and every third in between.
func moreBits(i, n int) bool {
	return i < n/8 || i >= 7*n/8 || (i-n/8)%3 == 2
}

// fit replaces a type whose blocks do not divide a row.
func fit(t Type, row int) Type {
	if row%t.BlockLen() == 0 {
		return t
	}
	switch t {
	case Q4_K:
		t = Q5_0
	case Q5_K:
		t = Q5_1
	case Q6_K:
		t = Q8_0
	case IQ4_XS, Q2_K, Q3_K:
		t = IQ4_NL
	}
	if row%t.BlockLen() != 0 {
		return F16
	}
	return t
}
