package gpu_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
)

func newSmall(g *rig) *gpu.Small {
	g.t.Helper()
	s := gpu.NewSmall(g.d.Props())
	return s
}

func sigmoid64(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func gelu64(x float64) float64 {
	return x * sigmoid64(2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))
}

// TestElements: every operation on single values, from every kind of input, into rows that lie apart, without touching
// what is between them.
func TestElements(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	const rows = 3
	for _, cols := range []int{1, 36, 257, 600} {
		for name, a := range g.inputs(rows, cols, 2) {
			b := g.inputs(rows, cols, 2)[name]
			gate := g.plain(rows, 1, 5, 2, 2)
			bias := g.normal(cols, 1)
			w := g.floats(bias)
			for _, c := range []struct {
				name string
				emit func(dst gpu.Out, a, b, gate gpu.In, rows int) []gpu.Call
				want func(r, c int, old float64) float64
			}{
				{"copy", func(dst gpu.Out, a, b, gate gpu.In, n int) []gpu.Call {
					return s.Copy(nil, dst, a, n,
						cols)
				},
					func(r, c int, _ float64) float64 { return a.at(r, c) }},
				{"add", func(dst gpu.Out, a, b, gate gpu.In, n int) []gpu.Call {
					return s.Add(nil, dst, a, b, n,
						cols)
				},
					func(r, c int, _ float64) float64 { return a.at(r, c) + b.at(r, c) }},
				{"bias", func(dst gpu.Out, a, b, gate gpu.In, n int) []gpu.Call {
					return s.AddBias(nil, dst, a, w,
						n, cols)
				},
					func(r, c int, _ float64) float64 { return a.at(r, c) + float64(bias[c]) }},
				{"scale", func(dst gpu.Out, a, b, gate gpu.In, n int) []gpu.Call {
					return s.Scale(nil, dst, a, 0.3,
						n, cols)
				},
					func(r, c int, _ float64) float64 { return a.at(r, c) * float64(float32(0.3)) }},
				{"silu", func(dst gpu.Out, a, b, gate gpu.In, n int) []gpu.Call {
					return s.Gated(nil, dst, a, b, backend.SiLU, n, cols)
				},
					func(r, c int, _ float64) float64 { return a.at(r, c) * sigmoid64(a.at(r, c)) * b.at(r, c) }},
				{"gelu", func(dst gpu.Out, a, b, gate gpu.In, n int) []gpu.Call {
					return s.Gated(nil, dst, a, b, backend.GELU, n, cols)
				},
					func(r, c int, _ float64) float64 { return gelu64(a.at(r, c)) * b.at(r, c) }},
				{"sigmoid", func(dst gpu.Out, a, b, gate gpu.In, n int) []gpu.Call {
					return s.SigmoidGate(nil, dst, a, b, n, cols)
				},
					func(r, c int, _ float64) float64 { return a.at(r, c) * sigmoid64(b.at(r, c)) }},
				{"softcap", func(dst gpu.Out, a, b, gate gpu.In, n int) []gpu.Call {
					return s.Softcap(nil, dst, a,
						3, n, cols)
				},
					func(r, c int, _ float64) float64 { return 3 * math.Tanh(a.at(r, c)/3) }},
				{"add gated", func(dst gpu.Out, a, b, gate gpu.In, n int) []gpu.Call {
					return s.AddGated(nil, dst, a, gate, n, cols)
				},
					func(r, c int, old float64) float64 { return old + sigmoid64(gate.at(r, 0))*a.at(r, c) }},
			} {
				what := fmt.Sprintf("%s of %d columns from %s", c.name, cols, name)
				stride := cols + 5
				if cols%4 == 0 {
					stride = cols + 8
				}
				before := g.normal(rows*stride, 1)
				dst := g.floats(before)
				g.run(c.emit(gpu.Out{P: dst, Stride: stride}, a.in, b.in, gate.in, rows))
				got := g.readFloats(dst, rows*stride)
				for r := range rows {
					g.close(what, got[r*stride:][:cols], func(i int) float64 {
						return c.want(r, i,
							float64(before[r*stride+i]))
					}, 3e-6, 0.5)
					g.same(what+": what lies behind the row", got[r*stride+cols:][:stride-cols], before[r*stride+cols:])
				}
				one := g.floats(before[2*stride:])
				g.run(c.emit(gpu.Out{P: one, Stride: stride}, a.row(2).in, b.row(2).in, gate.row(2).in, 1))
				g.same(what+", row 2 alone", g.readFloats(one, cols), got[2*stride:])
			}
		}
	}
}

