package main

import (
	"fmt"
)

// Fused kernels decode and multiply four rows in one go, with up to four columns, or pairs of columns: codes stay in
// registers, sums for the whole row. They are for Q4_K, Q6_K and Q8_0. There are three ways to multiply:
//
//	rows    SDOT on codes as they lie in the file; the lanes of a row are added at the end
//	across  SDOT on transposed codes: a lane is a row
//	pairs   SMMLA on two rows and two columns
//
// Vector operations are what limits them, so constants are loaded where they are needed, which cores do while they
// multiply, instead of copied. Stores take vector operations on some cores.

// Registers of fused kernels. Rows are row0 to R4, as in decoders.
const (
	fSubs  R = 7 // groups of 32 that are left
	fXStep R = 9 // from block to block
	fX     R = 10
	fKeep  R = 14 // working memory, see keep
	fY     R = 15
	fYStep R = 16
	fPf    R = 19 // and the next three, one for each row
	fConst R = 23 // fusedConstants
)

// fusedConstants lie in memory; these are their places.
const (
	cMagic  = 0  // 1.5 * 2^23 in all lanes: where sums begin
	cFirst  = 16 // in the first lane: where sums over lanes begin
	cPlace  = 32 // four vectors: where byte 0, 1, 2, 3 of every dword goes to
	cBase   = 96 // 2^15. With byte 1 it is 2^15 more than that byte
	cMinus  = 112
	cSigned = 128
)

func fusedConstants() (b []byte) {
	b = append(b, same(magicBits)...)
	b = append(b, append(bits4(magicBits), make([]byte, 12)...)...)
	for i := range 4 {
		b = append(b, placer(i, 1)...)
	}
	for _, c := range []float64{1 << 15, -1 << 15, -1<<15 - 128} {
		b = append(b, floats(c, c, c, c)...)
	}
	return b
}

const maxFused = 4

// way is how a kernel multiplies.
type way int

const (
	byRows way = iota
	across
	pairs
)

// fusedKernel is a kernel at work.
type fusedKernel struct {
	*decoder
	way   way
	n     int // columns, or pairs of them
	bytes int // of a block
	mask  V   // constants of the type
	flip  V
	homes []V // registers that values of a block stay in
}

// sum is the sum of column c; pairs have two, h says which.
func (k *fusedKernel) sum(c, h int) V {
	if k.way == pairs {
		return V(24 + 2*c + h)
	}
	return V(20 + c)
}

// fused starts a kernel.
func (f *file) fused(name string, w way, n, bytes int, woven bool) *fusedKernel {
	k := &fusedKernel{decoder: &decoder{f, woven}, way: w, n: n, bytes: bytes, mask: 27, flip: 26}
	if woven {
		name += "Woven"
	}
	what, record := "columns", recBytes
	if w == pairs {
		name += "Pairs"
		what, record = "pairs of columns", pairBytes
		k.mask, k.flip = 7, 6
	}
	args := f.fn(fmt.Sprintf("fused%sx%d", name, n),
		"p *byte, w *byte, stride int, subs int, x *byte, xStep int, pf uintptr, y *float32, yStep int", "",
		fmt.Sprintf("multiplies four rows of subs groups of 32 values by %d %s. Strides and steps are as in\n"+
			"// decoders and in bytes; p is working memory, a quad.", n, what), "addBlock in generic.go")
	f.load(args["p"], fKeep)
	f.load(args["w"], row0)
	f.load(args["stride"], pitch)
	f.load(args["subs"], fSubs)
	f.load(args["x"], fX)
	f.load(args["xStep"], fXStep)
	f.load(args["pf"], fPf)
	f.load(args["y"], fY)
	f.load(args["yStep"], fYStep)
	f.p("MOVD $%s<>(SB), R%d", f.constant(fusedConstants()), fConst)
	if !woven {
		for r := R(1); r < 4; r++ {
			f.addR(row0+r, row0+r-1, pitch)
			f.addR(fPf+r, fPf+r-1, pitch)
		}
	}
	for c := range n {
		if c > 0 {
			f.addTo(fX+R(c), fX+R(c)-1, record)
		}
		f.zero(k.sum(c, 0))
		if w == pairs {
			f.zero(k.sum(c, 1))
		}
	}
	return k
}

