package grammar

import (
	"fmt"
	"math/big"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

func (c *compiler) number(o *object, integer bool, next int32) int32 {
	var multiple *big.Rat
	if m, ok := o.get("multipleOf"); ok {
		r, isNum := rat(m)
		if !isNum || r.Sign() <= 0 {
			panic(errAt(o.at("multipleOf"), "must be a number above 0"))
		}
		if multiple = r; r.Cmp(big.NewRat(1, 1)) == 0 {
			multiple, integer = nil, true
		}
	}
	lo := o.limit("minimum", "exclusiveMinimum", 1)
	hi := o.limit("maximum", "exclusiveMaximum", -1)
	switch {
	case multiple != nil:
		return c.multiples(o, multiple, integer, lo, hi, next)
	case lo == nil && hi == nil && integer:
		return c.b.call(ruleInteger, next)
	case lo == nil && hi == nil:
		return c.b.call(ruleNumber, next)
	case integer:
		return c.b.expression(rangeExpr(lo, hi, 0), next)
	}
	return c.b.expression(rangeExpr(lo, hi, maxDigits), next)
}

// limit combines an inclusive and an exclusive bound; sign is 1 for lower ones.
func (o *object) limit(key, exKey string, sign int) *limit {
	var l *limit
	if v, ok := o.get(key); ok {
		r, ok := rat(v)
		if !ok {
			panic(errAt(o.at(key), "must be a number of reasonable size"))
		}
		l = &limit{v: r}
	}
	v, ok := o.get(exKey)
	if !ok {
		return l
	}
	if b, isBool := v.(bool); isBool { // draft 4 spelling
		if l != nil {
			l.exclusive = b
		}
		return l
	}
	r, ok := rat(v)
	if !ok {
		panic(errAt(o.at(exKey), "must be a number of reasonable size"))
	}
	if l == nil || r.Cmp(l.v)*sign >= 0 {
		l = &limit{r, true}
	}
	return l
}

// Numbers are regular expressions, which become states like the patterns of schemas.
var (
	wholeExpr   = fmt.Sprintf(`(?:0|[1-9][0-9]{0,%d})`, maxDigits-1)
	integerExpr = `-?` + wholeExpr
	numberExpr  = integerExpr + fmt.Sprintf(`(?:\.[0-9]{1,%d})?(?:[eE][+-]?[0-9]{1,2})?`, maxDigits)
)

// nothingExpr matches no text.
const nothingExpr = `[^\x00-\x{10FFFF}]`

// expression reads the texts of a regular expression over single bytes that this package wrote.
func (b *builder) expression(expr string, next int32) int32 {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		panic("grammar: " + err.Error())
	}
	return (&sharing{b, map[edge]int32{}, map[[2]int32]int32{}}).build(re, next)
}

// sharing builds an expression whose parts that go on alike are one state: ranges of numbers repeat them.
type sharing struct {
	b    *builder
	read map[edge]int32
	skip map[[2]int32]int32
}

func (s *sharing) build(re *syntax.Regexp, next int32) int32 {
	switch re.Op {
	case syntax.OpEmptyMatch:
		return next
	case syntax.OpLiteral:
		for _, r := range slices.Backward(re.Rune) {
			start := s.bytes(r, r, next)
			if re.Flags&syntax.FoldCase != 0 { // what the library makes of [eE]
				other := unicode.SimpleFold(r)
				start = s.either(start, s.bytes(other, other, next))
			}
			next = start
		}
		return next
	case syntax.OpCharClass:
		var starts []int32
		for i := 0; i < len(re.Rune); i += 2 {
			starts = append(starts, s.bytes(re.Rune[i], re.Rune[i+1], next))
		}
		return s.either(starts...)
	case syntax.OpCapture:
		return s.build(re.Sub[0], next)
	case syntax.OpConcat:
		for _, sub := range slices.Backward(re.Sub) {
			next = s.build(sub, next)
		}
		return next
	case syntax.OpAlternate:
		var starts []int32
		for _, sub := range re.Sub {
			starts = append(starts, s.build(sub, next))
		}
		return s.either(starts...)
	case syntax.OpQuest:
		return s.optional(s.build(re.Sub[0], next), next)
	case syntax.OpRepeat:
		start := next
		for range re.Max - re.Min {
			start = s.optional(s.build(re.Sub[0], start), next)
		}
		for range re.Min {
			start = s.build(re.Sub[0], start)
		}
		return start
	}
	return s.b.alt() // nothing
}

// either goes on at one of the starts. Those that read a byte become one state, which is faster to follow.
func (s *sharing) either(starts ...int32) int32 {
	if len(starts) == 1 {
		return starts[0]
	}
	var edges []edge
	var others []int32
	for _, start := range starts {
		if st := &s.b.states[start]; st.kind == kindBytes {
			edges = append(edges, st.edges...)
		} else {
			others = append(others, start)
		}
	}
	if len(edges) > 0 {
		others = append(others, s.b.add(state{kind: kindBytes, edges: edges}))
	}
	return s.b.alt(others...)
}

// optional goes on at start or skips what it reads.
func (s *sharing) optional(start, next int32) int32 {
	return shared(s.skip, [2]int32{start, next}, func(to [2]int32) int32 { return s.b.alt(to[:]...) })
}

func (s *sharing) bytes(lo, hi rune, next int32) int32 {
	return shared(s.read, edge{byte(lo), byte(hi), next}, func(e edge) int32 { return s.b.bytes(e.to, e.lo, e.hi) })
}

