//go:build !noasm

package vec

import (
	"unsafe"

	"strobe/backend/cpu/kernel"
	"strobe/quant"
)

// matArgs are the arguments of the matrix kernels, which know the offsets.
type matArgs struct {
	w     [4]unsafe.Pointer // rows
	x     unsafe.Pointer
	xs    uintptr // bytes from column to column
	k     int
	y     unsafe.Pointer // four results of the first column
	ys    uintptr        // bytes to those of the next
	next  uintptr        // what to prefetch, and how far to advance per round
	adv   uintptr
	alpha float32
}

// matTile is the number of rows of a kernel.
const matTile = 4

// columnBytes is what the columns of one pass over the weights may occupy, so
// that they stay in the second-level cache.
const columnBytes = 1 << 20

// maxCols is the number of columns the widest kernel takes.
func maxCols(l kernel.Level) int {
	if l == kernel.AVX512 {
		return 6
	}
	return 3
}

// matRowsAsm multiplies tiles of four rows. Few columns are multiplied with
// the weights as they are stored; for more, a tile is decoded to float32 once
// and used for all of them. Decoding is exact, so both give the same bits.
func matRowsAsm(l kernel.Level, y []float32, ys int, typ quant.Type, w []byte, stride, k int, x []float32, xs, n, rows int, alpha float32) {
	cols := maxCols(l)
	_, _ = x[(n-1)*xs:][:k], y[(n-1)*ys:][:rows] // the kernels do not check
	size := typ.RowBytes(k)
	_ = w[:(rows-1)*stride+size]
	decode := false
	switch typ {
	case quant.F32:
	case quant.F16, quant.BF16:
		decode = n > cols || l == kernel.AVX2 && k%8 != 0
	default:
		decode = true
	}
	var tile []float32
	if decode {
		b := getScratch(matTile * k)
		defer scratch.Put(b)
		tile = *b
	}
	pass := max(cols, columnBytes/(4*k))
	pass = split(n, pass)
	rounds := max(1, k/16) // of the kernel, a cache line per row each
	if !decode && typ != quant.F32 {
		rounds = max(1, k/32)
	}
	var a matArgs
	a.k, a.alpha = k, alpha
	a.xs = uintptr(4 * xs)
	for c0 := 0; c0 < n; c0 += pass {
		nc := min(pass, n-c0)
		group := split(nc, cols)
		for r := 0; r < rows; r += matTile {
			// The last tile overlaps the one before it; with less than a tile the
			// last row is repeated.
			r := max(0, min(r, rows-matTile))
			kt := typ
			for i := range a.w {
				row := w[min(r+i, rows-1)*stride:]
				if decode {
					Load(typ, tile[i*k:(i+1)*k], row[:size])
					a.w[i] = unsafe.Pointer(&tile[i*k])
					kt = quant.F32
				} else {
					a.w[i] = unsafe.Pointer(&row[0])
				}
			}
			// While this tile is multiplied, the next one comes from memory: as many
			// bytes per round as spread it over all the rounds.
			ahead := r
			if r+2*matTile <= rows {
				ahead = r + matTile
			}
			a.next = uintptr(unsafe.Pointer(&w[ahead*stride]))
			a.adv = uintptr(matTile * stride / (rounds * ((nc + group - 1) / group)))
			var out [6 * matTile]float32
			for c := c0; c < c0+nc; c += group {
				g := min(group, c0+nc-c)
				a.x = unsafe.Pointer(&x[c*xs])
				if rows < matTile {
					a.y, a.ys = unsafe.Pointer(&out), 4*matTile
				} else {
					a.y, a.ys = unsafe.Pointer(&y[c*ys+r]), uintptr(4*ys)
				}
				matKernel(l, kt, g, (*byte)(unsafe.Pointer(&a)))
				if rows < matTile {
					for i := range g {
						copy(y[(c+i)*ys:(c+i)*ys+rows], out[i*matTile:])
					}
				}
				a.next += a.adv * uintptr(rounds)
			}
		}
	}
}

// split returns the size of the pieces when n is cut into as few and as equal
// pieces of at most limit as possible.
func split(n, limit int) int {
	pieces := (n + limit - 1) / limit
	return (n + pieces - 1) / pieces
}

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

// accArgs are the arguments of the kernels that add weighted rows.
type accArgs struct {
	v      unsafe.Pointer
	stride uintptr // bytes from row to row
	n      int     // rows, at least one
	p      unsafe.Pointer
	ps     uintptr // bytes from query to query
	out    unsafe.Pointer
	os     uintptr
	width  int // columns, for the kernels of one vector
}

// accumBatch is the number of rows decoded at a time when a type has no kernel.
const accumBatch = 16

func accumRowsAsm(l kernel.Level, out []float32, os int, p []float32, ps, nq, headDim int, typ quant.Type, data []byte, stride, n int) {
	lanes := 8
	if l == kernel.AVX512 {
		lanes = 16
	}
	if typ != quant.F32 && (typ != quant.F16 || l == kernel.AVX2 && headDim%8 != 0) {
		b := getScratch(accumBatch * headDim)
		defer scratch.Put(b)
		rows, size := *b, typ.RowBytes(headDim)
		for i := 0; i < n; i += accumBatch {
			m := min(accumBatch, n-i)
			for j := range m {
				Load(typ, rows[j*headDim:(j+1)*headDim], data[(i+j)*stride:][:size])
			}
			accumRowsAsm(l, out, os, p[i:], ps, nq, headDim, quant.F32, f32Bytes(rows[:m*headDim]), 4*headDim, m)
		}
		return
	}
	size := 4
	if typ == quant.F16 {
		size = 2
	}
	var a accArgs
	a.stride, a.n, a.ps, a.os = uintptr(stride), n, uintptr(4*ps), uintptr(4*os)
	group := split(nq, maxCols(l))
	for q := 0; q < nq; q += group {
		nc := min(group, nq-q)
		j := 0
		for ; j+4*lanes <= headDim; j += 4 * lanes {
			a.v, a.p, a.out = unsafe.Pointer(&data[j*size]), unsafe.Pointer(&p[q*ps]), unsafe.Pointer(&out[q*os+j])
			accKernel(l, typ, nc, (*byte)(unsafe.Pointer(&a)))
		}
		for ; j < headDim; j += lanes {
			a.width = min(lanes, headDim-j)
			for c := q; c < q+nc; c++ {
				a.v, a.p, a.out = unsafe.Pointer(&data[j*size]), unsafe.Pointer(&p[c*ps]), unsafe.Pointer(&out[c*os+j])
				accKernel(l, typ, 0, (*byte)(unsafe.Pointer(&a)))
			}
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
