package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"strobe/internal/platform"
)

// A File is an open checkpoint: one file or several shards.
type File struct {
	maps    []*platform.Mapping
	names   []string
	tensors map[string]*Tensor
	meta    map[string]string
}

// A Tensor is a named array in a File.
type Tensor struct {
	Name  string
	DType string // "F32", "BF16", "I64", ...
	Shape []int  // torch order: the last axis is contiguous
	Data  []byte // little-endian; part of the mapping when it comes from a File
}

// Elems is the number of values.
func (t *Tensor) Elems() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Error says what is wrong with which part of a file. It prints as
// "path: field: what".
type Error struct {
	Path  string
	Field string
	Err   error
}

func (e *Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Path, e.Field, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// ErrTruncated is the cause when a file ends before its header or data do.
var ErrTruncated = errors.New("file is truncated")

func fieldErr(path, field, format string, args ...any) error {
	return &Error{path, field, fmt.Errorf(format, args...)}
}

const (
	singleName = "model.safetensors"
	indexName  = "model.safetensors.index.json"
)

// Open opens a .safetensors file, the index.json of a sharded checkpoint, or a
// folder that holds either.
func Open(path string) (*File, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		if path, err = findIn(path); err != nil {
			return nil, err
		}
	}
	f := &File{tensors: map[string]*Tensor{}, meta: map[string]string{}}
	if strings.HasSuffix(path, ".json") {
		err = f.openIndex(path)
	} else {
		err = f.openSingle(path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	for name := range f.tensors {
		f.names = append(f.names, name)
	}
	sort.Strings(f.names)
	return f, nil
}

// findIn picks what to open in a folder.
func findIn(dir string) (string, error) {
	for _, name := range []string{indexName, singleName} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var index, single []string
	for _, e := range entries {
		switch {
		case strings.HasSuffix(e.Name(), ".safetensors.index.json"):
			index = append(index, e.Name())
		case strings.HasSuffix(e.Name(), ".safetensors"):
			single = append(single, e.Name())
		}
	}
	for _, found := range [][]string{index, single} {
		if len(found) == 1 {
			return filepath.Join(dir, found[0]), nil
		}
	}
	if len(index)+len(single) == 0 {
		return "", fmt.Errorf("%s: no .safetensors file in this folder", dir)
	}
	return "", fmt.Errorf("%s: several safetensors files and no %s; name one of %s", dir, indexName,
		strings.Join(slices.Concat(index, single), ", "))
}

func (f *File) openSingle(path string) error {
	tensors, meta, err := f.mapFile(path)
	if err != nil {
		return err
	}
	f.meta = meta
	for _, t := range tensors {
		f.tensors[t.Name] = t
	}
	return nil
}

func (f *File) mapFile(path string) ([]*Tensor, map[string]string, error) {
	m, err := platform.Map(path)
	if err != nil {
		return nil, nil, err
	}
	f.maps = append(f.maps, m)
	return parse(path, m.Bytes())
}

// Close unmaps the files. Tensor data must not be used afterwards. Closing
// again does nothing.
func (f *File) Close() error {
	for _, t := range f.tensors {
		t.Data = nil // so that late use is a plain panic, not a fault
	}
	var errs []error
	for _, m := range f.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Names lists the tensors, sorted. The slice belongs to the File.
func (f *File) Names() []string { return f.names }

// Tensor is the tensor of that name, nil when there is none.
func (f *File) Tensor(name string) *Tensor { return f.tensors[name] }
