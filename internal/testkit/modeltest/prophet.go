package modeltest

import (
	"math/rand/v2"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/draft"
)

// prophet is a source that knows what will be said. Of each four places its best guess is right in three; in the
// fourth the right one comes later, or not at all. What it says depends on the place alone, not on what it was asked
// before: automatic modes ask as often as the clock lets them.
type prophet struct {
	seed  uint64
	vocab int
	texts [][]int32
}

type told struct{ tokens []int32 }

func (c *told) Len() int { return len(c.tokens) }
func (c *told) Close()   {}

func (p *prophet) Name() string              { return "prophet" }
func (p *prophet) Capture() []int            { return nil }
func (p *prophet) Max() int                  { return 9 }
func (p *prophet) NewContext() draft.Context { return &told{} }

func (p *prophet) Extend(_ backend.Tensor, items []draft.Rows) error {
	for _, it := range items {
		c := it.Seq.(*told)
		c.tokens = append(c.tokens, it.Tokens...)
	}
	return nil
}

func (p *prophet) Draft(reqs []draft.Request, top int) ([]draft.Proposal, error) {
	out := make([]draft.Proposal, len(reqs))
	for i, r := range reqs {
		so := append(slices.Clone(r.Seq.(*told).tokens), r.Last)
		var next []int32
		for _, text := range p.texts {
			if len(text) > len(so) && slices.Equal(text[:len(so)], so) {
				next = text[len(so):]
			}
		}
		for k := range r.N {
			place := len(so) + k
			rnd := rand.New(rand.NewPCG(p.seed, uint64(place)))
			ids := make([]int32, top)
			for rank := range ids {
				ids[rank] = int32(rnd.IntN(p.vocab))
			}
			switch {
			case k >= len(next) || place%8 == 7:
			case place%8 == 3:
				ids[top/2] = next[k]
			default:
				ids[0] = next[k]
			}
			var cs []draft.Candidate
			for rank, id := range ids {
				if !slices.ContainsFunc(cs, func(c draft.Candidate) bool { return c.ID == id }) {
					cs = append(cs, draft.Candidate{ID: id, LogP: -0.2 - float32(rank)})
				}
			}
			out[i].At = append(out[i].At, cs)
		}
	}
	return out, nil
}
