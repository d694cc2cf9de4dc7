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
	"strings"
	"time"

	"strobe/internal/backend"
	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/speculate/control"
)

// How many committed tokens may wait for the sources. Projecting them together is cheaper than one by one, and costs
// nothing while drafting is off. Many streams fill what is enough for one in a few passes, so there is room for as many
// as fit into some memory.
const (
	leastWaiting = 128
	mostWaiting  = model.MaxRows
	waitingBytes = 16 << 20
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

	features backend.Tensor // rows that wait
	pick     backend.Ints
	waiting  []*Stream // streams with rows in features
	used     int       // rows of features in use
	asked    []bool    // per source: in the step before
	clock    func() time.Time
}

// NewRunner returns a runner and has the target capture what the sources need.
func NewRunner(target *model.Model, sources ...draft.Source) (*Runner, error) {
	r := &Runner{Target: target, Sources: sources, clock: time.Now}
	longest := make([]int, len(sources))
	for i, s := range sources {
		longest[i] = min(s.Max(), maxGuesses)
		layers := s.Capture()
		r.layers = append(r.layers, layers...)
		r.widths = append(r.widths, len(layers)*target.Hidden)
		r.width += len(layers) * target.Hidden
	}
	r.asked = make([]bool, len(sources))
	r.control = control.New(longest...)
	if r.width == 0 {
		return r, nil
	}
	if err := r.Capture(); err != nil {
		return nil, err
	}
	b := target.Backend()
	var err error
	rows := min(max(leastWaiting, waitingBytes/(4*r.width)), mostWaiting)
	if r.features, err = b.Alloc(rows, r.width); err == nil {
		r.pick, err = b.AllocInts(rows)
	}
	return r, err
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
	if err == nil {
		out.Fetch()
		err = r.Target.Sync() // before the clock, and before anything is sampled from a failed pass
	}
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	forwarded := r.clock()
	p.Passed(forwarded.Sub(drafted))

	for i, s := range live {
		s.verify(out, i)
	}
	verified := r.clock()
	for _, s := range live {
		if err := s.seq.Commit(s.path); err != nil {
			return err
		}
	}
	r.keep(live, out)
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

// keep puts the features of the committed rows where they wait for the sources: all at once, or as many as there is
// room for. Those of a prompt go to the sources straight from the pass.
func (r *Runner) keep(live []*Stream, out *model.Output) {
	var pick []int32
	flush := func() {
		if len(pick) == 0 {
			return
		}
		b, n := r.Target.Backend(), len(pick)
		to := r.features.Slice(r.used, n)
		together := int(pick[n-1]-pick[0]) == n-1 // rows ascend; without guesses all are kept
		if !together {
			b.SetInts(r.pick, pick)
		}
		b.BeginStep(nil)
		if together {
			b.Copy(to, out.Features.Slice(int(pick[0]), n))
		} else {
			b.Gather(to, out.Features, r.pick)
		}
		if _, err := b.EndStep(); err != nil {
			for _, s := range r.waiting { // nobody knows what lies there
				s.lost(err)
			}
		}
		r.used += len(pick)
		pick = pick[:0]
	}
	var prompts []*Stream
	var fresh [][]int32
	for i, s := range live {
		if !s.captured() {
			continue
		}
		rows := make([]int32, len(s.path))
		for k, p := range s.path {
			rows[k] = int32(out.FeatureRow(i, int(p)))
		}
		if s.prefilled > 0 {
			s.kept += len(rows)
			prompts, fresh = append(prompts, s), append(fresh, rows)
			continue
		}
		if r.used+len(pick)+len(rows) > r.features.Rows {
			flush()
			_ = r.tellAll() // who fails has been told apart
		}
		if len(s.waiting) == 0 {
			r.waiting = append(r.waiting, s)
		}
		s.kept += len(rows)
		for k := range rows {
			s.waiting = append(s.waiting, int32(r.used+len(pick)+k))
		}
		pick = append(pick, rows...)
	}
	flush()
	for src := range r.Sources {
		_ = r.extend(src, out.Features, prompts, fresh) // who fails has been told apart
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

// tell hands a source the features that wait for it.
func (r *Runner) tell(source int) error {
	if r.widths[source] == 0 {
		return nil
	}
	var ss []*Stream
	var rows [][]int32
	for _, s := range r.waiting {
		if !s.closed && s.follows(source) {
			if n := s.kept - s.heard[source].ctx.Len(); n > 0 {
				ss = append(ss, s)
				rows = append(rows, s.waiting[len(s.waiting)-n:])
			}
		}
	}
	return r.extend(source, r.features, ss, rows)
}

// tellAll hands every source the features that wait for it.
func (r *Runner) tellAll() (first error) {
	for i := range r.Sources {
		if err := r.tell(i); first == nil {
			first = err
		}
	}
	for _, s := range r.waiting {
		s.waiting = s.waiting[:0]
	}
	r.waiting, r.used = r.waiting[:0], 0
	return first
}

// extend hands a source the features of some streams. A source that fails stops following those streams.
func (r *Runner) extend(source int, features backend.Tensor, ss []*Stream, rows [][]int32) error {
	var items []draft.Rows
	for i, s := range ss {
		if s.follows(source) {
			h := &s.heard[source]
			tokens := s.text[h.from+h.ctx.Len():][:len(rows[i])]
			items = append(items, draft.Rows{Seq: h.ctx, Tokens: tokens, Rows: rows[i]})
		}
	}
	if len(items) == 0 {
		return nil
	}
	err := r.Sources[source].Extend(r.columns(features, source), items)
	for _, s := range ss {
		if err != nil && s.follows(source) {
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
