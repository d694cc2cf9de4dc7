package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// encode gives a value's stored type and bytes, with the head of an array.
func encode(v any) (ValueType, []byte, error) {
	le := binary.LittleEndian
	switch v := v.(type) {
	case uint8:
		return Uint8, []byte{v}, nil
	case int8:
		return Int8, []byte{byte(v)}, nil
	case uint16:
		return Uint16, le.AppendUint16(nil, v), nil
	case int16:
		return Int16, le.AppendUint16(nil, uint16(v)), nil
	case uint32:
		return Uint32, le.AppendUint32(nil, v), nil
	case int32:
		return Int32, le.AppendUint32(nil, uint32(v)), nil
	case float32:
		return Float32, le.AppendUint32(nil, math.Float32bits(v)), nil
	case bool:
		return Bool, appendBool(nil, v), nil
	case string:
		if !utf8.ValidString(v) {
			return 0, nil, fmt.Errorf("%s is not valid UTF-8", clip(v))
		}
		return String, appendString(nil, v), nil
	case uint64:
		return Uint64, le.AppendUint64(nil, v), nil
	case int64:
		return Int64, le.AppendUint64(nil, uint64(v)), nil
	case float64:
		return Float64, le.AppendUint64(nil, math.Float64bits(v)), nil
	case Array:
		b, err := appendArray(nil, v, 0)
		return ArrayOf, b, err
	}
	elem, ok := elemType(v)
	if !ok {
		return 0, nil, fmt.Errorf("a value of Go type %T cannot be stored", v)
	}
	b, err := appendArray(nil, Array{elem, v}, 0)
	return ArrayOf, b, err
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// elemType is the stored element type of a Go slice.
func elemType(values any) (ValueType, bool) {
	switch values.(type) {
	case []uint8:
		return Uint8, true
	case []int8:
		return Int8, true
	case []uint16:
		return Uint16, true
	case []int16:
		return Int16, true
	case []uint32:
		return Uint32, true
	case []int32:
		return Int32, true
	case []float32:
		return Float32, true
	case []bool:
		return Bool, true
	case []string:
		return String, true
	case []Array:
		return ArrayOf, true
	case []uint64:
		return Uint64, true
	case []int64:
		return Int64, true
	case []float64:
		return Float64, true
	}
	return 0, false
}

func appendArray(b []byte, a Array, depth int) ([]byte, error) {
	if elem, ok := elemType(a.Values); !ok || elem != a.Elem {
		return nil, fmt.Errorf("an array of %s cannot hold a Go %T", a.Elem, a.Values)
	}
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(a.Elem))
	b = le.AppendUint64(b, uint64(a.Len()))
	switch vs := a.Values.(type) {
	case []uint8:
		b = append(b, vs...)
	case []int8:
		b = appendAll(b, vs, func(b []byte, v int8) []byte { return append(b, byte(v)) })
	case []uint16:
		b = appendAll(b, vs, le.AppendUint16)
	case []int16:
		b = appendAll(b, vs, func(b []byte, v int16) []byte { return le.AppendUint16(b, uint16(v)) })
	case []uint32:
		b = appendAll(b, vs, le.AppendUint32)
	case []int32:
		b = appendAll(b, vs, func(b []byte, v int32) []byte { return le.AppendUint32(b, uint32(v)) })
	case []float32:
		b = appendAll(b, vs, func(b []byte, v float32) []byte { return le.AppendUint32(b, math.Float32bits(v)) })
	case []bool:
		b = appendAll(b, vs, appendBool)
	case []uint64:
		b = appendAll(b, vs, le.AppendUint64)
	case []int64:
		b = appendAll(b, vs, func(b []byte, v int64) []byte { return le.AppendUint64(b, uint64(v)) })
	case []float64:
		b = appendAll(b, vs, func(b []byte, v float64) []byte { return le.AppendUint64(b, math.Float64bits(v)) })
	case []string:
		for i, v := range vs {
			if !utf8.ValidString(v) {
				return nil, fmt.Errorf("element %d: %s is not valid UTF-8", i, clip(v))
			}
			b = appendString(b, v)
		}
	case []Array:
		if depth == maxDepth {
			return nil, fmt.Errorf("arrays are nested more than %d deep", maxDepth)
		}
		for i, v := range vs {
			var err error
			if b, err = appendArray(b, v, depth+1); err != nil {
				return nil, fmt.Errorf("element %d: %w", i, err)
			}
		}
	}
	return b, nil
}

func appendAll[T any](b []byte, vs []T, add func([]byte, T) []byte) []byte {
	for _, v := range vs {
		b = add(b, v)
	}
	return b
}
