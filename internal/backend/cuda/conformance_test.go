//go:build !nogpu

package cuda_test

import (
	"os"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/backendtest"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// open returns the backend that tests run on: an emulated device, or the first real one if $STROBE_CUDA is "cuda".
func open(t testing.TB) backend.Backend {
	t.Helper()
	b, err := gpu.New(emulate.Open(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestConformance runs the suite that every device passes. On the emulation it has few sizes and types: what
// kernels do with others is tested in package gpu.
func TestConformance(t *testing.T) {
	o := backendtest.Options{
		Copies: true,
		// Activations are rounded to 11 bits for products with quantised weights, and scales of Q6_K too.
		Product: func(typ quant.Type, cols int) float64 {
			if typ == quant.F32 || typ == quant.F16 || typ == quant.BF16 || cols < 512 {
				return 1e-5
			}
			if typ == quant.IQ2_XXS || typ == quant.IQ3_XXS || typ == quant.MXFP4 {
				return 2e-3 // a few of their blocks are most of a row: rounding alone, in float64, makes up to 1.042e-3
			}
			return 1e-3
		},
		Stored: func(typ quant.Type) float64 {
			if typ.GridPoints() != nil {
				return 0x1p-11 // halves, or with scales that are
			}
			return 0
		},
		// Queries, keys and probabilities are halves on tensor cores.
		Attention: func(key, value quant.Type) float64 {
			if key == quant.F32 && value == quant.F32 {
				return 1e-5
			}
			if key.Quantized() {
				return 8e-3 // rounded to halves again, and now and then to another code than on the processor
			}
			return 4e-3
		},
	}
	if os.Getenv("STROBE_CUDA") == "cuda" {
		o.Rows = []int{1, 2, 3, 5, 8, 16, 17, 33, 65, 130}
	} else {
		o.Rows = []int{1, 3}
		o.Weights = []quant.Type{quant.F32, quant.Q4_K, quant.IQ3_XXS}
		o.KV = []quant.Type{quant.F16, quant.Turbo3}
		o.Heads = []int{64, 128}
		o.Delta = []backend.DeltaDims{{KHeads: 2, VHeads: 4, KDim: 16, VDim: 16, Kernel: 3, Eps: 1e-6, Grouped: true}}
		o.BigRow = 9000
	}
	backendtest.Run(t, open, o)
}
