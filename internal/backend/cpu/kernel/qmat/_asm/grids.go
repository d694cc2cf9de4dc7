package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// IQ1, IQ2 and IQ3 store points of a grid, four or eight values each. Their kernels have two parts, written once for
// both levels. The first stages, for every 32 values, the numbers of their points, two to a dword, and 32 bits that
// mark values: their signs (IQ1: in which direction they are moved). The second, the same for all types, gathers the
// points with one lane per row. Grids hold the levels of values, counted from the smallest; the mark goes above the
// level, and a table turns both into the code.

// gridFormat is such a type. Its blocks have 256 values.
type gridFormat struct {
	name   string
	grid   string // variable of the package: points with levels as nibbles, or as bytes if they have four values
	kind   kind
	bytes  int // per block of the file
	four   bool
	values [2][]int // by level, without and with mark
	stage  func(l lanes)
	codes  [2][16]byte // of AVX-512 and AVX2
}

var (
	values1    = [2][]int{{-7, 1, 9}, {-9, -1, 7}}
	values2    = signedValues(8, 25, 43)
	values3XXS = signedValues(4, 12, 20, 28, 36, 44, 52, 62)
	values3S   = signedValues(1, 3, 5, 7, 9, 11, 13, 15)

	gridFormats = []*gridFormat{
		{name: "IQ1S", grid: "gridIQ1", kind: off32, bytes: 50, values: values1, stage: stageIQ1S},
		{name: "IQ1M", grid: "gridIQ1", kind: off16, bytes: 56, values: values1, stage: stageIQ1M},
		{name: "IQ2XXS", grid: "gridIQ2XXS", kind: off32, bytes: 66, values: values2, stage: stageIQ2XXS},
		{name: "IQ2XS", grid: "gridIQ2XS", kind: min16, bytes: 74, values: values2, stage: stageIQ2XS},
		{name: "IQ2S", grid: "gridIQ2S", kind: min16, bytes: 82, values: values2, stage: stageIQ2S},
		{name: "IQ3XXS", grid: "gridIQ3XXS", kind: off32, bytes: 98, four: true, values: values3XXS, stage: stageIQ3XXS},
		{name: "IQ3S", grid: "gridIQ3S", kind: off32, bytes: 110, four: true, values: values3S, stage: stageIQ3S},
	}
)

func signedValues(v ...int) [2][]int {
	minus := make([]int, len(v))
	for i := range v {
		minus[i] = -v[i]
	}
	return [2][]int{v, minus}
}

// mark is the bit above the levels, in every byte.
const mark = 0x08080808

// offsets of the codes at the two levels. Values with a minimum count from -43, the smallest.
func (f *gridFormat) offsets() [2]int {
	switch f.kind {
	case off32:
		return [2]int{128, 0}
	case off16:
		return [2]int{32, 32}
	}
	return [2]int{43, 43}
}

// lanes is what the levels do differently: a register holds a dword of 16 or of eight rows.
type lanes interface {
	reg() VecVirtual
	transpose(off int) [4]VecVirtual
	half(off int) VecVirtual          // the half float at off
	low(v VecVirtual) VecVirtual      // the half float in the low half of every dword
	k(v uint32) VecVirtual            // v in every dword
	and(a Op, b, c VecVirtual)        // c = a & b
	or(a Op, b, c VecVirtual)         // c = a | b
	xor(a Op, b, c VecVirtual)        // c = a ^ b
	ones(a, b VecVirtual) VecVirtual  // bytes of ones where a bit of a, which has one per byte, is set in b
	mark(a, b, v VecVirtual)          // the same for the marks of v
	gather(idx VecVirtual) VecVirtual // points of the grid
	code(v VecVirtual)                // levels and marks to codes
	panel() Register
	stage(j, slot int) Mem // where vectors of sub-block j, 32 values, are staged
	staged(slot int) Mem   // those that emit is about
	begin(sub int)
	vec(sub, g int, v VecVirtual)
	end(sub int)
	tick()
}

// Where a sub-block is staged, in vectors. Decoders stage where its codes will be, those of group g (eight values) at
// 2g and 2g+1: what group g reads must not have been overwritten by then. Marks are read at once.
const (
	stagedMarks  = 0
	stagedPoints = 4 // of group g at 4+g; points of eight values: of groups g and g+1 at 4+g
)

// hot are the constants that emit keeps in registers.
var hot = []uint32{m0f, 0xffff, bits0, bits1, mark}

type lanes512 struct {
	*env
	table *[16]byte
	grid  Register
	all   Register // mask: every row
}

