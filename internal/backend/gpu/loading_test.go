package gpu_test

import (
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// TestLoading: a device knows how long its weights were repacked and copied, all of them together.
func TestLoading(t *testing.T) {
	dev, err := gpu.New(newLending(t))
	if err != nil {
		t.Fatal(err)
	}
	const rows, cols = 512, 1024
	m := backend.Matrix{Type: quant.Q8_0, Rows: rows, Cols: cols, Experts: 1,
		Data: make([]byte, quant.Q8_0.RowBytes(rows*cols))}
	var before [2]int64
	for range 2 {
		if _, err := dev.Weight(m); err != nil {
			t.Fatal(err)
		}
		repack, upload := dev.Loading()
		if int64(repack) <= before[0] || int64(upload) <= before[1] {
			t.Errorf("repacked for %v, copied for %v, after %v", repack, upload, before)
		}
		before = [2]int64{int64(repack), int64(upload)}
	}
}
