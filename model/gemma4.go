package model

import (
	"math"

	"strobe/backend"
	"strobe/nn"
	"strobe/quant"
)

// gemma4 alternates sliding-window and full attention, normalises before and after every block,
// and may have: experts beside the dense feed-forward layer, embeddings per layer, and trailing
// layers that reuse the keys and values of earlier ones.
type gemma4 struct {
	heads   int
	sliding *nn.Rope
	full    *nn.Rope
	layers  []gemma4Layer

	experts, used, expertW int
	pleDim                 int
	ple                    *perLayerEmbedding
}

type gemma4Layer struct {
	norm, postNorm, ffnNorm, postFFNorm backend.Vector
	q, k, v, o                          backend.Weight // v nil: values are the raw keys; k nil: keys of another layer
	qNorm, kNorm                        backend.Vector
	kvHeads, headDim                    int
	rope                                *nn.Rope
	cache                               int
	ffn                                 nn.FFN
	scale                               float32 // of the layer's output

	// A layer with experts runs them beside the dense feed-forward layer.
	moe                                  *nn.MoE
	routerScale                          backend.Vector
	preFFNorm2, postFFNorm1, postFFNorm2 backend.Vector

	// With embeddings per layer.
	inputGate, proj backend.Weight
	pleNorm         backend.Vector
}

// perLayerEmbedding gives every layer an input of its own for each token.
type perLayerEmbedding struct {
	tokens backend.Weight // [vocab, layers*dim]
	proj   backend.Weight
	norm   backend.Vector
}