func (l *lanes512) half(off int) VecVirtual   { return l.low(l.env.gather(off)) }
func (l *lanes512) and(a Op, b, c VecVirtual) { VPANDD(a, b, c) }
func (l *lanes512) or(a Op, b, c VecVirtual)  { VPORD(a, b, c) }
func (l *lanes512) xor(a Op, b, c VecVirtual) { VPXORD(a, b, c) }
func (l *lanes512) code(v VecVirtual)         { VPSHUFB(v, l.t[l.table], v) }
func (l *lanes512) panel() Register           { return l.p }

func (l *lanes512) ones(a, b VecVirtual) VecVirtual {
	k, z := K(), ZMM()
	VPTESTMB(a, b, k)
	VPMOVM2B(k, z)
	return z
}

func (l *lanes512) mark(a, b, v VecVirtual) {
	k := K()
	VPTESTMB(a, b, k)
	VPADDB(l.k(mark), v, k, v)
}

func (l *lanes512) gather(idx VecVirtual) VecVirtual {
	k, z := K(), ZMM()
	KMOVW(l.all, k)
	l.zero(z)
	VPGATHERDD(Mem{Base: l.grid, Index: idx, Scale: 4}, k, z)
	return z
}

// Fused kernels have no codes in memory. They stage beside the scales, sub-block by sub-block as these are, so that one
// register finds both.
func (l *lanes512) stage(j, slot int) Mem {
	if _, ok := l.sink.(*fusedSink); ok {
		return mem(l.p, 512*slot+64*j)
	}
	return mem(l.p, 512*j+64*slot)
}

func (l *lanes512) staged(slot int) Mem {
	if s, ok := l.sink.(*fusedSink); ok {
		return mem(s.ps, 512*slot-panelScale)
	}
	return mem(l.sink.(*panelSink).pq, 64*slot)
}

type lanes2 struct {
	*env2
	constants map[uint32]VecVirtual
	table     VecVirtual
	grid      Register
}

func (l *lanes2) half(off int) VecVirtual   { return l.halves(off) }
func (l *lanes2) k(v uint32) VecVirtual     { return l.constants[v] }
func (l *lanes2) and(a Op, b, c VecVirtual) { VPAND(a, b, c) }
func (l *lanes2) or(a Op, b, c VecVirtual)  { VPOR(a, b, c) }
func (l *lanes2) xor(a Op, b, c VecVirtual) { VPXOR(a, b, c) }
func (l *lanes2) code(v VecVirtual)         { VPSHUFB(v, l.table, v) }
func (l *lanes2) panel() Register           { return l.p }
func (l *lanes2) stage(j, slot int) Mem     { return mem(l.p, 512*j+64*slot) }
func (l *lanes2) staged(slot int) Mem       { return mem(l.pq, 64*slot) }
func (l *lanes2) begin(int)                 {}
func (l *lanes2) end(int)                   {}

func (l *lanes2) ones(a, b VecVirtual) VecVirtual {
	y := YMM()
	VPAND(a, b, y)
	VPCMPEQB(a, y, y)
	return y
}

func (l *lanes2) mark(a, b, v VecVirtual) {
	y := l.ones(a, b)
	VPAND(l.k(mark), y, y)
	VPOR(y, v, v)
}

func (l *lanes2) gather(idx VecVirtual) VecVirtual {
	all, y := YMM(), YMM()
	VPCMPEQD(idx, idx, all)
	VPXOR(idx, idx, y)
	VPGATHERDD(all, Mem{Base: l.grid, Index: idx, Scale: 4}, y)
	return y
}

// gridAddress is where the points of f are.
func (f *gridFormat) gridAddress() Register {
	r := GP64()
	LEAQ(NewDataAddr(Symbol{Name: "·" + f.grid}, 0), r)
	return r
}

// kernels emits the decoders of both levels and, where sub-blocks are added in the order in which they are decoded, the
// fused kernel for one column. With more columns decoding matters less, and these kernels are long.
func (f *gridFormat) kernels() {
	var l512 *lanes512
	s := shape{name: f.name, kind: f.kind, length: 256, bytes: f.bytes, chunk: 32}
	f512 := &format{shape: s, ticks: 4,
		consts: hot, tables: []*[16]byte{&f.codes[0]},
		header: func(e *env) {
			l512 = &lanes512{env: e, table: &f.codes[0], grid: f.gridAddress(), all: K()}
			f.stage(l512)
			KXNORW(l512.all, l512.all, l512.all)
		},
		emit: func(*env, int) { f.emit(l512) }}
	decode512(f512)
	if f.kind.sub == 32 {
		fused512(f512, 1)
	}
	var l2 *lanes2
	decodeAVX2(&format2{shape: s, ticks: 4,
		header: func(e *env2) {
			l2 = &lanes2{env2: e, constants: map[uint32]VecVirtual{}, table: YMM(), grid: f.gridAddress()}
			f.stage(l2)
			for _, v := range hot {
				l2.constants[v] = YMM()
				VMOVDQU(every(v), l2.constants[v])
			}
			VBROADCASTI128(tableData(&f.codes[1]), l2.table)
		},
		emit: func(*env2, int) { f.emit(l2) }})
}

