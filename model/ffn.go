package model

import (
	"strobe/backend"
)

// ffn is a gated feed-forward layer: down(act(gate h) * (up h)).
type ffn struct {
	gate, up, down backend.Weight
	act            backend.Activation
	width          int
}

func (l *loader) ffn(prefix, suffix string, hidden, width int, act backend.Activation) ffn {
	return ffn{
		gate:  l.matrix(prefix+"ffn_gate"+suffix+".weight", hidden, width),
		up:    l.matrix(prefix+"ffn_up"+suffix+".weight", hidden, width),
		down:  l.matrix(prefix+"ffn_down"+suffix+".weight", width, hidden),
		act:   act,
		width: width,
	}
}

// ffnScratch is [rows, width] twice.
type ffnScratch struct{ gate, up backend.Tensor }

func newFFNScratch(b backend.Backend, rows, width int) ffnScratch {
	return ffnScratch{b.Alloc(rows, width), b.Alloc(rows, width)}
}

// view returns [n, width] of a scratch that may be wider.
func view(t backend.Tensor, n, width int) backend.Tensor {
	t.Rows, t.Cols, t.Stride = n, width, width
	return t
}

// forward computes dst from h.
func (f *ffn) forward(s *step, dst, h backend.Tensor, t *ffnScratch) {
	gate, up := view(t.gate, s.n, f.width), view(t.up, s.n, f.width)
	s.b.MatMul(h, backend.Product{W: f.gate, Y: gate}, backend.Product{W: f.up, Y: up})
	s.b.Gated(gate, gate, up, f.act)
	s.b.MatMul(gate, backend.Product{W: f.down, Y: dst})
}

// moe is a mixture of expert feed-forward layers.
type moe struct {
	router       backend.Weight
	gate, up     backend.Weight // stacked; or
	gateUp       backend.Weight // fused, gate rows first
	down         backend.Weight
	downScale    backend.Vector // per expert, optional
	act          backend.Activation
	width        int
	used         int
	weightsScale float32
}

func (l *loader) moe(prefix string, hidden, width, experts, used int, act backend.Activation) moe {
	m := moe{
		router: l.matrix(prefix+"ffn_gate_inp.weight", hidden, experts),
		down:   l.experts(prefix+"ffn_down_exps.weight", width, hidden, experts),
		act:    act, width: width, used: used, weightsScale: 1,
	}
	if s := l.float("expert_weights_scale", 0); s != 0 {
		m.weightsScale = s
	}
	if l.has(prefix + "ffn_gate_up_exps.weight") {
		m.gateUp = l.experts(prefix+"ffn_gate_up_exps.weight", hidden, 2*width, experts)
	} else {
		m.gate = l.experts(prefix+"ffn_gate_exps.weight", hidden, width, experts)
		m.up = l.experts(prefix+"ffn_up_exps.weight", hidden, width, experts)
	}
	return m
}

// moeScratch holds the rows of all chosen experts.
type moeScratch struct {
	logits, weights  backend.Tensor
	ids              backend.Ints
	gate, up, gateUp backend.Tensor
	out              backend.Tensor
}

func newMoEScratch(b backend.Backend, rows, experts, used, width, hidden int) moeScratch {
	return moeScratch{
		logits: b.Alloc(rows, experts), weights: b.Alloc(rows, used), ids: b.AllocInts(rows * used),
		gate: b.Alloc(rows*used, width), up: b.Alloc(rows*used, width), gateUp: b.Alloc(rows*used, 2*width),
		out: b.Alloc(rows*used, hidden),
	}
}

// route chooses the experts of every row from the router's input.
func (m *moe) route(s *step, in backend.Tensor, t *moeScratch) {
	logits := t.logits.First(s.n)
	s.b.MatMul(in, backend.Product{W: m.router, Y: logits})
	s.b.Route(t.ids, t.weights.First(s.n), logits, m.used, m.weightsScale)
}

// forward computes dst as the weighted sum of the chosen experts on h.
func (m *moe) forward(s *step, dst, h backend.Tensor, t *moeScratch) {
	b, n := s.b, s.n*m.used
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
	b.ExpertMatMul(gate, t.ids, m.used, backend.Product{W: m.down, Y: out})
	b.ExpertSum(dst, out, t.weights.First(s.n), t.ids, m.used, m.downScale)
}
