package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// widenHalf emits the load of one vector of 16-bit values as float32, under a
// mask if one is given (AVX-512 only).
func (l level) widenHalf(typ string, from Mem, m *mask, to VecVirtual) {
	switch {
	case typ == "F32":
		loadMaybe(m, from, to)
	case typ == "F16" && m == nil:
		VCVTPH2PS(from, to)
	case typ == "F16":
		VCVTPH2PS_Z(from, m.k, to)
	case m == nil:
		VPMOVZXWD(from, to)
		VPSLLD(U8(16), to, to)
	default:
		VPMOVZXWD_Z(from, m.k, to)
		VPSLLD(U8(16), to, to)
	}
}

func conversions(l level) {
	for _, typ := range []string{"F16", "BF16"} {
		tail := "n is a multiple of 8."
		if l.wide() {
			tail = "n is any number."
		}
		name := l.text("load"+typ, "func(dst *float32, src *byte, n int)", "widens n values; "+tail)
		dst := Load(Param("dst"), GP64())
		src := Load(Param("src"), GP64())
		n := Load(Param("n"), GP64())
		if l.wide() {
			off := GP64() // in bytes of dst
			l.vectors(name, n, off, func(m *mask) {
				v := l.reg()
				l.widenHalf(typ, Mem{Base: src}, m, v)
				ADDQ(U32(uint32(l.bytes()/2)), src)
				if m == nil {
					VMOVUPS(v, Mem{Base: dst, Index: off, Scale: 1})
				} else {
					m.store(v, Mem{Base: dst, Index: off, Scale: 1})
				}
			})
		} else {
			l.blocks(name, n, 8, func() {
				v := l.reg()
				l.widenHalf(typ, Mem{Base: src}, nil, v)
				VMOVUPS(v, Mem{Base: dst})
				ADDQ(U32(16), src)
				ADDQ(U32(32), dst)
			})
		}
		end()
	}

	name := l.text("storeF16", "func(dst *byte, src *float32, n int)",
		"narrows n values, rounding to nearest even; n is a multiple of the lanes.")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	n := Load(Param("n"), GP64())
	l.blocks(name, n, l.lanes, func() {
		v := l.reg()
		VMOVUPS(Mem{Base: src}, v)
		VCVTPS2PH(U8(0), v, Mem{Base: dst})
		ADDQ(U32(uint32(l.bytes())), src)
		ADDQ(U32(uint32(l.bytes()/2)), dst)
	})
	end()

	name = l.text("loadQ80", "func(dst []float32, src []byte)", "widens the values, a multiple of 32.")
	dst = Load(Param("dst").Base(), GP64())
	src = Load(Param("src").Base(), GP64())
	n = Load(Param("dst").Len(), GP64())
	l.blocks(name, n, 32, func() {
		d := l.reg()
		if l.wide() {
			VPBROADCASTW(Mem{Base: src}, d.AsY())
			VCVTPH2PS(d.AsY(), d)
		} else {
			VPBROADCASTW(Mem{Base: src}, d.AsX())
			VCVTPH2PS(d.AsX(), d)
		}
		for i := 0; i < 32; i += l.lanes {
			v := l.reg()
			VPMOVSXBD(Mem{Base: src, Disp: 2 + i}, v)
			VCVTDQ2PS(v, v)
			VMULPS(d, v, v)
			VMOVUPS(v, Mem{Base: dst, Disp: 4 * i})
		}
		ADDQ(U32(34), src)
		ADDQ(U32(128), dst)
	})
	end()
	storeQ80(l)
	loadNibbles(l)
	loadTurbo3(l)
	loadTurbo4(l)
}

// scale emits the load of a half as float32 in all lanes.
func (l level) scale(from Mem) VecVirtual {
	d := l.reg()
	VPBROADCASTW(from, l.half(d))
	VCVTPH2PS(l.half(d), d)
	return d
}

