package gguf

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"

	"strobe/internal/platform"
	"strobe/internal/quant"
)

// Keys of split files. The first part holds all other metadata.
const (
	keySplitNo      = "split.no"            // number of this part, from 0
	keySplitCount   = "split.count"         // number of parts
	keySplitTensors = "split.tensors.count" // tensors in all parts together
)

// maxParts is what the five digits in a part's name can count.
const maxParts = 99999

// A File is an open GGUF file.
type File struct {
	maps    []*platform.Mapping
	parts   []*part
	tensors []*Tensor
	byName  map[string]*Tensor
	closed  atomic.Bool
}

// A Tensor is a named array in a File.
type Tensor struct {
	Name  string
	Type  quant.Type
	Shape []int  // ne order: Shape[0] is the contiguous axis
	Data  []byte // part of the mapping: read-only, gone after File.Close

	source *platform.Mapping // nil: the file is in memory
}

// Forget says that Data will hardly be read again, so that its pages need not stay in memory.
func (t *Tensor) Forget() {
	if t.source != nil {
		t.source.Forget(t.Data)
	}
}

// Elems is the number of values.
func (t *Tensor) Elems() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Rows is the product of all dimensions but the first.
func (t *Tensor) Rows() int {
	n := 1
	for i, d := range t.Shape {
		if i > 0 {
			n *= d
		}
	}
	return n
}

// Open maps the file at path, and the other parts when path is the first part
// of a split file. Errors are of type *Error, except those of the system.
func Open(path string) (*File, error) {
	f := &File{}
	complete := false
	defer func() {
		if !complete { // also when reading it is a fault
			f.Close()
		}
	}()
	if err := f.open(path); err != nil {
		return nil, err
	}
	complete = true
	return f, nil
}

// Change tells what became of the file since it was opened: the worst of its parts. It may be called from any
// goroutine, also after Close. A file that was parsed in memory never changes.
func (f *File) Change() platform.Change {
	worst := platform.Unchanged
	for _, m := range f.maps {
		worst = max(worst, m.Change())
	}
	return worst
}

// Parse reads a file that is already in memory; name stands for its path in
// errors. It does not follow splits: a part is returned as it is. The File uses
// data, which must not change.
func Parse(name string, data []byte) (*File, error) {
	p, err := parse(name, data)
	if err != nil {
		return nil, err
	}
	f := &File{parts: []*part{p}}
	return f, f.indexTensors()
}

func (f *File) open(path string) error {
	if err := f.addPart(path); err != nil {
		return err
	}
	first := f.parts[0]
	count, err := first.splitValue(keySplitCount, maxParts)
	if err != nil {
		return err
	}
	if count <= 1 {
		return f.indexTensors()
	}
	no, err := first.splitValue(keySplitNo, maxParts)
	if err != nil {
		return err
	}
	prefix, number, total, ok := splitName(path)
	switch {
	case !ok:
		return fieldErr(path, keySplitCount, "the file is one of %d parts but is not named like name-00001-of-%05d.gguf",
			count, count)
	case number != 1:
		return fieldErr(path, keySplitNo, "this is part %d of %d; open the first one, %s", number, total,
			filepath.Base(PartPath(prefix, 1, total)))
	case no != 0:
		return fieldErr(path, keySplitNo, "is %d in the first part, expected 0", no)
	case total != count:
		return fieldErr(path, keySplitCount, "is %d, but the file name says %d parts", count, total)
	}
	for i := 2; i <= count; i++ {
		if err := f.addPart(PartPath(prefix, i, count)); err != nil {
			return fmt.Errorf("part %d of %d: %w", i, count, err)
		}
		p := f.parts[i-1]
		for key, want := range map[string]int{keySplitNo: i - 1, keySplitCount: count} {
			got, err := p.splitValue(key, maxParts)
			if err != nil {
				return err
			}
			if _, ok := p.index[key]; !ok {
				return fieldErr(p.path, key, "the key is missing in part %d of %d", i, count)
			}
			if got != want {
				return fieldErr(p.path, key, "is %d, expected %d", got, want)
			}
		}
	}
	if err := f.indexTensors(); err != nil {
		return err
	}
	if _, ok := first.index[keySplitTensors]; ok {
		n, err := first.splitValue(keySplitTensors, 1<<31-1)
		if err != nil {
			return err
		}
		if n != len(f.tensors) {
			return fieldErr(path, keySplitTensors, "is %d, but the parts hold %d tensors", n, len(f.tensors))
		}
	}
	return nil
}

