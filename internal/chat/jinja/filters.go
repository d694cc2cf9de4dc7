package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type filterFunc func(r *run, v any, a *args) (any, error)

var filters map[string]filterFunc

// Filters Jinja has and this package has not; none is of use in a prompt.
var unsupportedFilters = []string{"filesizeformat", "pprint", "random", "striptags", "urlencode", "urlize", "wordwrap",
	"xmlattr"}

func unknownFilter(name string) string {
	if slices.Contains(unsupportedFilters, name) {
		return fmt.Sprintf("filter '%s' is not supported", name)
	}
	return fmt.Sprintf("no filter named '%s'", name)
}

// strFilter is a filter without arguments on the text of any value.
func strFilter(name string, f func(s string) string) filterFunc {
	return func(r *run, v any, a *args) (any, error) {
		if _, err := a.bind(name, 0); err != nil {
			return nil, err
		}
		s, err := r.str(v)
		if err != nil {
			return nil, err
		}
		if err := r.charge(len(s)); err != nil {
			return nil, err
		}
		return like(v, f(s)), nil
	}
}

func init() {
	filters = map[string]filterFunc{
		"abs":        absFilter,
		"attr":       attrFilter,
		"batch":      batchFilter,
		"capitalize": strFilter("capitalize", capitalize),
		"center":     centerFilter,
		"count":      lengthFilter,
		"default":    defaultFilter,
		"d":          defaultFilter,
		"dictsort":   dictsortFilter,
		"e":          escapeFilter,
		"escape":     escapeFilter,
		"first":      firstFilter,
		"float":      floatFilter,
		"forceescape": func(r *run, v any, a *args) (any, error) {
			s, err := r.str(v)
			if err != nil {
				return nil, err
			}
			return r.escapeHTML(s)
		},
		"format":     formatFilter,
		"groupby":    groupbyFilter,
		"indent":     indentFilter,
		"int":        intFilter,
		"items":      itemsFilter,
		"join":       joinFilter,
		"last":       lastFilter,
		"length":     lengthFilter,
		"list":       listFilter,
		"lower":      strFilter("lower", strings.ToLower),
		"map":        mapFilter,
		"max":        extremeFilter("max", 1),
		"min":        extremeFilter("min", -1),
		"reject":     selectFilter("reject", false, false),
		"rejectattr": selectFilter("rejectattr", false, true),
		"replace":    replaceFilter,
		"reverse":    reverseFilter,
		"round":      roundFilter,
		"safe": func(r *run, v any, a *args) (any, error) {
			s, err := r.str(v)
			return Markup(s), err
		},
		"select":     selectFilter("select", true, false),
		"selectattr": selectFilter("selectattr", true, true),
		"slice":      sliceFilter,
		"sort":       sortFilter,
		"string": func(r *run, v any, a *args) (any, error) {
			if m, ok := v.(Markup); ok {
				return m, nil
			}
			s, err := r.str(v)
			return s, err
		},
		"sum":       sumFilter,
		"title":     strFilter("title", titleWords),
		"tojson":    tojsonFilter,
		"trim":      trimFilter,
		"truncate":  truncateFilter,
		"unique":    uniqueFilter,
		"upper":     strFilter("upper", strings.ToUpper),
		"wordcount": wordcountFilter,
	}
}

func tojsonFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	w := &jsonWriter{r: r, itemSep: ", ", keySep: ": "}
	w.ascii = given(b[0]) && truth(b[0])
	w.sortedKeys = given(b[3]) && truth(b[3])
	if given(b[1]) && b[1] != nil {
		w.pretty, w.itemSep = true, ","
		if s, ok := text(b[1]); ok {
			w.indent = s
		} else if n, ok := toInt(b[1]); ok && n <= 1000 {
			w.indent = strings.Repeat(" ", int(max(n, 0)))
		} else {
			return nil, errors.New("tojson: bad indent")
		}
	}
	if given(b[2]) && b[2] != nil {
		seps, err := r.iterate(b[2])
		if err != nil {
			return nil, err
		}
		if len(seps) != 2 {
			return nil, errors.New("tojson: separators must be a pair of strings")
		}
		var ok1, ok2 bool
		w.itemSep, ok1 = text(seps[0])
		w.keySep, ok2 = text(seps[1])
		if !ok1 || !ok2 {
			return nil, errors.New("tojson: separators must be a pair of strings")
		}
	}
	if err := w.value(v, 0); err != nil {
		return nil, err
	}
	return w.b.String(), nil
}

