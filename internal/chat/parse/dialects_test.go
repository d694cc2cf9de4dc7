package parse

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/chat"
	"strobe/internal/testkit"
)

// Stand-ins for templates of Llama 3, Mistral and gpt-oss.
const (
	tmplLlama   = `<|start_header_id|> <|python_tag|> "parameters": `
	tmplList    = "[TOOL_CALLS]"
	tmplArgs    = "[TOOL_CALLS] [ARGS] [THINK]"
	tmplListNew = "[TOOL_CALLS] [THINK]"
	tmplHarmony = "<|channel|> <|message|>"
	tmplDeep    = "<think> <｜tool▁call▁begin｜>"
	tmplDeepOld = "<think> <｜tool▁call▁begin｜> ```json"
)

var dialectCases = []testCase{
	{name: "llama", template: tmplLlama, in: `{"name": "weather", "parameters": {"city": "Bonn", "days": 2}}`,
		want: Result{Calls: call1("weather", `{"city": "Bonn", "days": 2}`)}},
	{name: "llama after space", template: tmplLlama, in: "\n\n{ \"name\" : \"now\" , \"parameters\" : { } } \n",
		want: Result{Calls: call1("now", "{ }")}},
	{name: "llama with its tag", template: tmplLlama, in: `<|python_tag|>{"name": "now", "parameters": {}}`,
		want: Result{Calls: call1("now", "{}")}},
	{name: "llama with a type", template: tmplLlama, in: `{"type": "function", "name": "add", "parameters": {"a": 1}}`,
		want: Result{Calls: call1("add", `{"a": 1}`)}},
	{name: "llama twice", template: tmplLlama, in: `{"name": "now", "parameters": {}}; {"name": "add", "parameters": {"a": 1}}`,
		want: Result{Calls: []Call{{"now", "{}"}, {"add", `{"a": 1}`}}}},
	{name: "llama, JSON that is an answer", template: tmplLlama, in: `{"a": {"name": "now"}}`,
		want: Result{Content: `{"a": {"name": "now"}}`}},
	{name: "llama, JSON with a name", template: tmplLlama, in: `{"name": "Bob", "parameters": {}}`,
		want: Result{Content: `{"name": "Bob", "parameters": {}}`}},
	{name: "llama, a call in the middle", template: tmplLlama, in: `Say {"name": "now", "parameters": {}}; yes.`,
		want: Result{Content: `Say {"name": "now", "parameters": {}}; yes.`}},
	{name: "llama, unfinished", template: tmplLlama, in: `{"name": "now", "parameters": {"a`,
		want: Result{Content: `{"name": "now", "parameters": {"a`}},
	{name: "llama, text after a call", template: tmplLlama, in: "{\"name\": \"now\", \"parameters\": {}}\nDone; {ok}",
		want: Result{Calls: call1("now", "{}"), Content: "Done; {ok}"}},
	{name: "llama without tools", template: tmplLlama, noTools: true, in: `{"name": "now", "parameters": {}}`,
		want: Result{Content: `{"name": "now", "parameters": {}}`}},
	{name: "llama, braces", template: tmplLlama, in: "{{{ x", want: Result{Content: "{{{ x"}},

	{name: "deepseek", template: tmplDeep, in: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
		want: Result{Calls: call1("add", `{"a": 1}`)}},
	{name: "deepseek thinks and calls twice", template: tmplDeep,
		in:   "<think>hm</think>Well.\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>add<｜tool▁sep｜> {\"a\": 1}\n<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
		want: Result{Reasoning: "hm", Content: "Well.", Calls: []Call{{"now", "{}"}, {"add", `{"a": 1}`}}}},
	{name: "deepseek, fenced", template: tmplDeepOld,
		in:   "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
		want: Result{Calls: []Call{{"add", `{"a": 1}`}, {"now", "{}"}}}},
	{name: "deepseek, fenced without the word", template: tmplDeepOld, in: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```\n{}```<｜tool▁call▁end｜>",
		want: Result{Calls: call1("now", "{}")}},
	{name: "deepseek, not closed", template: tmplDeep, in: "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}", want: Result{Calls: call1("now", "{}")}},
	{name: "deepseek, text after a call", template: tmplDeep, in: "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{} So.",
		want: Result{Calls: call1("now", "{}"), Content: "So."}},
	{name: "deepseek, no name", template: tmplDeep, in: "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>",
		want: Result{Content: "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>"}},
	{name: "deepseek, fenced text", template: tmplDeepOld, in: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\nx {}",
		want: Result{Content: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\nx {}"}},
	{name: "deepseek, unfinished", template: tmplDeep, in: "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a", want: Result{Content: "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a"}},
	{name: "deepseek, endless name", template: tmplDeepOld, in: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + strings.Repeat("x", 3*maxName),
		want: Result{Content: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + strings.Repeat("x", 3*maxName)}},

	{name: "mistral list", template: tmplList, in: `[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]`,
		want: Result{Calls: call1("add", `{"a": 1}`)}},
	{name: "mistral list of two", template: tmplList,
		in:   `[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "add", "arguments": {"b": [2]}}]`,
		want: Result{Calls: []Call{{"now", "{}"}, {"add", `{"b": [2]}`}}}},
	{name: "mistral list with text", template: tmplList, in: `Well. [TOOL_CALLS][{"name": "now", "arguments": {}}] So.`,
		want: Result{Content: "Well. So.", Calls: call1("now", "{}")}},
	{name: "mistral list, empty", template: tmplList, in: "[TOOL_CALLS] [] x", want: Result{Content: "[TOOL_CALLS] [] x"}},
	{name: "mistral list, no list", template: tmplList, in: "[TOOL_CALLS] x [1]",
		want: Result{Content: "[TOOL_CALLS] x [1]"}},
	{name: "mistral list, cut", template: tmplList, in: " [TOOL_CALLS] [", want: Result{Content: " [TOOL_CALLS] ["}},
	{name: "mistral list, unfinished", template: tmplList, in: `[TOOL_CALLS] [{"name": "now", "arg`,
		want: Result{Content: `[TOOL_CALLS] [{"name": "now", "arg`}},
	{name: "mistral list, the second unfinished", template: tmplList,
		in:   `[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": 3}]`,
		want: Result{Content: `{"name": 3}]`, Calls: call1("now", "{}")}},
	{name: "mistral list, not closed", template: tmplList, in: `[TOOL_CALLS][{"name": "now", "arguments": {}}`,
		want: Result{Calls: call1("now", "{}")}},
	{name: "mistral thinking", template: tmplListNew, in: "[THINK]hm[/THINK]Fine. [1]",
		want: Result{Reasoning: "hm", Content: "Fine. [1]"}},

	{name: "mistral", template: tmplArgs, in: `[TOOL_CALLS]add[ARGS]{"a": 1}`, want: Result{Calls: call1("add", `{"a": 1}`)}},
	{name: "mistral twice", template: tmplArgs, in: `[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]add[CALL_ID]abc[ARGS] {"a": 1}`,
		want: Result{Calls: []Call{{"now", "{}"}, {"add", `{"a": 1}`}}}},
	{name: "mistral with text", template: tmplArgs, in: `[THINK]a[/THINK]Well. [TOOL_CALLS]now[ARGS]{}`,
		want: Result{Reasoning: "a", Content: "Well.", Calls: call1("now", "{}")}},
	{name: "mistral, no name", template: tmplArgs, in: `[TOOL_CALLS] [ARGS]{}`,
		want: Result{Content: `[TOOL_CALLS] [ARGS]{}`}},
	{name: "mistral, no object", template: tmplArgs, in: `[TOOL_CALLS]now[ARGS]3 x`,
		want: Result{Content: `[TOOL_CALLS]now[ARGS]3 x`}},
	{name: "mistral, unfinished", template: tmplArgs, in: `[TOOL_CALLS]now[ARGS]{"a`,
		want: Result{Content: `[TOOL_CALLS]now[ARGS]{"a`}},
	{name: "mistral, endless name", template: tmplArgs, in: "[TOOL_CALLS]" + strings.Repeat("x", 3*maxName),
		want: Result{Content: "[TOOL_CALLS]" + strings.Repeat("x", 3*maxName)}},

	{name: "harmony", template: tmplHarmony,
		in:   "<|channel|>analysis<|message|>Hm.\n<|end|><|start|>assistant<|channel|>final<|message|>\nFine. <b>",
		want: Result{Reasoning: "Hm.\n", Content: "\nFine. <b>"}},
	{name: "harmony, a call", template: tmplHarmony,
		in: "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions.add " +
			`<|constrain|>json<|message|>{"a": 1}`,
		want: Result{Reasoning: "Hm", Calls: call1("add", `{"a": 1}`)}},
	{name: "harmony, a call with its end", template: tmplHarmony,
		in:   ` to=functions.add<|channel|>commentary json<|message|> {"a": [1, "<|e"]} ` + "\n<|call|>",
		want: Result{Calls: call1("add", `{"a": [1, "<|e"]}`)}},
	{name: "harmony, a call while it thinks", template: tmplHarmony,
		in: "<|channel|>analysis to=functions.now code<|message|>{}", want: Result{Calls: call1("now", "{}")}},
	{name: "harmony, a name alone", template: tmplHarmony,
		in: "<|channel|>commentary to=now<|message|>{}", want: Result{Calls: call1("now", "{}")}},
	{name: "harmony, calls one after the other", template: tmplHarmony,
		in: "<|channel|>commentary to=functions.now<|message|>{}<|end|>" +
			"<|start|>assistant to=functions.unknown<|message|>{}<|call|>",
		want: Result{Calls: []Call{{"now", "{}"}, {"unknown", "{}"}}}},
	{name: "harmony, a message before the call", template: tmplHarmony,
		in: "<|channel|>commentary<|message|>First:<|end|><|start|>assistant<|channel|>commentary to=functions.now" +
			"<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>Done.<|return|>",
		want: Result{Content: "First:\n\nDone.", Calls: call1("now", "{}")}},
	{name: "harmony, no JSON", template: tmplHarmony, in: "<|channel|>commentary to=functions.now<|message|>print(1)",
		want: Result{Content: "print(1)"}},
	{name: "harmony, broken JSON", template: tmplHarmony, in: `<|channel|>commentary to=functions.now<|message|>{"a": x} y`,
		want: Result{Content: `{"a": x} y`}},
	{name: "harmony, unfinished", template: tmplHarmony, in: `<|channel|>commentary to=functions.now<|message|>{"a": `,
		want: Result{Content: `{"a": `}},
	{name: "harmony, text after the call", template: tmplHarmony,
		in:   "<|channel|>commentary to=functions.now<|message|>{} so<|end|>",
		want: Result{Content: "so", Calls: call1("now", "{}")}},
	{name: "harmony, an impossible name", template: tmplHarmony,
		in: "<|channel|>commentary to=functions.a&b<|message|>{}", want: Result{Content: "{}"}},
	{name: "harmony, a built-in tool", template: tmplHarmony,
		in: "<|channel|>commentary to=browser.search<|message|>{}", want: Result{Content: "{}"}},
	{name: "harmony without tools", template: tmplHarmony, noTools: true,
		in: "<|channel|>commentary to=functions.now<|message|>{}", want: Result{Content: "{}"}},
	{name: "harmony, two headers", template: tmplHarmony,
		in:   "<|channel|>commentary to=assistant<|channel|>analysis<|message|>a<|end|><|end|><|channel|>analysis<|message|>b",
		want: Result{Reasoning: "a\n\nb"}},
	{name: "harmony, no header", template: tmplHarmony, in: " too <|x|> late", want: Result{Content: " too <|x|> late"}},
	{name: "harmony, a message without an end", template: tmplHarmony,
		in: "a<|start|>assistant<|channel|>analysis<|message|>b", want: Result{Content: "a", Reasoning: "b"}},
	{name: "harmony, half a header", template: tmplHarmony, in: "<|channel|>anal", want: Result{}},
	{name: "harmony, less than a header", template: tmplHarmony, in: " to", want: Result{Content: " to"}},
	{name: "harmony, thinking opened by the prompt", template: tmplHarmony, open: true,
		in: "a<|end|><|start|>assistant<|channel|>final<|message|>b", want: Result{Reasoning: "a", Content: "b"}},
	{name: "harmony, endless header", template: tmplHarmony, in: "<|channel|>" + strings.Repeat("x", 3*maxHeader),
		want: Result{Content: "<|channel|>" + strings.Repeat("x", 3*maxHeader)}},
}

// TestHarmonyCalling: a call of gpt-oss is seen from its recipient on, wherever that stands, until it ends.
func TestHarmonyCalling(t *testing.T) {
	p := For(tmplHarmony, testTools, false)
	for _, step := range []struct {
		text, calling string
		thinking      bool
	}{{"<|channel|>analysis", "", false}, {"<|message|>x", "", true}, {"<|end|>", "", false},
		{"<|start|>assistant to=func", "", false}, {"tions.no", "functions.no", false},
		{"w<|channel|>commentary", "functions.now<|channel|>commentary", false},
		{"<|message|>{", "functions.now<|channel|>commentary<|message|>{", false},
		{`"a": "<|`, `functions.now<|channel|>commentary<|message|>{"a": "<|`, false},
		{`"}`, `functions.now<|channel|>commentary<|message|>{"a": "<|"}`, false}, {"<|end|>", "", false}} {
		p.Push(step.text)
		if text, n := p.Calling(); string(text) != step.calling || (n > 0) != (step.calling != "") {
			t.Errorf("after %q: calling %q (%d), want %q", step.text, text, n, step.calling)
		}
		if p.Thinking() != step.thinking {
			t.Errorf("after %q: thinking %v", step.text, p.Thinking())
		}
	}
	if p.Opener() != "<|channel|>commentary to=functions." || !p.Marked() {
		t.Errorf("opener %q, marked %v", p.Opener(), p.Marked())
	}
}

// TestUnsure: JSON at the beginning of an answer is taken for a call only when nothing else can be meant, so that an
// answer in JSON is not held to the grammar of calls.
func TestUnsure(t *testing.T) {
	p := For(tmplLlama, testTools, false)
	for _, step := range []struct {
		text    string
		calling string
	}{{`{`, ""}, {`"na`, ""}, {`me"`, ""}, {`: `, `{"name": `}, {`"`, `{"name": "`}, {`now", `, `{"name": "now", `}} {
		p.Push(step.text)
		if text, _ := p.Calling(); string(text) != step.calling {
			t.Errorf("after %q: calling %q, want %q", step.text, text, step.calling)
		}
	}
	if p.Opener() != `{"name": ` || p.Marked() {
		t.Errorf("opener %q, marked %v", p.Opener(), p.Marked())
	}
}

// TestLlamaRoundTrip renders a call with Llama's template and parses it back.
func TestLlamaRoundTrip(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(testkit.Shared(t, "templates"), "meta-llama-Llama-3.1-8B-Instruct.jinja"))
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := chat.ForModel(string(src))
	if err != nil {
		t.Fatal(err)
	}
	args := `{"city": "Paris \"<é>\"\nline", "days": 3, "opts": {"l": [1, {"a": "b"}]}}`
	msgs := []chat.Message{{Role: "user", Content: "Weather?"},
		{Role: "assistant", ToolCalls: []chat.ToolCall{{ID: "1", Name: "weather", Arguments: json.RawMessage(args)}}}}
	opt := chat.Options{Tools: testTools[:1], AddGenerationPrompt: true}
	before, err := tmpl.Render(msgs[:1], opt)
	if err != nil {
		t.Fatal(err)
	}
	opt.AddGenerationPrompt = false
	all, err := tmpl.Render(msgs, opt)
	if err != nil {
		t.Fatal(err)
	}
	out := strings.TrimSuffix(strings.TrimPrefix(all, before), "<|eot_id|>")
	got := collect(run(For(string(src), testTools, false), out))
	if len(got.Calls) != 1 || got.Calls[0].Name != "weather" || got.Content != "" {
		t.Fatalf("%q is %+v", out, got)
	}
	var want, have any
	if json.Unmarshal([]byte(args), &want) != nil || json.Unmarshal([]byte(got.Calls[0].Arguments), &have) != nil {
		t.Fatal(got.Calls)
	}
	a, _ := json.Marshal(want)
	b, _ := json.Marshal(have)
	if string(a) != string(b) {
		t.Errorf("arguments %s, want %s", b, a)
	}
}
