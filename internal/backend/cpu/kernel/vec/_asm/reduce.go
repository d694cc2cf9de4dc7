package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func reductions(l level) {
	dot(l)
	sumSquares(l)
	expSum(l)
	weightSum(l)
	maximum(l)
	indexOf(l)
}

// vectors emits a loop over full vectors, then the tail under a mask (nil in
// the loop). off is the byte offset of the vector.
func (l level) vectors(name string, n, off Register, step func(m *mask)) {
	XORQ(off, off)
	Label(name + "_loop")
	CMPQ(n, U32(uint32(l.lanes)))
	JL(LabelRef(name + "_tail"))
	step(nil)
	ADDQ(U32(uint32(l.bytes())), off)
	SUBQ(U32(uint32(l.lanes)), n)
	JMP(LabelRef(name + "_loop"))
	Label(name + "_tail")
	TESTQ(n, n)
	JZ(LabelRef(name + "_done"))
	m := l.mask(n)
	step(&m)
	Label(name + "_done")
}

func loadMaybe(m *mask, from Mem, to VecVirtual) {
	if m == nil {
		VMOVUPS(from, to)
	} else {
		m.load(from, to)
	}
}

// dot sums in four vectors; the vectors after the last group of four and the
// tail go to the first.
func dot(l level) {
	name := l.text("dot", "func(a, b []float32) float32", "returns the sum of a*b.")
	a := Load(Param("a").Base(), GP64())
	b := Load(Param("b").Base(), GP64())
	n := Load(Param("a").Len(), GP64())
	acc := l.regs(4)
	for _, v := range acc {
		zero(v)
	}
	Label(name + "_four")
	CMPQ(n, U32(uint32(4*l.lanes)))
	JL(LabelRef(name + "_single"))
	for i, v := range acc {
		x := l.reg()
		VMOVUPS(Mem{Base: a, Disp: i * l.bytes()}, x)
		VFMADD231PS(Mem{Base: b, Disp: i * l.bytes()}, x, v)
	}
	ADDQ(U32(uint32(4*l.bytes())), a)
	ADDQ(U32(uint32(4*l.bytes())), b)
	SUBQ(U32(uint32(4*l.lanes)), n)
	JMP(LabelRef(name + "_four"))
	Label(name + "_single")
	off := GP64()
	l.vectors(name, n, off, func(m *mask) {
		x, y := l.reg(), l.reg()
		loadMaybe(m, Mem{Base: a, Index: off, Scale: 1}, x)
		loadMaybe(m, Mem{Base: b, Index: off, Scale: 1}, y)
		VFMADD231PS(x, y, acc[0])
	})
	VADDPS(acc[1], acc[0], acc[0])
	VADDPS(acc[3], acc[2], acc[2])
	VADDPS(acc[2], acc[0], acc[0])
	r := l.sum(acc[0])
	Store(r.AsX(), ReturnIndex(0))
	end()
}

// widen converts the lower and upper half of x to float64.
func (l level) widen(x VecVirtual) (lo, hi VecVirtual) {
	lo, hi = l.reg(), l.reg()
	if l.wide() {
		VEXTRACTF64X4(U8(1), x, hi.AsY())
		VCVTPS2PD(x.AsY(), lo)
		VCVTPS2PD(hi.AsY(), hi)
	} else {
		VEXTRACTF128(U8(1), x, hi.AsX())
		VCVTPS2PD(x.AsX(), lo)
		VCVTPS2PD(hi.AsX(), hi)
	}
	return lo, hi
}

func sumSquares(l level) {
	name := l.text("sumSquares", "func(x []float32) float64", "returns the sum of x*x in float64.")
	p := Load(Param("x").Base(), GP64())
	n := Load(Param("x").Len(), GP64())
	acc := l.regs(2)
	zero(acc[0])
	zero(acc[1])
	off := GP64()
	l.vectors(name, n, off, func(m *mask) {
		x := l.reg()
		loadMaybe(m, Mem{Base: p, Index: off, Scale: 1}, x)
		lo, hi := l.widen(x)
		VFMADD231PD(lo, lo, acc[0])
		VFMADD231PD(hi, hi, acc[1])
	})
	VADDPD(acc[1], acc[0], acc[0])
	r := l.sum64(acc[0])
	Store(r.AsX(), ReturnIndex(0))
	end()
}

