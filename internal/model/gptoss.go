package model

import (
	"strobe/internal/backend"
	"strobe/internal/nn"
)

// gptOSS is OpenAI's gpt-oss: attention with a sink for each head, which takes a part of the softmax and adds nothing,
// then a mixture of experts. Every second layer sees all tokens, the others a window. Products have biases.
type gptOSS struct {
	heads, kvHeads, headDim int
	sliding, full           *nn.Rope
	layers                  []gptOSSLayer
}

type gptOSSLayer struct {
	norm, ffnNorm       backend.Vector // [hidden]
	q                   backend.Weight // [heads*headDim, hidden]
	k, v                backend.Weight // [kvHeads*headDim, hidden]
	o                   backend.Weight // [hidden, heads*headDim]
	qBias, kBias, vBias backend.Vector // [heads*headDim], [kvHeads*headDim] twice
	oBias               backend.Vector // [hidden]
	sinks               backend.Vector // [heads]
	rope                *nn.Rope
	cache               int // number of the layer in the cache
	moe                 nn.MoE
}

func newGPTOSS(l *nn.Loader, m *Model) (arch, error) {
	a := &gptOSS{}
	a.heads, a.kvHeads, a.headDim = l.Heads(m.Hidden)
	width, window := l.Need("expert_feed_forward_length"), l.Need("attention.sliding_window")
	rot := l.Int("rope.dimension_count", a.headDim)
	if v := l.Int("attention.value_length", a.headDim); v != a.headDim {
		l.Fail("value length %d differs from key length %d", v, a.headDim)
	}
	if err := l.Check(nn.Range("expert_count", m.Experts, 1, 1<<16),
		nn.Range("expert_used_count", m.UsedExps, 1, m.Experts),
		nn.Range("expert_feed_forward_length", width, 1, 1<<22), nn.Range("attention.sliding_window", window, 1, 1<<30),
		nn.Range("rope.dimension_count", rot, 2, a.headDim)); err != nil {
		return nil, err
	}
	base := l.Float("rope.freq_base", 10000)
	a.full = l.Rope(rot, base, l.RopeFactors(rot))
	if a.sliding = a.full; l.Float("rope.freq_base_swa", base) != base {
		a.sliding = l.Rope(rot, l.Float("rope.freq_base_swa", base), l.RopeFactors(rot))
	}
	l.Lacks("output.bias")
	q, kv := a.heads*a.headDim, a.kvHeads*a.headDim
	for i, slides := range l.Slides(m.Layers, 2) {
		p := m.block(l, i)
		l.Lacks(p + "attn_qkv.bias")
		y := gptOSSLayer{
			norm: l.Vector(p+"attn_norm.weight", m.Hidden), ffnNorm: l.Vector(p+"post_attention_norm.weight", m.Hidden),
			qBias: l.Optional(p+"attn_q.bias", q), kBias: l.Optional(p+"attn_k.bias", kv),
			vBias: l.Optional(p+"attn_v.bias", kv),
			o:     l.Matrix(p+"attn_output.weight", q, m.Hidden), oBias: l.Vector(p+"attn_output.bias", m.Hidden),
			sinks: l.Vector(p+"attn_sinks.weight", a.heads),
			rope:  a.full,
		}
		y.q, y.k, y.v = l.QKV(p, m.Hidden, q, kv)
		if slides {
			y.rope, y.cache = a.sliding, l.Attention(a.kvHeads, a.headDim, window)
		} else {
			y.cache = l.Attention(a.kvHeads, a.headDim, 0)
		}
		y.moe = l.MoE(p, m.Hidden, width, m.Experts, m.UsedExps, backend.ClampedSwiGLU)
		y.moe.Biases(l, p, m.Hidden, width, m.Experts)
		a.layers = append(a.layers, y)
		if l.Err != nil {
			return nil, l.Err
		}
	}
	return a, l.Err
}

func (a *gptOSS) begin(s *step) {
	if s.Angles(a.full); a.sliding != a.full {
		s.Angles(a.sliding)
	}
}

func (a *gptOSS) layer(s *step, il int) {
	y := &a.layers[il]
	p := s.Project(s.Norm(s.x, y.norm), y.q, y.k, y.v)
	q, k, v := p[0], p[1], p[2] // [tokens, heads*headDim], [tokens, kvHeads*headDim] twice
	s.addBias(q, y.qBias)
	s.addBias(k, y.kBias)
	s.addBias(v, y.vBias)
	s.Rotate(q, a.heads, y.rope)
	s.Rotate(k, a.kvHeads, y.rope)
	s.Remember(y.cache, k, v)
	o := s.Attend(y.cache, q, backend.AttnParams{Heads: a.heads, KVHeads: a.kvHeads, Scale: invSqrt(a.headDim),
		Sinks: y.sinks})
	o = s.Multiply(o, y.o) // [tokens, hidden]
	s.AddBias(o, y.oBias)
	s.Add(s.x, s.x, o)

	h := s.Norm(s.x, y.ffnNorm)
	s.Add(s.x, s.x, y.moe.Forward(s.Step, h, h))
}
