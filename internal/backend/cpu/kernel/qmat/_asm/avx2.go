package main

import (
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// AVX2 uses the same panels, eight rows per register. Its byte multiplication adds pairs
// of products in 16 bits with saturation, so codes are kept small (no power of two, no
// offset of 128); signed codes are split into magnitude and sign.

// form is a kind together with the range of its codes.
type form struct {
	name   string
	kind   kind
	depth  int  // vectors that can be added in 16 bits: 2*depth*largest code*127 < 2^15
	mul    int  // codes are this much smaller than what the record's offset is for
	signed bool // signed codes without offset
}

var forms = []form{
	{"Min32u4", min32, 8, 1, false},
	{"Min32u5", min32, 4, 1, false},
	{"Off32u4", off32, 8, 16, false},
	{"Off32u5", off32, 4, 8, false},
	{"Off32s8", off32, 1, 1, true},
	{"Off16u6", off16, 2, 1, false},
	{"Min16u2", min16, 4, 1, false},
	{"Min16u7", min16, 1, 1, false}, // codes up to 127
}

func ys(n int) []VecVirtual {
	r := make([]VecVirtual, n)
	for i := range r {
		r[i] = YMM()
	}
	return r
}

// wide is a 32-byte constant in memory: v in every dword.
func wide(v uint32) Mem {
	if !wideOpen {
		m, ok := wideMem[v]
		if !ok {
			panic(fmt.Sprintf("constant %#x is not declared", v))
		}
		return m
	}
	m := GLOBL(fmt.Sprintf("wide%08x", v), RODATA|NOPTR)
	for i := range 8 {
		DATA(4*i, U32(v))
	}
	wideMem[v] = m
	return m
}

var (
	wideMem  = map[uint32]Mem{}
	wideOpen bool
)

// initWide declares the constants; data cannot be declared inside a function.
func initWide() {
	wideOpen = true
	for _, v := range []uint32{m0f, m30, m3f, m10, mff, m80, signBit, magic, sixteenth, eighth, 0x00010001, 0x00100010,
		0x00080008,
		15, 32, 0x30, m03, m18, m20, m7f, bits0, bits1, exp118, two11, 1, 2, 8, 0x00200000, absMask, infBits - 1, tiny - 1,
		c127, 2048} {
		wide(v)
	}
	wideOpen = false
	wordsMem = GLOBL("lowWords", RODATA|NOPTR)
	for i := range 32 {
		v := 0x80
		if i%16 < 8 {
			v = i%16/2*4 + i%2
		}
		DATA(i, U8(v))
	}
	for i, t := range []*[16]byte{&iq4, &fp4, &nv4} {
		mul, off := []int{1, 8, 1}[i], []int{128, 128, 0}[i]
		m := GLOBL(fmt.Sprintf("codes%d", i), RODATA|NOPTR)
		for j := range 32 {
			DATA(j, U8(byte((int(t[j%16])-off)/mul)))
		}
		codesMem[t] = m
	}
}

var (
	wordsMem Mem
	codesMem = map[*[16]byte]Mem{}
)

// dotVEX emits VPDPBUSD b, w, acc (signed b, unsigned w), which the assembler only knows
// in the encoding of AVX-512.
func dotVEX(b, w, acc VecPhysical) {
	n := func(r VecPhysical) byte { return byte(r.PhysicalIndex()) }
	enc := []byte{0xc4, 0xe2 ^ n(acc)>>3<<7 ^ n(b)>>3<<5, ^n(w)&15<<3 | 5, 0x50, 0xc0 | n(acc)&7<<3 | n(b)&7}
	Comment(fmt.Sprintf("VPDPBUSD %s, %s, %s", b.Asm(), w.Asm(), acc.Asm()))
	in, out := []Op{b, w, acc}, []Op{acc}
	Instruction(&ir.Instruction{Opcode: "LONG", Operands: []Op{U32(binary.LittleEndian.Uint32(enc))}, Inputs: in,
		Outputs: out})
	Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []Op{U8(enc[4])}, Inputs: in, Outputs: out})
}