func lengthFilter(r *run, v any, a *args) (any, error) {
	if _, err := a.bind("length", 0); err != nil {
		return nil, err
	}
	return lengthOf(v)
}

func defaultFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("default", 0, "default_value", "boolean")
	if err != nil {
		return nil, err
	}
	_, und := v.(undefined)
	if und || given(b[1]) && truth(b[1]) && !truth(v) {
		if given(b[0]) {
			return b[0], nil
		}
		return "", nil
	}
	return v, nil
}

func escapeFilter(r *run, v any, a *args) (any, error) {
	if _, err := a.bind("escape", 0); err != nil {
		return nil, err
	}
	return r.escapeHTML(v)
}

func trimFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("trim", 0, "chars")
	if err != nil {
		return nil, err
	}
	s, err := r.str(v)
	if err != nil {
		return nil, err
	}
	s, err = strip(s, b[0], true, true)
	return like(v, s), err
}

func replaceFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("replace", 2, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	limit := -1
	if b[2] != nil {
		if limit, err = limitArg("replace", b[2]); err != nil {
			return nil, err
		}
	}
	var s [3]string
	for i, x := range []any{v, b[0], b[1]} {
		if s[i], err = r.str(x); err != nil {
			return nil, err
		}
	}
	return r.replace(s[0], s[1], s[2], limit)
}

func joinFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("join", 0, "d", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	sep := ""
	if given(b[0]) {
		if sep, err = r.str(b[0]); err != nil {
			return nil, err
		}
	}
	parts := make([]string, len(items))
	for i, e := range items {
		if given(b[1]) && b[1] != nil {
			if e, err = r.path(e, b[1], nil); err != nil {
				return nil, err
			}
		}
		if parts[i], err = r.str(e); err != nil {
			return nil, err
		}
	}
	return r.join(parts, sep)
}

// path follows a dotted attribute as Jinja's attribute arguments do. A default
// replaces an undefined step unless it is nil.
func (r *run) path(v, attr, def any) (any, error) {
	parts := []any{attr}
	if err := r.touch(attr); err != nil {
		return nil, err
	}
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
		var err error
		if v, err = r.item(v, p); err != nil {
			return nil, err
		}
		if _, und := v.(undefined); und && def != nil {
			v = def
		}
	}
	return v, nil
}

func itemsFilter(r *run, v any, a *args) (any, error) {
	if _, err := a.bind("items", 0); err != nil {
		return nil, err
	}
	return r.lazy("do_items", v, func(v any) ([]any, error) {
		switch d := v.(type) {
		case undefined:
			return nil, nil
		case *Dict:
			return r.pairs(d)
		}
		return nil, errors.New("Can only get item pairs from a mapping.")
	}, nil), nil
}

// lazy makes a generator over the items of v. Each item goes through step,
// which may drop it; errors come up when the generator is used.
func (r *run) lazy(name string, v any, items func(v any) ([]any, error),
	step func(e any) (any, bool, error)) *generator {
	var src []any
	started := false
	return &generator{name: name, next: func() (any, bool, error) {
		if !started {
			started = true
			var err error
			if src, err = items(v); err != nil {
				return nil, false, err
			}
		}
		for len(src) > 0 {
			e := src[0]
			src = src[1:]
			if err := r.step(); err != nil {
				return nil, false, err
			}
			if step == nil {
				return e, true, nil
			}
			x, keep, err := step(e)
			if err != nil {
				return nil, false, err
			}
			if keep {
				return x, true, nil
			}
		}
		return nil, false, nil
	}}
}

// nonEmpty is the iteration of map and select: a false value is empty, whatever it is.
func (r *run) nonEmpty(v any) ([]any, error) {
	if !truth(v) {
		return nil, nil
	}
	return r.iterate(v)
}

