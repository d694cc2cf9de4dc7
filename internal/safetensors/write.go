package safetensors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sort"
	"unicode/utf8"
)

// Write writes the tensors, in the given order, to a temporary file beside path
// and renames it. An error leaves nothing behind.
func Write(path string, tensors []Tensor, meta map[string]string) error {
	head, err := header(path, tensors, meta)
	if err != nil {
		return err
	}
	f, err := createTemp(path)
	if err != nil {
		return err
	}
	temp := f.Name()
	err = writeAll(f, head, tensors)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// createTemp leaves the mode to the umask, which os.CreateTemp does not.
func createTemp(path string) (*os.File, error) {
	for range 100 {
		f, err := os.OpenFile(fmt.Sprintf("%s.tmp-%08x", path, rand.Uint32()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, os.ErrExist) {
			return f, err
		}
	}
	return nil, fmt.Errorf("%s: no free temporary name beside it", path)
}

func writeAll(f *os.File, head []byte, tensors []Tensor) error {
	w := bufio.NewWriterSize(f, 1<<20)
	if _, err := w.Write(head); err != nil {
		return err
	}
	for i := range tensors {
		if _, err := w.Write(tensors[i].Data); err != nil {
			return err
		}
	}
	return w.Flush()
}

// header encodes length and JSON, padded with spaces so that the data begins at
// a multiple of 8.
func header(path string, tensors []Tensor, meta map[string]string) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, 8, 1<<12))
	b.WriteByte('{')
	if len(meta) > 0 {
		b.WriteString(`"__metadata__":{`)
		keys := make([]string, 0, len(meta))
		for k := range meta {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for i, k := range keys {
			if i > 0 {
				b.WriteByte(',')
			}
			writeJSON(b, k)
			b.WriteByte(':')
			writeJSON(b, meta[k])
		}
		b.WriteByte('}')
	}
	seen := map[string]bool{"__metadata__": true}
	offset := 0
	for i := range tensors {
		t := &tensors[i]
		if err := check(path, t, seen); err != nil {
			return nil, err
		}
		if b.Len() > 9 {
			b.WriteByte(',')
		}
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		writeJSON(b, t.Name)
		b.WriteString(`:{"dtype":`)
		writeJSON(b, t.DType)
		b.WriteString(`,"shape":`)
		writeJSON(b, shape)
		fmt.Fprintf(b, `,"data_offsets":[%d,%d]}`, offset, offset+len(t.Data))
		offset += len(t.Data)
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-8 > maxHeader {
		return nil, fieldErr(path, "header", "%d bytes are over the limit of %d", b.Len()-8, maxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes(), nil
}

func check(path string, t *Tensor, seen map[string]bool) error {
	field := tensorField(t.Name)
	if seen[t.Name] {
		return fieldErr(path, field, "the name is there twice or reserved")
	}
	seen[t.Name] = true
	if !utf8.ValidString(t.Name) {
		return fieldErr(path, field, "the name is not valid UTF-8")
	}
	width, ok := dtypeBits[t.DType]
	if !ok {
		return fieldErr(path, field, "unknown dtype %s", clip(t.DType))
	}
	elems := 1
	for i, d := range t.Shape {
		if d < 0 || d > 0 && elems > math.MaxInt/64/d {
			return fieldErr(path, field, "dimension %d is %d", i, d)
		}
		elems *= d
	}
	if uint64(elems)*width%8 != 0 || uint64(len(t.Data)) != uint64(elems)*width/8 {
		return fieldErr(path, field, "%d bytes of data, %s of shape %v needs %d", len(t.Data), t.DType, t.Shape,
			uint64(elems)*width/8)
	}
	return nil
}

// writeJSON writes v without the HTML escapes of json.Marshal. Strings and
// integers cannot fail.
func writeJSON(b *bytes.Buffer, v any) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	b.Truncate(b.Len() - 1) // the encoder's newline
}