// blocks emits the loop over blocks of 256 values.
func (k *fusedKernel) blocks(body func()) {
	k.p("LSR $3, R%d, R%d", fSubs, count)
	k.loop(count, 1, func() {
		if k.woven {
			for o := 0; o < k.bytes; o += 16 {
				k.p("PRFM %s, PLDL2KEEP", fPf.at(16*o))
			}
			k.addI(fPf, 16*k.bytes)
		} else {
			for r := range R(4) {
				for o := 0; o < k.bytes; o += 64 {
					k.p("PRFM %s, PLDL2KEEP", (fPf + r).at(o))
				}
				k.addI(fPf+r, k.bytes)
			}
		}
		body()
		if k.woven {
			k.addI(row0, 16*k.bytes)
		} else {
			for r := range R(4) {
				k.addI(row0+r, k.bytes)
			}
		}
		for c := range R(k.n) {
			k.addR(fX+c, fX+c, fXStep)
		}
	})
}

// end stores the sums.
func (k *fusedKernel) end() {
	store := func(v V, last bool) {
		k.stq(v, fY, 0)
		if !last {
			k.addR(fY, fY, fYStep)
		}
	}
	for c := range k.n {
		last := c+1 == k.n
		if k.way != pairs {
			store(k.sum(c, 0), last)
			continue
		}
		// {row 0 of both columns, row 2}, {row 1, row 3}
		k.pick("trn1", "S4", 0, k.sum(c, 0), k.sum(c, 1))
		k.pick("trn2", "S4", 1, k.sum(c, 0), k.sum(c, 1))
		store(0, false)
		store(1, last)
	}
	k.ret()
}

// Values of a block: four vectors of bytes that are scales (Q4_K: and minima), the half that they are multiplied with,
// and that of minima. Those without a register are in memory.
const (
	valBytes = 0
	valD     = 4
	valDMin  = 5

	keepTmp V = 12
)

// keep makes value i with set, which gets the register to write.
func (k *fusedKernel) keep(i int, set func(v V)) {
	if i < len(k.homes) {
		set(k.homes[i])
		return
	}
	set(keepTmp)
	k.stq(keepTmp, fKeep, 16*i)
}

// value returns the register of value i, which is t if it has none.
func (k *fusedKernel) value(i int, t V) V {
	if i < len(k.homes) {
		return k.homes[i]
	}
	k.ldq(t, fKeep, 16*i)
	return t
}

// lessAt is where the half, times what bytes are too large by as numbers, is with a minus: of scales and of minima.
func (k *fusedKernel) lessAt(min int) int { return 96 + 16*min }

// keepD keeps the half in v and its product with the constant at off.
func (k *fusedKernel) keepD(min, off int, v V) {
	const t V = 11
	k.ldq(t, fConst, off)
	k.fmul(t, t, v)
	k.stq(t, fKeep, k.lessAt(min))
}

// header reads 16 bytes of all rows into V0 to V3, transposed.
func (k *fusedKernel) header(off int) {
	for i := range 4 {
		if k.woven {
			k.ldq(V(i), row0, 16*off+64*i)
		} else {
			k.ldq(V(i), row0+R(i), off)
		}
	}
	if !k.woven {
		k.transpose4([4]V{0, 1, 2, 3}, [4]V{8, 9, 10, 11})
	}
}

// headerQ4K keeps the scales and minima of a block.
func (k *fusedKernel) headerQ4K() {
	k.header(0)
	k.pick("uzp1", "H8", 8, 0, 0)
	k.pick("uzp2", "H8", 9, 0, 0)
	for i := range 2 {
		k.keep(valD+i, func(v V) {
			k.fcvtl(v, 8+V(i))
			k.keepD(i, cMinus, v)
		})
	}
	k.bytesOf(8, 0x3f)
	k.ushr(9, 1, 6)
	k.ushr(10, 2, 6)
	k.keep(valBytes, func(v V) { k.and(v, 1, 8) })
	k.keep(valBytes+2, func(v V) { k.and(v, 2, 8) })
	k.keep(valBytes+3, func(v V) {
		k.ushr(v, 3, 4)
		k.sli(v, 10, 4)
	})
	k.keep(valBytes+1, func(v V) {
		k.and(v, 3, k.mask)
		k.sli(v, 9, 4)
	})
}

// headerQ6K keeps the scales of a block. They are a quarter because codes are four times as large.
func (k *fusedKernel) headerQ6K() {
	k.halves(4, 208)
	k.constVec(5, tmp, floats(.25, .25, .25, .25))
	k.keep(valD, func(v V) {
		k.fmul(v, 4, 5)
		k.keepD(0, cSigned, v)
	})
	k.header(192)
	k.bytesOf(8, 0x80)
	for i := range 4 {
		k.keep(valBytes+i, func(v V) { k.eor(v, V(i), 8) })
	}
}

