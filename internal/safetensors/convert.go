package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Float32s converts the tensor's values. 64-bit values are rounded.
func (t *Tensor) Float32s() ([]float32, error) {
	le := binary.LittleEndian
	b := t.Data
	switch t.DType {
	case "F32":
		return decode(b, 4, func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) }), nil
	case "BF16":
		return decode(b, 2, func(b []byte) float32 { return math.Float32frombits(uint32(le.Uint16(b)) << 16) }), nil
	case "F16":
		return decode(b, 2, func(b []byte) float32 { return half(le.Uint16(b)) }), nil
	case "F64":
		return decode(b, 8, func(b []byte) float32 { return float32(math.Float64frombits(le.Uint64(b))) }), nil
	case "I64":
		return decode(b, 8, func(b []byte) float32 { return float32(int64(le.Uint64(b))) }), nil
	case "U64":
		return decode(b, 8, func(b []byte) float32 { return float32(le.Uint64(b)) }), nil
	case "I32":
		return decode(b, 4, func(b []byte) float32 { return float32(int32(le.Uint32(b))) }), nil
	case "U32":
		return decode(b, 4, func(b []byte) float32 { return float32(le.Uint32(b)) }), nil
	case "I16":
		return decode(b, 2, func(b []byte) float32 { return float32(int16(le.Uint16(b))) }), nil
	case "U16":
		return decode(b, 2, func(b []byte) float32 { return float32(le.Uint16(b)) }), nil
	case "I8":
		return decode(b, 1, func(b []byte) float32 { return float32(int8(b[0])) }), nil
	case "U8", "BOOL":
		return decode(b, 1, func(b []byte) float32 { return float32(b[0]) }), nil
	case "F8_E4M3":
		return decode(b, 1, func(b []byte) float32 { return e4m3(b[0]) }), nil
	case "F8_E5M2":
		// E5M2 is the upper byte of a half.
		return decode(b, 1, func(b []byte) float32 { return half(uint16(b[0]) << 8) }), nil
	}
	return nil, fmt.Errorf("tensor %q: dtype %q cannot be converted to float32", t.Name, t.DType)
}

func decode(b []byte, width int, at func([]byte) float32) []float32 {
	out := make([]float32, len(b)/width)
	for i := range out {
		out[i] = at(b[i*width:])
	}
	return out
}

// half widens an IEEE half.
func half(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exp, man := uint32(h>>10)&31, uint32(h)&1023
	switch {
	case exp == 31:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	case exp == 0:
		v := float32(man) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(v) | sign)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

// e4m3 widens the OCP 8-bit float that has no infinities.
func e4m3(v byte) float32 {
	exp, man := int(v>>3)&15, float32(v&7)
	var f float32
	switch {
	case v&0x7f == 0x7f:
		f = float32(math.NaN())
	case exp == 0:
		f = man / 512
	default:
		f = float32(math.Ldexp(float64(1+man/8), exp-7))
	}
	if v&0x80 != 0 {
		f = -f
	}
	return f
}
