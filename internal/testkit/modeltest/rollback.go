package modeltest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/cache"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// Rollback: after random chains and trees of which random parts were accepted, a sequence goes on with the bits of one
// that only ever saw the accepted tokens.
func (s Suite) Rollback(t *testing.T, names ...string) {
	passes, most := 60, 20 // with so many tokens
	if s.Few > 0 {
		passes, most = 8, 6
	}
	for _, name := range names {
		for _, tree := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/tree=%v", name, tree), func(t *testing.T) {
				m := Target(t, s.Backend, name, model.Options{KV: cache.Uniform(quant.F32)})
				r := rand.New(rand.NewPCG(11, 3))
				tokens := func(n int) (ids []int32) {
					for range n {
						ids = append(ids, r.Int32N(500))
					}
					return ids
				}
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				// run accepts all of the tokens, so many at a time.
				run := func(seq *cache.Seq, ids []int32, batch int) (logits []float32) {
					for part := range slices.Chunk(ids, batch) {
						out := Forward(t, m, model.Segment{Seq: seq, Tokens: part, Logits: model.LogitsAll})
						logits = append(logits, s.Backend.Read(out.Logits)...)
						must(seq.CommitAll())
					}
					return logits
				}
				seq := m.NewSeq()
				var kept []int32
				for range passes {
					n := 1 + r.IntN(most)
					g := model.Segment{Seq: seq, Tokens: tokens(n)}
					var path []int32
					if tree {
						g.Parents = []int32{-1}
						for i := 1; i < n; i++ {
							g.Parents = append(g.Parents, int32(r.IntN(i)))
						}
						for at := int32(r.IntN(n)); at >= 0; at = g.Parents[at] {
							path = append(path, at)
						}
						slices.Reverse(path)
					} else {
						for i := range r.IntN(n + 1) {
							path = append(path, int32(i))
						}
					}
					Forward(t, m, g)
					must(seq.Commit(path))
					for _, p := range path {
						kept = append(kept, g.Tokens[p])
					}
					if r.IntN(10) == 0 { // state must survive being settled and forked at any time
						f, err := seq.Fork()
						must(err)
						seq.Close()
						seq = f
					}
				}
				clean := m.NewSeq()
				run(clean, kept, 1)
				probe := tokens(6)
				got, want := run(seq, probe, 6), run(clean, probe, 1)
				if !SameBits(got, want) {
					t.Errorf("other bits after %d tokens (relative %.2e)", len(kept), testkit.RelL2(got, want))
				}
			})
		}
	}
}
