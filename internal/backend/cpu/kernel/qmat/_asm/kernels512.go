package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// shape is what both levels know of a weight type: formats.go has all of them.
type shape struct {
	name   string
	kind   kind
	length int // values per block of the file
	bytes  int // bytes per block of the file
	chunk  int // values per call of emit
	step   int // bytes the rows advance per call of emit
}

// format says how the blocks of one weight type become codes.
type format struct {
	shape
	ticks  int // calls of tick per call of emit
	unroll bool
	woven  bool     // rows are woven
	tiles  bool     // there is a kernel for tiles
	bytes3 bool     // header wants byte0
	roomy  int      // fused kernels with up to as many columns have registers to spare
	fused  int      // fused kernels exist for 1 to fused columns
	consts []uint32 // dword constants
	tables []*[16]byte
	// header writes the scales (and minima) of a block of 256 values to the panel.
	header func(e *env)
	// emit hands the codes of one chunk to the sink, chunk c counted from where the rows
	// are; c is zero unless unroll is set.
	emit func(e *env, c int)
}

// env is what a format sees of the kernel it is part of.
type env struct {
	sink
	rows
	p     Register   // panel, or scratch for its scales
	idx   VecVirtual // row * stride
	mg    VecVirtual
	byte0 Register // mask: the lowest byte of every dword
	c     map[uint32]VecVirtual
	t     map[*[16]byte]VecVirtual
	keep  []VecVirtual // registers of header that emit reads
	pf    Register
	lines int // to prefetch per chunk, in fused kernels
	// Decoders prefetch a number of lines that the caller sets by their distance.
	pfStep Register
	slots  int // per tick
	ticks  int // per chunk
	at     int
	tight  bool // few registers are free
}

// transpose32 returns 32 bytes of every row as eight vectors.
func (e *env) transpose32(off int) []VecVirtual {
	if e.tight {
		a, b := e.transpose512(off), e.transpose512(off+16)
		return append(a[:], b[:]...)
	}
	v := e.transpose512x32(off)
	return v[:]
}

// sink takes the codes of sub-blocks. Sub-blocks count from the start of the chunk.
type sink interface {
	begin(sub int)
	vec(sub, g int, v VecVirtual)
	end(sub int)
	scale(sub int, v VecVirtual) // for formats without header, before end
	min(sub int, v VecVirtual)
}

// tick marks a place between arithmetic where prefetches may go.
func (e *env) tick() {
	if e.pfStep != nil {
		for range e.slots {
			prefetch(e.pf, e.pfStep)
		}
		return
	}
	for i := e.at * e.lines / e.ticks; i < (e.at+1)*e.lines/e.ticks; i++ {
		PREFETCHT1(mem(e.pf, 64*i))
	}
	e.at = (e.at + 1) % e.ticks
}

func (e *env) k(v uint32) VecVirtual {
	z, ok := e.c[v]
	if !ok {
		panic(fmt.Sprintf("constant %#x is not declared", v))
	}
	return z
}

// zero clears z. avo takes VPXORD z, z, z for a use of z and would keep it alive from the
// start; any register will do as the source.
func (e *env) zero(z VecVirtual) { VPXORD(e.mg, e.mg, z) }

// gather loads the dword at off of every row.
func (e *env) gather(off int) VecVirtual {
	k, z := K(), ZMM()
	KXNORW(k, k, k)
	e.zero(z)
	VPGATHERDD(Mem{Base: e.b[0], Disp: off, Index: e.idx, Scale: 1}, k, z)
	return z
}

// low and high convert the half float in one half of every dword.
func (e *env) low(v VecVirtual) VecVirtual {
	z := ZMM()
	VPMOVDW(v, z.AsY())
	VCVTPH2PS(z.AsY(), z)
	return z
}

func (e *env) high(v VecVirtual) VecVirtual {
	z := ZMM()
	VPSRLD(U8(16), v, z)
	return e.low(z)
}

// newEnv loads what formats need before the loop.
func newEnv(f *format, w, stride Register) *env {
	e := &env{rows: newRows(w, stride, f.woven), c: map[uint32]VecVirtual{}, t: map[*[16]byte]VecVirtual{}, ticks: f.ticks}
	e.mg = bcast(magic)
	e.c[magic] = e.mg
	for _, v := range f.consts {
		e.c[v] = bcast(v)
	}
	for _, t := range f.tables {
		e.t[t] = ZMM()
		VBROADCASTI32X4(tableData(t), e.t[t])
	}
	if f.bytes3 {
		g := GP64()
		e.byte0 = K()
		MOVQ(U64(0x1111111111111111), g)
		KMOVQ(g, e.byte0)
	}
	if f.woven {
		return e
	}
	e.idx = ZMM()
	s := ZMM()
	VMOVDQU64(iota16(), e.idx)
	VPBROADCASTD(stride.(GPVirtual).As32(), s)
	VPMULLD(s, e.idx, e.idx)
	return e
}

var iotaData *Mem

