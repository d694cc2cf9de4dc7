// Package qmat multiplies matrices of quantised weights, as they lie in a GGUF file,
// by activations rounded to int8.
//
// [Rows] rounds float32 rows to int8, [Acts] arranges the rows that one product needs,
// and [Matrix.Mul] computes a range of output rows. Weights are only read, in place,
// at any alignment. Nothing here starts goroutines: callers share the work by giving
// each worker its own ranges and its own [Scratch].
//
// # Numbers
//
// Activations have one float32 scale per 32 values. A product is a sum over sub-blocks
// (32 or 16 values that share a weight scale); inside one the integers are exact, and
// the sub-blocks are added in a fixed order with fused multiply-adds:
//
//	t = scale * float32(dot)          rounded once
//	y = fma(t, activation scale, y)
//	y = fma(min, activation scale * sum of activations, y)   formats with a minimum
//
// Every (row, column) therefore gets the same bits for any number of columns, any split
// of the rows and any CPU level. The plain Go version in generic.go is the definition.
//
// An activation that is not finite makes its group of 32 count as NaN, so every output of
// that column is NaN; the other columns are not touched by it.
//
// docs/kernels.md has the layouts, the measurements and what did not work.
package qmat

//go:generate sh -c "cd _asm && go run . -out ../kernels_amd64.s -stubs ../kernels_amd64.go -pkg qmat"
