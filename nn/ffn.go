package nn

import (
	"strobe/backend"
)

// FFN is a gated feed-forward layer: down(act(gate h) * (up h)).
type FFN struct {
	gate, up, down backend.Weight
	act            backend.Activation
	width          int
}

// FFN binds a feed-forward layer; suffix tells a shared expert from the layer itself.
func (l *Loader) FFN(prefix, suffix string, hidden, width int, act backend.Activation) FFN {
	return FFN{
		gate:  l.Matrix(prefix+"ffn_gate"+suffix+".weight", hidden, width),
		up:    l.Matrix(prefix+"ffn_up"+suffix+".weight", hidden, width),
		down:  l.Matrix(prefix+"ffn_down"+suffix+".weight", width, hidden),
		act:   act,
		width: width,
	}
}

// FFNScratch is [rows, width] twice.
type FFNScratch struct{ gate, up backend.Tensor }

// NewFFNScratch makes room for rows of the widest layer.
func NewFFNScratch(b backend.Backend, rows, width int) FFNScratch {
	return FFNScratch{b.Alloc(rows, width), b.Alloc(rows, width)}
}

// View returns [n, width] of a scratch that may be wider.
func View(t backend.Tensor, n, width int) backend.Tensor {
	t.Rows, t.Cols, t.Stride = n, width, width
	return t
}

// Forward computes dst from h.
func (f *FFN) Forward(b backend.Backend, dst, h backend.Tensor, t *FFNScratch) {
	gate, up := View(t.gate, h.Rows, f.width), View(t.up, h.Rows, f.width)
	b.MatMul(h, backend.Product{W: f.gate, Y: gate}, backend.Product{W: f.up, Y: up})
	b.Gated(gate, gate, up, f.act)
	b.MatMul(gate, backend.Product{W: f.down, Y: dst})
}

// MoE is a mixture of expert feed-forward layers.
type MoE struct {
	router       backend.Weight
	gate, up     backend.Weight // stacked; or
	gateUp       backend.Weight // fused, gate rows first
	Down         backend.Weight
	DownScale    backend.Vector // per expert, optional
	act          backend.Activation
	width        int
	used         int
	weightsScale float32
}

// MoE binds the experts and the router of a layer.
func (l *Loader) MoE(prefix string, hidden, width, experts, used int, act backend.Activation) MoE {
	m := MoE{
		router: l.Matrix(prefix+"ffn_gate_inp.weight", hidden, experts),
		Down:   l.Experts(prefix+"ffn_down_exps.weight", width, hidden, experts),
		act:    act, width: width, used: used, weightsScale: 1,
	}
	if s := l.Float("expert_weights_scale", 0); s != 0 {
		m.weightsScale = s
	}
	if l.Has(prefix + "ffn_gate_up_exps.weight") {
		m.gateUp = l.Experts(prefix+"ffn_gate_up_exps.weight", hidden, 2*width, experts)
	} else {
		m.gate = l.Experts(prefix+"ffn_gate_exps.weight", hidden, width, experts)
		m.up = l.Experts(prefix+"ffn_up_exps.weight", hidden, width, experts)
	}
	return m
}

// MoEScratch holds the rows of all chosen experts.
type MoEScratch struct {
	logits, weights  backend.Tensor
	ids              backend.Ints
	gate, up, gateUp backend.Tensor
	out              backend.Tensor
}

// NewMoEScratch makes room for rows tokens.
func NewMoEScratch(b backend.Backend, rows, experts, used, width, hidden int) MoEScratch {
	return MoEScratch{
		logits: b.Alloc(rows, experts), weights: b.Alloc(rows, used), ids: b.AllocInts(rows * used),
		gate: b.Alloc(rows*used, width), up: b.Alloc(rows*used, width), gateUp: b.Alloc(rows*used, 2*width),
		out: b.Alloc(rows*used, hidden),
	}
}

// Route chooses the experts of every row from the router's input.
func (m *MoE) Route(b backend.Backend, in backend.Tensor, t *MoEScratch) {
	logits := t.logits.First(in.Rows)
	b.MatMul(in, backend.Product{W: m.router, Y: logits})
	b.Route(t.ids, t.weights.First(in.Rows), logits, m.used, m.weightsScale)
}

// Forward computes dst as the weighted sum of the chosen experts on h.
func (m *MoE) Forward(b backend.Backend, dst, h backend.Tensor, t *MoEScratch) {
	n := h.Rows * m.used
	gate, up := t.gate.First(n), t.up.First(n)
	if m.gateUp != nil {
		both := t.gateUp.First(n)
		b.ExpertMatMul(h, t.ids, m.used, backend.Product{W: m.gateUp, Y: both})
		b.Gated(gate, both.Columns(0, m.width), both.Columns(m.width, m.width), m.act)
	} else {
		b.ExpertMatMul(h, t.ids, m.used, backend.Product{W: m.gate, Y: gate}, backend.Product{W: m.up, Y: up})
		b.Gated(gate, gate, up, m.act)
	}
	out := t.out.First(n)
	b.ExpertMatMul(gate, t.ids, m.used, backend.Product{W: m.Down, Y: out})
	b.ExpertSum(dst, out, t.weights.First(h.Rows), t.ids, m.used, m.DownScale)
}
