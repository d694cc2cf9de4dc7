package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

type methodFunc func(r *run, self any, a *args) (any, error)

// Methods that would change a value; the sandbox hides them.
var mutating = map[string][]string{
	"dict": {"clear", "pop", "popitem", "setdefault", "update"},
	"list": {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"},
}

// Methods Python has and this package has not: a clear error beats "undefined".
var unsupportedMethods = map[string][]string{
	"str":  {"encode", "translate", "maketrans", "format_map", "expandtabs", "isidentifier", "isprintable"},
	"dict": {"fromkeys"},
}

var strMethods, dictMethods, listMethods map[string]methodFunc

// method returns the bound method name of o, or nil when it has none.
func method(o any, name string) (any, error) {
	var table map[string]methodFunc
	kind := typeName(o)
	switch o.(type) {
	case string, Markup:
		table, kind = strMethods, "str"
	case *Dict:
		table = dictMethods
	case *List:
		table = listMethods
	case float64:
		if name == "is_integer" {
			return &function{name: name, call: func(*run, *args) (any, error) {
				f := o.(float64)
				return f == float64(int64(f)), nil
			}}, nil
		}
	}
	if f := table[name]; f != nil {
		return &function{name: name, call: func(r *run, a *args) (any, error) {
			if err := r.touch(o); err != nil {
				return nil, err
			}
			return f(r, o, a)
		}}, nil
	}
	if slices.Contains(mutating[kind], name) {
		return unsafeAttr(o, name), nil
	}
	if slices.Contains(unsupportedMethods[kind], name) {
		return nil, fmt.Errorf("method '%s' of %s is not supported", name, kind)
	}
	return nil, nil
}

// strMethod adapts a method without arguments.
func strMethod(f func(string) any) methodFunc {
	return func(r *run, self any, a *args) (any, error) {
		if len(a.pos)+len(a.kw) > 0 {
			return nil, errors.New("method takes no arguments")
		}
		s, _ := text(self)
		if err := r.charge(len(s)); err != nil {
			return nil, err
		}
		v := f(s)
		if s, ok := v.(string); ok {
			return like(self, s), nil
		}
		return v, nil
	}
}

func init() {
	strMethods = map[string]methodFunc{
		"strip":      stripMethod("strip", true, true),
		"lstrip":     stripMethod("lstrip", true, false),
		"rstrip":     stripMethod("rstrip", false, true),
		"lower":      strMethod(func(s string) any { return strings.ToLower(s) }),
		"casefold":   strMethod(func(s string) any { return strings.ToLower(s) }),
		"upper":      strMethod(func(s string) any { return strings.ToUpper(s) }),
		"title":      strMethod(func(s string) any { return pyTitle(s) }),
		"capitalize": strMethod(func(s string) any { return capitalize(s) }),
		"swapcase":   strMethod(func(s string) any { return strings.Map(swapCase, s) }),
		"isspace":    strMethod(allRunes(isSpace)),
		"isalpha":    strMethod(allRunes(unicode.IsLetter)),
		"isdigit":    strMethod(allRunes(unicode.IsDigit)),
		"isdecimal":  strMethod(allRunes(unicode.IsDigit)),
		"isnumeric":  strMethod(allRunes(unicode.IsNumber)),
		"isalnum":    strMethod(allRunes(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })),
		"isascii":    strMethod(func(s string) any { return !strings.ContainsFunc(s, func(r rune) bool { return r > 127 }) }),
		"islower":    strMethod(func(s string) any { return cased(s, unicode.IsLower, unicode.IsUpper) }),
		"isupper":    strMethod(func(s string) any { return cased(s, unicode.IsUpper, unicode.IsLower) }),
		"istitle": strMethod(func(s string) any {
			return s != "" && pyTitle(s) == s && strings.ContainsFunc(s, unicode.IsUpper)
		}),
		"startswith": affixMethod("startswith", strings.HasPrefix),
		"endswith":   affixMethod("endswith", strings.HasSuffix),
		"split":      splitMethod("split", false),
		"rsplit":     splitMethod("rsplit", true),
		"splitlines": splitLinesMethod,
		"partition":  partitionMethod("partition", strings.Index),
		"rpartition": partitionMethod("rpartition", strings.LastIndex),
		"replace":    replaceMethod,
		"removeprefix": func(r *run, self any, a *args) (any, error) {
			return cutMethod("removeprefix", strings.TrimPrefix, self, a)
		},
		"removesuffix": func(r *run, self any, a *args) (any, error) {
			return cutMethod("removesuffix", strings.TrimSuffix, self, a)
		},
		"find":   findMethod("find", strings.Index, false),
		"rfind":  findMethod("rfind", strings.LastIndex, false),
		"index":  findMethod("index", strings.Index, true),
		"rindex": findMethod("rindex", strings.LastIndex, true),
		"count": func(r *run, self any, a *args) (any, error) {
			s, sub, err := strArg("count", self, a)
			if err != nil {
				return nil, err
			}
			if err := r.charge(len(s) / 16); err != nil {
				return nil, err
			}
			return int64(strings.Count(s, sub)), nil
		},
		"join":   joinMethod,
		"format": formatMethod,
		"center": padMethod("center"),
		"ljust":  padMethod("ljust"),
		"rjust":  padMethod("rjust"),
		"zfill":  padMethod("zfill"),
	}
	dictMethods = map[string]methodFunc{
		"items": func(r *run, self any, a *args) (any, error) {
			if _, err := a.bind("items", 0); err != nil {
				return nil, err
			}
			items, err := r.pairs(self.(*Dict))
			return &view{"dict_items", items}, err
		},
		"keys": func(r *run, self any, a *args) (any, error) {
			_, err := a.bind("keys", 0)
			return &view{"dict_keys", self.(*Dict).keys}, err
		},
		"values": func(r *run, self any, a *args) (any, error) {
			_, err := a.bind("values", 0)
			return &view{"dict_values", self.(*Dict).values}, err
		},
		"get": func(r *run, self any, a *args) (any, error) {
			v, err := a.bind("get", 1, "key", "default")
			if err != nil {
				return nil, err
			}
			x, ok, err := self.(*Dict).lookup(v[0])
			if ok || err != nil {
				return x, err
			}
			if given(v[1]) {
				return v[1], nil
			}
			return nil, nil
		},
		"copy": func(r *run, self any, a *args) (any, error) { return self, nil }, // nothing can change either one
	}
	listMethods = map[string]methodFunc{
		"copy": func(r *run, self any, a *args) (any, error) { return self, nil },
		"count": func(r *run, self any, a *args) (any, error) {
			v, err := a.bind("count", 1, "value")
			if err != nil {
				return nil, err
			}
			n := int64(0)
			for _, e := range self.(*List).Items {
				ok, err := r.equal(e, v[0], 0)
				if err != nil {
					return nil, err
				}
				if ok {
					n++
				}
			}
			return n, nil
		},
		"index": func(r *run, self any, a *args) (any, error) {
			v, err := a.bind("index", 1, "value")
			if err != nil {
				return nil, err
			}
			for i, e := range self.(*List).Items {
				ok, err := r.equal(e, v[0], 0)
				if err != nil {
					return nil, err
				}
				if ok {
					return int64(i), nil
				}
			}
			return nil, errors.New("value is not in list")
		},
	}
}

