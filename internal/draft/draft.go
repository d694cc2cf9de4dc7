// Package draft is the contract between the speculative loop and the sources that guess tokens.
//
// A guess is a Proposal: for each coming position a few candidates with log-probabilities.
// The loop turns it into a chain or a tree and lets the target verify it. A wrong guess
// costs time, never correctness.
package draft

import (
	"fmt"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/cache"
)

// Source guesses tokens: from the target's hidden states, from the text, or from both. The loop measures what drafts
// cost and how often they are right, and uses the source that pays most. A source is driven by the goroutine that
// drives the target.
type Source interface {
	// Name is what flags, requests and statistics call the source.
	Name() string
	// Capture lists the target layers whose outputs Extend needs, side by side. A source that needs none
	// guesses from the text alone.
	Capture() []int
	// Max is the largest number of tokens one draft can guess.
	Max() int
	// NewContext returns an empty context.
	NewContext() Context
	// Extend adds newly committed tokens to contexts. It may be called late, for the tokens of many rounds at once, but
	// in order and before the next draft. No token is added twice. Tokens from times without drafts may be left out, at
	// the beginning or in the middle; the newest ones before a draft never are.
	Extend(features backend.Tensor, items []Rows) error
	// Draft guesses for several sequences in one pass, up to top candidates per position. It may guess fewer tokens
	// than asked for, or none. It does not change the contexts.
	Draft(reqs []Request, top int) ([]Proposal, error)
}

// Continuer is a source that can go on after guesses of another one, at next to no cost.
type Continuer interface {
	Source
	// Continue guesses up to N tokens after the last one and each beginning of some guesses: element i is what follows
	// the first i+1 of them, and may be empty. It does not change the context.
	Continue(req Request, guesses []int32) []Proposal
}

// Context is what a source knows of one sequence. Its type is up to the source, for example a *cache.Seq. The owner of
// the target's sequence forks, cuts, saves and restores the contexts of sources that capture together with it; those of
// other sources are created again from the tokens.
type Context interface {
	Len() int // tokens that Extend has added
	Close()
}

// Rows names the newly committed tokens of one sequence and their rows of the features, in order. Without Capture there
// are no rows.
type Rows struct {
	Seq    Context
	Tokens []int32
	Rows   []int32
}

// ImageRows says which row of a table each of n rows is: its own, or, for rows of images, the one n later. It is nil if
// there are none.
func ImageRows(tokens []int32, n int) []int32 {
	if !slices.ContainsFunc(tokens, func(id int32) bool { return id < 0 }) {
		return nil
	}
	from := make([]int32, len(tokens))
	for i, id := range tokens {
		if from[i] = int32(i); id < 0 {
			from[i] += int32(n)
		}
	}
	return from
}

// Request asks for guesses after Last, the newest token of a sequence, which follows the tokens
// in Seq.
type Request struct {
	Seq    Context
	Target *cache.Seq // the target's memory of the same tokens, for sources that look at it
	Last   int32
	N      int // tokens to guess, at most Max
	// Tree says that alternatives may be verified with what follows them. Sources that would have to compute that guess
	// a chain, with alternatives that end, otherwise.
	Tree bool
}

// Check says what is wrong with a request to a drafter that guesses at most so many tokens of a vocabulary.
func (r Request) Check(most, vocab int) error {
	if r.N < 1 || r.N > most {
		return fmt.Errorf("draft of %d tokens; this drafter guesses 1 to %d", r.N, most)
	}
	if r.Last < 0 || int(r.Last) >= vocab {
		return fmt.Errorf("token id %d is outside the vocabulary of %d", r.Last, vocab)
	}
	return nil
}

// Candidate is a guessed token.
type Candidate struct {
	ID   int32
	LogP float32
}

// Proposal is a guess for the tokens after the last one. At[i] lists candidates for the i-th of
// them, best first.
type Proposal struct {
	At [][]Candidate
	// Next, if not nil, gives the candidates for the i-th token (i > 0) when the token before it is not the best of
	// At[i-1]; it is for drafters whose guesses depend on that token. At is then the path of the best guesses.
	Next func(i int, before int32) []Candidate
}

// After lists the candidates for the i-th token when the one before it is known.
func (p *Proposal) After(i int, before int32) []Candidate {
	if p.Next == nil || i == 0 || before == p.At[i-1][0].ID {
		return p.At[i]
	}
	return p.Next(i, before)
}

// Branches reports whether there is a choice anywhere: without one a tree is a chain.
func (p *Proposal) Branches() bool {
	return p.Next != nil || slices.ContainsFunc(p.At, func(cs []Candidate) bool { return len(cs) > 1 })
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

// Sane drops what the target could not verify. A candidate with an id outside the vocabulary, or a probability that is
// not a number, goes together with those ranked below it; the first position left without candidates ends the guess.
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
