package jinja

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// percent is Python's "format % values".
func (r *run) percent(format, values any) (any, error) {
	f, _ := text(format)
	_, markup := format.(Markup)
	args := []any{values}
	list, isList := values.(*List)
	if isList && list.tuple {
		args = list.Items
	}
	dict, isDict := values.(*Dict)
	next := 0
	var b strings.Builder
	for {
		i := strings.IndexByte(f, '%')
		if i < 0 {
			break
		}
		if err := r.write(&b, f[:i]); err != nil {
			return nil, err
		}
		f = f[i+1:]
		var spec formatSpec
		var v any
		haveKey := false
		if strings.HasPrefix(f, "(") {
			e := strings.IndexByte(f, ')')
			if e < 0 {
				return nil, errors.New("incomplete format key")
			}
			if dict == nil {
				return nil, errors.New("format requires a mapping")
			}
			var ok bool
			if v, ok = dict.Get(f[1:e]); !ok {
				return nil, fmt.Errorf("format has no value for key %s", pyQuote(clip(f[1:e])))
			}
			haveKey = true
			f = f[e+1:]
		}
		for f != "" && strings.IndexByte("-+ #0", f[0]) >= 0 {
			switch f[0] {
			case '-':
				spec.align = "<"
			case '0':
				spec.zero = true
			case '#':
				spec.alt = true
			default:
				spec.sign = f[:1]
			}
			f = f[1:]
		}
		take := func() (any, error) {
			if next >= len(args) {
				return nil, errors.New("not enough arguments for format string")
			}
			next++
			return args[next-1], nil
		}
		number := func() (int64, bool, error) {
			if strings.HasPrefix(f, "*") {
				f = f[1:]
				x, err := take()
				if err != nil {
					return 0, false, err
				}
				n, ok := toInt(x)
				if !ok {
					return 0, false, errors.New("* wants int")
				}
				return n, true, nil
			}
			n, rest, ok := leadingInt(f)
			f = rest
			return n, ok, nil
		}
		var err error
		if spec.width, _, err = number(); err != nil {
			return nil, err
		}
		if spec.width < 0 {
			spec.align, spec.width = "<", -spec.width
		}
		if strings.HasPrefix(f, ".") {
			f = f[1:]
			spec.hasPrec = true
			if spec.prec, _, err = number(); err != nil {
				return nil, err
			}
		}
		f = strings.TrimLeft(f, "hlL")
		if f == "" {
			return nil, errors.New("incomplete format")
		}
		conv := f[0]
		f = f[1:]
		if conv == '%' {
			b.WriteByte('%')
			continue
		}
		if !haveKey {
			if v, err = take(); err != nil {
				return nil, err
			}
		}
		s, err := r.percentValue(conv, v, spec, markup)
		if err != nil {
			return nil, err
		}
		if err := r.write(&b, s); err != nil {
			return nil, err
		}
	}
	// Python counts left-over arguments only where it did not see a mapping,
	// and anything with subscripts but tuples and strings passes for one.
	_, und := values.(undefined)
	if next < len(args) && !isDict && !und && !(isList && !list.tuple) {
		return nil, errors.New("not all arguments converted during string formatting")
	}
	if err := r.write(&b, f); err != nil {
		return nil, err
	}
	return like(format, b.String()), nil
}

