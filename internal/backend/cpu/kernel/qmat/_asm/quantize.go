package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const (
	absMask = 0x7fffffff
	c127    = 0x42fe0000 // 127
	infBits = 0x7f800000
	tiny    = 0x0d800000 // 2^-100
)

// quantDoc documents both levels.
func quantDoc(name, needs string) {
	Doc(name+" rounds blocks of 256 values and returns how many it did: it stops",
		"in front of a block with a value that is not finite. "+needs, "Reference: quantizeBlock in acts.go.")
	Pragma("noescape")
}

// scales turns the maxima of eight groups into the inverse scales (at inv) and the scales
// (returned, and at xs). It jumps to stop when one is not finite.
func scales(m VecVirtual, out Register, stop string) VecVirtual {
	inf, lo, bad := YMM(), YMM(), GP32()
	VPBROADCASTD(dword(infBits-1), inf)
	VPCMPGTD(inf, m, inf) // the bits are not negative, so a signed comparison will do
	VPMOVMSKB(inf, bad)
	TESTL(bad, bad)
	JNE(LabelRef(stop))
	VPBROADCASTD(dword(tiny-1), lo)
	VPCMPGTD(lo, m, lo) // groups that do not count as zero
	n, inv, xs := YMM(), YMM(), YMM()
	VBROADCASTSS(dword(c127), n)
	VDIVPS(m, n, inv)
	VDIVPS(n, m, xs)
	VPAND(lo, inv, inv)
	VPAND(lo, xs, xs)
	VMOVUPS(inv, mem(out, recMS32)) // a place that is written last
	VMOVUPS(xs, mem(out, recXS))
	return xs
}

// maxima reduces eight vectors of eight to one: lane j is the maximum of v[j].
func maxima(v []VecVirtual) VecVirtual {
	fold := func(a, b VecVirtual, lo, hi func(...Op)) VecVirtual {
		l, h := YMM(), YMM()
		lo(b, a, l)
		hi(b, a, h)
		VPMAXUD(h, l, l)
		return l
	}
	dq := func(a, b VecVirtual) VecVirtual {
		return fold(a, b, func(o ...Op) { VPUNPCKLDQ(o[0], o[1], o[2]) }, func(o ...Op) { VPUNPCKHDQ(o[0], o[1], o[2]) })
	}
	qdq := func(a, b VecVirtual) VecVirtual {
		return fold(a, b, func(o ...Op) { VPUNPCKLQDQ(o[0], o[1], o[2]) }, func(o ...Op) { VPUNPCKHQDQ(o[0], o[1], o[2]) })
	}
	x := qdq(dq(v[0], v[1]), dq(v[2], v[3]))
	y := qdq(dq(v[4], v[5]), dq(v[6], v[7]))
	return fold(x, y, func(o ...Op) { VPERM2I128(U8(0x20), o[0], o[1], o[2]) },
		func(o ...Op) { VPERM2I128(U8(0x31), o[0], o[1], o[2]) })
}

func quantize512() {
	const name = "quantize512"
	TEXT(name, NOSPLIT, "func(out *byte, x *float32, blocks int) int")
	quantDoc(name, "Needs AVX-512 F, BW and VL.")
	out := Load(Param("out"), GP64())
	x := Load(Param("x"), GP64())
	n := Load(Param("blocks"), GP64())
	abs, mg, flip := bcast(absMask), bcast(magic), bcast(m80)
	zero := ZMM()
	VPXORD(mg, mg, zero)
	order, twice := ZMM(), ZMM()
	VMOVDQU64(sumOrder(), order)
	VMOVDQU64(sumOrder().Offset(64), twice)
	off := bcast(2048)
	Label("quantize512_loop")
	CMPQ(n, Imm(0))
	JE(LabelRef("quantize512_stop"))
	var v []VecVirtual
	for j := range 8 {
		a, b := ZMM(), ZMM()
		VPANDD(mem(x, 128*j), abs, a)
		VPANDD(mem(x, 128*j+64), abs, b)
		VPMAXUD(b, a, a)
		VEXTRACTI64X4(U8(1), a, b.AsY())
		m := YMM()
		VPMAXUD(b.AsY(), a.AsY(), m)
		v = append(v, m)
	}
	xs := scales(maxima(v), out, "quantize512_stop")
	for j := range 16 {
		q, inv := ZMM(), ZMM()
		VBROADCASTSS(mem(out, recMS32+4*(j/2)), inv)
		VMULPS(mem(x, 64*j), inv, q)
		VCVTPS2DQ(q, q)
		VPMOVSDB(q, mem(out, recQ+16*j))
	}
	// Sums of 8 as unsigned bytes, then of 16 in the order of the values.
	sad := zs(4)
	for i := range sad {
		VPXORD(mem(out, recQ+64*i), flip, sad[i])
		VPSADBW(zero, sad[i], sad[i])
	}
	half := zs(2)
	for i := range half {
		h := ZMM()
		VPUNPCKHQDQ(sad[2*i+1], sad[2*i], h)
		VPUNPCKLQDQ(sad[2*i+1], sad[2*i], half[i])
		VPADDQ(h, half[i], half[i])
		VPMOVQD(half[i], half[i].AsY())
	}
	s16 := ZMM()
	VINSERTI64X4(U8(1), half[1].AsY(), half[0], s16)
	VPERMD(s16, order, s16)
	VPSUBD(off, s16, s16)
	t, f := ZMM(), ZMM()
	VPSLLD(U8(5), s16, t)
	VPSUBD(t, mg, t)
	VMOVDQU64(t, mem(out, recInit16))
	VPERMPS(xs.AsZ(), twice, t)
	VCVTDQ2PS(s16, f)
	VMULPS(t, f, f)
	VMOVUPS(f, mem(out, recMS16))
	VPSRLQ(U8(32), s16, t)
	VPADDD(t, s16, s16)
	s32, u := YMM(), YMM()
	VPMOVQD(s16, s32)
	VPSLLD(U8(7), s32, u)
	VPSUBD(u, mg.AsY(), u)
	VMOVDQU(u, mem(out, recInit32))
	VCVTDQ2PS(s32, s32)
	VMULPS(xs, s32, s32)
	VMOVUPS(s32, mem(out, recMS32))
	ADDQ(I32(recSize), out)
	ADDQ(I32(1024), x)
	DECQ(n)
	JMP(LabelRef("quantize512_loop"))
	Label("quantize512_stop")
	VZEROUPPER()
	done := Load(Param("blocks"), GP64())
	SUBQ(n, done)
	Store(done, ReturnIndex(0))
	RET()
}

