package ngram

import (
	"math"

	"strobe/internal/backend"
	"strobe/internal/draft"
)

// Source is the look-back as a source of drafts. The zero value is ready.
type Source struct{}

var _ draft.Continuer = Source{}

// Name is what flags, requests and statistics call the source.
func (Source) Name() string { return "ngram" }

// Capture: the text is enough.
func (Source) Capture() []int { return nil }

// maxGuess is the longest guess. Longer ones are rarely right to the end.
const maxGuess = 24

// Max is the largest number of tokens one draft can guess.
func (Source) Max() int { return maxGuess }

// NewContext returns an empty history.
func (Source) NewContext() draft.Context { return new(Index) }

// Extend adds tokens to the histories.
func (Source) Extend(_ backend.Tensor, items []draft.Rows) error {
	for _, it := range items {
		it.Seq.(*Index).Append(it.Tokens...)
	}
	return nil
}

// Draft guesses what followed the last time.
func (Source) Draft(reqs []draft.Request, _ int) ([]draft.Proposal, error) {
	out := make([]draft.Proposal, len(reqs))
	for i, r := range reqs {
		x := r.Seq.(*Index)
		x.Append(r.Last)
		out[i] = x.propose(r.N)
		x.drop()
	}
	return out, nil
}

// Continue guesses what followed the last time that some guesses, or the end of them, were the text.
func (Source) Continue(r draft.Request, guesses []int32) []draft.Proposal {
	x := r.Seq.(*Index)
	out := make([]draft.Proposal, len(guesses))
	x.Append(r.Last)
	for i, id := range guesses {
		x.Append(id)
		out[i] = x.propose(min(r.N, maxGuess))
	}
	for range len(guesses) + 1 {
		x.drop()
	}
	return out
}

// propose guesses n tokens after the newest one.
func (x *Index) propose(n int) (p draft.Proposal) {
	tokens, match := x.Guess(n)
	all := make([]draft.Candidate, len(tokens))
	p.At = make([][]draft.Candidate, len(tokens))
	for k, id := range tokens {
		all[k] = draft.Candidate{ID: id, LogP: claims[match+k]}
		p.At[k] = all[k : k+1 : k+1]
	}
	return p
}

// claims is how probable it seems that a repetition of so many tokens goes on. A match of minMatch tokens is as good as
// the toss of a coin, longer ones are better; the loop finds out how good they are in its text.
var claims = func() (logp [maxMatch + maxGuess]float32) {
	for match := range logp {
		m := float64(match * match)
		logp[match] = float32(math.Log(m / (m + minMatch*minMatch)))
	}
	return logp
}()
