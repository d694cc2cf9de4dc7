package model

import (
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/testkit/edit"
)

// TestWhyNot: what cannot run is told apart.
func TestWhyNot(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any
		want  string // part of the answer
	}{
		{"general.type", "model", ""},
		{"general.type", "adapter", "LoRA"},
		{"prism.hadamard.size", uint32(128), "its weights are rotated"},
		{"general.architecture", nil, "general.architecture is missing"},
		{"general.architecture", "deepseek2", "its keys are latent"},
		{"general.architecture", "new", `architecture "new" is not supported (supported: gemma4, `},
	} {
		f, err := gguf.Open(edit.Golden(t, "qwen3").Set(c.key, c.value).Write(t))
		if err != nil {
			t.Fatal(err)
		}
		if why := WhyNot(f); !strings.Contains(why, c.want) || (why == "") != (c.want == "") {
			t.Errorf("%s %v: %q", c.key, c.value, why)
		}
		f.Close()
	}
}
