package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// bookDevice is a device whose pages and states are lists of the tokens that were written to them, so that a test can
// read what a sequence remembers.
type bookDevice struct {
	backend.Backend // nothing else is called
	states          *bookStates
}

func (d *bookDevice) NewKVPool(backend.KVLayout) (backend.KVPool, error) { return &bookPages{}, nil }
func (d *bookDevice) NewStatePool(backend.DeltaDims, int) (backend.StatePool, error) {
	d.states = &bookStates{state: map[int32][]int{}, tape: map[int32][]int{}}
	return d.states, nil
}
func (d *bookDevice) Sync() error { return nil }

type bookPages struct {
	backend.KVPool
	pages [][PageTokens]int
	free  []int32
	used  int
}

func (p *bookPages) PageBytes() int { return 8 * PageTokens }
func (p *bookPages) Used() int      { return p.used }
func (p *bookPages) Alloc() (int32, error) {
	p.used++
	if n := len(p.free); n > 0 {
		id := p.free[n-1]
		p.free = p.free[:n-1]
		p.pages[id] = [PageTokens]int{} // what a page held before is anything
		return id, nil
	}
	p.pages = append(p.pages, [PageTokens]int{})
	return int32(len(p.pages) - 1), nil
}
func (p *bookPages) Free(page int32)     { p.used--; p.free = append(p.free, page) }
func (p *bookPages) Copy(dst, src int32) { p.pages[dst] = p.pages[src] }
func (p *bookPages) Move(rows []backend.RowMove) {
	for _, m := range rows {
		p.pages[m.To][m.Dst] = p.pages[m.From][m.Src]
	}
}

type bookStates struct {
	backend.StatePool
	state, tape map[int32][]int
	next        int32
}

func (s *bookStates) Alloc() (int32, error) {
	s.next++
	s.state[s.next] = nil
	return s.next, nil
}
func (s *bookStates) Free(slot int32)                 { delete(s.state, slot); delete(s.tape, slot) }
func (s *bookStates) Clear(slot int32)                { s.state[slot], s.tape[slot] = nil, nil }
func (s *bookStates) Copy(dst, src int32)             { s.state[dst] = slices.Clone(s.state[src]) }
func (s *bookStates) Reserve(slot int32, _ int) error { return nil }
func (s *bookStates) Release(slot int32)              { delete(s.tape, slot) }
func (s *bookStates) Keep(slot int32, path []int32) {
	for i, r := range path {
		s.tape[slot][i] = s.tape[slot][r]
	}
}
func (s *bookStates) Settle(slot int32, pending int) {
	s.state[slot] = append(slices.Clone(s.state[slot]), s.tape[slot][:pending]...)
	s.tape[slot] = nil
}

// books is a memory with what each of its sequences should remember.
type books struct {
	t    *testing.T
	m    *Memory
	dev  *bookDevice
	want map[*Seq][]int
	last int // token
}

// pass runs rows of a sequence and keeps a path of them.
func (b *books) pass(s *Seq, rows int, parents []int32, prompt bool, path []int32) {
	b.t.Helper()
	var had []int // pages, of rows that were not kept, too
	for _, t := range s.tables {
		had = append(had, len(t))
	}
	batch, err := b.m.Begin([]Segment{{Seq: s, Rows: rows, Parents: parents, Prompt: prompt}})
	if err != nil {
		b.t.Fatal(err)
	}
	tokens := make([]int, rows)
	for i := range tokens {
		b.last++
		tokens[i] = b.last
	}
	for gi, g := range b.m.groups {
		p := batch.Plans[g.device].KV[gi]
		if n, want := len(p.Tables[0]), max(had[gi], (s.n+rows-1)/PageTokens+1); n != want {
			b.t.Fatalf("%d pages for %d tokens, want %d", n, s.n+rows, want)
		}
		for r := range rows {
			slot := int(p.Slot[r])
			g.pool.(*bookPages).pages[p.Tables[0][slot/PageTokens]][slot%PageTokens] = tokens[r]
		}
	}
	for _, d := range batch.Plans[0].Delta {
		st := b.dev.states
		st.state[d.Slot] = append(slices.Clone(st.state[d.Slot]), st.tape[d.Slot][:d.Pending]...)
		if st.tape[d.Slot] = nil; prompt {
			st.state[d.Slot] = append(st.state[d.Slot], tokens...)
		} else {
			st.tape[d.Slot] = slices.Clone(tokens)
		}
	}
	batch.Done()
	if err := s.Commit(path); err != nil {
		b.t.Fatal(err)
	}
	for _, r := range path {
		b.want[s] = append(b.want[s], tokens[r])
	}
}

