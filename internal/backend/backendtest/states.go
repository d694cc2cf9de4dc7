package backendtest

import (
	"slices"

	"strobe/internal/backend"
)

func stateCases(o Options) []testCase {
	var list []testCase
	for _, d := range o.Delta {
		for _, c := range []struct {
			name string
			run  func(t *tale)
		}{
			{"in pieces", inPieces}, {"trees", statesOfTrees}, {"Settle and Copy", settleAndCopy},
			{"Reserve and Release", reserveAndRelease}, {"Clear and Free", clearAndFree}, {"Read and Write", readAndWrite},
		} {
			list = append(list, testCase{deltaName("StatePool "+c.name+",", d), func(s *suite) {
				c.run(&tale{recurrent: s.device().recurrent(d), chain: canonical(s, d)})
			}})
		}
	}
	return list
}

// taleTokens is the length of the sequence that every tale tells.
const taleTokens = 70

// canonical is the output of a sequence that came as one prompt.
func canonical(s *suite, d backend.DeltaDims) [][]float32 {
	r := s.device().recurrent(d)
	p := piece{slot: r.newSlot(), prompt: true}
	for i := range taleTokens {
		p.tokens = append(p.tokens, token{0, i})
	}
	return r.pass(p)
}

// tale is a sequence whose tokens come in some way. Whatever the way, their outputs have the bits of one prompt.
type tale struct {
	*recurrent
	chain [][]float32
	reader
}

// reader is where a sequence stands.
type reader struct {
	slot    int32
	at      int // tokens so far
	pending int
}

func (t *tale) start() {
	t.reader = reader{slot: t.newSlot()}
}

// expect compares the output of a row with that of a token.
func (t *tale) expect(row []float32, number int) {
	t.k.Helper()
	if !sameResult(row, t.chain[number]) {
		t.k.Errorf("token %d has other bits than in one prompt", number)
	}
}

// prompt feeds n certain tokens.
func (t *tale) prompt(n int) {
	t.k.Helper()
	t.rows(nil, n, n, true)
	t.at, t.pending = t.at+n, 0
}

// verify feeds n tokens of which the first accept are right and are kept.
func (t *tale) verify(n, accept int) {
	t.k.Helper()
	t.rows(nil, n, accept, false)
	t.at, t.pending = t.at+accept, accept
}

// rows runs a pass over a chain whose first right tokens are those of the tale, or over a tree with a path of right
// ones.
func (t *tale) rows(parents []int32, n, right int, prompt bool, path ...int32) {
	t.k.Helper()
	p := piece{slot: t.slot, prompt: prompt, pending: t.pending, parents: parents}
	number := make([]int, n)
	for i := range number {
		number[i] = 1000 + i // a wrong guess
		if i < right {
			number[i] = t.at + i
		}
		if at := slices.Index(path, int32(i)); at >= 0 {
			number[i] = t.at + at
		}
		p.tokens = append(p.tokens, token{0, number[i]})
	}
	for i, row := range t.pass(p) {
		if number[i] < 1000 {
			t.expect(row, number[i])
		}
	}
}

// tree feeds a tree and keeps a path of it.
func (t *tale) tree(parents []int32, path ...int32) {
	t.k.Helper()
	t.rows(parents, len(parents), 0, false, path...)
	t.pool.Keep(t.slot, path)
	t.at, t.pending = t.at+len(path), len(path)
}

func (t *tale) settle() {
	t.pool.Settle(t.slot, t.pending)
	t.pending = 0
}

// inPieces: negative numbers are prompts, others chains that are accepted whole; hundreds are rows of which the rest is
// accepted.
func inPieces(t *tale) {
	for _, pieces := range [][]int{
		{70}, {-70}, {1, 1, 1, 1, 1, 1, 1, 1}, {5, 7, 12}, {-3, 4, 5, -12}, {2, -7, 3, 3}, {-1, -2, -3, -4, 14}, {17, -7},
		{-64, 6}, {33, -37}, {-65, -5}, {-16, -16, 32, 1},
		{501, -3, 802, 301, 402, 300, 502, 7},
	} {
		t.start()
		for _, n := range pieces {
			switch {
			case n < 0:
				t.prompt(-n)
			case n < 100:
				t.verify(n, n)
			default:
				t.verify(n/100, n%100)
			}
		}
		t.pool.Free(t.slot)
	}
}

