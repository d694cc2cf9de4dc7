package vec

import (
	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
	"strobe/internal/weight"
)

// table is what every instruction set has a version of. All slices of a call have the length of the first (of cos in
// rotate); none may be shorter.
type table struct {
	axpy       func(dst, x, y []float32, a float32) // dst = a*x + y
	add        func(dst, a, b []float32)
	scale      func(dst, a []float32, s float32)
	scaleMul   func(dst, x, w []float32, s float32) // dst = (s*x)*w
	sigmoid    func(dst, x []float32)
	silu       func(dst, x []float32)
	siluMul    func(dst, gate, up []float32)
	geluMul    func(dst, gate, up []float32)
	sigmoidMul func(dst, x, gate []float32)
	softcap    func(dst, x []float32, c float32)
	sumSquares func(x []float32) float64
	dot        func(a, b []float32) float32
	maximum    func(x []float32) float32            // of what is not NaN; -Inf of nothing
	indexOf    func(x []float32, v float32) int     // -1 if it is not there
	expSum     func(x []float32, m float32) float64 // replaces x by e^(x-m)
	weightSum  func(x []float32, top float32) uint64
	rotate     func(a, b, cos, sin []float32)
	loadQ80    func(dst []float32, src []byte)
	storeQ80   func(dst []byte, src []float32)
	loadQ40    func(dst []float32, src []byte)
	loadQ41    func(dst []float32, src []byte)
	loadTurbo3 func(dst []float32, src []byte, codes *[16]float32) // its eight codes twice
	loadTurbo4 func(dst []float32, src []byte, codes *[16]float32)
}

// generic is in plain Go: the reference of the others.
var generic = table{
	axpyGeneric, addGeneric, scaleGeneric, scaleMulGeneric, sigmoidGeneric, siluGeneric, siluMulGeneric, geluMulGeneric,
	sigmoidMulGeneric, softcapGeneric, sumSquaresGeneric, dotGeneric, maximumGeneric, indexOfGeneric, expSumGeneric,
	weight.Sum, rotateGeneric,
	func(dst []float32, src []byte) { quant.DecodeKV(quant.Q8_0, dst, src) },
	storeQ80Generic,
	func(dst []float32, src []byte) { quant.DecodeKV(quant.Q4_0, dst, src) },
	func(dst []float32, src []byte) { quant.DecodeKV(quant.Q4_1, dst, src) },
	func(dst []float32, src []byte, _ *[16]float32) { quant.DecodeKV(quant.Turbo3, dst, src) },
	func(dst []float32, src []byte, _ *[16]float32) { quant.DecodeKV(quant.Turbo4, dst, src) },
}

// ops is the table in use.
func ops() *table { return &tables[kernel.Current().Floats()] }
