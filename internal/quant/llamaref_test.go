package quant

import "math"

// This file states, slowly and in float64 where upstream's float32 rounding
// cannot matter, what llama.cpp's quantisers do without an importance matrix.
// It is the yardstick for the error table: each function returns the values its
// blocks decode to. It shares no code with the package.

func refHalf(x float64) float64 { return slowHalf(F32ToF16(float32(x))) }

func refClamp(v, lo, hi float64) float64 { return math.Max(lo, math.Min(hi, v)) }

// refExtreme is the element of largest magnitude, with its sign.
func refExtreme(x []float32) float64 {
	best := 0.0
	for _, v := range x {
		if math.Abs(float64(v)) > math.Abs(best) {
			best = float64(v)
		}
	}
	return best
}

// refSymmetric: Q4_0 and Q5_0 (half = 8, 16) put the extreme at the negative
// end of the range.
func refSymmetric(half float64) func(x []float32) []float32 {
	return func(x []float32) []float32 {
		d := refExtreme(x) / -half
		out := make([]float32, len(x))
		for i, v := range x {
			if d != 0 {
				q := math.Min(2*half-1, math.Trunc(float64(v)/d+half+0.5))
				out[i] = float32((q - half) * refHalf(d))
			}
		}
		return out
	}
}

// refAffine: Q4_1 and Q5_1 (levels = 15, 31) span minimum to maximum.
func refAffine(levels float64) func(x []float32) []float32 {
	return func(x []float32) []float32 {
		lo, hi := math.Inf(1), math.Inf(-1)
		for _, v := range x {
			lo, hi = math.Min(lo, float64(v)), math.Max(hi, float64(v))
		}
		d := (hi - lo) / levels
		out := make([]float32, len(x))
		for i, v := range x {
			q := 0.0
			if d != 0 {
				q = math.Min(levels, math.Trunc((float64(v)-lo)/d+0.5))
			}
			out[i] = float32(q*refHalf(d) + refHalf(lo))
		}
		return out
	}
}

func refQ80(x []float32) []float32 {
	d := math.Abs(refExtreme(x)) / 127
	out := make([]float32, len(x))
	for i, v := range x {
		if d != 0 {
			out[i] = float32(math.Round(float64(v)/d) * refHalf(d))
		}
	}
	return out
}

// refScaleMin is the search called make_qkx2_quants: the inverse scale is
// stepped around levels/range, each step refits scale and minimum by weighted
// least squares, and the best fit so far supplies the minimum for later steps.
func refScaleMin(x []float32, levels float64, first, step float64, steps int) (scale, minimum float64) {
	return refScaleMinBy(x, levels, first, step, steps, 1, func(d float64) float64 { return d * d })
}

// refScaleMinBy is that search with another measure of errors, and weights |x| + base * root mean square.
func refScaleMinBy(x []float32, levels, first, step float64, steps int, base float64,
	measure func(d float64) float64) (scale, minimum float64) {
	n := len(x)
	var sumX2 float64
	for _, v := range x {
		sumX2 += float64(v) * float64(v)
	}
	w := make([]float64, n)
	lo, hi := float64(x[0]), float64(x[0])
	var sw, sx float64
	for i, v := range x {
		w[i] = base*math.Sqrt(sumX2/float64(n)) + math.Abs(float64(v))
		lo, hi = math.Min(lo, float64(v)), math.Max(hi, float64(v))
		sw += w[i]
		sx += w[i] * float64(v)
	}
	lo = math.Min(lo, 0)
	if hi == lo {
		return 0, -lo
	}
	codes := func(inv float64) []float64 {
		l := make([]float64, n)
		for i, v := range x {
			l[i] = refClamp(math.RoundToEven(inv*(float64(v)-lo)), 0, levels)
		}
		return l
	}
	loss := func(l []float64, s, m float64) (e float64) {
		for i, v := range x {
			d := s*l[i] + m - float64(v)
			e += w[i] * measure(d)
		}
		return e
	}
	scale = (hi - lo) / levels
	best := loss(codes(levels/(hi-lo)), scale, lo)
	for k := 0; k <= steps; k++ {
		l := codes((first + step*float64(k) + levels) / (hi - lo))
		var sl, sll, slx float64
		for i, v := range x {
			sl += w[i] * l[i]
			sll += w[i] * l[i] * l[i]
			slx += w[i] * l[i] * float64(v)
		}
		det := sw*sll - sl*sl
		if det <= 0 {
			continue
		}
		s, m := (sw*slx-sx*sl)/det, (sll*sx-sl*slx)/det
		if m > 0 {
			s, m = slx/sll, 0
		}
		if e := loss(l, s, m); e < best {
			best, scale, lo = e, s, m
		}
	}
	return scale, -lo
}