// scale makes the scales, or minima, of sub-block j: byte times half. It uses three more registers.
func (k *fusedKernel) scale(to V, j, min int, t [3]V) {
	number := t[0]
	k.ldq(number, fConst, cBase)
	k.ldq(t[1], fConst, cPlace+16*(j%4))
	k.tbx(number, k.value(valBytes+2*min+j/4, t[2]), t[1])
	k.ldq(to, fKeep, k.lessAt(min))
	k.fmla(to, number, k.value(valD+min, t[2]))
}

// two are the two sub-blocks that share bytes: their numbers, and how many values they have.
type two struct {
	sub  [2]int
	size int
	min  bool
}

func (t two) xs(j int) int { return t.sub[j] * t.size / 32 }

// Registers while products are added: scales, minima, and 1.5 * 2^23.
const (
	aScale V = 0
	aMin   V = 1
	aMagic V = 3
)

// add adds the products of column c with sub-block j, in a, to its sum. Read as a float a is 1.5 * 2^23 more: a
// subtraction is faster than a conversion on many cores.
func (k *fusedKernel) add(t two, c, j int, a V) {
	const x V = 12
	k.fsub(a, a, aMagic)
	k.fmul(a, a, aScale)
	k.lds(x, fX+R(c), recScale+4*t.xs(j))
	k.fmlaLane(k.sum(c, 0), a, x, 0)
	if t.min {
		k.lds(x, fX+R(c), recMs32+4*t.sub[j])
		k.fmlsLane(k.sum(c, 0), aMin, x, 0)
	}
}

// total adds the lanes of four rows into the first.
func (k *fusedKernel) total(a V) {
	k.addp(a, a, a+1)
	k.addp(a+2, a+2, a+3)
	k.addp(a, a, a+2)
}

// products multiplies two sub-blocks by all columns. fetch brings 16 bytes of the rows; it may use the registers of
// products only where a sub-block has no more. codes makes codes of both sub-blocks of vector i.
func (k *fusedKernel) products(t two, fetch func(h int), codes func(i int) (lo, hi V)) {
	acc := func(j, i int) V { return V(4 + 4*j + i) } // i is the column, or the row
	x := func(j, c int) V { return V(12 + 4*j + c) }
	first, chains := cMagic, k.n
	if k.way == byRows {
		first, chains = cFirst, 4
	}
	for h := range t.size / 16 {
		fetch(h)
		for j := range 2 {
			for i := range chains {
				if h == 0 {
					k.ldq(acc(j, i), fConst, first)
				}
			}
			for c := range k.n {
				k.ldq(x(j, c), fX+R(c), t.sub[j]*t.size+16*h)
			}
		}
		for i := range 4 {
			lo, hi := codes(i)
			if k.way == byRows {
				k.sdot(acc(0, i), lo, x(0, 0))
				k.sdot(acc(1, i), hi, x(1, 0))
				continue
			}
			for j, v := range []V{lo, hi} {
				for c := range k.n {
					k.sdotLane(acc(j, c), v, x(j, c), i)
				}
			}
		}
	}
	for j := range 2 {
		if k.way == byRows {
			k.total(acc(j, 0))
		}
		free := [3]V{2, 3, 24}
		k.scale(aScale, t.sub[j], 0, free)
		if t.min {
			k.scale(aMin, t.sub[j], 1, free)
		}
		k.ldq(aMagic, fConst, cMagic)
		for c := range k.n {
			k.add(t, c, j, acc(j, c))
		}
	}
}

// square multiplies sub-block j by all pairs of columns. codes returns group g, eight values, of rows 0 and 2 and of
// rows 1 and 3, and scales the scales as the products have their lanes. Codes may use V0 and V1, scales V0 to V5.
func (k *fusedKernel) square(t two, j int, codes func(g int) (a, b V), scales func() (a, b V)) {
	acc := func(c, h int) V { return V(16 + 2*c + h) }
	for c := range k.n {
		k.ldq(acc(c, 0), fConst, cMagic)
		k.ldq(acc(c, 1), fConst, cMagic)
	}
	sub := t.sub[j]
	for g := range t.size / 8 {
		a, b := codes(g)
		for c := range k.n {
			x := V(2 + c%2)
			k.ldq(x, fX+R(c), 2*sub*t.size+16*g)
			k.smmla(acc(c, 0), a, x)
			k.smmla(acc(c, 1), b, x)
		}
	}
	const x, magic V = 4, 5
	a, b := scales()
	if t.min {
		k.scale(x, sub, 1, [3]V{2, 3, 5})
		k.pick("trn1", "S4", 2, x, x)
		k.pick("trn2", "S4", 3, x, x)
	}
	k.ldq(magic, fConst, cMagic)
	for c := range k.n {
		for h, by := range []V{a, b} {
			k.fsub(acc(c, h), acc(c, h), magic)
			k.fmul(acc(c, h), acc(c, h), by)
		}
		k.ldq(x, fX+R(c), pairScale+16*t.xs(j))
		k.fmla(k.sum(c, 0), acc(c, 0), x)
		k.fmla(k.sum(c, 1), acc(c, 1), x)
		if t.min {
			k.ldq(x, fX+R(c), pairMs32+16*sub)
			k.fmls(k.sum(c, 0), 2, x)
			k.fmls(k.sum(c, 1), 3, x)
		}
	}
}

