package speculate

import (
	"errors"
	"fmt"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/invariants"
	"strobe/internal/model"
	"strobe/internal/sample"
	"strobe/internal/speculate/control"
)

// Auto and Off are the values of Options.Draft that name no source: use the source that pays most, and do not draft.
const (
	Auto = ""
	Off  = "off"
)

// ErrNoSource is returned when a stream asks for a source that is not loaded.
var ErrNoSource = errors.New("is not loaded")

// TreeOff and TreeAuto are special values of Options.Tree.
const (
	TreeAuto = control.TreeAuto
	TreeOff  = control.TreeOff
)

// Options says how a stream speculates. The zero value lets the controller decide everything.
type Options struct {
	Draft string // Auto, Off or the name of a source
	Max   int    // longest chain or deepest tree; 0 means what the source can do
	Tree  int    // nodes of a tree: TreeAuto, TreeOff, or a fixed number
	// Fixed makes every round draft Max tokens (or a tree of Tree nodes) instead of asking the
	// controller, for measurements.
	Fixed bool
	// Synthetic replaces verification: guesses are accepted so that a pass yields this many
	// tokens on average. It measures speed on models without trained weights.
	Synthetic float64
}

// Sampler draws tokens; *sample.Sampler is one. Sample returns -1 when no token is possible.
type Sampler interface {
	Sample(logits []float32) int32
	Accept(id int32)
}

// chooser is a Sampler that rarely needs more of a row than what the device chose.
type chooser interface {
	Wants(logits int) sample.Want
	Lowered(id int32) bool                                    // a penalty on id: look at the row instead
	SampleShort(l *sample.Shortlist) (id int32, decided bool) // as Sample, unless the list is too short
}

// Devices choose at least as many tokens as samplers rely on; with fewer, sampled rows would be read whole, slowly.
const _ = uint(backend.MinCandidates - sample.ShortLen)

// Token is a generated token.
type Token struct {
	ID      int32
	Drafted bool // it was guessed and accepted
}

// Config starts a stream.
type Config struct {
	Options
	Seq *cache.Seq // the target's memory; may already hold a prefix
	// Contexts is what each of the runner's sources knows of the same prefix; nil for a source that is not to draft. A
	// context may lack some of the prefix. Sources that guess from the text alone need none: they get Known.
	Contexts []draft.Context
	Known    []int32 // tokens already in Seq
	Prompt   []int32 // tokens to run before generating; at least one
	// Images are those of Known and Prompt, in order. Their tokens are below 0; those of Prompt need their rows.
	Images  []model.Image
	Sampler Sampler
	Context int // most tokens in Seq; 0 means the trained context
	Max     int // most tokens to generate; 0 means as many as the context holds
	// Observe, if set, gets what each token is sampled from: the target's logits, before the sampler changes them, or a
	// shortlist of them with its total.
	Observe func(logits []float32, short *sample.Shortlist)
	// Emit receives each token as soon as it is certain. It returns false to stop; that token is
	// the last one.
	Emit func(Token) bool
}

// Stream is one generation in progress. It owns none of its sequences.
type Stream struct {
	Config
	seq    *cache.Seq
	runner *Runner

	left   int   // tokens still to generate
	last   int32 // newest token, not yet in the cache
	done   bool
	closed bool
	err    error

	control *control.Stream
	text    []int32 // all known tokens, the newest included
	unknown int     // tokens of the sequence before them
	sources []sourceState

	featureRows []int32 // rows of the newest committed tokens in the runner's features
	featureLen  int     // tokens of the sequence up to the last of them

	synthetic float64 // guesses still to accept to reach the synthetic mean

	// The current round.
	want      sample.Want
	short     sample.Shortlist
	nodes     nodes
	prefilled int     // prompt tokens in this pass
	path      []int32 // accepted rows
	emitted   int     // tokens drawn

	stats Stats
}

// sourceState is what a stream knows of a source.
type sourceState struct {
	ctx   draft.Context // nil if the source does not draft for the stream
	from  int           // index of the context's first token in Stream.text, if it has no gap
	since int           // length of the sequence at the context's last gap; 0 for none
	bad   int           // useless drafts in a row
	first int32         // the first guess of this round's draft, -1 for none
}

