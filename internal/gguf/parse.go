package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"unicode/utf8"

	"strobe/internal/quant"
)

const (
	magic            = "GGUF"
	keyAlignment     = "general.alignment"
	defaultAlignment = 32
	// maxAlignment keeps a lying alignment from asking for absurd padding;
	// files use 32, and page sizes are far below this.
	maxAlignment = 1 << 24
	maxDims      = 4
	// maxName is upstream's limit on tensor names: 64 bytes with the NUL.
	maxName = 63
	maxKey  = 65535
	// maxDepth bounds arrays inside arrays, so that a file cannot make the
	// scanner recurse without end.
	maxDepth = 8
)

// A kv is one metadata entry; its value stays encoded until it is asked for.
type kv struct {
	key  string
	kind Kind
	data []byte // the value's bytes; for an array the elements only
}

// A part is one parsed file: a whole model or one piece of a split one.
type part struct {
	path      string
	version   uint32
	align     int
	kvs       []kv
	index     map[string]int
	tensors   []*Tensor
	headerEnd int // where the tensor infos end
	dataEnd   int // where the last tensor's bytes end
	size      int
}

// A scanner walks over the header and never past its end.
type scanner struct {
	path string
	b    []byte
	off  int
}

func (s *scanner) left() int { return len(s.b) - s.off }

func (s *scanner) short(field string) error {
	return &Error{s.path, field, fmt.Errorf("%w: it ends at byte %d", ErrTruncated, len(s.b))}
}

func (s *scanner) u32(field string) (uint32, error) {
	if s.left() < 4 {
		return 0, s.short(field)
	}
	v := binary.LittleEndian.Uint32(s.b[s.off:])
	s.off += 4
	return v, nil
}

func (s *scanner) u64(field string) (uint64, error) {
	if s.left() < 8 {
		return 0, s.short(field)
	}
	v := binary.LittleEndian.Uint64(s.b[s.off:])
	s.off += 8
	return v, nil
}

// name reads a key or tensor name of at most limit bytes.
func (s *scanner) name(field string, limit int) (string, error) {
	n, err := s.u64(field)
	if err != nil {
		return "", err
	}
	switch {
	case n == 0:
		return "", fieldErr(s.path, field, "is empty")
	case n > uint64(limit):
		return "", fieldErr(s.path, field, "length %d is over the limit of %d bytes", n, limit)
	case n > uint64(s.left()):
		return "", s.short(field)
	}
	raw := s.b[s.off : s.off+int(n)]
	if !utf8.Valid(raw) {
		return "", fieldErr(s.path, field, "%s is not valid UTF-8", clip(string(raw)))
	}
	s.off += int(n)
	return string(raw), nil
}

// skip moves over n elements of type t and returns their bytes.
func (s *scanner) skip(field string, t ValueType, n uint64, depth int) ([]byte, error) {
	if !t.known() {
		return nil, fieldErr(s.path, field, "unknown value type %d", uint32(t))
	}
	start := s.off
	switch t {
	case String:
		// A vocabulary has hundreds of thousands of these: keep the loop small.
		b, off := s.b, s.off
		if n > uint64(len(b)-off)/8 {
			return nil, s.shortCount(field, n)
		}
		for range n {
			if len(b)-off < 8 {
				return nil, s.short(field)
			}
			l := binary.LittleEndian.Uint64(b[off:])
			off += 8
			if l > uint64(len(b)-off) {
				return nil, s.shortString(field, l)
			}
			off += int(l)
		}
		s.off = off
	case ArrayOf:
		if depth == maxDepth {
			return nil, fieldErr(s.path, field, "arrays are nested more than %d deep", maxDepth)
		}
		if n > uint64(s.left())/12 {
			return nil, s.shortCount(field, n)
		}
		for range n {
			elem, count, err := s.arrayHead(field)
			if err != nil {
				return nil, err
			}
			if _, err := s.skip(field, elem, count, depth+1); err != nil {
				return nil, err
			}
		}
	default:
		size := uint64(valueTypes[t].size)
		if n > uint64(s.left())/size {
			return nil, s.shortCount(field, n)
		}
		s.off += int(n * size)
	}
	return s.b[start:s.off:s.off], nil
}

func (s *scanner) arrayHead(field string) (ValueType, uint64, error) {
	elem, err := s.u32(field)
	if err != nil {
		return 0, 0, err
	}
	n, err := s.u64(field)
	return ValueType(elem), n, err
}

