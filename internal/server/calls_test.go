package server

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/tokenizer"
)

// gemmaTemplate is one in the manner of Gemma 4.
const gemmaTemplate = `{%- if tools %}<|turn>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call with <|tool_call>call:name{key:value}<tool_call|><turn|>
{% endif %}{% for m in messages %}<|turn>{{ m.role }}
{{ m.content }}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
{% endif %}`

// insisting is a model that says a text, but for what is forbidden: there it says what it likes, and goes on
// with the text where that is possible again.
type insisting struct {
	sample.Constraint
	ids []int32
	eog int32
}

func (s *insisting) Mask(logits []float32) {
	if s.Constraint != nil {
		s.Constraint.Mask(logits)
	}
	want := s.eog
	if len(s.ids) > 0 {
		want = s.ids[0]
	}
	if logits[want] != negInf {
		only(logits, want)
	}
}

func (s *insisting) Accept(id int32) {
	if s.Constraint != nil {
		s.Constraint.Accept(id)
	}
	if len(s.ids) > 0 && id == s.ids[0] {
		s.ids = s.ids[1:]
	}
}

// insist makes the model want to say a text.
func (f *fixture) insist(text string) {
	f.s.tweak = func(req *engine.Request, v *model) {
		req.Constraint = &insisting{
			req.Constraint,
			v.tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true}),
			v.tok.EOG()[0],
		}
	}
}

// callNotation is a template's way of writing calls, with a right one and beginnings of wrong ones.
type callNotation struct {
	name, model, template, right string
	wrong                        []string
}

var notations = []callNotation{
	{
		"json",
		"qwen35",
		hermesTemplate,
		"<tool_call>\n{\"name\": \"set\", \"arguments\": {\"unit\": \"C\", \"days\": 3}}\n</tool_call>",
		[]string{
			"<tool_call>",
			"<tool_call>\n{\"name\": \"unset\"",
			"<tool_call>\n{\"name\": \"set\", \"arguments\": {\"days\": 77, \"x\": 1",
			"<tool_call>\n{\"name\": \"set\", \"arguments\": {\"days\": 7}}\n</tool_call>",
		},
	},
	{
		"tags",
		"qwen35",
		xmlTemplate,
		"<tool_call>\n<function=set>\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>",
		[]string{
			"<tool_call>\n<function=unset>\n",
			"<tool_call>\n<function=set>\n<parameter=days>\n77\n</parameter>\n</function>\n</tool_call>",
			"<function=set>\n</function>",
		},
	},
	{"gemma", "gemma4", gemmaTemplate, `<|tool_call>call:set{days:3,unit:<|"|>C<|"|>}<tool_call|>`,
		[]string{
			"<|tool_call>unset",
			"<|tool_call>call:unset{",
			"<|tool_call>call:set{days:77,x:1",
			`<|tool_call>call:set{unit:<|"|>K<|"|>}<tool_call|>`,
			"<|tool_call>call:set{unit:C}",
		}},
}

const setSchema = `{"type":"object","properties":{"unit":{"type":"string","enum":["C","F"]},"days":{"type":"integer","minimum":1,"maximum":9},"on":{"type":"boolean"}},"required":["unit","days"]}`

var setTool = []json.RawMessage{
	json.RawMessage(`{"type":"function","function":{"name":"set","parameters":` + setSchema + `}}`),
}

// TestLazyCalls: text is free until a call begins; then nothing but a call of a tool that fits its schema can come,
// whatever the model insists on, and afterwards text is free again. Forced calls are the same from their beginning.
func TestLazyCalls(t *testing.T) { lazyCalls(t, notations) }

func lazyCalls(t *testing.T, notations []callNotation) {
	sch := compileSchema(t, setSchema)
	for _, n := range notations {
		t.Run(n.name, func(t *testing.T) {
			f := start(t, options{model: n.model, template: n.template})
			ask := func(more dict) (content string, calls []any) {
				t.Helper()
				q := with(
					dict{
						"messages":            user("?"),
						"tools":               setTool,
						"max_tokens":          400,
						"temperature":         1,
						"seed":                5,
						"parallel_tool_calls": false,
					},
					more,
				)
				m := f.post("/v1/chat/completions", q)
				calls, _ = at(m, "choices", 0, "message", "tool_calls").([]any)
				return text(m, "choices", 0, "message", "content"), calls
			}
			check := func(said string, calls []any) {
				t.Helper()
				if len(calls) != 1 || text(calls[0], "function", "name") != "set" {
					t.Fatalf("%q: calls %v", said, calls)
				}
				validate(t, sch, text(calls[0], "function", "arguments"))
			}
			f.insist("I look. " + n.right)
			content, calls := ask(nil)
			check(n.right, calls)
			if args := text(calls[0], "function", "arguments"); content != "I look." || !strings.Contains(args, "3") {
				t.Errorf("a right call became %q with %s", content, args)
			}
			for _, said := range n.wrong {
				f.insist("I look. " + said)
				content, calls := ask(nil)
				check(said, calls)
				if content != "I look." {
					t.Errorf("%q: content %q", said, content)
				}
				f.insist(said)
				_, calls = ask(dict{"tool_choice": "required"})
				check(said, calls)
			}
			// Without tools, and in an example, there are no calls.
			for _, said := range []string{"```\n" + n.wrong[0] + "\n```\nLike this.", "No call < at all."} {
				f.insist(said)
				if content, calls := ask(nil); content != said || len(calls) > 0 {
					t.Errorf("%q became %q with calls %v", said, content, calls)
				}
			}
			f.insist("Two. " + n.right + n.wrong[0])
			if _, calls := ask(dict{"parallel_tool_calls": true}); len(calls) < 2 {
				t.Errorf("of two calls there are %v", calls)
			} else {
				check("first", calls[:1])
				check("second", calls[1:2])
			}
		})
	}
}

