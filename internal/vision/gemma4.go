package vision

import (
	"math"
	"slices"
	"strconv"

	"strobe/internal/backend"
	"strobe/internal/gguf"
	"strobe/internal/nn"
	"strobe/internal/quant"
)

// gemma4 is the tower of Gemma 4 (gemma4v): a transformer with RMSNorm before and after each part, gated feed-forward
// layers and full attention, then the mean of each block of patches. The matrices of E2B and E4B bound what goes in and
// out; 31B and 26B-A4B shift and scale the means.
type gemma4 struct {
	c          *Config
	act        backend.Activation
	patch      backend.Weight // [width, 3*patch*patch]
	table      positionTable
	blocks     []gemma4Block
	shift      backend.Vector // [width]; optional
	scale      backend.Vector // [width]; with shift
	out        clipped        // [out, width]
	headsWidth int
}

type gemma4Block struct {
	norm, postNorm, ffnNorm, ffnPostNorm backend.Vector // [width]
	q, k, v                              clipped        // [heads*headDim, width]
	qNorm, kNorm                         backend.Vector // [headDim]
	o                                    clipped        // [width, heads*headDim]
	gate, up, down                       clipped        // [ffn, width] twice, [width, ffn]
	scale                                float32        // of the block's output
	cache                                int
}

// clipped is a matrix with bounds for what goes in and comes out.
type clipped struct {
	w       backend.Weight
	in, out bounds
}

type bounds struct{ least, most float32 }

func (b bounds) any() bool {
	return !math.IsInf(float64(b.least), -1) || !math.IsInf(float64(b.most), 1)
}

func bindClipped(l *nn.Loader, name string, in, out int) clipped {
	bound := func(suffix string, none int) float32 {
		v := []float32{float32(math.Inf(none))}
		if !l.Has(name + suffix) {
			return v[0]
		}
		if t := l.Tensor(name+suffix, 1); t != nil { // infinities are fine
			l.Keep(quant.Dequantize(t.Type, v, t.Data))
			if v[0] != v[0] {
				l.Fail("tensor %q: a bound is NaN", t.Name)
			}
		}
		return v[0]
	}
	return clipped{l.Matrix(name+".weight", in, out), bounds{bound(".input_min", -1), bound(".input_max", 1)},
		bounds{bound(".output_min", -1), bound(".output_max", 1)}}
}

// multiply returns the products of x with each matrix.
func (s *pass) multiply(x backend.Tensor, ms ...*clipped) []backend.Tensor {
	var ys []backend.Tensor
	ps := make([]backend.Product, 0, len(ms))
	for i, m := range ms {
		ys = append(ys, s.New(x.Rows, m.w.Rows()))
		ps = append(ps, backend.Product{W: m.w, Y: ys[i]})
	}
	if !slices.ContainsFunc(ms, func(m *clipped) bool { return m.in.any() }) {
		s.MatMul(x, ps...)
	} else {
		for i, m := range ms {
			h := s.New(x.Rows, x.Cols)
			s.Clamp(h, x, m.in.least, m.in.most)
			s.MatMul(h, ps[i])
		}
	}
	for i, m := range ms {
		if m.out.any() {
			s.Clamp(ys[i], ys[i], m.out.least, m.out.most)
		}
	}
	return ys
}

func blockPrefix(i int) string { return "v.blk." + strconv.Itoa(i) + "." }
func deepstack(i int) string   { return "v.deepstack." + strconv.Itoa(i) + ".fc1.weight" }

