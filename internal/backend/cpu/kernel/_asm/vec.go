package main

import "math"

// Kernels of package vec. There is one version of each: what they need every arm64 CPU has. Tails go through the same
// instructions as whole vectors, one element at a time, so an element has the same bits wherever it lies.

// Constants of vector functions.
var vecConsts = map[string][]byte{
	"one":       same(fbits(1)),
	"two":       same(fbits(2)),
	"log2e":     same(fbits(math.Log2E)),
	"ln2hi":     same(0x3f316000), // its product with an exponent is exact
	"ln2lo":     same(fbits(math.Ln2 - 0.69287109375)),
	"expMax":    same(fbits(100)),  // e^x is infinite from 88.73 on
	"expMin":    same(fbits(-110)), // and zero below -103.98
	"exp4":      same(fbits(0.0013926250394433737)),
	"exp3":      same(fbits(0.00836323294788599)),
	"exp2":      same(fbits(0.04166655242443085)),
	"exp1":      same(fbits(0.16666576266288757)),
	"half":      same(fbits(0.5)),
	"bias":      same(127),
	"tanh4":     same(fbits(-0.0060968524776399136)),
	"tanh3":     same(fbits(0.020997274667024612)),
	"tanh2":     same(fbits(-0.0538509301841259)),
	"tanh1":     same(fbits(0.1333276927471161)),
	"tanh0":     same(fbits(-0.333333283662796)),
	"tanhSmall": same(fbits(0.625)),
	"sign":      same(0x80000000),
	"gelu1":     same(fbits(-1.5957691216057308)),
	"gelu3":     same(fbits(-0.07135481627159889)),
	"minusInf":  same(fbits(math.Inf(-1))),
	"q8max":     same(fbits(127)),
	"wScale":    same(fbits(64 / math.Ln2)),
	"wHi":       same(fbits(0.010833740234375)),
	"wLo":       same(fbits(-3.3155381258549027e-06)),
	"wLeast":    same(fbits(-87)),
	"unit44":    same(fbits(1 << 44)),
	"first":     append(bits4(0xffffffff), make([]byte, 12)...), // the first lane
}

// The polynomials are those of the amd64 kernels: (e^r-1-r)/r^2 and (tanh(u)/u-1)/u^2.
var (
	expConsts = []string{
		"one", "log2e", "ln2hi", "ln2lo", "expMax", "expMin", "exp4", "exp3", "exp2", "exp1", "half", "bias",
	}
	tanhConsts = append([]string{"two", "tanh4", "tanh3", "tanh2", "tanh1", "tanh0"}, expConsts...)
)

func fbits(f float64) uint32 { return math.Float32bits(float32(f)) }

// vecFile adds constants that stay in registers for a function.
type vecFile struct {
	*file
	held map[string]V
}

const konst R = 26 // overwritten where constants are loaded

// hold loads constants into V31 and the registers below.
func (f *vecFile) hold(names ...string) {
	f.held = map[string]V{}
	v := V(31)
	for _, n := range names {
		if _, ok := f.held[n]; ok {
			continue
		}
		f.held[n] = v
		f.constVec(v, konst, vecConsts[n])
		v--
	}
}

func (f *vecFile) c(name string) V {
	v, ok := f.held[name]
	if !ok {
		panic("constant " + name + " is not loaded in " + f.name)
	}
	return v
}

