package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/testkit"
)

// TestMoreWrongRequests: the mistakes that TestWrongRequests does not make, in every protocol.
func TestMoreWrongRequests(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	const msgs = `"messages":[{"role":"user","content":"x"}]`
	const tools = `"tools":[{"function":{"name":"f"}}]`
	block := func(b string) string { return `{"messages":[{"role":"user","content":[` + b + `]}]}` }
	for _, c := range []struct{ path, body, param, says string }{
		{"/v1/messages", `{` + msgs + `,"output_format":{"type":"xml"}}`, "response_format.type", "none of"},
		{"/v1/messages", `{` + msgs + `,"output_config":{"format":{"type":"xml"}}}`, "response_format.type", "none of"},
		{"/v1/messages", `{` + msgs + `,"thinking":{"type":"much"}}`, "thinking.type", "none of"},
		{"/v1/messages", `{` + msgs + `,"system":[{"type":"image"}]}`, "system[0]", "type text"},
		{"/v1/messages", `{` + msgs + `,"system":[{"type":"text"}]}`, "system[0]", "type text"},
		{"/v1/messages", block(`5`), "messages[0].content[0]", "an object"},
		{"/v1/messages", block(`{"type":"tool_use","input":{}}`), "messages[0].content[0].name", "missing"},
		{"/v1/messages", block(`{"type":"tool_result","content":5}`), "messages[0].content[0].content",
			"a string or a list"},
		{"/v1/messages", block(`{"type":"tool_result","content":[{"type":"text"}]}`),
			"messages[0].content[0].content[0].text", "missing"},
		{"/v1/messages", `{"messages":[{"role":"user"}]}`, "messages[0].content", "missing"},
		{"/v1/messages", `{` + msgs + `,"tools":[5]}`, "tools[0]", "an object"},
		{"/v1/messages", `{` + msgs + `,"tools":[{"input_schema":{}}]}`, "tools[0].name", "missing"},
		{"/v1/messages", `{` + msgs + `,"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool"}}`,
			"tool_choice.name", "missing"},
		{"/v1/messages", `{` + msgs + `,"tool_choice":{"type":"maybe"}}`, "tool_choice.type", "none of"},
		{"/v1/messages", `{` + msgs + `,"stop_sequences":["` + strings.Repeat("x", maxStopLen+1) + `"]}`, "stop_sequences",
			"longer"},
		{"/v1/messages/count_tokens", `{` + msgs + `,"system":5}`, "system", "a string or a list"},
		{"/v1/chat/completions", `{` + msgs + `,"reasoning_format":"x"}`, "reasoning_format", "none of"},
		{"/v1/chat/completions", `{` + msgs + `,"tools":[5]}`, "tools[0]", "an object"},
		{"/v1/chat/completions", `{` + msgs + `,` + tools + `,"tool_choice":5}`, "tool_choice", "a string or an object"},
		{"/v1/chat/completions", `{` + msgs + `,` + tools + `,"tool_choice":{"type":"function"}}`,
			"tool_choice.function.name", "missing"},
		{"/v1/chat/completions", `{` + msgs + `,` + tools + `,"tool_choice":{"type":5}}`, "tool_choice.type", "a string"},
		{"/v1/chat/completions", `{` + msgs + `,` + tools +
			`,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[]}}`, "tool_choice.tools", "empty"},
		{"/v1/chat/completions", `{` + msgs + `,"logit_bias":[5]}`, "logit_bias", "a list"},
		{"/v1/chat/completions", `{"messages":[{"role":"assistant","function_call":5}]}`, "messages[0].function_call",
			"an object"},
		{"/apply-template", `{}`, "messages", "at least one"},
		{"/v1/completions", `{"prompt":"x","grammar":"root ::= \"x\"","json_schema":{}}`, "grammar", "with a schema"},
		{"/v1/completions", `{"prompt":[{"prompt_string":5}]}`, "prompt[0].prompt_string", "a string"},
		{"/completion", `{"prompt":"x","min_tokens":5}`, "min_tokens", "not supported"},
		{"/completion", `{"prompt":"x","grammar":"root ::= \"x\"","json_schema":{}}`, "grammar", "with a schema"},
		{"/embedding", `{"content":5}`, "input", "a string"},
		{"/detokenize", `{"tokens":["a"]}`, "tokens", "an integer"},
		{"/slots/x?action=erase", `{}`, "id_slot", "a number"},
		{"/slots/0?action=save", `{}`, "filename", "missing"},
		{"/slots/0?action=save", `{"filename":"` + strings.Repeat("x", 257) + `"}`, "filename", "256"},
		{"/slots/0?action=copy", `{"filename":"x"}`, "action", "none of"},
		{"/slots/99?action=erase", `{}`, "id_slot", ""},
		{"/v1/responses", `{"input":5}`, "input", "a string or a list"},
		{"/v1/responses", `{"input":[5]}`, "input[0]", "an object"},
		{"/v1/responses", `{"input":[]}`, "input", "empty"},
		{"/v1/responses", `{"input":[{"role":5}]}`, "input[0].role", "a string"},
		{"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text"}]}]}`, "input[0].content[0].text",
			"missing"},
		{"/v1/responses", `{"input":[{"type":"function_call","arguments":"{}"}]}`, "input[0].name", "missing"},
		{"/v1/responses", `{"input":[{"type":"function_call_output","output":5}]}`, "input[0].output",
			"a string or a list"},
		{"/v1/responses", `{"input":[{"type":"reasoning","content":5}]}`, "input[0].content", "a string or a list"},
		{"/v1/responses", `{"input":"x","tools":[5]}`, "tools[0]", "an object"},
		{"/v1/responses", `{"input":"x","tools":[{"type":"function","name":"f","parameters":5}]}`, "tools[0].parameters",
			"an object"},
		{"/v1/responses", `{"input":"x","tool_choice":"maybe"}`, "tool_choice", "none of"},
		{"/v1/responses", `{"input":"x","text":{"format":{"type":"xml"}}}`, "response_format.type", "none of"},
		{"/v1/responses", `{"input":"x","top_logprobs":99}`, "top_logprobs", "between"},
		{"/v1/responses", `{"input":"x","guided_json":{"a":1}}`, "guided_json", "use response_format"},
		{"/v1/responses/input_tokens", `{}`, "input", "missing"},
		{"/api/chat", `{"messages":[{"content":"x"}]}`, "messages[0].role", ""},
		{"/api/chat", `{"messages":[{"role":"user","content":"x","images":["a"]}]}`, "", "text only"},
		{"/api/chat", `{"messages":[{"role":"assistant","tool_calls":[{}]}]}`, "", "tool_calls[0].function.name"},
		{"/api/chat", `{` + msgs + `,"tools":[5]}`, "", "tools[0]"},
		{"/api/chat", `{` + msgs + `,"format":5}`, "", "a schema"},
		{"/api/chat", `{` + msgs + `,"format":"xml"}`, "", "a schema"},
		{"/api/chat", `{` + msgs + `,"think":5}`, "", "true, false or a word"},
		{"/api/chat", `{` + msgs + `,"options":{"min_tokens":5}}`, "", "min_tokens"},
		{"/api/chat", `{` + msgs + `,"keep_alive":true}`, "", "keep_alive"},
		{"/api/chat", `{` + msgs + `,"logprobs":true,"top_logprobs":21}`, "", "top_logprobs"},
		{"/api/generate", `{"prompt":"x","template":"y"}`, "", "template: is not supported"},
		{"/api/generate", `{"prompt":"x","images":["y"]}`, "", "text only"},
		{"/api/embed", `{"input":"x","keep_alive":"y"}`, "", "keep_alive"},
		{"/api/embed", `{"input":[]}`, "", "empty"},
		{"/api/embed", `{"input":["x",""]}`, "", "input[1]: is empty"},
	} {
		status, b := f.do("POST", c.path, c.body)
		name := fmt.Sprintf("%s %.120s", c.path, c.body)
		if status != http.StatusBadRequest {
			t.Errorf("%s: status %d: %s", name, status, b)
			continue
		}
		if strings.HasPrefix(c.path, "/api/") { // Ollama's errors are a line
			if msg := text(decodeObject(t, b), "error"); !strings.Contains(msg, c.param) || !strings.Contains(msg, c.says) {
				t.Errorf("%s: %s; want %q and %q", name, msg, c.param, c.says)
			}
			continue
		}
		e := at(decodeObject(t, b), "error")
		if text(e, "param") != c.param || !strings.Contains(text(e, "message"), c.says) {
			t.Errorf("%s: %v; want parameter %q and %q", name, e, c.param, c.says)
		}
	}
	id := text(f.post("/v1/responses", dict{"input": "x", "max_output_tokens": 1}), "id")
	for query, want := range map[string]int{"?stream=true": 400, "": 200, "/input_items?order=up": 400,
		"/input_items?after=x": 400, "/input_items?order=desc": 200} {
		if status, b := f.do("GET", "/v1/responses/"+id+query, ""); status != want {
			t.Errorf("GET a response%s: %d %s", query, status, b)
		}
	}
}

// TestReadMessages: what the protocols make of their messages.
func TestReadMessages(t *testing.T) {
	var q messagesRequest
	if err := decodeJSON([]byte(`{"system":[{"type":"text","text":"a"},{"type":"text","text":"x-anthropic-billing-header: 1"},
		{"type":"text","text":"b"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"i",
		"content":[{"type":"text","text":"one"},{"type":"image"}],"is_error":true},{"type":"redacted_thinking"},
		{"type":"tool_result","tool_use_id":"k","content":"Error: two","is_error":true},{"type":"text","text":"three"}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"tool_use","id":"c","name":"f",
		"input":{"a":1}}]}],"thinking":{"type":"enabled","budget_tokens":7},
		"tools":[{"name":"f","description":"d","input_schema":{}},{"type":"web_search_20250305","name":"w"}],
		"tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":true}}`), "", &q); err != nil {
		t.Fatal(err)
	}
	c, err := q.conversation()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range c.messages {
		got = append(got, fmt.Sprintf("%s %q %s %s %d", m.Role, m.Text(), m.ToolCallID, m.Reasoning, len(m.ToolCalls)))
	}
	want := []string{`system "a\nb"   0`, fmt.Sprintf(`tool %q i  0`, "Error: one\n"+dialog.Placeholder("image")),
		`tool "Error: two" k  0`, `user "three"   0`, `assistant ""  hm 1`}
	if !slices.Equal(got, want) {
		t.Errorf("messages %q, want %q", got, want)
	}
	if len(c.tools) != 1 || c.choice.name != "f" || !c.oneCall || c.thinking == nil || !*c.thinking || c.budget != 7 {
		t.Errorf("%d tools, choice %+v, thinking %v of %d", len(c.tools), c.choice, c.thinking, c.budget)
	}
	for kind, want := range map[string]toolChoice{"auto": {}, "": {}, "none": {none: true}, "any": {required: true}} {
		q.ToolChoice.Type = kind
		if c, err := q.conversation(); err != nil || fmt.Sprint(c.choice) != fmt.Sprint(want) {
			t.Errorf("tool_choice %q: %+v, %v", kind, c.choice, err)
		}
	}
	for args, want := range map[string]string{`{"a":1}`: `{"a":1}`, `[1]`: `{}`, `{"a"`: `{}`, ``: `{}`} {
		if got := string(objectOr(args)); got != want {
			t.Errorf("arguments %q: %s", args, got)
		}
	}
	items, err := inputItems(rawJSON(`[{ },{"id":"mine","role":"user"},{"type":"function_call","name":"f","arguments":"{"}]`))
	if err != nil || !json.Valid(items[0]) || !strings.HasPrefix(string(items[0]), `{"id":"item_`) ||
		string(items[1]) != `{"id":"mine","role":"user"}` {
		t.Fatalf("items %s, %v", items, err)
	}
	placed := []placedItem{{"input[2]", items[2]}, {"x", rawJSON(`{"role":"assistant","content":"a"}`)},
		{"x", rawJSON(`{"type":"function_call_output","call_id":"i","output":[{"type":"refusal"},{"type":"input_image"}]}`)},
		{"x", rawJSON(`{"role":"assistant","content":[{"type":"output_text","text":"b"},{"type":"refusal"}]}`)},
		{"x", rawJSON(`{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}]}`)}}
	msgs, err := inputMessages(placed)
	got = nil
	for _, m := range msgs {
		got = append(got, fmt.Sprintf("%s %q %s %s %d", m.Role, m.Text(), m.ToolCallID, m.Reasoning, len(m.ToolCalls)))
	}
	want = []string{`assistant "a"   1`, fmt.Sprintf(`tool %q i  0`, dialog.Placeholder("input_image")),
		`assistant "b"  s 0`}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("messages %q, want %q; %v", got, want, err)
	}
	if id, reference := itemID(rawJSON(`[`)); id != "" || reference {
		t.Error("what is no item has an id")
	}
	var kwargs thinkingFields
	kwargs.Kwargs, kwargs.ReasoningEffort = map[string]any{"a": 1}, "low"
	c = newConversation("", nil, false)
	if err := kwargs.apply(c); err != nil || c.kwargs["a"] != 1 || c.kwargs["reasoning_effort"] != "low" ||
		len(kwargs.Kwargs) != 1 {
		t.Errorf("variables %v of %v, %v", c.kwargs, kwargs.Kwargs, err)
	}
	for think, want := range map[string]string{`true`: "true", `false`: "false", `"high"`: "true high", `null`: ""} {
		o := ollamaRequest{Think: rawJSON(think), Messages: []ollamaMessage{{Role: "user"}}}
		c, err := o.conversation(true)
		got := ""
		if err == nil && c.thinking != nil {
			got = strings.TrimSuffix(fmt.Sprint(*c.thinking, " ", c.kwargs["reasoning_effort"]), " <nil>")
		}
		if err != nil || got != want {
			t.Errorf("think %s: %q, %v", think, got, err)
		}
	}
	o := ollamaRequest{System: "s", Prompt: "p", Format: rawJSON(`""`)}
	o.Options.NumPredict = new(int)
	if c, err := o.conversation(false); err != nil || len(c.messages) != 2 || c.messages[0].Role != "system" ||
		c.format != nil || c.sampling.NPredict == nil {
		t.Errorf("generate with a system: %+v, %v", c, err)
	}
	o = ollamaRequest{Messages: []ollamaMessage{{Role: "assistant", ToolCalls: make([]ollamaCall, 1)},
		{Role: "tool", Content: "c", Images: []string{"i"}}}}
	o.Messages[0].ToolCalls[0].Function.Name = "f"
	if c, err := o.conversation(true); err != nil || string(c.messages[0].ToolCalls[0].Arguments) != "{}" ||
		len(c.messages[1].Content.([]chat.Part)) != 2 {
		t.Errorf("a call without arguments: %+v, %v", c, err)
	}
}

