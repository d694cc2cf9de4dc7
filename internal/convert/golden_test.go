package convert

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// drafterTargets names the target folder of every golden drafter.
var drafterTargets = map[string]string{
	"dflash-qwen3": "qwen3", "dflash-qwen35": "qwen35", "dflash-qwen35moe": "qwen35moe",
	"dflash-qwen3next": "qwen3next", "dflash-gemma4": "gemma4", "dflash-gemma4moe": "gemma4moe",
}

func goldenModels() []string {
	models := []string{"qwen3", "qwen35", "qwen35moe", "qwen3next", "gemma4", "gemma4moe", "gemma4e", "gemma4-assistant"}
	for m := range drafterTargets {
		models = append(models, m)
	}
	return models
}

// TestGolden converts every golden checkpoint and compares the result with the
// file the reference converter made from it. The whole file must be the same,
// byte for byte, but for two keys that we mend.
func TestGolden(t *testing.T) {
	for _, name := range goldenModels() {
		t.Run(name, func(t *testing.T) {
			dir := testkit.Golden(t, name+"/hf")
			want := testkit.Golden(t, name+"/model.gguf")
			out := filepath.Join(t.TempDir(), "out.gguf")
			opt := Options{Type: "bf16"}
			if target := drafterTargets[name]; target != "" {
				opt.Target = testkit.Golden(t, target+"/hf")
			}
			if err := HF(t.Context(), dir, out, opt); err != nil {
				t.Fatal(err)
			}
			if opt.Target != "" {
				want = mended(t, want, strings.HasPrefix(drafterTargets[name], "gemma"))
			}
			compareFiles(t, out, want)
		})
	}
}

// mended copies a drafter with what the reference converter forgets: that embeddings of a Gemma are scaled; and without
// what it should not write: a window that no layer has. Both would let drafts go wrong.
func mended(t *testing.T, path string, gemma bool) string {
	t.Helper()
	f := openGGUF(t, path)
	slides, _, _ := f.Bools("dflash.attention.sliding_window_pattern")
	width, _, _ := f.Uint("dflash.embedding_length")
	e := edit.Read(t, path)
	var out []gguf.KV
	for _, kv := range e.KVs {
		if strings.HasPrefix(kv.Key, "dflash.attention.sliding_window") && !slices.Contains(slides, true) {
			continue
		}
		out = append(out, kv)
		if kv.Key == "dflash.block_size" && gemma {
			out = append(out, gguf.KV{Key: "dflash.embedding_scale", Value: float32(math.Sqrt(float64(width)))})
		}
	}
	e.KVs = out
	return e.Write(t)
}

func compareFiles(t *testing.T, gotPath, wantPath string) {
	t.Helper()
	got, want := readBytes(t, gotPath), readBytes(t, wantPath)
	if bytes.Equal(got, want) {
		return
	}
	t.Errorf("files differ: %d and %d bytes", len(got), len(want))
	g, w := openGGUF(t, gotPath), openGGUF(t, wantPath)
	if d := cmp.Diff(w.Keys(), g.Keys()); d != "" {
		t.Errorf("keys differ (-want +got):\n%s", d)
	}
	for _, key := range w.Keys() {
		wk, _ := w.Kind(key)
		gk, ok := g.Kind(key)
		if !ok {
			continue
		}
		if wk != gk {
			t.Errorf("%s: kind is %v, want %v", key, gk, wk)
		}
		wv, _, _ := w.Value(key)
		gv, _, _ := g.Value(key)
		if d := cmp.Diff(wv, gv); d != "" {
			t.Errorf("%s differs (-want +got):\n%.2000s", key, d)
		}
	}
	var wn, gn []string
	for _, x := range w.Tensors() {
		wn = append(wn, fmt.Sprint(x.Name, x.Type, x.Shape))
	}
	for _, x := range g.Tensors() {
		gn = append(gn, fmt.Sprint(x.Name, x.Type, x.Shape))
	}
	if d := cmp.Diff(wn, gn); d != "" {
		t.Errorf("tensors differ (-want +got):\n%s", d)
	}
	for _, x := range w.Tensors() {
		if y := g.Tensor(x.Name); y != nil && !bytes.Equal(x.Data, y.Data) {
			t.Errorf("data of %s differs", x.Name)
		}
	}
}

func readBytes(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func openGGUF(t *testing.T, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
