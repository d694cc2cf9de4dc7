package backendtest

import (
	"slices"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// chain is sequences that a network continues with what it has just guessed.
type chain struct {
	*kit
	dims         backend.KVDims
	pool         backend.KVPool
	tables       [][]int32
	embed, head  backend.Weight
	x, o, logits backend.Tensor
	first, best  backend.Ints
}

// chainStarts is how many tokens each sequence has; one of them grows over the border of a page.
var chainStarts = []int{62, 5, 130}

const (
	chainSteps = 4
	chainVocab = 50
)

// chainedSteps: a step may hold several plans over the same pages. A row sees what an earlier plan of the step wrote,
// and a token that the device chose is the next one's input, without a word of the host: the result is that of as many
// steps with one plan each. Sequences end one after the other, so later plans have fewer rows.
func chainedSteps(s *suite) {
	k := s.device()
	dim, typ := k.Heads[0], k.KV[0]
	c := &chain{kit: k, dims: backend.KVDims{Heads: 2, KeyDim: dim, ValueDim: dim, Key: typ, Value: typ}}
	var err error
	c.pool, err = k.NewKVPool(backend.KVLayout{Page: pageTokens, Layers: []backend.KVDims{c.dims}})
	k.check(err)
	width, n := 2*c.dims.KeyDim, len(chainStarts)
	c.embed = k.bind(k.matrix(quant.F32, 1, chainVocab, width))
	c.head = k.bind(k.matrix(quant.F32, 1, chainVocab, width))
	for t, cols := range map[*backend.Tensor]int{&c.x: width, &c.o: width, &c.logits: chainVocab} {
		*t, err = k.Alloc(n, cols)
		k.check(err)
	}
	c.first, c.best = k.ints(make([]int32, n)...), k.ints(make([]int32, n)...)
	for _, start := range chainStarts {
		var table []int32
		for range (start+chainSteps)/pageTokens + 1 {
			p, err := c.pool.Alloc()
			k.check(err)
			table = append(table, p)
		}
		c.tables = append(c.tables, table)
	}
	for round := range 4 { // the last ones are replayed where steps are recorded
		apart := c.run(round, false)
		if together := c.run(round, true); !slices.EqualFunc(together, apart, same) {
			s.Errorf("round %d: steps that follow each other give other states than steps apart", round)
		}
	}
}

// rows is how many sequences take part in a step.
func (c *chain) rows(step int) int { return min(len(chainStarts), chainSteps-step) }

// plan is what the rows of a step write and see.
func (c *chain) plan(step int) backend.KVPlan {
	p := backend.KVPlan{Pool: c.pool}
	for i := range c.rows(step) {
		at := int32(chainStarts[i] + step)
		p.Tables, p.Seg = append(p.Tables, c.tables[i]), append(p.Seg, int32(i))
		p.Slot, p.Lo, p.Hi = append(p.Slot, at), append(p.Lo, 0), append(p.Hi, at+1)
	}
	return p
}

// run writes the beginnings of the sequences anew and continues them, and returns the states they end with.
func (c *chain) run(round int, together bool) []float32 {
	c.Helper()
	for i, n := range chainStarts {
		v, err := c.Alloc(n, c.x.Cols)
		c.check(err)
		c.Write(v, values("chain", round*10+i, n*c.x.Cols))
		p := backend.KVPlan{Pool: c.pool, Tables: c.tables[i : i+1]}
		for slot := range int32(n) {
			p.Seg, p.Slot = append(p.Seg, 0), append(p.Slot, slot)
			p.Lo, p.Hi = append(p.Lo, 0), append(p.Hi, slot+1)
		}
		c.BeginStep(&backend.Plan{KV: []backend.KVPlan{p}})
		c.KVWrite(0, 0, v, v)
		c.EndStep()
		c.Free(v)
	}
	c.Write(c.x, values("state", round, c.x.Rows*c.x.Cols))
	var plans []backend.KVPlan
	for step := range chainSteps {
		plans = append(plans, c.plan(step))
	}
	if together {
		c.BeginStep(&backend.Plan{KV: plans})
	}
	ids := c.first
	for step := range chainSteps {
		group := step
		if !together {
			group = 0
			c.BeginStep(&backend.Plan{KV: plans[step : step+1]})
		}
		if step == 0 {
			c.SetInts(ids, []int32{int32(round), 7, 49})
		}
		n := c.rows(step)
		x, o, logits := c.x.Slice(0, n), c.o.Slice(0, n), c.logits.Slice(0, n)
		c.Embed(o, c.embed, ids, 1)
		c.Add(x, x, o)
		c.KVWrite(group, 0, x, x)
		c.Attention(o, x, group, 0, backend.AttnParams{Heads: 2, KVHeads: 2, Scale: 0.1})
		c.Add(x, x, o)
		c.RMSNorm(x, x, nil, 1e-6)
		c.MatMul(x, backend.Product{W: c.head, Y: logits})
		ids = c.best
		c.ArgMax(ids, logits)
		if !together {
			c.EndStep()
		}
	}
	if together {
		c.EndStep()
	}
	c.check(c.Sync())
	return slices.Clone(c.Read(c.x))
}