// emit decodes 32 values that have been staged.
func (f *gridFormat) emit(l lanes) {
	marks := l.reg()
	VMOVUPS(l.staged(stagedMarks), marks)
	l.begin(0)
	for g := range 4 {
		l.tick()
		n := l.reg()
		var lo, hi VecVirtual
		if f.four {
			VMOVUPS(l.staged(stagedPoints+g), n)
			m := l.reg()
			l.and(l.k(0xffff), n, m)
			lo = l.gather(m)
			VPSRLD(U8(16), n, n)
			hi = l.gather(n)
		} else {
			VMOVUPS(l.staged(stagedPoints+g&^1), n)
			if g%2 == 0 {
				l.and(l.k(0xffff), n, n)
			} else {
				VPSRLD(U8(16), n, n)
			}
			lo, hi = l.gather(n), l.reg()
			VPSRLD(U8(4), lo, hi)
			l.and(l.k(m0f), lo, lo)
			l.and(l.k(m0f), hi, hi)
		}
		VPSHUFB(spread().Offset(64*g), marks, n)
		l.mark(l.k(bits0), n, lo)
		l.mark(l.k(bits1), n, hi)
		l.code(lo)
		l.code(hi)
		l.vec(0, 2*g, lo)
		l.vec(0, 2*g+1, hi)
	}
	l.end(0)
}

// Constants in memory, wide enough for both levels.
var (
	everyMem   = map[uint32]Mem{}
	shuffleMem = map[[4]int]Mem{}

	everyValues = append([]uint32{7, 15, 0xf0, 0xf00, 0xf000, 0x3fff, 0x3fff0000, 0x007f007f, 0x7f007f00, 0x01ff01ff, m80,
		0x01000100, 0x03000300, 0x07000700, 0x80088008, one32, quarter, eighth, minus43,
		words(256, 128), words(64, 32), words(16, 8), words(4, 2), words(256, 64), words(64, 16), words(256, 32),
		words(32, 4), words(256, 16), words(16, 1)}, hot...)
	shuffles = [][4]int{lowBytes, highBytes, order, {0, 1, 0, 1}, {2, 3, 2, 3}, {0, 0, 1, 1}, {2, 2, 3, 3},
		{0, none, 0, none}, {1, none, 1, none}, {2, none, 2, none}, {3, none, 3, none}}

	lowBytes  = [4]int{0, none, 1, none} // widened to words
	highBytes = [4]int{2, none, 3, none}
	order     = [4]int{0, 2, 1, 3}
)

const (
	none    = 0x80 // gives a zero
	one32   = 0x3f800000
	quarter = 0x3e800000
	minus43 = 0xc22c0000
)

func words(lo, hi uint32) uint32 { return lo | hi<<16 }

// initGrids declares the data of these formats.
func initGrids() {
	for _, v := range everyValues {
		m := GLOBL(fmt.Sprintf("every%08x", v), RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(v))
		}
		everyMem[v] = m
	}
	for i, s := range shuffles {
		m := GLOBL(fmt.Sprintf("shuffle%d", i), RODATA|NOPTR)
		for d := range 16 {
			var v uint32
			for b, from := range s {
				v |= uint32(d%4*4+from) << (8 * b)
			}
			DATA(4*d, U32(v))
		}
		shuffleMem[s] = m
	}
	for _, f := range gridFormats {
		for i, off := range f.offsets() {
			for marked, values := range f.values {
				for level, v := range values {
					f.codes[i][8*marked+level] = byte(v + off)
				}
			}
			tableData(&f.codes[i])
		}
	}
}

// every is v in every dword.
func every(v uint32) Mem {
	m, ok := everyMem[v]
	if !ok {
		panic(fmt.Sprintf("constant %#x is not declared", v))
	}
	return m
}

