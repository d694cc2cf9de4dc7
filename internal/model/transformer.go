package model

import (
	"math"

	"strobe/internal/backend"
	"strobe/internal/nn"
)

// transformer is what Llama, Qwen2 and Qwen3 have in common: grouped-query attention with rotary positions, then a
// SwiGLU or a mixture of experts. Qwen2 adds biases to queries, keys and values, Qwen3 normalises queries and keys.
type transformer struct {
	heads, kvHeads, headDim int
	rope                    *nn.Rope
	layers                  []transformerLayer
}

type transformerLayer struct {
	norm, ffnNorm       backend.Vector // [hidden]
	q                   backend.Weight // [heads*headDim, hidden]
	k, v                backend.Weight // [kvHeads*headDim, hidden]
	o                   backend.Weight // [hidden, heads*headDim]
	qBias, kBias, vBias backend.Vector // [heads*headDim], [kvHeads*headDim] twice; optional
	oBias               backend.Vector // [hidden]; optional
	qNorm, kNorm        backend.Vector // [headDim]; Qwen3
	cache               int            // number of the layer in the cache
	ffn                 nn.FFN
	moe                 *nn.MoE // instead of ffn
}

func newTransformer(l *nn.Loader, m *Model) (arch, error) {
	a := &transformer{}
	a.heads, a.kvHeads, a.headDim = l.Heads(m.Hidden)
	width := l.Int("feed_forward_length", 0)
	if m.Experts > 0 {
		width = l.Int("expert_feed_forward_length", width)
		l.Check(nn.Range("expert_used_count", m.UsedExps, 1, m.Experts))
	}
	if v := l.Int("attention.value_length", a.headDim); v != a.headDim {
		l.Fail("value length %d differs from key length %d", v, a.headDim)
	}
	rot := l.Int("rope.dimension_count", a.headDim)
	if err := l.Check(nn.Range("feed_forward_length", width, 1, 1<<22),
		nn.Range("rope.dimension_count", rot, 2, a.headDim)); err != nil {
		return nil, err
	}
	a.rope = l.Rope(rot, l.Float("rope.freq_base", 10000), l.RopeFactors(rot)) // Llama 3 stretches longer waves so
	l.Lacks("output.bias")
	for i := range m.Layers {
		p := m.block(l, i)
		l.Lacks(p+"ffn_gate.bias", p+"ffn_up.bias", p+"ffn_down.bias", p+"ffn_gate.0.weight", p+"attn_sinks.weight")
		y := transformerLayer{
			norm: l.Vector(p+"attn_norm.weight", m.Hidden), ffnNorm: l.Vector(p+"ffn_norm.weight", m.Hidden),
			o: l.Matrix(p+"attn_output.weight", a.heads*a.headDim, m.Hidden), oBias: l.Optional(p+"attn_output.bias", m.Hidden),
			vBias: l.Optional(p+"attn_v.bias", a.kvHeads*a.headDim),
			cache: l.Attention(a.kvHeads, a.headDim, 0),
		}
		if l.Arch == "llama" {
			y.q, y.qBias = l.Pairs(p+"attn_q", m.Hidden, a.heads, a.headDim, rot)
			y.k, y.kBias = l.Pairs(p+"attn_k", m.Hidden, a.kvHeads, a.headDim, rot)
			y.v = l.Matrix(p+"attn_v.weight", m.Hidden, a.kvHeads*a.headDim)
		} else {
			y.q, y.k, y.v = l.QKV(p, m.Hidden, a.heads*a.headDim, a.kvHeads*a.headDim)
			y.qBias = l.Optional(p+"attn_q.bias", a.heads*a.headDim)
			y.kBias = l.Optional(p+"attn_k.bias", a.kvHeads*a.headDim)
		}
		if l.Arch == "qwen3" || l.Arch == "qwen3moe" {
			y.qNorm, y.kNorm = l.Vector(p+"attn_q_norm.weight", a.headDim), l.Vector(p+"attn_k_norm.weight", a.headDim)
		}
		if m.Experts > 0 {
			e := l.MoE(p, m.Hidden, width, m.Experts, m.UsedExps, backend.SiLU)
			y.moe = &e
		} else {
			y.ffn = l.FFN(p, "", m.Hidden, width, backend.SiLU)
		}
		a.layers = append(a.layers, y)
		if l.Err != nil {
			return nil, l.Err
		}
	}
	return a, l.Err
}

func (a *transformer) begin(s *step) { s.Angles(a.rope) }

func (a *transformer) layer(s *step, il int) {
	y := &a.layers[il]
	h := s.Norm(s.x, y.norm) // [tokens, hidden]
	p := s.Project(h, y.q, y.k, y.v)
	q, k, v := p[0], p[1], p[2] // [tokens, heads*headDim], [tokens, kvHeads*headDim] twice
	s.addBias(q, y.qBias)
	s.addBias(k, y.kBias)
	s.addBias(v, y.vBias)
	if y.qNorm != nil {
		s.NormHeads(q, a.heads, y.qNorm)
		s.NormHeads(k, a.kvHeads, y.kNorm)
	}
	s.KeepQueries(q, a.heads, a.rope)
	s.KeepKeys(k, a.kvHeads, a.rope)
	s.Rotate(q, a.heads, a.rope)
	s.Rotate(k, a.kvHeads, a.rope)
	s.Remember(y.cache, k, v)
	o := s.Attend(y.cache, q, backend.AttnParams{Heads: a.heads, KVHeads: a.kvHeads, Scale: invSqrt(a.headDim)})
	o = s.Multiply(o, y.o) // [tokens, hidden]
	s.addBias(o, y.oBias)
	s.Add(s.x, s.x, o)

	h = s.Norm(s.x, y.ffnNorm)
	if y.moe != nil {
		s.Add(s.x, s.x, y.moe.Forward(s.Step, h, h))
	} else {
		s.Add(s.x, s.x, y.ffn.Forward(s.Step, h))
	}
}

func (s *step) addBias(x backend.Tensor, v backend.Vector) {
	if v != nil {
		s.AddBias(x, v)
	}
}

func invSqrt(n int) float32 { return float32(1 / math.Sqrt(float64(n))) }