func newGemma4(l *nn.Loader, e *Encoder, act backend.Activation, _ Like) tower {
	c := &e.Config
	a := &gemma4{c: c, act: act, headsWidth: c.Heads * c.HeadDim}
	a.patch = patchMatrix(l, c.Patch, c.Width, "v.patch_embd.weight")
	a.table = bindPositions(l, c.Width)
	e.longest = a.table.n
	clips := false
	for i := range c.Blocks {
		if l.Err != nil {
			return nil
		}
		p := blockPrefix(i)
		y := gemma4Block{
			norm: l.Vector(p+"ln1.weight", c.Width), postNorm: l.Vector(p+"attn_post_norm.weight", c.Width),
			ffnNorm: l.Vector(p+"ln2.weight", c.Width), ffnPostNorm: l.Vector(p+"ffn_post_norm.weight", c.Width),
			q: bindClipped(l, p+"attn_q", c.Width, a.headsWidth), k: bindClipped(l, p+"attn_k", c.Width, a.headsWidth),
			v:     bindClipped(l, p+"attn_v", c.Width, a.headsWidth),
			qNorm: l.Vector(p+"attn_q_norm.weight", c.HeadDim), kNorm: l.Vector(p+"attn_k_norm.weight", c.HeadDim),
			o:    bindClipped(l, p+"attn_out", a.headsWidth, c.Width),
			gate: bindClipped(l, p+"ffn_gate", c.Width, c.FFN), up: bindClipped(l, p+"ffn_up", c.Width, c.FFN),
			down:  bindClipped(l, p+"ffn_down", c.FFN, c.Width),
			scale: 1, cache: l.Attention(c.Heads, e.headPad, 0),
		}
		if l.Has(p + "out_scale.weight") {
			y.scale = l.Scalar(p + "out_scale.weight")
		}
		clips = clips || y.q.in.any() || y.q.out.any()
		a.blocks = append(a.blocks, y)
	}
	if l.Has("v.std_bias") || l.Has("v.std_scale") {
		shift := l.Floats("v.std_bias", c.Width)
		for i := range shift {
			shift[i] = -shift[i]
		}
		a.shift, a.scale = l.VectorOf(shift), l.Vector("v.std_scale", c.Width)
	}
	a.out = bindClipped(l, "mm.input_projection", c.Width, 0)
	if l.Err == nil {
		c.Out = a.out.w.Rows()
		// E2B and E4B were trained with causal attention to images.
		c.Bidirectional = !clips && c.Out != 1536 && c.Out != 2560
	}
	return a
}

// begin: the first half of a head is turned by columns, the second by lines.
func (a *gemma4) begin(in *image) inputs {
	pairs := a.c.HeadDim / 4
	return inputs{
		patches:   in.patches(2, -1),
		positions: a.table.of(in),
		rotary:    []angles{in.rotary(pairs, 100, column), in.rotary(pairs, 100, line)},
	}
}

func (a *gemma4) first(s *pass) {
	s.MatMul(s.patches, backend.Product{W: a.patch, Y: s.x})
	s.Add(s.x, s.x, s.positions)
}

func (a *gemma4) block(s *pass, i int) {
	y, heads := &a.blocks[i], a.c.Heads
	h := s.Norm(s.x, y.norm)
	p := s.multiply(h, &y.q, &y.k, &y.v)
	q, k, v := p[0], p[1], p[2] // [patches, heads*headDim]
	s.NormHeads(q, heads, y.qNorm)
	s.NormHeads(k, heads, y.kNorm)
	s.NormHeads(v, heads, nil)
	for half, turn := range s.rotary {
		n := a.c.HeadDim / 2
		s.RoPE(q.Split(heads).Columns(half*n, n), heads, turn.cos, turn.sin)
		s.RoPE(k.Split(heads).Columns(half*n, n), heads, turn.cos, turn.sin)
	}
	o := s.attend(y.cache, q, k, v, heads, 1) // norms have scaled q and k
	s.Add(s.x, s.x, s.Norm(s.multiply(o, &y.o)[0], y.postNorm))

	h = s.Norm(s.x, y.ffnNorm)
	p = s.multiply(h, &y.gate, &y.up)
	gate, up := p[0], p[1] // [patches, ffn]
	s.Gated(gate, gate, up, a.act)
	s.Add(s.x, s.x, s.Norm(s.multiply(gate, &y.down)[0], y.ffnPostNorm))
	if y.scale != 1 {
		s.Scale(s.x, s.x, y.scale)
	}
}

// last takes the mean of the patches of each block, times the square root of the width.
func (a *gemma4) last(s *pass) backend.Tensor {
	n := a.c.Merge * a.c.Merge
	block := sideBySide(s.x, n) // [rows, patches*width]
	mean := s.New(block.Rows, a.c.Width)
	s.Copy(mean, block.Columns(0, a.c.Width))
	for i := 1; i < n; i++ {
		s.Add(mean, mean, block.Columns(i*a.c.Width, a.c.Width))
	}
	s.Scale(mean, mean, float32(math.Sqrt(float64(a.c.Width))/float64(n)))
	if a.shift != nil {
		s.AddBias(mean, a.shift)
		mean = s.scaleColumns(mean, a.scale)
	}
	return s.multiply(s.Norm(mean, nil), &a.out)[0]
}

