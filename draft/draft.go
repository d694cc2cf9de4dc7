// Package draft is the contract between the speculative loop and whatever guesses tokens.
//
// A guess is a Proposal: for each coming position a few candidates with log-probabilities.
// The loop turns it into a chain or a tree and lets the target verify it. A wrong guess
// costs time, never correctness.
package draft

import (
	"strobe/backend"
	"strobe/cache"
)

// Drafter is a model that guesses from the target's hidden states. Per sequence it keeps a cache
// of its own. It is driven by the goroutine that drives the target.
type Drafter interface {
	// Capture lists the target layers whose outputs Extend needs, side by side.
	Capture() []int
	// Max is the largest number of tokens one draft can guess.
	Max() int
	// NewSeq returns an empty context.
	NewSeq() *cache.Seq
	// Extend adds the features of newly committed tokens to the contexts of their sequences.
	Extend(features backend.Tensor, items []Rows) error
	// Draft guesses for several sequences in one pass, up to top candidates per position. It leaves
	// the contexts as they were.
	Draft(reqs []Request, top int) ([]Proposal, error)
	// TryCausal reports that the drafter has two rules of attention inside a block and that its
	// file does not say which one it was trained with.
	TryCausal() bool
}

// Rows names the feature rows of one sequence's newly committed tokens, in order.
type Rows struct {
	Seq  *cache.Seq
	Rows []int32
}

// Request asks for guesses after Last, the newest token of a sequence, which follows the tokens
// in Seq.
type Request struct {
	Seq   *cache.Seq
	Last  int32
	N     int  // tokens to guess, at most Max
	Other bool // use the other rule of attention inside the block (see TryCausal)
}

// Candidate is a guessed token.
type Candidate struct {
	ID   int32
	LogP float32
}

// Proposal is a guess for the tokens after the last one. At[i] lists candidates for the i-th of
// them, best first.
type Proposal struct {
	Source string
	At     [][]Candidate
	// Next, if not nil, gives the candidates for the i-th token, i > 0, after another one than the best of
	// At[i-1], for drafters whose guesses depend on the token before. At is then the path of the best ones.
	Next func(i int, before int32) []Candidate
}

// After lists the candidates for the i-th token when the one before it is known.
func (p *Proposal) After(i int, before int32) []Candidate {
	if p.Next == nil || i == 0 || before == p.At[i-1][0].ID {
		return p.At[i]
	}
	return p.Next(i, before)
}

// Len returns the number of guessed positions.
func (p *Proposal) Len() int { return len(p.At) }

// Cut drops the positions from n on.
func (p *Proposal) Cut(n int) {
	if n < len(p.At) {
		p.At = p.At[:n]
	}
}

// Chain appends the best candidate of every position to dst.
func (p *Proposal) Chain(dst []int32) []int32 {
	for _, c := range p.At {
		dst = append(dst, c[0].ID)
	}
	return dst
}

// Sane drops what the target could not verify: candidates with an id outside the vocabulary or a
// probability that is not a number, with those after them, and the positions from the first one
// that is left without any.
func (p *Proposal) Sane(vocab int) {
	if next := p.Next; next != nil {
		p.Next = func(i int, before int32) []Candidate { return sane(next(i, before), vocab) }
	}
	for i, cs := range p.At {
		if p.At[i] = sane(cs, vocab); len(p.At[i]) == 0 {
			p.At = p.At[:i]
			return
		}
	}
}

func sane(cs []Candidate, vocab int) []Candidate {
	for j, c := range cs {
		if c.ID < 0 || int(c.ID) >= vocab || c.LogP != c.LogP {
			return cs[:j]
		}
	}
	return cs
}
