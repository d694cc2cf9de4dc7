package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/cache"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func tokens(seed uint64, n int) []int32 {
	r := rand.New(rand.NewPCG(seed, 5))
	t := make([]int32, n)
	for i := range t {
		t[i] = int32(r.IntN(500))
	}
	return t
}

// TestBatchIdentity: the logits of a token have the same bits whatever it is decoded with: batches
// of any size, other sequences beside it, any number of threads, on every instruction set.
func TestBatchIdentity(t *testing.T) {
	for _, level := range kernel.Available() {
		in := tokens(1, 70)
		if level == kernel.Generic {
			in = in[:36] // plain Go is slow; one batch of 33 and a rest
		}
		for _, name := range targets {
			t.Run(fmt.Sprintf("%s/%s", level, name), func(t *testing.T) {
				defer kernel.Set(level)()
				one := open(t, name, 1, Options{})
				want, _ := run(t, one, one.NewSeq(), in, 1, false)
				counts := []int{1, 2, 3}
				if level != kernel.Best() {
					counts = counts[2:] // how work is divided does not depend on the level
				}
				for _, threads := range counts {
					m := open(t, name, threads, Options{})
					for _, batch := range []int{2, 3, 5, 16, 33} {
						got, _ := run(t, m, m.NewSeq(), in, batch, false)
						if !sameBits(got, want) {
							t.Errorf("batch %d with %d threads: other bits than one token at a time", batch, threads)
						}
					}
					if got := runBeside(t, m, in); !sameBits(got, want) {
						t.Errorf("beside three sequences with %d threads: other bits than alone", threads)
					}
				}
			})
		}
	}
}

// runBeside decodes in one token at a time while three other sequences run in the same batches, with
// one, three and five tokens each, sometimes as a prompt.
func runBeside(t *testing.T, m *Model, in []int32) (logits []float32) {
	t.Helper()
	seq := m.NewSeq()
	others := []*cache.Seq{m.NewSeq(), m.NewSeq(), m.NewSeq()}
	for i, id := range in {
		segs := []Segment{{Seq: seq, Tokens: []int32{id}, Logits: LogitsAll}}
		for o, s := range others {
			segs = append(segs, Segment{Seq: s, Tokens: tokens(uint64(i+o), 1+2*o), Prompt: i%3 == o, Logits: LogitsLast})
		}
		at := i % 4 // also not always first
		segs[0], segs[at] = segs[at], segs[0]
		out, err := m.Forward(segs)
		if err != nil {
			t.Fatal(err)
		}
		logits = append(logits, out.Row(at, 0)...)
		for _, s := range segs {
			if err := s.Seq.CommitAll(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return logits
}

// TestPromptIdentity: a prompt, which needs no tape, leaves the same state as tokens decoded one by one.
func TestPromptIdentity(t *testing.T) {
	in := tokens(2, 90)
	for _, name := range every {
		m := open(t, name, 2, Options{})
		want, _ := run(t, m, m.NewSeq(), in, 1, false)
		seq := m.NewSeq()
		for from := 0; from < 80; from += 40 {
			if _, err := m.Forward([]Segment{{Seq: seq, Tokens: in[from : from+40], Prompt: true}}); err != nil {
				t.Fatal(err)
			}
			if err := seq.CommitAll(); err != nil {
				t.Fatal(err)
			}
		}
		got, _ := run(t, m, seq, in[80:], 3, false)
		if !sameBits(got, want[80*m.Vocab:]) {
			t.Errorf("%s: other bits after a prompt than after single tokens", name)
		}
	}
}

// TestTreeRows: a node's logits have the bits of the chain that leads to it.
func TestTreeRows(t *testing.T) {
	in := tokens(4, 30)
	toks := tokens(5, 9)
	parents := []int32{-1, 0, 0, 1, 1, 2, 5, 3, 0}
	for _, name := range every {
		m := open(t, name, 2, Options{KV: cache.Uniform(quant.F32)})
		base := m.NewSeq()
		run(t, m, base, in, 30, false)
		out, err := m.Forward([]Segment{{Seq: base, Tokens: toks, Parents: parents, Logits: LogitsAll}})
		if err != nil {
			t.Fatal(err)
		}
		var rows [][]float32
		for i := range toks {
			rows = append(rows, slices.Clone(out.Row(0, i)))
		}
		if err := base.Commit(nil); err != nil {
			t.Fatal(err)
		}
		for i := range toks {
			var chain []int32
			for at := int32(i); at >= 0; at = parents[at] {
				chain = append(chain, toks[at])
			}
			slices.Reverse(chain)
			f, err := base.Fork()
			if err != nil {
				t.Fatal(err)
			}
			got, _ := run(t, m, f, chain, 1, false)
			f.Close()
			if want := got[len(got)-m.Vocab:]; !sameBits(rows[i], want) {
				t.Errorf("%s: node %d has other bits than its chain (relative %.2e)", name, i, testkit.RelL2(rows[i], want))
			}
		}
	}
}

// TestForkIsIndependent: what one copy of a sequence does, the other does not notice.
func TestForkIsIndependent(t *testing.T) {
	in := tokens(6, 100)
	for _, name := range every {
		m := open(t, name, 2, Options{})
		a := m.NewSeq()
		run(t, m, a, in, 50, false)
		b, err := a.Fork()
		if err != nil {
			t.Fatal(err)
		}
		run(t, m, a, tokens(7, 90), 30, false)
		got, _ := run(t, m, b, tokens(8, 80), 20, false)
		c := m.NewSeq()
		run(t, m, c, in, 25, false)
		want, _ := run(t, m, c, tokens(8, 80), 1, false)
		if !sameBits(got, want) {
			t.Errorf("%s: a fork saw what its origin did", name)
		}
		a.Close()
		b.Close()
		c.Close()
		for g := range m.mem.Groups() {
			if n := m.mem.Pool(g).Used(); n != 0 {
				t.Errorf("%s: %d pages leaked", name, n)
			}
		}
	}
}

// TestLongRun crosses every page and window boundary many times.
func TestLongRun(t *testing.T) {
	for name, n := range map[string]int{"qwen35": 8000, "gemma4": 4000} {
		m := open(t, name, 2, Options{})
		in := tokens(12, n)
		one, many := m.NewSeq(), m.NewSeq()
		for from := 0; from < n-50; from += 500 {
			part := in[from:min(from+500, n-50)]
			if _, err := m.Forward([]Segment{{Seq: one, Tokens: part, Prompt: true}}); err != nil {
				t.Fatal(err)
			}
			if err := one.CommitAll(); err != nil {
				t.Fatal(err)
			}
		}
		r := rand.New(rand.NewPCG(3, 3))
		for from := 0; from < n-50; {
			// Guess more than is kept, so that rows past the end are always stale.
			k := min(1+r.IntN(60), n-50-from)
			part := append(slices.Clone(in[from:from+k]), tokens(uint64(from), r.IntN(8))...)
			if _, err := m.Forward([]Segment{{Seq: many, Tokens: part}}); err != nil {
				t.Fatal(err)
			}
			if err := many.CommitFirst(k); err != nil {
				t.Fatal(err)
			}
			from += k
		}
		want, _ := run(t, m, one, in[n-50:], 1, false)
		got, _ := run(t, m, many, in[n-50:], 7, false)
		if !sameBits(got, want) {
			t.Errorf("%s: other bits after %d tokens", name, n)
		}
	}
}
