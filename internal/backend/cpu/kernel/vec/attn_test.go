package vec

import (
	"math"
	"testing"

	"strobe/internal/quant"
)

var cacheTypes = append([]quant.Type{quant.BF16}, quant.CacheTypes...)

func TestAttention(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(20)
		for _, typ := range cacheTypes {
			t.Run(typ.String(), func(t *testing.T) {
				for i, dim := range []int{64, 128, 256, 512, 32, 96, 33, 17, 5, 67} {
					if dim%typ.BlockLen() != 0 {
						continue
					}
					const nq = 13
					for _, n := range []int{1, 2, 3, 4, 5, 16, 37} {
						stride := typ.RowBytes(dim) + 2*i
						data, v := rowsOf(r, typ, n, dim, stride)
						q := normal(r, nq*(dim+i))
						p := normal(r, nq*n)
						s := newFenced(1, nq*(n+1))
						o := newFenced(2, nq*(dim+i))
						const scale = 0.3
						for c := range nq {
							ScoresN(s.dst()[c*(n+1):][:n], 0, q[c*(dim+i):][:dim], 0, 1, dim, typ, data, stride, n, scale)
							out := o.dst()[c*(dim+i):][:dim]
							for j := range out {
								out[j] = float32(j)
							}
							AccumN(out, 0, p[c*n:][:n], 0, 1, len(out), typ, data, stride, n)
						}
						s.check(t)
						o.check(t)
						for c := range nq {
							for k := range n {
								want, mag := refDot(v[k*dim:], q[c*(dim+i):][:dim])
								near(t, caseName("score of key ", k), s.dst()[c*(n+1)+k:][:1], []float64{want * float64(float32(scale))}, 1e-7,
									4e-7*mag)
							}
							for j := range dim {
								want, mag := float64(j), math.Abs(float64(j))
								for k := range n {
									want += float64(p[c*n+k]) * v[k*dim+j]
									mag += math.Abs(float64(p[c*n+k]) * v[k*dim+j])
								}
								near(t, caseName("sum of element ", j), o.dst()[c*(dim+i)+j:][:1], []float64{want}, 0, 1e-6*mag)
							}
						}

						for nb := 1; nb <= nq; nb++ {
							s2, o2 := newFenced(0, nq*(n+1)), newFenced(0, nq*(dim+i))
							for c := 0; c < nq; c += nb {
								m := min(nb, nq-c)
								ScoresN(s2.dst()[c*(n+1):], n+1, q[c*(dim+i):], dim+i, m, dim, typ, data, stride, n, scale)
								for j := range m {
									for k := range dim {
										o2.dst()[(c+j)*(dim+i)+k] = float32(k)
									}
								}
								split := n / 2 // two pages
								AccumN(o2.dst()[c*(dim+i):], dim+i, p[c*n:], n, m, dim, typ, data, stride, split)
								AccumN(o2.dst()[c*(dim+i):], dim+i, p[c*n+split:], n, m, dim, typ, data[split*stride:], stride, n-split)
							}
							s2.check(t)
							o2.check(t)
							sameBits(t, caseName("scores of ", nb, " queries, dim ", dim, " n ", n), s2.dst(), s.dst())
							for c := range nq {
								sameBits(t, caseName("sums of ", nb, " queries, dim ", dim, " n ", n, " query ", c), o2.dst()[c*(dim+i):][:dim],
									o.dst()[c*(dim+i):][:dim])
							}
						}
					}
				}
			})
		}
	})
}
