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