func (s *scanner) shortCount(field string, n uint64) error {
	if n <= 1 {
		return s.short(field)
	}
	return &Error{s.path, field, fmt.Errorf("%w: %d elements do not fit the %d bytes left", ErrTruncated, n, s.left())}
}

func (s *scanner) shortString(field string, n uint64) error {
	return &Error{s.path, field, fmt.Errorf("%w: a string of %d bytes does not fit the file of %d bytes", ErrTruncated, n,
		len(s.b))}
}

// parse checks a whole file and finds where everything is.
func parse(path string, data []byte) (*part, error) {
	s := &scanner{path: path, b: data}
	p := &part{path: path, align: defaultAlignment, index: map[string]int{}, size: len(data)}

	if len(data) < 4 {
		return nil, s.short("magic")
	}
	if string(data[:4]) != magic {
		return nil, fieldErr(path, "magic", "%q is not %q: %s", data[:4], magic, otherFile(data))
	}
	s.off = 4
	v, err := s.u32("version")
	if err != nil {
		return nil, err
	}
	switch {
	case v == 2 || v == 3:
	case v == 1:
		return nil, fieldErr(path, "version", "version 1 is not supported; convert the file again")
	case v&0xffff == 0:
		return nil, fieldErr(path, "version", "the file is big-endian; only little-endian files are supported")
	default:
		return nil, fieldErr(path, "version", "version %d is not supported, only 2 and 3", v)
	}
	p.version = v
	nTensors, err := s.u64("tensor count")
	if err != nil {
		return nil, err
	}
	nKV, err := s.u64("key count")
	if err != nil {
		return nil, err
	}
	// The smallest entry: a name of one byte and what must follow it.
	if limit := uint64(s.left()) / (8 + 1 + 4 + 1); nKV > limit {
		return nil, &Error{path, "key count", fmt.Errorf("%w: %d keys do not fit the %d bytes left", ErrTruncated, nKV,
			s.left())}
	}
	if limit := uint64(s.left()) / (8 + 1 + 4 + 4 + 8); nTensors > limit {
		return nil, &Error{path, "tensor count", fmt.Errorf("%w: %d tensors do not fit the %d bytes left", ErrTruncated,
			nTensors, s.left())}
	}
	if err := p.scanKVs(s, int(nKV)); err != nil {
		return nil, err
	}
	if err := p.scanAlignment(); err != nil {
		return nil, err
	}
	if err := p.scanTensors(s, int(nTensors)); err != nil {
		return nil, err
	}
	return p, nil
}

// otherFile says what is often found under the name of a GGUF file.
func otherFile(data []byte) string {
	switch {
	case bytes.HasPrefix(data, []byte("version https://git-lfs")):
		return "a pointer that Git LFS left in place of the file; \"git lfs pull\" fetches it"
	case data[0] == '<':
		return "a web page, not the file behind it"
	case len(data) > 8 && data[8] == '{':
		return "a safetensors file; \"strobe convert\" makes a GGUF file of its folder"
	}
	return "not a GGUF file"
}

func (p *part) scanKVs(s *scanner, n int) error {
	for i := range n {
		key, err := s.name(fmt.Sprintf("key %d of %d", i+1, n), maxKey)
		if err != nil {
			return err
		}
		field := keyField(key)
		if _, dup := p.index[key]; dup {
			return fieldErr(p.path, field, "the key is there twice")
		}
		t, err := s.u32(field)
		if err != nil {
			return err
		}
		e := kv{key: key, kind: Kind{Type: ValueType(t)}}
		elem, count := e.kind.Type, uint64(1)
		if e.kind.IsArray() {
			if elem, count, err = s.arrayHead(field); err != nil {
				return err
			}
			e.kind.Elem = elem
		}
		if e.data, err = s.skip(field, elem, count, 0); err != nil {
			return err
		}
		if e.kind.IsArray() {
			e.kind.Len = int(count)
		}
		p.index[key] = len(p.kvs)
		p.kvs = append(p.kvs, e)
	}
	return nil
}

func (p *part) scanAlignment() error {
	i, ok := p.index[keyAlignment]
	if !ok {
		return nil
	}
	var err error
	if p.align, err = alignment(p.kvs[i]); err != nil {
		return &Error{p.path, keyAlignment, err}
	}
	return nil
}

func alignment(e kv) (int, error) {
	v, err := toUint(e)
	if err != nil {
		return 0, err
	}
	if v == 0 || v > maxAlignment || v&(v-1) != 0 {
		return 0, fmt.Errorf("%d is not a power of two up to %d", v, maxAlignment)
	}
	return int(v), nil
}

