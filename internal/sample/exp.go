package sample

import "math"

// expNeg is e^x for x <= 0, within 3e-7, and 0 below -87 and for NaN.
//
// It is written out because it must round the same on every platform, which
// math.Exp does not, and because a row has a quarter of a million of them: with
// x = n ln2/64 + r it is 2^(n div 64) from the exponent bits, 2^((n mod 64)/64) from
// a table and a short polynomial. The conversions keep compilers from fusing
// multiplications with additions.
func expNeg(x float32) float32 {
	if !(x > -87) {
		return 0
	}
	n := int32(float32(x*(64/math.Ln2)) - 0.5)
	r := x - float32(float32(n)*ln2Hi) - float32(float32(n)*ln2Lo)
	return exp2Tab[n&63] * math.Float32frombits(uint32(n>>6+127)<<23) * (1 + r + float32(r*r)*0.5)
}

// ln2Hi + ln2Lo is ln2/64; the high part is short enough for exact products.
const (
	ln2Hi = 0.010833740234375
	ln2Lo = -3.3155381258549027e-06
)

// exp2Tab holds 2^(i/64). Square roots and products are exactly rounded everywhere.
var exp2Tab = func() (t [64]float32) {
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
