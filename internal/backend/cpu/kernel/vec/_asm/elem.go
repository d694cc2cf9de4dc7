package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// elem emits dst[i] = body(in[0][i], in[1][i], ..., s); the length is that of dst.
// The tail runs through the same operations under a mask. The body may overwrite
// its inputs.
func elem(l level, name, doc string, params []string, scalar bool,
	body func(in []VecVirtual, s VecVirtual) VecVirtual) {
	sig := "func(dst"
	for _, p := range params {
		sig += ", " + p
	}
	sig += " []float32"
	if scalar {
		sig += ", s float32"
	}
	name = l.text(name, sig+")", doc)
	dst := Load(Param("dst").Base(), GP64())
	var ptr []Register
	for _, p := range params {
		ptr = append(ptr, Load(Param(p).Base(), GP64()))
	}
	n := Load(Param("dst").Len(), GP64())
	var s VecVirtual
	if scalar {
		s = l.reg()
		a, err := Param("s").Resolve()
		if err != nil {
			panic(err)
		}
		VBROADCASTSS(a.Addr, s)
	}
	off := GP64()
	XORQ(off, off)
	Label(name + "_loop")
	CMPQ(n, U32(uint32(l.lanes)))
	JL(LabelRef(name + "_tail"))
	step := func(load func(Mem, VecVirtual), store func(VecVirtual, Mem)) {
		in := make([]VecVirtual, len(ptr))
		for i, p := range ptr {
			in[i] = l.reg()
			load(Mem{Base: p, Index: off, Scale: 1}, in[i])
		}
		store(body(in, s), Mem{Base: dst, Index: off, Scale: 1})
	}
	step(func(m Mem, v VecVirtual) { VMOVUPS(m, v) }, func(v VecVirtual, m Mem) { VMOVUPS(v, m) })
	ADDQ(U32(uint32(l.bytes())), off)
	SUBQ(U32(uint32(l.lanes)), n)
	JMP(LabelRef(name + "_loop"))
	Label(name + "_tail")
	TESTQ(n, n)
	JZ(LabelRef(name + "_done"))
	m := l.mask(n)
	step(m.load, m.store)
	Label(name + "_done")
	end()
}

func elementwise(l level) {
	elem(l, "add", "is dst = a + b.", []string{"a", "b"}, false, func(in []VecVirtual, _ VecVirtual) VecVirtual {
		VADDPS(in[1], in[0], in[0])
		return in[0]
	})
	elem(l, "scale", "is dst = s * a.", []string{"a"}, true, func(in []VecVirtual, s VecVirtual) VecVirtual {
		VMULPS(s, in[0], in[0])
		return in[0]
	})
	elem(l, "scaleMul", "is dst = (s * x) * w.", []string{"x", "w"}, true, func(in []VecVirtual, s VecVirtual) VecVirtual {
		VMULPS(s, in[0], in[0])
		VMULPS(in[1], in[0], in[0])
		return in[0]
	})
	elem(l, "axpy", "is dst = s * x + y, fused.", []string{"x", "y"}, true,
		func(in []VecVirtual, s VecVirtual) VecVirtual {
			VFMADD231PS(s, in[0], in[1])
			return in[1]
		})
	elem(l, "sigmoid", "is dst = 1 / (1 + e^-x).", []string{"x"}, false, func(in []VecVirtual, _ VecVirtual) VecVirtual {
		one := l.reg()
		VMOVUPS(c("one"), one)
		return l.overOnePlusExpMinus(one, in[0])
	})
	elem(l, "silu", "is dst = x / (1 + e^-x).", []string{"x"}, false, func(in []VecVirtual, _ VecVirtual) VecVirtual {
		x := l.reg()
		VMOVAPS(in[0], x)
		return l.overOnePlusExpMinus(in[0], x)
	})
	elem(l, "siluMul", "is dst = gate / (1 + e^-gate) * up.", []string{"gate", "up"}, false,
		func(in []VecVirtual, _ VecVirtual) VecVirtual {
			x := l.reg()
			VMOVAPS(in[0], x)
			r := l.overOnePlusExpMinus(in[0], x)
			VMULPS(in[1], r, r)
			return r
		})
	elem(l, "sigmoidMul", "is dst = x * (1 / (1 + e^-gate)).", []string{"x", "gate"}, false,
		func(in []VecVirtual, _ VecVirtual) VecVirtual {
			one := l.reg()
			VMOVUPS(c("one"), one)
			r := l.overOnePlusExpMinus(one, in[1])
			VMULPS(in[0], r, r)
			return r
		})
	elem(l, "geluMul", "is dst = gelu(gate) * up, tanh form.", []string{"gate", "up"}, false,
		func(in []VecVirtual, _ VecVirtual) VecVirtual {
			// x / (1 + e^(gelu1*x + gelu3*x^3))
			t, u := l.reg(), l.reg()
			VMULPS(in[0], in[0], t)
			VMOVUPS(c("gelu3"), u)
			VFMADD213PS(c("gelu1"), t, u)
			VMULPS(in[0], u, u)
			e := l.exp(u)
			VADDPS(c("one"), e, e)
			VDIVPS(e, in[0], e)
			VMULPS(in[1], e, e)
			return e
		})
	elem(l, "softcap", "is dst = s * tanh(x / s).", []string{"x"}, true, func(in []VecVirtual, s VecVirtual) VecVirtual {
		u := in[0]
		VDIVPS(s, u, u)
		r := l.tanh(u)
		VMULPS(s, r, r)
		return r
	})
}

