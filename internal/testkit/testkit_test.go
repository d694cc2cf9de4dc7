package testkit

import (
	"math"
	"testing"
)

// TestRelL2 (failure F85): a vector with a number that is none is far from everything; a comparison with a bound
// would find it near.
func TestRelL2(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		name      string
		got, want []float32
		rel       float64
	}{
		{"equal", []float32{1, 2}, []float32{1, 2}, 0},
		{"both zero", []float32{0}, []float32{0}, 0},
		{"half off", []float32{1.5}, []float32{1}, 0.5},
		{"length", []float32{1}, []float32{1, 2}, math.Inf(1)},
		{"nan in got", []float32{nan}, []float32{1}, math.Inf(1)},
		{"nan in want", []float32{1}, []float32{nan}, math.Inf(1)},
		{"want zero", []float32{1}, []float32{0}, math.Inf(1)},
	} {
		if rel := RelL2(c.got, c.want); rel != c.rel {
			t.Errorf("%s: got %v, want %v", c.name, rel, c.rel)
		}
	}
}

func TestGoldenModels(t *testing.T) {
	for _, name := range GoldenModels(t) {
		Golden(t, name+"/model.gguf")
	}
}

// skipping notes why a test is skipped.
type skipping struct {
	testing.TB
	why []any
}

func (s *skipping) Skip(why ...any) { s.why = why }

func TestLong(t *testing.T) {
	for set, skipped := range map[string]bool{"": true, "1": false} {
		t.Setenv(LongVariable, set)
		s := &skipping{TB: t}
		if Long(s); (len(s.why) == 1 && s.why[0] == LongReason) != skipped {
			t.Errorf("%s=%s: skipped: %q", LongVariable, set, s.why)
		}
		Long(&testing.B{}) // would end this test
	}
}