// nodes is what a stream adds to the batch: the last token and guesses, or a prompt chunk.
type nodes struct {
	tokens  []int32
	parents []int32 // nil for a chain
}

// NewStream returns a stream of the runner.
func (r *Runner) NewStream(c Config) (*Stream, error) {
	if len(c.Prompt) == 0 {
		return nil, fmt.Errorf("the prompt is empty")
	}
	limit := c.Context
	if limit <= 0 {
		limit = r.Target.Context
	}
	c.Context = limit
	if n := c.Seq.Len() + len(c.Prompt); n >= limit {
		return nil, fmt.Errorf("the prompt has %d tokens; the context holds %d", n, limit)
	}
	if err := r.Target.CheckTokens(c.Prompt, c.Images, c.Seq.Len()); err != nil {
		return nil, err
	}
	c.Images = slices.Clone(c.Images)
	if err := r.Check(c.Draft); err != nil {
		return nil, err
	}
	s := &Stream{Config: c, seq: c.Seq, runner: r, sources: make([]sourceState, len(r.Sources))}
	s.control = r.control.NewStream(control.Options{Tree: c.Tree, Fixed: c.Fixed})
	s.text = append(append(make([]int32, 0, len(c.Known)+len(c.Prompt)), c.Known...), c.Prompt...)
	s.unknown = c.Seq.Len() - len(c.Known)
	s.left = limit - c.Seq.Len() - len(c.Prompt)
	if c.Max > 0 {
		s.left = min(s.left, c.Max)
	}
	for i, src := range r.Sources {
		switch {
		case c.Draft != Auto && c.Draft != src.Name():
		case r.widths[i] == 0:
			s.sources[i] = sourceState{ctx: src.NewContext()}
		case i < len(c.Contexts) && !missing(c.Contexts[i]) && c.Contexts[i].Len() <= c.Seq.Len():
			s.sources[i] = sourceState{ctx: c.Contexts[i], from: -s.unknown}
		default:
			s.stats.Cold = true
		}
	}
	s.stats.Cached = c.Seq.Len()
	s.startAt(c.Seq.Len())
	return s, nil
}

// NewContexts returns empty contexts for an empty sequence, one for each source that captures features. Streams create
// the others.
func (r *Runner) NewContexts() []draft.Context {
	cs := make([]draft.Context, len(r.Sources))
	for i, s := range r.Sources {
		if r.widths[i] > 0 {
			cs[i] = s.NewContext()
		}
	}
	return cs
}

// CloseContexts closes what NewContexts returned.
func CloseContexts(cs []draft.Context) {
	for _, c := range cs {
		if c != nil {
			c.Close()
		}
	}
}

// missing reports whether there is no context; a nil *cache.Seq counts as none.
func missing(c draft.Context) bool {
	seq, ok := c.(*cache.Seq)
	return c == nil || ok && seq == nil
}

// detach removes a source that failed from the stream. The stream goes on; the source's context is incomplete from now
// on, so it is not used again.
func (s *Stream) detach(source int, err error) {
	name := s.runner.Sources[source].Name()
	s.sources[source].ctx = nil
	s.stats.DraftErr = fmt.Errorf("%s: %w", name, err)
	s.stats.source(name, SourceStats{Failed: 1})
}

// badDraft counts a draft without a usable token.
func (s *Stream) badDraft(source int) {
	s.stats.BadDrafts++
	s.stats.source(s.runner.Sources[source].Name(), SourceStats{Bad: 1})
}

// follows reports whether a source needs the features of this stream.
func (s *Stream) follows(source int) bool {
	return s.sources[source].ctx != nil && s.runner.widths[source] > 0
}

// newTokens is the committed tokens after those that a source knows.
func (st *sourceState) newTokens(s *Stream) []int32 {
	return s.text[st.from+st.ctx.Len() : s.seq.Len()-s.unknown]
}

