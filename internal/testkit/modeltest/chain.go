package modeltest

import (
	"math"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/draft/eagle3"
	"strobe/internal/draft/mtp"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// chainer is a drafter that goes on from its own guesses.
type chainer interface {
	draft.Source
	NewSeq() *cache.Seq
}

// chained opens a target with such a drafter: its own, or one of EAGLE-3 where the name begins with "eagle3-".
func chained(t *testing.T, b backend.Backend, name string) (*model.Model, chainer) {
	t.Helper()
	f32 := cache.Uniform(quant.F32)
	if of, ok := strings.CutPrefix(name, "eagle3-"); ok {
		m := Target(t, b, of, model.Options{KV: f32})
		d, err := eagle3.Open(File(t, Eagle3For(t, m.File()).Write(t)), m, eagle3.Options{KV: f32})
		if err == nil {
			err = m.Capture(d.Capture())
		}
		if err != nil {
			t.Fatal(err)
		}
		return m, d
	}
	path, own := testkit.Golden(t, name+"/model.gguf"), name != "gemma4"
	if own {
		path = edit.MTP(t, name).Write(t)
	}
	m, err := model.Open(File(t, path), b, model.Options{KV: f32})
	if err != nil {
		t.Fatal(err)
	}
	f := m.File()
	if !own {
		f = File(t, testkit.Golden(t, name+"-assistant/model.gguf"))
	}
	d, err := mtp.Open(f, m, mtp.Options{KV: f32})
	if err == nil {
		err = m.Capture(d.Capture())
	}
	if err != nil {
		t.Fatal(err)
	}
	return m, d
}

// Chains: drafts whose guesses follow from each other on the device, of several sequences and lengths, are the same to
// the bit whether passes are gone through or run again by their names, and nearly what the processor guesses.
func (s Suite) Chains(t *testing.T, names ...string) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			run := func(b backend.Backend) (ids []int32, logp []float32) {
				m, d := chained(t, b, name)
				seqs, ctxs := make([]*cache.Seq, 2), make([]*cache.Seq, 2)
				for i := range seqs {
					seqs[i], ctxs[i] = m.NewSeq(), d.NewSeq()
				}
				token := int32(0)
				round := func(tokens, guesses []int) {
					var segs []model.Segment
					var items []draft.Rows
					var reqs []draft.Request
					row := int32(0)
					for i, n := range tokens {
						g := model.Segment{Seq: seqs[i], Prompt: true}
						it := draft.Rows{Seq: ctxs[i]}
						for range n {
							token++
							g.Tokens = append(g.Tokens, token*37%500)
							it.Rows = append(it.Rows, row)
							row++
						}
						it.Tokens = g.Tokens
						segs, items = append(segs, g), append(items, it)
						reqs = append(reqs, draft.Request{Seq: ctxs[i], Target: seqs[i], Last: token % 100, N: guesses[i],
							Tree: guesses[i] > 2})
					}
					out := Forward(t, m, segs...)
					for i := range segs {
						if err := seqs[i].CommitAll(); err != nil {
							t.Fatal(err)
						}
					}
					if err := d.Extend(out.Features, items); err != nil {
						t.Fatal(err)
					}
					ps, err := d.Draft(reqs, 3)
					if err != nil {
						t.Fatal(err)
					}
					for i, p := range ps {
						if p.Len() != guesses[i] {
							t.Fatalf("%d guesses of %d", p.Len(), guesses[i])
						}
						for k, at := range p.At {
							for _, c := range at {
								ids, logp = append(ids, c.ID), append(logp, c.LogP)
							}
							if k > 0 && p.Next != nil {
								for _, c := range p.After(k, p.At[k-1][1].ID) { // the alternative has candidates of its own
									ids, logp = append(ids, c.ID), append(logp, c.LogP)
								}
							}
						}
					}
				}
				most := 8
				for _, n := range []int{4, 3} { // with padding both make as many rows
					round([]int{n, 1}, []int{1, 2})
				}
				if s.Few == 0 {
					round([]int{1}, []int{most})
				}
				for i := range seqs { // others, whose memory lies elsewhere
					seqs[i].Close()
					ctxs[i].Close()
					seqs[i], ctxs[i] = m.NewSeq(), d.NewSeq()
				}
				round([]int{3, 2}, []int{1, 2})
				round([]int{1}, []int{most})
				return ids, logp
			}
			ids, logp := run(s.Backend)
			again, same := run(exact{s.Backend})
			if !slices.Equal(ids, again) || !SameBits(logp, same) {
				t.Errorf("%v, gone through operation by operation %v", ids, again)
			}
			c := cpu.New(cpu.Options{Threads: 2})
			defer c.Close()
			_, want := run(c)
			for i, p := range logp {
				if !(math.Abs(float64(p-want[i])) <= 1e-3) {
					t.Fatalf("log-probability %d is %g, on the processor %g", i, p, want[i])
				}
			}
		})
	}
}
