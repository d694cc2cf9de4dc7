//go:build !noasm

package vec

import (
	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// maxCols is the number of columns the widest kernel takes.
func maxCols(kernel.Level) int { return 3 }

// accLanes is the number of columns of the kernel for one query.
func accLanes(kernel.Level) int { return 8 }

// eights reports whether the kernels of 16-bit types want rows of whole groups of eight.
func eights(kernel.Level) bool { return true }

// matKernel calls a kernel by name: a table of functions would move the
// arguments to the heap.
func matKernel(_ kernel.Level, typ quant.Type, cols int, a *byte) {
	switch typ {
	case quant.F32, tileType:
		switch cols {
		case 1:
			matF32x1NEON(a)
		case 2:
			matF32x2NEON(a)
		case 3:
			matF32x3NEON(a)
		}
	case quant.F16:
		switch cols {
		case 1:
			matF16x1NEON(a)
		case 2:
			matF16x2NEON(a)
		case 3:
			matF16x3NEON(a)
		}
	case quant.BF16:
		switch cols {
		case 1:
			matBF16x1NEON(a)
		case 2:
			matBF16x2NEON(a)
		case 3:
			matBF16x3NEON(a)
		}
	}
}

// accKernel calls the kernel for a number of queries; 0 means one vector of
// columns for one query.
func accKernel(_ kernel.Level, typ quant.Type, nq int, a *byte) {
	f16 := typ == quant.F16
	switch {
	case f16 && nq == 0:
		accumF16OneNEON(a)
	case f16 && nq == 1:
		accumF16x1NEON(a)
	case f16 && nq == 2:
		accumF16x2NEON(a)
	case f16:
		accumF16x3NEON(a)
	case nq == 0:
		accumF32OneNEON(a)
	case nq == 1:
		accumF32x1NEON(a)
	case nq == 2:
		accumF32x2NEON(a)
	default:
		accumF32x3NEON(a)
	}
}
