package model

import (
	"slices"

	"strobe/internal/backend"
	"strobe/internal/nn"
)

// qwen35 is the hybrid of Qwen3.5, Qwen3.6 and Qwen3-Next: most layers are Gated DeltaNet, every
// few layers one is attention with an output gate; the feed-forward layers are dense or a
// mixture of experts with a shared one.
type qwen35 struct {
	heads, kvHeads, headDim int
	delta                   backend.DeltaDims
	rope                    *nn.Rope
	layers                  []qwen35Layer
	experts, used           int
	width, expertWidth      int // of the feed-forward layer, or the shared expert, and of the other experts
}

type qwen35Layer struct {
	norm, postNorm backend.Vector // [hidden]
	attn           *gatedAttention
	delta          *deltaNet // instead of attn
	ffn            *nn.FFN
	moe            *nn.MoE
	sharedGate     backend.Weight // [1, hidden]; with moe: ffn is the shared expert
}

type gatedAttention struct {
	q            backend.Weight // [heads*2*headDim, hidden]: the query and the gate of each head
	k, v         backend.Weight // [kvHeads*headDim, hidden]
	o            backend.Weight // [hidden, heads*headDim]
	qNorm, kNorm backend.Vector // [headDim]
	cache        int            // number of the layer in the cache
}

type deltaNet struct {
	qkv         backend.Weight // [ConvDim, hidden]: queries, keys and values
	z           backend.Weight // [VHeads*VDim, hidden]: gate of the output
	alpha, beta backend.Weight // [VHeads, hidden]: decay and learning rate
	out         backend.Weight // [hidden, VHeads*VDim]
	conv        backend.Vector // [ConvDim, Kernel]
	a, dt       backend.Vector // [VHeads]
	norm        backend.Vector // [VDim]
	index       int            // among the recurrent layers of its device
}

func newQwen35(l *nn.Loader, m *Model) (arch, error) {
	a, err := readQwen35(l, m)
	if err != nil {
		return nil, err
	}
	a.delta = backend.DeltaDims{
		KHeads: l.Need("ssm.group_count"), VHeads: l.Need("ssm.time_step_rank"),
		KDim: l.Need("ssm.state_size"), Kernel: l.Need("ssm.conv_kernel"),
		Grouped: l.Arch == "qwen3next", Eps: m.eps,
	}
	a.delta.VDim = a.delta.KDim
	d := &a.delta
	if err := l.Check(nn.Range("ssm.group_count", d.KHeads, 1, 1<<12),
		nn.Range("ssm.time_step_rank", d.VHeads, d.KHeads, 1<<12), nn.Range("ssm.state_size", d.KDim, 1, 1<<12),
		nn.Range("ssm.conv_kernel", d.Kernel, 2, 8)); err != nil {
		return nil, err
	}
	if d.VHeads%d.KHeads != 0 {
		l.Fail("heads do not divide evenly: %d by %d", d.VHeads, d.KHeads)
	}
	if inner := l.Need("ssm.inner_size"); inner != d.VHeads*d.VDim {
		l.Fail("key %s is %d; want %d heads of %d", l.Key("ssm.inner_size"), inner, d.VHeads, d.VDim)
	}
	l.Delta = a.delta
	for i, recurrent := range recurrentLayers(l, m.Layers) {
		a.layers = append(a.layers, a.loadLayer(l, m.block(l, i), m.Hidden, recurrent))
		if l.Err != nil {
			return nil, l.Err
		}
	}
	return a, nil
}

// readQwen35 reads what attention and feed-forward layers need to know.
func readQwen35(l *nn.Loader, m *Model) (*qwen35, error) {
	a := &qwen35{experts: m.Experts, used: m.UsedExps}
	a.heads, a.kvHeads, a.headDim = l.Heads(m.Hidden)
	dense := l.Int("feed_forward_length", 0)
	a.width, a.expertWidth = dense, l.Int("expert_feed_forward_length", dense/max(1, a.used))
	width := nn.Range("feed_forward_length", dense, 1, 1<<22)
	if a.experts > 0 {
		a.width = l.Int("expert_shared_feed_forward_length", dense)
		width = nn.Range("expert_shared_feed_forward_length", a.width, 1, 1<<22)
		l.Check(nn.Range("expert_used_count", a.used, 1, a.experts), nn.Range("expert_feed_forward_length",
			a.expertWidth, 1, 1<<22))
	}
	rot := l.Int("rope.dimension_count", a.headDim)
	if err := l.Check(width, nn.Range("rope.dimension_count", rot, 2, a.headDim)); err != nil {
		return nil, err
	}
	axes := ropeAxes(l, rot)
	a.rope = l.Rope(rot, l.Float("rope.freq_base", 10000), nil)
	if m.Axes = axes != nil; m.Axes && l.Err == nil {
		a.rope.Axes(l, func(pair int) int { return axes[pair] })
	}
	return a, l.Err
}

