package grammar

import (
	"math/big"
	"strings"
)

// integer is any integer of up to maxDigits digits.
func (b *builder) integer(next int32) int32 {
	num := b.alt(b.lit("0", next), b.bytes(b.digits(0, maxDigits-1, next), '1', '9'))
	return b.alt(num, b.lit("-", num))
}

// digits reads between min and max digits.
func (b *builder) digits(min, max int, next int32) int32 {
	s := next
	for i := max; i > 0; i-- {
		d := b.bytes(s, '0', '9')
		if i > min {
			s = b.alt(d, next)
		} else {
			s = d
		}
	}
	return s
}

// exponent is an optional exponent of one or two digits.
func (b *builder) exponent(next int32) int32 { return b.alt(next, b.exponentMust(next)) }

func (b *builder) exponentMust(next int32) int32 {
	d := b.digits(1, 2, next)
	return b.bytes(b.alt(d, b.bytes(d, '+', '+', '-', '-')), 'e', 'e', 'E', 'E')
}

// limit is one end of a range of numbers; nil is no limit.
type limit struct {
	v         *big.Rat
	exclusive bool
}

// integerRange reads the integers between two limits.
func (b *builder) integerRange(lo, hi *limit, next int32) int32 {
	top := new(big.Int).Exp(big.NewInt(10), big.NewInt(maxDigits), nil)
	top.Sub(top, big.NewInt(1))
	min, max := new(big.Int).Neg(top), new(big.Int).Set(top)
	if lo != nil {
		n := ceil(lo.v)
		if lo.exclusive && lo.v.IsInt() {
			n.Add(n, big.NewInt(1))
		}
		if n.Cmp(min) > 0 {
			min = n
		}
	}
	if hi != nil {
		n := ceil(new(big.Rat).Neg(hi.v))
		n.Neg(n) // the floor
		if hi.exclusive && hi.v.IsInt() {
			n.Sub(n, big.NewInt(1))
		}
		if n.Cmp(max) < 0 {
			max = n
		}
	}
	var starts []int32
	zero := new(big.Int)
	if max.Sign() >= 0 {
		from := min
		if from.Sign() < 0 {
			from = zero
		}
		starts = append(starts, b.naturals(from.String(), max.String(), next))
	}
	if min.Sign() < 0 {
		to := new(big.Int).Neg(min)
		from := big.NewInt(1)
		if max.Sign() < 0 {
			from = new(big.Int).Neg(max)
		}
		starts = append(starts, b.lit("-", b.naturals(from.String(), to.String(), next)))
	}
	return b.alt(starts...)
}

func ceil(r *big.Rat) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int)) // floor: the denominator is positive
	if m.Sign() != 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

// naturals reads the numbers from lo to hi, given as decimal digits. An empty
// range reads nothing.
func (b *builder) naturals(lo, hi string, next int32) int32 {
	var starts []int32
	for n := len(lo); n <= len(hi); n++ {
		from, to := lo, hi
		if n > len(lo) {
			from = "1" + strings.Repeat("0", n-1)
		}
		if n < len(hi) {
			to = strings.Repeat("9", n)
		}
		if from <= to {
			starts = append(starts, b.sameLength(from, to, next))
		}
	}
	if len(starts) == 0 {
		return b.add(state{kind: kindBytes})
	}
	return b.alt(starts...)
}

// sameLength reads the numbers between two of the same length.
func (b *builder) sameLength(lo, hi string, next int32) int32 {
	if lo == "" {
		return next
	}
	if lo[0] == hi[0] {
		return b.bytes(b.sameLength(lo[1:], hi[1:], next), lo[0], lo[0])
	}
	if strings.Trim(lo, "0") == "" && strings.Trim(hi, "9") == "" {
		return b.digits(len(lo), len(lo), next)
	}
	rest := len(lo) - 1
	starts := []int32{
		b.bytes(b.sameLength(lo[1:], strings.Repeat("9", rest), next), lo[0], lo[0]),
		b.bytes(b.sameLength(strings.Repeat("0", rest), hi[1:], next), hi[0], hi[0]),
	}
	if lo[0]+1 <= hi[0]-1 {
		starts = append(starts, b.bytes(b.digits(rest, rest, next), lo[0]+1, hi[0]-1))
	}
	return b.alt(starts...)
}

// numberRange reads the numbers between two limits, without exponents.
func (b *builder) numberRange(lo, hi *limit, next int32) int32 {
	neg := func(l *limit) *limit {
		if l == nil {
			return nil
		}
		return &limit{new(big.Rat).Neg(l.v), l.exclusive}
	}
	var starts []int32
	if hi == nil || hi.v.Sign() > 0 || hi.v.Sign() == 0 && !hi.exclusive {
		from := lo
		if lo == nil || lo.v.Sign() < 0 {
			from = &limit{v: new(big.Rat)}
		}
		starts = append(starts, b.magnitudes(from, hi, next))
	}
	if lo == nil || lo.v.Sign() < 0 {
		from := neg(hi)
		if hi == nil || hi.v.Sign() >= 0 {
			from = &limit{new(big.Rat), true}
		}
		starts = append(starts, b.lit("-", b.magnitudes(from, neg(lo), next)))
	}
	if len(starts) == 0 {
		return b.add(state{kind: kindBytes})
	}
	return b.alt(starts...)
}