func iota16() Mem {
	if iotaData == nil {
		m := GLOBL("iota16", RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(i))
		}
		iotaData = &m
	}
	return *iotaData
}

var tableMem = map[*[16]byte]Mem{}

func tableData(t *[16]byte) Mem {
	m, ok := tableMem[t]
	if !ok {
		m = GLOBL(fmt.Sprintf("table%d", len(tableMem)), RODATA|NOPTR)
		for i, v := range t {
			DATA(i, U8(v))
		}
		tableMem[t] = m
	}
	return m
}

// panelSink stores codes and scales.
type panelSink struct {
	k      kind
	pq, ps Register
	off    VecVirtual // subtracted from every code, or nil
}

func (s *panelSink) begin(sub int) {}
func (s *panelSink) end(sub int)   {}
func (s *panelSink) vec(sub, g int, v VecVirtual) {
	if s.off != nil {
		VPSUBB(s.off, v, v)
	}
	VMOVDQU64(v, mem(s.pq, (sub*s.k.sub/4+g)*64))
}
func (s *panelSink) scale(sub int, v VecVirtual) { VMOVUPS(v, mem(s.ps, 64*sub)) }
func (s *panelSink) min(sub int, v VecVirtual) {
	VMOVUPS(v, mem(s.ps, panelMin-panelScale+64*sub))
}

// prefetch fetches the line at pf and moves on. Steps of less than a line fetch fewer lines
// in as many slots.
func prefetch(pf, step Register) {
	PREFETCHT1(mem(pf, 0))
	ADDQ(step, pf)
}

// decode512 emits the decoder of f.
func decode512(f *format) {
	name := "decode" + f.name
	blocks := 256 / f.chunk
	slots := max(1, 64/(blocks*f.ticks))
	doc := fmt.Sprintf("chunks counts %d values.", f.chunk)
	if f.header != nil {
		doc = "chunks is not used."
	}
	TEXT(name, NOSPLIT, "func(p *byte, w *byte, stride int, chunks int, pf uintptr, pfStep int)")
	Doc(fmt.Sprintf("%s unpacks 256 values of 16 rows into a panel and prefetches %d lines, pfStep bytes apart, "+
		"from pf on. %s", name, slots*blocks*f.ticks, doc),
		"Needs AVX-512 F and BW.", refDecode)
	Pragma("noescape")
	p := Load(Param("p"), GP64())
	w := Load(Param("w"), GP64())
	stride := Load(Param("stride"), GP64())
	e := newEnv(f, w, stride)
	e.pf = Load(Param("pf"), GP64())
	e.p = p
	e.pfStep, e.slots = Load(Param("pfStep"), GP64()), slots
	s := &panelSink{k: f.kind, pq: GP64(), ps: GP64()}
	e.sink = s
	MOVQ(p, s.pq)
	LEAQ(mem(p, panelScale), s.ps)
	if f.header != nil {
		f.header(e)
	}
	if f.unroll {
		for c := range blocks {
			f.emit(e, c)
			ADDQ(I32(int32(f.chunk*16)), s.pq)
		}
	} else {
		var cnt Register
		if f.header != nil {
			cnt = GP64()
			MOVQ(I32(int32(blocks)), cnt)
		} else {
			cnt = Load(Param("chunks"), GP64())
		}
		Label(name + "_loop")
		f.emit(e, 0)
		if f.step > 0 {
			e.advance(f.step)
		}
		ADDQ(I32(int32(f.chunk*16)), s.pq)
		ADDQ(I32(int32(64*f.chunk/f.kind.sub)), s.ps)
		DECQ(cnt)
		JNZ(LabelRef(name + "_loop"))
	}
	VZEROUPPER()
	RET()
}

// fusedSink multiplies codes by nc columns as they come.
type fusedSink struct {
	e        *env
	k        kind
	nc       int
	header   bool     // scales are in memory at ps
	ps       Register // scales of the chunk
	xq, xf   Register // values and scales of the chunk
	xi       Register // fields per 16 values
	acc      map[int][]VecVirtual
	scales   map[int]VecVirtual
	mins     map[int]VecVirtual
	y        []VecVirtual
	subShift int // sub-blocks before the chunk, when unrolled
}

func (s *fusedSink) begin(sub int) {
	acc := zs(s.nc)
	s.acc[sub] = acc
	for c, a := range acc {
		if s.k.min {
			VMOVDQA64(s.e.mg, a)
		} else {
			VPBROADCASTD(s.field(c, s.k.initOff(), sub), a)
		}
	}
}

// field addresses a field per sub-block.
func (s *fusedSink) field(c, off, sub int) Mem {
	return mem(s.xf, c*recSize+off+4*(sub+s.subShift))
}

func (s *fusedSink) vec(sub, g int, v VecVirtual) {
	for c, a := range s.acc[sub] {
		VPDPBUSD_BCST(mem(s.xq, c*recSize+(sub+s.subShift)*s.k.sub+4*g), v, a)
	}
}

