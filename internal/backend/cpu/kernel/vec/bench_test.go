package vec

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

func benchLevels(b *testing.B, f func(b *testing.B)) {
	for _, l := range kernel.Available() {
		b.Run(l.String(), func(b *testing.B) {
			defer kernel.Set(l)()
			f(b)
		})
	}
}

// BenchmarkMatMul reports the rate of weights (GB/s) and of multiply-adds. The
// matrix is larger than the caches are fast: 256 MB, visited in slices.
func BenchmarkMatMul(b *testing.B) {
	const rows = 256
	buf := make([]byte, 256<<20)
	for i := 0; i < len(buf); i += 4 { // an ordinary number in every type
		binary.LittleEndian.PutUint32(buf[i:], 0x3c403c40+uint32(i*7)&0x003f003f)
	}
	for _, typ := range []quant.Type{quant.BF16, quant.F16, quant.F32} {
		for _, k := range []int{1024, 2560} {
			for _, n := range []int{1, 2, 4, 6, 8, 16, 32, 128} {
				x, y := make([]float32, n*k), make([]float32, n*rows)
				for i := range x {
					x[i] = float32(i%17) - 8
				}
				b.Run(fmt.Sprintf("%v/k%d/n%d", typ, k, n), func(b *testing.B) {
					benchLevels(b, func(b *testing.B) {
						size := rows * typ.RowBytes(k)
						b.SetBytes(int64(size))
						at := 0
						for b.Loop() {
							MatMul(y, rows, typ, buf[at:at+size], k, x, k, n, 0, rows)
							if at += size; at+size > len(buf) {
								at = 0
							}
						}
						b.ReportMetric(float64(b.N)*rows*float64(k)*float64(n)/b.Elapsed().Seconds()/1e9, "GMAC/s")
					})
				})
			}
		}
	}
}

// BenchmarkElementwise reports GB/s of one operand, from the second-level cache.
func BenchmarkElementwise(b *testing.B) {
	const n = 9216
	r := newRand(1)
	x, y, z := normal(r, n), normal(r, n), make([]float32, n)
	for _, c := range []struct {
		name string
		f    func()
	}{
		{"add", func() { Add(z, x, y) }},
		{"axpy", func() { Axpy(z, 0, x) }},
		{"dot", func() { Dot(x, y) }},
		{"rmsNorm", func() { RMSNorm(z, x, y, 1e-6) }},
		{"exp", func() { exp(z, x) }},
		{"siluMul", func() { SiluMul(z, x, y) }},
		{"geluMul", func() { GeluMul(z, x, y) }},
		{"softcap", func() { Softcap(z, x, 30) }},
		{"softmax", func() { copy(z, x); Softmax(z) }},
		{"argMax", func() { ArgMax(x) }},
		{"storeQ80", func() { Store(quant.Q8_0, f32Bytes(z)[:n/32*34], x) }},
		{"storeF16", func() { Store(quant.F16, f32Bytes(z)[:2*n], x) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			benchLevels(b, func(b *testing.B) {
				b.SetBytes(4 * n)
				for b.Loop() {
					c.f()
				}
			})
		})
	}
}

func BenchmarkConvSilu(b *testing.B) {
	const n = 8192
	r := newRand(1)
	w, dst := normal(r, 4*n), make([]float32, n)
	taps := [][]float32{normal(r, n), normal(r, n), normal(r, n), normal(r, n)}
	benchLevels(b, func(b *testing.B) {
		b.SetBytes(4 * n)
		for b.Loop() {
			ConvSilu(dst, w, taps, 0, n)
		}
	})
}

func BenchmarkRoPE(b *testing.B) {
	r := newRand(1)
	x := normal(r, 16*256)
	cos, sin := make([]float32, 32), make([]float32, 32)
	for i := range cos {
		s, c := math.Sincos(float64(i))
		cos[i], sin[i] = float32(c), float32(s)
	}
	benchLevels(b, func(b *testing.B) {
		for b.Loop() {
			RoPE(x, 256, 64, cos, sin)
		}
	})
}

// BenchmarkAttention scores and sums 4096 cached rows of one KV head with a
// distance as for four heads, GB/s of cache read (keys and values).
func BenchmarkAttention(b *testing.B) {
	const dim, rows = 256, 4096
	r := newRand(1)
	for _, typ := range []quant.Type{quant.F32, quant.F16, quant.Q8_0} {
		stride := 4 * typ.RowBytes(dim)
		data := make([]byte, rows*stride)
		for i := 0; i < len(data); i += 4 {
			binary.LittleEndian.PutUint32(data[i:], 0x3c403c40)
		}
		for _, nq := range []int{1, 4, 16, 64} {
			q, out, s := normal(r, nq*dim), make([]float32, nq*dim), make([]float32, nq*rows)
			b.Run(fmt.Sprintf("%v/q%d", typ, nq), func(b *testing.B) {
				benchLevels(b, func(b *testing.B) {
					b.SetBytes(int64(2 * rows * typ.RowBytes(dim)))
					for b.Loop() {
						for i := 0; i < rows; i += 256 {
							ScoresN(s[i:], rows, q, dim, nq, dim, typ, data[i*stride:], stride, 256, 1e-30)
							AccumN(out, dim, s[i:], rows, nq, dim, typ, data[i*stride:], stride, 256)
						}
					}
					b.ReportMetric(2*float64(b.N)*rows*dim*float64(nq)/b.Elapsed().Seconds()/1e9, "GMAC/s")
				})
			})
		}
	}
}

// BenchmarkDelta runs one layer of 32 heads, GB/s of state read; ns/rowtoken is
// the time of one row and one new token.
func BenchmarkDelta(b *testing.B) {
	const heads, dk, dv = 32, 128, 128
	r := newRand(1)
	for _, n := range []int{1, 4, 16, 64} {
		pend := min(n, 2)
		c := newDeltaCase(r, dk, dv, n+pend)
		state := normal(r, heads*dk*dv)
		tape, o := normal(r, (n+pend)*dv), make([]float32, n*dv)
		b.Run(fmt.Sprintf("n%d", n), func(b *testing.B) {
			benchLevels(b, func(b *testing.B) {
				b.SetBytes(heads * dk * dv * 4)
				for b.Loop() {
					for h := range heads {
						DeltaRule(&Delta{
							DK: dk, DV: dv, Scale: 0.1, State: state[h*dk*dv : (h+1)*dk*dv],
							NPend: pend, PK: c.k, PKStride: c.qk, PD: tape, PDStride: dv, PG: c.g, PGStride: 2,
							N: n, Q: c.q, K: c.k[pend*c.qk:], QKStride: c.qk, V: c.val, VStride: c.v, Beta: c.beta, G: c.g, BGStride: 2,
							DOut: tape[pend*dv:], DStride: dv, O: o, OStride: dv, Store: pend,
						})
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*heads*dv*n), "ns/rowtoken")
			})
		})
	}
	for _, n := range []int{16, 32} {
		c := newDeltaCase(r, dk, dv, n)
		parent := make([]int32, n)
		for i := range parent {
			parent[i] = int32(i-1) / 2
			if i == 0 {
				parent[i] = -1
			}
		}
		d := make([]float32, n*dv)
		b.Run(fmt.Sprintf("tree%d", n), func(b *testing.B) {
			benchLevels(b, func(b *testing.B) {
				for b.Loop() {
					c.tree(c.state, nil, 0, 0, parent, d)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*dv*n), "ns/rowtoken")
			})
		})
	}
}
