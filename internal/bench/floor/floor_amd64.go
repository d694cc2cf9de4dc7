//go:build !noasm

package floor

import "strobe/internal/backend/cpu/kernel"

// read reads b, whose length is a multiple of turn.
func read(b []byte) {
	switch kernel.Current().Floats() {
	case kernel.AVX512:
		readAVX512(&b[0], len(b))
	case kernel.AVX2:
		readAVX2(&b[0], len(b))
	default:
		readGeneric(b)
	}
}

func dot(l kernel.Level, turns int) {
	switch {
	case l >= kernel.AVX512:
		dotAVX512(turns)
	case l >= kernel.AVXVNNI:
		dotAVXVNNI(turns)
	case l >= kernel.AVX2:
		dotAVX2(turns)
	default:
		dotGeneric(turns)
	}
}

// perTurn is the number of products of one turn of dot.
func perTurn(l kernel.Level) int {
	switch {
	case l >= kernel.AVX512:
		return 24 * 64
	case l >= kernel.AVXVNNI:
		return 12 * 32
	case l >= kernel.AVX2:
		return 8 * 32
	}
	return genericTurn
}
