// Command asm generates the loops of package floor: reading memory and multiplying small
// integers, with nothing else in the way.
package main

import (
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// ahead is how far the read loops prefetch. The hardware stops at page ends, a prefetch does not.
const ahead = 2048

func main() {
	ConstraintExpr("amd64,!noasm")
	read("AVX512", ZMM, 64, func(m Mem, v VecVirtual) { VPORD(m, v, v) })
	read("AVX2", YMM, 32, func(m Mem, v VecVirtual) { VPOR(m, v, v) })
	dot512()
	dotVNNI()
	dot2()
	Generate()
}

// read emits a loop over 512 bytes per turn.
func read(level string, vec func() VecVirtual, width int, or func(Mem, VecVirtual)) {
	TEXT("read"+level, NOSPLIT, "func(p *byte, n int)")
	Doc("read" + level + " reads n bytes, a positive multiple of 512.")
	Pragma("noescape")
	p := Load(Param("p"), GP64())
	n := Load(Param("n"), GP64())
	acc := registers(8, vec)
	Label("turn" + level)
	for line := 0; line < 512; line += 64 {
		PREFETCHT0(Mem{Base: p, Disp: ahead + line})
	}
	for at := 0; at < 512; at += width {
		or(Mem{Base: p, Disp: at}, acc[at/width%8])
	}
	ADDQ(U32(512), p)
	SUBQ(U32(512), n)
	JNZ(LabelRef("turn" + level))
	VZEROUPPER()
	RET()
}

// dot512 multiplies 64 pairs of bytes per instruction, the instruction the kernels use.
func dot512() {
	TEXT("dotAVX512", NOSPLIT, "func(n int)")
	Doc("dotAVX512 runs n turns of 24 independent VPDPBUSD: 24*64 products of bytes each.")
	n := Load(Param("n"), GP64())
	acc := registers(24, ZMM)
	in := registers(2, ZMM)
	Label("dot512")
	for _, z := range acc {
		VPDPBUSD(in[0], in[1], z)
	}
	DECQ(n)
	JNZ(LabelRef("dot512"))
	VZEROUPPER()
	RET()
}

// dotVNNI is the same with 32 pairs of bytes, as AVX-VNNI encodes it: the assembler lacks that.
func dotVNNI() {
	TEXT("dotAVXVNNI", NOSPLIT, "func(n int)")
	Doc("dotAVXVNNI runs n turns of 12 independent VPDPBUSD of 256 bits: 12*32 products of bytes each.")
	n := Load(Param("n"), GP64())
	for _, y := range []VecPhysical{Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11, Y12, Y13} {
		VPXOR(y, y, y)
	}
	Label("dotVNNI")
	for acc := range byte(12) {
		enc := []byte{0xc4, 0x42 | (^acc >> 3 & 1 << 7), 0x15, 0x50, 0xc4 | acc&7<<3} // VPDPBUSD Y12, Y13, acc
		Comment(fmt.Sprintf("VPDPBUSD Y12, Y13, Y%d", acc))
		Instruction(&ir.Instruction{Opcode: "LONG", Operands: []Op{U32(binary.LittleEndian.Uint32(enc))}})
		Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []Op{U8(enc[4])}})
	}
	DECQ(n)
	JNZ(LabelRef("dotVNNI"))
	VZEROUPPER()
	RET()
}

// dot2 is the same with what AVX2 has: multiply bytes in pairs, widen, add.
func dot2() {
	TEXT("dotAVX2", NOSPLIT, "func(n int)")
	Doc("dotAVX2 runs n turns of 8 times VPMADDUBSW, VPMADDWD and VPADDD: 8*32 products of bytes each.")
	n := Load(Param("n"), GP64())
	acc := registers(8, YMM)
	in := registers(2, YMM)
	t := YMM()
	Label("dot2")
	for _, y := range acc {
		VPMADDUBSW(in[0], in[0], t)
		VPMADDWD(in[1], t, t)
		VPADDD(t, y, y)
	}
	DECQ(n)
	JNZ(LabelRef("dot2"))
	VZEROUPPER()
	RET()
}

// registers returns n vector registers that hold zero.
func registers(n int, vec func() VecVirtual) []VecVirtual {
	r := make([]VecVirtual, n)
	for i := range r {
		r[i] = vec()
		if r[i].Size() == 64 {
			VPXORD(r[i], r[i], r[i])
		} else {
			VPXOR(r[i], r[i], r[i])
		}
	}
	return r
}
