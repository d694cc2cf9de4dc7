package edit

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
)

// edges are the integers that sizes go wrong at. 1<<40 is even and larger than any memory.
var edges = []any{
	uint64(0), uint64(1), int64(-1), uint64(1 << 31), uint64(math.MaxUint32 - 1), uint64(math.MaxUint32),
	uint64(1 << 40), uint64(math.MaxUint64),
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
	"attention.head_count_kv", "attention.key_length", "attention.key_length_swa",
	"attention.recurrent_layers", "attention.shared_kv_layers", "attention.sliding_window",
	"attention.value_length", "embedding_length_per_layer_input", "expert_count", "expert_feed_forward_length",
	"expert_shared_feed_forward_length", "expert_used_count", "expert_weights_scale",
	"final_logit_softcapping", "full_attention_interval", "nextn_predict_layers", "rope.dimension_count",
	"rope.dimension_count_swa", "rope.dimension_sections", "rope.freq_base", "rope.freq_base_swa",
	"rope.scaling.attn_factor", "rope.scaling.factor", "rope.scaling.original_context_length",
	"rope.scaling.type", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
	"rope.scaling.yarn_ext_factor",
}

// Targets lists the golden models that run by themselves: no drafters.
func Targets(t testing.TB) (names []string) {
	t.Helper()
	for _, name := range testkit.GoldenModels(t) {
		if !strings.Contains(name, "dflash") && !strings.Contains(name, "assistant") {
			names = append(names, name)
		}
	}
	return names
}
