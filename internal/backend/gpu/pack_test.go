package gpu_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// packed is activations read back from the device.
type packed struct {
	gpu.ActLayout
	b []byte
}

func (r *productRig) packed(lay gpu.ActLayout, a gpu.Addr) packed {
	r.t.Helper()
	b := make([]byte, lay.Bytes())
	if err := r.d.Download(b, a); err != nil {
		r.t.Fatal(err)
	}
	return packed{lay, b}
}

func (p packed) half(at int) float64 {
	return float64(quant.F16ToF32(binary.LittleEndian.Uint16(p.b[at:])))
}

// at returns a value, and the sum of its 32 columns, by the description in pack.h.
func (p packed) at(row, col int) (v, sum float64) {
	kb, sb, t, i := col/256, col%256/32, col%32/8, col%8
	scale := func(at int) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(p.b[at:]))) }
	switch {
	case p.NT < 0:
		base := (row*p.KB() + kb) * 576
		s := scale(base + 544)
		q := base + 512 + sb/2*8 + sb%2*2
		return p.half(base+sb*64+t*16+i*2) * s, (p.half(q) + p.half(q+4)) * s
	case p.NT > 0:
		tile := row / 8
		base := (tile/p.NT*p.KB() + kb) * p.NT * 4384
		nt, g := tile%p.NT, row%8
		tail := base + p.NT*4096 + nt*288
		s := scale(tail + 256 + g*4)
		q := tail + g*32 + sb/2*8 + sb%2*2
		at := base + sb/4*p.NT*2048 + nt*2048 + sb%4*512 + g*64 + t*16 + i*2
		return p.half(at) * s, (p.half(q) + p.half(q+4)) * s
	}
	base, k := (row/64*p.KB()+kb)*35072, row%64
	s := scale(base + 32768 + 2048 + k*4)
	q := base + 32768 + k/8*256 + k%8*16 + sb*2
	chunk := sb%2*4 + i/2
	at := base + sb/2*8192 + k*128 + (chunk^k&7)*16 + t*4 + i%2*2
	return p.half(at) * s, (p.half(q) + p.half(q+128)) * s
}

// check compares packed rows with what they should be.
func (p packed) check(t *testing.T, what string, want func(row, col int) float64) {
	t.Helper()
	for row := range p.Rows {
		for kb := range p.KB() {
			var most float64
			w := make([]float64, 256)
			for c := range 256 {
				if col := kb*256 + c; col < p.Cols {
					w[c] = want(row, col)
				}
				most = max(most, math.Abs(w[c]))
			}
			for c := range 256 {
				v, sum := p.at(row, kb*256+c)
				if e := math.Abs(v - w[c]); !(e <= math.Abs(w[c])*0x1.01p-11+most*1e-6) {
					t.Fatalf("%s: row %d column %d is %v, want %v", what, row, kb*256+c, v, w[c])
				}
				if c%32 == 0 {
					var exact float64
					for i := range 32 {
						v, _ := p.at(row, kb*256+c+i)
						exact += v
					}
					if e := math.Abs(sum - exact); !(e <= most*32*0x1p-21) {
						t.Fatalf("%s: the sum of row %d columns %d to %d is %v, want %v", what, row, kb*256+c, kb*256+c+31, sum, exact)
					}
				}
			}
		}
	}
}

// source is rows in one of the forms kernels read.
type source struct {
	in gpu.In
	at func(row, col int) float64
}

// plainRows are rows that begin at an odd place, or not.
func (r *productRig) plainRows(rnd *rand.Rand, rows, cols, stride, off int) source {
	v := randomRows(rnd, off+rows*stride)
	at := func(row, col int) float64 { return float64(v[off+row*stride+col]) }
	return source{gpu.Rows(upload(r, v)+gpu.Addr(4*off), stride), at}
}

// pieces are rows of a product's result from column first on.
func (r *productRig) pieces(rnd *rand.Rand, rows, groups, kb, grid, first int) source {
	in := gpu.In{Groups: int32(groups), KB: int32(kb), Grid: int32(grid), N: int32(rows), First: int32(first)}
	v := randomRows(rnd, gpu.PieceBytes(in)/4)
	in.P = upload(r, v)
	return source{in, func(row, col int) float64 {
		var s float32
		for k := range in.PieceCount((first + col) / 256) {
			s += v[(k*rows+row)*groups*256+first+col]
		}
		return float64(s)
	}}
}

