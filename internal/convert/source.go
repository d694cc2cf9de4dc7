package convert

import (
	"fmt"
	"math"

	"strobe/internal/quant"
	"strobe/internal/safetensors"
)

// A source is a tensor that produces any of its rows on demand. Changes of
// order, values or shape are layered on top of each other without copying the
// tensor, so the memory needed does not grow with the model.
type source struct {
	shape []int // torch order: the last axis is contiguous
	file  string
	name  string // in the checkpoint, for messages

	// row writes row r as float32. Rows count over all axes but the last.
	row func(dst []float32, r int) error
	// raw returns row r as it is stored, in type typ; nil when rows have to be
	// computed.
	raw func(r int) []byte
	typ quant.Type
}

func (s *source) width() int {
	if len(s.shape) == 0 {
		return 1
	}
	return s.shape[len(s.shape)-1]
}

func (s *source) rows() int {
	n := 1
	for _, d := range s.shape[:max(0, len(s.shape)-1)] {
		n *= d
	}
	return n
}

func (s *source) fail(format string, args ...any) error {
	return fieldErr(s.file, "tensor "+s.name, format, args...)
}

var storedTypes = map[string]quant.Type{"F32": quant.F32, "F16": quant.F16, "BF16": quant.BF16}

// newSource reads a stored tensor.
func newSource(file string, t *safetensors.Tensor) (*source, error) {
	s := &source{shape: t.Shape, file: file, name: t.Name}
	if n := t.Elems(); n == 0 {
		return nil, s.fail("is empty, shape %v", t.Shape)
	}
	width := s.width()
	if typ, ok := storedTypes[t.DType]; ok {
		size := typ.RowBytes(width)
		s.typ = typ
		s.raw = func(r int) []byte { return t.Data[r*size : (r+1)*size] }
		s.row = func(dst []float32, r int) error { return quant.Dequantize(typ, dst, s.raw(r)) }
		return s, nil
	}
	if table := float8Table(t.DType); table != nil {
		s.typ = quant.F32
		s.row = func(dst []float32, r int) error {
			for i, b := range t.Data[r*width : (r+1)*width] {
				dst[i] = table[b]
			}
			return nil
		}
		return s, nil
	}
	return nil, s.fail("dtype %s is not supported", t.DType)
}

// float8Table lists the values of an 8-bit float format, nil for other types.
func float8Table(dtype string) *[256]float32 {
	if dtype != "F8_E4M3" && dtype != "F8_E5M2" {
		return nil
	}
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	t := safetensors.Tensor{DType: dtype, Shape: []int{256}, Data: all}
	values, err := t.Float32s()
	if err != nil {
		return nil
	}
	return (*[256]float32)(values)
}

// reshaped gives the same rows another shape; the last axis must stay.
func (s *source) reshaped(shape ...int) *source {
	out := *s
	out.shape = shape
	return &out
}

// picked has the rows of s that pick names, in a new shape.
func (s *source) picked(shape []int, pick func(r int) int) *source {
	out := *s
	out.shape = shape
	out.row = func(dst []float32, r int) error { return s.row(dst, pick(r)) }
	if s.raw != nil {
		out.raw = func(r int) []byte { return s.raw(pick(r)) }
	}
	return &out
}

// columns reorders the values of each row: value i comes from column from[i].
func (s *source) columns(from []int) *source {
	out := *s
	out.raw = nil
	out.row = func(dst []float32, r int) error {
		tmp := make([]float32, len(dst))
		if err := s.row(tmp, r); err != nil {
			return err
		}
		for i, c := range from {
			dst[i] = tmp[c]
		}
		return nil
	}
	return &out
}

// reordered has the rows of a matrix, or the values of a vector, in the order that from names.
func (s *source) reordered(from func(i int) int) *source {
	if len(s.shape) > 1 {
		return s.picked(s.shape, from)
	}
	cols := make([]int, s.width())
	for i := range cols {
		cols[i] = from(i)
	}
	return s.columns(cols)
}

// mapped changes every value. The reference computes on half-precision tensors
// in half precision, so results of those are rounded to it.
func (s *source) mapped(f func(float32) float32) *source {
	out := *s
	out.raw = nil
	half := s.typ == quant.F16
	out.row = func(dst []float32, r int) error {
		if err := s.row(dst, r); err != nil {
			return err
		}
		for i, v := range dst {
			v = f(v)
			if half {
				v = quant.F16ToF32(quant.F32ToF16(v))
			}
			dst[i] = v
		}
		return nil
	}
	return &out
}

