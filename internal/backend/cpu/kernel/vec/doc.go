// Package vec holds the float kernels of the CPU backend: matrix products with
// F32, F16 and BF16 weights, norms, activations, softmax, RoPE, attention over
// cached keys and values, and the gated delta rule.
//
// Every function has a plain Go version and, on amd64, AVX2 and AVX-512
// versions; [strobe/internal/backend/cpu/kernel.Current] chooses when a call starts. The
// build tag noasm leaves only the Go versions.
//
// # Same bits for the same value
//
// Within one level the result for a row, token or element is the same bits
// whatever else is computed beside it: the number of columns, the range of
// rows, the position of an element in its slice, the address of the slice and
// the calling goroutine do not matter. Reductions have an order that depends on
// the index of the summand only, and the tail of a slice goes through the same
// operations as the rest. Levels may differ from each other in the last bits.
// This is what makes a verified token equal to a decoded one, so a kernel that
// breaks it is wrong even when it is more accurate.
//
// # Contracts common to all functions
//
// Slices may be misaligned. The first parameter is the destination and fixes
// the length unless said otherwise; operands must be at least as long, and may
// be the destination itself but must not overlap it in any other way. Kernels
// neither allocate (beyond pooled scratch) nor start goroutines; NaN and
// infinities travel through them as arithmetic has it. Wrong lengths are a
// programming mistake and panic.
package vec
