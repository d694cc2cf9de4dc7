package jinja

import (
	"fmt"
	"math/big"
	"strings"
	"unicode"
)

type testFunc func(r *run, v any, a *args) bool

var tests map[string]testFunc

func unknownTest(name string) string {
	if name == "filter" || name == "test" {
		return fmt.Sprintf("test '%s' is not supported", name)
	}
	return fmt.Sprintf("no test named '%s'", name)
}

// kindTest is a test without arguments.
func kindTest(name string, f func(r *run, v any) bool) testFunc {
	return func(r *run, v any, a *args) bool {
		a.bind("test '"+name+"'", 0)
		return f(r, v)
	}
}

// otherTest is a test with one argument.
func otherTest(name string, f func(r *run, v, other any) bool) testFunc {
	return func(r *run, v any, a *args) bool {
		return f(r, v, a.bind("test '"+name+"'", 1, "other")[0])
	}
}

func is[T any](_ *run, v any) bool { _, ok := v.(T); return ok }

func init() { // not a literal: filters such as select look tests up
	tests = map[string]testFunc{}
	for name, f := range map[string]func(r *run, v any) bool{
		"boolean":   is[bool],
		"defined":   func(r *run, v any) bool { return !isUndefined(v) },
		"escaped":   is[Markup],
		"even":      func(r *run, v any) bool { return r.divides(v, int64(2), 0) },
		"false":     func(r *run, v any) bool { return v == false },
		"float":     is[float64],
		"integer":   func(r *run, v any) bool { return is[int64](r, v) || is[*big.Int](r, v) },
		"iterable":  func(r *run, v any) bool { return iterable(v) },
		"lower":     func(r *run, v any) bool { return cased(r.str(v), unicode.IsLower, unicode.IsUpper) },
		"mapping":   is[*Dict],
		"none":      func(r *run, v any) bool { return v == nil },
		"number":    func(r *run, v any) bool { return isNumber(v) },
		"odd":       func(r *run, v any) bool { return r.divides(v, int64(2), 1) },
		"string":    func(r *run, v any) bool { _, ok := text(v); return ok },
		"true":      func(r *run, v any) bool { return v == true },
		"undefined": is[undefined],
		"upper":     func(r *run, v any) bool { return cased(r.str(v), unicode.IsUpper, unicode.IsLower) },
		"callable": func(r *run, v any) bool {
			return is[*function](r, v) || is[*macro](r, v) || is[*loopVar](r, v) || isUndefined(v)
		},
		"sequence": func(r *run, v any) bool {
			l, ok := v.(*List)
			return ok && l.indexed() || !ok && iterable(v) && !is[*generator](r, v)
		},
	} {
		tests[name] = kindTest(name, f)
	}
	for op, names := range map[string]string{"==": "== eq equalto", "!=": "!= ne", ">": "> gt greaterthan", ">=": ">= ge",
		"<": "< lt lessthan", "<=": "<= le", "in": "in"} {
		for name := range strings.FieldsSeq(names) {
			tests[name] = otherTest(name, func(r *run, v, other any) bool { return r.compare(op, v, other) })
		}
	}
	tests["divisibleby"] = otherTest("divisibleby", func(r *run, v, by any) bool { return r.divides(v, by, 0) })
	tests["sameas"] = otherTest("sameas", func(r *run, v, other any) bool { return v == other })
}

// divides reports whether v modulo by is want.
func (r *run) divides(v, by any, want int64) bool {
	mustDefined(v)
	if !isNumber(v) {
		panic(errorf("not a number: %s", typeName(v)))
	}
	return r.equal(arithmetic("%", v, by), want, 0)
}
