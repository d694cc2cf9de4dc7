package gpu_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// attendingShape is the sizes of a model's attention layer; ffn is 0 where experts follow, which are left out.
type attendingShape struct {
	name               string
	hidden, ffn        int
	heads, kvHeads     int
	dim, half, context int
	gated              bool
}

var attendingShapes = []attendingShape{
	{"4B", 2560, 9216, 16, 4, 256, 32, 1024, true},
	{"27B", 5120, 17408, 24, 4, 256, 32, 1024, true},
	{"35B-A3B", 2048, 0, 16, 2, 256, 32, 1024, true},
	{"26B-A4B", 2816, 0, 16, 8, 256, 128, 1024, false},
	{"26B-A4B, all", 2816, 0, 16, 2, 512, 64, 1024, false},
}

// attendingRun is attention layers on a device.
type attendingRun struct {
	layerRun
	attendingShape
	w        *world
	writer   *gpu.KVWriter
	separate bool // splits are added by a launch of their own
}

// list makes the launches of all layers for n rows of one sequence, as lowering does.
func (l *attendingRun) list(n int) {
	for _, a := range l.spare {
		l.d.Release(a)
	}
	l.n, l.spare, l.ls, l.kinds = n, nil, nil, nil
	pages := (l.context + 127) / 64
	var table []int32
	for range pages {
		id, err := l.w.pages.Alloc()
		l.w.must(err)
		table = append(table, id)
		defer l.w.pages.Free(id)
	}
	p := &backend.KVPlan{Tables: [][]int32{table}}
	for r := range n {
		addRow(p, 0, l.context+r)
	}
	k := l.w.tablesOf(p, l.w.at.Tiling(n))
	room := k.Room()
	b := make([]byte, room.Bytes())
	k.Put(b, room)
	at := l.take(len(b))
	l.d.Upload(at, b)
	tables := room.At(at)
	tables.Pages, _ = l.w.pages.Table()
	floats := func(n int, scale float64) gpu.Addr {
		a := l.w.floats(l.w.normal(n, scale))
		l.spare = append(l.spare, a)
		return a
	}
	width := l.heads * l.dim
	x, w, angles := floats(n*l.hidden, 1), floats(max(l.hidden, l.dim), 0.01), floats(n*l.half, 1)
	q, out := l.take(4*n*width), l.take(4*n*width)
	call := gpu.AttnCall{Q: q, Out: out, QStride: width, OStride: width, Rows: n, Longest: n, Tables: tables,
		Merge: k.Partials > 0, Partials: k.Partials, Scale: 0.06, Scratch: l.take(max(16, l.w.at.ScratchBytes(k.Partials)))}
	packed := func(to gpu.MatMulInput) gpu.Packed { return gpu.Packed{ActLayout: to.ActLayout, P: to.P} }
	residual := func(kind string, to *gpu.MatMulInput, y gpu.In) {
		to.Sums, to.Eps = l.take(to.SumsBytes()), 1e-6
		l.add(kind, l.p.AddPack(nil, packed(*to), gpu.Sum{X: gpu.Rows(x, l.hidden), Y: y, Dst: x, DstStride: l.hidden, W: w,
			Sums: to.Sums}))
	}
	var last gpu.In
	for i, m := range l.layers {
		in := l.input(m[:3]...)
		residual("norm 1", &in, last)
		r := l.multiplied("q k v", in, m[:3]...)
		call.Place = l.w.pages.Layout.Places[i]
		step, made := l.dim, gpu.Made{Kind: gpu.MadePlain, X: gpu.Rows(out, width)}
		if l.gated {
			step = 2 * l.dim
			made = gpu.Made{Kind: gpu.MadeSigmoid, X: gpu.Rows(out, width), Gate: r[0].Columns(l.dim), Dim: l.dim, Step: step}
		}
		l.add("", l.writer.QKV(nil, gpu.QKV{Q: gpu.HeadRows{In: r[0], Step: int32(step), Norm: w},
			K: gpu.HeadRows{In: r[1], Step: int32(l.dim), Norm: w}, V: gpu.HeadRows{In: r[2], Step: int32(l.dim)}, Eps: 1e-6,
			NormValues: !l.gated, Cos: angles, Sin: angles, Half: l.half, Turn: l.half, Rows: n, Heads: l.heads,
			KVHeads: l.kvHeads, Out: q, OutStride: width, Tables: tables, Place: call.Place}))
		ls := l.w.at.Launches(nil, call)
		if call.Merge && !l.separate {
			made.Splits = l.w.at.Splits(call)
			if l.made(m[3], made).Made != nil {
				ls = ls[:len(ls)-1]
			} else {
				made.Splits = nil
			}
		}
		l.add("", ls)
		if in = l.made(m[3], made); in.Made == nil && l.gated {
			l.add("", l.p.SigmoidPack(nil, packed(in), made.X, made.Gate, l.dim, step))
		} else if in.Made == nil {
			l.add("", l.p.Pack(nil, packed(in), made.X, 1))
		}
		last = l.multiplied("out", in, m[3])[0]
		if l.ffn == 0 {
			continue
		}
		in = l.input(m[4:6]...)
		residual("norm 2", &in, last)
		r = l.multiplied("gate up", in, m[4:6]...)
		in = l.made(m[6], gpu.Made{Kind: gpu.MadeSiLU, X: r[1], Gate: r[0]})
		if in.Made == nil {
			l.add("", l.p.GatedPack(nil, packed(in), r[0], r[1], false))
		}
		last = l.multiplied("down", in, m[6])[0]
	}
	l.p.LookAhead(l.ls)
}

