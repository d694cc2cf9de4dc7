package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"strobe/internal/platform"
	"strobe/internal/quant"
)

// A KV is one metadata entry to write. Value is one of uint8 to uint64, int8 to
// int64, float32, float64, bool, string, a slice of one of those, or an Array.
type KV struct {
	Key   string
	Value any
}

// A TensorSpec announces a tensor whose data follows later.
type TensorSpec struct {
	Name  string
	Type  quant.Type
	Shape []int // ne order: Shape[0] is the contiguous axis
}

// WriteOptions choose the layout of a written file. The zero value writes one
// file of version 3.
type WriteOptions struct {
	// Version is 2 or 3; 0 means 3.
	Version uint32
	// SplitBytes starts a new part before a part's tensor data exceeds this
	// many bytes; 0 means no limit. A tensor is never cut.
	SplitBytes int64
	// SplitTensors is the largest number of tensors in one part; 0 means no limit.
	SplitTensors int
	// PartTensors fixes the number of tensors in every part; it wins over the
	// two limits above and must add up to all tensors.
	PartTensors []int
	// PadEmpty pads the header of a file without tensors to the alignment.
	// Writers of vocabulary-only files differ in this.
	PadEmpty bool
	// NoEndPad leaves out the padding after the last tensor. Upstream writes
	// it but does not need it.
	NoEndPad bool
	// Keep are files that must not be replaced: what the tensors are read from.
	Keep []string
}

// A Writer writes a GGUF file, or its parts, under temporary names. Call Close
// to put them in place or Abort to remove them; after an error only Abort and
// Close are useful, and Close then removes everything too.
type Writer struct {
	path  string
	files []*outFile
	specs []outTensor
	next  int   // tensor being written
	done  int64 // bytes of it that are written
	err   error // sticky
	over  bool
}

type outTensor struct {
	TensorSpec
	size   int64
	offset uint64
	file   int
	noPad  bool
}

type outFile struct {
	f     *os.File
	w     *bufio.Writer
	temp  string
	final string
	align int
	head  int64 // bytes of the header
}

