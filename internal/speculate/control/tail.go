package control

import (
	"slices"

	"strobe/internal/draft"
)

// A drafter's block may end where the text goes back to something it has said before: after a change in a file that is
// quoted, for example. Another source, which needs no pass of a model, then goes on where the block leads to: the tail.

// tail is what another source guesses after the first guesses of a chain.
type tail struct {
	after []int32 // those guesses
	draft.Proposal
}

// judge learns how good the tail was, if the tokens that followed led to it.
func (t *tail) judge(a *acceptance, tokens []int32) {
	n := len(t.after)
	if n == 0 || len(tokens) <= n || !slices.Equal(tokens[:n], t.after) {
		return
	}
	for i, at := range t.At[:min(t.Len(), len(tokens)-n)] {
		hit := at[0].ID == tokens[n+i]
		a.model(i, 0, prob(at[0].LogP)).learn(hit)
		if !hit {
			return
		}
	}
}

// continued is a chain with the tail that promises most, where the chain goes over into it early or late, or the chain
// as it is if that promises more.
func (s *Stream) continued(chain offer) offer {
	best, most, ratio := chain, 0.0, s.c.ratio(&chain)
	s.tail = tail{}
	for i, p := range s.Continue(chain.tokens) {
		p.Cut(min(s.Limit, maxChain) - i - 1)
		if p.Len() == 0 {
			continue
		}
		o := s.join(chain, i+1, &p)
		r := s.c.ratio(&o)
		if r > most { // also learn from one that is not good enough
			most, s.tail = r, tail{chain.tokens[:i+1], p}
		}
		if r > tune.tailMargin*ratio && r >= most {
			best = o
		}
	}
	return best
}

// join makes the first n guesses of a chain and a tail one chain. Where the tail says what the chain said, the guess is
// as probable as the surer of the two thinks.
func (s *Stream) join(chain offer, n int, p *draft.Proposal) offer {
	o := offer{tokens: slices.Clone(chain.tokens[:n]), gain: slices.Clone(chain.gain[:n]), tail: n}
	agree := true
	for i, at := range p.At {
		d := n + i
		q := s.tails.guess(i, 0, at[0].LogP)
		if agree = agree && d < len(chain.tokens) && chain.tokens[d] == at[0].ID; agree && chain.gain[d-1] > 0 {
			q = max(q, chain.gain[d]/chain.gain[d-1])
		}
		o.tokens = append(o.tokens, at[0].ID)
		o.gain = append(o.gain, q*o.gain[d-1])
	}
	return o
}