func expSum(l level) {
	name := l.text("expSum", "func(x []float32, m float32) float64",
		"replaces x by e^(x-m) and returns the sum in float64.")
	p := Load(Param("x").Base(), GP64())
	n := Load(Param("x").Len(), GP64())
	top := l.reg()
	a, err := Param("m").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(a.Addr, top)
	acc := l.regs(2)
	zero(acc[0])
	zero(acc[1])
	off := GP64()
	l.vectors(name, n, off, func(m *mask) {
		x := l.reg()
		at := Mem{Base: p, Index: off, Scale: 1}
		loadMaybe(m, at, x)
		VSUBPS(top, x, x)
		e := l.exp(x)
		if m == nil {
			VMOVUPS(e, at)
		} else {
			m.store(e, at)
			m.clear(e)
		}
		lo, hi := l.widen(e)
		VADDPD(lo, acc[0], acc[0])
		VADDPD(hi, acc[1], acc[1])
	})
	VADDPD(acc[1], acc[0], acc[0])
	r := l.sum64(acc[0])
	Store(r.AsX(), ReturnIndex(0))
	end()
}

// weightSum follows weight.Exp step by step, without fused operations, and adds whole units, so its bits are those of
// weight.Sum.
func weightSum(l level) {
	name := l.text("weightSum", "func(x []float32, top float32) uint64", "is weight.Sum.")
	p := Load(Param("x").Base(), GP64())
	n := Load(Param("x").Len(), GP64())
	top := l.reg()
	a, err := Param("top").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(a.Addr, top)
	lookUp := l.weightTable()
	acc := l.regs(2)
	zero(acc[0])
	zero(acc[1])
	off := GP64()
	l.vectors(name, n, off, func(m *mask) {
		x, t, idx, r, w := l.reg(), l.reg(), l.reg(), l.reg(), l.reg()
		loadMaybe(m, Mem{Base: p, Index: off, Scale: 1}, x)
		VSUBPS(top, x, x)
		VMULPS(c("weightScale"), x, t)
		VSUBPS(c("exp0"), t, t) // 0.5
		VCVTTPS2DQ(t, idx)
		VCVTDQ2PS(idx, t)
		VMULPS(c("weightHi"), t, w)
		VSUBPS(w, x, r)
		VMULPS(c("weightLo"), t, w)
		VSUBPS(w, r, r)
		VPSRAD(U8(6), idx, w)
		VPADDD(c("bias"), w, w)
		VPSLLD(U8(23), w, w)
		VMULPS(lookUp(idx), w, w)
		VMULPS(r, r, t)
		VMULPS(c("exp0"), t, t)
		VADDPS(c("one"), r, r)
		VADDPS(t, r, r)
		VMULPS(r, w, w)
		if l.wide() {
			k := K()
			VCMPPS(U8(0x1e), c("weightLeast"), x, k) // greater than; false for NaN
			if m != nil {
				KANDW(m.k, k, k)
			}
			VMOVUPS_Z(w, k, w)
			VMULPS(c("unit44"), w, w)
			VEXTRACTF64X4(U8(1), w, t.AsY())
			VCVTTPS2QQ(w.AsY(), x)
			VCVTTPS2QQ(t.AsY(), r)
			VPADDQ(x, acc[0], acc[0])
			VPADDQ(r, acc[1], acc[1])
			return
		}
		VCMPPS(U8(0x1e), c("weightLeast"), x, t)
		VANDPS(t, w, w)
		if m != nil {
			m.clear(w)
		}
		// The upper 22 of the 44 bits, then the lower; each in lanes of 64.
		VMULPS(c("unit22"), w, w)
		VCVTTPS2DQ(w, t)
		VCVTDQ2PS(t, r)
		VSUBPS(r, w, w)
		VMULPS(c("unit22"), w, w)
		VCVTTPS2DQ(w, w)
		for i, v := range []VecVirtual{t, w} {
			high := l.reg()
			VPSRLQ(U8(32), v, high)
			VPSLLQ(U8(32), v, v)
			VPSRLQ(U8(32), v, v)
			VPADDQ(high, acc[i], acc[i])
			VPADDQ(v, acc[i], acc[i])
		}
	})
	if !l.wide() {
		VPSLLQ(U8(22), acc[0], acc[0])
	}
	VPADDQ(acc[1], acc[0], acc[0])
	v, t := acc[0], l.reg()
	if l.wide() {
		VEXTRACTI64X4(U8(1), v, t.AsY())
		VPADDQ(t.AsY(), v.AsY(), v.AsY())
	}
	l.upper(v, t)
	VPADDQ(t.AsX(), v.AsX(), v.AsX())
	VPSRLDQ(U8(8), v.AsX(), t.AsX())
	VPADDQ(t.AsX(), v.AsX(), v.AsX())
	sum := GP64()
	VMOVQ(v.AsX(), sum)
	Store(sum, ReturnIndex(0))
	end()
}

