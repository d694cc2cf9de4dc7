// Package speculate is the speculative loop: guess several tokens, let the target verify them in one
// pass, keep what it would have said anyway.
//
// A Runner drives one target (and its drafter) for any number of Streams. One Step advances
// every stream: prompts by a chunk, generations by a round. A round is
//
//	draft    the drafter guesses a block, or an n-gram lookup finds a repetition
//	choose   the controller picks the chain or tree with the best expected tokens per second
//	forward  the target runs the last token and the guesses of all streams in one batch
//	verify   the sampler draws each token from the target's logits; a guess that matches saves a pass
//	commit   the caches keep the accepted path, the rest is forgotten
//
// Every token is drawn from the target's logits by the stream's sampler, in order, with the
// same random numbers as without speculation. Guesses only decide how many tokens one pass yields.
//
// A Runner and its streams belong to one goroutine.
package speculate

import (
	"fmt"
	"time"

	"strobe/backend"
	"strobe/draft"
	"strobe/model"
)

// featureRows is how many committed tokens may wait for the drafter. Projecting them together
// is cheaper than one by one, and costs nothing while drafting is off.
const featureRows = 128

// maxTree is the largest tree the controller builds.
const maxTree = 63

// candidates per position that the drafter returns; a tree branches among them.
const candidates = 6

// Runner drives a target and its drafter.
type Runner struct {
	Target  *model.Model
	Drafter draft.Drafter // nil for none

	costs    costs
	prior    acceptance // of earlier streams, where new ones start
	bank     float64    // what they gained by drafting, in plain tokens
	features backend.Tensor
	waiting  []*Stream // streams with rows in features
	used     int       // rows of features in use
	clock    func() time.Time
}

// NewRunner returns a runner; drafter may be nil.
func NewRunner(target *model.Model, drafter draft.Drafter) (*Runner, error) {
	r := &Runner{Target: target, Drafter: drafter, clock: time.Now}
	if drafter == nil {
		return r, nil
	}
	layers := drafter.Capture()
	if err := target.Capture(layers); err != nil {
		return nil, err
	}
	r.features = target.Backend().Alloc(featureRows, max(1, len(layers))*target.Hidden)
	return r, nil
}

// Step advances every stream: a prompt by up to chunk tokens, a generation by one round. Streams
// that are done are left alone. An error is the target's; the streams are unusable then.
func (r *Runner) Step(streams []*Stream, chunk int) error {
	start := r.clock()
	var live []*Stream
	for _, s := range streams {
		if !s.Done() {
			live = append(live, s)
		}
	}
	if len(live) == 0 {
		return nil
	}
	p, err := r.plan(live, chunk)
	if err != nil {
		return err
	}
	drafted := r.clock()

	segs := make([]model.Segment, len(live))
	for i, s := range live {
		segs[i] = s.segment()
	}
	out, err := r.Target.Forward(segs)
	if err == nil {
		err = r.Target.Backend().Sync() // before the clock, and before anything is sampled from a failed pass
	}
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	forwarded := r.clock()
	r.costs.learn(p, forwarded.Sub(drafted))

	for i, s := range live {
		s.verify(out, i)
	}
	verified := r.clock()
	for i, s := range live {
		if err := r.commit(s, out, i); err != nil {
			return err
		}
	}
	end := r.clock()
	for _, s := range live {
		s.stats.Draft += p.draft
		s.stats.Rest += drafted.Sub(start) - p.draft
		s.stats.Verify += forwarded.Sub(drafted)
		s.stats.Sample += verified.Sub(forwarded)
		s.stats.Commit += end.Sub(verified)
	}
	r.settle(live, p, end.Sub(start))
	return nil
}

// commit keeps the accepted rows of a stream in the target's cache and hands their features to
// the drafter.
func (r *Runner) commit(s *Stream, out *model.Output, segment int) error {
	if err := s.seq.Commit(s.path); err != nil {
		return err
	}
	if !s.follows() {
		return nil
	}
	if len(s.path) > featureRows || s.prefilled > 0 {
		// A prompt chunk goes to the drafter at once, straight from the pass.
		if err := r.extend(); err != nil {
			s.draftFailed(err)
			return nil
		}
		rows := make([]int32, len(s.path))
		for i, p := range s.path {
			rows[i] = int32(out.FeatureRow(segment, int(p)))
		}
		if err := r.Drafter.Extend(out.Features, []draft.Rows{{Seq: s.draftSeq, Rows: rows}}); err != nil {
			s.draftFailed(err)
		}
		return nil
	}
	if r.used+len(s.path) > featureRows {
		if err := r.extend(); err != nil {
			s.draftFailed(err)
			return nil
		}
	}
	if len(s.waiting) == 0 {
		r.waiting = append(r.waiting, s)
	}
	for _, p := range s.path {
		r.Target.Backend().Copy(r.features.Slice(r.used, 1), out.FeatureRows(segment, int(p), 1))
		s.waiting = append(s.waiting, int32(r.used))
		r.used++
	}
	return nil
}

// extend hands all waiting features to the drafter.
func (r *Runner) extend() error {
	var items []draft.Rows
	for _, s := range r.waiting {
		if !s.closed && !s.draftSeq.Closed() && len(s.waiting) > 0 {
			items = append(items, draft.Rows{Seq: s.draftSeq, Rows: s.waiting})
		}
	}
	var err error
	if len(items) > 0 {
		err = r.Drafter.Extend(r.features, items)
	}
	for _, s := range r.waiting {
		s.waiting = s.waiting[:0]
		if err != nil {
			s.draftFailed(err)
		}
	}
	r.waiting, r.used = r.waiting[:0], 0
	return err
}

// Sync brings the drafter's context of a stream up to its target's, so that both can be
// saved together.
func (r *Runner) Sync(s *Stream) error {
	if len(s.waiting) == 0 {
		return nil
	}
	return r.extend()
}
