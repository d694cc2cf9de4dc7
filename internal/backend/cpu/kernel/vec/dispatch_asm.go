//go:build (amd64 || arm64) && !noasm

package vec

import (
	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// p is the address of the first element, for kernels that also take a length.
func p(x []float32) *float32 { return &x[0] }

func convSilu(dst []float32, w []float32, taps [][]float32, c0 int) {
	l := kernel.Current().Floats()
	if l == kernel.Generic {
		convSiluGeneric(dst, w, taps, c0)
		return
	}
	if len(taps) != 4 {
		conv(dst, w, taps, c0)
		ops().silu(dst, dst)
		return
	}
	lanes := convLanes(l)
	// A missing tap is a slice of zeros, a tail a vector padded with zeros.
	n := len(dst) &^ (lanes - 1)
	if n > 0 {
		var t [4]*float32
		var zeros *[]float32
		for j := range t {
			if taps[j] != nil {
				t[j] = &taps[j][c0]
				continue
			}
			if zeros == nil {
				zeros = getScratch(n)
				clear(*zeros)
			}
			t[j] = p(*zeros)
		}
		conv4(l, p(dst), p(w), &t, n)
		if zeros != nil {
			scratch.Put(zeros)
		}
	}
	if n < len(dst) {
		var d [16]float32
		var pw [64]float32
		var pt [4][16]float32
		var t [4]*float32
		copy(pw[:], w[4*n:])
		for j := range t {
			if taps[j] != nil {
				copy(pt[j][:], taps[j][c0+n:c0+len(dst)])
			}
			t[j] = &pt[j][0]
		}
		conv4(l, &d[0], &pw[0], &t, lanes)
		copy(dst[n:], d[:])
	}
}

func matRows(y []float32, ys int, typ quant.Type, w []byte, stride, k int, x []float32, xs, n, rows int,
	alpha float32) {
	l := kernel.Current().Floats()
	if l == kernel.Generic || k == 0 {
		matRowsGeneric(y, ys, typ, w, stride, k, x, xs, n, rows, alpha)
		return
	}
	matRowsAsm(l, y, ys, typ, w, stride, k, x, xs, n, rows, alpha)
}

func accumRows(out []float32, os int, p []float32, ps, nq, headDim int, typ quant.Type, data []byte, stride, n int) {
	l := kernel.Current().Floats()
	if l == kernel.Generic || headDim == 0 {
		accumRowsGeneric(out, os, p, ps, nq, headDim, typ, data, stride, n)
		return
	}
	accumRowsAsm(l, out, os, p, ps, nq, headDim, typ, data, stride, n)
}
