package gpu_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// rig is a device with the products' kernels.
type productRig struct {
	t testing.TB
	d gpu.Driver
	p *gpu.Products
}

func newProductRig(t testing.TB) *productRig {
	d := emulate.Open(t)
	return &productRig{t, d, gpu.NewProducts(d.Props())}
}

func bytesOf[T any](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(v[0])))
}

// room is memory that holds NaN.
func (r *productRig) room(bytes int) gpu.Addr {
	r.t.Helper()
	a, err := r.d.Alloc(bytes)
	if err != nil {
		r.t.Fatal(err)
	}
	r.d.Fill(a, 0xff, bytes)
	return a
}

func (r *productRig) release(as ...gpu.Addr) {
	for _, a := range as {
		r.d.Release(a)
	}
}

func upload[T any](r *productRig, v []T) gpu.Addr {
	r.t.Helper()
	a := r.room(max(4, len(bytesOf(v))))
	r.d.Upload(a, bytesOf(v))
	return a
}

func (r *productRig) floats(a gpu.Addr, n int) []float32 {
	r.t.Helper()
	v := make([]float32, n)
	if err := r.d.Download(bytesOf(v), a); err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r *productRig) run(calls []gpu.Call) {
	r.t.Helper()
	for _, l := range emitted(r.t, r.d, calls) {
		r.d.Launch(&l)
	}
	if err := r.d.Wait(); err != nil {
		r.t.Fatal(err)
	}
}

// emitted is the launches of calls.
func emitted(t testing.TB, d gpu.Driver, calls []gpu.Call) []gpu.Launch {
	t.Helper()
	ls, err := gpu.Emit(d, calls)
	if err != nil {
		t.Fatal(err)
	}
	return ls
}

// kernelNamed is a kernel of the catalogue.
func kernelNamed(t testing.TB, name string) gpu.Kernel {
	t.Helper()
	for _, k := range gpu.Kernels() {
		if k.Name() == name {
			return k
		}
	}
	t.Fatalf("there is no kernel %s", name)
	return nil
}

// matrix is a stored matrix, its values, and its copy on the device.
type productMatrix struct {
	gpu.WeightLayout
	src    []byte
	values []float32
	w      gpu.Addr
}

func (r *productRig) productMatrix(rnd *rand.Rand, typ quant.Type, rows, cols, experts int) *productMatrix {
	r.t.Helper()
	m := &productMatrix{src: gpu.RandomBlocks(rnd, typ, rows*cols*experts), values: make([]float32, rows*cols*experts)}
	if err := quant.Dequantize(typ, m.values, m.src); err != nil {
		r.t.Fatal(err)
	}
	var err error
	if m.WeightLayout, err = gpu.LayoutOf(typ, rows, cols, experts, len(m.src)); err != nil {
		r.t.Fatal(err)
	}
	m.w = r.room(m.Bytes())
	m.Upload(r.d, m.w, m.src)
	return m
}

func randomRows(rnd *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rnd.NormFloat64())
		if rnd.IntN(300) == 0 {
			x[i] *= 30
		}
	}
	return x
}

// product multiplies rows of x with matrices in one launch, cut as blocks say, and adds the pieces.
func (r *productRig) product(x []float32, n int, ms []*productMatrix, blocks []int, scale float32) [][]float32 {
	r.t.Helper()
	cols := ms[0].Cols
	var ws []gpu.WeightLayout
	for _, m := range ms {
		ws = append(ws, m.WeightLayout)
	}
	lay := r.p.Acts(n, ws...)
	dx, act := upload(r, x), r.room(lay.Bytes())
	defer r.release(dx, act)
	ls := r.p.Pack(nil, gpu.Packed{ActLayout: lay, P: act}, gpu.Rows(dx, cols), 1)
	return r.multiply(ls, gpu.MatMulInput{ActLayout: lay, P: act}, ms, blocks, scale)
}

// multiply runs launches that pack x, the products, and the addition of pieces.
func (r *productRig) multiply(ls []gpu.Call, x gpu.MatMulInput, ms []*productMatrix, blocks []int,
	scale float32) [][]float32 {
	r.t.Helper()
	var jobs []gpu.MatMulJob
	for i, m := range ms {
		j := gpu.MatMulJob{WeightLayout: m.WeightLayout, W: m.w, Blocks: blocks[i], Scale: scale}
		j.Part = r.room(gpu.PieceBytes(j.Result(x.Rows)))
		defer r.release(j.Part)
		jobs = append(jobs, j)
	}
	ls = r.p.MatMul(ls, x, jobs...)
	var ys []gpu.Addr
	for i, m := range ms {
		y := r.room(x.Rows * m.Rows * 4)
		defer r.release(y)
		ys = append(ys, y)
		ls = r.p.Reduce(ls, y, m.Rows, jobs[i].Result(x.Rows), x.Rows, m.Rows)
	}
	r.run(ls)
	var out [][]float32
	for i, m := range ms {
		out = append(out, r.floats(ys[i], x.Rows*m.Rows))
	}
	return out
}

// plain is W x in float64.
func plain(w []float32, rows, cols int, x []float32) []float64 {
	n := len(x) / cols
	y := make([]float64, n*rows)
	for t := range n {
		for r := range rows {
			var s float64
			for c := range cols {
				s += float64(w[r*cols+c]) * float64(x[t*cols+c])
			}
			y[t*rows+r] = s
		}
	}
	return y
}

// apart is how far got is from want, relative to the size of want.
func apart(got []float32, want []float64) float64 {
	var d, w float64
	for i := range want {
		e := float64(got[i]) - want[i]
		d += e * e
		w += want[i] * want[i]
	}
	return math.Sqrt(d / w)
}

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}
