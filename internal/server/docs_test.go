package server

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

// TestDocs runs the examples of docs/api.md and makes sure that every endpoint is in it.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(testkit.Root(t), "docs", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	f := start(t, options{template: hermesTemplate})
	example := regexp.MustCompile(`(?s)curl (?:-N )?localhost:8080(/\S*)(?: -d '(.*?)')?\n`)
	n := 0
	for _, m := range example.FindAllStringSubmatch(string(b), -1) {
		n++
		method := "GET"
		if m[2] != "" {
			method = "POST"
		}
		if status, b := f.do(method, m[1], m[2]); status != 200 {
			t.Errorf("%s: %d %s", m[0], status, b)
		}
	}
	if n < 15 {
		t.Errorf("only %d examples", n)
	}
	for _, path := range []string{
		"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/ID", "/v1/responses/ID/input_items",
		"/v1/responses/input_tokens", "/v1/embeddings", "/v1/models", "/v1/messages", "/v1/messages/count_tokens",
		"/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/tags", "/api/ps", "/api/show", "/api/pull",
		"/api/version",
		"/completion", "/infill", "/embedding", "/health", "/props", "/slots", "/metrics", "/tokenize", "/detokenize",
		"/apply-template",
	} {
		if !strings.Contains(string(b), path+"`") {
			t.Errorf("docs/api.md lacks %s", path)
		}
	}
}
