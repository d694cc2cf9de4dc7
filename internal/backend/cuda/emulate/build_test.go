//go:build linux && (amd64 || arm64)

package emulate

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestMadeOnce: packages that are tested at the same time do not compile the same kernel; what could not be made is
// tried again.
func TestMadeOnce(t *testing.T) {
	dir := t.TempDir()
	file, log := filepath.Join(dir, "kernel.o"), filepath.Join(dir, "log")
	if err := make1(file, "sh", []string{"-c", "echo half >$2; exit 1", "sh"}); err == nil {
		t.Error("a compiler that fails: no error")
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a compiler that fails leaves a file")
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			// The compiler gets -o and the name of its output after these.
			if err := make1(file, "sh", []string{"-c", `echo "$0" >>"$0"; sleep 0.1; echo made >"$2"`, log}); err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != "made\n" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	all.Wait()
	if b, err := os.ReadFile(log); err != nil || string(b) != log+"\n" {
		t.Errorf("the compiler ran more than once, or never: %q, %v", b, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "kernel.o.*"))
	if err != nil || len(left) != 1 || left[0] != file+".lock" {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
