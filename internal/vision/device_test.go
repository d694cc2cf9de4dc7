//go:build !nogpu

package vision

import (
	"os"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend/cuda"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/backend/vulkan"
	"strobe/internal/quant"
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
	t.Run("hopper", func(t *testing.T) { // heads that are padded, and more patches than one warpgroup has
		b, err := gpu.New(emulate.Emulated(t, emulate.Options{Hopper: true}))
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		path := qwenFile(t, quant.F16, 144, 2, 200, 2, 64)
		e, processor, image := openOn(t, path, b, Reference), openEncoder(t, path, Reference), noise(20*16, 10*16)
		got, _, _, err := e.Encode(t.Context(), image, nil)
		if err != nil {
			t.Fatal(err)
		}
		want, _, _, err := processor.Encode(t.Context(), image, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := testkit.RelL2(got, want); d > halvesBound {
			t.Errorf("rows are off by %.2g, want at most %.2g", d, halvesBound)
		} else {
			t.Logf("rows are off by %.2g", d)
		}
	})
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

// BenchmarkEncode encodes an image of 1920 x 1088 pixels with the file that STROBE_BENCH_MODEL names, on the first
// NVIDIA GPU, and prints where the time goes, kernel by kernel.
func BenchmarkEncode(b *testing.B) {
	path := os.Getenv("STROBE_BENCH_MODEL")
	if path == "" {
		b.Skip("no model: set STROBE_BENCH_MODEL to an mmproj file")
	}
	driver, err := cuda.Open(0)
	if err != nil {
		b.Skipf("needs an NVIDIA GPU: %v", err)
	}
	device, err := gpu.New(driver)
	if err != nil {
		b.Fatal(err)
	}
	defer device.Close()
	e := openOn(b, path, device, Reference)
	image := noise(1920/e.Factor()*e.Factor(), 1088/e.Factor()*e.Factor())
	encode := func() error {
		_, _, _, err := e.Encode(b.Context(), image, nil)
		return err
	}
	if err := encode(); err != nil { // compiles kernels
		b.Fatal(err)
	}
	for b.Loop() {
		if err := encode(); err != nil {
			b.Fatal(err)
		}
	}
	kernels, err := device.Profile(encode)
	if err != nil {
		b.Fatal(err)
	}
	for _, k := range kernels[:min(8, len(kernels))] {
		b.Logf("%-24s %4d launches %8.3f ms", k.Name, k.Count, float64(k.Time.Microseconds())/1000)
	}
}
