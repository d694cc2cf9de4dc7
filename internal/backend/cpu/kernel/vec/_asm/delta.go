package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// deltaLanes is the width of a tile of the delta rule's state: [DK][deltaLanes], one lane per
// value. Nothing is summed across lanes.
const deltaLanes = 32

// Byte offsets of type deltaToken.
const (
	tokK     = 0
	tokQ     = 24
	tokV     = 48
	tokD     = 72
	tokO     = 96
	tokG     = 120
	tokBeta  = 124
	tokScale = 128
	tokQK    = 132
	tokSize  = 136
)

// flushDenormals makes arithmetic treat denormals as zero until the returned function undoes it. A
// state that decays for long is full of them, and each one costs a hundred cycles.
func flushDenormals() (restore func()) {
	const flushToZero, denormalsAreZero = 1 << 15, 1 << 6
	old, now := AllocLocal(4), AllocLocal(4)
	r := GP32()
	STMXCSR(old)
	MOVL(old, r)
	ORL(U32(flushToZero|denormalsAreZero), r)
	MOVL(r, now)
	LDMXCSR(now)
	return func() { LDMXCSR(old) }
}

// delta emits the gated delta rule on a tile of the state: pending tokens, which have no query, then new
// ones. For every new token it needs two sums over the state before it, s.k and s.q; they are taken
// in the pass that applies the token before, so each token costs one pass over the tile:
//
//	d = beta*(v - g*(s.k)); o = scale*(g*(s.q) + d*(q.k)); s = s*g + d*k
//
// Pending tokens change src in place, new ones write dst, which may be src; the last new one is
// applied only if last is set. off is the byte offset of the values in v, d and o. Four vectors of
// values would not fit into the registers of AVX2, which therefore takes half a tile at a time.
func delta(l level) {
	name := l.text("deltaChain", "func(tok *byte, n int, src, dst *float32, dk, off int, last bool)",
		"runs n tokens on one tile of the state, or on half of it. n is at least 1, dk a multiple of 4.")
	d := &deltaKernel{l: l, name: name, n: 2, parts: 4}
	if !l.wide() {
		d.parts = 2
	}
	d.tok, d.src, d.dst, d.dk, d.off = GP64(), GP64(), GP64(), GP64(), GP64()
	left := GP64()
	Load(Param("tok"), d.tok)
	Load(Param("n"), left)
	Load(Param("src"), d.src)
	Load(Param("dst"), d.dst)
	Load(Param("dk"), d.dk)
	Load(Param("off"), d.off)
	restore := flushDenormals()

	CMPQ(Mem{Base: d.tok, Disp: tokQ}, U8(0))
	JE(LabelRef(name + "_next"))
	d.pass("first", false, true, 0)
	d.finish(0)

	Label(name + "_next")
	DECQ(left)
	JZ(LabelRef(name + "_last"))
	CMPQ(Mem{Base: d.tok, Disp: tokSize + tokQ}, U8(0))
	JE(LabelRef(name + "_replay"))
	d.pass("both", true, true, tokSize)
	d.finish(tokSize)
	ADDQ(U32(tokSize), d.tok)
	JMP(LabelRef(name + "_next"))
	Label(name + "_replay")
	d.pass("update", true, false, 0)
	ADDQ(U32(tokSize), d.tok)
	JMP(LabelRef(name + "_next"))

	Label(name + "_last")
	CMPQ(Mem{Base: d.tok, Disp: tokQ}, U8(0))
	JE(LabelRef(name + "_apply"))
	lastFlag, _ := Param("last").Resolve()
	CMPB(lastFlag.Addr, U8(0))
	JE(LabelRef(name + "_done"))
	Label(name + "_apply")
	d.pass("final", true, false, 0)
	Label(name + "_done")
	restore()
	end()
}

type deltaKernel struct {
	l                      level
	name                   string
	n                      int // vectors of values
	parts                  int // interleaved sums, which hide the latency of additions
	tok, src, dst, dk, off Register
	sumK, sumQ             [][]VecVirtual
}

