package quant

import (
	"encoding/binary"
	"math"
)

var expKfirst, expKstep = float32(-1), float32(.1)
var expKsteps = 20

func superAffine(x *[256]float32, codes *[256]byte, n, first, step float32, steps int) (hd, hm uint16, sc, mn [8]byte) {
	var w, wx [256]float32
	var scales, mins [8]float32
	var top, topMin float32
	for j := range 8 {
		r := 32 * j
		linear(w[r:r+32], wx[r:r+32], x[r:r+32])
		s, m := searchAffine(x[r:r+32], w[r:r+32], wx[r:r+32], n, first, step, steps, false)
		scales[j], mins[j] = s, -m
		top, topMin = max(top, s), max(topMin, -m)
	}
	hd, hm = F32ToF16(top/63), F32ToF16(topMin/63)
	d, dm := F16ToF32(hd), F16ToF32(hm)
	for j := range 8 {
		if d > 0 {
			sc[j] = byte(min(63, round32(scales[j]/d)))
		}
		if dm > 0 {
			mn[j] = byte(min(63, round32(mins[j]/dm)))
		}
	}
	if expSc > 0 {
		// refine
		for j := range 8 {
			r := 32 * j
			best := float32(math.Inf(1))
			bs, bm := sc[j], mn[j]
			for ds := -expSc; ds <= expSc; ds++ {
				for dmn := -expSc; dmn <= expSc; dmn++ {
					s, m := int(sc[j])+ds, int(mn[j])+dmn
					if s < 0 || s > 63 || m < 0 || m > 63 {
						continue
					}
					e := lossAffine(x[r:r+32], w[r:r+32], d*float32(s), -dm*float32(m), n)
					if e < best {
						best, bs, bm = e, byte(s), byte(m)
					}
				}
			}
			sc[j], mn[j] = bs, bm
		}
	}
	for j := range 8 {
		r := 32 * j
		encodeAffine(codes[r:r+32], x[r:r+32], d*float32(sc[j]), -dm*float32(mn[j]), n)
	}
	return
}

func lossAffine(x, w []float32, d, m, n float32) float32 {
	var e float32
	var inv float32
	if d > 0 {
		inv = 1 / d
	}
	w = w[:len(x)]
	for i, v := range x {
		l := round32((v - m) * inv)
		if l > n {
			l = n
		} else if l < 0 {
			l = 0
		}
		q := d*l + m - v
		e += w[i] * q * q
	}
	return e
}

func packScales(s *[12]byte, sc, mn *[8]byte) {
	for j := range 4 {
		s[j] = sc[j] | sc[j+4]>>4<<6
		s[j+4] = mn[j] | mn[j+4]>>4<<6
		s[j+8] = sc[j+4]&15 | mn[j+4]<<4
	}
}

func quantQ4K(dst []byte, src []float32) {
	for ; len(src) >= 256 && len(dst) >= 144; src, dst = src[256:], dst[144:] {
		x, b := (*[256]float32)(src), (*[144]byte)(dst)
		var codes [256]byte
		hd, hm, sc, mn := superAffine(x, &codes, 15, expKfirst, expKstep, expKsteps)
		binary.LittleEndian.PutUint16(b[:], hd)
		binary.LittleEndian.PutUint16(b[2:], hm)
		packScales((*[12]byte)(b[4:]), &sc, &mn)
		for c := range 4 {
			for l := range 32 {
				b[16+32*c+l] = codes[64*c+l] | codes[64*c+32+l]<<4
			}
		}
	}
}

func quantQ5K(dst []byte, src []float32) {
	for ; len(src) >= 256 && len(dst) >= 176; src, dst = src[256:], dst[176:] {
		x, b := (*[256]float32)(src), (*[176]byte)(dst)
		var codes [256]byte
		hd, hm, sc, mn := superAffine(x, &codes, 31, expKfirst, expKstep, expKsteps)
		binary.LittleEndian.PutUint16(b[:], hd)
		binary.LittleEndian.PutUint16(b[2:], hm)
		packScales((*[12]byte)(b[4:]), &sc, &mn)
		for l := range 32 {
			var h byte
			for c := range 8 {
				h |= codes[32*c+l] >> 4 << c
			}
			b[16+l] = h
			for c := range 4 {
				b[48+32*c+l] = codes[64*c+l]&15 | codes[64*c+32+l]<<4
			}
		}
	}
}

func quantQ6K(dst []byte, src []float32) {
	for ; len(src) >= 256 && len(dst) >= 210; src, dst = src[256:], dst[210:] {
		x, b := (*[256]float32)(src), (*[210]byte)(dst)
		var w, wx [256]float32
		var scales [16]float32
		for j := range 16 {
			r := 16 * j
			squares(w[r:r+16], wx[r:r+16], x[r:r+16])
			scales[j] = searchSymmetric(x[r:r+16], w[r:r+16], wx[r:r+16], 32, expStep, expTries)
		}
		top := extreme(scales[:])
		hd := F32ToF16(top / -128)
		d := F16ToF32(hd)
		binary.LittleEndian.PutUint16(b[208:], hd)
		var codes [256]byte
		for j := range 16 {
			r := 16 * j
			var l float32
			if d != 0 {
				l = min(max(round32(scales[j]/d), -128), 127)
			}
			b[192+j] = byte(int8(l))
			encodeSymmetric(codes[r:r+16], x[r:r+16], d*l, 32)
		}
		for h := range 2 {
			for l := range 32 {
				q := codes[128*h:]
				b[64*h+l] = q[l]&15 | q[l+64]<<4
				b[64*h+l+32] = q[l+32]&15 | q[l+96]<<4
				b[128+32*h+l] = q[l]>>4 | q[l+32]>>4<<2 | q[l+64]>>4<<4 | q[l+96]>>4<<6
			}
		}
	}
}

