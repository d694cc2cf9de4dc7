package quant

import "slices"

// affineSuper is a super-block of Q4_K or Q5_K before packing.
type affineSuper struct {
	subs       [8]sample
	scale, low [8]byte // in units of the two halves; low is subtracted
	codes      [256]byte
}

// encode quantises 256 values to codes in [0, n]; halves receives the units of
// the scales and of the minima.
func (a *affineSuper) encode(x *[256]float32, halves *[4]byte, n float32) {
	var scales, lows [8]float32
	for j := range a.subs {
		s := &a.subs[j]
		s.byMagnitude(x[32*j : 32*j+32])
		scale, low := s.bestAffine(n, false)
		scales[j], lows[j] = scale, -low
	}
	d := putScale(halves[:], max(0, slices.Max(scales[:]))/63)
	m := putScale(halves[2:], max(0, slices.Max(lows[:]))/63)
	for j := range a.subs {
		s := &a.subs[j]
		a.scale[j], a.low[j] = s.snap(inUnits(scales[j], d, 63), inUnits(lows[j], m, 63), 63, d, m, n)
		encodeAffine(a.codes[32*j:32*j+32], s.x, d*float32(a.scale[j]), -float32(m*float32(a.low[j])), n)
	}
}

// inUnits is x in units of unit, within 0 to most.
func inUnits(x, unit, most float32) int {
	return int(min(max(round32(float32(x*reciprocal(unit))), 0), most))
}

// snap picks the scale and minimum, from 0 to most, with the smallest error among
// the rounded ones and their neighbours: rounding each alone ignores that an error
// in one can make up for an error in the other.
func (s *sample) snap(scale, low, most int, d, m, n float32) (bestScale, bestLow byte) {
	best := float32(-1)
	for sc := max(scale-1, 0); sc <= min(scale+1, most); sc++ {
		for lo := max(low-1, 0); lo <= min(low+1, most); lo++ {
			if (sc-scale)*(lo-low) < 0 {
				continue // one up, one down: both push the values the same way, which hardly ever helps
			}
			e := s.affineLoss(d*float32(sc), -float32(m*float32(lo)), n)
			if best < 0 || e < best {
				best, bestScale, bestLow = e, byte(sc), byte(lo)
			}
		}
	}
	return bestScale, bestLow
}

// pack stores the six-bit pairs; scales6 is the inverse.
func (a *affineSuper) pack(b *[12]byte) {
	sc, lo := &a.scale, &a.low
	for j := range 4 {
		b[j] = sc[j] | sc[j+4]>>4<<6
		b[j+4] = lo[j] | lo[j+4]>>4<<6
		b[j+8] = sc[j+4]&15 | lo[j+4]<<4
	}
}

// packNibbles stores the low four bits of the codes, sub-blocks 2c and 2c+1
// sharing 32 bytes.
func (a *affineSuper) packNibbles(qs *[128]byte) {
	for c := range 4 {
		lo, hi := (*[32]byte)(a.codes[64*c:]), (*[32]byte)(a.codes[64*c+32:])
		q := (*[32]byte)(qs[32*c:])
		for l := range q {
			q[l] = lo[l]&15 | hi[l]<<4
		}
	}
}

func quantQ4K(dst []byte, src []float32) {
	var a affineSuper
	for ; len(src) >= 256 && len(dst) >= 144; src, dst = src[256:], dst[144:] {
		b := (*[144]byte)(dst)
		a.encode((*[256]float32)(src), (*[4]byte)(b[:]), 15)
		a.pack((*[12]byte)(b[4:]))
		a.packNibbles((*[128]byte)(b[16:]))
	}
}

func quantQ5K(dst []byte, src []float32) {
	var a affineSuper
	for ; len(src) >= 256 && len(dst) >= 176; src, dst = src[256:], dst[176:] {
		b := (*[176]byte)(dst)
		a.encode((*[256]float32)(src), (*[4]byte)(b[:]), 31)
		a.pack((*[12]byte)(b[4:]))
		for l := range 32 {
			var h byte
			for j := range 8 {
				h |= a.codes[32*j+l] >> 4 << j
			}
			b[16+l] = h
		}
		a.packNibbles((*[128]byte)(b[48:]))
	}
}

