package backendtest

import (
	"fmt"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

func stepCases() []testCase {
	return []testCase{
		{"steps without a plan", plainSteps},
		{"steps of a model", modelSteps},
		{"steps that follow each other", chainedSteps},
	}
}

// plainSteps: a recorded step computes with what Write and SetInts put there since, and another list of operations on
// the same tensors is not taken for it.
func plainSteps(s *suite) {
	k := s.device()
	const rows, cols = 3, 8
	x, err := k.Alloc(5, cols)
	k.check(err)
	y, err := k.Alloc(rows, cols)
	k.check(err)
	z, err := k.Alloc(rows, cols)
	k.check(err)
	idx := k.ints(0, 0, 0)
	for round := range 9 {
		v := values("x", round, 5*cols)
		k.Write(x, v)
		pick := []int32{int32(round % 5), int32((2*round + 1) % 5), 4}
		f := float32(2)
		if round == 6 { // a step that is given up
			k.BeginStep(nil)
			k.Scale(y, y, 100)
		}
		k.BeginStep(nil)
		k.SetInts(idx, pick)
		want := slices.Clone(pick)
		clear(pick) // SetInts has taken what it needs
		k.Gather(y, x, idx)
		switch round {
		case 4:
			f = 3
			k.Scale(z, y, 3)
		case 7:
			f = 2.5
			k.Scale(z, y, 2.5) // the list of round 4 with another number
		default:
			k.Add(z, y, y)
		}
		k.EndStep()
		k.check(k.Sync())
		for i, got := range k.Read(z) {
			if w := f * v[int(want[i/cols])*cols+i%cols]; got != w {
				s.Fatalf("round %d: value %d is %v, want %v", round, i, got, w)
			}
		}
	}
}

// machine is a small model with every kind of operation that a step may hold: each row of the next step depends on what
// its sequence remembers.
type machine struct {
	*kit
	d       backend.DeltaDims
	dims    backend.KVDims
	kv      backend.KVPool
	states  backend.StatePool
	weights map[string]backend.Weight
	vectors [4]backend.Vector
	scratch map[int]*scratch // by rows; a step of as many rows finds its tensors where they were
	giveUp  bool             // begin every step twice
	names   map[listKey]int  // of steps that were run
}

// listKey is what decides about the operations of a step.
type listKey struct {
	rows  int
	other bool
}

const (
	machineWidth = 64
	machineVocab = 50
	machineUsed  = 2 // experts
)

type scratch struct {
	ids, best, experts        backend.Ints
	extra, x, h, q, k, v, o   backend.Tensor
	u, conv, alpha, beta, y   backend.Tensor
	router, shares, each, sum backend.Tensor
	logits, next              backend.Tensor
}

func (k *kit) machine() *machine {
	k.Helper()
	key, value := k.KV[0], k.KV[len(k.KV)-1]
	dim := max(k.Heads[0], key.BlockLen(), value.BlockLen())
	m := &machine{kit: k, d: k.Delta[0]}
	m.dims = backend.KVDims{Heads: 2, KeyDim: dim, ValueDim: dim, Key: key, Value: value}
	var err error
	m.kv, err = k.NewKVPool(backend.KVLayout{Page: pageTokens, Layers: []backend.KVDims{m.dims}})
	k.check(err)
	m.states, err = k.NewStatePool(m.d, 1)
	k.check(err)
	m.weights, m.scratch, m.names = map[string]backend.Weight{}, map[int]*scratch{}, map[listKey]int{}
	for name, shape := range map[string][2]int{
		"embed": {machineVocab, machineWidth}, "head": {machineVocab, machineWidth},
		"router": {experts, m.d.VHeads * m.d.VDim},
		"q":      {4 * dim, machineWidth}, "k": {2 * dim, machineWidth}, "v": {2 * dim, machineWidth},
		"u": {m.d.ConvDim(), 4 * dim}, "alpha": {m.d.VHeads, 4 * dim}, "beta": {m.d.VHeads, 4 * dim},
	} {
		m.weights[name] = k.bind(k.matrix(quant.F32, 1, shape[0], shape[1]))
	}
	m.weights["expert"] = k.bind(k.matrix(quant.F32, experts, machineWidth, m.d.VHeads*m.d.VDim))
	decay := values("a", 0, m.d.VHeads)
	for h, a := range decay {
		decay[h] = -a * a
	}
	taps := values("taps", 0, m.d.ConvDim()*m.d.Kernel)
	m.vectors = [4]backend.Vector{k.vector(values("norm", 0, machineWidth)), k.vector(taps), k.vector(decay),
		k.vector(values("dt", 0, m.d.VHeads))}
	return m
}

func (m *machine) tensors(n int) *scratch {
	if s := m.scratch[n]; s != nil {
		return s
	}
	rows := func(cols int) backend.Tensor {
		t, err := m.Alloc(n, cols)
		m.check(err)
		return t
	}
	dim := m.dims.KeyDim
	s := &scratch{ids: m.ints(make([]int32, n)...), best: m.ints(make([]int32, n)...),
		extra: rows(machineWidth), x: rows(machineWidth), h: rows(machineWidth),
		q: rows(4 * dim), k: rows(2 * dim), v: rows(2 * dim), o: rows(4 * dim),
		u: rows(m.d.ConvDim()), conv: rows(m.d.ConvDim()), alpha: rows(m.d.VHeads), beta: rows(m.d.VHeads),
		y: rows(m.d.VHeads * m.d.VDim), router: rows(experts), shares: rows(machineUsed), sum: rows(machineWidth),
		logits: rows(machineVocab), next: rows(machineWidth)}
	s.experts = m.ints(make([]int32, n*machineUsed)...)
	s.each = rows(machineUsed * machineWidth).Split(machineUsed)
	m.scratch[n] = s
	return s
}

// thread is a sequence of the machine.
type thread struct {
	tokens  []int32 // committed
	table   []int32
	slot    int32
	pending int
}

func (m *machine) thread() *thread {
	slot, err := m.states.Alloc()
	m.check(err)
	return &thread{slot: slot}
}

// feed is what a step adds to a thread: a chain, or a tree of which a path is kept.
type feed struct {
	*thread
	add     []int32
	parents []int32 // nil for a chain
	path    []int32 // nil for all rows
}

// kept lists the rows that stay.
func (f *feed) kept() []int32 {
	if f.path != nil {
		return f.path
	}
	var all []int32
	for r := range f.add {
		all = append(all, int32(r))
	}
	return all
}

// plan adds the rows of a feed to a step.
func (m *machine) plan(p *backend.Plan, f *feed, prompt bool) {
	m.Helper()
	n, rows, kv := len(f.tokens), len(f.add), &p.KV[0]
	for len(f.table)*pageTokens < n+rows {
		page, err := m.kv.Alloc()
		m.check(err)
		f.table = append(f.table, page)
	}
	if !prompt {
		m.check(m.states.Reserve(f.slot, rows))
	}
	p.Delta = append(p.Delta, backend.DeltaSeg{Row: len(kv.Slot), N: rows, Parents: slices.Clone(f.parents),
		Prompt: prompt, Slot: f.slot, Pending: f.pending})
	seg := int32(len(kv.Tables))
	kv.Tables = append(kv.Tables, slices.Clone(f.table))
	for r := range rows {
		hi, extra := n+r+1, []int32(nil)
		if f.parents != nil {
			hi = n
			for a := int32(r); a >= 0; a = f.parents[a] {
				extra = append([]int32{int32(n) + a}, extra...)
			}
		}
		kv.Seg, kv.Slot = append(kv.Seg, seg), append(kv.Slot, int32(n+r))
		kv.Lo, kv.Hi, kv.Extra = append(kv.Lo, 0), append(kv.Hi, int32(hi)), append(kv.Extra, extra)
	}
}

// commit keeps the rows of a feed that are to stay.
func (m *machine) commit(f *feed, prompt bool) {
	n := len(f.tokens)
	var moves []backend.RowMove
	for to, r := range f.kept() {
		from := n + int(r)
		f.tokens = append(f.tokens, f.add[r])
		moves = append(moves, backend.RowMove{To: f.table[(n+to)/pageTokens], Dst: (n + to) % pageTokens,
			From: f.table[from/pageTokens], Src: from % pageTokens})
	}
	if f.pending = 0; !prompt {
		f.pending = len(f.kept())
	}
	if f.path != nil {
		m.kv.Move(moves)
		m.states.Keep(f.slot, f.path)
	}
}

// step feeds threads, and returns logits and the embedding of the best token of each row that is kept. other asks
// for a different list of operations, whose logits are three times as large.
func (m *machine) step(feeds []feed, prompt, other bool) [][]float32 {
	m.Helper()
	plan := &backend.Plan{State: m.states, KV: []backend.KVPlan{{Pool: m.kv}}}
	var ids, kept []int32
	for i := range feeds {
		f := &feeds[i]
		m.plan(plan, f, prompt)
		for _, r := range f.kept() {
			kept = append(kept, int32(len(ids))+r)
		}
		ids = append(ids, f.add...)
	}
	kv := &plan.KV[0]
	if !slices.ContainsFunc(kv.Extra, func(x []int32) bool { return x != nil }) {
		kv.Extra = nil
	}
	rows := backend.Pad(m.Backend, len(ids)) // rows of padding hold what was there before
	if rows < len(ids) {
		m.Fatalf("%d rows for %d tokens", rows, len(ids))
	}
	s := m.tensors(rows)
	var extra []float32
	for _, id := range ids {
		extra = append(extra, values("extra", int(id), machineWidth)...)
	}
	m.Write(s.extra.Slice(0, len(ids)), extra)
	if m.giveUp {
		m.BeginStep(plan)
		m.RMSNorm(s.h, s.x, nil, 1)
	}
	key := listKey{rows, other}
	again := false
	if name := m.names[key]; name != 0 {
		var err error
		again, err = backend.Repeat(m.Backend, name, plan, ids)
		m.check(err)
	}
	if !again {
		m.BeginStep(plan)
		m.SetInts(s.ids, append(slices.Clone(ids), make([]int32, rows-len(ids))...))
		m.forward(s, other)
		name, err := m.EndStep()
		m.check(err)
		m.names[key] = name
	}
	// The plan belongs to the caller again.
	clear(kv.Seg)
	for _, list := range [][]int32{kv.Slot, kv.Lo, kv.Hi} {
		for i := range list {
			list[i] = 1 << 20
		}
	}
	for _, t := range append(kv.Tables, kv.Extra...) {
		clear(t)
	}
	for _, d := range plan.Delta {
		clear(d.Parents)
	}
	clear(plan.Delta)
	m.check(m.Sync())
	logits, next := slices.Clone(m.Read(s.logits)), slices.Clone(m.Read(s.next))
	for i := range feeds {
		m.commit(&feeds[i], prompt)
	}
	out := make([][]float32, len(kept))
	for i, r := range kept {
		out[i] = slices.Concat(logits[r*machineVocab:][:machineVocab], next[r*machineWidth:][:machineWidth])
	}
	return out
}

// forward is the operations of a step.
func (m *machine) forward(s *scratch, other bool) {
	w := func(name string, y backend.Tensor) backend.Product { return backend.Product{W: m.weights[name], Y: y} }
	m.Embed(s.x, m.weights["embed"], s.ids, 1)
	m.Add(s.x, s.x, s.extra)
	m.RMSNorm(s.h, s.x, m.vectors[0], 1e-5)
	m.MatMul(s.h, w("q", s.q), w("k", s.k), w("v", s.v))
	m.KVWrite(0, 0, s.k, s.v)
	m.Attention(s.o, s.q, 0, 0, backend.AttnParams{Heads: 4, KVHeads: 2, Scale: 0.5})
	m.MatMul(s.o, w("u", s.u), w("alpha", s.alpha), w("beta", s.beta))
	m.ShortConv(s.conv, s.u, m.vectors[1], 0)
	m.GatedDelta(s.y, s.conv, s.alpha, s.beta, m.vectors[2], m.vectors[3], 0)
	m.MatMul(s.y, w("router", s.router))
	m.Route(s.experts, s.shares, s.router, machineUsed, 1)
	m.ExpertMatMul(s.y, s.experts, machineUsed, w("expert", s.each))
	m.ExpertSum(s.sum, s.each, s.shares, s.experts, machineUsed, nil)
	m.MatMul(s.sum, w("head", s.logits))
	if other {
		m.Scale(s.logits, s.logits, 3)
	}
	m.ArgMax(s.best, s.logits)
	m.Embed(s.next, m.weights["embed"], s.best, 1) // without the host in between
}

// fork returns a thread that continues on its own.
func (m *machine) fork(t *thread) *thread {
	m.states.Settle(t.slot, t.pending)
	t.pending = 0
	f := m.thread()
	f.tokens = slices.Clone(t.tokens)
	f.table = slices.Clone(t.table)
	if last := len(f.table) - 1; len(t.tokens)%pageTokens != 0 {
		p, err := m.kv.Alloc()
		m.check(err)
		m.kv.Copy(p, f.table[last])
		f.table[last] = p
	}
	m.states.Copy(f.slot, t.slot)
	return f
}

// fresh is what a device computes that sees these sequences for the first time, for their last tokens.
func (s *suite) fresh(threads []*thread, last []int, other bool) [][]float32 {
	s.Helper()
	m := s.device().machine()
	var out [][]float32
	for i, t := range threads {
		at := len(t.tokens) - last[i]
		own := m.thread()
		if at > 0 {
			m.step([]feed{{thread: own, add: t.tokens[:at]}}, true, false)
		}
		out = append(out, m.step([]feed{{thread: own, add: t.tokens[at:]}}, false, other)...)
	}
	return out
}

// modelSteps: rounds of the same shape, which a device may replay, while sequences grow over a page, fork and come
// back.
func modelSteps(s *suite) {
	m := s.device().machine()
	a, b := m.thread(), m.thread()
	number := int32(0)
	tokens := func(n int) []int32 {
		v := make([]int32, n)
		for i := range v {
			number++
			v[i] = number * 7 % machineVocab
		}
		return v
	}
	m.step([]feed{{thread: a, add: tokens(60)}, {thread: b, add: tokens(3)}}, true, false)
	threads := []*thread{a, b}
	for round := range 14 {
		other, rows := false, []int{1, 1}
		switch round {
		case 2:
			other = true
		case 4:
			threads[1] = m.fork(threads[0])
		case 5:
			threads = []*thread{threads[1], threads[0]}
		case 6:
			rows = []int{3, 1}
		case 8:
			threads[0] = b // comes back
		}
		m.giveUp = round == 7
		feeds := []feed{{thread: threads[0], add: tokens(rows[0])}, {thread: threads[1], add: tokens(rows[1])}}
		if round >= 10 { // trees of as many rows and other shapes
			f := &feeds[round%2]
			f.add = tokens(5)
			f.parents = [][]int32{{-1, 0, 0, 2, 3}, {-1, -1, 1, 2, 0}, {-1, 0, 1, 2, 3}, {-1, -1, -1, 2, 3}}[round-10]
			f.path = [][]int32{{0, 2, 3, 4}, {1, 2, 3}, {0, 1}, {2, 3, 4}}[round-10]
			rows[round%2] = len(f.path)
		}
		got := m.step(feeds, false, other)
		m.equal(fmt.Sprint("round ", round), got, s.fresh(threads, rows, other))
	}
}
