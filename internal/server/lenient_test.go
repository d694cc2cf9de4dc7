package server

import (
	"net/http"
	"strings"
	"testing"
)

// TestIntegers: clients whose language has one kind of number write 8.0.
func TestIntegers(t *testing.T) {
	f := start(t, options{})
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"messages":[{"role":"user","content":"x"}` +
			`],"max_tokens":3.0,"top_k":4e1,"n":1.0,"seed":5,"ignore_eos":true}`,
		"/v1/completions": `{"prompt":"x","max_tokens":3.0,"logprobs":2.0,"ignore_eos":true}`,
		"/v1/responses":   `{"input":"x","max_output_tokens":3.0}`,
		"/v1/messages":    `{"messages":[{"role":"user","content":"x"}],"max_tokens":3.0}`,
	} {
		status, b := f.do("POST", path, body)
		m := decodeObject(t, b)
		if status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, b)
		}
		if strings.Contains(path, "completions") && number(m, "usage", "completion_tokens") != 3 {
			t.Errorf("%s: %v", path, at(m, "usage"))
		}
	}
	for body, want := range map[string]string{
		`{"prompt":"x","max_tokens":3.5}`:                       "must be an integer",
		`{"prompt":"x","max_tokens":1e300}`:                     "must be an integer",
		`{"prompt":"x","max_tokens":"3.0"}`:                     "must be an integer",
		`{"prompt":"x","top_k":` + strings.Repeat("0", 3) + `}`: "malformed",
	} {
		if status, b := f.do("POST", "/v1/completions", body); status != http.StatusBadRequest ||
			!strings.Contains(string(b), want) {
			t.Errorf("%s: %d %s", body, status, b)
		}
	}
	// Numbers elsewhere stay as they were written.
	tool := `{"role":"assistant","tool_calls":[{"id":"c",` +
		`"type":"function","function":{"name":"f","arguments":{"x":8.0}}}]}`
	g := start(t, options{template: hermesTemplate})
	m := g.post("/apply-template",
		`{"messages":[{"role":"user","content":"x"},`+tool+
			`,{"role":"tool","content":null,"tool_call_id":"c"}],"max_tokens":3.0}`)
	if !strings.Contains(text(m, "prompt"), `{"x": 8.0}`) {
		t.Errorf("prompt %s", text(m, "prompt"))
	}
}

// TestPaths: slashes too many and a doubled /v1 are what people have in their settings.
func TestPaths(t *testing.T) {
	f := start(t, options{config: Config{Keys: []string{"k"}}})
	for _, path := range []string{"/v1/models", "/v1/models/", "/v1/v1/models", "//v1/models", "/models/"} {
		if status, b := f.do("GET", path, "", "Api-Key", "k"); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, b)
		}
		if status, _ := f.do("GET", path, ""); status != http.StatusUnauthorized {
			t.Errorf("%s without a key: %d", path, status)
		}
	}
	body := `{"messages":[{"role":"user","content":"x"}],"max_tokens":1}`
	for _, path := range []string{"/v1/chat/completions/", "/v1/v1/messages", "/v1/v1/v1/chat/completions"} {
		if status, b := f.do("POST", path, body, "X-Api-Key", "k"); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, b)
		}
	}
	if status, _ := f.do("GET", "/", ""); status != http.StatusOK {
		t.Errorf("the page: %d", status)
	}
}

// TestLocalOrigins: programs of this machine may use a server on it, web sites may not.
func TestLocalOrigins(t *testing.T) {
	f := start(t, options{config: Config{LocalOrigins: true}})
	closed := start(t, options{})
	body := `{"prompt":"x","max_tokens":1}`
	for origin, local := range map[string]bool{
		"http://localhost:3000": true, "http://127.0.0.1:5173": true, "https://[::1]:8443": true, "app://obsidian.md": true,
		"vscode-webview://1abc": true,
		"https://example.com":   false, "http://localhost.example.com": false, "http://192.168.0.7": false, "null": false,
		"chrome-extension://abc": false, "http://[::": false,
	} {
		header := []string{"Origin", origin, "Sec-Fetch-Site", "cross-site"}
		status, b := f.do("POST", "/v1/completions", body, header...)
		if want := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[local]; status != want {
			t.Errorf("%s: %d %s", origin, status, b)
		}
		if status, _ := closed.do("POST", "/v1/completions", body, header...); status != http.StatusForbidden {
			t.Errorf("%s at a server that is not local: %d", origin, status)
		}
	}
}

// TestTurns: whether the assistant's turn is opened, and whether its last message goes on, are the client's to say.
func TestTurns(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	begun := []dict{{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once"}}
	for _, c := range []struct {
		q   dict
		end string
	}{
		{dict{"messages": user("x")}, "<|im_start|>assistant\n"},
		{dict{"messages": user("x"), "add_generation_prompt": false}, "x<|im_end|>\n"},
		{dict{"messages": begun}, "<|im_start|>assistant\nOnce"},
		{dict{"messages": begun, "continue_final_message": true, "add_generation_prompt": false},
			"<|im_start|>assistant\nOnce"},
		{dict{"messages": begun, "continue_final_message": false}, "Once<|im_end|>\n<|im_start|>assistant\n"},
		{dict{"messages": begun, "continue_final_message": false, "add_generation_prompt": false}, "Once<|im_end|>\n"},
	} {
		if p := text(f.post("/apply-template", c.q), "prompt"); !strings.HasSuffix(p, c.end) {
			t.Errorf("%v: %q", c.q, p)
		}
	}
}

// TestPromptString: llama.cpp's object for a prompt, as long as it is text.
func TestPromptString(t *testing.T) {
	f := start(t, options{})
	q := dict{"max_tokens": 5, "temperature": 0}
	want := text(f.post("/v1/completions", with(q, dict{"prompt": "func main"})), "choices", 0, "text")
	for _, p := range []any{dict{"prompt_string": "func main"},
		[]any{dict{"prompt_string": "func main", "multimodal_data": []any{}}}} {
		if got := text(f.post("/v1/completions", with(q, dict{"prompt": p})), "choices", 0, "text"); got != want {
			t.Errorf("%v: %q, want %q", p, got, want)
		}
	}
}
