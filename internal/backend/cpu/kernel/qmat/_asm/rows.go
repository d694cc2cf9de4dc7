package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// rows addresses sixteen rows of weights: at a fixed distance, or woven, dword by dword one after the other. Woven
// rows need no transposing.
type rows struct {
	b     [4]Register // rows 0, 4, 8, 12; of woven ones only the first
	s, s3 Register
	woven bool
}

func newRows(w, stride Register, woven bool) rows {
	r := rows{s: stride, woven: woven}
	if woven {
		r.b[0] = w
		return r
	}
	s3 := GP64()
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, s3)
	r.s3 = s3
	r.b[0] = w
	for i := 1; i < 4; i++ {
		n := GP64()
		LEAQ(Mem{Base: r.b[i-1], Index: stride, Scale: 4}, n)
		r.b[i] = n
	}
	return r
}

// at returns the address of byte off of row i.
func (r rows) at(i, off int) Mem {
	m := Mem{Base: r.b[i/4], Disp: off}
	switch i % 4 {
	case 1:
		m.Index, m.Scale = r.s, 1
	case 2:
		m.Index, m.Scale = r.s, 2
	case 3:
		m.Index, m.Scale = r.s3, 1
	}
	return m
}

// advance moves all rows by n bytes.
func (r rows) advance(n int) {
	if r.woven {
		ADDQ(I32(int32(16*n)), r.b[0])
		return
	}
	for _, b := range r.b {
		ADDQ(I32(int32(n)), b)
	}
}

// transpose512 loads 16 bytes at off from 16 rows and returns them as four vectors of
// 16 dwords, one lane per row.
func (r rows) transpose512(off int) [4]VecVirtual {
	var z [4]VecVirtual
	if r.woven {
		for i := range z {
			z[i] = r.dword16(off + 4*i)
		}
		return z
	}
	for i := range z {
		z[i] = ZMM()
		VBROADCASTI32X4(r.at(i, off), z[i])
		for l := 1; l < 4; l++ {
			VINSERTI32X4(U8(l), r.at(4*l+i, off), z[i], z[i])
		}
	}
	unpack4(&z)
	return z
}

// weave512 emits the kernel that weaves rows.
func weave512() {
	TEXT("weave16", NOSPLIT, "func(dst *byte, w *byte, stride int, n int)")
	Doc("weave16 writes n times 16 bytes of 16 rows to dst, dword by dword of all rows. Needs AVX-512 F.",
		"Reference: Matrix.Weave in weave.go.")
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	r := newRows(Load(Param("w"), GP64()), Load(Param("stride"), GP64()), false)
	n := Load(Param("n"), GP64())
	Label("weave16_loop")
	for i, z := range r.transpose512(0) {
		VMOVDQU64(z, mem(dst, 64*i))
	}
	r.advance(16)
	ADDQ(I32(256), dst)
	DECQ(n)
	JNZ(LabelRef("weave16_loop"))
	VZEROUPPER()
	RET()
}

// dword16 loads the dword at off of 16 woven rows.
func (r rows) dword16(off int) VecVirtual {
	z := ZMM()
	VMOVDQU64(mem(r.b[0], 16*off), z)
	return z
}

// transpose512x32 does the same for 32 bytes and returns eight vectors. It loads 32 bytes
// per row, so it takes 32 operations instead of 40, but more registers.
func (r rows) transpose512x32(off int) [8]VecVirtual {
	// Rows 0-7 and 8-15: lanes (rows 0-3, dwords 0-3), (rows 0-3, dwords 4-7), (rows 4-7, ...).
	half := func(row int) [4]VecVirtual {
		var z [4]VecVirtual
		for i := range z {
			z[i] = ZMM()
			VBROADCASTI64X4(r.at(row+i, off), z[i])
			VINSERTI64X4(U8(1), r.at(row+4+i, off), z[i], z[i])
		}
		unpack4(&z)
		return z
	}
	a, b := half(0), half(8)
	var v [8]VecVirtual
	for i := range 4 {
		v[i], v[4+i] = ZMM(), a[i]
		VSHUFI32X4(U8(0x88), b[i], a[i], v[i])
		VSHUFI32X4(U8(0xdd), b[i], a[i], v[4+i])
	}
	return v
}

// unpack4 transposes 4 x 4 dwords in every 128-bit lane.
func unpack4(z *[4]VecVirtual) {
	t := zs(4)
	VPUNPCKLDQ(z[1], z[0], t[0])
	VPUNPCKHDQ(z[1], z[0], t[1])
	VPUNPCKLDQ(z[3], z[2], t[2])
	VPUNPCKHDQ(z[3], z[2], t[3])
	VPUNPCKLQDQ(t[2], t[0], z[0])
	VPUNPCKHQDQ(t[2], t[0], z[1])
	VPUNPCKLQDQ(t[3], t[1], z[2])
	VPUNPCKHQDQ(t[3], t[1], z[3])
}
