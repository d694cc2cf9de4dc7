package parse

import (
	"encoding/json"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"strobe/internal/chat"
	"strobe/internal/testkit"
)

// Stand-ins for templates: what For looks for in them.
const (
	tmplHermes = "<think> <tool_call>"
	tmplXML    = "<think> <tool_call> <function="
	tmplCoder  = "<tool_call> <function="
	tmplGemma  = "<|tool_call> <|channel>"
	tmplPlain  = "<think>"
)

var testTools = []json.RawMessage{
	json.RawMessage(`{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{
		"city":{"type":"string"},"days":{"type":"integer"},"ratio":{"type":"number"},"wet":{"type":"boolean"},
		"opts":{"type":"object"},"tags":{"type":"array"},"unit":{"enum":["c","f"]},"note":{"type":["string","null"]},
		"when":{"anyOf":[{"type":"integer"},{"type":"null"}]},"mode":{"$ref":"#/$defs/mode"}},
		"$defs":{"mode":{"type":"integer"}}}}}`),
	json.RawMessage(`{"name":"add","input_schema":{"type":"object",` +
		`"properties":{"a":{"type":"number"},"b":{"type":"number"}}}}`),
	json.RawMessage(`{"type":"function","name":"now"}`),
}

type testCase struct {
	name     string
	template string
	open     bool // thinking was opened by the prompt
	noTools  bool
	in       string
	want     Result
}

func call1(name, args string) []Call { return []Call{{name, args}} }

