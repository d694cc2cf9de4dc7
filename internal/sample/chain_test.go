package sample

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// logitsOf turns probabilities into logits.
func logitsOf(p ...float64) []float32 {
	out := make([]float32, len(p))
	for i, x := range p {
		out[i] = float32(math.Log(x))
	}
	return out
}

// slowChain is the chain written from the descriptions of its steps, with everything sorted and in float64. u is XTC's
// random number and mu what Mirostat has learned.
func slowChain(p Params, logits []float32, counts map[int32]int, u, mu float64) map[int32]float64 {
	type token struct {
		id int32
		x  float64
	}
	var c []token
	for i, x := range logits {
		if !math.IsInf(float64(x), -1) && x == x {
			c = append(c, token{int32(i), float64(x)})
		}
	}
	probs := func() []float64 {
		slices.SortStableFunc(c, func(a, b token) int {
			switch {
			case a.x > b.x:
				return -1
			case a.x < b.x:
				return 1
			}
			return int(a.id - b.id)
		})
		out, sum := make([]float64, len(c)), 0.0
		for i := range c {
			out[i] = math.Exp(c[i].x - c[0].x)
			sum += out[i]
		}
		for i := range out {
			out[i] /= sum
		}
		return out
	}
	steps := p.Steps
	if steps == nil {
		steps = DefaultSteps
	}
	for _, s := range steps {
		if p.Mirostat.Version > 0 && s != StepPenalties && s != StepDRY && s != StepTemperature {
			continue
		}
		q := probs()
		switch s {
		case StepPenalties:
			for i := range c {
				if n := counts[c[i].id]; n > 0 && p.RepeatPenalty > 0 {
					if c[i].x > 0 {
						c[i].x /= float64(p.RepeatPenalty)
					} else {
						c[i].x *= float64(p.RepeatPenalty)
					}
				}
			}
		case StepTopNSigma:
			if p.TopNSigma > 0 {
				mean, sum := 0.0, 0.0
				for _, t := range c {
					mean += t.x / float64(len(c))
				}
				for _, t := range c {
					sum += (t.x - mean) * (t.x - mean) / float64(len(c))
				}
				top := c[0].x
				c = slices.DeleteFunc(c, func(t token) bool { return t.x < top-float64(p.TopNSigma)*math.Sqrt(sum) })
			}
		case StepTopK:
			if p.TopK > 0 {
				c = c[:min(p.TopK, len(c))]
			}
		case StepTopP:
			if p.TopP > 0 && p.TopP < 1 {
				sum := 0.0
				for i := range q {
					if sum += q[i]; sum >= float64(p.TopP) {
						c = c[:i+1]
						break
					}
				}
			}
		case StepMinP:
			n := 0
			for n < len(c) && q[n] >= float64(p.MinP)*q[0] {
				n++
			}
			c = c[:n]
		case StepXTC:
			n := 0
			for n < len(c) && q[n] >= float64(p.XTC.Threshold) {
				n++
			}
			if u < float64(p.XTC.Probability) && p.XTC.Threshold <= 0.5 && n > 1 {
				c = c[n-1:]
			}
		case StepTemperature:
			temp := float64(p.Temp)
			if r := float64(p.DynaTemp.Range); r > 0 && len(c) > 1 {
				h, e := 0.0, float64(p.DynaTemp.Exponent)
				for _, x := range q {
					if x > 0 {
						h -= x * math.Log(x)
					}
				}
				if e == 0 {
					e = 1
				}
				low, high := max(temp-r, 0), temp+r
				temp = low + (high-low)*math.Pow(h/math.Log(float64(len(c))), e)
			}
			for i := range c {
				c[i].x /= temp
			}
		}
	}
	q := probs()
	switch p.Mirostat.Version {
	case 1:
		up, down := 0.0, 0.0
		for i := 0; i < min(99, len(c)-1); i++ {
			t := math.Log(float64(i+2) / float64(i+1))
			up += t * math.Log(q[i]/q[i+1])
			down += t * t
		}
		slope := up / down
		over := slope - 1
		k := math.Pow(over*math.Pow(2, mu)/(1-math.Pow(float64(len(logits)), -over)), 1/slope)
		c = c[:min(max(int(k), 1), len(c))]
	case 2:
		n := 1
		for n < len(c) && -math.Log2(q[n]) <= mu {
			n++
		}
		c = c[:n]
	}
	out := map[int32]float64{}
	for i, x := range probs() {
		out[c[i].id] = x
	}
	return out
}