func TestGather(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	for _, cols := range []int{8, 13} {
		src := g.plain(7, cols, cols, 0, 1)
		index := []int32{6, 0, 3, 3}
		dst := g.alloc(len(index) * cols)
		g.run(s.Gather(nil, gpu.Out{P: dst, Stride: cols}, src.in, g.ints(index), len(index), cols))
		got := g.readFloats(dst, len(index)*cols)
		for i, r := range index {
			g.same("gathered", got[i*cols:], src.v[int(r)*cols:][:cols])
		}
	}
}

// TestExtremes: large values saturate instead of becoming NaN, and small ones keep their digits.
func TestExtremes(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	x := []float32{-1e30, -1000, -100, -30, -1e-3, -1e-10, 0, 1e-10, 1e-3, 0.4, 30, 100, 1000, 1e30, 0.6, -0.6}
	n := len(x)
	in, ones := gpu.Rows(g.floats(x), n), gpu.Rows(g.floats(slices.Repeat([]float32{1}, n)), n)
	dst := gpu.Out{P: g.alloc(n), Stride: n}
	check := func(name string, ls []gpu.Call, f func(x float64) float64) {
		t.Helper()
		g.run(ls)
		// Where the exact result is below the smallest float32, 0 is right.
		g.close(name, g.readFloats(dst.P, n), func(i int) float64 { return f(float64(x[i])) }, 5e-6, 1e-38)
	}
	check("softcap", s.Softcap(nil, dst, in, 30, 1, n), func(x float64) float64 { return 30 * math.Tanh(x/30) })
	check("silu", s.Gated(nil, dst, in, ones, backend.SiLU, 1, n), func(x float64) float64 {
		if x < -90 {
			return 0
		}
		return x * sigmoid64(x)
	})
	check("gelu", s.Gated(nil, dst, in, ones, backend.GELU, 1, n), func(x float64) float64 {
		if x < -6 {
			return 0
		}
		return gelu64(x)
	})
	check("sigmoid", s.SigmoidGate(nil, dst, ones, in, 1, n), func(x float64) float64 {
		if x < -87 {
			return 0
		}
		return sigmoid64(x)
	})
}

// TestNorms: rows and heads of all lengths, with and without weights.
func TestNorms(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	const tokens, eps = 3, 1e-6
	for _, c := range []struct{ heads, dim, step int }{{1, 5, 5}, {1, 64, 64}, {1, 513, 513}, {1, 1500, 1500}, {1,
		2048, 2048}, {4, 128, 128}, {3, 128, 256}, {2, 72, 75}} {
		cols := (c.heads-1)*c.step + c.dim
		weight := g.normal(c.dim, 1)
		for name, x := range g.inputs(tokens, cols, 3) {
			for _, w := range []gpu.Addr{0, g.floats(weight)} {
				what := fmt.Sprintf("%d heads of %d from %s, weights %t", c.heads, c.dim, name, w != 0)
				want := func(tok, h, i int) float64 {
					sum := 0.
					for j := range c.dim {
						sum += x.at(tok, h*c.step+j) * x.at(tok, h*c.step+j)
					}
					v := x.at(tok, h*c.step+i) / math.Sqrt(sum/float64(c.dim)+eps)
					if w != 0 {
						v *= float64(weight[i])
					}
					return v
				}
				stride := c.heads * c.dim
				dst := g.alloc(tokens * stride)
				g.run(s.RMSNorm(nil, gpu.HeadsOut{P: dst, Stride: stride, Step: c.dim}, gpu.HeadsIn{In: x.in,
					Step: c.step}, w, eps, tokens, c.heads, c.dim))
				got := g.readFloats(dst, tokens*stride)
				g.close(what, got, func(i int) float64 { return want(i/stride, i%stride/c.dim, i%c.dim) }, 1e-6, 1e-3)
				one := g.alloc(stride)
				g.run(s.RMSNorm(nil, gpu.HeadsOut{P: one, Stride: stride, Step: c.dim}, gpu.HeadsIn{In: x.row(1).in,
					Step: c.step}, w, eps, 1, c.heads, c.dim))
				g.same(what+", token 1 alone", g.readFloats(one, stride), got[stride:][:stride])
			}
		}
	}
}

