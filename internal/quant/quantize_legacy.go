package quant

import (
	"encoding/binary"
	"math"
)

// The 32-wide types. Upstream takes the scale straight from the extremes; the
// search costs little more and removes several per cent of the error.

const (
	symmetricFloor = 2 // see sample.byPower
	codebookFloor  = 4
)

func quantQ40(dst []byte, src []float32) {
	var s sample
	var codes [32]byte
	for ; len(src) >= 32 && len(dst) >= 18; src, dst = src[32:], dst[18:] {
		b := (*[18]byte)(dst)
		s.byPower(src[:32], symmetricFloor)
		d := putScale(b[:], s.bestSymmetric(8, 0.4, 4, 0))
		encodeSymmetric(codes[:], s.x, d, 8)
		packNibbles((*[16]byte)(b[2:]), &codes)
	}
}

func quantQ50(dst []byte, src []float32) {
	var s sample
	var codes [32]byte
	for ; len(src) >= 32 && len(dst) >= 22; src, dst = src[32:], dst[22:] {
		b := (*[22]byte)(dst)
		s.byPower(src[:32], symmetricFloor)
		d := putScale(b[:], s.bestSymmetric(16, 0.4, 4, 0))
		encodeSymmetric(codes[:], s.x, d, 16)
		packNibbles((*[16]byte)(b[6:]), &codes)
		binary.LittleEndian.PutUint32(b[2:], fifthBits(&codes))
	}
}

func quantQ41(dst []byte, src []float32) {
	var s sample
	var codes [32]byte
	for ; len(src) >= 32 && len(dst) >= 20; src, dst = src[32:], dst[20:] {
		b := (*[20]byte)(dst)
		s.byMagnitude(src[:32])
		scale, low := s.bestFree(15)
		d, m := putScale(b[:], scale), putHalf(b[2:], low)
		encodeAffine(codes[:], s.x, d, m, 15)
		packNibbles((*[16]byte)(b[4:]), &codes)
	}
}

func quantQ51(dst []byte, src []float32) {
	var s sample
	var codes [32]byte
	for ; len(src) >= 32 && len(dst) >= 24; src, dst = src[32:], dst[24:] {
		b := (*[24]byte)(dst)
		s.byMagnitude(src[:32])
		scale, low := s.bestFree(31)
		d, m := putScale(b[:], scale), putHalf(b[2:], low)
		encodeAffine(codes[:], s.x, d, m, 31)
		packNibbles((*[16]byte)(b[8:]), &codes)
		binary.LittleEndian.PutUint32(b[4:], fifthBits(&codes))
	}
}

// putHalf stores x as a half and returns what a reader will see, so that codes
// are chosen for the scale that is really there.
func putHalf(b []byte, x float32) float32 {
	h := F32ToF16(x)
	binary.LittleEndian.PutUint16(b, h)
	return F16ToF32(h)
}

// putScale is putHalf for a scale: one slightly too small for a half becomes the
// smallest half instead of wiping the block out. Coarse steps are better than
// none, as long as the values still span several of them.
func putScale(b []byte, x float32) float32 {
	d := putHalf(b, x)
	if d == 0 && math.Abs(float64(x)) >= 0x1p-27 {
		d = putHalf(b, float32(math.Copysign(0x1p-24, float64(x))))
	}
	return d
}

// encodeSymmetric writes the codes in [-n, n-1] nearest to x/d, plus n.
func encodeSymmetric(codes []byte, x []float32, d, n float32) {
	inv := reciprocal(d)
	codes = codes[:len(x)]
	for i, v := range x {
		l := round32(float32(v * inv))
		if l > n-1 {
			l = n - 1
		} else if l < -n {
			l = -n
		}
		codes[i] = byte(int32(l + n))
	}
}

// encodeAffine writes the codes in [0, n] nearest to (x-m)/d.
func encodeAffine(codes []byte, x []float32, d, m, n float32) {
	inv := reciprocal(d)
	codes = codes[:len(x)]
	for i, v := range x {
		l := round32(float32((v - m) * inv))
		if l > n {
			l = n
		} else if l < 0 {
			l = 0
		}
		codes[i] = byte(int32(l))
	}
}

// packNibbles stores the low four bits of 32 codes.
func packNibbles(qs *[16]byte, codes *[32]byte) {
	for j := range qs {
		qs[j] = codes[j]&15 | codes[j+16]<<4
	}
}

// fifthBits gathers bit 4 of each code.
func fifthBits(codes *[32]byte) (high uint32) {
	for i, c := range codes {
		high |= uint32(c>>4) << i
	}
	return high
}
