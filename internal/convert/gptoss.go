package convert

import (
	"slices"
	"strings"

	"strobe/internal/quant"
	"strobe/internal/safetensors"
)

// Checkpoints of gpt-oss. Their experts come in MXFP4, which files keep as it is, or in floats with inputs and outputs
// exchanged. Rows of gate and up alternate.

var gptOSSNames = map[string]string{
	"post_attention_layernorm": "post_attention_norm",
	"self_attn.sinks":          "attn_sinks",
	"mlp.router":               "ffn_gate_inp",
	"mlp.experts.gate_proj":    "ffn_gate_exps",
	"mlp.experts.up_proj":      "ffn_up_exps",
	"mlp.experts.down_proj":    "ffn_down_exps",
}

// gptOSSKeys writes the window, the layers that have it where they are not every second one, and the width of experts.
func (m *model) gptOSSKeys(k modelKeys) {
	c := m.c
	k.u32("attention.sliding_window", c.need("sliding_window"))
	if c.has("layer_types") {
		if slides := kindsOf(m.layerTypes(), "sliding_attention"); !alternates(slides) {
			k.set(k.prefix+"attention.sliding_window_pattern", slides)
		}
	}
	k.u32("expert_feed_forward_length", c.need("intermediate_size"))
	if limit, ok := c.float("swiglu_limit"); ok && limit != 7 {
		c.fail("swiglu_limit", "is %g; gpt-oss files cannot say another limit than 7", limit)
	}
}

// alternates reports whether every second layer has a window, from the first on.
func alternates(slides []bool) bool {
	for i, s := range slides {
		if s != (i%2 == 0) {
			return false
		}
	}
	return true
}

// mxfp4Blocks joins the two tensors that a checkpoint keeps of each stack of experts in MXFP4: codes, 32 in 16 bytes,
// and scales. The sources have the names of the stacks without an ending.
func (m *model) mxfp4Blocks(list []stored) (rest []stored, stacks []namedSource, err error) {
	scales := map[string]stored{}
	for _, st := range list {
		if base, ok := strings.CutSuffix(st.name, "_scales"); ok {
			scales[base] = st
		}
	}
	for _, st := range list {
		base, ok := strings.CutSuffix(st.name, "_blocks")
		if !ok {
			if !strings.HasSuffix(st.name, "_scales") {
				rest = append(rest, st)
			}
			continue
		}
		scale, ok := scales[base]
		if !ok {
			return nil, nil, fieldErr(st.file, "tensor "+st.t.Name, "has no scales: %s_scales is missing", base)
		}
		delete(scales, base)
		s, err := mxfp4Source(st, scale.t)
		if err != nil {
			return nil, nil, err
		}
		stacks = append(stacks, namedSource{base, s})
	}
	for base, st := range scales {
		return nil, nil, fieldErr(st.file, "tensor "+st.t.Name, "belongs to %s_blocks, which is missing", base)
	}
	return rest, stacks, nil
}

// namedSource is a tensor with the name it would have in the checkpoint.
type namedSource struct {
	name string
	*source
}

// mxfp4Source makes rows of blocks as files have them: the scale, then 32 codes, the first 16 in the low
// halves of the bytes. Checkpoints have neighbours in one byte.
func mxfp4Source(st stored, scale *safetensors.Tensor) (*source, error) {
	blocks := st.t
	n := len(blocks.Shape)
	s := &source{file: st.file, name: blocks.Name, typ: quant.MXFP4}
	if blocks.DType != "U8" || n != 4 || blocks.Shape[3] != 16 || blocks.Elems() == 0 {
		return nil, s.fail("is %s %v, expected U8 with blocks of 16 bytes", blocks.DType, blocks.Shape)
	}
	if scale.DType != "U8" || !slices.Equal(scale.Shape, blocks.Shape[:3]) {
		return nil, s.fail("has scales of %s %v, expected U8 %v", scale.DType, scale.Shape, blocks.Shape[:3])
	}
	per := blocks.Shape[2]
	s.shape = []int{blocks.Shape[0], blocks.Shape[1], 32 * per}
	s.raw = func(r int) []byte {
		out := make([]byte, 0, 17*per)
		for i := r * per; i < (r+1)*per; i++ {
			out = append(out, scale.Data[i])
			pairs := blocks.Data[16*i:][:16]
			code := func(k int) byte { return pairs[k/2] >> (k % 2 * 4) & 15 }
			for k := range 16 {
				out = append(out, code(k)|code(k+16)<<4)
			}
		}
		return out
	}
	s.row = func(dst []float32, r int) error { return quant.Dequantize(quant.MXFP4, dst, s.raw(r)) }
	return s, nil
}

func (b *builder) addGPTOSS(name string, s *source) error {
	bid, rest, ok := splitLayer(name)
	if !ok {
		return b.emitMapped(name, s)
	}
	if rest == "self_attn.sinks" {
		return b.emitMapped(name+".weight", s)
	}
	part, ok := strings.CutPrefix(rest, "mlp.experts.")
	if !ok {
		return b.emitMapped(name, s)
	}
	base := strings.TrimSuffix(name, part)
	part, bias := strings.CutSuffix(part, "_bias")
	end := ".weight"
	switch {
	case bias:
		end = ".bias"
		if len(s.shape) != 2 {
			return s.fail("shape is %v, expected a row for each expert", s.shape)
		}
	case len(s.shape) != 3:
		return s.fail("shape is %v, expected a matrix for each expert of layer %d", s.shape, bid)
	case s.raw == nil:
		return s.fail("experts of gpt-oss come in MXFP4, BF16, F16 or F32, nothing else")
	case s.typ != quant.MXFP4:
		s = s.transposed()
	}
	if part != "gate_up_proj" {
		return b.emitMapped(base+part+end, s)
	}
	for i, to := range []string{"gate_proj", "up_proj"} {
		half, err := s.everySecond(i)
		if err != nil {
			return err
		}
		if err := b.emitMapped(base+to+end, half); err != nil {
			return err
		}
	}
	return nil
}

// everySecond has every second output of each expert from the first or the second on: rows, or the values of a bias.
func (s *source) everySecond(first int) (*source, error) {
	last := len(s.shape) - 1
	if last == 2 {
		last = 1
	}
	n := s.shape[last]
	if n%2 != 0 {
		return nil, s.fail("shape is %v, but gate and up have as many outputs each", s.shape)
	}
	shape := slices.Clone(s.shape)
	shape[last] = n / 2
	if len(shape) == 3 {
		return s.picked(shape, func(r int) int { return r/(n/2)*n + 2*(r%(n/2)) + first }), nil
	}
	out := *s
	out.shape, out.raw = shape, nil
	out.row = func(dst []float32, r int) error {
		both := make([]float32, n)
		if err := s.row(both, r); err != nil {
			return err
		}
		for i := range dst {
			dst[i] = both[2*i+first]
		}
		return nil
	}
	return &out, nil
}

// transposed exchanges the last two of three axes. It reads a row of the result value by value.
func (s *source) transposed() *source {
	rows, cols := s.shape[1], s.shape[2]
	size := s.typ.RowBytes(1)
	out := *s
	out.shape = []int{s.shape[0], cols, rows}
	out.raw = func(r int) []byte {
		e, c := r/cols, r%cols
		b := make([]byte, 0, rows*size)
		for i := range rows {
			b = append(b, s.raw(e*rows + i)[c*size:][:size]...)
		}
		return b
	}
	out.row = func(dst []float32, r int) error { return quant.Dequantize(s.typ, dst, out.raw(r)) }
	return &out
}
