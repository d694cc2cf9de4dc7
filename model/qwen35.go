package model

import (
	"fmt"
	"slices"

	"strobe/backend"
	"strobe/gguf"
	"strobe/nn"
)

// qwen35 is the hybrid of Qwen3.5, Qwen3.6 and Qwen3-Next: most layers are Gated DeltaNet, every
// few layers one is attention with an output gate; the feed-forward layers are dense or a
// mixture of experts with a shared one.
type qwen35 struct {
	heads, kvHeads, headDim int
	delta                   backend.DeltaDims
	rope                    *nn.Rope
	layers                  []qwen35Layer
	width                   int // widest feed-forward layer
	experts, used           int
	expertWidth             int

	h          backend.Tensor
	qg, q      backend.Tensor // attention: query and gate per head; queries alone
	k, v, o    backend.Tensor
	u, conv, z backend.Tensor // DeltaNet: projections before and after the convolution; output gate
	alpha      backend.Tensor
	beta, d    backend.Tensor
	ffn        nn.FFNScratch
	moe        nn.MoEScratch
	shared     backend.Tensor
	gate       backend.Tensor
}

type qwen35Layer struct {
	norm, postNorm backend.Vector
	attn           *gatedAttention
	delta          *deltaNet
	ffn            *nn.FFN
	moe            *nn.MoE
	sharedGate     backend.Weight // with moe: ffn is the shared expert
}

type gatedAttention struct {
	q, k, v, o   backend.Weight
	qNorm, kNorm backend.Vector
	cache        int
}

type deltaNet struct {
	qkv, z, alpha, beta, out backend.Weight
	conv, a, dt, norm        backend.Vector
	index                    int
}