func (r *run) percentValue(conv byte, v any, spec formatSpec, markup bool) (string, error) {
	switch conv {
	case 's', 'r', 'a':
		var s string
		var err error
		if conv == 's' {
			s, err = r.str(v)
		} else {
			s, err = r.reprString(v)
		}
		if err != nil {
			return "", err
		}
		if _, safe := v.(Markup); markup && !safe {
			m, err := r.escapeHTML(s)
			if err != nil {
				return "", err
			}
			s = string(m)
		}
		spec.zero = false
		if spec.align == "" {
			spec.align = ">"
		}
		return r.formatText(s, spec)
	case 'd', 'i', 'u', 'x', 'X', 'o':
		if f, ok := v.(float64); ok && (conv == 'd' || conv == 'i' || conv == 'u') {
			if math.IsNaN(f) || math.IsInf(f, 0) {
				return "", errors.New("cannot convert float to integer")
			}
			v = truncFloat(f)
		}
		if _, ok := toBig(v); !ok {
			return "", fmt.Errorf("%%%c format: a number is required, not %s", conv, typeName(v))
		}
		if conv == 'i' || conv == 'u' {
			conv = 'd'
		}
		spec.hasPrec = false
		spec.typ = conv
		return r.formatNumber(v, spec)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		f, ok := toFloat(v)
		if !ok {
			return "", fmt.Errorf("must be real number, not %s", typeName(v))
		}
		spec.typ = conv
		return r.formatNumber(f, spec)
	case 'c':
		if i, ok := toInt(v); ok && i >= 0 && i <= utf8.MaxRune {
			return r.formatText(string(rune(i)), spec)
		}
		if s, ok := text(v); ok && utf8.RuneCountInString(s) == 1 {
			return r.formatText(s, spec)
		}
		return "", errors.New("%c requires int or char")
	}
	return "", fmt.Errorf("unsupported format character %q", conv)
}

func (r *run) reprString(v any) (string, error) {
	var b strings.Builder
	err := r.repr(&b, v, 0)
	return b.String(), err
}

func leadingInt(s string) (n int64, rest string, ok bool) {
	for s != "" && isDigit(s[0]) {
		n = min(n*10+int64(s[0]-'0'), 1<<40)
		s, ok = s[1:], true
	}
	return n, s, ok
}

// formatSpec is a parsed "[[fill]align][sign][#][0][width][,][.prec][type]".
type formatSpec struct {
	fill, align, sign string
	alt, zero         bool
	width             int64
	group             string
	prec              int64
	hasPrec           bool
	typ               byte
}

func parseSpec(s string) (formatSpec, error) {
	var f formatSpec
	if _, n := utf8.DecodeRuneInString(s); len(s) > n && strings.IndexByte("<>=^", s[n]) >= 0 {
		f.fill, f.align, s = s[:n], s[n:n+1], s[n+1:]
	} else if s != "" && strings.IndexByte("<>=^", s[0]) >= 0 {
		f.align, s = s[:1], s[1:]
	}
	if s != "" && strings.IndexByte("+- ", s[0]) >= 0 {
		f.sign, s = s[:1], s[1:]
	}
	if strings.HasPrefix(s, "#") {
		f.alt, s = true, s[1:]
	}
	if strings.HasPrefix(s, "0") {
		f.zero, s = true, s[1:]
	}
	f.width, s, _ = leadingInt(s)
	if s != "" && (s[0] == ',' || s[0] == '_') {
		f.group, s = s[:1], s[1:]
	}
	if strings.HasPrefix(s, ".") {
		f.prec, s, f.hasPrec = leadingInt(s[1:])
		if !f.hasPrec {
			return f, errors.New("format specifier missing precision")
		}
	}
	if s != "" {
		f.typ, s = s[0], s[1:]
	}
	if s != "" {
		return f, errors.New("invalid format specifier")
	}
	return f, nil
}

func (r *run) formatText(s string, spec formatSpec) (string, error) {
	if spec.hasPrec {
		n := utf8.RuneCountInString(s)
		s = substring(s, n, 0, min(spec.prec, int64(n)))
	}
	fill := spec.fill
	if fill == "" {
		fill = " "
		if spec.zero {
			fill = "0"
		}
	}
	how := map[string]string{">": "rjust", "^": "center-", "=": "rjust"}[spec.align]
	switch how {
	case "":
		how = "ljust"
	case "center-":
		// str.format puts the odd fill on the right, str.center may not.
		n := int64(utf8.RuneCountInString(s))
		if spec.width <= n {
			return s, nil
		}
		left, err := r.pad(s, n+(spec.width-n)/2, fill, "rjust")
		if err != nil {
			return "", err
		}
		return r.pad(left, spec.width, fill, "ljust")
	}
	return r.pad(s, spec.width, fill, how)
}

