//go:build !noasm

package qmat

import (
	"unsafe"

	"strobe/backend/cpu/kernel"
	"strobe/quant"
)

// Layout of a panel: 16 rows x 256 values as the micro kernels read them, shared with
// _asm/main.go.
const (
	panelScale = 4096 // [sub-block][row]float32 after [k/4][row][k%4]byte
	panelMin   = 5120 // [sub-block][row]float32
	panelSize  = 6144

	// microPrefetch is the part of the next 16 x 256 values that micro kernels fetch.
	microPrefetch = 1024

	pair     = 2 * Panel // rows per micro kernel
	maxTile  = 6         // columns per micro kernel
	recBytes = int(unsafe.Sizeof(record{}))
)

type (
	decodeFunc func(p *byte, w *byte, stride int, chunks int, pf uintptr)
	microFunc  func(p *byte, x *byte, yin *float32, yinStep int, yout *float32, youtStep int, iters int, pf uintptr)
	fusedFunc  func(p *byte, w *byte, stride int, blocks int, last int, x *byte, xStep int, pf uintptr, y *float32, yStep int)
)

// kernels is what one level has for one type. Kernels for n columns are at n-1.
type kernels struct {
	decode decodeFunc  // nil: decode in Go
	fused  []fusedFunc // decode and multiply in one pass, for few columns
}

var kernels512 = [...]kernels{
	quant.Q4_0:   {decodeQ40, []fusedFunc{fusedQ40x1, fusedQ40x2, fusedQ40x3, fusedQ40x4}},
	quant.Q4_1:   {decodeQ41, []fusedFunc{fusedQ41x1, fusedQ41x2}},
	quant.Q5_0:   {decodeQ50, []fusedFunc{fusedQ50x1, fusedQ50x2, fusedQ50x3, fusedQ50x4}},
	quant.Q5_1:   {decodeQ51, []fusedFunc{fusedQ51x1, fusedQ51x2}},
	quant.Q8_0:   {decodeQ80, []fusedFunc{fusedQ80x1, fusedQ80x2, fusedQ80x3, fusedQ80x4, fusedQ80x5, fusedQ80x6}},
	quant.Q4_K:   {decodeQ4K, []fusedFunc{fusedQ4Kx1, fusedQ4Kx2, fusedQ4Kx3, fusedQ4Kx4, fusedQ4Kx5, fusedQ4Kx6}},
	quant.Q5_K:   {decodeQ5K, []fusedFunc{fusedQ5Kx1, fusedQ5Kx2, fusedQ5Kx3, fusedQ5Kx4}},
	quant.Q6_K:   {decodeQ6K, []fusedFunc{fusedQ6Kx1, fusedQ6Kx2, fusedQ6Kx3, fusedQ6Kx4}},
	quant.IQ4_NL: {decodeIQ4NL, []fusedFunc{fusedIQ4NLx1, fusedIQ4NLx2, fusedIQ4NLx3, fusedIQ4NLx4}},
	quant.IQ4_XS: {decodeIQ4XS, []fusedFunc{fusedIQ4XSx1, fusedIQ4XSx2, fusedIQ4XSx3, fusedIQ4XSx4}},
	quant.MXFP4:  {decodeMXFP4, []fusedFunc{fusedMXFP4x1, fusedMXFP4x2, fusedMXFP4x3, fusedMXFP4x4}},
	quant.Q2_0:   {},
}

var micro512 = [4][maxTile]microFunc{
	off32: {microOff32x1, microOff32x2, microOff32x3, microOff32x4, microOff32x5, microOff32x6},
	min32: {microMin32x1, microMin32x2, microMin32x3, microMin32x4, microMin32x5, microMin32x6},
	off16: {microOff16x1, microOff16x2, microOff16x3, microOff16x4, microOff16x5, microOff16x6},
	min16: {microMin16x1, microMin16x2, microMin16x3, microMin16x4, microMin16x5, microMin16x6},
}

// Scratch is the working memory of one worker.
type Scratch struct {
	panels []byte    // two panels
	acc    []float32 // [column][row] of the pair at work
	tail   []byte    // the last rows, padded to a panel
	zero   [pair]float32
}

// NewScratch returns working memory that grows as needed.
func NewScratch() *Scratch { return &Scratch{panels: aligned(2 * panelSize)} }

// aligned returns n bytes that start on a 64-byte boundary.
func aligned(n int) []byte {
	b := make([]byte, n+64)
	o := -int(uintptr(unsafe.Pointer(&b[0]))) & 63
	return b[o : o+n : o+n]
}

func (m *Matrix) mulAsm(f *format, y []float32, ys int, x *Acts, r0, r1 int, s *Scratch) bool {
	if kernel.Current() != kernel.AVX512 {
		return false
	}
	k := &kernels512[m.Type]
	if x.n <= len(k.fused) {
		m.mulFused(f, k.fused[x.n-1], y, ys, x, r0, r1, s)
	} else {
		m.mulPanels(f, k, &micro512[f.kind], y, ys, x, r0, r1, s)
	}
	return true
}

// rows returns the address of at least n rows from row r on and what lies behind them, for
// prefetching: an address, not a pointer, since it may be past the end. Rows that the matrix
// does not have are zero.
func (m *Matrix) rows(r, n, stride int, s *Scratch) (w *byte, next uintptr) {
	next = uintptr(unsafe.Pointer(&m.Data[0])) + uintptr((r+n)*stride)
	if r+n <= m.Rows {
		return &m.Data[r*stride], next
	}
	s.tail = grow(s.tail, n*stride)
	clear(s.tail[copy(s.tail, m.Data[r*stride:]):])
	return &s.tail[0], next
}

