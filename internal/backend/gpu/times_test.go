package gpu_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// BenchmarkAttention prints microseconds of an attention layer on a GPU: 24 query heads, 4 KV heads, layers following
// each other over so much memory that it does not stay in the cache. It asserts nothing.
func BenchmarkAttention(b *testing.B) {
	if os.Getenv("STROBE_CUDA") != "cuda" {
		b.Skip("times need a GPU: set STROBE_CUDA=cuda")
	}
	d := emulate.Open(b)
	for _, c := range []struct {
		typ   quant.Type
		dim   int
		slots []int
		segs  [][2]int // segments and rows of each
	}{
		{f16, 256, []int{1024, 8192, 32768, 131072}, [][2]int{{1, 1}, {1, 8}, {1, 16}, {1, 32}}},
		{f16, 256, []int{1024, 8192}, [][2]int{{1, 512}, {8, 1}, {32, 1}}},
		{f16, 256, []int{32768, 131072}, [][2]int{{1, 512}}},
		{q8, 256, []int{1024, 32768, 131072}, [][2]int{{1, 1}, {1, 16}, {1, 512}}},
		{q40, 256, []int{1024, 32768, 131072}, [][2]int{{1, 1}, {1, 16}, {1, 512}}},
		{t3, 256, []int{1024, 32768, 131072}, [][2]int{{1, 1}, {1, 16}, {1, 512}}},
		{t3, 512, []int{32768}, [][2]int{{1, 1}, {1, 16}, {1, 512}}},
		{f16, 128, []int{1024, 8192, 32768}, [][2]int{{1, 1}, {1, 16}, {1, 512}}},
		{f16, 512, []int{1024, 8192, 32768}, [][2]int{{1, 1}, {1, 16}, {1, 512}}},
		{f16, 64, []int{1024, 8192, 32768}, [][2]int{{1, 1}, {1, 16}, {1, 512}}},
	} {
		s := backend.KVDims{Heads: 4, KeyDim: c.dim, ValueDim: c.dim, Key: c.typ, Value: c.typ}
		for _, slots := range c.slots {
			b.Run(fmt.Sprintf("%s/%d/%d", c.typ, c.dim, slots), func(b *testing.B) { timeAttention(b, d, s, slots, c.segs) })
		}
	}
}

func timeAttention(t testing.TB, d gpu.Driver, s backend.KVDims, slots int, batches [][2]int) {
	const heads = 24
	w := newWorldOn(t, d, heads, s)
	most := 0
	for _, b := range batches {
		most = max(most, b[0])
	}
	pages := (slots + 63) / 64
	bytes := pages * 64 * s.Heads * (s.Key.RowBytes(s.KeyDim) + s.Value.RowBytes(s.ValueDim))
	layers := min(64, max(4, (400<<20)/bytes))
	shapes := make([]backend.KVDims, layers)
	for i := range shapes {
		shapes[i] = s
	}
	var err error
	w.pages, err = gpu.NewPages(d, backend.KVLayout{Page: 64, Layers: shapes})
	w.must(err)
	l := w.pages.Layout
	defer w.pages.Close()
	content := w.junk(l.Bytes)
	var tables [][]int32
	for range most {
		var table []int32
		for range pages {
			id, err := w.pages.Alloc()
			w.must(err)
			w.pages.WritePage(id, content)
			table = append(table, id)
		}
		w.r.Shuffle(pages, func(i, j int) { table[i], table[j] = table[j], table[i] })
		tables = append(tables, table)
	}
	kinds := map[string]gpu.Driver{"": d}
	if d.Props().Major == 9 && slots <= 32768 {
		kinds[" without warpgroups"] = older{d}
	}
	for kind, on := range kinds {
		at, err := gpu.NewAttention(on, heads, s)
		w.must(err)
		var line strings.Builder
		fmt.Fprintf(&line, "%s %d dimensions, %d slots%s, floor %.1f us a sequence:", s.Key, s.KeyDim, slots, kind,
			float64(bytes)/4.5e6)
		for _, b := range batches {
			p := &backend.KVPlan{}
			for g := range b[0] {
				p.Tables = append(p.Tables, tables[g])
				for r := range b[1] {
					addRow(p, g, slots-b[1]+r)
				}
			}
			tiling := at.Tiling(b[1])
			k, err := gpu.NewKVTables(p, tiling, w.pages.Addr)
			w.must(err)
			room := k.Room()
			block := make([]byte, room.Bytes())
			k.Put(block, room)
			n, width := b[0]*b[1], heads*s.KeyDim
			q, out, plan := w.upload(rawBytes(w.normal(n*width, 1))), w.upload(make([]byte, 4*n*width)), w.upload(block)
			scratch := w.upload(make([]byte, max(16, at.ScratchBytes(k.Partials))))
			var ls []gpu.Launch
			for i := range layers {
				ls = at.Launches(ls, gpu.AttnCall{Q: q, Out: out, QStride: width, OStride: width, Rows: n, Longest: b[1],
					Tables: room.At(plan), Merge: k.Partials > 0, Scratch: scratch, Partials: k.Partials,
					Place: l.Places[i], Scale: 0.06})
			}
			r, err := d.Record(ls)
			w.must(err)
			best := time.Duration(1 << 62)
			for range 4 {
				d.Replay(r)
				w.must(d.Wait())
				start := time.Now()
				for range 3 {
					d.Replay(r)
				}
				w.must(d.Wait())
				best = min(best, time.Since(start)/3)
			}
			fmt.Fprintf(&line, "  %dx%d rows %.1f us (%d partial)", b[0], b[1],
				float64(best.Microseconds())/float64(layers), k.Partials)
			r.Close()
			for _, a := range []gpu.Addr{q, out, plan, scratch} {
				d.Release(a)
			}
		}
		t.Log(line.String())
	}
}