// TestUpstreamBody: all that a conversation says of messages, tools and formats reaches an upstream.
func TestUpstreamBody(t *testing.T) {
	c := newConversation("m", &samplingFields{}, false)
	c.messages = []chat.Message{{Role: "assistant", Content: "x", Reasoning: "r",
		ToolCalls: []chat.ToolCall{{ID: "i", Name: "f", Arguments: rawJSON(`{"a":1}`)}}},
		{Role: "tool", Content: "y", ToolCallID: "i"}}
	c.tools, c.choice.name = []json.RawMessage{rawJSON(`{"function":{"name":"f"}}`)}, "f"
	c.format = &format{schema: rawJSON(`{"type":"object"}`)}
	b, err := chatBody("m", c, &engine.Request{})
	m := decodeObject(t, b)
	call := at(m, "messages", 0, "tool_calls", 0)
	if err != nil || text(m, "messages", 0, "reasoning_content") != "r" || text(m, "messages", 1, "tool_call_id") != "i" ||
		text(call, "function", "arguments") != `{"a":1}` || text(call, "id") != "i" || text(call, "type") != "function" ||
		text(m, "tool_choice", "function", "name") != "f" || text(m, "response_format", "type") != "json_schema" ||
		text(m, "response_format", "json_schema", "schema", "type") != "object" ||
		at(m, "messages", 1, "tool_calls") != nil || at(m, "messages", 1, "reasoning_content") != nil {
		t.Errorf("%s, %v", b, err)
	}
	c.format = &format{gbnf: "root ::= x"}
	remote := &remoteModel{name: "m"}
	for param, change := range map[string]func(c *conversation, r *engine.Request){
		"grammar":  func(*conversation, *engine.Request) {},
		"logprobs": func(_ *conversation, r *engine.Request) { r.WantLogProb = true },
	} {
		var req engine.Request
		change(c, &req)
		if _, err := remote.answers(c, req); paramOf(err) != param {
			t.Errorf("%s: %v", param, err)
		}
	}
	if _, err := remote.request(&samplingFields{LogitBias: rawJSON(`{}`)}); paramOf(err) != "logit_bias" {
		t.Errorf("logit_bias: %v", err)
	}
	url, _ := oddUpstream(t, func(io.Writer) {})
	f := front(t, Config{}, url)
	for path, body := range map[string]dict{
		"/api/generate": {"model": "far", "prompt": "x", "raw": true}, "/api/chat": {"model": "far", "messages": user("x"),
			"options": dict{"logit_bias": dict{"5": 1}}},
	} {
		if status, b := f.do("POST", path, encode(t, body)); status != http.StatusBadRequest ||
			!strings.Contains(string(b), "for a model of another server") {
			t.Errorf("%s: %d %s", path, status, b)
		}
	}
}

