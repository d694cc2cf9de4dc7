package gguf

import "fmt"

// ValueType is a metadata value type as stored in the file.
type ValueType uint32

// The value types of GGUF.
const (
	Uint8   ValueType = 0
	Int8    ValueType = 1
	Uint16  ValueType = 2
	Int16   ValueType = 3
	Uint32  ValueType = 4
	Int32   ValueType = 5
	Float32 ValueType = 6
	Bool    ValueType = 7
	String  ValueType = 8
	ArrayOf ValueType = 9
	Uint64  ValueType = 10
	Int64   ValueType = 11
	Float64 ValueType = 12
)

var valueTypes = [...]struct {
	name string
	size int // bytes of one value; 0 when it varies
}{
	Uint8: {"uint8", 1}, Int8: {"int8", 1}, Uint16: {"uint16", 2}, Int16: {"int16", 2},
	Uint32: {"uint32", 4}, Int32: {"int32", 4}, Float32: {"float32", 4}, Bool: {"bool", 1},
	String: {"string", 0}, ArrayOf: {"array", 0}, Uint64: {"uint64", 8}, Int64: {"int64", 8},
	Float64: {"float64", 8},
}

func (t ValueType) known() bool { return int(t) < len(valueTypes) }

func (t ValueType) String() string {
	if !t.known() {
		return fmt.Sprintf("value type %d", uint32(t))
	}
	return valueTypes[t].name
}

// Kind is the type of a key's value.
type Kind struct {
	Type ValueType
	Elem ValueType // element type when Type is ArrayOf
	Len  int       // number of elements when Type is ArrayOf
}

// IsArray reports whether the value is an array.
func (k Kind) IsArray() bool { return k.Type == ArrayOf }

// String prints like a Go type, e.g. "uint32" or "[248320]string".
func (k Kind) String() string {
	if k.IsArray() {
		return fmt.Sprintf("[%d]%s", k.Len, k.Elem)
	}
	return k.Type.String()
}

// An Array is an array value together with its stored element type.
type Array struct {
	Elem ValueType
	// Values is a slice of the Go type with the element type's name, e.g.
	// []int32; []Array for an array of arrays.
	Values any
}

// Len is the number of elements.
func (a Array) Len() int {
	switch v := a.Values.(type) {
	case []uint8:
		return len(v)
	case []int8:
		return len(v)
	case []uint16:
		return len(v)
	case []int16:
		return len(v)
	case []uint32:
		return len(v)
	case []int32:
		return len(v)
	case []float32:
		return len(v)
	case []bool:
		return len(v)
	case []string:
		return len(v)
	case []Array:
		return len(v)
	case []uint64:
		return len(v)
	case []int64:
		return len(v)
	case []float64:
		return len(v)
	}
	return 0
}