var rareParams = []Params{
	{Temp: 1, TopNSigma: 1}, {Temp: 0.5, TopNSigma: 2.5, TopK: 20},
	{Temp: 1, XTC: XTCParams{Probability: 1, Threshold: 0.05}}, {Temp: 1, XTC: XTCParams{Probability: 0.5,
		Threshold: 0.1}},
	{Temp: 0.8, MinP: 0.02, XTC: XTCParams{Probability: 0.5, Threshold: 0.02}},
	{Temp: 0.8, TopP: 0.9, DynaTemp: DynaTempParams{Range: 0.5}},
	{Temp: 1, DynaTemp: DynaTempParams{Range: 0.9, Exponent: 2.5}},
	{Temp: 0.3, TopK: 10, DynaTemp: DynaTempParams{Range: 0.4, Exponent: 0.5}},
	{Temp: 1, Mirostat: MirostatParams{Version: 1}}, {Temp: 0.7, Mirostat: MirostatParams{Version: 1, Tau: 3, Eta: 0.3}},
	{Temp: 1, Mirostat: MirostatParams{Version: 2}},
	{Temp: 1.5, Mirostat: MirostatParams{Version: 2, Tau: 2, Eta: 0.5}, TopK: 1},
	{Temp: 2, TopK: 30, MinP: 0.2, Steps: []Step{StepTemperature, StepMinP, StepTopK}},
	{Temp: 0.5, TopP: 0.7, TopK: 10, Steps: []Step{StepTopP, StepTemperature, StepTopK}},
	{Temp: 0.7, TopK: 8, RepeatPenalty: 1.5, RepeatLastN: -1, Steps: []Step{StepTopK, StepPenalties, StepTemperature}},
	{Temp: 5, TopK: 8, TopP: 0.8, Steps: []Step{StepTopP, StepTopK}}, // without a temperature
}

// TestChainAgainstSlow: rare steps and orders leave the tokens that their descriptions leave, as likely as they say,
// while Mirostat learns.
func TestChainAgainstSlow(t *testing.T) {
	for n, p := range rareParams {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			p.Seed = uint64(n)
			const vocab = 400
			s := New(p, vocab)
			if !s.rare {
				t.Fatal("the chain is not used")
			}
			if s.Wants(vocab) != WantRow {
				t.Error("it does not want whole rows")
			}
			counts := map[int32]int{}
			mu := 2 * float64(s.p.Mirostat.Tau)
			for step := range 60 {
				row := randomRow(rng, vocab, []float64{0.5, 2, 5}[step%3])
				row[step] = float32(math.Inf(-1))
				u := 1.0
				if s.p.xtc() {
					peek := s.rng
					u = uniformOf(&peek)
				}
				want := slowChain(s.p, row, counts, u, mu)
				got := s.Probs(row)
				if len(got) != len(want) {
					t.Fatalf("token %d: %d candidates, want %d", step, len(got), len(want))
				}
				for _, c := range got {
					if w := want[c.ID]; math.Abs(w-float64(c.P)) > 1e-5+1e-4*w {
						t.Fatalf("token %d: the probability of %d is %v, want %v", step, c.ID, c.P, w)
					}
				}
				id := s.Sample(slices.Clone(row))
				if want[id] == 0 {
					t.Fatalf("token %d: %d was drawn and cannot be", step, id)
				}
				s.Accept(id)
				counts[id]++
				if p.Mirostat.Version > 0 {
					mu -= float64(s.p.Mirostat.Eta) * (-math.Log2(want[id]) - float64(s.p.Mirostat.Tau))
					if math.Abs(mu-s.miro.mu) > 1e-3 {
						t.Fatalf("token %d: learned %v, want %v", step, s.miro.mu, mu)
					}
					mu = s.miro.mu // no errors add up
				}
			}
		})
	}
}

