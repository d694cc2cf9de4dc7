//go:build !noasm

package qmat

import (
	"unsafe"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// Layout of a panel: 16 rows x 256 values as the micro kernels read them, shared with
// _asm/main.go.
const (
	panelScale = 4096 // [sub-block][row]float32 after [k/4][row][k%4]byte
	panelMin   = 5120 // [sub-block][row]float32
	panelSize  = 6144

	pair    = 2 * Panel // rows per micro kernel
	maxTile = 4         // columns per micro kernel
)

type (
	micro2Func func(p *byte, x *byte, n int, y *float32, yStep int, iters int)
	decodeFunc func(p *byte, w *byte, stride int, chunks int, pf uintptr, pfStep int)
	microFunc  func(p, x *byte, yin *float32, yinStep int, yout *float32, youtStep, iters int, pf uintptr, pfStep int)
	fusedFunc  func(p, w *byte, stride, blocks, last int, x *byte, xStep int, pf uintptr, y *float32, yStep int)
)

// kernels is what AVX-512 has for one type; the zero value is for types without kernels of their own, which are decoded
// in Go. Kernels for n columns are at n-1.
type kernels struct {
	decode decodeFunc  // nil: decode in Go
	fused  []fusedFunc // decode and multiply in one pass, for few columns
}

var noKernels kernels

var kernels512 = [...]kernels{
	quant.Q4_0:    {decodeQ40, []fusedFunc{fusedQ40x1, fusedQ40x2, fusedQ40x3, fusedQ40x4}},
	quant.Q4_1:    {decodeQ41, []fusedFunc{fusedQ41x1, fusedQ41x2}},
	quant.Q5_0:    {decodeQ50, []fusedFunc{fusedQ50x1, fusedQ50x2, fusedQ50x3, fusedQ50x4}},
	quant.Q5_1:    {decodeQ51, []fusedFunc{fusedQ51x1, fusedQ51x2}},
	quant.Q8_0:    {decodeQ80, []fusedFunc{fusedQ80x1, fusedQ80x2, fusedQ80x3, fusedQ80x4, fusedQ80x5, fusedQ80x6}},
	quant.Q4_K:    {decodeQ4K, []fusedFunc{fusedQ4Kx1, fusedQ4Kx2, fusedQ4Kx3, fusedQ4Kx4, fusedQ4Kx5, fusedQ4Kx6}},
	quant.Q5_K:    {decodeQ5K, []fusedFunc{fusedQ5Kx1, fusedQ5Kx2, fusedQ5Kx3, fusedQ5Kx4}},
	quant.Q6_K:    {decodeQ6K, []fusedFunc{fusedQ6Kx1, fusedQ6Kx2, fusedQ6Kx3, fusedQ6Kx4}},
	quant.IQ4_NL:  {decodeIQ4NL, []fusedFunc{fusedIQ4NLx1, fusedIQ4NLx2, fusedIQ4NLx3, fusedIQ4NLx4}},
	quant.IQ4_XS:  {decodeIQ4XS, []fusedFunc{fusedIQ4XSx1, fusedIQ4XSx2, fusedIQ4XSx3, fusedIQ4XSx4}},
	quant.MXFP4:   {decodeMXFP4, []fusedFunc{fusedMXFP4x1, fusedMXFP4x2, fusedMXFP4x3, fusedMXFP4x4}},
	quant.NVFP4:   {decodeNVFP4, nil},
	quant.Q2_K:    {decodeQ2K, []fusedFunc{fusedQ2Kx1}},
	quant.Q3_K:    {decodeQ3K, []fusedFunc{fusedQ3Kx1, fusedQ3Kx2}},
	quant.IQ1_S:   {decodeIQ1S, []fusedFunc{fusedIQ1Sx1}},
	quant.IQ1_M:   {decodeIQ1M, nil},
	quant.IQ2_XXS: {decodeIQ2XXS, []fusedFunc{fusedIQ2XXSx1}},
	quant.IQ2_XS:  {decodeIQ2XS, nil},
	quant.IQ2_S:   {decodeIQ2S, nil},
	quant.IQ3_XXS: {decodeIQ3XXS, []fusedFunc{fusedIQ3XXSx1}},
	quant.IQ3_S:   {decodeIQ3S, []fusedFunc{fusedIQ3Sx1}},
}

// woven512 is the same for woven weights. Without transposing, more columns fit into the registers.
var woven512 = map[quant.Type]*kernels{
	quant.Q4_K: {decodeQ4KWoven, []fusedFunc{fusedQ4KWovenx1, fusedQ4KWovenx2, fusedQ4KWovenx3, fusedQ4KWovenx4,
		fusedQ4KWovenx5, fusedQ4KWovenx6, fusedQ4KWovenx7, fusedQ4KWovenx8}},
	quant.Q6_K: {decodeQ6KWoven, []fusedFunc{fusedQ6KWovenx1, fusedQ6KWovenx2, fusedQ6KWovenx3, fusedQ6KWovenx4,
		fusedQ6KWovenx5, fusedQ6KWovenx6, fusedQ6KWovenx7, fusedQ6KWovenx8}},
}

// The grids as decoders read them: the levels of a point's values, the first being the smallest value, in the low
// nibbles of four bytes and, of points with eight values, in the high nibbles.
var (
	gridIQ1    [2048]uint32
	gridIQ2XXS [256]uint32
	gridIQ2XS  [512]uint32
	gridIQ2S   [1024]uint32
	gridIQ3XXS [256]uint32
	gridIQ3S   [512]uint32
)

func init() {
	for _, g := range []struct {
		levels []uint32
		typ    quant.Type
		step   uint64 // values divided by it are levels
	}{
		{gridIQ1[:], quant.IQ1_S, 1}, {gridIQ2XXS[:], quant.IQ2_XXS, 16}, {gridIQ2XS[:], quant.IQ2_XS, 16},
		{gridIQ2S[:], quant.IQ2_S, 16}, {gridIQ3XXS[:], quant.IQ3_XXS, 8}, {gridIQ3S[:], quant.IQ3_S, 2},
	} {
		for i, p := range g.typ.GridPoints() {
			for c := range 8 {
				g.levels[i] |= uint32((p>>(8*c)&255)/g.step) << (c%4*8 + c/4*4)
			}
		}
	}
}

// weavePieces weaves the first n times 16 bytes of 16 rows.
func weavePieces(dst, src []byte, stride, n int) bool {
	_, _ = dst[:256*n], src[:15*stride+16*n]
	switch best := kernel.Best(); {
	case best >= kernel.AVX512:
		weave16(&dst[0], &src[0], stride, n)
	case best >= kernel.AVX2:
		weave2(&dst[0], &src[0], stride, n)
	default:
		return false
	}
	return true
}

func weavable(t quant.Type) bool { return woven512[t] != nil && kernel.Best() >= kernel.AVX2 }

// kernels2 is the same for AVX2. One kernel serves any number of columns.
type kernels2 struct {
	decode decodeFunc // nil: decode in Go
	micro  micro2Func
	vnni   micro2Func // with AVX-VNNI
}

// anyAVX2 are the kernels of types that have no decoder: those for the largest codes of their kind.
var anyAVX2 = [4]kernels2{
	off32: {nil, micro2Off32s8, micro2vOff32s8},
	min32: {nil, micro2Min32u5, micro2vMin32u5},
	off16: {nil, micro2Off16u6, micro2vOff16u6},
	min16: {nil, micro2Min16u7, micro2vMin16u7},
}

var kernelsAVX2 = [...]kernels2{
	quant.Q4_0:    {decode2Q40, micro2Off32u4, micro2vOff32u4},
	quant.Q4_1:    {decode2Q41, micro2Min32u4, micro2vMin32u4},
	quant.Q5_0:    {decode2Q50, micro2Off32u5, micro2vOff32u5},
	quant.Q5_1:    {decode2Q51, micro2Min32u5, micro2vMin32u5},
	quant.Q8_0:    {decode2Q80, micro2Off32s8, micro2vOff32s8},
	quant.Q2_K:    {decode2Q2K, micro2Min16u2, micro2vMin16u2},
	quant.Q3_K:    {decode2Q3K, micro2Off16u6, micro2vOff16u6},
	quant.Q4_K:    {decode2Q4K, micro2Min32u4, micro2vMin32u4},
	quant.Q5_K:    {decode2Q5K, micro2Min32u5, micro2vMin32u5},
	quant.Q6_K:    {decode2Q6K, micro2Off16u6, micro2vOff16u6},
	quant.IQ1_S:   {decode2IQ1S, micro2Off32s8, micro2vOff32s8},
	quant.IQ1_M:   {decode2IQ1M, micro2Off16u6, micro2vOff16u6},
	quant.IQ2_XXS: {decode2IQ2XXS, micro2Off32s8, micro2vOff32s8},
	quant.IQ2_XS:  {decode2IQ2XS, micro2Min16u7, micro2vMin16u7},
	quant.IQ2_S:   {decode2IQ2S, micro2Min16u7, micro2vMin16u7},
	quant.IQ3_XXS: {decode2IQ3XXS, micro2Off32s8, micro2vOff32s8},
	quant.IQ3_S:   {decode2IQ3S, micro2Off32s8, micro2vOff32s8},
	quant.IQ4_NL:  {decode2IQ4NL, micro2Off32s8, micro2vOff32s8},
	quant.IQ4_XS:  {decode2IQ4XS, micro2Off32s8, micro2vOff32s8},
	quant.MXFP4:   {decode2MXFP4, micro2Off32s8, micro2vOff32s8},
	quant.NVFP4:   {decode2NVFP4, micro2Off16u6, micro2vOff16u6},
}

// wovenAVX2 are the decoders of woven weights.
var wovenAVX2 = map[quant.Type]decodeFunc{quant.Q4_K: decode2Q4KWoven, quant.Q6_K: decode2Q6KWoven}

var micro512 = [4][maxTile]microFunc{
	off32: {microOff32x1, microOff32x2, microOff32x3, microOff32x4},
	min32: {microMin32x1, microMin32x2, microMin32x3, microMin32x4},
	off16: {microOff16x1, microOff16x2, microOff16x3, microOff16x4},
	min16: {microMin16x1, microMin16x2, microMin16x3, microMin16x4},
}

// Scratch is the working memory of one worker.
type Scratch struct {
	panels []byte    // two panels
	acc    []float32 // [column][row] of the pair at work
	strip  []float32 // [column][row] of a strip
	tail   []byte    // the last rows, padded to a panel
	zero   [pair]float32
	amx    amxScratch
}

// NewScratch returns working memory that grows as needed.
func NewScratch() *Scratch { return &Scratch{panels: aligned(2*panelSize, 64)} }

// plan spreads the prefetching of the next pair of panels over a block: a decoder takes
// about half as long as a tile.
func plan(bytes, panels, tiles int) (decode, tile int) {
	tile = min(2048, 2*bytes/(2*tiles+panels))
	return (bytes - tiles*tile) / panels, tile
}

func (m *Matrix) mulAsm(f *format, y []float32, ys int, x *Acts, r0, r1, ahead int, s *Scratch) bool {
	if kernel.Current() < kernel.AVX512 {
		m.mulAVX2(f, y, ys, x, r0, r1, ahead, s)
		return true
	}
	if m.mulAMX(f, y, ys, x, r0, r1, ahead, s) {
		return true
	}
	k := &noKernels
	if int(m.Type) < len(kernels512) {
		k = &kernels512[m.Type]
	}
	if m.Woven != nil {
		k = woven512[m.Type]
	}
	if x.n <= len(k.fused) {
		m.mulFused(f, k.fused[x.n-1], y, ys, x, r0, r1, ahead, s)
	} else {
		m.mulPanels(f, k, &micro512[f.kind], y, ys, x, r0, r1, ahead, s)
	}
	return true
}

// rows returns the address of n rows from row r on and where to prefetch meanwhile: the
// rows behind them, or these same rows when the worker's part ends there. What follows
// belongs to another worker, and fetching it too would waste memory bandwidth. Rows that the
// matrix does not have are zero.
func (m *Matrix) rows(r, n, ahead, stride int, s *Scratch) (w *byte, next uintptr) {
	data := m.Data
	if m.Woven != nil {
		data = m.Woven
	}
	next = uintptr(unsafe.Pointer(&data[r*stride]))
	if r+n < ahead {
		next += uintptr(n * stride)
	}
	if (r+n)*stride <= len(data) {
		return &data[r*stride], next
	}
	s.tail = grow(s.tail, n*stride)
	clear(s.tail[copy(s.tail, data[r*stride:]):])
	return &s.tail[0], next
}

// mulFused is for few columns: 16 rows at a time, codes stay in registers.
func (m *Matrix) mulFused(f *format, fn fusedFunc, y []float32, ys int, x *Acts, r0, r1, ahead int, s *Scratch) {
	stride := m.K / f.len * f.bytes
	last := (m.K - (x.blocks-1)*blockLen) / 32
	xp := (*byte)(unsafe.Pointer(&x.data[0]))
	for r := r0; r < r1; r += Panel {
		w, next := m.rows(r, Panel, ahead, stride, s)
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
func (m *Matrix) mulPanels(f *format, k *kernels, micro *[maxTile]microFunc, y []float32, ys int, x *Acts, r0, r1,
	ahead int, s *Scratch) {
	step := columns(x.n, m.K, maxTile)
	s.acc = grow(s.acc, step*pair)
	for c := 0; c < x.n; c += step {
		for r := r0; r < r1; r += pair {
			m.mulPair(f, k, micro, y[c*ys:], ys, x, c, min(step, x.n-c), r, min(r1, r+pair), ahead, s)
		}
	}
}

// mulPair computes rows [r0, r1), at most two panels, for n columns from c0 on. y starts at
// column c0.
func (m *Matrix) mulPair(f *format, k *kernels, micro *[maxTile]microFunc, y []float32, ys int, x *Acts, c0, n, r0, r1,
	ahead int, s *Scratch) {
	stride := m.K / f.len * f.bytes
	bb := blockLen / f.len * f.bytes
	step := bb // from block to block
	if m.Woven != nil {
		step *= Panel
	}
	tiles := (n + maxTile - 1) / maxTile
	small, big := n/tiles, n%tiles // big tiles have one column more
	np := (r1 - r0 + Panel - 1) / Panel
	decodeAhead, tileAhead := plan(np*Panel*bb, np, tiles)
	w, next := m.rows(r0, np*Panel, ahead, stride, s)
	for b := range x.blocks {
		values := min(blockLen, m.K-b*blockLen)
		pf := next + uintptr(b*np*Panel*bb)
		for i := range np {
			p, wp := s.panels[i*panelSize:][:panelSize], add(w, i*Panel*stride+b*step)
			f.decodePanel(k.decode, p, wp, stride, values, f.kind.offset(), pf, decodeAhead/64)
			pf += uintptr(decodeAhead)
		}
		yin, yinStep := &s.zero[0], 0
		if b > 0 {
			yin, yinStep = &s.acc[0], 4*pair
		}
		yout, youtStep := &s.acc[0], 4*pair
		if b == x.blocks-1 && r1-r0 == pair {
			yout, youtStep = &y[r0], 4*ys
		}
		c := 0
		for t := range tiles {
			nc := small
			if t < big {
				nc++
			}
			micro[nc-1](&s.panels[0], (*byte)(unsafe.Pointer(&x.data[b*x.n+c0+c])),
				addf(yin, c*yinStep), yinStep, addf(yout, c*youtStep), youtStep, f.kind.iters(values), pf, tileAhead/32)
			pf += uintptr(tileAhead)
			c += nc
		}
	}
	if r1-r0 < pair {
		for c := range n {
			copy(y[c*ys+r0:c*ys+r1], s.acc[c*pair:])
		}
	}
}

// mulAVX2 decodes one panel of 16 rows x 256 values and multiplies it by many columns.
func (m *Matrix) mulAVX2(f *format, y []float32, ys int, x *Acts, r0, r1, ahead int, s *Scratch) {
	k := &anyAVX2[f.kind]
	if int(m.Type) < len(kernelsAVX2) && kernelsAVX2[m.Type].decode != nil {
		k = &kernelsAVX2[m.Type]
	}
	micro, decode := k.micro, k.decode
	if kernel.Current() >= kernel.AVXVNNI {
		micro = k.vnni
	}
	stride := m.K / f.len * f.bytes
	bb := blockLen / f.len * f.bytes
	step := bb // from block to block
	if m.Woven != nil {
		step, decode = Panel*bb, wovenAVX2[m.Type]
	}
	off := f.kind.offset2()
	// The sums stay in one piece: columns of y may be a multiple of 4 KB apart and would
	// push each other out of the cache.
	most := columns(x.n, m.K, 1)
	s.acc = grow(s.acc, most*Panel)
	for c0 := 0; c0 < x.n; c0 += most {
		n := min(most, x.n-c0)
		s.strips(x, c0, n, y, ys, r0, r1, func(y []float32, ys, r0, r1 int) {
			for r := r0; r < r1; r += Panel {
				w, next := m.rows(r, Panel, ahead, stride, s)
				clear(s.acc)
				for b := range x.blocks {
					values := min(blockLen, m.K-b*blockLen)
					f.decodePanel(decode, s.panels[:panelSize], add(w, b*step), stride, values, off, next+uintptr(b*Panel*bb), 0)
					micro(&s.panels[0], (*byte)(unsafe.Pointer(&x.data[b*x.n+c0])), n, &s.acc[0], 4*Panel, f.kind.iters(values))
				}
				for c := range n {
					copy(y[c*ys+r-r0:][:min(Panel, r1-r)], s.acc[c*Panel:])
				}
			}
		})
	}
}

// Outputs of a row for many columns are kilobytes apart: writing 16 or 32 rows at once misses the caches and the tables
// of pages again and again. From stripFrom columns on, stripRows rows are collected first. Kernels for AVX-512 gain
// nothing by it: they write y between their arithmetic.
const (
	stripFrom = 128
	stripRows = 128
)

// strips calls mul for rows [r0, r1) in parts and writes what it computed for columns [c0, c0+n) of x. mul gets the
// place of row r0 and the first column.
func (s *Scratch) strips(x *Acts, c0, n int, y []float32, ys, r0, r1 int, mul func(y []float32, ys, r0, r1 int)) {
	y = y[c0*ys:]
	if x.n < stripFrom {
		mul(y[r0:], ys, r0, r1)
		return
	}
	s.strip = grow(s.strip, n*stripRows)
	for r := r0; r < r1; r += stripRows {
		end := min(r+stripRows, r1)
		mul(s.strip, stripRows, r, end)
		for c := range n {
			copy(y[c*ys+r:c*ys+end], s.strip[c*stripRows:])
		}
	}
}

// offset is what the records subtract from every code.
func (k kind) offset() byte {
	switch k {
	case off32:
		return 128
	case off16:
		return 32
	}
	return 0
}

// offset2 is the same for AVX2, where sub-blocks of 32 have signed codes if they are decoded in Go or from a grid.
func (k kind) offset2() byte {
	if k == off32 {
		return 0
	}
	return k.offset()
}

func addf(p *float32, n int) *float32 { return (*float32)(unsafe.Add(unsafe.Pointer(p), n)) }

// decodePanel decodes 16 rows with a kernel, or in Go where there is none.
func (f *format) decodePanel(decode decodeFunc, p []byte, w *byte, stride, values int, off byte, pf uintptr,
	pfStep int) {
	if f.kind.sub() == 16 && values%128 != 0 {
		clear(p[panelScale:]) // micro kernels go on to the next 128
	}
	if decode == nil {
		f.panel(p, w, stride, values, off)
		return
	}
	decode(&p[0], w, stride, values/f.len, pf, pfStep)
}

// panel decodes 16 rows in Go, for types without a kernel, and adds off to every code.
func (f *format) panel(p []byte, w *byte, stride, values int, off byte) {
	var u unpacked
	sub := f.kind.sub()
	scale := unsafe.Slice((*float32)(unsafe.Pointer(&p[panelScale])), 256)
	mins := unsafe.Slice((*float32)(unsafe.Pointer(&p[panelMin])), 256)
	for r := range Panel {
		row := unsafe.Slice(add(w, r*stride), values/f.len*f.bytes)
		f.block(&u, row, 0, values)
		for i := 0; i < values; i += 4 {
			d, q := (*uint32)(unsafe.Pointer(&p[i*16+4*r])), *(*uint32)(unsafe.Pointer(&u.q[i]))
			*d = uint32(addBytes(uint64(q), uint64(off)*0x01010101))
		}
		for j := range values / sub {
			scale[16*j+r] = u.scale[j]
			mins[16*j+r] = u.min[j]
		}
	}
}

// quantizeBlocks rounds len(out) blocks of v.
func quantizeBlocks(out []record, v []float32) {
	quantize := quantize2
	if kernel.Current() >= kernel.AVX512 {
		quantize = quantize512
	}
	for b := 0; b < len(out); b++ {
		b += quantize((*byte)(unsafe.Pointer(&out[b])), &v[b*blockLen], len(out)-b)
		if b < len(out) { // not finite
			quantizeBlock(&out[b], (*[blockLen]float32)(v[b*blockLen:]))
		}
	}
}