// loadNibbles emits the conversions of Q4_0 and Q4_1: 16 bytes are values i and i+16 of a block.
func loadNibbles(l level) {
	for _, typ := range []struct {
		name string
		head int // bytes before the nibbles
	}{{"loadQ40", 2}, {"loadQ41", 4}} {
		name := l.text(typ.name, "func(dst []float32, src []byte)", "widens the values, a multiple of 32.")
		dst := Load(Param("dst").Base(), GP64())
		src := Load(Param("src").Base(), GP64())
		n := Load(Param("dst").Len(), GP64())
		l.blocks(name, n, 32, func() {
			d := l.scale(Mem{Base: src})
			var least VecVirtual
			if typ.head == 4 {
				least = l.scale(Mem{Base: src, Disp: 2})
			}
			for i := 0; i < 16; i += l.lanes {
				low, high := l.reg(), l.reg()
				VPMOVZXBD(Mem{Base: src, Disp: typ.head + i}, low)
				VPSRLD(U8(4), low, high)
				VANDPS(c("nibble"), low, low)
				for k, v := range []VecVirtual{low, high} {
					if typ.head == 2 {
						VPSUBD(c("eight"), v, v)
					}
					VCVTDQ2PS(v, v)
					VMULPS(d, v, v)
					if typ.head == 4 {
						VADDPS(least, v, v)
					}
					VMOVUPS(v, Mem{Base: dst, Disp: 64*k + 4*i})
				}
			}
			ADDQ(U32(uint32(typ.head+16)), src)
			ADDQ(U32(128), dst)
		})
		end()
	}
}

// turbo starts a function that looks codes up in a table: blocks of 128 values after their scale.
func (l level) turbo(name string, bytes int, body func(src, dst Register, codes Mem, d VecVirtual)) {
	name = l.text(name, "func(dst []float32, src []byte, codes *[16]float32)", "widens the values, a multiple of 128.")
	dst := Load(Param("dst").Base(), GP64())
	src := Load(Param("src").Base(), GP64())
	n := Load(Param("dst").Len(), GP64())
	codes := Load(Param("codes"), GP64())
	l.blocks(name, n, 128, func() {
		body(src, dst, Mem{Base: codes}, l.scale(Mem{Base: src}))
		ADDQ(U32(uint32(bytes)), src)
		ADDQ(U32(512), dst)
	})
	end()
}

// loadTurbo3 takes the two low bits of 16 values from 4 bytes and the high bits of 32 from 4 others. A permutation of
// 16 lanes looks at four bits of a code, so that the table has its eight codes twice.
func loadTurbo3(l level) {
	l.turbo("loadTurbo3", 50, func(src, dst Register, codes Mem, d VecVirtual) {
		VMULPS(codes, d, d)
		for i := 0; i < 128; i += l.lanes {
			at, high := l.reg(), l.reg()
			VPBROADCASTD(Mem{Base: src, Disp: 2 + i/16*4}, at)
			VPSRLVD(turboShift[0].Offset(4*(i%16)), at, at)
			VANDPS(c("three"), at, at)
			VPBROADCASTD(Mem{Base: src, Disp: 34 + i/32*4}, high)
			VPSRLVD(turboShift[1].Offset(4*(i%32)), high, high)
			VPSLLD(U8(2), high, high)
			VANDPS(c("four"), high, high)
			VORPS(high, at, at)
			VPERMPS(d, at, at)
			VMOVUPS(at, Mem{Base: dst, Disp: 4 * i})
		}
	})
}

// loadTurbo4 takes 8 codes from 4 bytes. A permutation of 8 lanes has half of the codes; the highest bit says which.
func loadTurbo4(l level) {
	l.turbo("loadTurbo4", 66, func(src, dst Register, codes Mem, d VecVirtual) {
		var upper VecVirtual
		if l.wide() {
			VMULPS(codes, d, d)
		} else {
			upper = l.reg()
			VMULPS(codes.Offset(32), d, upper)
			VMULPS(codes, d, d)
		}
		for i := 0; i < 128; i += l.lanes {
			at := l.reg()
			if l.wide() { // 4 bytes for the lower lanes, 4 for the upper ones
				VPBROADCASTQ(Mem{Base: src, Disp: 2 + i/2}, at)
				lanes := l.reg()
				VMOVUPS(turboLanes, lanes)
				VPERMD(at, lanes, at)
			} else {
				VPBROADCASTD(Mem{Base: src, Disp: 2 + i/2}, at)
			}
			VPSRLVD(turboShift[2], at, at)
			if l.wide() {
				VPERMPS(d, at, at)
			} else {
				lo, hi := l.reg(), l.reg()
				VPERMPS(d, at, lo)
				VPERMPS(upper, at, hi)
				VPSLLD(U8(28), at, at)
				VBLENDVPS(at, hi, lo, at)
			}
			VMOVUPS(at, Mem{Base: dst, Disp: 4 * i})
		}
	})
}

