package model

import (
	"fmt"
	"math"

	"strobe/backend"
	"strobe/nn"
)

// qwen3 is a dense transformer: grouped-query attention with normalised queries and keys,
// rotary positions, SwiGLU.
type qwen3 struct {
	heads, kvHeads, headDim int
	rope                    *nn.Rope
	layers                  []qwen3Layer

	h, q, k, v, o backend.Tensor
	ffn           nn.FFNScratch
	width         int
}

type qwen3Layer struct {
	norm, ffnNorm       backend.Vector
	q, k, v, o          backend.Weight
	qBias, kBias, vBias backend.Vector
	qNorm, kNorm        backend.Vector
	cache               int
	ffn                 nn.FFN
}

func newQwen3(l *nn.Loader, m *Model) (arch, error) {
	a := &qwen3{heads: l.Need("attention.head_count")}
	a.kvHeads = l.Int("attention.head_count_kv", a.heads)
	a.headDim = l.Int("attention.key_length", m.Hidden/max(1, a.heads))
	a.width = l.Need("feed_forward_length")
	if err := l.Check(nn.Range("attention.head_count", a.heads, 1, 1<<12), nn.Range("attention.head_count_kv", a.kvHeads, 1, a.heads),
		nn.Range("attention.key_length", a.headDim, 2, 1<<14), nn.Range("feed_forward_length", a.width, 1, 1<<22)); err != nil {
		return nil, err
	}
	if a.heads%a.kvHeads != 0 {
		l.Fail("%d heads cannot share %d key/value heads", a.heads, a.kvHeads)
	}
	if v := l.Int("attention.value_length", a.headDim); v != a.headDim {
		l.Fail("value length %d differs from key length %d", v, a.headDim)
	}
	rot := l.Int("rope.dimension_count", a.headDim)
	if err := l.Check(nn.Range("rope.dimension_count", rot, 2, a.headDim)); err != nil {
		return nil, err
	}
	a.rope = l.Rope(rot, l.Float("rope.freq_base", 10000), nil)
	for i := range m.Layers {
		p := fmt.Sprintf("blk.%d.", i)
		y := qwen3Layer{
			norm: l.Vector(p+"attn_norm.weight", m.Hidden), ffnNorm: l.Vector(p+"ffn_norm.weight", m.Hidden),
			qNorm: l.Vector(p+"attn_q_norm.weight", a.headDim), kNorm: l.Vector(p+"attn_k_norm.weight", a.headDim),
			qBias: l.Optional(p+"attn_q.bias", a.heads*a.headDim),
			kBias: l.Optional(p+"attn_k.bias", a.kvHeads*a.headDim),
			vBias: l.Optional(p+"attn_v.bias", a.kvHeads*a.headDim),
			o:     l.Matrix(p+"attn_output.weight", a.heads*a.headDim, m.Hidden),
			ffn:   l.FFN(p, "", m.Hidden, a.width, backend.SiLU),
			cache: l.Attention(a.kvHeads, a.headDim, 0),
		}
		y.q, y.k, y.v = l.QKV(p, m.Hidden, a.heads*a.headDim, a.kvHeads*a.headDim)
		a.layers = append(a.layers, y)
	}
	return a, l.Err
}

func (a *qwen3) reserve(m *Model, rows int) {
	b := m.b
	a.h, a.o = b.Alloc(rows, m.Hidden), b.Alloc(rows, a.heads*a.headDim)
	a.q, a.k, a.v = b.Alloc(rows, a.heads*a.headDim), b.Alloc(rows, a.kvHeads*a.headDim), b.Alloc(rows, a.kvHeads*a.headDim)
	a.ffn = nn.NewFFNScratch(b, rows, a.width)
	a.rope.Reserve(b, rows)
}

func (a *qwen3) begin(s *step) { a.rope.Angles(s.b, s.n, s.pos) }

func (a *qwen3) layer(s *step, il int) {
	b, n, y := s.b, s.n, &a.layers[il]
	h, q, k, v, o := a.h.First(n), a.q.First(n), a.k.First(n), a.v.First(n), a.o.First(n)

	b.RMSNorm(h, s.x, y.norm, s.eps)
	b.MatMul(h, backend.Product{W: y.q, Y: q}, backend.Product{W: y.k, Y: k}, backend.Product{W: y.v, Y: v})
	for _, bias := range []struct {
		x backend.Tensor
		v backend.Vector
	}{{q, y.qBias}, {k, y.kBias}, {v, y.vBias}} {
		if bias.v != nil {
			b.AddBias(bias.x, bias.v)
		}
	}
	qh, kh := q.Split(a.heads), k.Split(a.kvHeads)
	b.RMSNorm(qh, qh, y.qNorm, s.eps)
	b.RMSNorm(kh, kh, y.kNorm, s.eps)
	a.rope.Rotate(s.b, qh, a.heads)
	a.rope.Rotate(s.b, kh, a.kvHeads)
	s.attend(o, q, k, v, y.cache, backend.AttnParams{Heads: a.heads, KVHeads: a.kvHeads, Scale: invSqrt(a.headDim)})
	b.MatMul(o, backend.Product{W: y.o, Y: h})
	b.Add(s.x, s.x, h)

	b.RMSNorm(h, s.x, y.ffnNorm, s.eps)
	y.ffn.Forward(s.b, h, h, &a.ffn)
	b.Add(s.x, s.x, h)
}

// attend writes k and v to a cache layer (unless k is empty) and attends to it.
func (s *step) attend(o, q, k, v backend.Tensor, layer int, p backend.AttnParams) {
	at := s.mem.Place(layer)
	pool, plan := s.mem.Pool(at.Group), &s.batch.Plans[at.Group]
	if k.Buf != nil {
		s.b.KVWrite(pool, at.Index, k, v, plan)
	}
	s.b.Attention(o, q, pool, at.Index, plan, p)
}

func invSqrt(n int) float32 { return float32(1 / math.Sqrt(float64(n))) }
