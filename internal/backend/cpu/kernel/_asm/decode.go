package main

// Decoders of package qmat. Each takes four rows of up to 256 values apart into a quad: signed codes, then the scales
// and minima of the sub-blocks as [sub-block][row]float32.
const (
	quadScale = 1024
	quadMin   = 1280
)

// Registers of decoders.
const (
	dst   R = 0 // the quad
	row0  R = 1 // and R2 to R4, the other rows
	pitch R = 5 // bytes from row to row
	count R = 6 // blocks
	fetch R = 7 // rows to prefetch
	tmp   R = 8
	scPtr R = 9
	table R = 10
	tmp2  R = 11
)

// decoder writes one function. Codes of woven weights (qmat.Matrix.Weave) are in dwords of 16 rows; a vector is then a
// dword of four rows, and codes are left in that order: [k/4][row][k%4].
type decoder struct {
	*file
	woven bool
}

// decoder starts a function for blocks of so many values and bytes.
func (f *file) decoder(name string, values, bytes int, woven bool) *decoder {
	d := &decoder{f, woven}
	doc := "decodes four rows, stride bytes apart, of blocks to p and prefetches four rows at pf."
	if woven {
		name += "Woven"
		doc = "decodes one block of four rows of a woven panel to p; stride is twice the first row. It prefetches the" +
			"\n// same part of the panel at pf."
	}
	args := f.fn("decode"+name, "p *byte, w *byte, stride int, blocks int, pf uintptr", "", doc, "format.block in format.go")
	f.load(args["p"], dst)
	f.load(args["w"], row0)
	f.load(args["stride"], pitch)
	f.load(args["pf"], fetch)
	if woven {
		for o := 0; o+4 <= bytes; o += 4 { // a line for every dword of 16 rows: a quarter of them for each four rows
			if o/4%4 == 0 {
				f.p("PRFM %s, PLDL2KEEP", fetch.at(16*o))
			}
		}
		return d
	}
	f.load(args["blocks"], count)
	for r := R(1); r < 4; r++ {
		f.addR(row0+r, row0+r-1, pitch)
	}
	lines := (256/values*bytes + 63) / 64
	for r := range 4 {
		for l := range lines {
			f.p("PRFM %s, PLDL2KEEP", fetch.at(64*l))
		}
		if r < 3 {
			f.addR(fetch, fetch, pitch)
		}
	}
	return d
}

// each goes through n bytes of all rows, a vector at a time. Offsets given to ld count from the start of a block, those
// to st from the first code.
func (d *decoder) each(n int, body func(ld func(v V, off int), st func(v V, k int))) {
	if d.woven {
		for o := 0; o < n; o += 4 {
			body(func(v V, off int) { d.ldq(v, row0, 16*(off+o)) }, func(v V, k int) { d.stq(v, dst, 4*(k+o)) })
		}
		return
	}
	for r := range 4 {
		for o := 0; o < n; o += 16 {
			body(func(v V, off int) { d.ldq(v, row0+R(r), off+o) }, func(v V, k int) { d.stq(v, dst, 256*r+k+o) })
		}
	}
}

// words reads the 16 bytes at off of every row into V0 to V3, transposed: V0 has the first dword of all rows.
func (d *decoder) words(off int) {
	if d.woven {
		for i := range 4 {
			d.ldq(V(i), row0, 16*off+64*i)
		}
		return
	}
	for r := range 4 {
		d.ldq(V(r), row0+R(r), off)
	}
	d.transpose4([4]V{0, 1, 2, 3}, [4]V{4, 5, 6, 7})
}

// halves reads the half at off of every row as float32.
func (d *decoder) halves(v V, off int) {
	if d.woven { // the two bytes that are left over, which lie 2 apart
		d.p("SUB R%d, R%d, R%d", pitch, row0, tmp)
		d.ldd(v, tmp, 16*off)
	} else {
		d.lanes(v, "H", off)
	}
	d.fcvtl(v, v)
}

