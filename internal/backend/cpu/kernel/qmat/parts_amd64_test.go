//go:build !noasm

package qmat

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// TestWithoutKernels: types that no kernel knows yet are decoded in Go, with the same bits at all levels.
func TestWithoutKernels(t *testing.T) {
	defer func(k [len(kernels512)]kernels, k2 [len(kernelsAVX2)]kernels2) {
		kernels512, kernelsAVX2 = k, k2
	}(kernels512, kernelsAVX2)
	clear(kernels512[:])
	clear(kernelsAVX2[:])
	rng := rand.New(rand.NewPCG(7, 7))
	for _, typ := range types() {
		const rows, k, n = 17, 512, 5
		m, x := newMatrix(typ, rows, k, rng), pack(gauss(n*k, rng), n, k)
		want := make([]float32, n*rows)
		m.mulGeneric(formatOf(typ), want, rows, x, 0, rows)
		eachLevel(t, func(t *testing.T) {
			y := make([]float32, n*rows)
			m.Mul(y, rows, x, 0, rows, rows, NewScratch())
			equal(t, typ.String(), y, want)
		})
	}
}

// TestWeaveAVX2: processors without AVX-512 weave as the others do, and write nothing behind what they weave.
func TestWeaveAVX2(t *testing.T) {
	if kernel.Best() < kernel.AVX512 {
		t.Skip("needs AVX-512, for the kernel that it compares with; TestWeave tests the one in use")
	}
	const pieces, stride = 3, 61
	src := make([]byte, 15*stride+16*pieces)
	for i := range src {
		src[i] = byte(i*i>>3 ^ i)
	}
	got, want := make([]byte, 256*pieces+64), make([]byte, 256*pieces+64)
	weave2(&got[0], &src[0], stride, pieces)
	weave16(&want[0], &src[0], stride, pieces)
	if !slices.Equal(got, want) {
		t.Error("bytes are in other places")
	}
}

// quiet reports the time of f in the fastest tenth of many short samples: what it takes
// when the machine does nothing else. What b measures itself is beside the point.
func quiet(b *testing.B, macs int, f func()) {
	for b.Loop() {
		f()
	}
	const reps = 64
	samples := make([]time.Duration, 400)
	for i := range samples {
		at := time.Now()
		for range reps {
			f()
		}
		samples[i] = time.Since(at)
	}
	slices.Sort(samples)
	ns := float64(samples[len(samples)/10].Nanoseconds()) / reps
	b.ReportMetric(ns, "quiet-ns")
	if macs > 0 {
		b.ReportMetric(float64(macs)/ns, "GMAC/s")
	}
}

// BenchmarkParts times the pieces of the AVX-512 kernels on one block with everything in
// the cache.
func BenchmarkParts(b *testing.B) {
	if kernel.Best() < kernel.AVX512 {
		b.Skip("needs AVX-512")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	s := NewScratch()
	for i := range s.panels[:4096] {
		s.panels[i] = byte(rng.Uint32()) & 15
	}
	x := pack(gauss(6*256, rng), 6, 256)
	xp := (*byte)(unsafe.Pointer(&x.data[0]))
	y := make([]float32, 6*32)
	zero := make([]float32, 32)
	pf := uintptr(unsafe.Pointer(&s.panels[0]))
	for k, name := range []string{"off32", "min32", "off16", "min16"} {
		for nc := 1; nc <= maxTile; nc++ {
			b.Run(fmt.Sprintf("micro/%s/%d", name, nc), func(b *testing.B) {
				iters := 8
				if kind(k).sub() == 16 {
					iters = 2
				}
				f := micro512[k][nc-1]
				quiet(b, nc*32*256, func() { f(&s.panels[0], xp, &zero[0], 0, &y[0], 128, iters, pf, 0) })
			})
		}
	}
	for t, k := range kernels512 {
		if k.decode == nil {
			continue
		}
		typ := quant.Type(t)
		m := newMatrix(typ, 16, 256, rng)
		stride := typ.RowBytes(256)
		b.Run("decode/"+typ.String(), func(b *testing.B) {
			quiet(b, 0, func() { k.decode(&s.panels[0], &m.Data[0], stride, 8, pf, 0) })
		})
		for n, f := range k.fused {
			b.Run(fmt.Sprintf("fused/%v/%d", typ, n+1), func(b *testing.B) {
				quiet(b, (n+1)*16*256, func() { f(&s.panels[0], &m.Data[0], stride, 1, 8, xp, 480*(n+1), pf, &y[0], 64) })
			})
		}
	}
	x = pack(gauss(24*256, rng), 24, 256)
	xp = (*byte)(unsafe.Pointer(&x.data[0]))
	y = make([]float32, 24*16)
	for t, k := range kernelsAVX2 {
		if k.decode == nil {
			continue
		}
		typ := quant.Type(t)
		m := newMatrix(typ, 16, 256, rng)
		stride := typ.RowBytes(256)
		b.Run("decode2/"+typ.String(), func(b *testing.B) {
			quiet(b, 0, func() { k.decode(&s.panels[0], &m.Data[0], stride, 8, pf, 0) })
		})
		for _, n := range []int{1, 4, 8, 24} {
			b.Run(fmt.Sprintf("micro2/%v/%d", typ, n), func(b *testing.B) {
				quiet(b, n*16*256, func() { k.micro(&s.panels[0], xp, n, &y[0], 64, formats[t].kind.iters(256)) })
			})
			if !slices.Contains(kernel.Available(), kernel.AVXVNNI) {
				continue
			}
			b.Run(fmt.Sprintf("vnni/%v/%d", typ, n), func(b *testing.B) {
				quiet(b, n*16*256, func() { k.vnni(&s.panels[0], xp, n, &y[0], 64, formats[t].kind.iters(256)) })
			})
		}
	}
}
