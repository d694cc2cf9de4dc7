package bench

import (
	"fmt"
	"math"
)

// Comparison is how many times as fast one way to generate is as another, and whether that is more than noise.
//
// The runs are compared in pairs: both ways on the same prompt in the same repeat, a moment apart. Every prompt
// gives one value, the mean over the repeats of the logarithm of the ratio of times per token; where there is a single
// prompt, every repeat gives one. Low and High bound the mean of these values with 95 % confidence (Student's t), and
// a difference is real if 1 is outside.
type Comparison struct {
	Ratio   float64 `json:"ratio"`
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
	Pairs   int     `json:"pairs"`
	Verdict string  `json:"verdict"`
}

// Verdicts of a comparison.
const (
	Real  = "real"
	Noise = "noise"
	// TooFew pairs: fewer than three say nothing about their own spread.
	TooFew = "too few"
)

// compare says how many times as fast a is as b. Both are runs by case and repeat.
func compare(a, b [][]result) Comparison {
	var values []float64
	for c := range a {
		var logs []float64
		for rep := range min(len(a[c]), len(b[c])) {
			x, y := a[c][rep].perToken(), b[c][rep].perToken()
			if x > 0 && y > 0 {
				logs = append(logs, math.Log(y/x))
			}
		}
		switch {
		case len(a) == 1:
			values = logs
		case len(logs) > 0:
			values = append(values, mean(logs))
		}
	}
	return judge(values)
}

// judge sums up logarithms of ratios.
func judge(values []float64) Comparison {
	n := len(values)
	if n == 0 {
		return Comparison{Verdict: TooFew}
	}
	m := mean(values)
	c := Comparison{Ratio: math.Exp(m), Low: math.Exp(m), High: math.Exp(m), Pairs: n, Verdict: TooFew}
	if n < 3 {
		return c
	}
	half := student(n-1) * deviation(values) / math.Sqrt(float64(n))
	c.Low, c.High = math.Exp(m-half), math.Exp(m+half)
	c.Verdict = Noise
	if m-half > 0 || m+half < 0 {
		c.Verdict = Real
	}
	return c
}

// perToken is the time of a token after the first, in seconds; 0 if there was none.
func (r *result) perToken() float64 {
	if len(r.tokens) < 2 {
		return 0
	}
	return r.decode.DecodeTime.Seconds() / float64(len(r.tokens)-1)
}

// student is the 97.5 % quantile of Student's distribution.
func student(freedom int) float64 {
	table := []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}
	if freedom <= len(table) {
		return table[freedom-1]
	}
	// Cornish and Fisher's expansion around the normal distribution, right to 0.003 from here on.
	const z = 1.959964
	n := float64(freedom)
	return z + (z*z*z+z)/(4*n) + (5*z*z*z*z*z+16*z*z*z+3*z)/(96*n*n)
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(1, len(values)))
}

// deviation is the standard deviation of a sample; 0 for fewer than two values.
func deviation(values []float64) float64 {
	if len(values) < 2 {
		return 0
	}
	m, sum := mean(values), 0.0
	for _, v := range values {
		sum += (v - m) * (v - m)
	}
	return math.Sqrt(sum / float64(len(values)-1))
}

// text is the ratio with its bounds.
func (c *Comparison) text() string {
	if c.Verdict == TooFew {
		return fmt.Sprintf("%.2f", c.Ratio)
	}
	return fmt.Sprintf("%.2f (%.2f..%.2f)", c.Ratio, c.Low, c.High)
}
