package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// micro512 emits the kernel for two panels (32 rows) and nc columns. A broadcast of
// four activations is loaded once and used for both panels, so the loads stay well below
// the two per cycle that as many multiplications with a memory operand would take. Two
// sub-blocks run side by side: sixteen sums for four columns, where the latency of the
// multiplication asks for ten.
func micro512(k kind, nc int) {
	name := fmt.Sprintf("micro%sx%d", k.name, nc)
	per := 32
	if k.sub == 16 {
		per = 128
	}
	TEXT(name, NOSPLIT, "func(p *byte, x *byte, yin *float32, yinStep int, yout *float32, youtStep int, iters int, pf "+
		"uintptr, pfStep int)")
	Doc(fmt.Sprintf("%s adds two panels times %d columns to yin and writes yout; their columns are the steps "+
		"apart, in bytes.", name, nc),
		fmt.Sprintf("iters counts %d values. It prefetches %d lines, pfStep bytes apart, from pf on per iteration. Needs "+
			"AVX-512 F and VNNI.", per, per/8), refMul)
	Pragma("noescape")
	pq := Load(Param("p"), GP64())
	xq := Load(Param("x"), GP64())
	pf := Load(Param("pf"), GP64())
	cnt := Load(Param("iters"), GP64())
	m := &micro{k: k, nc: nc, pq: pq, xq: xq, pf: pf, mg: bcast(magic)}
	m.pfStep = Load(Param("pfStep"), GP64())
	m.ps, m.xf = GP64(), GP64()
	LEAQ(mem(pq, panelScale), m.ps)
	LEAQ(mem(xq, recXS), m.xf)

	in, step := Load(Param("yin"), GP64()), Load(Param("yinStep"), GP64())
	m.y = [2][]VecVirtual{zs(nc), zs(nc)}
	for c := range nc {
		VMOVUPS(mem(in, 0), m.y[0][c])
		VMOVUPS(mem(in, 64), m.y[1][c])
		if c < nc-1 {
			ADDQ(step, in)
		}
	}
	if k.sub == 32 {
		CMPQ(cnt, Imm(2))
		JL(LabelRef(name + "_odd"))
		Label(name + "_loop")
		m.subs(0, 1)
		m.advance32(2)
		SUBQ(Imm(2), cnt)
		CMPQ(cnt, Imm(2))
		JGE(LabelRef(name + "_loop"))
		Label(name + "_odd")
		CMPQ(cnt, Imm(0))
		JE(LabelRef(name + "_end"))
		m.subs(0)
		Label(name + "_end")
	} else {
		// One half block in the order of order16: twice four sub-blocks. The fields
		// per 16 values advance twice as fast as the scales.
		m.xi = GP64()
		MOVQ(m.xf, m.xi)
		half := GP64()
		Label(name + "_loop")
		MOVQ(I32(2), half)
		Label(name + "_half")
		m.subs(0, 4)
		m.subs(1, 5)
		ADDQ(I32(2*4*64), pq)
		ADDQ(I32(2*64), m.ps)
		ADDQ(I8(32), xq)
		ADDQ(I8(4), m.xf)
		ADDQ(I8(8), m.xi)
		DECQ(half)
		JNZ(LabelRef(name + "_half"))
		ADDQ(I32(4*4*64), pq)
		ADDQ(I32(4*64), m.ps)
		ADDQ(I8(64), xq)
		ADDQ(I8(8), m.xf)
		ADDQ(I8(16), m.xi)
		DECQ(cnt)
		JNZ(LabelRef(name + "_loop"))
	}
	out, ostep := Load(Param("yout"), GP64()), Load(Param("youtStep"), GP64())
	for c := range nc {
		VMOVUPS(m.y[0][c], mem(out, 0))
		VMOVUPS(m.y[1][c], mem(out, 64))
		if c < nc-1 {
			ADDQ(ostep, out)
		}
	}
	VZEROUPPER()
	RET()
}

type micro struct {
	k                  kind
	nc                 int
	pq, ps, xq, xf, xi Register
	pf, pfStep         Register
	mg                 VecVirtual
	y                  [2][]VecVirtual
}

// advance32 moves on by n sub-blocks of 32.
func (m *micro) advance32(n int) {
	ADDQ(I32(int32(n*8*64)), m.pq)
	ADDQ(I32(int32(n*64)), m.ps)
	ADDQ(I32(int32(n*32)), m.xq)
	ADDQ(I32(int32(n*4)), m.xf)
}

// subs emits sub-blocks, counted from where the pointers are, side by side.
func (m *micro) subs(list ...int) {
	groups := m.k.sub / 4
	acc := make([][2][]VecVirtual, len(list))
	per := m.xf // the fields that come once per sub-block
	if m.k.sub == 16 {
		per = m.xi
	}
	for n, s := range list {
		acc[n] = [2][]VecVirtual{zs(m.nc), zs(m.nc)}
		for c := range m.nc {
			if m.k.min {
				VMOVDQA64(m.mg, acc[n][0][c])
			} else {
				VPBROADCASTD(mem(per, c*recSize+m.k.initOff()+4*s), acc[n][0][c])
			}
			VMOVDQA64(acc[n][0][c], acc[n][1][c])
		}
	}
	for g := range groups {
		for n, s := range list {
			w := zs(2)
			for i := range w {
				VMOVDQU64(mem(m.pq, i*panelSize+(s*groups+g)*64), w[i])
			}
			if g%2 == 0 {
				prefetch(m.pf, m.pfStep)
			}
			for c := range m.nc {
				b := ZMM()
				VPBROADCASTD(mem(m.xq, c*recSize+s*m.k.sub+4*g), b)
				VPDPBUSD(b, w[0], acc[n][0][c])
				VPDPBUSD(b, w[1], acc[n][1][c])
			}
		}
	}
	for n, s := range list {
		m.sums(s, acc[n], per)
	}
}

// sums adds the accumulators of sub-block s to y.
func (m *micro) sums(s int, acc [2][]VecVirtual, per Register) {
	ws, mw := zs(2), zs(2)
	for i := range ws {
		VMOVUPS(mem(m.ps, i*panelSize+64*s), ws[i])
		VMULPS(m.mg, ws[i], mw[i])
	}
	for c := range m.nc {
		xs := ZMM()
		VBROADCASTSS(mem(m.xf, c*recSize+4*(s*m.k.sub/32)), xs)
		for i := range ws {
			VFMSUB213PS(mw[i], ws[i], acc[i][c])
			VFMADD231PS(xs, acc[i][c], m.y[i][c])
		}
	}
	if !m.k.min {
		return
	}
	mv := zs(2)
	for i := range mv {
		VMOVUPS(mem(m.ps, i*panelSize+panelMin-panelScale+64*s), mv[i])
	}
	for c := range m.nc {
		ms := ZMM()
		VBROADCASTSS(mem(per, c*recSize+m.k.msOff()+4*s), ms)
		for i := range mv {
			VFMADD231PS(ms, mv[i], m.y[i][c])
		}
	}
}
