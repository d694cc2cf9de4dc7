package server

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestChat(t *testing.T) {
	f := start(t, options{})
	q := dict{"model": "m", "messages": user("Hello"), "max_tokens": 24, "temperature": 0}
	whole := f.post("/v1/chat/completions", q)
	content := text(whole, "choices", 0, "message", "content")
	if content == "" || text(whole, "object") != "chat.completion" || text(whole, "model") != "qwen35" {
		t.Errorf("answer %v", whole)
	}
	if n := number(whole, "usage", "completion_tokens"); n < 1 || n > 24 {
		t.Errorf("%d completion tokens", n)
	}
	if text(whole, "choices", 0, "message", "role") != "assistant" || text(whole, "choices", 0, "finish_reason") == "" {
		t.Errorf("choice %v", at(whole, "choices", 0))
	}
	for _, k := range []string{"prompt_n", "predicted_n", "predicted_per_second", "prompt_ms"} {
		if _, ok := at(whole, "timings", k).(float64); !ok {
			t.Errorf("timings lack %s: %v", k, at(whole, "timings"))
		}
	}

	evs := f.events("/v1/chat/completions", with(q, dict{"stream": true, "stream_options": dict{"include_usage": true}}))
	got, _, finish, _ := joined(evs)
	if got != content || finish != text(whole, "choices", 0, "finish_reason") {
		t.Errorf("the stream says %q (%s), the whole %q", got, finish, content)
	}
	last := evs[len(evs)-1].data
	if number(last, "usage", "completion_tokens") != number(whole, "usage", "completion_tokens") || len(at(last, "choices").([]any)) != 0 {
		t.Errorf("last chunk %v", last)
	}
	if text(evs[0].data, "choices", 0, "delta", "role") != "assistant" {
		t.Errorf("first chunk %v", evs[0].data)
	}
	for _, e := range evs[:len(evs)-1] {
		if _, ok := e.data["usage"]; ok {
			t.Errorf("usage in a chunk that is not the last: %v", e.data)
		}
	}
}

func TestToolCalls(t *testing.T) {
	tools := []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}}`)}
	for _, c := range []struct{ name, template, said string }{
		{"json", hermesTemplate, "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln\", \"days\": 3}}\n</tool_call>"},
		{"xml", xmlTemplate, "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := start(t, options{template: c.template})
			f.script(c.said)
			q := dict{"messages": user("Weather?"), "tools": tools}
			check := func(where, content, finish, name, args string) {
				t.Helper()
				var v dict
				if err := json.Unmarshal([]byte(args), &v); err != nil || v["city"] != "Köln" || v["days"] != 3.0 {
					t.Errorf("%s: arguments %s", where, args)
				}
				if content != "I look." || finish != "tool_calls" || name != "get_weather" {
					t.Errorf("%s: content %q, finish %q, name %q", where, content, finish, name)
				}
			}
			m := f.post("/v1/chat/completions", q)
			call := at(m, "choices", 0, "message", "tool_calls", 0)
			check("whole", text(m, "choices", 0, "message", "content"), text(m, "choices", 0, "finish_reason"), text(call, "function", "name"), text(call, "function", "arguments"))
			if !strings.HasPrefix(text(call, "id"), "call_") || text(call, "type") != "function" {
				t.Errorf("call %v", call)
			}
			content, _, finish, calls := joined(f.events("/v1/chat/completions", with(q, dict{"stream": true})))
			if len(calls) != 1 {
				t.Fatalf("calls %v", calls)
			}
			check("stream", content, finish, text(calls[0], "name"), text(calls[0], "arguments"))

			if m := f.post("/v1/chat/completions", with(q, dict{"tool_choice": "none"})); at(m, "choices", 0, "message", "tool_calls") != nil {
				t.Errorf("a call although tool_choice is none: %v", m)
			}
		})
	}
}