func newGemma4(l *nn.Loader, m *Model) (arch, error) {
	m.EmbScale = float32(math.Sqrt(float64(m.Hidden)))
	m.Softcap = l.Float("final_logit_softcapping", 30)
	a := &gemma4{
		heads: l.Need("attention.head_count"), experts: m.Experts, used: m.UsedExps,
		expertW: l.Int("expert_feed_forward_length", 0),
		pleDim:  l.Int("embedding_length_per_layer_input", 0),
	}
	all := l.Need("block_count")
	kvHeads := l.PerLayer("attention.head_count_kv", m.Layers, a.heads)
	widths := l.PerLayer("feed_forward_length", m.Layers, 0)
	fullDim := l.Need("attention.key_length")
	slideDim := l.Int("attention.key_length_swa", fullDim)
	window := l.Need("attention.sliding_window")
	sharedKV := l.Int("attention.shared_kv_layers", 0)
	slides, ok, err := l.File.Bools(l.Key("attention.sliding_window_pattern"))
	l.Keep(err)
	if err == nil && (!ok || len(slides) < m.Layers) {
		l.Fail("key %s: want %d entries", l.Key("attention.sliding_window_pattern"), all)
	}
	if err := l.Check(nn.Range("attention.head_count", a.heads, 1, 1<<12), nn.Range("attention.key_length", fullDim, 2, 1<<14),
		nn.Range("attention.key_length_swa", slideDim, 2, 1<<14), nn.Range("attention.sliding_window", window, 1, 1<<30),
		nn.Range("attention.shared_kv_layers", sharedKV, 0, m.Layers-1),
		nn.Range("embedding_length_per_layer_input", a.pleDim, 0, 1<<16)); err != nil {
		return nil, err
	}
	rotSlide, rot := l.Int("rope.dimension_count_swa", slideDim), l.Int("rope.dimension_count", fullDim)
	if err := l.Check(nn.Range("rope.dimension_count_swa", rotSlide, 2, slideDim), nn.Range("rope.dimension_count", rot, 2, fullDim)); err != nil {
		return nil, err
	}
	a.sliding = l.Rope(rotSlide, l.Float("rope.freq_base_swa", 10000), nil)
	a.full = l.Rope(rot, l.Float("rope.freq_base", 1e6), freqFactors(l, rot/2))

	lastOwner := map[bool]int{} // by kind: the last layer with keys of its own
	for i := range m.Layers {
		if owner, ok := lastOwner[slides[i]]; ok && i >= m.Layers-sharedKV {
			m.place[i] = m.place[owner] // where the keys are
		}
		p := m.block(l, i)
		y := gemma4Layer{
			norm: l.Vector(p+"attn_norm.weight", m.Hidden), postNorm: l.Vector(p+"post_attention_norm.weight", m.Hidden),
			ffnNorm: l.Vector(p+"ffn_norm.weight", m.Hidden), postFFNorm: l.Vector(p+"post_ffw_norm.weight", m.Hidden),
			kvHeads: kvHeads[i], headDim: fullDim, rope: a.full, scale: 1,
		}
		w := 0
		if slides[i] {
			y.headDim, y.rope, w = slideDim, a.sliding, window
		}
		if err := l.Check(nn.Range("attention.head_count_kv", y.kvHeads, 1, a.heads), nn.Range("feed_forward_length", widths[i], 1, 1<<22)); err != nil {
			return nil, err
		}
		if a.heads%y.kvHeads != 0 {
			l.Fail("layer %d: %d heads cannot share %d key/value heads", i, a.heads, y.kvHeads)
		}
		qw, kw := a.heads*y.headDim, y.kvHeads*y.headDim
		y.q = l.Matrix(p+"attn_q.weight", m.Hidden, qw)
		y.o = l.Matrix(p+"attn_output.weight", qw, m.Hidden)
		y.qNorm = l.Vector(p+"attn_q_norm.weight", y.headDim)
		if i < m.Layers-sharedKV {
			y.k = l.Matrix(p+"attn_k.weight", m.Hidden, kw)
			if l.Has(p + "attn_v.weight") {
				y.v = l.Matrix(p+"attn_v.weight", m.Hidden, kw)
			}
			y.kNorm = l.Vector(p+"attn_k_norm.weight", y.headDim)
			y.cache = l.Attention(y.kvHeads, y.headDim, w)
			lastOwner[slides[i]] = i
		} else if owner, ok := lastOwner[slides[i]]; ok {
			y.cache = a.layers[owner].cache
		} else {
			l.Fail("layer %d shares keys, but no earlier layer of its kind has any", i)
		}
		y.ffn = l.FFN(p, "", m.Hidden, widths[i], backend.GELU)
		if l.Has(p + "layer_output_scale.weight") {
			y.scale = l.Scalar(p + "layer_output_scale.weight")
		}
		if l.Has(p + "ffn_gate_inp.weight") {
			a.loadExperts(l, p, m.Hidden, &y)
		}
		if a.pleDim > 0 {
			y.inputGate = l.Matrix(p+"inp_gate.weight", m.Hidden, a.pleDim)
			y.proj = l.Matrix(p+"proj.weight", a.pleDim, m.Hidden)
			y.pleNorm = l.Vector(p+"post_norm.weight", m.Hidden)
		}
		a.layers = append(a.layers, y)
		if l.Err != nil {
			return nil, l.Err
		}
	}
	if l.On(m.place[0]); a.pleDim > 0 {
		a.ple = &perLayerEmbedding{
			tokens: l.Matrix("per_layer_token_embd.weight", a.pleDim*m.Layers, m.Vocab),
			proj:   l.Matrix("per_layer_model_proj.weight", m.Hidden, a.pleDim*m.Layers),
			norm:   l.Vector("per_layer_proj_norm.weight", a.pleDim),
		}
	}
	return a, l.Err
}

// loadExperts adds the mixture of a layer. The dense layer stays, with norms of its own.
func (a *gemma4) loadExperts(l *nn.Loader, p string, hidden int, y *gemma4Layer) {
	if err := l.Check(nn.Range("expert_count", a.experts, 1, 1<<16), nn.Range("expert_used_count", a.used, 1, a.experts),
		nn.Range("expert_feed_forward_length", a.expertW, 1, 1<<22)); err != nil {
		return
	}
	e := l.MoE(p, hidden, a.expertW, a.experts, a.used, backend.GELU)
	// NVFP4 files fold this scale into the second-level scale of the weights.
	if l.Err == nil && e.Down.Type() != quant.NVFP4 {
		e.DownScale = l.Optional(p+"ffn_down_exps.scale", a.experts)
	}
	y.moe = &e
	y.routerScale = l.Vector(p+"ffn_gate_inp.scale", hidden)
	y.preFFNorm2 = l.Vector(p+"pre_ffw_norm_2.weight", hidden)
	y.postFFNorm1 = l.Vector(p+"post_ffw_norm_1.weight", hidden)
	y.postFFNorm2 = l.Vector(p+"post_ffw_norm_2.weight", hidden)
}

