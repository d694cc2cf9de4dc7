package vec

import (
	"math"
	"testing"
)

// elemCase is a function of up to two slices, element by element.
type elemCase struct {
	name string
	run  func(dst, a, b []float32) // dst holds a copy of old values for Axpy
	ref  func(a, b float64) float64
	rel  float64
	// abs allows for results below the normal range, where a relative bound
	// means nothing.
	abs float64
	// lim keeps the arguments where the function is neither 0 nor infinite.
	lim float64
}

func elemCases() []elemCase {
	const s, c = float32(1.7), float32(30)
	sig := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	gelu := func(x float64) float64 {
		return x * sig(2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))
	}
	const u = 0x1p-24 // half a unit in the last place
	return []elemCase{
		{"add", Add, func(a, b float64) float64 { return a + b }, u, 0, 1e30},
		{"scale", func(d, a, b []float32) { Scale(d, a, s) }, func(a, b float64) float64 { return a * float64(s) }, u, 1e-45,
			1e30},
		{"axpy", func(d, a, b []float32) { copy(d, b); Axpy(d, s, a) },
			func(a, b float64) float64 { return float64(s)*a + b }, 0, 1e-6, 3},
		{"exp", func(d, a, b []float32) { exp(d, a) }, func(a, b float64) float64 { return math.Exp(a) }, 1.5e-7, 1e-45, 100},
		{"sigmoid", func(d, a, b []float32) { Sigmoid(d, a) }, func(a, b float64) float64 { return sig(a) }, 2.5e-7, 1.2e-38,
			80},
		{"silu", func(d, a, b []float32) { ops().silu(d, a) }, func(a, b float64) float64 { return a * sig(a) }, 2.5e-7,
			1e-36, 80},
		{"siluMul", SiluMul, func(a, b float64) float64 { return a * sig(a) * b }, 3.5e-7, 1e-36, 60},
		{"geluMul", GeluMul, func(a, b float64) float64 { return gelu(a) * b }, 6e-6, 1e-36, 6},
		{"geluMulSmall", GeluMul, func(a, b float64) float64 { return gelu(a) * b }, 7e-7, 1e-36, 1.5},
		{"sigmoidMul", SigmoidMul, func(a, b float64) float64 { return a * sig(b) }, 3.5e-7, 1e-36, 60},
		{"softcap", func(d, a, b []float32) { Softcap(d, a, c) }, func(a, b float64) float64 {
			return float64(c) * math.Tanh(a/float64(c))
		}, 3.5e-7, 1e-40, 300},
		{"softcapSmall", func(d, a, b []float32) { Softcap(d, a, c) }, func(a, b float64) float64 {
			return float64(c) * math.Tanh(a/float64(c))
		}, 3e-7, 1e-40, 25},
	}
}

func TestElementwise(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(1)
		for _, c := range elemCases() {
			t.Run(c.name, func(t *testing.T) {
				for _, n := range lengths() {
					a, b := edge(n), edge(n)
					want := make([]float64, n)
					for i := range a {
						a[i] = float32((2*r.Float64() - 1) * c.lim)
						b[i] = float32((2*r.Float64() - 1) * c.lim)
						want[i] = c.ref(float64(a[i]), float64(b[i]))
					}
					for off := range 4 {
						f := newFenced(off, n)
						c.run(f.dst(), a, b)
						f.check(t)
						near(t, caseName("n=", n), f.dst(), want, c.rel, c.abs)
					}
				}
			})
		}
	})
}

