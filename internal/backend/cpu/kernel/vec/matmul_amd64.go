//go:build !noasm

package vec

import (
	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// maxCols is the number of columns the widest kernel takes.
func maxCols(l kernel.Level) int {
	if l == kernel.AVX512 {
		return 6
	}
	return 3
}

// accLanes is the number of columns of the kernel for one query.
func accLanes(l kernel.Level) int {
	if l == kernel.AVX512 {
		return 16
	}
	return 8
}

// eights reports whether the kernels of 16-bit types want rows of whole groups of eight.
func eights(l kernel.Level) bool { return l == kernel.AVX2 }

// matKernel calls a kernel by name: a table of functions would move the
// arguments to the heap.
func matKernel(l kernel.Level, typ quant.Type, cols int, a *byte) {
	if l == kernel.AVX2 {
		switch typ {
		case quant.F32:
			switch cols {
			case 1:
				matF32x1AVX2(a)
			case 2:
				matF32x2AVX2(a)
			case 3:
				matF32x3AVX2(a)
			}
		case tileType:
			switch cols {
			case 1:
				matTilex1AVX2(a)
			case 2:
				matTilex2AVX2(a)
			case 3:
				matTilex3AVX2(a)
			}
		case quant.F16:
			switch cols {
			case 1:
				matF16x1AVX2(a)
			case 2:
				matF16x2AVX2(a)
			case 3:
				matF16x3AVX2(a)
			}
		case quant.BF16:
			switch cols {
			case 1:
				matBF16x1AVX2(a)
			case 2:
				matBF16x2AVX2(a)
			case 3:
				matBF16x3AVX2(a)
			}
		}
		return
	}
	switch typ {
	case quant.F32:
		switch cols {
		case 1:
			matF32x1AVX512(a)
		case 2:
			matF32x2AVX512(a)
		case 3:
			matF32x3AVX512(a)
		case 4:
			matF32x4AVX512(a)
		case 5:
			matF32x5AVX512(a)
		case 6:
			matF32x6AVX512(a)
		}
	case tileType:
		switch cols {
		case 1:
			matTilex1AVX512(a)
		case 2:
			matTilex2AVX512(a)
		case 3:
			matTilex3AVX512(a)
		case 4:
			matTilex4AVX512(a)
		case 5:
			matTilex5AVX512(a)
		case 6:
			matTilex6AVX512(a)
		}
	case quant.F16:
		switch cols {
		case 1:
			matF16x1AVX512(a)
		case 2:
			matF16x2AVX512(a)
		case 3:
			matF16x3AVX512(a)
		case 4:
			matF16x4AVX512(a)
		case 5:
			matF16x5AVX512(a)
		case 6:
			matF16x6AVX512(a)
		}
	case quant.BF16:
		switch cols {
		case 1:
			matBF16x1AVX512(a)
		case 2:
			matBF16x2AVX512(a)
		case 3:
			matBF16x3AVX512(a)
		case 4:
			matBF16x4AVX512(a)
		case 5:
			matBF16x5AVX512(a)
		case 6:
			matBF16x6AVX512(a)
		}
	}
}

// accKernel calls the kernel for a number of queries; 0 means one vector of
// columns for one query.
func accKernel(l kernel.Level, typ quant.Type, nq int, a *byte) {
	f16 := typ == quant.F16
	if l == kernel.AVX2 {
		switch {
		case f16 && nq == 0:
			accumF16OneAVX2(a)
		case f16 && nq == 1:
			accumF16x1AVX2(a)
		case f16 && nq == 2:
			accumF16x2AVX2(a)
		case f16:
			accumF16x3AVX2(a)
		case nq == 0:
			accumF32OneAVX2(a)
		case nq == 1:
			accumF32x1AVX2(a)
		case nq == 2:
			accumF32x2AVX2(a)
		default:
			accumF32x3AVX2(a)
		}
		return
	}
	switch {
	case f16 && nq == 0:
		accumF16OneAVX512(a)
	case f16 && nq == 1:
		accumF16x1AVX512(a)
	case f16 && nq == 2:
		accumF16x2AVX512(a)
	case f16 && nq == 3:
		accumF16x3AVX512(a)
	case f16 && nq == 4:
		accumF16x4AVX512(a)
	case f16 && nq == 5:
		accumF16x5AVX512(a)
	case f16:
		accumF16x6AVX512(a)
	case nq == 0:
		accumF32OneAVX512(a)
	case nq == 1:
		accumF32x1AVX512(a)
	case nq == 2:
		accumF32x2AVX512(a)
	case nq == 3:
		accumF32x3AVX512(a)
	case nq == 4:
		accumF32x4AVX512(a)
	case nq == 5:
		accumF32x5AVX512(a)
	default:
		accumF32x6AVX512(a)
	}
}
