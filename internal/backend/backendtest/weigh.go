package backendtest

import (
	"math"

	"strobe/internal/backend"
)

// weighCases checks how much attention tokens get.
func weighCases() []testCase {
	return []testCase{{"weigh", func(s *suite) {
		for i, dim := range []int{32, 128, 72} {
			k := s.device()
			k.layout = layouts[i%len(layouts)]
			const rows, tokens, heads, kvHeads = 3, 301, 6, 2
			p := backend.AttnParams{Heads: heads, KVHeads: kvHeads, Scale: float32(1 / math.Sqrt(float64(dim)))}
			dst := k.place(rows, tokens)
			zero := make([][]float32, rows)
			want := make([][]float64, rows)
			for r := range zero {
				zero[r], want[r] = make([]float32, tokens), make([]float64, tokens)
			}
			k.fill(dst, zero)
			dst.output = true
			for layer := range 2 {
				items := make([]int, tokens)
				for j := range items {
					items[j] = layer*tokens + j
				}
				q, keys := k.rows("q", items[:rows], heads*dim), k.rows("k", items, kvHeads*dim)
				k.Weigh(dst.Tensor, k.input(q).Tensor, k.input(keys).Tensor, p)
				for r := range rows {
					for h := range heads {
						raise(want[r], q[r][h*dim:][:dim], keys[:tokens-rows+r+1], h/(heads/kvHeads)*dim, float64(p.Scale))
					}
				}
			}
			got := k.finish(dst)[0]
			for r := range rows {
				for j := range tokens {
					if d := math.Abs(float64(got[r][j]) - want[r][j]); !(d <= 1e-5*want[r][j]+1e-9) {
						s.Fatalf("heads of %d: weight of token %d for row %d is %g, want %g", dim, j, r, got[r][j], want[r][j])
					}
				}
			}
		}
	}}}
}

// raise computes the weights of a query in float64.
func raise(want []float64, q []float32, keys [][]float32, at int, scale float64) {
	x, top, sum := make([]float64, len(keys)), math.Inf(-1), 0.0
	for j, k := range keys {
		for c, v := range q {
			x[j] += float64(v) * float64(k[at+c]) * scale
		}
		top = max(top, x[j])
	}
	for j := range x {
		x[j] = math.Exp(x[j] - top)
		sum += x[j]
	}
	for j := range x {
		want[j] = max(want[j], x[j]/sum)
	}
}
