package synth

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"strobe/internal/convert"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit"
	"strobe/internal/tokenizer"
)

func tiny() []string {
	var out []string
	for _, s := range Shapes() {
		if strings.HasPrefix(s, "tiny-") && !strings.HasSuffix(s, towerSuffix) {
			out = append(out, s)
		}
	}
	return out
}

// TestTiny writes every tiny shape and checks that the file is complete, finite
// and has a working tokenizer.
func TestTiny(t *testing.T) {
	for _, name := range tiny() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			if err := Write(t.Context(), path, name, "q4_k_m", 7, Options{}); err != nil {
				t.Fatal(err)
			}
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for _, x := range f.Tensors() {
				checkTensor(t, x)
			}
			tok, err := tokenizer.FromGGUF(f)
			if err != nil {
				t.Fatal(err)
			}
			text := "func main() {\n\treturn 42 // héllo 世界\n}\n"
			ids := tok.Encode(text, tokenizer.EncodeOptions{})
			if got := string(tok.Decode(ids, tokenizer.DecodeOptions{Opens: true})); got != text {
				t.Errorf("text comes back as %q", got)
			}
			if len(ids) >= len(text) {
				t.Errorf("%d tokens for %d bytes: merges do not work", len(ids), len(text))
			}
		})
	}
}

// checkIDs: ids of a reduced vocabulary are tokens, each of them once.
func checkIDs(t *testing.T, x *gguf.Tensor) {
	t.Helper()
	last := int64(-1)
	for i := range x.Shape[0] {
		id := int64(binary.LittleEndian.Uint64(x.Data[8*i:]))
		if id <= last || id >= 2048 {
			t.Fatalf("%s: entry %d is %d after %d", x.Name, i, id, last)
		}
		last = id
	}
}

func checkTensor(t *testing.T, x *gguf.Tensor) {
	t.Helper()
	if x.Type == quant.I64 {
		checkIDs(t, x)
		return
	}
	row := make([]float32, x.Shape[0])
	size := x.Type.RowBytes(x.Shape[0])
	var sum float64
	for r := range x.Rows() {
		if err := quant.Dequantize(x.Type, row, x.Data[r*size:(r+1)*size]); err != nil {
			t.Fatalf("%s: %v", x.Name, err)
		}
		for _, v := range row {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				t.Fatalf("%s: row %d holds %v", x.Name, r, v)
			}
			sum += float64(v) * float64(v)
		}
	}
	if x.Name == "rope_freqs.weight" {
		return
	}
	if rms := math.Sqrt(sum / float64(x.Elems())); rms < 1e-3 || rms > 20 {
		t.Errorf("%s: root mean square %g", x.Name, rms)
	}
	if x.Rows() > 1 && size > 100 {
		seen := map[string]bool{}
		n := min(x.Rows(), poolPieces)
		for r := range n {
			seen[string(x.Data[r*size:(r+1)*size])] = true
		}
		if len(seen) < n {
			t.Errorf("%s: only %d of %d rows differ", x.Name, len(seen), n)
		}
	}
}

