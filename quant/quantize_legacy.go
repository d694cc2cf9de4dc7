package quant

import (
	"encoding/binary"
	"math"
)

// squares fills w with x² and wx with x³, the weights upstream uses for
// symmetric types: large values matter most.
func squares(w, wx, x []float32) {
	w, wx = w[:len(x)], wx[:len(x)]
	var s float32
	for _, v := range x {
		s += v * v
	}
	s *= float32(expC) / float32(len(x))
	for i, v := range x {
		w[i] = v*v + s
		wx[i] = w[i] * v
	}
}

func linear(w, wx, x []float32) {
	w, wx = w[:len(x)], wx[:len(x)]
	var s float32
	for _, v := range x {
		s += v * v
	}
	s = float32(math.Sqrt(float64(s / float32(len(x)))))
	for i, v := range x {
		w[i] = s + max(v, -v)
		wx[i] = w[i] * v
	}
}

func quantQ40(dst []byte, src []float32) {
	var w, wx [32]float32
	for ; len(src) >= 32 && len(dst) >= 18; src, dst = src[32:], dst[18:] {
		x, b := (*[32]float32)(src), (*[18]byte)(dst)
		squares(w[:], wx[:], x[:])
		h := F32ToF16(searchSymmetric(x[:], w[:], wx[:], 8, expStep, expTries))
		binary.LittleEndian.PutUint16(b[:], h)
		var codes [32]byte
		encodeSymmetric(codes[:], x[:], F16ToF32(h), 8)
		for j := range 16 {
			b[2+j] = codes[j] | codes[j+16]<<4
		}
	}
}

func quantQ50(dst []byte, src []float32) {
	var w, wx [32]float32
	for ; len(src) >= 32 && len(dst) >= 22; src, dst = src[32:], dst[22:] {
		x, b := (*[32]float32)(src), (*[22]byte)(dst)
		squares(w[:], wx[:], x[:])
		h := F32ToF16(searchSymmetric(x[:], w[:], wx[:], 16, expStep, expTries))
		binary.LittleEndian.PutUint16(b[:], h)
		var codes [32]byte
		encodeSymmetric(codes[:], x[:], F16ToF32(h), 16)
		binary.LittleEndian.PutUint32(b[2:], packFive(b[6:], &codes))
	}
}

// packFive stores the low nibbles of 32 five-bit codes and returns the fifth
// bits.
func packFive(b []byte, codes *[32]byte) uint32 {
	var high uint32
	qs := (*[16]byte)(b)
	for j := range 16 {
		lo, hi := codes[j], codes[j+16]
		qs[j] = lo&15 | hi<<4
		high |= uint32(lo>>4)<<j | uint32(hi>>4)<<(j+16)
	}
	return high
}

// encodeSymmetric writes the nearest codes for scale d, offset by n.
func encodeSymmetric(codes []byte, x []float32, d, n float32) {
	inv := 1 / d
	if d == 0 || math.IsInf(float64(inv), 0) {
		inv = 0
	}
	codes = codes[:len(x)]
	for i, v := range x {
		codes[i] = byte(int32(min(max(round32(float32(v*inv)), -n), n-1) + n))
	}
}

func encodeAffine(codes []byte, x []float32, d, m, n float32) {
	inv := 1 / d
	if d == 0 || math.IsInf(float64(inv), 0) {
		inv = 0
	}
	codes = codes[:len(x)]
	for i, v := range x {
		codes[i] = byte(int32(min(max(round32(float32((v-m)*inv)), 0), n)))
	}
}

func quantQ41(dst []byte, src []float32) {
	var w, wx [32]float32
	for ; len(src) >= 32 && len(dst) >= 20; src, dst = src[32:], dst[20:] {
		x, b := (*[32]float32)(src), (*[20]byte)(dst)
		linear(w[:], wx[:], x[:])
		d, m := searchAffine(x[:], w[:], wx[:], 15, -1, .1, 20, true)
		hd, hm := F32ToF16(d), F32ToF16(m)
		binary.LittleEndian.PutUint16(b[:], hd)
		binary.LittleEndian.PutUint16(b[2:], hm)
		var codes [32]byte
		encodeAffine(codes[:], x[:], F16ToF32(hd), F16ToF32(hm), 15)
		for j := range 16 {
			b[4+j] = codes[j] | codes[j+16]<<4
		}
	}
}
func quantQ51(dst []byte, src []float32) {
	var w, wx [32]float32
	for ; len(src) >= 32 && len(dst) >= 24; src, dst = src[32:], dst[24:] {
		x, b := (*[32]float32)(src), (*[24]byte)(dst)
		linear(w[:], wx[:], x[:])
		d, m := searchAffine(x[:], w[:], wx[:], 31, -.5, .1, 15, true)
		hd, hm := F32ToF16(d), F32ToF16(m)
		binary.LittleEndian.PutUint16(b[:], hd)
		binary.LittleEndian.PutUint16(b[2:], hm)
		var codes [32]byte
		encodeAffine(codes[:], x[:], F16ToF32(hd), F16ToF32(hm), 31)
		binary.LittleEndian.PutUint32(b[4:], packFive(b[8:], &codes))
	}
}
