package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"slices"
	"strings"
)

// Error is a schema that cannot be turned into a grammar.
type Error struct {
	Path string // JSON pointer to the keyword, "#" for the root
	Msg  string
}

func (e *Error) Error() string { return "schema " + e.Path + ": " + e.Msg }

func errAt(path, format string, args ...any) *Error {
	return &Error{path, fmt.Sprintf(format, args...)}
}

const (
	maxSchema      = 1 << 20
	maxSchemaDepth = 128
	maxRefs        = 64
	maxWork        = 20_000 // schemas compiled or merged
)

// object is a JSON object with its keys in order: properties are generated in
// the order the schema lists them.
type object struct {
	keys []string
	m    map[string]any // values are *object, []any, string, json.Number, bool or nil
	// path is where the object stands in the schema.
	path string
}

func (o *object) get(k string) (any, bool) { v, ok := o.m[k]; return v, ok }

func (o *object) set(k string, v any) {
	if _, ok := o.m[k]; !ok {
		o.keys = append(o.keys, k)
	}
	o.m[k] = v
}

func (o *object) at(key string) string { return o.path + "/" + pointer(key) }

// with returns a shallow copy without the given keys.
func (o *object) without(keys ...string) *object {
	out := &object{m: map[string]any{}, path: o.path}
	for _, k := range o.keys {
		if !slices.Contains(keys, k) {
			out.set(k, o.m[k])
		}
	}
	return out
}

func pointer(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

// decodeSchema reads JSON with the order of keys and exact numbers.
func decodeSchema(data []byte) any {
	if len(data) > maxSchema {
		panic(errAt("#", "%d bytes are over the limit of %d", len(data), maxSchema))
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decodeValue(d, "#", 0)
	if err == nil {
		if _, e := d.Token(); e != io.EOF {
			err = errors.New("text after the schema")
		}
	}
	if err != nil {
		panic(errAt("#", "not JSON: %v", err))
	}
	return v
}

func decodeValue(d *json.Decoder, path string, depth int) (any, error) {
	if depth > maxSchemaDepth {
		panic(errAt("#", "nested more than %d levels deep", maxSchemaDepth))
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			list := []any{}
			for d.More() {
				v, err := decodeValue(d, fmt.Sprintf("%s/%d", path, len(list)), depth+1)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := d.Token()
			return list, err
		}
		o := &object{m: map[string]any{}, path: path}
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			key := k.(string) // the decoder accepts no other kind of key
			v, err := decodeValue(d, path+"/"+pointer(key), depth+1)
			if err != nil {
				return nil, err
			}
			o.set(key, v)
		}
		_, err := d.Token()
		return o, err
	}
	return t, nil
}

// annotations say nothing about which values are allowed, or nothing that is
// enforced here (format).
var annotations = map[string]bool{
	"$schema": true, "$id": true, "id": true, "$comment": true, "$anchor": true, "$defs": true, "definitions": true,
	"$vocabulary": true,
	"title":       true, "description": true, "default": true, "examples": true, "example": true, "deprecated": true,
	"readOnly": true, "writeOnly": true, "format": true, "contentEncoding": true, "contentMediaType": true,
	"contentSchema": true,
	"nullable":      true, "discriminator": true, "strict": true,
}

// unsupported change the language and are not understood. Keywords known to
// no one are annotations, as JSON Schema says.
var unsupported = map[string]bool{
	"not": true, "if": true, "dependentRequired": true, "dependentSchemas": true, "dependencies": true,
	"$dynamicRef": true, "$recursiveRef": true,
}

// constraints are all keywords that matter.
var constraints = map[string]bool{
	"$ref": true, "allOf": true, "anyOf": true, "oneOf": true, "type": true, "enum": true, "const": true,
	"properties": true, "required": true, "additionalProperties": true, "patternProperties": true, "propertyNames": true,
	"minProperties": true, "maxProperties": true,
	"unevaluatedProperties": true, "unevaluatedItems": true,
	"items": true, "prefixItems": true, "additionalItems": true, "minItems": true, "maxItems": true, "uniqueItems": true,
	"contains": true, "minLength": true, "maxLength": true, "pattern": true,
	"minimum": true, "maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true, "multipleOf": true,
}

// constrained reports whether the object restricts values at all.
func (o *object) constrained() bool {
	for _, k := range o.keys {
		if constraints[k] || unsupported[k] {
			return true
		}
	}
	return false
}

// resolve follows a local reference.
func (c *compiler) resolve(ref, path string) any {
	if ref == "#" {
		return c.root
	}
	rest, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		panic(errAt(path, "reference %q is not supported, only local ones (#/...) are", ref))
	}
	at := c.root
	for part := range strings.SplitSeq(rest, "/") {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		switch v := at.(type) {
		case *object:
			if at, ok = v.get(part); !ok {
				part, _ = url.PathUnescape(part) // a reference is part of an address
				at, ok = v.get(part)
			}
		case []any:
			var i int
			n, err := fmt.Sscanf(part, "%d", &i)
			if ok = err == nil && n == 1 && i >= 0 && i < len(v); ok {
				at = v[i]
			}
		default:
			ok = false
		}
		if !ok {
			panic(errAt(path, "reference %q leads nowhere", ref))
		}
	}
	return at
}

