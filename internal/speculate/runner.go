// Package speculate is the speculative loop: guess several tokens, let the target verify them in one
// pass, keep the ones that the target would have generated anyway.
//
// A Runner drives one target and the sources that guess for it, for any number of Streams. One Step advances
// every stream: prompts by a chunk, generations by a round. A round is
//
//	draft    the source that promises most guesses some tokens
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
	"slices"
	"strings"
	"time"

	"strobe/internal/backend"
	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/speculate/control"
)

// candidates per position that a source returns; a tree branches among them.
const candidates = 6

// Runner drives a target and its sources.
type Runner struct {
	Target  *model.Model
	Sources []draft.Source

	control *control.Controller
	layers  []int // captured layers of all sources, one after the other
	widths  []int // per source: columns of its features; 0 for a source that guesses from the text alone
	width   int   // columns of all features
	tail    int   // the source that continues guesses of others, -1 for none

	// Features wait for the sources until a draft is wanted or there is no room for another pass: projecting many rows
	// together is cheaper than a few at a time, and those of a stream that ends before are not projected at all.
	features backend.Tensor // [rows of the largest pass, width]
	waiting  []*Stream      // streams with rows in features
	used     int            // rows of features in use
	asked    []bool         // per source: it drafted in the step before
	clock    func() time.Time
	devices  []backend.Backend // of the target and the sources
}

// NewRunner returns a runner and has the target capture what the sources need.
func NewRunner(target *model.Model, sources ...draft.Source) (*Runner, error) {
	r := &Runner{Target: target, Sources: sources, devices: slices.Clone(target.Devices()), tail: -1}
	longest := make([]int, len(sources))
	for i, s := range sources {
		longest[i] = min(s.Max(), maxGuesses)
		layers := s.Capture()
		if _, ok := s.(draft.Continuer); ok && len(layers) == 0 {
			r.tail = i
		}
		r.layers = append(r.layers, layers...)
		r.widths = append(r.widths, len(layers)*target.Hidden)
		r.width += len(layers) * target.Hidden
		if own, ok := s.(interface{ Devices() []backend.Backend }); ok {
			for _, d := range own.Devices() {
				if !slices.Contains(r.devices, d) {
					r.devices = append(r.devices, d)
				}
			}
		}
	}
	r.clock = working(r.devices)
	r.asked = make([]bool, len(sources))
	r.control = control.New(longest...)
	if r.width == 0 {
		return r, nil
	}
	if err := r.Capture(); err != nil {
		return nil, err
	}
	var err error
	rows := model.MaxRows
	if target.Mutual {
		rows += model.MaxMutual
	}
	r.features, err = target.Backend().Alloc(rows, r.width)
	return r, err
}

// working is a clock that stands still while one of the devices compiles kernels. That happens once, when they are
// first needed, and must not count as what a pass or a draft costs.
func working(devices []backend.Backend) func() time.Time {
	return func() time.Time {
		now := time.Now()
		for _, d := range devices {
			if c, ok := d.(backend.Compiler); ok {
				now = now.Add(-c.Compiling())
			}
		}
		return now
	}
}

// Capture makes the target capture the layers that the sources need. Another runner may have changed them.
func (r *Runner) Capture() error { return r.Target.Capture(r.layers) }

// Check returns an error if no loaded source has the name that a stream asks to be drafted by.
func (r *Runner) Check(draft string) error {
	if draft == Auto || draft == Off {
		return nil
	}
	names := []string{"auto", "off"}
	for _, s := range r.Sources {
		if s.Name() == draft {
			return nil
		}
		names = append(names, s.Name())
	}
	last := len(names) - 1
	want := strings.Join(names[:last], ", ") + " or " + names[last]
	return fmt.Errorf("draft source %q %w: want %s", draft, ErrNoSource, want)
}

// Describe states what the controller has measured: the cost of passes by rows and of drafts.
func (r *Runner) Describe() string {
	var names []string
	for _, s := range r.Sources {
		names = append(names, s.Name())
	}
	return r.control.Describe(names)
}

// Paused reports whether features are not captured for so many streams because drafting does not pay. The contexts of
// such streams are incomplete.
func (r *Runner) Paused(streams int) bool { return r.control.Paused(streams) }

// columns is the part of the features that a source captures.
func (r *Runner) columns(t backend.Tensor, source int) backend.Tensor {
	from := 0
	for _, w := range r.widths[:source] {
		from += w
	}
	return t.Columns(from, r.widths[source])
}

// Step advances every stream: a prompt by up to chunk tokens, a generation by one round. Streams
// that are done are left alone. An error comes from the target and leaves the streams unusable.
func (r *Runner) Step(streams []*Stream, chunk int) error {
	p := r.schedule(streams, chunk)
	if len(p.live) == 0 {
		return nil
	}
	out, err := r.run(p)
	if err != nil {
		return err
	}
	if err := r.accept(p, out); err != nil {
		return err
	}
	r.settle(p)
	return nil
}

// run runs the target on the batch of the plan. It waits for the end of the pass: nothing is sampled from a failed one.
func (r *Runner) run(p *plan) (*model.Output, error) {
	segs := make([]model.Segment, len(p.live))
	for i, s := range p.live {
		segs[i] = s.segment()
	}
	out, err := r.Target.Forward(segs)
	if err == nil {
		r.storeFeatures(p, out) // while the device is at work
		out.Fetch()
		err = r.Target.Sync()
	}
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	p.lap(&p.verify)
	return out, nil
}

