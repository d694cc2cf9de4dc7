package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Byte offsets of type matArgs.
const (
	matW      = 0
	matStride = 8
	matNext   = 16
	matX      = 24
	matXS     = 32
	matK      = 40
	matY      = 48
	matYS     = 56
	matAlpha  = 64
	matAdd    = 68
	matAdv    = 72
	matTiles  = 80
)

// cols is the largest number of columns a matrix kernel takes: with four rows
// the accumulators, one vector per column and one of weights fill the registers.
func (l level) cols() int {
	if l.wide() {
		return 6
	}
	return 3
}

func matrix(l level) {
	for _, typ := range []string{"F32", "F16", "BF16"} {
		for nc := 1; nc <= l.cols(); nc++ {
			mat(l, typ, nc, false)
		}
	}
	for nc := 1; nc <= l.cols(); nc++ {
		mat(l, "F32", nc, true)
	}
}

// mat emits tiles of four rows times nc columns. Lanes run along k, every (row, column)
// has one accumulator, and the lanes are added in a fixed tree: the order of a
// sum depends on k only. A tile of decoded rows says with next and adv what to
// prefetch; rows in memory are followed by rows at the same distance.
func mat(l level, typ string, nc int, tile bool) {
	tail := ""
	if !l.wide() && typ != "F32" {
		tail = " k is a multiple of 8."
	}
	kind := typ
	if tile {
		kind = "Tile"
	}
	name := l.text(fmt.Sprintf("mat%sx%d", kind, nc), "func(a *byte)",
		fmt.Sprintf("multiplies tiles of four %s rows with %d columns and moves its arguments on.%s", typ, nc, tail))
	a := Load(Param("a"), GP64())
	size := 2 // bytes per weight
	if typ == "F32" {
		size = 4
	}
	w, next, stride, stride3 := GP64(), GP64(), GP64(), GP64()
	MOVQ(Mem{Base: a, Disp: matStride}, stride)
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, stride3)
	row := func(p Register, r, disp int) Mem {
		m := Mem{Base: p, Disp: disp}
		switch r {
		case 1, 2:
			m.Index, m.Scale = stride, uint8(r)
		case 3:
			m.Index, m.Scale = stride3, 1
		}
		return m
	}
	x := make([]Register, nc)
	for i := range x {
		p := GP64()
		if i == 0 {
			MOVQ(Mem{Base: a, Disp: matX}, p)
		} else {
			MOVQ(x[i-1], p)
			ADDQ(Mem{Base: a, Disp: matXS}, p)
		}
		x[i] = p
	}
	k, off := GP64(), GP64() // off is the byte offset in the columns
	Label(name + "_tile")
	MOVQ(Mem{Base: a, Disp: matW}, w)
	MOVQ(Mem{Base: a, Disp: matNext}, next)
	MOVQ(Mem{Base: a, Disp: matK}, k)
	XORQ(off, off)
	acc := make([][]VecVirtual, nc)
	for i := range acc {
		acc[i] = l.regs(4)
		for _, v := range acc[i] {
			zero(v)
		}
	}
	step := func(disp int, m *mask) { // disp in values
		xv := make([]VecVirtual, nc)
		column := func(i int) {
			xv[i] = l.reg()
			loadMaybe(m, Mem{Base: x[i], Index: off, Scale: 1, Disp: 4 * disp}, xv[i])
		}
		again := m != nil && !l.wide() // the mask takes the register of the columns
		for r := range 4 {
			wv := l.reg()
			if r == 0 && !again {
				for i := range xv {
					column(i)
				}
			}
			l.widenHalf(typ, row(w, r, size*disp), m, wv)
			for i := range xv {
				if again {
					column(i)
				}
				VFMADD231PS(xv[i], wv, acc[i][r])
			}
		}
	}
	// A round takes a cache line of every row. Prefetches are spread over the
	// rounds: a burst would fill the line buffers and stop the core.
	round := 64 / size
	Label(name + "_loop")
	CMPQ(k, U32(uint32(round)))
	JL(LabelRef(name + "_rest"))
	for d := 0; d < round; d += l.lanes {
		step(d, nil)
	}
	for r := range 4 {
		PREFETCHT0(row(next, r, 0))
		if tile {
			break
		}
	}
	ADDQ(U32(64), w)
	ADDQ(Mem{Base: a, Disp: matAdv}, next)
	ADDQ(U32(uint32(4*round)), off)
	SUBQ(U32(uint32(round)), k)
	JMP(LabelRef(name + "_loop"))
	Label(name + "_rest")
	if round > l.lanes {
		CMPQ(k, U32(uint32(l.lanes)))
		JL(LabelRef(name + "_tail"))
		step(0, nil)
		ADDQ(U32(uint32(size*l.lanes)), w)
		ADDQ(U32(uint32(4*l.lanes)), off)
		SUBQ(U32(uint32(l.lanes)), k)
		if round > 2*l.lanes {
			JMP(LabelRef(name + "_rest"))
		}
		Label(name + "_tail")
	}
	if l.wide() || typ == "F32" {
		TESTQ(k, k)
		JZ(LabelRef(name + "_done"))
		m := l.mask(k)
		step(0, &m)
		Label(name + "_done")
	}
	y, alpha := GP64(), XMM()
	VBROADCASTSS(Mem{Base: a, Disp: matAlpha}, alpha)
	MOVQ(Mem{Base: a, Disp: matY}, y)
	s := make([]Register, nc)
	for i := range acc {
		s[i] = l.sum4(acc[i])
		VMULPS(alpha, s[i], s[i])
	}
	CMPL(Mem{Base: a, Disp: matAdd}, U8(0))
	JE(LabelRef(name + "_set"))
	for i := range s {
		VADDPS(Mem{Base: y}, s[i], s[i])
		if i+1 < nc {
			ADDQ(Mem{Base: a, Disp: matYS}, y)
		}
	}
	MOVQ(Mem{Base: a, Disp: matY}, y)
	Label(name + "_set")
	for i := range s {
		VMOVUPS(s[i], Mem{Base: y})
		if i+1 < nc {
			ADDQ(Mem{Base: a, Disp: matYS}, y)
		}
	}
	DECQ(Mem{Base: a, Disp: matTiles})
	JZ(LabelRef(name + "_end"))
	tileBytes := GP64()
	MOVQ(stride, tileBytes)
	SHLQ(U8(2), tileBytes)
	ADDQ(tileBytes, Mem{Base: a, Disp: matW})
	ADDQ(tileBytes, Mem{Base: a, Disp: matNext})
	ADDQ(U8(16), Mem{Base: a, Disp: matY})
	JMP(LabelRef(name + "_tile"))
	Label(name + "_end")
	end()
}

