package draft

import (
	"math"
	"slices"
	"testing"
)

func at(cs ...[]Candidate) Proposal { return Proposal{At: cs} }

// TestSane: what is left can be verified, and it is as much as possible.
func TestSane(t *testing.T) {
	nan := float32(math.NaN())
	ok := Candidate{3, -1}
	for _, c := range []struct {
		name string
		p    Proposal
		want [][]Candidate
	}{
		{"nothing", at(), nil},
		{"good", at([]Candidate{ok, {9, -2}}, []Candidate{ok}), [][]Candidate{{ok, {9, -2}}, {ok}}},
		{"no candidate", at([]Candidate{ok}, nil, []Candidate{ok}), [][]Candidate{{ok}}},
		{"negative best", at([]Candidate{{-1, -1}, ok}), nil},
		{"best beyond the vocabulary", at([]Candidate{ok}, []Candidate{{10, -1}, ok}), [][]Candidate{{ok}}},
		{"best without probability", at([]Candidate{{3, nan}}), nil},
		{"second beyond the vocabulary", at([]Candidate{ok, {math.MaxInt32, -1}, ok}, []Candidate{ok}),
			[][]Candidate{{ok}, {ok}}},
		{"third without probability", at([]Candidate{ok, ok, {4, nan}}), [][]Candidate{{ok, ok}}},
		{"impossible but sound", at([]Candidate{{3, float32(math.Inf(-1))}}), [][]Candidate{{{3, float32(math.Inf(-1))}}}},
	} {
		c.p.Sane(10)
		if !slices.EqualFunc(c.p.At, c.want, func(a, b []Candidate) bool { return slices.Equal(a, b) }) {
			t.Errorf("%s: %v, want %v", c.name, c.p.At, c.want)
		}
	}
}

func TestCutAndChain(t *testing.T) {
	p := at([]Candidate{{1, 0}, {2, 0}}, []Candidate{{3, 0}}, []Candidate{{4, 0}})
	p.Cut(5)
	if got := p.Chain([]int32{9}); !slices.Equal(got, []int32{9, 1, 3, 4}) {
		t.Errorf("chain %v", got)
	}
	p.Cut(1)
	if p.Len() != 1 || !slices.Equal(p.Chain(nil), []int32{1}) {
		t.Errorf("%d positions after a cut to 1", p.Len())
	}
}
