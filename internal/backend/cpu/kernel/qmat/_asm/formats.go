package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const (
	m0f = 0x0f0f0f0f
	mf0 = 0xf0f0f0f0
	m30 = 0x30303030
	m10 = 0x10101010
	m78 = 0x78787878
	m80 = 0x80808080
	m3f = 0x3f3f3f3f
	mff = 0x000000ff
	m7f = 0x0000007f
	m03 = 0x03030303
	m18 = 0x18181818
	m20 = 0x20202020

	exp118 = 118 << 23
	two11  = 0x3a000000 // 2^-11

	bits0 = 0x08040201
	bits1 = 0x80402010

	sixteenth = 0x3d800000 // 1/16
	exp23     = 0x4b000000 // 2^23
	eighth    = 0x3e000000 // 1/8
	signBit   = 0x80000000
)

// The types, with the order of their sub-blocks in the sum and the pieces in which they are decoded.
var (
	q4k   = shape{"Q4K", min32, 256, 144, 64, 32}
	q5k   = shape{"Q5K", min32, 256, 176, 64, 32}
	q6k   = shape{"Q6K", off16, 256, 210, 128, 0}
	q80   = shape{"Q80", off32, 32, 34, 32, 34}
	q40   = shape{"Q40", off32, 32, 18, 32, 18}
	q50   = shape{"Q50", off32, 32, 22, 32, 22}
	q41   = shape{"Q41", min32, 32, 20, 32, 20}
	q51   = shape{"Q51", min32, 32, 24, 32, 24}
	iq4nl = shape{"IQ4NL", off32, 32, 18, 32, 18}
	iq4xs = shape{"IQ4XS", off32, 256, 136, 32, 16}
	mxfp4 = shape{"MXFP4", off32, 32, 17, 32, 17}
	nvfp4 = shape{"NVFP4", off16, 64, 36, 64, 36}
	q2k   = shape{"Q2K", min16, 256, 84, 128, 0}
	q3k   = shape{"Q3K", off16, 256, 110, 128, 0}
)

// woven is the shape of woven rows.
func woven(s shape) shape {
	s.name += "Woven"
	return s
}

// Codes of formats with an offset are scaled by a power of two so that the offset is 128
// (sub-blocks of 32) or 32 (sub-blocks of 16), which the records subtract. The scale takes
// the inverse; both are exact.
var formats = []*format{
	{shape: q4k, tiles: true, ticks: 8, roomy: 4, bytes3: true, fused: 6,
		consts: []uint32{m0f}, header: header4K, emit: emitQ4K},
	{shape: woven(q4k), tiles: true, ticks: 8, bytes3: true, fused: 8,
		woven: true, consts: []uint32{m0f}, header: header4K, emit: emitQ4K},
	{shape: q5k, tiles: true, ticks: 8, roomy: 2, bytes3: true, fused: 4,
		consts: []uint32{m0f, m10}, header: headerQ5K, emit: emitQ5K},
	{shape: q6k, ticks: 6, unroll: true, roomy: 4, fused: 4,
		consts: []uint32{m0f, m30}, header: headerQ6K, emit: emitQ6K},
	{shape: woven(q6k), ticks: 6, unroll: true, fused: 8,
		woven: true, consts: []uint32{m0f, m30}, header: headerQ6K, emit: emitQ6K},
	{shape: q80, tiles: true, ticks: 8, roomy: 6, fused: 6,
		consts: []uint32{m80}, emit: emitQ80},
	{shape: q40, tiles: true, ticks: 4, fused: 4,
		consts: []uint32{mf0}, emit: emitQ40},
	{shape: q50, ticks: 4, fused: 4,
		consts: []uint32{m78, m80, bits0, bits1}, emit: emitQ50},
	{shape: q41, ticks: 4, fused: 2,
		consts: []uint32{m0f}, emit: emitQ41},
	{shape: q51, ticks: 4, fused: 2,
		consts: []uint32{m0f, m10, bits0, bits1}, emit: emitQ51},
	{shape: iq4nl, ticks: 4, fused: 4,
		consts: []uint32{m0f}, tables: []*[16]byte{&iq4}, emit: emitIQ4NL},
	{shape: iq4xs, ticks: 4, fused: 4,
		consts: []uint32{m0f}, tables: []*[16]byte{&iq4}, header: headerIQ4XS, emit: emitIQ4XS},
	{shape: mxfp4, ticks: 4, fused: 4,
		consts: []uint32{m0f, 0x00200000}, tables: []*[16]byte{&fp4}, emit: emitMXFP4},
	{shape: nvfp4, ticks: 8,
		consts: []uint32{m0f}, tables: []*[16]byte{&nv4}, emit: emitNVFP4},
	{shape: q2k, ticks: 8, unroll: true, bytes3: true, roomy: 4,
		fused: 1, consts: []uint32{m03}, header: headerQ2K, emit: emitQ2K},
	{shape: q3k, ticks: 8, unroll: true, roomy: 4, fused: 2,
		consts: []uint32{m18, m20}, header: headerQ3K, emit: emitQ3K},
}

