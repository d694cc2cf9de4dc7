package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/engine"
)

// TestThread: a request that continues a thread is answered like one with the whole conversation, streamed or not, also
// where another server has the model.
func TestThread(t *testing.T) {
	back := start(t, options{template: hermesTemplate, config: Config{Keys: []string{"sk-upstream"}}})
	here := start(t, options{template: hermesTemplate})
	far := front(t, Config{}, back.url)
	tools := []dict{{"name": "weather", "description": "d", "input_schema": dict{"type": "object"}}}
	for name, c := range map[string]struct {
		asked, runs *fixture
		model       string
	}{"here": {here, here, "qwen35"}, "elsewhere": {far, back, "far"}} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream %v", name, stream), func(t *testing.T) {
				var prompt []int32
				say := func(text string) {
					c.runs.script(text)
					script := c.runs.s.tweak
					c.runs.s.tweak = func(req *engine.Request, m *model) {
						prompt = slices.Clone(req.Tokens)
						script(req, m)
					}
				}
				ask := func(q dict) (id string) {
					q = with(q, dict{"model": c.model, "max_tokens": 99, "stream": stream})
					if !stream {
						return text(c.asked.post("/v1/messages", q), "id")
					}
					evs := c.asked.events("/v1/messages", q)
					if names := names(evs); names[len(names)-1] != "message_stop" {
						t.Fatalf("the stream ends with %v", names)
					}
					return text(evs[0].data, "message", "id")
				}
				say("<think>well</think>I look.<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_call>")
				first := ask(dict{"system": "Be brief.", "tools": tools, "messages": user("Is it sunny?"),
					"thread": dict{"type": "create"}})
				say("Yes.")
				result := dict{"role": "user", "content": []dict{{"type": "tool_result", "tool_use_id": "x", "content": "sun"}}}
				second := ask(dict{"messages": []dict{result},
					"thread": dict{"type": "continue", "previous_message_id": first}})
				thanks := dict{"role": "user", "content": "Thanks"}
				ask(dict{"messages": []dict{thanks}, "thread": dict{"type": "continue", "previous_message_id": second}})
				threaded := prompt
				ask(dict{"system": "Be brief.", "tools": tools, "messages": []dict{user("Is it sunny?")[0],
					{"role": "assistant", "content": []dict{{"type": "thinking", "thinking": "well", "signature": ""},
						{"type": "text", "text": "I look."},
						{"type": "tool_use", "id": "x", "name": "weather", "input": dict{"city": "Bonn"}}}},
					result, {"role": "assistant", "content": "Yes."}, thanks}})
				if !slices.Equal(threaded, prompt) {
					t.Errorf("the prompt of the thread has %d tokens and differs from that of the whole conversation, which has %d",
						len(threaded), len(prompt))
				}
			})
		}
	}
}

// TestThreadErrors: clients know from the code whether a new thread helps or none does.
func TestThreadErrors(t *testing.T) {
	f := start(t, options{template: hermesTemplate, config: Config{Keys: []string{"a", "b"}}})
	f.script("Hello")
	send := func(f *fixture, key string, q dict) (int, dict) {
		status, b := f.do("POST", "/v1/messages", encode(t, with(q, dict{"max_tokens": 9, "messages": user("hi")})),
			"X-Api-Key", key)
		return status, decodeObject(t, b)
	}
	status, first := send(f, "a", dict{"thread": dict{"type": "create"}})
	if status != http.StatusOK {
		t.Fatal(status, first)
	}
	id := text(first, "id")
	on := func(id string) dict { return dict{"type": "continue", "previous_message_id": id} }
	for name, c := range map[string]struct {
		key    string
		q      dict
		status int
		code   any
	}{
		"its own":        {"a", dict{"thread": on(id)}, 200, nil},
		"of another key": {"b", dict{"thread": on(id)}, 404, "thread_not_found"},
		"unknown":        {"a", dict{"thread": on("msg_nothing")}, 404, "thread_not_found"},
		"no id":          {"a", dict{"thread": on("")}, 400, nil},
		"another type":   {"a", dict{"thread": dict{"type": "fork"}}, 400, nil},
		"with system":    {"a", dict{"thread": on(id), "system": "x"}, 400, "thread_unsupported_request"},
		"with tools": {"a", dict{"thread": on(id), "tools": []dict{{"name": "x", "input_schema": dict{}}}}, 400,
			"thread_unsupported_request"},
	} {
		status, got := send(f, c.key, c.q)
		if code := at(got, "error", "details", "error_code"); status != c.status || code != c.code {
			t.Errorf("%s: %d %v", name, status, got)
		}
	}
	if status, _ := f.do("GET", "/v1/responses/"+id, "", "X-Api-Key", "a"); status != http.StatusNotFound {
		t.Errorf("the Responses API shows a thread with status %d", status)
	}
	f.s.memory.now = func() time.Time { return time.Now().Add(48 * time.Hour) }
	if status, got := send(f, "a", dict{"thread": on(id)}); status != http.StatusNotFound {
		t.Errorf("an old thread: %d %v", status, got)
	}
	none := start(t, options{template: hermesTemplate, config: Config{MaxStored: -1}})
	if status, got := send(none, "", dict{"thread": dict{"type": "create"}}); status != http.StatusBadRequest ||
		at(got, "error", "details", "error_code") != "thread_unsupported_request" {
		t.Errorf("without a store: %d %v", status, got)
	}
}

// TestDocuments: documents of text are read as text, others are refused.
func TestDocuments(t *testing.T) {
	f := start(t, options{template: hermesTemplate, plain: true})
	prompt := f.prompts("ok")
	ask := func(source dict) dict {
		return dict{"max_tokens": 5, "messages": []dict{{"role": "user", "content": []dict{
			{"type": "document", "title": "Facts", "context": "Old.", "source": source}, {"type": "text", "text": "Why?"}}}}}
	}
	for _, source := range []dict{
		{"type": "text", "media_type": "text/plain", "data": "Tea is hot."},
		{"type": "base64", "media_type": "text/plain", "data": "VGVhIGlzIGhvdC4="},
		{"type": "content", "content": []dict{{"type": "text", "text": "Tea is hot."}}},
		{"type": "content", "content": "Tea is hot."},
	} {
		f.post("/v1/messages", ask(source))
		if !strings.Contains(*prompt, "Facts\n\nOld.\n\nTea is hot.") || !strings.Contains(*prompt, "Why?") {
			t.Errorf("%v: the prompt is %q", source, *prompt)
		}
	}
	for _, source := range []dict{
		{"type": "base64", "media_type": "application/pdf", "data": "AA=="}, {"type": "file"}, nil,
		{"type": "base64", "media_type": "text/plain", "data": "?"},
		{"type": "content", "content": []dict{{"type": "image"}}},
	} {
		f.refuses("/v1/messages", ask(source), "messages[0].content[0].source")
	}
}