// flatten returns a schema without $ref and allOf at its top: an *object or a
// boolean.
func (c *compiler) flatten(v any, path string, depth int) any {
	o, ok := v.(*object)
	if !ok {
		if _, isBool := v.(bool); isBool {
			return v
		}
		panic(errAt(path, "must be an object or a boolean"))
	}
	if depth > maxRefs {
		panic(errAt(o.path, "references and allOf are nested too deep or lead back to themselves"))
	}
	c.spend(o.path)
	if ref, ok := o.get("$ref"); ok {
		s, isString := ref.(string)
		if !isString {
			panic(errAt(o.at("$ref"), "must be a string"))
		}
		target := c.resolve(s, o.at("$ref"))
		flat := c.flatten(target, o.at("$ref"), depth+1)
		rest := o.without("$ref")
		if !rest.constrained() {
			return flat
		}
		seesAll(flat)
		more := c.flatten(rest, o.path, depth+1)
		return c.merge(flat, more, o.path)
	}
	if all, ok := o.get("allOf"); ok {
		list, isList := all.([]any)
		if !isList {
			panic(errAt(o.at("allOf"), "must be a list"))
		}
		out := c.flatten(o.without("allOf"), o.path, depth+1)
		for i, sub := range list {
			flat := c.flatten(sub, fmt.Sprintf("%s/%d", o.at("allOf"), i), depth+1)
			if outer, _ := out.(*object); len(list) > 1 || outer != nil && outer.constrained() {
				seesAll(flat)
			}
			out = c.merge(out, flat, o.at("allOf"))
		}
		return out
	}
	return o
}

// merge is the conjunction of two flat schemas.
func (c *compiler) merge(a, b any, path string) any {
	c.spend(path)
	if v, ok := a.(bool); ok {
		if v {
			return b
		}
		return false
	}
	if v, ok := b.(bool); ok {
		if v {
			return a
		}
		return false
	}
	x, y := a.(*object), b.(*object)
	if !y.constrained() {
		return x
	}
	if !x.constrained() {
		return y
	}
	additionalMerge(x, y, path)
	out := &object{m: map[string]any{}, path: path}
	for _, k := range x.keys {
		out.set(k, x.m[k])
	}
	for _, k := range y.keys {
		old, both := out.get(k)
		if !both || annotations[k] || !constraints[k] && !unsupported[k] {
			if !both {
				out.set(k, y.m[k])
			}
			continue
		}
		v := mergeKeyword(k, old, y.m[k], path)
		out.set(k, v)
	}
	return c.shared(out)
}

// seesAll refuses a part of a conjunction with keywords about what the part itself says nothing of: in the merged
// schema they would speak of what the other parts say nothing of.
func seesAll(part any) {
	o, _ := part.(*object)
	for _, k := range []string{"unevaluatedProperties", "unevaluatedItems"} {
		if o == nil || o.m[k] == nil || o.m[k] == true {
			continue
		}
		panic(errAt(o.at(k), "inside allOf, anyOf, oneOf or $ref is not supported"))
	}
}

// additionalMerge refuses conjunctions whose additionalProperties or items would have
// to look at both sides.
func additionalMerge(x, y *object, path string) {
	for _, pair := range [][2]*object{{x, y}, {y, x}} {
		if v, ok := pair[0].get("items"); ok && v != true && pair[0].m["prefixItems"] == nil &&
			pair[1].m["prefixItems"] != nil {
			panic(errAt(path, "items together with prefixItems of another part is not supported"))
		}
		ap, ok := pair[0].get("additionalProperties")
		if !ok || ap == true {
			continue
		}
		if v, ok := pair[1].get("patternProperties"); ok && !equal(v, pair[0].m["patternProperties"]) {
			panic(errAt(path, "additionalProperties together with patternProperties of another part is not supported"))
		}
		own, _ := pair[0].m["properties"].(*object)
		other, _ := pair[1].m["properties"].(*object)
		if other == nil {
			continue
		}
		for _, k := range other.keys {
			if own == nil || own.m[k] == nil {
				panic(errAt(path, "additionalProperties together with properties of another part (%q) is not supported", k))
			}
		}
	}
}

