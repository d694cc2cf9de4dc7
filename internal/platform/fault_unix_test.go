//go:build unix

package platform

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

// TestFault: reading a page that another program cut off is a panic that can be told from others.
func TestFault(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := Map(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	recovered := func(fn func()) (v any) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { v = recover() }()
		fn()
		return nil
	}
	sum := byte(0)
	v := recovered(func() { sum += m.Bytes()[1<<19] })
	if !IsFault(v) || !IsFault(fmt.Errorf("in a worker: %w", v.(error))) {
		t.Errorf("reading past the end gave %v (and %d)", v, sum)
	}
	var nothing *Mapping
	for _, v := range []any{nil, "text", errors.New("error"), recovered(func() { nothing.path = "" }),
		recovered(func() { _ = m.Bytes()[1<<30] })} {
		if IsFault(v) {
			t.Errorf("%v is taken for a fault", v)
		}
	}
}

// TestChange: what became of a mapped file.
func TestChange(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "f"), filepath.Join(dir, "other")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(path, "one")
	m, err := Map(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	want := func(c Change, what string) {
		t.Helper()
		if got := m.Change(); got != c {
			t.Errorf("%s: %v, want %v", what, got, c)
		}
	}
	want(Unchanged, "at first")
	write(path, "longer")
	want(Overwritten, "after writing")
	write(other, "two")
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	want(Replaced, "after a rename")
	os.Remove(path)
	want(Unchanged, "gone")
}
