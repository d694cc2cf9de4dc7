// Package platform hides the differences between operating systems.
//
// It maps files into memory. A Mapping is read-only: writing through its bytes
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
	mu    sync.Mutex
	data  []byte
	unmap func() error
}

// Map maps the regular file at path. An empty file gives empty bytes.
//
// The file must not shrink while it is mapped: touching a page that is gone
// kills the process, as it does for every program that maps files.
func Map(path string) (*Mapping, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		return nil, fmt.Errorf("%s: is a folder, not a file", path)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is not a regular file", path)
	}
	size := st.Size()
	if size == 0 {
		return &Mapping{data: []byte{}}, nil
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
	return &Mapping{data: data, unmap: unmap}, nil
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
