package vec

import "unsafe"

// f32Bytes views a slice of float32 as bytes. Only the kernels of little-endian
// machines see such views; GGUF data has that order too.
func f32Bytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
