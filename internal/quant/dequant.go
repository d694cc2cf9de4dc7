package quant

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Dequantizable reports whether [Dequantize] understands t.
func (t Type) Dequantizable() bool { return t == F32 || t == F16 || t == BF16 || t.Layout() != nil }

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
	dequantize(t, dst, src)
	return nil
}

// dequantize is Dequantize for whole blocks of a type that it understands.
func dequantize(t Type, dst []float32, src []byte) {
	switch t {
	case F32:
		dequantF32(dst, src)
	case F16:
		dequantF16(dst, src)
	case BF16:
		dequantBF16(dst, src)
	default:
		in := &types[t]
		in.layout.dequantize(dst, src, in.blockLen, in.blockBytes)
	}
}

func (l *Layout) dequantize(dst []float32, src []byte, blockLen, blockBytes int) {
	var b Block
	var codes [256]byte
	var scales, mins [16]float32
	values, subs := &l.values, blockLen/l.Sub
	for ; len(dst) >= blockLen && len(src) >= blockBytes; dst, src = dst[blockLen:], src[blockBytes:] {
		l.Unpack(&b, codes[:blockLen], src[:blockBytes])
		l.Floats(&b, scales[:subs], mins[:subs])
		for at := 0; at < blockLen; at += 16 { // arrays spare a range check per value
			y, q := (*[16]float32)(dst[at:]), (*[16]byte)(codes[at:])
			scale, low := scales[at/l.Sub&15], mins[at/l.Sub&15]
			if !l.Min { // adding zero would change the sign of a zero
				for i := range 8 {
					y[i], y[i+8] = values[q[i]]*scale, values[q[i+8]]*scale
				}
				continue
			}
			for i := range 8 {
				y[i], y[i+8] = float32(values[q[i]]*scale)+low, float32(values[q[i+8]]*scale)+low
			}
		}
	}
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
