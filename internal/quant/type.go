package quant

import (
	"fmt"
	"strings"
)

// Type is a tensor element type with the numbering of ggml, as stored in GGUF
// tensor infos.
type Type uint32

// The types found in files. Ids that are missing here are retired upstream and
// never [Type.Known].
const (
	F32     Type = 0
	F16     Type = 1
	Q4_0    Type = 2
	Q4_1    Type = 3
	Q5_0    Type = 6
	Q5_1    Type = 7
	Q8_0    Type = 8
	Q8_1    Type = 9
	Q2_K    Type = 10
	Q3_K    Type = 11
	Q4_K    Type = 12
	Q5_K    Type = 13
	Q6_K    Type = 14
	Q8_K    Type = 15
	IQ2_XXS Type = 16
	IQ2_XS  Type = 17
	IQ3_XXS Type = 18
	IQ1_S   Type = 19
	IQ4_NL  Type = 20
	IQ3_S   Type = 21
	IQ2_S   Type = 22
	IQ4_XS  Type = 23
	I8      Type = 24
	I16     Type = 25
	I32     Type = 26
	I64     Type = 27
	F64     Type = 28
	IQ1_M   Type = 29
	BF16    Type = 30
	TQ1_0   Type = 34
	TQ2_0   Type = 35
	MXFP4   Type = 39
	NVFP4   Type = 40
	Q1_0    Type = 41
	Q2_0    Type = 42

	maxType = Q2_0
)

// info describes one type. A zero blockLen marks an id that is not in use.
type info struct {
	name       string
	blockLen   int
	blockBytes int
	layout     *Layout // of quantised types that can be read
}

var types = [maxType + 1]info{
	F32:     {"F32", 1, 4, nil},
	F16:     {"F16", 1, 2, nil},
	Q4_0:    {"Q4_0", 32, 18, &Layout{Sub: 32, Offset: 8}},
	Q4_1:    {"Q4_1", 32, 20, &Layout{Sub: 32, Min: true}},
	Q5_0:    {"Q5_0", 32, 22, &Layout{Sub: 32, Offset: 16}},
	Q5_1:    {"Q5_1", 32, 24, &Layout{Sub: 32, Min: true}},
	Q8_0:    {"Q8_0", 32, 34, &Layout{Sub: 32, Offset: 128}},
	Q8_1:    {"Q8_1", 32, 36, nil},
	Q2_K:    {"Q2_K", 256, 84, &Layout{Sub: 16, Min: true, Scale: ScaleInt}},
	Q3_K:    {"Q3_K", 256, 110, &Layout{Sub: 16, Offset: 4, Scale: ScaleInt}},
	Q4_K:    {"Q4_K", 256, 144, &Layout{Sub: 32, Min: true, Scale: ScaleInt}},
	Q5_K:    {"Q5_K", 256, 176, &Layout{Sub: 32, Min: true, Scale: ScaleInt}},
	Q6_K:    {"Q6_K", 256, 210, &Layout{Sub: 16, Offset: 32, Scale: ScaleInt}},
	Q8_K:    {"Q8_K", 256, 292, nil},
	IQ2_XXS: {"IQ2_XXS", 256, 66, &Layout{Sub: 32, Offset: 128, Scale: ScaleInt, Shift: 3}},
	IQ2_XS:  {"IQ2_XS", 256, 74, &Layout{Sub: 16, Offset: 128, Scale: ScaleInt, Shift: 3}},
	IQ3_XXS: {"IQ3_XXS", 256, 98, &Layout{Sub: 32, Offset: 128, Scale: ScaleInt, Shift: 2}},
	IQ1_S:   {"IQ1_S", 256, 50, &Layout{Sub: 32, Offset: 128, Scale: ScaleInt, Shift: 3}},
	IQ4_NL:  {"IQ4_NL", 32, 18, &Layout{Sub: 32, Table: &iq4Values}},
	IQ3_S:   {"IQ3_S", 256, 110, &Layout{Sub: 32, Offset: 128, Scale: ScaleInt}},
	IQ2_S:   {"IQ2_S", 256, 82, &Layout{Sub: 16, Offset: 128, Scale: ScaleInt, Shift: 3}},
	IQ4_XS:  {"IQ4_XS", 256, 136, &Layout{Sub: 32, Table: &iq4Values, Scale: ScaleInt}},
	I8:      {"I8", 1, 1, nil},
	I16:     {"I16", 1, 2, nil},
	I32:     {"I32", 1, 4, nil},
	I64:     {"I64", 1, 8, nil},
	F64:     {"F64", 1, 8, nil},
	IQ1_M:   {"IQ1_M", 256, 56, &Layout{Sub: 16, Offset: 128, Scale: ScaleInt, Shift: 3}},
	BF16:    {"BF16", 1, 2, nil},
	TQ1_0:   {"TQ1_0", 256, 54, &Layout{Sub: 32, Offset: 1}},
	TQ2_0:   {"TQ2_0", 256, 66, &Layout{Sub: 32, Offset: 1}},
	MXFP4:   {"MXFP4", 32, 17, &Layout{Sub: 32, Table: &fp4Values, Scale: ScaleE8M0}},
	NVFP4:   {"NVFP4", 64, 36, &Layout{Sub: 16, Table: &fp4Values, Scale: ScaleE4M3}},
	Q1_0:    {"Q1_0", 128, 18, &Layout{Sub: 32, Table: &signValues}},
	Q2_0:    {"Q2_0", 64, 18, &Layout{Sub: 32, Offset: 1}},
}

