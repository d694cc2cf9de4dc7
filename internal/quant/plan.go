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

// gatedQueries are architectures whose attn_q has an output gate in half of its rows.
var gatedQueries = []string{"qwen35", "qwen35moe", "qwen3next"}

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
	if slices.Contains(gatedQueries, arch) {
		heads /= 2
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

// rule gives the matrices of a role a larger type than the mix's base.
type rule struct {
	mix  string
	role role
	when condition
	typ  Type
}

// condition looks at matrix i of n with the same role.
type condition func(p *planner, i, n int) bool

// rules are llama.cpp's. The first one that applies counts.
var rules = []rule{
	{"Q2_K", roleValue, sharedHeads, Q4_K},
	{"Q2_K", roleValue, always, Q3_K},
	{"Q2_K", roleDown, always, Q3_K},
	{"Q2_K", roleAttnOut, always, Q3_K},
	{"Q3_K_M", roleValue, firstTwo, Q5_K},
	{"Q3_K_M", roleValue, always, Q4_K},
	{"Q3_K_M", roleDown, firstSixteenth, Q5_K},
	{"Q3_K_M", roleDown, always, Q4_K},
	{"Q3_K_M", roleAttnOut, always, Q4_K},
	{"Q3_K_L", roleValue, always, Q5_K},
	{"Q3_K_L", roleDown, always, Q5_K},
	{"Q3_K_L", roleAttnOut, always, Q5_K},
	{"IQ4_NL", roleValue, sharedHeads, Q5_K},
	{"IQ4_NL", roleDown, firstEighth, Q5_K},
	{"IQ4_XS", roleValue, sharedHeads, Q5_K},
	{"IQ4_XS", roleDown, firstEighth, Q5_K},
	{"Q4_K_S", roleValue, firstFour, Q5_K},
	{"Q4_K_S", roleDown, firstEighth, Q5_K},
	{"Q4_K_M", roleValue, moreBits, Q6_K},
	{"Q4_K_M", roleDown, moreBits, Q6_K},
	{"Q5_K_M", roleValue, moreBits, Q6_K},
	{"Q5_K_M", roleDown, moreBits, Q6_K},
}

// prefer picks the type for one matrix before its shape is considered. It must
// be called in the order of SortTensors, because some rules count.
func (p *planner) prefer(t TensorInfo, base Type) (Type, error) {
	if base == MXFP4 { // for experts alone
		if strings.Contains(t.Name, "_exps.") {
			return MXFP4, nil
		}
		return Q8_0, nil
	}
	r := roleOf(t.Name)
	if r == roleOutput || r == roleEmbedding && p.tied {
		if t.Shape[0]%base.BlockLen() != 0 || base == Q8_0 {
			return Q8_0, nil
		}
		return Q6_K, nil
	}
	i, n, err := p.count(r, t.Name)
	if err != nil {
		return 0, err
	}
	if p.experts == 8 {
		if typ, ok := p.eightExperts(r, base); ok {
			return typ, nil
		}
	}
	typ := base
	for _, rule := range rules {
		if rule.mix == p.mix.Name() && rule.role == r && rule.when(p, i, n) {
			typ = rule.typ
			break
		}
	}
	if r == roleValue && p.big && (typ == Q3_K || typ == Q4_K) {
		typ = Q5_K
	}
	return typ, nil
}

// count says which of how many matrices of the role this is.
func (p *planner) count(r role, name string) (i, n int, err error) {
	switch r {
	case roleValue:
		p.seenValues++
		return p.seenValues - 1, p.values, nil
	case roleDown:
		p.seenDown++
		if p.experts <= 1 {
			return p.seenDown - 1, p.blocks, nil
		}
		// Several of these per block: only the name tells which.
		if i = blockOf(name); i < 0 {
			return 0, 0, fmt.Errorf("which block it belongs to is not in its name")
		}
		return i, p.blocks, nil
	}
	return 0, 0, nil
}

// eightExperts has the rules for models with eight experts, of the size of Mixtral: attention is a small part of them
// and gets more bits.
func (p *planner) eightExperts(r role, base Type) (Type, bool) {
	switch r {
	case roleValue, roleKey:
		return Q8_0, true
	case roleAttnOut:
		small := slices.Contains([]Type{Q2_K, Q3_K, Q4_K, IQ4_NL, IQ4_XS}, base)
		if small && p.mix.Name() != "Q3_K_L" {
			return Q5_K, true
		}
		return base, true
	}
	return base, false
}

// The conditions of the rules.

func always(*planner, int, int) bool           { return true }
func sharedHeads(p *planner, _, _ int) bool    { return p.gqa >= 4 }
func firstTwo(_ *planner, i, _ int) bool       { return i < 2 }
func firstFour(_ *planner, i, _ int) bool      { return i < 4 }
func firstEighth(_ *planner, i, n int) bool    { return i < n/8 }
func firstSixteenth(_ *planner, i, n int) bool { return i < n/16 }

// moreBits are the layers that deserve a larger type: the first and last
// eighth, and every third in between.
func moreBits(_ *planner, i, n int) bool {
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
