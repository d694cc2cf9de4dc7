package vec

import (
	"testing"

	"strobe/internal/quant"
)

// TestNoAllocations runs every operation of a decoding step after a warm-up.
func TestNoAllocations(t *testing.T) {
	levels(t, func(t *testing.T) {
		const k, rows, n = 96, 10, 40
		w := make([]byte, 4*k*rows)
		x, y := make([]float32, k*n), make([]float32, rows*n)
		q, out, s := make([]float32, 4*k), make([]float32, 4*k), make([]float32, 4*rows)
		a := &Delta{DK: 32, DV: 3, State: x[:k], N: 3, Q: x, K: x, QKStride: 32, V: x, VStride: 3, Beta: x, G: x, BGStride: 1,
			DOut: y, DStride: 3, O: y[100:], OStride: 3}
		parent, taps := []int32{-1, 0, 0}, [][]float32{nil, x, x, x}
		for name, f := range map[string]func(){
			"matmul of one column": func() { MatMul(y, rows, quant.BF16, w, k, x, k, 1, 0, rows) },
			"matmul":               func() { MatMul(y, rows, quant.BF16, w, k, x, k, n, 0, rows) },
			"scores":               func() { ScoresN(s, rows, q, k, 4, k, quant.Q8_0, w, 200, rows, 1) },
			"accum":                func() { AccumN(out, k, s, rows, 4, k, quant.Q8_0, w, 200, rows) },
			"norm":                 func() { RMSNorm(out, q, q, 1e-6) },
			"softmax":              func() { Softmax(s) },
			"conv":                 func() { ConvSilu(y[:20], q, taps, 0, 20) },
			"delta":                func() { DeltaRule(a) },
			"tree":                 func() { DeltaTree(a, parent) },
			"store":                func() { Store(quant.Q8_0, w[:102], x[:k]) },
		} {
			f()
			// The pool of scratch buffers may be emptied by a collection at any time.
			if got := testing.AllocsPerRun(200, f); got > 0.5 {
				t.Errorf("%s allocates %v times per call", name, got)
			}
		}
	})
}
