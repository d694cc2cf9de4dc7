//go:build !amd64 || noasm

package vec

import "strobe/internal/quant"

func axpy(y []float32, a float32, x []float32) { axpyGeneric(y, a, x) }
func add(dst, a, b []float32)                  { addGeneric(dst, a, b) }
func mul(dst, a, b []float32)                  { mulGeneric(dst, a, b) }
func scale(dst, a []float32, s float32)        { scaleGeneric(dst, a, s) }
func scaleMul(dst, x, w []float32, s float32)  { scaleMulGeneric(dst, x, w, s) }
func exp(dst, x []float32)                     { expGeneric(dst, x) }
func sigmoid(dst, x []float32)                 { sigmoidGeneric(dst, x) }
func silu(dst, x []float32)                    { siluGeneric(dst, x) }
func siluMul(dst, gate, up []float32)          { siluMulGeneric(dst, gate, up) }
func geluMul(dst, gate, up []float32)          { geluMulGeneric(dst, gate, up) }
func sigmoidMul(dst, x, gate []float32)        { sigmoidMulGeneric(dst, x, gate) }
func softcap(dst, x []float32, c float32)      { softcapGeneric(dst, x, c) }
func sumSquares(x []float32) float64           { return sumSquaresGeneric(x) }
func dot(a, b []float32) float32               { return dotGeneric(a, b) }
func maximum(x []float32) float32              { return maximumGeneric(x) }
func indexOf(x []float32, v float32) int       { return indexOfGeneric(x, v) }
func expSum(x []float32, m float32) float64    { return expSumGeneric(x, m) }
func rotate(a, b, cos, sin []float32)          { rotateGeneric(a, b, cos, sin) }
func storeF16(dst []byte, src []float32)       { storeF16Generic(dst, src) }
func storeQ80(dst []byte, src []float32)       { storeQ80Generic(dst, src) }
func loadF16(dst []float32, src []byte)        { loadF16Generic(dst, src) }
func loadBF16(dst []float32, src []byte)       { loadBF16Generic(dst, src) }
func loadQ80(dst []float32, src []byte)        { loadQ80Generic(dst, src) }
func deltaChain(toks []deltaToken, src, dst []float32, v, w int, last bool) {
	deltaChainGeneric(toks, src, dst, v, w, last)
}
func convSilu(dst []float32, w []float32, taps [][]float32, c0 int) {
	convSiluGeneric(dst, w, taps, c0)
}

func matRows(y []float32, ys int, typ quant.Type, w []byte, stride, k int, x []float32, xs, n, rows int, alpha float32) {
	matRowsGeneric(y, ys, typ, w, stride, k, x, xs, n, rows, alpha)
}

func accumRows(out []float32, os int, p []float32, ps, nq, headDim int, typ quant.Type, data []byte, stride, n int) {
	accumRowsGeneric(out, os, p, ps, nq, headDim, typ, data, stride, n)
}
