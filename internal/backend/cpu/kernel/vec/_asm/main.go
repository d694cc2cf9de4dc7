// Command vecasm generates the amd64 kernels of package vec.
//
// Most kernels are written once for both vector widths; level carries what
// differs. AVX2 functions must stay within sixteen vector registers, which a
// test of the package checks in the output.
package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// level is an instruction set: its name and the float32 lanes of its vectors.
type level struct {
	name  string
	lanes int
}

var (
	avx2   = level{"AVX2", 8}
	avx512 = level{"AVX512", 16}
	both   = []level{avx2, avx512}
)

func main() {
	ConstraintExpr("amd64")
	ConstraintExpr("!noasm")
	constants()
	convConstants()
	turboConstants()
	weightConstants()
	for _, l := range both {
		elementwise(l)
		reductions(l)
		conversions(l)
		rotate(l)
		conv4(l)
		matrix(l)
		accumulate(l)
		delta(l)
	}
	Generate()
}

func (l level) wide() bool { return l.lanes == 16 }
func (l level) bytes() int { return 4 * l.lanes }

// reg returns a new vector register of the level's width.
func (l level) reg() VecVirtual {
	if l.wide() {
		return ZMM()
	}
	return YMM()
}

func (l level) regs(n int) []VecVirtual {
	r := make([]VecVirtual, n)
	for i := range r {
		r[i] = l.reg()
	}
	return r
}

// half returns the lower half of a vector, which holds half-width elements.
func (l level) half(v VecVirtual) Register {
	if l.wide() {
		return v.AsY()
	}
	return v.AsX()
}

func zero(v VecVirtual) { VXORPS(v, v, v) }

// text starts a function: its name gets the level's.
func (l level) text(name, sig, doc string) string {
	full := name + l.name
	TEXT(full, NOSPLIT, sig)
	Doc(full+" "+doc, "Reference: "+reference(name)+".")
	Pragma("noescape")
	return full
}

// reference says where the Go code is that defines what the kernel of this name computes.
func reference(name string) string {
	for _, r := range []struct{ file, names string }{
		{"conv.go", "conv4"},
		{"convert.go", "loadF16 loadBF16 storeF16 storeQ80"},
		{"delta.go", "deltaChain"},
		{"norm.go", "scaleMul sumSquares"},
		{"reduce.go", "dot maximum indexOf expSum"},
		{"rope.go", "rotate"},
		{"elem_generic.go", "axpy add scale sigmoid silu siluMul geluMul sigmoidMul softcap"},
	} {
		if slices.Contains(strings.Fields(r.names), name) {
			return strings.Replace(name, "conv4", "convSilu", 1) + "Generic in " + r.file
		}
	}
	switch {
	case strings.HasPrefix(name, "mat"):
		return "matRowsGeneric in matmul.go"
	case strings.HasPrefix(name, "accum"):
		return "accumRowsGeneric in matmul.go"
	case strings.HasPrefix(name, "load"):
		return "DecodeKV in quant/kv.go"
	case name == "weightSum":
		return "Sum in package weight"
	}
	panic("no reference of " + name)
}

func end() {
	VZEROUPPER()
	RET()
}

// mask selects the first elements of a vector.
type mask struct {
	l level
	k Register   // AVX-512
	v VecVirtual // AVX2
}

var tailMask Mem // eight ones, then eight zeros

// mask makes a mask of the first n elements, n in [1, lanes).
func (l level) mask(n Register) mask {
	m := mask{l: l}
	if l.wide() {
		ones, k := GP32(), K()
		MOVL(U32(0xffff), ones)
		BZHIL(n.(GPVirtual).As32(), ones, ones)
		KMOVW(ones, k)
		m.k = k
		return m
	}
	p := GP64()
	m.v = l.reg()
	LEAQ(tailMask.Offset(32), p)
	neg := GP64()
	MOVQ(n, neg)
	NEGQ(neg)
	VMOVUPS(Mem{Base: p, Index: neg, Scale: 4}, m.v)
	return m
}

// load reads the selected elements; the others are zero.
func (m mask) load(from Mem, to VecVirtual) {
	if m.l.wide() {
		VMOVUPS_Z(from, m.k, to)
	} else {
		VMASKMOVPS(from, m.v, to)
	}
}

func (m mask) store(from VecVirtual, to Mem) {
	if m.l.wide() {
		VMOVUPS(from, m.k, to)
	} else {
		VMASKMOVPS(from, m.v, to)
	}
}

// clear sets the other elements to zero.
func (m mask) clear(v VecVirtual) {
	if m.l.wide() {
		VMOVUPS_Z(v, m.k, v)
	} else {
		VANDPS(m.v, v, v)
	}
}

