package safetensors_test

import (
	"path/filepath"
	"testing"

	"strobe/internal/testkit"
	"strobe/safetensors"
)

func TestGolden(t *testing.T) {
	for _, name := range testkit.GoldenModels(t) {
		for _, rel := range []string{"/expected.safetensors", "/hf"} {
			f, err := safetensors.Open(testkit.Golden(t, name+rel))
			if err != nil {
				t.Fatal(err)
			}
			var tensors []safetensors.Tensor
			for _, n := range f.Names() {
				tensors = append(tensors, *f.Tensor(n))
				if v, err := f.Tensor(n).Float32s(); err != nil || len(v) != f.Tensor(n).Elems() {
					t.Errorf("%s%s: %s: %d values, error %v", name, rel, n, len(v), err)
				}
			}
			to := filepath.Join(t.TempDir(), "x.safetensors")
			if err := safetensors.Write(to, tensors, f.Metadata()); err != nil {
				t.Fatal(err)
			}
			g, err := safetensors.Open(to)
			if err != nil {
				t.Fatal(err)
			}
			if len(g.Names()) != len(f.Names()) {
				t.Errorf("%s%s: %d tensors after writing, expected %d", name, rel, len(g.Names()), len(f.Names()))
			}
			g.Close()
			f.Close()
		}
	}
}
