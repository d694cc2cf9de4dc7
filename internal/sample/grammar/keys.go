package grammar

import (
	"fmt"
	"math/big"
	"slices"
)

// keyNames applies propertyNames: names to add to those that have a schema, and what other keys must be, nil for
// anything and false for none. ok is false when no object fits.
func (c *compiler) keyNames(o *object, names, required []string) (added []string, key any, ok bool) {
	const k = "propertyNames"
	v, given := o.get(k)
	if !given {
		return nil, nil, true
	}
	flat := c.flatten(v, o.at(k), 0)
	p, isObject := flat.(*object)
	if !isObject {
		if flat == true {
			return nil, nil, true
		}
		return nil, false, len(required) == 0 && len(names) == 0
	}
	if p.allTypes()&tString == 0 {
		return nil, false, len(required) == 0 && len(names) == 0
	}
	if list, isList := p.values(); isList {
		for _, v := range list {
			if s, isString := v.(string); isString && !slices.Contains(names, s) {
				added = append(added, s)
			}
		}
		for _, n := range names {
			if !slices.ContainsFunc(list, func(v any) bool { return equal(v, n) }) {
				panic(errAt(o.at(k), "property %q is not among them, which is not supported", n))
			}
		}
		return added, false, true
	}
	if rest := p.without("type"); !rest.constrained() {
		return nil, nil, true
	}
	for _, key := range p.keys {
		if constraints[key] && !slices.Contains([]string{"type", "pattern", "minLength", "maxLength"}, key) ||
			unsupported[key] {
			panic(errAt(p.at(key), "keyword %q is not supported for names of properties", key))
		}
	}
	if len(names) > 0 {
		panic(errAt(o.at(k), "beside named properties it is supported for lists of names only"))
	}
	return nil, p, true
}

// patternKeys applies patternProperties: what the keys it speaks of look like, and the schema of their values. Other
// keys that are not named are left out, which is always valid.
func (c *compiler) patternKeys(o *object, names []string) (key, value any) {
	const k = "patternProperties"
	v, given := o.get(k)
	p, isObject := v.(*object)
	switch {
	case !given || isObject && len(p.keys) == 0:
		return nil, nil
	case !isObject:
		panic(errAt(o.at(k), "must be an object"))
	case len(p.keys) > 1:
		panic(errAt(o.at(k), "more than one pattern is not supported"))
	}
	expr := p.keys[0]
	re, err := parsePattern(expr)
	if err != nil {
		panic(errAt(o.at(k), "%v", err))
	}
	for _, n := range names {
		if found, err := re.matches(n); err != nil {
			panic(errAt(o.at(k), "%v", err))
		} else if found {
			panic(errAt(o.at(k), "a pattern that matches the property %q is not supported", n))
		}
	}
	s := &object{m: map[string]any{}, path: p.at(expr)}
	s.set("type", "string")
	s.set("pattern", expr)
	return s, p.m[expr]
}

const (
	maxMultiple  = 1000   // the largest integer of multipleOf: an automaton has as many states per digit
	maxMultiples = 20_000 // listed when bounds leave so few
)

// multiples builds numbers that are a multiple of m: all of them when bounds leave few enough, else integers by
// their remainder and decimals by the number of their digits.
func (c *compiler) multiples(o *object, m *big.Rat, integer bool, lo, hi *limit, next int32) int32 {
	unit := new(big.Rat).Set(m)
	if integer && !unit.IsInt() {
		unit.SetInt(unit.Num()) // integers that are a multiple of 3/2 are those of 3
	}
	if lo != nil && hi != nil {
		first, last := new(big.Rat).Quo(lo.v, unit), new(big.Rat).Quo(hi.v, unit)
		if n := new(big.Rat).Sub(last, first); n.Cmp(big.NewRat(maxMultiples, 1)) <= 0 {
			var words []string
			i := new(big.Int).Div(first.Num(), first.Denom()) // the floor
			for ; ; i.Add(i, big.NewInt(1)) {
				x := new(big.Rat).Mul(new(big.Rat).SetInt(i), unit)
				above := x.Cmp(hi.v)
				if above > 0 || above == 0 && hi.exclusive {
					break
				}
				if below := x.Cmp(lo.v); below < 0 || below == 0 && lo.exclusive {
					continue
				}
				digits, exact := x.FloatPrec()
				if !exact {
					panic(errAt(o.at("multipleOf"), "must be a decimal number"))
				}
				words = append(words, x.FloatString(digits))
			}
			if len(words) == 0 {
				return c.nothing()
			}
			return c.b.words(words, next)
		}
	}
	positive := lo != nil && lo.v.Sign() == 0
	if lo != nil && !positive || hi != nil {
		panic(errAt(o.at("multipleOf"), "together with these bounds it is not supported: too many numbers are left"))
	}
	sign := `-?`
	if positive {
		sign = ``
	}
	withZero := !positive || !lo.exclusive
	if unit.IsInt() && unit.Num().Cmp(big.NewInt(maxMultiple)) <= 0 {
		start := c.b.expression(sign, c.b.remainders(int(unit.Num().Int64()), next))
		if withZero {
			start = c.b.alt(c.b.lit("0", next), start)
		}
		return start
	}
	places, exact := unit.FloatPrec()
	if exact && places <= maxDigits && unit.Cmp(new(big.Rat).SetFrac(big.NewInt(1), tenTo(places))) == 0 && withZero {
		return c.b.expression(sign+wholeExpr+fmt.Sprintf(`(?:\.[0-9]{1,%d})?`, places), next)
	}
	panic(errAt(o.at("multipleOf"),
		"is supported for integers up to %d and for 0.1, 0.01 and so on; others need bounds", maxMultiple))
}

// remainders reads a positive integer without leading zeros that n divides.
func (b *builder) remainders(n int, next int32) int32 {
	dead := b.add(state{kind: kindBytes})
	// after[r] goes on when the digits so far leave the remainder r and some more may come.
	after := make([]int32, n)
	for r := range after {
		if after[r] = dead; r == 0 {
			after[r] = next
		}
	}
	for range maxDigits - 1 {
		longer := make([]int32, n)
		for r := range longer {
			var edges []edge
			for d := range 10 {
				edges = append(edges, edge{byte('0' + d), byte('0' + d), after[(r*10+d)%n]})
			}
			longer[r] = b.add(state{kind: kindBytes, edges: edges})
			if r == 0 {
				longer[r] = b.alt(longer[r], next)
			}
		}
		after = longer
	}
	var edges []edge
	for d := 1; d < 10; d++ {
		edges = append(edges, edge{byte('0' + d), byte('0' + d), after[d%n]})
	}
	return b.add(state{kind: kindBytes, edges: edges})
}
