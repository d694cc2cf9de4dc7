package gguf

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"unicode/utf8"
)

// Keys lists the metadata keys in file order.
func (f *File) Keys() []string {
	kvs := f.parts[0].kvs
	keys := make([]string, len(kvs))
	for i := range kvs {
		keys[i] = kvs[i].key
	}
	return keys
}

// Has reports whether the key is there.
func (f *File) Has(key string) bool {
	_, ok := f.parts[0].index[key]
	return ok
}

// Kind is the type of the key's value.
func (f *File) Kind(key string) (Kind, bool) {
	i, ok := f.parts[0].index[key]
	if !ok {
		return Kind{}, false
	}
	return f.parts[0].kvs[i].kind, true
}

// Arch is general.architecture, empty when it is missing or not a string.
func (f *File) Arch() string {
	s, _, _ := f.String("general.architecture")
	return s
}

// The getters below report ok=false without an error when the key is missing,
// and an *Error that wraps ErrType when its value has another type. Integer
// widths and signs do not matter as long as the value fits.

// Uint is the key's value as a non-negative integer.
func (f *File) Uint(key string) (v uint64, ok bool, err error) { return get(f, key, toUint) }

// Int is the key's value as an integer.
func (f *File) Int(key string) (v int64, ok bool, err error) { return get(f, key, toInt) }

// Float is the key's value as a number; integers are converted.
func (f *File) Float(key string) (v float64, ok bool, err error) { return get(f, key, toFloat) }

// Bool is the key's value as a bool.
func (f *File) Bool(key string) (v bool, ok bool, err error) { return get(f, key, toBool) }

// String is the key's value as a string of valid UTF-8.
func (f *File) String(key string) (v string, ok bool, err error) { return get(f, key, toString) }

// Ints is an array of integers or bools. A single number is not an array.
func (f *File) Ints(key string) (v []int64, ok bool, err error) { return get(f, key, toInts) }

// Floats is an array of floating-point numbers or integers.
func (f *File) Floats(key string) (v []float32, ok bool, err error) { return get(f, key, toFloats) }

// Bools is an array of bools, or of integers that are all 0 or 1.
func (f *File) Bools(key string) (v []bool, ok bool, err error) { return get(f, key, toBools) }

// Strings is an array of strings of valid UTF-8. It is decoded on every call.
func (f *File) Strings(key string) (v []string, ok bool, err error) { return get(f, key, toStrings) }

// Value is the key's value as the Go type of the same name; Array for an array.
func (f *File) Value(key string) (v any, ok bool, err error) { return get(f, key, toAny) }

// KVs is all metadata in file order, ready for Create.
func (f *File) KVs() ([]KV, error) {
	out := make([]KV, 0, len(f.parts[0].kvs))
	for _, key := range f.Keys() {
		v, _, err := f.Value(key)
		if err != nil {
			return nil, err
		}
		out = append(out, KV{key, v})
	}
	return out, nil
}

func get[T any](f *File, key string, decode func(kv) (T, error)) (T, bool, error) {
	var zero T
	p := f.parts[0]
	i, ok := p.index[key]
	if !ok {
		return zero, false, nil
	}
	if f.closed.Load() {
		return zero, true, &Error{p.path, keyField(key), fs.ErrClosed}
	}
	v, err := decode(p.kvs[i])
	if err != nil {
		return zero, true, &Error{p.path, keyField(key), err}
	}
	return v, true, nil
}

func wrongType(e kv, want string) error {
	return fmt.Errorf("%w: is %s, expected %s", ErrType, e.kind, want)
}

// bitsAt is element i of fixed-size type t, sign-extended when t is signed.
func bitsAt(t ValueType, b []byte, i int) uint64 {
	switch t {
	case Uint8, Bool:
		return uint64(b[i])
	case Int8:
		return uint64(int8(b[i]))
	case Uint16:
		return uint64(binary.LittleEndian.Uint16(b[2*i:]))
	case Int16:
		return uint64(int16(binary.LittleEndian.Uint16(b[2*i:])))
	case Uint32, Float32:
		return uint64(binary.LittleEndian.Uint32(b[4*i:]))
	case Int32:
		return uint64(int32(binary.LittleEndian.Uint32(b[4*i:])))
	default:
		return binary.LittleEndian.Uint64(b[8*i:])
	}
}