// stacked joins tensors of one shape along a new first axis.
func stacked(parts []*source) (*source, error) {
	first := parts[0]
	rows := first.rows()
	for _, p := range parts {
		if fmt.Sprint(p.shape) != fmt.Sprint(first.shape) {
			return nil, p.fail("shape is %v, the other experts have %v", p.shape, first.shape)
		}
	}
	out := *first
	out.shape = append([]int{len(parts)}, first.shape...)
	out.row = func(dst []float32, r int) error { return parts[r/rows].row(dst, r%rows) }
	out.raw = func(r int) []byte { return parts[r/rows].raw(r % rows) }
	for _, p := range parts {
		if p.raw == nil || p.typ != first.typ {
			out.raw = nil
		}
	}
	return &out, nil
}

// scaled multiplies s with the scales of a block-quantised checkpoint. block is
// the height and width of one scale's area; nil means one scale per row or for
// the whole tensor.
func (s *source) scaled(scale *safetensors.Tensor, block []int) (*source, error) {
	values, err := scale.Float32s()
	if err != nil {
		return nil, fieldErr(s.file, "tensor "+scale.Name, "%v", err)
	}
	width, height := s.width(), 1
	if len(s.shape) > 1 {
		height = s.shape[len(s.shape)-2]
	}
	batch := s.rows() / height
	// scalesOf returns the scales of row r, each for `span` columns.
	span := width
	scalesOf := func(r int) []float32 { return values }
	switch {
	case len(block) == 2 && block[0] > 0 && block[1] > 0:
		down, across := (height+block[0]-1)/block[0], (width+block[1]-1)/block[1]
		if len(values) != batch*down*across {
			return nil, s.fail("has %d scales, expected %d for blocks of %v", len(values), batch*down*across, block)
		}
		span = block[1]
		scalesOf = func(r int) []float32 {
			at := (r/height*down + r%height/block[0]) * across
			return values[at : at+across]
		}
	case len(values) == s.rows():
		scalesOf = func(r int) []float32 { return values[r : r+1] }
	case len(values) == batch:
		scalesOf = func(r int) []float32 { return values[r/height : r/height+1] }
	case len(values) != 1:
		return nil, s.fail("has %d scales for %d rows", len(values), s.rows())
	}
	out := *s
	out.typ, out.raw = quant.F32, nil
	out.row = func(dst []float32, r int) error {
		if err := s.row(dst, r); err != nil {
			return err
		}
		for i, scale := range scalesOf(r) {
			for c := i * span; c < min((i+1)*span, len(dst)); c++ {
				dst[c] *= scale
			}
		}
		return nil
	}
	return &out, nil
}

// constant is a generated vector.
func constant(name string, values []float32) *source {
	return &source{
		shape: []int{len(values)}, name: name, typ: quant.F32,
		row: func(dst []float32, r int) error {
			copy(dst, values)
			return nil
		},
	}
}

// encode converts rows from up to to into dst, which has exactly their size in
// type typ. scratch holds one row.
func (s *source) encode(typ quant.Type, dst []byte, from, to int, scratch []float32) error {
	width := s.width()
	size := typ.RowBytes(width)
	for r := from; r < to; r++ {
		out := dst[(r-from)*size : (r-from+1)*size]
		if s.raw != nil && s.typ == typ {
			raw := s.raw(r)
			if i := firstNaN(typ, raw); i >= 0 {
				return s.fail("value %d of row %d is not a number", i, r)
			}
			copy(out, raw)
			continue
		}
		if err := s.row(scratch[:width], r); err != nil {
			return s.fail("row %d: %v", r, err)
		}
		for i, v := range scratch[:width] {
			if v != v {
				return s.fail("value %d of row %d is not a number", i, r)
			}
		}
		if err := quant.Quantize(typ, out, scratch[:width]); err != nil {
			return s.fail("row %d: %v", r, err)
		}
	}
	return nil
}

// firstNaN is the index of the first NaN in stored floats, or -1.
func firstNaN(typ quant.Type, b []byte) int {
	switch typ {
	case quant.F32:
		for i := 0; i+3 < len(b); i += 4 {
			if uint32(b[i+2])|uint32(b[i+3]&0x7f)<<8 >= 0x7f80 {
				bits := uint32(b[i]) | uint32(b[i+1])<<8 | uint32(b[i+2])<<16 | uint32(b[i+3])<<24
				if v := math.Float32frombits(bits); v != v {
					return i / 4
				}
			}
		}
	case quant.MXFP4:
		for i := 0; i < len(b); i += quant.MXFP4.BlockBytes() {
			if b[i] == 0xff { // the scale that is none
				return i / quant.MXFP4.BlockBytes() * quant.MXFP4.BlockLen()
			}
		}
	case quant.BF16, quant.F16:
		inf := uint16(0x7f80)
		if typ == quant.F16 {
			inf = 0x7c00
		}
		for i := 0; i+1 < len(b); i += 2 {
			if (uint16(b[i])|uint16(b[i+1])<<8)&0x7fff > inf {
				return i / 2
			}
		}
	}
	return -1
}