func mapFilter(r *run, v any, a *args) (any, error) {
	fail := func(err error) (any, error) {
		return r.lazy("sync_do_map", v, func(v any) ([]any, error) {
			if !truth(v) { // Python looks at its arguments only when there is work
				return nil, nil
			}
			return nil, err
		}, nil), nil
	}
	if len(a.pos) == 0 {
		attr, ok := a.take("attribute")
		if !ok {
			return fail(errors.New("map requires a filter argument"))
		}
		def, _ := a.take("default")
		if len(a.kw) > 0 {
			return fail(fmt.Errorf("map got an unexpected keyword argument '%s'", a.kw[0].name))
		}
		return r.lazy("sync_do_map", v, r.nonEmpty, func(e any) (any, bool, error) {
			x, err := r.path(e, attr, def)
			return x, true, err
		}), nil
	}
	name, ok := text(a.pos[0])
	if !ok {
		return fail(errors.New("map requires a filter name"))
	}
	fn := filters[name]
	if fn == nil {
		return fail(errors.New(unknownFilter(name)))
	}
	return r.lazy("sync_do_map", v, r.nonEmpty, func(e any) (any, bool, error) {
		x, err := r.filter(fn, e, &args{pos: a.pos[1:], kw: slices.Clone(a.kw)})
		return x, true, err
	}), nil
}

func selectFilter(name string, want, byAttr bool) filterFunc {
	return func(r *run, v any, a *args) (any, error) {
		pos := a.pos
		var attr any
		if byAttr {
			if len(pos) == 0 {
				return nil, fmt.Errorf("%s: missing parameter for attribute name", name)
			}
			attr, pos = pos[0], pos[1:]
		}
		test := testFunc(func(_ *run, v any, _ *args) (bool, error) { return truth(v), nil })
		if len(pos) > 0 {
			tn, _ := text(pos[0])
			if test = tests[tn]; test == nil {
				return nil, fmt.Errorf("no test named '%s'", clip(tn))
			}
			pos = pos[1:]
		}
		return r.lazy("select_or_reject", v, r.nonEmpty, func(e any) (any, bool, error) {
			x := e
			if byAttr {
				var err error
				if x, err = r.path(e, attr, nil); err != nil {
					return nil, false, err
				}
			}
			ok, err := r.test(test, x, &args{pos: pos, kw: slices.Clone(a.kw)})
			return e, ok == want, err
		}), nil
	}
}

func listFilter(r *run, v any, a *args) (any, error) {
	if _, err := a.bind("list", 0); err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	if err := r.charge(16 * len(items)); err != nil {
		return nil, err
	}
	return &List{Items: slices.Clone(items)}, nil
}

func firstFilter(r *run, v any, a *args) (any, error) {
	if _, err := a.bind("first", 0); err != nil {
		return nil, err
	}
	if g, ok := v.(*generator); ok {
		e, ok, err := g.next()
		if ok || err != nil {
			return e, err
		}
		return undefined{"No first item, sequence was empty."}, nil
	}
	if s, ok := text(v); ok && s != "" {
		_, n := utf8.DecodeRuneInString(s)
		return s[:n], nil
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return undefined{"No first item, sequence was empty."}, nil
	}
	return items[0], nil
}

// reversible returns the items of a value that Python's reversed accepts.
func (r *run) reversible(v any) ([]any, error) {
	switch v.(type) {
	case string, Markup, *List, *Dict, *view, rangeValue:
		return r.iterate(v)
	case undefined:
		return nil, nil
	}
	return nil, fmt.Errorf("'%s' object is not reversible", typeName(v))
}

func lastFilter(r *run, v any, a *args) (any, error) {
	if _, err := a.bind("last", 0); err != nil {
		return nil, err
	}
	if s, ok := text(v); ok && s != "" {
		_, n := utf8.DecodeLastRuneInString(s)
		return s[len(s)-n:], nil
	}
	items, err := r.reversible(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return undefined{"No last item, sequence was empty."}, nil
	}
	return items[len(items)-1], nil
}

func reverseFilter(r *run, v any, a *args) (any, error) {
	if _, err := a.bind("reverse", 0); err != nil {
		return nil, err
	}
	var items []any
	var err error
	if g, ok := v.(*generator); ok {
		items, err = r.iterate(g)
	} else {
		items, err = r.reversible(v)
	}
	if err != nil {
		return nil, errors.New("argument must be iterable")
	}
	if err := r.charge(16 * len(items)); err != nil {
		return nil, err
	}
	items = slices.Clone(items)
	slices.Reverse(items)
	if _, ok := text(v); ok {
		var b strings.Builder
		for _, c := range items {
			b.WriteString(c.(string))
		}
		return like(v, b.String()), nil
	}
	return r.lazy("reversed", nil, func(any) ([]any, error) { return items, nil }, nil), nil
}

