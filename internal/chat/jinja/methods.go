package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

type methodFunc func(r *run, self any, a *args) any

// Methods that would change a value; the sandbox hides them.
var mutating = map[string][]string{
	"dict": {"clear", "pop", "popitem", "setdefault", "update"},
	"list": {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"},
}

// Methods of Python's str and float that this package does not have: chat templates do not use them.
var unsupportedMethods = []string{"casefold", "center", "encode", "expandtabs", "format_map", "is_integer", "isascii",
	"isdecimal", "isidentifier", "isnumeric", "isprintable", "istitle", "ljust", "maketrans", "rjust", "swapcase",
	"translate", "zfill"}

// method returns the bound method of o with that name.
func method(o any, name string) (any, bool) {
	var table map[string]methodFunc
	kind := typeName(o)
	switch o := o.(type) {
	case string, Markup:
		table = strMethods
		if slices.Contains(unsupportedMethods, name) {
			panic(errorf("method '%s' is not supported", name))
		}
	case *Dict:
		table = dictMethods
	case *List:
		if o.indexed() {
			table = listMethods
		}
	}
	if f := table[name]; f != nil {
		return &function{name: name, call: func(r *run, a *args) any {
			r.touch(o)
			return f(r, o, a)
		}}, true
	}
	if slices.Contains(mutating[kind], name) {
		return undefined{"access to attribute " + pyQuote(clip(name)) + " of '" + kind + "' object is unsafe."}, true
	}
	return nil, false
}

// textMethod is a method of a string without arguments.
func textMethod(f func(s string) any) methodFunc {
	return func(r *run, self any, a *args) any {
		a.bind("method", 0)
		s, _ := text(self)
		r.charge(len(s))
		v := f(s)
		if s, ok := v.(string); ok {
			return like(self, s)
		}
		return v
	}
}

// argMethod is a method of a string whose one argument is a string.
func argMethod(name string, f func(s, arg string) any) methodFunc {
	return func(r *run, self any, a *args) any {
		s, _ := text(self)
		r.charge(len(s) / 16)
		v := f(s, needText(name+": argument", a.bind(name, 1, "arg")[0]))
		if s, ok := v.(string); ok {
			return like(self, s)
		}
		return v
	}
}

var strMethods = map[string]methodFunc{
	"strip":        stripMethod("strip", true, true),
	"lstrip":       stripMethod("lstrip", true, false),
	"rstrip":       stripMethod("rstrip", false, true),
	"lower":        textMethod(func(s string) any { return strings.ToLower(s) }),
	"upper":        textMethod(func(s string) any { return strings.ToUpper(s) }),
	"title":        textMethod(func(s string) any { return pyTitle(s) }),
	"capitalize":   textMethod(func(s string) any { return capitalize(s) }),
	"isspace":      textMethod(allRunes(isSpace)),
	"isalpha":      textMethod(allRunes(unicode.IsLetter)),
	"isdigit":      textMethod(allRunes(unicode.IsDigit)),
	"isalnum":      textMethod(allRunes(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })),
	"islower":      textMethod(func(s string) any { return cased(s, unicode.IsLower, unicode.IsUpper) }),
	"isupper":      textMethod(func(s string) any { return cased(s, unicode.IsUpper, unicode.IsLower) }),
	"startswith":   affixMethod("startswith", strings.HasPrefix),
	"endswith":     affixMethod("endswith", strings.HasSuffix),
	"split":        splitMethod("split", false),
	"rsplit":       splitMethod("rsplit", true),
	"splitlines":   splitLinesMethod,
	"partition":    partitionMethod("partition", strings.Index),
	"rpartition":   partitionMethod("rpartition", strings.LastIndex),
	"replace":      replaceMethod,
	"removeprefix": argMethod("removeprefix", func(s, prefix string) any { return strings.TrimPrefix(s, prefix) }),
	"removesuffix": argMethod("removesuffix", func(s, suffix string) any { return strings.TrimSuffix(s, suffix) }),
	"count":        argMethod("count", func(s, part string) any { return int64(strings.Count(s, part)) }),
	"find":         findMethod("find", strings.Index),
	"rfind":        findMethod("rfind", strings.LastIndex),
	"index":        findMethod("index", strings.Index),
	"rindex":       findMethod("rindex", strings.LastIndex),
	"join":         joinMethod,
	"format":       formatMethod,
}