// refScaleMinK: Q4_K and Q5_K. Sub-blocks of 32, 6-bit scales and minima.
func refScaleMinK(levels, first, step float64, steps int) func(x []float32) []float32 {
	return func(x []float32) []float32 {
		var scales, mins [8]float64
		var top, topMin float64
		for j := range 8 {
			scales[j], mins[j] = refScaleMin(x[32*j:32*j+32], levels, first, step, steps)
			top, topMin = math.Max(top, scales[j]), math.Max(topMin, mins[j])
		}
		out := make([]float32, 256)
		for j := range 8 {
			var sc, mn float64
			if top > 0 {
				sc = math.Min(63, math.RoundToEven(63/top*scales[j]))
			}
			if topMin > 0 {
				mn = math.Min(63, math.RoundToEven(63/topMin*mins[j]))
			}
			d, m := refHalf(top/63)*sc, refHalf(topMin/63)*mn
			for i := 32 * j; i < 32*j+32; i++ {
				q := 0.0
				if d != 0 {
					q = refClamp(math.RoundToEven((float64(x[i])+m)/d), 0, levels)
				}
				out[i] = float32(d*q - m)
			}
		}
		return out
	}
}

// refQ6K: sixteen sub-blocks of 16, signed 8-bit scales, each scale searched
// with weights x² over inverse scales -(32 ± 0.9)/extreme.
func refQ6K(x []float32) []float32 {
	var scales [16]float64
	top := 0.0
	for j := range 16 {
		sub := x[16*j : 16*j+16]
		ext := refExtreme(sub)
		if math.Abs(ext) < 1e-15 {
			continue
		}
		best := math.Inf(-1)
		for k := -9; k <= 9; k++ {
			inv := -(32 + 0.1*float64(k)) / ext
			var slx, sll float64
			for _, v := range sub {
				l := refClamp(math.RoundToEven(inv*float64(v)), -32, 31)
				w := float64(v) * float64(v)
				slx += w * float64(v) * l
				sll += w * l * l
			}
			if sll > 0 && slx*slx/sll > best {
				best = slx * slx / sll
				scales[j] = slx / sll
			}
		}
		if math.Abs(scales[j]) > math.Abs(top) {
			top = scales[j]
		}
	}
	out := make([]float32, 256)
	if math.Abs(top) < 1e-15 {
		return out
	}
	inv := -128 / top
	for j := range 16 {
		d := refHalf(1/inv) * math.Min(127, math.RoundToEven(inv*scales[j]))
		for i := 16 * j; i < 16*j+16; i++ {
			if d != 0 {
				out[i] = float32(d * refClamp(math.RoundToEven(float64(x[i])/d), -32, 31))
			}
		}
	}
	return out
}

// refQ3K: sixteen sub-blocks of 16, signed 6-bit scales. The codes of a sub-block start from the extreme at -4 and are
// changed one by one as long as that lowers the error, weighted with x², of the best scale.
func refQ3K(x []float32) []float32 {
	var scales [16]float64
	top := 0.0
	for j := range 16 {
		sub := x[16*j : 16*j+16]
		ext := refExtreme(sub)
		if math.Abs(ext) < 1e-15 {
			continue
		}
		var l [16]float64
		var slx, sll float64
		for i, v := range sub {
			l[i] = refClamp(math.RoundToEven(-4/ext*float64(v)), -4, 3)
			w := float64(v) * float64(v)
			slx += w * float64(v) * l[i]
			sll += w * l[i] * l[i]
		}
		for try, changed := 0, true; try < 5 && changed; try++ {
			changed = false
			for i, v := range sub {
				w := float64(v) * float64(v)
				lx, ll := slx-w*float64(v)*l[i], sll-w*l[i]*l[i]
				if lx <= 0 {
					continue
				}
				next := refClamp(math.RoundToEven(float64(v)*ll/lx), -4, 3)
				lx, ll = lx+w*float64(v)*next, ll+w*next*next
				if next != l[i] && ll > 0 && lx*lx*sll > slx*slx*ll {
					l[i], slx, sll, changed = next, lx, ll, true
				}
			}
		}
		scales[j] = slx / sll
		if math.Abs(scales[j]) > math.Abs(top) {
			top = scales[j]
		}
	}
	out := make([]float32, 256)
	if top == 0 {
		return out
	}
	for j := range 16 {
		d := refHalf(top/-32) * refClamp(math.RoundToEven(-32/top*scales[j]), -32, 31)
		for i := 16 * j; i < 16*j+16; i++ {
			if d != 0 {
				out[i] = float32(d * refClamp(math.RoundToEven(float64(x[i])/d), -4, 3))
			}
		}
	}
	return out
}