// pairs returns (key, value) tuples.
func (r *run) pairs(d *Dict) ([]any, error) {
	if err := r.charge(96 * d.Len()); err != nil {
		return nil, err
	}
	out := make([]any, d.Len())
	for i, k := range d.keys {
		out[i] = &List{Items: []any{k, d.values[i]}, tuple: true}
	}
	return out, nil
}

func strip(s string, chars any, left, right bool) (string, error) {
	f := isSpace
	if given(chars) && chars != nil {
		set, ok := text(chars)
		if !ok {
			return "", errors.New("strip arg must be None or str")
		}
		f = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, f)
	}
	if right {
		s = strings.TrimRightFunc(s, f)
	}
	return s, nil
}

func stripMethod(name string, left, right bool) methodFunc {
	return func(r *run, self any, a *args) (any, error) {
		v, err := a.bind(name, 0, "chars")
		if err != nil {
			return nil, err
		}
		s, _ := text(self)
		s, err = strip(s, v[0], left, right)
		return like(self, s), err
	}
}

// strArg is for methods with exactly one string argument.
func strArg(name string, self any, a *args) (s, arg string, err error) {
	v, err := a.bind(name, 1, "arg")
	if err != nil {
		return "", "", err
	}
	s, _ = text(self)
	arg, ok := text(v[0])
	if !ok {
		if u, ok := v[0].(undefined); ok {
			return "", "", u.err()
		}
		return "", "", fmt.Errorf("%s: argument must be str, not %s", name, typeName(v[0]))
	}
	return s, arg, nil
}

