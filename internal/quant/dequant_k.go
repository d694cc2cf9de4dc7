package quant

// The K types: super-blocks of 256 values whose sub-blocks have small integer
// scales under one or two halves.

func dequantQ2K(dst []float32, src []byte) {
	for ; len(dst) >= 256 && len(src) >= 84; dst, src = dst[256:], src[84:] {
		b, y := (*[84]byte)(src), (*[256]float32)(dst)
		d, dmin := half(b[80:]), half(b[82:])
		for g := range 16 { // 16 values each; groups 2k and 2k+1 share a shift
			sc := b[g]
			dl, ml := d*float32(sc&15), float32(dmin*float32(sc>>4))
			q := (*[16]byte)(b[16+32*(g/8)+16*(g%2):])
			shift := uint(g%8/2*2) & 7 // the mask spares a range check per value
			out := (*[16]float32)(y[16*g:])
			for l := range 16 {
				out[l] = float32(dl*float32(int32(q[l]>>shift&3))) - ml
			}
		}
	}
}

func dequantQ3K(dst []float32, src []byte) {
	for ; len(dst) >= 256 && len(src) >= 110; dst, src = dst[256:], src[110:] {
		b, y := (*[110]byte)(src), (*[256]float32)(dst)
		d := half(b[108:])
		scales := (*[12]byte)(b[96:])
		for g := range 16 {
			low := scales[g%8] >> (g / 8 * 4) & 15
			high := scales[8+g%4] >> (g / 4 * 2) & 3
			dl := d * float32(int32(low|high<<4)-32)
			q := (*[16]byte)(b[32+32*(g/8)+16*(g%2):])
			h := (*[16]byte)(b[16*(g%2):])
			shift, bit := uint(g%8/2*2)&7, uint(g/2)&7
			out := (*[16]float32)(y[16*g:])
			for l := range 16 {
				v := int32(q[l]>>shift&3) | int32(h[l]>>bit&1)<<2
				out[l] = dl * float32(v-4)
			}
		}
	}
}

// scaleMin reads pair j of the eight 6-bit (scale, min) pairs packed into the 12
// bytes of Q4_K and Q5_K. The first four pairs lie in the low six bits of bytes
// 0..3 and 4..7; the others have their low nibbles in bytes 8..11 and their
// upper two bits on top of the first four.
func scaleMin(s *[12]byte, j int) (sc, mn byte) {
	if j < 4 {
		return s[j] & 63, s[j+4] & 63
	}
	return s[j+4]&15 | s[j-4]>>6<<4, s[j+4]>>4 | s[j]>>6<<4
}

func dequantQ4K(dst []float32, src []byte) {
	for ; len(dst) >= 256 && len(src) >= 144; dst, src = dst[256:], src[144:] {
		b, y := (*[144]byte)(src), (*[256]float32)(dst)
		d, dmin := half(b[:]), half(b[2:])
		for c := range 4 {
			s0, m0 := scaleMin((*[12]byte)(b[4:]), 2*c)
			s1, m1 := scaleMin((*[12]byte)(b[4:]), 2*c+1)
			d0, n0 := d*float32(s0), float32(dmin*float32(m0))
			d1, n1 := d*float32(s1), float32(dmin*float32(m1))
			q := (*[32]byte)(b[16+32*c:])
			out := (*[64]float32)(y[64*c:])
			for l := range 32 {
				v := q[l]
				out[l] = float32(d0*float32(int32(v&15))) - n0
				out[l+32] = float32(d1*float32(int32(v>>4))) - n1
			}
		}
	}
}

func dequantQ5K(dst []float32, src []byte) {
	for ; len(dst) >= 256 && len(src) >= 176; dst, src = dst[256:], src[176:] {
		b, y := (*[176]byte)(src), (*[256]float32)(dst)
		d, dmin := half(b[:]), half(b[2:])
		qh := (*[32]byte)(b[16:])
		for c := range 4 {
			s0, m0 := scaleMin((*[12]byte)(b[4:]), 2*c)
			s1, m1 := scaleMin((*[12]byte)(b[4:]), 2*c+1)
			d0, n0 := d*float32(s0), float32(dmin*float32(m0))
			d1, n1 := d*float32(s1), float32(dmin*float32(m1))
			bit := uint(2*c) & 7
			q := (*[32]byte)(b[48+32*c:])
			out := (*[64]float32)(y[64*c:])
			for l := range 32 {
				v, h := q[l], qh[l]>>bit
				out[l] = float32(d0*float32(int32(v&15|h&1<<4))) - n0
				out[l+32] = float32(d1*float32(int32(v>>4|h&2<<3))) - n1
			}
		}
	}
}

func dequantQ6K(dst []float32, src []byte) {
	for ; len(dst) >= 256 && len(src) >= 210; dst, src = dst[256:], src[210:] {
		b, y := (*[210]byte)(src), (*[256]float32)(dst)
		d := half(b[208:])
		for h := range 2 {
			ql := (*[64]byte)(b[64*h:])
			qh := (*[32]byte)(b[128+32*h:])
			sc := (*[8]byte)(b[192+8*h:])
			out := (*[128]float32)(y[128*h:])
			for g := range 2 { // 16 values of each of the four quarters per round
				d0, d1 := d*float32(int8(sc[g])), d*float32(int8(sc[g+2]))
				d2, d3 := d*float32(int8(sc[g+4])), d*float32(int8(sc[g+6]))
				for l := 16 * g; l < 16*g+16; l++ {
					a, c, u := ql[l&31], ql[l&31+32], qh[l&31]
					out[l] = d0 * float32(int32(a&15|u&3<<4)-32)
					out[l+32] = d1 * float32(int32(c&15|u>>2&3<<4)-32)
					out[l+64] = d2 * float32(int32(a>>4|u>>4&3<<4)-32)
					out[l+96] = d3 * float32(int32(c>>4|u>>6<<4)-32)
				}
			}
		}
	}
}
