package nn

import (
	"strobe/internal/backend"
)

// FFN is a gated feed-forward layer: down(act(gate h) * (up h)).
type FFN struct {
	gate, up backend.Weight // [width, hidden]
	down     backend.Weight // [hidden, width]
	act      backend.Activation
}

// FFN binds a feed-forward layer; suffix tells a shared expert from the layer itself.
func (l *Loader) FFN(prefix, suffix string, hidden, width int, act backend.Activation) FFN {
	return FFN{
		gate: l.Matrix(prefix+"ffn_gate"+suffix+".weight", hidden, width),
		up:   l.Matrix(prefix+"ffn_up"+suffix+".weight", hidden, width),
		down: l.Matrix(prefix+"ffn_down"+suffix+".weight", width, hidden),
		act:  act,
	}
}

// Forward returns the layer's output [tokens, hidden] for h [tokens, hidden].
func (f *FFN) Forward(s *Step, h backend.Tensor) backend.Tensor {
	p := s.Project(h, f.gate, f.up)
	gate, up := p[0], p[1] // [tokens, width]
	s.Gated(gate, gate, up, f.act)
	return s.Multiply(gate, f.down)
}

// MoE is a mixture of expert feed-forward layers.
type MoE struct {
	router       backend.Weight // [experts, hidden]
	gate, up     backend.Weight // [experts, width, hidden], or
	gateUp       backend.Weight // [experts, 2*width, hidden], gate rows first
	Down         backend.Weight // [experts, hidden, width]
	DownScale    backend.Vector // [experts]; optional
	routerBias   backend.Vector // [experts]; optional
	gateBias     backend.Vector // [experts, width], of gateUp [experts, 2*width]; optional
	upBias       backend.Vector // [experts, width], of gate and up apart; optional
	downBias     backend.Vector // [experts, hidden]; optional
	act          backend.Activation
	used         int // experts of each token
	weightsScale float32
	away         *Arena // on the device of the experts, if it is not that of the layer
}

// MoE binds the experts and the router of a layer.
func (l *Loader) MoE(prefix string, hidden, width, experts, used int, act backend.Activation) MoE {
	m := MoE{
		router: l.Matrix(prefix+"ffn_gate_inp.weight", hidden, experts),
		Down:   l.Experts(prefix+"ffn_down_exps.weight", width, hidden, experts),
		act:    act, used: used, weightsScale: 1,
	}
	if l.experts != l.device {
		m.away = l.Arenas[l.experts]
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

// Biases binds what the router and the experts of a layer add to their products.
func (m *MoE) Biases(l *Loader, prefix string, hidden, width, experts int) {
	of := func(matrix string, width int) backend.Vector {
		name := prefix + matrix + ".bias"
		if !l.Has(name) {
			l.Fail("missing tensor %q", name)
		}
		return l.PerExpert(name, width, experts)
	}
	m.routerBias = l.Vector(prefix+"ffn_gate_inp.bias", experts)
	if m.gateUp != nil {
		m.gateBias = of("ffn_gate_up_exps", 2*width)
	} else {
		m.gateBias, m.upBias = of("ffn_gate_exps", width), of("ffn_up_exps", width)
	}
	m.downBias = of("ffn_down_exps", hidden)
}

// addBias adds the bias of each row's expert, if there is one.
func addBias(s *Step, x backend.Tensor, ids backend.Ints, bias backend.Vector) {
	if bias != nil {
		s.ExpertBias(x, ids, bias)
	}
}

// Forward returns the weighted sum [tokens, hidden] of the experts on h that the router chooses for the rows of in.
func (m *MoE) Forward(s *Step, h, in backend.Tensor) backend.Tensor {
	ids, weights := s.NewInts(h.Rows*m.used), s.New(h.Rows, m.used) // [tokens, used]
	logits := s.Multiply(in, m.router)
	if m.routerBias != nil {
		s.AddBias(logits, m.routerBias)
	}
	s.Route(ids, weights, logits, m.used, m.weightsScale)
	if m.away == nil {
		return m.experts(s, h, weights, ids)
	}
	return m.elsewhere(s, h, weights, ids)
}

// elsewhere interrupts the step for the experts on their own device.
func (m *MoE) elsewhere(s *Step, h, weights backend.Tensor, ids backend.Ints) backend.Tensor {
	s.End()
	s.split = true
	if err := m.away.Begin(s.N, 0); err != nil {
		panic(givenUp{err})
	}
	t := &Step{Backend: m.away.b, N: s.N, Eps: s.Eps, arena: m.away}
	h, weights = t.Take(s.Backend, h), t.Take(s.Backend, weights)
	chosen := s.Backend.Ints(ids)[:weights.Rows*weights.Cols]
	if err := s.Sync(); err != nil { // the choice of a failed device is undefined
		panic(givenUp{err})
	}
	t.BeginStep(nil)
	sum := m.experts(t, h, weights, t.Ints32(chosen))
	t.End()
	sum = s.Take(t.Backend, sum)
	s.BeginStep(&s.batch.Plans[s.device])
	return sum
}

// experts returns the weighted sum of the experts of every row.
func (m *MoE) experts(s *Step, h, weights backend.Tensor, ids backend.Ints) backend.Tensor {
	gate := s.New(h.Rows*m.used, m.Down.Cols()) // [tokens*used, width]
	if m.gateUp != nil {
		both := s.New(gate.Rows, 2*gate.Cols)
		s.ExpertMatMul(h, ids, m.used, backend.Product{W: m.gateUp, Y: both})
		addBias(s, both, ids, m.gateBias)
		s.Gated(gate, both.Columns(0, gate.Cols), both.Columns(gate.Cols, gate.Cols), m.act)
	} else {
		up := s.New(gate.Rows, gate.Cols)
		s.ExpertMatMul(h, ids, m.used, backend.Product{W: m.gate, Y: gate}, backend.Product{W: m.up, Y: up})
		addBias(s, gate, ids, m.gateBias)
		addBias(s, up, ids, m.upBias)
		s.Gated(gate, gate, up, m.act)
	}
	out := s.New(gate.Rows, m.Down.Rows()) // [tokens*used, hidden]
	s.ExpertMatMul(gate, ids, m.used, backend.Product{W: m.Down, Y: out})
	addBias(s, out, ids, m.downBias)
	sum := s.New(h.Rows, m.Down.Rows())
	s.ExpertSum(sum, out, weights, ids, m.used, m.DownScale)
	return sum
}
