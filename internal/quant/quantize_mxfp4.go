package quant

import "math"

// quantMXFP4 gives a block the power of two with the smaller error of two: the one that the format's definition names,
// under which the largest value is between 4 and 8 and may be cut to 6, and twice that.
func quantMXFP4(dst []byte, src []float32) {
	for ; len(src) >= 32 && len(dst) >= 17; src, dst = src[32:], dst[17:] {
		top := float32(0)
		for _, v := range src[:32] {
			top = max(top, max(v, -v))
		}
		_, exp := math.Frexp(float64(top)) // top is below 2^exp
		e := byte(max(0, exp-3+127))
		var codes, other [32]byte
		if encodeMXFP4(&other, src[:32], e+1) < encodeMXFP4(&codes, src[:32], e) {
			codes, e = other, e+1
		}
		dst[0] = e
		packNibbles((*[16]byte)(dst[1:]), &codes)
	}
}

// encodeMXFP4 finds the nearest codes under a scale and returns the sum of the squared errors.
func encodeMXFP4(codes *[32]byte, src []float32, e byte) (sum float64) {
	d := float64(e8m0Half(e))
	for i, v := range src {
		best := math.Inf(1)
		for c, x := range fp4Values {
			if err := math.Abs(float64(v) - d*float64(x)); err < best {
				best, codes[i] = err, byte(c)
			}
		}
		sum += best * best
	}
	return sum
}
