package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type filterFunc func(r *run, v any, a *args) any

var filters map[string]filterFunc

// Filters that Jinja has and this package does not: chat templates do not use them.
var unsupportedFilters = []string{"batch", "center", "filesizeformat", "forceescape", "groupby", "pprint", "random",
	"slice", "striptags", "truncate", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"}

func unknownFilter(name string) string {
	if slices.Contains(unsupportedFilters, name) {
		return fmt.Sprintf("filter '%s' is not supported", name)
	}
	return fmt.Sprintf("no filter named '%s'", name)
}

// plainFilter is a filter without arguments.
func plainFilter(name string, f func(r *run, v any) any) filterFunc {
	return func(r *run, v any, a *args) any {
		a.bind(name, 0)
		return f(r, v)
	}
}

// textFilter is a filter without arguments on the text of any value.
func textFilter(name string, f func(s string) string) filterFunc {
	return plainFilter(name, func(r *run, v any) any {
		s := r.str(v)
		r.charge(len(s))
		return like(v, f(s))
	})
}

func init() { // not a literal: filters such as map look others up
	filters = map[string]filterFunc{
		"abs":        plainFilter("abs", func(r *run, v any) any { return absolute(v) }),
		"attr":       attrFilter,
		"capitalize": textFilter("capitalize", capitalize),
		"count":      plainFilter("count", func(r *run, v any) any { return lengthOf(v) }),
		"d":          defaultFilter,
		"default":    defaultFilter,
		"dictsort":   dictsortFilter,
		"e":          plainFilter("e", func(r *run, v any) any { return r.escapeHTML(v) }),
		"escape":     plainFilter("escape", func(r *run, v any) any { return r.escapeHTML(v) }),
		"first":      plainFilter("first", (*run).first),
		"float":      floatFilter,
		"format":     formatFilter,
		"indent":     indentFilter,
		"int":        intFilter,
		"items":      plainFilter("items", (*run).itemPairs),
		"join":       joinFilter,
		"last":       plainFilter("last", (*run).last),
		"length":     plainFilter("length", func(r *run, v any) any { return lengthOf(v) }),
		"list":       plainFilter("list", (*run).list),
		"lower":      textFilter("lower", strings.ToLower),
		"map":        mapFilter,
		"max":        extremeFilter("max", 1),
		"min":        extremeFilter("min", -1),
		"reject":     selectFilter("reject", false, false),
		"rejectattr": selectFilter("rejectattr", false, true),
		"replace":    replaceFilter,
		"reverse":    plainFilter("reverse", (*run).reversed),
		"round":      roundFilter,
		"safe":       plainFilter("safe", func(r *run, v any) any { return Markup(r.str(v)) }),
		"select":     selectFilter("select", true, false),
		"selectattr": selectFilter("selectattr", true, true),
		"sort":       sortFilter,
		"string":     plainFilter("string", func(r *run, v any) any { return like(v, r.str(v)) }),
		"sum":        sumFilter,
		"title":      textFilter("title", titleWords),
		"tojson":     tojsonFilter,
		"trim": func(r *run, v any, a *args) any {
			return like(v, strip(r.str(v), a.bind("trim", 0, "chars")[0], true, true))
		},
		"unique": uniqueFilter,
		"upper":  textFilter("upper", strings.ToUpper),
	}
}

func tojsonFilter(r *run, v any, a *args) any {
	b := a.bind("tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys")
	w := &jsonWriter{r: r, itemSep: ", ", keySep: ": ", ascii: flag(b[0]), sortedKeys: flag(b[3])}
	if indent := either(b[1], nil); indent != nil {
		w.pretty, w.itemSep = true, ","
		w.indent = indentText("tojson", indent)
	}
	if separators := either(b[2], nil); separators != nil {
		pair := r.iterate(separators)
		if len(pair) != 2 {
			panic(errorf("tojson: separators must be a pair of strings"))
		}
		w.itemSep, w.keySep = needText("tojson: separator", pair[0]), needText("tojson: separator", pair[1])
	}
	w.value(v, 0)
	return w.b.String()
}

// indentText is an argument that is either text to indent with or a number of spaces.
func indentText(filter string, v any) string {
	if s, ok := text(v); ok {
		return s
	}
	n := needInt(filter+": width", v)
	if n > 1000 {
		panic(limitError("%s: width %d is too large", filter, n))
	}
	return strings.Repeat(" ", int(max(n, 0)))
}

func defaultFilter(r *run, v any, a *args) any {
	b := a.bind("default", 0, "default_value", "boolean")
	if isUndefined(v) || flag(b[1]) && !truth(v) {
		return either(b[0], "")
	}
	return v
}

func replaceFilter(r *run, v any, a *args) any {
	b := a.bind("replace", 2, "old", "new", "count")
	limit := int64(-1)
	if n := either(b[2], nil); n != nil {
		limit = needInt("replace: count", n)
	}
	return r.replace(r.str(v), r.str(b[0]), r.str(b[1]), limit)
}

func joinFilter(r *run, v any, a *args) any {
	b := a.bind("join", 0, "d", "attribute")
	items := r.iterate(v)
	sep := r.str(either(b[0], ""))
	parts := make([]string, len(items))
	for i, e := range items {
		parts[i] = r.str(r.path(e, either(b[1], nil), nil))
	}
	return r.join(parts, sep)
}

// path follows a dotted attribute as Jinja's attribute arguments do; none is
// the value itself. A default replaces an undefined step unless it is nil.
func (r *run) path(v, attr, def any) any {
	if attr == nil {
		return v
	}
	r.touch(attr)
	parts := []any{attr}
	if s, ok := text(attr); ok {
		parts = nil
		for p := range strings.SplitSeq(s, ".") {
			if n, err := strconv.ParseInt(p, 10, 64); err == nil && isDigit(p[0]) {
				parts = append(parts, n)
			} else {
				parts = append(parts, p)
			}
		}
	}
	for _, p := range parts {
		if v = r.item(v, p); isUndefined(v) && def != nil {
			v = def
		}
	}
	return v
}

func (r *run) itemPairs(v any) any {
	return r.lazy("do_items", func() []any {
		switch d := v.(type) {
		case undefined:
			return nil
		case *Dict:
			return r.pairs(d)
		}
		panic(errorf("Can only get item pairs from a mapping."))
	}, nil)
}

// lazy returns a generator over items, which are asked for at its first use.
// Each goes through step, which may drop it.
func (r *run) lazy(name string, items func() []any, step func(e any) (any, bool)) *generator {
	var rest []any
	started := false
	return &generator{name: name, next: func() (any, bool) {
		if !started {
			started = true
			rest = items()
		}
		for len(rest) > 0 {
			e := rest[0]
			rest = rest[1:]
			r.spend(1)
			if step == nil {
				return e, true
			}
			if x, keep := step(e); keep {
				return x, true
			}
		}
		return nil, false
	}}
}

func mapFilter(r *run, v any, a *args) any {
	var apply func(e any) any
	prepare := func() { // Python looks at the arguments only when there is work
		if len(a.pos) == 0 {
			attr, ok := a.take("attribute")
			if !ok {
				panic(errorf("map requires a filter argument"))
			}
			def, _ := a.take("default")
			if len(a.kw) > 0 {
				panic(errorf("map got an unexpected keyword argument '%s'", a.kw[0].name))
			}
			apply = func(e any) any { return r.path(e, attr, def) }
			return
		}
		name := needText("map: filter", a.pos[0])
		fn := filters[name]
		if fn == nil {
			panic(errorf("%s", unknownFilter(name)))
		}
		apply = func(e any) any { return r.filter(fn, e, &args{pos: a.pos[1:], kw: slices.Clone(a.kw)}) }
	}
	return r.lazy("sync_do_map", func() []any {
		if !truth(v) {
			return nil
		}
		prepare()
		return r.iterate(v)
	}, func(e any) (any, bool) { return apply(e), true })
}

func selectFilter(name string, want, byAttr bool) filterFunc {
	return func(r *run, v any, a *args) any {
		pos := a.pos
		var attr any
		if byAttr {
			if len(pos) == 0 {
				panic(errorf("%s: missing parameter for attribute name", name))
			}
			attr, pos = pos[0], pos[1:]
		}
		test := testFunc(func(_ *run, v any, _ *args) bool { return truth(v) })
		if len(pos) > 0 {
			testName, _ := text(pos[0])
			if test = tests[testName]; test == nil {
				panic(errorf("%s", unknownTest(clip(testName))))
			}
			pos = pos[1:]
		}
		return r.lazy("select_or_reject", func() []any {
			if !truth(v) { // empty, whatever it is
				return nil
			}
			return r.iterate(v)
		}, func(e any) (any, bool) {
			x := r.path(e, attr, nil)
			return e, r.test(test, x, &args{pos: pos, kw: slices.Clone(a.kw)}) == want
		})
	}
}

func (r *run) list(v any) any {
	items := r.iterate(v)
	r.charge(16 * len(items))
	return &List{Items: slices.Clone(items)}
}

func (r *run) first(v any) any {
	if g, ok := v.(*generator); ok {
		if e, ok := g.next(); ok {
			return e
		}
		return undefined{"No first item, sequence was empty."}
	}
	if s, ok := text(v); ok && s != "" {
		_, n := utf8.DecodeRuneInString(s)
		return s[:n]
	}
	items := r.iterate(v)
	if len(items) == 0 {
		return undefined{"No first item, sequence was empty."}
	}
	return items[0]
}

func (r *run) last(v any) any {
	if s, ok := text(v); ok && s != "" {
		_, n := utf8.DecodeLastRuneInString(s)
		return s[len(s)-n:]
	}
	if _, ok := v.(*generator); ok {
		panic(errorf("'generator' object is not reversible"))
	}
	items := r.iterate(v)
	if len(items) == 0 {
		return undefined{"No last item, sequence was empty."}
	}
	return items[len(items)-1]
}

func (r *run) reversed(v any) any {
	items := r.iterate(v)
	r.charge(16 * len(items))
	items = slices.Clone(items)
	slices.Reverse(items)
	if _, ok := text(v); ok {
		var b strings.Builder
		for _, c := range items {
			b.WriteString(c.(string))
		}
		return like(v, b.String())
	}
	return r.lazy("reversed", func() []any { return items }, nil)
}

// sortKey returns what sort, unique, min and max compare items by: an
// attribute of theirs, if one is named, without case unless it matters.
func (r *run) sortKey(attribute any, caseSensitive bool) func(e any) any {
	return func(e any) any {
		k := r.path(e, attribute, nil)
		r.touch(k)
		if s, ok := text(k); ok && !caseSensitive {
			r.charge(len(s))
			return strings.ToLower(s)
		}
		return k
	}
}

// sortBy orders items by their keys, stably.
func (r *run) sortBy(items []any, key func(e any) any, reverse bool) *List {
	r.charge(56 * len(items))
	type keyed struct{ item, key any }
	all := make([]keyed, len(items))
	for i, e := range items {
		all[i] = keyed{e, key(e)}
	}
	slices.SortStableFunc(all, func(x, y keyed) int {
		if reverse {
			x, y = y, x
		}
		return r.order("<", x.key, y.key, 0)
	})
	out := &List{Items: make([]any, len(items))}
	for i := range all {
		out.Items[i] = all[i].item
	}
	return out
}

func dictsortFilter(r *run, v any, a *args) any {
	b := a.bind("dictsort", 0, "case_sensitive", "by", "reverse")
	by, ok := map[any]int64{"key": 0, "value": 1}[either(b[1], "key")]
	if !ok {
		panic(errorf(`dictsort: you can only sort by either "key" or "value"`))
	}
	mustDefined(v)
	d, ok := v.(*Dict)
	if !ok {
		panic(errorf("'%s' object has no attribute 'items'", typeName(v)))
	}
	return r.sortBy(r.pairs(d), r.sortKey(by, flag(b[0])), flag(b[2]))
}

func sortFilter(r *run, v any, a *args) any {
	b := a.bind("sort", 0, "reverse", "case_sensitive", "attribute")
	attributes := []any{either(b[2], nil)}
	if s, ok := text(attributes[0]); ok {
		r.touch(s)
		attributes = nil
		for name := range strings.SplitSeq(s, ",") {
			attributes = append(attributes, name)
		}
	}
	return r.sortBy(r.iterate(v), func(e any) any {
		k := &List{}
		for _, attribute := range attributes {
			k.Items = append(k.Items, r.sortKey(attribute, flag(b[1]))(e))
		}
		return k
	}, flag(b[0]))
}

func uniqueFilter(r *run, v any, a *args) any {
	b := a.bind("unique", 0, "case_sensitive", "attribute")
	key := r.sortKey(either(b[1], nil), flag(b[0]))
	seen := map[any]bool{}
	return r.lazy("sync_do_unique", func() []any { return r.iterate(v) }, func(e any) (any, bool) {
		h := hashKey(key(e))
		if seen[h] {
			return nil, false
		}
		seen[h] = true
		r.charge(64)
		return e, true
	})
}

func extremeFilter(name string, want int) filterFunc {
	return func(r *run, v any, a *args) any {
		b := a.bind(name, 0, "case_sensitive", "attribute")
		key := r.sortKey(either(b[1], nil), flag(b[0]))
		items := r.iterate(v)
		if len(items) == 0 {
			return undefined{"No aggregated item, sequence was empty."}
		}
		best, bestKey := items[0], key(items[0])
		for _, e := range items[1:] {
			if k := key(e); r.order("<", k, bestKey, 0) == want {
				best, bestKey = e, k
			}
		}
		return best
	}
}

func sumFilter(r *run, v any, a *args) any {
	b := a.bind("sum", 0, "attribute", "start")
	total := either(b[1], int64(0))
	if _, ok := text(total); ok {
		panic(errorf("sum() can't sum strings"))
	}
	for _, e := range r.iterate(v) {
		total = r.binary("+", total, r.path(e, either(b[0], nil), nil))
	}
	return total
}

func absolute(v any) any {
	f, ok := toFloat(v)
	if !ok {
		panic(errorf("bad operand type for abs(): '%s'", typeName(v)))
	}
	return unary(math.Signbit(f), v)
}

func attrFilter(r *run, v any, a *args) any {
	b := a.bind("attr", 1, "name")
	mustDefined(v)
	// Unlike a dot, the filter never looks at keys.
	if name, ok := text(b[0]); ok {
		if x, ok := r.attribute(v, name); ok {
			return x
		}
	}
	return undefinedItem(v, b[0])
}

// integerText is what Python's int() reads.
var integerText = regexp.MustCompile(`^[+-]?[0-9]+(_[0-9]+)*$`)

func intFilter(r *run, v any, a *args) any {
	b := a.bind("int", 0, "default", "base")
	mustDefined(v)
	if given(b[1]) {
		panic(errorf("int: argument 'base' is not supported"))
	}
	if i, ok := toInt(v); ok {
		return i
	}
	s, isText := text(v)
	s = strings.TrimFunc(s, isSpace)
	if len(s) <= 400 && integerText.MatchString(s) {
		return number(strings.ReplaceAll(s, "_", ""))
	}
	f, ok := v.(float64)
	if isText {
		f, ok = parseFloat(s)
	}
	if i, isBig := v.(*big.Int); isBig {
		return i
	}
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		return either(b[0], int64(0))
	}
	return truncate(f)
}

