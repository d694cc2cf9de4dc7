package vec

import (
	"math"
	"slices"
	"sync/atomic"
)

// Activations without assembly of their own: they are composed of the functions of the table, which every instruction
// set has.

// Silu stores x*sigmoid(x) in dst.
func Silu(dst, x []float32) { ops().silu(dst, x[:len(dst)]) }

// Gelu stores gelu(x) in dst, in the tanh form of [GeluMul].
func Gelu(dst, x []float32) { ops().geluMul(dst, x[:len(dst)], onesOf(len(dst))) }

// GeluErf stores x/2 * (1 + erf(x/sqrt(2))) in dst.
func GeluErf(dst, x []float32) {
	for i, v := range x[:len(dst)] {
		dst[i] = geluErf(v)
	}
}

// geluErf takes the complement, which keeps its precision where the result is close to 0.
func geluErf(x float32) float32 {
	return float32(float64(x) * 0.5 * math.Erfc(-float64(x)*(math.Sqrt2/2)))
}

// QuickGelu stores x*sigmoid(1.702 x) in dst.
func QuickGelu(dst, x []float32) { quickGelu(dst, x[:len(dst)], nil) }

// GeluErfMul stores the GELU of the gate, as [GeluErf] has it, times up in dst.
func GeluErfMul(dst, gate, up []float32) {
	for i := range dst {
		dst[i] = geluErf(gate[i]) * up[i]
	}
}

// QuickGeluMul stores the GELU of the gate, as [QuickGelu] has it, times up in dst.
func QuickGeluMul(dst, gate, up []float32) { quickGelu(dst, gate[:len(dst)], up[:len(dst)]) }

// quickGelu computes it apart from dst, which may be the gate or up.
func quickGelu(dst, gate, up []float32) {
	b := getScratch(len(dst))
	defer scratch.Put(b)
	f := ops()
	f.scale(*b, gate, 1.702)
	if up == nil {
		f.sigmoidMul(dst, gate, *b)
		return
	}
	f.sigmoidMul(*b, gate, *b)
	f.scaleMul(dst, *b, up, 1)
}

// swigluLimit bounds what [ClampedSwiGLU] multiplies.
const swigluLimit = 7

// ClampedSwiGLU stores the product of two factors in dst: the GELU of the gate, as [QuickGelu] has it, and 1 + up. The
// gate counts up to 7, and up from -7 to 7.
func ClampedSwiGLU(dst, gate, up []float32) {
	g, u := getScratch(len(dst)), getScratch(len(dst))
	defer scratch.Put(g)
	defer scratch.Put(u)
	Clamp(*g, gate, float32(math.Inf(-1)), swigluLimit)
	Clamp(*u, up, -swigluLimit, swigluLimit)
	ops().add(*u, *u, onesOf(len(dst)))
	quickGelu(dst, *g, *u)
}

// Clamp stores x bounded to [least, most] in dst. NaN stays NaN.
func Clamp(dst, x []float32, least, most float32) {
	for i, v := range x[:len(dst)] {
		if v < least {
			v = least
		}
		if v > most {
			v = most
		}
		dst[i] = v
	}
}

// ones is a slice of ones that only grows: a factor for functions that multiply.
var ones atomic.Pointer[[]float32]

// onesOf returns n ones, which the caller must not change.
func onesOf(n int) []float32 {
	if v := ones.Load(); v != nil && len(*v) >= n {
		return (*v)[:n]
	}
	v := slices.Repeat([]float32{1}, max(n, 1<<12))
	ones.Store(&v)
	return v[:n]
}