// shuffled moves bytes inside every dword.
func shuffled(l lanes, v VecVirtual, from ...int) VecVirtual {
	m, ok := shuffleMem[[4]int(from)]
	if !ok {
		panic(fmt.Sprintf("shuffle %v is not declared", from))
	}
	r := l.reg()
	VPSHUFB(m, v, r)
	return r
}

// masked is v shifted right by n bits, to the left if n is negative, and masked.
func masked(l lanes, v VecVirtual, n int, mask uint32) VecVirtual {
	r := l.reg()
	switch {
	case n > 0:
		VPSRLD(U8(n), v, r)
		v = r
	case n < 0:
		VPSLLD(U8(-n), v, r)
		v = r
	}
	l.and(every(mask), v, r)
	return r
}

// put stages a vector of sub-block j, 32 values.
func put(l lanes, j, slot int, v VecVirtual) { VMOVUPS(v, l.stage(j, slot)) }

// unit is the scale of a block times by, and twice as much.
func unit(l lanes, d VecVirtual, by uint32) (u, u2 VecVirtual) {
	u2 = l.reg()
	VMULPS(every(by), d, d)
	VADDPS(d, d, u2)
	return d, u2
}

// scale stores the scale of sub-block i, 2n+1 units. It is exact: halves have 11 significant bits, 2n+1 has five.
func scale(l lanes, i int, n, u, u2 VecVirtual) {
	VCVTDQ2PS(n, n)
	VFMADD213PS(u, u2, n)
	VMOVUPS(n, mem(l.panel(), panelScale+64*i))
}

// scalesMin stores sixteen scales whose bits are the nibbles of two dwords, and the minima, which are exact too.
func scalesMin(l lanes, v []VecVirtual, u, u2 VecVirtual) {
	for i := range 16 {
		n := masked(l, v[i/8], 4*(i%8), 15)
		scale(l, i, n, u, u2)
		VMULPS(every(minus43), n, n)
		VMOVUPS(n, mem(l.panel(), panelMin+64*i))
	}
}

// even completes the seven signs in every byte by one that makes the number of minuses even.
func even(l lanes, s VecVirtual) {
	p, t := s, l.reg()
	for _, n := range []int{1, 2, 4} { // what crosses into the next byte does not reach its highest bit
		VPSLLD(U8(n), p, t)
		if n == 1 {
			p = l.reg()
			l.xor(s, t, p)
		} else {
			l.xor(t, p, p)
		}
	}
	l.and(every(m80), p, p)
	l.or(p, s, s)
}

// signs28 returns the signs that four times seven bits of w stand for.
func signs28(l lanes, w VecVirtual) VecVirtual {
	s, t := masked(l, w, 0, 0x3fff), masked(l, w, -2, 0x3fff0000)
	l.or(t, s, s)
	t = masked(l, s, -1, 0x7f007f00)
	l.and(every(0x007f007f), s, s)
	l.or(t, s, s)
	even(l, s)
	return s
}

// addHigh puts bits of the words of high, times a power of two in each half, above the eight bits of n.
func addHigh(l lanes, n, high VecVirtual, lo, hi, mask uint32) {
	t := l.reg()
	VPMULLW(every(words(lo, hi)), high, t)
	l.and(every(mask), t, t)
	l.or(t, n, n)
}

// stage8 stages four points of eight values: bytes of v and, if high is not nil, bits of its two halves, which are the
// same: those of mask, which lie by bits apart.
func stage8(l lanes, j int, v, high VecVirtual, by int, mask uint32) {
	a, b := shuffled(l, v, lowBytes[:]...), shuffled(l, v, highBytes[:]...)
	if high != nil {
		one := uint32(256)
		addHigh(l, a, high, one, one>>by, mask)
		VPSRLW(U8(by), high, high)
		addHigh(l, b, high, one>>by, one>>(2*by), mask)
	}
	put(l, j, stagedPoints, a)
	put(l, j, stagedPoints+2, b)
}

func stageIQ2XXS(l lanes) {
	u, u2 := unit(l, l.half(0), eighth)
	for c := range 4 {
		z := l.transpose(2 + 16*c)
		for s := range 2 {
			j, w := 2*c+s, z[2*s+1]
			stage8(l, j, z[2*s], nil, 0, 0)
			put(l, j, stagedMarks, signs28(l, w))
			VPSRLD(U8(28), w, w)
			scale(l, j, w, u, u2)
		}
	}
}

