package jinja

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDictOrder: what is merged or mapped keeps its order, and of keys that become the same the last is found.
func TestDictOrder(t *testing.T) {
	from := NewDict()
	var want []any
	for i := range 20 {
		key := fmt.Sprint("key", i)
		from.Set(key, i)
		want = append(want, key)
	}
	merged := NewDict()
	merged.Merge(from)
	if diff := cmp.Diff(want, merged.keys); diff != "" {
		t.Error(diff)
	}
	mapped := MapStrings(from, func(string) string { return "same" }).(*Dict)
	if v, ok := mapped.Get("same"); !ok || v != 19 || mapped.Len() != 20 {
		t.Errorf("%v, %v of %d keys", v, ok, mapped.Len())
	}
}