func affixMethod(name string, has func(s, x string) bool) methodFunc {
	return func(r *run, self any, a *args) (any, error) {
		v, err := a.bind(name, 1, "prefix", "start", "end")
		if err != nil {
			return nil, err
		}
		s, _ := text(self)
		if given(v[1]) || given(v[2]) {
			var b [3]any
			for i := range 2 {
				if given(v[1+i]) {
					b[i] = v[1+i]
				}
			}
			n := utf8.RuneCountInString(s)
			start, stop, _, err := sliceBounds(b, int64(n))
			if err != nil {
				return nil, err
			}
			s = substring(s, n, start, stop)
		}
		cands := []any{v[0]}
		if l, ok := v[0].(*List); ok && l.tuple {
			cands = l.Items
		}
		for _, c := range cands {
			x, ok := text(c)
			if !ok {
				return nil, fmt.Errorf("%s first arg must be str or a tuple of str, not %s", name, typeName(c))
			}
			if has(s, x) {
				return true, nil
			}
		}
		return false, nil
	}
}

// limitArg reads an optional count; negative or absent means no limit.
func limitArg(name string, v any) (int, error) {
	if !given(v) {
		return -1, nil
	}
	n, ok := toInt(v)
	if !ok {
		return 0, fmt.Errorf("%s: count must be an integer, not %s", name, typeName(v))
	}
	return int(min(max(n, -1), 1<<31)), nil
}

func splitMethod(name string, fromRight bool) methodFunc {
	return func(r *run, self any, a *args) (any, error) {
		v, err := a.bind(name, 0, "sep", "maxsplit")
		if err != nil {
			return nil, err
		}
		limit, err := limitArg(name, v[1])
		if err != nil {
			return nil, err
		}
		s, _ := text(self)
		var parts []string
		if !given(v[0]) || v[0] == nil {
			if err := r.charge(len(s) * 9); err != nil {
				return nil, err
			}
			parts = splitSpace(s, limit, fromRight)
		} else {
			sep, ok := text(v[0])
			if !ok {
				return nil, fmt.Errorf("%s: separator must be str or None, not %s", name, typeName(v[0]))
			}
			if sep == "" {
				return nil, errors.New("empty separator")
			}
			if err := r.charge(len(s) + 16*strings.Count(s, sep)); err != nil {
				return nil, err
			}
			parts = splitSep(s, sep, limit, fromRight)
		}
		l := &List{Items: make([]any, len(parts))}
		for i, p := range parts {
			l.Items[i] = like(self, p)
		}
		return l, nil
	}
}

func splitSep(s, sep string, limit int, fromRight bool) []string {
	if limit < 0 {
		return strings.Split(s, sep)
	}
	if !fromRight {
		return strings.SplitN(s, sep, limit+1)
	}
	var out []string
	for ; limit > 0; limit-- {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		out = append(out, s[i+len(sep):])
		s = s[:i]
	}
	out = append(out, s)
	slices.Reverse(out)
	return out
}

func splitSpace(s string, limit int, fromRight bool) []string {
	if limit < 0 {
		return strings.FieldsFunc(s, isSpace)
	}
	var out []string
	if fromRight {
		for s = trimRight(s); s != "" && limit > 0; limit-- {
			i := strings.LastIndexFunc(s, isSpace)
			if i < 0 {
				break
			}
			_, n := utf8.DecodeRuneInString(s[i:])
			out = append(out, s[i+n:])
			s = trimRight(s[:i])
		}
		if s != "" {
			out = append(out, s)
		}
		slices.Reverse(out)
		return out
	}
	for s = trimLeft(s); s != "" && limit > 0; limit-- {
		i := strings.IndexFunc(s, isSpace)
		if i < 0 {
			break
		}
		out = append(out, s[:i])
		s = trimLeft(s[i:])
	}
	if s != "" {
		out = append(out, s)
	}
	return out
}

