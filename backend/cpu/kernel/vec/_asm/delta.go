package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Byte offsets of type deltaArgs.
const (
	dState = 8 * iota
	dRows
	dPend
	dPK
	dPKStride
	dPD
	dPDStride
	dPG
	dPGStride
	dN
	dQ
	dK
	dQKStride
	dV
	dVStride
	dBeta
	dG
	dBGStride
	dD
	dDStride
	dO
	dOStride
	dStore // 0 nothing, 1 after the pending tokens, 2 after all
	dScale
	dDK
	dTmp
)

func deltaRegisters() {
	for _, s := range []struct{ dk, rows int }{{64, 4}, {64, 2}, {64, 1}, {128, 3}, {128, 2}, {128, 1}, {256, 1}} {
		deltaRows(s.dk, s.rows)
	}
}

// deltaRows emits the recurrence with the rows in registers: each round takes
// nr rows of the state through all tokens.
func deltaRows(dk, nr int) {
	l := avx512
	nz := dk / 16
	name := l.text(fmt.Sprintf("delta%dx%d", dk, nr), "func(a *byte)", fmt.Sprintf("runs the delta rule with DK = %d, %d rows at a time; rows is a multiple of that.", dk, nr))
	a := Load(Param("a"), GP64())
	state, rows, voff := GP64(), GP64(), GP64()
	MOVQ(Mem{Base: a, Disp: dState}, state)
	MOVQ(Mem{Base: a, Disp: dRows}, rows)
	XORQ(voff, voff) // offset of the rows in vectors of values

	Label(name + "_rows")
	s := make([][]VecVirtual, nr)
	for r := range s {
		s[r] = l.regs(nz)
		for z := range s[r] {
			VMOVUPS(Mem{Base: state, Disp: r*4*dk + 64*z}, s[r][z])
		}
	}
	save := func() {
		for r := range s {
			for z := range s[r] {
				VMOVUPS(s[r][z], Mem{Base: state, Disp: r*4*dk + 64*z})
			}
		}
	}

	cnt := GP64()
	MOVQ(Mem{Base: a, Disp: dPend}, cnt)
	TESTQ(cnt, cnt)
	JZ(LabelRef(name + "_replayed"))
	pk, pd, pg := GP64(), GP64(), GP64()
	MOVQ(Mem{Base: a, Disp: dPK}, pk)
	MOVQ(Mem{Base: a, Disp: dPD}, pd)
	MOVQ(Mem{Base: a, Disp: dPG}, pg)
	ADDQ(voff, pd)
	Label(name + "_replay")
	{
		g, d := ZMM(), l.regs(nr)
		VBROADCASTSS(Mem{Base: pg}, g)
		for r := range d {
			VBROADCASTSS(Mem{Base: pd, Disp: 4 * r}, d[r])
		}
		for z := range nz {
			k := ZMM()
			VMOVUPS(Mem{Base: pk, Disp: 64 * z}, k)
			for r := range d {
				VMULPS(g, s[r][z], s[r][z])
				VFMADD231PS(d[r], k, s[r][z])
			}
		}
	}
	ADDQ(Mem{Base: a, Disp: dPKStride}, pk)
	ADDQ(Mem{Base: a, Disp: dPDStride}, pd)
	ADDQ(Mem{Base: a, Disp: dPGStride}, pg)
	DECQ(cnt)
	JNZ(LabelRef(name + "_replay"))
	Label(name + "_replayed")
	CMPQ(Mem{Base: a, Disp: dStore}, U8(1))
	JNE(LabelRef(name + "_new"))
	save()
	Label(name + "_new")

	MOVQ(Mem{Base: a, Disp: dN}, cnt)
	TESTQ(cnt, cnt)
	JZ(LabelRef(name + "_end"))
	q, k, v, beta, g, d, o := GP64(), GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
	for _, p := range []struct {
		r   Register
		off int
	}{{q, dQ}, {k, dK}, {v, dV}, {beta, dBeta}, {g, dG}, {d, dD}, {o, dO}} {
		MOVQ(Mem{Base: a, Disp: p.off}, p.r)
	}
	for _, r := range []Register{v, d, o} {
		ADDQ(voff, r)
	}
	Label(name + "_token")
	{
		pred := dots(l, nz, nr, 2, func(z int, acc []VecVirtual, first bool) {
			kz := ZMM()
			VMOVUPS(Mem{Base: k, Disp: 64 * z}, kz)
			for r := range nr {
				VMULPS_BCST(Mem{Base: g}, s[r][z], s[r][z])
				if first {
					VMULPS(kz, s[r][z], acc[r])
				} else {
					VFMADD231PS(kz, s[r][z], acc[r])
				}
			}
		})
		// d = beta * (v - pred), then in all lanes
		var dv []VecVirtual
		for i, p := range pred {
			t := ZMM()
			VBROADCASTSS(Mem{Base: v, Disp: 8 * i}, t)
			pair := 2*i+1 < nr
			if pair {
				u := ZMM()
				VBROADCASTSS(Mem{Base: v, Disp: 8*i + 4}, u.AsY())
				VINSERTF64X4(U8(1), u.AsY(), t, t)
			}
			VSUBPS(p, t, t)
			VMULPS_BCST(Mem{Base: beta}, t, t)
			VMOVSS(t.AsX(), Mem{Base: d, Disp: 8 * i})
			if !pair {
				dv = append(dv, t)
				break
			}
			lo, hi := ZMM(), ZMM()
			VSHUFF32X4(U8(0x00), t, t, lo)
			VSHUFF32X4(U8(0xff), t, t, hi)
			VMOVSS(hi.AsX(), Mem{Base: d, Disp: 8*i + 4})
			dv = append(dv, lo, hi)
		}
		// One chain is enough here: no later token waits for the output. The key
		// comes from memory, the registers are full.
		out := dots(l, nz, nr, 1, func(z int, acc []VecVirtual, first bool) {
			qz := ZMM()
			VMOVUPS(Mem{Base: q, Disp: 64 * z}, qz)
			for r := range nr {
				VFMADD231PS(Mem{Base: k, Disp: 64 * z}, dv[r], s[r][z])
				if first {
					VMULPS(qz, s[r][z], acc[r])
				} else {
					VFMADD231PS(qz, s[r][z], acc[r])
				}
			}
		})
		for i, p := range out {
			VMULPS_BCST(Mem{Base: a, Disp: dScale}, p, p)
			VMOVSS(p.AsX(), Mem{Base: o, Disp: 8 * i})
			if 2*i+1 < nr {
				t := ZMM()
				VEXTRACTF32X4(U8(2), p, t.AsX())
				VMOVSS(t.AsX(), Mem{Base: o, Disp: 8*i + 4})
			}
		}
	}
	for _, p := range []struct {
		r   Register
		off int
	}{{q, dQKStride}, {k, dQKStride}, {v, dVStride}, {beta, dBGStride}, {g, dBGStride}, {d, dDStride}, {o, dOStride}} {
		ADDQ(Mem{Base: a, Disp: p.off}, p.r)
	}
	DECQ(cnt)
	JNZ(LabelRef(name + "_token"))
	CMPQ(Mem{Base: a, Disp: dStore}, U8(2))
	JNE(LabelRef(name + "_end"))
	save()
	Label(name + "_end")
	ADDQ(U32(uint32(4*dk*nr)), state)
	ADDQ(U32(uint32(4*nr)), voff)
	SUBQ(U32(uint32(nr)), rows)
	JNZ(LabelRef(name + "_rows"))
	end()
}