func (s *fusedSink) scale(sub int, v VecVirtual) { s.scales[sub] = v }
func (s *fusedSink) min(sub int, v VecVirtual)   { s.mins[sub] = v }

func (s *fusedSink) end(sub int) {
	ws, mw := s.scales[sub], ZMM()
	if s.header {
		ws = ZMM()
		VMOVUPS(mem(s.ps, 64*(sub+s.subShift)), ws)
	}
	VMULPS(s.e.mg, ws, mw)
	for c, a := range s.acc[sub] {
		VFMSUB213PS(mw, ws, a)
		VFMADD231PS_BCST(mem(s.xf, c*recSize+4*((sub+s.subShift)*s.k.sub/32)), a, s.y[c])
	}
	if s.k.min {
		mv := s.mins[sub]
		if s.header {
			mv = ZMM()
			VMOVUPS(mem(s.ps, panelMin-panelScale+64*(sub+s.subShift)), mv)
		}
		for c := range s.y {
			VFMADD231PS_BCST(s.field(c, s.k.msOff(), sub), mv, s.y[c])
		}
	}
	delete(s.acc, sub)
}

// fused512 emits the kernel that decodes and multiplies in one pass: y stays in
// registers over the whole row and codes are never stored.
func fused512(f *format, nc int) {
	name := fmt.Sprintf("fused%sx%d", f.name, nc)
	blocks := 256 / f.chunk
	TEXT(name, NOSPLIT, "func(p *byte, w *byte, stride int, blocks int, last int, x *byte, xStep int, pf uintptr, y "+
		"*float32, yStep int)")
	doc := "the last block has last chunks"
	if f.header != nil {
		doc = "last is not used"
	}
	Doc(fmt.Sprintf("%s multiplies 16 rows by %d columns. blocks counts 256 values; %s.", name, nc, doc),
		fmt.Sprintf("It uses panel p as scratch and prefetches %d bytes at pf per block. Steps are in "+
			"bytes. Needs AVX-512 F, BW and VNNI.", 16*f.bytes*256/f.length), refMul)
	Pragma("noescape")
	w := Load(Param("w"), GP64())
	stride := Load(Param("stride"), GP64())
	e := newEnv(f, w, stride)
	e.tight = nc > f.roomy
	s := &fusedSink{e: e, k: f.kind, nc: nc, header: f.header != nil, acc: map[int][]VecVirtual{},
		scales: map[int]VecVirtual{}, mins: map[int]VecVirtual{}}
	e.sink = s
	if f.header != nil {
		e.p = Load(Param("p"), GP64())
	}
	e.pf = Load(Param("pf"), GP64())
	x := Load(Param("x"), GP64())
	nb := Load(Param("blocks"), GP64())
	s.y = zs(nc)
	for _, y := range s.y {
		e.zero(y)
	}
	total := 16 * f.bytes * 256 / f.length
	Label(name + "_block")
	if f.header != nil {
		f.header(e)
	}
	if f.unroll {
		s.xq = x
		s.xf = GP64()
		LEAQ(mem(x, recXS), s.xf)
		s.ps = GP64()
		LEAQ(mem(e.p, panelScale), s.ps)
		e.lines, e.ticks = (total+63)/64, f.ticks*blocks
		for c := range blocks {
			s.subShift = c * f.chunk / f.kind.sub
			f.emit(e, c)
		}
		e.advance(f.bytes)
		ADDQ(I32(int32(total)), e.pf)
	} else {
		s.xq, s.xf = GP64(), GP64()
		MOVQ(x, s.xq)
		LEAQ(mem(x, recXS), s.xf)
		if f.header != nil {
			s.ps = GP64()
			LEAQ(mem(e.p, panelScale), s.ps)
		}
		e.lines = (total/blocks + 63) / 64
		cnt := GP64()
		MOVQ(I32(int32(blocks)), cnt)
		if f.header == nil {
			CMPQ(nb, Imm(1))
			CMOVQEQ(NewParamAddr("last", 32), cnt)
		}
		Label(name + "_chunk")
		f.emit(e, 0)
		if f.step > 0 {
			e.advance(f.step)
		}
		ADDQ(I32(int32(f.chunk)), s.xq)
		ADDQ(I32(int32(4*f.chunk/f.kind.sub)), s.xf)
		if f.header != nil {
			ADDQ(I32(int32(64*f.chunk/f.kind.sub)), s.ps)
		}
		ADDQ(I32(int32(total/blocks)), e.pf)
		DECQ(cnt)
		JNZ(LabelRef(name + "_chunk"))
		if rest := f.bytes*256/f.length - blocks*f.step; rest > 0 {
			e.advance(rest)
		}
	}
	ADDQ(NewParamAddr("xStep", 48), x)
	DECQ(nb)
	JNZ(LabelRef(name + "_block"))
	out, step := Load(Param("y"), GP64()), Load(Param("yStep"), GP64())
	for c, y := range s.y {
		VMOVUPS(y, mem(out, 0))
		if c < nc-1 {
			ADDQ(step, out)
		}
	}
	VZEROUPPER()
	RET()
}