// exp leaves e^x in p and overwrites x and three more: x = n ln2 + r, e^x = 2^n (1 + r + r^2 p(r)). Results below the
// normal range are rounded correctly, NaN stays NaN.
func (f *vecFile) exp(p, x, n, r, t V) {
	f.fmin(x, x, f.c("expMax"))
	f.fmax(x, x, f.c("expMin"))
	f.fmul(n, x, f.c("log2e"))
	f.frintn(n, n)
	f.mov(r, x)
	f.fmls(r, n, f.c("ln2hi"))
	f.fmls(r, n, f.c("ln2lo"))
	f.mov(p, f.c("exp3"))
	f.fmla(p, f.c("exp4"), r)
	for _, k := range []string{"exp2", "exp1", "half"} {
		f.mov(t, f.c(k))
		f.fmla(t, p, r)
		p, t = t, p
	}
	// An odd number of steps: the polynomial is where t was.
	f.fmul(x, r, r)
	f.fmla(r, x, p)
	f.fadd(t, r, f.c("one"))
	p, t = t, p
	// 2^n in two factors: only the second multiplication can round.
	f.fcvtzs(n, n)
	f.sshr(r, n, 1)
	f.subS(n, n, r)
	for _, e := range []V{r, n} {
		f.addS(e, e, f.c("bias"))
		f.shlS(e, e, 23)
		f.fmul(p, p, e)
	}
}

// overOnePlusExpMinus leaves a / (1 + e^-x) in p; x is overwritten, a is not unless it is p.
func (f *vecFile) overOnePlusExpMinus(p, a, x, n, r, t V) {
	f.fneg(x, x)
	f.exp(p, x, n, r, t)
	f.fadd(p, p, f.c("one"))
	f.fdiv(p, a, p)
}

// tanh leaves the result in p. Small arguments use a polynomial, the others 1 - 2/(e^2|u| + 1), both with the sign of
// u.
func (f *vecFile) tanh(p, u V, t [6]V) {
	a, z, e := t[0], t[1], t[2]
	f.fabs(a, u)
	f.fadd(e, a, a)
	f.exp(p, e, t[3], t[4], t[5])
	f.fadd(p, p, f.c("one"))
	f.fdiv(p, f.c("two"), p)
	f.fsub(p, f.c("one"), p)
	f.constVec(z, konst, vecConsts["sign"])
	f.and(z, z, u)
	f.orr(p, p, z)
	f.fmul(z, u, u)
	f.mov(e, f.c("tanh3"))
	f.fmla(e, f.c("tanh4"), z)
	x, y := e, t[3]
	for _, k := range []string{"tanh2", "tanh1", "tanh0"} {
		f.mov(y, f.c(k))
		f.fmla(y, x, z)
		x, y = y, x
	}
	f.fmul(z, z, u)
	f.mov(y, u)
	f.fmla(y, z, x) // u + u^3 p
	// Less than: NaN takes the exponential branch, which keeps it.
	f.constVec(z, konst, vecConsts["tanhSmall"])
	f.fcmgt(z, z, a)
	f.bsl(z, y, p)
	f.mov(p, z)
}

// elem emits dst[i] = body(in[0][i], in[1][i], ..., s); the length is that of dst. The body may overwrite its inputs
// (V0 and V1), uses V3 to V9, and returns where the result is. s is in V2.
func (f *vecFile) elem(name, doc, params string, scalar bool, consts []string, body func(in []V, s V) V) {
	var ins []string
	sig := "dst []float32"
	for _, p := range params {
		ins = append(ins, string(p))
		sig += ", " + string(p) + " []float32"
	}
	if scalar {
		sig += ", s float32"
	}
	args := f.fn(name+"NEON", sig, "", doc, reference(name))
	const n R = 4
	f.load(args["dst"], 0)
	for i, p := range ins {
		f.load(args[p], R(1+i))
	}
	f.load(args["dst_len"], n)
	if scalar {
		f.p("FMOVS s+%d(FP), F2", args["s"].off)
		f.dup(2, 2, 0)
	}
	f.hold(consts...)
	for _, lanes := range []int{4, 1} {
		ld, st := f.ldq, f.stq
		if lanes == 1 {
			ld, st = f.lds, f.sts
		}
		f.loop(n, lanes, func() {
			var in []V
			for i := range ins {
				in = append(in, V(i))
				ld(V(i), R(1+i), 0)
				f.addI(R(1+i), 4*lanes)
			}
			st(body(in, 2), 0, 0)
			f.addI(0, 4*lanes)
		})
	}
	f.ret()
}

