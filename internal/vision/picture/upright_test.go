package picture

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfigIsDecoded: the size that is known without decoding is that of the decoded image, also of one that lies on
// its side.
func TestConfigIsDecoded(t *testing.T) {
	paths, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	turned := 0
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil || !strings.Contains(".png .jpg .jpeg .gif .webp .bmp", filepath.Ext(path)) || filepath.Ext(path) == "" {
			continue
		}
		for _, like := range []Like{Reference, LlamaCpp} {
			m, err := like.Decode(data, Limits{})
			if err != nil {
				continue // a file that is broken on purpose
			}
			w, h, err := like.Config(data, Limits{})
			if err != nil || w != m.Width || h != m.Height {
				t.Errorf("%s: %d x %d, decoded %d x %d: %v", path, w, h, m.Width, m.Height, err)
			}
			if stored, _, _ := Config(data, Limits{}); stored != w {
				turned++
			}
		}
	}
	if turned == 0 {
		t.Skip("no image of the test data lies on its side")
	}
}
