package vec

import (
	"sync"

	"strobe/internal/quant"
)

// MatMul multiplies rows [r0,r1) of a weight matrix with n columns:
//
//	y[c*ys+r] = sum_k W[r,k] * x[c*xs+k]    r in [r0,r1), c in [0,n)
//
// w is the whole matrix, row-major GGUF data of type F32, F16 or BF16 with k
// values per row. Products are accumulated in float32 (fused where the level
// has it) in lanes by index; the order does not depend on n, r0 or r1.
func MatMul(y []float32, ys int, typ quant.Type, w []byte, k int, x []float32, xs, n, r0, r1 int) {
	if n <= 0 || r0 >= r1 {
		return
	}
	stride := typ.RowBytes(k)
	matRows(y[r0:], ys, typ, w[r0*stride:r1*stride], stride, k, x, xs, n, r1-r0, 1)
}

// ScoresN computes the attention scores of nq queries against n cached keys:
// dst[c*ds+i] = scale * (query c . key i). Query c has headDim values at q[c*qs:],
// key i is a row of as many values of a type that [Load] knows at
// data[i*stride:]. The queries share the loads of the keys; each score has the
// bits of a query alone.
func ScoresN(dst []float32, ds int, q []float32, qs, nq, headDim int, typ quant.Type, data []byte, stride, n int,
	scale float32) {
	if n <= 0 || nq <= 0 {
		return
	}
	data = data[:(n-1)*stride+typ.RowBytes(headDim)]
	matRows(dst, ds, typ, data, stride, headDim, q, qs, nq, n, scale)
}

// AccumN adds the weighted values of nq queries: sum c, of headDim values at
// out[c*os:], gains p[c*ps+i] * (value i), i ascending, one chain of
// multiply-adds per element. Value i is a row of a type that [Load] knows at
// data[i*stride:]. The queries share the loads of the values; a query alone, and
// rows split over several calls, give the same bits.
func AccumN(out []float32, os int, p []float32, ps, nq, headDim int, typ quant.Type, data []byte, stride, n int) {
	if n <= 0 || nq <= 0 {
		return
	}
	_, _ = out[(nq-1)*os:][:headDim], p[(nq-1)*ps:][:n]
	data = data[:(n-1)*stride+typ.RowBytes(headDim)]
	accumRows(out, os, p, ps, nq, headDim, typ, data, stride, n)
}

// scratch hands out float32 buffers for decoded rows.
var scratch = sync.Pool{New: func() any { return new([]float32) }}

func getScratch(n int) *[]float32 {
	b := scratch.Get().(*[]float32)
	if cap(*b) < n {
		*b = make([]float32, n)
	}
	*b = (*b)[:n]
	return b
}

// matRowsGeneric is y[c*ys+r] = alpha * (row r of w) . (column c of x).
func matRowsGeneric(y []float32, ys int, typ quant.Type, w []byte, stride, k int, x []float32, xs, n, rows int,
	alpha float32) {
	b := getScratch(k)
	defer scratch.Put(b)
	row, size := *b, typ.RowBytes(k)
	for r := range rows {
		Load(typ, row, w[r*stride:r*stride+size])
		for c := range n {
			y[c*ys+r] = alpha * dotGeneric(row, x[c*xs:])
		}
	}
}

func accumRowsGeneric(out []float32, os int, p []float32, ps, nq, headDim int, typ quant.Type, data []byte, stride,
	n int) {
	b := getScratch(headDim)
	defer scratch.Put(b)
	row, size := *b, typ.RowBytes(headDim)
	for i := range n {
		Load(typ, row, data[i*stride:i*stride+size])
		for c := range nq {
			o := out[c*os:][:headDim]
			axpyGeneric(o, row, o, p[c*ps+i])
		}
	}
}
