package dflash

import (
	"fmt"
	"slices"

	"strobe/backend"
	"strobe/cache"
	"strobe/draft"
	"strobe/nn"
)

// pass is the outcome of running the blocks of several requests: the predicting slots, slot by slot and
// inside a slot request by request, longest first. So the rows of one slot are contiguous, and
// so are those of the requests that go on.
type pass struct {
	final  backend.Tensor // normalised states
	logits backend.Tensor
	order  []int // requests, longest first
	place  []int // of each request in order
	first  []int // per slot: its first row
	active []int // per slot: how many requests reach it
}

// row is the row of the i-th prediction of a request.
func (p *pass) row(req, i int) int { return p.first[i] + p.place[req] }

// plan checks the requests and lays out the rows of the slots from skip on. starts is the first row of
// each block in the batch.
func (d *Drafter) plan(reqs []draft.Request, skip int) (p *pass, ids, pick, starts []int32, err error) {
	p = &pass{place: make([]int, len(reqs))}
	for i, r := range reqs {
		if r.N < 1 || r.N > d.Max() {
			return nil, nil, nil, nil, fmt.Errorf("draft of %d tokens; this drafter guesses 1 to %d", r.N, d.Max())
		}
		if r.Last < 0 || int(r.Last) >= d.target.Vocab {
			return nil, nil, nil, nil, fmt.Errorf("token id %d is outside the vocabulary of %d", r.Last, d.target.Vocab)
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
	return d.b.Read(p.logits), nil
}

// slots is the number of rows of a request's block.
func (d *Drafter) slots(r draft.Request) int { return r.N + d.firstSlot() }

// forward runs the blocks of all requests up to the logits of the slots from skip on. Nothing is kept
// in the caches. rule 1 is the other one of a trial.
func (d *Drafter) forward(reqs []draft.Request, skip, rule int) (*pass, error) {
	p, ids, pick, starts, err := d.plan(reqs, skip)
	if err != nil {
		return nil, err
	}
	segs := make([]cache.Segment, len(reqs))
	for i, r := range reqs {
		segs[i] = cache.Segment{Seq: r.Seq.(*cache.Seq), Rows: d.slots(r), Block: d.bothWays(rule == 1)}
	}
	batch, err := d.mem.Begin(segs)
	if err != nil {
		return nil, err
	}
	if d.wholeWindow {
		d.widen(batch, segs)
	}
	n := len(ids)
	d.reserve(n, len(pick))
	b := d.b
	b.BeginStep(fmt.Sprintf("draft/%d/%d", n, len(pick)))
	b.SetInts(d.blockIDs, ids)
	b.SetInts(d.pos, batch.Pos)
	b.SetInts(d.pick, pick)
	d.setIndex(n, starts)
	x, h := d.x.First(n), d.h.First(n)
	q, k, v, o := d.q.First(n), d.k.First(n), d.v.First(n), d.o.First(n)
	b.Embed(x, d.embed, d.blockIDs, d.embScale)
	d.rope.Angles(b, n, d.pos)
	for i := range d.layers {
		y := &d.layers[i]
		b.RMSNorm(h, x, y.norm, d.eps)
		in := d.convIn(y.attnConv, h)
		b.MatMul(in, append(y.projectKV(k, v), backend.Product{W: y.q, Y: q})...)
		qh := q.Split(d.heads)
		b.RMSNorm(qh, qh, y.qNorm, d.eps)
		d.rope.Rotate(b, qh, d.heads)
		d.finishKV(y, k, v)
		at := d.mem.Place(y.cache)
		pool, plan := d.mem.Pool(at.Group), &batch.Plans[at.Group]
		b.KVWrite(pool, at.Index, k, v, plan)
		b.Attention(o, q, pool, at.Index, plan, backend.AttnParams{Heads: d.heads, KVHeads: d.kvHeads, Scale: d.scale, Sinks: y.sinks})
		b.MatMul(o, backend.Product{W: y.o, Y: h})
		out := d.convOut(y.attnConv, h)
		if y.postAttn != nil {
			b.RMSNorm(out, out, y.postAttn, d.eps)
		}
		b.Add(x, x, out)

		b.RMSNorm(h, x, y.ffnNorm, d.eps)
		y.ffn.Forward(b, h, d.convIn(y.ffnConv, h), &d.ffn)
		out = d.convOut(y.ffnConv, h)
		if y.postFFN != nil {
			b.RMSNorm(out, out, y.postFFN, d.eps)
		}
		b.Add(x, x, out)
		if y.scale != 1 {
			b.Scale(x, x, y.scale)
		}
	}
	p.final = d.final.First(len(pick))
	p.logits = d.logits.First(len(pick))
	b.Gather(p.final, x, d.pick)
	b.RMSNorm(p.final, p.final, d.outNorm, d.eps)
	b.MatMul(p.final, backend.Product{W: d.head, Y: p.logits})
	b.EndStep()
	batch.Done()
	return p, nil
}

// widen lets every row of a block see the same context in sliding layers: the window before the
// block, not the window before the row.
func (d *Drafter) widen(batch *cache.Batch, segs []cache.Segment) {
	for g := range batch.Plans {
		w := d.mem.Window(g)
		if w == 0 {
			continue
		}
		p := &batch.Plans[g]
		for r := range p.Lo {
			p.Lo[r] = int32(max(0, segs[p.Seg[r]].Seq.Len()-w))
		}
	}
}

// bothWays says per cache group whether block rows see later rows.
func (d *Drafter) bothWays(other bool) []bool {
	v := make([]bool, d.mem.Groups())
	for g := range v {
		if d.mem.Window(g) == 0 {
			v[g] = !d.rule.full
		} else {
			v[g] = d.rule.sliding == other
		}
	}
	return v
}

// reserve makes the buffers large enough.
func (d *Drafter) reserve(n, picks int) {
	b := d.b
	if n > d.rows {
		r := d.block
		for r < n {
			r *= 2
		}
		d.rows = r
		d.features = b.Alloc(r, len(d.ids)*d.hidden)
		d.ctx, d.x, d.h = b.Alloc(r, d.hidden), b.Alloc(r, d.hidden), b.Alloc(r, d.hidden)
		d.q, d.o = b.Alloc(r, d.heads*d.headDim), b.Alloc(r, d.heads*d.headDim)
		d.k, d.v = b.Alloc(r, d.kvHeads*d.headDim), b.Alloc(r, d.kvHeads*d.headDim)
		d.ffn = nn.NewFFNScratch(b, r, d.width)
		d.rope.Reserve(b, r)
		d.blockIDs, d.pos, d.pick = b.AllocInts(r), b.AllocInts(r), b.AllocInts(r)
		if d.taps > 0 {
			d.mixed, d.dyn = b.Alloc(r, d.hidden), b.Alloc(r, d.taps)
			d.index = b.AllocInts(r)
		}
	}
	if d.roundK == nil {
		for range d.layers {
			d.roundK = append(d.roundK, b.Alloc(d.block, d.kvHeads*d.headDim))
			d.roundV = append(d.roundV, b.Alloc(d.block, d.kvHeads*d.headDim))
		}
	}
	if picks > d.final.Rows {
		r := d.block
		for r < picks {
			r *= 2
		}
		d.final, d.logits = b.Alloc(r, d.hidden), b.Alloc(r, d.head.Rows())
	}
}
