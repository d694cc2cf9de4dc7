package cache_test

import (
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/quant"
)

func TestTypes(t *testing.T) {
	var none cache.Types
	if k, v := none.Of(3); k != quant.F16 || v != quant.F16 {
		t.Errorf("nothing chosen: %v and %v", k, v)
	}
	got, err := cache.ParseTypes("turbo4", "Q8_0", "", "0=f16, 4-6=q4_0/turbo3")
	if err != nil {
		t.Fatal(err)
	}
	for layer, want := range map[int][2]quant.Type{
		0: {quant.F16, quant.F16}, 1: {quant.Q8_0, quant.Turbo4}, 4: {quant.Q4_0, quant.Turbo3},
		6: {quant.Q4_0, quant.Turbo3}, 7: {quant.Q8_0, quant.Turbo4},
	} {
		if k, v := got.Of(layer); k != want[0] || v != want[1] {
			t.Errorf("layer %d: %v and %v, want %v", layer, k, v, want)
		}
	}
	if err := got.Check(7); err != nil {
		t.Error(err)
	}
	if err := got.Check(6); err == nil || !strings.Contains(err.Error(), "layer 6: the model has layers 0 to 5") {
		t.Errorf("a layer too many: %v", err)
	}
	for _, bad := range [][4]string{
		{"q6_k"}, {"", "bf16"}, {"", "", "x"}, {"", "", "", "0"}, {"", "", "", "3-1=f16"}, {"", "", "", "-1=f16"},
		{"", "", "", "0=f16/y"}, {"", "", "", "99999999=f16"},
	} {
		if _, err := cache.ParseTypes(bad[0], bad[1], bad[2], bad[3]); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestTypesOfMemory: types are part of what stored sequences must fit, heads that a type cannot take are one clear
// error, and memories say what they have.
func TestTypesOfMemory(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	seen := map[uint64]bool{}
	for _, k := range quant.CacheTypes {
		for _, v := range quant.CacheTypes {
			layer := cache.Layer{KVDims: backend.KVDims{Heads: 2, KeyDim: 128, ValueDim: 128, Key: k, Value: v}}
			m, err := cache.New([]backend.Backend{b}, cache.Spec{Layers: []cache.Layer{layer}})
			if err != nil {
				t.Fatal(err)
			}
			if seen[m.Fingerprint()] {
				t.Errorf("%v and %v: the fingerprint of others", k, v)
			}
			seen[m.Fingerprint()] = true
			if want := 2 * (k.RowBytes(128) + v.RowBytes(128)); m.TokenBytes() != want {
				t.Errorf("%v and %v: %d bytes per token, want %d", k, v, m.TokenBytes(), want)
			}
		}
	}
	odd := cache.Layer{KVDims: backend.KVDims{Heads: 1, KeyDim: 64, ValueDim: 64, Key: quant.F16, Value: quant.Turbo3}}
	if _, err := cache.New([]backend.Backend{b}, cache.Spec{Layers: []cache.Layer{odd}}); err == nil ||
		!strings.Contains(err.Error(), "turbo3") || !strings.Contains(err.Error(), "128") ||
		!strings.Contains(err.Error(), "64") {
		t.Errorf("turbo3 for heads of 64: %v", err)
	}
	plain := odd
	plain.Value = quant.F16
	mixed := odd
	mixed.Value = quant.Q4_1
	m, err := cache.New([]backend.Backend{b}, cache.Spec{Layers: []cache.Layer{mixed, plain, plain}})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Types(); !slices.Equal(got, []string{"f16", "f16/q4_1"}) {
		t.Errorf("types %v", got)
	}
}
