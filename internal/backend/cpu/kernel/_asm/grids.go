package main

// IQ1, IQ2 and IQ3 store points of a grid, four or eight values each, and a sign for each value (IQ1: one for eight,
// the direction in which they are moved). There is no gather in NEON, so points are looked up with general registers,
// which hold eight values: a row at a time, and the arithmetic on bytes is that of package quant.

// Registers of these decoders.
const (
	gRows   R = 6  // rows that are left
	gPoints R = 10 // the table of points
	gSigns  R = 21 // the table of signs
	gPoint  R = 12 // eight values
	gMask   R = 13 // a byte of ones where a value is negative
	gWord   R = 14 // bits of a sub-block
	gBits   R = 15
	gLow    R = 19 // constants, the same byte eight times
	gHigh   R = 20

	gD    V = 0
	gStep V = 1 // what minima are times the scale
)

// gridDecoder is such a decoder at work. All blocks have 256 values.
type gridDecoder struct {
	*decoder
	four  bool // points have four values
	moved bool // IQ1: signs move values
	raise byte // values count from -raise, and minima take that away
}

// grid emits a decoder. half puts the bits of the half that scales are multiplied with into tmp, body decodes a row.
func (f *file) grid(name string, bytes int, g gridDecoder, points, signs string, shift int, half, body func()) {
	*g.decoder = *f.decoder(name, 256, bytes, false)
	g.p("MOVD $·%s(SB), R%d", points, gPoints)
	if signs != "" {
		g.p("MOVD $·%s(SB), R%d", signs, gSigns)
	}
	low, high := uint64(1), uint64(0)
	switch {
	case g.moved:
		low, high = 0x02, 0x80
	case g.raise != 0: // v becomes 2 * raise - v: 127 - v, which is v with all bits but the sign turned, and the rest
		low, high = 127-2*uint64(g.raise), 0x7f
	}
	const each = 0x0101010101010101
	g.p("MOVD $0x%x, R%d", low*each, gLow)
	g.p("MOVD $0x%x, R%d", high*each, gHigh)
	if g.raise != 0 {
		g.constVec(gStep, tmp, floats(-float64(g.raise), 0, 0, 0))
	}
	g.addTo(scPtr, dst, quadScale)
	g.p("MOVD $4, R%d", gRows)
	g.loop(gRows, 1, func() {
		half()
		g.p("FMOVS R%d, F%d", tmp, gD)
		g.fcvtl(gD, gD)
		if shift > 0 {
			g.p("FMOVS $(%g), F2", 1/float64(int(1)<<shift))
			g.p("FMULS F2, F%d, F%d", gD, gD)
		}
		body()
		g.addR(row0, row0, pitch)
		g.addI(dst, 256)
		g.addI(scPtr, 4)
	})
	f.ret()
}

// bits takes n bits from bit `from` on of r to d.
func (g *gridDecoder) bits(d, r R, from, n int) { g.p("UBFX $%d, R%d, $%d, R%d", from, r, n, d) }

// byteAt reads a byte of the row.
func (g *gridDecoder) byteAt(d R, off int) { g.p("MOVBU %s, R%d", row0.at(off), d) }

// halfAt reads 16 bits of the row.
func (g *gridDecoder) halfAt(d R, off int) { g.p("MOVHU %s, R%d", row0.at(off), d) }

// scale makes the scale of sub-block j, d * (2 s + 1), from s in tmp.
func (g *gridDecoder) scale(j int) {
	g.p("ADD R%d, R%d, R%d", tmp, tmp, tmp)
	g.addI(tmp, 1)
	g.p("SCVTFWS R%d, F2", tmp)
	g.p("FMULS F%d, F2, F2", gD)
	g.sts(2, scPtr, 16*j)
	if g.raise != 0 {
		g.p("FMULS F%d, F2, F3", gStep)
		g.sts(3, scPtr, quadMin-quadScale+16*j)
	}
}

// values writes group i, eight values, of the row: the point whose number is in tmp, and for points of four values the
// one in tmp2, with the signs whose number is in gBits.
func (g *gridDecoder) values(i int) {
	if g.four {
		g.p("MOVWU (R%d)(R%d<<2), R%d", gPoints, tmp, gPoint)
		g.p("MOVWU (R%d)(R%d<<2), R%d", gPoints, tmp2, tmp2)
		g.p("ORR R%d<<32, R%d, R%d", tmp2, gPoint, gPoint)
	} else {
		g.p("MOVD (R%d)(R%d<<3), R%d", gPoints, tmp, gPoint)
	}
	if g.moved { // by one eighth upwards already: two less if the bit is set, and then without the offset of codes
		g.p("MUL R%d, R%d, R%d", gBits, gLow, gMask)
		g.p("SUB R%d, R%d, R%d", gMask, gPoint, gPoint)
		g.p("EOR R%d, R%d, R%d", gHigh, gPoint, gPoint)
	} else {
		g.p("MOVD (R%d)(R%d<<3), R%d", gSigns, gBits, gMask)
		g.p("AND R%d, R%d, R%d", gLow, gMask, gBits)
		if g.raise != 0 {
			g.p("AND R%d, R%d, R%d", gHigh, gMask, gMask)
			g.p("EOR R%d, R%d, R%d", gMask, gPoint, gPoint)
			g.p("SUB R%d, R%d, R%d", gBits, gPoint, gPoint)
		} else { // no value is zero, so nothing is carried over
			g.p("EOR R%d, R%d, R%d", gMask, gPoint, gPoint)
			g.p("ADD R%d, R%d, R%d", gBits, gPoint, gPoint)
		}
	}
	g.p("MOVD R%d, %s", gPoint, dst.at(8*i))
}

