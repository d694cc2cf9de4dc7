package convert

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"strobe/internal/gguf"
)

func TestSplitName(t *testing.T) {
	tests := []struct {
		id    string
		total int
		want  nameParts
	}{
		{"Qwen/Qwen3-0.6B", 596_000_000, nameParts{full: "Qwen3-0.6B", org: "Qwen", base: "Qwen3", size: "0.6B"}},
		{"Qwen3.6-35B-A3B", 35_000_000_000, nameParts{full: "Qwen3.6-35B-A3B", base: "Qwen3.6", size: "35B-A3B"}},
		{"Qwen3-4B-Instruct-2507", 4_000_000_000, nameParts{full: "Qwen3-4B-Instruct-2507", base: "Qwen3",
			finetune: "Instruct", version: "2507", size: "4B"}},
		{"gemma-4-31B-it", 31_000_000_000, nameParts{full: "gemma-4-31B-it", base: "gemma-4", finetune: "it", size: "31B"}},
		{"gemma-4-E2B-it", 5_000_000_000, nameParts{full: "gemma-4-E2B-it"}},
		{"Qwen3-Coder-Next", 80_000_000_000, nameParts{full: "Qwen3-Coder-Next"}},
		{"Mistral-7B-Instruct-v0.2", 7_000_000_000,
			nameParts{full: "Mistral-7B-Instruct-v0.2", base: "Mistral", finetune: "Instruct", version: "v0.2", size: "7B"}},
		{"Phi-3-mini-128k-instruct", 3_800_000_000,
			nameParts{full: "Phi-3-mini-128k-instruct", base: "Phi-3", finetune: "128k-instruct", size: "mini"}},
		{"Mistral/Mixtral-8x7B-Instruct-v0.1", 46_700_000_000,
			nameParts{full: "Mixtral-8x7B-Instruct-v0.1", org: "Mistral", base: "Mixtral", finetune: "Instruct", version: "v0.1",
				size: "8x7B"}},
		{"Mixtral", 0, nameParts{full: "Mixtral"}},
		{"Yuan2-2B-Mars-hf", 0, nameParts{full: "Yuan2-2B-Mars-hf", base: "Yuan2", finetune: "Mars-hf", size: "2B"}},
		{"Hermes-2-Pro-Llama-3-8B", 0, nameParts{full: "Hermes-2-Pro-Llama-3-8B", base: "Hermes-2-Pro-Llama-3", size: "8B"}},
		{"teknium/OpenHermes-2.5", 0, nameParts{full: "OpenHermes-2.5", org: "teknium", base: "OpenHermes", version: "2.5"}},
		{"Qwen1.5-MoE-A2.7B-Chat", 0, nameParts{full: "Qwen1.5-MoE-A2.7B-Chat", base: "Qwen1.5-MoE", finetune: "Chat",
			size: "A2.7B"}},
		{"Llama-2-7B-32K-Instruct", 7_000_000_000,
			nameParts{full: "Llama-2-7B-32K-Instruct", base: "Llama-2", finetune: "32k-Instruct", size: "7B"}},
		{"gemma-2-9b-it", 0, nameParts{full: "gemma-2-9b-it", base: "gemma-2", finetune: "it", size: "9B"}},
		{"bloom-7b1", 7_069_016_064, nameParts{full: "bloom-7b1", base: "bloom", size: "7.1B"}},
		{"hf", 230_000, nameParts{full: "hf"}},
		{"a sentence as a name", 1, nameParts{full: "a sentence as a name"}},
		{"./local-7B", 7_000_000_000, nameParts{full: "local-7B", base: "local", size: "7B"}},
		{"", 1, nameParts{}},
	}
	for _, c := range tests {
		if got := splitName(c.id, c.total); got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.id, got, c.want)
		}
	}
}

func TestTitle(t *testing.T) {
	for in, want := range map[string]string{
		"hf": "Hf", "Qwen3-0.6B": "Qwen3 0.6B", "gemma-4-31B-it": "Gemma 4 31B It", "deepseek-ai": "Deepseek Ai",
		"v1.2-beta": "v1.2 Beta", "7b-x": "7b X", "a2b": "A2B",
	} {
		if got := title(in); got != want {
			t.Errorf("title(%s) = %s, want %s", in, got, want)
		}
	}
}

