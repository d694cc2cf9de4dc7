package jinja

import (
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// percentVerb is a "%" of a format string and what follows it.
var percentVerb = regexp.MustCompile(`%(\([^)]*\))?[^a-zA-Z%]*[a-zA-Z%]?`)

// percent is Python's "format % values" with %s, %r, %d, %f and %.2f.
func (r *run) percent(format, values any) any {
	pending := []any{values}
	list, isSequence := values.(*List)
	if isSequence && list.kind == isTuple {
		pending = list.Items
	}
	out := r.substitute(format, percentVerb, func(verb string) any {
		if verb == "%%" {
			return Markup("%")
		}
		if len(pending) == 0 {
			panic(errorf("not enough arguments for format string"))
		}
		v := pending[0]
		pending = pending[1:]
		f, isFloat := v.(float64)
		switch {
		case verb == "%s":
			return v
		case verb == "%r":
			return r.repr(v)
		case verb == "%d" && isFloat && !math.IsNaN(f) && !math.IsInf(f, 0):
			v = truncate(f)
		}
		return formatted(verb[1:], verb, v)
	})
	// Python takes any other value with subscripts for a mapping and does not count it.
	_, isDict := values.(*Dict)
	if len(pending) > 0 && !isDict && !isUndefined(values) && !(isSequence && list.kind != isTuple) {
		panic(errorf("not all arguments converted during string formatting"))
	}
	return out
}

// formatField is a "{...}" of a format string, or a doubled or single brace.
var formatField = regexp.MustCompile(`\{\{|\}\}|\{[^{}]*\}|[{}]`)

// formatMethod is str.format with {}, {0}, {name} and {:.2f}.
func formatMethod(r *run, self any, a *args) any {
	next := 0
	return r.substitute(self, formatField, func(field string) any {
		switch field {
		case "{{", "}}":
			return Markup(field[:1])
		case "{", "}":
			panic(errorf("single brace encountered in format string"))
		}
		name, spec, _ := strings.Cut(field[1:len(field)-1], ":")
		i, err := strconv.Atoi(name)
		if name == "" {
			i, err = next, nil
			next++
		}
		var v any
		switch {
		case err == nil && i >= 0 && i < len(a.pos):
			v = a.pos[i]
		case err == nil:
			panic(errorf("replacement index %d out of range for positional args tuple", i))
		case strings.ContainsAny(name, ".[!"):
			panic(errorf("format field %q is not supported", clip(field)))
		default:
			var ok bool
			if v, ok = (&args{kw: a.kw}).take(name); !ok {
				panic(errorf("format has no argument %s", pyQuote(clip(name))))
			}
		}
		if spec == "" {
			return v
		}
		return formatted(spec, field, v)
	})
}

// formatSpec is the part of Python's format language that chat templates use.
var formatSpec = regexp.MustCompile(`^(?:d|(?:\.([0-9]{1,2}))?f)$`)

// formatted is a number as the specification says; field is for the error.
func formatted(spec, field string, v any) string {
	match := formatSpec.FindStringSubmatch(spec)
	if match == nil {
		panic(errorf("format %q is not supported", clip(field)))
	}
	f, ok := toFloat(v)
	if !ok {
		panic(errorf("format %s: value must be a number, not %s", field, typeName(v)))
	}
	if spec == "d" {
		if _, isBig := v.(*big.Int); !isBig {
			v = needInt("format "+field+": value", v)
		}
		return scalarRepr(v)
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return pyFloat(f)
	}
	digits, err := strconv.Atoi(match[1])
	if err != nil {
		digits = 6
	}
	return strconv.FormatFloat(f, 'f', digits, 64)
}

// substitute replaces what pattern finds in a format string by the text of
// what the function returns. In Markup it is escaped unless it is Markup.
func (r *run) substitute(format any, pattern *regexp.Regexp, value func(found string) any) any {
	s, _ := text(format)
	_, markup := format.(Markup)
	var b strings.Builder
	for s != "" {
		at := pattern.FindStringIndex(s)
		if at == nil {
			break
		}
		r.write(&b, s[:at[0]])
		v := value(s[at[0]:at[1]])
		if markup {
			v = r.escapeHTML(v)
		}
		r.write(&b, r.str(v))
		s = s[at[1]:]
	}
	r.write(&b, s)
	return like(format, b.String())
}