func (r *run) formatNumber(v any, spec formatSpec) (string, error) {
	var digits string
	neg := false
	prefix := ""
	if f, isFloat := v.(float64); isFloat || strings.IndexByte("eEfFgG%", spec.typ) >= 0 && spec.typ != 0 {
		if !isFloat {
			f, _ = toFloat(v)
		}
		var err error
		if digits, err = floatDigits(math.Abs(f), spec); err != nil {
			return "", err
		}
		neg = math.Signbit(f) && !math.IsNaN(f)
	} else {
		b, _ := toBig(v)
		neg = b.Sign() < 0
		base := map[byte]int{0: 10, 'd': 10, 'n': 10, 'x': 16, 'X': 16, 'o': 8, 'b': 2}[spec.typ]
		if base == 0 {
			return "", fmt.Errorf("unknown format code %q for an integer", spec.typ)
		}
		digits = strings.TrimPrefix(b.Text(base), "-")
		if spec.typ == 'X' {
			digits = strings.ToUpper(digits)
		}
		if spec.alt && base != 10 {
			prefix = "0" + string(spec.typ)
		}
	}
	if spec.group != "" {
		digits = groupDigits(digits, spec.group)
	}
	s := ""
	switch {
	case neg:
		s = "-"
	case spec.sign == "+" || spec.sign == " ":
		s = spec.sign
	}
	s += prefix
	if spec.align == "" && spec.zero || spec.align == "=" {
		fill := spec.fill
		if fill == "" {
			fill = " "
			if spec.zero {
				fill = "0"
			}
		}
		digits, err := r.pad(digits, spec.width-int64(len(s)), fill, "rjust")
		return s + digits, err
	}
	if spec.align == "" {
		spec.align = ">"
	}
	spec.hasPrec = false
	return r.formatText(s+digits, spec)
}

func floatDigits(f float64, spec formatSpec) (string, error) {
	prec := 6
	if spec.hasPrec {
		if spec.prec > 1000 {
			return "", limitError("precision is too large")
		}
		prec = int(spec.prec)
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strings.TrimPrefix(pyFloat(f), "-"), nil
	}
	switch spec.typ {
	case 'f', 'F':
		return strconv.FormatFloat(f, 'f', prec, 64), nil
	case 'e', 'E':
		return strconv.FormatFloat(f, spec.typ, prec, 64), nil
	case '%':
		return strconv.FormatFloat(f*100, 'f', prec, 64) + "%", nil
	case 0:
		if !spec.hasPrec {
			return pyFloat(f), nil
		}
		fallthrough
	case 'g', 'G', 'n':
		p := max(prec, 1)
		exp := 0
		if f != 0 {
			e := strconv.FormatFloat(f, 'e', p-1, 64)
			exp, _ = strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
		}
		if exp < -4 || exp >= p {
			s := strconv.FormatFloat(f, 'e', p-1, 64)
			i := strings.IndexByte(s, 'e')
			s = trimZeros(s[:i]) + s[i:]
			if spec.typ == 'G' {
				s = strings.ToUpper(s)
			}
			return s, nil
		}
		s := trimZeros(strconv.FormatFloat(f, 'f', p-1-exp, 64))
		if spec.typ == 0 && !strings.Contains(s, ".") {
			s += ".0"
		}
		return s, nil
	}
	return "", fmt.Errorf("unknown format code %q for a float", spec.typ)
}

func trimZeros(s string) string {
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

func groupDigits(s, sep string) string {
	whole, frac, ok := strings.Cut(s, ".")
	if ok {
		frac = "." + frac
	}
	var b strings.Builder
	for i, c := range []byte(whole) {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteString(sep)
		}
		b.WriteByte(c)
	}
	return b.String() + frac
}

