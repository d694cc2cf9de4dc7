package gpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"strobe/internal/quant"
)

// SelfTest computes a few things on a device just opened whose results are known: a device, a driver or a compiler may
// be broken, and wrong tokens are worse than an error. Each kind of kernel for products is tried, by the number of
// rows.
func SelfTest(d Driver) error {
	if _, err := TestSums(d); err != nil {
		return err
	}
	return TestProducts(d, 1, 3, 16, 40, 130)
}

// TestSums normalises rows, which needs sums over 32 lanes and over a block, and returns the results.
func TestSums(d Driver) ([]float32, error) {
	t := &Trial{d: d}
	defer t.Close()
	s := NewSmall(d.Props())
	const rows, short, long = 5, 77, 1300
	x := normal(rand.New(rand.NewPCG(1, 2)), rows*(short+long), 1)
	in, out := t.put(bytesOf(x)), t.room(4*len(x))
	ls := s.RMSNorm(nil, HeadsOut{P: out, Stride: short}, HeadsIn{In: Rows(in, short)}, 0, 1e-6, rows, 1, short)
	ls = s.RMSNorm(ls, HeadsOut{P: out + 4*rows*short, Stride: long}, HeadsIn{In: Rows(in+4*rows*short, long)}, 0, 1e-6,
		rows, 1, long)
	got := t.run(ls, out, len(x))
	if t.Err != nil {
		return nil, t.Err
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

// TestProducts multiplies a matrix of each layout of weights with each number of rows: the results are right, and a
// row's bits do not depend on how many others there are.
func TestProducts(d Driver, tokens ...int) error {
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q6_K, quant.Q8_0} {
		const rows, cols = 40, 512
		most := slices.Max(tokens)
		t, err := NewTrial(d, typ, rows, cols, most)
		if err != nil {
			return err
		}
		defer t.Close()
		want := make([]float64, most*rows)
		for i := range want {
			for c := range cols {
				want[i] += float64(t.x[i/rows*cols+c]) * float64(t.Values[i%rows*cols+c])
			}
		}
		var first []float32
		for _, n := range tokens {
			got := t.Product(n, false)
			if t.Err != nil {
				return t.Err
			}
			if e := distance(got, want[:len(got)]); !(e < 0.02) { // activations are rounded to bytes
				return fmt.Errorf("it computes wrongly: products of %d rows with %s are off by %.0e", n, typ, e)
			}
			if first == nil {
				first = got
			}
			if least := min(len(first), len(got)); !SameBits(first[:least], got[:least]) {
				return fmt.Errorf("it computes wrongly: a product with %s depends on the batch of %d rows", typ, n)
			}
		}
	}
	return nil
}

// weightSize is how large weights of models are: the scales of Q6_K are then below 2^-14, where drivers may take halves
// for zero.
const weightSize = 0.02

// Trial is a matrix of random weights on a device, with random rows to multiply.
type Trial struct {
	Err       error // the first failure
	d         Driver
	allocated []Addr
	layout    WeightLayout
	in, w     Addr
	x         []float32
	Values    []float32 // of the matrix
}

// NewTrial uploads a matrix of random weights, quantised to a type, and the rows.
func NewTrial(d Driver, typ quant.Type, rows, cols, tokens int) (*Trial, error) {
	raw, r := make([]byte, rows*typ.RowBytes(cols)), rand.New(rand.NewPCG(uint64(typ), 3))
	if err := quant.Quantize(typ, raw, normal(r, rows*cols, weightSize)); err != nil {
		return nil, err
	}
	return NewTrialOf(d, typ, raw, rows, cols, tokens)
}

// NewTrialOf uploads a quantised matrix and random rows.
func NewTrialOf(d Driver, typ quant.Type, raw []byte, rows, cols, tokens int) (*Trial, error) {
	t := &Trial{d: d, Values: make([]float32, rows*cols),
		x: normal(rand.New(rand.NewPCG(uint64(typ), 2)), tokens*cols, 1)}
	err := quant.Dequantize(typ, t.Values, raw)
	if err != nil {
		return nil, err
	}
	if t.layout, err = LayoutOf(typ, rows, cols, 1, len(raw)); err != nil {
		return nil, err
	}
	t.in, t.w = t.put(bytesOf(t.x)), t.put(t.layout.Pack(raw))
	if t.Err != nil {
		t.Close()
	}
	return t, t.Err
}

// Close gives its memory back.
func (t *Trial) Close() {
	for _, a := range t.allocated {
		t.d.Release(a)
	}
	t.allocated = nil
}

// Product multiplies the first n rows with the matrix, by cooperative matrices or by what the device has otherwise.
func (t *Trial) Product(n int, matrices bool) []float32 {
	s, p := NewSmall(t.d.Props()), NewProducts(t.d.Props())
	p.Matrices = matrices
	l := t.layout
	a := p.Acts(n, l)
	x := MatMulInput{ActLayout: a, P: t.room(a.Bytes())}
	j := MatMulJob{WeightLayout: l, W: t.w, Blocks: p.Cut(l)[0], Scale: 1}
	j.Part = t.room(PieceBytes(j.Result(n)))
	out := t.room(4 * n * l.Rows)
	ls := p.Pack(nil, Packed{ActLayout: a, P: x.P}, Rows(t.in, l.Cols), 1)
	ls = p.MatMul(ls, x, j)
	ls = s.Copy(ls, Out{P: out, Stride: l.Rows}, j.Result(n), n, l.Rows)
	return t.run(ls, out, n*l.Rows)
}

// run launches and returns n values that lie at a.
func (t *Trial) run(calls []Call, a Addr, n int) []float32 {
	if t.Err != nil {
		return nil
	}
	var ls []Launch
	if ls, t.Err = Emit(t.d, calls); t.Err != nil {
		return nil
	}
	// Launch would remember that a kernel does not compile, and the device could not be used any more.
	if p, ok := t.d.(Preparer); ok {
		if t.Err = p.Prepare(ls); t.Err != nil {
			return nil
		}
	}
	for i := range ls {
		t.d.Launch(&ls[i])
	}
	v := make([]float32, n)
	t.Err = t.d.Download(bytesOf(v), a)
	return v
}

func (t *Trial) room(bytes int) Addr {
	if t.Err != nil {
		return 0
	}
	var a Addr
	if a, t.Err = t.d.Alloc(bytes); t.Err == nil {
		t.allocated = append(t.allocated, a)
	}
	return a
}

func (t *Trial) put(b []byte) Addr {
	a := t.room(len(b))
	if t.Err == nil {
		t.d.Upload(a, b)
	}
	return a
}

func normal(r *rand.Rand, n int, scale float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64() * scale)
	}
	return v
}

// SameBits compares results.
func SameBits(a, b []float32) bool {
	for i := range min(len(a), len(b)) {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
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
