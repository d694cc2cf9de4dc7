//go:build !noasm

package vec

import (
	"unsafe"

	"strobe/internal/backend/cpu/kernel"
)

// neon is what every arm64 CPU has.
var neon = table{
	axpyNEON, addNEON, scaleNEON, scaleMulNEON, sigmoidNEON, siluNEON, siluMulNEON, geluMulNEON, sigmoidMulNEON,
	softcapNEON, sumSquaresNEON, dotNEON, maximumNEON, indexOfNEON, expSumNEON, weightSumNEON, rotateNEON,
	loadQ80NEON, storeQ80NEON, loadQ40NEON, loadQ41NEON, loadTurbo3NEON, loadTurbo4NEON,
}

// tables has the functions of each instruction set.
var tables = [...]table{kernel.Generic: generic, kernel.NEON: neon}

// Conversions are exact or correctly rounded, so tails may take the Go version.

func storeF16(dst []byte, src []float32) {
	n := 0
	if kernel.Current().Floats() != kernel.Generic && len(src) >= 8 {
		n = len(src) &^ 7
		storeF16NEON(&dst[0], p(src), n)
	}
	storeF16Generic(dst[2*n:], src[n:])
}

func loadF16(dst []float32, src []byte) {
	n := 0
	if kernel.Current().Floats() != kernel.Generic && len(dst) >= 8 {
		n = len(dst) &^ 7
		loadF16NEON(p(dst), &src[0], n)
	}
	loadF16Generic(dst[n:], src[2*n:])
}

func loadBF16(dst []float32, src []byte) {
	n := 0
	if kernel.Current().Floats() != kernel.Generic && len(dst) >= 8 {
		n = len(dst) &^ 7
		loadBF16NEON(p(dst), &src[0], n)
	}
	loadBF16Generic(dst[n:], src[2*n:])
}

// convLanes is the number of channels of a vector.
func convLanes(kernel.Level) int { return 4 }

func conv4(_ kernel.Level, dst, w *float32, t *[4]*float32, n int) {
	conv4NEON(dst, w, t[0], t[1], t[2], t[3], n)
}

func deltaChain(toks []deltaToken, src, dst []float32, v, w int, last bool) {
	if dk := len(toks[0].k); kernel.Current().Floats() != kernel.Generic && w == deltaLanes && dk%4 == 0 {
		const half = deltaLanes / 2
		t := (*byte)(unsafe.Pointer(&toks[0]))
		deltaChainNEON(t, len(toks), &src[0], &dst[0], dk, 4*v, last)
		deltaChainNEON(t, len(toks), &src[half], &dst[half], dk, 4*(v+half), last)
		return
	}
	deltaChainGeneric(toks, src, dst, v, w, last)
}
