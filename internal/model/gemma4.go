package model

import (
	"math"

	"strobe/internal/backend"
	"strobe/internal/nn"
	"strobe/internal/quant"
)

// gemma4 alternates sliding-window and full attention, normalises before and after every block,
// and may have: experts beside the dense feed-forward layer, embeddings per layer, and trailing
// layers that reuse the keys and values of earlier ones.
type gemma4 struct {
	heads             int
	slides            []bool // per layer
	slideDim, fullDim int    // head dimension of sliding and of full layers
	window            int    // of sliding layers
	widths            []int  // per layer: width of the feed-forward layer
	sliding, full     *nn.Rope
	layers            []gemma4Layer

	experts, used, expertW int // of a mixture; expertW is the width of an expert
	pleDim                 int // columns of an embedding per layer
	ple                    *perLayerEmbedding
}

type gemma4Layer struct {
	norm, postNorm, ffnNorm, postFFNorm backend.Vector // [hidden]
	q                                   backend.Weight // [heads*headDim, hidden]
	k                                   backend.Weight // [kvHeads*headDim, hidden]; nil: keys and values of another layer
	v                                   backend.Weight // [kvHeads*headDim, hidden]; nil: values are the raw keys
	o                                   backend.Weight // [hidden, heads*headDim]
	qNorm, kNorm                        backend.Vector // [headDim]
	kvHeads, headDim, window            int
	rope                                *nn.Rope
	cache                               int // number of the layer in the cache
	ffn                                 nn.FFN
	scale                               float32 // of the layer's output

	// A layer with experts runs them beside the dense feed-forward layer.
	moe                                  *nn.MoE
	routerScale                          backend.Vector // [hidden]
	preFFNorm2, postFFNorm1, postFFNorm2 backend.Vector // [hidden]

	// With embeddings per layer.
	inputGate backend.Weight // [pleDim, hidden]
	proj      backend.Weight // [hidden, pleDim]
	pleNorm   backend.Vector // [hidden]
}

// perLayerEmbedding gives every layer an input of its own for each token.
type perLayerEmbedding struct {
	tokens backend.Weight // [vocab, layers*pleDim]
	proj   backend.Weight // [layers*pleDim, hidden]
	norm   backend.Vector // [pleDim]
}