func (f *File) addPart(path string) error {
	m, err := platform.Map(path)
	if err != nil {
		return err
	}
	f.maps = append(f.maps, m)
	p, err := parse(path, m.Bytes())
	if err != nil {
		return err
	}
	for _, t := range p.tensors {
		t.source = m
	}
	f.parts = append(f.parts, p)
	return nil
}

// splitValue is a non-negative integer key, 0 when it is missing.
func (p *part) splitValue(key string, limit int) (int, error) {
	i, ok := p.index[key]
	if !ok {
		return 0, nil
	}
	v, err := toUint(p.kvs[i])
	if err != nil {
		return 0, &Error{p.path, key, err}
	}
	if v > uint64(limit) {
		return 0, fieldErr(p.path, key, "%d is over the limit of %d", v, limit)
	}
	return int(v), nil
}

func (f *File) indexTensors() error {
	n := 0
	for _, p := range f.parts {
		n += len(p.tensors)
	}
	f.tensors = make([]*Tensor, 0, n)
	f.byName = make(map[string]*Tensor, n)
	for _, p := range f.parts {
		for _, t := range p.tensors {
			if f.byName[t.Name] != nil {
				return fieldErr(p.path, tensorField(t.Name), "the name is already in an earlier part")
			}
			f.byName[t.Name] = t
			f.tensors = append(f.tensors, t)
		}
	}
	return nil
}

// Close unmaps the file. Tensor data must not be used afterwards, and values
// can no longer be read. Closing again does nothing.
func (f *File) Close() error {
	if f.closed.Swap(true) {
		return nil
	}
	for _, t := range f.tensors {
		t.Data = nil // so that late use is a plain panic, not a fault
	}
	var errs []error
	for _, m := range f.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Path is the path the file was opened with.
func (f *File) Path() string { return f.parts[0].path }

// Version is the container version, 2 or 3.
func (f *File) Version() uint32 { return f.parts[0].version }

// Alignment is what tensor offsets are a multiple of.
func (f *File) Alignment() int { return f.parts[0].align }

// Parts is the number of files a split file consists of, else 1.
func (f *File) Parts() int { return len(f.parts) }

// Paths are the files that a split file consists of, or the one it is.
func (f *File) Paths() (list []string) {
	for _, p := range f.parts {
		list = append(list, p.path)
	}
	return list
}

// Size is the number of bytes of all parts together.
func (f *File) Size() int64 {
	var n int64
	for _, p := range f.parts {
		n += int64(p.size)
	}
	return n
}

// Tensor is the tensor of that name, nil when there is none.
func (f *File) Tensor(name string) *Tensor { return f.byName[name] }

// Tensors lists the tensors in file order. The slice belongs to the File.
func (f *File) Tensors() []*Tensor { return f.tensors }

var splitPattern = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// splitName takes "dir/name-00001-of-00003.gguf" apart into "dir/name", 1, 3.
func splitName(path string) (prefix string, number, total int, ok bool) {
	dir, base := filepath.Split(path)
	m := splitPattern.FindStringSubmatch(base)
	if m == nil {
		return "", 0, 0, false
	}
	number, _ = strconv.Atoi(m[2])
	total, _ = strconv.Atoi(m[3])
	return dir + m[1], number, total, true
}

// PartPath is the name of part number (from 1) of total for a file called
// prefix.gguf.
func PartPath(prefix string, number, total int) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, number, total)
}

// WriteOptions are the options with which Create lays its output out like this
// file: f.KVs, f.Specs and the tensors' data then give the same bytes.
func (f *File) WriteOptions() WriteOptions {
	opt := WriteOptions{Version: f.Version()}
	if len(f.parts) > 1 {
		for _, p := range f.parts {
			opt.PartTensors = append(opt.PartTensors, len(p.tensors))
		}
	}
	for _, p := range f.parts {
		if len(p.tensors) == 0 && p.size > p.headerEnd {
			opt.PadEmpty = true
		}
		if len(p.tensors) > 0 && p.size == p.dataEnd {
			opt.NoEndPad = p.dataEnd != padded(p.dataEnd, p.align)
		}
	}
	return opt
}

// Specs describes the tensors in file order, ready for Create.
func (f *File) Specs() []TensorSpec {
	specs := make([]TensorSpec, len(f.tensors))
	for i, t := range f.tensors {
		specs[i] = TensorSpec{t.Name, t.Type, t.Shape}
	}
	return specs
}