// lanes reads a half or a dword at off of every row. Halves go through general registers: reading into lanes takes a
// vector operation for each, one after the other.
func (d *decoder) lanes(v V, t string, off int) {
	if t == "H" {
		const next R = 17
		for r := range 4 {
			at := (row0 + R(r)).at(off)
			if r == 0 {
				d.p("MOVHU %s, R%d", at, tmp)
				continue
			}
			d.p("MOVHU %s, R%d", at, next)
			d.p("ORR R%d<<%d, R%d, R%d", next, 16*r, tmp, tmp)
		}
		d.p("FMOVD R%d, F%d", tmp, v)
		return
	}
	for r := range 4 {
		at := row0 + R(r)
		if r == 0 {
			d.lds(v, at, off) // clears the others, so that nothing waits for what was there
			continue
		}
		if off != 0 {
			d.addTo(tmp, at, off)
			at = tmp
		}
		d.ldLane(v, t, r, at)
	}
}

// twoHalves splits dwords into halves and converts them.
func (d *decoder) twoHalves(lo, hi, from V) {
	d.pick("uzp1", "H8", lo, from, from)
	d.pick("uzp2", "H8", hi, from, from)
	d.fcvtl(lo, lo)
	d.fcvtl(hi, hi)
}

// Constants of decoders in registers.
const (
	vFirst V = 28 // and V29 to V31: where byte 0, 1, 2, 3 of every dword goes to
	vNib   V = 27 // 0x0f
	v30    V = 26 // 0x30
	vSub   V = 25 // the offset of codes
	vTab   V = 24 // values of codes
	vBit   V = 23
	vBig   V = 21 // magicBits in every lane, for scales without a sign
)

func (d *decoder) bytesOf(v V, b byte) { d.movi(v, int(b)) }

// placers make vFirst and the next three the indices that take byte i of every dword to its lowest byte, or to its
// highest one.
func (d *decoder) placers(high bool) {
	to := 0
	if high {
		to = 3
	}
	for i := range 4 {
		d.constVec(vFirst+V(i), tmp, placer(i, to))
	}
}

// placer is the index that takes byte i of every dword to another one.
func placer(i, to int) []byte {
	idx := sameB(255)
	for r := range 4 {
		idx[4*r+to] = byte(4*r + i)
	}
	return idx
}

// big loads vBig.
func (d *decoder) big() { d.constVec(vBig, tmp, same(magicBits)) }

// scales turns byte i of the dwords in from into scales number sub+i, multiplied by d, at off of the quad.
func (d *decoder) scales(from V, sub int, by V, signed bool, off int) {
	for i := range 4 {
		const t V = 22
		d.tbl(t, from, vFirst+V(i))
		if signed { // in the highest byte
			d.scvtfShift(t, t, 24)
		} else { // what a conversion does, which is slow on many cores
			d.orr(t, t, vBig)
			d.fsub(t, t, vBig)
		}
		d.fmul(t, t, by)
		d.stq(t, dst, off+16*(sub+i))
	}
}

// bit takes bit b of every byte of n to bit `to`.
func (d *decoder) bit(v, n V, b, to int, mask V) {
	switch {
	case b < to:
		d.shl(v, n, to-b)
		n = v
	case b > to:
		d.ushr(v, n, b-to)
		n = v
	}
	d.and(v, n, mask)
}

// scales6 decodes the header of Q4_K and Q5_K.
func (d *decoder) scales6() {
	d.placers(false)
	d.big()
	d.bytesOf(vNib, 15)
	d.bytesOf(v30, 0x30)
	d.bytesOf(16, 0x3f)
	d.words(0)
	d.twoHalves(4, 5, 0)
	d.fneg(5, 5)
	d.and(6, 1, 16) // scales 0-3
	d.and(7, 2, 16) // minima 0-3
	d.ushr(1, 1, 2)
	d.ushr(2, 2, 2)
	d.and(1, 1, v30)
	d.and(2, 2, v30)
	d.and(17, 3, vNib)
	d.ushr(18, 3, 4)
	d.orr(17, 17, 1) // scales 4-7
	d.orr(18, 18, 2) // minima 4-7
	d.scales(6, 0, 4, false, quadScale)
	d.scales(17, 4, 4, false, quadScale)
	d.scales(7, 0, 5, false, quadMin)
	d.scales(18, 4, 5, false, quadMin)
}

