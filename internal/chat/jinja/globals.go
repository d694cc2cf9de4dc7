package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// maxRange is the sandbox's bound on range().
const maxRange = 100_000

// globals are the names every template sees.
var globals = map[string]any{
	"range":     &function{name: "range", call: rangeFunc},
	"dict":      &function{name: "dict", call: dictFunc},
	"namespace": &function{name: "namespace", call: namespaceFunc},
	"cycler":    &function{name: "cycler", call: cyclerFunc},
	"joiner":    &function{name: "joiner", call: joinerFunc},
	"lipsum": &function{name: "lipsum", call: func(*run, *args) (any, error) {
		return nil, errors.New("function 'lipsum' is not supported")
	}},
	"raise_exception": &function{name: "raise_exception", call: func(r *run, a *args) (any, error) {
		v, err := a.bind("raise_exception", 1, "message")
		if err != nil {
			return nil, err
		}
		s, err := r.str(v[0])
		if err != nil {
			return nil, err
		}
		return nil, &Error{Msg: s, Raised: true}
	}},
	"strftime_now": &function{name: "strftime_now", call: func(r *run, a *args) (any, error) {
		v, err := a.bind("strftime_now", 1, "format")
		if err != nil {
			return nil, err
		}
		f, ok := text(v[0])
		if !ok {
			return nil, fmt.Errorf("strftime_now: format must be str, not %s", typeName(v[0]))
		}
		if r.now.IsZero() {
			r.now = time.Now()
		}
		return strftime(r.now, f)
	}},
}

func rangeFunc(r *run, a *args) (any, error) {
	if len(a.kw) > 0 || len(a.pos) < 1 || len(a.pos) > 3 {
		return nil, fmt.Errorf("range expected 1 to 3 arguments, got %d", len(a.pos)+len(a.kw))
	}
	var n [3]int64
	for i, v := range a.pos {
		if u, ok := v.(undefined); ok {
			return nil, u.err()
		}
		var ok bool
		if n[i], ok = toInt(v); !ok {
			return nil, fmt.Errorf("'%s' object cannot be interpreted as an integer", typeName(v))
		}
	}
	lo, hi, step := int64(0), n[0], int64(1)
	if len(a.pos) > 1 {
		lo, hi = n[0], n[1]
	}
	if len(a.pos) > 2 {
		step = n[2]
	}
	if step == 0 {
		return nil, errors.New("range() arg 3 must not be zero")
	}
	const far = 1 << 60 // keeps the arithmetic below from overflowing
	for _, x := range []int64{lo, hi, step} {
		if x > far || x < -far {
			return nil, limitError("range too big: more than %d items", maxRange)
		}
	}
	count := int64(0)
	if step > 0 && hi > lo {
		count = (hi - lo + step - 1) / step
	} else if step < 0 && hi < lo {
		count = (lo - hi - step - 1) / -step
	}
	if count > maxRange {
		return nil, limitError("range too big: more than %d items", maxRange)
	}
	return rangeValue{lo, count, step}, nil
}

func dictFunc(r *run, a *args) (any, error) {
	d := NewDict()
	if len(a.pos) > 1 {
		return nil, errors.New("dict expected at most 1 argument")
	}
	if len(a.pos) == 1 {
		switch src := a.pos[0].(type) {
		case *Dict:
			if err := r.charge(64 * src.Len()); err != nil {
				return nil, err
			}
			for h, k := range src.keys {
				hk, err := hashKey(k)
				if err != nil {
					return nil, err
				}
				d.set(hk, k, src.values[h])
			}
		default:
			items, err := r.iterate(src)
			if err != nil {
				return nil, err
			}
			for _, e := range items {
				kv, err := r.iterate(e)
				if err != nil {
					return nil, err
				}
				if len(kv) != 2 {
					return nil, errors.New("dictionary update sequence element must have length 2")
				}
				h, err := hashKey(kv[0])
				if err != nil {
					return nil, err
				}
				if err := r.charge(64); err != nil {
					return nil, err
				}
				d.set(h, kv[0], kv[1])
			}
		}
	}
	for _, k := range a.kw {
		d.Set(k.name, k.v)
	}
	return d, nil
}

