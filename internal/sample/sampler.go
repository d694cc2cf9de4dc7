package sample

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Params are the settings of a Sampler. The zero value is greedy decoding.
type Params struct {
	Temp     float32 // <= 0: greedy
	TopK     int     // keep the k most likely; <= 0: off
	TopP     float32 // keep the most likely tokens that reach this mass; <= 0 or >= 1: off
	MinP     float32 // keep tokens at least this likely relative to the best; <= 0: off
	TypicalP float32 // locally typical sampling with this mass; <= 0 or >= 1: off

	RepeatPenalty    float32 // divides positive, multiplies negative logits of seen tokens; 0 or 1: off
	FrequencyPenalty float32 // subtracted once per occurrence; 0: off
	PresencePenalty  float32 // subtracted if the token occurred; 0: off
	RepeatLastN      int     // how many tokens these three look back; 0: 64, < 0: all

	TopNSigma float32        // keep logits within so many standard deviations of the largest; <= 0: off
	XTC       XTCParams      // exclude top choices
	DynaTemp  DynaTempParams // a temperature that follows the entropy
	Mirostat  MirostatParams // in place of the steps that leave tokens out
	// Steps are the steps to apply, in their order; nil is DefaultSteps. Those that are missing are off.
	Steps []Step

	DRY       DRYParams
	LogitBias map[int32]float32 // added to logits; -Inf bans a token; ids outside the vocabulary are ignored

	Seed uint64 // a seed like any other, also 0: pass a random one for variety
}

// DRYParams configure the "don't repeat yourself" penalty: a token that would
// extend a repetition of n >= AllowedLength tokens loses
// Multiplier * Base^(n-AllowedLength).
type DRYParams struct {
	Multiplier    float32 // 0: off
	Base          float32 // 0: 1.75
	AllowedLength int     // 0: 2
	LastN         int     // how many tokens to look back; 0: 64, < 0: all
	Breakers      []int32 // tokens no repetition extends across; see BreakerTokens
}

// Defaults of Params and DRYParams where zero does not mean off.
const (
	DefaultLastN            = 64
	DefaultDRYBase          = 1.75
	DefaultDRYAllowedLength = 2
)

// Validate reports the first setting that makes no sense, by its field name.
func (p Params) Validate() error {
	for _, f := range []struct {
		name   string
		v      float32
		lo, hi float32
	}{
		{"Temp", p.Temp, -math.MaxFloat32, math.MaxFloat32},
		{"TopP", p.TopP, 0, 1},
		{"MinP", p.MinP, 0, 1},
		{"TypicalP", p.TypicalP, 0, 1},
		{"RepeatPenalty", p.RepeatPenalty, 0, math.MaxFloat32},
		{"FrequencyPenalty", p.FrequencyPenalty, -math.MaxFloat32, math.MaxFloat32},
		{"PresencePenalty", p.PresencePenalty, -math.MaxFloat32, math.MaxFloat32},
		{"DRY.Multiplier", p.DRY.Multiplier, 0, math.MaxFloat32},
		{"DRY.Base", p.DRY.Base, 0, math.MaxFloat32},
	} {
		if !(f.v >= f.lo && f.v <= f.hi) {
			return fmt.Errorf("%s: %v is out of range", f.name, f.v)
		}
	}
	if err := p.validateRare(); err != nil {
		return err
	}
	if p.DRY.AllowedLength < 0 {
		return errors.New("DRY.AllowedLength: negative")
	}
	for id, b := range p.LogitBias {
		if b != b {
			return fmt.Errorf("LogitBias: token %d: not a number", id)
		}
	}
	return nil
}

// Constraint limits which tokens may come next, a grammar for instance.
type Constraint interface {
	Mask(logits []float32) // sets forbidden ids to -Inf
	Accept(id int32)       // the token was emitted
}

// cloner is implemented by constraints that Clone and CopyFrom can copy. Others are
// shared between the copies.
type cloner interface{ Clone() Constraint }

// Candidate is a token with its probability.
type Candidate struct {
	ID    int32
	Logit float32
	P     float32
}

// Sampler chooses tokens for one sequence. See the package comment.
type Sampler struct {
	p          Params
	vocab      int
	constraint Constraint
	rng        rand.PCG
	bias       []biasEntry
	hist       history
	dry        dryState
	rare       bool // see Params.rare
	miro       mirostat

	cand   []Candidate // working set
	edge   []Candidate // see keepMass
	bucket []uint64    // see keepMass
	w      []float32   // weights of the whole vocabulary
	copy   []float32   // Probs works on a copy
	lps    []LogProb
}

type biasEntry struct {
	id int32
	b  float32
}

// New returns a sampler for a vocabulary of the given size. Settings that
// Validate rejects do no harm but have no defined effect.
func New(p Params, vocab int) *Sampler {
	p.without()
	s := &Sampler{p: p, vocab: vocab, rng: *rand.NewPCG(p.Seed, 0x9e3779b97f4a7c15), rare: p.rare()}
	if m := &s.p.Mirostat; m.Version > 0 {
		m.Tau, m.Eta = cmp.Or(m.Tau, DefaultMirostatTau), cmp.Or(m.Eta, DefaultMirostatEta)
		s.miro = mirostat{mu: 2 * float64(m.Tau), pending: -1}
	}
	for id, b := range p.LogitBias {
		if id >= 0 && int(id) < vocab && b != 0 {
			s.bias = append(s.bias, biasEntry{id, b})
		}
	}
	slices.SortFunc(s.bias, func(a, b biasEntry) int { return cmp.Compare(a.id, b.id) })
	s.p.LogitBias = nil

	penalties := p.RepeatPenalty != 0 && p.RepeatPenalty != 1 || p.FrequencyPenalty != 0 || p.PresencePenalty != 0
	if s.p.RepeatPenalty == 0 {
		s.p.RepeatPenalty = 1
	}
	s.dry.init(p.DRY, vocab)
	s.hist.init(penalties, lastN(p.RepeatLastN), s.dry.on, lastN(p.DRY.LastN), vocab)
	return s
}

