package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"strobe/internal/testkit"
)

// request is the JSON form of a rendering in test files.
type request struct {
	Messages            []Message
	Tools               []json.RawMessage
	AddGenerationPrompt bool  `json:"add_generation_prompt"`
	EnableThinking      *bool `json:"enable_thinking"`
	Extra               map[string]any
	Strict              bool
}

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			part := sections(string(data))
			if (part["want"] == "") == (part["error"] == "") {
				t.Fatal("needs either a want or an error section")
			}
			var req request
			if err := json.Unmarshal([]byte(part["request"]), &req); err != nil {
				t.Fatal(err)
			}
			var tmpl *Template
			if part["template"] == "" {
				tmpl, err = ForModel("")
			} else {
				tmpl, err = ParseTemplate(name, part["template"])
			}
			if err != nil {
				t.Fatal(err)
			}
			before := marshalAll(t, req.Messages)
			got, err := tmpl.Render(req.Messages, Options{
				Tools: req.Tools, AddGenerationPrompt: req.AddGenerationPrompt, EnableThinking: req.EnableThinking,
				Extra: req.Extra, Strict: req.Strict, BOS: "<s>", EOS: "</s>", Now: time.Date(2025, 5, 6, 7, 8, 9, 0, time.UTC),
			})
			if want, ok := part["error"]; ok {
				if err == nil || err.Error() != strings.TrimSuffix(want, "\n") {
					t.Fatalf("got %q, error %v\nwant error %s", got, err, want)
				}
			} else if err != nil {
				t.Fatal(err)
			} else if diff := cmp.Diff(strings.TrimSuffix(part["want"], "\n"), got); diff != "" {
				t.Error(diff)
			}
			if after := marshalAll(t, req.Messages); after != before {
				t.Errorf("rendering changed the messages to %s", after)
			}
		})
	}
}

// sections splits a txtar file at its "-- name --" lines.
func sections(data string) map[string]string {
	out := map[string]string{}
	name := "comment"
	for line := range strings.Lines(data) {
		if n, ok := strings.CutPrefix(line, "-- "); ok {
			if n, ok := strings.CutSuffix(n, " --\n"); ok {
				name = n
				continue
			}
		}
		out[name] += line
	}
	return out
}

func marshalAll(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestTransformersTexts meets the shared expected texts through the message
// types. Strict rendering follows transformers in everything, its errors too.
// Adapted rendering gives the same text wherever the messages suit the
// template; call_str and the content lists are where it knows better.
func TestTransformersTexts(t *testing.T) {
	dir := testkit.Shared(t, "jinja")
	templates := testkit.Shared(t, "templates")
	data, err := os.ReadFile(filepath.Join(dir, "scenarios.json"))
	if err != nil {
		t.Fatal(err)
	}
	var scenarios struct{ S map[string]json.RawMessage }
	if err := json.Unmarshal(data, &scenarios); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "expected", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no expected texts: %v", err)
	}
	for _, f := range files {
		base := strings.TrimSuffix(filepath.Base(f), ".json")
		model, scenario, _ := strings.Cut(base, "@")
		t.Run(base, func(t *testing.T) {
			src, err := os.ReadFile(filepath.Join(templates, model+".jinja"))
			if err != nil {
				t.Fatal(err)
			}
			tmpl, err := ForModel(string(src))
			if err != nil {
				t.Fatal(err)
			}
			var want struct{ OK, Err *string }
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(data, &want); err != nil {
				t.Fatal(err)
			}
			var req request
			if err := json.Unmarshal(scenarios.S[scenario], &req); err != nil {
				t.Fatal(err)
			}
			opt := Options{Tools: req.Tools, AddGenerationPrompt: req.AddGenerationPrompt, EnableThinking: req.EnableThinking,
				BOS: "<s>", EOS: "</s>", Extra: extras(t, scenarios.S[scenario]), Strict: true}
			got, err := tmpl.Render(req.Messages, opt)
			switch {
			case want.OK == nil && err == nil:
				t.Fatalf("rendered although Python raises %s:\n%s", *want.Err, got)
			case want.OK != nil && err != nil:
				t.Fatal(err)
			case want.OK != nil:
				if diff := cmp.Diff(*want.OK, got); diff != "" {
					t.Error(diff)
				}
			}
			opt.Strict = false
			if tmpl.jinja.HasName("date_string") { // the day that the template takes where it knows none
				opt.Now = time.Date(2024, 7, 26, 0, 0, 0, 0, time.UTC)
			}
			got, err = tmpl.Render(req.Messages, opt)
			if want.OK != nil && scenario != "call_str" && scenario != "parts" && scenario != "image" {
				if err != nil || got != *want.OK {
					t.Errorf("adapted: error %v\n%s", err, cmp.Diff(*want.OK, got))
				}
			}
			switch scenario {
			case "call_str", "call_none", "parts":
				if err != nil {
					t.Errorf("adapted: %v", err)
				}
				if strings.Contains(got, `{{"location"`) || strings.Contains(got, `\"location`) || strings.Contains(got, "'text'") {
					t.Errorf("adapted text shows raw values:\n%s", got)
				}
			}
		})
	}
}

