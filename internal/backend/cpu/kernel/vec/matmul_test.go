package vec

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"strobe/internal/quant"
)

var weightTypes = []quant.Type{quant.F32, quant.F16, quant.BF16}

// edgeBytes is edge for bytes.
func edgeBytes(n int) []byte {
	x := edge((n + 3) / 4)
	if n == 0 {
		return []byte{}
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))[4*len(x)-n:]
}

// rowsOf fills n rows of k values of a type, rows at the given distance, and
// returns them with the values they stand for.
func rowsOf(r *rand.Rand, typ quant.Type, n, k, stride int) ([]byte, []float64) {
	size := typ.RowBytes(k)
	w := edgeBytes(max(0, (n-1)*stride+size))
	var v []float64
	for i := range n {
		row := w[i*stride : i*stride+size]
		if typ.Caches() && typ.Quantized() && typ != quant.Q8_0 {
			x := normal(r, k)
			quant.EncodeKV(typ, row, x)
			quant.DecodeKV(typ, x, row)
			for _, x := range x {
				v = append(v, float64(x))
			}
			continue
		}
		for j := range k {
			x := float32(r.NormFloat64())
			switch typ {
			case quant.F32:
				binary.LittleEndian.PutUint32(row[4*j:], math.Float32bits(x))
			case quant.F16:
				h := quant.F32ToF16(x)
				binary.LittleEndian.PutUint16(row[2*j:], h)
				x = quant.F16ToF32(h)
			case quant.BF16:
				h := quant.F32ToBF16(x)
				binary.LittleEndian.PutUint16(row[2*j:], h)
				x = quant.BF16ToF32(h)
			case quant.Q8_0:
				b := row[j/32*34:]
				if j%32 == 0 {
					binary.LittleEndian.PutUint16(b, quant.F32ToF16(float32(r.Float64()/50)))
				}
				q := int8(r.IntN(256) - 128)
				b[2+j%32] = byte(q)
				x = quant.F16ToF32(binary.LittleEndian.Uint16(b)) * float32(q)
			}
			v = append(v, float64(x))
		}
	}
	return w, v
}

func refDot(w []float64, x []float32) (sum, mag float64) {
	for i, v := range x {
		sum += w[i] * float64(v)
		mag += math.Abs(w[i] * float64(v))
	}
	return sum, mag
}

func TestMatMul(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(10)
		for _, typ := range weightTypes {
			t.Run(typ.String(), func(t *testing.T) {
				ks := append(lengths(), 1024, 1025, 2048, 2501, 9216)
				for i, k := range ks {
					rows := 1 + i%9
					w, wv := rowsOf(r, typ, rows, k, typ.RowBytes(k))
					n := 1 + i%15
					xs, ys := k+i%3, rows+i%4
					x := normal(r, (n-1)*xs+k)
					y := newFenced(i%4, (n-1)*ys+rows)
					MatMul(y.dst(), ys, typ, w, k, x, xs, n, 0, rows)
					y.check(t)
					for c := range n {
						for row := range ys {
							if row >= rows {
								if c < n-1 && y.dst()[c*ys+row] != fence {
									t.Fatalf("k=%d rows=%d n=%d: wrote between the columns", k, rows, n)
								}
								continue
							}
							want, mag := refDot(wv[row*k:], x[c*xs:c*xs+k])
							near(t, caseName("k=", k, " row ", row, " column ", c), y.dst()[c*ys+row:c*ys+row+1], []float64{want}, 0,
								4e-7*mag)
						}
					}
				}
			})
		}
	})
}

// TestMatMulBatch computes the same products in batches and row ranges of every
// size and expects the same bits.
func TestMatMulBatch(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(11)
		for _, typ := range weightTypes {
			for _, k := range []int{33, 64, 100, 576, 1500} {
				const rows, n = 23, 70
				w, _ := rowsOf(r, typ, rows, k, typ.RowBytes(k))
				x := normal(r, n*k)
				want := make([]float32, n*rows)
				for c := range n {
					for row := range rows {
						MatMul(want[c*rows:], rows, typ, w, k, x[c*k:], k, 1, row, row+1)
					}
				}
				for _, b := range []int{1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 31, 33, 64, 70} {
					for _, rr := range [][2]int{{0, rows}, {1, 4}, {2, 9}, {22, 23}} {
						got := make([]float32, n*rows)
						for c := 0; c < n; c += b {
							MatMul(got[c*rows:], rows, typ, w, k, x[c*k:], k, min(b, n-c), rr[0], rr[1])
						}
						for c := range n {
							sameBits(t, caseName(typ, " k=", k, " batch ", b, " rows ", rr, " column ", c), got[c*rows+rr[0]:c*rows+rr[1]],
								want[c*rows+rr[0]:c*rows+rr[1]])
						}
					}
				}
				// Misaligned operands.
				w2 := append(make([]byte, 3, 3+len(w)), w...)[3:]
				got := make([]float32, n*rows+1)[1:]
				MatMul(got, rows, typ, w2, k, at(x, 3), k, n, 0, rows)
				sameBits(t, "misaligned", got, want)
			}
		}
	})
}

// TestMatMulManyColumns needs several passes over the weights.
func TestMatMulManyColumns(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(12)
		for _, typ := range weightTypes {
			const k, rows, n = 2100, 6, 400
			w, _ := rowsOf(r, typ, rows, k, typ.RowBytes(k))
			x := normal(r, n*k)
			got, want := make([]float32, n*rows), make([]float32, rows)
			MatMul(got, rows, typ, w, k, x, k, n, 0, rows)
			for _, c := range []int{0, 5, 6, 199, 200, 201, 398, 399} {
				MatMul(want, rows, typ, w, k, x[c*k:], k, 1, 0, rows)
				sameBits(t, caseName(typ, " column ", c), got[c*rows:(c+1)*rows], want)
			}
		}
	})
}

// TestMatMulOdd feeds values that must not crash, and checks that a NaN stays
// in its row or column.
func TestMatMulOdd(t *testing.T) {
	levels(t, func(t *testing.T) {
		for _, typ := range weightTypes {
			const k, rows, n = 45, 6, 9
			w := make([]byte, rows*typ.RowBytes(k))
			src := make([]float32, k)
			for row := range rows {
				for j := range src {
					src[j] = 1
				}
				if row == 2 {
					src[44] = float32(math.NaN())
				}
				if row == 3 {
					src[1] = float32(math.Inf(1))
				}
				Store(typ, w[row*typ.RowBytes(k):(row+1)*typ.RowBytes(k)], src)
			}
			x := make([]float32, k*n)
			for i := range x {
				x[i] = 1e-40
				if i/k == 5 {
					x[i] = odd[i%len(odd)]
				}
			}
			y := make([]float32, rows*n)
			MatMul(y, rows, typ, w, k, x, k, n, 0, rows)
			for c := range n {
				for row := range rows {
					v := float64(y[c*rows+row])
					switch {
					case row == 2 || c == 5:
						if !math.IsNaN(v) {
							t.Errorf("%v row %d column %d is %v, want NaN", typ, row, c, v)
						}
					case row == 3:
						if !math.IsInf(v, 1) {
							t.Errorf("%v row %d column %d is %v, want +Inf", typ, row, c, v)
						}
					default:
						if math.Abs(v-45e-40) > 1e-43 {
							t.Errorf("%v row %d column %d is %v, want 45 denormals of 1e-40", typ, row, c, v)
						}
					}
				}
			}
		}
	})
}
