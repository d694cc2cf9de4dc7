package platform

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("12345678"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int64{8, 9, MaxText} {
		if b, err := ReadFile(path, limit); err != nil || string(b) != "12345678" {
			t.Errorf("limit %d: %q, %v", limit, b, err)
		}
	}
	for _, limit := range []int64{0, 7} {
		if b, err := ReadFile(path, limit); err == nil || !strings.HasPrefix(err.Error(), path+": ") || b != nil {
			t.Errorf("limit %d: %q, %v", limit, b, err)
		}
	}
	if _, err := ReadFile(filepath.Join(dir, "absent"), 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := ReadFile(dir, 1); err == nil || !strings.Contains(err.Error(), "is a folder") {
		t.Errorf("a folder: %v", err)
	}
	// A file whose size says nothing, as below /proc, is bounded by what is read.
	if _, err := ReadLimited(endless{}, "x", 100); err == nil || !strings.HasPrefix(err.Error(), "x: ") {
		t.Errorf("an endless reader: %v", err)
	}
	huge := filepath.Join(dir, "huge")
	if err := os.WriteFile(huge, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, 1<<40); err != nil {
		t.Logf("no sparse files here: %v", err)
	} else if _, err := ReadFile(huge, MaxText); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("a file of 1 TB: %v", err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }
