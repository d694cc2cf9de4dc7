package jinja

import (
	"errors"
	"math/big"
)

type testFunc func(r *run, v any, a *args) (bool, error)

var tests map[string]testFunc

// kindTest is a test without arguments.
func kindTest(name string, f func(v any) bool) testFunc {
	return func(r *run, v any, a *args) (bool, error) {
		if _, err := a.bind("test '"+name+"'", 0); err != nil {
			return false, err
		}
		return f(v), nil
	}
}

// compareTest is a test with one argument, compared with op.
func compareTest(op string) testFunc {
	return func(r *run, v any, a *args) (bool, error) {
		b, err := a.bind("test '"+op+"'", 1, "other")
		if err != nil {
			return false, err
		}
		return r.compare(op, v, b[0])
	}
}

func init() {
	tests = map[string]testFunc{
		"defined":   kindTest("defined", func(v any) bool { _, ok := v.(undefined); return !ok }),
		"undefined": kindTest("undefined", func(v any) bool { _, ok := v.(undefined); return ok }),
		"none":      kindTest("none", func(v any) bool { return v == nil }),
		"string":    kindTest("string", func(v any) bool { _, ok := text(v); return ok }),
		"mapping":   kindTest("mapping", func(v any) bool { _, ok := v.(*Dict); return ok }),
		"boolean":   kindTest("boolean", func(v any) bool { _, ok := v.(bool); return ok }),
		"true":      kindTest("true", func(v any) bool { return v == true }),
		"false":     kindTest("false", func(v any) bool { return v == false }),
		"float":     kindTest("float", func(v any) bool { _, ok := v.(float64); return ok }),
		"escaped":   kindTest("escaped", func(v any) bool { _, ok := v.(Markup); return ok }),
		"iterable":  kindTest("iterable", iterable),
		"integer": kindTest("integer", func(v any) bool {
			switch v.(type) {
			case int64, *big.Int:
				return true
			}
			return false
		}),
		"number": kindTest("number", func(v any) bool { _, ok := toFloat(v); return ok }),
		"sequence": kindTest("sequence", func(v any) bool {
			switch v.(type) {
			case string, Markup, *List, *Dict, rangeValue, undefined:
				return true
			}
			return false
		}),
		"callable": kindTest("callable", func(v any) bool {
			switch v.(type) {
			case *function, *macro, *loopVar, undefined:
				return true
			}
			return false
		}),
		"lower": func(r *run, v any, a *args) (bool, error) { return r.caseTest(v, a, "islower") },
		"upper": func(r *run, v any, a *args) (bool, error) { return r.caseTest(v, a, "isupper") },
		"odd":   func(r *run, v any, a *args) (bool, error) { return r.remainder(v, a, 1) },
		"even":  func(r *run, v any, a *args) (bool, error) { return r.remainder(v, a, 0) },
		"divisibleby": func(r *run, v any, a *args) (bool, error) {
			b, err := a.bind("test 'divisibleby'", 1, "num")
			if err != nil {
				return false, err
			}
			return r.divides(v, b[0], 0)
		},
		"sameas": func(r *run, v any, a *args) (bool, error) {
			b, err := a.bind("test 'sameas'", 1, "other")
			if err != nil {
				return false, err
			}
			return same(v, b[0]), nil
		},
		"filter": func(r *run, v any, a *args) (bool, error) { s, _ := text(v); return filters[s] != nil, nil },
		"test":   func(r *run, v any, a *args) (bool, error) { s, _ := text(v); return tests[s] != nil, nil },
		"in":     compareTest("in"),
	}
	for op, names := range map[string][]string{
		"==": {"==", "eq", "equalto"}, "!=": {"!=", "ne"},
		">": {">", "gt", "greaterthan"}, ">=": {">=", "ge"},
		"<": {"<", "lt", "lessthan"}, "<=": {"<=", "le"},
	} {
		for _, n := range names {
			tests[n] = compareTest(op)
		}
	}
}

func (r *run) caseTest(v any, a *args, method string) (bool, error) {
	if _, err := a.bind("test", 0); err != nil {
		return false, err
	}
	s, err := r.str(v)
	if err != nil {
		return false, err
	}
	x, err := strMethods[method](r, s, &args{})
	return x == true, err
}

// remainder is the odd and even test.
func (r *run) remainder(v any, a *args, want int64) (bool, error) {
	if _, err := a.bind("test", 0); err != nil {
		return false, err
	}
	return r.divides(v, int64(2), want)
}

func (r *run) divides(v, by any, want int64) (bool, error) {
	if _, ok := toFloat(v); !ok {
		if u, ok := v.(undefined); ok {
			return false, u.err()
		}
		return false, errors.New("not a number: " + typeName(v))
	}
	m, err := r.binary("%", v, by)
	if err != nil {
		return false, err
	}
	return r.equal(m, want, 0)
}
