package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Values a template works with:
//
//	nil                  None
//	bool, int64, float64
//	*big.Int             an integer beyond int64: printed, compared, not calculated with
//	string
//	Markup               a string marked safe; concatenation escapes what joins it
//	*List                list or tuple
//	*Dict                dictionary in insertion order
//
// and, made by templates only, undefined, *namespace, *loopVar, *macro,
// *function, *generator, *view and rangeValue.

// Markup is a string that went through |safe or |escape.
type Markup string

// List is a Python list or tuple.
type List struct {
	Items []any
	tuple bool
	group bool // a groupby result: items are also .grouper and .list
}

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
		if h, err := hashKey(key); err == nil { // always: it was hashed when from took it
			d.set(h, key, from.values[i])
		}
	}
}

// MapStrings returns a deep copy of a value with every string replaced by f of
// it, keys included. Keys that become the same stay apart where the dictionary is shown.
func MapStrings(v any, f func(string) string) any {
	switch v := v.(type) {
	case string:
		return f(v)
	case *List:
		out := &List{Items: make([]any, len(v.Items)), tuple: v.tuple}
		for i, e := range v.Items {
			out.Items[i] = MapStrings(e, f)
		}
		return out
	case *Dict:
		out := NewDict()
		for i, k := range v.keys {
			key := MapStrings(k, f)
			if h, err := hashKey(key); err == nil { // always: k was hashed when v took it
				out.index[h] = i
			}
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

func (d *Dict) lookup(key any) (any, bool, error) {
	h, err := hashKey(key)
	if err != nil {
		return nil, false, err
	}
	if i, ok := d.index[h]; ok {
		return d.values[i], true, nil
	}
	return nil, false, nil
}

type noneKey struct{}
type undefinedKey struct{}
type tupleKey string

// hashKey maps a value to a comparable Go value such that equal Python keys
// collide: 1, 1.0 and True are one key.
func hashKey(v any) (any, error) { return hashNested(v, 0) }

func hashNested(v any, depth int) (any, error) {
	switch v := v.(type) {
	case nil:
		return noneKey{}, nil
	case string:
		return v, nil
	case Markup:
		return string(v), nil
	case bool:
		if v {
			return int64(1), nil
		}
		return int64(0), nil
	case int64:
		return v, nil
	case *big.Int:
		return tupleKey("int:" + v.String()), nil
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<62 {
			return int64(v), nil
		}
		return v, nil
	case undefined:
		return undefinedKey{}, nil
	case *List:
		if v.tuple {
			var b strings.Builder
			for _, e := range v.Items {
				if depth > 20 || b.Len() > 1<<16 {
					return nil, limitError("tuple is too large for a key")
				}
				h, err := hashNested(e, depth+1)
				if err != nil {
					return nil, err
				}
				fmt.Fprintf(&b, "%T:%q,", h, fmt.Sprint(h))
			}
			return tupleKey(b.String()), nil
		}
	case *macro, *function, *namespace, *loopVar, *generator:
		return v, nil
	}
	return nil, fmt.Errorf("unhashable type: '%s'", typeName(v))
}

// undefined is the value of a name, key or attribute that does not exist. It
// prints as nothing, is false and empty, and fails on any other use.
type undefined struct {
	msg string
}

func (u undefined) err() error { return errors.New(u.msg) }

func undefinedName(name string) undefined {
	return undefined{pyQuote(name) + " is undefined"}
}

// undefinedItem is the result of looking up a key or attribute that obj lacks.
func undefinedItem(obj, key any) undefined {
	owner := typeName(obj) + " object"
	if obj == nil {
		owner = "None"
	}
	switch k := key.(type) {
	case string:
		return undefined{fmt.Sprintf("'%s' has no attribute %s", owner, pyQuote(clip(k)))}
	case Markup:
		return undefinedItem(obj, string(k))
	case int64:
		return undefined{fmt.Sprintf("%s has no element %d", owner, k)}
	}
	return undefined{fmt.Sprintf("%s has no such element", owner)}
}

func unsafeAttr(obj any, name string) undefined {
	return undefined{fmt.Sprintf("access to attribute %s of '%s' object is unsafe.", pyQuote(clip(name)), typeName(obj))}
}

type namespace struct{ d *Dict }

// function is a builtin or a bound method.
type function struct {
	name string
	call func(r *run, a *args) (any, error)
	// attrs are the attributes of a stateful builtin such as a cycler.
	attrs map[string]*function
}

// generator is what lazy filters return: true whatever it holds, without a
// length, and gone after one pass.
type generator struct {
	name string
	next func() (v any, ok bool, err error)
}

// view is what dict.items(), keys() and values() return: it has a length and
// can be looped over but not indexed.
type view struct {
	kind  string
	items []any
}

type rangeValue struct{ lo, n, step int64 }

func (v rangeValue) at(i int64) int64 { return v.lo + i*v.step }

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
		if v.tuple {
			return "tuple"
		}
		return "list"
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
	case *view:
		return v.kind
	case rangeValue:
		return "range"
	case *function:
		return "function"
	}
	return "object"
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
	case *view:
		return len(v.items) > 0
	case rangeValue:
		return v.n > 0
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
func (r *run) str(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case Markup:
		return string(v), nil
	case undefined:
		return "", nil
	case nil:
		return "None", nil
	case bool, int64, float64, *big.Int:
		return scalarRepr(v), nil
	}
	var b strings.Builder
	if err := r.repr(&b, v, 0); err != nil {
		return "", err
	}
	return b.String(), nil
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

// repr appends Python's repr(v). Values can share parts, so depth and size are
// checked while writing.
func (r *run) repr(b *strings.Builder, v any, depth int) error {
	if err := r.step(); err != nil {
		return err
	}
	if err := r.charge(16); err != nil {
		return err
	}
	if err := r.nested(depth); err != nil {
		return err
	}
	put := func(s string) error {
		b.WriteString(s)
		return r.charge(len(s))
	}
	seq := func(open string, items []any, end string) error {
		b.WriteString(open)
		for i, e := range items {
			if i > 0 {
				b.WriteString(", ")
			}
			if err := r.repr(b, e, depth+1); err != nil {
				return err
			}
		}
		return put(end)
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, *big.Int:
		return put(scalarRepr(v))
	case undefined:
		return put("Undefined")
	case string:
		return put(pyQuote(v))
	case Markup:
		return put("Markup(" + pyQuote(string(v)) + ")")
	case *List:
		switch {
		case !v.tuple:
			return seq("[", v.Items, "]")
		case len(v.Items) == 1:
			return seq("(", v.Items, ",)")
		}
		return seq("(", v.Items, ")")
	case *Dict:
		return r.reprDict(b, v, depth)
	case *namespace:
		b.WriteString("<Namespace ")
		if err := r.reprDict(b, v.d, depth+1); err != nil {
			return err
		}
		return put(">")
	case *view:
		return seq(v.kind+"([", v.items, "])")
	case rangeValue:
		if v.step == 1 {
			return put(fmt.Sprintf("range(%d, %d)", v.lo, v.at(v.n)))
		}
		return put(fmt.Sprintf("range(%d, %d, %d)", v.lo, v.at(v.n), v.step))
	case *macro:
		return put("<Macro " + pyQuote(v.m.name) + ">")
	case *generator:
		return put("<generator object " + v.name + ">")
	case *function:
		return put("<function " + v.name + ">")
	case *loopVar:
		return put(fmt.Sprintf("<LoopContext %d/%d>", v.i+1, len(v.items)))
	}
	return put("<object>")
}

func (r *run) reprDict(b *strings.Builder, d *Dict, depth int) error {
	b.WriteByte('{')
	for i, k := range d.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := r.repr(b, k, depth+1); err != nil {
			return err
		}
		b.WriteString(": ")
		if err := r.repr(b, d.values[i], depth+1); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return r.charge(2 + 4*len(d.keys))
}

// equal is Python's ==.
func (r *run) equal(a, b any, depth int) (bool, error) {
	if err := r.step(); err != nil {
		return false, err
	}
	if err := r.nested(depth); err != nil {
		return false, err
	}
	if x, ok := a.(*big.Int); ok {
		if y, ok := b.(*big.Int); ok {
			return x.Cmp(y) == 0, nil
		}
	}
	if i, ok := toInt(a); ok {
		if j, ok := toInt(b); ok {
			return i == j, nil
		}
	}
	if x, ok := toFloat(a); ok {
		y, ok := toFloat(b)
		return ok && x == y, nil
	}
	if s, ok := text(a); ok {
		t, ok := text(b)
		if !ok || len(s) != len(t) {
			return false, nil
		}
		return s == t, r.touch(s)
	}
	switch a := a.(type) {
	case nil:
		return b == nil, nil
	case undefined:
		_, ok := b.(undefined)
		return ok, nil
	case *List:
		l, ok := b.(*List)
		if !ok || len(l.Items) != len(a.Items) || l.tuple != a.tuple {
			return false, nil
		}
		if a == l {
			return true, nil
		}
		for i := range a.Items {
			if ok, err := r.equal(a.Items[i], l.Items[i], depth+1); !ok || err != nil {
				return false, err
			}
		}
		return true, nil
	case *Dict:
		d, ok := b.(*Dict)
		if !ok || len(d.keys) != len(a.keys) {
			return false, nil
		}
		if a == d {
			return true, nil
		}
		for h, i := range a.index {
			j, ok := d.index[h]
			if !ok {
				return false, nil
			}
			if ok, err := r.equal(a.values[i], d.values[j], depth+1); !ok || err != nil {
				return false, err
			}
		}
		return true, nil
	case rangeValue:
		return a == b, nil
	}
	return same(a, b), nil
}

// same is Python's "is" for the values that have an identity.
func same(a, b any) bool {
	switch a := a.(type) {
	case nil:
		return b == nil
	case bool, int64, float64, string, Markup, rangeValue:
		return a == b
	case *List:
		x, ok := b.(*List)
		return ok && a == x
	case *Dict:
		x, ok := b.(*Dict)
		return ok && a == x
	case *namespace:
		x, ok := b.(*namespace)
		return ok && a == x
	case *macro:
		x, ok := b.(*macro)
		return ok && a == x
	case *function:
		x, ok := b.(*function)
		return ok && a == x
	case *generator:
		x, ok := b.(*generator)
		return ok && a == x
	case *loopVar:
		x, ok := b.(*loopVar)
		return ok && a == x
	case *view:
		x, ok := b.(*view)
		return ok && a == x
	}
	return false
}

// order compares with <: -1, 0 or 1, or an error for values without an order.
func (r *run) order(op string, a, b any, depth int) (int, error) {
	if err := r.step(); err != nil {
		return 0, err
	}
	if err := r.nested(depth); err != nil {
		return 0, err
	}
	for _, v := range []any{a, b} {
		if u, ok := v.(undefined); ok {
			return 0, u.err()
		}
	}
	if i, ok := toInt(a); ok {
		if j, ok := toInt(b); ok {
			return sign(i < j, i > j), nil
		}
	}
	if x, ok := toFloat(a); ok {
		if y, ok := toFloat(b); ok {
			return sign(x < y, x > y), nil
		}
	}
	if s, ok := text(a); ok {
		if t, ok := text(b); ok {
			return strings.Compare(s, t), r.touch(s[:min(len(s), len(t))])
		}
	}
	if x, ok := a.(*List); ok {
		if y, ok := b.(*List); ok && x.tuple == y.tuple {
			for i := range min(len(x.Items), len(y.Items)) {
				eq, err := r.equal(x.Items[i], y.Items[i], depth+1)
				if err != nil {
					return 0, err
				}
				if !eq {
					return r.order(op, x.Items[i], y.Items[i], depth+1)
				}
			}
			return sign(len(x.Items) < len(y.Items), len(x.Items) > len(y.Items)), nil
		}
	}
	return 0, fmt.Errorf("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
}

func sign(less, more bool) int {
	switch {
	case less:
		return -1
	case more:
		return 1
	}
	return 0
}

// iterate returns what a loop over v visits. A generator is used up by it.
func (r *run) iterate(v any) ([]any, error) {
	switch v := v.(type) {
	case undefined:
		return nil, nil
	case string:
		return r.chars(v)
	case Markup:
		return r.chars(string(v))
	case *List:
		return v.Items, nil
	case *Dict:
		return v.keys, nil
	case *view:
		return v.items, nil
	case rangeValue:
		if err := r.charge(int(v.n) * 16); err != nil {
			return nil, err
		}
		out := make([]any, v.n)
		for i := range out {
			out[i] = v.at(int64(i))
		}
		return out, nil
	case *generator:
		var out []any
		for {
			e, ok, err := v.next()
			if err != nil {
				return nil, err
			}
			if !ok {
				return out, nil
			}
			if err := r.charge(16); err != nil {
				return nil, err
			}
			out = append(out, e)
		}
	}
	return nil, fmt.Errorf("'%s' object is not iterable", typeName(v))
}

func (r *run) chars(s string) ([]any, error) {
	if err := r.charge(len(s) * 17); err != nil {
		return nil, err
	}
	out := make([]any, 0, len(s))
	for i, n := 0, 0; i < len(s); i += n {
		_, n = utf8.DecodeRuneInString(s[i:])
		out = append(out, s[i:i+n])
	}
	return out, nil
}

func iterable(v any) bool {
	switch v.(type) {
	case undefined, string, Markup, *List, *Dict, *view, rangeValue, *generator:
		return true
	}
	return false
}

func lengthOf(v any) (int64, error) {
	switch v := v.(type) {
	case string:
		return int64(utf8.RuneCountInString(v)), nil
	case Markup:
		return int64(utf8.RuneCountInString(string(v))), nil
	case *List:
		return int64(len(v.Items)), nil
	case *Dict:
		return int64(len(v.keys)), nil
	case *view:
		return int64(len(v.items)), nil
	case rangeValue:
		return v.n, nil
	case *loopVar:
		return int64(len(v.items)), nil
	case undefined:
		return 0, nil
	}
	return 0, fmt.Errorf("object of type '%s' has no len()", typeName(v))
}

// contains is Python's "v in c".
func (r *run) contains(c, v any) (bool, error) {
	switch c := c.(type) {
	case string, Markup:
		s, _ := text(c)
		t, ok := text(v)
		if !ok {
			return false, fmt.Errorf("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		// Searching costs time in proportion to the text, not one step.
		if err := r.touch(s, t); err != nil {
			return false, err
		}
		return strings.Contains(s, t), nil
	case *Dict:
		if err := r.touch(v); err != nil {
			return false, err
		}
		_, ok, err := c.lookup(v)
		return ok, err
	case undefined, *List, *view, rangeValue, *generator:
		items, err := r.iterate(c)
		if err != nil {
			return false, err
		}
		for _, e := range items {
			ok, err := r.equal(e, v, 0)
			if ok || err != nil {
				return ok, err
			}
		}
		return false, nil
	}
	return false, fmt.Errorf("argument of type '%s' is not iterable", typeName(c))
}
