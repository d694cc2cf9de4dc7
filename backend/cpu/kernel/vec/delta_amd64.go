//go:build !noasm

package vec

import (
	"unsafe"

	"strobe/backend/cpu/kernel"
)

// deltaArgs are the arguments of the delta rule kernels, which know the
// offsets. Strides are in bytes.
type deltaArgs struct {
	state  unsafe.Pointer
	rows   int
	nPend  int
	pk     unsafe.Pointer
	pkStep uintptr
	pd     unsafe.Pointer
	pdStep uintptr
	pg     unsafe.Pointer
	pgStep uintptr
	n      int
	q, k   unsafe.Pointer
	qkStep uintptr
	v      unsafe.Pointer
	vStep  uintptr
	beta   unsafe.Pointer
	g      unsafe.Pointer
	bgStep uintptr
	d      unsafe.Pointer
	dStep  uintptr
	o      unsafe.Pointer
	oStep  uintptr
	store  int // 0 nothing, 1 after the pending tokens, 2 after all
	scale  float32
	_      float32
	dk     uintptr // bytes of a row
	tmp    unsafe.Pointer
}

// deltaAsm runs the kernel for a's width; DK is a multiple of 32. A row gets
// the same bits from every kernel that handles its width at a level.
func deltaAsm(l kernel.Level, a *Delta) {
	b := getScratch(a.DK + a.DV)
	defer scratch.Put(b)
	first := func(x []float32) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(x)) }
	c := deltaArgs{
		state: first(a.State), rows: a.DV,
		nPend: a.NPend, pk: first(a.PK), pkStep: uintptr(4 * a.PKStride),
		pd: first(a.PD), pdStep: uintptr(4 * a.PDStride), pg: first(a.PG), pgStep: uintptr(4 * a.PGStride),
		n: a.N, q: first(a.Q), k: first(a.K), qkStep: uintptr(4 * a.QKStride),
		v: first(a.V), vStep: uintptr(4 * a.VStride),
		beta: first(a.Beta), g: first(a.G), bgStep: uintptr(4 * a.BGStride),
		d: first(a.DOut), dStep: uintptr(4 * a.DStride), o: first(a.O), oStep: uintptr(4 * a.OStride),
		scale: a.Scale, dk: uintptr(4 * a.DK), tmp: first(*b),
	}
	if a.DOut == nil { // the kernels always write a tape
		c.d, c.dStep = unsafe.Pointer(&(*b)[a.DK]), 0
	}
	switch {
	case a.N > 0 && a.Store == a.NPend+a.N:
		c.store = 2
	case a.NPend > 0:
		c.store = 1
	}
	args := (*byte)(unsafe.Pointer(&c))
	if l == kernel.AVX2 {
		deltaAVX2(args)
		return
	}
	// As many rows as the registers hold at a time, then smaller tiles.
	var tiles [3]int
	switch a.DK {
	case 64:
		tiles = [3]int{4, 2, 1}
	case 128:
		tiles = [3]int{3, 2, 1}
	case 256:
		tiles = [3]int{1, 1, 1}
	default:
		deltaAVX2(args)
		return
	}
	from := 0
	for _, tile := range tiles {
		c.rows = (a.DV - from) / tile * tile
		if c.rows == 0 {
			continue
		}
		c.state = unsafe.Pointer(&a.State[from*a.DK])
		if a.NPend > 0 {
			c.pd = unsafe.Pointer(&a.PD[from])
		}
		if a.N > 0 {
			c.v, c.o = unsafe.Pointer(&a.V[from]), unsafe.Pointer(&a.O[from])
			if a.DOut != nil {
				c.d = unsafe.Pointer(&a.DOut[from])
			}
		}
		from += c.rows
		switch {
		case a.DK == 256:
			delta256x1AVX512(args)
		case a.DK == 128 && tile == 3:
			delta128x3AVX512(args)
		case a.DK == 128 && tile == 2:
			delta128x2AVX512(args)
		case a.DK == 128:
			delta128x1AVX512(args)
		case tile == 4:
			delta64x4AVX512(args)
		case tile == 2:
			delta64x2AVX512(args)
		default:
			delta64x1AVX512(args)
		}
	}
}
