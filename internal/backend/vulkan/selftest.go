//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"unsafe"

	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// selfTest computes a few things whose results are known: drivers exist that list what they compute wrongly. Shuffles
// are used if they give the bits that shared memory gives; a device that sums or multiplies wrongly is refused.
func (d *Driver) selfTest() error {
	shared, err := d.testSums()
	if err != nil {
		return err
	}
	if d.canShuffle() && !d.opt.Shared {
		d.again(true)
		if shuffled, err := d.testSums(); err != nil || !sameBits(shared, shuffled) {
			d.again(false)
		}
	}
	if err := d.testProduct(); err != nil {
		return err
	}
	if d.opt.Loops || d.matrices && d.shuffles {
		if d.props.Matrices = d.testMatrices() == nil; d.err != nil {
			return errMatrices
		}
	}
	return d.err
}

// errMatrices says that the device was lost when it was asked for products by matrices.
var errMatrices = errors.New("cooperative matrices break it")

// again has all kernels compiled anew, with or without shuffles.
func (d *Driver) again(shuffles bool) {
	for _, k := range d.kernels {
		if k.pipeline != 0 {
			d.f.destroyPipeline.call(d.handle, uintptr(k.pipeline), 0)
			k.pipeline = 0
		}
	}
	d.shuffles = shuffles
}

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

func bytesOf[T any](v []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(t)))
}

// bench is memory for a test; it is given back at the end.
type bench struct {
	d    *Driver
	all  []gpu.Addr
	err  error
	rand *rand.Rand
}

func newBench(d *Driver, seed uint64) *bench {
	return &bench{d: d, rand: rand.New(rand.NewPCG(seed, 2))}
}

func (t *bench) room(bytes int) gpu.Addr {
	a, err := t.d.Alloc(bytes)
	if err != nil {
		t.err = err
		return 0
	}
	t.all = append(t.all, a)
	return a
}

func (t *bench) put(b []byte) gpu.Addr {
	a := t.room(len(b))
	if a != 0 {
		t.d.Upload(a, b)
	}
	return a
}

func (t *bench) normal(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(t.rand.NormFloat64())
	}
	return v
}

// run launches and returns n values that lie at a.
func (t *bench) run(calls []gpu.Call, a gpu.Addr, n int) ([]float32, error) {
	if t.err != nil {
		return nil, t.err
	}
	ls, err := gpu.Emit(t.d, calls)
	if err != nil {
		return nil, err
	}
	for i := range ls {
		// Launch would remember that a kernel does not compile, and the device could not be used any more.
		if err := t.d.compile(ls[i].Kernel.(*kernel)); err != nil {
			return nil, err
		}
		t.d.Launch(&ls[i])
	}
	v := make([]float32, n)
	return v, t.d.Download(bytesOf(v), a)
}

func (t *bench) close() {
	for _, a := range t.all {
		t.d.Release(a)
	}
}

// products multiplies n rows at in with a matrix, by matrices or by bytes.
func (t *bench) products(in, w gpu.Addr, l gpu.WeightLayout, n int, matrices bool) []float32 {
	s, p := gpu.NewSmall(t.d.props), gpu.NewProducts(t.d.props)
	p.Matrices = matrices
	a := p.Acts(n, l)
	x := gpu.MatMulInput{ActLayout: a, P: t.room(a.Bytes())}
	j := gpu.MatMulJob{WeightLayout: l, W: w, Blocks: p.Cut(l)[0], Scale: 1}
	j.Part = t.room(gpu.PieceBytes(j.Result(n)))
	out := t.room(4 * n * l.Rows)
	ls := p.Pack(nil, gpu.Packed{ActLayout: a, P: x.P}, gpu.Rows(in, l.Cols), 1)
	ls = p.MatMul(ls, x, j)
	ls = s.Copy(ls, gpu.Out{P: out, Stride: l.Rows}, j.Result(n), n, l.Rows)
	v, err := t.run(ls, out, n*l.Rows)
	if t.err == nil {
		t.err = err
	}
	return v
}