func namespaceFunc(r *run, a *args) (any, error) {
	d, err := dictFunc(r, a)
	if err != nil {
		return nil, err
	}
	return &namespace{d.(*Dict)}, nil
}

func cyclerFunc(r *run, a *args) (any, error) {
	if len(a.pos) == 0 || len(a.kw) > 0 {
		return nil, errors.New("at least one item has to be provided")
	}
	items, pos := a.pos, 0
	return &function{name: "cycler", attrs: map[string]*function{
		"next": {name: "next", call: func(*run, *args) (any, error) {
			v := items[pos]
			pos = (pos + 1) % len(items)
			return v, nil
		}},
		"reset":   {name: "reset", call: func(*run, *args) (any, error) { pos = 0; return nil, nil }},
		"current": {name: "current", call: func(*run, *args) (any, error) { return items[pos], nil }},
	}, call: func(*run, *args) (any, error) { return nil, errors.New("'Cycler' object is not callable") }}, nil
}

func joinerFunc(r *run, a *args) (any, error) {
	b, err := a.bind("joiner", 0, "sep")
	if err != nil {
		return nil, err
	}
	var sep any = ", "
	if given(b[0]) {
		sep = b[0]
	}
	used := false
	return &function{name: "joiner", call: func(*run, *args) (any, error) {
		if !used {
			used = true
			return "", nil
		}
		return sep, nil
	}}, nil
}

// strftime formats a time with Python's directives in the C locale.
func strftime(t time.Time, f string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(f); i++ {
		if f[i] != '%' {
			b.WriteByte(f[i])
			continue
		}
		i++
		if i >= len(f) {
			b.WriteByte('%')
			break
		}
		pad := true
		if f[i] == '-' && i+1 < len(f) {
			pad = false
			i++
		}
		num := func(n, width int) {
			if pad {
				fmt.Fprintf(&b, "%0*d", width, n)
			} else {
				fmt.Fprint(&b, n)
			}
		}
		hour12 := (t.Hour()+11)%12 + 1
		switch f[i] {
		case 'Y':
			fmt.Fprint(&b, t.Year())
		case 'y':
			num(t.Year()%100, 2)
		case 'm':
			num(int(t.Month()), 2)
		case 'd':
			num(t.Day(), 2)
		case 'e':
			fmt.Fprintf(&b, "%2d", t.Day())
		case 'H':
			num(t.Hour(), 2)
		case 'I':
			num(hour12, 2)
		case 'M':
			num(t.Minute(), 2)
		case 'S':
			num(t.Second(), 2)
		case 'f':
			fmt.Fprintf(&b, "%06d", t.Nanosecond()/1000)
		case 'j':
			num(t.YearDay(), 3)
		case 'p':
			b.WriteString(t.Format("PM"))
		case 'A':
			b.WriteString(t.Weekday().String())
		case 'a':
			b.WriteString(t.Weekday().String()[:3])
		case 'B':
			b.WriteString(t.Month().String())
		case 'b', 'h':
			b.WriteString(t.Month().String()[:3])
		case 'w':
			fmt.Fprint(&b, int(t.Weekday()))
		case 'u':
			fmt.Fprint(&b, (int(t.Weekday())+6)%7+1)
		case 'V':
			_, week := t.ISOWeek()
			num(week, 2)
		case 'G':
			year, _ := t.ISOWeek()
			fmt.Fprint(&b, year)
		case 'F':
			b.WriteString(t.Format("2006-01-02"))
		case 'T', 'X':
			b.WriteString(t.Format("15:04:05"))
		case 'R':
			b.WriteString(t.Format("15:04"))
		case 'D', 'x':
			b.WriteString(t.Format("01/02/06"))
		case 'c':
			b.WriteString(t.Format("Mon Jan _2 15:04:05 2006"))
		case 's':
			fmt.Fprint(&b, t.Unix())
		case 'z', 'Z': // datetime.now() carries no zone, so Python prints nothing
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case '%':
			b.WriteByte('%')
		default:
			return "", fmt.Errorf("strftime_now: directive '%%%c' is not supported", f[i])
		}
	}
	return b.String(), nil
}
