//go:build unix

package platform

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenOthers: what is no regular file is refused at once, also through a link and by Map.
func TestOpenOthers(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(fifo, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		fifo: "is a pipe", link: "is a pipe", "/dev/zero": "is a device", "/dev/tty": "is a device", dir: "is a folder",
	} {
		want = path + ": " + want
		if _, err := os.Stat(path); err != nil {
			t.Logf("%s is not here", path)
			continue
		}
		if f, err := OpenRegular(path); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("open %s: %v, %v", path, f, err)
		}
		if m, err := Map(path); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("map %s: %v, %v", path, m, err)
		}
	}
}

// TestOpenReplaced: a file that becomes a pipe between the look at it and the open is refused, and nothing waits.
func TestOpenReplaced(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := openLooking(fifo); err == nil || !strings.Contains(err.Error(), "is a pipe") {
		t.Errorf("%v, %v", f, err)
	}
}