// turboShift has how far the bits of a value lie from the lowest: crumbs, bits and nibbles. turboLanes makes lanes of
// a quadword's two halves.
var (
	turboShift [3]Mem
	turboLanes Mem
)

func turboConstants() {
	for i, width := range []uint32{2, 1, 4} {
		turboShift[i] = GLOBL([]string{"vecCrumbs", "vecBits", "vecNibbles"}[i], RODATA|NOPTR)
		for lane := range uint32(max(16, 32/width)) {
			DATA(4*int(lane), U32(lane*width%32))
		}
	}
	turboLanes = GLOBL("vecTurboLanes", RODATA|NOPTR)
	for lane := range 16 {
		DATA(4*lane, U32(uint32(lane/8)))
	}
}

// blocks emits a loop of n/step rounds.
func (l level) blocks(name string, n Register, step int, body func()) {
	Label(name + "_loop")
	CMPQ(n, U32(uint32(step)))
	JL(LabelRef(name + "_done"))
	body()
	SUBQ(U32(uint32(step)), n)
	JMP(LabelRef(name + "_loop"))
	Label(name + "_done")
}

// storeQ80 quantises blocks of 32 as quant.Quantize does: d = max|x|/127, codes
// x*(1/d) rounded to nearest, halves away from zero.
func storeQ80(l level) {
	name := l.text("storeQ80", "func(dst []byte, src []float32)",
		"quantises finite values, a multiple of 32.")
	dst := Load(Param("dst").Base(), GP64())
	src := Load(Param("src").Base(), GP64())
	n := Load(Param("src").Len(), GP64())
	l.blocks(name, n, 32, func() {
		m := l.reg()
		for i := 0; i < 32; i += l.lanes {
			v := l.reg()
			VMOVUPS(Mem{Base: src, Disp: 4 * i}, v)
			VANDPS(c("abs"), v, v)
			if i == 0 {
				VMOVAPS(v, m)
			} else {
				VMAXPS(v, m, m)
			}
		}
		t := l.reg()
		if l.wide() {
			VEXTRACTF64X4(U8(1), m, t.AsY())
			VMAXPS(t.AsY(), m.AsY(), m.AsY())
		}
		l.upper(m, t)
		VMAXPS(t.AsX(), m.AsX(), m.AsX())
		VPERMILPS(U8(0x4e), m.AsX(), t.AsX())
		VMAXPS(t.AsX(), m.AsX(), m.AsX())
		VPERMILPS(U8(0xb1), m.AsX(), t.AsX())
		VMAXPS(t.AsX(), m.AsX(), m.AsX())
		d, id := XMM(), l.reg()
		VDIVSS(c("q8max"), m.AsX(), d)
		h := XMM()
		VCVTPS2PH(U8(0), d, h)
		VPEXTRW(U8(0), h, Mem{Base: dst})
		// 1/d, but 0 where d is 0
		VMOVSS(c("one"), t.AsX())
		VDIVSS(d, t.AsX(), t.AsX())
		z := XMM()
		VXORPS(z, z, z)
		VCMPSS(U8(4), z, d, z) // d != 0
		VANDPS(z, t.AsX(), t.AsX())
		VBROADCASTSS(t.AsX(), id)
		for i := 0; i < 32; i += l.lanes {
			v, w, s := l.reg(), l.reg(), l.reg()
			VMULPS(Mem{Base: src, Disp: 4 * i}, id, v)
			// v - trunc(v) is exact; add twice that, truncated: 0 or 1 away from zero
			if l.wide() {
				VRNDSCALEPS(U8(11), v, w)
			} else {
				VROUNDPS(U8(11), v, w)
			}
			VSUBPS(w, v, s)
			VADDPS(s, s, s)
			VCVTTPS2DQ(s, s)
			VCVTTPS2DQ(w, w)
			VPADDD(s, w, w)
			if l.wide() {
				VPMOVSDB(w, Mem{Base: dst, Disp: 2 + i})
			} else {
				x := XMM()
				VEXTRACTI128(U8(1), w, x)
				VPACKSSDW(x, w.AsX(), x)
				VPACKSSWB(x, x, x)
				VMOVQ(x, Mem{Base: dst, Disp: 2 + i})
			}
		}
		ADDQ(U32(128), src)
		ADDQ(U32(34), dst)
	})
	end()
}

