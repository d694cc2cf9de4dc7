package dflash

import (
	"slices"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/nn"
)

// pass is the result of running the blocks of several requests: the predicting slots, slot by slot and inside a slot
// request by request, longest first. So the rows of one slot are contiguous, and so are those of requests that have a
// next slot.
type pass struct {
	*nn.Step                // for operations on the results
	final    backend.Tensor // [rows, hidden] normalised states
	logits   backend.Tensor // [rows, outputs]
	order    []int          // requests, longest first
	place    []int          // of each request in order
	first    []int          // per slot: its first row
	active   []int          // per slot: how many requests reach it
}

// draftKey decides which operations a draft has: its rows, and those that predict.
type draftKey struct{ rows, picked int }

// blockResults is where a draft leaves its results.
type blockResults struct {
	final  backend.Tensor // [picked, hidden]
	logits backend.Tensor // [picked, outputs]
}

// extendKey decides which operations an Extend has: its rows, and the features that it reads.
type extendKey struct {
	rows     int
	features backend.Tensor
}

// row is the row of the i-th prediction of a request.
func (p *pass) row(req, i int) int { return p.first[i] + p.place[req] }

// plan checks the requests and lays out the rows of the slots from skip on. starts is the first row of
// each block in the batch.
func (d *Drafter) plan(reqs []draft.Request, skip int) (p *pass, ids, pick, starts []int32, err error) {
	p = &pass{place: make([]int, len(reqs))}
	for i, r := range reqs {
		if err := r.Check(d.Max(), d.target.Vocab); err != nil {
			return nil, nil, nil, nil, err
		}
		p.order = append(p.order, i)
		starts = append(starts, int32(len(ids)))
		ids = append(ids, r.Last)
		for range d.slots(r) - 1 {
			ids = append(ids, d.mask)
		}
	}
	slices.SortStableFunc(p.order, func(a, b int) int { return reqs[b].N - reqs[a].N })
	for at, r := range p.order {
		p.place[r] = at
	}
	for s := skip; ; s++ {
		first := len(pick)
		for _, r := range p.order {
			if s < d.slots(reqs[r]) {
				pick = append(pick, starts[r]+int32(s))
			}
		}
		if len(pick) == first {
			return p, ids, pick, starts, nil
		}
		p.first = append(p.first, first)
		p.active = append(p.active, len(pick)-first)
	}
}

// BlockLogits runs a whole block and returns the logits of every slot, the first token's included,
// for comparison with references. They are the head's own: not capped, and without what a Markov
// head adds.
func (d *Drafter) BlockLogits(seq *cache.Seq, last int32) ([]float32, error) {
	p, err := d.forward([]draft.Request{{Seq: seq, Last: last, N: d.Max()}}, 0, 0)
	if err != nil {
		return nil, err
	}
	return d.b.Read(p.logits.Slice(0, d.block)), nil
}

// slots is the number of rows of a request's block.
func (d *Drafter) slots(r draft.Request) int { return r.N + d.firstSlot() }

// forward runs the blocks of all requests up to the logits of the slots from skip on. Nothing is committed to the
// caches. rule 1 is the other one of a trial.
func (d *Drafter) forward(reqs []draft.Request, skip, rule int) (p *pass, err error) {
	p, ids, pick, starts, err := d.plan(reqs, skip)
	if err != nil {
		return nil, err
	}
	segs := make([]cache.Segment, len(reqs))
	for i, r := range reqs {
		segs[i] = cache.Segment{Seq: r.Seq.(*cache.Seq), Rows: d.slots(r), Block: d.bothWays(rule == 1)}
	}
	if err := d.begin(len(ids)); err != nil {
		return nil, err
	}
	batch, err := d.mem.Begin(segs)
	if err != nil {
		return nil, err
	}
	d.widen(batch, segs)
	if w := d.view(rule); w > 0 {
		d.narrow(batch, segs, w)
	}
	defer nn.Catch(&err)
	s := nn.NewStep(d.arenas[d.place[0]], batch, d.mem, d.place[0], d.eps)
	index := d.index(len(ids), starts)
	last, done := d.drafts.Run(s, draftKey{s.N, s.Pad(len(pick))}, func() (*nn.Step, blockResults) {
		return d.run(s, index, ids, pick)
	}, index, ids, pick)
	p.Step, p.final, p.logits = last, done.final, done.logits
	batch.Done()
	return p, nil
}

