package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/gguf"
)

// TestEagle3: a drafter of this kind is found beside its target and loads there, a DFlash drafter comes before it, and
// one for another target or in the place of a target is refused.
func TestEagle3(t *testing.T) {
	dir := t.TempDir()
	put := func(shape string) string {
		path := filepath.Join(dir, shape+".gguf")
		if err := os.Rename(synthetic(t, shape), path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	load := func(path string, opt Options) (s string) {
		opt.Threads = 1
		m, err := Load(path, opt)
		if err != nil {
			return err.Error()
		}
		defer m.Close()
		for _, src := range m.Runner.Sources {
			s += src.Name() + " "
		}
		return s + filepath.Base(m.DrafterPath)
	}
	target, drafter := put("tiny-llama"), put("tiny-llama-eagle3")
	if got := load(target, Options{}); got != "eagle3 ngram tiny-llama-eagle3.gguf" {
		t.Errorf("beside the target: %q", got)
	}
	if got := load(drafter, Options{}); !strings.Contains(got, "EAGLE-3 drafter; give it with -d") {
		t.Errorf("as a target: %q", got)
	}
	other := put("tiny-gemma4")
	if got := load(other, Options{Drafter: drafter}); !strings.Contains(got, drafter) {
		t.Errorf("for another target: %q", got)
	}
	if _, err := ParseDraft("eagle3"); err != nil {
		t.Error(err)
	}
	f, err := gguf.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if kind := Fits(drafter, f); kind != "eagle3" {
		t.Errorf("the drafter fits as %q", kind)
	}
	put("tiny-llama-dflash")
	if got := load(target, Options{}); got != "dflash ngram tiny-llama-dflash.gguf" {
		t.Errorf("beside a DFlash drafter: %q", got)
	}
}
