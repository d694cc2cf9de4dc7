package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend/cpu/kernel"
)

// levels runs f once per CPU level that has kernels here and names the levels this machine lacks.
func levels(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	for _, l := range kernel.All() {
		if l.Floats() != l {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			if !slices.Contains(kernel.Available(), l) {
				t.Skipf("this CPU or build has no %v kernels", l)
			}
			defer kernel.Set(l)()
			f(t)
		})
	}
}

// lengths are all tails of every vector width, and a few lengths with full
// iterations of the longest unrolled loop before the tail.
func lengths() []int {
	var ns []int
	for n := range 68 {
		ns = append(ns, n)
	}
	return append(ns, 127, 128, 129, 255, 256, 300, 511, 512, 1000)
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 99)) }

// normal returns n normally distributed values that end at an unreadable page
// where the system offers one, so that reading past a tail is a crash.
func normal(r *rand.Rand, n int) []float32 {
	x := edge(n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// at copies x to a slice with off elements before it.
func at(x []float32, off int) []float32 {
	b := make([]float32, off+len(x)+3)
	copy(b[off:], x)
	return b[off : off+len(x) : off+len(x)]
}

// fenced is a destination whose surroundings are watched.
type fenced struct {
	all []float32
	off int
	n   int
}

const fence = float32(-12345.5)

func newFenced(off, n int) fenced {
	f := fenced{make([]float32, off+n+20), off, n}
	for i := range f.all {
		f.all[i] = fence
	}
	return f
}

func (f fenced) dst() []float32 { return f.all[f.off : f.off+f.n : f.off+f.n] }

func (f fenced) check(t *testing.T) {
	t.Helper()
	for i, v := range f.all {
		if (i < f.off || i >= f.off+f.n) && v != fence {
			t.Fatalf("wrote outside of the destination: element %d of %d", i-f.off, f.n)
		}
	}
}

func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if g, w := got[i], want[i]; math.Float32bits(g) != math.Float32bits(w) && (g == g || w == w) {
			t.Fatalf("%s: element %d of %d is %v (%#x), want the bits of %v (%#x)",
				what, i, len(got), g, math.Float32bits(g), w, math.Float32bits(w))
		}
	}
}

// near checks |got-want| <= rel*|want| + abs for every element, and that NaN
// and infinities are where the reference has them.
func near(t *testing.T, what string, got []float32, want []float64, rel, abs float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		g, w := float64(got[i]), want[i]
		if math.IsNaN(w) || math.IsInf(w, 0) || math.Abs(w) > math.MaxFloat32*(1+1e-8) {
			if math.IsNaN(w) != math.IsNaN(g) || !math.IsNaN(w) && !(math.IsInf(g, 0) && (g > 0) == (w > 0)) {
				t.Fatalf("%s: element %d of %d is %v, want %v", what, i, len(got), g, w)
			}
			continue
		}
		if !(math.Abs(g-w) <= rel*math.Abs(w)+abs) {
			t.Fatalf("%s: element %d of %d is %v, want %v (relative error %.3g, bound %.3g)",
				what, i, len(got), g, w, math.Abs(g-w)/math.Abs(w), rel)
		}
	}
}

func f64s(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// odd are values that kernels must survive.
var odd = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, 1e-45, -1e-45, 1e-39, -1e-39, 1.1754944e-38,
	3e38, -3e38, 1e-30, 1e30, 65504, 65536, 88.7, 88.8, -87.3, -88, -103.9, -104, 127, -127, 0.5, -0.5,
	float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), math.MaxFloat32, -math.MaxFloat32,
}

func caseName(parts ...any) string { return fmt.Sprint(parts...) }