// weightTable returns a function that looks numbers, modulo 64, up in the table of weight.Exp.
func (l level) weightTable() func(idx VecVirtual) VecVirtual {
	if l.wide() {
		part := l.regs(4)
		for i, v := range part {
			VMOVUPS(weightTable.Offset(64*i), v)
		}
		return func(idx VecVirtual) VecVirtual {
			low, high, bit, k := l.reg(), l.reg(), l.reg(), K()
			VMOVAPS(part[0], low)
			VPERMT2PS(part[1], idx, low)
			VMOVAPS(part[2], high)
			VPERMT2PS(part[3], idx, high)
			VPSLLD(U8(26), idx, bit) // bit 5 becomes the sign
			VPMOVD2M(bit, k)
			VMOVAPS(high, k, low)
			return low
		}
	}
	table := GP64()
	LEAQ(weightTable, table)
	return func(idx VecVirtual) VecVirtual {
		at, all, v := l.reg(), l.reg(), l.reg()
		VPAND(c("sixtyThree"), idx, at)
		VPCMPEQD(all, all, all)
		VGATHERDPS(all, Mem{Base: table, Index: at, Scale: 4}, v)
		return v
	}
}

// maximum keeps the accumulator as second source: it survives when x is NaN.
func maximum(l level) {
	name := l.text("maximum", "func(x []float32) float32", "returns the largest value that is not NaN, or -Inf.")
	p := Load(Param("x").Base(), GP64())
	n := Load(Param("x").Len(), GP64())
	acc := l.regs(4)
	for _, v := range acc {
		VMOVUPS(c("minusInf"), v)
	}
	Label(name + "_four")
	CMPQ(n, U32(uint32(4*l.lanes)))
	JL(LabelRef(name + "_single"))
	for i, v := range acc {
		x := l.reg()
		VMOVUPS(Mem{Base: p, Disp: i * l.bytes()}, x)
		VMAXPS(v, x, v)
	}
	ADDQ(U32(uint32(4*l.bytes())), p)
	SUBQ(U32(uint32(4*l.lanes)), n)
	JMP(LabelRef(name + "_four"))
	Label(name + "_single")
	off := GP64()
	l.vectors(name, n, off, func(m *mask) {
		x := l.reg()
		loadMaybe(m, Mem{Base: p, Index: off, Scale: 1}, x)
		switch {
		case m == nil:
			VMAXPS(acc[0], x, acc[0])
		case l.wide():
			VMAXPS(acc[0], x, m.k, acc[0])
		default:
			t := l.reg()
			VMOVUPS(c("minusInf"), t)
			VBLENDVPS(m.v, x, t, x)
			VMAXPS(acc[0], x, acc[0])
		}
	})
	VMAXPS(acc[1], acc[0], acc[0])
	VMAXPS(acc[3], acc[2], acc[2])
	VMAXPS(acc[2], acc[0], acc[0])
	v, t := acc[0], l.reg()
	if l.wide() {
		VEXTRACTF64X4(U8(1), v, t.AsY())
		VMAXPS(t.AsY(), v.AsY(), v.AsY())
	}
	l.upper(v, t)
	VMAXPS(t.AsX(), v.AsX(), v.AsX())
	VPERMILPS(U8(0x4e), v.AsX(), t.AsX())
	VMAXPS(t.AsX(), v.AsX(), v.AsX())
	VPERMILPS(U8(0xb1), v.AsX(), t.AsX())
	VMAXPS(t.AsX(), v.AsX(), v.AsX())
	Store(v.AsX(), ReturnIndex(0))
	end()
}

func indexOf(l level) {
	name := l.text("indexOf", "func(x []float32, v float32) int", "returns the first index of v, or -1.")
	p := Load(Param("x").Base(), GP64())
	n := Load(Param("x").Len(), GP64())
	want := l.reg()
	a, err := Param("v").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(a.Addr, want)
	off, bits := GP64(), GP64()
	l.vectors(name, n, off, func(m *mask) {
		at := Mem{Base: p, Index: off, Scale: 1}
		x := l.reg()
		loadMaybe(m, at, x)
		if l.wide() {
			k := K()
			if m == nil {
				VCMPPS(U8(0), x, want, k)
			} else {
				VCMPPS(U8(0), x, want, m.k, k)
			}
			KMOVW(k, bits.As32())
		} else {
			VCMPPS(U8(0), x, want, x)
			if m != nil {
				VANDPS(m.v, x, x)
			}
			VMOVMSKPS(x, bits.As32())
		}
		TESTL(bits.As32(), bits.As32())
		JNZ(LabelRef(name + "_found"))
	})
	r := GP64()
	MOVQ(I32(-1), r)
	Store(r, ReturnIndex(0))
	end()
	Label(name + "_found")
	BSFL(bits.As32(), bits.As32())
	SHRQ(U8(2), off)
	ADDQ(bits, off)
	Store(off, ReturnIndex(0))
	end()
}
