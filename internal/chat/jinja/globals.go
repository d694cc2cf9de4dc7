package jinja

import (
	"cmp"
	"strings"
	"time"
)

// maxRange is the sandbox's bound on range().
const maxRange = 100_000

// globals are the names every template sees.
var globals = map[string]any{}

func init() {
	for name, call := range map[string]func(r *run, a *args) any{
		"range":     rangeFunc,
		"dict":      func(r *run, a *args) any { return r.newDict(a) },
		"namespace": func(r *run, a *args) any { return &namespace{r.newDict(a)} },
		"raise_exception": func(r *run, a *args) any {
			panic(&Error{Msg: r.str(a.bind("raise_exception", 1, "message")[0]), Raised: true})
		},
		"strftime_now": func(r *run, a *args) any {
			format := needText("strftime_now: format", a.bind("strftime_now", 1, "format")[0])
			if r.now.IsZero() {
				r.now = time.Now()
			}
			return strftime(r.now, format)
		},
	} {
		globals[name] = &function{name: name, call: call}
	}
	for _, name := range []string{"cycler", "joiner", "lipsum"} {
		globals[name] = &function{name: name, call: func(*run, *args) any {
			panic(errorf("function '%s' is not supported", name))
		}}
	}
}

func rangeFunc(r *run, a *args) any {
	if len(a.kw) > 0 || len(a.pos) < 1 || len(a.pos) > 3 {
		panic(errorf("range expected 1 to 3 arguments, got %d", len(a.pos)+len(a.kw)))
	}
	bounds := []int64{0, 0, 1} // start, stop, step
	for i, v := range a.pos {
		if len(a.pos) == 1 {
			i = 1
		}
		bounds[i] = needInt("range: argument", v)
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if step == 0 {
		panic(errorf("range() arg 3 must not be zero"))
	}
	out := &List{kind: isRange}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(out.Items) == maxRange {
			panic(limitError("range too big: more than %d items", maxRange))
		}
		r.charge(16)
		out.Items = append(out.Items, i)
		if next := i + step; (next > i) != (step > 0) {
			break // beyond 64 bits
		}
	}
	return out
}

// newDict is Python's dict(mapping or pairs, key=value, ...).
func (r *run) newDict(a *args) *Dict {
	d := NewDict()
	if len(a.pos) > 1 {
		panic(errorf("dict expected at most 1 argument"))
	}
	for _, from := range a.pos {
		if src, ok := from.(*Dict); ok {
			r.charge(64 * src.Len())
			d.Merge(src)
			continue
		}
		for _, e := range r.iterate(from) {
			pair := r.iterate(e)
			if len(pair) != 2 {
				panic(errorf("dictionary update sequence element must have length 2"))
			}
			r.charge(64)
			d.set(hashKey(pair[0]), pair[0], pair[1])
		}
	}
	for _, k := range a.kw {
		d.Set(k.name, k.v)
	}
	return d
}

// timeLayouts are Python's directives as layouts of Go, in the C locale.
var timeLayouts = map[byte]string{'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'H': "15", 'I': "03",
	'M': "04", 'S': "05", 'j': "002", 'p': "PM", 'A': "Monday", 'a': "Mon", 'B': "January", 'b': "Jan", 'h': "Jan",
	'F': "2006-01-02", 'T': "15:04:05", 'X': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'x': "01/02/06",
	'c': "Mon Jan _2 15:04:05 2006"}

// strftime formats a time as Python's datetime.now().strftime does.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		pad := true
		if format[i] == '-' && i+1 < len(format) {
			pad = false
			i++
		}
		layout, ok := timeLayouts[format[i]]
		switch {
		case ok && pad:
			b.WriteString(t.Format(layout))
		case ok:
			b.WriteString(cmp.Or(strings.TrimLeft(t.Format(layout), "0 "), "0"))
		case format[i] == '%':
			b.WriteByte('%')
		case format[i] == 'z' || format[i] == 'Z': // datetime.now() carries no zone, so Python prints nothing
		default:
			panic(errorf("strftime_now: directive '%%%c' is not supported", format[i]))
		}
	}
	return b.String()
}