// format2 is a format as AVX2 decodes it, eight rows at a time.
type format2 struct {
	shape
	ticks  int // calls of tick per call of emit, if it does not transpose
	unroll bool
	woven  bool // rows are woven
	header func(e *env2)
	emit   func(e *env2, c int)
}

var formats2 = []*format2{
	{shape: q4k, header: header24K, emit: emit2Q4K},
	{shape: woven(q4k), woven: true, header: header24K, emit: emit2Q4K},
	{shape: q5k, unroll: true, header: header24K, emit: emit2Q5K},
	{shape: q6k, unroll: true, header: header2Q6K, emit: emit2Q6K},
	{shape: woven(q6k), woven: true, unroll: true, header: header2Q6K, emit: emit2Q6K},
	{shape: q80, emit: emit2Q80},
	{shape: q40, emit: emit2Q40},
	{shape: q41, emit: emit2Q41},
	{shape: q50, emit: emit2Q50},
	{shape: q51, emit: emit2Q51},
	{shape: q2k, unroll: true, header: header2Q2K, emit: emit2Q2K},
	{shape: q3k, unroll: true, header: header2Q3K, emit: emit2Q3K},
	{shape: mxfp4, emit: emit2MXFP4},
	{shape: nvfp4, emit: emit2NVFP4},
	{shape: iq4nl, emit: emit2IQ4NL},
	{shape: iq4xs, header: header2IQ4XS, emit: emit2IQ4XS},
}

// env2 is what a format sees of its decoder. All addresses are those of eight rows.
type env2 struct {
	b     [2]Register // rows 0 and 4; of woven rows only the first
	s, s3 Register
	tail  Register // of woven rows, the two bytes at the end of a block
	p     Register // panel
	pq    Register // codes of the chunk
	ps    Register // scales of the chunk
	k     kind
	pf    Register
	lines int
	ticks int
	at    int
}

func (e *env2) row(i, off int) Mem {
	m := Mem{Base: e.b[i/4], Disp: off}
	switch i % 4 {
	case 1:
		m.Index, m.Scale = e.s, 1
	case 2:
		m.Index, m.Scale = e.s, 2
	case 3:
		m.Index, m.Scale = e.s3, 1
	}
	return m
}

// tick marks a place between arithmetic where prefetches may go.
func (e *env2) tick() {
	for i := e.at * e.lines / e.ticks; i < (e.at+1)*e.lines/e.ticks; i++ {
		PREFETCHT1(mem(e.pf, 64*i))
	}
	e.at++
}

// transpose loads 16 bytes at off from eight rows and returns four vectors of dwords.
func (e *env2) transpose(off int) [4]VecVirtual {
	e.tick()
	var z [4]VecVirtual
	if e.tail != nil {
		for i := range z {
			z[i] = YMM()
			VMOVDQU(mem(e.b[0], 16*(off+4*i)), z[i])
		}
		return z
	}
	for i := range z {
		z[i] = YMM()
		VBROADCASTI128(e.row(i, off), z[i])
		VINSERTI128(U8(1), e.row(4+i, off), z[i], z[i])
	}
	t := ys(4)
	VPUNPCKLDQ(z[1], z[0], t[0])
	VPUNPCKHDQ(z[1], z[0], t[1])
	VPUNPCKLDQ(z[3], z[2], t[2])
	VPUNPCKHDQ(z[3], z[2], t[3])
	VPUNPCKLQDQ(t[2], t[0], z[0])
	VPUNPCKHQDQ(t[2], t[0], z[1])
	VPUNPCKLQDQ(t[3], t[1], z[2])
	VPUNPCKHQDQ(t[3], t[1], z[3])
	return z
}

// halves loads the half float at off of every row, which for woven rows must be the tail.
func (e *env2) halves(off int) VecVirtual {
	z := YMM()
	if e.tail != nil {
		VCVTPH2PS(mem(e.tail, 0), z)
		return z
	}
	x := z.AsX()
	VPBROADCASTW(e.row(0, off), x)
	for i := 1; i < 8; i++ {
		VPINSRW(U8(i), e.row(i, off), x, x)
	}
	VCVTPH2PS(x, z)
	return z
}