// accept samples every stream's tokens as far as its guesses agree, and commits them.
func (r *Runner) accept(p *plan, out *model.Output) error {
	for i, s := range p.live {
		s.verify(out, i)
	}
	if out.Late() {
		if err := r.Target.Sync(); err != nil {
			return fmt.Errorf("target: %w", err)
		}
	}
	p.lap(&p.sample)
	for i, s := range p.live {
		if err := s.seq.Commit(s.path); err != nil {
			return err
		}
		if p.stored && s.needsFeatures() {
			r.addFeatures(s, p.firstFeature+out.FeatureRow(i, 0))
		}
	}
	p.lap(&p.commit)
	return nil
}

// storeFeatures copies the features of all rows of a pass to where they wait for the sources. One copy of all rows
// takes less time than waiting for which of them are accepted. While drafting does not pay nothing is stored, and
// what waits is dropped; addFeatures starts again later.
func (r *Runner) storeFeatures(p *plan, out *model.Output) {
	if !slices.ContainsFunc(p.live, (*Stream).needsFeatures) {
		return
	}
	if r.Paused(len(p.live)) && !slices.ContainsFunc(p.live, func(s *Stream) bool { return s.Fixed }) {
		for _, s := range r.waiting {
			s.featureRows, s.featureLen = s.featureRows[:0], -1
		}
		r.waiting, r.used = r.waiting[:0], 0
		return
	}
	rows := 0
	for _, s := range p.live {
		rows += len(s.nodes.tokens)
	}
	if r.used+rows > r.features.Rows {
		_ = r.extendAll() // failing sources are already detached from their streams
	}
	p.stored, p.firstFeature = true, r.used
	r.used += rows
	b := r.Target.Backend()
	b.BeginStep(nil)
	b.Copy(r.features.Slice(p.firstFeature, rows), out.Features.Slice(0, rows))
	if _, err := b.EndStep(); err != nil {
		for _, s := range slices.Concat(r.waiting, p.live) { // the features are undefined now
			s.detachAll(err)
		}
	}
}

// addFeatures notes which features belong to the tokens that a stream has just committed.
func (r *Runner) addFeatures(s *Stream, first int) {
	if before := s.seq.Len() - len(s.path); s.featureLen != before {
		s.startAt(before)
	}
	if len(s.featureRows) == 0 {
		r.waiting = append(r.waiting, s)
	}
	for _, row := range s.path {
		s.featureRows = append(s.featureRows, int32(first)+row)
	}
	s.featureLen += len(s.path)
}

// startAt makes the sources follow a stream from a token of its sequence on. They never see the tokens before it that
// they do not know yet. Their guesses are less often right until they have seen more of the text.
func (s *Stream) startAt(token int) {
	s.featureLen = token
	for i := range s.sources {
		if st := &s.sources[i]; s.follows(i) && s.extendedLen(i) != token {
			st.from, st.since = token-s.unknown-st.ctx.Len(), token
		}
	}
}

// detachAll detaches all sources that need features: those of the stream are lost.
func (s *Stream) detachAll(err error) {
	for i := range s.sources {
		if s.follows(i) {
			s.detach(i, err)
		}
	}
}

// needsFeatures reports whether any source needs the features of a stream.
func (s *Stream) needsFeatures() bool {
	for i := range s.sources {
		if s.follows(i) {
			return true
		}
	}
	return false
}

// behind reports whether features of a stream wait for a source.
func (s *Stream) behind(source int) bool {
	return !s.closed && s.follows(source) && s.extendedLen(source) < s.featureLen
}

// extendedLen is the number of tokens of the sequence up to which a source has been extended. Some of them it may have
// missed.
func (s *Stream) extendedLen(source int) int {
	st := &s.sources[source]
	return s.unknown + st.from + st.ctx.Len()
}

// extend hands a source the features that wait for it, and drops those that wait for no other source. A source that
// fails is detached from its streams.
func (r *Runner) extend(source int) (err error) {
	if r.widths[source] == 0 {
		return nil
	}
	var streams []*Stream
	var items []draft.Rows
	for _, s := range r.waiting {
		if !s.behind(source) {
			continue
		}
		st := &s.sources[source]
		rows := s.featureRows[len(s.featureRows)-(s.featureLen-s.extendedLen(source)):]
		streams = append(streams, s)
		items = append(items, draft.Rows{Seq: st.ctx, Tokens: s.text[st.from+st.ctx.Len():][:len(rows)], Rows: rows})
	}
	if len(items) > 0 {
		err = r.Sources[source].Extend(r.columns(r.features, source), items)
	}
	if err != nil {
		for _, s := range streams {
			s.detach(source, err)
		}
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(s *Stream) bool {
		for i := range r.Sources {
			if s.behind(i) {
				return false
			}
		}
		s.featureRows = s.featureRows[:0]
		return true
	})
	if len(r.waiting) == 0 {
		r.used = 0
	}
	return err
}

// extendAll hands every source the features that wait for it.
func (r *Runner) extendAll() (first error) {
	for i := range r.Sources {
		if err := r.extend(i); first == nil {
			first = err
		}
	}
	return first
}

// Sync brings the contexts of a stream up to its target's, so that all can be saved together.
func (r *Runner) Sync(s *Stream) error {
	if len(s.featureRows) == 0 {
		return nil
	}
	return r.extendAll()
}