// shared returns the state of a key, built at its first use.
func shared[K comparable](states map[K]int32, key K, build func(K) int32) int32 {
	state, ok := states[key]
	if !ok {
		state = build(key)
		states[key] = state
	}
	return state
}

// limit is one end of a range of numbers; nil is no limit.
type limit struct {
	v         *big.Rat
	exclusive bool
}

// negated is the limit of the numbers with the other sign.
func (l *limit) negated() *limit {
	if l == nil {
		return nil
	}
	return &limit{new(big.Rat).Neg(l.v), l.exclusive}
}

// most is the largest integer n for which n / scale, of at most maxDigits digits before the point, is within an
// upper limit.
func (l *limit) most(scale *big.Int) *big.Int {
	n := new(big.Int).Mul(scale, tenTo(maxDigits))
	n.Sub(n, big.NewInt(1))
	if l == nil {
		return n
	}
	scaled := new(big.Rat).Mul(l.v, new(big.Rat).SetInt(scale))
	below := new(big.Int).Div(scaled.Num(), scaled.Denom()) // the floor: the denominator is positive
	if l.exclusive && scaled.IsInt() {
		below.Sub(below, big.NewInt(1))
	}
	if below.Cmp(n) < 0 {
		return below
	}
	return n
}

func tenTo(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// rangeExpr matches the numbers between two limits, with at most places digits after the point and no exponent.
func rangeExpr(lo, hi *limit, places int) string {
	scale := tenTo(places)
	most := hi.most(scale)
	least := lo.negated().most(scale)
	least.Neg(least)
	var parts []string
	add := func(sign string, from, to *big.Int) {
		if from.Cmp(to) <= 0 {
			parts = append(parts, sign+decimals(from, to, places))
		}
	}
	add("", larger(least, new(big.Int)), most)
	add("-", larger(new(big.Int).Neg(most), big.NewInt(1)), new(big.Int).Neg(least))
	return either(parts...)
}

func larger(a, b *big.Int) *big.Int {
	if a.Cmp(b) > 0 {
		return a
	}
	return b
}

// either matches what one of the expressions does.
func either(exprs ...string) string {
	if len(exprs) == 0 {
		return nothingExpr
	}
	return `(?:` + strings.Join(exprs, `|`) + `)`
}

// decimals matches the numbers from lo to hi, given without their points.
func decimals(lo, hi *big.Int, places int) string {
	if places == 0 {
		return naturals(lo.String(), hi.String())
	}
	low, high := fmt.Sprintf("%0*d", places+1, lo), fmt.Sprintf("%0*d", places+1, hi)
	lowWhole, low := low[:len(low)-places], low[len(low)-places:]
	highWhole, high := high[:len(high)-places], high[len(high)-places:]
	if lowWhole == highWhole {
		return lowWhole + fraction(low, high)
	}
	zeros, nines := strings.Repeat("0", places), strings.Repeat("9", places)
	scale, one := tenTo(places), big.NewInt(1)
	after := new(big.Int).Add(new(big.Int).Div(lo, scale), one)
	before := new(big.Int).Sub(new(big.Int).Div(hi, scale), one)
	return either(lowWhole+fraction(low, nines), highWhole+fraction(zeros, high),
		naturals(after.String(), before.String())+fraction(zeros, nines))
}

// fraction matches a point and digits between two fractions of the same length, or nothing where that is 0.
func fraction(lo, hi string) string {
	if strings.Trim(lo, "0") == "" {
		return `(?:\.` + digits(lo, hi, true) + `)?`
	}
	return `\.` + digits(lo, hi, true)
}

// naturals matches the numbers from lo to hi, none if there are none.
func naturals(lo, hi string) string {
	var parts []string
	for n := len(lo); n <= len(hi); n++ {
		from, to := lo, hi
		if n > len(lo) {
			from = "1" + strings.Repeat("0", n-1)
		}
		if n < len(hi) {
			to = strings.Repeat("9", n)
		}
		if from <= to {
			parts = append(parts, digits(from, to, false))
		}
	}
	return either(parts...)
}

// digits matches the texts between two of the same length. Shorter ones are allowed if zeros at the end may be left
// out, but one digit must stay.
func digits(lo, hi string, shorter bool) string {
	rest := len(lo) - 1
	zeros, nines := strings.Repeat("0", rest), strings.Repeat("9", rest)
	tail := func(lo, hi string) string {
		switch {
		case rest == 0:
			return ""
		case shorter && lo == zeros:
			return `(?:` + digits(lo, hi, true) + `)?`
		}
		return digits(lo, hi, shorter)
	}
	switch {
	case lo == "0"+zeros && hi == "9"+nines && shorter:
		return fmt.Sprintf(`[0-9]{1,%d}`, rest+1)
	case lo == "0"+zeros && hi == "9"+nines:
		return fmt.Sprintf(`[0-9]{%d}`, rest+1)
	case lo[0] == hi[0]:
		return lo[:1] + tail(lo[1:], hi[1:])
	}
	parts := []string{lo[:1] + tail(lo[1:], nines), hi[:1] + tail(zeros, hi[1:])}
	if lo[0]+1 < hi[0] {
		parts = append(parts, fmt.Sprintf(`[%c-%c]`, lo[0]+1, hi[0]-1)+tail(zeros, nines))
	}
	return either(parts...)
}
