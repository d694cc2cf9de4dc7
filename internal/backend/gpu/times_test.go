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
		{q40, 256, []int{1024, 32768, 131072}, [][2]int{{1, 1}, {1, 16}, {1, 64}, {1, 512}}},
		{t3, 256, []int{1024, 32768, 131072}, [][2]int{{1, 1}, {1, 16}, {1, 64}, {1, 512}}},
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
	w.pages, err = gpu.NewPages(d, backend.KVLayout{Page: 64, Layers: shapes}, nil)
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
		at, err := gpu.NewAttention(on.Props(), heads, s)
		w.must(err)
		ways := []string{""}
		if at.Halves() != nil {
			ways = append(ways, ", unpacked once")
		}
		for _, way := range ways {
			var line strings.Builder
			fmt.Fprintf(&line, "%s %d dimensions, %d slots%s%s, floor %.1f us a sequence:", s.Key, s.KeyDim, slots, kind, way,
				float64(bytes)/4.5e6)
			for _, b := range batches {
				line.WriteString(w.timeBatch(at, way != "", tables[:b[0]], slots, b[1]))
			}
			t.Log(line.String())
		}
	}
	if at := w.at; d.Props().Major == 9 && slots >= 4096 { // prompts that see about a tenth, and all
		for _, alpha := range []float32{0, 2} {
			w.sparse = &backend.Sparse{Block: 128, Sink: slots / 1280, Window: 4, Alpha: alpha, Tokens: []int{2 * slots}}
			t.Logf("%s %d dimensions, %d slots, sparse with alpha %v: %s", s.Key, s.KeyDim, slots, alpha,
				w.timeBatch(at, at.Halves() != nil, tables[:1], slots, 512))
		}
		w.sparse = nil
	}
}

// timeBatch times attention for the last rows of some sequences.
func (w *world) timeBatch(at *gpu.Attention, unpack bool, tables [][]int32, slots, rows int) string {
	const heads = 24
	p := &backend.KVPlan{Tables: tables}
	for g := range tables {
		for r := range rows {
			addRow(p, g, slots-rows+r)
		}
	}
	run, longest := at, rows
	if unpack {
		run = at.Halves()
	}
	if w.sparse != nil {
		run, longest = run.Sparsely()
	}
	k := w.tablesOf(p, run.Tiling(longest))
	room := k.Room()
	block := make([]byte, room.Bytes())
	k.Put(block, room)
	l, n, width := w.pages.Layout, len(tables)*rows, heads*at.Shape.KeyDim
	q, out, plan := w.upload(rawBytes(w.normal(n*width, 1))), w.upload(make([]byte, 4*n*width)), w.upload(block)
	c := gpu.AttnCall{Q: q, Out: out, QStride: width, OStride: width, Rows: n, Longest: longest, Tables: room.At(plan),
		Merge: k.Partials > 0, Partials: k.Partials, Scale: 0.06}
	c.Tables.Pages, c.Entries = w.pages.Table()
	used := []gpu.Addr{q, out, plan}
	alloc := func(bytes int) gpu.Addr {
		a, err := w.d.Alloc(max(16, bytes))
		w.must(err)
		used = append(used, a)
		return a
	}
	c.Scratch, c.Rotated = alloc(at.ScratchBytes(k.Partials)), alloc(4*n*width)
	if unpack {
		c.Unpack = alloc(at.UnpackBytes(k.Pages, c.Entries))
	}
	if s := w.sparse; s != nil {
		c.Sparse = &gpu.SparseCall{Block: s.Block, Sink: s.Sink, Window: s.Window, Last: s.Last, Alpha: s.Alpha, Keys: k.Keys,
			Words: (k.Longest + 63) / 64, Queries: room.Queries}
		c.Sparse.Scratch = alloc(at.SparseBytes(c.Sparse))
	}
	var ls []gpu.Call
	for i := range l.Places {
		c.Place = l.Places[i]
		ls = at.Launches(ls, c)
	}
	r, err := w.d.Record(emitted(w.t, w.d, ls))
	w.must(err)
	best := time.Duration(1 << 62)
	for range 4 {
		w.d.Replay(r)
		w.must(w.d.Wait())
		start := time.Now()
		for range 3 {
			w.d.Replay(r)
		}
		w.must(w.d.Wait())
		best = min(best, time.Since(start)/3)
	}
	r.Close()
	for _, a := range used {
		w.d.Release(a)
	}
	return fmt.Sprintf("  %dx%d rows %.1f us (%d partial)", len(tables), rows,
		float64(best.Microseconds())/float64(len(l.Places)), k.Partials)
}