// sum adds the lanes of v in a fixed tree and leaves the result in all of the
// lowest four lanes: i and i+8, then i+4, i+2, i+1.
func (l level) sum(v VecVirtual) VecVirtual {
	t := l.reg()
	if l.wide() {
		VEXTRACTF64X4(U8(1), v, t.AsY())
		VADDPS(t.AsY(), v.AsY(), v.AsY())
	}
	l.upper(v, t)
	VADDPS(t.AsX(), v.AsX(), v.AsX())
	VPERMILPS(U8(0x4e), v.AsX(), t.AsX())
	VADDPS(t.AsX(), v.AsX(), v.AsX())
	VPERMILPS(U8(0xb1), v.AsX(), t.AsX())
	VADDPS(t.AsX(), v.AsX(), v.AsX())
	return v
}

// sum64 does the same for float64 lanes.
func (l level) sum64(v VecVirtual) VecVirtual {
	t := l.reg()
	if l.wide() {
		VEXTRACTF64X4(U8(1), v, t.AsY())
		VADDPD(t.AsY(), v.AsY(), v.AsY())
	}
	l.upper(v, t)
	VADDPD(t.AsX(), v.AsX(), v.AsX())
	VPERMILPD(U8(1), v.AsX(), t.AsX())
	VADDPD(t.AsX(), v.AsX(), v.AsX())
	return v
}

// consts are float32 constants, each repeated over a full vector so that both
// widths can use them as memory operands.
var consts = map[string]Mem{}

func constants() {
	tailMask = GLOBL("vecTailMask", RODATA|NOPTR)
	for i := range 16 {
		v := uint32(0)
		if i < 8 {
			v = 0xffffffff
		}
		DATA(4*i, U32(v))
	}
	list := []struct {
		name string
		bits uint32
	}{
		{"one", fbits(1)},
		{"two", fbits(2)},
		{"log2e", fbits(math.Log2E)},
		{"ln2hi", 0x3f316000}, // its product with an exponent is exact
		{"ln2lo", fbits(math.Ln2 - 0.69287109375)},
		{"expMax", fbits(100)},  // e^x is infinite from 88.73 on
		{"expMin", fbits(-110)}, // and zero below -103.98
		// (e^r-1-r)/r^2 on [-ln2/2, ln2/2], Chebyshev fit, 1.1e-8 relative in e^r
		{"exp4", fbits(0.0013926250394433737)},
		{"exp3", fbits(0.00836323294788599)},
		{"exp2", fbits(0.04166655242443085)},
		{"exp1", fbits(0.16666576266288757)},
		{"exp0", fbits(0.5)},
		{"bias", 127},
		// (tanh(u)/u-1)/u^2 by u^2 below 0.625^2, Chebyshev fit, 1.7e-8 relative
		{"tanh4", fbits(-0.0060968524776399136)},
		{"tanh3", fbits(0.020997274667024612)},
		{"tanh2", fbits(-0.0538509301841259)},
		{"tanh1", fbits(0.1333276927471161)},
		{"tanh0", fbits(-0.333333283662796)},
		{"tanhSmall", fbits(0.625)},
		{"abs", 0x7fffffff},
		{"sign", 0x80000000},
		{"gelu1", fbits(-1.5957691216057308)},  // -2 sqrt(2/pi)
		{"gelu3", fbits(-0.07135481627159889)}, // the same times 0.044715
		{"minusInf", fbits(math.Inf(-1))},
		{"q8max", fbits(127)},
		{"nibble", 15},
		{"eight", 8},
		{"three", 3},
		{"four", 4},
		{"weightScale", fbits(64 / math.Ln2)},
		{"weightHi", fbits(0.010833740234375)},
		{"weightLo", fbits(-3.3155381258549027e-06)},
		{"weightLeast", fbits(-87)},
		{"unit44", fbits(1 << 44)},
		{"unit22", fbits(1 << 22)},
		{"sixtyThree", 63},
	}
	for _, c := range list {
		m := GLOBL("vecConst"+c.name, RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(c.bits))
		}
		consts[c.name] = m
	}
}

var weightTable Mem // as weight.Table

func weightConstants() {
	root, p := 2.0, 1.0
	for range 6 {
		root = math.Sqrt(root)
	}
	weightTable = GLOBL("vecWeightTable", RODATA|NOPTR)
	for i := range 64 {
		DATA(4*i, U32(fbits(p)))
		p *= root
	}
}

func fbits(f float64) uint32 { return math.Float32bits(float32(f)) }

// c returns a constant as a memory operand.
func c(name string) Mem {
	m, ok := consts[name]
	if !ok {
		panic(fmt.Sprintf("no constant %q", name))
	}
	return m
}

// upper copies the second 128 bits of from to to. The AVX-512 spelling can name
// all registers.
func (l level) upper(from, to VecVirtual) {
	if l.wide() {
		VEXTRACTF32X4(U8(1), from.AsY(), to.AsX())
	} else {
		VEXTRACTF128(U8(1), from.AsY(), to.AsX())
	}
}
