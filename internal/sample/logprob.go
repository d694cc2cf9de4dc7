package sample

import (
	"math"
	"slices"

	"strobe/internal/weight"
)

// LogProb is a token with the logarithm of its probability.
type LogProb struct {
	ID int32
	LP float64
}

// LogProbs returns the k most likely tokens of a row of raw logits with their log
// probabilities at temperature 1, before any penalty or truncation; k <= 0 means
// all. It changes nothing. For a single token use logits[id] - LogSumExp(logits).
func (s *Sampler) LogProbs(logits []float32, k int) []LogProb {
	if s.vocab > 0 && len(logits) > s.vocab {
		logits = logits[:s.vocab]
	}
	c := s.cand[:0]
	if k > 0 && k < len(logits) {
		c = topK(c, logits, k)
	} else {
		c = appendFinite(c, logits)
		slices.SortFunc(c, byLogit)
	}
	s.cand = c
	lse := LogSumExp(logits)
	s.lps = s.lps[:0]
	for _, x := range c {
		s.lps = append(s.lps, LogProb{x.ID, float64(x.Logit) - lse})
	}
	return s.lps
}

// LogSumExp is the logarithm of the sum of e^x over a row, -Inf for a row without a
// possible token. NaN counts as -Inf.
func LogSumExp(logits []float32) float64 {
	top := negInf
	for _, x := range logits {
		if x > top {
			top = x
		}
	}
	if top == negInf {
		return math.Inf(-1)
	}
	top = min(top, math.MaxFloat32)
	total := uint64(0)
	for _, x := range logits {
		total += weight.Units(weight.Exp(min(x, math.MaxFloat32) - top))
	}
	return float64(top) + math.Log(float64(total)/(1<<weight.UnitBits))
}
