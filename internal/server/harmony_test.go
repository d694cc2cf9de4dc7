package server

import (
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

const (
	saysThink  = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
	saysAnswer = "<|channel|>final<|message|>"
	saysCall   = "<|channel|>commentary to=functions.set"
)

// TestHarmonyCalls: calls in gpt-oss's format are held to their schemas from where they begin, forced ones come after
// reasoning, and answers in a format do, too.
func TestHarmonyCalls(t *testing.T) {
	f := start(t, options{template: testkit.HarmonyTemplate})
	sch := compileSchema(t, setSchema)
	ask := func(more dict) (m any, calls []any) {
		t.Helper()
		m = f.post("/v1/chat/completions", with(dict{"messages": user("?"), "tools": setTool, "max_tokens": 300,
			"temperature": 1, "seed": 5}, more))
		calls, _ = at(m, "choices", 0, "message", "tool_calls").([]any)
		return m, calls
	}
	check := func(said, reasoning, content string, more dict) {
		t.Helper()
		f.insist(said)
		m, calls := ask(more)
		if len(calls) != 1 || text(calls[0], "function", "name") != "set" {
			t.Fatalf("%q: %v", said, at(m, "choices", 0))
		}
		validate(t, sch, text(calls[0], "function", "arguments"))
		got, _ := at(m, "choices", 0, "message", "reasoning_content").(string)
		said2, _ := at(m, "choices", 0, "message", "content").(string)
		if got != reasoning || said2 != content || text(m, "choices", 0, "finish_reason") != "tool_calls" {
			t.Errorf("%q: reasoning %q, content %q: %v", said, got, said2, at(m, "choices", 0))
		}
	}
	right := ` <|constrain|>json<|message|>{"unit": "C", "days": 3}`
	for _, args := range []string{right, `<|message|>{"days": 77, "x": 1`, `{}`, " code<|message|>x = 3"} {
		check(saysThink+saysCall+args, "Hm.", "", nil)
		check(saysThink+saysCall+args, "Hm.", "", dict{"tool_choice": "required"})
	}
	check(" to=functions.unset<|channel|>", "", "", nil)
	check("<|channel|>commentary<|message|>Look.<|end|><|start|>assistant to=functions.set<|channel|>analysis<|message|>[]",
		"", "Look.", nil)
	// A model that wants to answer has to call, and one that thinks too long has to stop.
	check(saysThink+saysAnswer+"No.", "Hm.", "", dict{"tool_choice": "required"})
	check("<|channel|>analysis<|message|>"+strings.Repeat("hm ", 200), "hm hm h\n\nThat is enough thinking; the answer follows.\n",
		"", dict{"tool_choice": "required", "reasoning_budget_tokens": 7})
	check(saysCall+right, "", "", dict{"tool_choice": "required", "reasoning_effort": "none"})

	// Answers in a format, with and without tools.
	schema := dict{"response_format": dict{"type": "json_schema", "json_schema": dict{"schema": rawJSON(setSchema)}}}
	for _, more := range []dict{schema, with(schema, dict{"tools": nil})} {
		f.insist(saysThink + saysAnswer + `Well: {"unit": "C"`)
		m, calls := ask(more)
		if len(calls) > 0 || text(m, "choices", 0, "message", "reasoning_content") != "Hm." {
			t.Errorf("format: %v", at(m, "choices", 0))
		}
		validate(t, sch, text(m, "choices", 0, "message", "content"))
	}
	check(saysThink+saysCall+right, "Hm.", "", schema)
	f.insist(`", "days": 5, "unit": "F"}`)
	m, _ := ask(with(schema, dict{"tools": nil, "messages": []dict{{"role": "user", "content": "?"},
		{"role": "assistant", "content": ""}}}))
	validate(t, sch, text(m, "choices", 0, "message", "content"))
}

// TestHarmonyAPIs: reasoning, answers and the effort that is asked for, in every API.
func TestHarmonyAPIs(t *testing.T) {
	f := start(t, options{template: testkit.HarmonyTemplate, plain: true,
		keys: []gguf.KV{{Key: "tokenizer.ggml.tokens", Value: edit.Golden(t, "qwen35").HarmonyTokens()}}})
	hello := user("?")
	for _, c := range []struct {
		path   string
		q      dict
		effort string
		off    bool
		answer func(m any) (reasoning, content string)
	}{
		{"/v1/chat/completions", dict{"messages": hello, "reasoning_effort": "high"}, "high", false, chatAnswerOf},
		{"/v1/chat/completions", dict{"messages": hello, "reasoning_effort": "minimal"}, "low", false, chatAnswerOf},
		{"/v1/chat/completions", dict{"messages": hello, "reasoning_effort": "none"}, "low", true, chatAnswerOf},
		{"/v1/chat/completions", dict{"messages": hello, "chat_template_kwargs": dict{"reasoning_effort": "low"}}, "low",
			false, chatAnswerOf},
		{"/v1/chat/completions", dict{"messages": hello}, "medium", false, chatAnswerOf},
		{"/v1/chat/completions", dict{"messages": hello, "enable_thinking": false}, "medium", true, chatAnswerOf},
		{"/v1/responses", dict{"input": "?", "reasoning": dict{"effort": "xhigh"}}, "high", false, responseOf},
		{"/v1/messages", dict{"messages": hello, "max_tokens": 100, "output_config": dict{"effort": "max"}}, "high",
			false, anthropicAnswerOf},
		{"/v1/messages", dict{"messages": hello, "max_tokens": 100, "thinking": dict{"type": "disabled"}}, "medium", true,
			anthropicAnswerOf},
		{"/api/chat", dict{"messages": hello, "stream": false, "think": "low"}, "low", false, func(m any) (string, string) {
			return text(m, "message", "thinking"), text(m, "message", "content")
		}},
	} {
		prompt := f.prompts(saysThink + saysAnswer + "Fine.")
		reasoning, content := c.answer(f.post(c.path, c.q))
		if reasoning != "Hm." || content != "Fine." {
			t.Errorf("%s %v: reasoning %q, content %q", c.path, c.q, reasoning, content)
		}
		if !strings.Contains(*prompt, "Reasoning: "+c.effort+"\n") {
			t.Errorf("%s %v: the prompt is %q", c.path, c.q, *prompt)
		}
		if c.off != strings.HasSuffix(*prompt, "<|channel|>analysis<|message|><|end|><|start|>assistant") {
			t.Errorf("%s %v: the prompt ends with %q", c.path, c.q, (*prompt)[len(*prompt)-80:])
		}
	}
	f.refuses("/v1/chat/completions", dict{"messages": hello, "reasoning_effort": "huge"}, "reasoning_effort")

	// An answer that was begun is continued as one.
	f.script("and more.")
	m := f.post("/v1/chat/completions", dict{"messages": []dict{{"role": "user", "content": "?"},
		{"role": "assistant", "content": "More "}}})
	if got := text(m, "choices", 0, "message", "content"); got != "and more." {
		t.Errorf("continued with %q", got)
	}
	// Left in the text, the markers tell reasoning from the answer.
	f.script(saysThink + saysAnswer + "Fine.")
	m = f.post("/v1/chat/completions", dict{"messages": hello, "reasoning_format": "none"})
	if got := text(m, "choices", 0, "message", "content"); got != saysThink+saysAnswer+"Fine." {
		t.Errorf("the whole text is %q", got)
	}
}

func chatAnswerOf(m any) (reasoning, content string) {
	return text(m, "choices", 0, "message", "reasoning_content"), text(m, "choices", 0, "message", "content")
}

func responseOf(m any) (reasoning, content string) {
	return text(m, "output", 0, "content", 0, "text"), text(m, "output", 1, "content", 0, "text")
}

func anthropicAnswerOf(m any) (reasoning, content string) {
	return text(m, "content", 0, "thinking"), text(m, "content", 1, "text")
}
