package main

// quantize emits the rounding of activations to records (qmat/acts.go). The blocks are 256 values.
func (f *file) quantize() {
	args := f.fn("quantizeNEON", "out *byte, x *float32, blocks int", "int",
		"rounds blocks and returns how many it did before one with a value that is not finite.", "quantizeBlock in acts.go")
	const (
		out, x, n, done     R = 0, 1, 2, 3
		group, top, infinit R = 4, 5, 6
		tiny, s0, s1, sum   R = 7, 8, 9, 10
		bias, xs            R = 11, 12
		xs16                R = 13
	)
	f.load(args["out"], out)
	f.load(args["x"], x)
	f.load(args["blocks"], n)
	f.p("MOVD $0, R%d", done)
	f.p("MOVD $0x7f800000, R%d", infinit)
	f.p("MOVD $0x0d800000, R%d", tiny)
	f.p("MOVD $0x%x, R%d", magicBits, bias)
	f.constVec(31, 14, floats(127, 127, 127, 127))
	end, block, zero, store := f.label("end"), f.label("block"), f.label("zero"), f.label("store")
	loop := f.label("group")
	f.mark(block)
	f.p("CBZ R%d, %s", n, end)
	f.p("MOVD $8, R%d", group)
	f.addTo(xs, out, recScale)
	f.addTo(xs16, out, 352)
	f.mark(loop)
	for i := range V(8) {
		if i%2 == 0 {
			f.ldp(i, i+1, x, 16*int(i))
		}
	}
	for i := range V(8) {
		f.fabs(16+i, i)
	}
	for w := V(4); w > 0; w /= 2 {
		for i := range w {
			f.umaxS(16+i, 16+i, 16+i+w)
		}
	}
	f.umaxv(16, 16)
	f.p("VMOV V16.S[0], R%d", top)
	f.p("CMP R%d, R%d", infinit, top)
	f.p("BGE %s", end)
	f.p("CMP R%d, R%d", tiny, top)
	f.p("BLT %s", zero)
	f.dup(16, 16, 0)
	f.fdiv(17, 31, 16) // 127 / m
	f.fdiv(18, 16, 31) // m / 127
	for i := range V(8) {
		f.fmul(i, i, 17)
		f.fcvtns(i, i)
	}
	for i := range V(4) {
		f.sqxtn(19+i, 2*i)
		f.sqxtn2(19+i, 2*i+1)
	}
	f.sqxtnB(0, 19)
	f.sqxtn2B(0, 20)
	f.sqxtnB(1, 21)
	f.sqxtn2B(1, 22)
	f.saddlv(2, 0)
	f.saddlv(3, 1)
	f.sxtl(2, 2)
	f.sxtl(3, 3)
	f.p("B %s", store)
	f.mark(zero)
	for _, v := range []V{0, 1, 2, 3, 18} {
		f.zero(v)
	}
	f.mark(store)
	f.stp(0, 1, out, 0)
	f.addS(4, 2, 3)
	f.p("VMOV V2.S[0], R%d", s0)
	f.p("VMOV V3.S[0], R%d", s1)
	f.p("VMOV V4.S[0], R%d", sum)
	for i := range V(3) {
		f.scvtf(5+i, 2+i)
		f.fmul(5+i, 5+i, 18)
	}
	f.sts(18, xs, 0)
	f.p("SUB R%d<<7, R%d, R%d", sum, bias, sum)
	f.p("MOVW R%d, %s", sum, xs.at(32))
	f.sts(7, xs, 64)
	f.p("SUB R%d<<5, R%d, R%d", s0, bias, s0)
	f.p("SUB R%d<<5, R%d, R%d", s1, bias, s1)
	f.p("MOVW R%d, %s", s0, xs16.at(0))
	f.p("MOVW R%d, %s", s1, xs16.at(4))
	f.sts(5, xs16, 64)
	f.sts(6, xs16, 68)
	f.addI(out, 32)
	f.addI(x, 128)
	f.addI(xs, 4)
	f.addI(xs16, 8)
	f.p("SUBS $1, R%d, R%d", group, group)
	f.p("BNE %s", loop)
	f.addI(out, recBytes-256)
	f.addI(done, 1)
	f.p("SUB $1, R%d, R%d", n, n)
	f.p("B %s", block)
	f.mark(end)
	f.p("MOVD R%d, ret+%d(FP)", done, args["ret"].off)
	f.ret()
}
