package main

import "fmt"

// Offsets inside a record of activations (qmat/acts.go).
const (
	recBytes  = 480
	recScale  = 256
	recMs32   = 320
	recMs16   = 416
	magicBits = 0x4b400000 // 1.5 * 2^23
)

// Offsets inside a pair of records (qmat/asm_arm64.go): values of two columns, eight of one and eight of the other,
// then scales and products with minima as [sub-block]{first, second, first, second}.
const (
	pairScale = 512
	pairMs32  = 640
	pairMs16  = 768
	pairBytes = 1024
)

// kind is how sub-blocks enter the sum (qmat/format.go).
type kind struct {
	name string
	sub  int
	min  bool
}

var kinds = []kind{{"Off32", 32, false}, {"Min32", 32, true}, {"Off16", 16, false}, {"Min16", 16, true}}

// order16 is the order in which the sub-blocks of 16 of half a block are added.
var order16 = []int{0, 4, 1, 5, 2, 6, 3, 7}

// Registers of micro kernels.
const (
	mCodes R = 0
	mScale R = 1 // minima lie 256 bytes behind
	mY     R = 2
	mStep  R = 3
	mCount R = 4
	mX     R = 5  // values of column 0, then of the others
	mXS    R = 10 // scales of column 0, then of the others
	mTmp   R = 15
	mMS    R = 19 // products with minima of column 0, then of the others
)

const (
	vY     V = 24 // sums of the columns
	vScale V = 20
	vMin   V = 21
	vMagic V = 22 // 1.5 * 2^23 in all lanes
	vStart V = 23 // its bits in the first lane: where sums over lanes begin
)

// micro starts a kernel for n columns and loads the sums.
func (f *file) micro(name string, k kind, n int, doc string) {
	name = fmt.Sprintf("%s%sx%d", name, k.name, n)
	args := f.fn(name, "codes *byte, scales *byte, x *byte, y *float32, yStep int, iters int", "",
		doc+"\n// y has four sums for each column, yStep bytes apart. iters counts sub-blocks of 32, or halves of a block.",
		"addBlock in generic.go")
	f.load(args["codes"], mCodes)
	f.load(args["scales"], mScale)
	f.load(args["x"], mX)
	f.load(args["y"], mY)
	f.load(args["yStep"], mStep)
	f.load(args["iters"], mCount)
}

// columns sets the pointers of n records and loads their sums.
func (f *file) columns(k kind, n int) {
	ms := recMs32
	if k.sub == 16 {
		ms = recMs16
	}
	for c := range R(n) {
		if c > 0 {
			f.addTo(mX+c, mX+c-1, recBytes)
		}
		f.addTo(mXS+c, mX+c, recScale)
		f.addTo(mMS+c, mX+c, ms)
	}
	f.sums(n, func(v V, at R) { f.ldq(v, at, 0) })
}

// sums goes through the sums of the columns.
func (f *file) sums(n int, do func(v V, at R)) {
	at := mY
	for c := range n {
		if c > 0 {
			f.addR(mTmp, at, mStep)
			at = mTmp
		}
		do(vY+V(c), at)
	}
}

func (f *file) finish(n int) {
	f.sums(n, func(v V, at R) { f.stq(v, at, 0) })
	f.ret()
}

// addRows adds what is left in V16 after the lanes were added.
func (f *file) addRows(k kind, c, xs, ms int, dot bool) {
	if !dot {
		f.addS(16, 16, vMagic)
	}
	f.add(k, c, 16, 17, xs, ms)
}

// add adds a, an integer in every lane that began as magicBits, times scales to the sum of column c. Read as a float
// it is 1.5 * 2^23 plus the integer: a subtraction is faster than a conversion on many cores. The scale of the
// activations is at xs of the column's pointer.
func (f *file) add(k kind, c int, a, t V, xs, ms int) {
	f.fsub(a, a, vMagic)
	f.fmul(a, a, vScale)
	f.lds(t, mXS+R(c), xs)
	f.fmlaLane(vY+V(c), a, t, 0)
	if k.min {
		f.lds(t, mMS+R(c), ms)
		f.fmlaLane(vY+V(c), vMin, t, 0)
	}
}

