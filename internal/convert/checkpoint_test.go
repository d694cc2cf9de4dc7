package convert

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// checkpoint is a golden checkpoint in memory that a test changes before it is
// written to a folder. The folder is called hf like the original, because names
// end up in the file.
type checkpoint struct {
	t       *testing.T
	config  map[string]any
	tensors []safetensors.Tensor
	files   map[string]string // further files by name; "" removes one
}

func golden(t *testing.T, name string) *checkpoint {
	t.Helper()
	dir := testkit.Golden(t, name+"/hf")
	c := &checkpoint{t: t, config: map[string]any{}, files: map[string]string{}}
	for _, f := range []string{"tokenizer.json", "tokenizer_config.json", "generation_config.json"} {
		if b, err := os.ReadFile(filepath.Join(dir, f)); err == nil {
			c.files[f] = string(b)
		}
	}
	if err := json.Unmarshal(readBytes(t, filepath.Join(dir, "config.json")), &c.config); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, name := range f.Names() {
		x := *f.Tensor(name)
		x.Data = append([]byte(nil), x.Data...)
		c.tensors = append(c.tensors, x)
	}
	return c
}

// tensor finds a tensor by name.
func (c *checkpoint) tensor(name string) *safetensors.Tensor {
	c.t.Helper()
	for i := range c.tensors {
		if c.tensors[i].Name == name {
			return &c.tensors[i]
		}
	}
	c.t.Fatalf("no tensor %s", name)
	return nil
}

// remove takes tensors out and returns them.
func (c *checkpoint) remove(match func(name string) bool) []safetensors.Tensor {
	var out, keep []safetensors.Tensor
	for _, x := range c.tensors {
		if match(x.Name) {
			out = append(out, x)
		} else {
			keep = append(keep, x)
		}
	}
	c.tensors = keep
	return out
}

// addF32 appends a float32 tensor.
func (c *checkpoint) addF32(name string, shape []int, values ...float32) {
	c.tensors = append(c.tensors, safetensors.Tensor{Name: name, DType: "F32", Shape: shape, Data: f32Bytes(values)})
}

func f32Bytes(values []float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// write puts the checkpoint into a new folder.
func (c *checkpoint) write() string {
	c.t.Helper()
	dir := filepath.Join(c.t.TempDir(), "hf")
	c.writeFiles(dir)
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), c.tensors,
		map[string]string{"format": "pt"}); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// writeSharded writes the tensors into two files with an index; second says
// which go into the second.
func (c *checkpoint) writeSharded(second func(name string) bool) string {
	c.t.Helper()
	dir := filepath.Join(c.t.TempDir(), "hf")
	index := map[string]string{}
	parts := [2][]safetensors.Tensor{}
	names := [2]string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
	for _, x := range c.tensors {
		i := 0
		if second(x.Name) {
			i = 1
		}
		parts[i] = append(parts[i], x)
		index[x.Name] = names[i]
	}
	b, err := json.Marshal(map[string]any{"weight_map": index})
	if err != nil {
		c.t.Fatal(err)
	}
	c.files["model.safetensors.index.json"] = string(b)
	c.writeFiles(dir)
	for i, name := range names {
		if err := safetensors.Write(filepath.Join(dir, name), parts[i], nil); err != nil {
			c.t.Fatal(err)
		}
	}
	return dir
}

func (c *checkpoint) writeFiles(dir string) {
	c.t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		c.t.Fatal(err)
	}
	b, err := json.Marshal(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.config != nil {
		c.files["config.json"] = string(b)
	}
	for name, text := range c.files {
		if text == "" {
			continue
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			c.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			c.t.Fatal(err)
		}
	}
}

// convertTo converts a folder and returns the path of the result.
func convertTo(t *testing.T, dir string, opt Options) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.gguf")
	if err := HF(t.Context(), dir, out, opt); err != nil {
		t.Fatal(err)
	}
	return out
}

// convertFails converts a folder, expects an error with all the given words on
// one line, and checks that nothing is left behind.
func convertFails(t *testing.T, dir string, opt Options, words ...string) {
	t.Helper()
	outDir := t.TempDir()
	err := HF(t.Context(), dir, filepath.Join(outDir, "out.gguf"), opt)
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not mention %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has several lines: %q", err)
	}
	entries, _ := os.ReadDir(outDir)
	for _, e := range entries {
		t.Errorf("%s was left behind", e.Name())
	}
}
