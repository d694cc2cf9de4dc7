package ngram

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// occurrence is what Guess should find, by looking at every place of the history: the longest match among
// the newest few occurrences, the newest one first.
func occurrence(h []int32) (at, match int) {
	seen := 0
	for p := len(h) - 1; p >= minMatch && seen < tries; p-- {
		m := 0
		for m < maxMatch && m < p && h[p-1-m] == h[len(h)-1-m] {
			m++
		}
		if m >= minMatch {
			if seen++; m > match {
				at, match = p, m
			}
		}
	}
	return at, match
}

// check compares a guess with the definition: the tokens are a real continuation of an earlier occurrence.
func check(t *testing.T, x *Index, h []int32, n int) {
	t.Helper()
	got, match := x.Guess(n)
	at, want := occurrence(h)
	if match != want || (len(got) != n) != (want == 0) {
		t.Fatalf("after %v: %d tokens, %d matched; want %d tokens, %d matched", h, len(got), match, n, want)
	}
	text := append(slices.Clone(h), got...)
	for i, id := range got {
		if id != text[at+i] {
			t.Fatalf("after %v: guess %v does not continue the occurrence that ends at %d", h, got, at)
		}
	}
}

// TestGuess checks texts with few and many repetitions, at every length.
func TestGuess(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, vocab := range []int{1, 2, 3, 10, 1000} {
		var x Index
		var h []int32
		check(t, &x, h, 4)
		for range 300 {
			id := int32(r.IntN(vocab))
			if len(h) > 20 && r.IntN(10) == 0 { // quote an earlier passage
				from := r.IntN(len(h) - 10)
				for _, q := range h[from : from+8] {
					h = append(h, q)
					x.Append(q)
				}
			}
			h = append(h, id)
			x.Append(id)
			check(t, &x, h, 1+r.IntN(12))
		}
		if x.Len() != len(h) {
			t.Errorf("%d tokens seen, want %d", x.Len(), len(h))
		}
	}
}

func FuzzGuess(f *testing.F) {
	f.Add([]byte("abcabcabc"), uint8(4))
	f.Add([]byte("aaaaaaaaaaaa"), uint8(30))
	f.Add([]byte("the cat sat on the mat, the cat sat"), uint8(7))
	f.Add([]byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, text []byte, n uint8) {
		if len(text) > 2000 {
			return
		}
		var x Index
		var h []int32
		for _, c := range text {
			h = append(h, int32(c)-100) // negative ids are as good as others
			x.Append(h[len(h)-1])
		}
		if n > 0 {
			check(t, &x, h, int(n))
		}
		for _, n := range []int{0, -1, -1 << 31} {
			if got, _ := x.Guess(n); got != nil {
				t.Errorf("asked for %d tokens, got %v", n, got)
			}
		}
	})
}

// TestPortions: adding tokens one by one or together is the same.
func TestPortions(t *testing.T) {
	h := []int32{1, 2, 3, 4, 1, 2, 3, 9, 1, 2, 3}
	var a, b Index
	a.Append(h...)
	for _, id := range h {
		b.Append(id)
	}
	ga, ma := a.Guess(6)
	gb, mb := b.Guess(6)
	if !slices.Equal(ga, gb) || ma != mb || !slices.Equal(ga, []int32{9, 1, 2, 3, 9, 1}) {
		t.Errorf("guesses %v and %v, matches %d and %d", ga, gb, ma, mb)
	}
}

// TestHostile: texts made of repetitions cost no more per token than others. With any work that grows
// with the number of occurrences a million tokens would not end.
func TestHostile(t *testing.T) {
	const n = 1 << 20
	for _, period := range []int{1, 2, 3, 4, 7, 40} {
		var x Index
		for i := range n {
			x.Append(int32(i % period))
			if i%16 == 0 {
				x.Guess(16)
			}
		}
		got, match := x.Guess(16)
		if match != maxMatch {
			t.Errorf("period %d: %d tokens matched, want %d", period, match, maxMatch)
		}
		for i, id := range got {
			if id != int32((n+i)%period) {
				t.Fatalf("period %d: guess %v does not go on with it", period, got)
			}
		}
	}
}

// TestGuessIsACopy: a guess stays what it was when the history grows.
func TestGuessIsACopy(t *testing.T) {
	var x Index
	x.Append(1, 2, 3, 4, 5, 1, 2, 3)
	got, _ := x.Guess(3)
	want := slices.Clone(got)
	for range 100 {
		x.Append(7)
	}
	got[0] = 99
	if again, _ := x.Guess(3); again[0] != 7 || !slices.Equal(want, []int32{4, 5, 1}) {
		t.Errorf("guesses %v, then %v", want, again)
	}
}

// TestMisleadingRepetitionIsOfferedAgain (failure F170): a repetition that once misled is offered again.
func TestMisleadingRepetitionIsOfferedAgain(t *testing.T) {
	var x Index
	x.Append(1, 2, 3, 4, 5, 6, 1, 2, 3)
	if got, _ := x.Guess(2); !slices.Equal(got, []int32{4, 5}) {
		t.Fatalf("guess %v", got)
	}
	x.Append(8, 8, 1, 2, 3) // it went on otherwise
	if got, _ := x.Guess(1); !slices.Equal(got, []int32{8}) {
		t.Errorf("guess %v, want what followed last", got)
	}
}
