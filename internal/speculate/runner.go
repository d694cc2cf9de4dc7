// Package speculate is the speculative loop: guess several tokens, let the target verify them in one
// pass, keep what it would have said anyway.
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
	layers  []int // captured: those of all sources, one after the other
	widths  []int // per source: columns of its layers; 0 for a source that guesses from the text alone
	width   int   // of all

	// Features wait for the sources until a draft is wanted or there is no room for those of another pass: projecting
	// many rows together is cheaper than few at a time, and those of a stream that ends before are not projected at all.
	features backend.Tensor
	waiting  []*Stream // streams with rows in features
	used     int       // rows of features in use
	asked    []bool    // per source: in the step before
	clock    func() time.Time
	devices  []backend.Backend // of the target and the sources
}

// NewRunner returns a runner and has the target capture what the sources need.
func NewRunner(target *model.Model, sources ...draft.Source) (*Runner, error) {
	r := &Runner{Target: target, Sources: sources, devices: slices.Clone(target.Devices())}
	longest := make([]int, len(sources))
	for i, s := range sources {
		longest[i] = min(s.Max(), maxGuesses)
		layers := s.Capture()
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
	r.features, err = target.Backend().Alloc(model.MaxRows, r.width)
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

// Capture has the target capture what the sources need, in case another runner has changed that.
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

// Paused reports whether so many streams are not followed by the sources that capture features, because drafting does
// not pay for as many. What such streams leave behind says nothing to these sources.
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
	p := r.plan(live, chunk)
	drafted := r.clock()

	segs := make([]model.Segment, len(live))
	for i, s := range live {
		segs[i] = s.segment()
	}
	out, err := r.Target.Forward(segs)
	first, kept := 0, false
	if err == nil {
		first, kept = r.keep(live, out) // while the device is at work
		out.Fetch()
		err = r.Target.Sync() // before the clock, and before anything is sampled from a failed pass
	}
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	forwarded := r.clock()

	for i, s := range live {
		s.verify(out, i)
	}
	if out.Late() {
		if err := r.Target.Sync(); err != nil {
			return fmt.Errorf("target: %w", err)
		}
	}
	verified := r.clock()
	for i, s := range live {
		if err := s.seq.Commit(s.path); err != nil {
			return err
		}
		if kept && s.captured() {
			r.wait(s, first+out.FeatureRow(i, 0))
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
	p.Passed(end.Sub(drafted)) // what the host does for guesses is part of what they cost
	r.settle(live, p, end.Sub(start))
	return nil
}

// keep puts the features of all rows of a pass where they wait for the sources, and returns the place of the first.
// Which of them will be committed nobody knows yet, but one copy of all takes less time than asking. Where drafting
// does not pay they are not kept, nor those that wait: see begin.
func (r *Runner) keep(live []*Stream, out *model.Output) (first int, kept bool) {
	if !slices.ContainsFunc(live, (*Stream).captured) {
		return 0, false
	}
	if r.Paused(len(live)) && !slices.ContainsFunc(live, func(s *Stream) bool { return s.Fixed }) {
		for _, s := range r.waiting {
			s.waiting, s.kept = s.waiting[:0], -1
		}
		r.waiting, r.used = r.waiting[:0], 0
		return 0, false
	}
	rows := 0
	for _, s := range live {
		rows += len(s.nodes.tokens)
	}
	if r.used+rows > r.features.Rows {
		_ = r.tellAll() // who fails has been told apart
	}
	first = r.used
	r.used += rows
	b := r.Target.Backend()
	b.BeginStep(nil)
	b.Copy(r.features.Slice(first, rows), out.Features.Slice(0, rows))
	if _, err := b.EndStep(); err != nil {
		for _, s := range slices.Concat(r.waiting, live) { // nobody knows what lies there
			s.lost(err)
		}
	}
	return first, true
}

// wait notes where the features of the rows lie that a stream has committed, after those of the rows before.
func (r *Runner) wait(s *Stream, first int) {
	if before := s.seq.Len() - len(s.path); s.kept != before {
		s.begin(before)
	}
	if len(s.waiting) == 0 {
		r.waiting = append(r.waiting, s)
	}
	for _, p := range s.path {
		s.waiting = append(s.waiting, int32(first)+p)
	}
	s.kept += len(s.path)
}

// begin has the sources follow a stream from the middle of its text on: the first tokens of its sequence, or some of
// them, they have not been told of and never will. Guesses are worse for it until they have seen some of the text, but
// none is wrong.
func (s *Stream) begin(at int) {
	s.kept = at
	for i := range s.heard {
		if h := &s.heard[i]; s.follows(i) && s.told(i) != at {
			h.from, h.since = at-s.unknown-h.ctx.Len(), at
		}
	}
}

// lost says that features of a stream are gone: the sources that need them cannot follow it any more.
func (s *Stream) lost(err error) {
	for i := range s.heard {
		if s.follows(i) {
			s.fails(i, err)
		}
	}
}

// captured reports whether any source needs the features of a stream.
func (s *Stream) captured() bool {
	for i := range s.heard {
		if s.follows(i) {
			return true
		}
	}
	return false
}

// behind reports whether features of a stream wait for a source.
func (s *Stream) behind(source int) bool {
	return !s.closed && s.follows(source) && s.told(source) < s.kept
}

// told is the tokens of the sequence that a source has been told of, or never will be.
func (s *Stream) told(source int) int {
	h := &s.heard[source]
	return s.unknown + h.from + h.ctx.Len()
}

// tell hands a source the features that wait for it, and forgets those that wait for no other.
func (r *Runner) tell(source int) error {
	if r.widths[source] == 0 {
		return nil
	}
	var ss []*Stream
	var rows [][]int32
	for _, s := range r.waiting {
		if s.behind(source) {
			n := s.kept - s.told(source)
			ss = append(ss, s)
			rows = append(rows, s.waiting[len(s.waiting)-n:])
		}
	}
	err := r.extend(source, ss, rows)
	r.waiting = slices.DeleteFunc(r.waiting, func(s *Stream) bool {
		for i := range r.Sources {
			if s.behind(i) {
				return false
			}
		}
		s.waiting = s.waiting[:0]
		return true
	})
	if len(r.waiting) == 0 {
		r.used = 0
	}
	return err
}

// tellAll hands every source the features that wait for it.
func (r *Runner) tellAll() (first error) {
	for i := range r.Sources {
		if err := r.tell(i); first == nil {
			first = err
		}
	}
	return first
}

// extend hands a source the features of some streams. A source that fails stops following those streams.
func (r *Runner) extend(source int, ss []*Stream, rows [][]int32) error {
	if len(ss) == 0 {
		return nil
	}
	items := make([]draft.Rows, len(ss))
	for i, s := range ss {
		h := &s.heard[source]
		items[i] = draft.Rows{Seq: h.ctx, Tokens: s.text[h.from+h.ctx.Len():][:len(rows[i])], Rows: rows[i]}
	}
	err := r.Sources[source].Extend(r.columns(r.features, source), items)
	if err != nil {
		for _, s := range ss {
			s.fails(source, err)
		}
	}
	return err
}

// Sync brings the contexts of a stream up to its target's, so that all can be saved together.
func (r *Runner) Sync(s *Stream) error {
	if len(s.waiting) == 0 {
		return nil
	}
	return r.tellAll()
}
