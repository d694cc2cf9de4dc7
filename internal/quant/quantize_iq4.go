package quant

import (
	"encoding/binary"
	"math"
)

// iq4Floats is the code book as the search needs it.
var iq4Floats = func() (f [16]float32) {
	for i, v := range iq4Values {
		f[i] = float32(v)
	}
	return f
}()

// iq4Nearest is the index of the code book value nearest to each half-open step
// of 0.5 from -128 up. The midpoints between code book values are multiples of
// 0.5, so a step never straddles one.
var iq4Nearest = func() (table [512]byte) {
	for i := range table {
		v := (float64(i)+0.5)/2 - 128
		for k, c := range iq4Values {
			if math.Abs(v-float64(c)) < math.Abs(v-float64(iq4Values[table[i]])) {
				table[i] = byte(k)
			}
		}
	}
	return table
}()

// iq4Code is the index of the code book value nearest to v.
func iq4Code(v float32) byte {
	t := int32(float32(v*2) + 256)
	if t < 0 {
		t = 0
	} else if t > 511 {
		t = 511
	}
	return iq4Nearest[t&511]
}

// encodeCodebook packs the codes nearest to x/d.
func encodeCodebook(qs *[16]byte, x []float32, d float32) {
	inv := reciprocal(d)
	v := (*[32]float32)(x)
	for j := range qs {
		qs[j] = iq4Code(v[j]*inv) | iq4Code(v[j+16]*inv)<<4
	}
}

func quantIQ4NL(dst []byte, src []float32) {
	var s sample
	for ; len(src) >= 32 && len(dst) >= 18; src, dst = src[32:], dst[18:] {
		b := (*[18]byte)(dst)
		s.byPower(src[:32], codebookFloor)
		d := putScale(b[:], s.bestCodebook())
		encodeCodebook((*[16]byte)(b[2:]), s.x, d)
	}
}

func quantIQ4XS(dst []byte, src []float32) {
	var subs [8]sample
	for ; len(src) >= 256 && len(dst) >= 136; src, dst = src[256:], dst[136:] {
		b := (*[136]byte)(dst)
		var scales [8]float32
		for j := range subs {
			subs[j].byPower(src[32*j:32*j+32], codebookFloor)
			scales[j] = subs[j].bestCodebook()
		}
		// The largest scale becomes -32, the one code with no positive twin.
		d := putScale(b[:], extreme(scales[:])/-32)
		var high uint16
		clear(b[4:8])
		for j := range subs {
			l := subs[j].snapCodebook(int(min(max(round32(float32(scales[j]*reciprocal(d))), -32), 31)), d)
			encodeCodebook((*[16]byte)(b[8+16*j:]), subs[j].x, d*float32(l))
			b[4+j/2] |= byte(l+32) & 15 << (j % 2 * 4)
			high |= uint16(l+32) >> 4 << (2 * j)
		}
		binary.LittleEndian.PutUint16(b[2:], high)
	}
}

// snapCodebook picks the best six-bit scale among l and its neighbours.
func (s *sample) snapCodebook(l int, d float32) (best int) {
	least := float32(-1)
	for c := max(l-1, -32); c <= min(l+1, 31); c++ {
		if e := s.codebookLoss(d * float32(c)); least < 0 || e < least {
			least, best = e, c
		}
	}
	return best
}
