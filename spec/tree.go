package spec

import (
	"container/heap"
	"math"

	"strobe/draft"
)

// offer is what a stream could add to the batch, best first: any prefix of it is a chain or a tree
// of guesses. gain[i] is the probability that guess i is accepted, so a prefix yields the sum of
// its gains in expected tokens.
type offer struct {
	tokens  []int32
	parents []int32 // of each guess: -1 is the last token; nil for a chain
	depth   []int
	gain    []float64

	source   string         // who guesses, when it is not the drafter
	match    int            // ngram: tokens that matched
	proposal draft.Proposal // ngram: the same guesses
}

// guess is a branch the tree builder may grow.
type guess struct {
	p      float64 // of the whole path
	parent int32
	depth  int // from 0
	rank   int
}

type guesses []guess

func (h guesses) Len() int           { return len(h) }
func (h guesses) Less(i, j int) bool { return h[i].p > h[j].p }
func (h guesses) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *guesses) Push(x any)        { *h = append(*h, x.(guess)) }
func (h *guesses) Pop() any {
	old := *h
	g := old[len(old)-1]
	*h = old[:len(old)-1]
	return g
}

// grow builds the most probable tree of up to n guesses. Positions are independent given that the
// path so far is right, so the best tree is the n most probable paths, found best first. prob gives
// the probability of a candidate by position and rank.
func grow(at [][]int32, prob func(depth, rank int) float64, n int) offer {
	var o offer
	h := &guesses{}
	if len(at) > 0 && len(at[0]) > 0 {
		heap.Push(h, guess{p: prob(0, 0), parent: -1})
	}
	for h.Len() > 0 && len(o.tokens) < n {
		g := heap.Pop(h).(guess)
		if g.p <= 0 {
			break
		}
		o.tokens = append(o.tokens, at[g.depth][g.rank])
		o.parents = append(o.parents, g.parent)
		o.depth = append(o.depth, g.depth)
		o.gain = append(o.gain, g.p)
		if g.rank+1 < len(at[g.depth]) {
			here := prob(g.depth, g.rank)
			heap.Push(h, guess{p: g.p / here * prob(g.depth, g.rank+1), parent: g.parent, depth: g.depth, rank: g.rank + 1})
		}
		if g.depth+1 < len(at) && len(at[g.depth+1]) > 0 {
			heap.Push(h, guess{p: g.p * prob(g.depth+1, 0), parent: int32(len(o.tokens) - 1), depth: g.depth + 1})
		}
	}
	return o
}

// prob is the probability of a log-probability.
func prob(logp float32) float64 { return math.Exp(float64(logp)) }

// chainOf offers the best candidate of every position.
func (a *acceptance) chainOf(pr *draft.Proposal) offer {
	var o offer
	p := 1.0
	for d, c := range pr.At {
		p *= a.guess(d, 0, c[0].LogP)
		o.tokens = append(o.tokens, c[0].ID)
		o.gain = append(o.gain, p)
	}
	return o
}

// treeOf offers the most probable tree of up to n guesses.
func (a *acceptance) treeOf(pr *draft.Proposal, n int) offer {
	at := make([][]int32, len(pr.At))
	for d, cs := range pr.At {
		for _, c := range cs {
			if c.ID >= 0 {
				at[d] = append(at[d], c.ID)
			}
		}
	}
	return grow(at, func(d, rank int) float64 { return a.guess(d, rank, pr.At[d][rank].LogP) }, n)
}

// take turns the first n guesses of an offer into rows after the last token.
func (o *offer) take(last int32, n int) nodes {
	t := nodes{tokens: append([]int32{last}, o.tokens[:n]...)}
	if o.parents == nil || n == 0 {
		return t
	}
	straight := true
	t.parents = append(t.parents, -1)
	for i, p := range o.parents[:n] {
		t.parents = append(t.parents, p+1)
		straight = straight && int(p)+1 == i
	}
	if straight { // a tree without branches is a chain
		t.parents = nil
	}
	return t
}