// low converts the half float in the low half of every dword.
func (e *env2) low(v VecVirtual) VecVirtual {
	z := YMM()
	VPSHUFB(wordsMem, v, z)
	VPERMQ(U8(0x08), z, z)
	VCVTPH2PS(z.AsX(), z)
	return z
}

func (e *env2) high(v VecVirtual) VecVirtual {
	z := YMM()
	VPSRLD(U8(16), v, z)
	return e.low(z)
}

func (e *env2) vec(sub, g int, v VecVirtual)  { VMOVDQU(v, mem(e.pq, (sub*e.k.sub/4+g)*64)) }
func (e *env2) scale(sub int, v VecVirtual)   { VMOVUPS(v, mem(e.ps, 64*sub)) }
func (e *env2) min(sub int, v VecVirtual)     { VMOVUPS(v, mem(e.ps, panelMin-panelScale+64*sub)) }
func (e *env2) and(v uint32, a, b VecVirtual) { VPAND(wide(v), a, b) }
func (e *env2) orAnd(v uint32, a, b VecVirtual) {
	VPAND(wide(v), a, a)
	VPOR(a, b, b)
}
func (e *env2) minus(v uint32, a, b VecVirtual) { VPSUBD(wide(v), a, b) }
func (e *env2) move(a, b VecVirtual)            { VMOVDQA(a, b) }
func (e *env2) reg() VecVirtual                 { return YMM() }
func (e *env2) blockScale(i int, v VecVirtual)  { e.scale(i, v) }
func (e *env2) nib(v VecVirtual) (lo, hi VecVirtual) {
	lo, hi = YMM(), YMM()
	e.and(m0f, v, lo)
	VPSRLD(U8(4), v, hi)
	e.and(m0f, hi, hi)
	return lo, hi
}

// decodeAVX2 emits the decoder of f: eight rows, then the other eight.
func decodeAVX2(f *format2) {
	name := "decode2" + f.name
	chunks := 256 / f.chunk
	bytes := 8 * f.bytes * 256 / f.length
	TEXT(name, NOSPLIT, "func(p *byte, w *byte, stride int, chunks int, pf uintptr, pfStep int)")
	doc := fmt.Sprintf("chunks counts %d values.", f.chunk)
	if f.header != nil {
		doc = "chunks is not used."
	}
	Doc(fmt.Sprintf("%s unpacks 256 values of 16 rows into a panel with the codes that AVX2 wants and prefetches %d "+
		"bytes at pf (pfStep is not used). %s", name, 2*bytes, doc),
		"Needs AVX2 and F16C.", refDecode)
	Pragma("noescape")
	e := &env2{k: f.kind, p: GP64(), pq: GP64(), ps: GP64()}
	p := Load(Param("p"), e.p.(GPVirtual))
	e.b = [2]Register{Load(Param("w"), GP64()), GP64()}
	e.s = Load(Param("stride"), GP64())
	e.pf = Load(Param("pf"), GP64())
	two := GP64()
	if f.woven {
		tail := GP64()
		LEAQ(mem(e.b[0], 16*(f.bytes&^3)), tail)
		e.tail = tail
	} else {
		s3 := GP64()
		LEAQ(Mem{Base: e.s, Index: e.s, Scale: 2}, s3)
		e.s3 = s3
	}
	MOVQ(I32(2), two)
	Label(name + "_rows")
	w := GP64()
	MOVQ(e.b[0], w)
	if !f.woven {
		LEAQ(Mem{Base: e.b[0], Index: e.s, Scale: 4}, e.b[1])
	}
	MOVQ(p, e.pq)
	LEAQ(mem(p, panelScale), e.ps)
	ticks := max(f.ticks, 1, f.chunk*f.bytes/f.length/16) // per chunk; close enough for prefetching
	if f.header != nil {
		e.lines, e.ticks = 1, 1
		f.header(e)
	}
	if f.unroll {
		e.at, e.lines, e.ticks = 0, (bytes+63)/64, ticks*chunks
		for c := range chunks {
			f.emit(e, c)
			ADDQ(I32(int32(f.chunk*16)), e.pq)
		}
		ADDQ(I32(int32(bytes)), e.pf)
	} else {
		e.at, e.lines, e.ticks = 0, (bytes/chunks+63)/64, ticks
		cnt := GP64()
		if f.header != nil {
			MOVQ(I32(int32(chunks)), cnt)
		} else {
			MOVQ(NewParamAddr("chunks", 24), cnt)
		}
		Label(name + "_loop")
		f.emit(e, 0)
		switch {
		case f.woven:
			ADDQ(I32(int32(16*f.step)), e.b[0])
		case f.step > 0:
			ADDQ(I32(int32(f.step)), e.b[0])
			ADDQ(I32(int32(f.step)), e.b[1])
		}
		ADDQ(I32(int32(f.chunk*16)), e.pq)
		ADDQ(I32(int32(64*f.chunk/f.kind.sub)), e.ps)
		ADDQ(I32(int32(bytes/chunks)), e.pf)
		DECQ(cnt)
		JNZ(LabelRef(name + "_loop"))
	}
	if f.woven {
		LEAQ(mem(w, 32), e.b[0])
		ADDQ(I8(16), e.tail)
	} else {
		LEAQ(Mem{Base: w, Index: e.s, Scale: 8}, e.b[0])
	}
	ADDQ(I8(32), p)
	DECQ(two)
	JNZ(LabelRef(name + "_rows"))
	VZEROUPPER()
	RET()
}