// scaleColumns multiplies every row by a vector: a convolution with one tap, to which the rows add nothing.
func (s *pass) scaleColumns(x backend.Tensor, w backend.Vector) backend.Tensor {
	y, none := s.New(x.Rows, x.Cols), s.New(x.Rows, 1)
	s.Scale(none, x.Columns(0, 1), 0)
	s.BlockConv(y, x, none, w, s.Ints32(make([]int32, x.Rows)))
	return y
}

// gemma4Unified is the image encoder of Gemma 4 12B (gemma4uv), which has no transformer: large patches are normalised
// and projected.
type gemma4Unified struct {
	c            *Config
	norm1        layerNorm // of a patch's pixels
	patch        linear    // [width, 3*patch*patch]
	norm2, norm3 layerNorm // before and after positions
	table        positionTable
	out          backend.Weight // [out, width]
}

// unifiedEps is that of its LayerNorms. The file has one for RMSNorm.
const unifiedEps = 1e-5

func newGemma4Unified(l *nn.Loader, e *Encoder, _ backend.Activation, _ Like) tower {
	c := &e.Config
	pixels := 3 * c.Patch * c.Patch
	a := &gemma4Unified{c: c, norm1: bindLayerNorm(l, "v.patch_norm.1", pixels),
		patch: bindLinear(l, "v.patch_embd", pixels, c.Width), norm2: bindLayerNorm(l, "v.patch_norm.2", c.Width),
		norm3: bindLayerNorm(l, "v.patch_norm.3", c.Width), table: bindPositions(l, c.Width),
		out: l.Matrix("mm.input_projection.weight", c.Width, 0)}
	if l.Err == nil {
		c.Out, c.Bidirectional, e.longest = a.out.Rows(), true, a.table.n
	}
	return a
}

func (a *gemma4Unified) begin(in *image) inputs {
	return inputs{patches: in.patches(1, 0), positions: a.table.of(in)}
}

func (a *gemma4Unified) first(s *pass) {
	x := s.linear(s.layerNorm(s.patches, a.norm1, unifiedEps), a.patch)
	s.Add(s.x, s.layerNorm(x, a.norm2, unifiedEps), s.positions)
}

func (a *gemma4Unified) block(*pass, int) {}

func (a *gemma4Unified) last(s *pass) backend.Tensor {
	return s.Multiply(s.Norm(s.layerNorm(s.x, a.norm3, unifiedEps), nil), a.out)
}

// positionTable is the embeddings of columns, then of lines. It is large and few rows of it are used, so they are read
// from the file when they are.
type positionTable struct {
	t        *gguf.Tensor
	n, width int
}

func bindPositions(l *nn.Loader, width int) positionTable {
	t := l.Tensor("v.position_embd.weight", width, 0, 2)
	if t == nil {
		return positionTable{}
	}
	if !t.Type.Dequantizable() {
		l.Fail("tensor %q: type %s is not supported", t.Name, t.Type)
	}
	return positionTable{t, t.Shape[1], width}
}

// of returns the embeddings of an image's patches.
func (p positionTable) of(in *image) []float32 {
	columns, lines := p.rows(0, in.w), p.rows(p.n, in.h)
	rows := make([]float32, len(in.at)*p.width)
	for i, at := range in.at {
		row, x, y := rows[i*p.width:][:p.width], columns[at.x], lines[at.y]
		for j := range row {
			row[j] = x[j] + y[j]
		}
	}
	return rows
}

// rows decodes n rows of a table that begins at row first.
func (p positionTable) rows(first, n int) [][]float32 {
	size := p.t.Type.RowBytes(p.width)
	list := make([][]float32, n)
	for i := range list {
		list[i] = make([]float32, p.width)
		_ = quant.Dequantize(p.t.Type, list[i], p.t.Data[(first+i)*size:][:size]) // the type was checked
	}
	return list
}