func quantQ6K(dst []byte, src []float32) {
	var s sample
	var codes [256]byte
	for ; len(src) >= 256 && len(dst) >= 210; src, dst = src[256:], dst[210:] {
		b := (*[210]byte)(dst)
		var scales [16]float32
		for j := range scales {
			s.byPower(src[16*j:16*j+16], symmetricFloor)
			scales[j] = s.bestSymmetric(32, 0.8, 3, 2)
		}
		// The largest scale becomes -128, the one code with no positive twin.
		d := putScale(b[208:], extreme(scales[:])/-128)
		for j, scale := range scales {
			l := min(max(round32(float32(scale*reciprocal(d))), -128), 127)
			b[192+j] = byte(int8(l))
			encodeSymmetric(codes[16*j:], src[16*j:16*j+16], d*l, 32)
		}
		for h := range 2 {
			q := (*[128]byte)(codes[128*h:])
			ql, qh := (*[64]byte)(b[64*h:]), (*[32]byte)(b[128+32*h:])
			for l := range 32 {
				ql[l] = q[l]&15 | q[l+64]<<4
				ql[l+32] = q[l+32]&15 | q[l+96]<<4
				qh[l] = q[l]>>4 | q[l+32]>>4<<2 | q[l+64]>>4<<4 | q[l+96]>>4<<6
			}
		}
	}
}

// pairs stores the low two bits of 256 codes, four runs of 32 sharing 32 bytes.
func pairs(qs *[64]byte, codes *[256]byte) {
	for i := range qs {
		q := codes[i/32*128+i%32:]
		qs[i] = q[0]&3 | q[32]&3<<2 | q[64]&3<<4 | q[96]&3<<6
	}
}

func quantQ2K(dst []byte, src []float32) {
	var subs [16]sample
	var codes [256]byte
	for ; len(src) >= 256 && len(dst) >= 84; src, dst = src[256:], dst[84:] {
		b := (*[84]byte)(dst)
		var scales, lows [16]float32
		for j := range subs {
			s := &subs[j]
			s.byMagnitude(src[16*j : 16*j+16])
			scale, low := s.bestAffine(3, false)
			scales[j], lows[j] = scale, -low
		}
		d := putScale(b[80:], max(0, slices.Max(scales[:]))/15)
		m := putScale(b[82:], max(0, slices.Max(lows[:]))/15)
		for j := range subs {
			s := &subs[j]
			sc, lo := s.snap(inUnits(scales[j], d, 15), inUnits(lows[j], m, 15), 15, d, m, 3)
			b[j] = sc | lo<<4
			encodeAffine(codes[16*j:16*j+16], s.x, d*float32(sc), -float32(m*float32(lo)), 3)
		}
		pairs((*[64]byte)(b[16:]), &codes)
	}
}

func quantQ3K(dst []byte, src []float32) {
	var s sample
	var codes [256]byte
	for ; len(src) >= 256 && len(dst) >= 110; src, dst = src[256:], dst[110:] {
		b := (*[110]byte)(dst)
		clear(b[:])
		var scales [16]float32
		for j := range scales {
			s.byPower(src[16*j:16*j+16], symmetricFloor)
			scales[j] = s.bestSymmetric(4, 0.2, 4, 4)
		}
		// The largest scale becomes -32, the one code with no positive twin.
		d := putScale(b[108:], extreme(scales[:])/-32)
		for j, scale := range scales {
			l := min(max(round32(float32(scale*reciprocal(d))), -32), 31)
			sc := byte(int8(l) + 32)
			b[96+j%8] |= sc & 15 << (j / 8 * 4)
			b[104+j%4] |= sc >> 4 << (j / 4 * 2)
			encodeSymmetric(codes[16*j:], src[16*j:16*j+16], d*l, 4)
		}
		for i, c := range codes {
			b[i%32] |= c >> 2 << (i / 32)
		}
		pairs((*[64]byte)(b[32:]), &codes)
	}
}
