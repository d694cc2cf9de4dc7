package main

import "fmt"

// Fused kernels decode and multiply four rows in one go, with up to four columns: codes and scales stay in registers,
// sums for the whole row. They are for types with 256 values in a block, and Q8_0.

// Registers of fused kernels. Rows are row0 to R4, as in decoders.
const (
	fSubs  R = 7 // groups of 32 that are left
	fXStep R = 9 // from block to block
	fX     R = 10
	fY     R = 15
	fYStep R = 16
	fPf    R = 19 // and the next three, one for each row

	fAcc   V = 4
	fVal   V = 8
	fScale V = 12
	fMin   V = 13
	fD     V = 14
	fDMin  V = 15
	fBytes V = 16 // and the next three: scales and minima of four sub-blocks each
	fSum   V = 20
	fMagic V = 3 // 1.5 * 2^23 in all lanes
	fStart V = 9 // its bits in the first lane: where sums over lanes begin
)

const maxFused = 4

// fusedKernel is a kernel at work.
type fusedKernel struct {
	*decoder
	n     int // columns
	bytes int // of a block
}

// fused starts a kernel.
func (f *file) fused(name string, n, bytes int, woven bool) *fusedKernel {
	k := &fusedKernel{&decoder{f, woven}, n, bytes}
	if woven {
		name += "Woven"
	}
	args := f.fn(fmt.Sprintf("fused%sx%d", name, n),
		"w *byte, stride int, subs int, x *byte, xStep int, pf uintptr, y *float32, yStep int", "",
		fmt.Sprintf("multiplies four rows of subs groups of 32 values by %d columns. Strides and steps are as in\n"+
			"// decoders and in bytes.", n), "addBlock in generic.go")
	f.load(args["w"], row0)
	f.load(args["stride"], pitch)
	f.load(args["subs"], fSubs)
	f.load(args["x"], fX)
	f.load(args["xStep"], fXStep)
	f.load(args["pf"], fPf)
	f.load(args["y"], fY)
	f.load(args["yStep"], fYStep)
	if !woven {
		for r := R(1); r < 4; r++ {
			f.addR(row0+r, row0+r-1, pitch)
			f.addR(fPf+r, fPf+r-1, pitch)
		}
	}
	for c := range R(n) {
		if c > 0 {
			f.addTo(fX+c, fX+c-1, recBytes)
		}
		f.zero(fSum + V(c))
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
	for c := range k.n {
		k.stq(fSum+V(c), fY, 0)
		if c+1 < k.n {
			k.addR(fY, fY, fYStep)
		}
	}
	k.ret()
}

// add adds the products of column c, which began with magicBits and are in a. It overwrites the activations.
func (k *fusedKernel) add(c int, a V, xs, ms int) {
	const t = fVal
	k.fsub(a, a, fMagic)
	k.fmul(a, a, fScale)
	k.lds(t, fX+R(c), xs)
	k.fmlaLane(fSum+V(c), a, t, 0)
	if ms > 0 {
		k.lds(t, fX+R(c), ms)
		k.fmlaLane(fSum+V(c), fMin, t, 0)
	}
}

// total adds the lanes of four rows into the first.
func (k *fusedKernel) total() {
	k.addp(fAcc, fAcc, fAcc+1)
	k.addp(fAcc+2, fAcc+2, fAcc+3)
	k.addp(fAcc, fAcc, fAcc+2)
}

// rows multiplies 32 codes of four rows by those of column c.
func (k *fusedKernel) rows(c, j int, code [4][2]V) {
	for h := range 2 {
		k.ldq(fVal, fX+R(c), 32*j+16*h)
		for r := range V(4) {
			if h == 0 {
				k.mov(fAcc+r, fStart)
			}
			k.sdot(fAcc+r, code[r][h], fVal)
		}
	}
	k.total()
}

// scale makes the scale, or minimum, of sub-block j from the bytes from on.
func (k *fusedKernel) scale(to, from V, j int, by V, signed bool) {
	k.tbl(to, from+V(j/4), vFirst+V(j%4))
	// An or and a subtraction are what a conversion is, which is slow on many cores.
	k.orr(to, to, fMagic)
	if signed { // bytes plus 128
		k.fsub(to, to, fMagic128)
	} else {
		k.fsub(to, to, fMagic)
	}
	k.fmul(to, to, by)
}

// constants loads fMagic and fStart.
func (k *fusedKernel) constants() {
	k.constVec(fMagic, tmp, same(magicBits))
	if !k.woven {
		k.constVec(fStart, tmp, append(bits4(magicBits), make([]byte, 12)...))
	}
}

// fMagic128 is 1.5 * 2^23 + 128.
const fMagic128 V = 13

func (f *file) fusedQ4K(n int, woven bool) {
	k := f.fused("Q4K", n, 144, woven)
	k.placers(false)
	k.bytesOf(vNib, 15)
	nibble := func(to, from V, j int) {
		if j%2 == 0 {
			k.and(to, from, vNib)
		} else {
			k.ushr(to, from, 4)
		}
	}
	k.blocks(func() {
		k.words(0) // overwrites constants
		k.twoHalves(fD, fDMin, 0)
		k.fneg(fDMin, fDMin)
		k.bytesOf(8, 0x3f)
		k.bytesOf(9, 0x30)
		k.and(fBytes, 1, 8)
		k.and(fBytes+2, 2, 8)
		k.ushr(1, 1, 2)
		k.ushr(2, 2, 2)
		k.and(1, 1, 9)
		k.and(2, 2, 9)
		k.and(fBytes+1, 3, vNib)
		k.ushr(fBytes+3, 3, 4)
		k.orr(fBytes+1, fBytes+1, 1)
		k.orr(fBytes+3, fBytes+3, 2)
		k.constants()
		for j := range 8 {
			k.scale(fScale, fBytes, j, fD, false)
			k.scale(fMin, fBytes+2, j, fDMin, false)
			at := 16 + j/2*32
			if woven {
				for c := range V(n) {
					k.mov(fAcc+c, fMagic)
				}
				for i := range 8 {
					if i%4 == 0 {
						for c := range n {
							k.ldq(fVal+V(c), fX+R(c), 32*j+4*i)
						}
					}
					k.ldq(0, row0, 16*(at+4*i))
					nibble(1, 0, j)
					for c := range V(n) {
						k.sdotLane(fAcc+c, 1, fVal+c, i%4)
					}
				}
				for c := range n {
					k.add(c, fAcc+V(c), recScale+4*j, recMs32+4*j)
				}
				continue
			}
			// Codes of rows 0 to 3 are in V0 and V1, V2 and V24, V25 and V26, V10 and V11.
			code := [4][2]V{{0, 1}, {2, 24}, {25, 26}, {10, 11}}
			for r := range 4 {
				k.ldp(code[r][0], code[r][1], row0+R(r), at)
				nibble(code[r][0], code[r][0], j)
				nibble(code[r][1], code[r][1], j)
			}
			for c := range n {
				k.rows(c, j, code)
				k.add(c, fAcc, recScale+4*j, recMs32+4*j)
			}
		}
	})
	k.end()
}

func (f *file) fusedQ6K(n int, woven bool) {
	k := f.fused("Q6K", n, 210, woven)
	const v30 V = 26
	k.placers(false)
	k.bytesOf(vNib, 15)
	k.bytesOf(v30, 0x30)
	k.constVec(fMagic128, tmp, floats(1.5*(1<<23)+128, 1.5*(1<<23)+128, 1.5*(1<<23)+128, 1.5*(1<<23)+128))
	k.bytesOf(fDMin, 0x80) // there are no minima
	// code makes 16 codes, without their offset of 32, of sub-block i of a half from low and high bits.
	code := func(to, low, high V, i int) {
		if i < 4 {
			k.and(to, low, vNib)
		} else {
			k.ushr(to, low, 4)
		}
		switch i / 2 {
		case 0:
			k.shl(high, high, 4)
		case 1:
			k.shl(high, high, 2)
		case 3:
			k.ushr(high, high, 2)
		}
		k.and(high, high, v30)
		k.orr(to, to, high)
	}
	k.blocks(func() {
		k.halves(fD, 208)
		k.words(192)
		for i := range V(4) {
			k.eor(fBytes+i, i, fDMin)
		}
		k.constants()
		for h := range 2 {
			for _, i := range order16 {
				s := 8*h + i
				low, high := 64*h+i/2%2*32+i%2*16, 128+32*h+i%2*16
				k.scale(fScale, fBytes, s, fD, true)
				// The sums begin at 1.5 * 2^23 - 32 times the sum of the activations.
				begin := 352 + 4*s
				if woven {
					for c := range n {
						k.lds(fAcc+V(c), fX+R(c), begin)
						k.dup(fAcc+V(c), fAcc+V(c), 0)
						k.ldq(fVal+V(c), fX+R(c), 16*s)
					}
					for q := range 4 {
						k.ldq(0, row0, 16*(low+4*q))
						k.ldq(1, row0, 16*(high+4*q))
						code(2, 0, 1, i)
						for c := range V(n) {
							k.sdotLane(fAcc+c, 2, fVal+c, q)
						}
					}
					for c := range n {
						k.add(c, fAcc+V(c), recScale+s/2*4, 0)
					}
					continue
				}
				codes := [4]V{0, 2, 10, 11}
				for r := range 4 {
					k.ldq(24, row0+R(r), low)
					k.ldq(1, row0+R(r), high)
					code(codes[r], 24, 1, i)
				}
				for c := range n {
					k.ldq(fVal, fX+R(c), 16*s)
					for r := range V(4) {
						k.lds(fAcc+r, fX+R(c), begin) // clears the other lanes
						k.sdot(fAcc+r, codes[r], fVal)
					}
					k.total()
					k.add(c, fAcc, recScale+s/2*4, 0)
				}
			}
		}
	})
	k.end()
}

func (f *file) fusedQ80(n int) {
	k := f.fused("Q80", n, 34, false)
	// A block of activations is eight of the weights; the last one may be shorter.
	block, done := k.label("block"), k.label("done")
	k.constants()
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
		k.halves(fScale, 0)
		code := [4][2]V{{0, 1}, {2, 24}, {25, 26}, {10, 11}}
		for r := range 4 {
			k.ldq(code[r][0], row0+R(r), 2)
			k.ldq(code[r][1], row0+R(r), 18)
			k.addI(row0+R(r), 34)
		}
		for c := range n {
			k.rows(c, j, code)
			k.add(c, fAcc, recScale+4*j, 0)
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
		f.fusedQ4K(n, false)
		f.fusedQ4K(n, true)
		f.fusedQ6K(n, false)
		f.fusedQ6K(n, true)
		f.fusedQ80(n)
	}
}
