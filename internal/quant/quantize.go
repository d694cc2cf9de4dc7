package quant

import (
	"encoding/binary"
	"fmt"
	"math"
)

// quantizer is how one type is made: the row function, and the largest
// magnitude it accepts, at which every scale it may choose still fits.
type quantizer struct {
	row   func(dst []byte, src []float32)
	limit float32
}

const maxHalf = 65504

var quantizers = [maxType + 1]quantizer{
	F32:    {quantF32, math.MaxFloat32},
	F16:    {quantF16, 65519.996}, // everything below rounds to 65504 or less
	BF16:   {quantBF16, 0x1.fefffep127},
	Q8_0:   {quantQ80, maxHalf * 127},
	Q4_0:   {quantQ40, maxHalf * 4},
	Q4_1:   {quantQ41, maxHalf / 2},
	Q5_0:   {quantQ50, maxHalf * 8},
	Q5_1:   {quantQ51, maxHalf / 2},
	Q2_K:   {quantQ2K, maxHalf * 7},
	Q3_K:   {quantQ3K, maxHalf * 64},
	Q4_K:   {quantQ4K, maxHalf * 32},
	Q5_K:   {quantQ5K, maxHalf * 32},
	Q6_K:   {quantQ6K, maxHalf * 64},
	IQ4_NL: {quantIQ4NL, maxHalf * 64},
	IQ4_XS: {quantIQ4XS, maxHalf * 64},
	MXFP4:  {quantMXFP4, 0x1.8p127},
}

// ValueError is a number that cannot be quantised.
type ValueError struct {
	Type  Type // what it should have become
	Index int  // its position in the source
	Value float32
}

func (e *ValueError) Error() string {
	if x := float64(e.Value); math.IsNaN(x) || math.IsInf(x, 0) {
		return fmt.Sprintf("quantize %v: value %d is %v", e.Type, e.Index, e.Value)
	}
	return fmt.Sprintf("quantize %v: value %d is %v, too large for the type", e.Type, e.Index, e.Value)
}

// Quantizable reports whether [Quantize] can produce t.
func (t Type) Quantizable() bool { return t <= maxType && quantizers[t].row != nil }

// Quantize converts float32 values to blocks of type t. The length of src must
// be a multiple of the block length and dst must have exactly the matching
// size. Blocks do not influence each other, so a tensor may be converted in any
// pieces of whole blocks with the same result.
//
// A NaN, an infinity or a number the type cannot hold is a [*ValueError] with its
// position in src; dst is then undefined. F32 takes every value as it is.
func Quantize(t Type, dst []byte, src []float32) error {
	if err := checkQuantize(t, dst, src); err != nil {
		return err
	}
	q := quantizers[t]
	if t != F32 {
		if i := firstBeyond(src, q.limit); i >= 0 {
			return &ValueError{Type: t, Index: i, Value: src[i]}
		}
	}
	q.row(dst, src)
	return nil
}

func checkQuantize(t Type, dst []byte, src []float32) error {
	if !t.Quantizable() {
		return fmt.Errorf("quantize: type %v is not supported", t)
	}
	if n := t.BlockLen(); len(src)%n != 0 {
		return fmt.Errorf("quantize %v: %d values are not a multiple of the block length %d", t, len(src), n)
	}
	if want := t.RowBytes(len(src)); len(dst) != want {
		return fmt.Errorf("quantize %v: %d values need %d bytes, have %d", t, len(src), want, len(dst))
	}
	return nil
}

// firstBeyond is the index of the first value that is not within ±limit, NaN
// included, or -1.
func firstBeyond(x []float32, limit float32) int {
	top := math.Float32bits(limit)
	for i, v := range x {
		// As integers, magnitudes sort like the floats, with NaN above infinity.
		if math.Float32bits(v)&0x7fffffff > top {
			return i
		}
	}
	return -1
}

func quantF32(dst []byte, src []float32) {
	for i, x := range src {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
	}
}

func quantF16(dst []byte, src []float32) {
	for i, x := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToF16(x))
	}
}

func quantBF16(dst []byte, src []float32) {
	for i, x := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToBF16(x))
	}
}

// quantQ80 rounds exactly like ggml's quantize_row_q8_0_ref and the gguf Python
// package, because converted files are compared byte by byte.
func quantQ80(dst []byte, src []float32) {
	for ; len(src) >= 32 && len(dst) >= 34; src, dst = src[32:], dst[34:] {
		x, b := (*[32]float32)(src), (*[34]byte)(dst)
		var top uint32
		for _, v := range x {
			top = max(top, math.Float32bits(v)&0x7fffffff)
		}
		d := math.Float32frombits(top) / 127
		id := 1 / d
		if d == 0 || math.IsInf(float64(id), 0) {
			id = 0 // the half below is zero as well
		}
		binary.LittleEndian.PutUint16(b[:], F32ToF16(d))
		for j, v := range x {
			b[2+j] = byte(roundAway(float32(v * id)))
		}
	}
}

// roundAway rounds to the nearest integer, halves away from zero.
func roundAway(x float32) int32 {
	// Adding 0.5 in float64 is exact for every float32 of this size, so a value
	// just below a half is not pushed over it.
	if x < 0 {
		return int32(float64(x) - 0.5)
	}
	return int32(float64(x) + 0.5)
}