func newQwen35(l *nn.Loader, m *Model) (arch, error) {
	a := &qwen35{
		heads: l.Need("attention.head_count"), experts: m.Experts, used: m.UsedExps,
		delta: backend.DeltaDims{
			KHeads: l.Need("ssm.group_count"), VHeads: l.Need("ssm.time_step_rank"),
			KDim: l.Need("ssm.state_size"), Kernel: l.Need("ssm.conv_kernel"),
			Grouped: l.Arch == "qwen3next", Eps: m.eps,
		},
	}
	a.kvHeads = l.Int("attention.head_count_kv", a.heads)
	a.headDim = l.Int("attention.key_length", m.Hidden/max(1, a.heads))
	a.delta.VDim = a.delta.KDim
	d := &a.delta
	if err := l.Check(nn.Range("attention.head_count", a.heads, 1, 1<<12), nn.Range("attention.head_count_kv", a.kvHeads, 1, a.heads),
		nn.Range("attention.key_length", a.headDim, 2, 1<<14), nn.Range("ssm.group_count", d.KHeads, 1, 1<<12),
		nn.Range("ssm.time_step_rank", d.VHeads, d.KHeads, 1<<12), nn.Range("ssm.state_size", d.KDim, 1, 1<<12),
		nn.Range("ssm.conv_kernel", d.Kernel, 2, 8)); err != nil {
		return nil, err
	}
	if a.heads%a.kvHeads != 0 || d.VHeads%d.KHeads != 0 {
		l.Fail("heads do not divide evenly: %d by %d, %d by %d", a.heads, a.kvHeads, d.VHeads, d.KHeads)
	}
	if inner := l.Need("ssm.inner_size"); inner != d.VHeads*d.VDim {
		l.Fail("key %s is %d; want %d heads of %d", l.Key("ssm.inner_size"), inner, d.VHeads, d.VDim)
	}
	l.Delta = a.delta
	rot := l.Int("rope.dimension_count", a.headDim)
	if err := l.Check(nn.Range("rope.dimension_count", rot, 2, a.headDim)); err != nil {
		return nil, err
	}
	textSections(l, rot)
	a.rope = l.Rope(rot, l.Float("rope.freq_base", 10000), nil)

	dense := l.Int("feed_forward_length", 0)
	shared := l.Int("expert_shared_feed_forward_length", dense)
	a.expertWidth = l.Int("expert_feed_forward_length", dense/max(1, a.used))
	a.width = dense
	width := nn.Range("feed_forward_length", dense, 1, 1<<22)
	if a.experts > 0 {
		a.width = shared
		width = nn.Range("expert_shared_feed_forward_length", shared, 1, 1<<22)
		l.Check(nn.Range("expert_used_count", a.used, 1, a.experts), nn.Range("expert_feed_forward_length", a.expertWidth, 1, 1<<22))
	}
	if err := l.Check(width); err != nil {
		return nil, err
	}
	recurrent := recurrentLayers(l, m.Layers)
	for i := range m.Layers {
		p := fmt.Sprintf("blk.%d.", i)
		y := qwen35Layer{
			norm:     l.Vector(p+"attn_norm.weight", m.Hidden),
			postNorm: l.Vector(p+"post_attention_norm.weight", m.Hidden),
		}
		if recurrent[i] {
			y.delta = a.loadDelta(l, p, m.Hidden)
		} else {
			y.attn = a.loadAttention(l, p, m.Hidden)
		}
		if a.experts > 0 {
			e := l.MoE(p, m.Hidden, a.expertWidth, a.experts, a.used, backend.SiLU)
			f := l.FFN(p, "_shexp", m.Hidden, shared, backend.SiLU)
			y.moe, y.ffn = &e, &f
			y.sharedGate = l.Matrix(p+"ffn_gate_inp_shexp.weight", m.Hidden, 1)
		} else {
			f := l.FFN(p, "", m.Hidden, dense, backend.SiLU)
			y.ffn = &f
		}
		a.layers = append(a.layers, y)
		if l.Err != nil {
			return nil, l.Err
		}
	}
	return a, nil
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

// textSections checks that the interleaved multimodal rotary sections are plain ones for text:
// no pair may take its angle from the fourth position, which text leaves at zero.
func textSections(l *nn.Loader, dims int) {
	s, ok, err := l.File.Ints(l.Key("rope.dimension_sections"))
	l.Keep(err)
	if !ok || err != nil || len(s) < 3 {
		return
	}
	sum := int64(0)
	for _, v := range s {
		sum += v
	}
	if sum <= 0 {
		return
	}
	for i := range dims / 2 {
		sec := int64(i) % sum
		if sec < 3*s[sec%3] {
			continue
		}
		l.Fail("key %s: pair %d of the rotary embedding is not a text position", l.Key("rope.dimension_sections"), i)
		return
	}
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
		index: l.DeltaLayers,
	}
	l.DeltaLayers++
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
	return l.Bind(nn.PickRows(t, p+"ssm_beta", bs)), l.Bind(nn.PickRows(t, p+"ssm_alpha", as))
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
	all := append(append(rows(0, d.KDim), rows(d.KDim, d.KDim)...), rows(2*d.KDim, v)...)
	var qt, zt *gguf.Tensor = nn.PickRows(t, p+"attn_qkv", all), nn.PickRows(t, p+"attn_gate", rows(2*d.KDim+v, v))
	return l.Bind(qt), l.Bind(zt)
}

func (a *qwen35) reserve(m *Model, rows int) {
	b, d := m.b, a.delta
	qw, kw, vw := a.heads*a.headDim, a.kvHeads*a.headDim, d.VHeads*d.VDim
	a.h = b.Alloc(rows, m.Hidden)
	// Sizes that no tensor of a layer has confirmed are mere claims of the metadata.
	if slices.ContainsFunc(a.layers, func(y qwen35Layer) bool { return y.attn != nil }) {
		a.qg, a.q, a.k, a.v, a.o = b.Alloc(rows, 2*qw), b.Alloc(rows, qw), b.Alloc(rows, kw), b.Alloc(rows, kw), b.Alloc(rows, qw)
	}
	if slices.ContainsFunc(a.layers, func(y qwen35Layer) bool { return y.delta != nil }) {
		a.u, a.conv, a.z = b.Alloc(rows, d.ConvDim()), b.Alloc(rows, d.ConvDim()), b.Alloc(rows, vw)
		a.alpha, a.beta, a.d = b.Alloc(rows, d.VHeads), b.Alloc(rows, d.VHeads), b.Alloc(rows, vw)
	}
	a.ffn = nn.NewFFNScratch(b, rows, a.width)
	if a.experts > 0 {
		a.moe = nn.NewMoEScratch(b, rows, a.experts, a.used, a.expertWidth, m.Hidden)
		a.shared, a.gate = b.Alloc(rows, m.Hidden), b.Alloc(rows, 1)
	}
	a.rope.Reserve(b, rows)
}