// dots accumulates one dot product per row in nacc vectors, taken in turn, and
// adds the lanes. Rows are reduced in pairs: the sum of the first is in all
// lanes of the lower half of the result, that of the second in the upper half.
// A last single row is in all lanes. The order of additions is the same in both.
func dots(l level, nz, nr, nacc int, term func(z int, acc []VecVirtual, first bool)) []VecVirtual {
	acc := make([][]VecVirtual, nacc)
	for i := range acc {
		acc[i] = l.regs(nr)
	}
	for z := range nz {
		term(z, acc[z%nacc], z < nacc)
	}
	if nacc == 2 {
		for r := range nr {
			VADDPS(acc[1][r], acc[0][r], acc[0][r])
		}
	}
	var out []VecVirtual
	for r := 0; r < nr; r += 2 {
		t, u := ZMM(), ZMM()
		a := acc[0][r]
		if r+1 == nr {
			VSHUFF32X4(U8(0x4e), a, a, u)
			VADDPS(u, a, t)
		} else {
			b := acc[0][r+1]
			VSHUFF32X4(U8(0x44), b, a, t) // a0 a1 b0 b1
			VSHUFF32X4(U8(0xee), b, a, u) // a2 a3 b2 b3
			VADDPS(u, t, t)
		}
		VSHUFF32X4(U8(0xb1), t, t, u)
		VADDPS(u, t, t)
		VPERMILPS(U8(0x4e), t, u)
		VADDPS(u, t, t)
		VPERMILPS(U8(0xb1), t, u)
		VADDPS(u, t, t)
		out = append(out, t)
	}
	return out
}

