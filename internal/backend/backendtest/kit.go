package backendtest

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// kit is a device under test with what a case needs to use it.
type kit struct {
	*suite
	backend.Backend
	layout layout
	poison map[int]float32 // item: the value in the middle of its row of the input called x
	areas  []*area
}

// device opens a device that is closed at the end of the case.
func (s *suite) device() *kit {
	s.Helper()
	k := &kit{suite: s, Backend: s.open(s.TB)}
	s.Cleanup(func() {
		if err := k.Backend.Close(); err != nil {
			s.Errorf("close: %v", err)
		}
	})
	return k
}

// layout says how a tensor lies in its buffer: values before and after each row that belong to no tensor.
type layout struct{ before, after int }

// layouts are taken in turn: rows that follow each other, rows apart at aligned places, rows apart at odd places.
var layouts = []layout{{0, 0}, {4, 8}, {3, 2}}

// canary fills the values that belong to no tensor. It is a NaN, so that a result that reads it is noticed, with bits
// that arithmetic does not produce, so that writing another NaN is noticed too.
var canary = math.Float32frombits(0x7fc5a5a5)

// area is a tensor with canaries around it.
type area struct {
	backend.Tensor
	all    backend.Tensor // the whole buffer
	was    []float32      // what it held before the operation
	output bool
}

// place returns a tensor in the current layout whose rows are to be written by an operation.
func (k *kit) place(rows, cols int) *area {
	k.Helper()
	stride := k.layout.before + cols + k.layout.after
	all, err := k.Alloc(rows+2, stride)
	k.check(err)
	a := &area{all: all, output: true}
	a.Tensor = all.Slice(1, rows).Columns(k.layout.before, cols)
	a.was = slices.Repeat([]float32{canary}, (rows+2)*stride)
	k.Write(all, a.was)
	k.areas = append(k.areas, a)
	return a
}

// input returns a tensor with the given values. An operation that writes to it makes it an output first.
func (k *kit) input(rows [][]float32) *area {
	k.Helper()
	a := k.place(len(rows), len(rows[0]))
	k.fill(a, rows)
	a.output = false
	return a
}

// fill writes values through the tensor's own view.
func (k *kit) fill(a *area, rows [][]float32) {
	for r, v := range rows {
		copy(a.was[(r+1)*a.Stride+k.layout.before:], v)
	}
	v := slices.Concat(rows...)
	k.Write(a.Tensor, v)
	for i := range v {
		v[i] = canary // the caller may use its slice again
	}
}

// finish waits for the device, returns the rows of the given outputs and checks that everything else is as it was. The
// areas of the operation are given back.
func (k *kit) finish(outs ...*area) [][][]float32 {
	k.Helper()
	k.check(k.Sync())
	var results [][][]float32
	for _, o := range outs {
		flat := slices.Clone(k.Read(o.Tensor))
		var rows [][]float32
		for r := range o.Rows {
			rows = append(rows, flat[r*o.Cols:][:o.Cols:o.Cols])
		}
		results = append(results, rows)
	}
	for i, a := range k.areas {
		now := k.Read(a.all)
		lead := a.Off - a.all.Off
		for j := range now {
			r, c := (j-lead+a.Stride)/a.Stride-1, (j-lead+a.Stride)%a.Stride
			inside := j >= lead && r < a.Rows && c < a.Cols
			if !(inside && a.output) && !same(now[j], a.was[j]) {
				what := "outside the rows of"
				if inside {
					what = "in the input of"
				}
				k.Errorf("tensor %d of the operation, %d rows of %d columns: a value %s it was changed (row %d, column %d)",
					i, a.Rows, a.Cols, what, r, c)
				break
			}
		}
		k.Free(a.all)
	}
	k.areas = nil
	return results
}

