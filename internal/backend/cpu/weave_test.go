package cpu

import (
	"math"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu/kernel/qmat"
	"strobe/internal/quant"
)

// TestEmbedWoven: rows of a matrix that was copied for its products are the rows of the file, and the file is not read
// any more.
func TestEmbedWoven(t *testing.T) {
	const rows, cols = 21, 512
	if !qmat.Weavable(quant.Q6_K) {
		t.Skip("needs AVX2 or dot products of ARM, and a build with assembly, for kernels of woven weights")
	}
	b := New(Options{Threads: 2})
	defer b.Close()
	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = float32(i%97)/97 - 0.5
	}
	data := make([]byte, rows*quant.Q6_K.RowBytes(cols))
	if err := quant.Quantize(quant.Q6_K, data, values); err != nil {
		t.Fatal(err)
	}
	want := make([]float32, rows*cols)
	if err := quant.Dequantize(quant.Q6_K, want, data); err != nil {
		t.Fatal(err)
	}
	w, err := b.Weight(backend.Matrix{Name: "embed", Type: quant.Q6_K, Data: data, Rows: rows, Cols: cols, Experts: 1})
	if err != nil {
		t.Fatal(err)
	}
	if w.(*weight).woven == nil {
		t.Fatal("the matrix was not copied")
	}
	clear(data)
	ids, _ := b.AllocInts(rows)
	all := make([]int32, rows)
	for i := range all {
		all[i] = int32(rows - 1 - i)
	}
	b.SetInts(ids, all)
	dst, _ := b.Alloc(rows, cols)
	b.Embed(dst, w, ids, 1)
	for r, id := range all {
		for i, v := range row(dst, r) {
			if math.Float32bits(v) != math.Float32bits(want[int(id)*cols+i]) {
				t.Fatalf("row %d, value %d is %g, want %g", id, i, v, want[int(id)*cols+i])
			}
		}
	}
}
