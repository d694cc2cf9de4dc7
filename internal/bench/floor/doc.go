// Package floor measures what a machine can do at best: how fast it reads memory and how fast it
// multiplies small integers. Decoding one token cannot beat the first, verifying many
// cannot beat the second; benchmarks print how close they come.
//
// The loops are those of the instruction set the kernels use (strobe/internal/backend/cpu/kernel.Current).
// Goroutines end before a function returns.
package floor
