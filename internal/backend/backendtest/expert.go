package backendtest

import (
	"math"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

const experts = 8

func expertCases(o Options) []testCase {
	list := []testCase{{"Route", route}, {"ExpertBias", expertBias}, {"ExpertSum", expertSum},
		{"experts with biases", biasedExperts}}
	for _, typ := range o.Weights {
		list = append(list, testCase{"ExpertMatMul " + typ.String(), func(s *suite) { expertProduct(s, typ) }})
	}
	return list
}

// choice is the experts of a token: the first one is chosen by all, the last by none, and tokens repeat each other's
// choices.
func choice(token, used int) []int32 {
	ids := []int32{0}
	for j := 1; j < used; j++ {
		ids = append(ids, int32(1+(token*token+3*j)%(experts-2)))
	}
	slices.Reverse(ids)
	return ids
}

// expertProduct: x has a row per token, or one per token and expert, as the last matrix of a layer needs.
func expertProduct(s *suite, typ quant.Type) {
	k := s.device()
	for _, c := range []struct{ cols, used int }{{256, 2}, {512, 3}} {
		m, m2 := k.matrix(typ, experts, 21, c.cols), k.matrix(typ, experts, 40, c.cols)
		scale := values("expert scale", 0, experts)
		w, w2 := k.bind(m, scale...), k.bind(m2, 0.5)
		for _, each := range []bool{false, true} { // whether every chosen expert has a row of its own
			input := func(k *kit, token, j int) []float32 {
				v := k.row("x", token, c.cols*c.used)
				if each {
					return v[j*c.cols:][:c.cols]
				}
				return v[c.cols*(c.used/2):][:c.cols] // with the poison, which is in the middle
			}
			k.obey(op{
				items: 9, bound: s.Product(typ, c.cols),
				run: func(k *kit, items []int, _ int) [][]float32 {
					var x [][]float32
					var ids []int32
					for _, token := range items {
						ids = append(ids, choice(token, c.used)...)
						for j := range c.used {
							if each || j == 0 {
								x = append(x, input(k, token, j))
							}
						}
					}
					n := len(ids)
					in, y, y2 := k.input(x), k.place(n, m.Rows), k.place(n, m2.Rows)
					k.ExpertMatMul(in.Tensor, k.ints(append(ids, -1, 9999)...), c.used,
						backend.Product{W: w, Y: y.Tensor}, backend.Product{W: w2, Y: y2.Tensor})
					out := k.finish(y, y2)
					for i := range n {
						out[0][i] = slices.Concat(out[0][i], out[1][i])
					}
					return grouped(out[0], items, func(int) int { return c.used })
				},
				want: func(k *kit, token int) []float64 {
					var out []float64
					for j, e := range choice(token, c.used) {
						x := wide(input(k, token, j))
						for _, v := range m.times(int(e), x) {
							out = append(out, v*float64(scale[e]))
						}
						for _, v := range m2.times(int(e), x) {
							out = append(out, v/2)
						}
					}
					return out
				},
				sizes: func(k *kit, token int) []float64 {
					var out []float64
					for j, e := range choice(token, c.used) {
						x := wide(input(k, token, j))
						for _, v := range m.sizes(int(e), x) {
							out = append(out, v*math.Abs(float64(scale[e])))
						}
						for _, v := range m2.sizes(int(e), x) {
							out = append(out, v/2)
						}
					}
					return out
				},
			})
		}
	}
}

// route: the best experts, best first and the lower id among equals, with the softmax of their logits.
func route(s *suite) {
	k := s.device()
	for _, c := range []struct{ experts, used int }{{8, 2}, {8, 8}, {5, 1}, {130, 6}} {
		logits := func(k *kit, row int) []float32 {
			v := k.row("x", row, c.experts)
			if row%4 == 0 { // equal ones
				for i := range v {
					v[i] = float32(math.Round(float64(v[i])))
				}
			}
			return v
		}
		const scale = 2.5
		k.obey(op{
			items: k.most(), bound: function,
			run: func(k *kit, items []int, _ int) [][]float32 {
				var x [][]float32
				for _, r := range items {
					x = append(x, logits(k, r))
				}
				in, w := k.input(x), k.place(len(items), c.used)
				in.output = true // Route may use it up
				ids := k.ints(slices.Repeat([]int32{-7}, len(items)*c.used+1)...)
				k.Route(ids, w.Tensor, in.Tensor, c.used, scale)
				out := k.finish(w)[0]
				got := k.Ints(ids)
				if got[len(items)*c.used] != -7 {
					s.Error("an id too many was written")
				}
				for i, r := range items {
					best := slices.Clone(got[i*c.used:][:c.used])
					for _, e := range best {
						if e < 0 || int(e) >= c.experts {
							s.Errorf("expert %d of %d was chosen", e, c.experts)
						}
						out[i] = append(out[i], float32(e))
					}
					if _, poisoned := k.poison[r]; poisoned {
						out[i] = out[i][c.used:] // only the range is defined
					}
				}
				return out
			},
			want: func(k *kit, row int) []float64 {
				v := logits(k, row)
				best := order(v)[:c.used]
				sum := 0.0
				for _, e := range best {
					sum += math.Exp(float64(v[e]))
				}
				var w, ids []float64
				for _, e := range best {
					w, ids = append(w, scale*math.Exp(float64(v[e]))/sum), append(ids, float64(e))
				}
				return append(w, ids...)
			},
		})
	}
}

// order lists the indices of the numbers in v, largest first, lower index first among equals.
func order(v []float32) []int32 {
	var ids []int32
	for i, x := range v {
		if x == x {
			ids = append(ids, int32(i))
		}
	}
	slices.SortStableFunc(ids, func(a, b int32) int {
		switch {
		case v[a] > v[b]:
			return -1
		case v[a] < v[b]:
			return 1
		}
		return 0
	})
	return ids
}

// expertBias: each of a token's experts adds its own row.
func expertBias(s *suite) {
	k := s.device()
	for _, c := range []struct{ cols, used int }{{96, 2}, {37, 4}, {5, 1}} {
		bias := values("expert bias", 0, experts*c.cols)
		k.obey(op{
			items: k.most(), bound: rounding, strict: true,
			run: func(k *kit, items []int, _ int) [][]float32 {
				var x [][]float32
				var ids []int32
				for _, t := range items {
					row := k.row("x", t, c.used*c.cols)
					for j := range c.used {
						x = append(x, row[j*c.cols:][:c.cols])
					}
					ids = append(ids, choice(t, c.used)...)
				}
				y := k.input(x)
				y.output = true
				k.ExpertBias(y.Tensor, k.ints(append(ids, -1, 9999)...), k.vector(bias))
				return grouped(k.finish(y)[0], items, func(int) int { return c.used })
			},
			want: func(k *kit, t int) []float64 {
				out := wide(k.row("x", t, c.used*c.cols))
				for j, e := range choice(t, c.used) {
					for i := range c.cols {
						out[j*c.cols+i] += float64(bias[int(e)*c.cols+i])
					}
				}
				return out
			},
		})
	}
}

// biasedExperts: a layer of gpt-oss in one step, with rows so long that products of quantised weights may stay in
// pieces: biases and activations must add these up.
func biasedExperts(s *suite) {
	for _, more := range []int{0, 3} { // columns of up that are left out
		s.biasedExperts(more)
	}
}

func (s *suite) biasedExperts(more int) {
	k := s.device()
	const typ, hidden, width, outputs, used = quant.MXFP4, 512, 544, 40, 2
	gate, up := k.matrix(typ, experts, width, hidden), k.matrix(typ, experts, width+more, hidden)
	down := k.matrix(typ, experts, outputs, width)
	gw, uw, dw := k.bind(gate), k.bind(up), k.bind(down)
	large := func(name string, n int) []float32 { // so that some factors reach their limits
		v := values(name, 0, n)
		for i := range v {
			v[i] *= 4
		}
		return v
	}
	gateBias, upBias := large("gate bias", experts*width), large("up bias", experts*(width+more))
	downBias := values("down bias", 0, experts*outputs)
	k.obey(op{
		items: 5, bound: 4 * s.Product(typ, hidden),
		run: func(k *kit, items []int, _ int) [][]float32 {
			var ids []int32
			for _, t := range items {
				ids = append(ids, choice(t, used)...)
			}
			chosen, n := k.ints(ids...), len(ids)
			in, w, dst := k.input(k.rows("x", items, hidden)), k.input(k.rows("w", items, used)), k.place(len(items), outputs)
			g, u, y := k.place(n, width), k.place(n, width+more), k.place(n, outputs)
			gb, ub, db := k.vector(gateBias), k.vector(upBias), k.vector(downBias)
			k.BeginStep(nil)
			k.ExpertMatMul(in.Tensor, chosen, used, backend.Product{W: gw, Y: g.Tensor}, backend.Product{W: uw, Y: u.Tensor})
			k.ExpertBias(g.Tensor, chosen, gb)
			k.ExpertBias(u.Tensor, chosen, ub)
			k.Gated(g.Tensor, g.Tensor, u.Columns(0, width), backend.ClampedSwiGLU)
			k.ExpertMatMul(g.Tensor, chosen, used, backend.Product{W: dw, Y: y.Tensor})
			k.ExpertBias(y.Tensor, chosen, db)
			k.ExpertSum(dst.Tensor, y.Tensor, w.Tensor, chosen, used, nil)
			_, err := k.EndStep()
			k.check(err)
			return k.finish(dst, g, u, y)[0]
		},
		want: func(k *kit, t int) []float64 {
			out := make([]float64, outputs)
			x, w := wide(k.row("x", t, hidden)), wide(k.row("w", t, used))
			for j, id := range choice(t, used) {
				e := int(id)
				g, u := gate.times(e, x), up.times(e, x)
				for i := range g {
					a, b := g[i]+float64(gateBias[e*width+i]), u[i]+float64(upBias[e*(width+more)+i])
					g[i] = quickGELU(min(a, 7)) * (1 + max(-7, min(b, 7)))
				}
				for i, v := range down.times(e, g) {
					out[i] += w[j] * (v + float64(downBias[e*outputs+i]))
				}
			}
			return out
		},
	})
}

func expertSum(s *suite) {
	k := s.device()
	scale := values("expert scale", 0, experts)
	for _, scaled := range []bool{false, true} {
		for _, c := range []struct{ cols, used int }{{96, 2}, {37, 4}, {5, 1}} {
			k.obey(op{
				items: k.most(), bound: function, strict: true,
				run: func(k *kit, items []int, _ int) [][]float32 {
					var y [][]float32
					var ids []int32
					for _, t := range items {
						row := k.row("x", t, c.used*c.cols)
						for j := range c.used {
							y = append(y, row[j*c.cols:][:c.cols])
						}
						ids = append(ids, choice(t, c.used)...)
					}
					dst, in, w := k.place(len(items), c.cols), k.input(y), k.input(k.rows("w", items, c.used))
					var sv backend.Vector
					if scaled {
						sv = k.vector(scale)
					}
					k.ExpertSum(dst.Tensor, in.Tensor, w.Tensor, k.ints(ids...), c.used, sv)
					return k.finish(dst)[0]
				},
				want: func(k *kit, t int) []float64 {
					out := make([]float64, c.cols)
					y, w := wide(k.row("x", t, c.used*c.cols)), wide(k.row("w", t, c.used))
					for j, e := range choice(t, c.used) {
						f := w[j]
						if scaled {
							f *= float64(scale[e])
						}
						for i := range out {
							out[i] += f * y[j*c.cols+i]
						}
					}
					return out
				},
			})
		}
	}
}
