package backendtest

import (
	"fmt"
	"math"
	"slices"

	"strobe/internal/backend"
)

// dense is an operation that computes each row of dst from the same row of its inputs.
type dense struct {
	name    string
	ins     []string // names of the inputs
	narrow  int      // this many last inputs have one column
	inPlace []int    // inputs that dst may be, besides being apart
	always  bool     // dst is always the first of inPlace
	do      func(k *kit, dst backend.Tensor, in []*area)
	ref     func(in [][]float64) []float64
	bound   float64
	lax     bool // what becomes of infinities is not defined
	large   bool // inputs are eight times as large, beyond the limits of what bounds them
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func gelu(x float64) float64 {
	return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

func geluErf(x float64) float64 { return x / 2 * math.Erfc(-x/math.Sqrt2) }

func quickGELU(x float64) float64 { return x * sigmoid(1.702*x) }

// activations by definition.
var activations = []struct {
	name string
	act  backend.Activation
	ref  func(x float64) float64
}{
	{"SiLU", backend.SiLU, func(x float64) float64 { return x * sigmoid(x) }},
	{"GELU", backend.GELU, gelu},
	{"GELUErf", backend.GELUErf, geluErf},
	{"QuickGELU", backend.QuickGELU, quickGELU},
}

// each applies f value by value.
func each(f func(v []float64) float64) func(in [][]float64) []float64 {
	return func(in [][]float64) []float64 {
		out := make([]float64, len(in[0]))
		v := make([]float64, len(in))
		for c := range out {
			for i := range in {
				v[i] = in[i][min(c, len(in[i])-1)]
			}
			out[c] = f(v)
		}
		return out
	}
}

func rmsNorm(x, w []float64, eps float64) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	out := make([]float64, len(x))
	for c, v := range x {
		out[c] = v / math.Sqrt(sum/float64(len(x))+eps)
		if w != nil {
			out[c] *= w[c]
		}
	}
	return out
}

// layerNorm shifts and scales the row, then its values by w and bias.
func layerNorm(x, w, bias []float64, eps float64) []float64 {
	mean, sum := 0.0, 0.0
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		sum += (v - mean) * (v - mean)
	}
	out := make([]float64, len(x))
	for c, v := range x {
		out[c] = (v-mean)/math.Sqrt(sum/float64(len(x))+eps)*w[c] + bias[c]
	}
	return out
}

const (
	rounding = 1e-7 // one operation in float32
	function = 2e-6 // a few, or an approximated function
)