var packLayouts = []int{1, 2, 8, 0, -1}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

func TestPackKernels(t *testing.T) {
	r := newProductRig(t)
	small := gpu.NewSmall(r.d.Props())
	rnd := rand.New(rand.NewPCG(1, 4))
	for _, nt := range packLayouts {
		for _, cols := range []int{512, 768 - 64} {
			const rows = 19
			lay := gpu.ActLayout{Rows: rows, Cols: cols, NT: nt}
			name := func(s string) string { return fmt.Sprint(s, " for ", cols, " columns, ", nt, " tiles") }
			act := r.room(lay.Bytes())
			to := gpu.Packed{ActLayout: lay, P: act}
			x, y := r.plainRows(rnd, rows, cols, cols+5, 3), r.pieces(rnd, rows, 5, 7, 13, 264)
			z := r.plainRows(rnd, rows, cols, cols+8, 0)

			r.run(r.p.Pack(nil, to, x.in, 1))
			r.packed(lay, act).check(t, name("pack"), x.at)
			r.run(r.p.Pack(nil, to, y.in, 1))
			r.packed(lay, act).check(t, name("pack of pieces"), y.at)
			r.run(r.p.Pack(nil, to, z.in, 3))
			r.packed(lay, act).check(t, name("pack of every row three times"), func(row, col int) float64 { return z.at(row/3, col) })

			w := randomRows(rnd, cols)
			sums, dst, out := r.room(lay.SumsBytes()), r.room(rows*(cols+1)*4), r.room(rows*cols*4)
			sum := gpu.Sum{X: x.in, Y: y.in, Dst: dst, DstStride: cols + 1, W: upload(r, w), Sums: sums}
			added := func(row, col int) float64 { return float64(float32(x.at(row, col)) + float32(y.at(row, col))) }
			check := func(what string) {
				t.Helper()
				r.packed(lay, act).check(t, name(what), func(row, col int) float64 { return added(row, col) * float64(w[col]) })
				got, ss := r.floats(dst, rows*(cols+1)), r.floats(sums, rows*lay.KB())
				for row := range rows {
					var exact, sum float64
					for c := range cols {
						if float64(got[row*(cols+1)+c]) != added(row, c) {
							t.Fatalf("%s: row %d column %d is %v, want %v", name(what), row, c, got[row*(cols+1)+c], added(row, c))
						}
						exact += added(row, c) * added(row, c)
					}
					for kb := range lay.KB() {
						sum += float64(ss[row*lay.KB()+kb])
					}
					if math.Abs(sum-exact) > exact*1e-6 {
						t.Fatalf("%s: row %d has squares of %v, want %v", name(what), row, sum, exact)
					}
				}
			}
			r.run(r.p.AddPack(nil, to, sum))
			check("residual and pack")
			r.d.Fill(act, 0xff, lay.Bytes())
			r.d.Fill(dst, 0xff, rows*(cols+1)*4)
			r.run(r.p.AddNorm(nil, to, sum, out, cols, 1e-5))
			check("residual, norm and pack")
			for i, v := range r.floats(out, rows*cols) {
				row, col := i/cols, i%cols
				var s float64
				for c := range cols {
					s += added(row, c) * added(row, c)
				}
				want := added(row, col) * float64(w[col]) / math.Sqrt(s/float64(cols)+1e-5)
				if math.Abs(float64(v)-want) > 2e-6*math.Abs(want) {
					t.Fatalf("%s: row %d column %d is %v, want %v", name("norm"), row, col, v, want)
				}
			}
			sum.Y, sum.Dst, sum.W = gpu.In{}, 0, 0
			r.run(r.p.AddPack(nil, to, sum))
			r.packed(lay, act).check(t, name("sums of squares alone"), x.at)

			r.run(r.p.GatedPack(nil, to, y.in, z.in, false))
			r.packed(lay, act).check(t, name("silu"), func(row, col int) float64 {
				return silu(y.at(row, col)) * z.at(row, col)
			})
			r.run(r.p.GatedPack(nil, to, x.in, y.in, true))
			r.packed(lay, act).check(t, name("gelu"), func(row, col int) float64 {
				g := x.at(row, col)
				return g / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g))) * y.at(row, col)
			})
			r.run(r.p.SigmoidPack(nil, to, y.in, x.in, cols, cols))
			r.packed(lay, act).check(t, name("sigmoid"), func(row, col int) float64 {
				return y.at(row, col) / (1 + math.Exp(-x.at(row, col)))
			})
			apart := r.plainRows(rnd, rows, cols, cols*3/2, 0) // gates of heads of 64, 96 values after each other
			r.run(r.p.SigmoidPack(nil, to, x.in, apart.in, 64, 96))
			r.packed(lay, act).check(t, name("sigmoid of heads"), func(row, col int) float64 {
				return x.at(row, col) / (1 + math.Exp(-apart.at(row, col/64*96+col%64)))
			})
			for _, dim := range []int{64, 128, 256} {
				if cols%dim != 0 {
					continue
				}
				r.run(r.p.HeadPack(nil, to, z.in, y.in, upload(r, w[:dim]), dim, 1e-6))
				r.packed(lay, act).check(t, name("heads"), func(row, col int) float64 {
					var s float64
					for c := col / dim * dim; c < col/dim*dim+dim; c++ {
						s += z.at(row, c) * z.at(row, c)
					}
					return z.at(row, col) / math.Sqrt(s/float64(dim)+1e-6) * float64(w[col%dim]) * silu(y.at(row, col))
				})
				once := r.packed(lay, act)
				steps := gpu.HeadsOut{P: out, Stride: cols, Step: dim}
				ls := small.RMSNorm(nil, steps, gpu.HeadsIn{In: z.in, Step: dim}, upload(r, w[:dim]), 1e-6, rows, cols/dim, dim)
				ls = small.Gated(ls, gpu.Out{P: out, Stride: cols}, y.in, gpu.Rows(out, cols), backend.SiLU, rows, cols)
				r.run(r.p.Pack(ls, to, gpu.Rows(out, cols), 1))
				again := r.packed(lay, act)
				for row := range rows {
					for col := range cols {
						a, _ := once.at(row, col)
						if b, _ := again.at(row, col); a != b {
							t.Fatalf("%s: row %d column %d is %v, step by step %v", name("heads"), row, col, a, b)
						}
					}
				}
			}
			r.release(act, sums, dst, out)
		}
	}
}