func (f *file) decodeQ4K(woven bool) {
	d := f.decoder("Q4K", 256, 144, woven)
	d.scales6()
	for c := range 4 {
		d.each(32, func(ld, st func(V, int)) {
			ld(0, 16+32*c)
			d.and(1, 0, vNib)
			d.ushr(2, 0, 4)
			st(1, 64*c)
			st(2, 64*c+32)
		})
	}
	f.ret()
}

func (f *file) decodeQ5K() {
	d := f.decoder("Q5K", 256, 176, false)
	d.scales6()
	d.bytesOf(vBit, 16)
	d.each(32, func(ld, st func(V, int)) {
		ld(3, 16)
		for c := range 4 {
			ld(0, 48+32*c)
			d.and(1, 0, vNib)
			d.ushr(2, 0, 4)
			d.bit(4, 3, 2*c, 4, vBit)
			d.bit(5, 3, 2*c+1, 4, vBit)
			d.orr(1, 1, 4)
			d.orr(2, 2, 5)
			st(1, 64*c)
			st(2, 64*c+32)
		}
	})
	f.ret()
}

func (f *file) decodeQ6K(woven bool) {
	d := f.decoder("Q6K", 256, 210, woven)
	d.placers(true)
	d.bytesOf(vNib, 15)
	d.bytesOf(v30, 0x30)
	d.bytesOf(vSub, 32)
	d.words(192)
	d.halves(16, 208)
	for i := range 4 {
		d.scales(V(i), 4*i, 16, true, quadScale)
	}
	for h := range 2 {
		d.each(32, func(ld, st func(V, int)) {
			ld(0, 64*h)
			ld(1, 64*h+32)
			ld(2, 128+32*h)
			d.and(4, 0, vNib)
			d.and(5, 1, vNib)
			d.ushr(6, 0, 4)
			d.ushr(7, 1, 4)
			d.shl(16, 2, 4)
			d.shl(17, 2, 2)
			d.ushr(18, 2, 2)
			d.and(16, 16, v30)
			d.and(17, 17, v30)
			d.and(19, 2, v30)
			d.and(18, 18, v30)
			for i, high := range []V{16, 17, 19, 18} {
				d.orr(V(4+i), V(4+i), high)
				d.subB(V(4+i), V(4+i), vSub)
				st(V(4+i), 128*h+32*i)
			}
		})
	}
	f.ret()
}

func (f *file) decodeQ2K() {
	d := f.decoder("Q2K", 256, 84, false)
	d.placers(false)
	d.big()
	d.bytesOf(vNib, 15)
	d.bytesOf(vBit, 3)
	d.words(0)
	d.lanes(16, "S", 80)
	d.twoHalves(4, 5, 16)
	d.fneg(5, 5)
	for i := range 4 {
		d.and(6, V(i), vNib)
		d.ushr(7, V(i), 4)
		d.scales(6, 4*i, 4, false, quadScale)
		d.scales(7, 4*i, 5, false, quadMin)
	}
	for h := range 2 {
		d.each(32, func(ld, st func(V, int)) {
			ld(0, 16+32*h)
			for s := range 4 {
				n := V(0)
				if s > 0 {
					d.ushr(1, 0, 2*s)
					n = 1
				}
				d.and(1, n, vBit)
				st(1, 128*h+32*s)
			}
		})
	}
	f.ret()
}

