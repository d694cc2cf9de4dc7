// Package edit makes GGUF files for tests out of golden ones: other models, and files that lie.
package edit

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// File is a file that a test changes before it is opened.
type File struct {
	KVs     []gguf.KV
	Tensors []*gguf.Tensor
}

// Read starts from a file.
func Read(t testing.TB, path string) *File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e := &File{}
	if e.KVs, err = f.KVs(); err != nil {
		t.Fatal(err)
	}
	for i, kv := range e.KVs {
		e.KVs[i].Key = strings.Clone(kv.Key) // keys point into the file
	}
	for _, x := range f.Tensors() {
		e.Tensors = append(e.Tensors, &gguf.Tensor{Name: strings.Clone(x.Name), Type: x.Type,
			Shape: slices.Clone(x.Shape), Data: slices.Clone(x.Data)})
	}
	return e
}

// Golden starts from a golden model, e.g. "qwen35".
func Golden(t testing.TB, name string) *File {
	t.Helper()
	return Read(t, testkit.Golden(t, name+"/model.gguf"))
}

// Block is the golden file of a block for multi-token prediction alone, with copies of the model's vocabulary, as
// converters write it. The repository has it without them, to save room.
func Block(t testing.TB, arch string) *File {
	t.Helper()
	e := Read(t, testkit.Golden(t, "mtp-"+arch+"/block.gguf"))
	whole := Golden(t, arch)
	for _, kv := range whole.KVs {
		if strings.HasPrefix(kv.Key, "tokenizer.") {
			e.KVs = append(e.KVs, kv)
		}
	}
	for _, x := range whole.Tensors {
		if !strings.HasPrefix(x.Name, "blk.") {
			e.Tensors = append(e.Tensors, x)
		}
	}
	return e
}

// MTP is the golden model of an architecture with its block for multi-token prediction. Its trunk is layers 0 and 3 of
// the golden model without one.
func MTP(t testing.TB, arch string) *File {
	t.Helper()
	e := Block(t, arch)
	for _, x := range Golden(t, arch).Tensors {
		for from, to := range map[string]string{"blk.0.": "blk.0.", "blk.3.": "blk.1."} {
			if rest, ok := strings.CutPrefix(x.Name, from); ok {
				x.Name = to + rest
				e.Tensors = append(e.Tensors, x)
				break
			}
		}
	}
	return e
}

// Clone is a second file with the same tensors.
func (e *File) Clone() *File { return &File{slices.Clone(e.KVs), slices.Clone(e.Tensors)} }

// Arch is the architecture of the file.
func (e *File) Arch() string {
	for _, kv := range e.KVs {
		if kv.Key == "general.architecture" {
			return kv.Value.(string)
		}
	}
	return ""
}

// Set changes or adds a key; nil drops it.
func (e *File) Set(key string, v any) *File {
	e.KVs = slices.DeleteFunc(e.KVs, func(kv gguf.KV) bool { return kv.Key == key })
	if v != nil {
		e.KVs = append(e.KVs, gguf.KV{Key: key, Value: v})
	}
	return e
}

// Tensor returns a tensor, nil if there is none of that name.
func (e *File) Tensor(name string) *gguf.Tensor {
	for _, x := range e.Tensors {
		if x.Name == name {
			return x
		}
	}
	return nil
}

// Drop drops the tensors whose names begin with prefix.
func (e *File) Drop(prefix string) *File {
	e.Tensors = slices.DeleteFunc(e.Tensors, func(x *gguf.Tensor) bool { return strings.HasPrefix(x.Name, prefix) })
	return e
}

// Rename renames a tensor.
func (e *File) Rename(from, to string) *File {
	e.Tensor(from).Name = to
	return e
}

// Put adds or replaces a float32 tensor.
func (e *File) Put(name string, v []float32, shape ...int) *File {
	e.Tensors = slices.DeleteFunc(e.Tensors, func(x *gguf.Tensor) bool { return x.Name == name })
	data := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(x))
	}
	e.Tensors = append(e.Tensors, &gguf.Tensor{Name: name, Type: quant.F32, Shape: shape, Data: data})
	return e
}

// Values decodes a tensor.
func (e *File) Values(t testing.TB, name string) []float32 {
	t.Helper()
	x := e.Tensor(name)
	if x == nil {
		t.Fatal(fmt.Errorf("no tensor %q", name))
	}
	v := make([]float32, x.Elems())
	if err := quant.Dequantize(x.Type, v, x.Data); err != nil {
		t.Fatal(err)
	}
	return v
}

// Write puts the file in a folder of the test and returns its path.
func (e *File) Write(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	e.WriteTo(t, path)
	return path
}

// WriteTo writes the file to path.
func (e *File) WriteTo(t testing.TB, path string) {
	t.Helper()
	var specs []gguf.TensorSpec
	for _, x := range e.Tensors {
		specs = append(specs, gguf.TensorSpec{Name: x.Name, Type: x.Type, Shape: x.Shape})
	}
	w, err := gguf.Create(path, e.KVs, specs, gguf.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range e.Tensors {
		if err := w.WriteTensor(x.Name, x.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// HarmonyTokens gives the control tokens of the golden vocabulary the texts of gpt-oss's.
func (e *File) HarmonyTokens() []string {
	i := slices.IndexFunc(e.KVs, func(kv gguf.KV) bool { return kv.Key == "tokenizer.ggml.tokens" })
	tokens := slices.Clone(e.KVs[i].Value.(gguf.Array).Values.([]string))
	for from, to := range map[string]string{"<|im_end|>": "<|return|>", "<|im_start|>": "<|start|>",
		"<|r0|>": "<|channel|>", "<|r1|>": "<|message|>", "<|r2|>": "<|end|>", "<|r3|>": "<|call|>"} {
		tokens[slices.Index(tokens, from)] = to
	}
	return tokens
}