var (
	iq4 = table(1, 128, -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
	fp4 = table(8, 128, 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
	nv4 = table(2, 32, 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
)

// table makes codes with an offset from signed values.
func table(mul, off int, v ...int) (t [16]byte) {
	for i := range t {
		t[i] = byte(v[i]*mul + off)
	}
	return t
}

// header4K decodes the sixteen scale bytes that Q4_K and Q5_K share. odd divides the
// scales of odd sub-blocks by 16: Q4_K leaves their nibbles in the high half.
func header4K(e *env) { scales4K(e, true) }

func scales4K(e *env, odd bool) {
	h := e.transpose512(0)
	dm := e.high(h[0])
	d := e.low(h[0])
	VPXORD_BCST(dword(signBit), dm, dm)
	d16 := d
	if odd {
		d16 = ZMM()
		VMULPS_BCST(dword(sixteenth), d, d16)
	}
	sc, mn, t := zs(2), zs(2), ZMM()
	VPANDD_BCST(dword(m3f), h[1], sc[0])
	VPANDD_BCST(dword(m3f), h[2], mn[0])
	VPSRLD(U8(2), h[1], sc[1])
	VPANDD_BCST(dword(m30), sc[1], sc[1])
	VPTERNLOGD_BCST(U8(orAnd), dword(m0f), h[3], sc[1])
	VPSRLD(U8(2), h[2], mn[1])
	VPANDD_BCST(dword(m30), mn[1], mn[1])
	VPSRLD(U8(4), h[3], t)
	VPTERNLOGD_BCST(U8(orAnd), dword(m0f), t, mn[1])
	bd, bdm := big23(d), big23(dm)
	bd16 := bd
	if odd {
		bd16 = big23(d16)
	}
	for j := range 8 {
		if j%2 == 0 {
			e.put(sc[j/4], j%4, d, bd, panelScale+64*j)
		} else {
			e.put(sc[j/4], j%4, d16, bd16, panelScale+64*j)
		}
		e.put(mn[j/4], j%4, dm, bdm, panelMin+64*j)
	}
}

// put stores byte j of every dword times mul. A byte under the exponent of 2^23 is the
// float32 2^23 + byte; the multiply-subtract takes 2^23 * mul (from big23) away, exactly.
func (e *env) put(v VecVirtual, j int, mul, big VecVirtual, at int) {
	z := ZMM()
	VPBROADCASTD(dword(exp23), z)
	VPSHUFB(spread().Offset(64*j), v, e.byte0, z)
	VFMSUB213PS(big, mul, z)
	VMOVUPS(z, mem(e.p, at))
}

func big23(v VecVirtual) VecVirtual {
	z := ZMM()
	VMULPS_BCST(dword(exp23), v, z)
	return z
}

// orAnd is the truth table of dst | (src2 & src3).
const orAnd = 0xf8

// level is what headers of both levels are written with. Constants come from memory.
type level interface {
	reg() VecVirtual
	transpose(off int) [4]VecVirtual
	and(v uint32, a, b VecVirtual)   // b = a & v
	orAnd(v uint32, a, b VecVirtual) // b |= a & v; a may change
	minus(v uint32, a, b VecVirtual) // b = a - v
	move(a, b VecVirtual)            // b = a
	blockScale(i int, v VecVirtual)  // stores the scale of sub-block i of the block
}

func (e *env) reg() VecVirtual                 { return ZMM() }
func (e *env) transpose(off int) [4]VecVirtual { return e.transpose512(off) }
func (e *env) and(v uint32, a, b VecVirtual)   { VPANDD_BCST(dword(v), a, b) }
func (e *env) orAnd(v uint32, a, b VecVirtual) { VPTERNLOGD_BCST(U8(orAnd), dword(v), a, b) }
func (e *env) minus(v uint32, a, b VecVirtual) { VPSUBD_BCST(dword(v), a, b) }
func (e *env) move(a, b VecVirtual)            { VMOVDQA64(a, b) }
func (e *env) blockScale(i int, v VecVirtual)  { VMOVUPS(v, mem(e.p, panelScale+64*i)) }

// byteOf extracts byte j of every dword.
func byteOf(l level, v VecVirtual, j int) VecVirtual {
	z := l.reg()
	switch j {
	case 0:
		l.and(mff, v, z)
	case 3:
		VPSRLD(U8(24), v, z)
	default:
		VPSRLD(U8(8*j), v, z)
		l.and(mff, z, z)
	}
	return z
}

// shift moves dwords left, or right when n is negative.
func shift(l level, n int, a, b VecVirtual) {
	switch {
	case n > 0:
		VPSLLD(U8(n), a, b)
	case n < 0:
		VPSRLD(U8(-n), a, b)
	default:
		l.move(a, b)
	}
}

// scalesQ6K stores the signed scales of Q6_K times d.
func scalesQ6K(l level, d VecVirtual) {
	for i, v := range l.transpose(192) {
		for j := range 4 {
			t := l.reg()
			if j == 3 {
				VPSRAD(U8(24), v, t)
			} else {
				VPSLLD(U8(24-8*j), v, t)
				VPSRAD(U8(24), t, t)
			}
			VCVTDQ2PS(t, t)
			VMULPS(d, t, t)
			l.blockScale(4*i+j, t)
		}
	}
}

// scalesQ3K stores the scales of Q3_K times d: nibbles of a or b with two bits of c above them, less 32.
func scalesQ3K(l level, a, b, c, d VecVirtual) {
	for i := range 4 {
		lo, hi := l.reg(), l.reg()
		shift(l, -4*(i/2), []VecVirtual{a, b}[i%2], lo)
		l.and(m0f, lo, lo)
		shift(l, 4-2*i, c, hi)
		l.orAnd(m30, hi, lo)
		for j := range 4 {
			z := byteOf(l, lo, j)
			l.minus(32, z, z)
			VCVTDQ2PS(z, z)
			VMULPS(d, z, z)
			l.blockScale(4*i+j, z)
		}
	}
}

// quads calls f for the eight groups of 32 bytes at off.
func quads(e *env, off int, f func(g int, v VecVirtual)) {
	if e.woven {
		for g := range 8 {
			f(g, e.dword16(off+4*g))
		}
		return
	}
	if e.tight { // the second half only when the first one is done
		for h := range 2 {
			for i, v := range e.transpose512(off + 16*h) {
				f(4*h+i, v)
			}
		}
		return
	}
	for i, v := range e.transpose512x32(off) {
		f(i, v)
	}
}

func emitQ4K(e *env, c int) {
	e.begin(0)
	e.begin(1)
	quads(e, 16, func(g int, v VecVirtual) {
		lo := ZMM()
		VPANDD(e.k(m0f), v, lo)
		VPANDND(v, e.k(m0f), v)
		e.vec(0, g, lo)
		e.vec(1, g, v)
		e.tick()
	})
	e.end(0)
	e.end(1)
}

func headerQ5K(e *env) {
	scales4K(e, false)
	e.keep = e.transpose32(16)
}

func emitQ5K(e *env, c int) {
	e.begin(0)
	e.begin(1)
	quads(e, 48, func(g int, v VecVirtual) {
		qh := e.keep[g]
		lo, hi := ZMM(), ZMM()
		VPSLLD(U8(4), qh, lo)
		VPANDD(e.k(m10), lo, lo)
		VPTERNLOGD(U8(orAnd), e.k(m0f), v, lo)
		e.vec(0, g, lo)
		VPSLLD(U8(3), qh, hi)
		VPANDD(e.k(m10), hi, hi)
		VPSRLD(U8(4), v, v)
		VPTERNLOGD(U8(orAnd), e.k(m0f), v, hi)
		e.vec(1, g, hi)
		VPSRLD(U8(2), qh, qh)
		e.tick()
	})
	e.end(0)
	e.end(1)
}

func headerQ6K(e *env) {
	var d VecVirtual
	if e.woven {
		d = ZMM()
		VCVTPH2PS(mem(e.b[0], 16*208), d)
	} else {
		d = e.high(e.gather(206)) // two bytes early: the block ends at 210
	}
	scalesQ6K(e, d)
}

func emitQ6K(e *env, c int) {
	e.tick()
	e.tick()
	// Woven rows are loaded where they are needed, which leaves registers for more columns.
	var qh []VecVirtual
	if !e.woven {
		qh = e.transpose32(128 + 32*c)
	}
	for t := range 4 { // 16 bytes of ql: sub-blocks t and t+4
		e.tick()
		e.begin(t)
		e.begin(t + 4)
		var ql [4]VecVirtual
		if !e.woven {
			ql = e.transpose512(64*c + 16*t)
		}
		for i := range 4 {
			var v, h VecVirtual
			if e.woven {
				v, h = e.dword16(64*c+16*t+4*i), e.dword16(128+32*c+4*(t%2*4+i))
			} else {
				v, h = ql[i], qh[t%2*4+i]
			}
			lo, hi := ZMM(), ZMM()
			if t < 2 {
				VPSLLD(U8(4), h, lo)
				VPANDD(e.k(m30), lo, lo)
				VPANDD(e.k(m30), h, hi)
			} else {
				VPSLLD(U8(2), h, lo)
				VPANDD(e.k(m30), lo, lo)
				VPSRLD(U8(2), h, hi)
				VPANDD(e.k(m30), hi, hi)
			}
			VPTERNLOGD(U8(orAnd), e.k(m0f), v, lo)
			e.vec(t, i, lo)
			VPSRLD(U8(4), v, v)
			VPTERNLOGD(U8(orAnd), e.k(m0f), v, hi)
			e.vec(t+4, i, hi)
		}
		e.end(t)
		e.end(t + 4)
	}
}

func emitQ80(e *env, c int) {
	e.begin(0)
	quads(e, 2, func(g int, v VecVirtual) {
		VPXORD(e.k(m80), v, v)
		e.vec(0, g, v)
		e.tick()
	})
	e.scale(0, e.low(e.gather(0)))
	e.end(0)
}

func emitQ40(e *env, c int) {
	e.begin(0)
	for i, v := range e.transpose512(2) {
		lo, hi := ZMM(), ZMM()
		VPSLLD(U8(4), v, lo)
		VPANDD(e.k(mf0), lo, lo)
		VPANDD(e.k(mf0), v, hi)
		e.vec(0, i, lo)
		e.vec(0, 4+i, hi)
		e.tick()
	}
	d := e.low(e.gather(0))
	VMULPS_BCST(dword(sixteenth), d, d)
	e.scale(0, d)
	e.end(0)
}

// nibbles emits 16 bytes at off with the fifth bits in qh (nil: none). shift moves the
// nibble up inside its byte and bit is where the fifth one goes.
func nibbles(e *env, off int, qh *VecVirtual, mask uint32, shift int, bit uint32) {
	for i, v := range e.transpose512(off) {
		lo, hi := ZMM(), ZMM()
		if shift == 0 {
			VPANDD(e.k(mask), v, lo)
		} else {
			VPSLLD(U8(shift), v, lo)
			VPANDD(e.k(mask), lo, lo)
		}
		VPSRLD(U8(4-shift), v, hi)
		VPANDD(e.k(mask), hi, hi)
		if qh != nil {
			fifth(e, lo, *qh, i, bit)
			fifth(e, hi, *qh, 4+i, bit)
		}
		e.vec(0, i, lo)
		e.vec(0, 4+i, hi)
		e.tick()
	}
}

// fifth sets bit in byte j of v where bit 4*g+j of qh is set.
func fifth(e *env, v, qh VecVirtual, g int, bit uint32) {
	t, k := ZMM(), K()
	VPSHUFB(spread().Offset(64*(g/2)), qh, t) // byte g/2 of the dword, four times
	VPTESTMB(e.k([]uint32{bits0, bits1}[g%2]), t, k)
	VPADDB(e.k(bit), v, k, v)
}

var spreadData *Mem

// spread holds four shuffles: byte i of every dword, four times.
func spread() Mem {
	if spreadData == nil {
		m := GLOBL("spread", RODATA|NOPTR)
		for i := range 4 {
			for b := range 64 {
				DATA(64*i+b, U8(b%16&^3+i))
			}
		}
		spreadData = &m
	}
	return *spreadData
}

func emitQ50(e *env, c int) {
	e.begin(0)
	qh := e.gather(2)
	nibbles(e, 6, &qh, m78, 3, m80)
	d := e.low(e.gather(0))
	VMULPS_BCST(dword(eighth), d, d)
	e.scale(0, d)
	e.end(0)
}

func emitQ41(e *env, c int) {
	e.begin(0)
	nibbles(e, 4, nil, m0f, 0, 0)
	d := e.gather(0)
	e.scale(0, e.low(d))
	e.min(0, e.high(d))
	e.end(0)
}

func emitQ51(e *env, c int) {
	e.begin(0)
	qh := e.gather(4)
	nibbles(e, 8, &qh, m0f, 0, m10)
	d := e.gather(0)
	e.scale(0, e.low(d))
	e.min(0, e.high(d))
	e.end(0)
}

// lookup emits 16 bytes of nibbles at off through a table.
func lookup(e *env, off int, t *[16]byte) {
	for i, v := range e.transpose512(off) {
		lo := ZMM()
		VPANDD(e.k(m0f), v, lo)
		VPSHUFB(lo, e.t[t], lo)
		e.vec(0, i, lo)
		VPSRLD(U8(4), v, v)
		VPANDD(e.k(m0f), v, v)
		VPSHUFB(v, e.t[t], v)
		e.vec(0, 4+i, v)
		e.tick()
	}
}

func emitIQ4NL(e *env, c int) {
	e.begin(0)
	lookup(e, 2, &iq4)
	e.scale(0, e.low(e.gather(0)))
	e.end(0)
}

func headerIQ4XS(e *env) {
	h := e.transpose512(0)
	d, hi := e.low(h[0]), ZMM()
	VPSRLD(U8(16), h[0], hi)
	for j := range 8 {
		lo, t := ZMM(), ZMM()
		if j == 0 {
			VPANDD_BCST(dword(15), h[1], lo)
		} else {
			VPSRLD(U8(4*j), h[1], lo)
			VPANDD_BCST(dword(15), lo, lo)
		}
		switch n := 4 - 2*j; {
		case n > 0:
			VPSLLD(U8(n), hi, t)
		case n < 0:
			VPSRLD(U8(-n), hi, t)
		default:
			VMOVDQA64(hi, t)
		}
		VPTERNLOGD_BCST(U8(orAnd), dword(0x30), t, lo)
		VPSUBD_BCST(dword(32), lo, lo)
		VCVTDQ2PS(lo, lo)
		VMULPS(d, lo, lo)
		VMOVUPS(lo, mem(e.p, panelScale+64*j))
	}
}

func emitIQ4XS(e *env, c int) {
	e.begin(0)
	lookup(e, 8, &iq4)
	e.end(0)
}

// emitMXFP4: the scale is 2^(e-128); for e below 2 that is a subnormal number.
func emitMXFP4(e *env, c int) {
	e.begin(0)
	lookup(e, 1, &fp4)
	x := e.gather(0)
	VPANDD_BCST(dword(mff), x, x)
	k, d := K(), ZMM()
	VPCMPUD_BCST(U8(1), dword(2), x, k)
	VPSUBD_BCST(dword(1), x, d)
	VPSLLD(U8(23), d, d)
	VPSLLVD(x, e.k(0x00200000), k, d)
	VMULPS_BCST(dword(eighth), d, d)
	e.scale(0, d)
	e.end(0)
}

// emitNVFP4: the scale is half of an unsigned E4M3 number, halved again because codes are
// doubled. Its bits move under the exponent of a float32; subnormal numbers are converted,
// since float32 subnormals are slow, and 0x7f counts as zero.
func emitNVFP4(e *env, c int) {
	d := e.gather(0)
	for s := range 4 {
		e.begin(s)
		b, small, nan, z := byteOf(e, d, s), K(), K(), ZMM()
		VPCMPUD_BCST(U8(4), dword(m7f), b, nan) // not equal
		VPANDD_BCST(dword(m7f), b, b)
		VPCMPUD_BCST(U8(1), dword(8), b, small)
		VPSLLD(U8(20), b, z)
		VPADDD_BCST(dword(exp118), z, z)
		VCVTDQ2PS(b, b)
		VMULPS_BCST(dword(two11), b, small, z)
		VMOVDQU32_Z(z, nan, z)
		e.scale(s, z)
	}
	quads(e, 4, func(g int, v VecVirtual) {
		lo := ZMM()
		VPANDD(e.k(m0f), v, lo)
		VPSHUFB(lo, e.t[&nv4], lo)
		e.vec(g/2, g%2, lo)
		VPSRLD(U8(4), v, v)
		VPANDD(e.k(m0f), v, v)
		VPSHUFB(v, e.t[&nv4], v)
		e.vec(g/2, 2+g%2, v)
		e.tick()
	})
	for s := range 4 {
		e.end(s)
	}
}

func headerQ2K(e *env) {
	h := e.gather(80)
	d, dm := e.low(h), e.high(h)
	VPXORD_BCST(dword(signBit), dm, dm)
	bd, bdm := big23(d), big23(dm)
	for i, v := range e.transpose512(0) {
		sc := ZMM()
		VPANDD_BCST(dword(m0f), v, sc)
		VPSRLD(U8(4), v, v)
		VPANDD_BCST(dword(m0f), v, v)
		for j := range 4 {
			e.put(sc, j, d, bd, panelScale+64*(4*i+j))
			e.put(v, j, dm, bdm, panelMin+64*(4*i+j))
		}
	}
}

// order16 is the order of the sub-blocks in half a block, as in format.go of the package.
var order16 = []int{0, 4, 1, 5, 2, 6, 3, 7}

func emitQ2K(e *env, c int) {
	q := e.transpose32(16 + 32*c)
	for _, s := range order16 {
		e.tick()
		e.begin(s)
		for i := range 4 {
			z := ZMM()
			shift(e, -2*(s/2), q[s%2*4+i], z)
			VPANDD(e.k(m03), z, z)
			e.vec(s, i, z)
		}
		e.end(s)
	}
}

func headerQ3K(e *env) {
	a, b, c := e.gather(96), e.gather(100), e.gather(104)
	d := e.high(e.gather(106)) // two bytes early: the block ends at 110
	VMULPS_BCST(dword(eighth), d, d)
	scalesQ3K(e, a, b, c, d)
}

// emitQ3K: codes are eight times q (0 to 7), so that the offset is 32.
func emitQ3K(e *env, c int) {
	if c == 0 {
		e.keep = e.transpose32(0)
	}
	q := e.transpose32(32 + 32*c)
	for _, s := range order16 {
		e.tick()
		e.begin(s)
		for i := range 4 {
			z, h := ZMM(), ZMM()
			shift(e, 3-2*(s/2), q[s%2*4+i], z)
			VPANDD(e.k(m18), z, z)
			shift(e, 5-4*c-s/2, e.keep[s%2*4+i], h)
			VPTERNLOGD(U8(orAnd), e.k(m20), h, z)
			e.vec(s, i, z)
		}
		e.end(s)
	}
}