var cases = []testCase{
	{name: "plain", template: tmplHermes, in: "Hello <b>world</b>.\n", want: Result{Content: "Hello <b>world</b>.\n"}},
	{name: "leading space stays", template: tmplHermes, in: "  x", want: Result{Content: "  x"}},
	{name: "only space", template: tmplHermes, in: "\n\n", want: Result{Content: "\n\n"}},
	{name: "almost a marker", template: tmplHermes, in: "a <tool_cal", want: Result{Content: "a <tool_cal"}},
	{name: "marker start twice", template: tmplHermes, in: "<<tool_<tool_call",
		want: Result{Content: "<<tool_<tool_call"}},

	{name: "thinking", template: tmplHermes, in: "<think>\nhm,\n yes \n</think>\n\nFine. ",
		want: Result{Reasoning: "hm,\n yes", Content: "Fine. "}},
	{name: "thinking opened by the prompt", template: tmplHermes, open: true, in: "hm\n</think>\n\nFine.",
		want: Result{Reasoning: "hm", Content: "Fine."}},
	{name: "thinking not closed", template: tmplHermes, open: true, in: "hm </thin", want: Result{Reasoning: "hm </thin"}},
	{name: "thinking empty", template: tmplHermes, in: "<think>\n\n</think>\n\nFine.", want: Result{Content: "Fine."}},
	{name: "two blocks", template: tmplHermes, in: "<think>a</think>\n<think>b</think>\nFine.",
		want: Result{Reasoning: "ab", Content: "Fine."}},
	{name: "tag inside the answer", template: tmplHermes, in: "Use <think> and </think>.",
		want: Result{Content: "Use <think> and </think>."}},
	{name: "model that does not think", template: tmplCoder, in: "<think>x</think>",
		want: Result{Content: "<think>x</think>"}},
	{name: "tool call while thinking", template: tmplHermes, open: true,
		in:   `a <tool_call>{"name":"now"}</tool_call></think>b`,
		want: Result{Reasoning: "a", Content: "b", Calls: call1("now", "{}")}},
	{name: "family without tools", template: tmplPlain, in: `<think>x</think><tool_call>{"name":"now"}</tool_call>`,
		want: Result{Reasoning: "x", Content: `<tool_call>{"name":"now"}</tool_call>`}},
	{name: "request without tools", template: tmplHermes, noTools: true, in: `<tool_call>{"name":"now"}</tool_call>`,
		want: Result{Content: `<tool_call>{"name":"now"}</tool_call>`}},

	{name: "hermes", template: tmplHermes,
		in: "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln \\\"x\\\"\", \"days\": [1, {\"a\": " +
			"null}]}}\n</tool_call>",
		want: Result{Calls: call1("weather", `{"city": "Köln \"x\"", "days": [1, {"a": null}]}`)}},
	{name: "hermes with text", template: tmplHermes,
		in:   "<think>a</think>\n\nLet me see.\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n",
		want: Result{Reasoning: "a", Content: "Let me see.", Calls: call1("now", "{}")}},
	{name: "hermes twice", template: tmplHermes,
		in:   "<tool_call>{\"name\": \"now\"}</tool_call>\n<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>",
		want: Result{Calls: []Call{{"now", "{}"}, {"add", `{"a":1}`}}}},
	{name: "hermes then text", template: tmplHermes, in: "A\n<tool_call>{\"name\": \"now\"}</tool_call>\nB\n",
		want: Result{Content: "A\nB\n", Calls: call1("now", "{}")}},
	{name: "hermes arguments first", template: tmplHermes,
		in:   `<tool_call>{"arguments": {"a": 1}, "id": 7, "name": "add"}</tool_call>`,
		want: Result{Calls: call1("add", `{"a": 1}`)}},
	{name: "hermes arguments as text", template: tmplHermes,
		in:   `<tool_call>{"name": "add", "arguments": "{\"a\": 1}"}</tool_call>`,
		want: Result{Calls: call1("add", `{"a": 1}`)}},
	{name: "hermes null arguments", template: tmplHermes, in: `<tool_call>{"name": "now", "arguments": null}</tool_call>`,
		want: Result{Calls: call1("now", `{}`)}},
	{name: "hermes parameters", template: tmplHermes, in: `<tool_call>{"name": "add", "parameters": {"a": 1}}</tool_call>`,
		want: Result{Calls: call1("add", `{"a": 1}`)}},
	{name: "hermes raw line break in a string", template: tmplHermes,
		in:   "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"a\nb\tc\"}}</tool_call>",
		want: Result{Calls: call1("weather", `{"city": "a\nb\tc"}`)}},
	{name: "hermes without closing tag", template: tmplHermes, in: `<tool_call>{"name": "now"}`,
		want: Result{Calls: call1("now", "{}")}},
	{name: "hermes half closing tag", template: tmplHermes, in: `<tool_call>{"name": "now"}</tool_`,
		want: Result{Calls: call1("now", "{}")}},
	{name: "hermes next call instead of closing tag", template: tmplHermes,
		in:   `<tool_call>{"name": "now"}<tool_call>{"name": "now"}</tool_call>`,
		want: Result{Calls: []Call{{"now", "{}"}, {"now", "{}"}}}},
	{name: "hermes unfinished", template: tmplHermes,
		in:   "A \n<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Pa",
		want: Result{Content: "A \n<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Pa"}},
	{name: "hermes unknown tool", template: tmplHermes, in: `<tool_call>{"name": "rm", "arguments": {}}</tool_call>`,
		want: Result{Calls: call1("rm", `{}`)}},
	{name: "hermes impossible tool", template: tmplHermes, in: `<tool_call>{"name": "r m", "arguments": {}}</tool_call>`,
		want: Result{Content: `<tool_call>{"name": "r m", "arguments": {}}</tool_call>`}},
	{name: "hermes call inside reasoning", template: tmplHermes, open: true,
		in:   "I look.\n<tool_call>{\"name\": \"now\"}</tool_call>\n</think>\n\nDone.",
		want: Result{Reasoning: "I look.", Content: "Done.", Calls: call1("now", "{}")}},
	{name: "hermes unfinished call inside reasoning", template: tmplHermes, open: true,
		in:   "Use <tool_call>{\"name\": \"now\"} or so.\n</think>\n\nDone.",
		want: Result{Reasoning: "Use <tool_call>{\"name\": \"now\"} or so.", Content: "Done."}},
	{name: "hermes reasoning about calls", template: tmplHermes, open: true,
		in:   "A <tool_call> is needed.\n</think>\n\n<tool_call>{\"name\": \"now\"}</tool_call>",
		want: Result{Reasoning: "A <tool_call> is needed.", Calls: call1("now", "{}")}},
	{name: "hermes reasoning cut in a call", template: tmplHermes, open: true,
		in: "I look.\n<tool_call>{\"name\": \"now\"}", want: Result{Reasoning: "I look.\n<tool_call>{\"name\": \"now\"}"}},
	{name: "hermes broken JSON", template: tmplHermes,
		in:   `<tool_call>{"name": "now", "arguments": {a: 1}}</tool_call> <tool_call>{"name": "now"}</tool_call>`,
		want: Result{Content: `<tool_call>{"name": "now", "arguments": {a: 1}}</tool_call>`, Calls: call1("now", "{}")}},
	{name: "hermes marker twice", template: tmplHermes, in: `<tool_call><tool_call>{"name": "now"}</tool_call>`,
		want: Result{Content: `<tool_call>`, Calls: call1("now", "{}")}},
	{name: "hermes prose about the tag", template: tmplHermes, in: "The <tool_call> tag opens a call.",
		want: Result{Content: "The <tool_call> tag opens a call."}},
	{name: "hermes in a code block", template: tmplHermes,
		in:   "Like this:\n```\n<tool_call>{\"name\": \"now\"}</tool_call>\n```\n<tool_call>{\"name\": \"now\"}</tool_call>",
		want: Result{Content: "Like this:\n```\n<tool_call>{\"name\": \"now\"}</tool_call>\n```", Calls: call1("now", "{}")}},
	{name: "hermes empty object", template: tmplHermes, in: "<tool_call>{}</tool_call>",
		want: Result{Content: "<tool_call>{}</tool_call>"}},

	{name: "xml", template: tmplXML,
		in: "<tool_call>\n<function=weather>\n<parameter=city>" +
			"\nParis\n</parameter>\n<parameter=days>" +
			"\n3\n</parameter>\n<parameter=ratio>\n0.5\n</parameter>" +
			"\n<parameter=wet>\nTrue\n</parameter>\n<parameter=opts>\n{\"a\": [1, " +
			"2]}\n</parameter>\n<parameter=tags>\n[\"x\"]\n</parameter>\n</function>\n</tool_call>",
		want: Result{Calls: call1("weather",
			`{"city": "Paris", "days": 3, "ratio": 0.5, "wet": true, "opts": {"a": [1, 2]}, "tags": ["x"]}`)}},
	{name: "xml text and thinking", template: tmplXML, open: true,
		in:   "need it\n</think>\n\nLooking.\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
		want: Result{Reasoning: "need it", Content: "Looking.", Calls: call1("now", "{}")}},
	{name: "xml several lines and tags in a value", template: tmplXML,
		in: "<tool_call>\n<function=weather>\n<parameter=city>\n\nif a < b:\n\t\"q\" \\ </parameter> " +
			"no\n</b>\n\n</parameter>\n</function>\n</tool_call>",
		want: Result{Calls: call1("weather", `{"city": "\nif a < b:\n\t\"q\" \\ </parameter> no\n</b>\n"}`)}},
	{name: "xml compact", template: tmplXML,
		in:   "<tool_call><function=add><parameter=a>1</parameter><parameter=b>2e3</parameter></function></tool_call>",
		want: Result{Calls: call1("add", `{"a": 1, "b": 2e3}`)}},
	{name: "xml values that do not fit", template: tmplXML,
		in: "<tool_call><function=weather><parameter=days>" +
			"many</parameter><parameter=wet>maybe</parameter>" +
			"<parameter=opts>{a}</parameter><parameter=other>5</parameter><parameter=city>5</parameter></function></tool_call>",
		want: Result{Calls: call1("weather", `{"days": "many", "wet": "maybe", "opts": "{a}", "other": "5", "city": "5"}`)}},
	{name: "xml null, enum and references", template: tmplXML,
		in: "<tool_call><function=weather><parameter=note>" +
			"null</parameter><parameter=when>None</parameter>" +
			"<parameter=city>null</parameter><parameter=unit>" +
			"c</parameter><parameter=mode>4</parameter><parameter=days>3.0</parameter></function></tool_call>",
		want: Result{Calls: call1("weather",
			`{"note": null, "when": null, "city": "null", "unit": "c", "mode": 4, "days": 3}`)}},
	{name: "xml without opening tag", template: tmplCoder, in: "Sure.\n<function=now>\n</function>\n</tool_call>\nDone.",
		want: Result{Content: "Sure.\nDone.", Calls: call1("now", "{}")}},
	{name: "xml two functions in one block", template: tmplCoder,
		in: "<tool_call>\n<function=now>\n</function>" +
			"\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
		want: Result{Calls: []Call{{"now", "{}"}, {"add", `{"a": 1}`}}}},
	{name: "xml parameter not closed", template: tmplCoder,
		in:   "<tool_call>\n<function=add>\n<parameter=a>\n1\n<parameter=b>\n2\n</function>\n</tool_call>",
		want: Result{Calls: call1("add", `{"a": 1, "b": 2}`)}},
	{name: "xml unfinished", template: tmplCoder, in: "A\n<tool_call>\n<function=weather>\n<parameter=city>\nPar",
		want: Result{Content: "A\n<tool_call>\n<function=weather>\n<parameter=city>\nPar"}},
	{name: "xml ends after the function", template: tmplCoder, in: "<tool_call>\n<function=now>\n</function>",
		want: Result{Calls: call1("now", "{}")}},
	{name: "xml unknown tool", template: tmplCoder, in: "<tool_call>\n<function=rm>\n</function>\n</tool_call>",
		want: Result{Calls: call1("rm", `{}`)}},
	{name: "xml unknown tool without the marker", template: tmplCoder, in: "<function=rm>\n</function>",
		want: Result{Content: "<function=rm>\n</function>"}},
	{name: "xml call inside reasoning", template: tmplXML, open: true,
		in:   "I look.\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
		want: Result{Reasoning: "I look.", Calls: call1("now", "{}")}},
	{name: "xml JSON instead", template: tmplCoder, in: "<tool_call>{\"name\": \"now\"}</tool_call>",
		want: Result{Content: "<tool_call>{\"name\": \"now\"}</tool_call>"}},
	{name: "xml junk between parameters", template: tmplCoder, in: "<tool_call><function=add>x</function></tool_call>",
		want: Result{Content: "<tool_call><function=add>x</function></tool_call>"}},

	{name: "gemma", template: tmplGemma,
		in: `<|tool_call>call:weather{city:<|"|>Paris "x" ` +
			`<b><|"|>,days:3,wet:true,opts:{ratio:0.25,deep:{l:[]}},tags:[<|"|>x<|"|>,<|"|>y<|"|>]}<tool_call|>`,
		want: Result{Calls: call1("weather",
			`{"city": "Paris \"x\" <b>", "days": 3, "wet": true, "opts": {"ratio": 0.25, "deep": {"l": []}}, "tags": `+
				`["x", "y"]}`)}},
	{name: "gemma thinking and text", template: tmplGemma,
		in:   "<|channel>thought\nneed\n it\n<channel|>Looking. <|tool_call>call:now{}<tool_call|><|tool_response>",
		want: Result{Reasoning: "need\n it", Content: "Looking.", Calls: call1("now", "{}")}},
	{name: "gemma thinking opened by the prompt", template: tmplGemma, open: true, in: "hm<channel|>Yes.<turn|>",
		want: Result{Reasoning: "hm", Content: "Yes."}},
	{name: "gemma two calls", template: tmplGemma,
		in:   `<|tool_call>call:now{}<tool_call|><|tool_call>call:add{a:1,b:2.5}<tool_call|>`,
		want: Result{Calls: []Call{{"now", "{}"}, {"add", `{"a": 1, "b": 2.5}`}}}},
	{name: "gemma Python words and gaps", template: tmplGemma,
		in: `<|tool_call>call:weather{note:None, wet:True, opts:{a:None,b:False,c:word,d:}, <|"|>x<|"|>:1, "y": ` +
			`"z\n"}<tool_call|>`,
		want: Result{Calls: call1("weather",
			`{"note": null, "wet": true, "opts": {"a": null, "b": false, "c": "word", "d": null}, "x": 1, "y": "z\n"}`)}},
	{name: "gemma bare text for a string", template: tmplGemma,
		in:   `<|tool_call>call:weather{city:75001,days:5}<tool_call|>`,
		want: Result{Calls: call1("weather", `{"city": "75001", "days": 5}`)}},
	{name: "gemma line breaks in a string", template: tmplGemma,
		in:   "<|tool_call>call:weather{city:<|\"|>a\nb<|\\<|\"|>}<tool_call|>",
		want: Result{Calls: call1("weather", `{"city": "a\nb<|\\"}`)}},
	{name: "gemma unfinished", template: tmplGemma, in: `A <|tool_call>call:weather{city:<|"|>Pa`,
		want: Result{Content: `A <|tool_call>call:weather{city:<|"|>Pa`}},
	{name: "gemma without closing marker", template: tmplGemma, in: `<|tool_call>call:now{}`,
		want: Result{Calls: call1("now", "{}")}},
	{name: "gemma unknown tool", template: tmplGemma, in: `<|tool_call>call:rm{}<tool_call|>`,
		want: Result{Calls: call1("rm", `{}`)}},
	{name: "gemma other channel", template: tmplGemma, in: "<|channel>final\nx",
		want: Result{Content: "<|channel>final\nx"}},
}

