package vec

import (
	"math"
	"testing"
)

func TestRoPE(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(7)
		for _, c := range []struct{ dim, rot, heads int }{
			{256, 64, 3}, {128, 128, 2}, {64, 64, 1}, {512, 512, 2}, {40, 34, 3}, {16, 2, 5}, {10, 10, 4}, {80, 0, 2},
			{96, 62, 2},
		} {
			h := c.rot / 2
			cos, sin := make([]float32, h), make([]float32, h)
			for i := range cos {
				s, co := math.Sincos(r.Float64() * 100)
				cos[i], sin[i] = float32(co), float32(s)
			}
			x := normal(r, c.dim*c.heads)
			want := f64s(x)
			for hd := range c.heads {
				for i := range h {
					a, b := float64(x[hd*c.dim+i]), float64(x[hd*c.dim+i+h])
					co, s := float64(cos[i]), float64(sin[i])
					want[hd*c.dim+i], want[hd*c.dim+i+h] = a*co-b*s, a*s+b*co
				}
			}
			var alone []float32
			for hd := range c.heads {
				one := at(x[hd*c.dim:(hd+1)*c.dim], hd)
				RoPE(one, c.dim, c.rot, cos, sin)
				alone = append(alone, one...)
			}
			f := newFenced(1, len(x))
			copy(f.dst(), x)
			RoPE(f.dst(), c.dim, c.rot, cos, sin)
			f.check(t)
			near(t, caseName(c), f.dst(), want, 0, 6e-7)
			sameBits(t, "head alone", alone, f.dst())
		}
	})
}

func TestConvSilu(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(8)
		for _, k := range []int{1, 2, 3, 4, 5} {
			for _, n := range []int{1, 5, 15, 16, 17, 31, 33, 48, 67, 200} {
				w := normal(r, n*k)
				taps := make([][]float32, k)
				zeros := make([][]float32, k)
				for j := range taps {
					taps[j] = normal(r, n)
					zeros[j] = taps[j]
				}
				for missing := range k {
					if missing > 0 {
						taps[missing-1] = nil
						zeros[missing-1] = make([]float32, n)
					}
					want := make([]float64, n)
					for c := range n {
						for j := range k {
							want[c] += float64(w[c*k+j]) * float64(zeros[j][c])
						}
						want[c] /= 1 + math.Exp(-want[c])
					}
					f := newFenced(k, n)
					ConvSilu(f.dst(), w, taps, 0, n)
					f.check(t)
					near(t, caseName("k=", k, " n=", n, " missing ", missing), f.dst(), want, 0, 3e-6)
					got := make([]float32, n)
					ConvSilu(got, w, zeros, 0, n)
					sameBits(t, "zeros instead of missing taps", got, f.dst())
					got = make([]float32, n)
					for c := 0; c < n; c += 7 {
						ConvSilu(got, w, taps, c, min(c+7, n))
					}
					sameBits(t, "channel ranges", got, f.dst())
				}
			}
		}
	})
}
