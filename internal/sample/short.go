package sample

import (
	"cmp"
	"math"
	"slices"

	"strobe/internal/weight"
)

// Want is how much of a row of logits a sampler needs. Larger values include the smaller ones, but for WantRow.
type Want int

// The wants.
const (
	WantRow     Want = iota // all of it
	WantBest                // the id of the largest logit
	WantShort               // a Shortlist
	WantWeighed             // a Shortlist with its Total
)

// Shortlist is the largest logits of a row, as a device chose them: all that are at least Bound.
type Shortlist struct {
	IDs   []int32 // the largest logit first, the lower id among equals
	Bits  []int32 // of their logits
	Bound float32 // more than every other logit; -Inf if there is no other
	Total uint64  // weight of the whole row, as weight.Sum computes it; 0 if it was not asked for
}

// Logit is the logit of the i-th token.
func (l *Shortlist) Logit(i int) float32 { return math.Float32frombits(uint32(l.Bits[i])) }

// ShortLen is how many tokens a Shortlist can be relied on to have. Samplers that look at more want the row.
const ShortLen = 128

// allower is a constraint that can judge a single token.
type allower interface{ Allows(id int32) bool }

// Wants is what Sample can do with of a row of so many logits, nearly always. SampleShort says when it cannot.
//
// Everything a sampler does to single logits but raising them is done to the tokens of a shortlist by SampleShort: the
// others are less likely before and stay so.
func (s *Sampler) Wants(logits int) Want {
	p := &s.p
	_, judges := s.constraint.(allower)
	raised := slices.ContainsFunc(s.bias, func(e biasEntry) bool { return !(e.b < 0) }) ||
		p.RepeatPenalty < 1 || p.FrequencyPenalty < 0 || p.PresencePenalty < 0
	adjusted := s.constraint != nil || len(s.bias) > 0 || s.hist.penalties || s.dry.on
	switch {
	case s.rare, s.vocab != 0 && s.vocab < logits, s.constraint != nil && !judges, raised:
		return WantRow
	case !(p.Temp > 0):
		if s.constraint == nil && !s.hist.penalties && !s.dry.on {
			return WantBest // unless it is Lowered
		}
		return WantShort
	case on(p.TypicalP), p.TopK > ShortLen, p.TopK >= logits:
		return WantRow
	case p.TopK > 0:
		return WantShort
	case on(p.TopP) && !adjusted:
		return WantWeighed // the weight of what is not in the list must be known
	case p.MinP > 0 && !on(p.TopP):
		return WantShort
	}
	return WantRow
}

// Lowered reports whether the logit of a token is made less: of those that are not, the largest is still the largest.
func (s *Sampler) Lowered(id int32) bool {
	_, found := s.biasOf(id)
	return found
}

// biasOf is where the bias of a token is, if it has one.
func (s *Sampler) biasOf(id int32) (at int, found bool) {
	return slices.BinarySearchFunc(s.bias, id, func(e biasEntry, id int32) int { return cmp.Compare(e.id, id) })
}

// SampleShort is Sample for the row that a shortlist was chosen from. It reports false, and has drawn nothing, when the
// list is too short to decide: Sample has to see the row then.
func (s *Sampler) SampleShort(l *Shortlist) (id int32, ok bool) {
	if len(l.IDs) == 0 {
		return -1, false
	}
	want := len(l.IDs)
	switch {
	case !(s.p.Temp > 0):
		want = 1
	case s.p.TopK > 0:
		want = s.p.TopK
	case on(s.p.TopP):
		return s.sampleMass(l)
	}
	c, sure := s.shorten(l, want)
	if !(s.p.Temp > 0) {
		if !sure {
			return -1, false
		}
		return c[0].ID, true
	}
	switch {
	case s.p.TopK > 0: // and less than the row has, or Bound is -Inf
		if !sure {
			return -1, false
		}
		c = s.narrow(c, weighTop(c), true)
	default: // min-p alone
		if len(c) == 0 || l.Bound-c[0].Logit > lnBelow(min(s.p.MinP, 1)) {
			return -1, false
		}
		weighTop(c)
		slices.SortFunc(c, byID)
		c = s.minP(c)
	}
	return draw(c, s.weigh(c), s.uniform()), true
}

