package cpu_test

import (
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/backendtest"
	"strobe/internal/backend/cpu"
	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// TestConformance: the CPU keeps the contract with every instruction set and with one thread or more, watched by the
// device that knows the rules of steps.
func TestConformance(t *testing.T) {
	for _, l := range kernel.Available() {
		if l == kernel.AVXVNNI || l == kernel.AMX {
			continue // have only products of quantised weights, which qmat compares with plain Go, bit by bit
		}
		t.Run(l.String(), func(t *testing.T) {
			defer kernel.Set(l)()
			backendtest.Run(t, func(t testing.TB) backend.Backend {
				b := cpu.New(cpu.Options{Threads: 1 + int(l)})
				return testkit.NewDevice(t, b)
			}, backendtest.Options{Product: productBound})
		})
	}
}

// productBound: long rows of quantised weights are multiplied with activations rounded to 8 bits, everything else
// exactly.
func productBound(typ quant.Type, cols int) float64 {
	if typ.Quantized() && cols >= 512 {
		return 5e-2
	}
	return backendtest.ExactProduct(typ, cols)
}