// conv4 emits the four-tap depthwise convolution with silu for whole vectors of
// channels. The weights of a channel are contiguous and are transposed on the way.
func conv4(l level) {
	name := l.text("conv4", "func(dst, w, t0, t1, t2, t3 *float32, n int)",
		"computes n channels, a multiple of the lanes: dst = silu(w0 t0 + w1 t1 + w2 t2 + w3 t3).")
	dst := Load(Param("dst"), GP64())
	w := Load(Param("w"), GP64())
	var taps [4]Register
	for j, p := range []string{"t0", "t1", "t2", "t3"} {
		taps[j] = Load(Param(p), GP64())
	}
	n := Load(Param("n"), GP64())
	off := GP64()
	XORQ(off, off)
	var perm [2]VecVirtual
	if l.wide() {
		for i := range perm {
			perm[i] = l.reg()
			VMOVUPS(convPerm[i], perm[i])
		}
	}
	l.blocks(name, n, l.lanes, func() {
		k := l.regs(4)
		if l.wide() {
			var x [4]VecVirtual
			for i := range x {
				x[i] = l.reg()
				VMOVUPS(Mem{Base: w, Disp: 64 * i}, x[i])
			}
			y := l.regs(4)
			for i := range 2 { // taps 2i and 2i+1 of channels 0-7, then 8-15
				VMOVAPS(perm[i], y[i])
				VPERMI2PS(x[1], x[0], y[i])
				VMOVAPS(perm[i], y[2+i])
				VPERMI2PS(x[3], x[2], y[2+i])
				VSHUFF32X4(U8(0x44), y[2+i], y[i], k[2*i])
				VSHUFF32X4(U8(0xee), y[2+i], y[i], k[2*i+1])
			}
		} else {
			x := l.regs(4)
			for i := range x { // channels i and i+4
				VMOVUPS(Mem{Base: w, Disp: 16 * i}, x[i].AsX())
				VINSERTF128(U8(1), Mem{Base: w, Disp: 64 + 16*i}, x[i], x[i])
			}
			y := l.regs(4)
			VUNPCKLPS(x[1], x[0], y[0])
			VUNPCKHPS(x[1], x[0], y[1])
			VUNPCKLPS(x[3], x[2], y[2])
			VUNPCKHPS(x[3], x[2], y[3])
			VUNPCKLPD(y[2], y[0], k[0])
			VUNPCKHPD(y[2], y[0], k[1])
			VUNPCKLPD(y[3], y[1], k[2])
			VUNPCKHPD(y[3], y[1], k[3])
		}
		s := l.reg()
		zero(s)
		for j := range k {
			VFMADD231PS(Mem{Base: taps[j], Index: off, Scale: 1}, k[j], s)
		}
		x := l.reg()
		VMOVAPS(s, x)
		VMOVUPS(l.overOnePlusExpMinus(s, x), Mem{Base: dst, Index: off, Scale: 1})
		ADDQ(U32(uint32(l.bytes())), off)
		ADDQ(U32(uint32(4*l.bytes())), w)
	})
	end()
}

var convPerm [2]Mem

// convConstants holds the lane maps that separate the taps of eight channels.
func convConstants() {
	for i := range convPerm {
		convPerm[i] = GLOBL([]string{"vecConvPerm01", "vecConvPerm23"}[i], RODATA|NOPTR)
		for lane := range 16 {
			DATA(4*lane, U32(uint32(4*(lane%8)+2*i+lane/8)))
		}
	}
}