// refQ2K: sixteen sub-blocks of 16, 4-bit scales and minima, weights |x| and the smallest sum of absolute errors.
func refQ2K(x []float32) []float32 {
	var scales, mins [16]float64
	var top, topMin float64
	for j := range 16 {
		scales[j], mins[j] = refScaleMinBy(x[16*j:16*j+16], 3, -0.5, 0.1, 15, 0, math.Abs)
		top, topMin = math.Max(top, scales[j]), math.Max(topMin, mins[j])
	}
	out := make([]float32, 256)
	for j := range 16 {
		var sc, mn float64
		if top > 0 {
			sc = math.RoundToEven(15 / top * scales[j])
		}
		if topMin > 0 {
			mn = math.RoundToEven(15 / topMin * mins[j])
		}
		d, m := refHalf(top/15)*sc, refHalf(topMin/15)*mn
		for i := 16 * j; i < 16*j+16; i++ {
			q := 0.0
			if d != 0 {
				q = refClamp(math.RoundToEven((float64(x[i])+m)/d), 0, 3)
			}
			out[i] = float32(d*q - m)
		}
	}
	return out
}

var refCodes = []float64{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

func refNearest(v float64) float64 {
	best := refCodes[0]
	for _, c := range refCodes {
		if math.Abs(v-c) <= math.Abs(v-best) {
			best = c
		}
	}
	return best
}

// refCodebookScale searches the scale of an IQ4 block of 32 with weights x²:
// the extreme is put on -127+k for k from -7 to 7.
func refCodebookScale(x []float32) float64 {
	ext := refExtreme(x)
	if math.Abs(ext) < 1e-15 {
		return 0
	}
	best, scale := math.Inf(-1), 0.0
	try := func(inv float64) {
		var sqx, sqq float64
		for _, v := range x {
			q, w := refNearest(inv*float64(v)), float64(v)*float64(v)
			sqx += w * q * float64(v)
			sqq += w * q * q
		}
		if sqq > 0 && sqx*sqx/sqq > best {
			best, scale = sqx*sqx/sqq, sqx/sqq
		}
	}
	try(127 / ext)
	for k := -7; k <= 7; k++ {
		try((float64(k) - 127) / ext)
	}
	return scale
}

func refIQ4NL(x []float32) []float32 {
	d := refCodebookScale(x)
	out := make([]float32, len(x))
	for i, v := range x {
		if d != 0 {
			out[i] = float32(refNearest(float64(v)/d) * refHalf(d))
		}
	}
	return out
}

// refMXFP4 takes the power of two under which the largest value is between 4 and 8.
func refMXFP4(x []float32) []float32 {
	top := 0.0
	for _, v := range x {
		top = max(top, math.Abs(float64(v)))
	}
	out := make([]float32, len(x))
	if top == 0 {
		return out
	}
	d := math.Pow(2, math.Floor(math.Log2(top))-2)
	for i, v := range x {
		for _, level := range []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6} {
			if y := math.Copysign(level*d, float64(v)); math.Abs(y-float64(v)) < math.Abs(float64(out[i]-v)) {
				out[i] = float32(y)
			}
		}
	}
	return out
}

func refIQ4XS(x []float32) []float32 {
	var scales [8]float64
	top := 0.0
	for j := range 8 {
		scales[j] = refCodebookScale(x[32*j : 32*j+32])
		if math.Abs(scales[j]) > math.Abs(top) {
			top = scales[j]
		}
	}
	d := -top / 32
	out := make([]float32, 256)
	if d == 0 {
		return out
	}
	for j := range 8 {
		l := refClamp(math.RoundToEven(scales[j]/d), -32, 31)
		for i := 32 * j; i < 32*j+32; i++ {
			if l != 0 {
				out[i] = float32(refHalf(d) * l * refNearest(float64(x[i])/(d*l)))
			}
		}
	}
	return out
}

func refRound(narrow func(float32) float32) func(x []float32) []float32 {
	return func(x []float32) []float32 {
		out := make([]float32, len(x))
		for i, v := range x {
			out[i] = narrow(v)
		}
		return out
	}
}

// LlamaRef maps each type we can produce to upstream's way of producing it, one
// block at a time.
var LlamaRef = map[Type]func(x []float32) []float32{
	F16:    refRound(func(x float32) float32 { return float32(refHalf(float64(x))) }),
	BF16:   refRound(func(x float32) float32 { return BF16ToF32(F32ToBF16(x)) }),
	Q8_0:   refQ80,
	Q4_0:   refSymmetric(8),
	Q5_0:   refSymmetric(16),
	Q4_1:   refAffine(15),
	Q5_1:   refAffine(31),
	Q2_K:   refQ2K,
	Q3_K:   refQ3K,
	Q4_K:   refScaleMinK(15, -1, 0.1, 20),
	Q5_K:   refScaleMinK(31, -0.5, 0.1, 15),
	Q6_K:   refQ6K,
	IQ4_NL: refIQ4NL,
	IQ4_XS: refIQ4XS,
	MXFP4:  refMXFP4,
}
