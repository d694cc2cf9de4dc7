package quant

import (
	"math"
	"slices"
)

// The searches behind the quantisers. A block is described by a scale (and
// perhaps a minimum). Given those, the best code of each value is the nearest
// one; given the codes, the best scale and minimum follow from weighted least
// squares. So each search rounds with several starting scales, refits, keeps
// the fit with the smallest weighted squared error and polishes it. ggml's
// make_qx_quants and make_qkx2_quants work the same way with narrower and finer
// steps; wide steps followed by polishing find better fits in less time (see
// docs/quant-error.md).
//
// Products are converted to float32 before they are added, which forbids fused
// multiply-add: a model quantises to the same bytes on every machine.

// polish is how often the best fit is rounded and refitted again.
const polish = 3

// sample is up to 32 values with their weights.
type sample struct {
	x     []float32
	w, wx [32]float32 // weight; weight times value
}

// byPower weighs with x² + floor*mean(x²): large values matter most, but small
// ones are not ignored. Upstream has floor 0 for its symmetric types.
func (s *sample) byPower(x []float32, floor float32) {
	s.x = x
	w, wx := s.w[:len(x)], s.wx[:len(x)]
	base := float32(floor * meanSquare(x))
	for i, v := range x {
		w[i] = float32(v*v) + base
		wx[i] = w[i] * v
	}
}

// byMagnitude weighs with |x| + sqrt(mean(x²)).
func (s *sample) byMagnitude(x []float32) {
	s.x = x
	w, wx := s.w[:len(x)], s.wx[:len(x)]
	base := float32(math.Sqrt(float64(meanSquare(x))))
	for i, v := range x {
		w[i] = math.Float32frombits(math.Float32bits(v)&^(1<<31)) + base
		wx[i] = w[i] * v
	}
}