// sum4 adds the lanes of four vectors, one result per lane of an XMM register.
func (l level) sum4(v []VecVirtual) Register {
	t := l.regs(4)
	VUNPCKLPS(v[1], v[0], t[0])
	VUNPCKHPS(v[1], v[0], t[1])
	VUNPCKLPS(v[3], v[2], t[2])
	VUNPCKHPS(v[3], v[2], t[3])
	VADDPS(t[1], t[0], t[0])
	VADDPS(t[3], t[2], t[2])
	VUNPCKLPD(t[2], t[0], t[1])
	VUNPCKHPD(t[2], t[0], t[3])
	VADDPS(t[3], t[1], t[1])
	s := t[1]
	if l.wide() {
		VEXTRACTF64X4(U8(1), s, t[0].AsY())
		VADDPS(t[0].AsY(), s.AsY(), s.AsY())
	}
	l.upper(s, t[0])
	VADDPS(t[0].AsX(), s.AsX(), s.AsX())
	return s.AsX()
}

// Byte offsets of type accArgs.
const (
	accV      = 0
	accStride = 8
	accN      = 16
	accP      = 24
	accPS     = 32
	accOut    = 40
	accOS     = 48
	accWidth  = 56
)

// accumulate emits the kernels of the weighted sum of value rows: four vectors
// of columns for several queries, and one vector (masked) for one query.
func accumulate(l level) {
	for _, typ := range []string{"F32", "F16"} {
		for nq := 1; nq <= l.cols(); nq++ {
			accum(l, typ, 4, nq)
		}
		accum(l, typ, 1, 1)
	}
}

func accum(l level, typ string, nz, nq int) {
	masked := nz == 1 && (l.wide() || typ == "F32")
	name, doc := fmt.Sprintf("accum%sx%d", typ, nq),
		fmt.Sprintf("adds the weighted rows of %d columns for %d queries.", 4*l.lanes, nq)
	if nz == 1 {
		name, doc = "accum"+typ+"One", "adds the weighted rows of one vector of columns."
		if masked {
			doc = "adds the weighted rows of up to one vector of columns."
		}
	}
	name = l.text(name, "func(a *byte)", doc)
	a := Load(Param("a"), GP64())
	v, n, stride, out := GP64(), GP64(), GP64(), GP64()
	MOVQ(Mem{Base: a, Disp: accV}, v)
	MOVQ(Mem{Base: a, Disp: accStride}, stride)
	MOVQ(Mem{Base: a, Disp: accN}, n)
	MOVQ(Mem{Base: a, Disp: accOut}, out)
	p := make([]Register, nq)
	for i := range p {
		r := GP64()
		if i == 0 {
			MOVQ(Mem{Base: a, Disp: accP}, r)
		} else {
			MOVQ(p[i-1], r)
			ADDQ(Mem{Base: a, Disp: accPS}, r)
		}
		p[i] = r
	}
	var m *mask
	if masked {
		w := GP64()
		MOVQ(Mem{Base: a, Disp: accWidth}, w)
		mm := l.mask(w)
		m = &mm
	}
	acc := make([][]VecVirtual, nq)
	for i := range acc {
		acc[i] = l.regs(nz)
		for z, r := range acc[i] {
			loadMaybe(m, Mem{Base: out, Disp: z * l.bytes()}, r)
		}
		if i+1 < nq {
			ADDQ(Mem{Base: a, Disp: accOS}, out)
		}
	}
	size := 2
	if typ == "F32" {
		size = 4
	}
	i := GP64()
	XORQ(i, i)
	Label(name + "_loop")
	pv := l.regs(nq)
	for q := range pv {
		VBROADCASTSS(Mem{Base: p[q], Index: i, Scale: 4}, pv[q])
	}
	for z := range nz {
		row := l.reg()
		l.widenHalf(typ, Mem{Base: v, Disp: z * size * l.lanes}, m, row)
		for q := range pv {
			VFMADD231PS(row, pv[q], acc[q][z])
		}
	}
	ADDQ(stride, v)
	INCQ(i)
	CMPQ(i, n)
	JL(LabelRef(name + "_loop"))
	MOVQ(Mem{Base: a, Disp: accOut}, out)
	for q := range acc {
		for z, r := range acc[q] {
			at := Mem{Base: out, Disp: z * l.bytes()}
			if m != nil {
				m.store(r, at)
			} else {
				VMOVUPS(r, at)
			}
		}
		if q+1 < nq {
			ADDQ(Mem{Base: a, Disp: accOS}, out)
		}
	}
	end()
}