// sampleMass is SampleShort for top-p without top-k, where no step before changes logits (see Wants). Tokens after the
// one that reaches the mass are not weighed: nearly always most of the list.
func (s *Sampler) sampleMass(l *Shortlist) (id int32, ok bool) {
	if l.Total == 0 {
		return -1, false
	}
	c, sum, want, reached := s.cand[:0], uint64(0), share(s.p.TopP, l.Total), false
	for i := 0; i < len(l.IDs) && !reached; i++ {
		x := l.Logit(i)
		p := weight.Exp(x - l.Logit(0))
		c = append(c, Candidate{l.IDs[i], x, p})
		sum += weight.Units(p)
		reached = sum >= want
	}
	s.cand = c
	if !reached { // a list of the whole row always reaches it
		return -1, false
	}
	slices.SortFunc(c, byID)
	c = s.minP(c)
	return draw(c, s.weigh(c), s.uniform()), true
}

// byID orders candidates as gather does, so that a draw walks over them in the same order.
func byID(a, b Candidate) int { return cmp.Compare(a.ID, b.ID) }

// shorten returns the first n tokens of a list after the steps that change single logits, most likely first, and
// whether no other token of the row comes before the last of them.
func (s *Sampler) shorten(l *Shortlist, n int) (c []Candidate, sure bool) {
	c = s.cand[:0]
	defer func() { s.cand = c[:0] }()
	judge, _ := s.constraint.(allower)
	if judge == nil && len(s.bias) == 0 && !s.hist.penalties && !s.dry.on {
		for i, id := range l.IDs[:min(n, len(l.IDs))] {
			c = append(c, Candidate{ID: id, Logit: l.Logit(i)})
		}
		return c, len(c) == n || l.Bound == negInf
	}
	if s.dry.on {
		s.dry.find(s.hist.last(s.hist.dryN))
		defer s.dry.reset()
	}
	sorted := true
	for i, id := range l.IDs {
		raw := l.Logit(i)
		x := s.adjusted(id, raw)
		if x == negInf || judge != nil && !judge.Allows(id) {
			continue
		}
		sorted = sorted && x == raw
		c = append(c, Candidate{ID: id, Logit: x})
		if sorted && len(c) == n {
			return c, true // what follows is not larger
		}
	}
	if !sorted {
		slices.SortFunc(c, byLogit)
	}
	c = c[:min(n, len(c))]
	return c, l.Bound == negInf && len(c) > 0 || len(c) == n && c[n-1].Logit >= l.Bound
}

// adjusted is a logit after steps 2 to 4.
func (s *Sampler) adjusted(id int32, x float32) float32 {
	if at, found := s.biasOf(id); found {
		x += s.bias[at].b
	}
	if s.hist.penalties {
		if k := s.hist.slot[id]; k > 0 {
			x = s.penalized(x, s.hist.counts[k-1].n)
		}
	}
	if s.dry.on {
		x -= s.dry.of(id)
	}
	return x
}

// LogProbsShort is LogProbs for the row that a shortlist with its Total was chosen from, and the log-probability of a
// token of the list. It reports false when the list lacks one of them.
func (s *Sampler) LogProbsShort(l *Shortlist, id int32, k int) (lp float64, top []LogProb, ok bool) {
	at := slices.Index(l.IDs, id)
	if at < 0 || l.Total == 0 || len(l.IDs) < k && l.Bound > negInf {
		return 0, nil, false
	}
	lse := float64(l.Logit(0)) + math.Log(float64(l.Total)/(1<<weight.UnitBits))
	s.lps = s.lps[:0]
	for i, id := range l.IDs[:min(k, len(l.IDs))] {
		s.lps = append(s.lps, LogProb{id, float64(l.Logit(i)) - lse})
	}
	return float64(l.Logit(at)) - lse, s.lps, true
}
