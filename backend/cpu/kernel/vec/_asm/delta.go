package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// deltaLanes is the width of a tile of the delta rule's state: [DK][deltaLanes], one lane per
// value. Nothing is summed across lanes.
const deltaLanes = 32

// delta emits the two kernels of the gated delta rule on one tile.
func delta(l level) {
	deltaReplay(l)
	deltaStep(l)
}

// flushDenormals makes arithmetic treat denormals as zero until the returned function undoes it. A
// state that decays for long is full of them, and each one costs a hundred cycles.
func flushDenormals() (restore func()) {
	const flushToZero, denormalsAreZero = 1 << 15, 1 << 6
	old, now := AllocLocal(4), AllocLocal(4)
	r := GP32()
	STMXCSR(old)
	MOVL(old, r)
	ORL(U32(flushToZero|denormalsAreZero), r)
	MOVL(r, now)
	LDMXCSR(now)
	return func() { LDMXCSR(old) }
}

// deltaReplay emits s = s*g; s = s + d*k for one token of the tape.
func deltaReplay(l level) {
	name := l.text("deltaReplay", "func(s *float32, dk int, k, d *float32, decay float32)",
		"applies one token of the tape to a tile of the state: s = s*decay + d*k. dk is at least 1.")
	s, dk := Load(Param("s"), GP64()), Load(Param("dk"), GP64())
	k, dp := Load(Param("k"), GP64()), Load(Param("d"), GP64())
	n := deltaLanes / l.lanes
	g, d := l.reg(), l.regs(n)
	ga, _ := Param("decay").Resolve()
	VBROADCASTSS(ga.Addr, g)
	for j := range d {
		VMOVUPS(Mem{Base: dp, Disp: j * l.bytes()}, d[j])
	}
	restore := flushDenormals()
	Label(name + "_loop")
	b := l.reg()
	VBROADCASTSS(Mem{Base: k}, b)
	for j := range d {
		t := l.reg()
		VMULPS(Mem{Base: s, Disp: j * l.bytes()}, g, t)
		VFMADD231PS(d[j], b, t)
		VMOVUPS(t, Mem{Base: s, Disp: j * l.bytes()})
	}
	ADDQ(U8(4), k)
	ADDQ(U32(4*deltaLanes), s)
	DECQ(dk)
	JNZ(LabelRef(name + "_loop"))
	restore()
	end()
}

// deltaStep emits one new token: it reads a tile, predicts the value, and reads out the updated
// tile, which it writes to dst unless dst is nil.
func deltaStep(l level) {
	name := l.text("deltaStep", "func(src, dst *float32, dk int, k, q, v, d, o *float32, gbs *[3]float32)",
		"runs one token on a tile of the state: d = beta*(v - g*(s.k)), s' = s*g + d*k, o = scale*(s'.q). gbs holds g, beta and scale. s' goes to dst, which may be src, or nowhere if dst is nil. dk is a multiple of 4.")
	src, dst, dk := Load(Param("src"), GP64()), Load(Param("dst"), GP64()), Load(Param("dk"), GP64())
	k, q := Load(Param("k"), GP64()), Load(Param("q"), GP64())
	n := deltaLanes / l.lanes
	// Sums of four (two with sixteen registers) interleaved parts hide the latency of the additions.
	parts := 4
	if !l.wide() {
		parts = 2
	}
	zeros := func() [][]VecVirtual {
		a := make([][]VecVirtual, parts)
		for p := range a {
			a[p] = l.regs(n)
			for j := range a[p] {
				zero(a[p][j])
			}
		}
		return a
	}
	total := func(a [][]VecVirtual) []VecVirtual {
		for j := range n {
			for p := 1; p < parts; p *= 2 {
				for i := 0; i+p < parts; i += 2 * p {
					VADDPS(a[i+p][j], a[i][j], a[i][j])
				}
			}
		}
		return a[0]
	}
	at := func(base Register, i, j int) Mem { return Mem{Base: base, Disp: 4*deltaLanes*i + j*l.bytes()} }

	restore := flushDenormals()
	// The prediction from the tile as it was.
	acc := zeros()
	s, kp, cnt := GP64(), GP64(), GP64()
	MOVQ(src, s)
	MOVQ(k, kp)
	MOVQ(dk, cnt)
	Label(name + "_predict")
	for i := range 4 {
		b := l.reg()
		VBROADCASTSS(Mem{Base: kp, Disp: 4 * i}, b)
		for j := range n {
			VFMADD231PS(at(s, i, j), b, acc[i%parts][j])
		}
	}
	ADDQ(U8(16), kp)
	ADDQ(U32(16*deltaLanes), s)
	SUBQ(U8(4), cnt)
	JNZ(LabelRef(name + "_predict"))

	vp, dp, op, c := GP64(), GP64(), GP64(), GP64()
	Load(Param("v"), vp)
	Load(Param("d"), dp)
	Load(Param("o"), op)
	Load(Param("gbs"), c)
	g := l.reg()
	VBROADCASTSS(Mem{Base: c}, g)
	d := total(acc)
	for j := range d {
		t := l.reg()
		VMOVUPS(Mem{Base: vp, Disp: j * l.bytes()}, t)
		VFNMADD231PS(g, d[j], t) // v - g*(s.k)
		beta := l.reg()
		VBROADCASTSS(Mem{Base: c, Disp: 4}, beta)
		VMULPS(beta, t, d[j])
		VMOVUPS(d[j], Mem{Base: dp, Disp: j * l.bytes()})
	}

	// The update and the read-out, with and without storing the new tile.
	out := zeros()
	TESTQ(dst, dst)
	JZ(LabelRef(name + "_read"))
	update := func(label string, store bool) {
		Label(label)
		for i := range 4 {
			bk, bq := l.reg(), l.reg()
			VBROADCASTSS(Mem{Base: k, Disp: 4 * i}, bk)
			VBROADCASTSS(Mem{Base: q, Disp: 4 * i}, bq)
			for j := range n {
				t := l.reg()
				VMULPS(at(src, i, j), g, t)
				VFMADD231PS(d[j], bk, t)
				if store {
					VMOVUPS(t, at(dst, i, j))
				}
				VFMADD231PS(t, bq, out[i%parts][j])
			}
		}
		ADDQ(U8(16), k)
		ADDQ(U8(16), q)
		ADDQ(U32(16*deltaLanes), src)
		if store {
			ADDQ(U32(16*deltaLanes), dst)
		}
		SUBQ(U8(4), dk)
		JNZ(LabelRef(label))
	}
	update(name+"_update", true)
	JMP(LabelRef(name + "_done"))
	update(name+"_read", false)
	Label(name + "_done")
	scale := l.reg()
	VBROADCASTSS(Mem{Base: c, Disp: 8}, scale)
	for j, o := range total(out) {
		VMULPS(scale, o, o)
		VMOVUPS(o, Mem{Base: op, Disp: j * l.bytes()})
	}
	restore()
	end()
}
