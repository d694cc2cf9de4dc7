package vec

import "math"

// RMSNorm stores x / sqrt(mean(x^2) + eps) * w in dst; a nil w counts as ones.
// The sum of squares is accumulated in float64.
func RMSNorm(dst, x, w []float32, eps float32) {
	x = x[:len(dst)]
	if len(dst) == 0 {
		return
	}
	f := ops()
	s := float32(1 / math.Sqrt(f.sumSquares(x)/float64(len(x))+float64(eps)))
	if w == nil {
		f.scale(dst, x, s)
		return
	}
	f.scaleMul(dst, x, w[:len(dst)], s)
}

// LayerNorm stores (x - mean) / sqrt(variance + eps) * w + bias in dst. The mean, and the squares of what is left
// without it, are accumulated in float64.
func LayerNorm(dst, x, w, bias []float32, eps float32) {
	x = x[:len(dst)]
	if len(dst) == 0 {
		return
	}
	f := ops()
	mean := float32(sum(x) / float64(len(x)))
	f.axpy(dst, onesOf(len(dst)), x, -mean)
	s := float32(1 / math.Sqrt(f.sumSquares(dst)/float64(len(dst))+float64(eps)))
	f.scaleMul(dst, dst, w[:len(dst)], s)
	f.add(dst, dst, bias[:len(dst)])
}

func sum(x []float32) float64 {
	var s0, s1, s2, s3 float64
	for len(x) >= 4 {
		s0 += float64(x[0])
		s1 += float64(x[1])
		s2 += float64(x[2])
		s3 += float64(x[3])
		x = x[4:]
	}
	for _, v := range x {
		s0 += float64(v)
	}
	return (s0 + s1) + (s2 + s3)
}

// L2Norm stores x / sqrt(sum(x^2) + eps) in dst. The sum is accumulated in float64.
func L2Norm(dst, x []float32, eps float32) {
	x = x[:len(dst)]
	f := ops()
	f.scale(dst, x, float32(1/math.Sqrt(f.sumSquares(x)+float64(eps))))
}

func sumSquaresGeneric(x []float32) float64 {
	var s0, s1, s2, s3 float64
	for len(x) >= 4 {
		a, b, c, d := float64(x[0]), float64(x[1]), float64(x[2]), float64(x[3])
		s0 += a * a
		s1 += b * b
		s2 += c * c
		s3 += d * d
		x = x[4:]
	}
	for _, v := range x {
		s0 += float64(v) * float64(v)
	}
	return (s0 + s1) + (s2 + s3)
}

func scaleMulGeneric(dst, x, w []float32, s float32) {
	for i := range dst {
		dst[i] = x[i] * s * w[i]
	}
}
