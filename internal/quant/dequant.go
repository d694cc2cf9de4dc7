package quant

import (
	"encoding/binary"
	"fmt"
	"math"
)

// dequantizers holds one row function per type. Each is called with a dst that
// is a whole number of blocks and a src of exactly the matching size.
var dequantizers = [maxType + 1]func(dst []float32, src []byte){
	F32:     dequantF32,
	F16:     dequantF16,
	BF16:    dequantBF16,
	Q4_0:    dequantQ40,
	Q4_1:    dequantQ41,
	Q5_0:    dequantQ50,
	Q5_1:    dequantQ51,
	Q8_0:    dequantQ80,
	Q2_K:    dequantQ2K,
	Q3_K:    dequantQ3K,
	Q4_K:    dequantQ4K,
	Q5_K:    dequantQ5K,
	Q6_K:    dequantQ6K,
	IQ1_S:   dequantGrid(IQ1_S),
	IQ1_M:   dequantGrid(IQ1_M),
	IQ2_XXS: dequantGrid(IQ2_XXS),
	IQ2_XS:  dequantGrid(IQ2_XS),
	IQ2_S:   dequantGrid(IQ2_S),
	IQ3_XXS: dequantGrid(IQ3_XXS),
	IQ3_S:   dequantGrid(IQ3_S),
	IQ4_NL:  dequantIQ4NL,
	IQ4_XS:  dequantIQ4XS,
	MXFP4:   dequantMXFP4,
	NVFP4:   dequantNVFP4,
	TQ1_0:   dequantTQ10,
	TQ2_0:   dequantTQ20,
	Q1_0:    dequantQ10,
	Q2_0:    dequantQ20,
}

// Dequantizable reports whether [Dequantize] understands t.
func (t Type) Dequantizable() bool { return t <= maxType && dequantizers[t] != nil }

// Dequantize writes the float32 values of the blocks in src to dst. The length
// of dst must be a multiple of the block length and src must hold exactly those
// blocks. Any bytes are accepted: a block whose scale is infinite or NaN gives
// infinite or NaN values.
//
// Products are rounded to float32 before they are added, so the result is the
// same on machines that could fuse the two.
func Dequantize(t Type, dst []float32, src []byte) error {
	if !t.Dequantizable() {
		return fmt.Errorf("dequantize: type %v is not supported", t)
	}
	if n := t.BlockLen(); len(dst)%n != 0 {
		return fmt.Errorf("dequantize %v: %d values are not a multiple of the block length %d", t, len(dst), n)
	}
	if want := t.RowBytes(len(dst)); len(src) != want {
		return fmt.Errorf("dequantize %v: %d values need %d bytes, have %d", t, len(dst), want, len(src))
	}
	dequantizers[t](dst, src)
	return nil
}

func dequantF32(dst []float32, src []byte) {
	for ; len(dst) >= 4 && len(src) >= 16; dst, src = dst[4:], src[16:] {
		lo, hi := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
		dst[0] = math.Float32frombits(uint32(lo))
		dst[1] = math.Float32frombits(uint32(lo >> 32))
		dst[2] = math.Float32frombits(uint32(hi))
		dst[3] = math.Float32frombits(uint32(hi >> 32))
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func dequantF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		h := binary.LittleEndian.Uint16(src[2*i:])
		if h&0x7c00-0x400 >= 0x7800 { // zero, subnormal, infinity, NaN
			dst[i] = F16ToF32(h)
			continue
		}
		// A normal number only needs a new exponent bias, all in integers.
		dst[i] = math.Float32frombits(uint32(h&0x8000)<<16 | (uint32(h&0x7fff)<<13 + (127-15)<<23))
	}
}

func dequantBF16(dst []float32, src []byte) {
	for ; len(dst) >= 4 && len(src) >= 8; dst, src = dst[4:], src[8:] {
		v := binary.LittleEndian.Uint64(src)
		dst[0] = math.Float32frombits(uint32(v) << 16)
		dst[1] = math.Float32frombits(uint32(v) & 0xffff0000)
		dst[2] = math.Float32frombits(uint32(v>>32) << 16)
		dst[3] = math.Float32frombits(uint32(v>>32) & 0xffff0000)
	}
	for i := range dst {
		dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// half reads a little-endian IEEE half, the scale format of most blocks.
func half(b []byte) float32 { return F16ToF32(binary.LittleEndian.Uint16(b)) }