func (a *qwen35) begin(s *step) { a.rope.Angles(s.b, s.n, s.pos) }

func (a *qwen35) layer(s *step, il int) {
	b, n, y := s.b, s.n, &a.layers[il]
	h := a.h.First(n)

	b.RMSNorm(h, s.x, y.norm, s.eps)
	if y.delta != nil {
		a.deltaNet(s, h, y.delta)
	} else {
		a.attention(s, h, y.attn)
	}
	b.Add(s.x, s.x, h)

	b.RMSNorm(h, s.x, y.postNorm, s.eps)
	if y.moe == nil {
		y.ffn.Forward(s.b, h, h, &a.ffn)
		b.Add(s.x, s.x, h)
		return
	}
	gate, shared := a.gate.First(n), a.shared.First(n)
	b.MatMul(h, backend.Product{W: y.sharedGate, Y: gate})
	y.ffn.Forward(s.b, shared, h, &a.ffn)
	y.moe.Route(s.b, h, &a.moe)
	y.moe.Forward(s.b, h, h, &a.moe)
	b.AddGated(h, shared, gate)
	b.Add(s.x, s.x, h)
}

// attention replaces h by gated attention of h. Each head's query is followed by its gate.
func (a *qwen35) attention(s *step, h backend.Tensor, y *gatedAttention) {
	b, n := s.b, s.n
	qg, q, k, v, o := a.qg.First(n), a.q.First(n), a.k.First(n), a.v.First(n), a.o.First(n)
	b.MatMul(h, backend.Product{W: y.q, Y: qg}, backend.Product{W: y.k, Y: k}, backend.Product{W: y.v, Y: v})
	both := qg.Split(a.heads)
	qh, kh := q.Split(a.heads), k.Split(a.kvHeads)
	b.RMSNorm(qh, both.Columns(0, a.headDim), y.qNorm, s.eps)
	b.RMSNorm(kh, kh, y.kNorm, s.eps)
	a.rope.Rotate(s.b, qh, a.heads)
	a.rope.Rotate(s.b, kh, a.kvHeads)
	s.attend(o, q, k, v, y.cache, backend.AttnParams{Heads: a.heads, KVHeads: a.kvHeads, Scale: invSqrt(a.headDim)})
	oh := o.Split(a.heads)
	b.SigmoidGate(oh, oh, both.Columns(a.headDim, a.headDim))
	b.MatMul(o, backend.Product{W: y.o, Y: h})
}

// deltaNet replaces h by the gated delta rule applied to h.
func (a *qwen35) deltaNet(s *step, h backend.Tensor, y *deltaNet) {
	b, n := s.b, s.n
	u, conv, z, alpha, beta, o := a.u.First(n), a.conv.First(n), a.z.First(n), a.alpha.First(n), a.beta.First(n), a.d.First(n)
	b.MatMul(h, backend.Product{W: y.qkv, Y: u}, backend.Product{W: y.z, Y: z},
		backend.Product{W: y.alpha, Y: alpha}, backend.Product{W: y.beta, Y: beta})
	segs := s.batch.Delta(y.index)
	b.ShortConv(conv, u, y.conv, a.delta, segs)
	b.GatedDelta(o, conv, alpha, beta, y.a, y.dt, a.delta, segs)
	oh := o.Split(a.delta.VHeads)
	b.RMSNorm(oh, oh, y.norm, s.eps)
	b.Gated(o, z, o, backend.SiLU)
	b.MatMul(o, backend.Product{W: y.out, Y: h})
}