// TestElementwisePosition computes every value of one slice alone, and in
// slices that put it at every position of a vector.
func TestElementwisePosition(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(2)
		for _, c := range elemCases() {
			const n = 100
			a, b, want := make([]float32, n), make([]float32, n), make([]float32, n)
			for i := range a {
				a[i] = float32((2*r.Float64() - 1) * c.lim)
				b[i] = float32((2*r.Float64() - 1) * c.lim)
			}
			copy(a, odd)
			copy(b[len(odd):], odd)
			c.run(want, a, b)
			for from := range 40 {
				for _, to := range []int{from + 1, from + 7, from + 16, from + 33, n} {
					got := make([]float32, to-from)
					c.run(got, at(a[from:to], from%5), at(b[from:to], to%3))
					sameBits(t, caseName(c.name, " of [", from, ",", to, ")"), got, want[from:to])
				}
			}
			if c.name == "axpy" {
				continue // its destination is an operand already
			}
			inPlace := at(a, 1)
			c.run(inPlace, inPlace, b)
			sameBits(t, c.name+" in place", inPlace, want)
			inPlace = at(b, 2)
			c.run(inPlace, a, inPlace)
			sameBits(t, c.name+" in place of the second operand", inPlace, want)
		}
	})
}

// TestElementwiseExtremes checks the ends of the range, infinities and NaN.
func TestElementwiseExtremes(t *testing.T) {
	levels(t, func(t *testing.T) {
		got := make([]float32, len(odd))
		want := make([]float64, len(odd))
		exp(got, odd)
		for i, x := range odd {
			want[i] = math.Exp(float64(x))
		}
		near(t, "exp", got, want, 1.5e-7, 1.5e-45)
		Sigmoid(got, odd)
		for i, x := range odd {
			want[i] = 1 / (1 + math.Exp(-float64(x)))
		}
		near(t, "sigmoid", got, want, 2.5e-7, 1.2e-38)
		Softcap(got, odd, 30)
		for i, x := range odd {
			want[i] = 30 * math.Tanh(float64(x)/30)
		}
		near(t, "softcap", got, want, 3.5e-7, 1e-43)
		ones := make([]float32, len(odd))
		for i := range ones {
			ones[i] = 1
		}
		for i, x := range odd {
			want[i] = float64(x) / (1 + math.Exp(-float64(x)))
		}
		SiluMul(got, odd, ones)
		near(t, "silu", got, want, 3.5e-7, 1e-35)
		for i, x := range odd {
			v := float64(x)
			want[i] = v / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
			if math.Abs(v) > 1e12 { // v^3 overflows float32: 0 on the left, v on the right
				want[i] = math.Max(v, 0)
				if math.IsInf(v, -1) {
					want[i] = math.NaN()
				}
			}
		}
		GeluMul(got, odd, ones)
		near(t, "gelu", got, want, 6e-6, 1e-35)
	})
}

// TestExpExhaustiveStep walks through the whole range of exp.
func TestExpExhaustiveStep(t *testing.T) {
	levels(t, func(t *testing.T) {
		const n = 1 << 16
		x, y, want := make([]float32, n), make([]float32, n), make([]float64, n)
		for i := range x {
			x[i] = float32(-105 + 195*float64(i)/n)
			want[i] = math.Exp(float64(x[i]))
		}
		exp(y, x)
		near(t, "exp", y, want, 1.5e-7, 1e-45)
		for i := 1; i < n; i++ {
			if y[i] < y[i-1]*(1-1e-6) {
				t.Fatalf("exp(%v) = %v after exp(%v) = %v", x[i], y[i], x[i-1], y[i-1])
			}
		}
	})
}

func TestSoftplus(t *testing.T) {
	for _, x := range []float32{-200, -104, -50, -20, -1, -1e-8, 0, 1e-8, 1, 10, 15, 20, 29.9, 30.1, 100, 3e38} {
		want := math.Log1p(math.Exp(float64(x)))
		if x > 50 {
			want = float64(x)
		}
		near(t, caseName("softplus(", x, ")"), []float32{Softplus(x)}, []float64{want}, 1e-7, 1e-45)
	}
	if v := Softplus(float32(math.NaN())); v == v {
		t.Errorf("softplus(NaN) = %v", v)
	}
}

// exp is the exponential function inside expSum.
func exp(dst, x []float32) {
	copy(dst, x)
	ops().expSum(dst, 0)
}