// nibbleScale makes the scale of sub-block j from nibble j of the bytes at off.
func (g *gridDecoder) nibbleScale(j, off int) {
	g.byteAt(tmp, off+j/2)
	g.bits(tmp, tmp, j%2*4, 4)
	g.scale(j)
}

func (f *file) grids() {
	g := gridDecoder{decoder: &decoder{}}
	first := func() { g.halfAt(tmp, 0) }

	f.grid("IQ2XXS", 66, g, "pointsIQ2XXS", "evenSigns", 3, first, func() {
		for s := range 8 {
			g.p("MOVWU %s, R%d", row0.at(6+8*s), gWord)
			g.bits(tmp, gWord, 28, 4)
			g.scale(s)
			for l := range 4 {
				g.byteAt(tmp, 2+8*s+l)
				g.bits(gBits, gWord, 7*l, 7)
				g.values(4*s + l)
			}
		}
	})

	g.raise = 43
	f.grid("IQ2XS", 74, g, "pointsIQ2XS", "evenSigns", 3, first, func() {
		for i := range 32 {
			if i%2 == 0 {
				g.nibbleScale(i/2, 66)
			}
			g.halfAt(gWord, 2+2*i)
			g.bits(tmp, gWord, 0, 9)
			g.bits(gBits, gWord, 9, 7)
			g.values(i)
		}
	})
	f.grid("IQ2S", 82, g, "pointsIQ2S", "allSigns", 3, first, func() {
		for i := range 32 {
			if i%2 == 0 {
				g.nibbleScale(i/2, 74)
			}
			if i%4 == 0 {
				g.byteAt(gWord, 66+i/4)
			}
			g.byteAt(tmp, 2+i)
			g.bits(tmp2, gWord, i%4*2, 2)
			g.p("ORR R%d<<8, R%d, R%d", tmp2, tmp, tmp)
			g.byteAt(gBits, 34+i)
			g.values(i)
		}
	})
	g.raise = 0

	g.four = true
	f.grid("IQ3XXS", 98, g, "pointsIQ3XXS", "evenSigns", 2, first, func() {
		for s := range 8 {
			g.p("MOVWU %s, R%d", row0.at(66+4*s), gWord)
			g.bits(tmp, gWord, 28, 4)
			g.scale(s)
			for l := range 4 {
				g.byteAt(tmp, 2+8*s+2*l)
				g.byteAt(tmp2, 2+8*s+2*l+1)
				g.bits(gBits, gWord, 7*l, 7)
				g.values(4*s + l)
			}
		}
	})
	f.grid("IQ3S", 110, g, "pointsIQ3S", "allSigns", 0, first, func() {
		for i := range 32 {
			if i%4 == 0 {
				g.nibbleScale(i/4, 106)
				g.byteAt(gWord, 66+i/4)
			}
			for h, to := range []R{tmp, tmp2} {
				g.byteAt(to, 2+2*i+h)
				g.bits(gBits, gWord, i%4*2+h, 1)
				g.p("ORR R%d<<8, R%d, R%d", gBits, to, to)
			}
			g.byteAt(gBits, 74+i)
			g.values(i)
		}
	})
	g.four = false

	g.moved = true
	f.grid("IQ1S", 50, g, "pointsIQ1", "", 3, first, func() {
		for s := range 8 {
			g.halfAt(gWord, 34+2*s)
			g.bits(tmp, gWord, 12, 3)
			g.scale(s)
			g.bits(gBits, gWord, 15, 1)
			for l := range 4 {
				g.byteAt(tmp, 2+4*s+l)
				g.bits(tmp2, gWord, 3*l, 3)
				g.p("ORR R%d<<8, R%d, R%d", tmp2, tmp, tmp)
				g.values(4*s + l)
			}
		}
	})
	spread := func() { // the half is in the upper bits of four words of scales
		for i := range 4 {
			g.byteAt(tmp2, 49+2*i)
			g.bits(tmp2, tmp2, 4, 4)
			if i == 0 {
				g.p("MOVD R%d, R%d", tmp2, tmp)
			} else {
				g.p("ORR R%d<<%d, R%d, R%d", tmp2, 4*i, tmp, tmp)
			}
		}
	}
	f.grid("IQ1M", 56, g, "pointsIQ1", "", 3, spread, func() {
		for i := range 32 {
			if i%2 == 0 {
				g.halfAt(tmp, 48+i/8*2)
				g.bits(tmp, tmp, i/2%4*3, 3)
				g.scale(i / 2)
				g.byteAt(gWord, 32+i/2)
			}
			g.byteAt(tmp, i)
			g.bits(tmp2, gWord, i%2*4, 3)
			g.p("ORR R%d<<8, R%d, R%d", tmp2, tmp, tmp)
			g.bits(gBits, gWord, i%2*4+3, 1)
			g.values(i)
		}
	})
}
