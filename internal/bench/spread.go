package bench

import (
	"fmt"
	"slices"
)

// Spread is a measured quantity over the repeats of a run.
type Spread struct {
	Median    float64   `json:"median"`
	Min       float64   `json:"min"`
	Max       float64   `json:"max"`
	Mean      float64   `json:"mean"`
	Deviation float64   `json:"deviation"` // standard deviation of the sample
	Values    []float64 `json:"values"`    // in the order measured
}

// NewSpread sums up values. Without values everything is zero.
func NewSpread(values []float64) Spread {
	s := Spread{Values: values}
	if len(values) == 0 {
		s.Values = []float64{} // [] in JSON, not null
		return s
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	n := len(sorted)
	s.Min, s.Max = sorted[0], sorted[n-1]
	s.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
	s.Mean, s.Deviation = mean(values), deviation(values)
	return s
}

// text prints the median and, if there is more than one value, the range.
func (s Spread) text(prec int) string {
	if len(s.Values) < 2 {
		return fmt.Sprintf("%.*f", prec, s.Median)
	}
	return fmt.Sprintf("%.*f (%.*f..%.*f)", prec, s.Median, prec, s.Min, prec, s.Max)
}

// around prints the mean and, if there is more than one value, the deviation.
func (s Spread) around(prec int) string {
	if len(s.Values) < 2 {
		return fmt.Sprintf("%.*f", prec, s.Mean)
	}
	return fmt.Sprintf("%.*f ± %.*f", prec, s.Mean, prec, s.Deviation)
}

// ratios divides a by b, value by value.
func ratios(a, b []float64) []float64 {
	var r []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			r = append(r, a[i]/b[i])
		}
	}
	return r
}

func median(values []float64) float64 { return NewSpread(values).Median }