// pairedScales makes the scales of sub-block j for square.
func (k *fusedKernel) pairedScales(j int) func() (a, b V) {
	return func() (a, b V) {
		k.scale(4, j, 0, [3]V{0, 1, 2})
		k.pick("trn1", "S4", 0, 4, 4)
		k.pick("trn2", "S4", 1, 4, 4)
		return 0, 1
	}
}

// pairHomes are the registers that pairs leave free.
func (k *fusedKernel) pairHomes() (v []V) {
	for c := k.n; c < maxFused; c++ {
		v = append(v, k.sum(c, 0), k.sum(c, 1))
	}
	return v
}

// rowsOf reads 16 bytes at off of all rows, for the way that the kernel multiplies: rows, transposed, or paired as rows
// 0 and 2, 1 and 3 of the first eight values, then of the others. t are registers that are free.
func (k *fusedKernel) rowsOf(v [4]V, off int, t [4]V) {
	for i := range 4 {
		to := v[i]
		if k.way == pairs {
			to = t[i]
		}
		if k.woven {
			k.ldq(to, row0, 16*(off+4*i))
		} else {
			k.ldq(to, row0+R(i), off)
		}
	}
	switch {
	case k.way == across && !k.woven:
		k.transpose4(v, t)
	case k.way == pairs && k.woven:
		for i := 0; i < 4; i += 2 {
			k.pick("trn1", "S4", v[i], t[i], t[i+1])
			k.pick("trn2", "S4", v[i+1], t[i], t[i+1])
		}
	case k.way == pairs:
		k.pick("trn1", "D2", v[0], t[0], t[2])
		k.pick("trn1", "D2", v[1], t[1], t[3])
		k.pick("trn2", "D2", v[2], t[0], t[2])
		k.pick("trn2", "D2", v[3], t[1], t[3])
	}
}

func (f *file) fusedQ4K(w way, n int, woven bool) {
	k := f.fused("Q4K", w, n, 144, woven)
	k.homes = []V{28, 29, 30, 31, 26, 25}
	if w == pairs {
		k.homes = k.pairHomes()
	}
	k.bytesOf(k.mask, 15)
	k.blocks(func() {
		k.headerQ4K()
		for c := range 4 {
			t := two{sub: [2]int{2 * c, 2*c + 1}, size: 32, min: true}
			at := 16 + 32*c
			if w != pairs {
				k.products(t, func(h int) {
					k.rowsOf([4]V{0, 1, 2, 3}, at+16*h, [4]V{12, 13, 14, 15})
				}, func(i int) (lo, hi V) {
					k.and(24, V(i), k.mask)
					k.ushr(V(i), V(i), 4)
					return 24, V(i)
				})
				continue
			}
			for h := range V(2) {
				k.rowsOf([4]V{8 + 4*h, 9 + 4*h, 10 + 4*h, 11 + 4*h}, at+16*int(h), [4]V{0, 1, 2, 3})
			}
			for j := range 2 {
				k.square(t, j, func(g int) (a, b V) {
					for i := range V(2) {
						if j == 0 {
							k.and(i, 8+V(2*g)+i, k.mask)
						} else {
							k.ushr(i, 8+V(2*g)+i, 4)
						}
					}
					return 0, 1
				}, k.pairedScales(t.sub[j]))
			}
		}
	})
	k.end()
}

// codesQ6K makes codes of two sub-blocks from their low and high bits; i is the first one's number in its half. They
// are four times as large as they should be, so that the offset of 32 is the sign: the upper of two high bits turned.
func (k *fusedKernel) codesQ6K(lo, hi, low, high V, i int) {
	k.eor(high, high, k.flip)
	k.shl(lo, low, 2)
	if i < 2 {
		k.sli(lo, high, 6)
		k.shl(high, high, 2)
	} else {
		k.ushr(hi, high, 2)
		k.sli(lo, hi, 6)
	}
	k.sri(high, low, 2)
	k.and(hi, high, k.mask)
}