// TestNormLoads: a row has the same bits whether it is read by fours or one by one.
func TestNormLoads(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	for _, dim := range []int{128, 1024} {
		x := g.plain(1, dim, dim, 0, 1)
		odd := g.floats(append([]float32{0}, x.v...)) + 4
		a, b := g.alloc(dim), g.alloc(dim)
		g.run(s.RMSNorm(nil, gpu.HeadsOut{P: a, Stride: dim}, gpu.HeadsIn{In: x.in}, 0, 1e-5, 1, 1, dim))
		g.run(s.RMSNorm(nil, gpu.HeadsOut{P: b, Stride: dim}, gpu.HeadsIn{In: gpu.Rows(odd, dim)}, 0, 1e-5, 1, 1, dim))
		g.same("read one by one", g.readFloats(b, dim), g.readFloats(a, dim))
	}
}

// TestHeadsSigmoid: each head's gate stands behind its query.
func TestHeadsSigmoid(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	const tokens, heads, dim = 2, 3, 40
	both := g.pieces(tokens, 2*heads*dim, 0, 3, 4, 1)
	x := g.plain(tokens, heads*dim, heads*dim, 0, 1)
	dst := g.alloc(tokens * heads * dim)
	g.run(s.HeadsSigmoid(nil, gpu.HeadsOut{P: dst, Stride: heads * dim, Step: dim}, gpu.HeadsIn{In: x.in, Step: dim},
		gpu.HeadsIn{In: both.in.Columns(dim), Step: 2 * dim}, tokens, heads, dim))
	g.close("gated heads", g.readFloats(dst, tokens*heads*dim), func(i int) float64 {
		tok, h, c := i/(heads*dim), i%(heads*dim)/dim, i%dim
		return x.at(tok, h*dim+c) * sigmoid64(both.at(tok, h*2*dim+dim+c))
	}, 1e-6, 1e-3)
}

func TestAngles(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	pos := []int32{0, 1, 17, 4095, 200000, 1 << 20}
	inv := make([]float32, 48)
	for i := range inv {
		inv[i] = float32(math.Pow(1e4, -float64(i)/48))
	}
	n := len(inv)
	cos, sin := gpu.Out{P: g.alloc(len(pos) * n), Stride: n}, gpu.Out{P: g.alloc(len(pos) * (n + 1)), Stride: n + 1}
	g.run(s.Angles(nil, cos, sin, g.ints(pos), g.floats(inv), 1.25, len(pos), n))
	c, sn := g.readFloats(cos.P, len(pos)*n), g.readFloats(sin.P, len(pos)*(n+1))
	for r, p := range pos {
		for i, f := range inv {
			ws, wc := math.Sincos(float64(p) * float64(f))
			if e := max(math.Abs(float64(c[r*n+i])-1.25*wc), math.Abs(float64(sn[r*(n+1)+i])-1.25*ws)); e > 2e-7 {
				t.Fatalf("position %d, frequency %v: off by %v", p, f, e)
			}
		}
	}
}

func TestBlockConv(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	const rows, cols, taps, groups = 7, 24, 3, 4
	x, dyn := g.plain(rows, cols, cols+2, 0, 1), g.plain(rows, taps*groups, 2*taps*groups, 0, 1)
	base := g.normal(taps*cols, 1)
	index := []int32{0, 1, 2, 3, 0, 1, 0}
	dst := g.alloc(rows * cols)
	g.run(s.BlockConv(nil, gpu.Out{P: dst, Stride: cols}, gpu.Out{P: x.in.P, Stride: cols + 2}, gpu.Out{P: dyn.in.P,
		Stride: 2 * taps * groups},
		g.floats(base), g.ints(index), rows, cols, taps, groups))
	g.close("block convolution", g.readFloats(dst, rows*cols), func(i int) float64 {
		r, c := i/cols, i%cols
		sum := 0.
		for tap := range min(taps, int(index[r])+1) {
			sum += (float64(base[tap*cols+c]) + dyn.at(r, tap*groups+c/(cols/groups))) * x.at(r-tap, c)
		}
		return sum
	}, 1e-6, 1)
}