func (f *vecFile) elementwise() {
	f.elem("add", "is dst = a + b.", "ab", false, nil, func(in []V, _ V) V { f.fadd(0, in[0], in[1]); return 0 })
	f.elem("scale", "is dst = s * a.", "a", true, nil, func(in []V, s V) V { f.fmul(0, in[0], s); return 0 })
	f.elem("scaleMul", "is dst = (s * x) * w.", "xw", true, nil, func(in []V, s V) V {
		f.fmul(0, in[0], s)
		f.fmul(0, 0, in[1])
		return 0
	})
	f.elem("axpy", "is dst = s * x + y, fused.", "xy", true, nil, func(in []V, s V) V {
		f.fmla(in[1], in[0], s)
		return in[1]
	})
	f.elem("sigmoid", "is dst = 1 / (1 + e^-x).", "x", false, expConsts, func(in []V, _ V) V {
		f.overOnePlusExpMinus(3, f.c("one"), in[0], 4, 5, 6)
		return 3
	})
	f.elem("silu", "is dst = x / (1 + e^-x).", "x", false, expConsts, func(in []V, _ V) V {
		f.mov(7, in[0])
		f.overOnePlusExpMinus(3, 7, in[0], 4, 5, 6)
		return 3
	})
	f.elem("siluMul", "is dst = g / (1 + e^-g) * u.", "gu", false, expConsts, func(in []V, _ V) V {
		f.mov(7, in[0])
		f.overOnePlusExpMinus(3, 7, in[0], 4, 5, 6)
		f.fmul(3, 3, in[1])
		return 3
	})
	f.elem("sigmoidMul", "is dst = x * (1 / (1 + e^-g)).", "xg", false, expConsts, func(in []V, _ V) V {
		f.overOnePlusExpMinus(3, f.c("one"), in[1], 4, 5, 6)
		f.fmul(3, 3, in[0])
		return 3
	})
	f.elem("geluMul", "is dst = gelu(g) * u, tanh form.", "gu", false, append([]string{"gelu1", "gelu3"}, expConsts...),
		func(in []V, _ V) V {
			// x / (1 + e^(gelu1*x + gelu3*x^3))
			f.fmul(4, in[0], in[0])
			f.mov(7, f.c("gelu1"))
			f.fmla(7, f.c("gelu3"), 4)
			f.fmul(7, 7, in[0])
			f.exp(3, 7, 4, 5, 6)
			f.fadd(3, 3, f.c("one"))
			f.fdiv(3, in[0], 3)
			f.fmul(3, 3, in[1])
			return 3
		})
	f.elem("softcap", "is dst = s * tanh(x / s).", "x", true, tanhConsts, func(in []V, s V) V {
		f.fdiv(0, in[0], s)
		f.tanh(3, 0, [6]V{4, 5, 6, 7, 8, 9})
		f.fmul(3, 3, s)
		return 3
	})

	args := f.fn("rotateNEON", "a []float32, b []float32, cos []float32, sin []float32", "",
		"turns the pairs (a[i], b[i]): a = a cos - b sin, b = a sin + b cos.", reference("rotate"))
	for i, p := range []string{"a", "b", "cos", "sin", "cos_len"} {
		f.load(args[p], R(i))
	}
	for _, lanes := range []int{4, 1} {
		ld, st := f.ldq, f.stq
		if lanes == 1 {
			ld, st = f.lds, f.sts
		}
		f.loop(4, lanes, func() {
			for i := range 4 {
				ld(V(i), R(i), 0)
			}
			f.fmul(4, 0, 2)
			f.fmls(4, 1, 3)
			f.fmul(5, 1, 2)
			f.fmla(5, 0, 3)
			st(4, 0, 0)
			st(5, 1, 0)
			for i := range R(4) {
				f.addI(i, 4*lanes)
			}
		})
	}
	f.ret()
}