var sumOrderData *Mem

// sumOrder holds three permutations: the sums of 16 as they come out of the byte sums,
// every scale twice, and the bytes of 32 values after packing.
func sumOrder() Mem {
	if sumOrderData == nil {
		m := GLOBL("sumOrder", RODATA|NOPTR)
		for i, v := range []int{0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15} {
			DATA(4*i, U32(v))
		}
		for i := range 16 {
			DATA(64+4*i, U32(i/2))
		}
		for i, v := range []int{0, 4, 1, 5, 2, 6, 3, 7} {
			DATA(128+4*i, U32(v))
		}
		sumOrderData = &m
	}
	return *sumOrderData
}

func quantize2() {
	const name = "quantize2"
	TEXT(name, NOSPLIT, "func(out *byte, x *float32, blocks int) int")
	quantDoc(name, "Needs AVX2.")
	out := Load(Param("out"), GP64())
	x := Load(Param("x"), GP64())
	n := Load(Param("blocks"), GP64())
	Label(name + "_loop")
	CMPQ(n, Imm(0))
	JE(LabelRef(name + "_stop"))
	var v []VecVirtual
	for j := range 8 {
		m, t := YMM(), YMM()
		VMOVDQU(wide(absMask), m)
		for i := range 4 {
			if i == 0 {
				VPAND(mem(x, 128*j), m, t)
				continue
			}
			u := YMM()
			VPAND(mem(x, 128*j+32*i), m, u)
			VPMAXUD(u, t, t)
		}
		v = append(v, t)
	}
	xs := scales(maxima(v), out, name+"_stop")
	for j := range 8 {
		inv, q := YMM(), ys(4)
		VBROADCASTSS(mem(out, recMS32+4*j), inv)
		for i := range q {
			VMULPS(mem(x, 128*j+32*i), inv, q[i])
			VCVTPS2DQ(q[i], q[i])
		}
		VPACKSSDW(q[1], q[0], q[0])
		VPACKSSDW(q[3], q[2], q[2])
		VPACKSSWB(q[2], q[0], q[0])
		order := YMM()
		VMOVDQU(sumOrder().Offset(128), order)
		VPERMD(q[0], order, q[0])
		VMOVDQU(q[0], mem(out, recQ+32*j))
		// Sums of 8 as unsigned bytes; sums of 16 wait in init16.
		s, z := YMM(), YMM()
		VPXOR(wide(m80), q[0], s)
		VPXOR(q[1], q[1], z)
		VPSADBW(z, s, s)
		VPSHUFD(U8(0x4e), s, z)
		VPADDD(z, s, s)
		VMOVD(s.AsX(), mem(out, recInit16+8*j))
		VEXTRACTI128(U8(1), s, z.AsX())
		VMOVD(z.AsX(), mem(out, recInit16+8*j+4))
	}
	s := ys(2)
	for i := range s {
		idx, t, f := YMM(), YMM(), YMM()
		VMOVDQU(mem(out, recInit16+32*i), s[i])
		VPSUBD(wide(2048), s[i], s[i])
		VPSLLD(U8(5), s[i], t)
		VMOVDQU(wide(magic), idx)
		VPSUBD(t, idx, t)
		VMOVDQU(t, mem(out, recInit16+32*i))
		VMOVDQU(sumOrder().Offset(64+32*i), idx)
		VPERMPS(xs, idx, t)
		VCVTDQ2PS(s[i], f)
		VMULPS(t, f, f)
		VMOVUPS(f, mem(out, recMS16+32*i))
	}
	VPHADDD(s[1], s[0], s[0])
	VPERMQ(U8(0xd8), s[0], s[0])
	t, mg := YMM(), YMM()
	VPSLLD(U8(7), s[0], t)
	VMOVDQU(wide(magic), mg)
	VPSUBD(t, mg, t)
	VMOVDQU(t, mem(out, recInit32))
	VCVTDQ2PS(s[0], s[0])
	VMULPS(xs, s[0], s[0])
	VMOVUPS(s[0], mem(out, recMS32))
	ADDQ(I32(recSize), out)
	ADDQ(I32(1024), x)
	DECQ(n)
	JMP(LabelRef(name + "_loop"))
	Label(name + "_stop")
	VZEROUPPER()
	done := Load(Param("blocks"), GP64())
	SUBQ(n, done)
	Store(done, ReturnIndex(0))
	RET()
}