func newParser(c testCase) *Parser {
	tools := testTools
	if c.noTools {
		tools = nil
	}
	return For(c.template, tools, c.open)
}

// merge joins neighbouring deltas, so that streams cut differently compare equal.
func merge(events []Event) []Event {
	var out []Event
	for _, e := range events {
		if n := len(out); n > 0 && out[n-1].Kind == e.Kind && out[n-1].Index == e.Index && e.Kind <= ToolArguments &&
			e.Kind != ToolBegin {
			out[n-1].Text += e.Text
			continue
		}
		out = append(out, e)
	}
	return out
}

func run(p *Parser, pieces ...string) []Event {
	var events []Event
	for _, s := range pieces {
		events = append(events, p.Push(s)...)
	}
	return merge(append(events, p.Close()...))
}

func collect(events []Event) Result {
	var c Collector
	c.Add(events...)
	return c.Result()
}

func TestCases(t *testing.T) {
	for _, c := range slices.Concat(cases, dialectCases) {
		t.Run(c.name, func(t *testing.T) {
			whole := run(newParser(c), c.in)
			if diff := cmp.Diff(c.want, collect(whole)); diff != "" {
				t.Errorf("%q\n%s", c.in, diff)
			}
			for i := range len(c.in) + 1 {
				if got := run(newParser(c), c.in[:i], c.in[i:]); !cmp.Equal(got, whole) {
					t.Fatalf("cut at byte %d:\n%s", i, cmp.Diff(whole, got))
				}
			}
			if got := run(newParser(c), strings.Split(c.in, "")...); !cmp.Equal(got, whole) {
				t.Errorf("byte by byte:\n%s", cmp.Diff(whole, got))
			}
			p := newParser(c)
			p.Whole = true
			atOnce := run(p, strings.Split(c.in, "")...)
			if diff := cmp.Diff(c.want, collect(atOnce)); diff != "" {
				t.Errorf("whole calls: %s", diff)
			}
			for _, e := range atOnce {
				if e.Kind == ToolAbort {
					t.Errorf("aborted although calls are held back")
				}
			}
			checkCalls(t, whole)
		})
	}
}

