package model

import (
	"fmt"
	"math"

	"strobe/backend"
	"strobe/quant"
)

// gemma4 alternates sliding-window and full attention, normalises before and after every block,
// and may have: experts beside the dense feed-forward layer, embeddings per layer, and trailing
// layers that reuse the keys and values of earlier ones.
type gemma4 struct {
	heads   int
	sliding *rope
	full    *rope
	layers  []gemma4Layer

	width, maxQ, maxKV     int
	experts, used, expertW int
	pleDim                 int
	ple                    *perLayerEmbedding

	h, y, e                       backend.Tensor
	q, k, v, o                    backend.Tensor
	ffn                           ffnScratch
	moe                           moeScratch
	pleGate, pleInputs, pleTokens backend.Tensor
}

type gemma4Layer struct {
	norm, postNorm, ffnNorm, postFFNorm backend.Vector
	q, k, v, o                          backend.Weight // v nil: values are the raw keys; k nil: keys of another layer
	qNorm, kNorm                        backend.Vector
	kvHeads, headDim                    int
	rope                                *rope
	cache                               int
	ffn                                 ffn
	scale                               float32 // of the layer's output

	// A layer with experts runs them beside the dense feed-forward layer.
	moe                                  *moe
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

func newGemma4(l *loader, m *Model) (arch, error) {
	m.EmbScale = float32(math.Sqrt(float64(m.Hidden)))
	m.Softcap = l.float("final_logit_softcapping", 30)
	a := &gemma4{
		heads: l.need("attention.head_count"), experts: m.Experts, used: m.UsedExps,
		expertW: l.int("expert_feed_forward_length", 0),
		pleDim:  l.int("embedding_length_per_layer_input", 0),
	}
	all := l.need("block_count")
	kvHeads := l.perLayer("attention.head_count_kv", m.Layers, a.heads)
	widths := l.perLayer("feed_forward_length", m.Layers, 0)
	fullDim := l.need("attention.key_length")
	slideDim := l.int("attention.key_length_swa", fullDim)
	window := l.need("attention.sliding_window")
	sharedKV := l.int("attention.shared_kv_layers", 0)
	slides, ok, err := l.f.Bools(l.key("attention.sliding_window_pattern"))
	l.keep(err)
	if err == nil && (!ok || len(slides) < m.Layers) {
		l.fail("key %s: want %d entries", l.key("attention.sliding_window_pattern"), all)
	}
	if err := l.check(dim{"attention.head_count", a.heads, 1, 1 << 12}, dim{"attention.key_length", fullDim, 2, 1 << 14},
		dim{"attention.key_length_swa", slideDim, 2, 1 << 14}, dim{"attention.sliding_window", window, 1, 1 << 30},
		dim{"attention.shared_kv_layers", sharedKV, 0, m.Layers - 1},
		dim{"embedding_length_per_layer_input", a.pleDim, 0, 1 << 16}); err != nil {
		return nil, err
	}
	a.sliding = l.newRope(l.int("rope.dimension_count_swa", slideDim), l.float("rope.freq_base_swa", 10000), nil)
	rot := l.int("rope.dimension_count", fullDim)
	a.full = l.newRope(rot, l.float("rope.freq_base", 1e6), l.freqFactors(rot/2))

	lastOwner := map[bool]int{} // by kind: cache of the last layer with keys of its own
	for i := range m.Layers {
		p := fmt.Sprintf("blk.%d.", i)
		y := gemma4Layer{
			norm: l.vector(p+"attn_norm.weight", m.Hidden), postNorm: l.vector(p+"post_attention_norm.weight", m.Hidden),
			ffnNorm: l.vector(p+"ffn_norm.weight", m.Hidden), postFFNorm: l.vector(p+"post_ffw_norm.weight", m.Hidden),
			kvHeads: kvHeads[i], headDim: fullDim, rope: a.full, scale: 1,
		}
		w := 0
		if slides[i] {
			y.headDim, y.rope, w = slideDim, a.sliding, window
		}
		if err := l.check(dim{"attention.head_count_kv", y.kvHeads, 1, a.heads}, dim{"feed_forward_length", widths[i], 1, 1 << 22}); err != nil {
			return nil, err
		}
		if a.heads%y.kvHeads != 0 {
			l.fail("layer %d: %d heads cannot share %d key/value heads", i, a.heads, y.kvHeads)
		}
		qw, kw := a.heads*y.headDim, y.kvHeads*y.headDim
		y.q = l.matrix(p+"attn_q.weight", m.Hidden, qw)
		y.o = l.matrix(p+"attn_output.weight", qw, m.Hidden)
		y.qNorm = l.vector(p+"attn_q_norm.weight", y.headDim)
		if i < m.Layers-sharedKV {
			y.k = l.matrix(p+"attn_k.weight", m.Hidden, kw)
			if l.has(p + "attn_v.weight") {
				y.v = l.matrix(p+"attn_v.weight", m.Hidden, kw)
			}
			y.kNorm = l.vector(p+"attn_k_norm.weight", y.headDim)
			y.cache = l.attn(y.kvHeads, y.headDim, w)
			lastOwner[slides[i]] = y.cache
		} else if c, ok := lastOwner[slides[i]]; ok {
			y.cache = c
		} else {
			l.fail("layer %d shares keys, but no earlier layer of its kind has any", i)
		}
		y.ffn = l.ffn(p, "", m.Hidden, widths[i], backend.GELU)
		if l.has(p + "layer_output_scale.weight") {
			y.scale = l.scalar(p + "layer_output_scale.weight")
		}
		if l.has(p + "ffn_gate_inp.weight") {
			a.loadExperts(l, p, m.Hidden, &y)
		}
		if a.pleDim > 0 {
			y.inputGate = l.matrix(p+"inp_gate.weight", m.Hidden, a.pleDim)
			y.proj = l.matrix(p+"proj.weight", a.pleDim, m.Hidden)
			y.pleNorm = l.vector(p+"post_norm.weight", m.Hidden)
		}
		a.width = max(a.width, widths[i])
		a.maxQ, a.maxKV = max(a.maxQ, qw), max(a.maxKV, kw)
		a.layers = append(a.layers, y)
		if l.err != nil {
			return nil, l.err
		}
	}
	if a.pleDim > 0 {
		a.ple = &perLayerEmbedding{
			tokens: l.matrix("per_layer_token_embd.weight", a.pleDim*m.Layers, m.Vocab),
			proj:   l.matrix("per_layer_model_proj.weight", m.Hidden, a.pleDim*m.Layers),
			norm:   l.vector("per_layer_proj_norm.weight", a.pleDim),
		}
	}
	return a, l.err
}

// loadExperts adds the mixture of a layer. The dense layer stays, with norms of its own.
func (a *gemma4) loadExperts(l *loader, p string, hidden int, y *gemma4Layer) {
	if err := l.check(dim{"expert_count", a.experts, 1, 1 << 16}, dim{"expert_used_count", a.used, 1, a.experts},
		dim{"expert_feed_forward_length", a.expertW, 1, 1 << 22}); err != nil {
		return
	}
	e := l.moe(p, hidden, a.expertW, a.experts, a.used, backend.GELU)
	// NVFP4 files fold this scale into the second-level scale of the weights.
	if l.err == nil && e.down.Type() != quant.NVFP4 {
		e.downScale = l.optional(p+"ffn_down_exps.scale", a.experts)
	}
	y.moe = &e
	y.routerScale = l.vector(p+"ffn_gate_inp.scale", hidden)
	y.preFFNorm2 = l.vector(p+"pre_ffw_norm_2.weight", hidden)
	y.postFFNorm1 = l.vector(p+"post_ffw_norm_1.weight", hidden)
	y.postFFNorm2 = l.vector(p+"post_ffw_norm_2.weight", hidden)
}

// freqFactors reads the divisors of the full layers' rotary frequencies, which turn most pairs off.
func (l *loader) freqFactors(n int) []float32 {
	if !l.has("rope_freqs.weight") {
		return nil
	}
	return l.floats("rope_freqs.weight", n)
}

func (a *gemma4) reserve(m *Model, rows int) {
	b := m.b
	a.h, a.y = b.Alloc(rows, m.Hidden), b.Alloc(rows, m.Hidden)
	a.q, a.o = b.Alloc(rows, a.maxQ), b.Alloc(rows, a.maxQ)
	a.k, a.v = b.Alloc(rows, a.maxKV), b.Alloc(rows, a.maxKV)
	a.ffn = newFFNScratch(b, rows, a.width)
	if a.experts > 0 {
		a.e = b.Alloc(rows, m.Hidden)
		a.moe = newMoEScratch(b, rows, a.experts, a.used, a.expertW, m.Hidden)
	}
	if a.ple != nil {
		a.pleInputs, a.pleTokens = b.Alloc(rows, a.pleDim*m.Layers), b.Alloc(rows, a.pleDim*m.Layers)
		a.pleGate = b.Alloc(rows, a.pleDim)
	}
	a.sliding.reserve(b, rows)
	a.full.reserve(b, rows)
}

func (a *gemma4) begin(s *step) {
	a.sliding.angles(s)
	a.full.angles(s)
	if a.ple == nil {
		return
	}
	// The input of each layer: the token's own embedding for it, mixed with a projection of
	// the token's embedding.
	b, in, tok := s.b, a.pleInputs.First(s.n), a.pleTokens.First(s.n)
	b.MatMul(s.x, backend.Product{W: a.ple.proj, Y: in})
	b.Scale(in, in, invSqrt(s.Hidden))
	slices := in.Split(s.Layers)
	b.RMSNorm(slices, slices, a.ple.norm, s.eps)
	b.Embed(tok, a.ple.tokens, s.ids, float32(math.Sqrt(float64(a.pleDim))))
	b.Add(in, in, tok)
	b.Scale(in, in, float32(math.Sqrt(0.5)))
}

func (a *gemma4) layer(s *step, il int) {
	b, n, y := s.b, s.n, &a.layers[il]
	h := a.h.First(n)

	b.RMSNorm(h, s.x, y.norm, s.eps)
	a.attention(s, h, y)
	b.RMSNorm(h, h, y.postNorm, s.eps)
	b.Add(s.x, s.x, h)

	b.RMSNorm(h, s.x, y.ffnNorm, s.eps)
	y.ffn.forward(s, h, h, &a.ffn)
	if y.moe != nil {
		b.RMSNorm(h, h, y.postFFNorm1, s.eps)
		e, in := a.e.First(n), a.y.First(n)
		// The router sees the residual stream, not the experts' normalised input.
		b.RMSNorm(in, s.x, y.routerScale, s.eps)
		b.Scale(in, in, invSqrt(s.Hidden))
		y.moe.route(s, in, &a.moe)
		b.RMSNorm(in, s.x, y.preFFNorm2, s.eps)
		y.moe.forward(s, e, in, &a.moe)
		b.RMSNorm(e, e, y.postFFNorm2, s.eps)
		b.Add(h, h, e)
	}
	b.RMSNorm(h, h, y.postFFNorm, s.eps)
	b.Add(s.x, s.x, h)

	if a.ple != nil {
		g := a.pleGate.First(n)
		b.MatMul(s.x, backend.Product{W: y.inputGate, Y: g})
		b.Gated(g, g, a.pleInputs.First(n).Columns(il*a.pleDim, a.pleDim), backend.GELU)
		b.MatMul(g, backend.Product{W: y.proj, Y: h})
		b.RMSNorm(h, h, y.pleNorm, s.eps)
		b.Add(s.x, s.x, h)
	}
	if y.scale != 1 {
		b.Scale(s.x, s.x, y.scale)
	}
}

// attention replaces h by attention of h. Scores are not scaled; values are normalised without
// weights, and are the raw keys where the layer has no projection for them.
func (a *gemma4) attention(s *step, h backend.Tensor, y *gemma4Layer) {
	b, n := s.b, s.n
	q, o := view(a.q, n, a.heads*y.headDim), view(a.o, n, a.heads*y.headDim)
	var k, v backend.Tensor
	switch {
	case y.k == nil:
		b.MatMul(h, backend.Product{W: y.q, Y: q})
	case y.v == nil:
		k, v = view(a.k, n, y.kvHeads*y.headDim), view(a.v, n, y.kvHeads*y.headDim)
		b.MatMul(h, backend.Product{W: y.q, Y: q}, backend.Product{W: y.k, Y: k})
		b.Copy(v, k)
	default:
		k, v = view(a.k, n, y.kvHeads*y.headDim), view(a.v, n, y.kvHeads*y.headDim)
		b.MatMul(h, backend.Product{W: y.q, Y: q}, backend.Product{W: y.k, Y: k}, backend.Product{W: y.v, Y: v})
	}
	qh := q.Split(a.heads)
	b.RMSNorm(qh, qh, y.qNorm, s.eps)
	y.rope.rotate(s, qh, a.heads)
	if y.k != nil {
		kh, vh := k.Split(y.kvHeads), v.Split(y.kvHeads)
		b.RMSNorm(kh, kh, y.kNorm, s.eps)
		y.rope.rotate(s, kh, y.kvHeads)
		b.RMSNorm(vh, vh, nil, s.eps)
	}
	s.attend(o, q, k, v, y.cache, backend.AttnParams{Heads: a.heads, KVHeads: y.kvHeads, Scale: 1})
	b.MatMul(o, backend.Product{W: y.o, Y: h})
}
