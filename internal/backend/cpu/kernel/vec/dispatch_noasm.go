//go:build (!amd64 && !arm64) || noasm

package vec

import "strobe/internal/quant"

var tables = [...]table{generic}

func storeF16(dst []byte, src []float32) { storeF16Generic(dst, src) }
func loadF16(dst []float32, src []byte)  { loadF16Generic(dst, src) }
func loadBF16(dst []float32, src []byte) { loadBF16Generic(dst, src) }
func deltaChain(toks []deltaToken, src, dst []float32, v, w int, last bool) {
	deltaChainGeneric(toks, src, dst, v, w, last)
}
func convSilu(dst []float32, w []float32, taps [][]float32, c0 int) {
	convSiluGeneric(dst, w, taps, c0)
}

func matRows(y []float32, ys int, typ quant.Type, w []byte, stride, k int, x []float32, xs, n, rows int,
	alpha float32) {
	matRowsGeneric(y, ys, typ, w, stride, k, x, xs, n, rows, alpha)
}

func accumRows(out []float32, os int, p []float32, ps, nq, headDim int, typ quant.Type, data []byte, stride, n int) {
	accumRowsGeneric(out, os, p, ps, nq, headDim, typ, data, stride, n)
}