func (k *kit) check(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

func (k *kit) ints(v ...int32) backend.Ints {
	k.Helper()
	i, err := k.AllocInts(len(v))
	k.check(err)
	k.SetInts(i, v)
	return i
}

func (k *kit) vector(v []float32) backend.Vector {
	k.Helper()
	x, err := k.Vector(v)
	k.check(err)
	return x
}

// values are n normal random numbers that depend on the name and the row alone.
func values(name string, row, n int) []float32 {
	h := fnv.New64a()
	fmt.Fprint(h, name, " ", row)
	r := rand.New(rand.NewPCG(h.Sum64(), 1))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// row is a row of the named input. The one called x is poisoned in its middle where the law of poison says so.
func (k *kit) row(name string, item, n int) []float32 {
	v := values(name, item, n)
	if p, ok := k.poison[item]; ok && name == "x" {
		v[n/2] = p
	}
	return v
}

// rows are the rows of several items.
func (k *kit) rows(name string, items []int, n int) [][]float32 {
	v := make([][]float32, len(items))
	for i, item := range items {
		v[i] = k.row(name, item, n)
	}
	return v
}

// matrix is a stored weight and its values.
type matrix struct {
	backend.Matrix
	values []float64 // without Scale
}

// matrices are made once: finding the best scales takes longer than using them.
var matrices = map[string]*matrix{}

// matrix makes a weight of a type. Types that package quant can only read get random blocks of a sensible size.
func (k *kit) matrix(t quant.Type, experts, rows, cols int) *matrix {
	k.Helper()
	key := fmt.Sprint(t, experts, rows, cols)
	if m := matrices[key]; m != nil {
		return m
	}
	v := make([]float32, experts*rows*cols)
	raw := make([]byte, experts*rows*t.RowBytes(cols))
	if t.Quantizable() {
		for i, x := range values("weight "+key, 0, len(v)) {
			v[i] = x / float32(math.Sqrt(float64(cols)))
		}
		k.check(quant.Quantize(t, raw, v))
	} else {
		randomBlocks(t, raw)
	}
	k.check(quant.Dequantize(t, v, raw))
	m := &matrix{backend.Matrix{Name: key, Type: t, Rows: rows, Cols: cols, Experts: experts, Data: raw}, wide(v)}
	matrices[key] = m
	return m
}

// randomBlocks fills raw with blocks whose values are neither tiny nor huge.
func randomBlocks(t quant.Type, raw []byte) {
	r := rand.New(rand.NewPCG(uint64(t), 2))
	v := make([]float32, t.BlockLen())
	for b := raw; len(b) > 0; b = b[t.BlockBytes():] {
		for size := float32(0); !(size > 0.01 && size < 4); {
			for i := range b[:t.BlockBytes()] {
				b[i] = byte(r.Uint32())
			}
			size = 0
			if quant.Dequantize(t, v, b[:t.BlockBytes()]) != nil {
				return // the caller's Dequantize reports it
			}
			for _, x := range v {
				size = max(size, x, -x) // NaN stays NaN
			}
		}
	}
}

// bind binds a weight.
func (k *kit) bind(m *matrix, scale ...float32) backend.Weight {
	k.Helper()
	b := m.Matrix
	b.Scale = scale
	w, err := k.Weight(b)
	k.check(err)
	if w.Rows() != m.Rows || w.Cols() != m.Cols || w.Experts() != m.Experts {
		k.Fatalf("weight of %d x %d x %d says it is %d x %d x %d", m.Experts, m.Rows, m.Cols, w.Experts(), w.Rows(), w.Cols())
	}
	return w
}

// times is the product of expert e with a row, by definition.
func (m *matrix) times(e int, x []float64) []float64 {
	y := make([]float64, m.Rows)
	for r := range y {
		for c, w := range m.values[(e*m.Rows+r)*m.Cols:][:m.Cols] {
			y[r] += w * x[c]
		}
	}
	return y
}

// sizes are the typical sizes of the results of such a product: what random signs would give.
func (m *matrix) sizes(e int, x []float64) []float64 {
	xx := 0.0
	for _, v := range x {
		xx += v * v
	}
	out := make([]float64, m.Rows)
	for r := range out {
		ww := 0.0
		for _, w := range m.values[(e*m.Rows+r)*m.Cols:][:m.Cols] {
			ww += w * w
		}
		out[r] = math.Sqrt(ww * xx / float64(m.Cols))
	}
	return out
}

func wide(v []float32) []float64 {
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}

func same(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

// sameResult is same, with all NaN alike: an operation may return any NaN.
func sameResult(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return same(x, y) || x != x && y != y })
}
