package main

import "strings"

// reference says where the Go code is that defines what the kernel of this name computes.
func reference(name string) string {
	for _, r := range []struct{ file, names string }{
		{"convert.go", "loadF16 loadBF16 storeF16 storeQ80"},
		{"delta.go", "deltaChain"},
		{"norm.go", "scaleMul sumSquares"},
		{"reduce.go", "dot maximum indexOf expSum"},
		{"rope.go", "rotate"},
		{"elem_generic.go", "axpy add scale sigmoid silu siluMul geluMul sigmoidMul softcap"},
	} {
		for _, n := range strings.Fields(r.names) {
			if n == name {
				return name + "Generic in " + r.file
			}
		}
	}
	panic("no reference of " + name)
}

func (f *vecFile) conversions() {
	start := func(name, params, doc, ref string) {
		args := f.fn(name+"NEON", params, "", doc, ref)
		for i, p := range []string{"dst", "src", "n"} {
			a, ok := args[p]
			if !ok { // slices: the number of values is that of the floats
				a = args["dst_len"]
				if strings.HasPrefix(params, "dst []byte") {
					a = args["src_len"]
				}
			}
			f.load(a, R(i))
		}
	}
	start("loadF16", "dst *float32, src *byte, n int", "widens n values, a multiple of 8.", reference("loadF16"))
	f.loop(2, 8, func() {
		f.ldq(0, 1, 0)
		f.fcvtl(1, 0)
		f.fcvtl2(2, 0)
		f.stp(1, 2, 0, 0)
		f.addI(1, 16)
		f.addI(0, 32)
	})
	f.ret()
	start("loadBF16", "dst *float32, src *byte, n int", "widens n values, a multiple of 8.", reference("loadBF16"))
	f.loop(2, 8, func() {
		f.ldq(0, 1, 0)
		f.shll16(1, 0)
		f.shll16Upper(2, 0)
		f.stp(1, 2, 0, 0)
		f.addI(1, 16)
		f.addI(0, 32)
	})
	f.ret()
	start("storeF16", "dst *byte, src *float32, n int", "narrows n values, a multiple of 8, rounding to nearest even.",
		reference("storeF16"))
	f.loop(2, 8, func() {
		f.ldp(0, 1, 1, 0)
		f.fcvtn(2, 0)
		f.fcvtn2(2, 1)
		f.stq(2, 0, 0)
		f.addI(1, 32)
		f.addI(0, 16)
	})
	f.ret()

	kv := "DecodeKV in quant/kv.go"
	// half reads a half as float32 in all lanes.
	half := func(v V, off int) {
		at := R(1)
		if off != 0 {
			f.addTo(3, 1, off)
			at = 3
		}
		f.ldLane(v, "H", 0, at)
		f.fcvtl(v, v)
		f.dup(v, v, 0)
	}
	// widen turns 16 signed bytes in v into floats in V4 to V7, times d.
	widen := func(v, d V) {
		f.sxtlB(2, v)
		f.sxtl2B(3, v)
		f.sxtl(4, 2)
		f.sxtl2(5, 2)
		f.sxtl(6, 3)
		f.sxtl2(7, 3)
		for i := range V(4) {
			f.scvtf(4+i, 4+i)
			f.fmul(4+i, 4+i, d)
		}
	}
	start("loadQ80", "dst []float32, src []byte", "widens the values, a multiple of 32.", kv)
	f.loop(2, 32, func() {
		half(16, 0)
		for h := range 2 {
			f.ldq(0, 1, 2+16*h)
			widen(0, 16)
			f.stp(4, 5, 0, 64*h)
			f.stp(6, 7, 0, 64*h+32)
		}
		f.addI(1, 34)
		f.addI(0, 128)
	})
	f.ret()
	for _, typ := range []struct {
		name string
		head int
	}{{"loadQ40", 2}, {"loadQ41", 4}} {
		start(typ.name, "dst []float32, src []byte", "widens the values, a multiple of 32.", kv)
		f.movi(20, 15)
		f.movi(21, 8)
		f.loop(2, 32, func() {
			half(16, 0)
			if typ.head == 4 {
				half(17, 2)
			}
			f.ldq(18, 1, typ.head)
			f.and(19, 18, 20)
			f.ushr(18, 18, 4)
			for h, v := range []V{19, 18} {
				if typ.head == 2 {
					f.subB(v, v, 21)
				}
				widen(v, 16)
				if typ.head == 4 {
					for i := range V(4) {
						f.fadd(4+i, 4+i, 17)
					}
				}
				f.stp(4, 5, 0, 64*h)
				f.stp(6, 7, 0, 64*h+32)
			}
			f.addI(1, typ.head+16)
			f.addI(0, 128)
		})
		f.ret()
	}
	f.turbo(half)

	start("storeQ80", "dst []byte, src []float32", "quantises finite values, a multiple of 32.", reference("storeQ80"))
	f.hold("q8max", "one")
	f.loop(2, 32, func() {
		for i := range V(4) {
			f.ldp(2*i, 2*i+1, 1, 32*int(i))
		}
		for i := range V(8) {
			f.fabs(16+i, i)
		}
		for w := V(4); w > 0; w /= 2 {
			for i := range w {
				f.fmax(16+i, 16+i, 16+i+w)
			}
		}
		f.fmaxnmv(16, 16)
		f.dup(16, 16, 0)
		f.fdiv(17, 16, f.c("q8max"))
		f.fcvtn(18, 17)
		f.p("VST1 V18.H[0], (R0)")
		// 1/d, but 0 where d is 0.
		f.fdiv(18, f.c("one"), 17)
		f.zero(19)
		f.fcmgt(19, 17, 19)
		f.and(18, 18, 19)
		for i := range V(8) {
			f.fmul(i, i, 18)
			f.fcvtas(i, i)
		}
		for i := range V(4) {
			f.sqxtn(20+i, 2*i)
			f.sqxtn2(20+i, 2*i+1)
		}
		f.sqxtnB(0, 20)
		f.sqxtn2B(0, 21)
		f.sqxtnB(1, 22)
		f.sqxtn2B(1, 23)
		f.stq(0, 0, 2)
		f.stq(1, 0, 18)
		f.addI(1, 128)
		f.addI(0, 34)
	})
	f.ret()

	args := f.fn("conv4NEON", "dst *float32, w *float32, t0 *float32, t1 *float32, t2 *float32, t3 *float32, n int", "",
		"computes n channels, a multiple of 4: dst = silu(w0 t0 + w1 t1 + w2 t2 + w3 t3).", "convSiluGeneric in conv.go")
	for i, p := range []string{"dst", "w", "t0", "t1", "t2", "t3", "n"} {
		f.load(args[p], R(i))
	}
	f.hold(expConsts...)
	f.loop(6, 4, func() {
		f.p("VLD4 (R1), [V8.S4, V9.S4, V10.S4, V11.S4]")
		f.addI(1, 64)
		f.zero(0)
		for j := range 4 {
			f.ldq(1, R(2+j), 0)
			f.fmla(0, V(8+j), 1)
			f.addI(R(2+j), 16)
		}
		f.mov(1, 0)
		f.overOnePlusExpMinus(3, 0, 1, 4, 5, 6)
		f.stq(3, 0, 0)
		f.addI(0, 16)
	})
	f.ret()
}