// mulFused is for few columns: 16 rows at a time, codes stay in registers.
func (m *Matrix) mulFused(f *format, fn fusedFunc, y []float32, ys int, x *Acts, r0, r1 int, s *Scratch) {
	stride := m.K / f.len * f.bytes
	last := (m.K - (x.blocks-1)*blockLen) / 32
	xp := (*byte)(unsafe.Pointer(&x.data[0]))
	for r := r0; r < r1; r += Panel {
		w, next := m.rows(r, Panel, stride, s)
		if r+Panel <= r1 {
			fn(&s.panels[0], w, stride, x.blocks, last, xp, x.n*recBytes, next, &y[r], 4*ys)
			continue
		}
		s.acc = grow(s.acc, x.n*Panel)
		fn(&s.panels[0], w, stride, x.blocks, last, xp, x.n*recBytes, next, &s.acc[0], 4*Panel)
		for c := range x.n {
			copy(y[c*ys+r:c*ys+r1], s.acc[c*Panel:])
		}
	}
}

// mulPanels decodes two panels of 16 rows x 256 values and multiplies them by all columns.
func (m *Matrix) mulPanels(f *format, k *kernels, micro *[maxTile]microFunc, y []float32, ys int, x *Acts, r0, r1 int, s *Scratch) {
	stride := m.K / f.len * f.bytes
	bb := blockLen / f.len * f.bytes
	s.acc = grow(s.acc, x.n*pair)
	tiles := (x.n + maxTile - 1) / maxTile
	small, big := x.n/tiles, x.n%tiles // big tiles have one column more
	for r := r0; r < r1; r += pair {
		np := (min(r1-r, pair) + Panel - 1) / Panel
		w, next := m.rows(r, np*Panel, stride, s)
		for b := range x.blocks {
			values := min(blockLen, m.K-b*blockLen)
			ahead := next + uintptr(b*np*Panel*bb)
			for i := range np {
				p, wp := &s.panels[i*panelSize], add(w, i*Panel*stride+b*bb)
				if k.decode != nil {
					k.decode(p, wp, stride, values/32, ahead+uintptr(i*(Panel*bb-microPrefetch)))
				} else {
					f.panel(s.panels[i*panelSize:][:panelSize], wp, stride, values)
				}
			}
			iters := values / 32
			if f.kind.sub() == 16 {
				iters = (values + 127) / 128
			}
			yin, yinStep := &s.zero[0], 0
			if b > 0 {
				yin, yinStep = &s.acc[0], 4*pair
			}
			yout, youtStep := &s.acc[0], 4*pair
			if b == x.blocks-1 && r+pair <= r1 {
				yout, youtStep = &y[r], 4*ys
			}
			pf := ahead + uintptr(np*(Panel*bb-microPrefetch))
			c := 0
			for t := range tiles {
				nc := small
				if t < big {
					nc++
				}
				micro[nc-1](&s.panels[0], (*byte)(unsafe.Pointer(&x.data[b*x.n+c])),
					addf(yin, c*yinStep), yinStep, addf(yout, c*youtStep), youtStep, iters, pf)
				pf = uintptr(unsafe.Pointer(&s.panels[0])) // in the cache already
				c += nc
			}
		}
		if r+pair > r1 {
			for c := range x.n {
				copy(y[c*ys+r:c*ys+r1], s.acc[c*pair:])
			}
		}
	}
}

func add(p *byte, n int) *byte        { return (*byte)(unsafe.Add(unsafe.Pointer(p), n)) }
func addf(p *float32, n int) *float32 { return (*float32)(unsafe.Add(unsafe.Pointer(p), n)) }

// panel decodes 16 rows in Go, for types without a kernel.
func (f *format) panel(p []byte, w *byte, stride, values int) {
	var u unpacked
	sub := f.kind.sub()
	off := byte(0)
	switch f.kind {
	case off32:
		off = 128
	case off16:
		off = 32
	}
	scale := unsafe.Slice((*float32)(unsafe.Pointer(&p[panelScale])), 256)
	mins := unsafe.Slice((*float32)(unsafe.Pointer(&p[panelMin])), 256)
	if values < blockLen {
		clear(scale)
		clear(mins)
	}
	for r := range Panel {
		row := unsafe.Slice(add(w, r*stride), values/f.len*f.bytes)
		f.block(&u, row, 0, values)
		for i := 0; i < values; i += 4 {
			d := (*[4]byte)(p[i*16+4*r:])
			q := (*[4]int8)(u.q[i:])
			d[0], d[1], d[2], d[3] = byte(q[0])+off, byte(q[1])+off, byte(q[2])+off, byte(q[3])+off
		}
		for j := range values / sub {
			scale[16*j+r] = u.scale[j]
			mins[16*j+r] = u.min[j]
		}
	}
}

// quantizeBlocks rounds len(out) blocks of v.
func quantizeBlocks(out []record, v []float32) {
	quantize := quantize512
	if kernel.Current() != kernel.AVX512 {
		quantize = nil
	}
	for b := 0; b < len(out); b++ {
		if quantize != nil {
			b += quantize((*byte)(unsafe.Pointer(&out[b])), &v[b*blockLen], len(out)-b)
		}
		if b < len(out) { // not finite
			quantizeBlock(&out[b], (*[blockLen]float32)(v[b*blockLen:]))
		}
	}
}
