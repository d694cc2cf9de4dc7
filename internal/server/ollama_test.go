package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/testkit"
)

// lines sends a request and returns the answer's lines of JSON.
func (f *fixture) lines(path string, body any) (out []dict) {
	f.t.Helper()
	status, b := f.do("POST", path, encode(f.t, body))
	if status != http.StatusOK {
		f.t.Fatalf("POST %s: status %d: %s", path, status, b)
	}
	for line := range bytes.Lines(b) {
		out = append(out, decodeObject(f.t, line))
	}
	return out
}

func TestOllamaChat(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.script("I wonder.</think>\n\nHello.<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bonn\", " +
		"\"days\": 2}}\n</tool_call>")
	q := dict{"model": "m:latest", "messages": user("Weather?"), "tools": weather, "think": true,
		"options": dict{"num_predict": 200, "temperature": 0, "num_ctx": 4096}}
	check := func(where, content, thinking string, calls []any, last dict) {
		t.Helper()
		if content != "Hello." || thinking != "I wonder." {
			t.Errorf("%s: content %q, thinking %q", where, content, thinking)
		}
		if len(calls) != 1 || text(calls[0], "function", "name") != "get_weather" ||
			text(calls[0], "function", "arguments", "city") != "Bonn" ||
			number(calls[0], "function", "arguments", "days") != 2 {
			t.Errorf("%s: calls %v", where, calls)
		}
		if last["done"] != true || text(last, "done_reason") != "stop" || number(last, "eval_count") == 0 ||
			number(last, "prompt_eval_count") == 0 ||
			number(last, "total_duration") == 0 || text(last, "model") != "m:latest" || text(last, "created_at") == "" {
			t.Errorf("%s: end %v", where, last)
		}
	}
	var content, thinking string
	var calls []any
	list := f.lines("/api/chat", q)
	for _, c := range list {
		content += text(c, "message", "content")
		thinking += text(c, "message", "thinking")
		more, _ := at(c, "message", "tool_calls").([]any)
		calls = append(calls, more...)
	}
	check("stream", content, thinking, calls, list[len(list)-1])
	m := f.post("/api/chat", with(q, dict{"stream": false}))
	calls, _ = at(m, "message", "tool_calls").([]any)
	check("whole", text(m, "message", "content"), text(m, "message", "thinking"), calls, m)

	// The call and its result come back.
	f.script("It rains.")
	m = f.post("/api/chat", dict{"model": "m", "stream": false, "messages": []dict{
		{"role": "user", "content": "Weather?"},
		{"role": "assistant", "content": "", "tool_calls": calls},
		{"role": "tool", "tool_name": "get_weather", "content": "rain", "images": []string{"aGk="}},
	}})
	if text(m, "message", "content") != "It rains." {
		t.Errorf("after the result: %v", m)
	}
	if m := f.post("/api/chat", dict{"model": "m"}); text(m, "done_reason") != "load" || m["done"] != true {
		t.Errorf("loading: %v", m)
	}
	f.s.tweak = nil
	m = f.post("/api/chat", dict{"model": "m", "messages": user("x"), "stream": false, "options": dict{"num_predict": 3},
		"format": json.RawMessage(personSchema)})
	if !strings.HasPrefix(text(m, "message", "content"), "{") || text(m, "done_reason") != "length" ||
		number(m, "eval_count") != 3 {
		t.Errorf("schema, cut: %v", m)
	}
}

func TestOllamaGenerate(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	q := dict{"model": "m", "prompt": "func main", "options": dict{"num_predict": 8, "temperature": 0}}
	whole := f.post("/api/generate", with(q, dict{"stream": false}))
	got := ""
	for _, c := range f.lines("/api/generate", q) {
		got += text(c, "response")
	}
	if got == "" || got != text(whole, "response") {
		t.Errorf("stream %q, whole %q", got, text(whole, "response"))
	}
	raw := f.post("/api/generate", with(q, dict{"stream": false, "raw": true}))
	plain := f.post("/v1/completions", dict{"prompt": "func main", "max_tokens": 8, "temperature": 0})
	if text(raw, "response") != text(plain, "choices", 0, "text") ||
		number(raw, "prompt_eval_count") >= number(whole, "prompt_eval_count") {
		t.Errorf("raw %v, completion %v", raw, plain)
	}
	m := f.post("/api/generate", with(q, dict{"stream": false, "format": "json"}))
	if !strings.HasPrefix(text(m, "response"), "{") {
		t.Errorf("json: %v", m)
	}
}

