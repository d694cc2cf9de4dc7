package speculate

import (
	"fmt"
	"time"

	"strobe/internal/backend"
	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/speculate/control"
)

// plan is what one step puts into its batch.
type plan struct {
	*control.Round
	draft time.Duration // time of all drafts
}

// maxGuesses is the longest chain.
const maxGuesses = 63

// runUp is how many tokens a source that begins in the middle of a text is told of before it is asked. After a gap of
// 60 tokens the built-in drafter yields half its tokens per pass at once, three quarters after 16 and nine tenths after
// 32.
const runUp = 32

// maxBad is how many useless drafts in a row make a stream give a source up.
const maxBad = 3

// plan decides what every stream adds to the batch.
func (r *Runner) plan(live []*Stream, chunk int) *plan {
	var decode []*control.Stream
	by := make(map[*control.Stream]*Stream)
	for _, s := range live {
		s.nodes, s.prefilled = nodes{}, 0
		if s.Prefilling() {
			continue
		}
		c := s.control
		c.Limit = s.limit()
		for i := range s.heard {
			h := &s.heard[i]
			c.Usable[i], c.Warming[i] = h.ctx != nil, h.since > 0 && s.seq.Len()-h.since < runUp
		}
		decode = append(decode, c)
		by[c] = s
	}
	prompt, room := 0, model.MaxRows-len(decode)
	for _, s := range live {
		if !s.Prefilling() {
			continue
		}
		// Every prompt gets at least a token, so that no stream starves.
		n := max(1, min(len(s.Prompt), chunk-prompt, room-prompt))
		s.prefilled = n
		s.nodes.tokens = s.Prompt[:n]
		prompt += n
	}
	p := &plan{Round: r.control.Begin(decode, prompt)}
	if len(decode) == 0 {
		return p
	}
	asked := make([]bool, len(r.Sources))
	for a := p.Next(); a != nil; a = p.Next() {
		asked[a.Source] = true
		if !r.asked[a.Source] { // what gathered while nobody drafted is no part of what a draft costs
			_ = r.tell(a.Source) // who fails has been told apart
		}
		begin := r.clock()
		ps := r.ask(a, by)
		p.Drafted(a, ps, r.clock().Sub(begin))
		took := r.clock().Sub(begin)
		a.Took(took)
		p.draft += took
	}
	r.asked = asked
	p.Choose(model.MaxRows)
	for c, s := range by {
		tokens, parents := c.Guesses()
		s.nodes.tokens = append([]int32{s.last}, tokens...)
		if parents != nil {
			s.nodes.parents = append(s.nodes.parents, -1)
			for _, at := range parents {
				s.nodes.parents = append(s.nodes.parents, at+1)
			}
		}
	}
	return p
}

// ask runs a source. If it fails, the round goes without its guesses.
func (r *Runner) ask(a *control.Ask, by map[*control.Stream]*Stream) []draft.Proposal {
	src := r.Sources[a.Source]
	reqs := make([]draft.Request, len(a.Streams))
	err := r.tell(a.Source)
	for i, c := range a.Streams {
		s := by[c]
		h := &s.heard[a.Source]
		if h.ctx == nil { // it has just failed
			return nil
		}
		if r.widths[a.Source] == 0 {
			if e := src.Extend(backend.Tensor{}, []draft.Rows{{Seq: h.ctx, Tokens: h.fresh(s)}}); e != nil {
				err = e
			}
		}
		reqs[i] = draft.Request{Seq: h.ctx, Target: s.seq, Last: s.last, N: a.N[i]}
	}
	var ps []draft.Proposal
	if err == nil {
		ps, err = src.Draft(reqs, candidates)
	}
	for i, c := range a.Streams {
		s := by[c]
		if err != nil {
			s.fails(a.Source, err)
			continue
		}
		h := &s.heard[a.Source]
		unsure := ps[i].Len() == 0 // of all its guesses, which is no fault
		ps[i].Sane(r.Target.Vocab)
		if ps[i].Len() > 0 || unsure {
			h.bad = 0
		} else if s.stats.BadDrafts++; c.Limit > 0 {
			if h.bad++; h.bad == maxBad {
				s.fails(a.Source, fmt.Errorf("%d drafts in a row had no usable token", maxBad))
			}
		}
		if r.widths[a.Source] > 0 {
			s.stats.Drafts++
		}
	}
	return ps
}

// settle learns from a step: how good the guesses were and what they cost.
func (r *Runner) settle(live []*Stream, p *plan, took time.Duration) {
	for _, s := range live {
		if s.prefilled > 0 {
			s.stats.PromptTime += took
			continue
		}
		s.stats.DecodeTime += took
		accepted, guessed := len(s.path)-1, len(s.nodes.tokens)-1
		source := ""
		if i := s.control.Source(); i >= 0 {
			source = r.Sources[i].Name()
		}
		s.stats.learn(guessed, accepted, source)
		if guessed > 0 && s.Synthetic > 0 {
			s.control.Pretended(s.emitted)
		} else {
			s.control.Verified(s.text[len(s.text)-s.emitted:])
		}
	}
	p.Settle()
	for _, s := range live {
		if s.done && s.stats.Rounds > 0 {
			r.control.End(s.control)
		}
	}
}
