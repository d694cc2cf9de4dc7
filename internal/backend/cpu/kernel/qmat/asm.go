//go:build (amd64 || arm64) && !noasm

package qmat

import "unsafe"

// What the kernels of amd64 and arm64 share.

// recBytes is the size of a record.
const recBytes = int(unsafe.Sizeof(record{}))

// aligned returns n bytes that start on a multiple of to, a power of two.
func aligned(n, to int) []byte {
	b := make([]byte, n+to)
	o := -int(uintptr(unsafe.Pointer(&b[0]))) & (to - 1)
	return b[o : o+n : o+n]
}

// columns chooses how many of n columns go through the matrix together: their activations should stay in the second
// cache and their sums, for a pair of panels, in the first. The matrix is decoded again for the next columns, which
// costs a few percent. tile, a power of two, is the number of columns that a kernel takes.
func columns(n, k, tile int) int {
	const cache = 512 << 10
	most := min(96, max(32, cache/((k+blockLen-1)/blockLen*recBytes)&^(tile-1)))
	parts := (n + most - 1) / most
	return (n + parts*tile - 1) / (parts * tile) * tile
}

// sub returns the values per sub-block.
func (k kind) sub() int {
	if k == off16 || k == min16 {
		return 16
	}
	return 32
}

// iters is the loop count of the micro kernels.
func (k kind) iters(values int) int {
	if k.sub() == 16 {
		return (values + 127) / 128
	}
	return values / 32
}

func add(p *byte, n int) *byte { return (*byte)(unsafe.Add(unsafe.Pointer(p), n)) }