func isSigned(t ValueType) bool   { return t == Int8 || t == Int16 || t == Int32 || t == Int64 }
func isUnsigned(t ValueType) bool { return t == Uint8 || t == Uint16 || t == Uint32 || t == Uint64 }
func isInt(t ValueType) bool      { return isSigned(t) || isUnsigned(t) }

func toUint(e kv) (uint64, error) {
	if !isInt(e.kind.Type) {
		return 0, wrongType(e, "an integer")
	}
	v := bitsAt(e.kind.Type, e.data, 0)
	if isSigned(e.kind.Type) && int64(v) < 0 {
		return 0, fmt.Errorf("%d is negative", int64(v))
	}
	return v, nil
}

func toInt(e kv) (int64, error) {
	if !isInt(e.kind.Type) {
		return 0, wrongType(e, "an integer")
	}
	return intAt(e.kind.Type, e.data, 0)
}

func intAt(t ValueType, b []byte, i int) (int64, error) {
	v := bitsAt(t, b, i)
	if t == Uint64 && v > math.MaxInt64 {
		return 0, fmt.Errorf("%d is too large", v)
	}
	return int64(v), nil
}

func toFloat(e kv) (float64, error) {
	if !isInt(e.kind.Type) && e.kind.Type != Float32 && e.kind.Type != Float64 {
		return 0, wrongType(e, "a number")
	}
	return floatAt(e.kind.Type, e.data, 0), nil
}

func floatAt(t ValueType, b []byte, i int) float64 {
	v := bitsAt(t, b, i)
	switch {
	case t == Float32:
		return float64(math.Float32frombits(uint32(v)))
	case t == Float64:
		return math.Float64frombits(v)
	case isSigned(t):
		return float64(int64(v))
	}
	return float64(v)
}

func toBool(e kv) (bool, error) {
	if e.kind.Type != Bool {
		return false, wrongType(e, "a bool")
	}
	return boolOf(bitsAt(Bool, e.data, 0))
}

func boolOf(v uint64) (bool, error) {
	if v > 1 {
		return false, fmt.Errorf("%d is not a bool", int64(v))
	}
	return v == 1, nil
}

func toString(e kv) (string, error) {
	if e.kind.Type != String {
		return "", wrongType(e, "a string")
	}
	raw := e.data[8:]
	if !utf8.Valid(raw) {
		return "", fmt.Errorf("%s is not valid UTF-8", clip(string(raw)))
	}
	return string(raw), nil
}

func toInts(e kv) ([]int64, error) {
	if !e.kind.IsArray() || !isInt(e.kind.Elem) && e.kind.Elem != Bool {
		return nil, wrongType(e, "an array of integers")
	}
	out := make([]int64, e.kind.Len)
	for i := range out {
		v, err := intAt(e.kind.Elem, e.data, i)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		out[i] = v
	}
	return out, nil
}

func toFloats(e kv) ([]float32, error) {
	el := e.kind.Elem
	if !e.kind.IsArray() || !isInt(el) && el != Float32 && el != Float64 {
		return nil, wrongType(e, "an array of numbers")
	}
	out := make([]float32, e.kind.Len)
	for i := range out {
		out[i] = float32(floatAt(el, e.data, i))
	}
	return out, nil
}

func toBools(e kv) ([]bool, error) {
	if !e.kind.IsArray() || !isInt(e.kind.Elem) && e.kind.Elem != Bool {
		return nil, wrongType(e, "an array of bools")
	}
	out := make([]bool, e.kind.Len)
	for i := range out {
		v, err := boolOf(bitsAt(e.kind.Elem, e.data, i))
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		out[i] = v
	}
	return out, nil
}

func toStrings(e kv) ([]string, error) {
	if !e.kind.IsArray() || e.kind.Elem != String {
		return nil, wrongType(e, "an array of strings")
	}
	out, _, err := stringsAt(e.data, e.kind.Len)
	return out, err
}

