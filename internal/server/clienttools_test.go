package server

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/tokenizer"
)

// prompts makes a server note the text of its prompts.
func (f *fixture) prompts(script string) *string {
	f.script(script)
	said, seen := f.s.tweak, new(string)
	f.s.tweak = func(req *engine.Request, m *model) {
		*seen = string(m.tok.Decode(req.Tokens, tokenizer.DecodeOptions{Special: true, Opens: true}))
		if script != "" {
			said(req, m)
		}
	}
	return seen
}

// TestResponsesClientTools: tools that the client runs are functions for the model and items of their own for the
// client, which sends them back with their results.
func TestResponsesClientTools(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	for name, c := range map[string]struct {
		tool         dict
		call, output string // JSON of the model's arguments, and of the result
		item, want   string // type of the item, and JSON of what it says
		field        string
		shown        string // of the result in the next prompt
	}{
		"custom": {dict{"type": "custom", "name": "sql", "description": "runs SQL"}, `{"input":"select 1\n"}`,
			`{"type":"custom_tool_call_output","output":"one row"}`, "custom_tool_call", "select 1\n", "input", "one row"},
		"local shell": {dict{"type": "local_shell"}, `{"command":["ls","-l"]}`,
			`{"type":"local_shell_call_output","output":"no files"}`, "local_shell_call",
			`{"command":["ls","-l"],"type":"exec"}`, "action", "no files"},
		"shell": {dict{"type": "shell"}, `{"commands":["ls"]}`,
			`{"type":"shell_call_output","output":[{"stdout":"no files","stderr":"","outcome":{"type":"exit","exit_code":0}}]}`,
			"shell_call", `{"commands":["ls"]}`, "action", "no files"},
		"patch": {dict{"type": "apply_patch"}, `{"type":"delete_file","path":"a.go"}`,
			`{"type":"apply_patch_call_output","status":"failed","output":"no such file"}`, "apply_patch_call",
			`{"path":"a.go","type":"delete_file"}`, "operation", "Error: no such file"},
		"computer": {dict{"type": "computer_use_preview", "display_width": 10, "display_height": 10, "environment": "linux"},
			`{"type":"click","x":1,"y":2}`,
			`{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"data:x"}}`, "computer_call",
			`{"type":"click","x":1,"y":2}`, "action", "left out"},
	} {
		fn := map[string]string{"custom": "sql", "local shell": "local_shell", "shell": "shell", "patch": "apply_patch",
			"computer": "computer"}[name]
		for _, stream := range []bool{false, true} {
			prompt := f.prompts("<tool_call>\n{\"name\": \"" + fn + "\", \"arguments\": " + c.call + "}\n</tool_call>")
			q := dict{"input": "go", "tools": []dict{c.tool}, "stream": stream}
			var item any
			if stream {
				evs := f.events("/v1/responses", q)
				item = at(evs[len(evs)-1].data, "response", "output", 0)
				custom := slices.Contains(names(evs), "response.custom_tool_call_input.done")
				if custom != (name == "custom") || slices.Contains(names(evs), "response.function_call_arguments.delta") {
					t.Errorf("%s: events %q", name, names(evs))
				}
			} else {
				item = at(f.post("/v1/responses", q), "output", 0)
			}
			if !strings.Contains(*prompt, `"name": "`+fn+`"`) {
				t.Errorf("%s: the model is not offered the tool: %q", name, *prompt)
			}
			if text(item, "type") != c.item || encode(t, at(item, c.field)) != c.want || text(item, "call_id") == "" ||
				text(item, "status") != "completed" {
				t.Errorf("%s, stream %v: item %v", name, stream, item)
			}
			var result dict
			if err := json.Unmarshal([]byte(c.output), &result); err != nil {
				t.Fatal(err)
			}
			result["call_id"] = text(item, "call_id")
			prompt = f.prompts("Done.")
			f.post("/v1/responses", dict{"input": []any{user("go")[0], item, result}, "tools": []dict{c.tool}})
			if !strings.Contains(*prompt, c.shown) || !strings.Contains(*prompt, `<tool_call>
{"name": "`+fn+`"`) {
				t.Errorf("%s: the next prompt is %q", name, *prompt)
			}
		}
	}
}

