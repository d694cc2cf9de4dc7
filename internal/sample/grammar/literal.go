package grammar

import (
	"encoding/json"
	"math/big"
	"slices"
	"unicode/utf8"
)

// literals builds const and enum: the listed values that meet the other keywords.
func (c *compiler) literals(o *object, list []any, key string, next int32) int32 {
	t := tAll
	if v, ok := o.get("type"); ok {
		t = typeSet(v, o.at("type"))
	}
	if other, ok := o.get("enum"); ok && key == "const" {
		l, _ := other.([]any)
		if !slices.ContainsFunc(l, func(w any) bool { return equal(list[0], w) }) {
			return c.nothing()
		}
	}
	var words []string
	var starts []int32
	for _, v := range list {
		c.spend(o.path)
		vt := typeOf(v)
		if vt&t == 0 || vt == tNumber && t&tNumber == 0 {
			continue
		}
		ok := o.admits(v, vt)
		if !ok {
			continue
		}
		switch v.(type) {
		case *object, []any:
			starts = append(starts, c.literal(v, next))
		default:
			words = append(words, c.b.scalar(v))
		}
	}
	if len(words) > 0 {
		starts = append(starts, c.b.words(words, next))
	}
	if len(starts) == 0 {
		return c.nothing()
	}
	return c.b.alt(starts...)
}

// admits checks a listed value against the keywords beside the list.
func (o *object) admits(v any, t types) bool {
	for _, g := range typeKeywords {
		if g.t&t == 0 {
			continue
		}
		for _, k := range g.keys {
			arg, ok := o.get(k)
			if !ok {
				continue
			}
			if t&(tObject|tArray) != 0 {
				panic(errAt(o.at(k), "beside a list of objects or lists it is not supported"))
			}
			if !o.admitsScalar(v, k, arg) {
				return false
			}
		}
	}
	return true
}

func (o *object) admitsScalar(v any, k string, arg any) bool {
	if k == "pattern" {
		s, _ := arg.(string)
		re, err := parsePattern(s)
		if err == nil {
			var found bool
			if found, err = re.matches(v.(string)); err == nil {
				return found
			}
		}
		panic(errAt(o.at(k), "%v", err))
	}
	n, ok := rat(arg)
	if !ok {
		panic(errAt(o.at(k), "must be a number"))
	}
	var x *big.Rat
	if s, isString := v.(string); isString {
		x = new(big.Rat).SetInt64(int64(utf8.RuneCountInString(s)))
	} else if x, ok = rat(v); !ok {
		panic(errAt(o.at(k), "does not go with so large a number"))
	}
	switch k {
	case "minLength", "minimum":
		return x.Cmp(n) >= 0
	case "maxLength", "maximum":
		return x.Cmp(n) <= 0
	case "exclusiveMinimum":
		return x.Cmp(n) > 0
	case "exclusiveMaximum":
		return x.Cmp(n) < 0
	}
	if n.Sign() <= 0 {
		panic(errAt(o.at(k), "must be above 0"))
	}
	return new(big.Rat).Quo(x, n).IsInt() // multipleOf
}

// scalar is the JSON text of a value that is no object or list.
func (b *builder) scalar(v any) string {
	switch v := v.(type) {
	case string:
		if b.plain {
			return b.quote + v + b.quote
		}
		return encode(v)
	case json.Number:
		return string(v)
	case bool:
		if v {
			return "true"
		}
		return "false"
	}
	return "null"
}

// literal reads one given value.
func (c *compiler) literal(v any, next int32) int32 {
	b := c.b
	switch v := v.(type) {
	case *object:
		s := b.space(b.lit("}", next))
		for i := len(v.keys) - 1; i >= 0; i-- {
			s = b.lit(b.key(v.keys[i]), b.colon(c.literal(v.m[v.keys[i]], s)))
			if i > 0 {
				s = b.comma(s)
			}
		}
		if len(v.keys) > 0 {
			s = b.space(s)
		}
		return b.lit("{", s)
	case []any:
		s := b.space(b.lit("]", next))
		for i := len(v) - 1; i >= 0; i-- {
			s = c.literal(v[i], s)
			if i > 0 {
				s = b.comma(s)
			}
		}
		if len(v) > 0 {
			s = b.space(s)
		}
		return b.lit("[", s)
	}
	return b.lit(b.scalar(v), next)
}
