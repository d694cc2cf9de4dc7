package qmat

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// types lists every supported type.
func types() []quant.Type { return quant.BlockTypes() }

// fill writes random codes and small finite scales. Every code and sub-scale occurs.
func fill(t quant.Type, data []byte, rng *rand.Rand) {
	le := binary.LittleEndian
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	small := func(b []byte) { le.PutUint16(b, uint16(0x1400+rng.IntN(0x800)|rng.IntN(2)<<15)) }
	bb := t.BlockBytes()
	for ; len(data) > 0; data = data[bb:] {
		switch t {
		case quant.Q4_1, quant.Q5_1, quant.Q4_K, quant.Q5_K:
			small(data)
			small(data[2:])
		case quant.Q2_K:
			small(data[80:])
			small(data[82:])
		case quant.Q3_K:
			small(data[108:])
		case quant.Q6_K:
			small(data[208:])
		case quant.TQ1_0:
			small(data[52:])
		case quant.TQ2_0:
			small(data[64:])
		case quant.MXFP4:
			data[0] = byte(110 + rng.IntN(20))
		case quant.NVFP4: // any byte is a scale
		case quant.IQ1_M: // the half is spread over the upper bits of four words
			for i, digit := range []byte{0, 0, byte(rng.IntN(16)), 1} {
				data[49+2*i] = data[49+2*i]&15 | digit<<4
			}
		default:
			small(data)
		}
	}
}

// newMatrix returns a random matrix whose data starts at an odd address and ends where
// the allocation ends.
func newMatrix(t quant.Type, rows, k int, rng *rand.Rand) *Matrix {
	n := rows * t.RowBytes(k)
	m := &Matrix{Type: t, Rows: rows, K: k, Data: make([]byte, n+1)[1:]}
	fill(t, m.Data, rng)
	return m
}

func gauss(n int, rng *rand.Rand) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// pack rounds n columns of x ([n][k]).
func pack(x []float32, n, k int) *Acts {
	var q Rows
	var a Acts
	q.Reset(n, k)
	q.Quantize(x, k, 0, n)
	a.Reset(n, k)
	a.Pack(&q, nil, 0, a.Blocks())
	return &a
}

// eachLevel runs f at every CPU level of this machine.
func eachLevel(t *testing.T, f func(t *testing.T)) {
	for _, l := range kernel.Available() {
		t.Run(l.String(), func(t *testing.T) {
			defer kernel.Set(l)()
			f(t)
		})
	}
	for _, l := range kernel.All() {
		if !slices.Contains(kernel.Available(), l) {
			t.Logf("level %v skipped: this CPU or build does not have it", l)
		}
	}
}

func equal(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: y[%d] = %g (%x), want %g (%x)", what, i, got[i], math.Float32bits(got[i]), want[i],
				math.Float32bits(want[i]))
		}
	}
}

// TestReference checks the plain Go version against dequantised weights in float64.
func TestReference(t *testing.T) {
	defer kernel.Set(kernel.Generic)()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, typ := range types() {
		k := max(288, typ.BlockLen()+typ.BlockLen()) / typ.BlockLen() * typ.BlockLen()
		const rows, n = 5, 3
		m := newMatrix(typ, rows, k, rng)
		if err := m.Validate(); err != nil {
			t.Fatal(err)
		}
		w := make([]float32, rows*k)
		if err := quant.Dequantize(typ, w, m.Data); err != nil {
			t.Fatal(err)
		}
		x := pack(gauss(n*k, rng), n, k)
		y := make([]float32, n*rows)
		m.Mul(y, rows, x, 0, rows, rows, NewScratch())
		for c := range n {
			for r := range rows {
				var want, norm float64
				for i := range k {
					rec := &x.data[i/256*n+c]
					v := float64(rec.q[i%256]) * float64(rec.xs[i%256/32]) * float64(w[r*k+i])
					want += v
					norm += math.Abs(v)
				}
				if got := float64(y[c*rows+r]); !(math.Abs(got-want) <= 1e-5*norm) {
					t.Errorf("%v row %d column %d: %g, want %g", typ, r, c, got, want)
				}
			}
		}
	}
}

// TestMatrix compares every level with the plain Go version, bit for bit, over types,
// numbers of columns, row tails and block tails.
func TestMatrix(t *testing.T) {
	ns := []int{1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 32, 37, 100}
	const maxN = 100
	rng := rand.New(rand.NewPCG(3, 4))
	for _, typ := range types() {
		for _, k := range []int{32, 64, 256, 288, 512, 2560} {
			if k%typ.BlockLen() != 0 {
				continue
			}
			for _, rows := range []int{1, 15, 16, 17, 48} {
				if k == 2560 && rows != 48 {
					continue
				}
				m := newMatrix(typ, rows, k, rng)
				x := gauss(maxN*k, rng)
				want := make([]float32, maxN*rows)
				m.mulGeneric(formatOf(typ), want, rows, pack(x, maxN, k), 0, rows)
				eachLevel(t, func(t *testing.T) {
					if kernel.Current() == kernel.Generic && k*rows > 512*16 {
						return // the reference itself
					}
					s := NewScratch()
					for _, n := range ns {
						y := make([]float32, n*rows)
						m.Mul(y, rows, pack(x[:n*k], n, k), 0, rows, rows, s)
						equal(t, fmt.Sprintf("%v K=%d rows=%d n=%d", typ, k, rows, n), y, want[:n*rows])
					}
				})
			}
		}
	}
}

