package gguf_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
)

// rewrite copies the file at path through reader and writer.
func rewrite(t *testing.T, path, to string) []string {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	kvs, err := f.KVs()
	if err != nil {
		t.Fatal(err)
	}
	w, err := gguf.Create(to, kvs, f.Specs(), f.WriteOptions())
	if err != nil {
		t.Fatal(err)
	}
	for _, tensor := range f.Tensors() {
		if err := w.WriteTensor(tensor.Name, tensor.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.Paths()
}

func sameBytes(t *testing.T, got, want string) {
	t.Helper()
	g, err := os.ReadFile(got)
	if err != nil {
		t.Fatal(err)
	}
	w, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(g, w) {
		return
	}
	n := 0
	for n < len(g) && n < len(w) && g[n] == w[n] {
		n++
	}
	t.Errorf("%s: %d bytes, the original has %d; they differ from byte %d on", filepath.Base(want), len(g), len(w), n)
}

func TestRewriteIsIdentical(t *testing.T) {
	var files []string
	for _, name := range testkit.GoldenModels(t) {
		files = append(files, testkit.Golden(t, name+"/model.gguf"))
	}
	for _, path := range files {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "copy.gguf")
			rewrite(t, path, to)
			sameBytes(t, to, path)
		})
	}
	t.Run("vocab", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(testkit.Shared(t, "vocab"), "*.gguf"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no vocabularies (error %v)", err)
		}
		for _, path := range files {
			to := filepath.Join(t.TempDir(), "copy.gguf")
			rewrite(t, path, to)
			sameBytes(t, to, path)
		}
	})
}