// formatMethod is str.format.
func formatMethod(r *run, self any, a *args) (any, error) {
	f, _ := text(self)
	_, markup := self.(Markup)
	auto := int64(0)
	var b strings.Builder
	for f != "" {
		i := strings.IndexAny(f, "{}")
		if i < 0 {
			i = len(f)
		}
		if err := r.write(&b, f[:i]); err != nil {
			return nil, err
		}
		if f = f[i:]; f == "" {
			break
		}
		if len(f) > 1 && f[1] == f[0] {
			b.WriteByte(f[0])
			f = f[2:]
			continue
		}
		end := strings.IndexByte(f, '}')
		if f[0] == '}' || end < 0 {
			return nil, errors.New("single brace encountered in format string")
		}
		field := f[1:end]
		if strings.Contains(field, "{") {
			return nil, errors.New("nested format fields are not supported")
		}
		f = f[end+1:]
		field, spec, _ := strings.Cut(field, ":")
		field, conv, hasConv := strings.Cut(field, "!")
		v, err := r.formatField(field, a, &auto)
		if err != nil {
			return nil, err
		}
		s, err := r.formatValue(v, conv, hasConv, spec)
		if err != nil {
			return nil, err
		}
		if _, safe := v.(Markup); markup && !safe {
			m, err := r.escapeHTML(s)
			if err != nil {
				return nil, err
			}
			s = string(m)
		}
		if err := r.write(&b, s); err != nil {
			return nil, err
		}
	}
	return like(self, b.String()), nil
}

// formatField resolves "0", "name", "name.attr" and "name[key]".
func (r *run) formatField(field string, a *args, auto *int64) (any, error) {
	end := strings.IndexAny(field, ".[")
	if end < 0 {
		end = len(field)
	}
	first, rest := field[:end], field[end:]
	var v any
	if first == "" || isDigit(first[0]) {
		n := *auto
		if first == "" {
			*auto++
		} else {
			n, _, _ = leadingInt(first)
		}
		if n >= int64(len(a.pos)) {
			return nil, fmt.Errorf("replacement index %d out of range for positional args tuple", n)
		}
		v = a.pos[n]
	} else {
		found := false
		for _, k := range a.kw {
			if k.name == first {
				v, found = k.v, true
			}
		}
		if !found {
			return nil, fmt.Errorf("format has no argument %s", pyQuote(clip(first)))
		}
	}
	for rest != "" {
		var err error
		if rest[0] == '[' {
			e := strings.IndexByte(rest, ']')
			if e < 0 {
				return nil, errors.New("missing ']' in format string")
			}
			var key any = rest[1:e]
			if n, left, ok := leadingInt(rest[1:e]); ok && left == "" {
				key = n
			}
			v, err = r.item(v, key)
			rest = rest[e+1:]
		} else {
			e := strings.IndexAny(rest[1:], ".[")
			if e < 0 {
				e = len(rest) - 1
			}
			v, err = r.attr(v, rest[1:1+e])
			rest = rest[1+e:]
		}
		if err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (r *run) formatValue(v any, conv string, hasConv bool, spec string) (string, error) {
	if hasConv {
		var s string
		var err error
		switch conv {
		case "r", "a":
			s, err = r.reprString(v)
		case "s":
			s, err = r.str(v)
		default:
			return "", fmt.Errorf("unknown conversion specifier %q", clip(conv))
		}
		if err != nil {
			return "", err
		}
		v = s
	}
	if spec == "" {
		return r.str(v)
	}
	sp, err := parseSpec(spec)
	if err != nil {
		return "", err
	}
	if _, isBool := v.(bool); !isBool {
		if _, ok := toFloat(v); ok {
			return r.formatNumber(v, sp)
		}
	}
	s, ok := text(v)
	if !ok {
		return "", fmt.Errorf("unsupported format string passed to %s.__format__", typeName(v))
	}
	if sp.typ != 0 && sp.typ != 's' {
		return "", fmt.Errorf("unknown format code %q for object of type 'str'", sp.typ)
	}
	return r.formatText(s, sp)
}