// TestRefusedByAnUpstream: what an upstream says against a request is what the client gets.
func TestRefusedByAnUpstream(t *testing.T) {
	for body, want := range map[string]string{`{"error":{"message":"no such thing"}}`: "no such thing",
		"plain words": "plain words"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/chat/completions" { // it is asked for its models and its health
				io.WriteString(w, `{"data":[{"id":"far"}]}`)
				return
			}
			w.WriteHeader(http.StatusTeapot)
			io.WriteString(w, body)
		}))
		t.Cleanup(srv.Close)
		f := front(t, Config{}, srv.URL)
		status, b := f.do("POST", "/api/chat", encode(t, dict{"model": "far", "messages": user("x")}))
		if status != http.StatusTeapot || !strings.Contains(string(b), want) {
			t.Errorf("%s: %d %s", body, status, b)
		}
	}
}

// TestLoadedModels: endpoints that only ask about models load none, and say which are not there.
func TestLoadedModels(t *testing.T) {
	p, err := engine.NewPool(engine.PoolConfig{
		Files: []string{testkit.Golden(t, "qwen3/model.gguf"), goldenWith(t, "qwen35", hermesTemplate)},
		Load:  engine.Options{Drafter: "none", Threads: 1}, Engine: engine.Config{Context: 256},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	seed := uint64(5)
	on := true
	first, second := p.Models()[0].Name, p.Models()[1].Name
	f := &fixture{t: t}
	f.serve(New(Config{Models: Pool(p, ""), Seed: &seed, Version: "1", Chat: ChatDefaults{System: "all"},
		PerModel: map[string]ModelDefaults{first: {MaxTokens: 3, Chat: &ChatDefaults{System: "one", Thinking: &on,
			Kwargs: map[string]any{"a": 1, "b": 1}}}}, ChangeProps: true}))
	if _, b := f.do("GET", "/props", ""); number(decodeObject(t, b), "models") != 2 {
		t.Errorf("without a loaded model: %s", b)
	}
	if _, b := f.do("GET", "/slots", ""); string(b) != "[]\n" {
		t.Errorf("slots without a loaded model: %s", b)
	}
	for path, body := range map[string]string{"/props": `{"temperature":1}`, "/slots/0?action=erase": `{}`} {
		if status, b := f.do("POST", path, body); status != http.StatusBadRequest || textParam(b) != "model" {
			t.Errorf("%s without a loaded model: %d %s", path, status, b)
		}
	}
	for _, path := range []string{"/tokenize", "/detokenize", "/v1/embeddings", "/embedding", "/models/load", "/rerank",
		"/v1/chat/completions", "/apply-template", "/v1/messages/count_tokens", "/v1/responses/input_tokens"} {
		body := `{"model":"nosuch","content":"x","tokens":[1],"input":"x","messages":[{"role":"user","content":"x"}]}`
		if status, b := f.do("POST", path, body); status != http.StatusNotFound || !strings.Contains(string(b), "nosuch") {
			t.Errorf("%s of a model that is not there: %d %s", path, status, b)
		}
	}
	for _, path := range []string{"/api/show", "/api/embed"} {
		status, b := f.do("POST", path, `{"name":"nosuch","model":"nosuch","input":"x"}`)
		if status != http.StatusNotFound {
			t.Errorf("%s of a model that is not there: %d %s", path, status, b)
		}
	}
	if status, b := f.do("POST", "/api/show", `{"name":"`+first+`:latest"}`); status != http.StatusOK {
		t.Errorf("by its old name: %d %s", status, b)
	}
	if m, err := f.s.loaded(first); err != nil || m.name != first || m.defaults.System != "one" {
		t.Errorf("%s: %+v, %v", first, m, err)
	} else {
		if req := f.s.defaults(m); req.MaxTokens != 3 || req.Params.Seed != 5 {
			t.Errorf("defaults %+v", req)
		}
		c := newConversation(first, &samplingFields{}, false)
		c.messages, c.kwargs = []chat.Message{{Role: "user", Content: "x"}}, map[string]any{"b": 2}
		if _, err := m.render(c); err != nil || len(m.defaults.Kwargs) != 2 || m.defaults.Kwargs["b"] != 1 ||
			len(c.kwargs) != 1 {
			t.Errorf("variables %v of the model, %v of the request, %v", m.defaults.Kwargs, c.kwargs, err)
		}
	}
	if _, err := f.s.loaded(second); paramOf(err) != "model" {
		t.Errorf("a model that is not loaded: %v", err)
	}
	if m, err := f.s.loaded(engine.Any); err != nil || m.name != first {
		t.Errorf("any model: %v", err)
	}
	if got := f.s.fingerprint(); got != "strobe-1" {
		t.Errorf("fingerprint %s", got)
	}
	// A pool with one name answers to all of them, also when the model is to go.
	only := Pool(p, first)
	if name, _, release, err := only.Acquire(t.Context(), "other"); err != nil || name != first || !only.alone() {
		t.Errorf("the only model under another name: %s, %v", name, err)
	} else {
		release(nil)
	}
	if err := only.Unload(t.Context(), "other"); err != nil || len(p.Resident()) != 0 {
		t.Errorf("unloading the only model: %v, %d are loaded", err, len(p.Resident()))
	}
}

// TestNoTemplate: a model whose template is broken is given back by the request that found out.
func TestNoTemplate(t *testing.T) {
	p, err := engine.NewPool(engine.PoolConfig{Files: []string{goldenWith(t, "qwen35", "{% broken")},
		Load: engine.Options{Drafter: "none", Threads: 1}, Engine: engine.Config{Context: 256}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	f := &fixture{t: t}
	f.serve(New(Config{Models: Pool(p, "")}))
	status, b := f.do("POST", "/v1/chat/completions", encode(t, dict{"model": p.Models()[0].Name, "messages": user("x")}))
	if status < 400 {
		t.Errorf("%d %s", status, b)
	}
	if n := p.Models()[0].Users; n != 0 {
		t.Errorf("%d requests still use it", n)
	}
}

// TestSmallAnswers: what answers say in rare cases.
func TestSmallAnswers(t *testing.T) {
	for res, want := range map[*engine.Result]error{
		{Reason: engine.ReasonCancelled}:                       errClient,
		{Reason: engine.ReasonCancelled, Err: errShutdown}:     errShutdown,
		{Reason: engine.ReasonError, Err: engine.ErrQueueFull}: engine.ErrQueueFull,
		{Reason: engine.ReasonLength}:                          nil,
	} {
		if got := (&reply{result: res}).err(); got != want {
			t.Errorf("%v: %v, want %v", res.Reason, got, want)
		}
		if got := (&reply{result: res, enough: true}).err(); got != nil {
			t.Errorf("%v after the answer was complete: %v", res.Reason, got)
		}
	}
	if got := (&reply{}).err(); got != nil {
		t.Errorf("an answer in progress: %v", got)
	}
	x := []float32{float32(math.NaN()), 3, float32(math.Inf(1)), 4}
	if normalise(x); fmt.Sprint(x) != "[0 0.6 0 0.8]" {
		t.Errorf("normalised %v", x)
	}
	if normalise(x[:1]); x[0] != 0 {
		t.Errorf("a vector of zeros becomes %v", x[:1])
	}
	u := usage([]*reply{{result: &engine.Result{Prompt: 5, Cached: 2, Generated: 3, Seen: 9}, thinkTokens: 1}, {},
		{result: &engine.Result{Prompt: 5, Cached: 2, Generated: 4}}, {result: &engine.Result{Prompt: 7, Generated: 1}}}, 3)
	if u.PromptTokens != 12 || u.CompletionTokens != 8 || u.TotalTokens != 20 || u.PromptDetails.CachedTokens != 2 ||
		u.PromptDetails.SeenTokens != 9 || u.PromptDetails.KeptTokens != 5 || u.CompletionDetails.ReasoningTokens != 1 {
		t.Errorf("usage %+v", u)
	}
	logits := []float32{1, negInf, 3}
	if only(logits, 1); fmt.Sprint(logits) != "[-Inf 0 -Inf]" {
		t.Errorf("a banned token that must come: %v", logits)
	}
	if only(logits, 1); logits[1] != 0 {
		t.Errorf("a token that must come: %v", logits)
	}
	rec := &record{}
	res := &engine.Result{}
	res.Stats.DraftErr = errors.New("no draft")
	rec.generation("m", res)
	n := len(rec.attrs)
	if rec.generation("m", res); len(rec.attrs) != n || rec.choices != 2 || rec.attrs[n-1].Key != "draft_error" {
		t.Errorf("logged %v", rec.attrs)
	}
	if got := sourceName("mtp"); got != "mtp" {
		t.Errorf("source %q", got)
	}
	if speed := perSecond(0, time.Second) + perSecond(1, 0) + perToken(time.Second, 0); speed != 0 {
		t.Errorf("nothing has the speed %g", speed)
	}
}

// TestPageIsNotSentTwice: a browser that has the page is told so.
func TestPageIsNotSentTwice(t *testing.T) {
	s := New(Config{})
	get := func(tag string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/", nil)
		if tag != "" {
			r.Header.Set("If-None-Match", tag)
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w
	}
	first := get("")
	tag := first.Header().Get("ETag")
	if first.Code != http.StatusOK || tag == "" || first.Body.Len() == 0 {
		t.Fatalf("%d, tag %q", first.Code, tag)
	}
	if again := get(tag); again.Code != http.StatusNotModified || again.Body.Len() != 0 {
		t.Errorf("again: %d, %d bytes", again.Code, again.Body.Len())
	}
	if other := get(`"x"`); other.Code != http.StatusOK {
		t.Errorf("with another tag: %d", other.Code)
	}
}

// TestDefectIsAnError: a handler that panics is an error of the server and a line of its log, and what it had begun to
// answer stays.
func TestDefectIsAnError(t *testing.T) {
	var log strings.Builder
	s := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for path, wrote := range map[string]bool{"/v1/a": false, "/v1/b": true} {
		h := s.observe(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if wrote {
				w.WriteHeader(http.StatusAccepted)
			}
			panic("broken")
		}))
		w := httptest.NewRecorder()
		log.Reset()
		h.ServeHTTP(w, httptest.NewRequest("POST", path, strings.NewReader("x")))
		want := map[bool]int{true: http.StatusAccepted, false: http.StatusInternalServerError}[wrote]
		if w.Code != want || !strings.Contains(log.String(), "broken") || !strings.Contains(log.String(), "path="+path) ||
			strings.Contains(w.Body.String(), "broken") || strings.Contains(w.Body.String(), "a defect") == wrote {
			t.Errorf("%s: %d %s, log %s", path, w.Code, w.Body, &log)
		}
	}
	r := httptest.NewRequest(http.MethodOptions, "/v1/models", nil)
	r.Header.Set("Origin", "http://a")
	r.Header.Set("Access-Control-Request-Headers", "X-A")
	w := httptest.NewRecorder()
	New(Config{CORS: []string{"http://a"}}).Handler().ServeHTTP(w, r)
	if w.Code != http.StatusNoContent || w.Header().Get("Access-Control-Allow-Headers") != "X-A" ||
		w.Header().Get("Access-Control-Allow-Origin") != "http://a" {
		t.Errorf("asked before a request: %d %v", w.Code, w.Header())
	}
}

// TestListenerFails: a listener that fails ends Serve with its error.
func TestListenerFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := New(Config{}).Serve(t.Context(), ln); err == nil {
		t.Error("serving on a closed listener succeeds")
	}
	l := newConns(nil, 1, 0)
	a, b := &conn{l: l, addr: "a"}, &conn{l: l, addr: "b"}
	l.admit(a)
	l.state(a, http.StateActive)
	l.state(nil, http.StateActive) // none of ours
	l.closed = true
	if ok, _ := l.admit(b); ok || l.open != 1 {
		t.Errorf("admitted to a closed listener: %t, %d are open", ok, l.open)
	}
	l.mu.Lock()
	l.remove(a)
	l.remove(a) // without effect
	l.mu.Unlock()
	if l.open != 0 || len(l.byAddr) != 0 {
		t.Errorf("%d are open, of addresses %v", l.open, l.byAddr)
	}
}

// spans is a tracer that keeps what it is told.
type spans struct {
	noop.TracerProvider
	mu   sync.Mutex
	list []*span
}

type spansTracer struct {
	noop.Tracer
	*spans
}

type span struct {
	noop.Span
	name   string
	start  time.Time
	end    time.Time
	ended  bool
	attrs  map[attribute.Key]attribute.Value
	events []string
	failed bool
	parent string
}

func (s *spans) Tracer(string, ...trace.TracerOption) trace.Tracer { return spansTracer{spans: s} }

func (s spansTracer) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	cfg := trace.NewSpanStartConfig(o...)
	x := &span{name: name, start: cfg.Timestamp(), attrs: map[attribute.Key]attribute.Value{}}
	if p, ok := trace.SpanFromContext(ctx).(*span); ok {
		x.parent = p.name
	}
	x.SetAttributes(cfg.Attributes()...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, x)
	return trace.ContextWithSpan(ctx, x), x
}

func (x *span) IsRecording() bool   { return true }
func (x *span) SetName(name string) { x.name = name }
func (x *span) SpanContext() (c trace.SpanContext) {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
}
func (x *span) SetStatus(c codes.Code, _ string) { x.failed = c == codes.Error }
func (x *span) SetAttributes(kv ...attribute.KeyValue) {
	for _, a := range kv {
		x.attrs[a.Key] = a.Value
	}
}
func (x *span) AddEvent(name string, _ ...trace.EventOption) { x.events = append(x.events, name) }
func (x *span) End(o ...trace.SpanEndOption) {
	cfg := trace.NewSpanEndConfig(o...)
	x.end, x.ended = cfg.Timestamp(), true
}

// TestTraced: a traced request is a span with its phases, each with its rounds, and those that are asked for all the
// time are not traced.
func TestTraced(t *testing.T) {
	traces := &spans{}
	f := start(t, options{config: Config{Traces: traces}})
	f.post("/v1/completions", dict{"prompt": "x y z", "max_tokens": 12, "ignore_eos": true, "temperature": 0})
	for _, path := range []string{"/health", "/metrics", "/"} {
		f.do("GET", path, "")
	}
	f.do("POST", "/v1/completions", `{`)
	eventually(t, "all spans end", func() bool {
		traces.mu.Lock()
		defer traces.mu.Unlock()
		return len(traces.list) == 5 && traces.list[4].ended && traces.list[0].ended
	})
	var names []string
	for _, x := range traces.list {
		names = append(names, x.name)
		if !x.ended || x.failed {
			t.Errorf("%s: ended %t, failed %t", x.name, x.ended, x.failed)
		}
	}
	if want := "[POST /v1/completions queue prefill decode POST /v1/completions]"; fmt.Sprint(names) != want {
		t.Fatalf("spans %v, want %s", names, want)
	}
	number := func(x *span, key string) int64 { v := x.attrs[attribute.Key(key)]; return v.AsInt64() }
	request, queue, prefill, decode := traces.list[0], traces.list[1], traces.list[2], traces.list[3]
	if number(request, "gen_ai.usage.output_tokens") != 12 || number(request, "gen_ai.usage.input_tokens") == 0 ||
		number(request, "http.response.status_code") != 200 || number(traces.list[4], "http.response.status_code") != 400 {
		t.Errorf("attributes of the request %v", request.attrs)
	}
	word := func(x *span, key string) string { v := x.attrs[attribute.Key(key)]; return v.AsString() }
	if word(request, "http.request.method") != "POST" || word(request, "http.route") != "/v1/completions" ||
		word(request, "gen_ai.request.model") != "qwen35" || word(request, "strobe.end") != "length" {
		t.Errorf("attributes of the request %v", request.attrs)
	}
	if len(queue.events) != 0 || len(prefill.events) == 0 || len(decode.events) == 0 ||
		number(decode, "strobe.tokens") != 12 || int(number(decode, "strobe.rounds_left_out")) != 0 ||
		number(prefill, "strobe.prompt_tokens") != number(request, "gen_ai.usage.input_tokens") {
		t.Errorf("%d rounds of the prompt, %d of decoding; %v", len(prefill.events), len(decode.events), decode.attrs)
	}
	if queue.end != prefill.start || prefill.end != decode.start || prefill.end.Before(prefill.start) ||
		decode.end.Before(decode.start) || queue.end.Before(queue.start) {
		t.Errorf("phases from %v to %v, %v, %v, %v", queue.start, queue.end, prefill.start, prefill.end, decode.end)
	}
	for _, x := range traces.list[1:4] {
		if x.parent != "POST" { // the name of the request until its path is known
			t.Errorf("%s is a part of %q", x.name, x.parent)
		}
	}
	// Rounds after the most that are kept are counted.
	tr := tracer{traces.Tracer("")}
	ctx, request2 := tr.Start(t.Context(), "request")
	var req engine.Request
	kept := tr.watch(ctx, &req)
	for range maxRounds + 3 {
		req.Watch(engine.Round{Tokens: 1})
	}
	if len(kept.list) != maxRounds || kept.count != maxRounds+3 {
		t.Errorf("%d rounds kept of %d", len(kept.list), kept.count)
	}
	n := len(traces.list)
	tr.generation(ctx, "m", kept, &engine.Result{Slot: -1, Queued: 1, Total: 5})
	if len(traces.list) != n+1 || traces.list[n].name != "queue" {
		t.Errorf("%d spans of a request that never ran", len(traces.list)-n)
	}
	tr.generation(ctx, "m", kept, &engine.Result{Queued: 1, Total: 5})
	if len(traces.list) != n+3 || !traces.list[n+2].end.Equal(kept.began.Add(5)) {
		t.Errorf("%d spans of one that ended before its first token", len(traces.list)-n-1)
	}
	tr.generation(ctx, "m", kept, &engine.Result{Queued: 1, First: 2, Total: 5})
	if left := number(traces.list[len(traces.list)-1], "strobe.rounds_left_out"); left != 3 {
		t.Errorf("%d rounds are left out, want 3", left)
	}
	tr.generation(ctx, "m", nil, &engine.Result{Prompt: 4})
	if number(request2.(*span), "gen_ai.usage.input_tokens") != 4 {
		t.Error("a request without rounds has no attributes")
	}
	_, end := tr.request(httptest.NewRequest("GET", "/v1/models", nil))
	if end(500); !traces.list[len(traces.list)-1].failed {
		t.Error("an error of the server is not one in the trace")
	}
	traceUpstream(ctx, "far", "a")
	if x := request2.(*span); len(x.events) != 1 || x.attrs["gen_ai.request.model"].AsString() != "far" {
		t.Errorf("an upstream's answer: %v, %v", x.events, x.attrs)
	}
	h := f.s.outgoing(httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	if h.Get("Traceparent") == "" || h.Get("X-Request-Id") == "" {
		t.Errorf("an upstream is told %v", h)
	}
}

// TestEveryEndpointGivesBack: no request keeps a model in use, whether it was answered or refused.
func TestEveryEndpointGivesBack(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/completion", "/infill", "/v1/embeddings",
		"/embedding", "/tokenize", "/detokenize", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
		"/v1/responses/input_tokens", "/apply-template", "/models/load", "/rerank", "/api/chat", "/api/generate",
		"/api/embed", "/api/embeddings", "/api/show"} {
		for _, body := range []string{`{"messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x","content":"x",
			"tokens":[1],"max_tokens":1,"max_output_tokens":1,"n_predict":1,"options":{"num_predict":1},"model":"qwen35"}`,
			`{"messages":[{"role":"user","content":"x"}],"prompt":"","input":"","content":"","tokens":[-1],"model":"qwen35",
			"temperature":-1,"options":{"temperature":-1}}`} {
			status, b := f.do("POST", path, body)
			if n := f.s.models().List()[0].Users; n != 0 || status == http.StatusInternalServerError {
				t.Fatalf("%s %s: %d %s; %d requests still use the model", path, body, status, b, n)
			}
		}
	}
}

// TestStoredTogether: responses are stored and asked for by many requests at a time.
func TestStoredTogether(t *testing.T) {
	m := newMemory(20_000, time.Hour)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 50 {
				id := fmt.Sprint("r", i, "-", k)
				item := rawJSON(fmt.Sprintf(`{"id":"i%d","role":"user","content":"x"}`, k%5))
				if ok, err := putResponse(m, "", &responseJSON{ID: id}, []json.RawMessage{item}); !ok || err != nil {
					t.Error(ok, err)
				}
				m.get(ownedID{"", id})
				m.item(ownedID{"", fmt.Sprint("i", k%5)})
				if k%3 == 0 {
					m.remove(ownedID{"", id})
				}
			}
		})
	}
	all.Wait()
	bytes := int64(0)
	for e := m.recent.Front(); e != nil; e = e.Next() {
		bytes += e.Value.(*stored).size
	}
	if bytes != m.bytes || m.bytes > m.limit || len(m.byID) != m.recent.Len() {
		t.Errorf("%d bytes are counted of %d, %d responses of %d", m.bytes, bytes, len(m.byID), m.recent.Len())
	}
}

