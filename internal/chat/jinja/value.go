package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// Values a template works with:
//
//	nil                  None
//	bool, int64, float64
//	*big.Int             an integer beyond int64: printed, compared, not calculated with
//	string
//	Markup               a string marked safe; concatenation escapes what joins it
//	*List                list, tuple, range or what items(), keys() and values() of a dictionary return
//	*Dict                dictionary in insertion order
//
// and values that only templates create: undefined, *namespace, *loopVar, *macro, *function and *generator.
//
// Every operation on values either succeeds or panics with an [*Error], which
// Render returns, as text/template does: most of them can fail, at any depth.

// Markup is a string that went through |safe or |escape.
type Markup string

// List is a Python sequence.
type List struct {
	Items []any
	kind  listKind
}

type listKind string

const (
	isList   listKind = ""
	isTuple  listKind = "tuple"
	isRange  listKind = "range"
	isItems  listKind = "dict_items" // this one and the next two have a length but no elements by index
	isKeys   listKind = "dict_keys"
	isValues listKind = "dict_values"
)

// indexed reports whether l[i] exists.
func (l *List) indexed() bool { return l.kind == isList || l.kind == isTuple || l.kind == isRange }

// NewList returns a list of the items, which must be values of this package.
func NewList(items ...any) *List { return &List{Items: items} }

// Dict is a dictionary that keeps insertion order, as Python's does. Templates
// print tools and arguments in the order the request gave.
type Dict struct {
	keys   []any
	values []any
	index  map[any]int
}

// NewDict returns an empty dictionary.
func NewDict() *Dict { return &Dict{index: map[any]int{}} }

// Set stores v under a string key; an existing key keeps its place.
func (d *Dict) Set(key string, v any) { d.set(key, key, v) }

// Get returns the value under a string key.
func (d *Dict) Get(key string) (any, bool) {
	if i, ok := d.index[key]; ok {
		return d.values[i], true
	}
	return nil, false
}

// Merge stores everything that from holds, in its order.
func (d *Dict) Merge(from *Dict) {
	for i, key := range from.keys {
		d.set(hashKey(key), key, from.values[i])
	}
}

// MapStrings returns a deep copy of a value with every string replaced by f of
// it, keys included. Keys that become the same stay apart where the dictionary is shown.
func MapStrings(v any, f func(string) string) any {
	switch v := v.(type) {
	case string:
		return f(v)
	case *List:
		out := &List{Items: make([]any, len(v.Items)), kind: v.kind}
		for i, e := range v.Items {
			out.Items[i] = MapStrings(e, f)
		}
		return out
	case *Dict:
		out := NewDict()
		for i, k := range v.keys {
			key := MapStrings(k, f)
			out.index[hashKey(key)] = i
			out.keys = append(out.keys, key)
			out.values = append(out.values, MapStrings(v.values[i], f))
		}
		return out
	}
	return v
}

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

func (d *Dict) set(hash, key, v any) {
	if i, ok := d.index[hash]; ok {
		d.values[i] = v
		return
	}
	d.index[hash] = len(d.keys)
	d.keys = append(d.keys, key)
	d.values = append(d.values, v)
}

func (d *Dict) lookup(key any) (any, bool) {
	if i, ok := d.index[hashKey(key)]; ok {
		return d.values[i], true
	}
	return nil, false
}

type noneKey struct{}
type undefinedKey struct{}
type tupleKey string

// hashKey maps a value to a comparable Go value such that equal Python keys
// collide: 1, 1.0 and True are one key.
func hashKey(v any) any { return hashNested(v, 0) }

func hashNested(v any, depth int) any {
	switch v := v.(type) {
	case nil:
		return noneKey{}
	case string, int64, *macro, *function, *namespace, *loopVar, *generator:
		return v
	case Markup:
		return string(v)
	case bool:
		i, _ := toInt(v)
		return i
	case *big.Int:
		return tupleKey("int:" + v.String())
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<62 {
			return int64(v)
		}
		return v
	case undefined:
		return undefinedKey{}
	case *List:
		if v.kind != isTuple {
			break
		}
		var b strings.Builder
		for _, e := range v.Items {
			if depth > 20 || b.Len() > 1<<16 {
				panic(limitError("tuple is too large for a key"))
			}
			h := hashNested(e, depth+1)
			fmt.Fprintf(&b, "%T:%q,", h, fmt.Sprint(h))
		}
		return tupleKey(b.String())
	}
	panic(errorf("unhashable type: '%s'", typeName(v)))
}

// undefined is the value of a name, key or attribute that does not exist. It
// prints as nothing, is false and empty, and fails on any other use.
type undefined struct {
	msg string
}

// mustDefined fails if one of the values is undefined.
func mustDefined(values ...any) {
	for _, v := range values {
		if u, ok := v.(undefined); ok {
			panic(errorf("%s", u.msg))
		}
	}
}

func isUndefined(v any) bool { _, ok := v.(undefined); return ok }

