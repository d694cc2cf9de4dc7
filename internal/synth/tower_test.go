package synth

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// TestTowers writes every tiny vision tower in every type and checks what is in the file.
func TestTowers(t *testing.T) {
	for _, x := range towers {
		if !strings.HasPrefix(x.target, "tiny-") {
			continue
		}
		for _, mix := range []string{"f32", "f16", "bf16", "q8_0"} {
			path := filepath.Join(t.TempDir(), "m.gguf")
			if err := Write(t.Context(), path, x.target+towerSuffix, mix, 7, Options{}); err != nil {
				t.Fatal(err)
			}
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if f.Arch() != "clip" {
				t.Errorf("%s: architecture %s", x.target, f.Arch())
			}
			for _, tensor := range f.Tensors() {
				if mix == "f32" {
					checkTensor(t, tensor)
				}
				kernel := strings.Contains(tensor.Name, "patch_embd.weight")
				if kernel && (tensor.Type == quant.F16) != (mix == "f16") {
					t.Errorf("%s, %s: %s is %v", x.target, mix, tensor.Name, tensor.Type)
				}
			}
			if m := f.Tensor("mm.input_projection.weight"); m != nil && m.Rows() != x.out {
				t.Errorf("%s: the last matrix has %d rows, want %d", x.target, m.Rows(), x.out)
			}
			f.Close()
		}
	}
	err := Write(t.Context(), filepath.Join(t.TempDir(), "m.gguf"), "tiny-qwen35-mmproj", "q4_k_m", 0, Options{})
	if err == nil || !strings.Contains(err.Error(), "f32, f16, bf16 or q8_0") {
		t.Errorf("q4_k_m: %v", err)
	}
}

// TestTowerShapes: headers of all towers can be made, and they have as many parameters as the real ones.
func TestTowerShapes(t *testing.T) {
	millions := map[string]float64{ // counted by hand: blocks, tables, kernels, merger or projection
		"qwen3.6-27b": 460, "qwen3.5-4b": 334, "qwen3.5-0.8b": 101, "gemma-4-31b": 566, "gemma-4-e4b": 168,
		"gemma-4-12b": 50,
	}
	mix, _ := quant.ParseMix("F16")
	for _, x := range towers {
		total := 0.0
		for _, tensor := range x.tensors() {
			total += float64(tensor.shape[0]) * float64(rowsOf(tensor.shape))
		}
		if want, ok := millions[x.target]; ok && math.Abs(total/1e6-want)/want > 0.02 {
			t.Errorf("%s has %.0f million parameters, want about %.0f", x.target, total/1e6, want)
		}
		if _, _, err := x.header(x.tensors(), mix); err != nil {
			t.Errorf("%s: %v", x.target, err)
		}
	}
}

// TestTowerNames compares tensors and keys with the tiny towers that llama.cpp read: the same names with as many
// dimensions.
func TestTowerNames(t *testing.T) {
	block, length := regexp.MustCompile(`blk\.\d+\.`), regexp.MustCompile(`\[\d+\]`)
	describe := func(path string) (list []string) {
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, x := range f.Tensors() {
			list = append(list, fmt.Sprintf("%s %d", block.ReplaceAllString(x.Name, "blk.N."), len(x.Shape)))
		}
		for _, key := range f.Keys() {
			if strings.HasPrefix(key, "clip.") {
				kind, _ := f.Kind(key)
				list = append(list, key+" "+length.ReplaceAllString(kind.String(), "[]"))
			}
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
	for target, golden := range map[string]string{
		"tiny-qwen35": "qwen-f32", "tiny-gemma4": "gemma4v-std-f32", "tiny-gemma4e": "gemma4v-clip-f32",
		"tiny-gemma4u": "gemma4uv-f32",
	} {
		want := describe(testkit.Shared(t, "golden/vision/models/mmproj-"+golden+".gguf"))
		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := Write(t.Context(), path, target+towerSuffix, "f32", 0, Options{}); err != nil {
			t.Fatal(err)
		}
		got := describe(path)
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("%s has no %s", target, line)
			}
		}
		for _, line := range got {
			if !slices.Contains(want, line) {
				t.Errorf("%s has %s, which %s has not", target, line, golden)
			}
		}
	}
}