// turbo emits the types that look codes up in a table: blocks of 128 values after their scale. The table times the
// scale is V16 to V19.
func (f *vecFile) turbo(half func(v V, off int)) {
	repeat := func(n int) (b []byte) { // every byte n times
		for i := range 16 {
			b = append(b, byte(i/n))
		}
		return b
	}
	shifts := func(width, n int) (b []byte) {
		for i := range 16 {
			b = append(b, byte(-(i % n * width)))
		}
		return b
	}
	var step []byte
	for i := range 16 {
		step = append(step, byte(i%4))
	}
	begin := func(name string, bytes int, body func()) {
		args := f.fn(name+"NEON", "dst []float32, src []byte, codes *[16]float32", "",
			"widens the values, a multiple of 128.", "DecodeKV in quant/kv.go")
		f.load(args["dst"], 0)
		f.load(args["src"], 1)
		f.load(args["dst_len"], 2)
		f.load(args["codes"], 4)
		f.ldp(20, 21, 4, 0)
		f.ldp(22, 23, 4, 32)
		for i := range 4 { // where byte 4i to 4i+3 of 16 codes go, four times each
			idx := make([]byte, 16)
			for j := range idx {
				idx[j] = byte(4*i + j/4)
			}
			f.constVec(V(24+i), konst, idx)
		}
		f.constVec(28, konst, step)
		f.loop(2, 128, func() {
			half(0, 0)
			for i := range V(4) {
				f.fmul(16+i, 20+i, 0)
			}
			body()
			f.addI(1, bytes)
			f.addI(0, 512)
		})
		f.ret()
	}
	// look turns 16 codes in v into floats and stores them as values at.
	look := func(v V, at int) {
		f.shl(v, v, 2)
		for i := range V(4) {
			f.tbl(4+i, v, 24+i)
			f.orr(4+i, 4+i, 28)
			f.p("VTBL V%d.B16, [V16.B16, V17.B16, V18.B16, V19.B16], V%d.B16", 4+i, 4+i)
		}
		f.stp(4, 5, 0, 4*at)
		f.stp(6, 7, 0, 4*at+32)
	}
	begin("loadTurbo3", 50, func() {
		f.movi(29, 3)
		f.movi(30, 4)
		for i := 0; i < 128; i += 16 {
			f.lds(0, 1, 2+i/4)
			f.constVec(2, konst, repeat(4))
			f.tbl(0, 0, 2)
			f.constVec(2, konst, shifts(2, 4))
			f.ushl(0, 0, 2)
			f.and(0, 0, 29)
			f.p("MOVHU %s, R3", R(1).at(34+i/8))
			f.p("VMOV R3, V1.S[0]")
			f.constVec(2, konst, repeat(8))
			f.tbl(1, 1, 2)
			f.constVec(2, konst, shifts(1, 8))
			f.ushl(1, 1, 2)
			f.shl(1, 1, 2)
			f.and(1, 1, 30)
			f.orr(0, 0, 1)
			look(0, i)
		}
	})
	begin("loadTurbo4", 66, func() {
		f.movi(29, 15)
		for i := 0; i < 128; i += 32 {
			f.ldq(0, 1, 2+i/2)
			f.and(1, 0, 29)
			f.ushr(2, 0, 4)
			f.pick("zip1", "B16", 3, 1, 2)
			f.pick("zip2", "B16", 0, 1, 2)
			look(3, i)
			look(0, i+16)
		}
	})
}
