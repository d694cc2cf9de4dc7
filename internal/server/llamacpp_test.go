package server

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestLlamaCPPHabits: what llama.cpp's own tests and clients do that others do not.
func TestLlamaCPPHabits(t *testing.T) {
	f := start(t, options{template: hermesTemplate, plain: true})
	// Without a body.
	if status, b := f.do("POST", "/slots/0?action=erase", ""); status != http.StatusOK ||
		!strings.Contains(string(b), "n_erased") {
		t.Errorf("erase: %d %s", status, b)
	}
	if status, _ := f.do("POST", "/slots/0?action=save", ""); status != http.StatusBadRequest {
		t.Errorf("save without a name: %d", status)
	}
	if status, _ := f.do("POST", "/completion", ""); status != http.StatusBadRequest {
		t.Errorf("a completion without a body: %d", status)
	}
	// Tokens and text in one prompt.
	tokens := func(s string) (out []any) {
		list, _ := f.post("/tokenize", dict{"content": s})["tokens"].([]any)
		return list
	}
	one, two := tokens("one"), tokens("two")
	prompt := func(p any) int {
		return number(f.post("/completion", dict{"prompt": p, "n_predict": 1}), "tokens_evaluated")
	}
	if got, want := prompt(append(slices.Clone(one), "two")), len(one)+len(two); got != want {
		t.Errorf("tokens before text: %d tokens, want %d", got, want)
	}
	if got, want := prompt(append([]any{"one"}, two...)), len(one)+len(two); got != want {
		t.Errorf("text before tokens: %d tokens, want %d", got, want)
	}
	m := f.post("/completion", dict{"prompt": append(append([]any{"a"}, one...), "b"), "n_predict": 1})
	if got := text(m, "prompt"); got != "aoneb" {
		t.Errorf("the prompt is %q", got)
	}
	several := dict{"prompt": []any{append(slices.Clone(one), "x"), "y"}, "n_predict": 1}
	if status, b := f.do("POST", "/completion", encode(t, several)); status != http.StatusOK {
		t.Errorf("a list with a mixed prompt: status %d, %s", status, b)
	}
	f.refuses("/completion", dict{"prompt": []any{"a", 1 << 30}}, "prompt[1]", "not the id of a token")
	f.refuses("/completion", dict{"prompt": []any{1, "a", nil}}, "prompt")
	f.refuses("/completion", dict{"prompt": []any{1, "a", 1.5}}, "prompt[2]")

	for _, extra := range []dict{{}, {"filename": "a"}, {"text": "a"}, {"filename": 3, "text": "a"}} {
		f.refuses("/infill", dict{"input_prefix": "a", "input_suffix": "b", "input_extra": []dict{extra}}, "input_extra")
	}
	// Counting, with and without /v1.
	q := dict{"messages": user("hello")}
	used := number(f.post("/v1/chat/completions", with(q, dict{"max_tokens": 1})), "usage", "prompt_tokens")
	for _, path := range []string{"/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"} {
		if got := number(f.post(path, q), "input_tokens"); got != used {
			t.Errorf("%s: %d tokens, used are %d", path, got, used)
		}
	}
	f.refuses("/chat/completions", with(q, dict{"add_generation_prompt": true, "continue_final_message": true}),
		"add_generation_prompt")

	props := f.object("/props")
	if got := text(props, "model_path"); got != "qwen35.gguf" {
		t.Errorf("model_path %q", got)
	}
	if got := text(f.object("/v1/models"), "data", 0, "status", "value"); got != "loaded" {
		t.Errorf("status %q", got)
	}
	f.post("/v1/embeddings", dict{"input": []string{"a", "b"}})
	_, b := f.do("GET", "/metrics", "")
	for _, line := range []string{"\nllamacpp:n_tokens_max{", `strobe:embeddings_total{model_name="qwen35"} 2` + "\n"} {
		if !strings.Contains(string(b), line) {
			t.Errorf("the metrics lack %q", line)
		}
	}
	if i := strings.Index(string(b), "llamacpp:n_tokens_max{"); i < 0 || strings.HasPrefix(string(b)[i:],
		"llamacpp:n_tokens_max{model_name=\"qwen35\"} 0") {
		t.Error("no prompt has any token")
	}
	if status, b := f.do("POST", "/v1/responses/compact", "{}"); status != http.StatusNotFound ||
		!strings.Contains(string(b), "compact") {
		t.Errorf("compact: %d %s", status, b)
	}
}

// TestIsLocal: programs of this machine by the origins they have, and what is none.
func TestIsLocal(t *testing.T) {
	for origin, want := range map[string]bool{"file://": true, "capacitor://localhost": true,
		"vscode-file://vscode-app": true, "vscode-webview://abc": true, "tauri://localhost": true, "app://obsidian.md": true,
		"http://localhost:3000": true, "https://127.0.0.1": true, "null": false, "": false, "https://file.example": false,
		"filesystem:https://a.example": false, "http://localhost.example": false} {
		if isLocal(origin) != want {
			t.Errorf("%q: local %v", origin, !want)
		}
	}
}
