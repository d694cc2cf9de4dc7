package testkit

import (
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"strobe/internal/gguf"
)

// Edit is a model file that a test changes before it is opened.
type Edit struct {
	KVs     []gguf.KV
	Tensors []*gguf.Tensor
}

// EditGolden starts from a golden model.
func EditGolden(t testing.TB, name string) *Edit {
	t.Helper()
	f, err := gguf.Open(Golden(t, name+"/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	kvs, err := f.KVs()
	if err != nil {
		t.Fatal(err)
	}
	return &Edit{kvs, f.Tensors()}
}

// Arch is the architecture of the file.
func (e *Edit) Arch() string {
	for _, kv := range e.KVs {
		if kv.Key == "general.architecture" {
			return kv.Value.(string)
		}
	}
	return ""
}

// With returns the file with another value of a key; nil leaves the key out.
func (e *Edit) With(key string, v any) *Edit {
	kvs := slices.DeleteFunc(slices.Clone(e.KVs), func(kv gguf.KV) bool { return kv.Key == key })
	if v != nil {
		kvs = append(kvs, gguf.KV{Key: key, Value: v})
	}
	return &Edit{kvs, e.Tensors}
}

// Write writes the file to path.
func (e *Edit) Write(t testing.TB, path string) {
	t.Helper()
	var specs []gguf.TensorSpec
	for _, x := range e.Tensors {
		specs = append(specs, gguf.TensorSpec{Name: x.Name, Type: x.Type, Shape: x.Shape})
	}
	w, err := gguf.Create(filepath.Clean(path), e.KVs, specs, gguf.WriteOptions{})
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

// edges are the integers that sizes go wrong at. 1<<40 is even and larger than any memory.
var edges = []any{
	uint64(0), uint64(1), int64(-1), uint64(1 << 31), uint64(math.MaxUint32 - 1), uint64(math.MaxUint32), uint64(1 << 40), uint64(math.MaxUint64),
	[]int32{}, []int32{-1}, []uint64{math.MaxUint64, 1 << 31, 0, 1, 1 << 31, 1 << 31, 1 << 31, 1 << 31},
}

// HostileValues are what a damaged or malicious file may say in place of v: for integers the edges of their
// types and what is nearly right, for arrays fewer entries, for both nothing. Other values have none.
func HostileValues(v any) (out []any) {
	if a, ok := v.(gguf.Array); ok {
		v = a.Values
	}
	r := reflect.ValueOf(v)
	switch {
	case r.CanUint():
		return append(slices.Clone(edges), r.Uint()+1, nil)
	case r.CanInt():
		return append(slices.Clone(edges), r.Int()+1, nil)
	case r.Kind() == reflect.Slice:
		for _, n := range []int{0, 1, r.Len() / 2, r.Len() - 1} {
			if n >= 0 && n < r.Len() {
				out = append(out, r.Slice(0, n).Interface())
			}
		}
		return append(out, nil)
	}
	return nil
}

// OptionalKeys are keys that loaders of targets look for and golden files may lack, without the architecture.
var OptionalKeys = []string{
	"attention.head_count_kv", "attention.key_length", "attention.key_length_swa", "attention.recurrent_layers", "attention.shared_kv_layers",
	"attention.sliding_window", "attention.value_length", "embedding_length_per_layer_input", "expert_count", "expert_feed_forward_length",
	"expert_shared_feed_forward_length", "expert_used_count", "expert_weights_scale", "final_logit_softcapping", "full_attention_interval",
	"nextn_predict_layers", "rope.dimension_count", "rope.dimension_count_swa", "rope.dimension_sections", "rope.freq_base",
	"rope.freq_base_swa", "rope.scaling.attn_factor", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.type",
	"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_ext_factor",
}

// Targets lists the golden models that run by themselves: no drafters.
func Targets(t testing.TB) (names []string) {
	t.Helper()
	for _, name := range GoldenModels(t) {
		if !strings.Contains(name, "dflash") && !strings.Contains(name, "assistant") {
			names = append(names, name)
		}
	}
	return names
}
