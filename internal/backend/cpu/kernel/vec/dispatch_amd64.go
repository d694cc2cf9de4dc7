//go:build !noasm

package vec

import (
	"unsafe"

	"strobe/internal/backend/cpu/kernel"
)

// tables has the functions of each instruction set.
var tables = [...]table{
	kernel.Generic: generic,
	kernel.AVX2: {
		axpyAVX2, addAVX2, scaleAVX2, scaleMulAVX2, sigmoidAVX2, siluAVX2, siluMulAVX2, geluMulAVX2, sigmoidMulAVX2,
		softcapAVX2, sumSquaresAVX2, dotAVX2, maximumAVX2, indexOfAVX2, expSumAVX2, weightSumAVX2, rotateAVX2,
		loadQ80AVX2, storeQ80AVX2, loadQ40AVX2, loadQ41AVX2, loadTurbo3AVX2, loadTurbo4AVX2,
	},
	kernel.AVX512: {
		axpyAVX512, addAVX512, scaleAVX512, scaleMulAVX512, sigmoidAVX512, siluAVX512, siluMulAVX512, geluMulAVX512,
		sigmoidMulAVX512, softcapAVX512, sumSquaresAVX512, dotAVX512, maximumAVX512, indexOfAVX512, expSumAVX512,
		weightSumAVX512, rotateAVX512, loadQ80AVX512, storeQ80AVX512, loadQ40AVX512, loadQ41AVX512, loadTurbo3AVX512,
		loadTurbo4AVX512,
	},
}

// Conversions are exact or correctly rounded, so tails may take the Go version.

func storeF16(dst []byte, src []float32) {
	n := 0
	switch l := kernel.Current().Floats(); {
	case l == kernel.AVX512 && len(src) >= 16:
		n = len(src) &^ 15
		storeF16AVX512(&dst[0], p(src), n)
	case l == kernel.AVX2 && len(src) >= 8:
		n = len(src) &^ 7
		storeF16AVX2(&dst[0], p(src), n)
	}
	storeF16Generic(dst[2*n:], src[n:])
}

func loadF16(dst []float32, src []byte) {
	n := 0
	switch l := kernel.Current().Floats(); {
	case l == kernel.AVX512 && len(dst) > 0:
		n = len(dst)
		loadF16AVX512(p(dst), &src[0], n)
	case l == kernel.AVX2 && len(dst) >= 8:
		n = len(dst) &^ 7
		loadF16AVX2(p(dst), &src[0], n)
	}
	loadF16Generic(dst[n:], src[2*n:])
}

func loadBF16(dst []float32, src []byte) {
	n := 0
	switch l := kernel.Current().Floats(); {
	case l == kernel.AVX512 && len(dst) > 0:
		n = len(dst)
		loadBF16AVX512(p(dst), &src[0], n)
	case l == kernel.AVX2 && len(dst) >= 8:
		n = len(dst) &^ 7
		loadBF16AVX2(p(dst), &src[0], n)
	}
	loadBF16Generic(dst[n:], src[2*n:])
}

// convLanes is the number of channels of a vector.
func convLanes(l kernel.Level) int {
	if l == kernel.AVX512 {
		return 16
	}
	return 8
}

func conv4(l kernel.Level, dst, w *float32, t *[4]*float32, n int) {
	if l == kernel.AVX512 {
		conv4AVX512(dst, w, t[0], t[1], t[2], t[3], n)
	} else {
		conv4AVX2(dst, w, t[0], t[1], t[2], t[3], n)
	}
}

func deltaChain(toks []deltaToken, src, dst []float32, v, w int, last bool) {
	if dk := len(toks[0].k); w == deltaLanes && dk%4 == 0 {
		t := (*byte)(unsafe.Pointer(&toks[0]))
		switch kernel.Current().Floats() {
		case kernel.AVX512:
			deltaChainAVX512(t, len(toks), &src[0], &dst[0], dk, 4*v, last)
			return
		case kernel.AVX2:
			const half = deltaLanes / 2
			deltaChainAVX2(t, len(toks), &src[0], &dst[0], dk, 4*v, last)
			deltaChainAVX2(t, len(toks), &src[half], &dst[half], dk, 4*(v+half), last)
			return
		}
	}
	deltaChainGeneric(toks, src, dst, v, w, last)
}