func TestOllamaErrors(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	for body, want := range map[string]string{
		`{"messages":[{"role":"user","content":"x","images":["aGk="]}]}`: "messages[0].images[0]: images are not " +
			"supported",
		`{"messages":[{"content":"x"}]}`:                                                  "messages[0].role: is missing",
		`{"messages":[{"role":"user","content":"x"}],"format":"xml"}`:                     "format: must be",
		`{"messages":[{"role":"user","content":"x"}],"format":5}`:                         "format: must be",
		`{"messages":[{"role":"user","content":"x"}],"think":5}`:                          "think: must be",
		`{"messages":[{"role":"user","content":"x"}],"options":{"t_max_predict_ms":1}}`:   "t_max_predict_ms: is not supported",
		`{"messages":[{"role":"user","content":"x"}],"options":{"temperature":"hot"}}`:    "temperature",
		`{"messages":[{"role":"assistant","content":"","tool_calls":[{"function":{}}]}]}`: "function.name: is missing",
		`{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]}`:      "tools[0].function.name",
		`{"messages":`: "malformed JSON",
	} {
		status, b := f.do("POST", "/api/chat", body)
		if m := decodeObject(t, b); status != http.StatusBadRequest || !strings.Contains(text(m, "error"), want) {
			t.Errorf("%s: %d %s", body, status, b)
		}
	}
	for _, body := range []string{`{"prompt":"x","template":"y"}`, `{"prompt":"x","raw":true,"images":["y"]}`} {
		if status, b := f.do("POST", "/api/generate", body); status != http.StatusBadRequest ||
			!strings.Contains(string(b), "is not supported") {
			t.Errorf("%s: %d %s", body, status, b)
		}
	}
}

func TestOllamaModels(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	get := func(path string) dict {
		status, b := f.do("GET", path, "")
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, status, b)
		}
		return decodeObject(t, b)
	}
	if v := text(get("/api/version"), "version"); strings.Count(v, ".") != 2 {
		t.Errorf("version %q", v)
	}
	for _, path := range []string{"/api/tags", "/api/ps"} {
		m := at(get(path), "models", 0)
		if text(m, "name") != "qwen35" || number(m, "size") == 0 || len(text(m, "digest")) != 64 ||
			text(m, "details", "family") == "" {
			t.Errorf("%s: %v", path, m)
		}
	}
	m := f.post("/api/show", dict{"model": "qwen35:latest"})
	arch := text(m, "model_info", "general.architecture")
	if text(m, "template") != hermesTemplate || number(m, "model_info", arch+".context_length") == 0 ||
		encode(t, at(m, "capabilities")) != `["completion","tools","thinking"]` {
		t.Errorf("show: %v", m)
	}
	if m := f.post("/api/pull", dict{"model": "qwen35"}); text(m, "status") != "success" {
		t.Errorf("pull: %v", m)
	}
	m = f.post("/api/embed", dict{"model": "qwen35", "input": []string{"a", "b"}})
	if l, _ := at(m, "embeddings").([]any); len(l) != 2 || len(l[0].([]any)) != 64 || number(m, "prompt_eval_count") == 0 {
		t.Errorf("embed: %v", m)
	}
	if l, _ := at(f.post("/api/embeddings", dict{"model": "qwen35", "prompt": "a"}), "embedding").([]any); len(l) != 64 {
		t.Errorf("embeddings: %v", l)
	}
}

// TestOllamaNames: a server of several models knows which it has.
func TestOllamaNames(t *testing.T) {
	p, err := engine.NewPool(engine.PoolConfig{
		Files: []string{testkit.Golden(t, "qwen3/model.gguf"), goldenWith(t, "qwen35", hermesTemplate)},
		Load:  engine.Options{Drafter: "none", Threads: 1}, Engine: engine.Config{Context: 256},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(t.Context()) })
	f := start(t, options{})
	f.s.SetModels(Pool(p, ""))
	var names []string
	for _, m := range p.Models() {
		names = append(names, m.Name)
	}
	for _, name := range names {
		m := f.post("/api/generate", dict{"model": name + ":latest", "prompt": "x", "stream": false,
			"options": dict{"num_predict": 1}})
		if m["done"] != true {
			t.Errorf("%s: %v", name, m)
		}
	}
	for path, want := range map[string]int{"/api/show": 404, "/api/pull": 501, "/api/chat": 404} {
		if status, b := f.do("POST", path, `{"model":"nobody"}`); status != want || text(decodeObject(t, b), "error") == "" {
			t.Errorf("%s: %d %s", path, status, b)
		}
	}
}