func TestRoute(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	const rows = 4
	for _, c := range []struct{ experts, used int }{{8, 2}, {128, 8}, {60, 60}, {512, 10}} {
		for name, x := range g.inputs(rows, c.experts, 2) {
			if name == "rows" { // ties go to the lower id
				for i := range c.experts {
					x.v[i] = float32(i / 3 % 5)
				}
				x.in = gpu.Rows(g.floats(x.v), c.experts)
			}
			ids, w := g.ints(make([]int32, rows*c.used)), gpu.Out{P: g.alloc(rows * c.used), Stride: c.used}
			g.run(s.Route(nil, ids, w, x.in, rows, c.experts, c.used, 2.5))
			gotIDs, gotW := g.readInts(ids, rows*c.used), g.readFloats(w.P, rows*c.used)
			for r := range rows {
				order := make([]int, c.experts)
				for i := range order {
					order[i] = i
				}
				sort.SliceStable(order, func(i, j int) bool { return x.at(r, order[i]) > x.at(r, order[j]) })
				sum := 0.
				for _, e := range order[:c.used] {
					sum += math.Exp(x.at(r, e))
				}
				for j, e := range order[:c.used] {
					if int(gotIDs[r*c.used+j]) != e {
						t.Fatalf("%v from %s, row %d: expert %d is %d, want %d", c, name, r, j, gotIDs[r*c.used+j], e)
					}
					if want := 2.5 * math.Exp(x.at(r, e)) / sum; math.Abs(float64(gotW[r*c.used+j])-want) > 5e-6*want {
						t.Fatalf("%v from %s, row %d: weight %d is %v, want %v", c, name, r, j, gotW[r*c.used+j], want)
					}
				}
			}
			one, oneW := g.ints(make([]int32, c.used)), gpu.Out{P: g.alloc(c.used), Stride: c.used}
			g.run(s.Route(nil, one, oneW, x.row(3).in, 1, c.experts, c.used, 2.5))
			g.same("weights of a row alone", g.readFloats(oneW.P, c.used), gotW[3*c.used:])
		}
	}
	// A NaN leaves ids that exist and weights that are no numbers.
	x := g.normal(16, 1)
	x[5] = float32(math.NaN())
	ids, w := g.ints(make([]int32, 4)), gpu.Out{P: g.alloc(4), Stride: 4}
	g.run(s.Route(nil, ids, w, gpu.Rows(g.floats(x), 16), 1, 16, 4, 1))
	for i, id := range g.readInts(ids, 4) {
		if f := g.readFloats(w.P, 4)[i]; id < 0 || id >= 16 || f == f {
			t.Errorf("with a NaN, expert %d has weight %v", id, f)
		}
	}
}

func TestExpertSum(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	const rows, cols, used = 3, 50, 4
	for _, y := range []*matrix{g.plain(rows*used, cols, cols+2, 0, 1), g.pieces(rows*used, cols, 0, 3, 4, 1)} {
		w := g.plain(rows, used, used, 0, 1)
		scale := g.normal(10, 1)
		ids := make([]int32, rows*used)
		for i := range ids {
			ids[i] = int32(g.r.IntN(10))
		}
		for _, sc := range []gpu.Addr{0, g.floats(scale)} {
			dst := g.alloc(rows * cols)
			g.run(s.ExpertSum(nil, gpu.Out{P: dst, Stride: cols}, y.in, gpu.Out{P: w.in.P, Stride: used}, g.ints(ids),
				sc, rows, cols, used))
			g.close("sum of experts", g.readFloats(dst, rows*cols), func(i int) float64 {
				r, c := i/cols, i%cols
				sum := 0.
				for j := range used {
					f := w.at(r, j)
					if sc != 0 {
						f *= float64(scale[ids[r*used+j]])
					}
					sum += f * y.at(r*used+j, c)
				}
				return sum
			}, 1e-6, 1)
		}
	}
}

// best is what TopK must choose: descending, the lower id first among equals, NaN never.
func best(v []float32, k int) []int32 {
	order := []int32{}
	for i, x := range v {
		if x == x {
			order = append(order, int32(i))
		}
	}
	sort.SliceStable(order, func(i, j int) bool { return v[order[i]] > v[order[j]] })
	for len(order) < k {
		order = append(order, -1)
	}
	return order[:k]
}