var iq4Index [512]byte

func init() {
	for i := range iq4Index {
		v := (float64(i)+.5)/2 - 128
		best := 0
		for k, c := range iq4Values {
			if math.Abs(v-float64(c)) < math.Abs(v-float64(iq4Values[best])) {
				best = k
			}
		}
		iq4Index[i] = byte(best)
	}
}

func iq4Code(v float32) byte {
	t := int32(v*2 + 256)
	if t < 0 {
		t = 0
	} else if t > 511 {
		t = 511
	}
	return iq4Index[t&511]
}

func fitCodebook(x, w, wx []float32, inv float32) scaleFit {
	var a scaleFit
	w, wx = w[:len(x)], wx[:len(x)]
	for i, v := range x {
		l := iq4Values[iq4Code(v*inv)&15]
		a.xl += wx[i] * l
		a.ll += w[i] * l * l
	}
	return a
}

func searchCodebook(x, w, wx []float32) float32 {
	ext := extreme(x)
	if ext == 0 || math.IsInf(float64(127/ext), 0) {
		return 0
	}
	best := fitCodebook(x, w, wx, 127/ext)
	top := best.gain()
	for k := -expIQ; k <= expIQ; k++ {
		f := fitCodebook(x, w, wx, (float32(k)*expIQs-expIQc)/ext)
		if g := f.gain(); f.ll > 0 && g > top {
			best, top = f, g
		}
	}
	for range expRefine {
		f := fitCodebook(x, w, wx, best.ll/best.xl)
		if g := f.gain(); f.ll > 0 && g > top {
			best, top = f, g
		} else {
			break
		}
	}
	return best.xl / best.ll
}

var expIQ = 7
var expIQs, expIQc = float32(1), float32(127)

func quantIQ4NL(dst []byte, src []float32) {
	var w, wx [32]float32
	for ; len(src) >= 32 && len(dst) >= 18; src, dst = src[32:], dst[18:] {
		x, b := (*[32]float32)(src), (*[18]byte)(dst)
		squares(w[:], wx[:], x[:])
		h := F32ToF16(searchCodebook(x[:], w[:], wx[:]))
		binary.LittleEndian.PutUint16(b[:], h)
		encodeCodebook(b[2:], x[:], F16ToF32(h))
	}
}

func encodeCodebook(qs []byte, x []float32, d float32) {
	inv := 1 / d
	if d == 0 || math.IsInf(float64(inv), 0) {
		inv = 0
	}
	for j := range 16 {
		qs[j] = iq4Code(x[j]*inv) | iq4Code(x[j+16]*inv)<<4
	}
}

func lossCodebook(x, w []float32, d float32) float32 {
	var e float32
	var inv float32
	if d != 0 {
		inv = 1 / d
	}
	w = w[:len(x)]
	for i, v := range x {
		l := iq4Values[iq4Code(v*inv)&15]
		q := d*l - v
		e += w[i] * q * q
	}
	return e
}

func quantIQ4XS(dst []byte, src []float32) {
	for ; len(src) >= 256 && len(dst) >= 136; src, dst = src[256:], dst[136:] {
		x, b := (*[256]float32)(src), (*[136]byte)(dst)
		var w, wx [256]float32
		var scales [8]float32
		for j := range 8 {
			r := 32 * j
			squares(w[r:r+32], wx[r:r+32], x[r:r+32])
			scales[j] = searchCodebook(x[r:r+32], w[r:r+32], wx[r:r+32])
		}
		hd := F32ToF16(extreme(scales[:]) / -32)
		d := F16ToF32(hd)
		var high uint16
		var low [4]byte
		for j := range 8 {
			r := 32 * j
			var l float32
			if d != 0 {
				l = min(max(round32(scales[j]/d), -32), 31)
				if expSc > 0 {
					best := float32(math.Inf(1))
					l0 := l
					for k := -expSc; k <= expSc; k++ {
						ll := l0 + float32(k)
						if ll < -32 || ll > 31 {
							continue
						}
						if e := lossCodebook(x[r:r+32], w[r:r+32], d*ll); e < best {
							best, l = e, ll
						}
					}
				}
			}
			encodeCodebook(b[8+16*j:], x[r:r+32], d*l)
			u := uint16(int32(l) + 32)
			low[j/2] |= byte(u&15) << (j % 2 * 4)
			high |= u >> 4 << (2 * j)
		}
		binary.LittleEndian.PutUint16(b[:], hd)
		binary.LittleEndian.PutUint16(b[2:], high)
		copy(b[4:8], low[:])
	}
}