// moveMin moves the pointer to the products with minima, where there are any.
func (f *file) moveMin(k kind, c R, by int) {
	if k.min {
		f.addI(mMS+c, by)
	}
}

// loadScales loads scales (and minima) of a sub-block.
func (f *file) loadScales(k kind, off int) {
	f.ldq(vScale, mScale, off)
	if k.min {
		f.ldq(vMin, mScale, 256+off)
	}
}

// subBlocks emits the loop over the sub-blocks. body gets the offset of the values, of the codes, of the activations'
// scale and of their products with minima, from pointers that move on.
func (f *file) subBlocks(k kind, n, codeStep int, body func(x, codes, xs, ms int)) {
	if k.sub == 32 {
		f.loop(mCount, 1, func() {
			f.loadScales(k, 0)
			body(0, 0, 0, 0)
			f.addI(mCodes, codeStep)
			f.addI(mScale, 16)
			for c := range R(n) {
				f.addI(mX+c, 32)
				f.addI(mXS+c, 4)
				f.moveMin(k, c, 4)
			}
		})
		return
	}
	f.loop(mCount, 1, func() {
		for _, i := range order16 {
			f.loadScales(k, 16*i)
			body(16*i, 16*i*codeStep/32, i/2*4, 4*i)
		}
		f.addI(mCodes, 4*codeStep)
		f.addI(mScale, 128)
		for c := range R(n) {
			f.addI(mX+c, 128)
			f.addI(mXS+c, 16)
			f.moveMin(k, c, 32)
		}
	})
}

// Kernels on rows: codes are [row][256], lanes of a product belong to one row and are added at the end.

// rows emits the kernel of n columns, with dot products or with NEON alone.
func (f *file) rows(k kind, n int, dot bool) {
	name, what := "neon", "NEON alone"
	if dot {
		name, what = "rows", "SDOT"
	}
	f.micro(name, k, n, fmt.Sprintf("multiplies four rows by %d columns with %s.", n, what))
	f.columns(k, n)
	f.constVec(vMagic, mTmp, same(magicBits))
	if dot {
		f.constVec(vStart, mTmp, append(bits4(magicBits), make([]byte, 12)...))
	}
	if k.sub == 32 {
		f.subBlocks(k, n, 32, func(x, codes, xs, ms int) {
			for r := range 4 {
				f.ldp(V(2*r), V(2*r+1), mCodes, 256*r+codes)
			}
			for c := range n {
				f.ldp(8, 9, mX+R(c), x)
				for r := range V(4) {
					a := 16 + r
					switch {
					case dot:
						f.mov(a, vStart)
						f.sdot(a, 2*r, 8)
						f.sdot(a, 2*r+1, 9)
					case k.min: // codes up to 63: four products fit into 16 bits
						f.smull(a, 2*r, 8)
						f.smlal2(a, 2*r, 8)
						f.smlal(a, 2*r+1, 9)
						f.smlal2(a, 2*r+1, 9)
						f.saddlp(a, a)
					default: // two do
						f.smull(a, 2*r, 8)
						f.smull(10+r, 2*r+1, 9)
						f.smlal2(a, 2*r, 8)
						f.smlal2(10+r, 2*r+1, 9)
						f.saddlp(a, a)
						f.sadalp(a, 10+r)
					}
				}
				f.addp(16, 16, 17)
				f.addp(18, 18, 19)
				f.addp(16, 16, 18)
				f.addRows(k, c, xs, ms, dot)
			}
		})
		f.finish(n)
		return
	}
	f.subBlocks(k, n, 32, func(x, codes, xs, ms int) {
		for r := range 4 {
			f.ldq(V(r), mCodes, 256*r+codes)
		}
		for c := range n {
			f.ldq(8, mX+R(c), x)
			for r := range V(4) {
				a := 16 + r
				if dot {
					f.mov(a, vStart)
					f.sdot(a, r, 8)
				} else {
					f.smull(a, r, 8)
					f.smlal2(a, r, 8)
					f.saddlp(a, a)
				}
			}
			f.addp(16, 16, 17)
			f.addp(18, 18, 19)
			f.addp(16, 16, 18)
			f.addRows(k, c, xs, ms, dot)
		}
	})
	f.finish(n)
}