// statesOfTrees: a path through a tree has the bits of the chain, and so has what follows it.
func statesOfTrees(t *tale) {
	for _, settle := range []bool{false, true} {
		t.start()
		t.prompt(3)
		for _, y := range []struct{ parents, path []int32 }{
			{[]int32{-1, -1, 1, 2, 0}, []int32{1, 2, 3}}, // rows that move to where others of the path come from
			{[]int32{-1, 0, 0, 2, 1, 3}, []int32{0, 2, 3, 5}},
			{[]int32{-1, -1, -1}, []int32{2}},
			{[]int32{-1, 0, 1}, nil}, // nothing accepted
			{[]int32{-1, 0, 1}, []int32{0, 1, 2}},
			{[]int32{-1, 0, 0, 1, 1, 2, 2}, []int32{0, 2, 6}},
		} {
			t.tree(y.parents, y.path...)
			if settle {
				t.settle()
			}
		}
		t.verify(3, 2)
		t.prompt(4)
	}
}

// settleAndCopy: a copy continues like the original, and neither changes the other.
func settleAndCopy(t *tale) {
	t.start()
	t.prompt(2)
	t.verify(5, 4)
	t.settle()
	t.settle() // nothing is left to do
	first := t.reader
	second := reader{slot: t.newSlot(), at: t.at}
	t.pool.Copy(second.slot, first.slot)
	t.reader = second
	t.verify(6, 3)
	t.verify(4, 4)
	second = t.reader
	t.reader = first
	t.verify(3, 3)
	t.pool.Settle(second.slot, second.pending)
	second.pending = 0
	t.verify(2, 2)
	first, t.reader = t.reader, second
	t.prompt(4)
	t.reader = first
	t.prompt(9)

	// A slot that another sequence used takes over all of it.
	t.pool.Copy(second.slot, t.slot)
	t.slot = second.slot
	t.verify(2, 1)
}

// reserveAndRelease: room for a longer pass keeps the rows that wait on the tape.
func reserveAndRelease(t *tale) {
	t.start()
	t.verify(3, 2)
	t.k.check(t.pool.Reserve(t.slot, 9))
	t.k.check(t.pool.Reserve(t.slot, 1))
	t.verify(9, 5)
	t.verify(14, 6)
	t.settle()
	t.pool.Release(t.slot)
	t.verify(2, 1)
	t.verify(5, 5)
	t.settle()
	t.pool.Release(t.slot)
	t.prompt(5)
}

// clearAndFree: a slot that is cleared, or given again, has seen no token.
func clearAndFree(t *tale) {
	t.start()
	t.prompt(5)
	t.verify(3, 2)
	t.pool.Clear(t.slot)
	t.at, t.pending = 0, 0
	t.verify(4, 3)
	t.settle()
	slots := []int32{t.slot}
	for range 3 {
		slots = append(slots, t.newSlot())
	}
	if slices.Sort(slots); len(slices.Compact(slots)) != 4 {
		t.k.Fatal("a slot was given twice")
	}
	t.pool.Free(t.slot)
	t.start()
	t.verify(2, 2)
	t.prompt(3)
}

// readAndWrite: the values of a slot bring its sequence back in another one.
func readAndWrite(t *tale) {
	t.start()
	t.prompt(6)
	t.verify(3, 2)
	t.settle()
	from, other := t.reader, t.k.recurrent(t.d)
	to := other.newSlot()
	for l := range recurrentLayers {
		v := slices.Clone(t.pool.Read(t.slot, l))
		if len(v) != t.d.StateValues() {
			t.k.Fatalf("a layer of a slot has %d values, want %d", len(v), t.d.StateValues())
		}
		other.pool.Write(to, l, v)
		clear(v)
	}
	t.verify(3, 3) // the original goes on
	t.recurrent, t.reader = other, reader{slot: to, at: from.at}
	t.verify(5, 3)
	t.prompt(6)
}
