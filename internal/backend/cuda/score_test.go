//go:build !nogpu

package cuda_test

import (
	"math"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/pflash"
	"strobe/internal/quant"
	"strobe/internal/testkit"
	"strobe/internal/testkit/modeltest"
)

// TestScorer: a prompt is scored on the device as on the processor.
func TestScorer(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		ids := make([]int32, 24)
		for i := range ids {
			ids[i] = int32(i*i%487 + 3)
		}
		var scores [2][]float64
		for i, b := range []backend.Backend{cpu.New(cpu.Options{}), open(t)} {
			s, err := pflash.NewScorer(modeltest.File(t, testkit.Golden(t, name+"/model.gguf")), b, quant.F32)
			if err != nil {
				t.Fatal(err)
			}
			s.Sparse.Alpha = 0 // the device reads with full attention
			if scores[i], err = s.Tokens(t.Context(), ids); err != nil {
				t.Fatal(err)
			}
			s.Close()
			b.Close()
		}
		for j, want := range scores[0] {
			if got := scores[1][j]; math.Abs(got-want) > 1e-3*want {
				t.Fatalf("%s: token %d scores %g, on the processor %g", name, j, got, want)
			}
		}
	}
}