// continued asks the source that continues guesses of others what follows each beginning of some guesses.
func (s *Stream) continued(guesses []int32) []draft.Proposal {
	src, st := s.runner.Sources[s.runner.tail].(draft.Continuer), &s.sources[s.runner.tail]
	if src.Extend(backend.Tensor{}, []draft.Rows{{Seq: st.ctx, Tokens: st.newTokens(s)}}) != nil {
		return nil // its next draft says why
	}
	ps := src.Continue(draft.Request{Seq: st.ctx, Target: s.seq, Last: s.last, N: maxGuesses}, guesses)
	for i := range ps {
		ps[i].Sane(s.runner.Target.Vocab)
	}
	return ps
}

// limit is the largest number of guesses that the stream can still use.
func (s *Stream) limit() int {
	n := min(s.left-1, s.Context-s.seq.Len()-2, maxGuesses)
	if s.Config.Options.Max > 0 {
		n = min(n, s.Config.Options.Max)
	}
	return n
}

// Done reports whether the stream has ended.
func (s *Stream) Done() bool { return s.done }

// Err returns why the stream ended early, if it failed.
func (s *Stream) Err() error { return s.err }

// Stop ends the stream at the next step boundary.
func (s *Stream) Stop() { s.done = true }

// Close drops what the runner holds for the stream. Call it before closing the stream's sequences, which the caller
// owns.
func (s *Stream) Close() {
	s.done, s.closed = true, true
}

// Prefilling reports whether prompt tokens are left to run.
func (s *Stream) Prefilling() bool { return len(s.Prompt) > 0 }

// Last returns the newest token, which is not in the cache yet.
func (s *Stream) Last() int32 { return s.last }

// Stats returns what the stream did so far.
func (s *Stream) Stats() Stats {
	st := s.stats
	st.PlainCost = s.runner.control.Plain()
	return st
}

// segment is the stream's part of the batch.
func (s *Stream) segment() model.Segment {
	g := model.Segment{Seq: s.seq, Tokens: s.nodes.tokens, Parents: s.nodes.parents, Images: s.Images,
		Logits: model.LogitsAll}
	if c, ok := s.Sampler.(chooser); ok {
		if g.Want = c.Wants(s.runner.Target.Vocab); g.Want > sample.WantRow && s.Observe != nil {
			g.Want = sample.WantWeighed
		}
	}
	s.want = g.Want
	if s.prefilled > 0 {
		g.Prompt = true
		g.Logits = model.LogitsNone
		if s.prefilled == len(s.Prompt) {
			g.Logits = model.LogitsLast
		}
	}
	return g
}

// wholeImages is how many of the next n tokens of a prompt can be in one pass if it may not cut images: as many, fewer,
// or more if the prompt begins with an image. room is how many rows of images the pass still takes; it becomes less. 0
// means that the image has to wait for another pass.
func (s *Stream) wholeImages(n int, room *int) int {
	for i := range s.Images {
		at, rows := s.Images[i].At-s.seq.Len(), s.Images[i].Len()
		switch {
		case at < 0:
		case at >= n:
			return n
		case rows > *room, at > 0 && at+rows > n:
			return at
		default:
			*room -= rows
			n = max(n, at+rows)
		}
	}
	return n
}

// verify draws tokens along the path that the guesses allow.
func (s *Stream) verify(out *model.Output, segment int) {
	s.path, s.emitted = s.path[:0], 0
	if s.prefilled > 0 {
		for i := range s.prefilled {
			s.path = append(s.path, int32(i))
		}
		s.Prompt = s.Prompt[s.prefilled:]
		s.stats.Prompt += s.prefilled
		if len(s.Prompt) == 0 {
			for i := range s.Images {
				s.Images[i].Rows = nil // only the places of images matter from now on
			}
			if s.left == 0 {
				s.done = true
			} else if id := s.sampled(out, segment, 0); id >= 0 {
				s.record(Token{ID: id})
			}
		}
		return
	}
	s.stats.Rounds++
	row, accepted := 0, 0
	s.synthetic += s.Synthetic - 1
	for {
		s.path = append(s.path, int32(row))
		id := s.sampled(out, segment, row)
		if id < 0 {
			return
		}
		next := s.child(row, id)
		if s.Synthetic > 0 {
			if next = s.firstChild(row); float64(accepted) >= s.synthetic-0.5 {
				next = -1
			}
			if next >= 0 {
				id = s.nodes.tokens[next]
			}
		}
		s.record(Token{ID: id, Drafted: next >= 0})
		if next < 0 || s.done || !s.ready() {
			break
		}
		row = next
		accepted++
	}
	s.synthetic -= float64(accepted)
}

