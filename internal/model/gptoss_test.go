package model

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/synth"
	"strobe/internal/testkit/edit"
)

// TestGPTOSSFiles: the pattern of windows may be listed or left out, and what a file lacks or has wrong is named.
func TestGPTOSSFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := synth.Write(t.Context(), path, "tiny-gpt-oss", "q8_0", 5, synth.Options{}); err != nil {
		t.Fatal(err)
	}
	whole := edit.Read(t, path)
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	logits := func(e *edit.File) ([]float32, error) {
		f, err := gguf.Open(e.Write(t))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		m, err := Open(f, b, Options{})
		if err != nil {
			return nil, err
		}
		got, _ := run(t, m, m.NewSeq(), tokens(1, 12), 12, false)
		return got, nil
	}
	const pattern = "gpt-oss.attention.sliding_window_pattern"
	want, err := logits(whole)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		value any
		same  bool
	}{{uint32(2), true}, {[]bool{true, false}, true}, {[]bool{true, false, true}, true}, {uint32(0), false},
		{uint32(1), false}, {[]bool{false, true}, false}} {
		got, err := logits(whole.Clone().Set(pattern, c.value))
		if err != nil || sameBits(got, want) != c.same {
			t.Errorf("windows %v: the same logits %v, want %v (%v)", c.value, sameBits(got, want), c.same, err)
		}
	}
	for _, c := range []struct {
		change func(e *edit.File)
		want   string
	}{
		{func(e *edit.File) { e.Set(pattern, []bool{true}) }, pattern + " has 1 entries for 2 layers"},
		{func(e *edit.File) { e.Set("gpt-oss.attention.sliding_window", uint32(0)) }, "attention.sliding_window is 0"},
		{func(e *edit.File) { e.Set("gpt-oss.expert_used_count", uint32(9)) }, "expert_used_count is 9"},
		{func(e *edit.File) { e.Drop("blk.1.ffn_up_exps.bias") }, `missing tensor "blk.1.ffn_up_exps.bias"`},
		{func(e *edit.File) { e.Drop("blk.0.attn_sinks") }, `missing tensor "blk.0.attn_sinks.weight"`},
		{func(e *edit.File) { e.Put("blk.0.attn_qkv.bias", []float32{1}, 1) }, "blk.0.attn_qkv.bias"},
		{func(e *edit.File) {
			e.Drop("blk.0.ffn_gate_inp.bias").Put("blk.0.ffn_gate_inp.bias", make([]float32, 7), 7)
		}, "has shape [7]; want [8]"},
		{func(e *edit.File) {
			v := e.Values(t, "blk.0.ffn_down_exps.bias")
			v[3] = float32(math.NaN())
			e.Drop("blk.0.ffn_down_exps.bias").Put("blk.0.ffn_down_exps.bias", v, 256, 8)
		}, `tensor "blk.0.ffn_down_exps.bias": value 3 is NaN`},
	} {
		e := whole.Clone()
		c.change(e)
		if _, err := logits(e); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}
