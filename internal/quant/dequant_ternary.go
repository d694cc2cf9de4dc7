package quant

// Types with one or two bits per value: ternary (TQ1_0 in base 3, TQ2_0 in two
// bits), binary (Q1_0) and four-level (Q2_0).

var pow3 = [5]byte{1, 3, 9, 27, 81}

func dequantTQ10(dst []float32, src []byte) {
	for ; len(dst) >= 256 && len(src) >= 54; dst, src = dst[256:], src[54:] {
		b, y := (*[54]byte)(src), dst[:0:256]
		d := half(b[52:])
		// Digit n of each byte of a run, then digit n+1: the digits of a byte lie
		// a whole run apart.
		for _, run := range [3]struct{ from, to, digits int }{{0, 32, 5}, {32, 48, 5}, {48, 52, 4}} {
			for n := range run.digits {
				for _, q := range b[run.from:run.to] {
					digit := uint16(q*pow3[n]) * 3 >> 8
					y = append(y, float32(int32(digit)-1)*d)
				}
			}
		}
	}
}

func dequantTQ20(dst []float32, src []byte) {
	for ; len(dst) >= 256 && len(src) >= 66; dst, src = dst[256:], src[66:] {
		b, y := (*[66]byte)(src), (*[256]float32)(dst)
		d := half(b[64:])
		for g := range 8 {
			q := (*[32]byte)(b[g/4*32:])
			out := (*[32]float32)(y[32*g:])
			shift := uint(g%4*2) & 7
			for m := range 32 {
				out[m] = float32(int32(q[m]>>shift&3)-1) * d
			}
		}
	}
}

func dequantQ10(dst []float32, src []byte) {
	for ; len(dst) >= 128 && len(src) >= 18; dst, src = dst[128:], src[18:] {
		b, y := (*[18]byte)(src), (*[128]float32)(dst)
		d := half(b[:])
		for i := range 128 {
			y[i] = float32(int32(b[2+i/8]>>(i%8)&1)*2-1) * d
		}
	}
}

func dequantQ20(dst []float32, src []byte) {
	for ; len(dst) >= 64 && len(src) >= 18; dst, src = dst[64:], src[18:] {
		b, y := (*[18]byte)(src), (*[64]float32)(dst)
		d := half(b[:])
		for i := range 64 {
			y[i] = float32(int32(b[2+i/4]>>(i%4*2)&3)-1) * d
		}
	}
}