// testSums normalises rows: sums over 32 lanes and over a workgroup.
func (d *Driver) testSums() ([]float32, error) {
	t := newBench(d, 1)
	defer t.close()
	s := gpu.NewSmall(d.props)
	const rows, short, long = 5, 77, 1300
	x := t.normal(rows * (short + long))
	in, out := t.put(bytesOf(x)), t.room(4*len(x))
	ls := s.RMSNorm(nil, gpu.HeadsOut{P: out, Stride: short}, gpu.HeadsIn{In: gpu.Rows(in, short)}, 0, 1e-6, rows, 1,
		short)
	ls = s.RMSNorm(ls, gpu.HeadsOut{P: out + 4*rows*short, Stride: long}, gpu.HeadsIn{In: gpu.Rows(in+4*rows*short, long)},
		0, 1e-6, rows, 1, long)
	got, err := t.run(ls, out, len(x))
	if err != nil {
		return nil, err
	}
	want := make([]float64, len(x))
	for r := range 2 * rows {
		at, n := r*short, short
		if r >= rows {
			at, n = rows*short+(r-rows)*long, long
		}
		sum := 0.0
		for _, v := range x[at:][:n] {
			sum += float64(v) * float64(v)
		}
		for i := range n {
			want[at+i] = float64(x[at+i]) / math.Sqrt(sum/float64(n)+1e-6)
		}
	}
	if e := distance(got, want); !(e < 1e-5) {
		return nil, fmt.Errorf("it computes wrongly: sums are off by %.0e", e)
	}
	return got, nil
}

// testProduct multiplies a matrix of each kind of kernel with one and with three rows.
func (d *Driver) testProduct() error {
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q6_K, quant.Q8_0} {
		const rows, cols, tokens = 40, 512, 3
		test := func(t *bench, in, w gpu.Addr, l gpu.WeightLayout, x, values []float32) error {
			one, got := t.products(in, w, l, 1, false), t.products(in, w, l, tokens, false)
			if t.err != nil {
				return t.err
			}
			want := make([]float64, tokens*rows)
			for i := range want {
				for c := range cols {
					want[i] += float64(x[i/rows*cols+c]) * float64(values[i%rows*cols+c])
				}
			}
			if e := distance(got, want); !(e < 0.02) { // activations are rounded to bytes
				return fmt.Errorf("it computes wrongly: products with %s are off by %.0e", typ, e)
			}
			if !sameBits(one, got[:rows]) {
				return fmt.Errorf("it computes wrongly: a product with %s depends on the batch", typ)
			}
			return nil
		}
		if err := d.withMatrix(typ, rows, cols, tokens, test); err != nil {
			return err
		}
	}
	return nil
}

// trial is a test of products: n rows x lie at in, a matrix of values at w.
type trial func(t *bench, in, w gpu.Addr, l gpu.WeightLayout, x, values []float32) error

// weightSize is how large weights of models are: the scales of Q6_K are then below 2^-14, where drivers may take halves
// for zero.
const weightSize = 0.02

// withMatrix has a test use a random matrix and random rows, as they lie on the device and as numbers.
func (d *Driver) withMatrix(typ quant.Type, rows, cols, tokens int, test trial) error {
	t := newBench(d, uint64(typ))
	defer t.close()
	raw, values := make([]byte, rows*typ.RowBytes(cols)), t.normal(rows*cols)
	for i := range values {
		values[i] *= weightSize
	}
	if err := errors.Join(quant.Quantize(typ, raw, values), quant.Dequantize(typ, values, raw)); err != nil {
		return err
	}
	l, err := gpu.LayoutOf(typ, rows, cols, 1, len(raw))
	if err != nil {
		return err
	}
	x := t.normal(tokens * cols)
	return test(t, t.put(bytesOf(x)), t.put(l.Pack(raw)), l, x, values)
}

// testMatrices compares products by cooperative matrices with those by bytes: they have the same bits, or are not used.
func (d *Driver) testMatrices() error {
	// One that fills matrices from registers, and one that loads them.
	for typ, tokens := range map[quant.Type]int{quant.Q4_K: 16, quant.Q6_K: 8} {
		const rows, cols = 300, 768
		test := func(t *bench, in, w gpu.Addr, l gpu.WeightLayout, _, _ []float32) error {
			bytes, matrices := t.products(in, w, l, tokens, false), t.products(in, w, l, tokens, true)
			if t.err == nil && !sameBits(bytes, matrices) {
				return fmt.Errorf("cooperative matrices compute wrongly with %s", typ)
			}
			return t.err
		}
		if err := d.withMatrix(typ, rows, cols, tokens, test); err != nil {
			return err
		}
	}
	return nil
}

// distance is relative.
func distance(got []float32, want []float64) float64 {
	var d, n float64
	for i, w := range want {
		d += (float64(got[i]) - w) * (float64(got[i]) - w)
		n += w * w
	}
	return math.Sqrt(d / n)
}