// foldCase is Jinja's ignore_case.
func (r *run) foldCase(v any) (any, error) {
	s, ok := text(v)
	if !ok {
		return v, nil
	}
	if err := r.touch(v); err != nil {
		return nil, err
	}
	if err := r.charge(len(s)); err != nil {
		return nil, err
	}
	return strings.ToLower(s), nil
}

// sortBy orders items by their keys, stably.
func (r *run) sortBy(items, keys []any, reverse bool) ([]any, error) {
	if err := r.charge(40 * len(items)); err != nil {
		return nil, err
	}
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	var failed error
	sort.SliceStable(order, func(i, j int) bool {
		if failed != nil {
			return false
		}
		x, y := keys[order[i]], keys[order[j]]
		if reverse {
			x, y = y, x
		}
		c, err := r.order("<", x, y, 0)
		if err != nil {
			failed = err
		}
		return c < 0
	})
	if failed != nil {
		return nil, failed
	}
	out := make([]any, len(items))
	for i, k := range order {
		out[i] = items[k]
	}
	return out, nil
}

func dictsortFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("dictsort", 0, "case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	pos := 0
	if given(b[1]) {
		switch by, _ := text(b[1]); by {
		case "key":
		case "value":
			pos = 1
		default:
			return nil, errors.New(`dictsort: you can only sort by either "key" or "value"`)
		}
	}
	d, ok := v.(*Dict)
	if !ok {
		if u, ok := v.(undefined); ok {
			return nil, u.err()
		}
		return nil, fmt.Errorf("'%s' object has no attribute 'items'", typeName(v))
	}
	items, err := r.pairs(d)
	if err != nil {
		return nil, err
	}
	keys := make([]any, len(items))
	for i, e := range items {
		keys[i] = e.(*List).Items[pos]
		if !given(b[0]) || !truth(b[0]) {
			if keys[i], err = r.foldCase(keys[i]); err != nil {
				return nil, err
			}
		}
	}
	items, err = r.sortBy(items, keys, given(b[2]) && truth(b[2]))
	return &List{Items: items}, err
}

func sortFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("sort", 0, "reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	fold := !given(b[1]) || !truth(b[1])
	keys := make([]any, len(items))
	for i, e := range items {
		if err := r.touch(b[2]); err != nil {
			return nil, err
		}
		k := &List{}
		attrs := []any{nil}
		if given(b[2]) && b[2] != nil {
			attrs = []any{b[2]}
			if s, ok := text(b[2]); ok {
				attrs = nil
				for p := range strings.SplitSeq(s, ",") {
					attrs = append(attrs, p)
				}
			}
		}
		for _, at := range attrs {
			x := e
			if at != nil {
				if x, err = r.path(e, at, nil); err != nil {
					return nil, err
				}
			}
			if fold {
				if x, err = r.foldCase(x); err != nil {
					return nil, err
				}
			}
			k.Items = append(k.Items, x)
		}
		keys[i] = k
	}
	items, err = r.sortBy(items, keys, given(b[0]) && truth(b[0]))
	return &List{Items: items}, err
}

// keyed reads the case_sensitive and attribute arguments that unique, min and
// max share and returns the key function.
func (r *run) keyed(fn string, a *args) (func(e any) (any, error), error) {
	b, err := a.bind(fn, 0, "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	return func(e any) (any, error) {
		if given(b[1]) && b[1] != nil {
			var err error
			if e, err = r.path(e, b[1], nil); err != nil {
				return nil, err
			}
		}
		if !given(b[0]) || !truth(b[0]) {
			return r.foldCase(e)
		}
		return e, r.touch(e)
	}, nil
}

func uniqueFilter(r *run, v any, a *args) (any, error) {
	key, err := r.keyed("unique", a)
	if err != nil {
		return nil, err
	}
	seen := map[any]bool{}
	return r.lazy("sync_do_unique", v, r.iterate, func(e any) (any, bool, error) {
		k, err := key(e)
		if err != nil {
			return nil, false, err
		}
		h, err := hashKey(k)
		if err != nil {
			return nil, false, err
		}
		if seen[h] {
			return nil, false, nil
		}
		seen[h] = true
		return e, true, r.charge(64)
	}), nil
}

