package vision

import (
	"math"

	"strobe/internal/backend"
	"strobe/internal/nn"
)

// qwen is the tower of Qwen3.5 to 3.8 (and of Qwen3-VL without deepstack): a transformer with LayerNorm, biases, rotary
// positions of both directions and full attention, then a merger that makes a row of each block of patches.
type qwen struct {
	c          *Config
	act        backend.Activation
	merge      backend.Activation // of the merger
	patch      backend.Weight     // [width, 3*patch*patch]
	patchBias  backend.Vector     // [width]
	table      []float32          // of positions, side x side [width]
	side       int
	blocks     []qwenBlock
	norm       layerNorm
	mid, out   linear // [merge^2*width, merge^2*width], [out, merge^2*width]
	perRow     int    // patches of a row
	headsWidth int
}

type qwenBlock struct {
	norm, ffnNorm       layerNorm
	q, k, v             backend.Weight // [heads*headDim, width]
	qBias, kBias, vBias backend.Vector // [heads*headDim]
	o                   linear         // [width, heads*headDim]
	up, down            linear         // [ffn, width], [width, ffn]
	cache               int
}

func newQwen(l *nn.Loader, e *Encoder, act backend.Activation, like Like) tower {
	c := &e.Config
	a := &qwen{c: c, act: act, merge: backend.GELUErf, perRow: c.Merge * c.Merge, headsWidth: c.Heads * c.HeadDim}
	if like == LlamaCpp {
		a.merge = backend.GELU
	}
	kernels := []string{"v.patch_embd.weight"}
	if l.Has("v.patch_embd.weight.1") {
		kernels = append(kernels, "v.patch_embd.weight.1")
	}
	a.patch = patchMatrix(l, c.Patch, c.Width, kernels...)
	a.patchBias = l.Vector("v.patch_embd.bias", c.Width)
	a.table = l.Floats("v.position_embd.weight", c.Width, 0)
	a.side = int(math.Sqrt(float64(len(a.table) / c.Width)))
	if l.Err == nil && a.side*a.side*c.Width != len(a.table) {
		l.Fail("tensor %q: %d positions are not a square", "v.position_embd.weight", len(a.table)/c.Width)
	}
	for i := range c.Blocks {
		if l.Err != nil {
			return nil
		}
		p := blockPrefix(i)
		l.Lacks(deepstack(i))
		y := qwenBlock{
			norm: bindLayerNorm(l, p+"ln1", c.Width), ffnNorm: bindLayerNorm(l, p+"ln2", c.Width),
			o:  bindLinear(l, p+"attn_out", a.headsWidth, c.Width),
			up: bindLinear(l, p+"ffn_up", c.Width, c.FFN), down: bindLinear(l, p+"ffn_down", c.FFN, c.Width),
			cache: l.Attention(c.Heads, e.headPad, 0),
		}
		y.q, y.k, y.v = l.QKV(p, c.Width, a.headsWidth, a.headsWidth)
		if bias := l.Floats(p+"attn_qkv.bias", 3*a.headsWidth); l.Err == nil {
			y.qBias, y.kBias = l.VectorOf(bias[:a.headsWidth]), l.VectorOf(bias[a.headsWidth:][:a.headsWidth])
			y.vBias = l.VectorOf(bias[2*a.headsWidth:])
		}
		a.blocks = append(a.blocks, y)
	}
	merged := a.perRow * c.Width
	a.norm = bindLayerNorm(l, "v.post_ln", c.Width)
	a.mid, a.out = bindLinear(l, "mm.0", merged, merged), bindLinear(l, "mm.2", merged, 0)
	if l.Err == nil {
		c.Out = a.out.w.Rows()
	}
	return a
}

// begin: pairs of a head's first quarter are turned by lines, those of the second by columns.
func (a *qwen) begin(in *image) inputs {
	return inputs{
		patches:   in.patches(1, 0),
		positions: in.interpolated(a.table, a.side, a.c.Width),
		rotary:    []angles{in.rotary(a.c.HeadDim/4, 10000, line, column)},
	}
}

func (a *qwen) first(s *pass) {
	s.MatMul(s.patches, backend.Product{W: a.patch, Y: s.x})
	s.AddBias(s.x, a.patchBias)
	s.Add(s.x, s.x, s.positions)
}

func (a *qwen) block(s *pass, i int) {
	y := &a.blocks[i]
	h := s.layerNorm(s.x, y.norm, a.c.Eps)
	p := s.Project(h, y.q, y.k, y.v)
	q, k, v := p[0], p[1], p[2] // [patches, heads*headDim]
	s.AddBias(q, y.qBias)
	s.AddBias(k, y.kBias)
	s.AddBias(v, y.vBias)
	turn := s.rotary[0]
	s.RoPE(q.Split(a.c.Heads), a.c.Heads, turn.cos, turn.sin)
	s.RoPE(k.Split(a.c.Heads), a.c.Heads, turn.cos, turn.sin)
	o := s.attend(y.cache, q, k, v, a.c.Heads, float32(1/math.Sqrt(float64(a.c.HeadDim))))
	s.Add(s.x, s.x, s.linear(o, y.o))

	h = s.linear(s.layerNorm(s.x, y.ffnNorm, a.c.Eps), y.up) // [patches, ffn]
	s.Activate(h, h, a.act)
	s.Add(s.x, s.x, s.linear(h, y.down))
}

// last puts the patches of a block side by side.
func (a *qwen) last(s *pass) backend.Tensor {
	h := sideBySide(s.layerNorm(s.x, a.norm, a.c.Eps), a.perRow) // [rows, merge^2*width]
	h = s.linear(h, a.mid)
	s.Activate(h, h, a.merge)
	return s.linear(h, a.out)
}

// sideBySide views every n rows as one. Rows must be contiguous.
func sideBySide(t backend.Tensor, n int) backend.Tensor {
	t.Rows, t.Cols, t.Stride = t.Rows/n, t.Cols*n, t.Stride*n
	return t
}
