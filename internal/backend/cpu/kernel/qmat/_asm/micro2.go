package main

import (
	"fmt"
	"math/bits"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// microAVX2 emits the kernel of one form: a panel times any number of columns, two or three at a time. Their sums stay
// in registers while the kernel goes through the panel, and a broadcast of four activations serves all 16 rows. With
// vnni it multiplies by VPDPBUSD in the encoding of AVX-VNNI.
//
// Three columns of a form with a minimum take 11 operations per column, eight rows and 32 values on the two ports that
// multiply: eight products, the scale, two multiply-adds.
func microAVX2(f form, vnni bool) {
	name, needs := "micro2"+f.name, "AVX2 and FMA"
	if vnni {
		name, needs = "micro2v"+f.name, "AVX2, FMA and AVX-VNNI"
	}
	TEXT(name, NOSPLIT, "func(p *byte, x *byte, n int, y *float32, yStep int, iters int)")
	Doc(fmt.Sprintf("%s adds a panel times n columns to y, whose columns are yStep bytes apart.", name),
		fmt.Sprintf("iters counts %d values. Needs %s.", map[int]int{32: 32, 16: 128}[f.kind.sub], needs), refMul)
	Pragma("noescape")
	m := &micro2{form: f, vnni: vnni, name: name, panel: Load(Param("p"), GP64()), x: Load(Param("x"), GP64()),
		y: Load(Param("y"), GP64()), yStep: Load(Param("yStep"), GP64()),
		p: GP64(), ps: GP64(), xq: GP64(), xf: GP64(), xi: GP64()}
	n := Load(Param("n"), GP64())
	label := func(s string) LabelRef { return LabelRef(name + s) }
	Label(name + "_three")
	if !m.halves() { // else there are registers for two columns only
		CMPQ(n, Imm(3))
		JL(label("_two"))
		CMPQ(n, Imm(4))
		JE(label("_two")) // twice two columns: one alone takes longer
		m.columns(3)
		SUBQ(Imm(3), n)
		JMP(label("_three"))
		Label(name + "_two")
	}
	CMPQ(n, Imm(2))
	JL(label("_one"))
	m.columns(2)
	SUBQ(Imm(2), n)
	JMP(label("_three"))
	Label(name + "_one")
	CMPQ(n, Imm(0))
	JE(label("_end"))
	m.columns(1)
	Label(name + "_end")
	VZEROUPPER()
	RET()
}

type micro2 struct {
	form
	vnni              bool
	name              string
	panel, x          Register // the panel; records of the first column
	y, yStep          Register
	p, ps, xq, xf, xi Register // codes, scales, activations, their scales, fields per sub-block

	nc   int
	y2   [2][]VecPhysical // sums of rows 0 to 7 and 8 to 15, by column
	acc  [2][]VecPhysical // dots of a sub-block
	part [2][]VecPhysical // the same in 16 bits, if they have to be added up in parts
	w    [2]VecPhysical   // codes
	b, t VecPhysical
}

// halves reports whether the dots of a sub-block are more than 16 bits can hold but are not added one by one.
func (m *micro2) halves() bool { return !m.vnni && m.depth > 1 && m.depth < m.kind.sub/4 }

// columns emits the kernel for nc columns.
func (m *micro2) columns(nc int) {
	m.nc = nc
	free := []VecPhysical{Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11, Y12, Y13, Y14, Y15}
	take := func(n int) []VecPhysical {
		r := free[:n]
		free = free[n:]
		return r
	}
	for r := range 2 {
		m.y2[r], m.acc[r], m.w[r] = take(nc), take(nc), take(1)[0]
		m.part[r] = m.acc[r]
		if m.halves() {
			m.part[r] = take(nc)
		}
	}
	m.b, m.t = take(1)[0], take(1)[0]

	MOVQ(m.panel, m.p)
	LEAQ(mem(m.panel, panelScale), m.ps)
	MOVQ(m.x, m.xq)
	LEAQ(mem(m.x, recXS), m.xf)
	MOVQ(m.xf, m.xi)
	y := GP64()
	MOVQ(m.y, y)
	for c := range nc {
		VMOVUPS(mem(y, 0), m.y2[0][c])
		VMOVUPS(mem(y, 32), m.y2[1][c])
		if c < nc-1 {
			ADDQ(m.yStep, y)
		}
	}
	iters := Load(Param("iters"), GP64())
	loop := fmt.Sprintf("%s_loop%d", m.name, nc)
	Label(loop)
	if m.kind.sub == 32 {
		m.sub(0)
		m.advance(1)
	} else { // in the order of order16
		half := GP64()
		MOVQ(I32(2), half)
		Label(loop + "_half")
		for _, s := range []int{0, 4, 1, 5} {
			m.sub(s)
		}
		m.advance(2)
		DECQ(half)
		JNZ(LabelRef(loop + "_half"))
		m.advance(4)
	}
	DECQ(iters)
	JNZ(LabelRef(loop))
	for c := range nc {
		VMOVUPS(m.y2[0][c], mem(m.y, 0))
		VMOVUPS(m.y2[1][c], mem(m.y, 32))
		ADDQ(m.yStep, m.y)
	}
	ADDQ(I32(int32(nc*recSize)), m.x)
}

// advance moves on by n sub-blocks.
func (m *micro2) advance(n int) {
	ADDQ(I32(int32(n*m.kind.sub*16)), m.p)
	ADDQ(I32(int32(n*64)), m.ps)
	ADDQ(I32(int32(n*m.kind.sub)), m.xq)
	ADDQ(I32(int32(n*4*m.kind.sub/32)), m.xf)
	ADDQ(I32(int32(n*4)), m.xi)
}

// offset reports whether records subtract an offset from the codes of this form; see acts.go.
func (m *micro2) offset() bool { return !m.kind.min && (m.vnni || !m.signed) }

// start is the offset of a column, with magic added.
func (m *micro2) start(s, c int) Mem { return mem(m.xi, c*recSize+m.kind.initOff()+4*s) }

// sub adds sub-block s, counted from where the pointers are, to y.
func (m *micro2) sub(s int) {
	if m.vnni {
		m.dotsVNNI(s)
	} else {
		m.dots(s)
	}
	at := 64 * s // of the scales
	k := m.kind
	if !m.vnni && m.offset() {
		for r := range 2 {
			VMOVUPS(wide(magic), m.w[r])
			VMULPS(mem(m.ps, at+32*r), m.w[r], m.w[r])
		}
	}
	for c := range m.nc {
		late := m.offset() && !(m.vnni && m.mul == 1) // the dots do not start at the offset
		if late {
			VPBROADCASTD(m.start(s, c), m.b)
		}
		for r := range 2 {
			a := m.acc[r][c]
			if m.vnni && m.mul > 1 {
				VPSLLD(U8(bits.Len(uint(m.mul))-1), a, a)
			}
			if late {
				VPADDD(m.b, a, a)
			}
			scale := mem(m.ps, at+32*r)
			switch {
			case m.vnni: // new processors subtract on a port that does not multiply
				VSUBPS(wide(magic), a, a)
				VMULPS(scale, a, a)
			case m.offset():
				VFMSUB132PS(scale, m.w[r], a)
			default:
				VCVTDQ2PS(a, a)
				VMULPS(scale, a, a)
			}
		}
		VBROADCASTSS(mem(m.xf, c*recSize+4*(s*k.sub/32)), m.b)
		for r := range 2 {
			VFMADD231PS(m.b, m.acc[r][c], m.y2[r][c])
		}
		if k.min {
			VBROADCASTSS(mem(m.xi, c*recSize+k.msOff()+4*s), m.b)
			for r := range 2 {
				VFMADD231PS(mem(m.ps, panelMin-panelScale+at+32*r), m.b, m.y2[r][c])
			}
		}
	}
}

// code is where the codes of four values and eight rows are.
func (m *micro2) code(s, g, r int) Mem { return mem(m.p, (s*m.kind.sub/4+g)*64+32*r) }

// act is where four activations of a column are.
func (m *micro2) act(s, g, c int) Mem { return mem(m.xq, c*recSize+recQ+s*m.kind.sub+4*g) }

// dotsVNNI multiplies sub-block s, starting at magic.
func (m *micro2) dotsVNNI(s int) {
	for c := range m.nc {
		a := m.acc[0][c]
		switch {
		case m.kind.min:
			VMOVDQU(wide(magic), a)
		case m.mul == 1:
			VPBROADCASTD(m.start(s, c), a)
		default:
			VPXOR(a, a, a)
		}
		VMOVDQA(a, m.acc[1][c])
	}
	if m.signed { // codes without sign, with the offset that the record subtracts
		VMOVDQU(wide(m80), m.t)
	}
	for g := range m.kind.sub / 4 {
		for r := range 2 {
			if m.signed {
				VPXOR(m.code(s, g, r), m.t, m.w[r])
			} else {
				VMOVDQU(m.code(s, g, r), m.w[r])
			}
		}
		for c := range m.nc {
			VPBROADCASTD(m.act(s, g, c), m.b)
			for r := range 2 {
				dotVEX(m.b, m.w[r], m.acc[r][c])
			}
		}
	}
}

// dots multiplies sub-block s without VNNI: pairs of products are added in 16 bits.
func (m *micro2) dots(s int) {
	groups := m.kind.sub / 4
	widen := func(g, r, c int, v VecPhysical) {
		VPMADDWD(wide(uint32(m.mul)*0x00010001), v, v)
		if g >= m.depth {
			VPADDD(v, m.acc[r][c], m.acc[r][c])
		} else if v != m.acc[r][c] {
			VMOVDQA(v, m.acc[r][c])
		}
	}
	for g := range groups {
		for r := range 2 {
			if m.signed { // magnitudes; the signs go to the activations
				VPABSB(m.code(s, g, r), m.w[r])
			} else {
				VMOVDQU(m.code(s, g, r), m.w[r])
			}
		}
		for c := range m.nc {
			VPBROADCASTD(m.act(s, g, c), m.b)
			for r := range 2 {
				b, sum := m.b, m.part[r][c]
				if m.signed {
					VPSIGNB(m.code(s, g, r), m.b, m.t)
					b = m.t
				}
				first := g%m.depth == 0
				if m.depth == 1 {
					if g == 0 {
						VPMADDUBSW(b, m.w[r], sum)
						widen(g, r, c, sum)
					} else {
						VPMADDUBSW(b, m.w[r], m.t)
						widen(g, r, c, m.t)
					}
					continue
				}
				if first {
					VPMADDUBSW(b, m.w[r], sum)
				} else {
					VPMADDUBSW(b, m.w[r], m.t)
					VPADDW(m.t, sum, sum)
				}
				if (g+1)%m.depth == 0 {
					widen(g, r, c, sum)
				}
			}
		}
	}
}