// deltaMemory emits the recurrence for AVX2, whose registers cannot hold a row:
// the row stays in the first-level cache. Uncommitted tokens work on a copy.
func deltaMemory() {
	l := avx2
	name := l.text("delta", "func(a *byte)", "runs the delta rule row by row; DK is a multiple of 32. tmp holds one row.")
	a := Load(Param("a"), GP64())
	state, voff := GP64(), GP64()
	MOVQ(Mem{Base: a, Disp: dState}, state)
	XORQ(voff, voff)
	const unroll = 4
	// each walks through the row, four vectors at a time.
	i := GP64()
	loop := 0
	each := func(body func(u, disp int)) {
		loop++
		label := fmt.Sprintf("%s_each%d", name, loop)
		XORQ(i, i)
		Label(label)
		for u := range unroll {
			body(u, u*l.bytes())
		}
		ADDQ(U32(uint32(unroll*l.bytes())), i)
		CMPQ(i, Mem{Base: a, Disp: dDK})
		JL(LabelRef(label))
	}
	at := func(p Register, disp int) Mem { return Mem{Base: p, Index: i, Scale: 1, Disp: disp} }

	Label(name + "_rows")
	cnt := GP64()
	MOVQ(Mem{Base: a, Disp: dPend}, cnt)
	TESTQ(cnt, cnt)
	JZ(LabelRef(name + "_replayed"))
	pk, pd, pg := GP64(), GP64(), GP64()
	MOVQ(Mem{Base: a, Disp: dPK}, pk)
	MOVQ(Mem{Base: a, Disp: dPD}, pd)
	MOVQ(Mem{Base: a, Disp: dPG}, pg)
	ADDQ(voff, pd)
	Label(name + "_replay")
	{
		g, d := YMM(), YMM()
		VBROADCASTSS(Mem{Base: pg}, g)
		VBROADCASTSS(Mem{Base: pd}, d)
		each(func(_, disp int) {
			s := YMM()
			VMULPS(at(state, disp), g, s)
			VFMADD231PS(at(pk, disp), d, s)
			VMOVUPS(s, at(state, disp))
		})
	}
	ADDQ(Mem{Base: a, Disp: dPKStride}, pk)
	ADDQ(Mem{Base: a, Disp: dPDStride}, pd)
	ADDQ(Mem{Base: a, Disp: dPGStride}, pg)
	DECQ(cnt)
	JNZ(LabelRef(name + "_replay"))
	Label(name + "_replayed")

	MOVQ(Mem{Base: a, Disp: dN}, cnt)
	TESTQ(cnt, cnt)
	JZ(LabelRef(name + "_end"))
	q, k, v, beta, d, o := GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
	for _, p := range []struct {
		r   Register
		off int
	}{{q, dQ}, {k, dK}, {v, dV}, {d, dD}, {o, dO}} {
		MOVQ(Mem{Base: a, Disp: p.off}, p.r)
	}
	XORQ(beta, beta) // offset of the token in beta and g
	for _, r := range []Register{v, d, o} {
		ADDQ(voff, r)
	}
	src, dst := GP64(), GP64()
	MOVQ(state, src)
	MOVQ(state, dst)
	CMPQ(Mem{Base: a, Disp: dStore}, U8(2))
	JE(LabelRef(name + "_token"))
	MOVQ(Mem{Base: a, Disp: dTmp}, dst)
	Label(name + "_token")
	{
		p := GP64()
		g := YMM()
		MOVQ(Mem{Base: a, Disp: dG}, p)
		VBROADCASTSS(Mem{Base: p, Index: beta, Scale: 1}, g)
		acc := l.regs(unroll)
		for _, r := range acc {
			zero(r)
		}
		each(func(u, disp int) {
			s := YMM()
			VMULPS(at(src, disp), g, s)
			VMOVUPS(s, at(dst, disp))
			VFMADD231PS(at(k, disp), s, acc[u])
		})
		MOVQ(dst, src)
		pred := l.foldSum(acc)
		x, dv := XMM(), YMM()
		VMOVSS(Mem{Base: v}, x)
		VSUBSS(pred.AsX(), x, x)
		MOVQ(Mem{Base: a, Disp: dBeta}, p)
		VMULSS(Mem{Base: p, Index: beta, Scale: 1}, x, x)
		VMOVSS(x, Mem{Base: d})
		VBROADCASTSS(x, dv)
		acc = l.regs(unroll)
		for _, r := range acc {
			zero(r)
		}
		each(func(u, disp int) {
			s := YMM()
			VMOVUPS(at(dst, disp), s)
			VFMADD231PS(at(k, disp), dv, s)
			VMOVUPS(s, at(dst, disp))
			VFMADD231PS(at(q, disp), s, acc[u])
		})
		out := l.foldSum(acc)
		VMULSS(Mem{Base: a, Disp: dScale}, out.AsX(), x)
		VMOVSS(x, Mem{Base: o})
	}
	for _, p := range []struct {
		r   Register
		off int
	}{{q, dQKStride}, {k, dQKStride}, {v, dVStride}, {beta, dBGStride}, {d, dDStride}, {o, dOStride}} {
		ADDQ(Mem{Base: a, Disp: p.off}, p.r)
	}
	DECQ(cnt)
	JNZ(LabelRef(name + "_token"))
	Label(name + "_end")
	ADDQ(Mem{Base: a, Disp: dDK}, state)
	ADDQ(U8(4), voff)
	DECQ(Mem{Base: a, Disp: dRows})
	JNZ(LabelRef(name + "_rows"))
	end()
}

// foldSum adds four vectors and their lanes.
func (l level) foldSum(acc []VecVirtual) VecVirtual {
	VADDPS(acc[1], acc[0], acc[0])
	VADDPS(acc[3], acc[2], acc[2])
	VADDPS(acc[2], acc[0], acc[0])
	return l.sum(acc[0])
}
