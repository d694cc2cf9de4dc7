package ngram

import (
	"math"

	"strobe/internal/backend"
	"strobe/internal/draft"
)

// Source is the look-back as a source of drafts. The zero value is ready.
type Source struct{}

var _ draft.Source = Source{}

// Name is what flags, requests and statistics call the source.
func (Source) Name() string { return "ngram" }

// Capture: the text is enough.
func (Source) Capture() []int { return nil }

// Max is the longest guess. Longer ones are rarely right to the end.
func (Source) Max() int { return 24 }

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
		tokens, match := x.Guess(r.N)
		x.drop()
		for k, id := range tokens {
			out[i].At = append(out[i].At, []draft.Candidate{{ID: id, LogP: claim(match + k)}})
		}
	}
	return out, nil
}

// claim is how probable it seems that a repetition of so many tokens goes on. A match of minMatch tokens is as good as
// the toss of a coin, longer ones are better; the loop finds out how good they are in its text.
func claim(match int) float32 {
	m := float64(match * match)
	return float32(math.Log(m / (m + minMatch*minMatch)))
}
