// Package platform hides the differences between operating systems.
//
// It opens regular files and nothing else, and maps them into memory. A Mapping is read-only: writing through its bytes
// crashes the process. The bytes are gone after Close, so whoever hands out
// slices of them says so.
package platform

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
)

// A Mapping is the read-only content of one file.
type Mapping struct {
	path  string
	info  os.FileInfo // when it was mapped
	mu    sync.Mutex
	data  []byte
	unmap func() error
}

// Change is what became of a file since it was mapped.
type Change int

// The changes, the worst last.
const (
	Unchanged   Change = iota // or gone, which leaves the content as it is
	Replaced                  // another file has its name; the content is still that of the old one
	Overwritten               // it was written to: the content is no longer what was mapped
)

// Change tells what became of the file. It looks at its size and times, not at the content.
func (m *Mapping) Change() Change {
	st, err := os.Stat(m.path)
	switch {
	case err != nil:
		return Unchanged
	case !os.SameFile(st, m.info):
		return Replaced
	case st.Size() != m.info.Size() || !st.ModTime().Equal(m.info.ModTime()):
		return Overwritten
	}
	return Unchanged
}

// Map maps the regular file at path. An empty file gives empty bytes.
//
// Where the file shrinks while it is mapped, touching a page that is gone kills the process, unless the goroutine has
// called debug.SetPanicOnFault and recovers; see IsFault.
func Map(path string) (*Mapping, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := st.Size()
	if size == 0 {
		return &Mapping{path: path, info: st, data: []byte{}}, nil
	}
	if size > math.MaxInt {
		return nil, fmt.Errorf("%s: %d bytes do not fit the address space", path, size)
	}
	data, unmap, err := mapFile(f, int(size))
	if err != nil {
		// PathError would print the path twice.
		if pe := (*os.PathError)(nil); errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &Mapping{path: path, info: st, data: data, unmap: unmap}, nil
}

// Bytes is the file's content; nil after Close.
func (m *Mapping) Bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.data
}

// Close unmaps the file. Closing again does nothing.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	unmap := m.unmap
	m.data, m.unmap = nil, nil
	if unmap == nil {
		return nil
	}
	return unmap()
}