func (t Type) info() info {
	switch {
	case t <= maxType:
		return types[t]
	case t == Turbo3 || t == Turbo4:
		return turboTypes[t-Turbo3]
	}
	return info{}
}

// Known reports whether files may have t. A file with an unknown type cannot be
// laid out and must be rejected.
func (t Type) Known() bool { return t <= maxType && t.info().blockLen != 0 }

// Repacked is the type whose blocks a retired type had in another order (Q4_0_8_8 and the like), else unknown.
func (t Type) Repacked() Type {
	switch t {
	case 31, 32, 33:
		return Q4_0
	case 36, 37, 38:
		return IQ4_NL
	}
	return maxType + 1
}

// BlockLen is the number of values in one block, 1 for plain numbers and 0 for
// an unknown type.
func (t Type) BlockLen() int { return t.info().blockLen }

// BlockBytes is the size of one block in bytes, 0 for an unknown type.
func (t Type) BlockBytes() int { return t.info().blockBytes }

// RowBytes is the size of n consecutive values. n must be a multiple of
// BlockLen; a remainder is cut off. It is 0 for an unknown type.
func (t Type) RowBytes(n int) int {
	in := t.info()
	if in.blockLen == 0 {
		return 0
	}
	return n / in.blockLen * in.blockBytes
}

// BitsPerWeight is the storage cost of one value, scales included.
func (t Type) BitsPerWeight() float64 {
	in := t.info()
	if in.blockLen == 0 {
		return 0
	}
	return 8 * float64(in.blockBytes) / float64(in.blockLen)
}

// Quantized reports whether t stores blocks of several values.
func (t Type) Quantized() bool { return t.BlockLen() > 1 }

// String is the GGUF spelling, for example "Q4_K".
func (t Type) String() string {
	if in := t.info(); in.name != "" {
		return in.name
	}
	return fmt.Sprintf("type(%d)", uint32(t))
}

// ParseType is the inverse of String. Case does not matter.
func ParseType(s string) (Type, error) {
	for t, in := range types {
		if in.name != "" && strings.EqualFold(in.name, s) {
			return Type(t), nil
		}
	}
	return 0, fmt.Errorf("unknown tensor type %q", s)
}