func extremeFilter(name string, want int) filterFunc {
	return func(r *run, v any, a *args) (any, error) {
		key, err := r.keyed(name, a)
		if err != nil {
			return nil, err
		}
		items, err := r.iterate(v)
		if err != nil {
			return nil, err
		}
		if len(items) == 0 {
			return undefined{"No aggregated item, sequence was empty."}, nil
		}
		best := items[0]
		bestKey, err := key(best)
		if err != nil {
			return nil, err
		}
		for _, e := range items[1:] {
			k, err := key(e)
			if err != nil {
				return nil, err
			}
			c, err := r.order("<", k, bestKey, 0)
			if err != nil {
				return nil, err
			}
			if c == want {
				best, bestKey = e, k
			}
		}
		return best, nil
	}
}

func groupbyFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("groupby", 1, "attribute", "default", "case_sensitive")
	if err != nil {
		return nil, err
	}
	var def any
	if given(b[1]) {
		def = b[1]
	}
	fold := !given(b[2]) || !truth(b[2])
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	key := func(e any) (any, error) {
		k, err := r.path(e, b[0], def)
		if err == nil && fold {
			k, err = r.foldCase(k)
		}
		return k, err
	}
	keys := make([]any, len(items))
	for i, e := range items {
		if keys[i], err = key(e); err != nil {
			return nil, err
		}
	}
	if items, err = r.sortBy(items, keys, false); err != nil {
		return nil, err
	}
	out := &List{}
	var group *List
	var last any
	for _, e := range items {
		k, err := key(e)
		if err != nil {
			return nil, err
		}
		if group != nil {
			eq, err := r.equal(k, last, 0)
			if err != nil {
				return nil, err
			}
			if eq {
				group.Items = append(group.Items, e)
				continue
			}
		}
		last = k
		// The group is named after its first item, in that item's case.
		name, err := r.path(e, b[0], def)
		if err != nil {
			return nil, err
		}
		group = &List{Items: []any{e}}
		out.Items = append(out.Items, &List{Items: []any{name, group}, tuple: true, group: true})
	}
	return out, nil
}

func sumFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("sum", 0, "attribute", "start")
	if err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	var total any = int64(0)
	if given(b[1]) {
		total = b[1]
	}
	if _, ok := text(total); ok {
		return nil, errors.New("sum() can't sum strings")
	}
	for _, e := range items {
		if given(b[0]) && b[0] != nil {
			if e, err = r.path(e, b[0], nil); err != nil {
				return nil, err
			}
		}
		if total, err = r.binary("+", total, e); err != nil {
			return nil, err
		}
	}
	return total, nil
}

func absFilter(r *run, v any, a *args) (any, error) {
	if _, err := a.bind("abs", 0); err != nil {
		return nil, err
	}
	if f, ok := v.(float64); ok {
		return math.Abs(f), nil
	}
	if i, ok := toBig(v); ok {
		return normalize(new(big.Int).Abs(i)), nil
	}
	return nil, fmt.Errorf("bad operand type for abs(): '%s'", typeName(v))
}

func attrFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("attr", 1, "name")
	if err != nil {
		return nil, err
	}
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	name, ok := text(b[0])
	if !ok {
		return undefinedItem(v, b[0]), nil
	}
	// Unlike a dot, the filter never looks at keys.
	if x, ok, err := r.attribute(v, name); ok || err != nil {
		return x, err
	}
	return undefinedItem(v, name), nil
}

func intFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("int", 0, "default", "base")
	if err != nil {
		return nil, err
	}
	var def any = int64(0)
	if given(b[0]) {
		def = b[0]
	}
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	if s, ok := text(v); ok {
		base := int64(10)
		if given(b[1]) {
			if base, ok = toInt(b[1]); !ok {
				return def, nil
			}
		}
		if i, ok := parseInt(s, int(base)); ok {
			return i, nil
		}
		f, ok := parseFloat(s)
		if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
			return def, nil
		}
		return truncFloat(f), nil
	}
	if i, ok := toBig(v); ok {
		return normalize(i), nil
	}
	if f, ok := v.(float64); ok {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return def, nil
		}
		return truncFloat(f), nil
	}
	return def, nil
}

