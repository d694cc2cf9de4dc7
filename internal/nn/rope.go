package nn

import (
	"math"

	"strobe/internal/backend"
)

// Rope is a rotary embedding.
type Rope struct {
	inv    []backend.Vector // per device: inverse frequencies [dims/2]
	axes   [][]axis         // per device: of the three axes of positions; nil if there is one
	freqs  []float32        // the values of inv
	mscale float32
	dims   int // rotated dimensions of a head
}

// axis is the part of a rotary embedding that one of three positions turns.
type axis struct {
	inv  backend.Vector // [dims/2] inverse frequencies; 0 for pairs of other axes
	less backend.Vector // [dims/2] what makes the cosines of these pairs 0
}

// RopeFactors reads the divisors of the frequencies of dims dimensions, nil if the file has none.
func (l *Loader) RopeFactors(dims int) []float32 {
	const name = "rope_freqs.weight"
	if !l.Has(name) {
		return nil
	}
	factors := l.Floats(name, dims/2)
	for i, f := range factors {
		if !(f > 0) {
			l.Fail("tensor %q: value %d is %v", name, i, f)
			return nil
		}
	}
	return factors
}

// Rope reads the rotary parameters of the file. factors divide the frequencies; nil means 1.
func (l *Loader) Rope(dims int, base float32, factors []float32) *Rope {
	if dims <= 0 || dims%2 != 0 || base <= 0 {
		l.Fail("rotary embedding of %d dimensions with base %g", dims, base)
		return &Rope{}
	}
	r := &Rope{dims: dims, mscale: 1}
	half := dims / 2
	inv := make([]float32, half)
	for i := range inv {
		inv[i] = float32(math.Pow(float64(base), -float64(2*i)/float64(dims)))
		if factors != nil {
			inv[i] /= factors[i]
		}
	}
	l.scaleRope(r, inv, base)
	r.freqs = inv
	for _, b := range l.Devices {
		v, err := b.Vector(inv)
		l.Keep(err)
		r.inv = append(r.inv, v)
	}
	return r
}

// Axes gives the rotary embedding three axes of positions, as rows of images have them: of says which one turns each
// pair.
func (r *Rope) Axes(l *Loader, of func(pair int) int) {
	for _, b := range l.Devices {
		var all []axis
		for a := range 3 {
			inv, less := make([]float32, len(r.freqs)), make([]float32, len(r.freqs))
			for i, f := range r.freqs {
				if of(i) == a {
					inv[i] = f
				} else {
					less[i] = -r.mscale // the cosine of 0 is 1, times mscale
				}
			}
			var x axis
			var err error
			x.inv, err = b.Vector(inv)
			l.Keep(err)
			x.less, err = b.Vector(less)
			l.Keep(err)
			all = append(all, x)
		}
		r.axes = append(r.axes, all)
	}
}

// scaleRope applies linear or YaRN context extension.
func (l *Loader) scaleRope(r *Rope, inv []float32, base float32) {
	kind, _, err := l.File.String(l.Key("rope.scaling.type"))
	l.Keep(err)
	switch kind {
	case "", "none", "linear", "yarn":
	default:
		l.Fail("key %s is %q; supported are none, linear and yarn", l.Key("rope.scaling.type"), kind)
	}
	r.mscale *= l.Float("rope.scaling.attn_factor", 1)                        // whether or not anything is stretched
	factor := l.Float("rope.scaling.factor", l.Float("rope.scale_linear", 0)) // the latter is the key of old files
	if factor == 0 || factor == 1 || kind == "none" {
		return
	}
	if kind != "yarn" {
		for i := range inv {
			inv[i] /= factor
		}
		return
	}
	original := float64(l.Int("rope.scaling.original_context_length", l.Int("context_length", 0)))
	fast := float64(l.Float("rope.scaling.yarn_beta_fast", 32))
	slow := float64(l.Float("rope.scaling.yarn_beta_slow", 1))
	ext := l.Float("rope.scaling.yarn_ext_factor", 1)
	at := func(beta float64) float64 {
		return float64(r.dims) * math.Log(original/(2*math.Pi*beta)) / (2 * math.Log(float64(base)))
	}
	low := math.Max(0, math.Floor(at(fast)))
	high := math.Min(float64(r.dims-1), math.Ceil(at(slow)))
	for i := range inv {
		ramp := 1 - math.Min(1, math.Max(0, (float64(i)-low)/math.Max(0.001, high-low)))
		ramp *= float64(ext)
		inv[i] *= float32((1-ramp)/float64(factor) + ramp)
	}
	r.mscale *= l.Float("rope.scaling.yarn_attn_factor", 1) * float32(1+0.1*math.Log(float64(factor)))
}
