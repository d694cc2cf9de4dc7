package main

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

var largeImages = flag.Bool("large-images", false, "TestLogitsImages runs its large images too, which takes minutes")

// TestLogitsImages runs the command for golden prompts with images, from the files on, and compares everything it
// writes with what llama.cpp computed.
func TestLogitsImages(t *testing.T) {
	folder := testkit.Shared(t, "golden/vision")
	paths, err := filepath.Glob(filepath.Join(folder, "cases", "*.safetensors"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no cases", err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".safetensors")
		large := strings.Contains(name, "big4000") || strings.Contains(name, "scene")
		if large && !strings.Contains(name, "max128") && !*largeImages {
			continue
		}
		t.Run(name, func(t *testing.T) { checkGoldenImage(t, folder, path, name) })
	}
}

func checkGoldenImage(t *testing.T, folder, path, name string) {
	want, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	mmproj, rest, _ := strings.Cut(name, "__")
	pictures, what, _ := strings.Cut(rest, "__")
	text := "text-gemma4.gguf"
	switch {
	case strings.HasPrefix(mmproj, "qwen"):
		text = "text-qwen35.gguf"
	case strings.HasPrefix(mmproj, "gemma4v-clip"):
		text = "text-gemma4e.gguf"
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "out.safetensors")
	args := []string{"logits", "-m", filepath.Join(folder, "models", text), "--mmproj",
		filepath.Join(folder, "models", "mmproj-"+mmproj+".gguf"), "--tokens", filepath.Join(dir, "ids.json"), "--last", "4",
		"--out", out, "--image-like", "llamacpp", "--device", "cpu"}
	if n, ok := strings.CutPrefix(what, "max"); ok {
		args = append(args, "--image-max-tokens", n)
	}
	suffix, before, after := "", "tokens_before", []string{"tokens_after"}
	if want.Tensor("info") == nil {
		before, after = "tokens.0", []string{"tokens.1", "tokens.2"}
	}
	ids := jsonIDs(want, before)
	for i, p := range strings.Split(pictures, "+") {
		files, _ := filepath.Glob(filepath.Join(folder, "images", p+".*"))
		if len(files) != 1 {
			t.Fatalf("files of image %s: %v", p, files)
		}
		args = append(args, "--image", files[0])
		ids = append(append(ids, nil), jsonIDs(want, after[i])...)
	}
	data, _ := json.Marshal(ids)
	if err := os.WriteFile(filepath.Join(dir, "ids.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := command(t, args...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	got, err := safetensors.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	gemma, f16, q8 := strings.HasPrefix(mmproj, "gemma"), strings.Contains(mmproj, "f16"), strings.Contains(mmproj, "q8_0")
	jpeg := strings.Contains(pictures, "exif6_64x40") || strings.Contains(pictures, "gray")
	// The tolerances of the golden material: rows, then logits. A JPEG's pixels may be off by two of 255.
	rows, logits := 2e-5, 2e-4
	switch {
	case q8:
		rows, logits = 2e-2, 5e-2
	case f16 && gemma:
		rows, logits = 1e-3, 5e-2
	case f16:
		rows, logits = 1e-3, 5e-3
	case jpeg:
		rows, logits = 5e-2, 5e-2
	case gemma:
		logits = 1e-3
	}
	for i := range after {
		if len(after) > 1 {
			suffix = fmt.Sprintf(".%d", i)
		}
		for _, tensor := range []string{"positions", "info", "resized"} {
			w, g := want.Tensor(tensor+suffix), got.Tensor(fmt.Sprintf("%s.%d", tensor, i))
			same := w == nil || jpeg && tensor == "resized" || slices.Equal(g.Shape, w.Shape) && string(g.Data) == string(w.Data)
			if !same {
				t.Errorf("%s of image %d: %v, want %v", tensor, i, clip(g.Data), clip(w.Data))
			}
		}
		if e := rowError(t, got.Tensor(fmt.Sprintf("embeddings.%d", i)), want, suffix); !(e <= rows) {
			t.Errorf("rows of image %d differ by %.1e, want at most %.0e", i, e, rows)
		}
	}
	if gemma && (q8 || jpeg) { // its tiny text model magnifies errors
		return
	}
	g, _ := got.Tensor("logits").Float32s()
	w, _ := want.Tensor("logits").Float32s()
	if e := testkit.RelL2(g, w); !(e <= logits) {
		t.Errorf("logits differ by %.1e, want at most %.0e", e, logits)
	}
}

func clip(b []byte) []byte { return b[:min(len(b), 40)] }

// rowError compares the rows that a case has.
func rowError(t *testing.T, got *safetensors.Tensor, want *safetensors.File, suffix string) float64 {
	t.Helper()
	w, err := want.Tensor("embeddings" + suffix).Float32s()
	if err != nil {
		t.Fatal(err)
	}
	g, err := got.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	width := got.Shape[1]
	if some := want.Tensor("embedding_rows" + suffix); some != nil {
		var picked []float32
		for i := 0; i < len(some.Data); i += 4 {
			picked = append(picked, g[int(binary.LittleEndian.Uint32(some.Data[i:]))*width:][:width]...)
		}
		g = picked
	}
	return testkit.RelL2(g, w)
}

// jsonIDs is a tensor of token ids as JSON has them.
func jsonIDs(f *safetensors.File, name string) (ids []any) {
	d := f.Tensor(name).Data
	for i := 0; i < len(d); i += 4 {
		ids = append(ids, int32(binary.LittleEndian.Uint32(d[i:])))
	}
	return ids
}