// checkCalls: arguments are JSON objects, calls are numbered and nested right.
func checkCalls(t *testing.T, events []Event) {
	t.Helper()
	open, n := false, 0
	for _, e := range events {
		switch e.Kind {
		case ToolBegin:
			if open || e.Index != n {
				t.Errorf("call %d begins while %d are complete, open %t", e.Index, n, open)
			}
			open = true
		case ToolArguments:
			if !open || e.Index != n {
				t.Errorf("arguments of call %d outside it", e.Index)
			}
		case ToolEnd:
			if !open || e.Index != n {
				t.Errorf("call %d ends without a beginning", e.Index)
			}
			open = false
			n++
		case ToolAbort:
			open = false
		}
	}
	if open {
		t.Error("a call neither ended nor was aborted")
	}
	for _, c := range collect(events).Calls {
		var obj map[string]any
		if err := json.Unmarshal([]byte(c.Arguments), &obj); err != nil {
			t.Errorf("arguments %q: %v", c.Arguments, err)
		}
	}
}

// TestStreaming: text arrives as soon as it cannot be a marker, arguments as
// they are written.
func TestStreaming(t *testing.T) {
	p := For(tmplXML, testTools, false)
	for _, step := range []struct {
		in   string
		want []Event
	}{
		{"Hi <b", []Event{{Kind: Content, Text: "Hi <b"}}},
		{" \n<tool", nil},
		{"_call>\n<function=weather", nil},
		{">", []Event{{Kind: ToolBegin, Name: "weather"}}},
		{"\n<parameter=city>\nNew ", []Event{{Kind: ToolArguments, Text: `{"city": "New `}}},
		{"York\n</para", []Event{{Kind: ToolArguments, Text: "York"}}},
		{"meter>\n<parameter=days>\n1", []Event{{Kind: ToolArguments, Text: `", "days": `}}},
		{"2\n</parameter>\n</function>", []Event{{Kind: ToolArguments, Text: `12}`}}},
		{"\n</tool_call>", []Event{{Kind: ToolEnd}}},
	} {
		if diff := cmp.Diff(step.want, p.Push(step.in)); diff != "" {
			t.Errorf("after %q:\n%s", step.in, diff)
		}
	}
	if rest := p.Close(); len(rest) > 0 {
		t.Errorf("left over: %v", rest)
	}
}

