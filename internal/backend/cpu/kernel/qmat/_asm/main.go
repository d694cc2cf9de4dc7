// Command asm generates the kernels of package qmat.
//
// A format (formats.go) says how the bytes of 16 rows become vectors of codes with one
// lane per row. What happens to those vectors is a sink: a decode kernel stores them as a
// panel, a fused kernel multiplies them at once. The micro kernels (micro.go) multiply
// stored panels by several columns.
package main

import (
	"fmt"
	"slices"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Layout of a panel: 16 rows x 256 values. A test of the package compares these offsets
// and those of the record.
const (
	panelQ     = 0    // 64 vectors of codes: [k/4][row][k%4]
	panelScale = 4096 // up to 16 vectors of 16 float32
	panelMin   = 5120 // up to 16 vectors of 16 float32
	panelSize  = 6144
)

// Layout of a record: 256 values of one column.
const (
	recQ      = 0
	recXS     = 256
	recInit32 = 288
	recMS32   = 320
	recInit16 = 352
	recMS16   = 416
	recSize   = 480
)

// magic is the bit pattern of 1.5 * 2^23, see acts.go.
const magic = 0x4b400000

// Where the Go code is that defines what kernels compute.
const (
	refDecode = "Reference: format.block in format.go."
	refMul    = "Reference: addBlock in generic.go."
)

func main() {
	ConstraintExpr("amd64,!noasm")
	initData()
	quantize512()
	quantize2()
	for _, k := range kinds {
		for nc := 1; nc <= 4; nc++ {
			micro512(k, nc)
		}
	}
	for _, f := range formats {
		decode512(f)
		for nc := 1; nc <= f.fused; nc++ {
			fused512(f, nc)
		}
		if f.tiles {
			amx(f)
		}
	}
	weave512()
	weave2()
	for _, f := range forms {
		microAVX2(f, false)
		microAVX2(f, true)
	}
	for _, f := range formats2 {
		decodeAVX2(f)
	}
	for _, f := range gridFormats {
		f.kernels()
	}
	Generate()
}

// initData declares the data of all kernels; it cannot be declared inside a function.
func initData() {
	initDwords()
	initWide()
	iota16()
	spread()
	sumOrder()
	for _, t := range []*[16]byte{&iq4, &fp4, &nv4} {
		tableData(t)
	}
	initGrids()
}

// kind is the way sub-blocks enter the sum, as in format.go of the package.
type kind struct {
	name string
	sub  int // values per sub-block
	min  bool
}

var (
	off32 = kind{"Off32", 32, false}
	min32 = kind{"Min32", 32, true}
	off16 = kind{"Off16", 16, false}
	min16 = kind{"Min16", 16, true}
	kinds = []kind{off32, min32, off16, min16}
)

// initOff and msOff are the fields of the record the kind uses, relative to the scales.
func (k kind) initOff() int {
	if k.sub == 16 {
		return recInit16 - recXS
	}
	return recInit32 - recXS
}

func (k kind) msOff() int {
	if k.sub == 16 {
		return recMS16 - recXS
	}
	return recMS32 - recXS
}

// zs returns n new 512-bit registers.
func zs(n int) []VecVirtual {
	r := make([]VecVirtual, n)
	for i := range r {
		r[i] = ZMM()
	}
	return r
}

// bcast returns a register with v in every dword.
func bcast(v uint32) VecVirtual {
	g, z := GP32(), ZMM()
	MOVL(U32(v), g)
	VPBROADCASTD(g, z)
	return z
}

// dwords are the constants that kernels read with an embedded broadcast, to save registers
// where speed does not matter.
var dwords = []uint32{m0f, m30, m3f, mff, sixteenth, eighth, signBit, exp23, 1, 2, 15, 32, 0x30,
	infBits - 1, tiny - 1, c127, m7f, exp118, two11, 8}

var dwordData Mem

func initDwords() {
	dwordData = GLOBL("dwords", RODATA|NOPTR)
	for i, v := range dwords {
		DATA(4*i, U32(v))
	}
}

func dword(v uint32) Mem {
	i := slices.Index(dwords, v)
	if i < 0 {
		panic(fmt.Sprintf("constant %#x is not in memory", v))
	}
	return dwordData.Offset(4 * i)
}

func mem(base Register, disp int) Mem { return Mem{Base: base, Disp: disp} }