// ready reports whether the next token can be drawn at once. If not, the rest of the guesses is dropped, and the engine
// lets the stream wait before its next pass.
func (s *Stream) ready() bool {
	w, ok := s.Sampler.(interface{ Ready() bool })
	return !ok || w.Ready()
}

// sampled draws a token. It returns -1 and ends the stream when there is none.
func (s *Stream) sampled(out *model.Output, segment, row int) int32 {
	id, decided := s.chosen(out, segment, row)
	if !decided {
		logits := out.Row(segment, row)
		if s.Observe != nil {
			s.Observe(logits, nil)
		}
		id = s.Sampler.Sample(logits)
	}
	if id < 0 {
		s.err = fmt.Errorf("no token can follow: the model's output is not a number, or everything is forbidden")
		s.done = true
	}
	return id
}

// chosen draws a token from what the device chose of a row. It reports false if that does not suffice.
func (s *Stream) chosen(out *model.Output, segment, row int) (id int32, decided bool) {
	if s.want == sample.WantRow {
		return -1, false
	}
	c := s.Sampler.(chooser)
	if out.Chosen() == sample.WantBest {
		id = out.Best(segment, row)
		return id, id < 0 || !c.Lowered(id)
	}
	list := out.Candidates(segment, row)
	s.short = sample.Shortlist{IDs: list.IDs(), Bits: list.Logits(), Bound: list.Bound(), Total: list.Total()}
	if id, decided = c.SampleShort(&s.short); decided && s.Observe != nil {
		s.Observe(nil, &s.short)
	}
	return id, decided
}

// record emits a token and ends the stream where it has to end.
func (s *Stream) record(t Token) {
	s.Sampler.Accept(t.ID)
	s.last = t.ID
	s.text = append(s.text, t.ID)
	s.left--
	s.emitted++
	s.stats.Tokens++
	if !s.Emit(t) || s.left == 0 {
		s.done = true
	}
}

// check panics unless the caches and the features hold what the stream thinks. It does nothing in ordinary builds.
func (s *Stream) check() {
	if !invariants.Enabled || s.done {
		return
	}
	cached := s.unknown + len(s.text) - len(s.Prompt)
	if !s.Prefilling() {
		cached-- // the newest token is not in the cache yet
	}
	invariants.Check(s.seq.Len() == cached, "the cache holds %d tokens, the text has %d", s.seq.Len(), cached)
	for i := range s.sources {
		if !s.follows(i) || s.featureLen < 0 {
			continue
		}
		n := s.featureLen - s.extendedLen(i)
		invariants.Check(n >= 0 && n <= len(s.featureRows), "source %d lacks the features of %d tokens, %d wait", i, n,
			len(s.featureRows))
	}
}

// child returns the row after row that guesses id, or -1.
func (s *Stream) child(row int, id int32) int {
	if s.nodes.parents == nil {
		if row+1 < len(s.nodes.tokens) && s.nodes.tokens[row+1] == id {
			return row + 1
		}
		return -1
	}
	for i := row + 1; i < len(s.nodes.tokens); i++ {
		if int(s.nodes.parents[i]) == row && s.nodes.tokens[i] == id {
			return i
		}
	}
	return -1
}

// firstChild returns the first guess after row, or -1.
func (s *Stream) firstChild(row int) int {
	for i := row + 1; i < len(s.nodes.tokens); i++ {
		if s.nodes.parents == nil || int(s.nodes.parents[i]) == row {
			return i
		}
	}
	return -1
}