func (f *vecFile) reductions() {
	ret := func(args map[string]arg, v V, double bool) {
		if double {
			f.p("FMOVD F%d, ret+%d(FP)", v, args["ret"].off)
		} else {
			f.p("FMOVS F%d, ret+%d(FP)", v, args["ret"].off)
		}
		f.ret()
	}
	// dot sums in 16 lanes; what is left after the last 16 goes to the first four.
	args := f.fn("dotNEON", "a []float32, b []float32", "float32", "returns the sum of a*b.", reference("dot"))
	f.load(args["a"], 0)
	f.load(args["b"], 1)
	f.load(args["a_len"], 2)
	for i := range V(4) {
		f.zero(16 + i)
	}
	f.loop(2, 16, func() {
		for i := range 2 {
			f.ldp(V(4*i), V(4*i+1), 0, 32*i)
			f.ldp(V(4*i+2), V(4*i+3), 1, 32*i)
			f.fmla(V(16+2*i), V(4*i), V(4*i+2))
			f.fmla(V(17+2*i), V(4*i+1), V(4*i+3))
		}
		f.addI(0, 64)
		f.addI(1, 64)
	})
	for _, lanes := range []int{4, 1} {
		ld := f.ldq
		if lanes == 1 {
			ld = f.lds
		}
		f.loop(2, lanes, func() {
			ld(0, 0, 0)
			ld(1, 1, 0)
			f.fmla(16, 0, 1)
			f.addI(0, 4*lanes)
			f.addI(1, 4*lanes)
		})
	}
	f.fadd(16, 16, 17)
	f.fadd(18, 18, 19)
	f.fadd(16, 16, 18)
	f.faddp(16, 16, 16)
	f.faddp(16, 16, 16)
	ret(args, 16, false)

	args = f.fn("sumSquaresNEON", "x []float32", "float64", "returns the sum of x*x in float64.", reference("sumSquares"))
	f.load(args["x"], 0)
	f.load(args["x_len"], 1)
	for i := range V(4) {
		f.zero(16 + i)
	}
	f.loop(1, 8, func() {
		f.ldp(0, 1, 0, 0)
		f.fcvtlD(2, 0)
		f.fcvtl2D(3, 0)
		f.fcvtlD(4, 1)
		f.fcvtl2D(5, 1)
		for i := range V(4) {
			f.fmlaD(16+i, 2+i, 2+i)
		}
		f.addI(0, 32)
	})
	f.loop(1, 1, func() {
		f.lds(0, 0, 0)
		f.fcvtlD(0, 0)
		f.fmlaD(16, 0, 0)
		f.addI(0, 4)
	})
	f.faddD(16, 16, 17)
	f.faddD(18, 18, 19)
	f.faddD(16, 16, 18)
	f.sum2(16, 17)
	ret(args, 16, true)

	f.maximum()
	f.indexOf()
	f.expSum()
	f.weightSum()
}

// sum2 adds the two lanes of 64 bits of floats.
func (f *vecFile) sum2(v, t V) {
	f.ext(t, v, v, 8)
	f.faddD(v, v, t)
}

// maximum compares as the definition does, so that no NaN, quiet or not, is kept.
func (f *vecFile) maximum() {
	args := f.fn("maximumNEON", "x []float32", "float32", "returns the largest value that is not NaN, or -Inf.",
		reference("maximum"))
	f.load(args["x"], 0)
	f.load(args["x_len"], 1)
	f.hold("minusInf")
	for i := range V(4) {
		f.mov(16+i, f.c("minusInf"))
	}
	larger := func(acc, x V) {
		f.fcmgt(8, x, acc)
		f.p("VBIT V8.B16, V%d.B16, V%d.B16", x, acc)
	}
	f.loop(1, 16, func() {
		f.ldp(0, 1, 0, 0)
		f.ldp(2, 3, 0, 32)
		for i := range V(4) {
			larger(16+i, i)
		}
		f.addI(0, 64)
	})
	f.loop(1, 1, func() {
		f.ldr(0, 0)
		larger(16, 0)
		f.addI(0, 4)
	})
	for i := range V(3) {
		f.mov(0, 17+i)
		larger(16, 0)
	}
	for _, by := range []int{8, 4} {
		f.ext(0, 16, 16, by)
		larger(16, 0)
	}
	f.p("FMOVS F16, ret+%d(FP)", args["ret"].off)
	f.ret()
}

