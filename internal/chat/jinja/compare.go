package jinja

import (
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"
)

// equal is Python's ==.
func (r *run) equal(a, b any, depth int) bool {
	r.spend(1)
	r.nested(depth)
	if x, ok := a.(*big.Int); ok {
		if y, ok := b.(*big.Int); ok {
			return x.Cmp(y) == 0
		}
	}
	if i, ok := toInt(a); ok {
		if j, ok := toInt(b); ok {
			return i == j
		}
	}
	if x, ok := toFloat(a); ok {
		y, ok := toFloat(b)
		return ok && x == y
	}
	if s, ok := text(a); ok {
		t, ok := text(b)
		if !ok || len(s) != len(t) {
			return false
		}
		r.touch(s)
		return s == t
	}
	switch a := a.(type) {
	case undefined:
		return isUndefined(b)
	case *List:
		l, ok := b.(*List)
		if !ok || len(l.Items) != len(a.Items) || l.kind != a.kind {
			return false
		}
		if a == l {
			return true
		}
		for i := range a.Items {
			if !r.equal(a.Items[i], l.Items[i], depth+1) {
				return false
			}
		}
		return true
	case *Dict:
		d, ok := b.(*Dict)
		if !ok || len(d.keys) != len(a.keys) {
			return false
		}
		if a == d {
			return true
		}
		for i, key := range a.keys {
			v, ok := d.lookup(key)
			if !ok || !r.equal(a.values[i], v, depth+1) {
				return false
			}
		}
		return true
	}
	return a == b
}

// order compares with <: -1, 0 or 1. It fails for values without an order.
func (r *run) order(op string, a, b any, depth int) int {
	r.spend(1)
	r.nested(depth)
	mustDefined(a, b)
	if i, ok := toInt(a); ok {
		if j, ok := toInt(b); ok {
			return sign(i < j, i > j)
		}
	}
	if x, ok := toFloat(a); ok {
		if y, ok := toFloat(b); ok {
			return sign(x < y, x > y)
		}
	}
	if s, ok := text(a); ok {
		if t, ok := text(b); ok {
			r.touch(s[:min(len(s), len(t))])
			return strings.Compare(s, t)
		}
	}
	if x, ok := a.(*List); ok {
		if y, ok := b.(*List); ok && x.kind == y.kind {
			for i := range min(len(x.Items), len(y.Items)) {
				if !r.equal(x.Items[i], y.Items[i], depth+1) {
					return r.order(op, x.Items[i], y.Items[i], depth+1)
				}
			}
			return sign(len(x.Items) < len(y.Items), len(x.Items) > len(y.Items))
		}
	}
	panic(errorf("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b)))
}

func sign(less, more bool) int {
	switch {
	case less:
		return -1
	case more:
		return 1
	}
	return 0
}

// compare is a comparison operator of the template.
func (r *run) compare(op string, a, b any) bool {
	switch op {
	case "==":
		return r.equal(a, b, 0)
	case "!=":
		return !r.equal(a, b, 0)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}
	for _, v := range []any{a, b} { // NaN is neither less nor more
		if f, ok := v.(float64); ok && math.IsNaN(f) {
			return false
		}
	}
	c := r.order(op, a, b, 0)
	switch op {
	case "<":
		return c < 0
	case ">":
		return c > 0
	case "<=":
		return c <= 0
	}
	return c >= 0
}

// contains is Python's "v in c".
func (r *run) contains(c, v any) bool {
	switch c := c.(type) {
	case string, Markup:
		s, _ := text(c)
		t, ok := text(v)
		if !ok {
			panic(errorf("'in <string>' requires string as left operand, not %s", typeName(v)))
		}
		// Searching costs time in proportion to the text, not one step.
		r.touch(s, t)
		return strings.Contains(s, t)
	case *Dict:
		r.touch(v)
		_, ok := c.lookup(v)
		return ok
	}
	if !iterable(c) {
		panic(errorf("argument of type '%s' is not iterable", typeName(c)))
	}
	return slices.ContainsFunc(r.iterate(c), func(e any) bool { return r.equal(e, v, 0) })
}

func iterable(v any) bool {
	switch v.(type) {
	case undefined, string, Markup, *List, *Dict, *generator:
		return true
	}
	return false
}

// iterate returns what a loop over v visits. A generator is used up by it.
func (r *run) iterate(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case string:
		return r.chars(v)
	case Markup:
		return r.chars(string(v))
	case *List:
		return v.Items
	case *Dict:
		return v.keys
	case *generator:
		var out []any
		for {
			e, ok := v.next()
			if !ok {
				return out
			}
			r.charge(16)
			out = append(out, e)
		}
	}
	panic(errorf("'%s' object is not iterable", typeName(v)))
}

func (r *run) chars(s string) []any {
	r.charge(len(s) * 17)
	out := make([]any, 0, len(s))
	for i, n := 0, 0; i < len(s); i += n {
		_, n = utf8.DecodeRuneInString(s[i:])
		out = append(out, s[i:i+n])
	}
	return out
}

func lengthOf(v any) int64 {
	if s, ok := text(v); ok {
		return int64(utf8.RuneCountInString(s))
	}
	switch v := v.(type) {
	case *List:
		return int64(len(v.Items))
	case *Dict:
		return int64(len(v.keys))
	case *loopVar:
		return int64(len(v.items))
	case undefined:
		return 0
	}
	panic(errorf("object of type '%s' has no len()", typeName(v)))
}
