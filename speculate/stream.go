package speculate

import (
	"fmt"

	"strobe/cache"
	"strobe/draft"
	"strobe/draft/ngram"
	"strobe/model"
)

// Source chooses who guesses.
type Source int

// The sources. Auto uses whatever is there.
const (
	Auto Source = iota
	Off
	DFlash
	NGram
)

// ParseSource reads a flag value.
func ParseSource(s string) (Source, error) {
	for i, name := range []string{"auto", "off", "dflash", "ngram"} {
		if s == name {
			return Source(i), nil
		}
	}
	return 0, fmt.Errorf("draft source %q: want auto, off, dflash or ngram", s)
}

// TreeOff and TreeAuto are special values of Options.Tree.
const (
	TreeAuto = 0
	TreeOff  = -1
)

// Options says how a stream speculates. The zero value lets the controller decide everything.
type Options struct {
	Draft Source
	Max   int // longest chain or deepest tree; 0 means what the drafter can do
	Tree  int // nodes of a tree: TreeAuto, TreeOff, or a fixed number
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

// Token is a generated token.
type Token struct {
	ID      int32
	Drafted bool // it was guessed and accepted
}

// Config starts a stream.
type Config struct {
	Options
	Seq      *cache.Seq // the target's memory; may already hold a prefix
	DraftSeq *cache.Seq // the drafter's memory of the same prefix; nil for none
	Known    []int32    // tokens already in Seq
	Prompt   []int32    // tokens to run before generating; at least one
	Sampler  Sampler
	Context  int // most tokens in Seq; 0 means the trained context
	Max      int // most tokens to generate; 0 means as many as the context holds
	// Observe, when set, sees the target's logits of each token before they are sampled.
	Observe func(logits []float32)
	// Emit receives each token as soon as it is certain. It returns false to stop; that token is
	// the last one.
	Emit func(Token) bool
}

// Stream is one generation in progress. It owns neither sequence.
type Stream struct {
	Config
	seq      *cache.Seq
	draftSeq *cache.Seq
	runner   *Runner

	left   int   // tokens still to generate
	last   int32 // newest token, not yet in the cache
	done   bool
	closed bool
	err    error

	history ngram.Index
	accept  acceptance
	ledger  ledger
	trial   causalTrial
	waiting []int32 // feature rows of committed tokens that the drafter has not seen
	cold    bool    // the drafter lacks context or failed
	bad     int     // useless drafts in a row

	synthetic float64 // guesses still owed to reach the synthetic mean

	// The current round.
	nodes     nodes
	proposal  draft.Proposal
	prefilled int     // prompt tokens in this pass
	path      []int32 // accepted rows
	round     []int32 // tokens drawn
	emitted   int
	match     int     // ngram: tokens that matched
	otherRule bool    // the draft used the other rule of attention
	size      int     // of the block that was drafted: 0 whole, 1 half, 2 a third, 3 a quarter
	promise   float64 // how many times as fast as plain decoding drafting should be
	risk      float64 // plain tokens that the round should lose, when it is a trial

	pace  pace
	stats Stats
}

// pace is how fast a stream has been lately: tokens and time, in plain passes, of a round.
type pace struct{ tokens, time float64 }

func (p *pace) learn(tokens, time float64) {
	if time > 0 {
		p.tokens += 0.05 * (tokens - p.tokens)
		p.time += 0.05 * (time - p.time)
	}
}

// rate is tokens per plain pass, 0 if unknown.
func (p *pace) rate() float64 {
	if p.time == 0 {
		return 0
	}
	return p.tokens / p.time
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
	for _, id := range c.Prompt {
		if id < 0 || int(id) >= r.Target.Vocab {
			return nil, fmt.Errorf("token id %d is outside the vocabulary of %d", id, r.Target.Vocab)
		}
	}
	s := &Stream{Config: c, seq: c.Seq, draftSeq: c.DraftSeq, runner: r, accept: r.prior}
	s.left = limit - c.Seq.Len() - len(c.Prompt)
	if c.Max > 0 {
		s.left = min(s.left, c.Max)
	}
	s.cold = r.Drafter == nil || c.DraftSeq == nil || c.DraftSeq.Len() != c.Seq.Len()
	s.stats.Cold = r.Drafter != nil && s.cold && c.Draft != Off && c.Draft != NGram
	s.stats.Cached = c.Seq.Len()
	s.ledger.reset(r.bank)
	if s.guessesNGram() {
		s.history.Append(c.Known...)
		s.history.Append(c.Prompt...)
	}
	return s, nil
}

func (s *Stream) guessesNGram() bool { return s.Draft == Auto || s.Draft == NGram }

// follows reports whether the drafter keeps up with this stream.
func (s *Stream) follows() bool {
	return !s.cold && s.Draft != Off && s.Draft != NGram
}

// draftFailed counts a failure of the drafter. It never fails the stream; the drafter's context
// is behind now, so it is not used again.
func (s *Stream) draftFailed(err error) {
	s.cold = true
	s.stats.DraftErr = err
}

// Done reports whether the stream has ended.
func (s *Stream) Done() bool { return s.done }

// Err returns why the stream ended early, if it failed.
func (s *Stream) Err() error { return s.err }

// Stop ends the stream at the next step boundary.
func (s *Stream) Stop() { s.done = true }

// Close forgets what the runner holds for the stream. The sequences stay with their owner.
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
	st.PlainCost = s.runner.costs.plain()
	return st
}

// segment is the stream's part of the batch.
func (s *Stream) segment() model.Segment {
	g := model.Segment{Seq: s.seq, Tokens: s.nodes.tokens, Parents: s.nodes.parents, Logits: model.LogitsAll}
	if s.prefilled > 0 {
		g.Prompt = true
		g.Logits = model.LogitsNone
		if s.prefilled == len(s.Prompt) {
			g.Logits = model.LogitsLast
		}
	}
	return g
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
			if s.left == 0 {
				s.done = true
			} else if id := s.sampled(out.Row(segment, 0)); id >= 0 {
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
		id := s.sampled(out.Row(segment, row))
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
		if next < 0 || s.done {
			break
		}
		row = next
		accepted++
	}
	s.synthetic -= float64(accepted)
}

// sampled draws a token. It returns -1 and ends the stream when there is none.
func (s *Stream) sampled(logits []float32) int32 {
	if s.Observe != nil {
		s.Observe(logits)
	}
	id := s.Sampler.Sample(logits)
	if id < 0 {
		s.err = fmt.Errorf("no token can follow: the model's output is not a number, or everything is forbidden")
		s.done = true
	}
	return id
}

// record emits a token and ends the stream where it has to end.
func (s *Stream) record(t Token) {
	s.Sampler.Accept(t.ID)
	s.last = t.ID
	if s.guessesNGram() {
		s.history.Append(t.ID)
	}
	s.left--
	s.emitted++
	s.round = append(s.round, t.ID)
	s.stats.Tokens++
	if !s.Emit(t) || s.left == 0 {
		s.done = true
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