// TestSeed: the same seed gives the same bytes, another one does not.
func TestSeed(t *testing.T) {
	dir := t.TempDir()
	read := func(name string, seed uint64) []byte {
		path := filepath.Join(dir, name)
		if err := Write(t.Context(), path, "tiny-qwen35", "q8_0", seed, Options{}); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	a, b, c := read("a", 1), read("b", 1), read("c", 2)
	if !bytes.Equal(a, b) {
		t.Error("the same seed gave different files")
	}
	if bytes.Equal(a, c) {
		t.Error("another seed gave the same file")
	}
}

// TestShapes checks the headers of all shapes, without their gigabytes: keys can
// be made, types planned, and parameter counts are what the names say.
func TestShapes(t *testing.T) {
	billions := map[string]float64{
		"qwen3-30b-a3b": 30.5, "qwen2.5-7b": 7.6, "llama-3.1-8b": 8.03,
		"qwen3-0.6b": 0.596, "qwen3.5-0.8b": 0.75, "qwen3.5-4b": 4.2, "qwen3.5-27b": 27, "qwen3.6-35b-a3b": 35,
		"qwen3.5-122b-a10b": 122,
		"qwen3-coder-next":  80, "gemma-4-31b": 31, "gemma-4-26b-a4b": 25.5,
		"gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8,
	}
	for _, name := range Shapes() {
		if _, ok := findTower(name); ok {
			continue
		}
		s, target, err := find(name)
		if err != nil {
			t.Fatal(err)
		}
		total := 0.0
		for _, x := range s.tensors() {
			total += float64(x.shape[0]) * float64(rowsOf(x.shape))
		}
		if want, ok := billions[name]; ok && math.Abs(total/1e9-want)/want > 0.05 {
			t.Errorf("%s has %.2f billion parameters, expected about %.2f", name, total/1e9, want)
		}
		if len(name) > 4 && strings.HasPrefix(name, "tiny") && total > 1.2e7 {
			t.Errorf("%s has %.0f parameters, which is not tiny", name, total)
		}
		if name != "qwen3.5-27b" && name != "gemma-4-26b-a4b" && name != "qwen3-0.6b-dflash" && s.vocab > 100000 {
			s.vocab = 2048 // making a large vocabulary takes a while; once per kind is enough
			if target != nil {
				target.vocab = 2048
			}
		}
		for _, layer := range s.capture {
			// Files name the layer whose input is captured, and the last layer's output is no input. Here EAGLE-3 shapes do so,
			// too, and have a number for the final state.
			if s.class == eagleClass && layer >= 0 && layer <= target.layers {
				continue
			}
			if layer < 0 || layer+1 >= target.layers {
				t.Errorf("%s captures layer %d of %d", name, layer, target.layers)
			}
		}
		mix, _ := quant.ParseMix("Q4_K_M")
		kvs, specs, err := s.header(target, s.tensors(), mix)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, kv := range kvs {
			if kv.Key == "tokenizer.ggml.tokens" {
				if n := len(kv.Value.([]string)); n != s.vocab {
					t.Errorf("%s has %d tokens, want %d", name, n, s.vocab)
				}
			}
		}
		for _, sp := range specs {
			if sp.Shape[0]%sp.Type.BlockLen() != 0 {
				t.Errorf("%s: %s: rows of %d cannot be %v", name, sp.Name, sp.Shape[0], sp.Type)
			}
		}
	}
}

// TestRealKeys compares a shape with the metadata of the real model: the
// reference vocabulary file of Gemma 4 carries that of the 26B one.
func TestRealKeys(t *testing.T) {
	f, err := gguf.Open(testkit.Shared(t, "vocab/ggml-vocab-gemma-4.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, _, err := find("gemma-4-26b-a4b")
	if err != nil {
		t.Fatal(err)
	}
	_, kvs, err := convert.Keys(s.config(), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, key := range f.Keys() {
		if strings.HasPrefix(key, "gemma4.") || key == "general.file_type" {
			keys = append(keys, key)
		}
	}
	if len(keys) != len(kvs) {
		t.Errorf("%d keys, want %d", len(kvs), len(keys))
	}
	for i, key := range keys {
		v, _, _ := f.Value(key)
		if a, ok := v.(gguf.Array); ok {
			v = a.Values
		}
		if i < len(kvs) && (kvs[i].Key != key || !reflect.DeepEqual(kvs[i].Value, v)) {
			t.Errorf("key %d is %s = %v, want %s = %v", i, kvs[i].Key, kvs[i].Value, key, v)
		}
	}
}

func TestUnknown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gguf")
	for _, c := range []struct{ shape, mix, want string }{
		{"gpt-5", "q8_0", `unknown shape "gpt-5"`},
		{"tiny-qwen3", "q3_x", `unknown quantisation "q3_x"`},
	} {
		err := Write(t.Context(), path, c.shape, c.mix, 0, Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Write(%s, %s) = %v, want %q", c.shape, c.mix, err, c.want)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a file was left behind")
	}
}

// TestRopeFactors pins the generated rotary factors of Gemma.
func TestRopeFactors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := Write(t.Context(), path, "tiny-gemma4", "f16", 0, Options{}); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x := f.Tensor("rope_freqs.weight")
	for i := range x.Shape[0] {
		want := float32(1)
		if i >= 16 {
			want = 1e30
		}
		if v := math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:])); v != want {
			t.Fatalf("factor %d is %g, want %g", i, v, want)
		}
	}
}
