package engine

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"strobe/internal/cache"
	"strobe/internal/model"
	"strobe/internal/sample"
	"strobe/internal/speculate"
)

// job is a generation in a slot. It belongs to the loop's goroutine.
//
// A prompt runs in legs: where its memory has to be kept exactly (a mark), one stream ends and
// the next one begins. Only the last leg generates.
type job struct {
	g      *Generation
	model  *Model
	slot   int
	since  time.Time
	seq    *cache.Seq
	drafts contexts

	marks   []int // prompt lengths to keep, ascending, all past what is cached
	hard    bool  // marks must be met exactly, because the memory cannot be cut
	kept    int   // length of the newest entry made of this job
	served  int64 // step in which its prompt last came first
	stream  *speculate.Stream
	last    bool // the stream is the last leg
	cached  int
	stats   speculate.Stats // of earlier legs
	sampler *guarded
	text    *Text
	tokens  []int32 // generated since the last shift
	before  int     // tokens generated before that; see shift.go
	forgot  int     // tokens dropped by shifts
	out     []Token // of the current step
	reason  Reason
	logits  []float32         // copy of the newest row, when log probabilities are wanted,
	short   *sample.Shortlist // or what was chosen of it
	first   time.Duration
	told    Round    // sums of what Watch knows of the stream
	loading *restore // what the prompt waits for, nil when it can run
	paused  bool     // it gave its memory back and begins anew when there is some; see pressure.go
	again   bool     // it was paused before
	images  []model.Image
	waits   *Image                 // the image that is to be encoded before the prompt can run; nil for none
	rows    map[[32]byte][]float32 // of images that were encoded for it, until its last leg begins
}

func newJob(m *Model, g *Generation) *job {
	j := &job{g: g, model: m, since: time.Now(), sampler: m.newSampler(&g.req), text: NewText(m.Tokenizer, g.req.Stops)}
	j.text.stream.Special, j.text.stream.Opens = g.req.KeepSpecial, m.Tokenizer.Opens(g.req.Tokens)
	return j
}

// all is everything that the job's sequence is to remember: the prompt, and what was generated before a pause.
func (j *job) all() []int32 {
	if len(j.tokens) == 0 {
		return j.g.req.Tokens
	}
	return slices.Concat(j.g.req.Tokens, j.tokens)
}

// generated is the number of tokens drawn so far.
func (j *job) generated() int { return j.before + len(j.tokens) }

// running reports whether the job has memory.
func (j *job) running() bool { return j.loading == nil && j.waits == nil && !j.paused }

// prefilling reports whether prompt tokens are left.
func (j *job) prefilling() bool { return !j.last || j.stream.Prefilling() }

// next ends the current leg, if there is one, and opens the next: up to the next mark, or the last one.
func (j *job) next(r *speculate.Runner, limit int) error {
	if j.stream != nil {
		_ = r.Sync(j.stream) // an error leaves a drafter behind; it will not be asked
		j.endLeg()
	}
	req, all := &j.g.req, j.all()
	at := j.seq.Len()
	j.seq.Expect(len(req.Tokens))
	if j.model.window > 0 {
		j.seq.Limit(j.keeps(), j.model.window)
	}
	for len(j.marks) > 0 && j.marks[0] <= at {
		j.marks = j.marks[1:]
	}
	c := speculate.Config{
		Options: req.Spec, Seq: j.seq, Contexts: j.drafts.forRunner(), Known: all[:at], Prompt: all[at:], Images: j.images,
		Sampler: j.sampler, Context: limit, Max: j.model.most(req), Emit: j.emit,
	}
	if c.Max > 0 {
		c.Max -= j.generated()
	}
	j.last = true
	if req.LogProbs > 0 || req.WantLogProb {
		c.Observe = func(l []float32, short *sample.Shortlist) { j.logits, j.short = append(j.logits[:0], l...), short }
	}
	if j.hard && len(j.marks) > 0 || req.PromptOnly {
		to := len(req.Tokens)
		if j.hard && len(j.marks) > 0 {
			to = j.marks[0]
		}
		j.last = false
		c.Prompt = req.Tokens[at:to]
		c.Sampler, c.Observe, c.Emit = nothing{}, nil, func(speculate.Token) bool { return false }
		c.Context, c.Max = limit+1, 1
	}
	s, err := r.NewStream(c)
	if err != nil {
		return err
	}
	j.stream, j.told = s, Round{}
	return nil
}

