package qmat

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"strobe/internal/backend/cpu/kernel"
)

// BenchmarkMul multiplies weights that come from memory: it goes through more than 100 MB
// of matrices, one call per matrix, on one thread. GB/s are bytes of weights.
func BenchmarkMul(b *testing.B) {
	const rows, k, total = 1024, 2560, 112 << 20
	rng := rand.New(rand.NewPCG(1, 2))
	x := gauss(512*k, rng)
	y := make([]float32, 512*rows)
	var buf []byte
	for _, typ := range types() {
		size := rows * typ.RowBytes(k)
		var ms []Matrix
		prepare := func() {
			if ms != nil {
				return
			}
			if buf == nil {
				buf = make([]byte, total)
			}
			fill(typ, buf[:size], rng)
			for at := 0; at+size <= total; at += size {
				copy(buf[at:], buf[:size])
				ms = append(ms, Matrix{Type: typ, Rows: rows, K: k, Data: buf[at:][:size]})
			}
		}
		for _, n := range []int{1, 2, 4, 8, 16, 32, 512} {
			for _, l := range kernel.Available() {
				if l == kernel.Generic && n > 1 {
					continue
				}
				b.Run(fmt.Sprintf("%v/n=%d/%v", typ, n, l), func(b *testing.B) {
					defer kernel.Set(l)()
					prepare()
					a := pack(x, n, k)
					s := NewScratch()
					b.SetBytes(int64(size))
					i := 0
					for b.Loop() {
						ms[i].Mul(y, rows, a, 0, rows, rows, s)
						i = (i + 1) % len(ms)
					}
					b.ReportMetric(float64(rows)*k*float64(n)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GMAC/s")
				})
			}
		}
	}
}

// BenchmarkUnpack decodes a row in Go, as machines without kernels do. MB/s are millions of values.
func BenchmarkUnpack(b *testing.B) {
	const k = 2560
	for _, typ := range types() {
		f, row := formatOf(typ), make([]byte, typ.RowBytes(k))
		fill(typ, row, rand.New(rand.NewPCG(1, 1)))
		var u unpacked
		b.Run(typ.String(), func(b *testing.B) {
			b.SetBytes(k)
			for b.Loop() {
				for i := range k / blockLen {
					f.block(&u, row, i, k)
				}
			}
		})
	}
}

// BenchmarkQuantize rounds one row of activations.
func BenchmarkQuantize(b *testing.B) {
	const k = 2560
	x := gauss(k, rand.New(rand.NewPCG(1, 2)))
	for _, l := range kernel.Available() {
		b.Run(l.String(), func(b *testing.B) {
			defer kernel.Set(l)()
			var q Rows
			q.Reset(1, k)
			b.SetBytes(4 * k)
			for b.Loop() {
				q.Quantize(x, k, 0, 1)
			}
		})
	}
}

// BenchmarkPack gathers 16 rows for the kernels.
func BenchmarkPack(b *testing.B) {
	const n, k = 16, 2560
	var q Rows
	var a Acts
	q.Reset(n, k)
	q.Quantize(gauss(n*k, rand.New(rand.NewPCG(1, 2))), k, 0, n)
	a.Reset(n, k)
	b.SetBytes(n * k)
	for b.Loop() {
		a.Pack(&q, nil, 0, a.Blocks())
	}
}