func stageIQ2XS(l lanes) {
	u, u2 := unit(l, l.half(0), eighth)
	s := l.transpose(58)
	scalesMin(l, s[2:], u, u2)
	for c := range 4 {
		z := l.transpose(2 + 16*c)
		for s := range 2 {
			j := 2*c + s
			a, b := z[2*s], z[2*s+1]
			signs := masked(l, b, 1, 0x7f007f00)
			l.or(masked(l, a, 9, 0x007f007f), signs, signs)
			signs = shuffled(l, signs, order[:]...)
			even(l, signs)
			put(l, j, stagedMarks, signs)
			put(l, j, stagedPoints, masked(l, a, 0, 0x01ff01ff))
			put(l, j, stagedPoints+2, masked(l, b, 0, 0x01ff01ff))
		}
	}
}

func stageIQ2S(l lanes) {
	u, u2 := unit(l, l.half(0), eighth)
	h := l.transpose(66)
	scalesMin(l, h[2:], u, u2)
	for c := range 2 {
		for i, v := range l.transpose(2 + 16*c) {
			stage8(l, 4*c+i, v, shuffled(l, h[c], i, none, i, none), 2, 0x03000300)
		}
		for i, v := range l.transpose(34 + 16*c) {
			put(l, 4*c+i, stagedMarks, v)
		}
	}
}

// stage4 stages eight points of four values: bytes of two vectors and, if high is not nil, a bit each of its two
// halves, which are the same.
func stage4(l lanes, j int, v []VecVirtual, high VecVirtual) {
	for g := range 4 {
		n := shuffled(l, v[g/2], [][4]int{lowBytes, highBytes}[g%2][:]...)
		if high != nil {
			addHigh(l, n, high, 256>>(2*g), 128>>(2*g), 0x01000100)
		}
		put(l, j, stagedPoints+g, n)
	}
}

func stageIQ3XXS(l lanes) {
	u, u2 := unit(l, l.half(0), quarter)
	for c := range 4 {
		z := l.transpose(2 + 16*c)
		stage4(l, 2*c, z[:2], nil)
		stage4(l, 2*c+1, z[2:], nil)
	}
	for c := range 2 {
		for i, w := range l.transpose(66 + 16*c) {
			put(l, 4*c+i, stagedMarks, signs28(l, w))
			VPSRLD(U8(28), w, w)
			scale(l, 4*c+i, w, u, u2)
		}
	}
}

func stageIQ3S(l lanes) {
	u, u2 := unit(l, l.half(0), one32)
	s := l.transpose(94)
	for j := range 8 {
		scale(l, j, masked(l, s[3], 4*j, 15), u, u2)
	}
	h := l.transpose(66)
	for c := range 4 {
		z := l.transpose(2 + 16*c)
		for s := range 2 {
			j := 2*c + s
			stage4(l, j, z[2*s:][:2], shuffled(l, h[j/4], j%4, none, j%4, none))
		}
	}
	for c := range 2 {
		for i, v := range l.transpose(74 + 16*c) {
			put(l, 4*c+i, stagedMarks, v)
		}
	}
}

func stageIQ1S(l lanes) {
	u, u2 := unit(l, l.half(0), eighth)
	h := l.transpose(34)
	for c := range 2 {
		for i, v := range l.transpose(2 + 16*c) {
			j := 4*c + i
			w := shuffled(l, h[j/2], j%2*2, j%2*2+1, j%2*2, j%2*2+1)
			marks := l.reg()
			VPSRAD(U8(31), w, marks)
			put(l, j, stagedMarks, marks)
			scale(l, j, masked(l, w, 28, 7), u, u2)
			stage8(l, j, v, w, 3, 0x07000700)
		}
	}
}

func stageIQ1M(l lanes) {
	// Four words of four 3-bit scales each; the bits that are left are those of the half.
	s := l.transpose(40)
	d := masked(l, s[2], 12, 15)
	l.or(masked(l, s[2], 24, 0xf0), d, d)
	l.or(masked(l, s[3], 4, 0xf00), d, d)
	l.or(masked(l, s[3], 16, 0xf000), d, d)
	u, u2 := unit(l, l.low(d), eighth)
	for i := range 16 {
		scale(l, i, masked(l, s[2+i/8], 16*(i/4%2)+3*(i%4), 7), u, u2)
	}
	h := l.transpose(32)
	bit := l.reg()
	VMOVUPS(every(0x80088008), bit)
	for c := range 2 {
		for i, v := range l.transpose(16 * c) {
			j := 4*c + i
			w := j % 2 * 2
			put(l, j, stagedMarks, l.ones(bit, shuffled(l, h[j/2], w, w, w+1, w+1)))
			stage8(l, j, v, shuffled(l, h[j/2], w, w+1, w, w+1), 4, 0x07000700)
		}
	}
}
