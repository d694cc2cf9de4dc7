package quant

import "math"

// F16ToF32 widens an IEEE half. Every half has an exact float32; NaN payloads
// are kept.
func F16ToF32(h uint16) float32 {
	// Shifting the 15 magnitude bits under the float32 exponent gives the value
	// scaled by 2^-112, subnormals included, so one multiplication finishes it.
	// Infinity and NaN come out as 65536 and above and need all exponent bits.
	f := math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112
	b := math.Float32bits(f) | uint32(h&0x8000)<<16
	if h&0x7c00 == 0x7c00 {
		b |= 0x7f800000
	}
	return math.Float32frombits(b)
}

// F32ToF16 narrows to an IEEE half, rounding to nearest even. Values that round
// beyond 65504 become infinity; NaN stays NaN and is made quiet.
func F32ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b >= 0x7f800000: // infinity, NaN
		if b > 0x7f800000 {
			return sign | 0x7e00 | uint16(b>>13)&0x3ff
		}
		return sign | 0x7c00
	case b >= 0x477ff000: // rounds to 65536 or more
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14, the smallest normal half
		// Adding 0.5 puts the unit of a subnormal half at the last mantissa
		// bit, so the addition itself does the rounding.
		r := math.Float32frombits(b) + 0.5
		return sign | uint16(math.Float32bits(r)-0x3f000000)
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-0x38000000)>>13)
}

// BF16ToF32 widens a bfloat16, which is the upper half of a float32.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 narrows to bfloat16, rounding to nearest even. NaN stays NaN and is
// made quiet.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