// across emits the kernel on transposed codes, [k/4][row][k%4]: a lane of a product is a row, and four activations
// are one lane of a vector.
func (f *file) across(k kind, n int) {
	f.micro("across", k, n, fmt.Sprintf("multiplies four transposed rows by %d columns with SDOT.", n))
	f.columns(k, n)
	f.constVec(vMagic, mTmp, same(magicBits))
	vectors := k.sub / 4
	f.subBlocks(k, n, 128, func(x, codes, xs, ms int) {
		for i := 0; i < vectors; i += 2 {
			f.ldp(V(i), V(i+1), mCodes, codes+16*i)
		}
		for c := range n {
			if k.sub == 32 {
				f.ldp(V(8+2*c), V(9+2*c), mX+R(c), x)
			} else {
				f.ldq(V(8+2*c), mX+R(c), x)
			}
		}
		acc := func(c int) V { return V(16 + c) }
		for c := range n {
			f.mov(acc(c), vMagic)
		}
		for i := range vectors {
			for c := range n {
				f.sdotLane(acc(c), V(i), V(8+2*c+i/4), i%4)
			}
		}
		for c := range n {
			f.add(k, c, acc(c), V(8+2*c), xs, ms)
		}
	})
	f.finish(n)
}

// pairs emits the kernel on paired codes, [k/8][rows 0 and 2, rows 1 and 3][8], for n pairs of columns: a product has
// two rows and two columns.
func (f *file) pairs(k kind, n int) {
	f.micro("pairs", k, n, fmt.Sprintf("multiplies four paired rows by %d pairs of columns with SMMLA.", n))
	for c := R(1); c < R(n); c++ {
		f.addTo(mX+c, mX+c-1, pairBytes)
	}
	ms := pairMs32
	if k.sub == 16 {
		ms = pairMs16
	}
	for c := range R(n) {
		f.addTo(mXS+c, mX+c, pairScale)
		f.addTo(mMS+c, mX+c, ms)
	}
	f.constVec(vMagic, mTmp, same(magicBits))
	sum := func(c, r int) V { return V(24 + 2*c + r) }
	at := func(c int) R {
		if c == 0 {
			return mY
		}
		f.addR(mTmp, map[bool]R{true: mY, false: mTmp}[c == 1], mStep)
		return mTmp
	}
	for c := range n {
		f.ldp(sum(c, 0), sum(c, 1), at(c), 0)
	}
	groups := k.sub / 8
	body := func(x, codes, scale, xs, ms int) {
		f.ldq(12, mScale, scale)
		f.pick("trn1", "S4", 20, 12, 12)
		f.pick("trn2", "S4", 21, 12, 12)
		if k.min {
			f.ldq(12, mScale, 256+scale)
			f.pick("trn1", "S4", 18, 12, 12)
			f.pick("trn2", "S4", 19, 12, 12)
		}
		for i := range groups {
			f.ldp(V(2*i), V(2*i+1), mCodes, codes+32*i)
		}
		for c := range n {
			for i := 0; i < groups; i += 2 {
				f.ldp(V(8+i), V(9+i), mX+R(c), x+16*i)
			}
			f.mov(12, vMagic)
			f.mov(13, vMagic)
			for i := range groups {
				f.smmla(12, V(2*i), V(8+i))
				f.smmla(13, V(2*i+1), V(8+i))
			}
			f.ldq(14, mXS+R(c), xs)
			f.fsub(12, 12, vMagic)
			f.fsub(13, 13, vMagic)
			f.fmul(12, 12, 20)
			f.fmul(13, 13, 21)
			f.fmla(sum(c, 0), 12, 14)
			f.fmla(sum(c, 1), 13, 14)
			if k.min {
				f.ldq(15, mMS+R(c), ms)
				f.fmla(sum(c, 0), 18, 15)
				f.fmla(sum(c, 1), 19, 15)
			}
		}
	}
	if k.sub == 32 {
		f.loop(mCount, 1, func() {
			body(0, 0, 0, 0, 0)
			f.addI(mCodes, 128)
			f.addI(mScale, 16)
			for c := range R(n) {
				f.addI(mX+c, 64)
				f.addI(mXS+c, 16)
				f.moveMin(k, c, 16)
			}
		})
	} else {
		f.loop(mCount, 1, func() {
			for _, i := range order16 {
				body(32*i, 64*i, 16*i, 16*(i/2), 16*i)
			}
			f.addI(mCodes, 512)
			f.addI(mScale, 128)
			for c := range R(n) {
				f.addI(mX+c, 256)
				f.addI(mXS+c, 64)
				f.moveMin(k, c, 128)
			}
		})
	}
	for c := range n {
		f.stp(sum(c, 0), sum(c, 1), at(c), 0)
	}
	f.ret()
}