func denseOps() []dense {
	weights := func(n int) []float32 { return values("norm", 0, n) }
	biases := func(n int) []float32 { return values("bias", 0, n) }
	list := []dense{
		{name: "RMSNorm", ins: []string{"x"}, inPlace: []int{0}, bound: function,
			do: func(k *kit, dst backend.Tensor, in []*area) {
				k.RMSNorm(dst, in[0].Tensor, k.vector(weights(dst.Cols)), 1e-5)
			},
			ref: func(in [][]float64) []float64 { return rmsNorm(in[0], wide(weights(len(in[0]))), 1e-5) }},
		{name: "RMSNorm without weights", ins: []string{"x"}, inPlace: []int{0}, bound: function,
			do:  func(k *kit, dst backend.Tensor, in []*area) { k.RMSNorm(dst, in[0].Tensor, nil, 0.5) },
			ref: func(in [][]float64) []float64 { return rmsNorm(in[0], nil, 0.5) }},
		{name: "Add", ins: []string{"x", "y"}, inPlace: []int{0, 1}, bound: rounding,
			do:  func(k *kit, dst backend.Tensor, in []*area) { k.Add(dst, in[0].Tensor, in[1].Tensor) },
			ref: each(func(v []float64) float64 { return v[0] + v[1] })},
		{name: "AddBias", ins: []string{"x"}, inPlace: []int{0}, always: true, bound: rounding,
			do: func(k *kit, dst backend.Tensor, _ []*area) { k.AddBias(dst, k.vector(weights(dst.Cols))) },
			ref: func(in [][]float64) []float64 {
				return each(func(v []float64) float64 { return v[0] + v[1] })([][]float64{in[0], wide(weights(len(in[0])))})
			}},
		{name: "Scale", ins: []string{"x"}, inPlace: []int{0}, bound: rounding,
			do:  func(k *kit, dst backend.Tensor, in []*area) { k.Scale(dst, in[0].Tensor, 0.37) },
			ref: each(func(v []float64) float64 { return v[0] * float64(float32(0.37)) })},
		{name: "Copy", ins: []string{"x"},
			do:  func(k *kit, dst backend.Tensor, in []*area) { k.Copy(dst, in[0].Tensor) },
			ref: each(func(v []float64) float64 { return v[0] })},
		{name: "LayerNorm", ins: []string{"x"}, inPlace: []int{0}, bound: function,
			do: func(k *kit, dst backend.Tensor, in []*area) {
				k.LayerNorm(dst, in[0].Tensor, k.vector(weights(dst.Cols)), k.vector(biases(dst.Cols)), 1e-5)
			},
			ref: func(in [][]float64) []float64 {
				return layerNorm(in[0], wide(weights(len(in[0]))), wide(biases(len(in[0]))), 1e-5)
			}},
		{name: "Clamp", ins: []string{"x"}, inPlace: []int{0},
			do:  func(k *kit, dst backend.Tensor, in []*area) { k.Clamp(dst, in[0].Tensor, -0.5, 0.75) },
			ref: each(func(v []float64) float64 { return min(max(v[0], -0.5), 0.75) })},
		{name: "SigmoidGate", ins: []string{"x", "y"}, inPlace: []int{0}, bound: function,
			do:  func(k *kit, dst backend.Tensor, in []*area) { k.SigmoidGate(dst, in[0].Tensor, in[1].Tensor) },
			ref: each(func(v []float64) float64 { return v[0] * sigmoid(v[1]) })},
		{name: "AddGated", ins: []string{"y", "x", "gate"}, narrow: 1, inPlace: []int{0}, always: true, bound: function,
			do:  func(k *kit, dst backend.Tensor, in []*area) { k.AddGated(dst, in[1].Tensor, in[2].Tensor) },
			ref: each(func(v []float64) float64 { return v[0] + sigmoid(v[2])*v[1] })},
		{name: "Softcap", ins: []string{"x"}, inPlace: []int{0}, always: true, bound: function,
			do:  func(k *kit, dst backend.Tensor, _ []*area) { k.Softcap(dst, 1.5) },
			ref: each(func(v []float64) float64 { return 1.5 * math.Tanh(v[0]/1.5) })},
	}
	for _, a := range activations {
		list = append(list,
			dense{name: "Activate " + a.name, ins: []string{"x"}, inPlace: []int{0}, bound: function, lax: true,
				do:  func(k *kit, dst backend.Tensor, in []*area) { k.Activate(dst, in[0].Tensor, a.act) },
				ref: each(func(v []float64) float64 { return a.ref(v[0]) })},
			dense{name: "Gated " + a.name, ins: []string{"x", "y"}, inPlace: []int{0, 1}, bound: function, lax: true,
				do: func(k *kit, dst backend.Tensor, in []*area) {
					k.Gated(dst, in[0].Tensor, in[1].Tensor, a.act)
				},
				ref: each(func(v []float64) float64 { return a.ref(v[0]) * v[1] })})
	}
	return append(list, dense{name: "Gated ClampedSwiGLU", ins: []string{"x", "y"}, inPlace: []int{0, 1}, bound: function,
		lax: true, large: true,
		do: func(k *kit, dst backend.Tensor, in []*area) {
			k.Gated(dst, in[0].Tensor, in[1].Tensor, backend.ClampedSwiGLU)
		},
		ref: each(func(v []float64) float64 { return quickGELU(min(v[0], 7)) * (1 + max(-7, min(v[1], 7))) })})
}

func denseCases() []testCase {
	var list []testCase
	for _, d := range denseOps() {
		list = append(list, testCase{d.name, func(s *suite) {
			k := s.device()
			for _, cols := range []int{1, 37, 96, 260} {
				k.dense(d, cols, k.most())
			}
			k.dense(d, min(9000, k.BigRow), 4) // rows that are worth sharing out
		}})
	}
	return append(list,
		testCase{"Gather", gather}, testCase{"BlockConv", blockConv}, testCase{"columns of one tensor", columns})
}

// width is the number of columns of input i.
func (d *dense) width(i, cols int) int {
	if i >= len(d.ins)-d.narrow {
		return 1
	}
	return cols
}

// row is a row of input i.
func (d *dense) row(k *kit, i, item, cols int) []float32 {
	v := k.row(d.ins[i], item, d.width(i, cols))
	for c := range v {
		if d.large {
			v[c] *= 8
		}
	}
	return v
}

