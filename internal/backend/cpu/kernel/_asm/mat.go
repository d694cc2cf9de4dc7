package main

import "fmt"

// Byte offsets of types matArgs and accArgs of package vec.
const (
	matW      = 0
	matStride = 8
	matX      = 24
	matXS     = 32
	matK      = 40
	matY      = 48
	matYS     = 56
	matAlpha  = 64
	matAdd    = 68
	matTiles  = 80

	accV      = 0
	accStride = 8
	accN      = 16
	accP      = 24
	accPS     = 32
	accOut    = 40
	accOS     = 48
	accWidth  = 56
)

const maxMatCols = 3

func (f *vecFile) field(r R, off int) { f.p("MOVD %s, R%d", R(0).at(off), r) }

// eight reads eight weights as floats into a and b.
func (f *vecFile) eight(typ string, a, b V, at R, off int) {
	switch typ {
	case "F32":
		f.ldp(a, b, at, 2*off)
	case "F16":
		f.ldq(b, at, off)
		f.fcvtl(a, b)
		f.fcvtl2(b, b)
	case "BF16":
		f.ldq(b, at, off)
		f.shll16(a, b)
		f.shll16Upper(b, b)
	}
}

func width(typ string) int {
	if typ == "F32" {
		return 4
	}
	return 2
}

// matrix emits the products of four rows with up to three columns. A product has eight lanes, whatever the number of
// columns.
func (f *vecFile) matrix(typ string, cols int) {
	tail := "k is a multiple of 8."
	if typ == "F32" {
		tail = "k is any number."
	}
	args := f.fn(fmt.Sprintf("mat%sx%dNEON", typ, cols), "a *byte", "",
		fmt.Sprintf("multiplies tiles of four rows by %d columns (type matArgs); %s", cols, tail),
		"matRowsGeneric in matmul.go")
	const (
		w, x, k, y, ys, tiles, alpha R = 1, 5, 8, 9, 10, 11, 12
		left, wNext, xAt, yAt        R = 13, 14, 19, 15
	)
	acc := func(r, c, h int) V { return V(8 + (c*4+r)*2 + h) }
	f.load(args["a"], 0)
	f.field(tiles, matTiles)
	f.field(wNext, matW)
	f.field(y, matY)
	f.field(ys, matYS)
	f.loop(tiles, 1, func() {
		f.field(k, matK)
		f.field(xAt, matX)
		f.field(left, matXS)
		for c := range R(cols) {
			f.p("MOVD R%d, R%d", xAt, x+c)
			f.addR(xAt, xAt, left)
		}
		f.field(left, matStride)
		for r := range R(4) {
			f.p("MOVD R%d, R%d", wNext, w+r)
			f.addR(wNext, wNext, left)
		}
		for i := range V(8 * cols) {
			f.zero(8 + i)
		}
		f.loop(k, 8, func() {
			for c := range cols {
				f.ldp(V(2+2*c), V(3+2*c), x+R(c), 0)
				f.addI(x+R(c), 32)
			}
			for r := range 4 {
				f.eight(typ, 0, 1, w+R(r), 0)
				f.addI(w+R(r), 8*width(typ))
				for c := range cols {
					f.fmla(acc(r, c, 0), 0, V(2+2*c))
					f.fmla(acc(r, c, 1), 1, V(3+2*c))
				}
			}
		})
		if typ == "F32" {
			f.loop(k, 1, func() {
				for c := range cols {
					f.lds(V(2+2*c), x+R(c), 0)
					f.addI(x+R(c), 4)
				}
				for r := range 4 {
					f.lds(0, w+R(r), 0)
					f.addI(w+R(r), 4)
					for c := range cols {
						f.fmla(acc(r, c, 0), 0, V(2+2*c))
					}
				}
			})
		}
		f.lds(0, 0, matAlpha)
		f.p("MOVW %s, R%d", R(0).at(matAdd), alpha)
		f.p("MOVD R%d, R%d", y, yAt)
		for c := range cols {
			for r := range 4 {
				f.fadd(acc(r, c, 0), acc(r, c, 0), acc(r, c, 1))
			}
			f.faddp(1, acc(0, c, 0), acc(1, c, 0))
			f.faddp(2, acc(2, c, 0), acc(3, c, 0))
			f.faddp(1, 1, 2)
			f.fmulLane(1, 1, 0, 0)
			set := f.label("set")
			f.p("CBZ R%d, %s", alpha, set)
			f.ldq(2, yAt, 0)
			f.fadd(1, 2, 1)
			f.mark(set)
			f.stq(1, yAt, 0)
			f.addR(yAt, yAt, ys)
		}
		f.addI(y, 16)
	})
	f.ret()
}

