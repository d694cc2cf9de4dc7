package ngram

import (
	"maps"
	"math/rand/v2"
	"reflect"
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

// TestContinue: what follows each beginning of some guesses is what a draft says once they are part of the text, and
// the text stays as it was.
func TestContinue(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 200 {
		text := make([]int32, 4+r.IntN(60))
		for i := range text {
			text[i] = int32(r.IntN(4))
		}
		guesses := make([]int32, r.IntN(9))
		for i := range guesses {
			guesses[i] = int32(r.IntN(4))
		}
		last := len(text) - 1
		index := func(more ...int32) *Index {
			x := new(Index)
			x.Append(text[:last]...)
			x.Append(more...)
			return x
		}
		draftOf := func(x *Index, last int32) draft.Proposal {
			ps, _ := Source{}.Draft([]draft.Request{{Seq: x, Last: last, N: maxGuess}}, 1)
			return ps[0]
		}
		x := index()
		got := Source{}.Continue(draft.Request{Seq: x, Last: text[last], N: 63}, guesses)
		if len(got) != len(guesses) {
			t.Fatalf("%d continuations of %d guesses", len(got), len(guesses))
		}
		for i := range guesses {
			want := draftOf(index(append([]int32{text[last]}, guesses[:i]...)...), guesses[i])
			if !reflect.DeepEqual(got[i], want) {
				t.Fatalf("%v, then %v: %v, want %v", text, guesses[:i+1], got[i], want)
			}
		}
		fresh := index()
		if x.Len() != fresh.Len() || !maps.Equal(x.last, fresh.last) ||
			!reflect.DeepEqual(draftOf(x, text[last]), draftOf(fresh, text[last])) {
			t.Fatalf("%v: the text has changed", text)
		}
	}
}
