package quant

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Types of cached keys and values alone: three and four bits per value on a codebook for rotated rows, with one scale
// for 128 values. No file has them, so they are not [Type.Known].
const (
	Turbo3 Type = 1<<16 + iota
	Turbo4
)

var turboTypes = [...]info{{"turbo3", 128, 50, nil}, {"turbo4", 128, 66, nil}}

// CacheTypes lists the types that keys and values can be kept in, by falling size.
var CacheTypes = []Type{F32, F16, Q8_0, Q4_1, Q4_0, Turbo4, Turbo3}

// Caches reports whether keys and values can be kept in t.
func (t Type) Caches() bool {
	for _, c := range CacheTypes {
		if c == t {
			return true
		}
	}
	return false
}

// ParseCacheType reads one of [CacheTypes]. Case does not matter.
func ParseCacheType(s string) (Type, error) {
	var names []string
	for _, t := range CacheTypes {
		name := strings.ToLower(t.String())
		if name == strings.ToLower(s) {
			return t, nil
		}
		names = append(names, name)
	}
	return 0, fmt.Errorf("cache type %q: want one of %s", s, strings.Join(names, ", "))
}

// RotatesKeys reports whether keys of the type are rotated before they are rounded: a few large channels, which keys
// have, would cost all others their precision. Queries are rotated the same way, which leaves products as they are.
func (t Type) RotatesKeys() bool { return t.BlockLen() > 1 }

// RotatesValues reports the same of values, whose weighted sum is rotated back. Without outliers it gains nothing but
// what the codebooks need.
func (t Type) RotatesValues() bool { return t == Turbo3 || t == Turbo4 }

// rotated is the longest group of values that is rotated as one.
const rotated = 128

// The rotation is D2 H D1 with the Walsh-Hadamard matrix H and two diagonals of signs, which stand here as bits of
// SplitMix64 with seed 42: stored sequences depend on them.
var sign1, sign2 = signs(0xbdd732262feb6e95, 0x28efe333b266f103), signs(0x47526757130f9f52, 0x581ce1ff0e4ae394)

func signs(words ...uint64) (d [rotated]float32) {
	for i := range d {
		d[i] = 1 - 2*float32(words[i/64]>>(i%64)&1)
	}
	return d
}

// Rotate rotates a head's row in groups of the largest power of two that divides its length, at most 128. It keeps
// lengths and products of rows.
func Rotate(x []float32) { rotate(x, &sign1, &sign2) }

// Unrotate is the inverse of Rotate.
func Unrotate(x []float32) { rotate(x, &sign2, &sign1) }

func rotate(x []float32, first, last *[rotated]float32) {
	g := min(rotated, len(x)&-len(x))
	scale := float32(1 / math.Sqrt(float64(g)))
	for ; len(x) > 0; x = x[g:] {
		y := x[:g]
		for i := range y {
			y[i] *= first[i]
		}
		for h := 1; h < g; h *= 2 {
			for i := 0; i < g; i += 2 * h {
				a, b := y[i:i+h], y[i+h:][:h]
				for j, v := range a {
					a[j], b[j] = v+b[j], v-b[j]
				}
			}
		}
		for i := range y {
			y[i] *= last[i] * scale
		}
	}
}

// The codebooks, ascending, and where one code ends and the next begins.
var (
	code3 = [8]float32{-0.190685, -0.117832, -0.065717, -0.021460, 0.021460, 0.065717, 0.117832, 0.190685}
	edge3 = [7]float32{-0.154259, -0.091775, -0.043589, 0, 0.043589, 0.091775, 0.154259}
	code4 = [16]float32{-0.241556, -0.182907, -0.143047, -0.111065, -0.083317, -0.058069, -0.034311, -0.011353,
		0.011353, 0.034311, 0.058069, 0.083317, 0.111065, 0.143047, 0.182907, 0.241556}
	edge4 = [15]float32{-0.2122315, -0.162977, -0.127056, -0.097191, -0.070693, -0.04619, -0.022832, 0,
		0.022832, 0.04619, 0.070693, 0.097191, 0.127056, 0.162977, 0.2122315}
)

// Codes returns the codebook of Turbo3 or Turbo4.
func Codes(t Type) []float32 {
	if t == Turbo3 {
		return slices.Clone(code3[:])
	}
	return slices.Clone(code4[:])
}

// EncodeKV stores a row of a key or value, rotated before where its type wants that. Unlike [Quantize] it takes any
// numbers, in the time that a pass has: scales come straight from the extremes. Rows that are not finite come back as
// anything.
func EncodeKV(t Type, dst []byte, src []float32) {
	dst = dst[:t.RowBytes(len(src))]
	switch t {
	case F32:
		quantF32(dst, src)
	case F16:
		quantF16(dst, src)
	case Q8_0:
		quantQ80(dst, src)
		TidyQ80(dst)
	case Q4_0:
		encodeQ40(dst, src)
	case Q4_1:
		encodeQ41(dst, src)
	case Turbo3:
		for ; len(src) > 0; src, dst = src[128:], dst[50:] {
			encodeTurbo3((*[50]byte)(dst), src[:128])
		}
	case Turbo4:
		for ; len(src) > 0; src, dst = src[128:], dst[66:] {
			encodeTurbo4((*[66]byte)(dst), src[:128])
		}
	default:
		panic(fmt.Sprintf("quant: keys and values cannot be %v", t))
	}
}

