package server

import (
	"encoding/json"
	"testing"
	"time"

	"strobe/internal/chat"
	"strobe/internal/engine"
)

// TestChatBody: what an upstream is asked for a conversation. Fields the client left out are left to the upstream.
func TestChatBody(t *testing.T) {
	tool := json.RawMessage(`{"type":"function","function":{"name":"f"}}`)
	const base = `{"model":"m","messages":[{"content":"x","role":"user"}],"stream":true,"stream_options":{"include_usage":true}`
	temperature, on := float32(0.5), true
	for name, c := range map[string]struct {
		change func(*conversation, *engine.Request)
		want   string // after base
	}{
		"nothing": {func(*conversation, *engine.Request) {}, `}`},
		"sampling": {func(c *conversation, _ *engine.Request) { c.sampling.Temperature = &temperature },
			`,"temperature":0.5}`},
		"limits": {func(_ *conversation, req *engine.Request) { req.MaxTokens, req.Stops = 3, []string{"s"} },
			`,"stop":["s"],"max_tokens":3}`},
		"prompt only": {func(_ *conversation, req *engine.Request) { req.PromptOnly = true }, `,"max_tokens":0}`},
		"tools": {func(c *conversation, _ *engine.Request) { c.tools = []json.RawMessage{tool} },
			`,"tools":[` + string(tool) + `]}`},
		"one call": {func(c *conversation, _ *engine.Request) { c.tools, c.oneCall = []json.RawMessage{tool}, true },
			`,"tools":[` + string(tool) + `],"parallel_tool_calls":false}`},
		"one call of none": {func(c *conversation, _ *engine.Request) { c.oneCall, c.choice.required = true, true }, `}`},
		"required": {func(c *conversation, _ *engine.Request) { c.tools, c.choice.required = []json.RawMessage{tool}, true },
			`,"tools":[` + string(tool) + `],"tool_choice":"required"}`},
		"none": {func(c *conversation, _ *engine.Request) { c.tools, c.choice.none = []json.RawMessage{tool}, true },
			`,"tools":[` + string(tool) + `],"tool_choice":"none"}`},
		"object":   {func(c *conversation, _ *engine.Request) { c.format = &format{} }, `,"response_format":{"type":"json_object"}}`},
		"thinking": {func(c *conversation, _ *engine.Request) { c.thinking = &on }, `,"chat_template_kwargs":{"enable_thinking":true}}`},
	} {
		conv := newConversation("m", &samplingFields{}, false)
		conv.messages = []chat.Message{{Role: "user", Content: "x"}}
		var req engine.Request
		c.change(conv, &req)
		if got, err := chatBody("m", conv, &req); err != nil || string(got) != base+c.want {
			t.Errorf("%s: %s, %v\nwant %s", name, got, err, base+c.want)
		}
	}
}

// TestLoadedByAnyName: the only model answers questions about it under every name.
func TestLoadedByAnyName(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	for _, name := range []string{"", "m", "other"} {
		if m, err := f.s.loaded(name); err != nil || m.engine != f.e {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestModelOfLocks: the table of models is read and written under its lock.
func TestModelOfLocks(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.s.mu.Lock()
	done := make(chan struct{})
	go func() {
		_, _ = f.s.modelOf("m", f.e)
		close(done)
	}()
	select {
	case <-done:
		t.Error("it does not wait for the lock")
	case <-time.After(50 * time.Millisecond): // a call that does not wait is over by then, or goes unnoticed
	}
	f.s.mu.Unlock()
	<-done
}