// freqFactors reads the divisors of the full layers' rotary frequencies, which turn most pairs off.
func freqFactors(l *nn.Loader, n int) []float32 {
	if !l.Has("rope_freqs.weight") {
		return nil
	}
	return l.Floats("rope_freqs.weight", n)
}

func (a *gemma4) begin(s *step) {
	s.Angles(a.sliding, a.full)
	if a.ple == nil || s.extra.Buf != nil {
		return
	}
	// The input of each layer: the token's own embedding for it, mixed with a projection of
	// the token's embedding.
	in, tok := s.Multiply(s.x, a.ple.proj), s.Rows(a.pleDim*s.Layers)
	s.Scale(in, in, invSqrt(s.Hidden))
	s.NormHeads(in, s.Layers, a.ple.norm)
	s.Embed(tok, a.ple.tokens, s.ids, float32(math.Sqrt(float64(a.pleDim))))
	s.Add(in, in, tok)
	s.Scale(in, in, float32(math.Sqrt(0.5)))
	s.extra = in
}

func (a *gemma4) layer(s *step, il int) {
	y := &a.layers[il]
	h := a.attention(s, s.Norm(s.x, y.norm), y)
	s.RMSNorm(h, h, y.postNorm, s.Eps)
	s.Add(s.x, s.x, h)

	h = y.ffn.Forward(s.Step, s.Norm(s.x, y.ffnNorm))
	if y.moe != nil {
		s.RMSNorm(h, h, y.postFFNorm1, s.Eps)
		// The router sees the residual stream, not the experts' normalised input.
		router := s.Norm(s.x, y.routerScale)
		s.Scale(router, router, invSqrt(s.Hidden))
		e := y.moe.Forward(s.Step, s.Norm(s.x, y.preFFNorm2), router)
		s.RMSNorm(e, e, y.postFFNorm2, s.Eps)
		s.Add(h, h, e)
	}
	s.RMSNorm(h, h, y.postFFNorm, s.Eps)
	s.Add(s.x, s.x, h)

	if a.ple != nil {
		g := s.Multiply(s.x, y.inputGate)
		s.Gated(g, g, s.extra.Columns(il*a.pleDim, a.pleDim), backend.GELU)
		h = s.Multiply(g, y.proj)
		s.RMSNorm(h, h, y.pleNorm, s.Eps)
		s.Add(s.x, s.x, h)
	}
	if y.scale != 1 {
		s.Scale(s.x, s.x, y.scale)
	}
}

// attention: scores are not scaled; values are normalised without weights, and are the raw keys where the layer has no
// projection for them.
func (a *gemma4) attention(s *step, h backend.Tensor, y *gemma4Layer) backend.Tensor {
	var q, k, v backend.Tensor
	switch {
	case y.k == nil:
		q = s.Multiply(h, y.q)
	case y.v == nil:
		p := s.Project(h, y.q, y.k)
		q, k, v = p[0], p[1], s.Rows(y.k.Rows())
		s.RMSNorm(v.Split(y.kvHeads), k.Split(y.kvHeads), nil, s.Eps)
	default:
		p := s.Project(h, y.q, y.k, y.v)
		q, k, v = p[0], p[1], p[2]
		s.NormHeads(v, y.kvHeads, nil)
	}
	s.NormHeads(q, a.heads, y.qNorm)
	s.Rotate(q, a.heads, y.rope)
	if y.k != nil {
		s.NormHeads(k, y.kvHeads, y.kNorm)
		s.Rotate(k, y.kvHeads, y.rope)
		s.Remember(y.cache, k, v)
	}
	o := s.Attend(y.cache, q, backend.AttnParams{Heads: a.heads, KVHeads: y.kvHeads, Scale: 1})
	return s.Multiply(o, y.o)
}
