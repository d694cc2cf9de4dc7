package dflash

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"strobe/backend"
	"strobe/draft"
	"strobe/nn"
)

// selector is DFlash2's head: among the best few tokens of each slot it prefers those that fit the
// token chosen before, by a low-rank product gated by the slot's state. Drafters with one have
// convolutions too (conv.go).
type selector struct {
	pred, succ   backend.Weight // [target id] -> rank, as predecessor and as successor
	hidden       backend.Weight // state -> gate
	rank, top    int
	kernel, taps int // of the convolutions: length, and dynamic taps per row for both sides

	gate        backend.Tensor
	predE, sucE backend.Tensor // embeddings of the candidates
	lastE       backend.Tensor // of the tokens before the blocks
	ids, last   backend.Ints
}

const selectorName = "selector_hidden.weight"

var selectorNames = []string{selectorName, "selector_predecessor.weight", "selector_successor.weight"}

func (d *Drafter) readSelector(l *nn.Loader) *selector {
	s := &selector{rank: l.Need("selector_rank"), top: l.Need("selector_top_k"), kernel: l.Need("conv_kernel_size")}
	group := l.Need("conv_group_size")
	if l.Check(nn.Range("selector_rank", s.rank, 1, 1<<16), nn.Range("selector_top_k", s.top, 1, 256),
		nn.Range("conv_kernel_size", s.kernel, 1, 64), nn.Range("conv_group_size", group, 1, d.hidden)) != nil {
		return nil
	}
	if d.hidden%group != 0 {
		l.Fail("key %s is %d, which does not divide the width %d", l.Key("conv_group_size"), group, d.hidden)
	}
	if s.top*(s.top+1) > d.hidden {
		l.Fail("key %s is %d; a width of %d allows no more than k(k+1)", l.Key("selector_top_k"), s.top, d.hidden)
	}
	s.taps = 2 * s.kernel * (d.hidden / group)
	s.pred = l.Matrix("selector_predecessor.weight", s.rank, d.target.Vocab)
	s.succ = l.Matrix("selector_successor.weight", s.rank, d.target.Vocab)
	s.hidden = l.Matrix(selectorName, d.hidden, s.rank)
	return s
}

// walk chooses candidates from each request's last token on, every slot given the one chosen before.
// The probabilities are those among the candidates.
func (s *selector) walk(d *Drafter, p *pass, reqs []draft.Request, top int) []draft.Proposal {
	b, rows := d.b, p.logits.Rows
	s.reserve(d, rows, len(reqs))
	b.BeginStep(fmt.Sprintf("top/%d", rows))
	if d.logitScale != 1 {
		b.Scale(p.logits, p.logits, d.logitScale)
	}
	if d.softcap > 0 {
		b.Softcap(p.logits, d.softcap)
	}
	logp := d.topLogP.First(rows)
	b.TopK(d.topIDs, logp, p.logits, s.top)
	b.EndStep()
	ids := make([]int32, rows*s.top)
	for i, id := range b.Ints(d.topIDs)[:len(ids)] {
		ids[i] = d.targetID(id)
	}
	known := slices.Clone(ids)
	for i, id := range known {
		known[i] = max(0, id) // a missing candidate is looked up but never chosen
	}
	last := make([]int32, len(reqs))
	for i, r := range reqs {
		last[i] = r.Last
	}
	b.BeginStep(fmt.Sprintf("select/%d/%d", rows, len(reqs)))
	b.SetInts(s.ids, known)
	b.SetInts(s.last, last)
	b.Embed(s.sucE.First(len(ids)), s.succ, s.ids, 1)
	b.Embed(s.predE.First(len(ids)), s.pred, s.ids, 1)
	b.Embed(s.lastE.First(len(reqs)), s.pred, s.last, 1)
	b.MatMul(p.final, backend.Product{W: s.hidden, Y: s.gate.First(rows)})
	b.EndStep()

	w := selectorWalk{s: s, ids: ids, logp: b.Read(logp), gate: b.Read(s.gate.First(rows)),
		succ: b.Read(s.sucE.First(len(ids))), pred: b.Read(s.predE.First(len(ids)))}
	anchors := b.Read(s.lastE.First(len(reqs)))
	out := make([]draft.Proposal, len(reqs))
	for r := range reqs {
		out[r].Source = "dflash"
		before := anchors[r*s.rank:][:s.rank]
		for i := range reqs[r].N {
			at, best := w.slot(p.row(r, i), before)
			if best < 0 {
				out[r].At = append(out[r].At, at)
				break
			}
			before = w.pred[best*s.rank:][:s.rank]
			out[r].At = append(out[r].At, at[:min(top, len(at))])
		}
	}
	return out
}

// selectorWalk is what the walk reads, on the host: a few thousand products per block.
type selectorWalk struct {
	s                      *selector
	ids                    []int32
	logp, gate, succ, pred []float32
}

// slot scores the candidates of a row after the token whose embedding is before. It returns them best
// first, and the number of the best one, or -1 and a candidate without probability when there
// is none.
func (w *selectorWalk) slot(row int, before []float32) (at []draft.Candidate, best int) {
	s := w.s
	gate := w.gate[row*s.rank:][:s.rank]
	type scored struct {
		n     int
		score float64
	}
	var all []scored
	peak := math.Inf(-1)
	for n := row * s.top; n < (row+1)*s.top; n++ {
		if w.ids[n] < 0 {
			continue
		}
		// Log-probabilities differ from logits by a constant of the row.
		score := float64(w.logp[n])
		for k, v := range w.succ[n*s.rank:][:s.rank] {
			score += float64(v) * float64(before[k]) * float64(gate[k])
		}
		if score-score == 0 {
			all = append(all, scored{n, score})
			peak = math.Max(peak, score)
		}
	}
	if len(all) == 0 {
		return []draft.Candidate{{ID: -1, LogP: float32(math.NaN())}}, -1
	}
	slices.SortStableFunc(all, func(a, b scored) int { return cmp.Compare(b.score, a.score) })
	sum := 0.0
	for _, c := range all {
		sum += math.Exp(c.score - peak)
	}
	for _, c := range all {
		at = append(at, draft.Candidate{ID: w.ids[c.n], LogP: float32(c.score - peak - math.Log(sum))})
	}
	return at, all[0].n
}

func (s *selector) reserve(d *Drafter, rows, reqs int) {
	d.reserveTop(rows, s.top)
	if rows > s.gate.Rows {
		r := max(rows, d.block)
		s.gate = d.b.Alloc(r, s.rank)
		s.predE, s.sucE = d.b.Alloc(r*s.top, s.rank), d.b.Alloc(r*s.top, s.rank)
		s.ids = d.b.AllocInts(r * s.top)
	}
	if reqs > s.lastE.Rows {
		s.lastE = d.b.Alloc(reqs, s.rank)
		s.last = d.b.AllocInts(reqs)
	}
}