// loadLayer binds the tensors that begin with p.
func (a *qwen35) loadLayer(l *nn.Loader, p string, hidden int, recurrent bool) qwen35Layer {
	y := qwen35Layer{
		norm:     l.Vector(p+"attn_norm.weight", hidden),
		postNorm: l.Vector(p+"post_attention_norm.weight", hidden),
	}
	if recurrent {
		y.delta = a.loadDelta(l, p, hidden)
	} else {
		y.attn = a.loadAttention(l, p, hidden)
	}
	if a.experts > 0 {
		e := l.MoE(p, hidden, a.expertWidth, a.experts, a.used, backend.SiLU)
		f := l.FFN(p, "_shexp", hidden, a.width, backend.SiLU)
		y.moe, y.ffn = &e, &f
		y.sharedGate = l.Matrix(p+"ffn_gate_inp_shexp.weight", hidden, 1)
	} else {
		f := l.FFN(p, "", hidden, a.width, backend.SiLU)
		y.ffn = &f
	}
	return y
}

// recurrentLayers tells which layers are DeltaNet: listed in the file, or all but every n-th.
func recurrentLayers(l *nn.Loader, layers int) []bool {
	if v, ok, err := l.File.Bools(l.Key("attention.recurrent_layers")); ok || err != nil {
		l.Keep(err)
		if len(v) >= layers {
			return v[:layers]
		}
		l.Fail("key %s has %d entries for %d layers", l.Key("attention.recurrent_layers"), len(v), layers)
	}
	every := max(1, l.Int("full_attention_interval", 4))
	v := make([]bool, layers)
	for i := range v {
		v[i] = (i+1)%every != 0
	}
	return v
}

// ropeAxes tells which of the three positions turns each pair of the rotary embedding, nil if there is one position.
// Sections are interleaved. No pair may be turned by the fourth position, which is always zero.
func ropeAxes(l *nn.Loader, dims int) (axes []int) {
	s, ok, err := l.File.Ints(l.Key("rope.dimension_sections"))
	l.Keep(err)
	if !ok || err != nil || len(s) < 3 {
		return nil
	}
	sum := int64(0)
	for _, v := range s {
		sum += v
	}
	if sum <= 0 {
		return nil
	}
	for i := range dims / 2 {
		sec := int64(i) % sum
		if sec >= 3*s[sec%3] {
			l.Fail("key %s: pair %d of the rotary embedding is not a text position", l.Key("rope.dimension_sections"), i)
			return nil
		}
		axes = append(axes, int(sec%3))
	}
	return axes
}

func (a *qwen35) loadAttention(l *nn.Loader, p string, hidden int) *gatedAttention {
	y := &gatedAttention{
		o:     l.Matrix(p+"attn_output.weight", a.heads*a.headDim, hidden),
		qNorm: l.Vector(p+"attn_q_norm.weight", a.headDim),
		kNorm: l.Vector(p+"attn_k_norm.weight", a.headDim),
		cache: l.Attention(a.kvHeads, a.headDim, 0),
	}
	y.q, y.k, y.v = l.QKV(p, hidden, 2*a.heads*a.headDim, a.kvHeads*a.headDim)
	return y
}

func (a *qwen35) loadDelta(l *nn.Loader, p string, hidden int) *deltaNet {
	d := a.delta
	vw := d.VHeads * d.VDim
	y := &deltaNet{
		out:   l.Matrix(p+"ssm_out.weight", vw, hidden),
		conv:  l.Vector(p+"ssm_conv1d.weight", d.Kernel, d.ConvDim()),
		a:     l.Vector(p+"ssm_a", d.VHeads),
		dt:    l.Vector(p+"ssm_dt.bias", d.VHeads),
		norm:  l.Vector(p+"ssm_norm.weight", d.VDim),
		index: l.Recurrent(),
	}
	if l.Has(p + "ssm_in.weight") {
		y.qkv, y.z = a.splitInput(l, p, hidden)
	} else {
		y.qkv = l.Matrix(p+"attn_qkv.weight", hidden, d.ConvDim())
		y.z = l.Matrix(p+"attn_gate.weight", hidden, vw)
	}
	if l.Has(p + "ssm_ba.weight") {
		y.beta, y.alpha = a.splitBA(l, p, hidden)
	} else {
		y.alpha = l.Matrix(p+"ssm_alpha.weight", hidden, d.VHeads)
		y.beta = l.Matrix(p+"ssm_beta.weight", hidden, d.VHeads)
	}
	return y
}

