package engine

import (
	"context"

	"strobe/internal/cache"
	"strobe/internal/speculate"
)

// Solo is a generation that runs alone on a model without an Engine: its owner makes every step. It is for
// programs that measure. A Solo and the model belong to one goroutine.
type Solo struct {
	runner *speculate.Runner
	job    *job
}

// Solo begins a generation of at most limit tokens, the prompt included; 0 means the trained context. The runner is one
// of the model's target: each learns for itself what drafts are worth. With IgnoreEOG the generation goes on after a
// token that ends it, instead of forbidding such tokens: what is measured stays the model's own choice.
func (m *Model) Solo(r *speculate.Runner, req Request, limit int) (*Solo, error) {
	s := &Solo{runner: r, job: newJob(m, newGeneration(context.Background(), req))}
	free := req
	free.IgnoreEOG = false
	s.job.sampler = m.newSampler(&free)
	s.job.seq = m.Target.NewSeq()
	s.job.drafts = newContexts(memories(r), wanted(r, req.Spec))
	if err := s.job.next(r, limit); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Step runs one pass: a piece of the prompt, or a round that yields tokens. The events have no Result.
func (s *Solo) Step(chunk int) (Event, error) {
	j := s.job
	if err := s.runner.Step([]*speculate.Stream{j.stream}, chunk); err != nil {
		return Event{}, err
	}
	ev := Event{Tokens: j.out}
	j.out = nil
	for _, t := range ev.Tokens {
		ev.Text = append(ev.Text, t.Text...)
	}
	if j.stream.Done() {
		ev.Text = append(ev.Text, j.text.Flush()...)
	}
	return ev, j.stream.Err()
}

// Tokens are the ids generated so far, one that ended the text included.
func (s *Solo) Tokens() []int32 { return s.job.tokens }

// Done reports whether the generation has ended.
func (s *Solo) Done() bool { return s.job.stream.Done() }

// Prefilling reports whether prompt tokens are left.
func (s *Solo) Prefilling() bool { return s.job.stream.Prefilling() }

// Stats is what the generation did so far.
func (s *Solo) Stats() speculate.Stats { return s.job.stream.Stats() }

// Bytes is what the sequences of target and drafters hold in memory, once the drafters know what the target does.
func (s *Solo) Bytes() (target, drafters int) {
	_ = s.runner.Sync(s.job.stream) // who fails holds nothing
	s.job.drafts.each(func(c *cache.Seq) { drafters += c.Bytes() })
	return s.job.seq.Bytes(), drafters
}

// Close gives the memory back.
func (s *Solo) Close() {
	s.job.endLeg()
	s.job.seq.Close()
	s.job.drafts.close()
}