// splitLines is str.splitlines.
func splitLines(s string, keep bool) []string {
	var out []string
	for s != "" {
		i := strings.IndexAny(s, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
		if i < 0 {
			return append(out, s)
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if s[i] == '\r' && i+1 < len(s) && s[i+1] == '\n' {
			n = 2
		}
		if keep {
			out = append(out, s[:i+n])
		} else {
			out = append(out, s[:i])
		}
		s = s[i+n:]
	}
	return out
}

func splitLinesMethod(r *run, self any, a *args) (any, error) {
	v, err := a.bind("splitlines", 0, "keepends")
	if err != nil {
		return nil, err
	}
	s, _ := text(self)
	if err := r.charge(len(s) * 9); err != nil {
		return nil, err
	}
	l := &List{}
	for _, p := range splitLines(s, given(v[0]) && truth(v[0])) {
		l.Items = append(l.Items, like(self, p))
	}
	return l, nil
}

func partitionMethod(name string, find func(s, sub string) int) methodFunc {
	return func(r *run, self any, a *args) (any, error) {
		s, sep, err := strArg(name, self, a)
		if err != nil {
			return nil, err
		}
		if sep == "" {
			return nil, errors.New("empty separator")
		}
		p := []string{s, "", ""}
		if name == "rpartition" {
			p = []string{"", "", s}
		}
		if i := find(s, sep); i >= 0 {
			p = []string{s[:i], sep, s[i+len(sep):]}
		}
		l := &List{tuple: true}
		for _, x := range p {
			l.Items = append(l.Items, like(self, x))
		}
		return l, nil
	}
}

// replace is str.replace, charged by the size of its result.
func (r *run) replace(s, old, with string, limit int) (string, error) {
	n := strings.Count(s, old)
	if limit >= 0 {
		n = min(n, limit)
	}
	if n > 0 && len(with) > (1<<40)/n {
		return "", limitError("the template uses more memory than allowed")
	}
	if err := r.charge(len(s) + n*len(with)); err != nil {
		return "", err
	}
	return strings.Replace(s, old, with, limit), nil
}

func replaceMethod(r *run, self any, a *args) (any, error) {
	v, err := a.bind("replace", 2, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	limit, err := limitArg("replace", v[2])
	if err != nil {
		return nil, err
	}
	old, ok1 := text(v[0])
	with, ok2 := text(v[1])
	for i, ok := range []bool{ok1, ok2} {
		if u, und := v[i].(undefined); und {
			return nil, u.err()
		}
		if !ok {
			return nil, fmt.Errorf("replace: argument %d must be str, not %s", i+1, typeName(v[i]))
		}
	}
	s, _ := text(self)
	if _, ok := self.(Markup); ok {
		m, err := r.escapeHTML(v[1])
		if err != nil {
			return nil, err
		}
		with = string(m)
	}
	s, err = r.replace(s, old, with, limit)
	return like(self, s), err
}

func cutMethod(name string, cut func(s, x string) string, self any, a *args) (any, error) {
	s, x, err := strArg(name, self, a)
	return like(self, cut(s, x)), err
}

func findMethod(name string, find func(s, sub string) int, must bool) methodFunc {
	return func(r *run, self any, a *args) (any, error) {
		v, err := a.bind(name, 1, "sub", "start")
		if err != nil {
			return nil, err
		}
		s, _ := text(self)
		sub, ok := text(v[0])
		if !ok {
			return nil, fmt.Errorf("%s: argument must be str, not %s", name, typeName(v[0]))
		}
		if err := r.charge(len(s) / 16); err != nil {
			return nil, err
		}
		skip := int64(0)
		if given(v[1]) {
			n := utf8.RuneCountInString(s)
			if skip, _, _, err = sliceBounds([3]any{v[1]}, int64(n)); err != nil {
				return nil, err
			}
			s = substring(s, n, skip, int64(n))
		}
		i := find(s, sub)
		if i < 0 {
			if must {
				return nil, errors.New("substring not found")
			}
			return int64(-1), nil
		}
		return skip + int64(utf8.RuneCountInString(s[:i])), nil
	}
}

// join concatenates strings with a separator.
func (r *run) join(parts []string, sep string) (string, error) {
	n := 0
	for _, p := range parts {
		n += len(p) + len(sep)
	}
	if err := r.charge(n); err != nil {
		return "", err
	}
	return strings.Join(parts, sep), nil
}

func joinMethod(r *run, self any, a *args) (any, error) {
	v, err := a.bind("join", 1, "iterable")
	if err != nil {
		return nil, err
	}
	items, err := r.iterate(v[0])
	if err != nil {
		return nil, err
	}
	_, markup := self.(Markup)
	parts := make([]string, len(items))
	for i, e := range items {
		s, ok := text(e)
		if !ok && !markup {
			return nil, fmt.Errorf("sequence item %d: expected str instance, %s found", i, typeName(e))
		}
		if markup {
			m, err := r.escapeHTML(e)
			if err != nil {
				return nil, err
			}
			s = string(m)
		}
		parts[i] = s
	}
	sep, _ := text(self)
	s, err := r.join(parts, sep)
	return like(self, s), err
}

func padMethod(name string) methodFunc {
	return func(r *run, self any, a *args) (any, error) {
		v, err := a.bind(name, 1, "width", "fillchar")
		if err != nil {
			return nil, err
		}
		width, ok := toInt(v[0])
		if !ok {
			return nil, fmt.Errorf("%s: width must be an integer, not %s", name, typeName(v[0]))
		}
		fill := " "
		if given(v[1]) {
			if fill, ok = text(v[1]); !ok || utf8.RuneCountInString(fill) != 1 {
				return nil, fmt.Errorf("%s: fill character must be exactly one character", name)
			}
		}
		s, _ := text(self)
		out, err := r.pad(s, width, fill, name)
		return like(self, out), err
	}
}

// pad widens s to width characters. Limits are checked before the text exists.
func (r *run) pad(s string, width int64, fill, how string) (string, error) {
	n := int64(utf8.RuneCountInString(s))
	if width <= n {
		return s, nil
	}
	gap := width - n
	if gap > 1<<30 {
		return "", limitError("the template uses more memory than allowed")
	}
	if err := r.charge(len(s) + int(gap)*len(fill)); err != nil {
		return "", err
	}
	rep := func(k int64) string { return strings.Repeat(fill, int(k)) }
	switch how {
	case "ljust":
		return s + rep(gap), nil
	case "rjust":
		return rep(gap) + s, nil
	case "zfill":
		if s != "" && (s[0] == '-' || s[0] == '+') {
			return s[:1] + strings.Repeat("0", int(gap)) + s[1:], nil
		}
		return strings.Repeat("0", int(gap)) + s, nil
	}
	left := gap / 2
	if gap%2 == 1 && width%2 == 1 { // CPython rounds the odd one this way
		left++
	}
	return rep(left) + s + rep(gap-left), nil
}

func capitalize(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToTitle(r)) + strings.ToLower(s[n:])
}

func swapCase(r rune) rune {
	if unicode.IsUpper(r) {
		return unicode.ToLower(r)
	}
	return unicode.ToUpper(r)
}

// pyTitle is str.title: a letter after a non-letter is upper case.
func pyTitle(s string) string {
	prev := false
	return strings.Map(func(r rune) rune {
		letter := unicode.IsLetter(r)
		defer func() { prev = letter }()
		if !letter {
			return r
		}
		if prev {
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, s)
}

func allRunes(f func(rune) bool) func(string) any {
	return func(s string) any {
		return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !f(r) })
	}
}

// cased: at least one cased character and none of the other case.
func cased(s string, is, not func(rune) bool) bool {
	return strings.ContainsFunc(s, is) && !strings.ContainsFunc(s, not)
}
