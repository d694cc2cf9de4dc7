package vec

import (
	"math"
	"testing"
)

func TestNorms(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(3)
		for _, n := range append(lengths(), 5376) {
			for _, size := range []float64{1, 1e-6, 1e18, 1e-30} {
				x, w := normal(r, n), normal(r, n)
				var ss float64
				for i := range x {
					x[i] = float32(float64(x[i]) * size)
					ss += float64(x[i]) * float64(x[i])
				}
				const eps = 1e-6
				rms, plain, l2 := make([]float64, n), make([]float64, n), make([]float64, n)
				for i, v := range f64s(x) {
					plain[i] = v / math.Sqrt(ss/float64(n)+float64(float32(eps)))
					rms[i] = plain[i] * float64(w[i])
					l2[i] = v / math.Sqrt(ss+float64(float32(eps)))
				}
				f := newFenced(n%4, n)
				RMSNorm(f.dst(), x, w, eps)
				near(t, caseName("rms n=", n), f.dst(), rms, 2e-7, 1e-37)
				RMSNorm(f.dst(), x, nil, eps)
				near(t, caseName("rms without weights n=", n), f.dst(), plain, 2e-7, 1e-37)
				L2Norm(f.dst(), x, eps)
				near(t, caseName("l2 n=", n), f.dst(), l2, 2e-7, 1e-37)
				f.check(t)
				want := append([]float32(nil), f.dst()...)
				y := at(x, 3)
				L2Norm(y, y, eps)
				sameBits(t, "l2 in place and misaligned", y, want)
			}
		}
		for _, v := range odd {
			x := []float32{1, v, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, v}
			RMSNorm(x, x, nil, 1e-6) // must not crash
		}
	})
}