// TestCallInReasoning: reasoning may talk of calls as it likes; a complete one ends it, and nothing more is owed.
func TestCallInReasoning(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	for _, choice := range []string{"auto", "required"} {
		f.insist("Should I <tool_call> now? Yes.\n" + notations[0].right)
		m := f.post(
			"/v1/chat/completions",
			dict{"messages": user("?"), "tools": setTool, "enable_thinking": true, "max_tokens": 300, "tool_choice": choice},
		)
		calls, _ := at(m, "choices", 0, "message", "tool_calls").([]any)
		if len(calls) != 1 || text(m, "choices", 0, "message", "reasoning_content") != "Should I <tool_call> now? Yes." {
			t.Errorf("%s: %v", choice, at(m, "choices", 0))
		}
	}
}

// TestConstrainedDrafts: constrained answers are the same with and without drafts, byte for byte, and drafting goes on.
func TestConstrainedDrafts(t *testing.T) {
	list := `{"type":"array","items":{"type":"object","properties":{"name":{"enum":["red","green"]},"on":{"type":"boolean"}},"required":["name","on"]},"minItems":4,"maxItems":4}`
	tool := json.RawMessage(
		`{"type":"function","function":{"name":"paint","parameters":{"type":"object","properties":{"list":` + list + `,"note":{"type":"string","maxLength":40}},"required":["list","note"]}}}`,
	)
	for _, n := range notations {
		f := start(t, options{model: n.model, template: n.template})
		f.s.tweak = func(req *engine.Request, _ *model) { req.Spec.Fixed = true } // drafting need not pay here
		base := dict{"messages": user(strings.Repeat("red green blue ", 10)), "max_tokens": 500}
		for what, q := range map[string]dict{
			"schema":  {"response_format": dict{"type": "json_schema", "json_schema": dict{"schema": rawJSON(list)}}},
			"forced":  {"tools": []json.RawMessage{tool}, "tool_choice": "required", "parallel_tool_calls": false},
			"grammar": {"grammar": `root ::= ("red, " | "green, " | "blue, "){20} "end"`},
		} {
			temp := 1.0
			if n.name == "tags" {
				temp = 0
			}
			var want string
			for _, draft := range []dict{{"draft": "off"}, {"draft": "ngram"}, {"draft": "dflash", "tree": 16}} {
				m := f.post("/v1/chat/completions", with(with(base, q), dict{"strobe": draft, "temperature": temp, "seed": 3}))
				got := encode(t, at(m, "choices", 0, "message"))
				got = regexp.MustCompile(`"call_\w+"`).ReplaceAllString(got, `""`) // ids differ
				if want == "" {
					want = got
				}
				if got != want {
					t.Errorf("%s, %s, %v at %v: %s, without drafts %s", n.name, what, draft, temp, got, want)
				}
				mean, _ := at(m, "timings", "accept_len_mean").(float64)
				accepted := 0
				if at(m, "timings", "draft_n_accepted") != nil {
					accepted = number(m, "timings", "draft_n_accepted")
				}
				t.Logf(
					"%s, %s, temperature %v, %v: %d tokens, %d drafted ones accepted, %.2f tokens per pass",
					n.name,
					what,
					temp,
					draft,
					number(m, "usage", "completion_tokens"),
					accepted,
					mean,
				)
				if draft["draft"] == "ngram" && accepted == 0 {
					t.Errorf("%s, %s: nothing that was drafted was accepted", n.name, what)
				}
			}
		}
	}
}

// TestOneCallAtTheLimit: an answer that ended with its only call was not cut off, even if the engine ran on to its
// limit before it heard of that.
func TestOneCallAtTheLimit(t *testing.T) {
	for _, enough := range []bool{true, false} {
		r := &reply{oneCall: true, enough: enough, calls: []*toolCall{{complete: true}}}
		r.take(engine.Event{Result: &engine.Result{Reason: engine.ReasonLength}})
		if want := map[bool]string{true: "tool_calls", false: "length"}[enough]; r.finish() != want {
			t.Errorf("enough %v: it ended with %q", enough, r.finish())
		}
	}
}