func (f *vecFile) indexOf() {
	args := f.fn("indexOfNEON", "x []float32, v float32", "int", "returns the first index of v, or -1.",
		reference("indexOf"))
	const x, n, start, hit R = 0, 1, 2, 3
	f.load(args["x"], x)
	f.load(args["x_len"], n)
	f.p("FMOVS v+%d(FP), F16", args["v"].off)
	f.dup(17, 16, 0)
	f.p("MOVD R%d, R%d", x, start)
	near, found, none := f.label("near"), f.label("found"), f.label("none")
	f.loop(n, 16, func() {
		f.ldp(0, 1, x, 0)
		f.ldp(2, 3, x, 32)
		for i := range V(4) {
			f.fcmeq(i, i, 17)
		}
		f.orr(0, 0, 1)
		f.orr(2, 2, 3)
		f.orr(0, 0, 2)
		f.umaxv(0, 0)
		f.p("VMOV V0.S[0], R%d", hit)
		f.p("CBNZ R%d, %s", hit, near)
		f.addI(x, 64)
	})
	f.mark(near)
	f.loop(n, 1, func() {
		f.lds(0, x, 0)
		f.p("FCMPS F0, F16")
		f.p("BEQ %s", found)
		f.addI(x, 4)
	})
	f.p("B %s", none)
	f.mark(found)
	f.p("SUB R%d, R%d, R%d", start, x, x)
	f.p("LSR $2, R%d, R%d", x, x)
	f.p("MOVD R%d, ret+%d(FP)", x, args["ret"].off)
	f.ret()
	f.mark(none)
	f.p("MOVD $-1, R%d", x)
	f.p("MOVD R%d, ret+%d(FP)", x, args["ret"].off)
	f.ret()
}

// expSum adds value i to lane i%4, also of the last ones.
func (f *vecFile) expSum() {
	args := f.fn("expSumNEON", "x []float32, m float32", "float64",
		"replaces x by e^(x-m) and returns the sum in float64.", reference("expSum"))
	f.load(args["x"], 0)
	f.load(args["x_len"], 1)
	f.p("FMOVS m+%d(FP), F16", args["m"].off)
	f.dup(16, 16, 0)
	f.zero(17)
	f.zero(18)
	f.hold(expConsts...)
	round := func(store func()) {
		f.fsub(0, 0, 16)
		f.exp(3, 0, 4, 5, 6)
		store()
		f.fcvtlD(0, 3)
		f.fcvtl2D(1, 3)
		f.faddD(17, 17, 0)
		f.faddD(18, 18, 1)
	}
	f.loop(1, 4, func() {
		f.ldq(0, 0, 0)
		round(func() { f.stq(3, 0, 0) })
		f.addI(0, 16)
	})
	done := f.label("sum")
	f.p("CBZ R1, %s", done)
	some, some2 := f.label("some"), f.label("some")
	f.addTo(2, 0, 4)
	f.addTo(3, 0, 8)
	f.lds(0, 0, 0)
	f.p("CMP $2, R1")
	f.p("BLT %s", some)
	f.ldLane(0, "S", 1, 2)
	f.p("BEQ %s", some)
	f.ldLane(0, "S", 2, 3)
	f.mark(some)
	round(func() {
		f.sts(3, 0, 0)
		f.p("CMP $2, R1")
		f.p("BLT %s", some2)
		f.p("VST1 V3.S[1], (R2)")
		f.p("BEQ %s", some2)
		f.p("VST1 V3.S[2], (R3)")
		f.mark(some2)
		var masks []byte // of the first one, two and three lanes
		for n := 1; n <= 3; n++ {
			for i := range 4 {
				b := uint32(0)
				if i < n {
					b = 0xffffffff
				}
				masks = append(masks, bits4(b)...)
			}
		}
		f.p("MOVD $%s<>(SB), R%d", f.constant(masks), konst)
		f.p("SUB $1, R1, R1")
		f.p("ADD R1<<4, R%d, R%d", konst, konst)
		f.ldq(4, konst, 0)
		f.and(3, 3, 4)
	})
	f.mark(done)
	f.faddD(17, 17, 18)
	f.sum2(17, 18)
	f.p("FMOVD F17, ret+%d(FP)", args["ret"].off)
	f.ret()
}