// run goes through the layers. It returns the step of the last ones.
func (d *Drafter) run(s *nn.Step, blocks, ids, pick []int32) (*nn.Step, blockResults) {
	s.Begin()
	s.Angles(d.rope)
	var index backend.Ints
	if d.taps > 0 {
		index = s.Ints32(blocks)
	}
	x := s.Rows(d.hidden) // [tokens, hidden]
	s.Embed(x, d.embed, s.Ints32(ids), d.embScale)
	at := s.Mark()
	for i := range d.layers {
		if i > 0 && d.place[i] != d.place[i-1] {
			s, x = d.next(s, d.place[i], x)
			if d.taps > 0 {
				index = s.Ints32(blocks)
			}
			at = s.Mark()
		}
		y := &d.layers[i]
		in, taps := d.convIn(s, y.attnConv, s.Norm(x, y.norm), index)
		kv := y.projections()
		ts := s.Project(in, append(kv, y.q)...)
		q := ts[len(kv)] // [tokens, heads*headDim]
		s.NormHeads(q, d.heads, y.qNorm)
		s.Rotate(q, d.heads, d.rope)
		d.remember(s, y, ts[:len(kv)])
		o := s.Attend(y.cache, q, backend.AttnParams{Heads: d.heads, KVHeads: d.kvHeads, Scale: d.scale, Sinks: y.sinks})
		out := d.convOut(s, y.attnConv, s.Multiply(o, y.o), taps, index)
		if y.postAttn != nil {
			s.RMSNorm(out, out, y.postAttn, d.eps)
		}
		s.Add(x, x, out)

		in, taps = d.convIn(s, y.ffnConv, s.Norm(x, y.ffnNorm), index)
		out = d.convOut(s, y.ffnConv, y.ffn.Forward(s, in), taps, index)
		if y.postFFN != nil {
			s.RMSNorm(out, out, y.postFFN, d.eps)
		}
		s.Add(x, x, out)
		if y.scale != 1 {
			s.Scale(x, x, y.scale)
		}
		s.Release(at)
	}
	final := s.New(s.Pad(len(pick)), d.hidden)
	s.Gather(final, x, s.Ints32(pick))
	s.RMSNorm(final, final, d.outNorm, d.eps)
	return s, blockResults{final, s.Multiply(final, d.head)}
}

// widen lets every row of a block see the same context, the window before the block and not the window before the row:
// in layers that do not slide, and in sliding ones where the run-time of the file does so.
func (d *Drafter) widen(batch *cache.Batch, segs []cache.Segment) {
	plans := make([]int, len(d.devices)) // per device: plans of earlier groups
	for g := range d.mem.Groups() {
		w, dev := d.mem.Window(g), d.mem.Device(g)
		p := &batch.Plans[dev].KV[plans[dev]]
		if plans[dev]++; w == 0 || w != d.full && !d.wholeWindow {
			continue
		}
		for r := range p.Lo {
			p.Lo[r] = int32(max(0, segs[p.Seg[r]].Seq.Len()-w))
		}
	}
}

// bothWays says per cache group whether block rows see later rows. In a trial of causality, drafts with the other rule
// reverse it for sliding layers.
func (d *Drafter) bothWays(other bool) []bool {
	sliding := d.rule.sliding
	if other && d.trial.from == 0 {
		sliding = !sliding
	}
	both := make([]bool, d.mem.Groups())
	for g := range both {
		if d.mem.Window(g) == d.full {
			both[g] = !d.rule.full
		} else {
			both[g] = !sliding
		}
	}
	return both
}
