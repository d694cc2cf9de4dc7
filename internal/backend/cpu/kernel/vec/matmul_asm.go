//go:build (amd64 || arm64) && !noasm

package vec

import (
	"unsafe"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// matArgs are the arguments of the matrix kernels, which know the offsets.
type matArgs struct {
	w      unsafe.Pointer // four rows
	stride uintptr        // bytes from row to row
	next   uintptr        // rows to prefetch, at the same stride
	x      unsafe.Pointer
	xs     uintptr // bytes from column to column
	k      int
	y      unsafe.Pointer // four results of the first column
	ys     uintptr        // bytes to those of the next
	alpha  float32
	add    int32   // add to y instead of setting it
	adv    uintptr // bytes to advance next per cache line of a row
	tiles  int     // of four rows
}

// matTile is the number of rows of a kernel.
const matTile = 4

// pieceLen bounds the part of a row that is multiplied at a time, so that six
// columns and four rows of it stay in the first-level cache. The sums of the
// pieces are added in order; the length of the pieces must therefore depend on
// nothing but k.
const pieceLen = 1024

// blockBytes is the size of a piece of a block of rows, in float32, that stays in the second-level cache while columns
// pass.
const blockBytes = 512 << 10

// decodeGroups is the number of column groups above which it pays to decode a
// tile to float32 before it is multiplied.
const decodeGroups = 3

// matRowsAsm multiplies tiles of four rows with groups of columns, piece by
// piece. For many columns a tile is decoded once and used for all of them;
// decoding is exact, so this gives the same bits.
func matRowsAsm(l kernel.Level, y []float32, ys int, typ quant.Type, w []byte, stride, k int, x []float32, xs, n,
	rows int, alpha float32) {
	_, _ = x[(n-1)*xs:][:k], y[(n-1)*ys:][:rows] // the kernels do not check
	_ = w[:(rows-1)*stride+typ.RowBytes(k)]
	cols := maxCols(l)
	m := matPass{l: l, typ: typ, w: w, stride: stride, k: k, rows: rows, x: x, xs: xs, y: y, ys: ys, alpha: alpha}
	m.piece = (split(k, pieceLen) + 31) &^ 31
	switch typ {
	case quant.F32:
	case quant.F16, quant.BF16:
		m.decode = n > decodeGroups*cols || eights(l) && k%8 != 0
	default:
		m.decode = true
	}
	if m.decode {
		b := getScratch(matTile * (m.piece + 16))
		defer scratch.Put(b)
		m.tile = *b
	}
	if n > cols {
		m.blocks(n, split(n, cols))
		return
	}
	if !m.decode && k <= m.piece {
		full := rows / matTile
		if full > 0 {
			m.tiles(w, stride, typ, full, 0, k, 0, 0, n)
		}
		if full*matTile < rows {
			m.run(full*matTile, 0, 0, n, n)
		}
		return
	}
	for r := 0; r < rows; r += matTile { // one group: read the weights in their order
		for k0 := 0; k0 < k; k0 += m.piece {
			m.run(r, k0, 0, n, n)
		}
	}
}

// blocks multiplies with n columns, a group of them at a time. A piece of a block of rows stays in the second-level
// cache while groups pass, and a piece of a group's columns in the first-level cache while the rows do: kernels read
// less of columns than of rows.
func (m *matPass) blocks(n, group int) {
	block := min(m.rows, max(matTile, blockBytes/(4*m.piece)&^(matTile-1)))
	var decoded []float32
	if m.decode {
		b := getScratch(block * (m.piece + 16))
		defer scratch.Put(b)
		decoded = *b
	}
	for r := 0; r < m.rows; r += block {
		some := min(block, m.rows-r)
		full := some / matTile
		for k0 := 0; k0 < m.k && full > 0; k0 += m.piece {
			k := min(m.piece, m.k-k0)
			w, stride, typ := m.w[r*m.stride+m.typ.RowBytes(k0):], m.stride, m.typ
			if m.decode {
				step, size := k+16, m.typ.RowBytes(k) // rows at multiples of 4096 bytes would share cache sets
				for i := range full * matTile {
					Load(m.typ, decoded[i*step:][:k], w[i*m.stride:][:size])
				}
				w, stride, typ = f32Bytes(decoded), 4*step, quant.F32
			}
			for c := 0; c < n; c += group {
				m.tiles(w, stride, typ, full, k0, k, r, c, min(group, n-c))
			}
		}
		for k0 := 0; k0 < m.k && full*matTile < some; k0 += m.piece {
			m.run(r+full*matTile, k0, 0, n, group)
		}
	}
}

// matPass is what the steps of one matrix product share.
type matPass struct {
	l      kernel.Level
	typ    quant.Type
	decode bool
	w      []byte
	stride int
	k      int
	rows   int
	x      []float32
	xs     int
	y      []float32
	ys     int
	alpha  float32
	piece  int       // values of a row taken at a time
	tile   []float32 // [matTile][piece], decoded weights
}

// tiles multiplies a piece of k values at k0 of n tiles from row r on, which lie at w, with columns [c,c+nc) in one
// call.
func (m *matPass) tiles(w []byte, stride int, typ quant.Type, n, k0, k, r, c, nc int) {
	a := matArgs{
		w: unsafe.Pointer(&w[0]), stride: uintptr(stride),
		next: uintptr(unsafe.Pointer(&w[0])) + uintptr(matTile*stride), adv: 64,
		x: unsafe.Pointer(&m.x[c*m.xs+k0]), xs: uintptr(4 * m.xs), k: k,
		y: unsafe.Pointer(&m.y[c*m.ys+r]), ys: uintptr(4 * m.ys), alpha: m.alpha, tiles: n,
	}
	if k0 > 0 {
		a.add = 1
	}
	matKernel(m.l, typ, nc, (*byte)(unsafe.Pointer(&a)))
}

// run multiplies the piece at k0 of rows [r,r+matTile), or what there is of
// them, with columns [c0,c0+nc) in groups.
func (m *matPass) run(r, k0, c0, nc, group int) {
	switch {
	case r+matTile <= m.rows:
		m.tileRows(r, m.stride, r, matTile, k0, c0, nc, group)
	case m.rows >= matTile: // the last four rows, some for the second time
		m.tileRows(m.rows-matTile, m.stride, r, m.rows-r, k0, c0, nc, group)
	default: // one row four times
		for i := range m.rows {
			m.tileRows(i, 0, i, 1, k0, c0, nc, group)
		}
	}
}

// tileRows runs the kernels on four rows from row base on, stride bytes apart,
// and keeps the results of rows [r,r+n).
func (m *matPass) tileRows(base, stride, r, n, k0, c0, nc, group int) {
	a := matArgs{k: min(m.piece, m.k-k0), xs: uintptr(4 * m.xs), ys: uintptr(4 * m.ys), alpha: m.alpha}
	if k0 > 0 {
		a.add = 1
	}
	at, size := base*m.stride+m.typ.RowBytes(k0), m.typ.RowBytes(a.k)
	a.w, a.stride = unsafe.Pointer(&m.w[at]), uintptr(stride)
	lines := a.k * 4 / 64 // rounds of the kernel
	typ := m.typ
	if m.decode {
		typ = tileType
		step := 4 * (a.k + 16) // rows at multiples of 4096 would share cache sets
		a.w, a.stride = unsafe.Pointer(&m.tile[0]), uintptr(step)
		for i := range matTile {
			Load(m.typ, m.tile[i*step/4:][:a.k], m.w[at+i*stride:][:size])
			if stride == 0 {
				a.stride = 0
				break
			}
		}
	} else if typ != quant.F32 {
		lines = a.k * 2 / 64
	}
	// What comes next: the next tile, or with a single group the next piece.
	ahead := uintptr(unsafe.Pointer(&m.w[at])) + uintptr(matTile*stride)
	if nc <= group && m.k > m.piece {
		ahead = uintptr(unsafe.Pointer(&m.w[at+size-1])) + 1
		if k0+a.k == m.k {
			ahead += uintptr((matTile - 1) * stride)
		}
	}
	groups := (nc + group - 1) / group
	a.next, a.adv = ahead, uintptr(64/groups)
	var out [6 * matTile]float32
	for c, i := c0, 0; c < c0+nc; c, i = c+group, i+1 {
		if m.decode { // a row per group
			a.adv = uintptr(size / max(1, lines))
			a.next = ahead + uintptr(i*stride)
			if i >= matTile {
				a.next, a.adv = uintptr(a.w), 0
			}
		}
		g := min(group, c0+nc-c)
		a.x = unsafe.Pointer(&m.x[c*m.xs+k0])
		if n == matTile {
			a.y, a.tiles = unsafe.Pointer(&m.y[c*m.ys+r]), 1
			matKernel(m.l, typ, g, (*byte)(unsafe.Pointer(&a)))
		} else {
			part := a
			part.y, part.ys, part.add, part.tiles = unsafe.Pointer(&out), 4*matTile, 0, 1
			matKernel(m.l, typ, g, (*byte)(unsafe.Pointer(&part)))
			for j := range g {
				m.keep(m.y[(c+j)*m.ys+r:][:n], out[j*matTile+r-base:], a.add != 0)
			}
		}
		a.next += a.adv * uintptr(lines)
	}
}

// keep stores or adds the results of a tile that is not kept as a whole.
func (m *matPass) keep(y, out []float32, add bool) {
	for i := range y {
		if add {
			y[i] += out[i]
		} else {
			y[i] = out[i]
		}
	}
}

// tileType stands for decoded rows when a kernel is chosen.
const tileType = quant.Type(1 << 31)

// split returns the size of the pieces when n is cut into as few and as equal
// pieces of at most limit as possible.
func split(n, limit int) int {
	pieces := (n + limit - 1) / limit
	return (n + pieces - 1) / pieces
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

func accumRowsAsm(l kernel.Level, out []float32, os int, p []float32, ps, nq, headDim int, typ quant.Type, data []byte,
	stride, n int) {
	lanes := accLanes(l)
	if typ != quant.F32 && (typ != quant.F16 || eights(l) && headDim%8 != 0) {
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
