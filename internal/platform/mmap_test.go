package platform

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMap(t *testing.T) {
	for _, n := range []int{0, 1, 4095, 4096, 4097, 1 << 20} {
		want := bytes.Repeat([]byte{1, 2, 3, 5, 7}, n/5+1)[:n]
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		m, err := Map(path)
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if !bytes.Equal(m.Bytes(), want) {
			t.Errorf("%d bytes: content differs", n)
		}
		for range 2 {
			if err := m.Close(); err != nil {
				t.Errorf("%d bytes: close: %v", n, err)
			}
		}
		if m.Bytes() != nil {
			t.Errorf("%d bytes: bytes are still there after close", n)
		}
	}
}

func TestMapRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := Map(dir); err == nil || !strings.Contains(err.Error(), "folder") {
		t.Errorf("a folder: got error %v", err)
	}
	if _, err := Map(filepath.Join(dir, "absent")); !os.IsNotExist(err) {
		t.Errorf("a missing file: got error %v", err)
	}
}