// check compares every sequence with what it should remember, and the pools with what sequences hold.
func (b *books) check(what string) {
	b.t.Helper()
	for s, want := range b.want {
		if s.Len() != len(want) || s.Open() != 0 {
			b.t.Fatalf("%s: %d tokens, %d open, want %d", what, s.Len(), s.Open(), len(want))
		}
		for gi, g := range b.m.groups {
			from := 0
			if g.window > 0 {
				from = max(0, len(want)-g.window) // a drafter's block sees as much
			}
			for i := from; i < len(want); i++ {
				page := s.tables[gi][i/PageTokens]
				if page < 0 || g.pool.(*bookPages).pages[page][i%PageTokens] != want[i] {
					b.t.Fatalf("%s: group %d forgot token %d of %d", what, gi, i, len(want))
				}
			}
			for p := range from / PageTokens {
				if s.tables[gi][p] >= 0 {
					b.t.Fatalf("%s: group %d keeps page %d, which no token of %d sees", what, gi, p, len(want))
				}
			}
		}
		for i, slot := range s.slots {
			got := append(slices.Clone(b.dev.states.state[slot]), b.dev.states.tape[slot][:s.pending]...)
			if i == 0 && !slices.Equal(got, want) {
				b.t.Fatalf("%s: the state has seen %d tokens, want %d", what, len(got), len(want))
			}
		}
	}
	for gi, g := range b.m.groups {
		count := map[int32]int32{}
		for s := range b.want {
			for _, p := range s.tables[gi] {
				if p >= 0 {
					count[p]++
				}
			}
		}
		if g.pool.Used() != len(count) {
			b.t.Fatalf("%s: %d pages are in use, sequences hold %d", what, g.pool.Used(), len(count))
		}
		for p, n := range count {
			if g.refs[p] != n {
				b.t.Fatalf("%s: page %d has %d references, %d sequences hold it", what, p, g.refs[p], n)
			}
		}
	}
	if b.dev.states != nil && len(b.dev.states.state) > len(b.want) {
		b.t.Fatalf("%s: %d states of %d sequences", what, len(b.dev.states.state), len(b.want))
	}
}

// TestRandomOperations: whatever is done to sequences, each remembers its own tokens and nothing that it must not see
// any more, and no page is lost or freed too early.
func TestRandomOperations(t *testing.T) {
	layer := backend.KVDims{Heads: 1, KeyDim: 8, ValueDim: 8, Key: quant.F16, Value: quant.F16}
	for name, spec := range map[string]Spec{
		"attention": {Layers: []Layer{{KVDims: layer}}},
		"windows":   {Layers: []Layer{{KVDims: layer, Window: 100}, {KVDims: layer, Window: 128}, {KVDims: layer}}},
		"recurrent": {Layers: []Layer{{KVDims: layer}}, Recurrent: []int{0},
			Delta: backend.DeltaDims{KHeads: 1, VHeads: 1, KDim: 4, VDim: 4, Kernel: 4}},
	} {
		for seed := range uint64(40) {
			r := rand.New(rand.NewPCG(seed, 11))
			b := &books{t: t, dev: &bookDevice{}, want: map[*Seq][]int{}}
			var err error
			if b.m, err = New([]backend.Backend{b.dev}, spec); err != nil {
				t.Fatal(err)
			}
			var seqs []*Seq
			for step := range 120 {
				if len(seqs) == 0 || len(seqs) < 4 && r.IntN(8) == 0 {
					s := b.m.NewSeq()
					seqs, b.want[s] = append(seqs, s), nil
				}
				at := r.IntN(len(seqs))
				s := seqs[at]
				what := fmt.Sprintf("%s, seed %d, step %d", name, seed, step)
				switch r.IntN(9) {
				case 0, 1: // a prompt, often to the border of a page
					rows := 1 + r.IntN(90)
					if r.IntN(2) == 0 {
						rows = PageTokens - s.Len()%PageTokens
					}
					b.pass(s, rows, nil, true, chain(rows))
				case 2, 3: // a chain, of which some is kept
					rows := 1 + r.IntN(9)
					b.pass(s, rows, nil, false, chain(r.IntN(rows+1)))
				case 4: // a tree
					b.pass(s, 5, []int32{-1, 0, 0, 2, 1}, false, [][]int32{{0, 2, 3}, {0, 1, 4}, {0}, {}}[r.IntN(4)])
				case 5:
					f, err := s.Fork()
					if err != nil {
						t.Fatal(err)
					}
					seqs, b.want[f] = append(seqs, f), slices.Clone(b.want[s])
				case 6:
					n := r.IntN(s.Len() + 1)
					if r.IntN(2) == 0 {
						n = n / PageTokens * PageTokens
					}
					can := s.CanCut(n)
					if err := s.Truncate(n); (err == nil) != can || !can && b.m.Cuttable(s.Len()) {
						t.Fatalf("%s: CanCut(%d) of %d tokens is %v, Truncate says %v", what, n, s.Len(), can, err)
					}
					for gi := range b.m.groups {
						if can && n < len(b.want[s]) && len(s.tables[gi]) > s.pages() {
							t.Fatalf("%s: %d pages of %d tokens", what, len(s.tables[gi]), n)
						}
					}
					if can {
						b.want[s] = b.want[s][:n]
					}
				case 7:
					if s.Pack(); s.Open() != 0 || len(s.slots) > 0 && b.m.BytesOf(s.Len()) != s.Bytes() ||
						len(spec.Recurrent) == 0 && b.m.BytesOf(s.Len()) != s.Bytes() {
						t.Fatalf("%s: %d tokens take %d bytes packed, want %d", what, s.Len(), s.Bytes(), b.m.BytesOf(s.Len()))
					}
				case 8:
					s.Close()
					delete(b.want, s)
					seqs = slices.Delete(seqs, at, at+1)
				}
				b.check(what)
			}
			for _, s := range seqs {
				s.Close()
			}
			b.want = nil
			b.check("all closed")
		}
	}
}