// TestCustomGrammar: the input of a custom tool fits its expression, whatever the model would have written.
func TestCustomGrammar(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	tool := dict{"type": "custom", "name": "roll", "format": dict{"type": "grammar", "syntax": "regex",
		"definition": "[1-6]d(4|20)"}}
	for seed := range 3 {
		m := f.post("/v1/responses", dict{"input": "go", "tools": []dict{tool}, "tool_choice": dict{"type": "custom",
			"name": "roll"}, "temperature": 1, "max_output_tokens": 200, "strobe": dict{"draft": "off"}, "seed": seed})
		if got := text(m, "output", 0, "input"); len(got) < 3 || !strings.Contains("123456", got[:1]) ||
			got[1:] != "d4" && got[1:] != "d20" {
			t.Errorf("input %q of %v", got, m["output"])
		}
	}
	m := f.post("/v1/responses", dict{"input": "go", "tools": []dict{{"type": "shell"}}, "max_output_tokens": 300,
		"tool_choice": dict{"type": "shell"}, "temperature": 1})
	if kind := text(m, "output", 0, "type"); kind != "shell_call" && text(m, "status") == "completed" {
		t.Errorf("a choice by type: %v", m["output"])
	}
}

// TestMessagesClientTools: Anthropic's tools that the client runs are offered under the names they have.
func TestMessagesClientTools(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	prompt := f.prompts("<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>")
	m := f.post("/v1/messages", dict{"max_tokens": 99, "messages": user("go"), "tools": []dict{
		{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
		{"type": "memory_20250818", "name": "memory"}, {"type": "web_search_20250305", "name": "web_search"},
		{"type": "computer_20251124", "name": "computer", "display_width_px": 10, "display_height_px": 10}}})
	for _, name := range []string{"bash", "str_replace_based_edit_tool", "memory", "computer"} {
		if !strings.Contains(*prompt, `"name": "`+name+`"`) {
			t.Errorf("the model is not offered %s: %q", name, *prompt)
		}
	}
	if strings.Contains(*prompt, "web_search") {
		t.Errorf("the model is offered what nobody runs: %q", *prompt)
	}
	if text(m, "content", 0, "name") != "bash" || text(m, "content", 0, "input", "command") != "ls" {
		t.Errorf("answer %v", m)
	}
}

// TestUnknownTools: what is not known is refused, not dropped.
func TestUnknownTools(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	for _, c := range []struct {
		path   string
		q      dict
		param  string
		status int
	}{
		{"/v1/responses", dict{"input": "x", "tools": []dict{{"type": "teleport"}}}, "tools[0].type", 400},
		{"/v1/responses", dict{"input": "x", "tools": []dict{{"type": "mcp", "server_url": "x"}}}, "tools[0].type", 400},
		{"/v1/responses", dict{"input": "x", "tools": []dict{{"type": "custom"}}}, "tools[0].name", 400},
		{"/v1/responses", dict{"input": "x", "tools": []dict{{"type": "custom", "name": "x",
			"format": dict{"type": "grammar", "syntax": "lark", "definition": "start: /a/"}}}}, "tools[0].format.syntax", 400},
		{"/v1/messages", dict{"messages": user("x"), "tools": []dict{{"type": "teleport_20990101", "name": "x"}}},
			"tools[0].type", 400},
		{"/v1/messages", dict{"messages": user("x"), "mcp_servers": []dict{{"type": "url"}}}, "mcp_servers", 400},
		{"/v1/messages", dict{"messages": user("x"), "container": "c"}, "container", 400},
	} {
		status, b := f.do("POST", c.path, encode(t, c.q))
		if e := decodeObject(t, b); status != c.status || text(e, "error", "param") != c.param {
			t.Errorf("%s %v: %d %s", c.path, c.q, status, b)
		}
	}
	f.script("x")
	for _, kind := range []string{"web_search", "web_search_preview_2025_03_11", "file_search", "code_interpreter"} {
		if status, b := f.do("POST", "/v1/responses", encode(t, dict{"input": "x",
			"tools": []dict{{"type": kind}}})); status != http.StatusOK {
			t.Errorf("%s: %d %s", kind, status, b)
		}
	}
}
