package backendtest

import (
	"fmt"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

func embedCases(o Options) []testCase {
	var list []testCase
	for _, typ := range o.Weights {
		list = append(list, testCase{"Embed " + typ.String(), func(s *suite) {
			k := s.device()
			for _, cols := range []int{256, 512} {
				k.embed(typ, cols)
			}
		}})
	}
	return list
}

// embed: any row of the table, a negative id for the first one.
func (k *kit) embed(typ quant.Type, cols int) {
	k.Helper()
	const rows, scale, stored = 40, 1.5, 0.25
	m := k.matrix(typ, 1, rows, cols)
	plain, scaled := k.bind(m), k.bind(m, stored)
	id := func(item int) int { return []int{-1, 39, 0, 7, -5}[item%5] - item%3 }
	for _, f := range []float64{1, scale * stored} {
		k.obey(op{
			items: 9, bound: rounding + k.Stored(typ), clean: true,
			run: func(k *kit, items []int, _ int) [][]float32 {
				ids := make([]int32, len(items))
				for i, item := range items {
					ids[i] = int32(id(item))
				}
				dst := k.place(len(items), cols)
				if f == 1 {
					k.Embed(dst.Tensor, plain, k.ints(ids...), 1)
				} else {
					k.Embed(dst.Tensor, scaled, k.ints(ids...), scale)
				}
				return k.finish(dst)[0]
			},
			want: func(k *kit, item int) []float64 {
				out := make([]float64, cols)
				for c, v := range m.values[max(0, id(item))*cols:][:cols] {
					out[c] = f * v
				}
				return out
			},
		})
	}
}

func productCases(o Options) []testCase {
	var list []testCase
	for _, typ := range o.Weights {
		list = append(list, testCase{"MatMul " + typ.String(), func(s *suite) {
			k := s.device()
			sizes := [][2]int{{37, 256}, {130, 512}, {1, 512}}
			if typ.BlockLen() <= 32 {
				sizes = append(sizes, [2]int{19, 544}) // rows that are no whole number of super-blocks
			}
			if typ.BlockLen() == 1 {
				sizes = append(sizes, [2]int{10, 67}, [2]int{3, 1})
			}
			for _, z := range sizes {
				k.product(s, typ, z[0], z[1])
			}
		}})
	}
	return append(list, testCase{"MatMul of several weights", severalProducts}, testCase{"MatMul with halves", halves},
		testCase{"steps with halves", halfSteps})
}

// halfBound is for activations rounded to halves, which have eleven digits.
const halfBound = 1e-3

// halves: matrices whose products may round activations. Sizes lie on both sides of blocks of 128 rows and 32 columns.
func halves(s *suite) {
	k := s.device()
	for _, typ := range []quant.Type{quant.F16, quant.BF16} {
		for _, z := range [][2]int{{130, 72}, {5, 8}, {128, 320}, {7, 13}} {
			m := *k.matrix(typ, 1, z[0], z[1])
			m.Halves = true
			k.multiply(&m, halfBound, false)
		}
	}
}

// halfSteps: products of halves with biases, an activation and a residual sum give the same bits in one step, where
// devices may fuse them, and one by one. Rows that are read later, by the host or an operation, are there.
func halfSteps(s *suite) {
	const n, wide, narrow = 131, 136, 72
	k := s.device()
	weight := func(rows, cols int) backend.Weight {
		m := *k.matrix(quant.F16, 1, rows, cols)
		m.Halves = true
		return k.bind(&m)
	}
	up, other, down := weight(wide, narrow), weight(wide, narrow), weight(narrow, wide)
	long, short := k.vector(values("long", 0, wide)), k.vector(values("short", 0, narrow))
	second := k.vector(values("long", 1, wide))
	items := make([]int, n)
	for i := range items {
		items[i] = i
	}
	run := func(together bool) [][][]float32 {
		x, z := k.input(k.rows("in", items, narrow)), k.input(k.rows("sum", items, narrow))
		a, b, h, y, q := k.place(n, wide), k.place(n, wide), k.place(n, wide), k.place(n, narrow), k.place(n, wide)
		ops := []func(){
			func() {
				k.MatMul(x.Tensor, backend.Product{W: up, Y: a.Tensor}, backend.Product{W: other, Y: b.Tensor})
			},
			func() { k.AddBias(b.Tensor, second) },
			func() { k.AddBias(a.Tensor, long) },
			func() { k.MatMul(x.Tensor, backend.Product{W: other, Y: h.Tensor}) },
			func() { k.AddBias(h.Tensor, long) },
			func() { k.Activate(h.Tensor, h.Tensor, backend.GELU) },
			func() { k.MatMul(h.Tensor, backend.Product{W: down, Y: y.Tensor}) },
			func() { k.AddBias(y.Tensor, short) },
			func() { k.Add(z.Tensor, z.Tensor, y.Tensor) },
			func() { k.MatMul(z.Tensor, backend.Product{W: up, Y: h.Tensor}) }, // rows of h are other ones now
			func() { k.MatMul(h.Tensor, backend.Product{W: down, Y: x.Tensor}) },
			func() { k.MatMul(x.Tensor, backend.Product{W: up, Y: q.Tensor}) },
			func() { k.Activate(q.Tensor, q.Tensor, backend.GELU) },
		}
		x.output, z.output = true, true
		if together {
			k.BeginStep(nil)
		}
		for _, op := range ops {
			op()
		}
		if together {
			_, err := k.EndStep()
			k.check(err)
		}
		return k.finish(a, b, h, y, z, x, q)
	}
	want := run(false)
	for i, got := range run(true) {
		k.equal(fmt.Sprint("tensor ", i, " of a step"), got, want[i])
	}
}

func isFloat(t quant.Type) bool { return t.BlockLen() == 1 }

// product: a batch times one matrix.
func (k *kit) product(s *suite, typ quant.Type, rows, cols int) {
	k.Helper()
	k.multiply(k.matrix(typ, 1, rows, cols), s.Product(typ, cols), isFloat(typ))
}

func (k *kit) multiply(m *matrix, bound float64, strict bool) {
	k.Helper()
	w, rows, cols := k.bind(m), m.Rows, m.Cols
	k.obey(op{
		items: k.most(), bound: bound, strict: strict,
		run: func(k *kit, items []int, _ int) [][]float32 {
			x, y := k.input(k.rows("x", items, cols)), k.place(len(items), rows)
			k.MatMul(x.Tensor, backend.Product{W: w, Y: y.Tensor})
			return k.finish(y)[0]
		},
		want:  func(k *kit, item int) []float64 { return m.times(0, wide(k.row("x", item, cols))) },
		sizes: func(k *kit, item int) []float64 { return m.sizes(0, wide(k.row("x", item, cols))) },
	})
}

// severalProducts: products of one input with weights of several types and sizes, one of them with a scale, into
// columns of one tensor. Each has the bits of a product on its own.
func severalProducts(s *suite) {
	k := s.device()
	const cols = 512
	types := s.Weights
	for from := 0; from < len(types); from += 3 {
		var ms []*matrix
		var ws []backend.Weight
		width := 0
		for i, t := range types[from:min(from+3, len(types))] {
			m := k.matrix(t, 1, 11+9*i, cols)
			ms, width = append(ms, m), width+m.Rows
			if i == 1 {
				ws = append(ws, k.bind(m, 0.75))
			} else {
				ws = append(ws, k.bind(m))
			}
		}
		for _, n := range s.Rows {
			for _, k.layout = range layouts {
				items := make([]int, n)
				for i := range items {
					items[i] = i + n
				}
				x, all := k.input(k.rows("x", items, cols)), k.place(n, width)
				var ps []backend.Product
				at := 0
				for i, w := range ws {
					ps = append(ps, backend.Product{W: w, Y: all.Columns(at, ms[i].Rows)})
					at += ms[i].Rows
				}
				k.MatMul(x.Tensor, ps...)
				got := k.finish(all)[0]
				at = 0
				for i, m := range ms {
					x, y := k.input(k.rows("x", items, cols)), k.place(n, m.Rows)
					k.MatMul(x.Tensor, backend.Product{W: ws[i], Y: y.Tensor})
					for r, alone := range k.finish(y)[0] {
						if !sameResult(got[r][at:][:m.Rows], alone) {
							s.Errorf("%v: row %d of %d has other bits beside other products than alone", m.Type, r, n)
						}
						if n > 1 {
							continue // compared with the definition once
						}
						in := wide(values("x", items[r], cols))
						want := m.times(0, in)
						if i == 1 {
							for j := range want {
								want[j] *= 0.75
							}
						}
						k.near(fmt.Sprint(m.Type), alone, want, s.Product(m.Type, cols), m.sizes(0, in))
					}
					at += m.Rows
				}
			}
		}
	}
}
