// Package quant knows the tensor element types a GGUF file may hold: how large
// their blocks are, how to turn blocks into float32 values and back, and which
// type each tensor of a model receives under the mixes users ask for by name
// ("Q4_K_M", "Q8_0", ...).
//
// [Type] carries the geometry, [Layout] takes a block apart, [Dequantize] and
// [Quantize] convert whole rows, [Mix] plans a model. All functions are pure and
// safe for concurrent use; the package holds no state and starts no goroutines.
//
// Block layouts follow ggml and are little endian on every machine.
package quant