var dictMethods = map[string]methodFunc{
	"items": func(r *run, self any, a *args) any {
		a.bind("items", 0)
		return &List{Items: r.pairs(self.(*Dict)), kind: isItems}
	},
	"keys": func(r *run, self any, a *args) any {
		a.bind("keys", 0)
		return &List{Items: self.(*Dict).keys, kind: isKeys}
	},
	"values": func(r *run, self any, a *args) any {
		a.bind("values", 0)
		return &List{Items: self.(*Dict).values, kind: isValues}
	},
	"get": func(r *run, self any, a *args) any {
		b := a.bind("get", 1, "key", "default")
		if v, ok := self.(*Dict).lookup(b[0]); ok {
			return v
		}
		return either(b[1], nil)
	},
	"copy": func(r *run, self any, a *args) any { return self }, // nothing can change either one
}

var listMethods = map[string]methodFunc{
	"copy": func(r *run, self any, a *args) any { return self },
	"count": func(r *run, self any, a *args) any {
		v := a.bind("count", 1, "value")[0]
		n := int64(0)
		for _, e := range self.(*List).Items {
			if r.equal(e, v, 0) {
				n++
			}
		}
		return n
	},
	"index": func(r *run, self any, a *args) any {
		v := a.bind("index", 1, "value")[0]
		i := slices.IndexFunc(self.(*List).Items, func(e any) bool { return r.equal(e, v, 0) })
		if i < 0 {
			panic(errorf("value is not in list"))
		}
		return int64(i)
	},
}

// pairs returns (key, value) tuples.
func (r *run) pairs(d *Dict) []any {
	r.charge(96 * d.Len())
	out := make([]any, d.Len())
	for i, k := range d.keys {
		out[i] = &List{Items: []any{k, d.values[i]}, kind: isTuple}
	}
	return out
}

