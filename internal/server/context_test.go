package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"strobe/internal/engine"
)

// TestContextTooLarge: a context beyond the model's is cut, and the log says so.
func TestContextTooLarge(t *testing.T) {
	for ask, warned := range map[int]bool{64: false, 1 << 30: true} {
		var log bytes.Buffer
		f := start(t, options{plain: true,
			engine: engine.Config{Context: ask, Log: slog.New(slog.NewTextHandler(&log, nil))}})
		if got := strings.Contains(log.String(), "the context is shorter than asked for"); got != warned {
			t.Errorf("a context of %d, of %d: the log says %q", ask, f.e.Config().Context, log.String())
		}
	}
}

// TestContextError: agents shorten a conversation and try again when they read these words, by as much as the numbers
// say. The count is the one of the endpoints that count.
func TestContextError(t *testing.T) {
	f := start(t, options{template: hermesTemplate, engine: engine.Config{Context: 128}})
	for name, long := range map[string]string{"a little": strings.Repeat("word ", 200), "a lot": strings.Repeat("word ",
		60000)} {
		count := number(f.post("/apply-template", dict{"messages": user("x")}), "n_tokens") +
			len(f.post("/tokenize", dict{"content": long})["tokens"].([]any)) -
			len(f.post("/tokenize", dict{"content": "x"})["tokens"].([]any))
		ids := make([]int, count)
		for path, body := range map[string]dict{
			"/v1/chat/completions": {"messages": user(long)},
			"/v1/responses":        {"input": long},
			"/completion":          {"prompt": ids},
			"/v1/messages":         {"messages": user(long), "max_tokens": 9},
			"/api/chat":            {"messages": user(long)},
		} {
			status, b := f.do("POST", path, encode(t, body))
			want := fmt.Sprintf("request (%d tokens) exceeds the available context size (128 tokens)", count)
			got := text(decodeObject(t, b), "error", "message")
			switch path {
			case "/v1/messages":
				want = fmt.Sprintf("prompt is too long: %d tokens > 128 maximum", count)
			case "/api/chat":
				got = text(decodeObject(t, b), "error")
			}
			if status != http.StatusBadRequest || got != want {
				t.Errorf("%s, %s: %d %q, want %q", name, path, status, got, want)
			}
			if n := at(decodeObject(t, b), "error", "n_prompt_tokens"); path != "/api/chat" && n != float64(count) {
				t.Errorf("%s, %s: n_prompt_tokens %v, want %d", name, path, n, count)
			}
		}
	}
}