// magnitudes reads the decimals from lo, which is not negative, to hi.
func (b *builder) magnitudes(lo, hi *limit, next int32) int32 {
	top := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(maxDigits), nil))
	if hi == nil || hi.v.Cmp(top) > 0 {
		hi = &limit{top, true}
	}
	// Limits with more digits than are written move inwards to ones without.
	low, lowEx := decimal(lo, true)
	high, highEx := decimal(hi, false)
	li, lf, _ := strings.Cut(low, ".")
	ui, uf, _ := strings.Cut(high, ".")
	a, _ := new(big.Int).SetString(li, 10)
	z, _ := new(big.Int).SetString(ui, 10)
	if a.Cmp(z) > 0 {
		return b.add(state{kind: kindBytes})
	}
	f := &fraction{b: b, low: strings.TrimRight(lf, "0"), high: strings.TrimRight(uf, "0"), lowEx: lowEx, highEx: highEx,
		next: next, made: map[[3]int]int32{}}
	if a.Cmp(z) == 0 {
		return b.lit(li, f.start(true, true))
	}
	starts := []int32{b.lit(li, f.start(true, false)), b.lit(ui, f.start(false, true))}
	one := big.NewInt(1)
	if from, to := new(big.Int).Add(a, one), new(big.Int).Sub(z, one); from.Cmp(to) <= 0 {
		starts = append(starts, b.naturals(from.String(), to.String(), f.start(false, false)))
	}
	return b.alt(starts...)
}

// decimal writes a limit with maxDigits digits after the point. If it needs
// more, the nearest decimal inside the range takes its place, included.
func decimal(l *limit, lower bool) (string, bool) {
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(maxDigits), nil)
	scaled := new(big.Rat).Mul(l.v, new(big.Rat).SetInt(scale))
	exact := scaled.IsInt()
	var n *big.Int
	if lower {
		n = ceil(scaled)
	} else {
		n = ceil(new(big.Rat).Neg(scaled))
		n.Neg(n)
	}
	q, r := new(big.Int).QuoRem(n, scale, new(big.Int))
	digits := r.String()
	return q.String() + "." + strings.Repeat("0", maxDigits-len(digits)) + digits, exact && l.exclusive
}

// fraction reads the part after the point of a number whose integer part
// equals that of the lower limit, the upper one, both or neither.
type fraction struct {
	b             *builder
	low, high     string // digits of the limits, without trailing zeros
	lowEx, highEx bool
	next          int32
	made          map[[3]int]int32
}

func flag(v bool) int {
	if v {
		return 1
	}
	return 0
}

// ends reports whether the number may stop after pos digits that agree with
// the limits where tight.
func (f *fraction) ends(pos int, tightLow, tightHigh bool) bool {
	if tightLow && (pos < len(f.low) || f.lowEx) {
		return false
	}
	if tightHigh && pos >= len(f.high) && f.highEx {
		return false
	}
	return true
}

func (f *fraction) start(tightLow, tightHigh bool) int32 {
	point := f.b.lit(".", f.digit(0, tightLow, tightHigh))
	if f.ends(0, tightLow, tightHigh) {
		return f.b.alt(f.next, point)
	}
	return point
}

func digitAt(s string, i int) byte {
	if i < len(s) {
		return s[i]
	}
	return '0'
}

// digit reads digit number pos, counted from 0.
func (f *fraction) digit(pos int, tightLow, tightHigh bool) int32 {
	k := [3]int{pos, flag(tightLow), flag(tightHigh)}
	if s, ok := f.made[k]; ok {
		return s
	}
	var edges []edge
	lo, hi := byte('0'), byte('9')
	if tightLow {
		lo = digitAt(f.low, pos)
	}
	if tightHigh {
		hi = digitAt(f.high, pos)
	}
	for c := lo; c <= hi; c++ {
		edges = append(edges, edge{c, c, f.after(pos+1, tightLow && c == lo, tightHigh && c == hi)})
	}
	s := f.b.add(state{kind: kindBytes, edges: edges})
	f.made[k] = s
	return s
}

// after goes on once pos digits have been read.
func (f *fraction) after(pos int, tightLow, tightHigh bool) int32 {
	var starts []int32
	if f.ends(pos, tightLow, tightHigh) {
		starts = append(starts, f.next)
	}
	if pos < maxDigits {
		starts = append(starts, f.digit(pos, tightLow, tightHigh))
	}
	if len(starts) == 0 {
		return f.b.add(state{kind: kindBytes})
	}
	return f.b.alt(starts...)
}