// splitBA separates qwen3next's joint projection: per key head its betas, then its alphas.
func (a *qwen35) splitBA(l *nn.Loader, p string, hidden int) (beta, alpha backend.Weight) {
	t := l.Tensor(p+"ssm_ba.weight", hidden, 2*a.delta.VHeads)
	if t == nil {
		return nil, nil
	}
	r := a.delta.VHeads / a.delta.KHeads
	var bs, as []int
	for h := range a.delta.VHeads {
		at := h/r*2*r + h%r
		bs, as = append(bs, at), append(as, at+r)
	}
	return l.Bind(nn.PickRows(t, bs)), l.Bind(nn.PickRows(t, as))
}

// splitInput separates the joint projection of older qwen3next files: per key head the rows of
// q, k, its v heads and its z heads.
func (a *qwen35) splitInput(l *nn.Loader, p string, hidden int) (qkv, z backend.Weight) {
	d := a.delta
	kw, vw := d.KHeads*d.KDim, d.VHeads*d.VDim
	t := l.Tensor(p+"ssm_in.weight", hidden, 2*kw+2*vw)
	if t == nil {
		return nil, nil
	}
	group := 2*d.KDim + 2*vw/d.KHeads
	rows := func(from, n int) (out []int) {
		for g := range d.KHeads {
			for i := range n {
				out = append(out, g*group+from+i)
			}
		}
		return out
	}
	v := vw / d.KHeads
	all := slices.Concat(rows(0, d.KDim), rows(d.KDim, d.KDim), rows(2*d.KDim, v))
	return l.Bind(nn.PickRows(t, all)), l.Bind(nn.PickRows(t, rows(2*d.KDim+v, v)))
}

func (a *qwen35) begin(s *step) { s.Angles(a.rope) }

func (a *qwen35) layer(s *step, il int) { a.advance(s.Step, s.x, &a.layers[il]) }

// advance takes the residual stream x [tokens, hidden] through a layer.
func (a *qwen35) advance(s *nn.Step, x backend.Tensor, y *qwen35Layer) {
	h := s.Norm(x, y.norm)
	if y.delta != nil {
		h = a.deltaNet(s, h, y.delta)
	} else {
		h = a.attention(s, h, y.attn)
	}
	s.Add(x, x, h)

	h = s.Norm(x, y.postNorm)
	if y.moe == nil {
		s.Add(x, x, y.ffn.Forward(s, h))
		return
	}
	shared, gate := y.ffn.Forward(s, h), s.Multiply(h, y.sharedGate)
	sum := y.moe.Forward(s, h, h)
	s.AddGated(sum, shared, gate)
	s.Add(x, x, sum)
}

// attention is gated: each head's query is followed by its gate.
func (a *qwen35) attention(s *nn.Step, h backend.Tensor, y *gatedAttention) backend.Tensor {
	p := s.Project(h, y.q, y.k, y.v)
	both, k, v := p[0].Split(a.heads), p[1], p[2] // [tokens*heads, 2*headDim], [tokens, kvHeads*headDim] twice
	q := s.Rows(a.heads * a.headDim)              // [tokens, heads*headDim]
	s.RMSNorm(q.Split(a.heads), both.Columns(0, a.headDim), y.qNorm, s.Eps)
	s.KeepQueries(q, a.heads, a.rope)
	s.Rotate(q, a.heads, a.rope)
	a.remember(s, k, v, y)
	o := s.Attend(y.cache, q, backend.AttnParams{Heads: a.heads, KVHeads: a.kvHeads, Scale: invSqrt(a.headDim)})
	oh := o.Split(a.heads)
	s.SigmoidGate(oh, oh, both.Columns(a.headDim, a.headDim))
	return s.Multiply(o, y.o)
}

// remember writes keys, normalised and rotated, and values to the cache.
func (a *qwen35) remember(s *nn.Step, k, v backend.Tensor, y *gatedAttention) {
	s.NormHeads(k, a.kvHeads, y.kNorm)
	s.KeepKeys(k, a.kvHeads, a.rope)
	s.Rotate(k, a.kvHeads, a.rope)
	s.Remember(y.cache, k, v)
}

// deltaNet is the gated delta rule after a short convolution.
func (a *qwen35) deltaNet(s *nn.Step, h backend.Tensor, y *deltaNet) backend.Tensor {
	p := s.Project(h, y.qkv, y.z, y.alpha, y.beta)
	u, z, alpha, beta := p[0], p[1], p[2], p[3] // [tokens, ConvDim], [tokens, VHeads*VDim], [tokens, VHeads] twice
	qkv := s.Rows(a.delta.ConvDim())            // [tokens, ConvDim]
	o := s.Rows(a.delta.VHeads * a.delta.VDim)  // [tokens, VHeads*VDim]
	s.ShortConv(qkv, u, y.conv, y.index)
	s.GatedDelta(o, qkv, alpha, beta, y.a, y.dt, y.index)
	s.NormHeads(o, a.delta.VHeads, y.norm)
	s.Gated(o, z, o, backend.SiLU)
	return s.Multiply(o, y.out)
}
