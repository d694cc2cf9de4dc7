package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"strobe/internal/platform"
)

// maxHeader is the reference implementation's limit on the header.
const maxHeader = 100_000_000

// dtypeBits is the size of one value.
var dtypeBits = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
	"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32,
	"I64": 64, "U64": 64, "F64": 64, "C64": 64,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

type entry struct {
	DType   *string  `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets []uint64 `json:"data_offsets"`
}

// parse checks a whole file and returns its tensors in the order of their data.
func parse(path string, data []byte) ([]*Tensor, map[string]string, error) {
	if len(data) < 8 {
		return nil, nil, &Error{path, "header length", ErrTruncated}
	}
	n := binary.LittleEndian.Uint64(data)
	switch {
	case bytes.HasPrefix(data, []byte("version https://git-lfs")):
		return nil, nil, fieldErr(path, "header length",
			"this is a pointer that Git LFS left in place of the file; \"git lfs pull\" fetches it")
	case n > maxHeader:
		return nil, nil, fieldErr(path, "header length", "%d is over the limit of %d bytes: not a safetensors file", n,
			maxHeader)
	case n > uint64(len(data)-8):
		return nil, nil, fieldErr(path, "header length", "%w: a header of %d bytes in a file of %d", ErrTruncated, n,
			len(data))
	}
	head, body := data[8:8+n], data[8+n:]
	if !utf8.Valid(head) {
		return nil, nil, fieldErr(path, "header", "is not valid UTF-8")
	}
	entries, meta, err := parseHeader(path, head)
	if err != nil {
		return nil, nil, err
	}
	type span struct {
		t        *Tensor
		from, to uint64
	}
	spans := make([]span, 0, len(entries))
	for _, e := range entries {
		t, from, to, err := e.tensor(path, body)
		if err != nil {
			return nil, nil, err
		}
		spans = append(spans, span{t, from, to})
	}
	slices.SortStableFunc(spans, func(a, b span) int {
		if a.from != b.from {
			if a.from < b.from {
				return -1
			}
			return 1
		}
		if a.to < b.to {
			return -1
		}
		return 1
	})
	tensors := make([]*Tensor, len(spans))
	for i, s := range spans {
		if i > 0 && s.from < spans[i-1].to {
			return nil, nil, fieldErr(path, tensorField(s.t.Name), "its data overlaps that of %s",
				tensorField(spans[i-1].t.Name))
		}
		tensors[i] = s.t
	}
	return tensors, meta, nil
}

type named struct {
	name string
	entry
}

// parseHeader walks the JSON object key by key, because decoding it into a map
// would hide a name that is there twice.
func parseHeader(path string, head []byte) ([]named, map[string]string, error) {
	bad := func(field string, err error) error {
		return &Error{path, field, fmt.Errorf("not valid: %w", shortJSON(err))}
	}
	d := json.NewDecoder(bytes.NewReader(head))
	if tok, err := d.Token(); err != nil {
		return nil, nil, bad("header", err)
	} else if tok != json.Delim('{') {
		return nil, nil, fieldErr(path, "header", "is not a JSON object")
	}
	var entries []named
	var meta map[string]string
	seen := map[string]bool{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return nil, nil, bad("header", err)
		}
		name := tok.(string) // the decoder lets nothing else be a key
		if seen[name] {
			return nil, nil, fieldErr(path, tensorField(name), "the name is there twice")
		}
		seen[name] = true
		if name == "__metadata__" {
			if err := d.Decode(&meta); err != nil {
				return nil, nil, bad("__metadata__", err)
			}
			continue
		}
		e := named{name: name}
		if err := d.Decode(&e.entry); err != nil {
			return nil, nil, bad(tensorField(name), err)
		}
		entries = append(entries, e)
	}
	if _, err := d.Token(); err != nil {
		return nil, nil, bad("header", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, fieldErr(path, "header", "has text after the JSON object")
	}
	if meta == nil {
		meta = map[string]string{}
	}
	return entries, meta, nil
}

// shortJSON keeps a decoder's message to one line without Go type names.
func shortJSON(err error) error {
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		if te.Field == "" {
			return fmt.Errorf("unexpected JSON %s", te.Value)
		}
		return fmt.Errorf("%s: unexpected JSON %s", te.Field, te.Value)
	}
	return err
}

// tensor checks one entry against the data that follows the header.
func (e *named) tensor(path string, body []byte) (t *Tensor, from, to uint64, err error) {
	field := tensorField(e.name)
	switch {
	case e.DType == nil:
		return nil, 0, 0, fieldErr(path, field, "dtype is missing")
	case e.Shape == nil:
		return nil, 0, 0, fieldErr(path, field, "shape is missing")
	case len(e.Offsets) != 2:
		return nil, 0, 0, fieldErr(path, field, "data_offsets has %d numbers, expected 2", len(e.Offsets))
	}
	t = &Tensor{Name: e.name, DType: *e.DType, Shape: make([]int, len(e.Shape))}
	elems := uint64(1)
	for i, d := range e.Shape {
		if d < 0 || d > math.MaxInt {
			return nil, 0, 0, fieldErr(path, field, "dimension %d is %d", i, d)
		}
		hi, lo := bits.Mul64(elems, uint64(d))
		if hi != 0 || lo > math.MaxInt64/64 {
			return nil, 0, 0, fieldErr(path, field, "its shape is too large")
		}
		elems, t.Shape[i] = lo, int(d)
	}
	width, ok := dtypeBits[t.DType]
	if !ok {
		return nil, 0, 0, fieldErr(path, field, "unknown dtype %s", clip(t.DType))
	}
	if elems*width%8 != 0 {
		return nil, 0, 0, fieldErr(path, field, "%d values of %s do not fill whole bytes", elems, t.DType)
	}
	from, to = e.Offsets[0], e.Offsets[1]
	size := elems * width / 8
	switch {
	case from > to:
		return nil, 0, 0, fieldErr(path, field, "data_offsets %d to %d go backwards", from, to)
	case to-from != size:
		return nil, 0, 0, fieldErr(path, field, "data_offsets hold %d bytes, %s of shape %v needs %d", to-from, t.DType,
			t.Shape, size)
	case to > uint64(len(body)):
		return nil, 0, 0, fieldErr(path, field, "%w: its data ends at byte %d of %d", ErrTruncated, to, len(body))
	}
	t.Data = body[from:to:to]
	return t, from, to, nil
}

// maxIndex is the size limit of an index. One has a line of some 100 bytes for each tensor.
const maxIndex = 256 << 20

// openIndex opens every shard an index names.
func (f *File) openIndex(path string) error {
	raw, err := platform.ReadFile(path, maxIndex)
	if err != nil {
		return err
	}
	var index struct {
		Metadata  map[string]any    `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return &Error{path, "", fmt.Errorf("not valid: %w", shortJSON(err))}
	}
	if len(index.WeightMap) == 0 {
		return fieldErr(path, "weight_map", "is missing or empty")
	}
	for k, v := range index.Metadata {
		if n, ok := v.(float64); ok && n == math.Trunc(n) && math.Abs(n) < 1<<53 {
			v = int64(n)
		}
		f.meta[k] = fmt.Sprint(v)
	}
	names := make([]string, 0, len(index.WeightMap))
	for name := range index.WeightMap {
		names = append(names, name)
	}
	slices.Sort(names) // the same error for the same file
	shards := map[string]map[string]*Tensor{}
	for _, name := range names {
		file := index.WeightMap[name]
		if err := plainName(file); err != nil {
			return &Error{path, "weight_map: " + tensorField(name), err}
		}
		shard, ok := shards[file]
		if !ok {
			tensors, _, err := f.mapFile(filepath.Join(filepath.Dir(path), file))
			if errors.Is(err, os.ErrNotExist) {
				return fieldErr(path, "weight_map", "shard %s is missing", clip(file))
			}
			if err != nil {
				return err
			}
			shard = make(map[string]*Tensor, len(tensors))
			for _, t := range tensors {
				shard[t.Name] = t
			}
			shards[file] = shard
		}
		t := shard[name]
		if t == nil {
			return fieldErr(path, "weight_map", "%s is not in shard %s", tensorField(name), clip(file))
		}
		f.tensors[name] = t
	}
	return nil
}

// plainName refuses shard names that could leave the checkpoint's folder.
func plainName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, `/\:`) || strings.ContainsRune(name, 0) {
		return fmt.Errorf("shard name %s is not a plain file name", clip(name))
	}
	return nil
}

func tensorField(name string) string { return "tensor " + clip(name) }

// clip quotes a name from the file, which may hold anything.
func clip(s string) string {
	if len(s) > 100 {
		return fmt.Sprintf("%q...", s[:100])
	}
	return fmt.Sprintf("%q", s)
}