// weightSum follows weight.Exp step by step, without fused operations, and adds whole units, so its bits are those of
// weight.Sum.
func (f *vecFile) weightSum() {
	args := f.fn("weightSumNEON", "x []float32, top float32", "uint64", "is weight.Sum.", "Sum in package weight")
	f.load(args["x"], 0)
	f.load(args["x_len"], 1)
	f.p("FMOVS top+%d(FP), F16", args["top"].off)
	f.dup(16, 16, 0)
	f.zero(17)
	f.hold("wScale", "half", "wHi", "wLo", "bias", "one", "wLeast", "unit44", "first")
	var roots []byte
	root, p := 2.0, 1.0
	for range 6 {
		root = math.Sqrt(root)
	}
	for range 64 {
		roots = append(roots, bits4(fbits(p))...)
		p *= root
	}
	f.p("MOVD $%s<>(SB), R%d", f.constant(roots), konst)
	for _, lanes := range []int{4, 1} {
		f.loop(1, lanes, func() {
			const x, t, idx, r, w V = 0, 1, 2, 3, 4
			if lanes == 4 {
				f.ldq(x, 0, 0)
			} else {
				f.lds(x, 0, 0)
			}
			f.addI(0, 4*lanes)
			f.fsub(x, x, 16)
			f.fmul(t, x, f.c("wScale"))
			f.fsub(t, t, f.c("half"))
			f.fcvtzs(idx, t)
			f.scvtf(t, idx)
			f.fmul(w, t, f.c("wHi"))
			f.fsub(r, x, w)
			f.fmul(w, t, f.c("wLo"))
			f.fsub(r, r, w)
			for i := range lanes {
				f.p("VMOV V%d.S[%d], R2", idx, i)
				f.p("AND $63, R2, R2")
				f.p("ADD R2<<2, R%d, R2", konst)
				f.ldLane(5, "S", i, 2)
			}
			f.sshr(w, idx, 6)
			f.addS(w, w, f.c("bias"))
			f.shlS(w, w, 23)
			f.fmul(w, 5, w)
			f.fmul(t, r, r)
			f.fmul(t, t, f.c("half"))
			f.fadd(r, r, f.c("one"))
			f.fadd(r, r, t)
			f.fmul(w, w, r)
			f.fcmgt(t, x, f.c("wLeast")) // false for NaN
			f.and(w, w, t)
			if lanes == 1 {
				f.and(w, w, f.c("first"))
			}
			f.fmul(w, w, f.c("unit44"))
			f.fcvtlD(t, w)
			f.fcvtl2D(r, w)
			f.fcvtzuD(t, t)
			f.fcvtzuD(r, r)
			f.addD(17, 17, t)
			f.addD(17, 17, r)
		})
	}
	f.ext(0, 17, 17, 8)
	f.addD(17, 17, 0)
	f.p("VMOV V17.D[0], R2")
	f.p("MOVD R2, ret+%d(FP)", args["ret"].off)
	f.ret()
}