// times is byte j of every dword times d.
func (e *env2) times(v VecVirtual, j int, d VecVirtual) VecVirtual {
	z := byteOf(e, v, j)
	VCVTDQ2PS(z, z)
	VMULPS(d, z, z)
	return z
}

// header24K decodes the header of Q4_K and Q5_K.
func header24K(e *env2) {
	h := e.transpose(0)
	dm, d := e.high(h[0]), e.low(h[0])
	VPXOR(wide(signBit), dm, dm)
	sc, mn, t := ys(2), ys(2), YMM()
	e.and(m3f, h[1], sc[0])
	e.and(m3f, h[2], mn[0])
	VPSRLD(U8(2), h[1], sc[1])
	e.and(m30, sc[1], sc[1])
	e.and(m0f, h[3], t)
	VPOR(t, sc[1], sc[1])
	VPSRLD(U8(2), h[2], mn[1])
	e.and(m30, mn[1], mn[1])
	VPSRLD(U8(4), h[3], t)
	e.orAnd(m0f, t, mn[1])
	for j := range 8 {
		e.scale(j, e.times(sc[j/4], j%4, d))
		e.min(j, e.times(mn[j/4], j%4, dm))
	}
}

func emit2Q4K(e *env2, c int) {
	for h := range 2 {
		for i, v := range e.transpose(16 + 16*h) {
			lo, hi := e.nib(v)
			e.vec(0, 4*h+i, lo)
			e.vec(1, 4*h+i, hi)
		}
	}
}

func emit2Q5K(e *env2, c int) {
	for h := range 2 {
		qh := e.transpose(16 + 16*h)
		for i, v := range e.transpose(48 + 32*c + 16*h) {
			lo, hi := e.nib(v)
			t := YMM()
			shift(e, 4-2*c, qh[i], t)
			e.orAnd(m10, t, lo)
			shift(e, 3-2*c, qh[i], t)
			e.orAnd(m10, t, hi)
			e.vec(0, 4*h+i, lo)
			e.vec(1, 4*h+i, hi)
		}
	}
}

func header2Q6K(e *env2) {
	d := e.halves(208)
	scalesQ6K(e, d)
}

func emit2Q6K(e *env2, c int) {
	for l := range 2 { // sub-blocks l, l+2, l+4, l+6
		qh := e.transpose(128 + 32*c + 16*l)
		for t := range 2 {
			for i, v := range e.transpose(64*c + 32*t + 16*l) {
				lo, hi := e.nib(v)
				h := YMM()
				shift(e, 4-2*t, qh[i], h)
				e.orAnd(m30, h, lo)
				shift(e, -2*t, qh[i], h)
				e.orAnd(m30, h, hi)
				e.vec(2*t+l, i, lo)
				e.vec(4+2*t+l, i, hi)
			}
		}
	}
}