// pass goes through the tile once: it applies the current token, takes the sums for the token at
// tok+next, or both.
func (d *deltaKernel) pass(label string, update, sums bool, next int) {
	l := d.l
	label = d.name + "_" + label
	s, e, cnt := GP64(), GP64(), GP64()
	k, k2, q2 := GP64(), GP64(), GP64()
	MOVQ(d.src, s)
	MOVQ(d.dk, cnt)
	g, dv := l.reg(), l.regs(d.n)
	if update {
		// A pending token changes the tile in place; a new one moves it to dst.
		MOVQ(d.src, e)
		CMPQ(Mem{Base: d.tok, Disp: tokQ}, U8(0))
		CMOVQNE(d.dst, e)
		MOVQ(e, d.src)
		MOVQ(Mem{Base: d.tok, Disp: tokK}, k)
		VBROADCASTSS(Mem{Base: d.tok, Disp: tokG}, g)
		dp := GP64()
		MOVQ(Mem{Base: d.tok, Disp: tokD}, dp)
		for j := range dv {
			VMOVUPS(Mem{Base: dp, Index: d.off, Scale: 1, Disp: j * l.bytes()}, dv[j])
		}
	}
	if sums {
		MOVQ(Mem{Base: d.tok, Disp: next + tokK}, k2)
		MOVQ(Mem{Base: d.tok, Disp: next + tokQ}, q2)
		d.sumK, d.sumQ = d.zeros(), d.zeros()
	}
	Label(label)
	for i := range 4 {
		row := func(base Register, j int) Mem { return Mem{Base: base, Disp: 4*deltaLanes*i + j*l.bytes()} }
		t := l.regs(d.n)
		if update {
			b := l.reg()
			VBROADCASTSS(Mem{Base: k, Disp: 4 * i}, b)
			for j := range t {
				VMULPS(row(s, j), g, t[j])
				VFMADD231PS(dv[j], b, t[j])
				VMOVUPS(t[j], row(e, j))
			}
		} else {
			for j := range t {
				VMOVUPS(row(s, j), t[j])
			}
		}
		if sums {
			for _, x := range []struct {
				p   Register
				sum [][]VecVirtual
			}{{k2, d.sumK}, {q2, d.sumQ}} {
				b := l.reg()
				VBROADCASTSS(Mem{Base: x.p, Disp: 4 * i}, b)
				for j := range t {
					VFMADD231PS(t[j], b, x.sum[i%d.parts][j])
				}
			}
		}
	}
	ADDQ(U32(16*deltaLanes), s)
	if update {
		ADDQ(U8(16), k)
		ADDQ(U32(16*deltaLanes), e)
	}
	if sums {
		ADDQ(U8(16), k2)
		ADDQ(U8(16), q2)
	}
	SUBQ(U8(4), cnt)
	JNZ(LabelRef(label))
}

// finish computes the update and the output of the token at tok+next from its sums.
func (d *deltaKernel) finish(next int) {
	l := d.l
	at := func(field int) Mem { return Mem{Base: d.tok, Disp: next + field} }
	vp, dp, op := GP64(), GP64(), GP64()
	MOVQ(at(tokV), vp)
	MOVQ(at(tokD), dp)
	MOVQ(at(tokO), op)
	g, c := l.reg(), l.reg()
	VBROADCASTSS(at(tokG), g)
	sk, sq := d.total(d.sumK), d.total(d.sumQ)
	for j := range d.n {
		value := func(p Register) Mem { return Mem{Base: p, Index: d.off, Scale: 1, Disp: j * l.bytes()} }
		t := l.reg()
		VMOVUPS(value(vp), t)
		VFNMADD231PS(g, sk[j], t) // v - g*(s.k)
		VBROADCASTSS(at(tokBeta), c)
		VMULPS(c, t, t)
		VMOVUPS(t, value(dp))
		VMULPS(g, sq[j], sq[j])
		VBROADCASTSS(at(tokQK), c)
		VFMADD231PS(c, t, sq[j])
		VBROADCASTSS(at(tokScale), c)
		VMULPS(c, sq[j], sq[j])
		VMOVUPS(sq[j], value(op))
	}
}

func (d *deltaKernel) zeros() [][]VecVirtual {
	a := make([][]VecVirtual, d.parts)
	for p := range a {
		a[p] = d.l.regs(d.n)
		for j := range a[p] {
			zero(a[p][j])
		}
	}
	return a
}

func (d *deltaKernel) total(a [][]VecVirtual) []VecVirtual {
	for j := range d.n {
		for p := 1; p < d.parts; p *= 2 {
			for i := 0; i+p < d.parts; i += 2 * p {
				VADDPS(a[i+p][j], a[i][j], a[i][j])
			}
		}
	}
	return a[0]
}