// truncate is Python's int(f) of a finite number.
func truncate(f float64) any {
	i, _ := big.NewFloat(f).Int(nil)
	if i.IsInt64() {
		return i.Int64()
	}
	return i
}

func parseFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, isSpace)
	if strings.ContainsAny(s, "xXpP") { // hexadecimal floats are Go's, not Python's
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

func floatFilter(r *run, v any, a *args) any {
	b := a.bind("float", 0, "default")
	mustDefined(v)
	if f, ok := toFloat(v); ok {
		return f
	}
	if s, ok := text(v); ok {
		if f, ok := parseFloat(s); ok {
			return f
		}
	}
	return either(b[0], 0.0)
}

func roundFilter(r *run, v any, a *args) any {
	b := a.bind("round", 0, "precision", "method")
	precision := needInt("round: precision", either(b[0], int64(0)))
	f, ok := toFloat(v)
	if !ok {
		panic(errorf("type %s doesn't define __round__ method", typeName(v)))
	}
	if precision < 0 || precision > 300 {
		panic(errorf("round: precision %d is not supported", precision))
	}
	scale := math.Pow(10, float64(precision))
	switch either(b[1], "common") {
	case "common":
		if _, isFloat := v.(float64); !isFloat {
			return arithmetic("+", int64(0), v)
		}
		// Formatting rounds half to even on the exact value, as Python does.
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(precision), 64), 64)
		return f
	case "ceil":
		return math.Ceil(f*scale) / scale
	case "floor":
		return math.Floor(f*scale) / scale
	}
	panic(errorf("round: method must be common, ceil or floor"))
}

func indentFilter(r *run, v any, a *args) any {
	b := a.bind("indent", 0, "width", "first", "blank")
	pad := indentText("indent", either(b[0], int64(4)))
	s := needText("indent: value", v)
	lines := splitLines(s+"\n", false)
	r.charge(2*len(s) + len(lines)*(len(pad)+17))
	for i := range lines {
		if i > 0 && (flag(b[2]) || lines[i] != "") {
			lines[i] = pad + lines[i]
		}
	}
	out := strings.Join(lines, "\n")
	if flag(b[1]) {
		out = pad + out
	}
	return like(v, out)
}

func formatFilter(r *run, v any, a *args) any {
	if len(a.kw) > 0 {
		panic(errorf("format: keyword arguments are not supported"))
	}
	return r.percent(like(v, r.str(v)), &List{Items: a.pos, kind: isTuple})
}

// titleWords is Jinja's title filter, which starts words at other places than
// str.title: only after spaces, hyphens and opening brackets.
func titleWords(s string) string {
	start := true
	return strings.Map(func(r rune) rune {
		was := start
		start = isSpace(r) || strings.ContainsRune("-({[<", r)
		if was {
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	}, s)
}
