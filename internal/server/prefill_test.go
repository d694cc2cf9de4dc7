package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/pflash"
)

// answerTo posts a conversation and returns status, header and body.
func (f *fixture) answerTo(messages []dict) (int, http.Header, dict) {
	f.t.Helper()
	q, err := json.Marshal(dict{"messages": messages, "max_tokens": 4, "temperature": 0})
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := http.Post(f.url+"/v1/chat/completions", "application/json", bytes.NewReader(q))
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	var body dict
	if err := json.Unmarshal(raw, &body); err != nil {
		f.t.Fatalf("%v: %s", err, raw)
	}
	return resp.StatusCode, resp.Header, body
}

func document(lines int) string {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "line %d says that %d times %d is %d.\n", i, i, i+7, i*(i+7))
	}
	return b.String()
}

// TestShortenedPrompt: replies say how much of a prompt was read, later turns begin as the ones before, and a scorer
// that fails costs nothing but time.
func TestShortenedPrompt(t *testing.T) {
	f := start(t, options{template: hermesTemplate, prefill: pflash.Options{Mode: pflash.Always, Keep: 0.2},
		engine: engine.Config{Context: 8192}})
	talk := []dict{{"role": "system", "content": "Be brief."}, {"role": "user", "content": document(60)},
		{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "What is 12 times 19?"}}
	status, header, body := f.answerTo(talk)
	details := func(body dict, key string) int { return number(body, "usage", "prompt_tokens_details", key) }
	seen, kept := details(body, "seen_tokens"), details(body, "kept_tokens")
	if status != 200 || kept == 0 || kept*2 > seen || kept != number(body, "usage", "prompt_tokens") {
		t.Fatalf("status %d, usage %v", status, body["usage"])
	}
	if want := fmt.Sprintf("seen=%d, kept=%d", seen, kept); header.Get("Strobe-Prefill") != want {
		t.Errorf("header %q, want %q", header.Get("Strobe-Prefill"), want)
	}
	talk = append(talk, dict{"role": "assistant", "content": "228."}, dict{"role": "user", "content": "And 13 times 20?"})
	_, _, body = f.answerTo(talk)
	if cached := details(body, "cached_tokens"); cached < kept*9/10 {
		t.Errorf("the second turn found %d of the first one's %d tokens", cached, kept)
	}
	f.e.Model().Prefill.Close() // from now on scoring fails
	talk[1]["content"] = document(61)
	status, header, body = f.answerTo(talk)
	if n := number(body, "usage", "prompt_tokens"); status != 200 || n < seen*4/5 || details(body, "seen_tokens") != 0 {
		t.Errorf("without a scorer: status %d, usage %v", status, body["usage"])
	}
	if s := header.Get("Strobe-Prefill"); s != "" {
		t.Errorf("without a scorer: header %q", s)
	}
}

// TestRescuedPrompt: a conversation that is too long says so with both numbers; shortened, it fits.
func TestRescuedPrompt(t *testing.T) {
	talk := []dict{{"role": "user", "content": document(150)}, {"role": "assistant", "content": "Yes."},
		{"role": "user", "content": "What is 12 times 19?"}}
	for _, mode := range []pflash.Mode{pflash.Off, pflash.Auto} {
		f := start(t, options{template: hermesTemplate, prefill: pflash.Options{Mode: mode, Keep: 0.2}, plain: true,
			engine: engine.Config{Context: 2048}})
		status, _, body := f.answerTo(talk)
		if mode == pflash.Off {
			e, _ := body["error"].(map[string]any)
			if m, _ := e["message"].(string); status != 400 || !strings.Contains(m, "context size (2048 tokens)") ||
				!strings.HasPrefix(m, "request (") {
				t.Errorf("status %d: %v", status, body)
			}
		} else if n := number(body, "usage", "prompt_tokens"); status != 200 || n == 0 || n >= 2048 {
			t.Errorf("status %d: %v", status, body)
		}
	}
}

// TestShortenedCompletion: the prompt of a completion is shortened, too, unless control tokens give it a form.
func TestShortenedCompletion(t *testing.T) {
	f := start(t, options{template: hermesTemplate, prefill: pflash.Options{Mode: pflash.Always, Keep: 0.2},
		engine: engine.Config{Context: 8192}})
	for prompt, shortened := range map[string]bool{
		document(60): true, "<|im_start|>user\n" + document(60) + "<|im_end|>\n": false,
	} {
		body := f.post("/v1/completions", dict{"prompt": prompt, "max_tokens": 4, "temperature": 0})
		seen := number(body, "usage", "prompt_tokens_details", "seen_tokens")
		n := number(body, "usage", "prompt_tokens")
		if (seen > 2*n) != shortened || n == 0 {
			t.Errorf("shortened: %v, want %v: usage %v", seen > 2*n, shortened, body["usage"])
		}
	}
}
