package sample

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"strobe/internal/weight"
)

// Step is one of the steps between the bias and the draw.
type Step uint8

// The steps, in the order they have unless Params.Steps says otherwise.
const (
	StepPenalties Step = iota
	StepDRY
	StepTopNSigma
	StepTopK
	StepTypical
	StepTopP
	StepMinP
	StepXTC
	StepTemperature
)

// DefaultSteps are all steps in their usual order.
var DefaultSteps = []Step{StepPenalties, StepDRY, StepTopNSigma, StepTopK, StepTypical, StepTopP, StepMinP, StepXTC,
	StepTemperature}

// XTCParams exclude top choices: with a probability, all tokens that reach a threshold but the least likely of them are
// left out.
type XTCParams struct {
	Probability float32 // of doing it at a token; 0: off
	Threshold   float32 // of a token's probability; > 0.5: off
}

// DynaTempParams make the temperature follow how sure the model is: Temp - Range where it is, Temp + Range where all
// tokens are alike.
type DynaTempParams struct {
	Range    float32 // 0: off
	Exponent float32 // of the entropy's share of the largest; 0: 1
}

// MirostatParams keep the surprise of tokens near a target. They take the place of the steps from top-n-sigma to XTC.
type MirostatParams struct {
	Version int     // 1 or 2; 0: off
	Tau     float32 // surprise in bits; 0: 5
	Eta     float32 // how fast it is learned; 0: 0.1
}

// Defaults of MirostatParams.
const (
	DefaultMirostatTau = 5
	DefaultMirostatEta = 0.1
)

// validate reports the first setting of the rare steps that makes no sense.
func (p *Params) validateRare() error {
	for _, f := range []struct {
		name  string
		v, hi float32
	}{
		{"XTC.Probability", p.XTC.Probability, 1}, {"XTC.Threshold", p.XTC.Threshold, 1},
		{"DynaTemp.Range", p.DynaTemp.Range, math.MaxFloat32}, {"DynaTemp.Exponent", p.DynaTemp.Exponent, math.MaxFloat32},
		{"TopNSigma", p.TopNSigma, math.MaxFloat32},
		{"Mirostat.Tau", p.Mirostat.Tau, math.MaxFloat32}, {"Mirostat.Eta", p.Mirostat.Eta, math.MaxFloat32},
	} {
		if !(f.v >= 0 && f.v <= f.hi) {
			return fmt.Errorf("%s: %v is out of range", f.name, f.v)
		}
	}
	if v := p.Mirostat.Version; v < 0 || v > 2 {
		return fmt.Errorf("Mirostat.Version: %d is none of 0, 1 and 2", v)
	}
	for i, s := range p.Steps {
		if s > StepTemperature {
			return fmt.Errorf("Steps: there is no step %d", s)
		}
		if slices.Contains(p.Steps[:i], s) {
			return fmt.Errorf("Steps: step %d is there twice", s)
		}
	}
	return nil
}

// without turns the steps off that Steps leaves out.
func (p *Params) without() {
	if p.Steps == nil {
		return
	}
	for _, s := range DefaultSteps {
		if slices.Contains(p.Steps, s) {
			continue
		}
		switch s {
		case StepPenalties:
			p.RepeatPenalty, p.FrequencyPenalty, p.PresencePenalty = 1, 0, 0
		case StepDRY:
			p.DRY.Multiplier = 0
		case StepTopNSigma:
			p.TopNSigma = 0
		case StepTopK:
			p.TopK = 0
		case StepTypical:
			p.TypicalP = 0
		case StepTopP:
			p.TopP = 0
		case StepMinP:
			p.MinP = 0
		case StepXTC:
			p.XTC.Probability = 0
		case StepTemperature:
			p.Temp, p.DynaTemp.Range = 1, 0
		}
	}
}

// rare reports whether a draw needs the chain of steps one by one: for a step that few use, or another order.
func (p *Params) rare() bool {
	return p.Temp > 0 && (p.xtc() || p.DynaTemp.Range > 0 || p.TopNSigma > 0 || p.Mirostat.Version > 0 ||
		!slices.IsSorted(p.Steps))
}

func (p *Params) xtc() bool { return p.XTC.Probability > 0 && p.XTC.Threshold <= 0.5 }

// mirostat is what Mirostat has learned.
type mirostat struct {
	mu      float64 // most surprise of a token that is kept
	pending int32   // the token drawn last
	next    float64 // mu once it is emitted
}