// extras are the scenario's keys that are plain template variables.
func extras(t *testing.T, raw json.RawMessage) map[string]any {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"messages", "tools", "add_generation_prompt", "enable_thinking"} {
		delete(all, k)
	}
	return all
}

func TestMessageJSON(t *testing.T) {
	const in = `{"role":"assistant","content":"<a> & b",` +
		`"reasoning_content":"r","tool_calls":[{"id":"1",` +
		`"type":"function","function":{"name":"f",` +
		`"arguments":"{\"a\":\"<\"}"}}],"tool_call_id":"c","name":"n","x":[1,{"b":1,"a":2}]}`
	var m Message
	if err := json.Unmarshal([]byte(in), &m); err != nil {
		t.Fatal(err)
	}
	out, err := m.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != in {
		t.Errorf("got  %s\nwant %s", out, in)
	}
	if m.Reasoning != "r" || m.ToolCalls[0].ArgumentsText() != `{"a":"<"}` {
		t.Errorf("decoded %+v", m)
	}
	// An object for arguments is written as text, as OpenAI does.
	m = Message{Role: "assistant", ToolCalls: []ToolCall{{ID: "1", Name: "f", Arguments: json.RawMessage(`{"a": 1}`)}}}
	out, err = m.MarshalJSON()
	if want := `{"role":"assistant","content":null,"tool_calls":[{"id":"1",` +
		`"type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]}`; err != nil || string(out) != want {
		t.Errorf("got  %s, %v\nwant %s", out, err, want)
	}
	// The newer spelling of reasoning.
	m = Message{}
	if err := json.Unmarshal([]byte(`{"role":"assistant","content":[{"type":"text","text":"x"}],"reasoning":"why"}`),
		&m); err != nil || m.Reasoning != "why" || m.Text() != "x" {
		t.Errorf("decoded %+v, %v", m, err)
	}
}

func TestMessageErrors(t *testing.T) {
	for in, want := range map[string]string{
		`{"content":"x"}`:                             "role: missing",
		`{"role":7}`:                                  "role: must be a string",
		`[]`:                                          "message: must be an object",
		`{"role":"user","content":7}`:                 "content: must be a string or a list of parts",
		`{"role":"user","content":{"a":1}}`:           "content: must be a string or a list of parts",
		`{"role":"user","content":["x"]}`:             "content[0]: must be an object with a type",
		`{"role":"user","content":[{"text":"x"}]}`:    "content[0]: type is missing",
		`{"role":"user","content":[{"type":"text"}]}`: "content[0]: text is missing",
		`{"role":"user","tool_calls":{}}`:             "tool_calls: must be a list",
		`{"role":"user","tool_calls":[{}]}`:           "tool_calls[0]: function.name is missing",
		`{"role":"user","tool_calls":[7]}`:            "tool_calls[0]: must be an object with id, type and function",
		`{"role":"user","name":7}`:                    "name: must be a string",
		`{"role":"user","content":"a","content":"b"}`: "content: given twice",
		`{"role":"user","reasoning_content":[]}`:      "reasoning_content: must be a string",
		`{"role":"user","content":"x","tool_calls":[{"function":{"n":1}}]}`: "tool_calls[0]: function.name is missing",
	} {
		var m Message
		err := json.Unmarshal([]byte(in), &m)
		if err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", in, err, want)
		}
	}
}

func FuzzRender(f *testing.F) {
	f.Add("{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}", `[{"role":"user","content":"x"}]`,
		`{"type":"function"}`)
	f.Add("{{ messages[0]|tojson }}{{ tools|tojson }}",
		`[{"role":"a","content":[{"type":"text","text":"y"}],"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]`,
		`{}`)
	f.Fuzz(func(t *testing.T, src, msgs, tool string) {
		tmpl, err := ParseTemplate("fuzz", src)
		if err != nil {
			return
		}
		var list []Message
		if json.Unmarshal([]byte(msgs), &list) != nil {
			return
		}
		opt := Options{Tools: []json.RawMessage{json.RawMessage(tool)}}
		opt.Limits.Steps, opt.Limits.Bytes = 20000, 1<<20
		_, _ = tmpl.Render(list, opt) // must return, whatever the input
		for _, m := range list {
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatalf("decoded message does not encode: %v", err)
			}
			var back Message
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatalf("encoded message does not decode: %v\n%s", err, b)
			}
		}
	})
}
