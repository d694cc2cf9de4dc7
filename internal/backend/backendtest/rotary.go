package backendtest

import (
	"math"
	"slices"
)

func rotaryCases() []testCase {
	return []testCase{{"Angles", angles}, {"RoPE", rope}}
}

// frequencies of a rotary embedding of n pairs.
func frequencies(n int) []float32 {
	f := make([]float32, n)
	for i := range f {
		f[i] = float32(math.Pow(10000, -float64(i)/float64(n)))
	}
	return f
}

// angles: the error stays small at the end of a long context, where an angle in float32 is off by a hundredth.
func angles(s *suite) {
	k := s.device()
	pos := []int32{0, 1, 2, 63, 4095, 32768, 100_003, 131_071, 200_000, 262_143, 77, 5000, 9}
	const pairs, mscale = 24, 1.25
	inv := frequencies(pairs)
	k.obey(op{
		items: len(pos), bound: 1e-6, clean: true,
		run: func(k *kit, items []int, _ int) [][]float32 {
			at := make([]int32, len(items))
			for i, item := range items {
				at[i] = pos[item]
			}
			cos, sin := k.place(len(items), pairs), k.place(len(items), pairs)
			k.Angles(cos.Tensor, sin.Tensor, k.ints(at...), k.vector(inv), mscale)
			out := k.finish(cos, sin)
			for i := range items {
				out[0][i] = slices.Concat(out[0][i], out[1][i])
			}
			return out[0]
		},
		want: func(k *kit, item int) []float64 {
			var cos, sin []float64
			for _, f := range inv {
				sn, cs := math.Sincos(float64(pos[item]) * float64(f))
				cos, sin = append(cos, mscale*cs), append(sin, mscale*sn)
			}
			return append(cos, sin...)
		},
	})
}

// rope: an item is a token with its heads side by side; the columns behind the rotated ones stay.
func rope(s *suite) {
	k := s.device()
	for _, c := range []struct{ heads, dim, pairs int }{{1, 64, 32}, {3, 40, 8}, {4, 64, 16}, {2, 256, 128}, {5, 6, 3}} {
		angle := func(item int) []float64 { return wide(values("angle", item, c.pairs)) }
		k.obey(op{
			items: k.most(), bound: function, strict: true,
			run: func(k *kit, items []int, _ int) [][]float32 {
				var x, cos, sin [][]float32
				for _, item := range items {
					row := k.row("x", item, c.heads*c.dim)
					for h := range c.heads {
						x = append(x, row[h*c.dim:][:c.dim])
					}
					var cs, sn []float32
					for _, a := range angle(item) {
						cs, sn = append(cs, float32(math.Cos(a))), append(sn, float32(math.Sin(a)))
					}
					cos, sin = append(cos, cs), append(sin, sn)
				}
				a, ct, st := k.input(x), k.input(cos), k.input(sin)
				a.output = true
				k.RoPE(a.Tensor, c.heads, ct.Tensor, st.Tensor)
				return grouped(k.finish(a)[0], items, func(int) int { return c.heads })
			},
			want: func(k *kit, item int) []float64 {
				out := wide(k.row("x", item, c.heads*c.dim))
				for h := range c.heads {
					v := out[h*c.dim:]
					for i, a := range angle(item) {
						// The device gets rounded angles.
						cs, sn := float64(float32(math.Cos(a))), float64(float32(math.Sin(a)))
						v[i], v[i+c.pairs] = v[i]*cs-v[i+c.pairs]*sn, v[i]*sn+v[i+c.pairs]*cs
					}
				}
				return out
			},
		})
	}
}