// stringsAt decodes n strings and returns what follows them. They share one
// copy: they outlive the mapping, and a vocabulary costs two allocations.
func stringsAt(b []byte, n int) ([]string, []byte, error) {
	total, rest := 0, b
	for range n {
		l := int(binary.LittleEndian.Uint64(rest))
		total += l
		rest = rest[8+l:]
	}
	var buf strings.Builder
	buf.Grow(total) // so that the pieces taken below never move
	out := make([]string, n)
	for i := range out {
		l := int(binary.LittleEndian.Uint64(b))
		at := buf.Len()
		buf.Write(b[8 : 8+l])
		b = b[8+l:]
		out[i] = buf.String()[at:]
		if !utf8.ValidString(out[i]) {
			return nil, nil, fmt.Errorf("element %d: %s is not valid UTF-8", i, clip(out[i]))
		}
	}
	return out, rest, nil
}

func toAny(e kv) (any, error) {
	if e.kind.IsArray() {
		a, _, err := arrayAt(e.kind.Elem, e.kind.Len, e.data)
		return a, err
	}
	v := uint64(0)
	if e.kind.Type != String {
		v = bitsAt(e.kind.Type, e.data, 0)
	}
	switch e.kind.Type {
	case Uint8:
		return uint8(v), nil
	case Int8:
		return int8(v), nil
	case Uint16:
		return uint16(v), nil
	case Int16:
		return int16(v), nil
	case Uint32:
		return uint32(v), nil
	case Int32:
		return int32(v), nil
	case Float32:
		return math.Float32frombits(uint32(v)), nil
	case Bool:
		return boolOf(v)
	case String:
		return toString(e)
	case Uint64:
		return v, nil
	case Int64:
		return int64(v), nil
	default:
		return math.Float64frombits(v), nil
	}
}

// arrayAt decodes n elements of type t, which the scanner has measured, and
// returns what follows them.
func arrayAt(t ValueType, n int, b []byte) (Array, []byte, error) {
	a := Array{Elem: t}
	rest := b[n*valueTypes[t].size:]
	var err error
	switch t {
	case Uint8:
		a.Values = decodeAll(n, func(i int) uint8 { return b[i] })
	case Int8:
		a.Values = decodeAll(n, func(i int) int8 { return int8(b[i]) })
	case Uint16:
		a.Values = decodeAll(n, func(i int) uint16 { return uint16(bitsAt(t, b, i)) })
	case Int16:
		a.Values = decodeAll(n, func(i int) int16 { return int16(bitsAt(t, b, i)) })
	case Uint32:
		a.Values = decodeAll(n, func(i int) uint32 { return uint32(bitsAt(t, b, i)) })
	case Int32:
		a.Values = decodeAll(n, func(i int) int32 { return int32(bitsAt(t, b, i)) })
	case Float32:
		a.Values = decodeAll(n, func(i int) float32 { return math.Float32frombits(uint32(bitsAt(t, b, i))) })
	case Uint64:
		a.Values = decodeAll(n, func(i int) uint64 { return bitsAt(t, b, i) })
	case Int64:
		a.Values = decodeAll(n, func(i int) int64 { return int64(bitsAt(t, b, i)) })
	case Float64:
		a.Values = decodeAll(n, func(i int) float64 { return math.Float64frombits(bitsAt(t, b, i)) })
	case Bool:
		a.Values, err = toBools(kv{kind: Kind{ArrayOf, Bool, n}, data: b})
	case String:
		a.Values, rest, err = stringsAt(b, n)
	case ArrayOf:
		values := make([]Array, n)
		rest = b
		for i := range values {
			elem := ValueType(binary.LittleEndian.Uint32(rest))
			count := int(binary.LittleEndian.Uint64(rest[4:]))
			if values[i], rest, err = arrayAt(elem, count, rest[12:]); err != nil {
				return a, nil, fmt.Errorf("element %d: %w", i, err)
			}
		}
		a.Values = values
	}
	return a, rest, err
}

func decodeAll[T any](n int, at func(int) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = at(i)
	}
	return out
}
