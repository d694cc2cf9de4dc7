package backendtest

import (
	"slices"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

func memoryCases() []testCase {
	return []testCase{
		{"Alloc is zeroed", allocZeroed},
		{"Read and Write of views", views},
		{"Ints", intsCase},
		{"Weight refuses what it cannot", weightRefuses},
		{"Weight with Forget", weightForget},
		{"parked weights", parkedWeights},
	}
}

// allocZeroed: also where memory was used before.
func allocZeroed(s *suite) {
	k := s.device()
	for range 3 {
		for _, n := range []int{1, 7, 64, 1000} {
			t, err := k.Alloc(n, 33)
			k.check(err)
			if t.Rows != n || t.Cols != 33 || t.Stride != 33 || t.Buf.Len() < t.Off+n*33 {
				s.Fatalf("Alloc(%d, 33) gave %d rows of %d columns, %d apart", n, t.Rows, t.Cols, t.Stride)
			}
			if i := slices.IndexFunc(k.Read(t), func(x float32) bool { return !same(x, 0) }); i >= 0 {
				s.Fatalf("value %d of new memory of %d rows is not zero", i, n)
			}
			k.Write(t, slices.Repeat([]float32{canary}, n*33))
			k.Free(t)
		}
	}
	k.Free(backend.Tensor{})
	k.check(k.Sync())
}

// views: reading and writing part of the rows and columns touches nothing else.
func views(s *suite) {
	k := s.device()
	t, err := k.Alloc(6, 20)
	k.check(err)
	want := values("all", 0, 120)
	k.Write(t, want)
	part := t.Slice(2, 3).Columns(7, 5)
	v := values("part", 0, 15)
	k.Write(part, v)
	for i, x := range v {
		want[(2+i/5)*20+7+i%5] = x
	}
	if !sameResult(k.Read(part), v) {
		s.Error("a view does not hold what was written to it")
	}
	if !sameResult(k.Read(t), want) {
		s.Error("writing a view changed something else")
	}
	if !sameResult(k.Read(t.Slice(4, 1)), want[80:100]) {
		s.Error("one row of a tensor is not that row")
	}
}

func intsCase(s *suite) {
	k := s.device()
	v := k.ints(5, -6, 7, 1<<30)
	k.SetInts(v, []int32{8, 9})
	if got := k.Ints(v); v.Len() != 4 || !slices.Equal(got, []int32{8, 9, 7, 1 << 30}) {
		s.Errorf("integers are %v after the first two were set to 8 and 9", got)
	}
}

func weightRefuses(s *suite) {
	k := s.device()
	for _, t := range []quant.Type{quant.I32, quant.IQ1_S, 999} {
		m := backend.Matrix{Name: "odd", Type: t, Rows: 2, Cols: 256, Experts: 1, Data: make([]byte, 4096)}
		if _, err := k.Weight(m); err == nil {
			s.Errorf("a weight of type %v was taken", t)
		}
	}
	odd := backend.KVDims{Heads: 1, KeyDim: 40, ValueDim: 40, Key: quant.Q8_0, Value: quant.Q8_0}
	if _, err := k.NewKVPool(backend.KVLayout{Page: pageTokens, Layers: []backend.KVDims{odd}}); err == nil {
		s.Error("a cache of Q8_0 heads of 40 values was taken")
	}
}

// weightForget: a device says at most once that it has a copy, and it has one then. One with memory of its own does.
func weightForget(s *suite) {
	k := s.device()
	for _, typ := range s.Weights {
		m := k.matrix(typ, 1, 40, 512)
		b, forgotten := m.Matrix, 0
		if n := k.WeightBytes(b); n < 0 {
			s.Errorf("%v: takes %d bytes", typ, n)
		}
		b.Forget = func() { forgotten++ }
		w, err := k.Weight(b)
		k.check(err)
		k.check(k.Sync())
		if forgotten > 1 || s.Copies && forgotten == 0 {
			s.Errorf("%v: forgotten %d times", typ, forgotten)
		}
		in := values("x", 0, 512)
		x, y := k.input([][]float32{in}), k.place(1, 40)
		k.MatMul(x.Tensor, backend.Product{W: w, Y: y.Tensor})
		k.near(typ.String(), k.finish(y)[0][0], m.times(0, wide(in)), s.Product(typ, 512), m.sizes(0, wide(in)))
	}
}

// parkedWeights: a weight that was parked, while another one had its memory, multiplies as before, also in a step that
// was recorded.
func parkedWeights(s *suite) {
	k := s.device()
	p, ok := k.Backend.(backend.Parker)
	if !ok {
		s.Skipf("%s keeps its weights", k.Name())
	}
	const rows, cols = 40, 512
	for _, typ := range s.Weights {
		m := k.matrix(typ, 1, rows, cols)
		w := k.bind(m)
		x, y := k.input([][]float32{values("x", 0, cols)}), k.place(1, rows)
		product := func(run func() bool) []float32 {
			k.Write(y.Tensor, make([]float32, rows))
			if !run() {
				return nil
			}
			k.check(k.Sync())
			return slices.Clone(k.Read(y.Tensor))
		}
		name := 0
		step := func() bool {
			k.BeginStep(nil)
			k.MatMul(x.Tensor, backend.Product{W: w, Y: y.Tensor})
			var err error
			name, err = k.EndStep()
			k.check(err)
			return true
		}
		want := product(step)
		product(step) // recorded by now
		recorded := name
		p.Park(w)
		other := k.bind(k.matrix(typ, 1, rows+1, cols))
		k.check(p.Unpark(w, m.Matrix))
		again := product(func() bool {
			known, err := backend.Repeat(k.Backend, recorded, nil)
			k.check(err)
			return known
		})
		if again != nil && !sameResult(again, want) {
			s.Errorf("%v: a recorded product is another one after its weight was parked", typ)
		}
		for range 2 {
			if !sameResult(product(step), want) {
				s.Errorf("%v: a product is another one after its weight was parked", typ)
			}
		}
		p.Park(w, other)
	}
}