func emit2Q80(e *env2, c int) {
	e.scale(0, e.halves(0))
	for h := range 2 {
		for i, v := range e.transpose(2 + 16*h) {
			e.vec(0, 4*h+i, v)
		}
	}
}

func (e *env2) nibbles(off int) {
	for i, v := range e.transpose(off) {
		lo, hi := e.nib(v)
		e.vec(0, i, lo)
		e.vec(0, 4+i, hi)
	}
}

func emit2Q40(e *env2, c int) {
	d := e.halves(0)
	VMULPS(wide(sixteenth), d, d)
	e.scale(0, d)
	e.nibbles(2)
}

func emit2Q41(e *env2, c int) {
	e.scale(0, e.halves(0))
	e.min(0, e.halves(2))
	e.nibbles(4)
}

func (e *env2) lookup(off int, t *[16]byte) {
	for i, v := range e.transpose(off) {
		lo, hi := e.nib(v)
		tab := YMM()
		VMOVDQU(codesMem[t], tab)
		VPSHUFB(lo, tab, lo)
		VPSHUFB(hi, tab, hi)
		e.vec(0, i, lo)
		e.vec(0, 4+i, hi)
	}
}

func emit2IQ4NL(e *env2, c int) {
	e.scale(0, e.halves(0))
	e.lookup(2, &iq4)
}

func header2IQ4XS(e *env2) {
	h := e.transpose(0)
	d, hi := e.low(h[0]), YMM()
	VPSRLD(U8(16), h[0], hi)
	for j := range 8 {
		lo, t := YMM(), YMM()
		shift(e, -4*j, h[1], lo)
		e.and(15, lo, lo)
		shift(e, 4-2*j, hi, t)
		e.orAnd(0x30, t, lo)
		VPSUBD(wide(32), lo, lo)
		VCVTDQ2PS(lo, lo)
		VMULPS(d, lo, lo)
		e.scale(j, lo)
	}
}

func emit2IQ4XS(e *env2, c int) { e.lookup(8, &iq4) }

// dwords loads the dword at off of every row.
func (e *env2) dwords(off int) VecVirtual {
	var x [2]VecVirtual
	for h := range x {
		z := XMM()
		VMOVD(e.row(4*h, off), z)
		for i := 1; i < 4; i++ {
			VPINSRD(U8(i), e.row(4*h+i, off), z, z)
		}
		x[h] = z
	}
	z := YMM()
	VINSERTI128(U8(1), x[1], x[0].AsY(), z)
	return z
}

// fifth emits nibbles at off with the fifth bits in qh.
func (e *env2) fifth(off int, qh VecVirtual) {
	set := func(v VecVirtual, g int) {
		t, b := YMM(), YMM()
		VPSHUFB(spread().Offset(64*(g/2)), qh, t)
		VMOVDQU(wide([]uint32{bits0, bits1}[g%2]), b)
		VPAND(b, t, t)
		VPCMPEQB(b, t, t)
		e.orAnd(m10, t, v)
	}
	for i, v := range e.transpose(off) {
		lo, hi := e.nib(v)
		set(lo, i)
		set(hi, 4+i)
		e.vec(0, i, lo)
		e.vec(0, 4+i, hi)
	}
}

func emit2Q50(e *env2, c int) {
	d := e.halves(0)
	VMULPS(wide(eighth), d, d)
	e.scale(0, d)
	e.fifth(6, e.dwords(2))
}

func emit2Q51(e *env2, c int) {
	e.scale(0, e.halves(0))
	e.min(0, e.halves(2))
	e.fifth(8, e.dwords(4))
}

func header2Q2K(e *env2) {
	d, dm := e.halves(80), e.halves(82)
	VPXOR(wide(signBit), dm, dm)
	for i, v := range e.transpose(0) {
		sc, mn := e.nib(v)
		for j := range 4 {
			e.scale(4*i+j, e.times(sc, j, d))
			e.min(4*i+j, e.times(mn, j, dm))
		}
	}
}

func emit2Q2K(e *env2, c int) {
	for l := range 2 {
		for i, v := range e.transpose(16 + 32*c + 16*l) {
			for s := range 4 {
				z := YMM()
				shift(e, -2*s, v, z)
				e.and(m03, z, z)
				e.vec(2*s+l, i, z)
			}
		}
	}
}