// chain is the candidates that the steps leave, and their weights, which have the sum total. The random number of XTC
// comes from rng.
func (s *Sampler) chain(logits []float32, rng *rand.PCG) (c []Candidate, total float64) {
	u := 1.0
	if s.p.xtc() {
		u = uniformOf(rng)
	}
	if s.constraint != nil {
		s.constraint.Mask(logits)
	}
	for _, e := range s.bias {
		if int(e.id) < len(logits) {
			logits[e.id] += e.b
		}
	}
	rowMax(logits) // makes them numbers
	c = appendFinite(s.cand[:0], logits)
	s.cand = c
	steps := s.p.Steps
	if steps == nil {
		steps = DefaultSteps
	}
	for _, step := range steps {
		if s.p.Mirostat.Version > 0 && step >= StepTopNSigma && step != StepTemperature {
			continue
		}
		if len(c) > 0 {
			c = s.step(step, c, u)
		}
	}
	if len(c) > 0 && s.p.Mirostat.Version > 0 {
		c = s.surprising(c)
	}
	top := best(c)
	for i := range c {
		c[i].P = weight.Exp(c[i].Logit - top)
		total += float64(c[i].P)
	}
	return c, total
}

// step applies one step to candidates, of which there is at least one, and leaves at least one.
func (s *Sampler) step(step Step, c []Candidate, u float64) []Candidate {
	p := &s.p
	switch step {
	case StepPenalties:
		if s.hist.penalties {
			for i := range c {
				if int(c[i].ID) >= len(s.hist.slot) {
					break
				}
				if k := s.hist.slot[c[i].ID]; k > 0 {
					c[i].Logit = s.penalized(c[i].Logit, s.hist.counts[k-1].n)
				}
			}
		}
	case StepDRY:
		if s.dry.on {
			s.dry.find(s.hist.last(s.hist.dryN))
			for i := range c {
				c[i].Logit -= s.dry.of(c[i].ID)
			}
			s.dry.reset()
		}
	case StepTopNSigma:
		if p.TopNSigma > 0 {
			c = topNSigma(c, p.TopNSigma)
		}
	case StepTopK:
		if p.TopK > 0 && p.TopK < len(c) {
			c = keepTop(c, p.TopK)
		}
	case StepTypical:
		if on(p.TypicalP) {
			c = s.narrowAlone(c, Params{TypicalP: p.TypicalP})
		}
	case StepTopP:
		if on(p.TopP) {
			c = s.narrowAlone(c, Params{TopP: p.TopP})
		}
	case StepMinP:
		if p.MinP > 0 {
			c = s.narrowAlone(c, Params{MinP: p.MinP})
		}
	case StepXTC:
		if p.xtc() {
			c = excludeTop(c, p.XTC, u)
		}
	case StepTemperature:
		c = temper(c, p.Temp, p.DynaTemp)
	}
	return c
}

// narrowAlone is one of the usual steps on candidates as they are.
func (s *Sampler) narrowAlone(c []Candidate, only Params) []Candidate {
	all := s.p
	s.p = only
	c = s.narrow(c, weighAll(c), false)
	s.p = all
	return c
}

// weighAll sets the weights of candidates in any order and returns their sum.
func weighAll(c []Candidate) (total uint64) {
	top := best(c)
	for i := range c {
		c[i].P = weight.Exp(c[i].Logit - top)
		total += weight.Units(c[i].P)
	}
	return total
}

// keepTop keeps the k most likely candidates, the most likely one first.
func keepTop(c []Candidate, k int) []Candidate {
	worse := func(a, b Candidate) bool { return byLogit(a, b) > 0 }
	top := c[:k]
	for j := k/2 - 1; j >= 0; j-- {
		siftDown(top, j, worse)
	}
	for _, x := range c[k:] {
		if byLogit(x, top[0]) < 0 {
			top[0] = x
			siftDown(top, 0, worse)
		}
	}
	slices.SortFunc(top, byLogit)
	return top
}

// topNSigma keeps the tokens whose logits are within n standard deviations of the largest.
func topNSigma(c []Candidate, n float32) []Candidate {
	mean, sum := 0.0, 0.0
	for _, x := range c {
		mean += float64(x.Logit)
	}
	mean /= float64(len(c))
	for _, x := range c {
		d := float64(x.Logit) - mean
		sum += float64(d * d) // the conversion keeps compilers from fusing
	}
	least := best(c) - float32(float64(n)*math.Sqrt(sum/float64(len(c))))
	return slices.DeleteFunc(c, func(x Candidate) bool { return x.Logit < least })
}

// excludeTop is XTC with a random number.
func excludeTop(c []Candidate, p XTCParams, u float64) []Candidate {
	if u >= float64(p.Probability) || len(c) < 2 {
		return c
	}
	least := float64(float64(p.Threshold) * (float64(weighAll(c)) / (1 << weight.UnitBits)))
	reaches := func(x Candidate) bool { return float64(x.P) >= least }
	last := -1 // the least likely one that reaches the threshold
	for i, x := range c {
		if reaches(x) && (last < 0 || byLogit(x, c[last]) > 0) {
			last = i
		}
	}
	if last < 0 {
		return c
	}
	stays := c[last].ID
	return slices.DeleteFunc(c, func(x Candidate) bool { return reaches(x) && x.ID != stays })
}

