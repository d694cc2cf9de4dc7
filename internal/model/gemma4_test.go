package model

import (
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/testkit/edit"
)

// TestSharedHeads: a layer that uses the keys of another one has as many heads of them as that one, whatever the file
// says.
func TestSharedHeads(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	logits := func(e *edit.File) []float32 {
		f, err := gguf.Open(e.Write(t))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		m, err := Open(f, b, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, _ := run(t, m, m.NewSeq(), tokens(1, 10), 10, false)
		return got
	}
	want := logits(edit.Golden(t, "gemma4e"))
	e := edit.Golden(t, "gemma4e")
	f := file(t, "gemma4e")
	defer f.Close()
	layers, _, _ := f.Uint("gemma4.block_count")
	shared, _, _ := f.Uint("gemma4.attention.shared_kv_layers")
	heads, _, _ := f.Uint("gemma4.attention.head_count")
	own, _, err := f.Uint("gemma4.attention.head_count_kv")
	if err != nil || shared == 0 || own == heads {
		t.Fatalf("%d shared layers, %d of %d heads: %v", shared, own, heads, err)
	}
	kv := make([]int32, layers)
	for i := range kv {
		if kv[i] = int32(own); uint64(i) >= layers-shared {
			kv[i] = int32(heads)
		}
	}
	if got := logits(e.Set("gemma4.attention.head_count_kv", kv)); !sameBits(got, want) {
		t.Error("other logits")
	}
}