func (f *file) decodeQ3K() {
	d := f.decoder("Q3K", 256, 110, false)
	d.placers(true)
	d.bytesOf(vNib, 15)
	d.bytesOf(v30, 0x30)
	d.bytesOf(vSub, 32)
	// 12 bytes of scales and the half end the block, so the 16 bytes begin two too early.
	for r := range 4 {
		d.ldq(V(r), row0+R(r), 94)
		d.ext(V(r), V(r), V(r), 2)
	}
	d.transpose4([4]V{0, 1, 2, 3}, [4]V{4, 5, 6, 7})
	d.pick("uzp1", "H8", 16, 3, 3)
	d.fcvtl(16, 16)
	d.and(4, 0, vNib)
	d.and(5, 1, vNib)
	d.ushr(6, 0, 4)
	d.ushr(7, 1, 4)
	d.shl(17, 2, 4)
	d.shl(18, 2, 2)
	d.mov(19, 2)
	d.ushr(20, 2, 2)
	for i := range 4 {
		d.and(V(17+i), V(17+i), v30)
		d.orr(V(4+i), V(4+i), V(17+i))
		d.subB(V(4+i), V(4+i), vSub)
		d.scales(V(4+i), 4*i, 16, true, quadScale)
	}
	d.bytesOf(vNib, 3)
	d.bytesOf(vSub, 4)
	d.each(32, func(ld, st func(V, int)) {
		ld(3, 0)
		for i := range 8 {
			if i%4 == 0 {
				ld(0, 32+i/4*32)
			}
			n := V(0)
			if i%4 > 0 {
				d.ushr(1, 0, i%4*2)
				n = 1
			}
			d.and(1, n, vNib)
			d.bit(2, 3, i, 2, vSub)
			d.orr(1, 1, 2)
			d.subB(1, 1, vSub)
			st(1, 32*i)
		}
	})
	f.ret()
}

