package server

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestFunctions: clients from before there were tools get their calls where they look for them.
func TestFunctions(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.script("I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_call>")
	function := json.RawMessage(`{"name":"get_weather","parameters":{"type":"object",` +
		`"properties":{"city":{"enum":["Bonn"]}},"required":["city"],"additionalProperties":false}}`)
	q := dict{"messages": user("Weather?"), "functions": []any{function}}
	m := f.post("/v1/chat/completions", q)
	msg := at(m, "choices", 0, "message")
	if text(msg, "function_call", "name") != "get_weather" ||
		text(msg, "function_call", "arguments") != `{"city": "Bonn"}` ||
		at(msg, "tool_calls") != nil || text(m, "choices", 0, "finish_reason") != "function_call" {
		t.Errorf("whole: %v", at(m, "choices", 0))
	}
	var name, args, finish string
	for _, e := range f.events("/v1/chat/completions", with(q, dict{"stream": true})) {
		call := at(e.data, "choices", 0, "delta", "function_call")
		name += text(call, "name")
		args += text(call, "arguments")
		finish += text(e.data, "choices", 0, "finish_reason")
	}
	if name != "get_weather" || args != `{"city": "Bonn"}` || finish != "function_call" {
		t.Errorf("stream: %s(%s), %s", name, args, finish)
	}
	f.s.tweak = nil
	m = f.post("/v1/chat/completions", with(q, dict{"function_call": dict{"name": "get_weather"}, "max_tokens": 200}))
	if text(m, "choices", 0, "message", "function_call", "arguments") == "" {
		t.Errorf("forced: %v", m)
	}
	p := text(f.post("/apply-template", with(q, dict{"messages": []dict{
		{"role": "user", "content": "Weather?"},
		{"role": "assistant", "content": nil, "function_call": dict{"name": "get_weather", "arguments": `{"city": "Bonn"}`}},
		{"role": "function", "name": "get_weather", "content": "rain"},
	}})), "prompt")
	if !strings.Contains(p, `{"name": "get_weather", "arguments": {"city": "Bonn"}}`) ||
		!strings.Contains(p, "<|im_start|>tool\nrain") {
		t.Errorf("prompt %s", p)
	}
}