// overOnePlusExpMinus returns a / (1 + e^-x) and overwrites x.
func (l level) overOnePlusExpMinus(a, x VecVirtual) VecVirtual {
	VXORPS(c("sign"), x, x)
	e := l.exp(x)
	VADDPS(c("one"), e, e)
	VDIVPS(e, a, e)
	return e
}

// exp returns e^x and overwrites x: x = n ln2 + r, e^x = 2^n (1 + r + r^2 p(r)).
// Results below the normal range are rounded correctly, NaN stays NaN.
func (l level) exp(x VecVirtual) VecVirtual {
	n, r, p := l.reg(), l.reg(), l.reg()
	// The second source of a minimum is returned when one is NaN: keep x there.
	VMOVUPS(c("expMax"), n)
	VMINPS(x, n, x)
	VMOVUPS(c("expMin"), n)
	VMAXPS(x, n, x)
	VMULPS(c("log2e"), x, n)
	if l.wide() {
		VRNDSCALEPS(U8(8), n, n)
	} else {
		VROUNDPS(U8(8), n, n)
	}
	VMOVAPS(x, r)
	VFNMADD231PS(c("ln2hi"), n, r)
	VFNMADD231PS(c("ln2lo"), n, r)
	VMOVUPS(c("exp4"), p)
	for _, k := range []string{"exp3", "exp2", "exp1", "exp0"} {
		VFMADD213PS(c(k), r, p)
	}
	VMULPS(r, r, x)
	VFMADD213PS(r, x, p)
	VADDPS(c("one"), p, p)
	if l.wide() {
		VSCALEFPS(n, p, p)
		return p
	}
	// 2^n in two factors: only the second multiplication can round.
	VCVTPS2DQ(n, n)
	VPSRAD(U8(1), n, r)
	VPSUBD(r, n, n)
	for _, f := range []VecVirtual{r, n} {
		VPADDD(c("bias"), f, f)
		VPSLLD(U8(23), f, f)
		VMULPS(f, p, p)
	}
	return p
}

// tanh overwrites u. Small arguments use a polynomial, the others
// 1 - 2/(e^2|u| + 1), both with the sign of u.
func (l level) tanh(u VecVirtual) VecVirtual {
	a, z, p := l.reg(), l.reg(), l.reg()
	VANDPS(c("abs"), u, a)
	VMULPS(u, u, z)
	VMOVUPS(c("tanh4"), p)
	for _, k := range []string{"tanh3", "tanh2", "tanh1", "tanh0"} {
		VFMADD213PS(c(k), z, p)
	}
	VMULPS(u, z, z)
	VFMADD213PS(u, z, p) // u + u^3 p
	e := l.reg()
	VADDPS(a, a, e)
	e = l.exp(e)
	VADDPS(c("one"), e, e)
	t := l.reg()
	VMOVUPS(c("two"), t)
	VDIVPS(e, t, e)
	VMOVUPS(c("one"), t)
	VSUBPS(e, t, e)
	VANDPS(c("sign"), u, t)
	VORPS(t, e, e)
	// less than (ordered): NaN takes the exponential branch, which keeps it
	if l.wide() {
		k := K()
		VCMPPS(U8(0x11), c("tanhSmall"), a, k)
		VMOVAPS(p, k, e)
	} else {
		VCMPPS(U8(0x11), c("tanhSmall"), a, a)
		VBLENDVPS(a, p, e, e)
	}
	return e
}

// rotate emits the rotation of pairs that RoPE is made of.
func rotate(l level) {
	name := l.text("rotate", "func(a, b, cos, sin []float32)",
		"turns the pairs (a[i], b[i]): a = a cos - b sin, b = a sin + b cos.")
	a := Load(Param("a").Base(), GP64())
	b := Load(Param("b").Base(), GP64())
	co := Load(Param("cos").Base(), GP64())
	si := Load(Param("sin").Base(), GP64())
	n := Load(Param("cos").Len(), GP64())
	off := GP64()
	XORQ(off, off)
	Label(name + "_loop")
	CMPQ(n, U32(uint32(l.lanes)))
	JL(LabelRef(name + "_tail"))
	step := func(load func(Mem, VecVirtual), store func(VecVirtual, Mem)) {
		v := l.regs(4)
		for i, p := range []Register{a, b, co, si} {
			load(Mem{Base: p, Index: off, Scale: 1}, v[i])
		}
		t, u := l.reg(), l.reg()
		VMULPS(v[1], v[3], t)
		VMULPS(v[1], v[2], u)
		VFMSUB231PS(v[0], v[2], t)
		VFMADD231PS(v[0], v[3], u)
		store(t, Mem{Base: a, Index: off, Scale: 1})
		store(u, Mem{Base: b, Index: off, Scale: 1})
	}
	step(func(m Mem, v VecVirtual) { VMOVUPS(m, v) }, func(v VecVirtual, m Mem) { VMOVUPS(v, m) })
	ADDQ(U32(uint32(l.bytes())), off)
	SUBQ(U32(uint32(l.lanes)), n)
	JMP(LabelRef(name + "_loop"))
	Label(name + "_tail")
	TESTQ(n, n)
	JZ(LabelRef(name + "_done"))
	m := l.mask(n)
	step(m.load, m.store)
	Label(name + "_done")
	end()
}
