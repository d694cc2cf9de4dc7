package engine

import (
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// TestMadeForAnother: names tell drafters of other generations and of base models from those that belong.
func TestMadeForAnother(t *testing.T) {
	named := func(name string) *gguf.File {
		name, template := strings.CutSuffix(name, " with a template")
		header := new(edit.File).Set("general.architecture", "qwen3").Set("general.name", name)
		if template {
			header.Set("tokenizer.chat_template", "{{ messages }}")
		}
		f, err := gguf.Open(header.Write(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	for _, c := range []struct{ drafter, target, want string }{
		{"Qwen3.5 4B DFlash", "Qwen3.5 4B", ""},
		{"Qwen3.5-27B-DFlash", "Qwen3.6 27B", "qwen 3.5, the model is qwen 3.6"},
		{"Qwen3 8B DFlash", "Qwen3 8B Base", `the model is called "base"`},
		{"gemma-4-31B-pt-DFlash", "Gemma 4 31B It", `made for a model called "base"`},
		{"Llama 3.1 8B Instruct DFlash", "Llama_3.1_8B_Instruct", ""},
		{"Llama 3.1 8B DFlash", "Llama 3.1 8B Instruct", ""}, // says nothing
		{"Qwen3 Coder 30B A3B DFlash", "Qwen3 30B A3B", `"coder"`},
		{"Qwen3 4B Thinking DFlash", "Qwen3 4B Instruct", `"thinking"`},
		{"qwen35-4b-dflash", "Qwen3.5 4B", ""},
		{"qwen35-4b-dflash", "Qwen3.6 4B", "qwen 3.5, the model is qwen 3.6"},
		{"Qwen-32B DFlash", "Qwen3 32B", ""}, // says nothing of the generation
		{"gemma-4-31B-it-DFlash", "Gemma 4 31B", "seems to be a base model"},
		{"gemma-4-31B-it-DFlash", "Gemma 4 31B it", ""},
		{"gemma-4-31B-DFlash", "Gemma 4 31B", ""},
		{"gemma-4-31B-it-DFlash", "Gemma 4 31B with a template", ""},
		{"gemma-4-31B-pt-DFlash", "Gemma 4 31B with a template", `made for a model called "base"`},
		{"qwen3_5_4b_dflash", "Qwen3.5 4B", ""},
		{"qwen3_5-4b-dflash", "Qwen3.6 4B", "qwen 3.5, the model is qwen 3.6"},
		{"Qwen3 8 B DFlash", "Qwen3.8 27B", ""}, // may be either
		{"Qwen3-8B-DFlash", "Qwen3 8B", ""},
		{"qwen38-27b-dflash2", "Qwen3.8-27B", ""},
		{"Qwen3.8-27B-DFlash2", "Qwen3.6-27B", "qwen 3.8, the model is qwen 3.6"},
		{"Qwen3.6-35B-A3B-DFlash", "Ornith-1.5-35B-A3B", ""}, // another name, the same kin
		{"drafter", "Something", ""},
	} {
		got := MadeForAnother(named(c.drafter), named(c.target))
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%q for %q: %q, want %q", c.drafter, c.target, got, c.want)
		}
	}
	open := func(name string) *gguf.File {
		f, err := gguf.Open(testkit.Golden(t, name+"/model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	for pair, want := range map[[2]string]string{{"dflash-qwen35", "qwen35"}: "", {"dflash-qwen3", "qwen3"}: "",
		{"dflash-qwen3next", "qwen3next"}: "", {"dflash-qwen35moe", "qwen35moe"}: "", {"dflash-gemma4", "gemma4"}: "",
		{"dflash-qwen35", "qwen3"}: "M-RoPE"} {
		got := MadeForAnother(open(pair[0]), open(pair[1]))
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s for %s: %q, want %q", pair[0], pair[1], got, want)
		}
	}
}
