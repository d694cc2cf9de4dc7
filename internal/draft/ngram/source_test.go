package ngram

import (
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/draft"
)

// TestSource: a draft is what the index of the text and the last token says, and leaves the context as it was.
func TestSource(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, vocab := range []int{2, 5, 50} {
		var s Source
		a, b := s.NewContext(), s.NewContext()
		var text []int32
		for round := range 200 {
			var want Index
			last := int32(r.IntN(vocab))
			want.Append(append(slices.Clone(text), last)...)
			ids, match := want.Guess(7)
			// b never sees a draft.
			ps, err := s.Draft([]draft.Request{{Seq: a, Last: last, N: 7}, {Seq: a, Last: last, N: 7}}, 4)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range ps {
				if got := p.Chain(nil); !slices.Equal(got, ids) {
					t.Fatalf("after %v and %d: %v, want %v", text, last, got, ids)
				}
				if p.Len() > 0 && p.At[0][0].LogP != claims[match] {
					t.Fatalf("claim %v after a match of %d", p.At[0][0].LogP, match)
				}
			}
			next := []int32{last}
			if round%5 == 0 { // the text may go another way than the last token asked about
				next = []int32{int32(r.IntN(vocab)), int32(r.IntN(vocab))}
			}
			text = append(text, next...)
			for _, c := range []draft.Context{a, b} {
				if err := s.Extend(backend.Tensor{}, []draft.Rows{{Seq: c, Tokens: next}}); err != nil {
					t.Fatal(err)
				}
				if c.Len() != len(text) {
					t.Fatalf("%d tokens, want %d", c.Len(), len(text))
				}
			}
		}
		x, y := a.(*Index), b.(*Index)
		if !slices.Equal(x.prev, y.prev) || len(x.last) != len(y.last) {
			t.Error("drafts left traces in the index")
		}
		a.Close()
		if a.Len() != 0 {
			t.Error("a closed context remembers")
		}
	}
}
