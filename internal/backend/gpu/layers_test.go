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

// layerShape is the sizes of a model's recurrent layer with its feed-forward part.
type layerShape struct {
	name        string
	hidden, ffn int
	dims        backend.DeltaDims
}

var layerShapes = []layerShape{
	{"27B", 5120, 17408, backend.DeltaDims{KHeads: 16, VHeads: 48, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6}},
	{"4B", 2560, 9216, backend.DeltaDims{KHeads: 16, VHeads: 32, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6}},
}

// layerRun is layers on a device, for a number of rows.
type layerRun struct {
	*productRig
	layerShape
	r      *recurrence
	layers [][]*productMatrix // qkv, z, alpha, beta, out, gate, up, down
	n      int
	spare  []gpu.Addr // of the list that was made last
	ls     []gpu.Call
	kinds  []string // of the launches
}

// add appends launches of a kind; kernels of a kind that differ by name are kinds of their own.
func (l *layerRun) add(kind string, ls []gpu.Call) {
	for _, x := range ls {
		name := x.Kernel.Name()
		if kind != "" {
			name = kind
		}
		l.kinds = append(l.kinds, name)
	}
	l.ls = append(l.ls, ls...)
}

func (l *layerRun) take(bytes int) gpu.Addr {
	a := l.room(bytes)
	l.spare = append(l.spare, a)
	return a
}

// multiplied appends the product of packed rows with matrices and returns its pieces.
func (l *layerRun) multiplied(kind string, x gpu.MatMulInput, ms ...*productMatrix) []gpu.In {
	var ws []gpu.WeightLayout
	for _, m := range ms {
		ws = append(ws, m.WeightLayout)
	}
	var jobs []gpu.MatMulJob
	var ins []gpu.In
	for i, b := range l.p.Cut(ws...) {
		j := gpu.MatMulJob{WeightLayout: ws[i], W: ms[i].w, Blocks: b, Scale: 1}
		j.Part = l.take(gpu.PieceBytes(j.Result(l.n)))
		jobs, ins = append(jobs, j), append(ins, j.Result(l.n))
	}
	l.add(kind, l.p.MatMul(nil, x, jobs...))
	return ins
}

func (l *layerRun) input(ms ...*productMatrix) gpu.MatMulInput {
	var ws []gpu.WeightLayout
	for _, m := range ms {
		ws = append(ws, m.WeightLayout)
	}
	x := gpu.MatMulInput{ActLayout: l.p.Acts(l.n, ws...)}
	x.P = l.take(x.Bytes())
	return x
}

// selfPacked is the input of a product that packs it, if that can be.
func (l *layerRun) selfPacked(m *productMatrix, made gpu.SelfPacked) gpu.MatMulInput {
	if l.p.CanSelfPack(&made, l.n, m.WeightLayout, l.p.Cut(m.WeightLayout)[0]) {
		return gpu.MatMulInput{ActLayout: l.p.Acts(l.n, m.WeightLayout), SelfPacked: &made}
	}
	return l.input(m)
}

// list makes the launches of all layers, as lowering does.
func (l *layerRun) list(prompt bool) {
	for _, a := range l.spare {
		l.d.Release(a)
	}
	l.spare, l.ls, l.kinds = nil, nil, nil
	chans, width := l.dims.ConvDim(), l.dims.VHeads*l.dims.VDim
	slot, err := l.r.pool.Alloc()
	l.r.must(err)
	defer l.r.pool.Free(slot)
	seg := backend.DeltaSeg{N: l.n, Slot: slot, Prompt: prompt}
	if !prompt { // a quarter of the rows of the pass before are applied first
		l.r.must(l.r.pool.Reserve(slot, l.n))
		_, err = l.r.pool.Tables([]backend.DeltaSeg{seg}, l.n)
		l.r.must(err)
		l.r.must(l.r.pool.Reserve(slot, l.n))
		seg.Pending = (l.n + 3) / 4
	}
	tables, err := l.r.pool.Tables([]backend.DeltaSeg{seg}, l.n)
	l.r.must(err)
	b := make([]byte, tables.Room().Bytes())
	tables.Put(b, tables.Room())
	table := l.take(len(b))
	l.d.Upload(table, b)
	x, w := l.r.floats(l.r.normal(l.n*l.hidden, 1)), l.r.floats(l.r.normal(l.hidden, 0.01))
	l.spare = append(l.spare, x, w)
	qkv := gpu.Out{P: l.take(4 * l.n * chans), Stride: chans}
	out := gpu.Out{P: l.take(4 * l.n * width), Stride: width}
	between := l.take(l.r.pool.ScratchBytes(l.n))
	packed := func(to gpu.MatMulInput) gpu.Packed { return gpu.Packed{ActLayout: to.ActLayout, P: to.P} }
	residual := func(kind string, to *gpu.MatMulInput, y gpu.In) {
		to.Sums, to.Eps = l.take(to.SumsBytes()), 1e-6
		l.add(kind, l.p.AddPack(nil, packed(*to), gpu.Sum{X: gpu.Rows(x, l.hidden), Y: y, Dst: x, DstStride: l.hidden, W: w,
			Sums: to.Sums}))
	}
	var last gpu.In // the product before, which is added to x
	for i, m := range l.layers {
		in := l.input(m[:4]...)
		residual("norm 1", &in, last)
		p := l.multiplied("qkv z a b", in, m[:4]...)
		l.add("", l.r.pool.Both(nil, gpu.DeltaCall{Table: table, Segs: 1, Rows: l.n, Layer: i, U: p[0], W: l.r.dw,
			QKV: qkv, Alpha: p[2], Beta: p[3], A: l.r.da, DT: l.r.dd, Out: out, Scratch: between}))
		in = l.selfPacked(m[4], gpu.SelfPacked{Kind: gpu.PackHeads, X: gpu.Rows(out.P, width), Gate: p[1], W: w,
			Dim: l.dims.VDim, Eps: 1e-6})
		if in.SelfPacked == nil {
			l.add("", l.p.HeadPack(nil, packed(in), gpu.Rows(out.P, width), p[1], w, l.dims.VDim, 1e-6))
		}
		p = l.multiplied("out", in, m[4])
		in = l.input(m[5:7]...)
		residual("norm 2", &in, p[0])
		p = l.multiplied("gate up", in, m[5:7]...)
		in = l.selfPacked(m[7], gpu.SelfPacked{Kind: gpu.PackSiLU, X: p[1], Gate: p[0]})
		if in.SelfPacked == nil {
			l.add("", l.p.GatedPack(nil, packed(in), p[0], p[1], false))
		}
		last = l.multiplied("down", in, m[7])[0]
	}
	l.p.LookAhead(l.ls)
}

