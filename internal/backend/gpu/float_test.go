package gpu_test

import (
	"fmt"
	"math"
	"testing"

	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// floatMatrix uploads random values of a type; the values that are stored come back.
func (g *rig) floatMatrix(typ quant.Type, rows, cols int) (gpu.FloatMatrix, []float32) {
	g.t.Helper()
	v := g.normal(rows*cols, 1)
	b := make([]byte, typ.RowBytes(cols)*rows)
	g.must(quant.Quantize(typ, b, v))
	g.must(quant.Dequantize(typ, v, b))
	a, err := g.d.Alloc(len(b))
	g.must(err)
	g.d.Upload(a, b)
	return gpu.FloatMatrix{Type: typ, W: a, Rows: rows, Cols: cols, Scale: 1}, v
}

// TestFloatProducts: all types, matrices with few and many rows, odd sizes, any number of tokens, each with the bits it
// has alone.
func TestFloatProducts(t *testing.T) {
	g := newRig(t)
	f := gpu.NewFloats(g.d.Props())
	units := g.d.Props().Units
	for _, typ := range []quant.Type{quant.F32, quant.F16, quant.BF16} {
		for _, c := range []struct{ rows, cols, tokens int }{{1, 1, 1}, {6, 40, 9}, {5, 2305, 3}, {16*units + 3, 264,
			19}, {16*units + 1, 33, 2}, {16 * units, 512, 8}, {18 * units, 128, 4}} {
			if g.d.Props().Name != "emulated GPU" {
				c.tokens *= 4
			}
			m, w := g.floatMatrix(typ, c.rows, c.cols)
			m.Scale = 0.5
			x := g.plain(c.tokens, c.cols, c.cols+4, 0, 1)
			run := func(x *matrix) []float32 {
				y := gpu.Out{P: g.alloc(x.rows * (c.rows + 1)), Stride: c.rows + 1}
				ls, err := f.Product(nil, m, y, gpu.Out{P: x.in.P, Stride: c.cols + 4}, x.rows)
				g.must(err)
				g.run(ls)
				got := g.readFloats(y.P, x.rows*(c.rows+1))
				out := []float32{}
				for r := range x.rows {
					if end := got[r*(c.rows+1)+c.rows]; end == end {
						t.Fatalf("%s, %v: wrote %v behind row %d", typ, c, end, r)
					}
					out = append(out, got[r*(c.rows+1):][:c.rows]...)
				}
				return out
			}
			got := run(x)
			what := fmt.Sprintf("%s, %d x %d, %d tokens", typ, c.rows, c.cols, c.tokens)
			g.close(what, got, func(i int) float64 {
				sum := 0.
				for j := range c.cols {
					sum += float64(w[i%c.rows*c.cols+j]) * x.at(i/c.rows, j)
				}
				return sum / 2
			}, 1e-6, math.Sqrt(float64(c.cols)))
			for _, tok := range []int{0, c.tokens - 1} {
				g.same(what+", a token alone", run(x.row(tok)), got[tok*c.rows:][:c.rows])
			}
		}
	}
	if _, err := f.Product(nil, gpu.FloatMatrix{Type: quant.Q4_0, Rows: 1, Cols: 32}, gpu.Out{}, gpu.Out{},
		1); err == nil {
		t.Error("a float product with weights of type Q4_0")
	}
}

// TestFloatLoads: a row has the same bits whether it is read by fours or one by one, with the same sums in either form.
func TestFloatLoads(t *testing.T) {
	g := newRig(t)
	f := gpu.NewFloats(g.d.Props())
	for _, rows := range []int{4, 16 * g.d.Props().Units} {
		m, _ := g.floatMatrix(quant.F16, rows, 260)
		x := g.normal(260, 1)
		product := func(a gpu.Addr) []float32 {
			y := gpu.Out{P: g.alloc(rows), Stride: rows}
			ls, err := f.Product(nil, m, y, gpu.Out{P: a, Stride: 260}, 1)
			g.must(err)
			g.run(ls)
			return g.readFloats(y.P, rows)
		}
		g.same("one by one", product(g.floats(append([]float32{0}, x...))+4), product(g.floats(x)))
	}
}

func TestFloatExperts(t *testing.T) {
	g := newRig(t)
	f := gpu.NewFloats(g.d.Props())
	const experts, rows, cols, tokens, used = 5, 20, 96, 3, 2
	for _, shared := range []bool{true, false} { // experts of a token share its row, or have their own
		m, w := g.floatMatrix(quant.BF16, experts*rows, cols)
		m.Rows = rows
		scales := g.normal(experts, 1)
		m.Scale, m.Scales = 2, g.floats(scales)
		ids := []int32{4, 0, 2, 2, 1, 4}
		xrows, per := tokens, used
		if !shared {
			xrows, per = tokens*used, 1
		}
		x := g.plain(xrows, cols, cols, 0, 1)
		y := gpu.Out{P: g.alloc(tokens * used * rows), Stride: rows}
		ls, err := f.Experts(nil, m, y, gpu.Out{P: x.in.P, Stride: cols}, g.ints(ids), tokens*used, per)
		g.must(err)
		g.run(ls)
		g.close("experts", g.readFloats(y.P, tokens*used*rows), func(i int) float64 {
			e, r := int(ids[i/rows]), i%rows
			sum := 0.
			for j := range cols {
				sum += float64(w[(e*rows+r)*cols+j]) * x.at(i/rows/per, j)
			}
			return sum * 2 * float64(scales[e])
		}, 1e-6, 20)
	}
}
