package cpu

import (
	"fmt"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// BenchmarkAttention is a chunk of a prompt after many tokens, on the heads of Qwen3.5-0.8B.
func BenchmarkAttention(b *testing.B) {
	d := New(Options{Threads: 1})
	defer d.Close()
	const rows, heads, kvHeads, dim = 64, 8, 2, 256
	for _, c := range []struct {
		t      quant.Type
		before int
	}{{quant.F16, 1024}, {quant.F16, 11264}, {quant.F16, 32768}, {quant.Q8_0, 11264}, {quant.Q4_0, 11264},
		{quant.Turbo4, 11264}, {quant.Turbo3, 11264}} {
		b.Run(fmt.Sprintf("%s/%d", c.t, c.before), func(b *testing.B) {
			t, before := c.t, c.before
			layer := backend.KVDims{Heads: kvHeads, KeyDim: dim, ValueDim: dim, Key: t, Value: t}
			pool, err := d.NewKVPool(backend.KVLayout{Page: 64, Layers: []backend.KVDims{layer}})
			if err != nil {
				b.Fatal(err)
			}
			p := backend.KVPlan{Pool: pool, Tables: [][]int32{nil}}
			for range (before + rows) / 64 {
				page, _ := pool.Alloc()
				p.Tables[0] = append(p.Tables[0], page)
			}
			for r := range rows {
				p.Seg, p.Slot = append(p.Seg, 0), append(p.Slot, int32(before+r))
				p.Lo, p.Hi = append(p.Lo, 0), append(p.Hi, int32(before+r+1))
			}
			q, _ := d.Alloc(rows, heads*dim)
			out, _ := d.Alloc(rows, heads*dim)
			d.BeginStep(&backend.Plan{KV: []backend.KVPlan{p}})
			for b.Loop() {
				d.Attention(out, q, 0, 0, backend.AttnParams{Heads: heads, KVHeads: kvHeads, Scale: 0.1})
			}
			b.ReportMetric(float64(4*rows*heads*dim*(before+rows/2))*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
