//go:build !nogpu && linux && (amd64 || arm64)

package cuda_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/testkit"
)

// unpack reads the compiled kernels of a folder.
func unpack(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.ptx.gz"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if out[filepath.Base(f)], err = io.ReadAll(z); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	return out
}

// TestKernelsAreFresh: the embedded kernels are what their sources compile to. What was compiled is kept in the user's
// cache folder under a hash of the sources.
func TestKernelsAreFresh(t *testing.T) {
	testkit.Long(t) // it compiles all of them
	version, err := exec.Command(emulate.Compiler, "--version").Output()
	if err != nil {
		emulate.NeedCompiler(t, emulate.ErrNoCompiler)
	}
	h := sha256.New()
	h.Write(version)
	files, err := filepath.Glob("kernel/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil { // not the folder ptx
			fmt.Fprintf(h, "%s %d\n", f, len(b))
			h.Write(b)
		}
	}
	dir := t.TempDir()
	if cache, err := os.UserCacheDir(); err == nil {
		dir = filepath.Join(cache, "strobe-emulation", fmt.Sprintf("ptx-%x", h.Sum(nil)[:10]))
	}
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		if out, err := exec.Command("kernel/build", dir).CombinedOutput(); err != nil {
			t.Fatalf("kernel/build: %v\n%s", err, out)
		}
		if err := os.WriteFile(filepath.Join(dir, "done"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, got := unpack(t, dir), unpack(t, "kernel/ptx")
	for name := range want {
		if !bytes.Equal(want[name], got[name]) {
			t.Errorf("kernel/ptx/%s is not what its source compiles to; run backend/cuda/kernel/build", name)
		}
	}
	for name := range got {
		if want[name] == nil {
			t.Errorf("kernel/ptx/%s has no source; run backend/cuda/kernel/build", name)
		}
	}
}

// TestKernelsStaySmall: everything in the repository counts when it is cloned.
func TestKernelsStaySmall(t *testing.T) {
	files, err := filepath.Glob("kernel/ptx/*")
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		total += st.Size()
	}
	if total > 4_600_000 {
		t.Errorf("compiled kernels have %d bytes, want at most 4.6 MB", total)
	}
}