// accumulate emits the weighted sums of rows, 32 columns of up to three queries at a time.
func (f *vecFile) accumulate(typ string, nq int) {
	args := f.fn(fmt.Sprintf("accum%sx%dNEON", typ, nq), "a *byte", "",
		fmt.Sprintf("adds weighted rows of 32 columns to the sums of %d queries (type accArgs).", nq),
		"accumRowsGeneric in matmul.go")
	const v, stride, n, p, ps, out, os, at R = 1, 2, 3, 5, 8, 9, 10, 11
	f.load(args["a"], 0)
	f.field(v, accV)
	f.field(stride, accStride)
	f.field(n, accN)
	f.field(p, accP)
	f.field(ps, accPS)
	f.field(out, accOut)
	f.field(os, accOS)
	for c := R(1); c < R(nq); c++ {
		f.addR(p+c, p+c-1, ps)
	}
	acc := func(c, i int) V { return V(8 + 8*c + i) }
	each := func(do func(a, b V, r R, off int)) {
		f.p("MOVD R%d, R%d", out, at)
		for c := range nq {
			for i := 0; i < 8; i += 2 {
				do(acc(c, i), acc(c, i+1), at, 16*i)
			}
			f.addR(at, at, os)
		}
	}
	each(f.ldp)
	f.loop(n, 1, func() {
		for c := range R(nq) {
			f.lds(V(4+c), p+c, 0)
			f.addI(p+c, 4)
		}
		for i := 0; i < 8; i += 2 {
			f.eight(typ, 0, 1, v, 8*i)
			for c := range nq {
				f.fmlaLane(acc(c, i), 0, V(4+c), 0)
				f.fmlaLane(acc(c, i+1), 1, V(4+c), 0)
			}
		}
		f.addR(v, v, stride)
	})
	each(f.stp)
	f.ret()
}

// accumulateOne emits the same for up to eight columns of one query; those of F16 are eight.
func (f *vecFile) accumulateOne(typ string) {
	args := f.fn("accum"+typ+"OneNEON", "a *byte", "", "adds weighted rows of up to eight columns (F16: of eight) to the "+
		"sums of one query (type accArgs).", "accumRowsGeneric in matmul.go")
	const v, stride, n, p, out, cols, at, weight, left R = 1, 2, 3, 5, 9, 10, 11, 12, 13
	f.load(args["a"], 0)
	f.field(v, accV)
	f.field(stride, accStride)
	f.field(n, accN)
	f.field(p, accP)
	f.field(out, accOut)
	single := f.label("single")
	if typ == "F32" {
		f.field(cols, accWidth)
		f.p("CMP $8, R%d", cols)
		f.p("BLT %s", single)
	}
	f.ldp(8, 9, out, 0)
	f.loop(n, 1, func() {
		f.lds(4, p, 0)
		f.addI(p, 4)
		f.eight(typ, 0, 1, v, 0)
		f.fmlaLane(8, 0, 4, 0)
		f.fmlaLane(9, 1, 4, 0)
		f.addR(v, v, stride)
	})
	f.stp(8, 9, out, 0)
	f.ret()
	if typ != "F32" {
		return
	}
	f.mark(single)
	f.loop(cols, 1, func() {
		f.lds(8, out, 0)
		f.p("MOVD R%d, R%d", v, at)
		f.p("MOVD R%d, R%d", p, weight)
		f.p("MOVD R%d, R%d", n, left)
		f.loop(left, 1, func() {
			f.lds(4, weight, 0)
			f.lds(0, at, 0)
			f.fmlaLane(8, 0, 4, 0)
			f.addI(weight, 4)
			f.addR(at, at, stride)
		})
		f.sts(8, out, 0)
		f.addI(out, 4)
		f.addI(v, 4)
	})
	f.ret()
}