func TestThinkingOpen(t *testing.T) {
	for prompt, want := range map[string]bool{
		"<|im_start|>assistant\n<think>\n":               true,
		"<|im_start|>assistant\n<think>\n\n</think>\n\n": false,
		"<|im_start|>assistant\n":                        false,
		"what does <think> mean?<|im_end|>":              false,
		"<|turn>model\n<|channel>thought\n":              true,
		"<|turn>model\n<|channel>thought\n<channel|>":    false,
		"": false,
	} {
		if got := ThinkingOpen(prompt); got != want {
			t.Errorf("ThinkingOpen(%q) = %t", prompt, got)
		}
	}
}

// TestRoundTrip renders calls with real templates and parses them back.
func TestRoundTrip(t *testing.T) {
	dir := testkit.Shared(t, "templates")
	for file, fam := range map[string]string{
		"Qwen-Qwen3-0.6B.jinja": "hermes", "Qwen3-Coder.jinja": "qwenxml", "Qwen3.5-4B.jinja": "qwenxml",
		"google-gemma-4-31B-it.jinja": "gemma4", "google-gemma-4-31B-it-interleaved.jinja": "gemma4",
		"meta-llama-Llama-3.1-8B-Instruct.jinja": "llama3",
	} {
		t.Run(file, func(t *testing.T) {
			src, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if got := Family(string(src)); got != fam {
				t.Fatalf("family %q, want %q", got, fam)
			}
			if fam == "llama3" { // one call, and no text beside it: TestLlamaRoundTrip
				return
			}
			tmpl, err := chat.ForModel(string(src))
			if err != nil {
				t.Fatal(err)
			}
			args := []string{
				`{"city": "Paris \"<é>\"\nline", "days": 3, "ratio": 0.25, "wet": true, "opts": {"verbose": true, "l": [1, ` +
					`{"a": "b"}]}, "tags": ["x", "y"]}`,
				`{"a": 1, "b": -2.5}`,
			}
			msgs := []chat.Message{
				{Role: "user", Content: "Weather?"},
				{Role: "assistant", Content: "Let me look.", ToolCalls: []chat.ToolCall{
					{ID: "1", Name: "weather", Arguments: json.RawMessage(args[0])},
					{ID: "2", Name: "add", Arguments: json.RawMessage(args[1])}}},
			}
			// Templates read the OpenAI shape; the parser takes all.
			opt := chat.Options{Tools: testTools[:1]}
			before, err := tmpl.Render(msgs[:1], opt)
			if err != nil {
				t.Fatal(err)
			}
			all, err := tmpl.Render(msgs, opt)
			if err != nil {
				t.Fatal(err)
			}
			out := strings.TrimPrefix(all, before)
			if out == all {
				t.Fatalf("the turn does not extend the prompt:\n%s", all)
			}
			for _, s := range []string{"<|im_start|>assistant\n", "<|turn>model\n"} {
				out = strings.TrimPrefix(out, s)
			}
			out = strings.TrimSuffix(strings.TrimSpace(out), "<|im_end|>")
			got := collect(run(For(string(src), testTools, false), out))
			if len(got.Calls) != 2 || !strings.Contains("Let me look.", strings.TrimSpace(got.Content)) {
				t.Fatalf("from %q\ngot %+v", out, got)
			}
			for i, name := range []string{"weather", "add"} {
				var a, b any
				if err := json.Unmarshal([]byte(got.Calls[i].Arguments), &a); err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal([]byte(args[i]), &b); err != nil {
					t.Fatal(err)
				}
				if got.Calls[i].Name != name || !cmp.Equal(a, b) {
					t.Errorf("call %d is %+v\n%s", i, got.Calls[i], cmp.Diff(b, a))
				}
			}
		})
	}
}

