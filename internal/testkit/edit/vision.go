package edit

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
)

// The templates of golden models are short ones that show images as the real ones do.
const (
	qwenTemplate = `{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}{%- if m.content is string %}` +
		`{{- m.content }}{%- else %}{%- for p in m.content %}{%- if p.type == 'image' %}` +
		`{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{- p.text }}{%- endif %}{%- endfor %}{%- endif %}` +
		`{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}`
	// Gemma's template shows no images in results of tools.
	gemmaTemplate = `{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}{%- if m.content is string %}` +
		`{{- m.content }}{%- else %}{%- for p in m.content %}{%- if p.type == 'text' %}{{- p.text }}` +
		`{%- elif m.role != 'tool' %}{{- '<|image|>' }}{%- endif %}{%- endfor %}{%- endif %}` +
		`{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}`
)

// WithImages gives a golden model the tokens and a template for images, and writes it beside the tiny image encoder of
// its family. It returns the path of the model.
func (e *File) WithImages(t testing.TB) string {
	t.Helper()
	encoder, template := "mmproj-qwen-small-f32.gguf", qwenTemplate
	names := map[string]string{"<|r0|>": "<|vision_start|>", "<|r1|>": "<|vision_end|>", "<|r2|>": "<|image_pad|>"}
	if strings.HasPrefix(e.Arch(), "gemma4") {
		encoder, template = "mmproj-gemma4v-small-f32.gguf", gemmaTemplate
		names = map[string]string{"<|r0|>": "<|image>", "<|r1|>": "<image|>", "<|r2|>": "<|image|>"}
	}
	for i, kv := range e.KVs {
		if kv.Key != "tokenizer.ggml.tokens" {
			continue
		}
		array := kv.Value.(gguf.Array)
		list := slices.Clone(array.Values.([]string))
		for at, s := range list {
			if to := names[s]; to != "" {
				list[at] = to
			}
		}
		array.Values = list
		e.KVs[i].Value = array
	}
	e.Set("tokenizer.chat_template", template)
	path := e.Write(t)
	packed, err := os.Open(filepath.Join(testkit.Root(t), "internal", "vision", "testdata", encoder+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), encoder), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