// Byte offsets of type deltaToken.
const (
	tokK     = 0
	tokQ     = 24
	tokV     = 48
	tokD     = 72
	tokO     = 96
	tokG     = 120
	tokBeta  = 124
	tokScale = 128
	tokQK    = 132
	tokSize  = 136
)

// Registers of the delta rule.
const (
	dTok, dLeft, dSrc, dDst, dDK, dOff R = 0, 1, 2, 3, 4, 5
	dS, dE, dCnt, dKey, dKey2, dQ2     R = 6, 7, 8, 9, 10, 11
	dTmp, dTmp2                        R = 12, 13

	dHalf = 4 // vectors of half a tile
)

// delta emits the gated delta rule on half a tile of the state, 16 values: pending tokens, which have no query, then
// new ones. As on amd64 the sums over the state that a token needs are taken in the pass that applies the token
// before.
func (f *vecFile) delta() {
	args := f.fn("deltaChainNEON", "tok *byte, n int, src *float32, dst *float32, dk int, off int, last bool", "",
		"runs n tokens on half of a tile of the state. n is at least 1, dk a multiple of 4.", reference("deltaChain"))
	for i, p := range []string{"tok", "n", "src", "dst", "dk", "off"} {
		f.load(args[p], R(i))
	}
	next, lastOne, replay := f.label("next"), f.label("last"), f.label("replay")
	apply, done := f.label("apply"), f.label("done")
	query := func(off int, none string) {
		f.p("MOVD %s, R%d", dTok.at(off+tokQ), dTmp)
		f.p("CBZ R%d, %s", dTmp, none)
	}
	query(0, next)
	f.deltaPass(false, true, 0)
	f.deltaFinish(0)
	f.mark(next)
	f.p("SUBS $1, R%d, R%d", dLeft, dLeft)
	f.p("BEQ %s", lastOne)
	query(tokSize, replay)
	f.deltaPass(true, true, tokSize)
	f.deltaFinish(tokSize)
	f.addI(dTok, tokSize)
	f.p("B %s", next)
	f.mark(replay)
	f.deltaPass(true, false, 0)
	f.addI(dTok, tokSize)
	f.p("B %s", next)
	f.mark(lastOne)
	query(0, apply)
	f.p("MOVBU last+%d(FP), R%d", args["last"].off, dTmp)
	f.p("CBZ R%d, %s", dTmp, done)
	f.mark(apply)
	f.deltaPass(true, false, 0)
	f.mark(done)
	f.ret()
}

// Two interleaved sums hide the latency of additions.
func sumK(part, j int) V { return V(8 + 4*part + j) }
func sumQ(part, j int) V { return V(16 + 4*part + j) }