func header2Q3K(e *env2) {
	a, b, c, d := e.dwords(96), e.dwords(100), e.dwords(104), e.halves(108)
	VMULPS(wide(eighth), d, d)
	scalesQ3K(e, a, b, c, d)
}

func emit2Q3K(e *env2, c int) {
	for l := range 2 {
		hm := e.transpose(16 * l)
		for i, v := range e.transpose(32 + 32*c + 16*l) {
			for s := range 4 {
				z, h := YMM(), YMM()
				shift(e, 3-2*s, v, z)
				e.and(m18, z, z)
				shift(e, 5-4*c-s, hm[i], h)
				e.orAnd(m20, h, z)
				e.vec(2*s+l, i, z)
			}
		}
	}
}

func emit2MXFP4(e *env2, c int) {
	e.lookup(1, &fp4)
	x, d, small, k := e.dwords(0), YMM(), YMM(), YMM()
	e.and(mff, x, x)
	VPSUBD(wide(1), x, d)
	VPSLLD(U8(23), d, d)
	VMOVDQU(wide(0x00200000), small)
	VPSLLVD(x, small, small)
	VMOVDQU(wide(2), k)
	VPCMPGTD(x, k, k)
	VPBLENDVB(k, small, d, d)
	e.scale(0, d)
}

func emit2NVFP4(e *env2, c int) {
	d := e.dwords(0)
	for s := range 4 {
		b, k := byteOf(e, d, s), YMM()
		VPCMPEQD(wide(m7f), b, k)
		e.and(m7f, b, b)
		z, small := YMM(), YMM()
		VPSLLD(U8(20), b, z)
		VPADDD(wide(exp118), z, z)
		VMOVDQU(wide(8), small)
		VPCMPGTD(b, small, small)
		VCVTDQ2PS(b, b)
		VMULPS(wide(two11), b, b)
		VPBLENDVB(small, b, z, z)
		VPANDN(z, k, z)
		e.scale(s, z)
	}
	for h := range 2 {
		for i, v := range e.transpose(4 + 16*h) {
			lo, hi := e.nib(v)
			tab := YMM()
			VMOVDQU(codesMem[&nv4], tab)
			VPSHUFB(lo, tab, lo)
			VPSHUFB(hi, tab, hi)
			g := 4*h + i
			e.vec(g/2, g%2, lo)
			e.vec(g/2, 2+g%2, hi)
		}
	}
}

// weave2 emits the kernel that weaves rows with AVX2, eight at a time.
func weave2() {
	TEXT("weave2", NOSPLIT, "func(dst *byte, w *byte, stride int, n int)")
	Doc("weave2 writes n times 16 bytes of 16 rows to dst, dword by dword of all rows. Needs AVX2.",
		"Reference: Matrix.Weave in weave.go.")
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	e := &env2{b: [2]Register{Load(Param("w"), GP64()), GP64()}, s: Load(Param("stride"), GP64()), ticks: 1}
	s3, two := GP64(), GP64()
	LEAQ(Mem{Base: e.s, Index: e.s, Scale: 2}, s3)
	e.s3 = s3
	MOVQ(I32(2), two)
	Label("weave2_rows")
	w, to := GP64(), GP64()
	MOVQ(e.b[0], w)
	MOVQ(dst, to)
	LEAQ(Mem{Base: e.b[0], Index: e.s, Scale: 4}, e.b[1])
	n := Load(Param("n"), GP64())
	Label("weave2_loop")
	for i, v := range e.transpose(0) {
		VMOVDQU(v, mem(to, 64*i))
	}
	ADDQ(I8(16), e.b[0])
	ADDQ(I8(16), e.b[1])
	ADDQ(I32(256), to)
	DECQ(n)
	JNZ(LabelRef("weave2_loop"))
	LEAQ(Mem{Base: w, Index: e.s, Scale: 8}, e.b[0])
	ADDQ(I8(32), dst)
	DECQ(two)
	JNZ(LabelRef("weave2_rows"))
	VZEROUPPER()
	RET()
}