func mergeKeyword(k string, a, b any, path string) any {
	where := path + "/" + k
	switch k {
	case "properties":
		x, ok1 := a.(*object)
		y, ok2 := b.(*object)
		if !ok1 || !ok2 {
			panic(errAt(where, "must be an object"))
		}
		out := &object{m: map[string]any{}, path: where}
		for _, n := range x.keys {
			out.set(n, x.m[n])
		}
		for _, n := range y.keys {
			if old, ok := out.get(n); ok {
				out.set(n, allOf(where+"/"+pointer(n), old, y.m[n]))
			} else {
				out.set(n, y.m[n])
			}
		}
		return out
	case "required":
		x, ok1 := a.([]any)
		y, ok2 := b.([]any)
		if !ok1 || !ok2 {
			panic(errAt(where, "must be a list"))
		}
		return append(slices.Clone(x), y...)
	case "type":
		return typeList(typeSet(a, where) & typeSet(b, where))
	case "items", "additionalProperties":
		return allOf(where, a, b)
	case "enum":
		x, ok1 := a.([]any)
		y, ok2 := b.([]any)
		if !ok1 || !ok2 {
			panic(errAt(where, "must be a list"))
		}
		out := []any{}
		for _, v := range x {
			if slices.ContainsFunc(y, func(w any) bool { return equal(v, w) }) {
				out = append(out, v)
			}
		}
		return out
	case "const":
		if equal(a, b) {
			return a
		}
	case "minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties":
		return stricter(a, b, 1, where)
	case "maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties":
		return stricter(a, b, -1, where)
	case "uniqueItems":
		return a == true || b == true
	case "anyOf", "oneOf":
		// Both conditions hold: keep one here and hang the other below.
		panic(errAt(where, "two of them for the same value are not supported"))
	}
	if equal(a, b) {
		return a
	}
	panic(errAt(where, "two different values for the same keyword cannot be combined"))
}

func allOf(path string, schemas ...any) *object {
	return &object{keys: []string{"allOf"}, m: map[string]any{"allOf": schemas}, path: path}
}

// stricter picks the larger (sign 1) or smaller (-1) of two numbers.
func stricter(a, b any, sign int, where string) any {
	x, ok1 := rat(a)
	y, ok2 := rat(b)
	if !ok1 || !ok2 {
		panic(errAt(where, "must be a number"))
	}
	if x.Cmp(y)*sign >= 0 {
		return a
	}
	return b
}

// rat is the exact value of a JSON number. Exponents are bounded: 1e999999999
// would be an integer of that many digits.
func rat(v any) (*big.Rat, bool) {
	n, ok := v.(json.Number)
	if !ok || len(n) > 400 {
		return nil, false
	}
	if i := strings.IndexAny(string(n), "eE"); i >= 0 && len(n)-i > 5 {
		return nil, false
	}
	return new(big.Rat).SetString(string(n))
}

// equal compares JSON values; numbers by value.
func equal(a, b any) bool {
	switch x := a.(type) {
	case *object:
		y, ok := b.(*object)
		if !ok || len(x.keys) != len(y.keys) {
			return false
		}
		for _, k := range x.keys {
			w, ok := y.get(k)
			if !ok || !equal(x.m[k], w) {
				return false
			}
		}
		return true
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, equal)
	case json.Number:
		y, ok := b.(json.Number)
		if !ok {
			return false
		}
		p, ok1 := rat(x)
		q, ok2 := rat(y)
		return ok1 && ok2 && p.Cmp(q) == 0
	}
	switch b.(type) {
	case *object, []any:
		return false
	}
	return a == b
}

// types is a set of JSON types.
type types uint8

const (
	tNull types = 1 << iota
	tBoolean
	tInteger
	tNumber // all numbers, integers included
	tString
	tArray
	tObject
	tAll = tNull | tBoolean | tNumber | tInteger | tString | tArray | tObject
)

var typeNames = []struct {
	name string
	t    types
}{
	{"null", tNull}, {"boolean", tBoolean}, {"integer", tInteger}, {"number", tNumber | tInteger},
	{"string", tString}, {"array", tArray}, {"object", tObject},
}

func typeSet(v any, where string) types {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var t types
next:
	for _, e := range list {
		for _, n := range typeNames {
			if e == n.name {
				t |= n.t
				continue next
			}
		}
		panic(errAt(where, "must be the name of a JSON type or a list of them"))
	}
	return t
}

func typeList(t types) any {
	list := []any{}
	for _, n := range typeNames {
		if t&n.t == n.t && !(n.t == tInteger && t&tNumber != 0) {
			list = append(list, n.name)
		}
	}
	return list
}

// typeOf is the type of a JSON value, integers being both.
func typeOf(v any) types {
	switch v := v.(type) {
	case nil:
		return tNull
	case bool:
		return tBoolean
	case string:
		return tString
	case []any:
		return tArray
	case *object:
		return tObject
	case json.Number:
		if r, ok := rat(v); ok && r.IsInt() {
			return tInteger | tNumber
		}
		return tNumber
	}
	return 0
}