// lastN fills in the default; all of history is math.MaxInt.
func lastN(n int) int {
	switch {
	case n < 0:
		return math.MaxInt
	case n == 0:
		return DefaultLastN
	}
	return n
}

// SetConstraint replaces the constraint; nil removes it.
func (s *Sampler) SetConstraint(c Constraint) { s.constraint = c }

// Prime records tokens of the prompt for the penalties. The constraint does not
// see them.
func (s *Sampler) Prime(tokens []int32) { s.hist.addAll(tokens) }

// Accept records an emitted token.
func (s *Sampler) Accept(id int32) {
	s.hist.add(id)
	if s.p.Mirostat.Version > 0 && id == s.miro.pending {
		s.miro.mu, s.miro.pending = s.miro.next, -1
	}
	if s.constraint != nil {
		s.constraint.Accept(id)
	}
}

// Clone returns an independent copy: same history, same future random numbers. The
// constraint is copied if it has a Clone method and shared otherwise.
func (s *Sampler) Clone() *Sampler {
	c := &Sampler{}
	c.CopyFrom(s)
	return c
}

// CopyFrom makes s a copy of src, like Clone, reusing the memory of s.
func (s *Sampler) CopyFrom(src *Sampler) {
	if s == src {
		return
	}
	s.p, s.vocab, s.rng = src.p, src.vocab, src.rng
	s.rare, s.miro = src.rare, src.miro
	s.bias = append(s.bias[:0], src.bias...)
	s.constraint = src.constraint
	if c, ok := src.constraint.(cloner); ok {
		s.constraint = c.Clone()
	}
	s.hist.copyFrom(&src.hist)
	s.dry.copyFrom(&src.dry)
}

// Sample returns the next token, or -1 if none is possible. It may modify logits
// and does not record the token: that is Accept's work.
func (s *Sampler) Sample(logits []float32) int32 {
	if s.rare {
		c, total := s.chain(s.cut(logits), &s.rng)
		id := draw(c, total, s.uniform())
		s.learn(c, total, id)
		return id
	}
	logits = s.adjust(logits)
	if !(s.p.Temp > 0) {
		return Argmax(logits)
	}
	if !s.truncates(len(logits)) {
		return s.drawAll(logits, s.uniform())
	}
	c := s.truncate(logits)
	return draw(c, s.weigh(c), s.uniform())
}

// uniform takes a number from [0, 1) from the generator.
func (s *Sampler) uniform() float64 { return uniformOf(&s.rng) }

// Probs returns the distribution Sample would draw from, most likely first. It
// draws nothing and leaves logits alone. It is empty when no token is possible.
func (s *Sampler) Probs(logits []float32) []Candidate {
	s.copy = append(s.copy[:0], logits...)
	if s.rare {
		rng := s.rng // a copy
		c, total := s.chain(s.cut(s.copy), &rng)
		slices.SortFunc(c, byLogit)
		for i := range c {
			c[i].P = float32(float64(c[i].P) / total)
		}
		return c
	}
	row := s.adjust(s.copy)
	c := s.cand[:0]
	switch {
	case !(s.p.Temp > 0):
		if id := Argmax(row); id >= 0 {
			c = append(c, Candidate{ID: id, Logit: row[id]})
		}
	case s.truncates(len(row)):
		c = s.truncate(row)
	default:
		c = appendFinite(c, row)
	}
	slices.SortFunc(c, byLogit)
	total := s.weigh(c)
	for i := range c {
		c[i].P = float32(float64(c[i].P) / total)
	}
	s.cand = c
	return c
}

// cut cuts padding off a row.
func (s *Sampler) cut(logits []float32) []float32 {
	if s.vocab > 0 && len(logits) > s.vocab {
		return logits[:s.vocab]
	}
	return logits
}

// adjust applies the steps that change single logits and cuts padding off the row.
func (s *Sampler) adjust(logits []float32) []float32 {
	logits = s.cut(logits)
	if s.constraint != nil {
		s.constraint.Mask(logits)
	}
	for _, e := range s.bias {
		if int(e.id) < len(logits) {
			logits[e.id] += e.b
		}
	}
	if s.hist.penalties {
		s.penalize(logits)
	}
	if s.dry.on {
		s.dry.apply(logits, s.hist.last(s.hist.dryN))
	}
	return logits
}

func (s *Sampler) penalize(logits []float32) {
	for _, e := range s.hist.counts {
		if int(e.id) >= len(logits) {
			continue
		}
		logits[e.id] = s.penalized(logits[e.id], e.n)
	}
}

// penalized is the logit of a token that occurred n times.
func (s *Sampler) penalized(x float32, n int32) float32 {
	if x > 0 {
		x /= s.p.RepeatPenalty
	} else {
		x *= s.p.RepeatPenalty
	}
	// The conversions keep compilers from fusing, which would round differently.
	return x - float32(float32(n)*s.p.FrequencyPenalty) - s.p.PresencePenalty
}