// TestNormFactor: a product of packed sums divides by the root mean square, of the columns there are.
func TestNormFactor(t *testing.T) {
	r := newProductRig(t)
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 12, 70} {
		const cols, rows, eps = 512 + 32, 33, 1e-3
		m := r.productMatrix(rnd, quant.Q8_0, rows, cols, 1)
		x, y, w := r.plainRows(rnd, n, cols, cols, 0), r.plainRows(rnd, n, cols, cols, 0), randomRows(rnd, cols)
		lay := r.p.Acts(n, m.WeightLayout)
		act, sums := r.room(lay.Bytes()), r.room(lay.SumsBytes())
		ls := r.p.AddPack(nil, gpu.Packed{ActLayout: lay, P: act}, gpu.Sum{X: x.in, Y: y.in, Sums: sums, W: upload(r, w)})
		got := r.multiply(ls, gpu.MatMulInput{ActLayout: lay, P: act, Sums: sums, Eps: eps}, []*productMatrix{m},
			r.p.Cut(m.WeightLayout), 2)[0]
		in := make([]float32, n*cols)
		for row := range n {
			var s float64
			for c := range cols {
				v := x.at(row, c) + y.at(row, c)
				s += v * v
			}
			for c := range cols {
				in[row*cols+c] = float32(2 * (x.at(row, c) + y.at(row, c)) * float64(w[c]) / math.Sqrt(s/cols+eps))
			}
		}
		if e := apart(got, plain(m.values, rows, cols, in)); !(e < half) {
			t.Errorf("%d rows: relative error %.2e", n, e)
		}
	}
}