// TestSteps: steps that are left out are off, and the usual order takes the usual way, to the same tokens.
func TestSteps(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	row := randomRow(rng, 300, 2)
	all := Params{Temp: 0.8, TopK: 50, TopP: 0.9, MinP: 0.05, Seed: 9}
	for name, c := range map[string]struct {
		steps []Step
		like  Params
		rare  bool
	}{
		"all":            {DefaultSteps, all, false},
		"a part":         {[]Step{StepTopK, StepTemperature}, Params{Temp: 0.8, TopK: 50, Seed: 9}, false},
		"no temperature": {[]Step{StepTopK}, Params{Temp: 1, TopK: 50, Seed: 9}, false},
		"none":           {[]Step{}, Params{Temp: 1, Seed: 9}, false},
		"another order":  {[]Step{StepTemperature, StepTopK}, Params{}, true},
	} {
		p := all
		p.Steps = c.steps
		s := New(p, len(row))
		if s.rare != c.rare {
			t.Errorf("%s: rare %v", name, s.rare)
		}
		if c.rare {
			continue
		}
		like := New(c.like, len(row))
		for range 50 {
			if a, b := s.Sample(slices.Clone(row)), like.Sample(slices.Clone(row)); a != b {
				t.Errorf("%s: %d, want %d", name, a, b)
				break
			}
		}
	}
	greedy := New(Params{XTC: XTCParams{Probability: 1, Threshold: 0.01}, Mirostat: MirostatParams{Version: 2}}, len(row))
	if id := greedy.Sample(slices.Clone(row)); id != Argmax(row) || greedy.Wants(len(row)) != WantBest {
		t.Errorf("without a temperature %d is chosen, want %d", id, Argmax(row))
	}
}

// TestXTCDraws: two numbers are taken for every token, whatever its candidates.
func TestXTCDraws(t *testing.T) {
	s := New(Params{Temp: 1, XTC: XTCParams{Probability: 0.5, Threshold: 0.2}, Seed: 42}, 4)
	want := rand.NewPCG(42, 0x9e3779b97f4a7c15)
	for _, row := range [][]float32{logitsOf(0.5, 0.3, 0.1, 0.1), {nan, negInf, negInf, negInf}, {1, negInf, negInf,
		negInf}} {
		s.Probs(row)
		s.Sample(row)
		want.Uint64()
		want.Uint64()
	}
	if s.rng != *want {
		t.Error("the generator is not where two draws per call leave it")
	}
}

// TestMirostatCopies: what was learned goes into copies, and a token that was drawn and not emitted teaches nothing.
func TestMirostatCopies(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	s := New(Params{Temp: 1, Mirostat: MirostatParams{Version: 2, Tau: 3, Eta: 1}, Seed: 1}, 200)
	for range 20 {
		s.Accept(s.Sample(randomRow(rng, 200, 3)))
	}
	c := s.Clone()
	row := randomRow(rng, 200, 3)
	before := s.miro.mu
	id := s.Sample(slices.Clone(row))
	s.Accept((id + 1) % 200)
	if s.miro.mu != before {
		t.Error("a token that was not emitted was learned from")
	}
	if got := c.Sample(slices.Clone(row)); got != id || c.miro.mu != before {
		t.Errorf("the copy draws %d, want %d", got, id)
	}
	c.Accept(id)
	if c.miro.mu == before {
		t.Error("the copy learned nothing")
	}
}

// TestChainStrange: rows without tokens, with infinities and with equals are no trouble for any of the steps.
func TestChainStrange(t *testing.T) {
	for _, p := range rareParams {
		s := New(p, 5)
		for _, row := range [][]float32{{nan, nan, nan, nan, nan}, {inf, 0, negInf, inf, 1}, {0, 0, 0, 0, 0}, {3, negInf,
			negInf, negInf, negInf},
			{-3e38, 3e38, 0, nan, 1}} {
			id := s.Sample(slices.Clone(row))
			if possible := slices.ContainsFunc(row, func(x float32) bool { return x > negInf }); possible != (id >= 0) {
				t.Errorf("%+v: %v becomes %d", p, row, id)
			}
			if id >= 0 {
				s.Accept(id)
			}
		}
	}
}

func TestLn(t *testing.T) {
	for _, x := range []float64{1e-300, 1e-9, 0.3, 0.5, 0.70710678, 0.9999, 1, 1.5, 2, 248320, 1e300} {
		if got, want := ln(x), math.Log(x); math.Abs(got-want) > 1e-14*max(1, math.Abs(want)) {
			t.Errorf("ln(%v) = %v, want %v", x, got, want)
		}
	}
}
