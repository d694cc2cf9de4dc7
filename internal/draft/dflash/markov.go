package dflash

import (
	"math"

	"strobe/internal/backend"
	"strobe/internal/draft"
	"strobe/internal/nn"
)

// markov is DSpark's head: a low-rank bias on each slot's logits that depends on the token before it,
// and optionally a score of how sure the drafter is. The slots of a block are filled in one
// pass, so without it a guess does not know its predecessor.
type markov struct {
	w1     backend.Weight // [vocab, rank] by the target's ids
	w2     backend.Weight // [outputs, rank]
	chosen backend.Weight // [outputs, rank]: w1 by the drafter's outputs
	conf   backend.Weight // [1, hidden+rank]; nil for none
	bias   float32        // of conf
	anchor bool           // slot 0 predicts too
	rank   int
}

const markovName = "markov_w1.weight"

var markovNames = []string{markovName, "markov_w2.weight", "markov_w2.scale", "conf_proj.weight", "conf_proj.bias"}

func (d *Drafter) readMarkov(l *nn.Loader) *markov {
	m := &markov{anchor: true}
	m.w1 = l.Matrix(markovName, 0, d.target.Vocab)
	if l.Err != nil {
		return nil
	}
	m.rank = m.w1.Cols()
	if m.chosen = m.w1; d.d2t != nil {
		m.chosen = d.byOutput(l, markovName, m.rank)
	}
	if t := l.Tensor("markov_w2.weight", m.rank, d.head.Rows()); t != nil {
		m.w2 = l.BindScaled(t, l.File.Tensor("markov_w2.scale"))
	}
	if v, ok, err := l.File.Bool(l.Key("sample_from_anchor")); ok || err != nil {
		l.Keep(err)
		m.anchor = v
	}
	has, ok, err := l.File.Bool(l.Key("has_confidence_head"))
	l.Keep(err)
	if l.Has("conf_proj.weight") && (has || !ok) {
		m.conf = l.Matrix("conf_proj.weight", d.hidden+m.rank, 1)
		if l.Has("conf_proj.bias") {
			m.bias = l.Scalar("conf_proj.bias")
		}
	}
	if d.pMin > 0 && m.conf == nil {
		l.Fail("a least probability needs tensor %q, which this drafter lacks", "conf_proj.weight")
	}
	return m
}

// walk adds the biases along the most probable path of every request, slot by slot, and returns how sure
// the drafter is of each row's best token (nil without a confidence head).
func (m *markov) walk(d *Drafter, p *pass, reqs []draft.Request) (sure []float32) {
	rows := p.logits.Rows
	in := p.New(rows, d.hidden+m.rank) // final state, then the embedding of the token before
	first := make([]int32, len(reqs))
	for at, r := range p.order {
		first[at] = reqs[r].Last
	}
	p.BeginStep(nil)
	prev, w1 := p.Ints32(first), m.w1
	for i, from := range p.first {
		n := p.active[i]
		e, logits := in.Slice(from, n).Columns(d.hidden, m.rank), p.logits.Slice(from, n)
		p.Embed(e, w1, prev, 1)
		p.Add(logits, logits, p.Multiply(e, m.w2))
		if i+1 < len(p.first) {
			// If no logit is a number the guess is dropped later; any token will do here.
			prev, w1 = p.NewInts(n), m.chosen
			p.ArgMax(prev, logits)
		}
	}
	if m.conf == nil || d.pMin <= 0 {
		p.End()
		return nil
	}
	p.Copy(in.Columns(0, d.hidden), p.final)
	score := p.Multiply(in, m.conf)
	p.End()
	for _, x := range p.Read(score) {
		sure = append(sure, float32(1/(1+math.Exp(-float64(x+m.bias)))))
	}
	return sure
}