// TestSplit checks that ranges of rows and a wider y give the same bits and touch
// nothing else.
func TestSplit(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, typ := range types() {
		const rows, k, ys = 83, 512, 101
		m := newMatrix(typ, rows, k, rng)
		for _, n := range []int{1, 3, 9} {
			x := gauss(n*k, rng)
			want := make([]float32, n*rows)
			m.mulGeneric(formatOf(typ), want, rows, pack(x, n, k), 0, rows)
			eachLevel(t, func(t *testing.T) {
				a := pack(x, n, k)
				y := make([]float32, (n+1)*ys) // with a column behind the last one
				for i := range y {
					y[i] = 7
				}
				var wg sync.WaitGroup
				for _, r := range [][2]int{{0, 16}, {16, 48}, {48, 64}, {64, 83}} {
					wg.Go(func() { m.Mul(y, ys, a, r[0], r[1], r[1], NewScratch()) })
				}
				wg.Wait()
				for c := range n {
					equal(t, fmt.Sprintf("%v n=%d column %d", typ, n, c), y[c*ys:][:rows], want[c*rows:][:rows])
					for i := rows; i < ys; i++ {
						if y[c*ys+i] != 7 {
							t.Fatalf("%v n=%d: y[%d,%d] was written", typ, n, c, i)
						}
					}
				}
				for i, v := range y[n*ys:] {
					if v != 7 {
						t.Fatalf("%v n=%d: row %d of a column that does not exist was written", typ, n, i)
					}
				}
			})
		}
	}
}

// TestManyColumns: outputs of many columns are collected before they are written. They come to their places, in parts
// of the rows, with a short last panel, from a scratch used before, and nothing between the columns is touched.
func TestManyColumns(t *testing.T) {
	const rows, cut, k, n, stride = 273, 160, 256, 131, 280
	rng := rand.New(rand.NewPCG(5, 6))
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q6_K, quant.Q8_0} {
		m := newMatrix(typ, rows, k, rng)
		x := gauss(n*k, rng)
		want := make([]float32, n*stride)
		for i := range want {
			want[i] = 7
		}
		y := slices.Clone(want)
		m.mulGeneric(formatOf(typ), want, stride, pack(x, n, k), 0, rows)
		eachLevel(t, func(t *testing.T) {
			for i := range y {
				y[i] = 7
			}
			s, a := NewScratch(), pack(x, n, k)
			m.Mul(y, stride, a, cut, rows, rows, s)
			m.Mul(y, stride, a, 0, cut, rows, s)
			equal(t, typ.String(), y, want)
		})
	}
}

// TestPackColumns checks a chosen set of tokens, and that blocks may be packed apart.
func TestPackColumns(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	const n, k = 9, 800
	x := gauss(n*k, rng)
	var q Rows
	q.Reset(n, k)
	q.Quantize(x, k, 0, n)
	cols := []int32{4, 4, 0, 8}
	var a Acts
	a.Reset(len(cols), k)
	for b := range a.Blocks() {
		a.Pack(&q, cols, b, b+1)
	}
	for i, c := range cols {
		one := pack(x[int(c)*k:], 1, k)
		for b := range a.Blocks() {
			if a.data[b*len(cols)+i] != one.data[b] {
				t.Fatalf("column %d, block %d differs from token %d alone", i, b, c)
			}
		}
	}
}

// TestQuantize compares every level with the plain Go version over awkward values.
func TestQuantize(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	const k = 4*256 + 96
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	cases := map[string]func(x []float32){
		"gauss":     func(x []float32) {},
		"zero":      func(x []float32) { clear(x) },
		"zerogroup": func(x []float32) { clear(x[64:96]) },
		"minuszero": func(x []float32) { x[70] = float32(math.Copysign(0, -1)) },
		"denormal": func(x []float32) {
			for i := range x {
				x[i] *= 1e-40
			}
		},
		"small": func(x []float32) {
			for i := range x {
				x[i] *= 0x1p-100
			}
		},
		"huge": func(x []float32) {
			for i := range x {
				x[i] *= 1e38
			}
		},
		"outliers": func(x []float32) { x[3], x[300], x[1023], x[k-1] = 1e3, -1e4, 77, -55 },
		"halves": func(x []float32) {
			for i := range x {
				x[i] = float32(i%255-127) / 2
			}
		},
		"nan":    func(x []float32) { x[5] = nan },
		"inf":    func(x []float32) { x[260], x[600] = inf, -inf },
		"allnan": func(x []float32) { fillWith(x, nan) },
	}
	for name, change := range cases {
		x := gauss(k, rng)
		change(x)
		restore := kernel.Set(kernel.Generic)
		want := pack(x, 1, k)
		restore()
		eachLevel(t, func(t *testing.T) {
			got := pack(x, 1, k)
			for b := range got.data {
				g, w := (*[480]byte)(unsafe.Pointer(&got.data[b])), (*[480]byte)(unsafe.Pointer(&want.data[b]))
				nans(&got.data[b])
				nans(&want.data[b])
				if *g != *w {
					t.Fatalf("%s block %d:\n%v\nwant\n%v", name, b, got.data[b], want.data[b])
				}
			}
		})
	}
}

