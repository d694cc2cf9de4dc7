//go:build unix

package pflash

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/platform"
	"strobe/internal/testkit"
)

// TestCut: a scorer whose file another program cuts short ends nothing but the scoring. Windows forbids to
// change a mapped file.
func TestCut(t *testing.T) {
	data, err := os.ReadFile(testkit.Golden(t, "qwen3/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, parked := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		said := ""
		p, err := Open(f, Options{Mode: Always, Threads: 2, Log: func(s string) { said += s }})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if parked {
			p.unload()
		}
		if err := os.Truncate(path, 4096); err != nil {
			t.Fatal(err)
		}
		text := strings.Repeat("one two ", 100)
		whole, r, err := p.Text(context.Background(), text, 0)
		if whole != text || r.Changed() || err != nil || !strings.Contains(said, path+": ") || p.b != nil {
			t.Errorf("parked %t: %+v, error %v, %q", parked, r, err, said)
		}
		err = platform.Reading(path, func() error { _, err := p.load(); return err })
		if !errors.Is(err, platform.ErrFileChanged) || p.b != nil {
			t.Errorf("loading what is left: error %v, a device is open: %t", err, p.b != nil)
		}
	}
}