// undefinedItem is the result of looking up a key or attribute that obj lacks.
func undefinedItem(obj, key any) undefined {
	owner := typeName(obj) + " object"
	if obj == nil {
		owner = "None"
	}
	if k, ok := text(key); ok {
		return undefined{fmt.Sprintf("'%s' has no attribute %s", owner, pyQuote(clip(k)))}
	}
	if k, ok := key.(int64); ok {
		return undefined{fmt.Sprintf("%s has no element %d", owner, k)}
	}
	return undefined{fmt.Sprintf("%s has no such element", owner)}
}

type namespace struct{ d *Dict }

// function is a builtin or a bound method.
type function struct {
	name string
	call func(r *run, a *args) any
}

// generator is what lazy filters return: true whatever it holds, without a
// length, and used up after one pass.
type generator struct {
	name string
	next func() (v any, ok bool)
}

func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case Markup:
		return "Markup"
	case *List:
		if v.kind == isList {
			return "list"
		}
		return string(v.kind)
	case *Dict:
		return "dict"
	case undefined:
		return "Undefined"
	case *namespace:
		return "Namespace"
	case *macro:
		return "Macro"
	case *loopVar:
		return "LoopContext"
	case *generator:
		return "generator"
	}
	return "function"
}

// text returns the string of a string-like value.
func text(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case Markup:
		return string(v), true
	}
	return "", false
}

// needText returns the string of an argument that must be one.
func needText(what string, v any) string {
	mustDefined(v)
	s, ok := text(v)
	if !ok {
		panic(errorf("%s must be str, not %s", what, typeName(v)))
	}
	return s
}

// needInt returns the number of an argument that must be an integer.
func needInt(what string, v any) int64 {
	mustDefined(v)
	i, ok := toInt(v)
	if !ok {
		panic(errorf("%s must be an integer, not %s", what, typeName(v)))
	}
	return i
}

// like gives s the string type of v, as Markup's methods do.
func like(v any, s string) any {
	if _, ok := v.(Markup); ok {
		return Markup(s)
	}
	return s
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case Markup:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

func toInt(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return f, true
	}
	i, ok := toInt(v)
	return float64(i), ok
}

// pyFloat formats a float as Python's repr does.
func pyFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// pyQuote is Python's repr of a string.
func pyQuote(s string) string {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, "\"") {
		q = '"'
	}
	var b strings.Builder
	b.Grow(len(s) + 2)
	b.WriteByte(q)
	for _, r := range s {
		switch {
		case r == rune(q) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x7f || r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xff:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte(q)
	return b.String()
}

// str is Python's str(v), charged to the run's budget.
func (r *run) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case Markup:
		return string(v)
	case undefined:
		return ""
	case nil, bool, int64, float64, *big.Int:
		return scalarRepr(v)
	}
	return r.repr(v)
}

func scalarRepr(v any) string {
	switch v := v.(type) {
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int64:
		return strconv.FormatInt(v, 10)
	case *big.Int:
		return v.String()
	case float64:
		return pyFloat(v)
	}
	return "None"
}

// repr is Python's repr(v).
func (r *run) repr(v any) string {
	var b strings.Builder
	r.writeRepr(&b, v, 0)
	return b.String()
}

// writeRepr appends repr(v). Values can share parts, so depth and size are
// checked while writing.
func (r *run) writeRepr(b *strings.Builder, v any, depth int) {
	r.spend(1)
	r.charge(16)
	r.nested(depth)
	put := func(s string) {
		b.WriteString(s)
		r.charge(len(s))
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, *big.Int:
		put(scalarRepr(v))
	case undefined:
		put("Undefined")
	case string:
		put(pyQuote(v))
	case Markup:
		put("Markup(" + pyQuote(string(v)) + ")")
	case *List:
		r.reprList(b, v, depth)
	case *Dict:
		r.reprDict(b, v, depth)
	case *namespace:
		b.WriteString("<Namespace ")
		r.reprDict(b, v.d, depth+1)
		put(">")
	case *macro:
		put("<Macro " + pyQuote(v.m.name) + ">")
	case *generator:
		put("<generator object " + v.name + ">")
	default:
		panic(errorf("printing a %s is not supported", typeName(v)))
	}
}

func (r *run) reprList(b *strings.Builder, l *List, depth int) {
	open, end := "[", "]"
	switch {
	case l.kind == isRange:
		panic(errorf("printing a range is not supported: use range(...)|list"))
	case l.kind == isTuple && len(l.Items) == 1:
		open, end = "(", ",)"
	case l.kind == isTuple:
		open, end = "(", ")"
	case l.kind != isList:
		open, end = string(l.kind)+"([", "])"
	}
	b.WriteString(open)
	for i, e := range l.Items {
		if i > 0 {
			b.WriteString(", ")
		}
		r.writeRepr(b, e, depth+1)
	}
	b.WriteString(end)
	r.charge(len(end))
}

func (r *run) reprDict(b *strings.Builder, d *Dict, depth int) {
	b.WriteByte('{')
	for i, k := range d.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		r.writeRepr(b, k, depth+1)
		b.WriteString(": ")
		r.writeRepr(b, d.values[i], depth+1)
	}
	b.WriteByte('}')
	r.charge(2 + 4*len(d.keys))
}
