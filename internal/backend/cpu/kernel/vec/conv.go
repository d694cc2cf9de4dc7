package vec

// ConvSilu computes channels [c0,c1) of a causal depthwise convolution followed
// by silu: dst[c] = silu(sum_j w[c*K+j] * taps[j][c]), K = len(taps), j
// ascending. taps[K-1] is the current token; a nil tap counts as zeros and
// gives the same bits as a tap full of zeros.
func ConvSilu(dst []float32, w []float32, taps [][]float32, c0, c1 int) {
	if c0 >= c1 {
		return
	}
	dst, w = dst[c0:c1], w[c0*len(taps):c1*len(taps)]
	for _, t := range taps {
		if t != nil {
			_ = t[:c1]
		}
	}
	convSilu(dst, w, taps, c0)
}

func convSiluGeneric(dst []float32, w []float32, taps [][]float32, c0 int) {
	conv(dst, w, taps, c0)
	siluGeneric(dst, dst)
}

// conv is the convolution without silu; dst and w start at channel c0, the taps
// at channel 0.
func conv(dst []float32, w []float32, taps [][]float32, c0 int) {
	k := len(taps)
	for i := range dst {
		dst[i] = 0
	}
	for j, t := range taps {
		if t == nil {
			continue
		}
		for i, v := range t[c0 : c0+len(dst)] {
			dst[i] += float32(w[i*k+j] * v)
		}
	}
}