func truncFloat(f float64) any {
	i, _ := big.NewFloat(math.Trunc(f)).Int(nil)
	return normalize(i)
}

// parseInt is Python's int(s, base) for the text forms templates meet.
func parseInt(s string, base int) (any, bool) {
	s = strings.TrimFunc(s, isSpace)
	if len(s) > 400 || base < 0 || base == 1 || base > 36 {
		return nil, false
	}
	neg := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(strings.TrimPrefix(s, "-"), "+")
	if len(s) > 2 && s[0] == '0' {
		p := map[byte]int{'x': 16, 'X': 16, 'o': 8, 'O': 8, 'b': 2, 'B': 2}[s[1]]
		if p > 0 && (p == base || base == 0) {
			s, base = s[2:], p
		}
	}
	if base == 0 {
		base = 10
	}
	if s == "" || s[0] == '_' || s[0] == '-' || s[0] == '+' || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return nil, false
	}
	i, ok := new(big.Int).SetString(strings.ReplaceAll(s, "_", ""), base)
	if !ok {
		return nil, false
	}
	if neg {
		i.Neg(i)
	}
	return normalize(i), true
}

func parseFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, isSpace)
	if strings.ContainsAny(s, "xXpP") { // hexadecimal floats are Go's, not Python's
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if errors.Is(err, strconv.ErrRange) {
		err = nil
	}
	return f, err == nil
}

func floatFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("float", 0, "default")
	if err != nil {
		return nil, err
	}
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	if f, ok := toFloat(v); ok {
		return f, nil
	}
	if s, ok := text(v); ok {
		if f, ok := parseFloat(s); ok {
			return f, nil
		}
	}
	if given(b[0]) {
		return b[0], nil
	}
	return 0.0, nil
}

func roundFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("round", 0, "precision", "method")
	if err != nil {
		return nil, err
	}
	prec := int64(0)
	if given(b[0]) {
		var ok bool
		if prec, ok = toInt(b[0]); !ok || prec < -300 || prec > 300 {
			return nil, errors.New("round: bad precision")
		}
	}
	how := "common"
	if given(b[1]) {
		how, _ = text(b[1])
	}
	f, ok := toFloat(v)
	if !ok {
		return nil, fmt.Errorf("type %s doesn't define __round__ method", typeName(v))
	}
	scale := math.Pow(10, float64(prec))
	switch how {
	case "common":
		if i, isInt := toBig(v); isInt && prec >= 0 {
			return normalize(i), nil
		}
		if prec >= 0 {
			// Formatting rounds half to even on the exact value, as Python does.
			f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(prec), 64), 64)
			return f, nil
		}
		f = math.RoundToEven(f*scale) / scale
		if _, isInt := toBig(v); isInt {
			return truncFloat(f), nil
		}
		return f, nil
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	return nil, errors.New("round: method must be common, ceil or floor")
}

func indentFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("indent", 0, "width", "first", "blank")
	if err != nil {
		return nil, err
	}
	pad := "    "
	if given(b[0]) {
		if s, ok := text(b[0]); ok {
			pad = s
		} else if n, ok := toInt(b[0]); ok && n <= 10000 {
			pad = strings.Repeat(" ", int(max(n, 0)))
		} else {
			return nil, errors.New("indent: bad width")
		}
	}
	s, ok := text(v)
	if !ok {
		if u, ok := v.(undefined); ok {
			return nil, u.err()
		}
		return nil, fmt.Errorf("indent: needs a string, not %s", typeName(v))
	}
	blank := given(b[2]) && truth(b[2])
	lines := splitLines(s+"\n", false)
	if err := r.charge(2*len(s) + len(lines)*(len(pad)+17)); err != nil {
		return nil, err
	}
	for i := range lines {
		if i > 0 && (blank || lines[i] != "") {
			lines[i] = pad + lines[i]
		}
	}
	out := strings.Join(lines, "\n")
	if given(b[1]) && truth(b[1]) {
		out = pad + out
	}
	return like(v, out), nil
}

func centerFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("center", 0, "width")
	if err != nil {
		return nil, err
	}
	width := int64(80)
	if given(b[0]) {
		var ok bool
		if width, ok = toInt(b[0]); !ok {
			return nil, errors.New("center: bad width")
		}
	}
	s, err := r.str(v)
	if err != nil {
		return nil, err
	}
	s, err = r.pad(s, width, " ", "center")
	return like(v, s), err
}

