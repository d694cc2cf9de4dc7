package speculate

import (
	"fmt"
	"slices"
	"time"

	"strobe/internal/backend"
	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/speculate/control"
)

// plan is the batch of one step, and a stopwatch for its parts.
type plan struct {
	*control.Round
	live []*Stream // that are not done

	stored       bool // features of the pass are in Runner.features
	firstFeature int  // the first row there

	clock                               func() time.Time
	begin, last                         time.Time // of the step, and of the last lap
	rest, draft, verify, sample, commit time.Duration
}

// lap adds the time since the last lap to a part of the step, and returns it.
func (p *plan) lap(part *time.Duration) time.Duration {
	now := p.clock()
	took := now.Sub(p.last)
	p.last = now
	*part += took
	return took
}

// maxGuesses is the longest chain.
const maxGuesses = 63

// warmUp is how many tokens a source that starts in the middle of a text sees before it drafts. After a gap of 60
// tokens the built-in drafter yields half its tokens per pass at once, three quarters after 16 and nine tenths after
// 32.
const warmUp = 32

// maxBad is how many useless drafts in a row detach a source from a stream.
const maxBad = 3

// schedule decides what every stream adds to the batch: a chunk of its prompt, or its last token and guesses, which it
// drafts here.
func (r *Runner) schedule(streams []*Stream, chunk int) *plan {
	begin := r.clock()
	p := &plan{clock: r.clock, begin: begin, last: begin}
	for _, s := range streams {
		if !s.Done() {
			p.live = append(p.live, s)
		}
	}
	if len(p.live) == 0 {
		return p
	}
	var decode []*control.Stream
	by := make(map[*control.Stream]*Stream)
	for _, s := range p.live {
		s.nodes, s.prefilled = nodes{}, 0
		if s.Prefilling() {
			continue
		}
		c := s.control
		c.Limit = s.limit()
		for i := range s.sources {
			st := &s.sources[i]
			st.first = -1
			c.Usable[i], c.Warming[i] = st.ctx != nil, st.since > 0 && s.seq.Len()-st.since < warmUp
		}
		if c.Continue = nil; r.tail >= 0 && s.sources[r.tail].ctx != nil {
			c.Tail, c.Continue = r.tail, s.continued
		}
		decode = append(decode, c)
		by[c] = s
	}
	prompt, room, images := 0, model.MaxRows-len(decode), model.MaxMutual
	for _, s := range p.live {
		if !s.Prefilling() {
			continue
		}
		// Every prompt gets at least a token, so that no stream starves.
		n := max(1, min(len(s.Prompt), chunk-prompt, room-prompt))
		if r.Target.Mutual {
			n = s.wholeImages(n, &images)
		}
		s.prefilled = n
		s.nodes.tokens = s.Prompt[:n]
		prompt += n
	}
	p.live = slices.DeleteFunc(p.live, func(s *Stream) bool { return s.Prefilling() && s.prefilled == 0 })
	p.Round = r.control.Begin(decode, prompt)
	if len(decode) > 0 {
		r.draft(p, by)
	}
	p.lap(&p.rest)
	return p
}

// draft makes the drafts that the controller wants, and adds the guesses that it chooses to the batch.
func (r *Runner) draft(p *plan, by map[*control.Stream]*Stream) {
	asked := make([]bool, len(r.Sources))
	for a := p.Next(); a != nil; a = p.Next() {
		asked[a.Source] = true
		if !r.asked[a.Source] { // features of rounds without drafts are not a cost of this draft
			_ = r.extend(a.Source) // failing sources are already detached from their streams
		}
		p.lap(&p.rest)
		ps := r.ask(a, by)
		p.Drafted(a, ps, r.clock().Sub(p.last))
		took := p.lap(&p.draft)
		a.Took(took)
		for _, c := range a.Streams {
			by[c].stats.source(r.Sources[a.Source].Name(), SourceStats{Drafts: 1, Draft: took})
		}
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
}

// ask lets a source draft. If it fails, there are no guesses and it is detached from the streams.
func (r *Runner) ask(a *control.Ask, by map[*control.Stream]*Stream) []draft.Proposal {
	src := r.Sources[a.Source]
	reqs := make([]draft.Request, len(a.Streams))
	err := r.extend(a.Source)
	for i, c := range a.Streams {
		s := by[c]
		st := &s.sources[a.Source]
		if st.ctx == nil { // extend has just failed
			return nil
		}
		if r.widths[a.Source] == 0 {
			if e := src.Extend(backend.Tensor{}, []draft.Rows{{Seq: st.ctx, Tokens: st.newTokens(s)}}); e != nil {
				err = e
			}
		}
		reqs[i] = draft.Request{Seq: st.ctx, Target: s.seq, Last: s.last, N: a.N[i], Tree: a.Tree}
	}
	var ps []draft.Proposal
	if err == nil {
		ps, err = src.Draft(reqs, candidates)
	}
	for i, c := range a.Streams {
		s := by[c]
		if err != nil {
			s.detach(a.Source, err)
			continue
		}
		st := &s.sources[a.Source]
		empty := ps[i].Len() == 0 // a source may cut guesses that are not probable enough
		ps[i].Sane(r.Target.Vocab)
		if ps[i].Len() > 0 {
			st.first = ps[i].At[0][0].ID
		}
		if ps[i].Len() > 0 || empty {
			st.bad = 0
		} else if s.badDraft(a.Source); c.Limit > 0 {
			if st.bad++; st.bad == maxBad {
				s.detach(a.Source, fmt.Errorf("%d drafts in a row had no usable token", maxBad))
			}
		}
		if r.widths[a.Source] > 0 {
			s.stats.Drafts++
		}
	}
	return ps
}

// settle counts the times of a step and lets the controller learn how good the guesses were and what they cost. What
// the host does for guesses is part of their cost.
func (r *Runner) settle(p *plan) {
	p.Passed(p.verify + p.sample + p.commit)
	took := p.last.Sub(p.begin)
	for _, s := range p.live {
		s.stats.Draft += p.draft
		s.stats.Verify += p.verify
		s.stats.Sample += p.sample
		s.stats.Commit += p.commit
		s.stats.Rest += p.rest
		if s.prefilled > 0 {
			s.stats.PromptTime += took
			continue
		}
		s.stats.DecodeTime += took
		accepted, guessed := len(s.path)-1, len(s.nodes.tokens)-1
		s.stats.learn(guessed, accepted)
		if i := s.control.Source(); i >= 0 && guessed > 0 {
			own, right := guessed, accepted // of the source whose guesses come first
			if at := s.control.TailFrom(); at > 0 {
				own, right = at, min(at, accepted)
				s.stats.source(r.Sources[s.control.Tail].Name(), SourceStats{Tails: 1, Guessed: guessed - own,
					Accepted: accepted - right})
			}
			s.stats.source(r.Sources[i].Name(), SourceStats{Rounds: 1, Guessed: own, Accepted: right,
				Verify: p.verify, Accept: p.sample + p.commit, Host: p.rest})
		}
		if guessed > 0 && s.Synthetic > 0 {
			s.control.Pretended(s.emitted)
		} else {
			fresh := s.text[len(s.text)-s.emitted:]
			s.control.Verified(fresh)
			for i, src := range r.Sources {
				if len(fresh) > 0 && s.sources[i].first == fresh[0] {
					s.stats.source(src.Name(), SourceStats{Right: 1})
				}
			}
		}
	}
	p.Settle()
	for _, s := range p.live {
		s.check()
		if s.done && s.stats.Rounds > 0 {
			r.control.End(s.control)
		}
	}
}