// without is the launches but for those of a kind, and of is those of a kind alone.
func (l *attendingRun) without(kind string) (rest, same []gpu.Launch) {
	for i, x := range l.ls {
		if l.kinds[i] == kind {
			same = append(same, x)
		} else {
			rest = append(rest, x)
		}
	}
	return rest, same
}

// BenchmarkAttendingLayers prints microseconds of an attention layer with its feed-forward part on a GPU, as
// BenchmarkLayers does of recurrent ones, after 1,024 tokens; and each kind of kernel following itself.
func BenchmarkAttendingLayers(b *testing.B) {
	if os.Getenv("STROBE_CUDA") != "cuda" {
		b.Skip("times need a GPU: set STROBE_CUDA=cuda")
	}
	d := emulate.Open(b)
	const layers = 6
	for _, shape := range attendingShapes {
		s := backend.KVDims{Heads: shape.kvHeads, KeyDim: shape.dim, ValueDim: shape.dim, Key: quant.F16, Value: quant.F16}
		l := &attendingRun{attendingShape: shape}
		l.layerRun = layerRun{productRig: &productRig{b, d, gpu.NewProducts(d.Props())}}
		l.w = newWorldOn(b, d, shape.heads, s)
		l.w.r = rand.New(rand.NewPCG(7, 9))
		var err error
		l.w.pages, err = gpu.NewPages(d, backend.KVLayout{Page: 64, Layers: slices.Repeat([]backend.KVDims{s}, layers)}, nil)
		l.w.must(err)
		l.writer, err = gpu.NewKVWriter(d)
		l.w.must(err)
		q, kv := shape.heads*shape.dim, shape.kvHeads*shape.dim
		wide := q
		if shape.gated {
			wide = 2 * q
		}
		for i := range layers {
			often := quant.Q4_K
			if i%2 == 1 {
				often = quant.Q6_K
			}
			ms := []*productMatrix{l.fill(quant.Q4_K, wide, shape.hidden, 1), l.fill(quant.Q4_K, kv, shape.hidden, 1),
				l.fill(often, kv, shape.hidden, 1), l.fill(quant.Q4_K, shape.hidden, q, 1)}
			if shape.ffn > 0 {
				ms = append(ms, l.fill(quant.Q4_K, shape.ffn, shape.hidden, 1), l.fill(quant.Q4_K, shape.ffn, shape.hidden, 1),
					l.fill(often, shape.hidden, shape.ffn, 1))
			}
			l.layers = append(l.layers, ms)
		}
		for _, n := range []int{1, 2, 8} {
			for _, l.separate = range []bool{true, false} {
				l.list(n)
				if n == 1 {
					var names []string
					for _, x := range l.ls[:len(l.ls)/layers] {
						names = append(names, fmt.Sprintf("%s %v x %d, %d KiB", x.Name, x.Grid, x.Threads, x.Shared>>10))
					}
					fmt.Printf("%s: %s\n", shape.name, strings.Join(names, "; "))
				}
				all := l.timed(slices.Clone(l.ls), layers)
				again := l.timed(slices.Clone(l.ls), layers)
				fmt.Printf("%s, %d rows, splits added separately %v: layer %.2f %.2f us;", shape.name, n, l.separate, all, again)
				for i, kind := range l.kinds {
					if n > 1 || slices.Index(l.kinds, kind) != i {
						continue
					}
					rest, same := l.without(kind)
					fmt.Printf("  %s %.2f (%.2f)", kind, all-l.timed(rest, layers), l.timed(same, layers))
				}
				fmt.Println()
			}
		}
		for _, m := range slices.Concat(l.layers...) {
			l.release(m.w)
		}
		l.w.pages.Close()
	}
}
