package server

import (
	"strings"
	"testing"
)

// Templates in the manner of Llama 3 and of Mistral, old and new.
const (
	llamaTemplate = `{% if tools %}Respond in the format {"name": function name, "parameters": {}}.
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>
{{ m.content }}{% for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{% endfor %}<|eot_id|>
{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>
{% endif %}`
	mistralListTemplate = `{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% for c in m.tool_calls or [] %}[TOOL_CALLS][{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}]{% endfor %}</s>{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}`
	mistralArgsTemplate = `{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}</s>{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}`
)

// TestLazyMistralCalls: Mistral's two notations are held to the schemas of tools like the others.
func TestLazyMistralCalls(t *testing.T) {
	lazyCalls(t, []callNotation{
		{"list", "qwen35", mistralListTemplate, `[TOOL_CALLS][{"name": "set", "arguments": {"unit": "C", "days": 3}}]`,
			[]string{`[TOOL_CALLS][{"name": "unset"`, `[TOOL_CALLS] [{"name": "set", "arguments": {"days": 77, "x": 1`,
				`[TOOL_CALLS][{"name": "set", "parameters": {`}},
		{"names", "qwen35", mistralArgsTemplate, `[TOOL_CALLS]set[ARGS]{"unit": "C", "days": 3}`,
			[]string{`[TOOL_CALLS]unset[ARGS]`, `[TOOL_CALLS]set[ARGS]{"days": 77, "x": 1`, `[TOOL_CALLS]set{`}},
	})
}

// Templates in the manner of DeepSeek, new and old.
const (
	deepSeekTemplate = `{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<｜{{ m.role }}｜>{{ m.content }}` +
		`{% for c in m.tool_calls or [] %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments | tojson }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}` +
		`{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}`
	deepSeekOldTemplate = `{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<｜{{ m.role }}｜>{{ m.content }}` +
		`{% for c in m.tool_calls or [] %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}` + "\n```json\n" +
		`{{ c.function.arguments | tojson }}` + "\n```" + `<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}`
)

// TestLazyDeepSeekCalls: DeepSeek's two notations are held to the schemas of tools like the others.
func TestLazyDeepSeekCalls(t *testing.T) {
	const begin, sep = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
	lazyCalls(t, []callNotation{
		{"new", "qwen35", deepSeekTemplate, begin + "set" + sep + `{"unit": "C", "days": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`,
			[]string{begin + "unset" + sep, begin + "set" + sep + `{"days": 77, "x": 1`, begin + "set{"}},
		{"fenced", "qwen35", deepSeekOldTemplate,
			begin + "function" + sep + "set\n```json\n" + `{"unit": "C", "days": 3}` + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
			[]string{begin + "function" + sep + "unset\n", begin + "function" + sep + "set\n```json\n{\"days\": 77, \"x\": 1",
				begin + "set" + sep + "{"}},
	})
}

// TestLlamaCalls: a call is the whole answer and is held to its schema from its name on.
func TestLlamaCalls(t *testing.T) {
	sch := compileSchema(t, setSchema)
	f := start(t, options{template: llamaTemplate})
	for said, choice := range map[string]string{
		`{"name": "set", "parameters": {"unit": "C", "days": 3}}`: "auto",
		`{"name": "set", "parameters": {"days": 77, "x": 1`:       "auto",
		`{"name": "unset"`:                       "auto",
		`{"name": "set", "arguments": {`:         "auto",
		`<|python_tag|>{"name": "set", "para`:    "auto",
		`{"nam`:                                  "required",
		`Hello, I would rather not.`:             "required",
		`{"name": "set", "parameters": {"days":`: "required",
	} {
		f.insist(said)
		for _, stream := range []bool{false, true} {
			q := dict{"messages": user("?"), "tools": setTool, "max_tokens": 300, "tool_choice": choice, "stream": stream,
				"temperature": 1, "seed": 5, "parallel_tool_calls": false}
			var name, args, content, finish string
			if stream {
				var calls []dict
				content, _, finish, calls = joined(f.events("/v1/chat/completions", q))
				if len(calls) == 1 {
					name, args = text(calls[0], "name"), text(calls[0], "arguments")
				}
			} else {
				c := at(f.post("/v1/chat/completions", q), "choices", 0)
				name, args = text(c, "message", "tool_calls", 0, "function", "name"), text(c, "message", "tool_calls", 0,
					"function",
					"arguments")
				content, finish = text(c, "message", "content"), text(c, "finish_reason")
			}
			if name != "set" || content != "" || finish != "tool_calls" {
				t.Errorf("%s, stream %v: call %q, content %q, finish %q", said, stream, name, content, finish)
				continue
			}
			validate(t, sch, args)
		}
	}
}

// TestJSONAnswerBesideTools: where calls have no marker, an answer in JSON stays an answer.
func TestJSONAnswerBesideTools(t *testing.T) {
	f := start(t, options{template: llamaTemplate})
	answer := `{"title": "A", "n": [1, 2]}`
	f.insist(answer)
	q := dict{"messages": user("?"), "tools": setTool, "max_tokens": 100}
	m := f.post("/v1/chat/completions", q)
	if got := text(m, "choices", 0, "message", "content"); got != answer || text(m, "choices", 0,
		"finish_reason") != "stop" {
		t.Errorf("answer %q of %v", got, m)
	}
	// With a format the answer is that, for nothing tells a call from it.
	f.insist(`{"name": "set", "parameters": {"unit": "C", "days": 3}}`)
	m = f.post("/v1/chat/completions", with(q, dict{"response_format": dict{"type": "json_schema",
		"json_schema": dict{"schema": dict{"type": "object", "properties": dict{"title": dict{"enum": []string{"A"}}},
			"required": []string{"title"}, "additionalProperties": false}}}}))
	if got := text(m, "choices", 0, "message", "content"); strings.Join(strings.Fields(got), "") != `{"title":"A"}` {
		t.Errorf("with a format: %q of %v", got, m)
	}
}

// TestToolsAnnounced: a model is said to call tools only if its calls are understood.
func TestToolsAnnounced(t *testing.T) {
	for template, want := range map[string]bool{llamaTemplate: true, mistralListTemplate: true, hermesTemplate: true,
		deepSeekTemplate: true, deepSeekOldTemplate: true,
		`{{ tools }}{{ messages[0].content }}`: false} {
		f := start(t, options{template: template, plain: true})
		caps := encode(t, f.post("/api/show", dict{"model": "qwen35"})["capabilities"])
		_, b := f.do("GET", "/props", "")
		props := at(decodeObject(t, b), "chat_template_caps", "supports_tools")
		if strings.Contains(caps, "tools") != want || props != want {
			t.Errorf("%.40q: capabilities %s, supports_tools %v, want %v", template, caps, props, want)
		}
	}
}
