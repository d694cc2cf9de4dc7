package nn

import (
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit/edit"
)

// TestPartsKeepTheirScale: rows of a matrix that has a scale beside it are scaled like the whole.
func TestPartsKeepTheirScale(t *testing.T) {
	const cols, rows, scale = 64, 8, 3
	whole := &gguf.Tensor{Name: "blk.0.attn_qkv.weight", Type: quant.NVFP4, Shape: []int{cols, rows}}
	for i := range rows * quant.NVFP4.RowBytes(cols) {
		whole.Data = append(whole.Data, byte(20+i*7%80))
	}
	values := make([]float32, rows*cols)
	if err := quant.Dequantize(whole.Type, values, whole.Data); err != nil {
		t.Fatal(err)
	}
	file := edit.File{KVs: []gguf.KV{{Key: "general.architecture", Value: "qwen3"}}, Tensors: []*gguf.Tensor{whole}}
	l := loaderOf(t, file.Put("blk.0.attn_qkv.scale", []float32{scale}, 1))
	q, k, v := l.QKV("blk.0.", cols, 4, 2)
	picked := l.Bind(PickRows(l.Tensor(whole.Name, cols, rows), []int{5, 1}))
	if l.Err != nil {
		t.Fatal(l.Err)
	}
	b := l.Devices[0]
	x, _ := b.Alloc(1, cols)
	one := make([]float32, cols) // a product with it is the first column
	one[0] = 1
	b.Write(x, one)
	for what, c := range map[string]struct {
		w    backend.Weight
		rows []int
	}{
		"queries": {q, []int{0, 1, 2, 3}}, "keys": {k, []int{4, 5}}, "values": {v, []int{6, 7}},
		"picked": {picked, []int{5, 1}},
	} {
		y, _ := b.Alloc(1, c.w.Rows())
		b.BeginStep(nil)
		b.MatMul(x, backend.Product{W: c.w, Y: y})
		b.EndStep()
		var want []float32
		for _, r := range c.rows {
			want = append(want, scale*values[r*cols])
		}
		if got := b.Read(y); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
}