func meanSquare(x []float32) float32 {
	var sum float32
	for _, v := range x {
		sum += float32(v * v)
	}
	return sum / float32(len(x))
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

// round32 rounds to the nearest integer, ties to even. The magnitude of x must
// be below 2^22.
func round32(x float32) float32 {
	const magic = 3 << 22 // where the unit of a float32 is 1
	x += magic
	return x - magic
}

// reciprocal is 1/d, or 0 where d is 0 so that everything rounds to code 0.
// Scales come from halves and are never too small to invert.
func reciprocal(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// scaleFit sums what the least-squares scale for chosen codes l needs: w*x*l
// and w*l*l.
type scaleFit struct{ xl, ll float32 }

func (f scaleFit) scale() float32 { return f.xl / f.ll }

// gain is the weighted squared error the best scale saves over all zeros. It is
// NaN, and so never larger than another gain, when every code is zero.
func (f scaleFit) gain() float32 { return f.xl / f.ll * f.xl }

// symmetric fits the codes of x*inv rounded into [-n, n-1].
func (s *sample) symmetric(inv, n float32) scaleFit {
	var a, b scaleFit // two chains of additions instead of one hide latency
	x := s.x
	w, wx := s.w[:len(x)], s.wx[:len(x)]
	for i := 0; i+1 < len(x); i += 2 {
		l := round32(float32(x[i] * inv))
		if l > n-1 {
			l = n - 1
		} else if l < -n {
			l = -n
		}
		a.xl += float32(wx[i] * l)
		a.ll += float32(w[i] * float32(l*l))
		l = round32(float32(x[i+1] * inv))
		if l > n-1 {
			l = n - 1
		} else if l < -n {
			l = -n
		}
		b.xl += float32(wx[i+1] * l)
		b.ll += float32(w[i+1] * float32(l*l))
	}
	return scaleFit{a.xl + b.xl, a.ll + b.ll}
}

// bestSymmetric searches the scale for codes in [-n, n-1]. The extreme value is
// put at -n + k*step and at n-1 + k*step, the range reaching one code further
// on the negative side. It returns 0 for a block of zeros.
func (s *sample) bestSymmetric(n, step float32, negative, positive int) float32 {
	ext := extreme(s.x)
	if ext == 0 {
		return 0
	}
	var best scaleFit
	top := float32(0)
	try := func(inv float32) bool {
		f := s.symmetric(inv, n)
		g := f.gain()
		if !(g > top) {
			return false
		}
		best, top = f, g
		return true
	}
	for k := -negative; k <= negative; k++ {
		try((float32(step*float32(k)) - n) / ext)
	}
	for k := -positive; k <= positive; k++ {
		try((float32(step*float32(k)) + n - 1) / ext)
	}
	if top == 0 {
		return 0
	}
	for range polish {
		if !try(1 / best.scale()) {
			break
		}
	}
	return best.scale()
}

// affineFit sums w*l, w*l*l and w*x*l over chosen codes l.
type affineFit struct{ l, ll, xl float32 }

// affine fits the codes of (x-low)*inv rounded into [0, n].
func (s *sample) affine(inv, low, n float32) affineFit {
	var a, b affineFit
	x := s.x
	w, wx := s.w[:len(x)], s.wx[:len(x)]
	for i := 0; i+1 < len(x); i += 2 {
		l := round32(float32((x[i] - low) * inv))
		if l > n {
			l = n
		} else if l < 0 {
			l = 0
		}
		wl := w[i] * l
		a.l += float32(wl)
		a.ll += float32(wl * l)
		a.xl += float32(wx[i] * l)
		l = round32(float32((x[i+1] - low) * inv))
		if l > n {
			l = n
		} else if l < 0 {
			l = 0
		}
		wl = w[i+1] * l
		b.l += float32(wl)
		b.ll += float32(wl * l)
		b.xl += float32(wx[i+1] * l)
	}
	return affineFit{a.l + b.l, a.ll + b.ll, a.xl + b.xl}
}

// solve finds scale and minimum; sw and sx are the sums of w and w*x. Unless
// free, the minimum is at most 0. gain is the weighted squared error saved over
// all zeros.
func (f affineFit) solve(sw, sx float32, free bool) (scale, low, gain float32) {
	square := float32(sw * f.ll)
	det := square - float32(f.l*f.l)
	// Where nearly all codes are equal the two unknowns cannot be told apart and
	// det is rounding noise.
	if det > 1e-5*square {
		scale = (float32(sw*f.xl) - float32(sx*f.l)) / det
		low = (float32(f.ll*sx) - float32(f.l*f.xl)) / det
	}
	if det <= 1e-5*square || low > 0 && !free {
		scale, low = f.xl/f.ll, 0
	}
	// At the exact solution this is scale*xl + low*sx; written out in full it
	// also holds for one that suffered from rounding.
	gain = float32(scale*(2*f.xl-float32(scale*f.ll)-2*float32(low*f.l))) + float32(low*(2*sx-float32(low*sw)))
	return scale, low, gain
}

// bestAffine searches scale and minimum for codes in [0, n], starting with the
// range of the values stretched over n-2 to n+0.8 codes. Unless free, the
// minimum is at most 0.
func (s *sample) bestAffine(n float32, free bool) (scale, low float32) {
	const first, step, steps = -2, 0.4, 8
	x := s.x
	low, high := x[0], x[0]
	var sw, sx float32
	for i, v := range x {
		if v < low {
			low = v
		}
		if v > high {
			high = v
		}
		sw += s.w[i]
		sx += s.wx[i]
	}
	if low > 0 && !free {
		low = 0
	}
	if high == low {
		return 0, low
	}
	start, reach := low, high-low
	scale = reach / n
	top := float32(-1)
	try := func(inv, from float32) bool {
		sc, lo, g := s.affine(inv, from, n).solve(sw, sx, free)
		// Where the values hardly differ, rounding may ask for a scale below zero, which no type can hold.
		if sc < 0 || !(g > top) {
			return false
		}
		scale, low, top = sc, lo, g
		return true
	}
	for k := range steps {
		try((n+first+float32(step*float32(k)))/reach, start)
	}
	for range polish {
		if !try(1/scale, low) {
			break
		}
	}
	return scale, low
}

// bestFree is bestAffine without a limit on the minimum. The values are moved to
// start at 0 first: far from it, the sums above would cancel badly.
func (s *sample) bestFree(n float32) (scale, low float32) {
	base := slices.Min(s.x)
	var y [32]float32
	moved := sample{x: y[:len(s.x)], w: s.w}
	for i, v := range s.x {
		moved.x[i] = v - base
		moved.wx[i] = s.w[i] * moved.x[i]
	}
	scale, low = moved.bestAffine(n, true)
	return scale, low + base
}

// affineLoss is the weighted squared error of codes in [0, n] with the given
// scale and minimum.
func (s *sample) affineLoss(scale, low, n float32) float32 {
	inv := reciprocal(scale)
	var a, b float32
	x := s.x
	w := s.w[:len(x)]
	for i := 0; i+1 < len(x); i += 2 {
		l := round32(float32((x[i] - low) * inv))
		if l > n {
			l = n
		} else if l < 0 {
			l = 0
		}
		d := float32(scale*l) - (x[i] - low)
		a += float32(w[i] * float32(d*d))
		l = round32(float32((x[i+1] - low) * inv))
		if l > n {
			l = n
		} else if l < 0 {
			l = 0
		}
		d = float32(scale*l) - (x[i+1] - low)
		b += float32(w[i+1] * float32(d*d))
	}
	return a + b
}

// codebook fits the IQ4 code book to x*inv.
func (s *sample) codebook(inv float32) scaleFit {
	var a, b scaleFit
	x := s.x
	w, wx := s.w[:len(x)], s.wx[:len(x)]
	for i := 0; i+1 < len(x); i += 2 {
		l := iq4Floats[iq4Code(x[i]*inv)&15]
		a.xl += float32(wx[i] * l)
		a.ll += float32(w[i] * float32(l*l))
		l = iq4Floats[iq4Code(x[i+1]*inv)&15]
		b.xl += float32(wx[i+1] * l)
		b.ll += float32(w[i+1] * float32(l*l))
	}
	return scaleFit{a.xl + b.xl, a.ll + b.ll}
}

// bestCodebook searches the scale for the IQ4 code book, which reaches from -127
// to 113: the extreme value is put around either end.
func (s *sample) bestCodebook() float32 {
	ext := extreme(s.x)
	if ext == 0 {
		return 0
	}
	var best scaleFit
	top := float32(0)
	try := func(inv float32) bool {
		f := s.codebook(inv)
		g := f.gain()
		if !(g > top) {
			return false
		}
		best, top = f, g
		return true
	}
	for _, end := range [...]float32{-134, -126, -118, -110, -102, 96, 104, 112} {
		try(end / ext)
	}
	if top == 0 {
		return 0
	}
	for range polish {
		if !try(1 / best.scale()) {
			break
		}
	}
	return best.scale()
}

// codebookLoss is the weighted squared error of the code book at a scale.
func (s *sample) codebookLoss(scale float32) float32 {
	inv := reciprocal(scale)
	var sum float32
	w := s.w[:len(s.x)]
	for i, v := range s.x {
		d := float32(scale*iq4Floats[iq4Code(v*inv)&15]) - v
		sum += float32(w[i] * float32(d*d))
	}
	return sum
}