func (k *kit) dense(d dense, cols, rows int) {
	k.Helper()
	k.obey(op{
		items: rows, bound: d.bound, strict: !d.lax,
		run: func(k *kit, items []int, variant int) [][]float32 {
			in := make([]*area, len(d.ins))
			for i := range d.ins {
				rows := make([][]float32, len(items))
				for r, item := range items {
					rows[r] = d.row(k, i, item, cols)
				}
				in[i] = k.input(rows)
			}
			var dst *area
			if d.always {
				dst = in[d.inPlace[0]]
			} else if n := variant % (1 + len(d.inPlace)); n > 0 {
				dst = in[d.inPlace[n-1]]
			} else {
				dst = k.place(len(items), cols)
			}
			dst.output = true
			d.do(k, dst.Tensor, in)
			return k.finish(dst)[0]
		},
		want: func(k *kit, item int) []float64 {
			in := make([][]float64, len(d.ins))
			for i := range d.ins {
				in[i] = wide(d.row(k, i, item, cols))
			}
			return d.ref(in)
		},
	})
}

// gather: rows come in any order and more than once.
func gather(s *suite) {
	k := s.device()
	const cols, rows = 70, 50
	for _, k.layout = range layouts {
		for _, n := range s.Rows {
			src, dst := k.input(k.rows("x", upTo(rows), cols)), k.place(n, cols)
			pick := make([]int32, n+3)
			for i := range pick {
				pick[i] = int32((i*i + n) % rows)
			}
			k.Gather(dst.Tensor, src.Tensor, k.ints(pick...))
			for i, got := range k.finish(dst)[0] {
				if !sameResult(got, values("x", int(pick[i]), cols)) {
					s.Errorf("row %d of %d is not row %d of the source", i, n, pick[i])
				}
			}
		}
	}
}

// blockConv: an item is a block of up to five rows, which see the rows before them in the block.
func blockConv(s *suite) {
	k := s.device()
	for _, c := range []struct{ taps, groups, size int }{{3, 4, 8}, {2, 1, 40}, {4, 6, 5}} {
		cols := c.groups * c.size
		base := values("base", 0, c.taps*cols)
		length := func(block int) int { return 1 + block%5 }
		k.obey(op{
			items: 17, bound: function, strict: true,
			run: func(k *kit, items []int, _ int) [][]float32 {
				var x, dyn [][]float32
				var index []int32
				for _, b := range items {
					for r := range length(b) {
						x = append(x, k.row("x", b, cols*5)[r*cols:][:cols])
						dyn = append(dyn, values(fmt.Sprint("dyn", b), r, c.taps*c.groups))
						index = append(index, int32(r))
					}
				}
				dst, in, taps := k.place(len(x), cols), k.input(x), k.input(dyn)
				k.BlockConv(dst.Tensor, in.Tensor, taps.Tensor, k.vector(base), k.ints(index...))
				return grouped(k.finish(dst)[0], items, length)
			},
			want: func(k *kit, b int) []float64 {
				var out []float64
				x := wide(k.row("x", b, cols*5))
				for r := range length(b) {
					dyn := values(fmt.Sprint("dyn", b), r, c.taps*c.groups)
					for i := range cols {
						sum := 0.0
						for t := 0; t < c.taps && t <= r; t++ {
							sum += (float64(base[t*cols+i]) + float64(dyn[t*c.groups+i/c.size])) * x[(r-t)*cols+i]
						}
						out = append(out, sum)
					}
				}
				return out
			},
		})
	}
}

// grouped joins the rows of each item.
func grouped(rows [][]float32, items []int, length func(item int) int) [][]float32 {
	out := make([][]float32, len(items))
	for i, item := range items {
		for range length(item) {
			out[i] = append(out[i], rows[0]...)
			rows = rows[1:]
		}
	}
	return out
}

// columns: operations on columns of one tensor have the bits of operations on tensors apart. Models keep a query with
// its gate, and a gate with what it gates.
func columns(s *suite) {
	k := s.device()
	const rows, cols = 9, 48
	items := upTo(rows)
	run := func(together bool) [][]float32 {
		left, right := k.rows("x", items, cols), k.rows("y", items, cols)
		var a, b backend.Tensor
		if together {
			both := make([][]float32, rows)
			for r := range both {
				both[r] = slices.Concat(left[r], right[r])
			}
			t := k.input(both)
			a, b = t.Columns(0, cols), t.Columns(cols, cols)
		} else {
			a, b = k.input(left).Tensor, k.input(right).Tensor
		}
		norm, gated := k.place(rows, cols), k.place(rows, cols)
		k.RMSNorm(norm.Tensor, a, nil, 1e-5)
		k.SigmoidGate(norm.Tensor, norm.Tensor, b)
		k.Gated(gated.Tensor, a, b, backend.SiLU)
		out := k.finish(norm, gated)
		return slices.Concat(out[0], out[1])
	}
	for _, k.layout = range layouts {
		k.equal("columns of one tensor", run(true), run(false))
	}
}
