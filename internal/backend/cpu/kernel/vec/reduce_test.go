package vec

import (
	"math"
	"testing"

	"strobe/internal/weight"
)

func TestDot(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(4)
		for _, n := range append(lengths(), 5000) {
			a, b := normal(r, n), normal(r, n)
			var want, mag float64
			for i := range a {
				want += float64(a[i]) * float64(b[i])
				mag += math.Abs(float64(a[i]) * float64(b[i]))
			}
			got := Dot(a, b)
			near(t, caseName("n=", n), []float32{got}, []float64{want}, 0, 1e-6*mag)
			for off := range 4 {
				sameBits(t, "misaligned", []float32{Dot(at(a, off), at(b, 3-off))}, []float32{got})
			}
		}
	})
}

func TestSoftmax(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(5)
		inf := float32(math.Inf(-1))
		for _, n := range append(lengths(), 20000) {
			x := normal(r, n)
			m, sum := math.Inf(-1), 0.0
			for i := range x {
				x[i] *= 10
				if i%7 == 3 {
					x[i] = inf
				}
				m = math.Max(m, float64(x[i]))
			}
			want := make([]float64, n)
			for i, v := range x {
				want[i] = math.Exp(float64(v) - m)
				sum += want[i]
			}
			for i := range want {
				want[i] /= sum
			}
			long := append(append([]float32(nil), x...), inf, inf, inf, inf, inf, inf, inf, inf, inf, inf, inf, inf, inf, inf,
				inf, inf, inf)
			y := at(x, 1)
			Softmax(x)
			near(t, caseName("n=", n), x, want, 5e-6, 1e-37) // the argument's own rounding dominates
			Softmax(y)
			sameBits(t, "misaligned", y, x)
			if n > 0 {
				Softmax(long)
				sameBits(t, "followed by masked entries", long[:n], x)
				near(t, "masked entries", long[n:], make([]float64, len(long)-n), 0, 0)
			}
		}
		x := []float32{inf, inf, inf}
		Softmax(x)
		near(t, "all masked", x, make([]float64, 3), 0, 0)
		x = append([]float32(nil), odd...)
		Softmax(x) // must not crash
		Softmax(nil)
	})
}

func TestArgMax(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	levels(t, func(t *testing.T) {
		cases := []struct {
			x    []float32
			want int
		}{
			{nil, -1},
			{[]float32{nan}, -1},
			{[]float32{nan, nan, nan}, -1},
			{[]float32{-inf}, 0},
			{[]float32{nan, -inf, -inf}, 1},
			{[]float32{1, 2, 2, 1}, 1},
			{[]float32{inf, nan, inf}, 0},
			{[]float32{float32(math.Copysign(0, -1)), 0}, 0},
			{[]float32{-3, -2, nan, -2, -5}, 1},
		}
		for _, c := range cases {
			if got := ArgMax(c.x); got != c.want {
				t.Errorf("ArgMax(%v) = %d, want %d", c.x, got, c.want)
			}
		}
		r := newRand(6)
		for _, n := range append(lengths(), 5000) {
			for range 20 {
				x := normal(r, n)
				for i := range x {
					if r.IntN(4) == 0 {
						x[i] = float32(int(x[i]))
					}
					if r.IntN(9) == 0 {
						x[i] = nan
					}
				}
				want := -1
				for i, v := range x {
					if v == v && (want < 0 || v > x[want]) {
						want = i
					}
				}
				if got := ArgMax(x); got != want {
					t.Fatalf("n=%d: got %d, want %d", n, got, want)
				}
				if n > 0 && want >= 0 {
					y := append(at(x, 3), x[want])
					if got := ArgMax(y); got != want {
						t.Fatalf("n=%d with a tie at the end: got %d, want %d", n, got, want)
					}
				}
			}
		}
	})
}

func TestLogSumExp(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(61)
		for n := range 67 {
			x := normal(r, n)
			sum := 0.0
			for _, v := range x {
				sum += math.Exp(float64(v))
			}
			if got, want := float64(LogSumExp(x)), math.Log(sum); math.Abs(got-want) > 1e-6*max(1, math.Abs(want)) && n > 0 {
				t.Errorf("%d values: %v, want %v", n, got, want)
			}
		}
		if got := LogSumExp(nil); !math.IsInf(float64(got), -1) {
			t.Errorf("no values: %v, want -Inf", got)
		}
	})
}

// TestWeightSum: every level has the bits of the definition, for all tails and for values from one end to the other.
func TestWeightSum(t *testing.T) {
	rng := newRand(6)
	levels(t, func(t *testing.T) {
		for n := range 200 {
			x := make([]float32, n)
			top := float32(rng.NormFloat64() * 20)
			for i := range x {
				x[i] = top - float32(math.Abs(rng.NormFloat64())*[]float64{1e-3, 1, 10, 60}[rng.IntN(4)])
				switch rng.IntN(30) {
				case 0:
					x[i] = top
				case 1:
					x[i] = top - 87
				case 2:
					x[i] = float32(math.Inf(-1))
				}
			}
			if got, want := WeightSum(x, top), weight.Sum(x, top); got != want {
				t.Fatalf("%d values: %d, want %d", n, got, want)
			}
		}
		all := make([]float32, 1<<17)
		if got := WeightSum(all, 0); got != 1<<(17+weight.UnitBits) {
			t.Fatalf("2^17 weights of 1: %d units", got)
		}
	})
}