var templates = []string{tmplHermes, tmplXML, tmplCoder, tmplGemma, tmplPlain, tmplLlama, tmplList, tmplArgs,
	tmplHarmony}

// pieces are what random outputs are made of.
var pieces = []string{"<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "<function=weather>",
	"<function=add>", "<parameter=city>",
	"<parameter=days>", "</parameter>", "</function>", "<|tool_call>", "<tool_call|>", "call:weather{", "call:now{}",
	"city:", `<|"|>`, "<|channel>thought", "<channel|>",
	`{"name": "now"}`, `{"name": "weather", "arguments": {`, `"city": "x"`, "}", "}}", "]", "[", ",", ":", "\n", " ",
	"<|channel|>", "analysis", "<|channel|>final<|message|>", "<|message|>", "<|end|>", "<|start|>assistant", "<|call|>",
	" to=functions.weather", " to=now", "<|constrain|>json",
	"```", "\n```\n", "text", "é", "3", "<", "\\", "\"", "{", "null"}

func checkAnyCut(t *testing.T, template, in string, open bool, cuts func(n int) int) {
	t.Helper()
	c := testCase{template: template, open: open}
	whole := run(newParser(c), in)
	checkCalls(t, whole)
	p := newParser(c)
	var parts []string
	for rest := in; rest != ""; {
		n := min(cuts(len(rest)), len(rest))
		parts = append(parts, rest[:n])
		rest = rest[n:]
	}
	if got := run(p, parts...); !cmp.Equal(got, whole) {
		t.Fatalf("%q cut into %q:\n%s", in, parts, cmp.Diff(whole, got))
	}
	p = newParser(c)
	p.Whole = true
	if got, want := collect(run(p, parts...)), collect(whole); !cmp.Equal(got, want) {
		t.Fatalf("%q with whole calls:\n%s", in, cmp.Diff(want, got))
	}
}

