package gpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// TestHalfProducts: more tokens and rows than a block has, more stages than its ring, stages that are cut short, inputs
// at odd places; each token has the bits it has alone, and those that kernels of their own give for bias, GELU, sum and
// rounding. Large values stay finite, and NaN stays in its row. Both kernels have the same bits.
func TestHalfProducts(t *testing.T) {
	var first []uint32
	for _, name := range []string{"any", "hopper"} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			if g.d.Props().NoTensorCores {
				t.Skip("needs a device whose tensor cores are used: STROBE_GPU must not be vulkan")
			}
			props := g.d.Props()
			props.Major = 8
			if name == "hopper" {
				g = &rig{t, hopper(t), rand.New(rand.NewPCG(7, 9))}
				props = g.d.Props()
			}
			bits := halfProducts(g, gpu.NewFloats(props), gpu.NewSmall(props))
			if first == nil {
				first = bits
			}
			if len(bits) != len(first) {
				t.Fatalf("%d results, want %d", len(bits), len(first))
			}
			for i := range bits {
				if bits[i] != first[i] {
					t.Fatalf("result %d has bits %#x, with the other kernel %#x", i, bits[i], first[i])
				}
			}
		})
	}
}

// halfProducts returns the bits of all results.
func halfProducts(g *rig, f *gpu.Floats, small *gpu.Small) (bits []uint32) {
	for _, c := range []struct{ rows, cols, tokens, pad int }{
		{194, 72, 131, 4}, {5, 8, 1, 1}, {192, 160, 128, 3}, {8, 648, 3, 4}, {7, 328, 2, 0},
	} {
		m, w := g.floatMatrix(quant.F16, c.rows, c.cols)
		m.Scale = 0.5
		x := g.plain(c.tokens, c.cols, c.cols+c.pad, 0, 1)
		product := func(call gpu.HalfCall, from gpu.Addr, n int) {
			call.W, call.N, call.X = m, n, g.alloc((n*c.cols+1)/2)
			g.run(f.Halves(f.HalfRows(nil, call.X, gpu.Out{P: from, Stride: c.cols + c.pad}, n, c.cols), call))
		}
		run := func(from gpu.Addr, n int) []float32 {
			y := gpu.Out{P: g.alloc(n * c.rows), Stride: c.rows}
			product(gpu.HalfCall{Y: y}, from, n)
			return g.readFloats(y.P, n*c.rows)
		}
		got := run(x.in.P, c.tokens)
		what := fmt.Sprintf("%d x %d, %d tokens", c.rows, c.cols, c.tokens)
		g.close(what, got, func(i int) float64 {
			sum := 0.
			for j := range c.cols {
				sum += float64(w[i%c.rows*c.cols+j]) * x.at(i/c.rows, j)
			}
			return sum / 2
		}, 1e-3, math.Sqrt(float64(c.cols)))
		for _, tok := range []int{0, c.tokens - 1} {
			g.same(what+", a token alone", run(x.row(tok).in.P, 1), got[tok*c.rows:][:c.rows])
		}
		for _, v := range got {
			bits = append(bits, math.Float32bits(v))
		}

		n := c.tokens * c.rows
		bias, sums := g.floats(g.normal(c.rows, 1)), g.normal(n, 1)
		out := func(p gpu.Addr) gpu.Out { return gpu.Out{P: p, Stride: c.rows} }
		in := func(p gpu.Addr) gpu.In { return gpu.Rows(p, c.rows) }
		y, z := out(g.floats(got)), out(g.floats(sums)) // by kernels of their own
		halves := g.alloc((n + 1) / 2)
		ls := small.AddBias(nil, y, in(y.P), bias, c.tokens, c.rows)
		ls = small.Activate(ls, y, in(y.P), backend.GELU, c.tokens, c.rows)
		ls = small.Add(ls, z, in(z.P), in(y.P), c.tokens, c.rows)
		g.run(f.HalfRows(ls, halves, y, c.tokens, c.rows))
		call := gpu.HalfCall{Bias: bias, GELU: true, Y: out(g.alloc(n)), Z: out(g.floats(sums)), H: g.alloc((n + 1) / 2)}
		product(call, x.in.P, c.tokens)
		g.same(what+", with bias and GELU", g.readFloats(call.Y.P, n), g.readFloats(y.P, n))
		g.same(what+", added", g.readFloats(call.Z.P, n), g.readFloats(z.P, n))
		g.same(what+", as halves", g.readFloats(call.H, n/2), g.readFloats(halves, n/2))
	}
	m, w := g.floatMatrix(quant.F16, 4, 8)
	x := make([]float32, 16)
	x[0], x[9] = 1e30, float32(math.NaN())
	y, h := gpu.Out{P: g.alloc(8), Stride: 4}, g.alloc(8)
	g.run(f.Halves(f.HalfRows(nil, h, gpu.Out{P: g.floats(x), Stride: 8}, 2, 8), gpu.HalfCall{W: m, X: h, N: 2, Y: y}))
	got := g.readFloats(y.P, 8)
	for r := range 4 {
		if want := 65504 * w[r*8]; math.Abs(float64(got[r]-want)) > 1 || got[4+r] == got[4+r] {
			g.t.Errorf("row %d: %v of a large value, want %v; %v of NaN", r, got[r], want, got[4+r])
		}
	}
	return bits
}
