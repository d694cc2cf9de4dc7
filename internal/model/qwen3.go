package model

import (
	"math"

	"strobe/internal/backend"
	"strobe/internal/nn"
)

// qwen3 is a dense transformer: grouped-query attention with normalised queries and keys,
// rotary positions, SwiGLU.
type qwen3 struct {
	heads, kvHeads, headDim int
	rope                    *nn.Rope
	layers                  []qwen3Layer
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
	width := l.Need("feed_forward_length")
	if err := l.Check(nn.Range("attention.head_count", a.heads, 1, 1<<12),
		nn.Range("attention.head_count_kv", a.kvHeads, 1, a.heads),
		nn.Range("attention.key_length", a.headDim, 2, 1<<14), nn.Range("feed_forward_length", width, 1, 1<<22)); err != nil {
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
		p := m.block(l, i)
		y := qwen3Layer{
			norm: l.Vector(p+"attn_norm.weight", m.Hidden), ffnNorm: l.Vector(p+"ffn_norm.weight", m.Hidden),
			qNorm: l.Vector(p+"attn_q_norm.weight", a.headDim), kNorm: l.Vector(p+"attn_k_norm.weight", a.headDim),
			qBias: l.Optional(p+"attn_q.bias", a.heads*a.headDim),
			kBias: l.Optional(p+"attn_k.bias", a.kvHeads*a.headDim),
			vBias: l.Optional(p+"attn_v.bias", a.kvHeads*a.headDim),
			o:     l.Matrix(p+"attn_output.weight", a.heads*a.headDim, m.Hidden),
			ffn:   l.FFN(p, "", m.Hidden, width, backend.SiLU),
			cache: l.Attention(a.kvHeads, a.headDim, 0),
		}
		y.q, y.k, y.v = l.QKV(p, m.Hidden, a.heads*a.headDim, a.kvHeads*a.headDim)
		a.layers = append(a.layers, y)
	}
	return a, l.Err
}

func (a *qwen3) begin(s *step) { s.Angles(a.rope) }

func (a *qwen3) layer(s *step, il int) {
	y := &a.layers[il]
	h := s.Norm(s.x, y.norm)
	p := s.Project(h, y.q, y.k, y.v)
	q, k, v := p[0], p[1], p[2]
	s.addBias(q, y.qBias)
	s.addBias(k, y.kBias)
	s.addBias(v, y.vBias)
	s.NormHeads(q, a.heads, y.qNorm)
	s.NormHeads(k, a.kvHeads, y.kNorm)
	s.KeepQueries(q, a.heads, a.rope)
	s.KeepKeys(k, a.kvHeads, a.rope)
	s.Rotate(q, a.heads, a.rope)
	s.Rotate(k, a.kvHeads, a.rope)
	s.Remember(y.cache, k, v)
	o := s.Attend(y.cache, q, backend.AttnParams{Heads: a.heads, KVHeads: a.kvHeads, Scale: invSqrt(a.headDim)})
	s.Add(s.x, s.x, s.Multiply(o, y.o))

	h = s.Norm(s.x, y.ffnNorm)
	s.Add(s.x, s.x, y.ffn.Forward(s.Step, h))
}

func (s *step) addBias(x backend.Tensor, v backend.Vector) {
	if v != nil {
		s.AddBias(x, v)
	}
}

func invSqrt(n int) float32 { return float32(1 / math.Sqrt(float64(n))) }