func TestArgMaxAndTopK(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	const rows = 3
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct{ cols, k int }{{1, 1}, {5, 8}, {300, 6}, {20000, 8}, {8193, 40}, {40000, 256}} {
		for name, x := range g.inputs(rows, c.cols, 5) {
			if c.k == gpu.MaxTopK && name != "odd" {
				continue // one kind will do: the emulation takes long
			}
			switch name {
			case "rows": // hard ones: ties, nothing but NaN, nothing but -Inf, negative zeros
				for i := range c.cols {
					x.v[i] = float32(i % 3)
					x.v[c.cols+i] = nan
					x.v[2*c.cols+i] = -inf
				}
				x.in = gpu.Rows(g.floats(x.v), c.cols)
			case "apart":
				for i := range c.cols {
					x.v[i] = float32(math.Copysign(0, float64(i%2)-0.5))
					x.v[c.cols+i] = -1
				}
				x.v[c.cols+c.cols-1] = nan
				x.v[2*c.cols+c.cols/2] = -inf
				x.in = gpu.Rows(g.floats(x.v), c.cols)
			}
			scratch := g.alloc(gpu.SelectScratch(rows, c.cols, c.k) / 4)
			ids, logp := g.ints(make([]int32, rows*c.k)), gpu.Out{P: g.alloc(rows * (c.k + 1)), Stride: c.k + 1}
			ls, err := s.TopK(nil, ids, logp, x.in, rows, c.cols, c.k, scratch)
			g.must(err)
			g.run(ls)
			gotIDs, gotP := g.readInts(ids, rows*c.k), g.readFloats(logp.P, rows*(c.k+1))
			top := g.ints(make([]int32, rows))
			plain := gpu.Out{P: g.alloc(rows * (c.cols + 7)), Stride: (c.cols + 3) &^ 3}
			if os.Getenv("STROBE_GPU") == "vulkan" {
				plain.P = 0
			}
			g.run(s.ArgMax(nil, top, x.in, plain, rows, c.cols, scratch))
			gotTop := g.readInts(top, rows)
			for r := range rows {
				if plain.P != 0 {
					g.same("plain rows", g.readFloats(plain.P+gpu.Addr(4*r*plain.Stride), c.cols), x.v[r*c.cols:][:c.cols])
				}
			}
			for r := range rows {
				v := x.v[r*c.cols:][:c.cols]
				want := best(v, c.k)
				what := fmt.Sprintf("%d of %d columns from %s, row %d", c.k, c.cols, name, r)
				if got := gotIDs[r*c.k:][:c.k]; !slices.Equal(got, want) {
					t.Fatalf("%s: %v, want %v", what, got, want)
				}
				if gotTop[r] != want[0] {
					t.Fatalf("%s: largest is %d, want %d", what, gotTop[r], want[0])
				}
				sum := 0.
				for _, f := range v {
					sum += math.Exp(float64(f))
				}
				for j, id := range want {
					p := gotP[r*(c.k+1)+j]
					switch {
					case sum != sum && id >= 0: // a NaN among the logits
						if p == p {
							t.Fatalf("%s: logarithm %d is %v, want NaN", what, j, p)
						}
					case sum != sum: // nothing was chosen
						if p == p && !math.IsInf(float64(p), -1) {
							t.Fatalf("%s: logarithm %d is %v, want none", what, j, p)
						}
					case id < 0 || math.IsInf(float64(v[id]), -1):
						if !math.IsInf(float64(p), -1) {
							t.Fatalf("%s: logarithm %d is %v, want -Inf", what, j, p)
						}
					default:
						if w := float64(v[id]) - math.Log(sum); math.Abs(float64(p)-w) > 1e-5 {
							t.Fatalf("%s: logarithm %d is %v, want %v", what, j, p, w)
						}
					}
				}
			}
			one, oneP := g.ints(make([]int32, c.k)), gpu.Out{P: g.alloc(c.k), Stride: c.k}
			ls, err = s.TopK(nil, one, oneP, x.row(2).in, 1, c.cols, c.k, scratch)
			g.must(err)
			g.run(ls)
			g.same("logarithms of a row alone", g.readFloats(oneP.P, c.k), gotP[2*(c.k+1):][:c.k])
		}
	}
	if _, err := s.TopK(nil, 0, gpu.Out{}, gpu.In{}, 1, 1000, 257, 0); err == nil || !strings.Contains(err.Error(),
		"want 1 to 256") {
		t.Errorf("too many columns: %v", err)
	}
}

func TestScatter(t *testing.T) {
	g := newRig(t)
	s := newSmall(g)
	a, b := g.ints(make([]int32, 3)), g.ints(make([]int32, 200))
	vals := make([]int32, 203)
	for i := range vals {
		vals[i] = int32(i * i)
	}
	block := slices.Concat(rawBytes([]gpu.SetEntry{{Dst: a, At: 32, N: 3}, {Dst: b, At: 32 + 12, N: 200}}), rawBytes(vals))
	mem, err := g.d.Alloc(len(block))
	g.must(err)
	g.d.Upload(mem, block)
	g.run(s.Scatter(nil, mem, 2))
	if got := append(g.readInts(a, 3), g.readInts(b, 200)...); !slices.Equal(got, vals) {
		t.Errorf("scattered %v", got)
	}
	if ls := s.Scatter(nil, mem, 0); len(ls) != 0 {
		t.Errorf("%d launches for nothing", len(ls))
	}
}
