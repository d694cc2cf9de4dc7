//go:build !noasm

package qmat

import (
	"math/bits"
	"unsafe"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// Kernels take four rows at a time. A decoder takes 256 values of each apart into a quad: signed codes, then the scales
// and minima of the sub-blocks as [sub-block][row]float32. The generator repeats the offsets.
const (
	quadRows  = 4
	quadScale = 1024
	quadMin   = 1280
	quadSize  = 1536
	quads     = Panel / quadRows

	maxCols = 4 // columns, or pairs of columns, that a micro kernel takes
)

// order is how the codes of a quad lie. Which one pays depends on the number of columns.
type order int

const (
	byRow  order = iota // [row][256]: as they are decoded. A product's lanes belong to one row and have to be added
	across              // [k/4][row][k%4]: as woven weights are decoded. A lane is a row
	paired              // [k/8][rows 0 and 2, rows 1 and 3][k%8]: for products of two rows and two columns
)

// pairRecord is a block of two columns side by side.
type pairRecord struct {
	q    [512]int8     // eight of the first, eight of the second
	xs   [8][4]float32 // of the first, the second, and both again
	ms32 [8][4]float32
	ms16 [16][4]float32
}

// tiledActs are the columns for products of two rows and two columns.
type tiledActs struct {
	pairs []pairRecord // [block][pair of columns]; empty for one column and where there is no SMMLA
}

// resetTiles makes room for the columns of a, if products may want them in pairs.
func (a *Acts) resetTiles() {
	n := 0
	if kernel.Current() == kernel.I8MM && a.n > 1 {
		n = a.blocks * a.columnPairs()
	}
	a.tiled.pairs = grow(a.tiled.pairs, n)
}

func (a *Acts) columnPairs() int { return (a.n + 1) / 2 }

// packTiles puts the columns of block b, which is in a.data, side by side, two by two; a last one alone is paired with
// itself.
func (a *Acts) packTiles(b int) {
	if len(a.tiled.pairs) == 0 {
		return
	}
	cols := a.data[b*a.n:][:a.n]
	for i := range a.columnPairs() {
		pairRecords(bytesOf(&a.tiled.pairs[b*a.columnPairs()+i]), bytesOf(&cols[2*i]), bytesOf(&cols[min(2*i+1, a.n-1)]))
	}
}

type (
	decodeFunc func(p, w *byte, stride, blocks int, pf uintptr)
	microFunc  func(codes, scales, x *byte, y *float32, yStep, iters int)
	fusedFunc  func(p, w *byte, stride, subs int, x *byte, xStep int, pf uintptr, y *float32, yStep int)
)

// decoders has the types with a decoder; the others are decoded in Go.
var decoders = [...]decodeFunc{
	quant.Q4_0: decodeQ40, quant.Q4_1: decodeQ41, quant.Q5_0: decodeQ50, quant.Q5_1: decodeQ51, quant.Q8_0: decodeQ80,
	quant.Q2_K: decodeQ2K, quant.Q3_K: decodeQ3K, quant.Q4_K: decodeQ4K, quant.Q5_K: decodeQ5K, quant.Q6_K: decodeQ6K,
	quant.IQ4_NL: decodeIQ4NL, quant.IQ4_XS: decodeIQ4XS, quant.MXFP4: decodeMXFP4, quant.NVFP4: decodeNVFP4,
	quant.IQ1_S: decodeIQ1S, quant.IQ1_M: decodeIQ1M, quant.IQ2_XXS: decodeIQ2XXS, quant.IQ2_XS: decodeIQ2XS,
	quant.IQ2_S: decodeIQ2S, quant.IQ3_XXS: decodeIQ3XXS, quant.IQ3_S: decodeIQ3S,
}

// wovenDecoders is the same for woven weights.
var wovenDecoders = map[quant.Type]decodeFunc{quant.Q4_K: decodeQ4KWoven, quant.Q6_K: decodeQ6KWoven}

// fusedSet has kernels that decode and multiply four rows in one go; those for n columns, or pairs of columns, are at
// n-1.
type fusedSet struct{ columns, pairs [4]fusedFunc }

var (
	fusedKernels = map[quant.Type]*fusedSet{
		quant.Q4_K: {
			[4]fusedFunc{fusedQ4Kx1, fusedQ4Kx2, fusedQ4Kx3, fusedQ4Kx4},
			[4]fusedFunc{fusedQ4KPairsx1, fusedQ4KPairsx2, fusedQ4KPairsx3, fusedQ4KPairsx4},
		},
		quant.Q6_K: {
			[4]fusedFunc{fusedQ6Kx1, fusedQ6Kx2, fusedQ6Kx3, fusedQ6Kx4},
			[4]fusedFunc{fusedQ6KPairsx1, fusedQ6KPairsx2, fusedQ6KPairsx3, fusedQ6KPairsx4},
		},
		quant.Q8_0: {
			[4]fusedFunc{fusedQ80x1, fusedQ80x2, fusedQ80x3, fusedQ80x4},
			[4]fusedFunc{fusedQ80Pairsx1, fusedQ80Pairsx2, fusedQ80Pairsx3, fusedQ80Pairsx4},
		},
	}
	wovenFused = map[quant.Type]*fusedSet{
		quant.Q4_K: {
			[4]fusedFunc{fusedQ4KWovenx1, fusedQ4KWovenx2, fusedQ4KWovenx3, fusedQ4KWovenx4},
			[4]fusedFunc{fusedQ4KWovenPairsx1, fusedQ4KWovenPairsx2, fusedQ4KWovenPairsx3, fusedQ4KWovenPairsx4},
		},
		quant.Q6_K: {
			[4]fusedFunc{fusedQ6KWovenx1, fusedQ6KWovenx2, fusedQ6KWovenx3, fusedQ6KWovenx4},
			[4]fusedFunc{fusedQ6KWovenPairsx1, fusedQ6KWovenPairsx2, fusedQ6KWovenPairsx3, fusedQ6KWovenPairsx4},
		},
	}
)

// fusedMost is the number of columns up to which decoding them anew for every four, or eight, is less work than storing
// codes and scales.
const fusedMost = 16

// Kernels by kind; those for n columns are at n-1.
var (
	neonKernels = [4][]microFunc{
		off32: {neonOff32x1, neonOff32x2, neonOff32x3, neonOff32x4},
		min32: {neonMin32x1, neonMin32x2, neonMin32x3, neonMin32x4},
		off16: {neonOff16x1, neonOff16x2, neonOff16x3, neonOff16x4},
		min16: {neonMin16x1, neonMin16x2, neonMin16x3, neonMin16x4},
	}
	rowKernels = [4][]microFunc{
		off32: {rowsOff32x1, rowsOff32x2},
		min32: {rowsMin32x1, rowsMin32x2},
		off16: {rowsOff16x1, rowsOff16x2},
		min16: {rowsMin16x1, rowsMin16x2},
	}
	acrossKernels = [4][]microFunc{
		off32: {acrossOff32x1, acrossOff32x2, acrossOff32x3, acrossOff32x4},
		min32: {acrossMin32x1, acrossMin32x2, acrossMin32x3, acrossMin32x4},
		off16: {acrossOff16x1, acrossOff16x2, acrossOff16x3, acrossOff16x4},
		min16: {acrossMin16x1, acrossMin16x2, acrossMin16x3, acrossMin16x4},
	}
	pairKernels = [4][]microFunc{
		off32: {pairsOff32x1, pairsOff32x2, pairsOff32x3, pairsOff32x4},
		min32: {pairsMin32x1, pairsMin32x2, pairsMin32x3, pairsMin32x4},
		off16: {pairsOff16x1, pairsOff16x2, pairsOff16x3, pairsOff16x4},
		min16: {pairsMin16x1, pairsMin16x2, pairsMin16x3, pairsMin16x4},
	}
)

// The scales of MXFP4 and NVFP4 by their byte, which decoders look up.
var e8m0, e4m3 = byteScales(quant.MXFP4), byteScales(quant.NVFP4)

func byteScales(t quant.Type) (s [256]float32) {
	l := t.Layout()
	for i := range s {
		l.Floats(&quant.Block{Scales: [16]byte{byte(i)}}, s[i:i+1], nil)
	}
	return s
}

// The points of grids as decoders read them, a byte for each value: magnitudes, with an offset for types with a
// minimum, and for IQ1 codes, moved upwards.
var (
	pointsIQ1    [2048]uint64
	pointsIQ2XXS [256]uint64
	pointsIQ2XS  [512]uint64
	pointsIQ2S   [1024]uint64
	pointsIQ3XXS [256]uint32
	pointsIQ3S   [512]uint32
)

// Signs as bytes of ones, of eight bits and of seven with one that makes the number of minuses even.
var allSigns, evenSigns [256]uint64

func init() {
	const each = 0x0101010101010101
	copy(pointsIQ2XXS[:], quant.IQ2_XXS.GridPoints())
	for i, p := range quant.IQ1_S.GridPoints() {
		pointsIQ1[i] = 8*p + (128-8+1)*each
	}
	raised := func(to []uint64, t quant.Type) {
		for i, p := range t.GridPoints() {
			to[i] = p + uint64(formatOf(t).raise)*each
		}
	}
	raised(pointsIQ2XS[:], quant.IQ2_XS)
	raised(pointsIQ2S[:], quant.IQ2_S)
	four := func(to []uint32, t quant.Type) {
		for i, p := range t.GridPoints() {
			to[i] = uint32(p)
		}
	}
	four(pointsIQ3XXS[:], quant.IQ3_XXS)
	four(pointsIQ3S[:], quant.IQ3_S)
	for i := range allSigns {
		even := i&127 | bits.OnesCount8(byte(i)&127)&1<<7
		for b := range 8 {
			allSigns[i] |= uint64(i>>b&1) * 255 << (8 * b)
			evenSigns[i] |= uint64(even>>b&1) * 255 << (8 * b)
		}
	}
}

func weavePieces([]byte, []byte, int, int) bool { return false }

func weavable(t quant.Type) bool { return wovenDecoders[t] != nil && kernel.Best() >= kernel.DotProd }

// Scratch is the working memory of one worker.
type Scratch struct {
	quads []byte    // of a panel
	codes []byte    // of a panel, in another order
	acc   []float32 // sums of a panel
	tail  []byte    // the last rows, padded to a panel
}

// NewScratch returns working memory that grows as needed.
func NewScratch() *Scratch {
	return &Scratch{quads: aligned(quads*quadSize, 64), codes: aligned(quads*quadScale, 64)}
}

func (m *Matrix) mulAsm(f *format, y []float32, ys int, x *Acts, r0, r1, ahead int, s *Scratch) bool {
	p := product{m: m, f: f, x: x, s: s, ahead: ahead, decoded: byRow}
	if int(m.Type) < len(decoders) {
		p.decode = decoders[m.Type]
	}
	level := kernel.Current()
	fused := fusedKernels[m.Type]
	if m.Woven != nil && level >= kernel.DotProd {
		p.woven, p.decoded, p.decode = true, across, wovenDecoders[m.Type]
		fused = wovenFused[m.Type]
	}
	p.paired = level == kernel.I8MM && len(x.tiled.pairs) > 0
	if level >= kernel.DotProd && fused != nil && x.n <= fusedMost {
		for r := r0; r < r1; r += Panel {
			p.fused(fused, y, ys, r, min(r+Panel, r1))
		}
		return true
	}
	// Transposing pays for itself with the third column, with sub-blocks of 16, which have twice as many sums, with the
	// second.
	few := 2
	if f.kind.sub() == 16 {
		few = 1
	}
	switch {
	case level == kernel.NEON:
		p.kernels, p.wanted = neonKernels[f.kind], byRow
	case p.paired:
		p.kernels, p.wanted = pairKernels[f.kind], paired
	case p.decoded == byRow && x.n <= few:
		p.kernels, p.wanted = rowKernels[f.kind], byRow
	default:
		p.kernels, p.wanted = acrossKernels[f.kind], across
	}
	step := columns(x.n, m.K, 2*maxCols)
	for c := 0; c < x.n; c += step {
		p.c0, p.n = c, min(step, x.n-c)
		for r := r0; r < r1; r += Panel {
			p.panel(y[c*ys:], ys, r, min(r+Panel, r1))
		}
	}
	return true
}

// product is a product at work: columns [c0, c0+n) of x.
type product struct {
	m       *Matrix
	f       *format
	x       *Acts
	s       *Scratch
	ahead   int
	woven   bool
	paired  bool // x has pairs of columns
	decode  decodeFunc
	decoded order // of the codes of a quad,
	wanted  order // and how the kernels want them
	kernels []microFunc
	c0, n   int
}

func bytesOf[T any](v *T) *byte { return (*byte)(unsafe.Pointer(v)) }

// panel computes rows [r0, r1), at most 16; y starts at column c0.
func (p *product) panel(y []float32, ys, r0, r1 int) {
	m, f, s := p.m, p.f, p.s
	stride := m.K / f.len * f.bytes
	bb := blockLen / f.len * f.bytes
	w, next := p.rows(r0, stride)
	units, unit := p.n, Panel // sums of a column, or of a pair of columns
	if p.wanted == paired {
		units, unit = (p.n+1)/2, 2*Panel
	}
	s.acc = grow(s.acc, units*unit)
	clear(s.acc)
	for b := range p.x.blocks {
		values := min(blockLen, m.K-b*blockLen)
		for q := range quads {
			p.quad(q, add(w, p.at(q, b*bb, stride)), stride, values, next+uintptr(p.at(q, b*bb, stride)))
		}
		for c := 0; c < units; c += len(p.kernels) {
			nc := min(len(p.kernels), units-c)
			var xp *byte
			if p.wanted == paired {
				xp = bytesOf(&p.x.tiled.pairs[b*p.x.columnPairs()+p.c0/2+c])
			} else {
				xp = bytesOf(&p.x.data[b*p.x.n+p.c0+c])
			}
			for q := range quads {
				codes := &s.codes[q*quadScale]
				if p.wanted == p.decoded {
					codes = &s.quads[q*quadSize]
				}
				p.kernels[nc-1](codes, &s.quads[q*quadSize+quadScale], xp, &s.acc[c*unit+q*unit/quads], 4*unit,
					f.kind.iters(values))
			}
		}
	}
	p.store(y, ys, r0, r1)
}

// fused computes rows [r0, r1), at most 16, of all columns with fused kernels.
func (p *product) fused(set *fusedSet, y []float32, ys, r0, r1 int) {
	stride := p.m.K / p.f.len * p.f.bytes
	w, next := p.rows(r0, stride)
	kernels, units, cols := &set.columns, p.x.n, 1
	if p.paired {
		kernels, units, cols = &set.pairs, p.x.columnPairs(), 2
	}
	parts := (units + len(kernels) - 1) / len(kernels)
	for i := range parts {
		first, end := i*units/parts, (i+1)*units/parts
		c, n := first*cols, min(end*cols, p.x.n)-first*cols
		xp, xStep := bytesOf(&p.x.data[first]), p.x.n*recBytes
		if p.paired {
			xp, xStep = bytesOf(&p.x.tiled.pairs[first]), units*int(unsafe.Sizeof(pairRecord{}))
		}
		// Kernels write four rows of all columns that they have.
		whole := r1-r0 == Panel && n == (end-first)*cols
		if !whole {
			p.s.acc = grow(p.s.acc, len(kernels)*2*Panel)
		}
		for q := range quads {
			var to *float32
			step := 4 * ys
			if whole {
				to = &y[c*ys+r0+q*quadRows]
			} else {
				to, step = &p.s.acc[q*quadRows], 4*Panel
			}
			at, pf, arg := p.at(q, 0, stride), next, stride
			pf += uintptr(at)
			if p.woven { // see quad
				arg, pf = 8*q, pf+uintptr(48*q)
			}
			kernels[end-first-1](&p.s.quads[0], add(w, at), arg, p.m.K/32, xp, xStep, pf, to, step)
		}
		if !whole {
			for j := range n {
				copy(y[(c+j)*ys+r0:(c+j)*ys+r1], p.s.acc[j*Panel:])
			}
		}
	}
}

// at is where block b, at byte off of a row, of a quad is.
func (p *product) at(q, off, stride int) int {
	if p.woven {
		return off*Panel + 16*q
	}
	return q*quadRows*stride + off
}

// quad decodes four rows and brings their codes into the order that the kernels want.
func (p *product) quad(q int, w *byte, stride, values int, pf uintptr) {
	f, quad := p.f, p.s.quads[q*quadSize:][:quadSize]
	if f.kind.sub() == 16 && values%128 != 0 {
		clear(quad[quadScale:]) // micro kernels go on to the next 128
	}
	switch {
	case p.decode == nil:
		f.quad(quad, w, stride, values)
	case p.woven: // the prefetched lines are a quarter of all, so they begin at another one for each quad
		p.decode(&quad[0], w, 8*q, 1, pf+uintptr(48*q))
	default:
		p.decode(&quad[0], w, stride, values/f.len, pf)
	}
	codes := &p.s.codes[q*quadScale]
	switch {
	case p.decoded == p.wanted:
	case p.wanted == across:
		rowsToAcross(codes, &quad[0])
	case p.decoded == byRow:
		rowsToPairs(codes, &quad[0])
	default:
		acrossToPairs(codes, &quad[0])
	}
}

// quad decodes four rows in Go, for types without a decoder.
func (f *format) quad(p []byte, w *byte, stride, values int) {
	var u unpacked
	scale := unsafe.Slice((*float32)(unsafe.Pointer(&p[quadScale])), 64)
	mins := unsafe.Slice((*float32)(unsafe.Pointer(&p[quadMin])), 64)
	for r := range quadRows {
		f.block(&u, unsafe.Slice(add(w, r*stride), values/f.len*f.bytes), 0, values)
		copy(p[256*r:][:256], unsafe.Slice((*byte)(unsafe.Pointer(&u.q)), 256))
		for j := range values / f.kind.sub() {
			scale[4*j+r], mins[4*j+r] = u.scale[j], u.min[j]
		}
	}
}

// rows returns the address of a panel and where to prefetch meanwhile: the panel behind it, or this one again when the
// worker's part ends there. Rows that the matrix does not have are zero.
func (p *product) rows(r, stride int) (w *byte, next uintptr) {
	data := p.m.Data
	if p.woven {
		data = p.m.Woven
	}
	next = uintptr(unsafe.Pointer(&data[r*stride]))
	if r+Panel < p.ahead {
		next += uintptr(Panel * stride)
	}
	if (r+Panel)*stride <= len(data) {
		return &data[r*stride], next
	}
	p.s.tail = grow(p.s.tail, Panel*stride)
	clear(p.s.tail[copy(p.s.tail, data[r*stride:]):])
	return &p.s.tail[0], next
}

// store copies the sums of a panel to y.
func (p *product) store(y []float32, ys, r0, r1 int) {
	acc := p.s.acc
	if p.wanted != paired {
		for c := range p.n {
			copy(y[c*ys+r0:c*ys+r1], acc[c*Panel:])
		}
		return
	}
	// A quad has {row 0 of both columns, row 2}, {row 1, row 3}.
	for c := range p.n {
		from, to := acc[c/2*2*Panel+c%2:], y[c*ys+r0:c*ys+r1]
		for r := range to {
			to[r] = from[r/4*8+r%2*4+r/2%2*2]
		}
	}
}

// quantizeBlocks rounds len(out) blocks of v.
func quantizeBlocks(out []record, v []float32) {
	for b := 0; b < len(out); b++ {
		b += quantizeNEON(bytesOf(&out[b]), &v[b*blockLen], len(out)-b)
		if b < len(out) { // not finite
			quantizeBlock(&out[b], (*[blockLen]float32)(v[b*blockLen:]))
		}
	}
}