func (f *file) fusedQ6K(w way, n int, woven bool) {
	k := f.fused("Q6K", w, n, 210, woven)
	switch {
	case w == pairs:
		k.homes = k.pairHomes()
	case n <= 3: // columns that are not there
		k.homes = []V{15, 19, 23}
	}
	if w != pairs && n <= 2 {
		k.homes = append(k.homes, 14, 18)
	}
	k.bytesOf(k.mask, 0xfc)
	k.bytesOf(k.flip, 0xaa)
	k.blocks(func() {
		k.headerQ6K()
		for h := range 2 {
			for i := range 4 {
				t := two{sub: [2]int{8*h + i, 8*h + i + 4}, size: 16}
				low, high := 64*h+i/2*32+i%2*16, 128+32*h+i%2*16
				if w != pairs {
					k.products(t, func(int) {
						k.rowsOf([4]V{0, 1, 2, 3}, low, [4]V{4, 5, 6, 7})
						k.rowsOf([4]V{28, 29, 30, 31}, high, [4]V{8, 9, 10, 11})
					}, func(v int) (lo, hi V) {
						k.codesQ6K(24, 25, V(v), V(28+v), i)
						return 24, 25
					})
					continue
				}
				// The registers of sums are free before they begin.
				k.rowsOf([4]V{16, 17, 18, 19}, low, [4]V{0, 1, 2, 3})
				k.rowsOf([4]V{20, 21, 22, 23}, high, [4]V{0, 1, 2, 3})
				for v := range V(4) {
					k.codesQ6K(8+v, 12+v, 16+v, 20+v, i)
				}
				for j := range 2 {
					k.square(t, j, func(g int) (a, b V) { return V(8 + 4*j + 2*g), V(9 + 4*j + 2*g) },
						k.pairedScales(t.sub[j]))
				}
			}
		}
	})
	k.end()
}

func (f *file) fusedQ80(w way, n int) {
	k := f.fused("Q80", w, n, 34, false)
	// A block of activations is eight of the weights; the last one may be shorter.
	block, done := k.label("block"), k.label("done")
	if w != pairs {
		k.ldq(aMagic, fConst, cMagic)
	}
	k.mark(block)
	for j := range 8 {
		k.p("CBZ R%d, %s", fSubs, done)
		k.p("SUB $1, R%d, R%d", fSubs, fSubs)
		if j%2 == 0 {
			for r := range R(4) {
				k.p("PRFM %s, PLDL2KEEP", (fPf + r).at(0))
				k.addI(fPf+r, 68)
			}
		}
		t := two{sub: [2]int{j}, size: 32}
		k.halves(aScale, 0)
		if w == pairs {
			k.pick("trn1", "S4", 6, aScale, aScale)
			k.pick("trn2", "S4", 7, aScale, aScale)
		}
		for h := range 2 {
			at := V(24 + 4*h)
			if w == pairs {
				at = V(8 + 4*h)
			}
			k.rowsOf([4]V{at, at + 1, at + 2, at + 3}, 2+16*h, [4]V{0, 1, 2, 3})
		}
		for r := range 4 {
			k.addI(row0+R(r), 34)
		}
		if w == pairs {
			k.square(t, 0, func(g int) (a, b V) { return V(8 + 2*g), V(9 + 2*g) }, func() (a, b V) { return 6, 7 })
			continue
		}
		for c := range n {
			for r := range V(4) {
				k.ldq(4+r, fConst, cFirst)
			}
			for h := range V(2) {
				k.ldq(8, fX+R(c), 32*j+16*int(h))
				for r := range V(4) {
					k.sdot(4+r, 24+4*h+r, 8)
				}
			}
			k.total(4)
			k.add(t, c, 0, 4)
		}
	}
	for c := range R(n) {
		k.addR(fX+c, fX+c, fXStep)
	}
	k.p("B %s", block)
	k.mark(done)
	k.end()
}

func (f *file) fusedKernels() {
	for n := 1; n <= maxFused; n++ {
		fromFile := across
		if n == 1 { // transposing pays with the second column
			fromFile = byRows
		}
		f.fusedQ4K(fromFile, n, false)
		f.fusedQ4K(across, n, true)
		f.fusedQ6K(fromFile, n, false)
		f.fusedQ6K(across, n, true)
		f.fusedQ80(byRows, n)
		for _, woven := range []bool{false, true} {
			f.fusedQ4K(pairs, n, woven)
			f.fusedQ6K(pairs, n, woven)
		}
		f.fusedQ80(pairs, n)
	}
}
