package bench

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, tc := range []struct {
		name             string
		in               []float64
		median, min, max float64
		text             string
	}{
		{"none", nil, 0, 0, 0, "0.0"},
		{"one", []float64{3}, 3, 3, 3, "3.0"},
		{"odd", []float64{5, 1, 3}, 3, 1, 5, "3.0 (1.0..5.0)"},
		{"even", []float64{4, 1, 3, 2}, 2.5, 1, 4, "2.5 (1.0..4.0)"},
	} {
		in := slices.Clone(tc.in)
		s := NewSpread(tc.in)
		if s.Median != tc.median || s.Min != tc.min || s.Max != tc.max || s.text(1) != tc.text {
			t.Errorf("%s: %+v, text %q; want median %g of %g..%g, %q", tc.name, s, s.text(1), tc.median, tc.min, tc.max, tc.text)
		}
		if !slices.Equal(s.Values, in) {
			t.Errorf("%s: values reordered to %v", tc.name, s.Values)
		}
		if b, _ := json.Marshal(s.Values); string(b) == "null" {
			t.Errorf("%s: values are null in JSON", tc.name)
		}
	}
	if got := ratios([]float64{2, 9, 5}, []float64{1, 0, 10}); !slices.Equal(got, []float64{2, 0.5}) {
		t.Errorf("ratios: %v", got)
	}
}

func TestFirstDifference(t *testing.T) {
	for _, tc := range []struct {
		a, b []int32
		want int
	}{
		{nil, nil, -1},
		{[]int32{1, 2}, []int32{1, 2}, -1},
		{[]int32{1, 2}, []int32{1, 3}, 1},
		{[]int32{1, 2}, []int32{1}, 1},
		{nil, []int32{7}, 0},
	} {
		if got := firstDifference(tc.a, tc.b); got != tc.want {
			t.Errorf("%v and %v differ at %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

func TestHistogram(t *testing.T) {
	if got := histogram([]int{9, 1, 0, 2, 0, 0}); !slices.Equal(got, []int{1, 0, 2}) {
		t.Errorf("histogram: %v", got)
	}
	if got := histogram([]int{0, 0}); got == nil || len(got) != 0 {
		t.Errorf("empty histogram: %#v", got)
	}
}