var (
	iq4 = signed(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
	fp4 = signed(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
)

func signed(v ...int8) (b []byte) {
	for _, x := range v {
		b = append(b, byte(x))
	}
	return b
}

func (f *file) decodeIQ4XS() {
	d := f.decoder("IQ4XS", 256, 136, false)
	d.constVec(vTab, tmp, iq4)
	d.bytesOf(vNib, 15)
	d.constVec(v30, tmp, same(0x30))
	d.constVec(vSub, tmp, same(32))
	d.constVec(vBit, tmp, same(15))
	d.words(0)
	d.pick("uzp1", "H8", 16, 0, 0)
	d.fcvtl(16, 16)
	d.ushrS(0, 0, 16)
	for j := range 8 { // (low nibble | two high bits << 4) - 32
		n := V(1)
		if j > 0 {
			d.ushrS(2, 1, 4*j)
			n = 2
		}
		d.and(2, n, vBit)
		switch {
		case j < 2:
			d.shlS(3, 0, 4-2*j)
		case j == 2:
			d.mov(3, 0)
		default:
			d.ushrS(3, 0, 2*j-4)
		}
		d.and(3, 3, v30)
		d.orr(2, 2, 3)
		d.subS(2, 2, vSub)
		d.scvtf(2, 2)
		d.fmul(2, 2, 16)
		d.stq(2, dst, quadScale+16*j)
	}
	for j := range 8 {
		d.each(16, func(ld, st func(V, int)) {
			ld(0, 8+16*j)
			d.and(1, 0, vNib)
			d.ushr(2, 0, 4)
			d.tbl(1, vTab, 1)
			d.tbl(2, vTab, 2)
			st(1, 32*j)
			st(2, 32*j+16)
		})
	}
	f.ret()
}

// byteScales looks the byte at off of every row up in a table of float32.
func (d *decoder) byteScales(v V, off int) {
	for r := range 4 {
		d.p("MOVBU %s, R%d", (row0 + R(r)).at(off), tmp)
		d.p("ADD R%d<<2, R%d, R%d", tmp, table, tmp2)
		d.ldLane(v, "S", r, tmp2)
	}
}

// small is a type with 32 values in a block.
type small struct {
	name   string
	bytes  int
	head   int // bytes before the nibbles, without those of the fifth bits
	five   bool
	min    bool
	offset byte
	table  []byte
	eight  bool // codes are bytes
	power  bool // the scale is a byte, looked up in qmat's table e8m0
}

func (f *file) decodeSmall(s small) {
	d := f.decoder(s.name, 32, s.bytes, false)
	d.addTo(scPtr, dst, quadScale)
	d.bytesOf(vNib, 15)
	if s.offset != 0 {
		d.bytesOf(vSub, s.offset)
	}
	if s.table != nil {
		d.constVec(vTab, tmp, s.table)
	}
	if s.power {
		d.p("MOVD $·e8m0(SB), R%d", table)
	}
	head := s.head
	if s.five {
		head += 4
		d.bytesOf(vBit, 16)
		var bits, low, high []byte
		for i := range 16 {
			bits, low, high = append(bits, 1<<(i%8)), append(low, byte(i/8)), append(high, byte(2+i/8))
		}
		d.constVec(vFirst, tmp, bits)
		d.constVec(vFirst+1, tmp, low)
		d.constVec(vFirst+2, tmp, high)
	}
	d.loop(count, 1, func() {
		switch {
		case s.min:
			d.lanes(0, "S", 0)
			d.twoHalves(1, 2, 0)
			d.stq(2, scPtr, quadMin-quadScale)
		case s.power:
			d.byteScales(1, 0)
		default:
			d.halves(1, 0)
		}
		d.stq(1, scPtr, 0)
		for r := range 4 {
			row := row0 + R(r)
			d.ldq(3, row, head)
			if s.eight {
				d.ldq(4, row, head+16)
				d.stp(3, 4, dst, 256*r)
				continue
			}
			d.and(4, 3, vNib)
			d.ushr(5, 3, 4)
			if s.five {
				d.lds(6, row, s.head)
				for i := range V(2) {
					d.tbl(7, 6, vFirst+1+i)
					d.cmtst(7, 7, vFirst)
					d.and(7, 7, vBit)
					d.orr(4+i, 4+i, 7)
				}
			}
			for v := V(4); v < 6; v++ {
				if s.offset != 0 {
					d.subB(v, v, vSub)
				}
				if s.table != nil {
					d.tbl(v, vTab, v)
				}
			}
			d.stp(4, 5, dst, 256*r)
		}
		for r := range 4 {
			d.addI(row0+R(r), s.bytes)
		}
		d.addI(dst, 32)
		d.addI(scPtr, 16)
	})
	f.ret()
}

func (f *file) decodeNVFP4() {
	d := f.decoder("NVFP4", 64, 36, false)
	d.addTo(scPtr, dst, quadScale)
	d.bytesOf(vNib, 15)
	d.constVec(vTab, tmp, fp4)
	d.p("MOVD $·e4m3(SB), R%d", table)
	d.loop(count, 1, func() {
		for s := range 4 {
			d.byteScales(1, s)
			d.stq(1, scPtr, 16*s)
		}
		for r := range 4 {
			for h := range 2 { // a sub-block is eight low nibbles, then eight high ones
				d.ldq(3, row0+R(r), 4+16*h)
				d.and(4, 3, vNib)
				d.ushr(5, 3, 4)
				d.tbl(4, vTab, 4)
				d.tbl(5, vTab, 5)
				d.pick("trn1", "D2", 6, 4, 5)
				d.pick("trn2", "D2", 7, 4, 5)
				d.stp(6, 7, dst, 256*r+32*h)
			}
		}
		for r := range 4 {
			d.addI(row0+R(r), 36)
		}
		d.addI(dst, 64)
		d.addI(scPtr, 64)
	})
	f.ret()
}

func (f *file) decoders() {
	f.decodeQ4K(false)
	f.decodeQ4K(true)
	f.decodeQ5K()
	f.decodeQ6K(false)
	f.decodeQ6K(true)
	f.decodeQ2K()
	f.decodeQ3K()
	f.decodeIQ4XS()
	for _, s := range []small{
		{name: "Q40", bytes: 18, head: 2, offset: 8},
		{name: "Q41", bytes: 20, head: 4, min: true},
		{name: "Q50", bytes: 22, head: 2, five: true, offset: 16},
		{name: "Q51", bytes: 24, head: 4, five: true, min: true},
		{name: "Q80", bytes: 34, head: 2, eight: true},
		{name: "IQ4NL", bytes: 18, head: 2, table: iq4},
		{name: "MXFP4", bytes: 17, head: 1, table: fp4, power: true},
	} {
		f.decodeSmall(s)
	}
	f.decodeNVFP4()
}
