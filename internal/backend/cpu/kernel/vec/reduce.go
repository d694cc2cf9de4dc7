package vec

import "math"

// Dot returns the sum of a[i]*b[i] over the length of a.
func Dot(a, b []float32) float32 { return ops().dot(a, b[:len(a)]) }

// Softmax replaces x by e^(x-max) / sum. Entries of -Inf become 0, and a slice
// of nothing else becomes all zeros. The sum is accumulated in float64 in an
// order fixed by the index, so -Inf entries appended to x do not change the
// bits of the others.
func Softmax(x []float32) {
	f := ops()
	m := f.maximum(x)
	if math.IsInf(float64(m), -1) {
		for i, v := range x {
			if v == v {
				x[i] = 0
			}
		}
		return
	}
	f.scale(x, x, float32(1/f.expSum(x, m)))
}

// Max returns the largest value that is not NaN, or -Inf.
func Max(x []float32) float32 { return ops().maximum(x) }

// ExpSum replaces x by e^(x-m) and returns the sum, accumulated as [Softmax]
// does.
func ExpSum(x []float32, m float32) float64 { return ops().expSum(x, m) }

// LogSumExp returns the logarithm of the sum of e^x, -Inf for no values. It leaves x
// overwritten.
func LogSumExp(x []float32) float32 {
	f := ops()
	m := f.maximum(x)
	if math.IsInf(float64(m), -1) {
		return m
	}
	return float32(float64(m) + math.Log(f.expSum(x, m)))
}

// SumSquares returns the sum of squares in float64, which is finite if all values are.
func SumSquares(x []float32) float64 { return ops().sumSquares(x) }

// WeightSum is Sum of package weight: the bits are the same at every level.
func WeightSum(x []float32, top float32) uint64 { return ops().weightSum(x, top) }

// ArgMax returns the lowest index of the largest value, ignoring NaN, or -1
// when there is no value.
func ArgMax(x []float32) int {
	f := ops()
	return f.indexOf(x, f.maximum(x))
}

// dotGeneric sums in eight lanes by index, as the vector versions do, which
// keeps rounding errors small and hides the latency of the additions.
func dotGeneric(a, b []float32) float32 {
	b = b[:len(a)]
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	for len(a) >= 8 && len(b) >= 8 {
		s0 += a[0] * b[0]
		s1 += a[1] * b[1]
		s2 += a[2] * b[2]
		s3 += a[3] * b[3]
		s4 += a[4] * b[4]
		s5 += a[5] * b[5]
		s6 += a[6] * b[6]
		s7 += a[7] * b[7]
		a, b = a[8:], b[8:]
	}
	for i := range a {
		s0 += a[i] * b[i]
	}
	return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}

// maximumGeneric returns the largest value that is not NaN, or -Inf.
func maximumGeneric(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func indexOfGeneric(x []float32, v float32) int {
	for i, u := range x {
		if u == v {
			return i
		}
	}
	return -1
}

// expSumGeneric replaces x by e^(x-m) and returns the sum.
func expSumGeneric(x []float32, m float32) float64 {
	var s float64
	for i, v := range x {
		e := float32(exp64(float64(v - m)))
		x[i] = e
		s += float64(e)
	}
	return s
}