// orders emits what changes the order of a quad's codes.
func (f *file) orders() {
	start := func(name, doc string) {
		args := f.fn(name, "dst *byte, src *byte", "", doc, "the comment of type order in asm_arm64.go")
		f.load(args["dst"], 0)
		f.load(args["src"], 1)
	}
	start("rowsToAcross", "transposes the codes of four rows.")
	for i := range 16 {
		v := [4]V{0, 1, 2, 3}
		for r := range 4 {
			f.ldq(v[r], 1, 256*r+16*i)
		}
		f.transpose4(v, [4]V{4, 5, 6, 7})
		f.stp(0, 1, 0, 64*i)
		f.stp(2, 3, 0, 64*i+32)
	}
	f.ret()
	start("rowsToPairs", "pairs the codes of four rows.")
	for i := range 16 {
		for r := range 4 {
			f.ldq(V(r), 1, 256*r+16*i)
		}
		f.pick("trn1", "D2", 4, 0, 2)
		f.pick("trn1", "D2", 5, 1, 3)
		f.pick("trn2", "D2", 6, 0, 2)
		f.pick("trn2", "D2", 7, 1, 3)
		f.stp(4, 5, 0, 64*i)
		f.stp(6, 7, 0, 64*i+32)
	}
	f.ret()
	start("acrossToPairs", "pairs the codes of four transposed rows.")
	for g := range 32 {
		f.ldp(0, 1, 1, 32*g)
		f.pick("trn1", "S4", 2, 0, 1)
		f.pick("trn2", "S4", 3, 0, 1)
		f.stp(2, 3, 0, 32*g)
	}
	f.ret()

	args := f.fn("pairRecords", "dst *byte, a *byte, b *byte", "", "puts two records side by side.", "record in acts.go")
	f.load(args["dst"], 0)
	f.load(args["a"], 1)
	f.load(args["b"], 2)
	for i := range 16 {
		f.ldq(0, 1, 16*i)
		f.ldq(1, 2, 16*i)
		f.pick("trn1", "D2", 2, 0, 1)
		f.pick("trn2", "D2", 3, 0, 1)
		f.stp(2, 3, 0, 32*i)
	}
	// [a0 a1 a2 a3], [b0 b1 b2 b3] to {a0 b0 a0 b0} and so on.
	spread := func(from, to, n int) {
		for i := 0; i < n; i += 4 {
			f.ldq(0, 1, from+4*i)
			f.ldq(1, 2, from+4*i)
			f.pick("zip1", "S4", 2, 0, 1)
			f.pick("zip2", "S4", 3, 0, 1)
			f.pick("trn1", "D2", 4, 2, 2)
			f.pick("trn2", "D2", 5, 2, 2)
			f.pick("trn1", "D2", 6, 3, 3)
			f.pick("trn2", "D2", 7, 3, 3)
			f.stp(4, 5, 0, to+16*i)
			f.stp(6, 7, 0, to+16*i+32)
		}
	}
	spread(recScale, pairScale, 8)
	spread(recMs32, pairMs32, 8)
	spread(recMs16, pairMs16, 16)
	f.ret()
}

// Columns that the kernels take at most.
const (
	maxNeon   = 4
	maxRows   = 2
	maxAcross = 4
	maxPairs  = 4
)

func (f *file) micros() {
	f.orders()
	for _, k := range kinds {
		for n := 1; n <= maxNeon; n++ {
			f.rows(k, n, false)
		}
		for n := 1; n <= maxRows; n++ {
			f.rows(k, n, true)
		}
		for n := 1; n <= maxAcross; n++ {
			f.across(k, n)
		}
		for n := 1; n <= maxPairs; n++ {
			f.pairs(k, n)
		}
	}
}
