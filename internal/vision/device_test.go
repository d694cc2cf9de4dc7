//go:build !nogpu

package vision

import (
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

// TestDevices: rows of GPUs, emulated and in software, are close to those of the processor, which are close to golden
// ones, and have the same bits after another image. Long: kernels are compiled for the processor.
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
			for i, name := range append(files, files...) {
				path, bound := unpacked(t, "mmproj-"+name+".gguf"), exactBound
				if i >= len(files) {
					path = inHalves(t, path)
				}
				e, processor := openOn(t, path, b, Reference), openEncoder(t, path, Reference)
				image := noise(3*e.Factor(), 2*e.Factor())
				encode := func(e *Encoder, p Pixels) []float32 {
					rows, _, _, err := e.Encode(t.Context(), p, nil)
					if err != nil {
						t.Fatal(err)
					}
					return rows
				}
				if e.mem != nil && strings.Contains(e.mem.Types()[0], "f16") {
					bound = halvesBound
				}
				first := encode(e, image)
				if d := testkit.RelL2(first, encode(processor, image)); d > bound {
					t.Errorf("%s: rows are off by %.2g, want at most %.2g", name, d, bound)
				} else {
					t.Logf("%s: rows are off by %.2g", name, d)
				}
				encode(e, noise(e.Factor(), e.Factor()))
				if !slices.Equal(encode(e, image), first) {
					t.Errorf("%s: other bits after another image", name)
				}
			}
		})
	}
	t.Run("golden", func(t *testing.T) { // the smallest
		b, err := gpu.New(emulate.Open(t))
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		e := openOn(t, unpacked(t, "mmproj-qwen-small-f32.gguf"), b, LlamaCpp)
		for _, g := range readGolden(t, unpacked(t, "qwen-small-f32__rgba90x70.safetensors")) {
			g.check(t, e, exactBound)
		}
	})
}
