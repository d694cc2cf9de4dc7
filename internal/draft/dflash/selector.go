package dflash

import (
	"cmp"
	"math"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/draft"
	"strobe/internal/nn"
)

// selector is DFlash2's head: among the best few tokens of each slot it prefers those that fit the
// token chosen before, by a low-rank product gated by the slot's state.
type selector struct {
	anchor     backend.Weight // [vocab, rank]: predecessors by the target's ids
	pred, succ backend.Weight // [outputs, rank]: predecessors and successors by the drafter's outputs
	hidden     backend.Weight // [rank, hidden]: the gate of a state
	rank, top  int
}

const selectorName = "selector_hidden.weight"

var selectorNames = []string{selectorName, "selector_predecessor.weight", "selector_successor.weight"}

func (d *Drafter) readSelector(l *nn.Loader) *selector {
	s := &selector{rank: l.Need("selector_rank"), top: l.Need("selector_top_k")}
	if l.Check(nn.Range("selector_rank", s.rank, 1, 1<<16), nn.Range("selector_top_k", s.top, 1, 256)) != nil {
		return nil
	}
	if s.top*(s.top+1) > d.hidden {
		l.Fail("key %s is %d; a width of %d allows no more than k(k+1)", l.Key("selector_top_k"), s.top, d.hidden)
	}
	s.anchor = l.Matrix("selector_predecessor.weight", s.rank, d.target.Vocab)
	if s.pred = s.anchor; d.d2t != nil {
		s.pred = d.byOutput(l, "selector_predecessor.weight", s.rank)
	}
	s.succ = d.byOutput(l, "selector_successor.weight", s.rank)
	s.hidden = l.Matrix(selectorName, d.hidden, s.rank)
	return s
}

// walk chooses candidates from each request's last token on, every slot given the one chosen before. sure is
// how probable the best one of a row's candidates is among them.
func (s *selector) walk(d *Drafter, p *pass, reqs []draft.Request, top int) (out []draft.Proposal,
	sure func(r, i int) float32) {
	last := make([]int32, len(reqs))
	for i, r := range reqs {
		last[i] = r.Last
	}
	ids, logp := d.top(p, s.top)
	n := p.logits.Rows * s.top
	// A missing candidate is looked up but never chosen. What the host needs lies together, to be read at once.
	rows, first := p.logits.Rows, p.Pad(len(reqs))
	all := p.New(1, (rows+2*n+first)*s.rank+rows*s.top)
	at := all.Off
	part := func(rows, cols int) backend.Tensor {
		t := backend.Tensor{Buf: all.Buf, Off: at, Rows: rows, Cols: cols, Stride: cols}
		at += rows * cols
		return t
	}
	gate, succ, pred, anchors := part(rows, s.rank), part(n, s.rank), part(n, s.rank), part(first, s.rank)
	sums := part(rows, s.top)
	p.Embed(succ, s.succ, ids, 1)
	p.Embed(pred, s.pred, ids, 1)
	p.Embed(anchors, s.anchor, p.Ints32(last), 1)
	p.MatMul(p.final, backend.Product{W: s.hidden, Y: gate})
	p.Copy(sums, logp)
	p.End()

	read := slices.Clone(p.Read(all)) // proposals outlive the pass
	of := func(t backend.Tensor) []float32 { return read[t.Off-all.Off:][:t.Rows*t.Cols] }
	w := &selectorWalk{s: s, logp: of(sums), gate: of(gate), succ: of(succ), pred: of(pred),
		fit: make([]float32, s.rank), masses: make([]float32, 0, rows)}
	for _, id := range p.Backend.Ints(ids)[:n] {
		w.ids = append(w.ids, d.targetID(id))
	}
	before := of(anchors)
	out = make([]draft.Proposal, len(reqs))
	for r := range reqs {
		next := func(i int, token int32) []draft.Candidate {
			e := w.embedding(p.row(r, i-1), token)
			if e == nil {
				return nil
			}
			at := w.slot(p.row(r, i), e)
			return at[:min(top, len(at))]
		}
		out[r] = draft.Proposal{Next: next}
		for i := range reqs[r].N {
			var at []draft.Candidate
			if i == 0 {
				at = w.slot(p.row(r, 0), before[r*s.rank:][:s.rank])
				at = at[:min(top, len(at))]
			} else {
				at = next(i, out[r].At[i-1][0].ID)
			}
			if len(at) == 0 {
				out[r].At = append(out[r].At, []draft.Candidate{{ID: -1, LogP: float32(math.NaN())}})
				break
			}
			out[r].At = append(out[r].At, at)
		}
	}
	return out, func(r, i int) float32 { return exp32(out[r].At[i][0].LogP - w.mass(p.row(r, i))) }
}

// selectorWalk is what the walk reads, on the host: a few thousand products per block.
type selectorWalk struct {
	s                      *selector
	ids                    []int32
	logp, gate, succ, pred []float32
	fit                    []float32 // of the slot in progress
	masses                 []float32 // by row
}

// dot is the product of two vectors, in four sums that do not wait for each other.
func dot(x, y []float32) float32 {
	var a, b, c, d float32
	y = y[:len(x)]
	for ; len(x) >= 4; x, y = x[4:], y[4:] {
		a += x[0] * y[0]
		b += x[1] * y[1]
		c += x[2] * y[2]
		d += x[3] * y[3]
	}
	for k, v := range x {
		a += v * y[k]
	}
	return a + b + (c + d)
}

// embedding is that of a row's candidate as a predecessor, nil if it is none.
func (w *selectorWalk) embedding(row int, id int32) []float32 {
	for n := row * w.s.top; n < (row+1)*w.s.top; n++ {
		if w.ids[n] == id {
			return w.pred[n*w.s.rank:][:w.s.rank]
		}
	}
	return nil
}

// mass is the log-probability that one of a row's candidates is right, as far as the logits know.
func (w *selectorWalk) mass(row int) float32 {
	for at := len(w.masses); at <= row; at++ {
		sum := 0.0
		for _, x := range w.logp[at*w.s.top:][:w.s.top] {
			sum += math.Exp(float64(x))
		}
		w.masses = append(w.masses, float32(math.Log(min(1, sum))))
	}
	return w.masses[row]
}

// slot scores the candidates of a row, best first; before is the embedding of the token before. Candidates with a score
// that is not a number are left out. A softmax of the scores divides the mass of the row among them.
func (w *selectorWalk) slot(row int, before []float32) []draft.Candidate {
	s := w.s
	fit := w.fit
	for k, g := range w.gate[row*s.rank:][:s.rank] {
		fit[k] = before[k] * g
	}
	at := make([]draft.Candidate, 0, s.top)
	for n := row * s.top; n < (row+1)*s.top; n++ {
		// Log-probabilities differ from logits by a constant of the row.
		score := w.logp[n] + dot(w.succ[n*s.rank:][:s.rank], fit)
		if w.ids[n] >= 0 && score-score == 0 {
			at = append(at, draft.Candidate{ID: w.ids[n], LogP: score})
		}
	}
	if len(at) == 0 {
		return nil
	}
	slices.SortStableFunc(at, func(a, b draft.Candidate) int { return cmp.Compare(b.LogP, a.LogP) })
	sum, peak := 0.0, at[0].LogP
	for _, c := range at {
		sum += math.Exp(float64(c.LogP - peak))
	}
	all := peak + float32(math.Log(sum)) - w.mass(row)
	for i := range at {
		at[i].LogP -= all
	}
	return at
}