// deltaPass goes through the tile once: it applies the current token, takes the sums for the token at tok+next, or
// both.
func (f *vecFile) deltaPass(update, sums bool, next int) {
	const g, key, key2, q2 V = 28, 29, 30, 31
	f.p("MOVD R%d, R%d", dSrc, dS)
	f.p("MOVD R%d, R%d", dDK, dCnt)
	if update {
		// A pending token changes the tile in place; a new one moves it to dst.
		f.p("MOVD %s, R%d", dTok.at(tokQ), dTmp)
		f.p("CMP $0, R%d", dTmp)
		f.p("CSEL EQ, R%d, R%d, R%d", dSrc, dDst, dE)
		f.p("MOVD R%d, R%d", dE, dSrc)
		f.p("MOVD %s, R%d", dTok.at(tokK), dKey)
		f.addTo(dTmp, dTok, tokG)
		f.ldr(g, dTmp)
		f.p("MOVD %s, R%d", dTok.at(tokD), dTmp)
		f.addR(dTmp, dTmp, dOff)
		f.ldp(24, 25, dTmp, 0)
		f.ldp(26, 27, dTmp, 32)
	}
	if sums {
		f.p("MOVD %s, R%d", dTok.at(next+tokK), dKey2)
		f.p("MOVD %s, R%d", dTok.at(next+tokQ), dQ2)
		for i := range V(16) {
			f.zero(8 + i)
		}
	}
	f.loop(dCnt, 4, func() {
		if update {
			f.ldq(key, dKey, 0)
			f.addI(dKey, 16)
		}
		if sums {
			f.ldq(key2, dKey2, 0)
			f.ldq(q2, dQ2, 0)
			f.addI(dKey2, 16)
			f.addI(dQ2, 16)
		}
		for i := range 4 {
			t := func(j int) V { return V(4*(i%2) + j) }
			f.ldp(t(0), t(1), dS, 128*i)
			f.ldp(t(2), t(3), dS, 128*i+32)
			if update {
				for j := range dHalf {
					f.fmul(t(j), t(j), g)
					f.fmlaLane(t(j), V(24+j), key, i)
				}
				f.stp(t(0), t(1), dE, 128*i)
				f.stp(t(2), t(3), dE, 128*i+32)
			}
			if sums {
				for j := range dHalf {
					f.fmlaLane(sumK(i%2, j), t(j), key2, i)
					f.fmlaLane(sumQ(i%2, j), t(j), q2, i)
				}
			}
		}
		f.addI(dS, 512)
		if update {
			f.addI(dE, 512)
		}
	})
}

// deltaFinish computes the update and the output of the token at tok+next from its sums.
func (f *vecFile) deltaFinish(next int) {
	f.lds(28, dTok, next+tokG)
	f.lds(29, dTok, next+tokBeta)
	f.lds(30, dTok, next+tokScale)
	f.lds(31, dTok, next+tokQK)
	at := func(field int) {
		f.p("MOVD %s, R%d", dTok.at(next+field), dTmp)
		f.addR(dTmp, dTmp, dOff)
	}
	for j := range dHalf {
		f.fadd(sumK(0, j), sumK(0, j), sumK(1, j))
		f.fadd(sumQ(0, j), sumQ(0, j), sumQ(1, j))
	}
	at(tokV)
	f.ldp(0, 1, dTmp, 0)
	f.ldp(2, 3, dTmp, 32)
	for j := range dHalf {
		f.fmlsLane(V(j), sumK(0, j), 28, 0) // v - g*(s.k)
		f.fmulLane(V(j), V(j), 29, 0)
		f.fmulLane(sumQ(0, j), sumQ(0, j), 28, 0)
		f.fmlaLane(sumQ(0, j), V(j), 31, 0)
		f.fmulLane(sumQ(0, j), sumQ(0, j), 30, 0)
	}
	at(tokD)
	f.stp(0, 1, dTmp, 0)
	f.stp(2, 3, dTmp, 32)
	at(tokO)
	f.stp(sumQ(0, 0), sumQ(0, 1), dTmp, 0)
	f.stp(sumQ(0, 2), sumQ(0, 3), dTmp, 32)
}

func (f *vecFile) matrices() {
	for _, typ := range []string{"F32", "F16", "BF16"} {
		for n := 1; n <= maxMatCols; n++ {
			f.matrix(typ, n)
		}
	}
	for _, typ := range []string{"F32", "F16"} {
		for n := 1; n <= maxMatCols; n++ {
			f.accumulate(typ, n)
		}
		f.accumulateOne(typ)
	}
	f.delta()
}