// BenchmarkLayers prints microseconds of a recurrent layer with its feed-forward part on a GPU, layers following each
// other as in a pass, and how much less it is when one kind of kernel is left out: what that kind adds to a pass,
// beyond what overlaps. It asserts nothing.
func BenchmarkLayers(b *testing.B) {
	if os.Getenv("STROBE_CUDA") != "cuda" {
		b.Skip("times need a GPU: set STROBE_CUDA=cuda")
	}
	d := emulate.Open(b)
	for _, shape := range layerShapes {
		l := &layerRun{productRig: &productRig{b, d, gpu.NewProducts(d.Props())}, layerShape: shape}
		const layers = 6
		l.r = newRecurrence(&rig{b, d, rand.New(rand.NewPCG(7, 9))}, shape.dims, layers)
		width := shape.dims.VHeads * shape.dims.VDim
		for i := range layers { // half of some matrices have more bits in files of the mixed type
			often := quant.Q4_K
			if i%2 == 1 {
				often = quant.Q6_K
			}
			l.layers = append(l.layers, []*productMatrix{
				l.fill(often, shape.dims.ConvDim(), shape.hidden, 1), l.fill(quant.Q4_K, width, shape.hidden, 1),
				l.fill(quant.Q4_K, shape.dims.VHeads, shape.hidden, 1), l.fill(quant.Q4_K, shape.dims.VHeads, shape.hidden, 1),
				l.fill(quant.Q4_K, shape.hidden, width, 1), l.fill(quant.Q4_K, shape.ffn, shape.hidden, 1),
				l.fill(quant.Q4_K, shape.ffn, shape.hidden, 1), l.fill(often, shape.hidden, shape.ffn, 1)})
		}
		for _, n := range []int{1, 8, 16, 32, 512} {
			l.n = n
			l.list(n >= 128)
			if n == 1 {
				var names []string
				for _, x := range l.ls[:len(l.ls)/layers] {
					names = append(names, fmt.Sprintf("%s %v x %d, %d KiB", x.Kernel.Name(), x.Grid, x.Threads, x.Shared>>10))
				}
				b.Logf("%s: %s", shape.name, strings.Join(names, "; "))
			}
			all := l.timed(slices.Clone(l.ls), layers)
			var line strings.Builder
			fmt.Fprintf(&line, "%s, %d rows: layer %.1f us;", shape.name, n, all)
			seen := map[string]bool{}
			for _, kind := range l.kinds {
				if seen[kind] {
					continue
				}
				seen[kind] = true
				var rest []gpu.Call
				for i, x := range l.ls {
					if l.kinds[i] != kind {
						rest = append(rest, x)
					}
				}
				fmt.Fprintf(&line, "  %s %.2f", kind, all-l.timed(rest, layers))
			}
			if l.p.SelfPacks = false; n <= 8 {
				l.list(false)
				fmt.Fprintf(&line, "; all rows packed before %.1f", l.timed(slices.Clone(l.ls), layers))
			}
			l.p.SelfPacks = true
			b.Log(line.String())
		}
		for _, m := range slices.Concat(l.layers...) {
			l.release(m.w)
		}
		l.r.pool.Close()
	}
}
