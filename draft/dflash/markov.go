package dflash

import (
	"fmt"
	"math"

	"strobe/backend"
	"strobe/draft"
	"strobe/nn"
)

// markov is DSpark's head: a low-rank bias on each slot's logits that depends on the token before it,
// and optionally a score of how sure the drafter is. The slots of a block are filled in one
// pass, so without it a guess does not know its predecessor.
type markov struct {
	w1, w2 backend.Weight // [target id] -> rank, rank -> outputs
	conf   backend.Weight // [state, rank] -> 1; nil for none
	bias   float32        // of conf
	anchor bool           // slot 0 predicts too
	rank   int

	in    backend.Tensor // per row: final state, then the embedding of the token before
	add   backend.Tensor // biases of one slot
	score backend.Tensor
	prev  backend.Ints
	best  backend.Ints
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
	if t := l.Tensor("markov_w2.weight", m.rank, d.head.Rows()); t != nil {
		w, err := l.Backend.Weight(t, l.File.Tensor("markov_w2.scale"))
		if err != nil {
			l.Fail("%v", err)
		}
		m.w2 = w
		l.Bytes += len(t.Data)
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
	b, rows := d.b, p.logits.Rows
	m.reserve(d, rows, len(reqs))
	prev := make([]int32, len(reqs))
	for at, r := range p.order {
		prev[at] = reqs[r].Last
	}
	for i, first := range p.first {
		n, end := p.active[i], i+1 == len(p.first)
		b.BeginStep(fmt.Sprintf("markov/%d/%d/%t", first, n, end))
		b.SetInts(m.prev, prev[:n])
		e := m.in.Slice(first, n).Columns(d.hidden, m.rank)
		logits := p.logits.Slice(first, n)
		b.Embed(e, m.w1, m.prev, 1)
		b.MatMul(e, backend.Product{W: m.w2, Y: m.add.First(n)})
		b.Add(logits, logits, m.add.First(n))
		if end {
			b.EndStep()
			break
		}
		b.ArgMax(m.best, logits)
		b.EndStep()
		for j, id := range b.Ints(m.best)[:n] {
			// Without a single number among its logits the guess is dropped; any token will do.
			prev[j] = max(0, d.targetID(id))
		}
	}
	if m.conf == nil || d.pMin <= 0 {
		return nil
	}
	b.BeginStep(fmt.Sprintf("confidence/%d", rows))
	in := m.in.First(rows)
	b.Copy(in.Columns(0, d.hidden), p.final)
	b.MatMul(in, backend.Product{W: m.conf, Y: m.score.First(rows)})
	b.EndStep()
	for _, x := range b.Read(m.score.First(rows)) {
		sure = append(sure, float32(1/(1+math.Exp(-float64(x+m.bias)))))
	}
	return sure
}

func (m *markov) reserve(d *Drafter, rows, reqs int) {
	if rows > m.in.Rows {
		r := max(rows, d.block)
		m.in, m.score = d.b.Alloc(r, d.hidden+m.rank), d.b.Alloc(r, 1)
	}
	if reqs > m.add.Rows {
		m.add = d.b.Alloc(reqs, d.head.Rows())
		m.prev, m.best = d.b.AllocInts(reqs), d.b.AllocInts(reqs)
	}
}