// nans gives every NaN the same bits: its payload is not part of the contract.
func nans(r *record) {
	for _, s := range [][]float32{r.xs[:], r.ms32[:], r.ms16[:]} {
		for i := range s {
			if s[i] != s[i] {
				s[i] = float32(math.NaN())
			}
		}
	}
}

func fillWith(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

// TestNotFinite checks that a bad column is NaN everywhere and leaves the others alone.
func TestNotFinite(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	const rows, k, n = 32, 512, 7
	for _, typ := range types() {
		m := newMatrix(typ, rows, k, rng)
		x := gauss(n*k, rng)
		want := make([]float32, n*rows)
		m.mulGeneric(formatOf(typ), want, rows, pack(x, n, k), 0, rows)
		x[2*k+100] = float32(math.NaN())
		x[5*k+300] = float32(math.Inf(-1))
		eachLevel(t, func(t *testing.T) {
			for _, cols := range [][]int32{{0, 1, 2, 3, 4, 5, 6}, {2}, {5, 1}} {
				var q Rows
				var a Acts
				q.Reset(n, k)
				q.Quantize(x, k, 0, n)
				a.Reset(len(cols), k)
				a.Pack(&q, cols, 0, a.Blocks())
				y := make([]float32, len(cols)*rows)
				m.Mul(y, rows, &a, 0, rows, rows, NewScratch())
				for i, c := range cols {
					if c != 2 && c != 5 {
						equal(t, typ.String(), y[i*rows:][:rows], want[int(c)*rows:][:rows])
						continue
					}
					for r, v := range y[i*rows:][:rows] {
						if v == v {
							t.Fatalf("%v: y[%d] of the bad column is %g, want NaN", typ, r, v)
						}
					}
				}
			}
		})
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name string
		m    Matrix
		ok   bool
	}{
		{"good", Matrix{Type: quant.Q4_K, Rows: 2, K: 512, Data: make([]byte, 576)}, true},
		{"no rows", Matrix{Type: quant.Q4_K, Rows: 0, K: 512, Data: nil}, true},
		{"short", Matrix{Type: quant.Q4_K, Rows: 2, K: 512, Data: make([]byte, 575)}, false},
		{"long", Matrix{Type: quant.Q4_K, Rows: 2, K: 512, Data: make([]byte, 577)}, false},
		{"half block", Matrix{Type: quant.Q4_K, Rows: 2, K: 384, Data: make([]byte, 432)}, false},
		{"float", Matrix{Type: quant.F32, Rows: 2, K: 2, Data: make([]byte, 16)}, false},
		{"unknown", Matrix{Type: quant.Type(999), Rows: 2, K: 2, Data: make([]byte, 16)}, false},
		{"negative", Matrix{Type: quant.Q8_0, Rows: -1, K: -32, Data: make([]byte, 34)}, false},
		{"overflow", Matrix{Type: quant.Q8_0, Rows: math.MaxInt / 2, K: 64, Data: make([]byte, 34)}, false},
	} {
		if err := c.m.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestFMA(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for range 200000 {
		v := [3]float32{}
		for i := range v {
			v[i] = float32(rng.NormFloat64()) * float32(math.Ldexp(1, rng.IntN(40)-20))
		}
		// Exact in 128 bits would be better; a float64 sum that is exact decides all but ties.
		got := fma32(v[0], v[1], v[2])
		wide := math.FMA(float64(v[0]), float64(v[1]), float64(v[2]))
		lo, hi := math.Nextafter32(got, float32(math.Inf(-1))), math.Nextafter32(got, float32(math.Inf(1)))
		if math.Abs(wide-float64(got)) > math.Min(math.Abs(wide-float64(lo)), math.Abs(wide-float64(hi))) {
			t.Fatalf("fma32(%g, %g, %g) = %g, but %g is nearer to %g", v[0], v[1], v[2], got, lo, wide)
		}
	}
	// A tie in float64 that the discarded bits break.
	a, b, c := float32(1+0x1p-23), float32(0x1p-24), float32(1)
	if got, want := fma32(a, b, c), float32(1+0x1p-23); got != want {
		t.Errorf("tie broken upwards: %b, want %b", got, want)
	}
}