// keeps is how much of the beginning stays in sight when generated tokens see a window: the first message, which is the
// system's where there is one, and some tokens in any case, which many heads rest on.
func (j *job) keeps() int {
	const sinks = 4
	for _, n := range j.g.req.Checkpoints {
		if n > 0 && n < len(j.g.req.Tokens) {
			return n
		}
	}
	return sinks
}

// nothing draws for legs that generate nothing.
type nothing struct{}

func (nothing) Sample([]float32) int32                      { return 0 }
func (nothing) Accept(int32)                                {}
func (nothing) Wants(int) sample.Want                       { return sample.WantBest }
func (nothing) Lowered(int32) bool                          { return false }
func (nothing) SampleShort(*sample.Shortlist) (int32, bool) { return 0, true }

// watch tells what a step did that began at start.
func (j *job) watch(start time.Time) {
	st := j.stream.Stats()
	now := Round{Prompt: st.Prompt, Guessed: st.Guessed, Accepted: st.Accepted, Draft: st.Draft, Verify: st.Verify}
	if j.last {
		now.Tokens = st.Tokens
	}
	was := j.told
	j.told = now
	j.g.req.Watch(Round{
		Start: start, Took: time.Since(start), Prompt: now.Prompt - was.Prompt, Tokens: now.Tokens - was.Tokens,
		Guessed: now.Guessed - was.Guessed, Accepted: now.Accepted - was.Accepted,
		Draft: now.Draft - was.Draft, Verify: now.Verify - was.Verify,
	})
}

// endLeg closes the current stream and adds up what it did.
func (j *job) endLeg() {
	if j.stream == nil {
		return
	}
	st := j.stream.Stats()
	if !j.last {
		st.Tokens = 0
	}
	st.Cached = 0
	j.stats.Add(st)
	if st.DraftErr != nil {
		j.stats.DraftErr = st.DraftErr
	}
	j.stats.Cold = j.stats.Cold || st.Cold
	j.stream.Close()
	j.stream = nil
}

// sum is what the job did so far.
func (j *job) sum() speculate.Stats {
	j.endLeg()
	st := j.stats
	st.Cached = j.cached
	return st
}

// consistent reports whether the memory holds exactly what the stream has accepted. After a
// failed step it tells the streams that can go on from those that cannot: rows that were computed and never
// committed are those of a pass that ended half-way.
func (j *job) consistent() bool {
	if j.stream == nil {
		return true
	}
	st := j.stream.Stats()
	return j.stream.Err() == nil && j.seq.Open() == 0 && j.seq.Len() == st.Cached+st.Prompt+max(0, st.Tokens-1)
}

// emit takes a token of the last leg and reports whether to go on.
func (j *job) emit(t speculate.Token) bool {
	if j.first == 0 {
		j.first = time.Since(j.g.submitted)
	}
	req := &j.g.req
	j.tokens = append(j.tokens, t.ID)
	if j.sampler.err != nil {
		return false
	}
	if !req.IgnoreEOG && j.model.Tokenizer.IsEOG(t.ID) {
		j.reason = ReasonEOG
		return false
	}
	text, done := j.text.Push(t.ID)
	tok := Token{ID: t.ID, Drafted: t.Drafted, Text: bytes.Clone(text)}
	if req.LogProbs > 0 || req.WantLogProb {
		j.logProbs(&tok, req.LogProbs)
	}
	j.out = append(j.out, tok)
	if done {
		j.reason = ReasonStop
	}
	return !done
}

// logProbs fills in the log-probabilities of a token and of the k most likely ones.
func (j *job) logProbs(t *Token, k int) {
	var top []sample.LogProb
	if j.short != nil {
		t.LogProb, top, _ = j.sampler.LogProbsShort(j.short, t.ID, k) // the token was chosen from the list
	} else {
		t.LogProb = float64(j.logits[t.ID]) - sample.LogSumExp(j.logits)
		if k > 0 {
			top = j.sampler.LogProbs(j.logits, k)
		}
	}
	if k > 0 {
		t.Top = slices.Clone(top)
	}
}

// guarded is a sampler whose constraint may be faulty: a panic in it is an error of the request.
type guarded struct {
	*sample.Sampler
	vocab   int
	whole   bool // more log-probabilities are wanted than a shortlist has
	err     error
	prepare preparer      // the constraint, if its masks may take long; nil otherwise
	working chan struct{} // closed when the work beside the loop is done; nil when there is none
}

