package gpu_test

import (
	"fmt"
	"os"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// replay times one of many equal lists of launches in a recording.
func (g *rig) replay(b *testing.B, name string, emit func(i int) []gpu.Call) {
	b.Run(name, func(b *testing.B) {
		const lists = 24
		var ls []gpu.Call
		for i := range lists {
			ls = append(ls, emit(i)...)
		}
		r, err := g.d.Record(emitted(b, g.d, ls))
		g.must(err)
		defer r.Close()
		g.d.Replay(r)
		g.must(g.d.Wait())
		b.ResetTimer()
		for range b.N {
			g.d.Replay(r)
		}
		g.must(g.d.Wait())
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/lists/1e3, "us/list")
	})
}

// BenchmarkKernels times kernels one after the other in a recording, as in a step. It needs a GPU.
func BenchmarkKernels(b *testing.B) {
	if os.Getenv("STROBE_CUDA") != "cuda" {
		b.Skip("needs a GPU: set STROBE_CUDA=cuda")
	}
	g := newRig(b)
	s := gpu.NewSmall(g.d.Props())
	for _, rows := range []int{1, 16, 512} {
		x, y := g.plain(rows, 5120, 5120, 0, 1), g.alloc(rows*5120)
		g.replay(b, fmt.Sprintf("norm/%d", rows), func(int) []gpu.Call {
			return s.RMSNorm(nil, gpu.HeadsOut{P: y, Stride: 5120}, gpu.HeadsIn{In: x.in}, x.in.P, 1e-6, rows, 1, 5120)
		})
		g.replay(b, fmt.Sprintf("add/%d", rows), func(int) []gpu.Call {
			return s.Add(nil, gpu.Out{P: y,
				Stride: 5120}, x.in, x.in, rows, 5120)
		})
	}
	for _, rows := range []int{1, 16} {
		const cols = 248320
		x, ids, p := g.plain(rows, cols, cols, 0, 1), g.alloc(rows*8), g.alloc(rows*8)
		scratch := g.alloc(gpu.SelectScratch(rows, cols, 8) / 4)
		g.replay(b, fmt.Sprintf("argmax/%d", rows), func(int) []gpu.Call {
			return s.ArgMax(nil, ids, x.in, gpu.Out{}, rows, cols, scratch)
		})
		g.replay(b, fmt.Sprintf("top8/%d", rows), func(int) []gpu.Call {
			ls, err := s.TopK(nil, ids, gpu.Out{P: p, Stride: 8}, x.in, rows, cols, 8, scratch)
			g.must(err)
			return ls
		})
		r := g.plain(rows, 256, 256, 0, 1)
		g.replay(b, fmt.Sprintf("route/%d", rows), func(int) []gpu.Call {
			return s.Route(nil, ids, gpu.Out{P: p,
				Stride: 8}, r.in, rows, 256, 8, 1)
		})
	}
	f := gpu.NewFloats(g.d.Props())
	for _, c := range []struct{ rows, cols int }{{256, 5120}, {9216, 2560}} {
		for _, typ := range []quant.Type{quant.F32, quant.BF16} {
			m, _ := g.floatMatrix(typ, c.rows, c.cols)
			for _, n := range []int{1, 8, 16, 32, 512} {
				x, y := g.plain(n, c.cols, c.cols, 0, 1), g.alloc(n*c.rows)
				g.replay(b, fmt.Sprintf("float/%s/%dx%d/%d", typ, c.rows, c.cols, n), func(int) []gpu.Call {
					ls, err := f.Product(nil, m, gpu.Out{P: y, Stride: c.rows}, gpu.Out{P: x.in.P, Stride: c.cols}, n)
					g.must(err)
					return ls
				})
			}
		}
	}
	r := newRecurrence(g, backend.DeltaDims{KHeads: 16, VHeads: 48, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6}, 24)
	for _, c := range []struct {
		n, pending int
		prompt     bool
	}{{1, 1, false}, {4, 1, false}, {16, 4, false}, {32, 4, false}, {512, 0, true}} {
		slot, err := r.pool.Alloc()
		g.must(err)
		g.must(r.pool.Reserve(slot, max(4, c.pending)))
		if c.pending > 0 { // fill a tape
			r.pass("both", r.tokens(4), backend.DeltaSeg{N: 4, Slot: slot})
		}
		g.must(r.pool.Reserve(slot, c.n))
		tables, err := r.pool.Tables([]backend.DeltaSeg{{N: c.n, Slot: slot, Pending: c.pending, Prompt: c.prompt}}, 0)
		g.must(err)
		buf := make([]byte, tables.Room().Bytes())
		tables.Put(buf, tables.Room())
		table := g.alloc(len(buf) / 4)
		g.d.Upload(table, buf)
		x := r.tokens(c.n)
		chans, width := r.dims.ConvDim(), r.dims.VHeads*r.dims.VDim
		call := gpu.DeltaCall{Table: table, Segs: 1, Rows: c.n, U: gpu.Rows(g.floats(x.u), chans), W: r.dw,
			QKV:   gpu.Out{P: g.alloc(c.n * chans), Stride: chans},
			Alpha: gpu.Rows(g.floats(x.alpha), r.dims.VHeads), Beta: gpu.Rows(g.floats(x.beta), r.dims.VHeads),
			A: r.da, DT: r.dd,
			Out: gpu.Out{P: g.alloc(c.n * width), Stride: width}, Scratch: g.alloc(r.pool.ScratchBytes(c.n) / 4)}
		g.replay(b, fmt.Sprintf("delta/%d rows/%d pending", c.n, c.pending), func(i int) []gpu.Call {
			call.Layer = i
			return r.pool.Both(nil, call)
		})
	}
}
