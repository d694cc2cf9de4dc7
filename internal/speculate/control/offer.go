package control

import (
	"math"

	"strobe/internal/draft"
)

// offer is the guesses that a stream could add to the batch, best first. Any prefix is a chain or a tree. gain[i] is
// the probability that guess i is accepted, so the gains of a prefix sum up to its expected tokens.
type offer struct {
	tokens  []int32
	parents []int32 // of each guess: -1 is the last token; nil for a chain
	gain    []float64
	tail    int // guesses from this one on continue those of another source; 0 for none
}

// branch is where the tree builder may put its next guess: below a parent, the candidate at rank.
type branch struct {
	p      float64 // of the whole path
	above  float64 // of the path to the parent
	parent int32
	depth  int // from 0
	at     []draft.Candidate
	rank   int
}

// grow builds the most probable tree of up to n guesses, none of them less probable than least. A path is never more
// probable than a part of it, and earlier candidates are better than later ones, so the best tree is found best
// first. prob gives the probability of a candidate, given that the path to it is right.
func grow(pr *draft.Proposal, prob func(depth, rank int, c draft.Candidate) float64, n int, least float64) offer {
	o := offer{tokens: make([]int32, 0, n), parents: make([]int32, 0, n), gain: make([]float64, 0, n)}
	open := make([]branch, 0, n)
	add := func(b branch) {
		if b.rank == len(b.at) {
			return
		}
		b.p = b.above * prob(b.depth, b.rank, b.at[b.rank])
		if b.p > 0 && b.p >= least {
			open = append(open, b)
		}
	}
	if pr.Len() > 0 {
		add(branch{above: 1, parent: -1, at: pr.At[0]})
	}
	for len(open) > 0 && len(o.tokens) < n {
		best := 0
		for i := range open {
			if open[i].p > open[best].p {
				best = i
			}
		}
		g := open[best]
		open[best] = open[len(open)-1]
		open = open[:len(open)-1]
		id := g.at[g.rank].ID
		o.tokens = append(o.tokens, id)
		o.parents = append(o.parents, g.parent)
		o.gain = append(o.gain, g.p)
		below := g
		g.rank++
		add(g)
		if below.depth++; below.depth < pr.Len() {
			below.above, below.parent, below.rank = below.p, int32(len(o.tokens)-1), 0
			below.at = pr.After(below.depth, id)
			add(below)
		}
	}
	return o
}

// prob is the probability of a log-probability.
func prob(logp float32) float64 { return math.Exp(float64(logp)) }

// chainOf offers the best candidate of every position.
func (a *acceptance) chainOf(pr *draft.Proposal) offer {
	o := offer{tokens: make([]int32, 0, pr.Len()), gain: make([]float64, 0, pr.Len())}
	p := 1.0
	for d, c := range pr.At {
		p *= a.guess(d, 0, c[0].LogP)
		o.tokens = append(o.tokens, c[0].ID)
		o.gain = append(o.gain, p)
	}
	return o
}

// treeOf offers the most probable tree of up to n guesses, none of them less probable than least.
func (a *acceptance) treeOf(pr *draft.Proposal, n int, least float64) offer {
	return grow(pr, func(d, rank int, c draft.Candidate) float64 { return a.guess(d, rank, c.LogP) }, n, least)
}

// first is the first n guesses of an offer. A tree without branches is a chain.
func (o *offer) first(n int) (tokens, parents []int32) {
	for i, p := range o.parents[:min(n, len(o.parents))] {
		if int(p) != i-1 {
			return o.tokens[:n], o.parents[:n]
		}
	}
	return o.tokens[:n], nil
}