// preparer is a constraint that may do the work of its next mask beforehand.
type preparer interface {
	// Prepare does it. With quick it stops after a few milliseconds and reports false.
	Prepare(ctx context.Context, quick bool) bool
	Err() error // why no token can follow
}

// Ready reports whether the next token can be chosen without much work.
func (s *guarded) Ready() bool {
	if s.working != nil {
		select {
		case <-s.working:
			s.working = nil
			return true
		default:
			return false
		}
	}
	return s.prepare == nil || s.err != nil || s.prepared(context.Background(), true)
}

// prepared is Prepare of the constraint, which may panic.
func (s *guarded) prepared(ctx context.Context, quick bool) (done bool) {
	defer func() {
		if p := recover(); p != nil {
			done, s.err = true, fmt.Errorf("constraint: %v", p)
		}
	}()
	return s.prepare.Prepare(ctx, quick)
}

// ready reports whether a job can take part in a step. What its constraint has to find out first, if that is much, is
// done beside the loop, and others do not wait for it.
func (j *job) ready(wake func()) bool {
	s := j.sampler
	if s.Ready() {
		return true
	}
	if s.working == nil {
		done := make(chan struct{})
		s.working = done
		go func() {
			s.prepared(j.g.ctx, false)
			close(done)
			wake()
		}()
	}
	return false
}

func (s *guarded) Wants(logits int) sample.Want {
	if s.whole {
		return sample.WantRow
	}
	return s.Sampler.Wants(logits)
}

func (s *guarded) Sample(logits []float32) (id int32) {
	defer func() {
		if p := recover(); p != nil {
			id, s.err = -1, fmt.Errorf("constraint: %v", p)
		}
	}()
	if !finite(logits[:min(len(logits), s.vocab)]) {
		s.err = ErrNotFinite
		return -1
	}
	id = s.Sampler.Sample(logits)
	if s.prepare != nil && s.prepare.Err() != nil {
		id, s.err = -1, s.prepare.Err()
	}
	return id
}

func (s *guarded) SampleShort(l *sample.Shortlist) (id int32, decided bool) {
	defer func() {
		if p := recover(); p != nil {
			id, decided, s.err = -1, true, fmt.Errorf("constraint: %v", p)
		}
	}()
	id, decided = s.Sampler.SampleShort(l) // a row with a value that is not finite has no list
	if s.prepare != nil && s.prepare.Err() != nil {
		id, decided, s.err = -1, true, s.prepare.Err()
	}
	return id, decided
}

// finite reports whether all values are numbers. Zero times anything else is not zero, and sums of eight at a time
// take a small part of the time of choosing among the values.
func finite(x []float32) bool {
	var s [8]float32
	for ; len(x) >= 8; x = x[8:] {
		for i := range s {
			s[i] += x[i] * 0
		}
	}
	for i, v := range x {
		s[i] += v * 0
	}
	return s == [8]float32{}
}

func (s *guarded) Accept(id int32) {
	defer func() {
		if p := recover(); p != nil {
			s.err = fmt.Errorf("constraint: %v", p)
		}
	}()
	s.Sampler.Accept(id)
}

// newSampler makes the sampler of a request. Penalties see the whole prompt, cached or not.
func (m *Model) newSampler(req *Request) *guarded {
	p := req.Params
	if len(m.Target.Suppress) > 0 || req.IgnoreEOG {
		bias := make(map[int32]float32, len(p.LogitBias))
		for id, v := range p.LogitBias {
			bias[id] = v
		}
		never := float32(math.Inf(-1))
		for _, id := range m.Target.Suppress {
			bias[id] = never
		}
		if req.IgnoreEOG {
			for _, id := range m.Tokenizer.EOG() {
				bias[id] = never
			}
		}
		p.LogitBias = bias
	}
	s := sample.New(p, m.Target.Vocab)
	s.Prime(slices.DeleteFunc(slices.Clone(req.Tokens), func(id int32) bool { return id < 0 })) // images repeat nothing
	if req.Constraint != nil {
		s.SetConstraint(req.Constraint)
	}
	prepare, _ := req.Constraint.(preparer)
	return &guarded{Sampler: s, vocab: m.Target.Vocab, whole: req.LogProbs > sample.ShortLen, prepare: prepare}
}