func TestRandomCuts(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 4000 {
		var b strings.Builder
		for range 1 + r.Intn(25) {
			b.WriteString(pieces[r.Intn(len(pieces))])
		}
		checkAnyCut(t, templates[r.Intn(len(templates))], b.String(), r.Intn(4) == 0, func(int) int { return 1 + r.Intn(6) })
		if t.Failed() {
			t.Fatalf("input %q", b.String())
		}
	}
}

// TestLongOutput: work stays proportional to the text.
func TestLongOutput(t *testing.T) {
	for _, c := range []testCase{
		{template: tmplXML, in: strings.Repeat("<tool_call>\n<function=weather><parameter=city>", 20000)},
		{template: tmplXML, in: "<tool_call><function=weather><parameter=city>" +
			strings.Repeat("\n</parameter>"+strings.Repeat(" ", 60), 10000)},
		{template: tmplHermes, in: strings.Repeat("<tool_call>", 100000)},
		{template: tmplHermes, in: `<tool_call>{"name": "now", "arguments": ` + strings.Repeat("[", 100000)},
		{template: tmplHermes, in: `<tool_call>{"name": "now", "arguments": {"a": ` + strings.Repeat("[", 100000)},
		{template: tmplGemma, in: "<|tool_call>call:weather{opts:" + strings.Repeat("{a:", 100000)},
		{template: tmplGemma, in: "<|tool_call>call:weather{city:<|\"|>" + strings.Repeat("<|\"", 100000)},
		{template: tmplHermes, open: true, in: strings.Repeat("</thin", 100000)},
		{template: tmplHermes, in: strings.Repeat(" ", 1000000)},
		{template: tmplHarmony, in: strings.Repeat("<|star", 100000)},
		{template: tmplHarmony, in: "<|start|>" + strings.Repeat("x", 100000)},
	} {
		p := newParser(c)
		var col Collector
		for s := c.in; s != ""; {
			n := min(7, len(s))
			col.Add(p.Push(s[:n])...)
			s = s[n:]
		}
		col.Add(p.Close()...)
		if r := col.Result(); r.Content+r.Reasoning != c.in {
			t.Errorf("%.60q...: %d of %d bytes came out", c.in, len(r.Content+r.Reasoning), len(c.in))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range slices.Concat(cases, dialectCases) {
		f.Add(c.in, uint8(3), c.open)
	}
	f.Fuzz(func(t *testing.T, in string, cut uint8, open bool) {
		for _, tmpl := range templates {
			checkAnyCut(t, tmpl, in, open, func(int) int { return 1 + int(cut)%17 })
		}
	})
}
