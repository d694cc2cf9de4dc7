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

// Scores computes the attention scores of one head against n cached keys:
// dst[i] = scale * (q . key i). Key i is a row of len(q) values of a type that
// [Load] knows at data[i*stride:].
func Scores(dst, q []float32, typ quant.Type, data []byte, stride, n int, scale float32) {
	ScoresN(dst, 0, q, 0, 1, len(q), typ, data, stride, n, scale)
}

// ScoresN is [Scores] for nq queries that share the loads of the keys: query c
// of headDim values is at q[c*qs:], its scores go to dst[c*ds:]. Each score has
// the bits that Scores gives it.
func ScoresN(dst []float32, ds int, q []float32, qs, nq, headDim int, typ quant.Type, data []byte, stride, n int, scale float32) {
	if n <= 0 || nq <= 0 {
		return
	}
	data = data[:(n-1)*stride+typ.RowBytes(headDim)]
	matRows(dst, ds, typ, data, stride, headDim, q, qs, nq, n, scale)
}

// Accum adds the weighted values of one head: out += sum_i p[i] * (value i), i
// ascending, one chain of multiply-adds per element of out. Value i is a row of
// len(out) values of a type that [Load] knows at data[i*stride:]. Splitting the
// rows over several calls gives the same bits.
func Accum(out, p []float32, typ quant.Type, data []byte, stride, n int) {
	AccumN(out, 0, p, 0, 1, len(out), typ, data, stride, n)
}

// AccumN is [Accum] for nq queries that share the loads of the values: query c
// has its weights at p[c*ps:] and its headDim sums at out[c*os:]. Each sum has
// the bits that Accum gives it.
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
func matRowsGeneric(y []float32, ys int, typ quant.Type, w []byte, stride, k int, x []float32, xs, n, rows int, alpha float32) {
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

func accumRowsGeneric(out []float32, os int, p []float32, ps, nq, headDim int, typ quant.Type, data []byte, stride, n int) {
	b := getScratch(headDim)
	defer scratch.Put(b)
	row, size := *b, typ.RowBytes(headDim)
	for i := range n {
		Load(typ, row, data[i*stride:i*stride+size])
		for c := range nq {
			axpyGeneric(out[c*os:][:headDim], p[c*ps+i], row)
		}
	}
}
