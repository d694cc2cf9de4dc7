package cpu_test

import (
	"math"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// TestCachedAttention compares attention over keys and values of every type with an independent implementation.
func TestCachedAttention(t *testing.T) {
	f, err := safetensors.Open(testkit.Shared(t, "golden/kvquant/attention.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := cpu.New(cpu.Options{Threads: 2})
	defer b.Close()
	f32, q8, q4 := quant.F32, quant.Q8_0, quant.Q4_0
	t3, t4 := quant.Turbo3, quant.Turbo4
	for name, types := range map[string][2]quant.Type{
		"exact-exact": {f32, f32}, "turbo3-turbo3": {t3, t3}, "turbo4-turbo4": {t4, t4}, "turbo4-turbo3": {t4, t3},
		"turbo3-exact": {t3, f32}, "exact-turbo3": {f32, t3}, "q8_0_rot-q8_0": {q8, q8}, "q4_0_rot-q4_0": {q4, q4},
		"q8_0_rot-turbo4": {q8, t4},
	} {
		for _, size := range []string{"hd128", "hd256"} {
			load := func(name string) ([]float32, []int) {
				x := f.Tensor(size + "." + name)
				v, err := x.Float32s()
				if err != nil {
					t.Fatal(err)
				}
				return v, x.Shape
			}
			q, qs := load("q")
			k, ks := load("k")
			v, _ := load("v")
			want, _ := load(name)
			heads, n, kvHeads, dim := qs[1], ks[0], ks[1], ks[2]
			pool, err := b.NewKVPool(backend.KVLayout{Page: 64, Layers: []backend.KVDims{
				{Heads: kvHeads, KeyDim: dim, ValueDim: dim, Key: types[0], Value: types[1]}}})
			if err != nil {
				t.Fatal(err)
			}
			page, err := pool.Alloc()
			if err != nil {
				t.Fatal(err)
			}
			tensor := func(v []float32, cols int) backend.Tensor {
				x, err := b.Alloc(len(v)/cols, cols)
				if err != nil {
					t.Fatal(err)
				}
				b.Write(x, v)
				return x
			}
			plan := func(from int) *backend.Plan {
				p := backend.KVPlan{Pool: pool, Tables: [][]int32{{page}}}
				for s := from; s < n; s++ {
					p.Seg, p.Slot = append(p.Seg, 0), append(p.Slot, int32(s))
					p.Lo, p.Hi = append(p.Lo, 0), append(p.Hi, int32(s+1))
				}
				return &backend.Plan{KV: []backend.KVPlan{p}}
			}
			b.BeginStep(plan(0))
			b.KVWrite(0, 0, tensor(k, kvHeads*dim), tensor(v, kvHeads*dim))
			b.EndStep()
			out := tensor(make([]float32, len(q)), heads*dim)
			b.BeginStep(plan(n - qs[0]))
			b.Attention(out, tensor(q, heads*dim), 0, 0, backend.AttnParams{Heads: heads, KVHeads: kvHeads,
				Scale: float32(1 / math.Sqrt(float64(dim)))})
			b.EndStep()
			for i, x := range b.Read(out) {
				if math.Abs(float64(x-want[i])) > 1e-5 {
					t.Errorf("%s.%s: value %d is %v, want %v", size, name, i, x, want[i])
					break
				}
			}
		}
	}
}
