package quant

import "math"

// The searches behind the quantisers. A block is described by a scale (and
// perhaps a minimum); given those, the best code of each value is the nearest,
// and given the codes, the best scale and minimum follow from weighted least
// squares. The searches try several starting scales, refit each and keep the
// fit with the smallest weighted squared error, which is the approach of ggml's
// make_qx_quants and make_qkx2_quants.

// roundMagic rounds float32 values of magnitude below 2^22 to integers, ties to
// even, when added and subtracted again.
const roundMagic = 3 << 22

// round32 rounds to the nearest integer, ties to even.
func round32(x float32) float32 {
	x += roundMagic
	return x - roundMagic
}

// extreme is the value of largest magnitude, with its sign.
func extreme(x []float32) float32 {
	var best uint32
	var at float32
	for _, v := range x {
		if m := math.Float32bits(v) &^ (1 << 31); m > best {
			best, at = m, v
		}
	}
	return at
}

// scaleFit accumulates what the least-squares scale for given codes needs.
type scaleFit struct{ xl, ll float32 }

// gain is the weighted squared error that the best scale removes, compared with
// all zeros; larger is better.
func (f scaleFit) gain() float32 { return f.xl / f.ll * f.xl }

// fitSymmetric rounds x*inv to codes in [-n, n-1] and sums them up. wx is w*x.
// The length of x must be a multiple of 2.
func fitSymmetric(x, w, wx []float32, inv, n float32) scaleFit {
	var a, b scaleFit
	w, wx = w[:len(x)], wx[:len(x)]
	hi := n - 1
	for i := 0; i+1 < len(x); i += 2 {
		l := round32(float32(x[i] * inv))
		if l > hi {
			l = hi
		} else if l < -n {
			l = -n
		}
		a.xl += float32(wx[i] * l)
		a.ll += float32(w[i] * l * l)
		l = round32(float32(x[i+1] * inv))
		if l > hi {
			l = hi
		} else if l < -n {
			l = -n
		}
		b.xl += float32(wx[i+1] * l)
		b.ll += float32(w[i+1] * l * l)
	}
	return scaleFit{a.xl + b.xl, a.ll + b.ll}
}

var (
	expC              = 0.0
	expStep   float32 = 0.1
	expTries          = 9
	expRefine         = 0
	expSc             = 0
)

// searchSymmetric finds the scale for codes in [-n, n-1]. The extreme value is
// tried at -(n + k*step) for k from -tries to tries, then the best scale is
// refined. It returns 0 for a block of zeros.
func searchSymmetric(x, w, wx []float32, n, step float32, tries int) float32 {
	ext := extreme(x)
	if ext == 0 || math.IsInf(float64(n/ext), 0) {
		return 0
	}
	var best scaleFit
	top := float32(-1)
	for k := -tries; k <= tries; k++ {
		f := fitSymmetric(x, w, wx, -(n+step*float32(k))/ext, n)
		if g := f.gain(); f.ll > 0 && g > top {
			best, top = f, g
		}
	}
	if top < 0 {
		return 0
	}
	for range expRefine {
		f := fitSymmetric(x, w, wx, best.ll/best.xl, n)
		if g := f.gain(); f.ll > 0 && g > top {
			best, top = f, g
		} else {
			break
		}
	}
	return best.xl / best.ll
}

// affineFit
type affineFit struct{ l, ll, xl float32 }

func fitAffine(x, w, wx []float32, inv, lo, n float32) affineFit {
	var a, b affineFit
	w, wx = w[:len(x)], wx[:len(x)]
	for i := 0; i+1 < len(x); i += 2 {
		l := round32(float32((x[i] - lo) * inv))
		if l > n {
			l = n
		} else if l < 0 {
			l = 0
		}
		wl := w[i] * l
		a.l += wl
		a.ll += float32(wl * l)
		a.xl += float32(wx[i] * l)
		l = round32(float32((x[i+1] - lo) * inv))
		if l > n {
			l = n
		} else if l < 0 {
			l = 0
		}
		wl = w[i+1] * l
		b.l += wl
		b.ll += float32(wl * l)
		b.xl += float32(wx[i+1] * l)
	}
	return affineFit{a.l + b.l, a.ll + b.ll, a.xl + b.xl}
}

// solve
func (f affineFit) solve(sw, sx float32, free bool) (s, m, gain float32) {
	det := sw*f.ll - f.l*f.l
	if det <= 0 {
		return 0, 0, -1
	}
	s, m = (sw*f.xl-sx*f.l)/det, (f.ll*sx-f.l*f.xl)/det
	if m > 0 && !free {
		s, m = f.xl/f.ll, 0
	}
	return s, m, s*f.xl + m*sx
}

func searchAffine(x, w, wx []float32, n, first, step float32, steps int, free bool) (scale, min float32) {
	lo, hi := x[0], x[0]
	var sw, sx float32
	for i, v := range x {
		if v < lo {
			lo = v
		}
		if v > hi {
			hi = v
		}
		sw += w[i]
		sx += wx[i]
	}
	if lo > 0 && !free {
		lo = 0
	}
	if hi == lo {
		return 0, lo
	}
	rng := hi - lo
	top := float32(-1)
	scale, min = rng/n, lo
	for k := 0; k <= steps; k++ {
		f := fitAffine(x, w, wx, (n+first+step*float32(k))/rng, lo, n)
		if s, m, g := f.solve(sw, sx, free); g > top {
			scale, min, top = s, m, g
		}
	}
	for range expRefine {
		f := fitAffine(x, w, wx, 1/scale, min, n)
		if s, m, g := f.solve(sw, sx, free); g > top {
			scale, min, top = s, m, g
		} else {
			break
		}
	}
	return scale, min
}
