package qmat

import (
	"math"
	"math/rand/v2"
	"testing"

	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// TestAccuracy bounds what rounding the activations costs, against float64 on dequantised
// weights. The bounds are a little above what one scale per 32 values gives; one per 256
// (0.7, 1.4, 3 and 1.5 percent) would exceed them.
func TestAccuracy(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	const rows, k, n = 128, 2560, 8
	inputs := []struct {
		name  string
		bound float64
		make  func(x []float32)
	}{
		{"gauss", 0.006, func(x []float32) {}},
		{"five outliers of 10", 0.009, func(x []float32) { outliers(x, 5, 10, rng) }},
		{"twenty outliers of 30", 0.016, func(x []float32) { outliers(x, 20, 30, rng) }},
		{"gated", 0.011, func(x []float32) { // as between the two halves of a feed-forward layer
			for i, v := range x {
				a := float64(v)
				x[i] = float32(a / (1 + math.Exp(-a)) * rng.NormFloat64())
			}
		}},
	}
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q6_K, quant.Q8_0, quant.Q4_0, quant.IQ4_XS, quant.Q2_K} {
		m := newMatrix(typ, rows, k, rng)
		w := make([]float32, rows*k)
		if err := quant.Dequantize(typ, w, m.Data); err != nil {
			t.Fatal(err)
		}
		for _, in := range inputs {
			x := gauss(n*k, rng)
			for c := range n {
				in.make(x[c*k:][:k])
			}
			want := make([]float32, n*rows)
			for i := range want {
				var sum float64
				for j, v := range x[i/rows*k:][:k] {
					sum += float64(v) * float64(w[i%rows*k+j])
				}
				want[i] = float32(sum)
			}
			y := make([]float32, n*rows)
			m.Mul(y, rows, pack(x, n, k), 0, rows, rows, NewScratch())
			got := testkit.RelL2(y, want)
			t.Logf("%v, %s: %.2f %%", typ, in.name, 100*got)
			if !(got <= in.bound) {
				t.Errorf("%v, %s: relative error %.4f, want at most %.4f", typ, in.name, got, in.bound)
			}
		}
	}
}

func outliers(x []float32, n int, by float32, rng *rand.Rand) {
	for range n {
		x[rng.IntN(len(x))] *= by
	}
}
