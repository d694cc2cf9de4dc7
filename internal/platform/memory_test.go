package platform

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestForget: what was forgotten can be read again, and nothing else is touched.
func TestForget(t *testing.T) {
	want := bytes.Repeat([]byte{1, 2, 3, 5, 7, 11, 13}, 100<<10)
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, want, 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := Map(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	b := m.Bytes()
	for _, part := range [][]byte{nil, b[:1], b[3:9], b[100 : 300<<10], b[70<<10:], b, make([]byte, 1<<20)} {
		m.Forget(part)
		if !bytes.Equal(b, want) {
			t.Fatalf("the content differs after %d bytes were forgotten", len(part))
		}
	}
}

func TestAnonymous(t *testing.T) {
	if AvailableMemory() == 0 {
		t.Skip("the memory of this system is unknown")
	}
	b := Anonymous(3<<20 + 5)
	if len(b) != 3<<20+5 {
		t.Fatalf("%d bytes", len(b))
	}
	for i, v := range b {
		if v != 0 {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
	b[0], b[len(b)-1] = 1, 2
	Free(b)
}
