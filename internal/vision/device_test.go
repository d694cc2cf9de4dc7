//go:build !nogpu

package vision

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/backend/vulkan"
	"strobe/internal/testkit"
)

// halvesBound allows for keys, values, queries and weights of attention that are halves.
const halvesBound = 2e-3

// TestDevices: rows of GPUs, emulated and in software, are close to those of llama.cpp, and have the same bits after
// another image. Long: kernels are compiled for the processor.
func TestDevices(t *testing.T) {
	testkit.Long(t)
	for name, open := range map[string]func(t *testing.T) gpu.Driver{
		"cuda": func(t *testing.T) gpu.Driver { return emulate.Open(t) },
		"vulkan": func(t *testing.T) gpu.Driver {
			d, err := vulkan.Open(0, vulkan.Options{})
			if err != nil {
				t.Skipf("needs a Vulkan driver, such as mesa-vulkan-drivers: %v", err)
			}
			return d
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := gpu.New(open(t))
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			cases, _ := filepath.Glob("testdata/*.safetensors.gz")
			for _, path := range cases {
				name := strings.TrimSuffix(filepath.Base(path), ".gz")
				t.Run(name, func(t *testing.T) {
					mmproj, _, _ := strings.Cut(name, "__")
					e := openOn(t, unpacked(t, "mmproj-"+mmproj+".gguf"), b, LlamaCpp)
					for _, g := range readGolden(t, unpacked(t, name)) {
						g.check(t, e, halvesBound)
						first, _, _, err := e.Encode(t.Context(), g.pixels, nil)
						if err != nil {
							t.Fatal(err)
						}
						small := g.pixels.cut(e.Factor(), 2*e.Factor())
						if _, _, _, err := e.Encode(t.Context(), small, nil); err != nil {
							t.Fatal(err)
						}
						if again, _, _, err := e.Encode(t.Context(), g.pixels, nil); err != nil || !slices.Equal(first, again) {
							t.Errorf("other bits after another image, error %v", err)
						}
					}
				})
			}
		})
	}
}
