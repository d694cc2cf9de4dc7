package quant

import (
	"encoding/binary"
	"math"
)

// iq4Values is the non-linear code book shared by IQ4_NL and IQ4_XS.
var iq4Values = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// fp4Values are the E2M1 numbers times two, so that they are integers. The
// scales of MXFP4 and NVFP4 below are halved to make up for it.
var fp4Values = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

func dequantIQ4NL(dst []float32, src []byte) {
	for ; len(dst) >= 32 && len(src) >= 18; dst, src = dst[32:], src[18:] {
		b := (*[18]byte)(src)
		nibbles32((*[32]float32)(dst), (*[16]byte)(b[2:]), &iq4Values, half(b[:]))
	}
}

func dequantIQ4XS(dst []float32, src []byte) {
	for ; len(dst) >= 256 && len(src) >= 136; dst, src = dst[256:], src[136:] {
		b, y := (*[136]byte)(src), (*[256]float32)(dst)
		d, high := half(b[:]), binary.LittleEndian.Uint16(b[2:])
		for s := range 8 {
			ls := uint16(b[4+s/2]>>(s%2*4)&15) | high>>(2*s)&3<<4
			nibbles32((*[32]float32)(y[32*s:]), (*[16]byte)(b[8+16*s:]), &iq4Values, d*float32(int32(ls)-32))
		}
	}
}

func dequantMXFP4(dst []float32, src []byte) {
	for ; len(dst) >= 32 && len(src) >= 17; dst, src = dst[32:], src[17:] {
		b := (*[17]byte)(src)
		nibbles32((*[32]float32)(dst), (*[16]byte)(b[1:]), &fp4Values, mxScale(b[0]))
	}
}

// nibbles32 writes table values times d, with the nibble order of the 32-wide
// types.
func nibbles32(y *[32]float32, qs *[16]byte, table *[16]float32, d float32) {
	for j := range 16 {
		q := qs[j]
		y[j] = table[q&15] * d
		y[j+16] = table[q>>4] * d
	}
}

// mxScale is half of the E8M0 scale 2^(e-127); for e below 2 the half is a
// float32 subnormal.
func mxScale(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

func dequantNVFP4(dst []float32, src []byte) {
	for ; len(dst) >= 64 && len(src) >= 36; dst, src = dst[64:], src[36:] {
		b, y := (*[36]byte)(src), (*[64]float32)(dst)
		for s := range 4 {
			d := nvScale(b[s])
			qs := (*[8]byte)(b[4+8*s:])
			out := (*[16]float32)(y[16*s:])
			for j := range 8 {
				q := qs[j]
				out[j] = fp4Values[q&15] * d
				out[j+8] = fp4Values[q>>4] * d
			}
		}
	}
}

// nvScale is half of an unsigned E4M3 scale. The sign bit has no meaning and
// the NaN code counts as zero, as upstream reads them.
func nvScale(b byte) float32 {
	if b == 0 || b == 0x7f {
		return 0
	}
	exp, man := int32(b>>3&15), int32(b&7)
	if exp == 0 {
		return float32(man) * 0x1p-10
	}
	return math.Float32frombits(uint32(exp-8+127)<<23 | uint32(man)<<20)
}
