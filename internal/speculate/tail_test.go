package speculate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"strobe/internal/draft"
	"strobe/internal/draft/ngram"
)

// reciter says a known text, whatever the logits are.
type reciter struct {
	text []int32
	said int
}

func (r *reciter) Sample([]float32) int32 { return r.text[r.said] }
func (r *reciter) Accept(int32)           { r.said++ }

// TestTailsAreLossless: a text that quotes its prompt with changes comes out of the same bits as without drafts when a
// drafter's guesses are continued with what the prompt said, on every kind of cache, for one stream and for several,
// with trees and without. The clock moves with every look at it, so that all passes cost the same and long ones pay.
func TestTailsAreLossless(t *testing.T) {
	in := prompt(64)
	text := slices.Clone(in[:32])
	for from := 0; from+16 <= len(in); from += 16 { // of every 16 tokens the first two are new
		text = append(text, 500, 501+int32(from)%7)
		text = append(text, in[from+2:from+16]...)
	}
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		m := target(t, name)
		want := plain(t, m, &reciter{text: text}, in, len(text))
		// Right about what is new and a little more; nothing else.
		guess := along(in, text, func(pos int) bool { return pos%16 > 6 })
		d := script(t, m, func(pos int, last int32, n int) [][]draft.Candidate {
			return guess(max(pos, len(in)), last, n) // a context has gaps where drafting paused
		})
		for _, streams := range []int{1, 3} {
			for _, opt := range []Options{{}, {Tree: TreeOff}, {Max: 9}, {Draft: drafter}} {
				if streams > 1 && opt != (Options{}) {
					continue
				}
				r := runner(t, m, d)
				var looks time.Duration
				r.clock = func() time.Time {
					looks++
					return time.Unix(0, 0).Add(looks * time.Millisecond)
				}
				tails := 0
				for run := range 2 { // the first one learns what passes cost
					var fs []*flow
					for range streams {
						fs = append(fs, start(t, r, opt, &reciter{text: text}, in, len(text)))
					}
					finish(t, r, 64, fs...)
					for i, f := range fs {
						what := fmt.Sprintf("%s, %+v, run %d, stream %d of %d", name, opt, run, i, streams)
						sameLogits(t, what, f, want)
						sumsUp(t, what, f.Stats())
						tails += f.Stats().BySource[ngram.Source{}.Name()].Tails
						for n, rounds := range f.Stats().ByLength {
							if opt.Max > 0 && n > opt.Max+1 && rounds > 0 {
								t.Errorf("%s: a round of %d tokens", what, n)
							}
						}
					}
				}
				if wanted := opt.Draft == Auto; wanted != (tails > 0) && (streams == 1 || !wanted) {
					t.Errorf("%s, %+v, %d streams: %d tails", name, opt, streams, tails)
				}
			}
		}
	}
}
