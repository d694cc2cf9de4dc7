//go:build !nogpu

package cuda_test

import (
	"math"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// TestPromptBits: attention over quantised keys and values has the same bits whether a prompt comes as a whole, which
// unpacks them once, or in small parts, which do not.
func TestPromptBits(t *testing.T) {
	const n, heads, kvHeads, dim = 150, 4, 2, 128
	x := func(rows, seed int) []float32 {
		v := make([]float32, n*rows*dim)
		for i := range v {
			v[i] = float32(math.Sin(float64(i)*0.37+float64(seed)) + math.Cos(float64(i*i%1013)))
		}
		return v
	}
	q, k, v := x(heads, 1), x(kvHeads, 2), x(kvHeads, 3)
	for _, types := range [][2]quant.Type{
		{quant.Turbo3, quant.Turbo3}, {quant.Q4_0, quant.Q4_1}, {quant.Q8_0, quant.F16},
	} {
		var want []float32
		for _, chunk := range []int{n, 70, 9} {
			b := open(t)
			pool, err := b.NewKVPool(backend.KVLayout{Page: 64, Layers: []backend.KVDims{
				{Heads: kvHeads, KeyDim: dim, ValueDim: dim, Key: types[0], Value: types[1]}}})
			if err != nil {
				t.Fatal(err)
			}
			tensor := func(v []float32, from, rows int) backend.Tensor {
				cols := len(v) / n
				y, err := b.Alloc(rows, cols)
				if err != nil {
					t.Fatal(err)
				}
				b.Write(y, v[from*cols:][:rows*cols])
				return y
			}
			var table []int32
			var got []float32
			for from := 0; from < n; from += chunk {
				rows := min(chunk, n-from)
				plan := backend.KVPlan{Pool: pool}
				for r := from; r < from+rows; r++ {
					if r%64 == 0 {
						page, err := pool.Alloc()
						if err != nil {
							t.Fatal(err)
						}
						table = append(table, page)
					}
					plan.Seg, plan.Slot = append(plan.Seg, 0), append(plan.Slot, int32(r))
					plan.Lo, plan.Hi = append(plan.Lo, int32(max(0, r-100))), append(plan.Hi, int32(r+1))
				}
				plan.Tables = [][]int32{table}
				dst := tensor(q, from, rows)
				b.BeginStep(&backend.Plan{KV: []backend.KVPlan{plan}})
				b.KVWrite(0, 0, tensor(k, from, rows), tensor(v, from, rows))
				b.Attention(dst, tensor(q, from, rows), 0, 0,
					backend.AttnParams{Heads: heads, KVHeads: kvHeads, Scale: float32(1 / math.Sqrt(dim))})
				if _, err := b.EndStep(); err != nil {
					t.Fatal(err)
				}
				got = append(got, b.Read(dst)...)
			}
			b.Close()
			if want == nil {
				want = got
			}
			for i := range got {
				if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
					t.Fatalf("%s/%s in chunks of %d: value %d of row %d is %v, want %v", types[0], types[1], chunk,
						i%(heads*dim), i/(heads*dim), got[i], want[i])
				}
			}
		}
	}
}