// chain is the first n rows of a pass.
func chain(n int) (path []int32) {
	for i := range n {
		path = append(path, int32(i))
	}
	return path
}

// TestCuttableBorder: memory that is said to be cut anywhere can be, at every length around its window.
func TestCuttableBorder(t *testing.T) {
	layer := backend.KVDims{Heads: 1, KeyDim: 8, ValueDim: 8, Key: quant.F16, Value: quant.F16}
	b := &books{t: t, dev: &bookDevice{}, want: map[*Seq][]int{}}
	var err error
	if b.m, err = New([]backend.Backend{b.dev}, Spec{Layers: []Layer{{KVDims: layer, Window: 100}}}); err != nil {
		t.Fatal(err)
	}
	for n := 90; n < 240; n++ {
		s := b.m.NewSeq()
		b.pass(s, n, nil, true, chain(n))
		for k := range n {
			if b.m.Cuttable(n) && !s.CanCut(k) {
				t.Fatalf("%d tokens are cuttable but not at %d", n, k)
			}
		}
		s.Close()
		delete(b.want, s)
	}
	if !b.m.Cuttable(100) || b.m.Cuttable(101) {
		t.Error("the border of a window of 100 is elsewhere")
	}
	b.m, err = New([]backend.Backend{b.dev}, Spec{Layers: []Layer{{KVDims: layer}}})
	if err != nil || !b.m.Cuttable(1<<20) {
		t.Errorf("memory without a window cannot be cut: %v", err)
	}
}

// TestFingerprintSeesEverything: memories that differ in anything that changes what is stored have other fingerprints.
func TestFingerprintSeesEverything(t *testing.T) {
	base := func() Spec {
		dims := backend.KVDims{Heads: 2, KeyDim: 8, ValueDim: 8, Key: quant.F16, Value: quant.F16}
		return Spec{Layers: []Layer{{KVDims: dims, Window: 100}}, Recurrent: []int{0},
			Delta: backend.DeltaDims{KHeads: 1, VHeads: 1, KDim: 4, VDim: 4, Kernel: 4}}
	}
	seen := map[uint64]int{}
	for i, change := range []func(*Spec){
		func(*Spec) {},
		func(s *Spec) { s.Layers[0].Heads = 1 },
		func(s *Spec) { s.Layers[0].KeyDim = 16 },
		func(s *Spec) { s.Layers[0].ValueDim = 16 },
		func(s *Spec) { s.Layers[0].Key = quant.F32 },
		func(s *Spec) { s.Layers[0].Value = quant.F32 },
		func(s *Spec) { s.Layers[0].Window = 101 },
		func(s *Spec) { s.Layers[0].Device = 1 },
		func(s *Spec) { s.Layers = append(s.Layers, s.Layers[0]) },
		func(s *Spec) { s.Recurrent = []int{0, 0} },
		func(s *Spec) { s.Recurrent = []int{1} },
		func(s *Spec) { s.Delta.Kernel = 3 },
		func(s *Spec) { s.Carry = 4 },
		func(s *Spec) { s.Carry = 5 },
	} {
		s := base()
		change(&s)
		f := (&Memory{spec: s}).Fingerprint()
		if j, ok := seen[f]; ok {
			t.Errorf("changes %d and %d have the same fingerprint", i, j)
		}
		seen[f] = i
	}
}