// DecodeKV is the inverse of EncodeKV. It leaves rotated rows rotated.
func DecodeKV(t Type, dst []float32, src []byte) {
	src = src[:t.RowBytes(len(dst))]
	switch t {
	case Turbo3:
		for ; len(dst) > 0; dst, src = dst[128:], src[50:] {
			decodeTurbo3((*[128]float32)(dst), (*[50]byte)(src))
		}
	case Turbo4:
		for ; len(dst) > 0; dst, src = dst[128:], src[66:] {
			decodeTurbo4((*[128]float32)(dst), (*[66]byte)(src))
		}
	default:
		dequantize(t, dst, src)
	}
}

// TidyQ80 makes rows of Q8_0 rows of the cache: blocks whose scale is zero are all zeros, so that equal values have
// equal bytes, and no scale is infinite.
func TidyQ80(b []byte) {
	for ; len(b) >= 34; b = b[34:] {
		switch h := binary.LittleEndian.Uint16(b); h {
		case 0:
			clear(b[:34])
		case 0x7c00:
			binary.LittleEndian.PutUint16(b, 0x7bff)
		}
	}
}

func encodeQ40(dst []byte, src []float32) {
	var codes [32]byte
	for ; len(src) >= 32; src, dst = src[32:], dst[18:] {
		x, b := src[:32], (*[18]byte)(dst)
		var top float32
		for _, v := range x {
			if abs32(v) > abs32(top) {
				top = v
			}
		}
		d := top / -8
		h := cacheHalf(d)
		if h&0x7fff == 0 {
			clear(b[:])
			continue
		}
		for i, v := range x {
			codes[i] = clampCode(v/d+8.5, 15)
		}
		binary.LittleEndian.PutUint16(b[:], h)
		packNibbles((*[16]byte)(b[2:]), &codes)
	}
}

func encodeQ41(dst []byte, src []float32) {
	var codes [32]byte
	for ; len(src) >= 32; src, dst = src[32:], dst[20:] {
		x, b := src[:32], (*[20]byte)(dst)
		low, high := x[0], x[0]
		for _, v := range x {
			low, high = min(low, v), max(high, v)
		}
		d := (high - low) / 15
		h := cacheHalf(d)
		clear(codes[:])
		if h != 0 {
			for i, v := range x {
				codes[i] = clampCode((v-low)/d+0.5, 15)
			}
		}
		binary.LittleEndian.PutUint16(b[:], h)
		binary.LittleEndian.PutUint16(b[2:], cacheHalf(low))
		packNibbles((*[16]byte)(b[4:]), &codes)
	}
}

func abs32(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

// cacheHalf is a half that is never infinite: huge is better than unusable.
func cacheHalf(x float32) uint16 { return F32ToF16(max(-maxHalf, min(maxHalf, x))) }

// clampCode rounds down to a code in [0, most].
func clampCode(x float32, most int32) byte {
	if !(x > 0) {
		return 0
	}
	return byte(min(int32(min(x, 1024)), most))
}

// turboScale divides a group by its length, chooses the codes and returns the half that gives the group its length
// back; 0 for a group that is too short for one.
func turboScale(idx *[128]byte, x []float32, code, edge []float32) uint16 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	n := math.Sqrt(sum)
	if n == 0 {
		return 0
	}
	inv, sum := 1/n, 0.0
	for i, v := range x {
		y, k := float32(float64(v)*inv), byte(0)
		for _, e := range edge {
			if y >= e {
				k++
			}
		}
		idx[i] = k
		sum += float64(code[k]) * float64(code[k])
	}
	return cacheHalf(float32(n / math.Sqrt(sum)))
}

func encodeTurbo3(b *[50]byte, x []float32) {
	var idx [128]byte
	h := turboScale(&idx, x, code3[:], edge3[:])
	clear(b[:])
	if h == 0 {
		return
	}
	binary.LittleEndian.PutUint16(b[:], h)
	for i, k := range idx {
		b[2+i/4] |= k & 3 << (2 * (i % 4))
		b[34+i/8] |= k >> 2 << (i % 8)
	}
}

func encodeTurbo4(b *[66]byte, x []float32) {
	var idx [128]byte
	h := turboScale(&idx, x, code4[:], edge4[:])
	clear(b[:])
	if h == 0 {
		return
	}
	binary.LittleEndian.PutUint16(b[:], h)
	for i := range 64 {
		b[2+i] = idx[2*i] | idx[2*i+1]<<4
	}
}

func decodeTurbo3(dst *[128]float32, b *[50]byte) {
	d := half(b[:])
	var t [8]float32
	for i, c := range code3 {
		t[i] = c * d
	}
	for j := range 16 {
		low, high := uint32(b[2+2*j])|uint32(b[3+2*j])<<8, uint32(b[34+j])<<2
		y := (*[8]float32)(dst[8*j:])
		y[0] = t[low&3|high&4]
		y[1] = t[low>>2&3|high>>1&4]
		y[2] = t[low>>4&3|high>>2&4]
		y[3] = t[low>>6&3|high>>3&4]
		y[4] = t[low>>8&3|high>>4&4]
		y[5] = t[low>>10&3|high>>5&4]
		y[6] = t[low>>12&3|high>>6&4]
		y[7] = t[low>>14&3|high>>7&4]
	}
}

func decodeTurbo4(dst *[128]float32, b *[66]byte) {
	d := half(b[:])
	var t [16]float32
	for i, c := range code4 {
		t[i] = c * d
	}
	for j, v := range b[2:] {
		dst[2*j], dst[2*j+1] = t[v&15], t[v>>4]
	}
}