func newGemma4(l *nn.Loader, m *Model) (arch, error) {
	m.EmbScale = float32(math.Sqrt(float64(m.Hidden)))
	m.Softcap = l.Float("final_logit_softcapping", 30)
	a, err := readGemma4(l, m)
	if err != nil {
		return nil, err
	}
	m.Mutual = a.pleDim == 0 // E2B and E4B, the sizes with embeddings per layer, read images as they read text
	kvHeads := l.PerLayer("attention.head_count_kv", m.Layers, a.heads)
	sharedKV := l.Int("attention.shared_kv_layers", 0)
	if err := l.Check(nn.Range("attention.shared_kv_layers", sharedKV, 0, m.Layers-1),
		nn.Range("embedding_length_per_layer_input", a.pleDim, 0, 1<<16)); err != nil {
		return nil, err
	}
	lastOwner := map[bool]int{} // by kind: the last layer with keys of its own
	for i, slides := range a.slides {
		if owner, ok := lastOwner[slides]; ok && i >= m.Layers-sharedKV {
			m.place[i], kvHeads[i] = m.place[owner], kvHeads[owner] // where the keys are, and as many
		}
		p := m.block(l, i)
		y := a.loadLayer(l, p, m.Hidden, i, kvHeads[i])
		if l.Err != nil {
			return nil, l.Err
		}
		if i < m.Layers-sharedKV {
			kw := y.kvHeads * y.headDim
			y.k = l.Matrix(p+"attn_k.weight", m.Hidden, kw)
			if l.Has(p + "attn_v.weight") {
				y.v = l.Matrix(p+"attn_v.weight", m.Hidden, kw)
			}
			y.kNorm = l.Vector(p+"attn_k_norm.weight", y.headDim)
			y.cache = l.Attention(y.kvHeads, y.headDim, y.window)
			lastOwner[slides] = i
		} else if owner, ok := lastOwner[slides]; ok {
			y.cache = a.layers[owner].cache
		} else {
			l.Fail("layer %d shares keys, but no earlier layer of its kind has any", i)
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
	if l.On(m.place[0], m.place[0]); a.pleDim > 0 {
		a.ple = &perLayerEmbedding{
			tokens: l.Matrix("per_layer_token_embd.weight", a.pleDim*m.Layers, m.Vocab),
			proj:   l.Matrix("per_layer_model_proj.weight", m.Hidden, a.pleDim*m.Layers),
			norm:   l.Vector("per_layer_proj_norm.weight", a.pleDim),
		}
	}
	return a, l.Err
}

// readGemma4 reads what all layers need to know.
func readGemma4(l *nn.Loader, m *Model) (*gemma4, error) {
	a := &gemma4{
		heads: l.Need("attention.head_count"), experts: m.Experts, used: m.UsedExps,
		expertW: l.Int("expert_feed_forward_length", 0),
		pleDim:  l.Int("embedding_length_per_layer_input", 0),
		widths:  l.PerLayer("feed_forward_length", m.Layers, 0),
		fullDim: l.Need("attention.key_length"),
		window:  l.Need("attention.sliding_window"),
	}
	a.slideDim = l.Int("attention.key_length_swa", a.fullDim)
	slides, ok, err := l.File.Bools(l.Key("attention.sliding_window_pattern"))
	l.Keep(err)
	if err == nil && (!ok || len(slides) < m.Layers) {
		l.Fail("key %s: want %d entries", l.Key("attention.sliding_window_pattern"), l.Need("block_count"))
	}
	if err := l.Check(nn.Range("attention.head_count", a.heads, 1, 1<<12), nn.Range("attention.key_length", a.fullDim,
		2, 1<<14),
		nn.Range("attention.key_length_swa", a.slideDim, 2, 1<<14), nn.Range("attention.sliding_window", a.window, 1,
			1<<30)); err != nil {
		return nil, err
	}
	a.slides = slides[:m.Layers]
	rotSlide, rot := l.Int("rope.dimension_count_swa", a.slideDim), l.Int("rope.dimension_count", a.fullDim)
	if err := l.Check(nn.Range("rope.dimension_count_swa", rotSlide, 2, a.slideDim), nn.Range("rope.dimension_count",
		rot, 2, a.fullDim)); err != nil {
		return nil, err
	}
	a.sliding = l.Rope(rotSlide, l.Float("rope.freq_base_swa", 10000), nil)
	a.full = l.Rope(rot, l.Float("rope.freq_base", 1e6), l.RopeFactors(rot))
	return a, l.Err
}

// loadLayer binds what every layer has: all but keys and values, experts and embeddings per layer.
func (a *gemma4) loadLayer(l *nn.Loader, p string, hidden, i, kvHeads int) gemma4Layer {
	y := gemma4Layer{
		norm: l.Vector(p+"attn_norm.weight", hidden), postNorm: l.Vector(p+"post_attention_norm.weight", hidden),
		ffnNorm: l.Vector(p+"ffn_norm.weight", hidden), postFFNorm: l.Vector(p+"post_ffw_norm.weight", hidden),
		kvHeads: kvHeads, headDim: a.fullDim, rope: a.full, scale: 1,
	}
	if a.slides[i] {
		y.headDim, y.rope, y.window = a.slideDim, a.sliding, a.window
	}
	if l.Check(nn.Range("attention.head_count_kv", kvHeads, 1, a.heads), nn.Range("feed_forward_length", a.widths[i],
		1, 1<<22)) != nil {
		return y
	}
	if a.heads%kvHeads != 0 {
		l.Fail("layer %d: %d heads cannot share %d key/value heads", i, a.heads, kvHeads)
	}
	qw := a.heads * y.headDim
	y.q = l.Matrix(p+"attn_q.weight", hidden, qw)
	y.o = l.Matrix(p+"attn_output.weight", qw, hidden)
	y.qNorm = l.Vector(p+"attn_q_norm.weight", y.headDim)
	y.ffn = l.FFN(p, "", hidden, a.widths[i], backend.GELU)
	if l.Has(p + "layer_output_scale.weight") {
		y.scale = l.Scalar(p + "layer_output_scale.weight")
	}
	return y
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
		e.DownScale = l.PerExpert(p+"ffn_down_exps.scale", a.experts)
	}
	y.moe = &e
	y.routerScale = l.Vector(p+"ffn_gate_inp.scale", hidden)
	y.preFFNorm2 = l.Vector(p+"pre_ffw_norm_2.weight", hidden)
	y.postFFNorm1 = l.Vector(p+"post_ffw_norm_1.weight", hidden)
	y.postFFNorm2 = l.Vector(p+"post_ffw_norm_2.weight", hidden)
}

func (a *gemma4) begin(s *step) {
	s.Angles(a.sliding, a.full)
	if a.ple == nil || s.extra.Buf != nil {
		return
	}
	// The input of each layer: the token's own embedding for it, mixed with a projection of
	// the token's embedding.
	in, tok := s.Multiply(s.x, a.ple.proj), s.Rows(a.pleDim*s.Layers) // [tokens, layers*pleDim]
	s.Scale(in, in, invSqrt(s.Hidden))
	s.NormHeads(in, s.Layers, a.ple.norm)
	s.Embed(tok, a.ple.tokens, s.ids, float32(math.Sqrt(float64(a.pleDim))))
	s.Add(in, in, tok)
	s.Scale(in, in, float32(math.Sqrt(0.5)))
	s.extra = in
}

func (a *gemma4) layer(s *step, il int) {
	var own backend.Tensor
	if a.ple != nil {
		own = s.extra.Columns(il*a.pleDim, a.pleDim)
	}
	a.advance(s.Step, s.x, own, &a.layers[il])
}

// advance takes the residual stream x [tokens, hidden] through a layer; own [tokens, pleDim] is the layer's own
// embedding of each token, if it has any.
func (a *gemma4) advance(s *nn.Step, x, own backend.Tensor, y *gemma4Layer) {
	h := a.attention(s, s.Norm(x, y.norm), y)
	s.RMSNorm(h, h, y.postNorm, s.Eps)
	s.Add(x, x, h)

	h = s.Norm(x, y.ffnNorm)
	if y.moe != nil { // all norms come first: a device may run the dense layer and the experts side by side
		// The router sees the residual stream, not the experts' normalised input.
		router := s.Norm(x, y.routerScale)
		s.Scale(router, router, invSqrt(x.Cols))
		in := s.Norm(x, y.preFFNorm2)
		h = y.ffn.Forward(s, h)
		s.RMSNorm(h, h, y.postFFNorm1, s.Eps)
		e := y.moe.Forward(s, in, router)
		s.RMSNorm(e, e, y.postFFNorm2, s.Eps)
		s.Add(h, h, e)
	} else {
		h = y.ffn.Forward(s, h)
	}
	s.RMSNorm(h, h, y.postFFNorm, s.Eps)
	s.Add(x, x, h)

	if y.inputGate != nil {
		g := s.Multiply(x, y.inputGate)
		s.Gated(g, g, own, backend.GELU)
		h = s.Multiply(g, y.proj)
		s.RMSNorm(h, h, y.pleNorm, s.Eps)
		s.Add(x, x, h)
	}
	if y.scale != 1 {
		s.Scale(x, x, y.scale)
	}
}

// attention: scores are not scaled; values are normalised without weights, and are the raw keys where the layer has no
// projection for them.
func (a *gemma4) attention(s *nn.Step, h backend.Tensor, y *gemma4Layer) backend.Tensor {
	var q, k, v backend.Tensor // [tokens, heads*headDim], [tokens, kvHeads*headDim] twice
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
