// Package backendtest proves that a device keeps the contract of package backend.
//
// Run calls every operation and compares it with a plain float64 computation that is written from the
// operation's definition and shares no code with any device. Beside the values it checks the laws that
// everything above a device relies on:
//
//   - a row has the same bits alone and in any batch, at any place and in any layout of memory;
//   - nothing is written outside an output: neither around it nor between its rows, and inputs stay as they are;
//   - a NaN or an infinity stays in its row, and what no operation may read (stale slots of pages, memory between rows)
//     may hold NaN without harm;
//   - a step that is replayed computes what a fresh device would;
//   - memory of sequences that was copied, moved, kept or stored continues with the same bits.
//
// Sizes are small, so that the suite also runs on a slow emulation of a device.
package backendtest

import (
	"testing"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// Options adapts the suite to a device. The zero value asks for everything with the bounds of exact float32 arithmetic.
type Options struct {
	Rows    []int               // sizes of batches; should lie on both sides of where a device changes its kernels
	Weights []quant.Type        // formats of weights
	KV      []quant.Type        // formats of keys and values
	Heads   []int               // sizes of attention heads
	Delta   []backend.DeltaDims // sizes of recurrent layers
	BigRow  int                 // columns of the largest row that is searched for its best values
	Copies  bool                // the device has copies of all weights, so that their files need not stay in memory

	// Product is the largest error of a product with weights of a type and rows of cols inputs, relative to the size that
	// results have for random signs: rounding each input by e of the size of all of them errs by about e. A device that
	// rounds activations allows for it here. nil: ExactProduct.
	Product func(t quant.Type, cols int) float64
	// Stored is how far values of a weight may be off on the device, relative to each. nil: they are exact.
	Stored func(t quant.Type) float64
	// Attention is what Product is, for attention over keys and values of the given types. nil: ExactAttention.
	Attention func(key, value quant.Type) float64
}

// ExactProduct is the bound for float32 arithmetic in any order.
func ExactProduct(quant.Type, int) float64 { return 1e-5 }

// ExactAttention is the bound for float32 arithmetic on keys and values that are rotated and rounded as package quant
// does.
func ExactAttention(_, _ quant.Type) float64 { return 1e-5 }

func (o Options) withDefaults() Options {
	if o.Rows == nil {
		o.Rows = []int{1, 2, 3, 5, 8, 16, 17, 33}
	}
	if o.Weights == nil {
		for t := quant.Type(0); t < 64; t++ {
			if t.Dequantizable() {
				o.Weights = append(o.Weights, t)
			}
		}
	}
	if o.KV == nil {
		o.KV = quant.CacheTypes
	}
	if o.Heads == nil {
		o.Heads = []int{32, 64, 96, 128, 256, 512}
	}
	if o.Delta == nil {
		o.Delta = []backend.DeltaDims{
			{KHeads: 2, VHeads: 4, KDim: 32, VDim: 48, Kernel: 4, Eps: 1e-6},
			{KHeads: 2, VHeads: 4, KDim: 16, VDim: 16, Kernel: 3, Eps: 1e-6, Grouped: true},
			{KHeads: 1, VHeads: 2, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6},
		}
	}
	if o.BigRow == 0 {
		o.BigRow = 70_000
	}
	if o.Product == nil {
		o.Product = ExactProduct
	}
	if o.Stored == nil {
		o.Stored = func(quant.Type) float64 { return 0 }
	}
	if o.Attention == nil {
		o.Attention = ExactAttention
	}
	return o
}

// Open returns the device under test. It is called once or more per case; the suite closes what it returns. Where
// opening takes long, it may return one device every time whose Close does nothing: then cases that compare with a
// fresh device compare with fresh memory of it.
type Open func(t testing.TB) backend.Backend

// testCase is one topic of the suite.
type testCase struct {
	name string
	run  func(s *suite)
}

// suite is what a case needs.
type suite struct {
	testing.TB
	Options
	open Open
}

// cases lists the suite.
func cases(o Options) []testCase {
	var list []testCase
	for _, part := range [][]testCase{
		memoryCases(), denseCases(), rotaryCases(), embedCases(o), productCases(o), expertCases(o),
		attentionCases(o), sparseCases(o), weighCases(), pageCases(o), deltaCases(o), stateCases(o), choiceCases(),
		stepCases(),
	} {
		list = append(list, part...)
	}
	return list
}

// Run runs the suite, a sub-test per operation and topic.
func Run(t *testing.T, open Open, o Options) {
	o = o.withDefaults()
	for _, c := range cases(o) {
		t.Run(c.name, func(t *testing.T) { c.run(&suite{t, o, open}) })
	}
}
