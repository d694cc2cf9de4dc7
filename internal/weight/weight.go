// Package weight is the softmax arithmetic that decides which token is sampled: e^x rounded the same on every platform
// and device, and sums that do not depend on their order. The kernels of vec, backend/cuda and backend/vulkan compute
// the same bits.
package weight

import "math"

// Exp is e^x for x <= 0, within 3e-7, and 0 below -87 and for NaN.
//
// It is written out because it must round the same on every platform, which math.Exp does not, and because a row has a
// quarter of a million of them: with x = n ln2/64 + r it is 2^(n div 64) from the exponent bits, 2^((n mod 64)/64) from
// a table and a short polynomial. The conversions keep compilers from fusing multiplications with additions.
func Exp(x float32) float32 {
	if !(x > -87) {
		return 0
	}
	n := int32(float32(x*(64/math.Ln2)) - 0.5)
	r := x - float32(float32(n)*ln2Hi) - float32(float32(n)*ln2Lo)
	return Table[n&63] * math.Float32frombits(uint32(n>>6+127)<<23) * (1 + r + float32(r*r)*0.5)
}

// ln2Hi + ln2Lo is ln2/64; the high part is short enough for exact products.
const (
	ln2Hi = 0.010833740234375
	ln2Lo = -3.3155381258549027e-06
)

// Table holds 2^(i/64). Square roots and products are exactly rounded everywhere.
var Table = func() (t [64]float32) {
	root := 2.0
	for range 6 {
		root = math.Sqrt(root)
	}
	p := 1.0
	for i := range t {
		t[i] = float32(p)
		p *= root
	}
	return t
}()

// UnitBits says how small the unit of sums is: 2^-44. A weight is at most 1 and a vocabulary has at most 2^19 tokens,
// so a sum fits into 63 bits. What the units cut off is less than 2^-25 of a sum, all tokens together.
const UnitBits = 44

// Units is a weight of at most 1 as a whole number of units, rounded down. Whole numbers have the same sum in any
// order.
func Units(w float32) uint64 { return uint64(w * (1 << UnitBits)) }

// Sum is the sum of e^(x-top) in units. No x may be larger than top.
func Sum(x []float32, top float32) uint64 {
	total := uint64(0)
	for _, v := range x {
		total += Units(Exp(v - top))
	}
	return total
}