// strip removes the characters of a text, or spaces without one, from the ends of s.
func strip(s string, chars any, left, right bool) string {
	f := isSpace
	if set := either(chars, nil); set != nil {
		cut := needText("strip: characters", set)
		f = func(r rune) bool { return strings.ContainsRune(cut, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, f)
	}
	if right {
		s = strings.TrimRightFunc(s, f)
	}
	return s
}

func stripMethod(name string, left, right bool) methodFunc {
	return func(r *run, self any, a *args) any {
		s, _ := text(self)
		return like(self, strip(s, a.bind(name, 0, "chars")[0], left, right))
	}
}

func affixMethod(name string, has func(s, affix string) bool) methodFunc {
	return func(r *run, self any, a *args) any {
		b := a.bind(name, 1, "prefix", "start", "end")
		s, _ := text(self)
		if given(b[1]) {
			n := utf8.RuneCountInString(s)
			start, stop, _ := sliceBounds([3]any{b[1], either(b[2], nil)}, int64(n))
			s = substring(s, n, start, stop)
		}
		choices := []any{b[0]}
		if l, ok := b[0].(*List); ok && l.kind == isTuple {
			choices = l.Items
		}
		return slices.ContainsFunc(choices, func(c any) bool { return has(s, needText(name+": argument", c)) })
	}
}

func splitMethod(name string, fromRight bool) methodFunc {
	return func(r *run, self any, a *args) any {
		b := a.bind(name, 0, "sep", "maxsplit")
		limit := needInt(name+": maxsplit", either(b[1], int64(-1)))
		s, _ := text(self)
		var parts []string
		if sep := either(b[0], nil); sep == nil {
			if fromRight && limit >= 0 {
				panic(errorf("rsplit: maxsplit without a separator is not supported"))
			}
			r.charge(len(s) * 9)
			parts = splitSpace(s, limit)
		} else {
			cut := needText(name+": separator", sep)
			if cut == "" {
				panic(errorf("empty separator"))
			}
			r.charge(len(s) + 16*strings.Count(s, cut))
			parts = splitSep(s, cut, limit, fromRight)
		}
		return textList(self, parts)
	}
}

// textList is a list of strings of the type of v.
func textList(v any, parts []string) *List {
	l := &List{Items: make([]any, len(parts))}
	for i, p := range parts {
		l.Items[i] = like(v, p)
	}
	return l
}

// splitSep splits at a separator, at most limit times unless that is negative.
func splitSep(s, sep string, limit int64, fromRight bool) []string {
	if limit < 0 || limit >= int64(len(s)) {
		return strings.Split(s, sep)
	}
	if !fromRight {
		return strings.SplitN(s, sep, int(limit)+1)
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

// splitSpace splits at runs of spaces, at most limit times unless that is negative.
func splitSpace(s string, limit int64) []string {
	if limit < 0 {
		return strings.FieldsFunc(s, isSpace)
	}
	var out []string
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
		if strings.HasPrefix(s[i:], "\r\n") {
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

func splitLinesMethod(r *run, self any, a *args) any {
	b := a.bind("splitlines", 0, "keepends")
	s, _ := text(self)
	r.charge(len(s) * 9)
	return textList(self, splitLines(s, flag(b[0])))
}

func partitionMethod(name string, find func(s, sub string) int) methodFunc {
	return func(r *run, self any, a *args) any {
		s, _ := text(self)
		sep := needText(name+": separator", a.bind(name, 1, "sep")[0])
		if sep == "" {
			panic(errorf("empty separator"))
		}
		parts := []string{s, "", ""}
		if name == "rpartition" {
			parts = []string{"", "", s}
		}
		if i := find(s, sep); i >= 0 {
			parts = []string{s[:i], sep, s[i+len(sep):]}
		}
		l := textList(self, parts)
		l.kind = isTuple
		return l
	}
}

// replace is str.replace, charged by the size of its result.
func (r *run) replace(s, old, with string, limit int64) string {
	n := int64(strings.Count(s, old))
	if limit < 0 || limit > n {
		limit = n
	}
	r.charge(len(s))
	r.chargeTimes(len(with), limit)
	return strings.Replace(s, old, with, int(limit))
}

func replaceMethod(r *run, self any, a *args) any {
	b := a.bind("replace", 2, "old", "new", "count")
	limit := needInt("replace: count", either(b[2], int64(-1)))
	old, with := needText("replace: argument 1", b[0]), needText("replace: argument 2", b[1])
	s, _ := text(self)
	if _, ok := self.(Markup); ok {
		with = string(r.escapeHTML(b[1]))
	}
	return like(self, r.replace(s, old, with, limit))
}

// findMethod is find or rfind, and index or rindex, which fail where the text is not found.
func findMethod(name string, find func(s, sub string) int) methodFunc {
	return func(r *run, self any, a *args) any {
		b := a.bind(name, 1, "sub", "start")
		s, _ := text(self)
		sub := needText(name+": argument", b[0])
		r.charge(len(s) / 16)
		skip := int64(0)
		if given(b[1]) {
			n := utf8.RuneCountInString(s)
			skip, _, _ = sliceBounds([3]any{b[1]}, int64(n))
			s = substring(s, n, skip, int64(n))
		}
		i := find(s, sub)
		if i < 0 {
			if strings.HasSuffix(name, "index") {
				panic(errorf("substring not found"))
			}
			return int64(-1)
		}
		return skip + int64(utf8.RuneCountInString(s[:i]))
	}
}

// join concatenates strings with a separator.
func (r *run) join(parts []string, sep string) string {
	n := 0
	for _, p := range parts {
		n += len(p) + len(sep)
	}
	r.charge(n)
	return strings.Join(parts, sep)
}

func joinMethod(r *run, self any, a *args) any {
	items := r.iterate(a.bind("join", 1, "iterable")[0])
	_, markup := self.(Markup)
	parts := make([]string, len(items))
	for i, e := range items {
		if markup {
			parts[i] = string(r.escapeHTML(e))
		} else {
			parts[i] = needText("join: item", e)
		}
	}
	sep, _ := text(self)
	return like(self, r.join(parts, sep))
}

func capitalize(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToTitle(r)) + strings.ToLower(s[n:])
}

// pyTitle is str.title: a letter after a non-letter is upper case.
func pyTitle(s string) string {
	prev := false
	return strings.Map(func(r rune) rune {
		after := prev
		prev = unicode.IsLetter(r)
		switch {
		case !prev:
			return r
		case after:
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