func (p *part) scanTensors(s *scanner, n int) error {
	type place struct{ offset, size uint64 }
	places := make([]place, 0, min(n, 4096))
	seen := make(map[string]struct{}, min(n, 4096))
	var end uint64 // where the next tensor must begin
	for i := range n {
		name, err := s.name(fmt.Sprintf("name of tensor %d of %d", i+1, n), maxName)
		if err != nil {
			return err
		}
		field := tensorField(name)
		if _, dup := seen[name]; dup {
			return fieldErr(p.path, field, "the name is there twice")
		}
		seen[name] = struct{}{}
		t := &Tensor{Name: name}
		size, err := p.scanShape(s, field, t)
		if err != nil {
			return err
		}
		offset, err := s.u64(field)
		if err != nil {
			return err
		}
		switch {
		case offset%uint64(p.align) != 0:
			return fieldErr(p.path, field, "offset %d is not a multiple of the alignment %d", offset, p.align)
		case offset < end:
			return fieldErr(p.path, field, "offset %d overlaps the tensor before it, which ends at %d", offset, end)
		case offset > end:
			return fieldErr(p.path, field, "offset %d leaves a gap after the tensor before it, which ends at %d", offset, end)
		}
		places = append(places, place{offset, size})
		end = offset + size
		if pad := uint64(p.align) - 1; end > math.MaxInt64-pad {
			return fieldErr(p.path, field, "size %d is too large", size)
		} else {
			end = (end + pad) &^ pad
		}
		p.tensors = append(p.tensors, t)
	}
	p.headerEnd, p.dataEnd = s.off, s.off
	if n == 0 {
		return nil
	}
	start := uint64(padded(s.off, p.align))
	for i, t := range p.tensors {
		from := start + places[i].offset
		to := from + places[i].size
		if to > uint64(len(s.b)) {
			return &Error{p.path, tensorField(t.Name),
				fmt.Errorf("%w: its data ends at byte %d, the file at %d", ErrTruncated, to, len(s.b))}
		}
		t.Data = s.b[from:to:to]
		p.dataEnd = int(to)
	}
	return nil
}

// scanShape reads dimensions and type and returns the size of the data.
func (p *part) scanShape(s *scanner, field string, t *Tensor) (uint64, error) {
	nd, err := s.u32(field)
	if err != nil {
		return 0, err
	}
	if nd > maxDims {
		return 0, fieldErr(p.path, field, "%d dimensions, at most %d are possible", nd, maxDims)
	}
	t.Shape = make([]int, nd)
	elems := uint64(1)
	for j := range t.Shape {
		d, err := s.u64(field)
		if err != nil {
			return 0, err
		}
		if d == 0 || d > math.MaxInt {
			return 0, fieldErr(p.path, field, "dimension %d is %d", j, int64(d))
		}
		hi, lo := bits.Mul64(elems, d)
		if hi != 0 || lo > math.MaxInt64/16 { // no type takes more than 8 bytes a value
			return 0, fieldErr(p.path, field, "shape %v is too large", t.Shape[:j])
		}
		elems, t.Shape[j] = lo, int(d)
	}
	id, err := s.u32(field)
	if err != nil {
		return 0, err
	}
	t.Type = quant.Type(id)
	if !t.Type.Known() {
		if of := t.Type.Repacked(); of.Known() {
			return 0, fieldErr(p.path, field, "type %d, %v in the order of some processors, is retired; get a file in %v",
				id, of, of)
		}
		return 0, fieldErr(p.path, field, "unknown type %d", id)
	}
	size, err := tensorBytes(t.Type, t.Shape)
	if err != nil {
		return 0, &Error{p.path, field, err}
	}
	return uint64(size), nil
}

// tensorBytes is the size of a tensor whose shape is known not to overflow.
func tensorBytes(t quant.Type, shape []int) (int, error) {
	row, rows := 1, 1
	if len(shape) > 0 {
		row = shape[0]
		for _, d := range shape[1:] {
			rows *= d
		}
	}
	if row%t.BlockLen() != 0 {
		return 0, fmt.Errorf("rows of %d values are not a multiple of %s's block of %d", row, t, t.BlockLen())
	}
	return row / t.BlockLen() * t.BlockBytes() * rows, nil
}

func padded(n, align int) int { return (n + align - 1) &^ (align - 1) }