func TestRoundedCount(t *testing.T) {
	for n, want := range map[int]string{
		596_049_920: "596M", 4_022_468_096: "4.0B", 27_400_000_000: "27B", 122_000_000_000: "122B", 1_500_000: "1.5M",
		88_804: "89K",
		999:    "1.0K", 252_408: "252K", 1_050_000_000_000: "1.1T", 500: "0.50K",
	} {
		if got := roundedCount(n); got != want {
			t.Errorf("roundedCount(%d) = %s, want %s", n, got, want)
		}
	}
}

const modelCard = `---
library_name: transformers
license: apache-2.0
license_link: https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/LICENSE  # a comment
pipeline_tag: text-generation
base_model:
- Qwen/Qwen3-0.6B-Base
tags: [chat, "two words", 'it''s']
language:
  - en
  - no
datasets:
- https://huggingface.co/datasets/x
model-index:
- name: something
  results:
  - task: {type: x}
description: >-
  runs over
  two lines
---
# Qwen3
license: not this one
`

func TestModelCard(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "Qwen3-0.6B")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"README.md": modelCard,
		"generation_config.json": `{"top_k": 20, "top_p": 0.95, "temperature": 0.6, "do_sample": true, ` +
			`"repetition_penalty": 1.05}`,
		"config.json": `{"_name_or_path": "/some/where/else/model"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	a, err := readAuthorship(dir, params{total: 596_049_920})
	if err != nil {
		t.Fatal(err)
	}
	l := &keyList{}
	a.setKeys(l)
	want := []gguf.KV{
		{Key: "general.sampling.top_k", Value: int32(20)},
		{Key: "general.sampling.top_p", Value: float32(0.95)},
		{Key: "general.sampling.temp", Value: float32(0.6)},
		{Key: "general.name", Value: "Qwen3 0.6B"},
		{Key: "general.basename", Value: "Qwen3"},
		{Key: "general.description", Value: "runs over two lines"},
		{Key: "general.size_label", Value: "0.6B"},
		{Key: "general.license", Value: "apache-2.0"},
		{Key: "general.license.link", Value: "https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/LICENSE"},
		{Key: "general.base_model.count", Value: uint32(1)},
		{Key: "general.base_model.0.name", Value: "Qwen3 0.6B Base"},
		{Key: "general.base_model.0.organization", Value: "Qwen"},
		{Key: "general.base_model.0.repo_url", Value: "https://huggingface.co/Qwen/Qwen3-0.6B-Base"},
		{Key: "general.dataset.count", Value: uint32(1)},
		{Key: "general.dataset.0.name", Value: "X"},
		{Key: "general.dataset.0.organization", Value: "Datasets"},
		{Key: "general.dataset.0.repo_url", Value: "https://huggingface.co/datasets/x"},
		{Key: "general.tags", Value: []string{"chat", "two words", "it's", "text-generation"}},
		{Key: "general.languages", Value: []string{"en", "no"}},
	}
	if d := cmp.Diff(want, l.kvs); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestNoModelCard(t *testing.T) {
	for _, text := range []string{"", "# only text\n", "---\n---\n", "---\nbroken: [a, b\n", "---\n- a\n- b\n---\n",
		"---\nlicense: \"" + strings.Repeat("x", maxCard) + "\"\n---\n", "---\na: " + strings.Repeat("[", 1_000_000),
		"---\na: 1\nb: true\nc: ~\nd: {x: y}\ne: [1, {x: y}]\nf:\n---\n"} {
		path := filepath.Join(t.TempDir(), "README.md")
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		card, err := readCard(path)
		if err != nil || len(card) != 0 {
			t.Errorf("%q gives %v, %v", text, card, err)
		}
	}
}

// TestCardAliases: aliases are not followed, so that a short card does not become a long list.
func TestCardAliases(t *testing.T) {
	text := "---\nlicense: &a [x, y]\n"
	for c := 'b'; c <= 'z'; c++ {
		text += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.Repeat(fmt.Sprintf("*%c, ", c-1), 9))
	}
	path := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(path, []byte(text+"name: *a\ntags: [*a, z]\n---\nname: text\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	card, err := readCard(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"license": []any{"x", "y"}, "tags": []any{"z"}}
	if d := cmp.Diff(want, card); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