// listed is a parser that says what it is told to.
type listed []parse.Event

func (l listed) Push(string) []parse.Event { return l }
func (l listed) Close() []parse.Event      { return nil }

// TestNothingAfterTheOnlyCall: where one call is wanted, what comes after it is dropped, also in the same piece of
// text.
func TestNothingAfterTheOnlyCall(t *testing.T) {
	call := listed{{Kind: parse.Content, Text: "a"}, {Kind: parse.ToolBegin, Name: "f"},
		{Kind: parse.ToolArguments, Text: "{}"}, {Kind: parse.ToolEnd},
		{Kind: parse.Content, Text: "b"}, {Kind: parse.ToolBegin, Name: "g"}}
	for _, one := range []bool{true, false} {
		r := &reply{oneCall: one, parser: call}
		ds := r.take(engine.Event{Text: []byte("x"), Tokens: []engine.Token{{Text: []byte("x")}}})
		want := map[bool][3]int{true: {4, 1, 1}, false: {6, 2, 2}}[one]
		if got := [3]int{len(ds), len(r.calls), r.content.Len()}; got != want || !r.called() || r.enough != one {
			t.Errorf("one call %t: %v deltas, calls and bytes of text, want %v", one, got, want)
		}
		aborted := &reply{parser: listed{{Kind: parse.ToolBegin, Name: "f"}, {Kind: parse.ToolAbort}}}
		if ds := aborted.push(nil, "x", false); len(ds) != 1 || ds[0].kind != parse.ToolBegin || aborted.called() {
			t.Errorf("a call that broke off: %+v", ds)
		}
		r.take(engine.Event{Text: []byte("y"), Tokens: []engine.Token{{Text: []byte("y")}}})
		if more := len(r.calls) > want[1]; more == one || r.count != map[bool]int{true: 1, false: 2}[one] {
			t.Errorf("one call %t: %d calls of %d tokens after more text", one, len(r.calls), r.count)
		}
	}
}