// Create starts a file with the given metadata and tensors; general.alignment
// among the metadata is obeyed. Nothing is at path until Close. When the
// options split the file, the parts are named after path:
// "model.gguf" becomes "model-00001-of-00003.gguf" and so on.
func Create(path string, kvs []KV, tensors []TensorSpec, opt WriteOptions) (*Writer, error) {
	w := &Writer{path: path}
	if err := w.create(kvs, tensors, opt); err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

func (w *Writer) create(kvs []KV, tensors []TensorSpec, opt WriteOptions) error {
	version := opt.Version
	if version == 0 {
		version = 3
	}
	if version != 2 && version != 3 {
		return fieldErr(w.path, "version", "%d cannot be written, only 2 and 3", version)
	}
	align, err := w.checkKVs(kvs)
	if err != nil {
		return err
	}
	if err := w.checkTensors(tensors); err != nil {
		return err
	}
	counts, err := w.split(opt, align)
	if err != nil {
		return err
	}
	at := 0
	for i, n := range counts {
		part := w.specs[at : at+n]
		at += n
		final, meta := w.path, unsplit(kvs)
		if len(counts) > 1 {
			final = PartPath(splitPrefix(w.path), i+1, len(counts))
			meta = partKVs(kvs, align, i, len(counts), len(tensors))
		}
		out := &outFile{final: final, align: align}
		if err := out.open(opt.Keep); err != nil {
			return err
		}
		w.files = append(w.files, out)
		layout(part, i, align)
		if opt.NoEndPad && len(part) > 0 {
			part[len(part)-1].noPad = true
		}
		head, err := w.header(version, meta, part)
		if err != nil {
			return err
		}
		if len(part) > 0 || opt.PadEmpty {
			head = append(head, make([]byte, padded(len(head), align)-len(head))...)
		}
		out.head = int64(len(head))
		if _, err := out.w.Write(head); err != nil {
			return err
		}
	}
	return nil
}

// open makes a temporary file beside the final one, so that the rename stays
// on one file system. Unlike os.CreateTemp it leaves the mode to the umask.
func (o *outFile) open(keep []string) error {
	if old, err := os.Stat(o.final); err == nil {
		if old.IsDir() {
			return fmt.Errorf("%s: is a folder", o.final)
		}
		for _, path := range keep {
			if in, err := os.Stat(path); err == nil && os.SameFile(old, in) {
				return fmt.Errorf("%s: is both input and output", o.final)
			}
		}
	}
	removeStale(o.final)
	for range 100 {
		temp := fmt.Sprintf("%s.tmp-%08x", o.final, rand.Uint32())
		f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		// The lock says that a process still writes the file.
		if held, err := platform.TryLock(f); err == nil && (!held || !inPlace(f, temp)) {
			f.Close() // another process took it for a leftover before it was locked
			continue
		}
		o.f, o.temp, o.w = f, temp, bufio.NewWriterSize(f, 1<<20)
		return nil
	}
	return fmt.Errorf("%s: no free temporary name beside it", o.final)
}

// removeStale removes temporary files of a final one whose process was killed: what no process has locked. Where
// files cannot be locked they stay.
func removeStale(final string) {
	entries, _ := os.ReadDir(filepath.Dir(final))
	for _, e := range entries {
		path := filepath.Join(filepath.Dir(final), e.Name())
		id, ok := strings.CutPrefix(e.Name(), filepath.Base(final)+".tmp-")
		if _, err := strconv.ParseUint(id, 16, 32); !ok || err != nil || len(id) != 8 || !e.Type().IsRegular() {
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		held, _ := platform.TryLock(f)
		f.Close() // first: Windows removes no open file
		if held {
			os.Remove(path)
		}
	}
}

// inPlace reports whether an open file is still the one at path.
func inPlace(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Lstat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// checkKVs checks the metadata and returns the alignment.
func (w *Writer) checkKVs(kvs []KV) (int, error) {
	align := defaultAlignment
	seen := make(map[string]bool, len(kvs))
	for _, m := range kvs {
		field := keyField(m.Key)
		switch {
		case m.Key == "":
			return 0, fieldErr(w.path, field, "the key is empty")
		case len(m.Key) > maxKey:
			return 0, fieldErr(w.path, field, "the key is longer than %d bytes", maxKey)
		case !utf8.ValidString(m.Key):
			return 0, fieldErr(w.path, field, "the key is not valid UTF-8")
		case seen[m.Key]:
			return 0, fieldErr(w.path, field, "the key is there twice")
		}
		seen[m.Key] = true
		if m.Key != keyAlignment {
			continue
		}
		t, b, err := encode(m.Value)
		if err == nil {
			align, err = alignment(kv{m.Key, Kind{Type: t}, b})
		}
		if err != nil {
			return 0, &Error{w.path, field, err}
		}
	}
	return align, nil
}

func (w *Writer) checkTensors(tensors []TensorSpec) error {
	seen := make(map[string]bool, len(tensors))
	var total int64
	for _, t := range tensors {
		field := tensorField(t.Name)
		switch {
		case t.Name == "":
			return fieldErr(w.path, field, "the name is empty")
		case len(t.Name) > maxName:
			return fieldErr(w.path, field, "the name is longer than %d bytes", maxName)
		case !utf8.ValidString(t.Name):
			return fieldErr(w.path, field, "the name is not valid UTF-8")
		case seen[t.Name]:
			return fieldErr(w.path, field, "the name is there twice")
		case len(t.Shape) > maxDims:
			return fieldErr(w.path, field, "%d dimensions, at most %d are possible", len(t.Shape), maxDims)
		case !t.Type.Known():
			return fieldErr(w.path, field, "unknown type %d", uint32(t.Type))
		}
		seen[t.Name] = true
		elems := uint64(1)
		for j, d := range t.Shape {
			if d <= 0 {
				return fieldErr(w.path, field, "dimension %d is %d", j, d)
			}
			hi, lo := bits.Mul64(elems, uint64(d))
			if hi != 0 || lo > math.MaxInt64/16 {
				return fieldErr(w.path, field, "shape %v is too large", t.Shape)
			}
			elems = lo
		}
		size, err := tensorBytes(t.Type, t.Shape)
		if err != nil {
			return &Error{w.path, field, err}
		}
		if total += int64(size); total < 0 || total > math.MaxInt64/2 {
			return fieldErr(w.path, field, "the tensors before it and shape %v are too large together", t.Shape)
		}
		w.specs = append(w.specs, outTensor{TensorSpec: t, size: int64(size)})
	}
	return nil
}

// split decides how many tensors each part gets.
func (w *Writer) split(opt WriteOptions, align int) ([]int, error) {
	if opt.PartTensors != nil {
		sum := 0
		for _, n := range opt.PartTensors {
			if n < 0 {
				return nil, fieldErr(w.path, "split", "a part of %d tensors", n)
			}
			sum += n
		}
		if sum != len(w.specs) {
			return nil, fieldErr(w.path, "split", "the parts hold %d tensors, the file has %d", sum, len(w.specs))
		}
		if len(opt.PartTensors) > maxParts {
			return nil, fieldErr(w.path, "split", "%d parts, at most %d are possible", len(opt.PartTensors), maxParts)
		}
		return opt.PartTensors, nil
	}
	counts := []int{0}
	var bytes int64
	for _, t := range w.specs {
		size := int64(padded(int(t.size), align))
		last := &counts[len(counts)-1]
		full := opt.SplitTensors > 0 && *last >= opt.SplitTensors ||
			opt.SplitBytes > 0 && *last > 0 && bytes+size > opt.SplitBytes
		if full {
			counts = append(counts, 0)
			last, bytes = &counts[len(counts)-1], 0
		}
		*last++
		bytes += size
	}
	// split.count is stored in 16 bits.
	if len(counts) > math.MaxUint16 {
		return nil, fieldErr(w.path, "split", "%d parts, at most %d are possible", len(counts), math.MaxUint16)
	}
	return counts, nil
}

// layout places the tensors of part file one after the other.
func layout(part []outTensor, file, align int) {
	end := 0
	for j := range part {
		part[j].file, part[j].offset = file, uint64(end)
		end = padded(end+int(part[j].size), align)
	}
}

func splitPrefix(path string) string {
	if prefix, _, _, ok := splitName(path); ok {
		return prefix
	}
	if filepath.Ext(path) == ".gguf" {
		return path[:len(path)-len(".gguf")]
	}
	return path
}

// partKVs is the metadata of part i: everything for the first, only what
// describes the split for the others.
func partKVs(kvs []KV, align, i, parts, tensors int) []KV {
	split := []KV{
		{keySplitNo, uint16(i)}, {keySplitCount, uint16(parts)}, {keySplitTensors, int32(tensors)},
	}
	if i > 0 {
		if align != defaultAlignment {
			split = append(split, KV{keyAlignment, uint32(align)})
		}
		return split
	}
	// In place and only where the number changes, so that a split file that is
	// read and written keeps its order and types.
	out := append([]KV(nil), kvs...)
	for _, sp := range split {
		at := slices.IndexFunc(out, func(m KV) bool { return m.Key == sp.Key })
		switch {
		case at < 0:
			out = append(out, sp)
		case !sameInt(out[at].Value, sp.Value):
			out[at] = sp
		}
	}
	return out
}

// unsplit drops the keys that would make a reader look for other parts.
func unsplit(kvs []KV) []KV {
	at := slices.IndexFunc(kvs, func(m KV) bool { return m.Key == keySplitCount })
	if at < 0 || sameInt(kvs[at].Value, int32(0)) || sameInt(kvs[at].Value, int32(1)) {
		return kvs
	}
	return slices.DeleteFunc(slices.Clone(kvs), func(m KV) bool {
		return m.Key == keySplitNo || m.Key == keySplitCount || m.Key == keySplitTensors
	})
}

func sameInt(a, b any) bool {
	asInt := func(v any) (int64, error) {
		t, raw, err := encode(v)
		if err != nil {
			return 0, err
		}
		return toInt(kv{kind: Kind{Type: t}, data: raw})
	}
	x, errX := asInt(a)
	y, errY := asInt(b)
	return errX == nil && errY == nil && x == y
}

// header encodes everything before the data; only a value can be wrong with it.
func (w *Writer) header(version uint32, kvs []KV, tensors []outTensor) ([]byte, error) {
	b := append([]byte(nil), magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(kvs)))
	for _, m := range kvs {
		b = appendString(b, m.Key)
		t, v, err := encode(m.Value)
		if err != nil {
			return nil, &Error{w.path, keyField(m.Key), err}
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
		b = append(b, v...)
	}
	for _, t := range tensors {
		b = appendString(b, t.Name)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(t.Shape)))
		for _, d := range t.Shape {
			b = binary.LittleEndian.AppendUint64(b, uint64(d))
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(t.Type))
		b = binary.LittleEndian.AppendUint64(b, t.offset)
	}
	return b, nil
}

// WriteTensor appends data to the named tensor. Tensors are written in the
// order given to Create; one tensor's data may come in any number of calls.
func (w *Writer) WriteTensor(name string, data []byte) error {
	if err := w.begin(name); err != nil {
		return err
	}
	t := &w.specs[w.next]
	if int64(len(data)) > t.size-w.done {
		return w.fail(fieldErr(w.path, tensorField(name), "%d bytes of data, expected %d", w.done+int64(len(data)), t.size))
	}
	out := w.files[t.file]
	if _, err := out.w.Write(data); err != nil {
		return w.fail(err)
	}
	w.done += int64(len(data))
	return w.end()
}

// begin checks that name is the tensor whose turn it is.
func (w *Writer) begin(name string) error {
	if w.err != nil {
		return w.err
	}
	if w.over {
		return fieldErr(w.path, tensorField(name), "the file is already closed")
	}
	if w.next == len(w.specs) {
		return w.fail(fieldErr(w.path, tensorField(name), "all %d tensors are already written", len(w.specs)))
	}
	if t := w.specs[w.next]; t.Name != name {
		return w.fail(fieldErr(w.path, tensorField(name), "written out of order, expected %s with %d more bytes",
			tensorField(t.Name), t.size-w.done))
	}
	return nil
}

// end pads and moves on when the current tensor is complete.
func (w *Writer) end() error {
	t := &w.specs[w.next]
	if w.done < t.size {
		return nil
	}
	out := w.files[t.file]
	pad := padded(int(t.size), out.align) - int(t.size)
	if t.noPad {
		pad = 0
	}
	if _, err := out.w.Write(make([]byte, pad)); err != nil {
		return w.fail(err)
	}
	w.next, w.done = w.next+1, 0
	return nil
}

func (w *Writer) fail(err error) error {
	w.err = err
	return err
}

// Close checks that every tensor is complete, brings the files to disk and
// renames them into place, replacing what was there. On an error nothing new is
// left behind.
func (w *Writer) Close() error {
	if w.over {
		return w.err
	}
	if w.err == nil && w.next < len(w.specs) {
		t := w.specs[w.next]
		w.err = fieldErr(w.path, tensorField(t.Name), "%d bytes of data are missing", t.size-w.done)
	}
	if w.err == nil {
		w.err = w.finish()
	}
	w.Abort()
	return w.err
}

func (w *Writer) finish() error {
	for _, o := range w.files {
		err := o.w.Flush()
		if err == nil {
			err = o.f.Sync()
		}
		err = errors.Join(err, o.f.Close())
		o.f = nil
		if err != nil {
			return err
		}
	}
	for i, o := range w.files {
		if err := os.Rename(o.temp, o.final); err != nil {
			for _, moved := range w.files[:i] {
				os.Remove(moved.final)
			}
			return err
		}
		o.temp = ""
	}
	return nil
}

// Abort removes the temporary files. After Close it does nothing.
func (w *Writer) Abort() {
	w.over = true
	for _, o := range w.files {
		if o.f != nil {
			o.f.Close()
			o.f = nil
		}
		if o.temp != "" {
			os.Remove(o.temp)
			o.temp = ""
		}
	}
}