// temper divides logits by the temperature, which may follow the entropy.
func temper(c []Candidate, temp float32, p DynaTempParams) []Candidate {
	if p.Range > 0 && len(c) > 1 {
		least, most := max(temp-p.Range, 0), temp+p.Range
		// The surprise of a token is ln(sum of weights) + top - logit.
		top, sum, mean := best(c), 0.0, 0.0
		for _, x := range c {
			w := float64(weight.Exp(x.Logit - top))
			sum += w
			mean += float64(w * float64(top-x.Logit))
		}
		entropy := ln(sum) + mean/sum
		part := min(max(entropy/ln(float64(len(c))), 0), 1)
		if e := p.Exponent; e != 0 && e != 1 && part > 0 {
			part = float64(weight.Exp(float32(float64(e) * ln(part))))
		}
		temp = least + float32(float64(most-least)*part)
	}
	if !(temp > 0) { // nothing but the best is left
		c[0] = slices.MinFunc(c, byLogit)
		return c[:1]
	}
	for i := range c {
		c[i].Logit /= temp
	}
	return clampInf(c)
}

// mirostatTop is over how many tokens the first version measures how fast probabilities fall.
const mirostatTop = 100

// surprising keeps the tokens that are no more surprising than Mirostat has learned to allow.
func (s *Sampler) surprising(c []Candidate) []Candidate {
	if s.p.Mirostat.Version == 2 {
		top := slices.MinFunc(c, byLogit)
		total := ln(float64(weighAll(c)) / (1 << weight.UnitBits))
		// The surprise in bits: ln of a weight is the difference of logits.
		return slices.DeleteFunc(c, func(x Candidate) bool {
			return x.ID != top.ID && (total+float64(top.Logit-x.Logit))/math.Ln2 > s.miro.mu
		})
	}
	// Probabilities are taken to fall like 1/rank^slope.
	up, down := 0.0, 0.0
	s.edge = append(s.edge[:0], c...)
	first := keepTop(s.edge, min(mirostatTop, len(c)))
	for i := 0; i+1 < len(first); i++ {
		t := ln(float64(i+2) / float64(i+1))
		up += float64(t * float64(first[i].Logit-first[i+1].Logit))
		down += float64(t * t)
	}
	if down == 0 || up <= 0 {
		return c
	}
	slope := up / down
	over := slope - 1
	if !(math.Abs(over) > 1e-6) {
		over = 1e-6
	}
	// k = (over * 2^mu / (1 - n^-over))^(1/slope), in logarithms. Both factors have the sign of over.
	share := 1 - exp(-float64(over*ln(float64(max(s.vocab, len(c))))))
	lnK := (ln(over/share) + float64(s.miro.mu*math.Ln2)) / slope
	if !(lnK < ln(float64(len(c)))) { // also when it is no number
		return c
	}
	return keepTop(c, min(max(int(exp(lnK)), 1), len(c)))
}

// learn notes what Mirostat learns from a token if it is emitted.
func (s *Sampler) learn(c []Candidate, total float64, id int32) {
	for i := range c {
		if c[i].ID == id {
			surprise := ln(total/float64(c[i].P)) / math.Ln2
			tau, eta := float64(s.p.Mirostat.Tau), float64(s.p.Mirostat.Eta)
			s.miro.pending, s.miro.next = id, s.miro.mu-float64(eta*(surprise-tau))
			return
		}
	}
}

// uniformOf takes a number from [0, 1) from a generator.
func uniformOf(rng *rand.PCG) float64 { return float64(rng.Uint64()>>11) * (1.0 / (1 << 53)) }

// ln is the natural logarithm of a positive number, the same on every platform, which math.Log is not.
func ln(x float64) float64 {
	m, e := math.Frexp(x) // 0.5 <= m < 1
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	// ln m = 2 artanh((m-1)/(m+1)), whose series falls by 34 with each term.
	t := (m - 1) / (m + 1)
	square, sum := float64(t*t), 0.0
	for k := 21; k >= 1; k -= 2 {
		sum = 1/float64(k) + float64(sum*square)
	}
	return float64(2*t*sum) + float64(float64(e)*math.Ln2)
}

// exp is e^x, as exact as weight.Exp, and the same on every platform.
func exp(x float64) float64 {
	if x > 0 {
		return 1 / float64(max(weight.Exp(float32(-x)), math.SmallestNonzeroFloat32))
	}
	return float64(weight.Exp(float32(x)))
}