func formatFilter(r *run, v any, a *args) (any, error) {
	if len(a.pos) > 0 && len(a.kw) > 0 {
		return nil, errors.New("format: can't handle positional and keyword arguments at the same time")
	}
	s, err := r.str(v)
	if err != nil {
		return nil, err
	}
	if len(a.kw) > 0 {
		d := NewDict()
		for _, k := range a.kw {
			d.Set(k.name, k.v)
		}
		return r.percent(like(v, s), d)
	}
	return r.percent(like(v, s), &List{Items: a.pos, tuple: true})
}

func batchFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("batch", 1, "linecount", "fill_with")
	if err != nil {
		return nil, err
	}
	n, ok := toInt(b[0])
	if !ok || n < 1 || n > 1<<20 {
		return nil, errors.New("batch: bad count")
	}
	return r.lazy("do_batch", v, func(v any) ([]any, error) {
		items, err := r.iterate(v)
		if err != nil {
			return nil, err
		}
		if err := r.charge(16 * (len(items) + int(n))); err != nil {
			return nil, err
		}
		var out []any
		for chunk := range slices.Chunk(items, int(n)) {
			row := slices.Clone(chunk)
			if given(b[1]) && b[1] != nil {
				for len(row) < int(n) {
					row = append(row, b[1])
				}
			}
			out = append(out, &List{Items: row})
		}
		return out, nil
	}, nil), nil
}

func sliceFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("slice", 1, "slices", "fill_with")
	if err != nil {
		return nil, err
	}
	n, ok := toInt(b[0])
	if !ok || n < 1 || n > 1<<20 {
		return nil, errors.New("slice: bad count")
	}
	return r.lazy("sync_do_slice", v, func(v any) ([]any, error) {
		items, err := r.iterate(v)
		if err != nil {
			return nil, err
		}
		if err := r.charge(64*int(n) + 16*len(items)); err != nil {
			return nil, err
		}
		per, extra := len(items)/int(n), len(items)%int(n)
		var out []any
		for i := range int(n) {
			k := per
			if i < extra {
				k++
			}
			row := slices.Clone(items[:k])
			items = items[k:]
			if given(b[1]) && b[1] != nil && i >= extra {
				row = append(row, b[1])
			}
			out = append(out, &List{Items: row})
		}
		return out, nil
	}, nil), nil
}

func truncateFilter(r *run, v any, a *args) (any, error) {
	b, err := a.bind("truncate", 0, "length", "killwords", "end", "leeway")
	if err != nil {
		return nil, err
	}
	length, leeway, end := int64(255), int64(5), "..."
	ok1, ok2, ok3 := true, true, true
	if given(b[0]) {
		length, ok1 = toInt(b[0])
	}
	if given(b[2]) {
		end, ok2 = text(b[2])
	}
	if given(b[3]) && b[3] != nil {
		leeway, ok3 = toInt(b[3])
	}
	endLen := int64(utf8.RuneCountInString(end))
	if !ok1 || !ok2 || !ok3 || length < endLen || leeway < 0 {
		return nil, errors.New("truncate: bad arguments")
	}
	size, err := lengthOf(v)
	if err != nil {
		return nil, err
	}
	if size <= length+leeway {
		return v, nil
	}
	s, ok := text(v)
	if !ok {
		return nil, fmt.Errorf("truncate: needs a string, not %s", typeName(v))
	}
	n := int(size)
	s = substring(s, n, 0, length-endLen)
	if !given(b[1]) || !truth(b[1]) {
		if i := strings.LastIndexByte(s, ' '); i >= 0 {
			s = s[:i]
		}
	}
	return like(v, s+end), r.charge(len(s) + len(end))
}

func wordcountFilter(r *run, v any, a *args) (any, error) {
	s, err := r.str(v)
	if err != nil {
		return nil, err
	}
	if err := r.charge(len(s)); err != nil {
		return nil, err
	}
	words := strings.FieldsFunc(s, func(c rune) bool {
		return c != '_' && !unicode.IsLetter(c) && !unicode.IsNumber(c)
	})
	return int64(len(words)), nil
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
