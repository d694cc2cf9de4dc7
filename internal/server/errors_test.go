package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"strobe/internal/engine"
)

// TestWrongRequests: each is a 400 that names what is wrong, in the shape of its protocol.
func TestWrongRequests(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	msgs := `"messages":[{"role":"user","content":"x"}]`
	for _, c := range []struct{ path, body, param, says string }{
		{"/v1/chat/completions", `{"messages":`, "", "malformed JSON"},
		{"/v1/chat/completions", ``, "", "malformed JSON"},
		{"/v1/chat/completions", `{} {}`, "", "malformed JSON"},
		{"/v1/chat/completions", `[]`, "", "must be an object"},
		{"/v1/chat/completions", "\xff\xfe", "", "malformed JSON"},
		{"/v1/chat/completions", strings.Repeat("[", 20000), "", "malformed JSON"},
		{"/v1/chat/completions", `{}`, "messages", "at least one"},
		{"/v1/chat/completions", `{"messages":"x"}`, "messages", "a list"},
		{"/v1/chat/completions", `{"messages":["x"]}`, "messages[0]", "an object"},
		{"/v1/chat/completions", `{"messages":[{"content":"x"}]}`, "messages[0].role", "missing"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"},{"role":5}]}`, "messages[1].role", "a string"},
		{"/v1/chat/completions", `{"messages":[{"role":"user"}]}`, "messages[0].content", "missing"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":5}]}`, "messages[0].content", "a string or a list"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`,
			"messages[0].content[0].type", "image_url"},
		{"/v1/chat/completions", `{` + msgs + `,"temperature":"hot"}`, "temperature", "a number, not a string"},
		{"/v1/chat/completions", `{` + msgs + `,"temperature":-1}`, "temperature", "between"},
		{"/v1/chat/completions", `{` + msgs + `,"top_p":1.5}`, "top_p", "between"},
		{"/v1/chat/completions", `{` + msgs + `,"top_k":1.5}`, "top_k", "an integer"},
		{"/v1/chat/completions", `{` + msgs + `,"max_tokens":"9"}`, "max_tokens", "an integer"},
		{"/v1/chat/completions", `{` + msgs + `,"max_tokens":99999999999999999999}`, "max_tokens", "an integer"},
		{"/v1/chat/completions", `{` + msgs + `,"stream":"yes"}`, "stream", "true or false"},
		{"/v1/chat/completions", `{` + msgs + `,"stream_options":{"include_usage":1}}`, "stream_options.include_usage",
			"true or false"},
		{"/v1/chat/completions", `{` + msgs + `,"n":0}`, "n", "between"},
		{"/v1/chat/completions", `{` + msgs + `,"n":1000}`, "n", "between"},
		{"/v1/chat/completions", `{` + msgs + `,"stop":5}`, "stop", "a string or a list"},
		{"/v1/chat/completions", `{` + msgs + `,"stop":["` + strings.Repeat(`a","`, 40) + `"]}`, "stop", "at most"},
		{"/v1/chat/completions", `{` + msgs + `,"seed":"x"}`, "seed", "an integer"},
		{"/v1/chat/completions", `{` + msgs + `,"seed":1.5}`, "seed", "an integer"},
		{"/v1/chat/completions", `{` + msgs + `,"logit_bias":{"999999":1}}`, "logit_bias", "not the id"},
		{"/v1/chat/completions", `{` + msgs + `,"logit_bias":5}`, "logit_bias", "an object"},
		{"/v1/chat/completions", `{` + msgs + `,"logit_bias":{"5":"x"}}`, "logit_bias", "a number or false"},
		{"/v1/chat/completions", `{` + msgs + `,"logprobs":true,"top_logprobs":99}`, "top_logprobs", "between"},
		{"/v1/chat/completions", `{` + msgs + `,"tools":{}}`, "tools", "a list"},
		{"/v1/chat/completions", `{` + msgs + `,"tools":[{"type":"function","function":{}}]}`, "tools[0].function.name",
			"missing"},
		{"/v1/chat/completions", `{` + msgs + `,"tools":[{"type":"web_search"}]}`, "tools[0].type", "not supported"},
		{"/v1/chat/completions", `{` + msgs + `,"tools":[{"type":"function","function":{"name":"a","parameters":5}}]}`,
			"tools[0].function.parameters", "an object"},
		{"/v1/chat/completions", `{` + msgs + `,"tool_choice":"maybe"}`, "tool_choice", "none of"},
		{"/v1/chat/completions", `{` + msgs + `,"tool_choice":"required"}`, "tool_choice", "needs tools"},
		{"/v1/chat/completions", `{` + msgs +
			`,"tools":[{"type":"function","function":{"name":"a"}}],"tool_choice":{"type":"function","function":{"name":"b"}}}`,
			"tool_choice", "no tool named"},
		{"/v1/chat/completions", `{` + msgs + `,"response_format":{"type":"xml"}}`, "response_format.type", "none of"},
		{"/v1/chat/completions", `{` + msgs + `,"response_format":{"type":"json_schema"}}`,
			"response_format.json_schema.schema", "missing"},
		{"/v1/chat/completions", `{` + msgs +
			`,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"nonsense"}}}}`, "response_format",
			"schema"},
		{"/v1/chat/completions", `{` + msgs + `,"chat_template_kwargs":{"messages":[]}}`, "", "cannot be set"},
		{"/v1/chat/completions", `{` + msgs + `,"chat_template_kwargs":{"enable_thinking":"no"}}`,
			"chat_template_kwargs.enable_thinking", "true or false"},
		{"/v1/chat/completions", `{` + msgs + `,"reasoning_effort":5}`, "reasoning_effort", "a string"},
		{"/v1/chat/completions", `{` + msgs + `,"strobe":{"draft":"magic"}}`, "strobe.draft", "draft source"},
		{"/v1/chat/completions", `{` + msgs + `,"strobe":{"draft_max":"x"}}`, "strobe.draft_max", "an integer"},
		{"/v1/completions", `{}`, "prompt", "missing"},
		{"/v1/completions", `{"prompt":5}`, "prompt", "a string"},
		{"/v1/completions", `{"prompt":[]}`, "prompt", "empty"},
		{"/v1/completions", `{"prompt":""}`, "", "empty"},
		{"/v1/completions", `{"prompt":[1,true]}`, "prompt", "an integer"},
		{"/v1/completions", `{"prompt":[99999]}`, "prompt[0]", "not the id"},
		{"/v1/completions", `{"prompt":["a",[1,-1]]}`, "prompt[1][1]", "not the id"},
		{"/v1/completions", `{"prompt":["a"],"suffix":"b"}`, "prompt", "a string"},
		{"/v1/completions", `{"prompt":"a","suffix":"b","echo":true}`, "echo", "with suffix"},
		{"/completion", `{"prompt":"a","n_probs":99}`, "n_probs", "between"},
		{"/completion", `{"prompt":"a","post_sampling_probs":true}`, "post_sampling_probs", "not supported"},
		{"/completion", `{}`, "prompt", "missing"},
		{"/completion", `{"prompt":"a","grammar":"x"}`, "grammar", "line 1"},
		{"/embedding", `{}`, "content", "missing"},
		{"/infill", `{"prompt":5}`, "prompt", "a string"},
		{"/v1/completions", `{"prompt":"a","n":65}`, "n", "between"},
		{"/v1/responses", `{}`, "input", "missing"},
		{"/v1/responses", `{"input":"x","previous_response_id":"resp_1"}`, "previous_response_id", "no response"},
		{"/v1/chat/completions", `{` + msgs + `,"grammar":"root ::= x"}`, "grammar", "line 1: the rule \"x\" is not defined"},
		{"/v1/chat/completions", `{` + msgs + `,"continue_final_message":true}`, "continue_final_message",
			"not the assistant's"},
		{"/v1/completions", `{"prompt":{"prompt_string":"x","multimodal_data":["aGk="]}}`, "prompt.multimodal_data",
			"text only"},
		{"/v1/completions", `{"prompt":[{}]}`, "prompt[0].prompt_string", "missing"},
		{"/v1/chat/completions", `{` + msgs + `,"functions":[5]}`, "functions[0]", "an object"},
		{"/v1/chat/completions", `{` + msgs + `,"functions":[{"name":"f"}],"tools":[{"function":{"name":"f"}}]}`, "functions",
			"with tools"},
		{"/v1/chat/completions", `{"messages":[{"role":"assistant","content":null,"function_call":{}}]}`,
			"messages[0].function_call.name", "missing"},
		{"/v1/chat/completions", `{` + msgs + `,"grammar":5}`, "grammar", "a string"},
		{"/v1/chat/completions", `{` + msgs + `,"grammar":"root ::= \"x\"","response_format":{"type":"json_object"}}`,
			"grammar", "with a schema"},
		{"/v1/chat/completions", `{` + msgs + `,"json_schema":{},"response_format":{"type":"json_object"}}`, "json_schema",
			"with response_format"},
		{"/v1/chat/completions", `{` + msgs + `,"grammar":"root ::= \"x\"","tools":[{"function":{"name":"f"}}]}`, "grammar",
			"with tools"},
		{"/v1/responses", `{"input":"x","conversation":"c"}`, "conversation", "not the id"},
		{"/v1/responses", `{"input":"x","prompt":{"id":"p"}}`, "prompt", "not supported"},
		{"/v1/responses", `{"input":"x","background":true,"store":false}`, "background", "is kept"},
		{"/v1/responses", `{"input":"x","tools":[{"type":"namespace","tools":[]}]}`, "tools[0].name", "missing"},
		{"/v1/responses", `{"input":"x","tools":[{"type":"namespace","name":"a","tools":[{"type":"namespace","name":"b"}]}]}`,
			"tools[0].tools[0].type", "inside another"},
		{"/v1/responses", `{"input":"x","tools":[{"type":"namespace","name":"a","tools":[{"type":"function"}]}]}`,
			"tools[0].tools[0].name", "missing"},
		{"/v1/responses", `{"input":"x","tools":[{"type":"namespace",` +
			`"name":"a","tools":[{"type":"function","name":"b"}]},{"type":"function","name":"a__b"}]}`, "tools[1].name",
			"two tools"},
		{"/v1/responses", `{"input":[{"type":"reasoning","encrypted_content":"strobe:%%"}]}`, "input[0].encrypted_content",
			"damaged"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}` +
			`],"tools":[{"function":{"name":"f"}}],"tool_choice":{"type":"allowed_tools",` +
			`"allowed_tools":{"mode":"auto","tools":[{"function":{"name":"g"}}]}}}`, "tool_choice.tools[0]", "no tool"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}` +
			`],"tools":[{"function":{"name":"f"}}],"tool_choice":{"type":"allowed_tools","mode":"never"}}`, "tool_choice.mode",
			"neither"},
		{"/v1/responses", `{"input":[{"type":"item_reference"}]}`, "input[0].id", "missing"},
		{"/v1/responses", `{"input":[{"type":"web_search_call"}]}`, "input[0].type", "not supported"},
		{"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:"}]}]}`, "input[0].content[0]",
			"text only"},
		{"/v1/responses", `{"input":[{"role":"robot","content":"x"}]}`, "input[0].role", "none of"},
		{"/v1/embeddings", `{}`, "input", "missing"},
		{"/v1/embeddings", `{"input":"x","encoding_format":"hex"}`, "encoding_format", "neither"},
		{"/v1/embeddings", `{"input":"x","dimensions":65}`, "dimensions", "not between"},
		{"/tokenize", `{"content":5}`, "content", "a string"},
		{"/detokenize", `{"tokens":"x"}`, "tokens", "a list"},
		{"/v1/messages", `{"max_tokens":5}`, "messages", "at least one"},
		{"/v1/messages", `{"max_tokens":0,` + msgs + `}`, "max_tokens", "at least 1"},
		{"/v1/messages", `{"max_tokens":"x",` + msgs + `}`, "max_tokens", "an integer"},
		{"/v1/messages", `{"messages":[{"role":"robot","content":"x"}]}`, "messages[0].role", "none of"},
		{"/v1/messages", `{"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`,
			"messages[0].content[0].source.type", "base64"},
		{"/v1/messages", `{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"x"}}]}]}`,
			"messages[0].content[0]", "text only"},
		{"/v1/messages", `{"messages":[{"role":"user","content":[{"type":"text"}]}]}`, "messages[0].content[0].text",
			"missing"},
		{"/v1/messages", `{"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"a","input":"x"}]}]}`,
			"messages[0].content[0].input", "an object"},
		{"/v1/messages", `{` + msgs + `,"tools":[{"name":"a"}]}`, "tools[0].input_schema", "an object"},
		{"/v1/messages", `{` + msgs + `,"tool_choice":{"type":"any"}}`, "tool_choice", "needs tools"},
		{"/v1/messages", `{` + msgs + `,"system":5}`, "system", "a string or a list"},
		{"/v1/messages/count_tokens", `{"messages":7}`, "messages", "a list"},
	} {
		status, b := f.do("POST", c.path, c.body)
		name := fmt.Sprintf("%s %.120s", c.path, c.body)
		if status != http.StatusBadRequest {
			t.Errorf("%s: status %d: %s", name, status, b)
			continue
		}
		m := decodeObject(t, b)
		e := at(m, "error")
		if text(e, "param") != c.param || !strings.Contains(text(e, "message"), c.says) ||
			text(e, "type") != "invalid_request_error" {
			t.Errorf("%s: %v; want parameter %q and %q", name, e, c.param, c.says)
		}
		if strings.Contains(text(e, "message"), "\n") {
			t.Errorf("%s: more than a line: %q", name, text(e, "message"))
		}
		if anthropic := strings.HasPrefix(c.path, "/v1/messages"); (m["type"] == "error") != anthropic {
			t.Errorf("%s: shape %v", name, m)
		}
	}
}

// TestSourceNotLoaded: drafts of a source that the model lacks are the client's mistake, too.
func TestSourceNotLoaded(t *testing.T) {
	f := start(t, options{plain: true})
	status, b := f.do("POST", "/v1/completions", `{"prompt":"a","max_tokens":2,"strobe":{"draft":"dflash"}}`)
	e := at(decodeObject(t, b), "error")
	if status != http.StatusBadRequest || at(e, "param") != "strobe.draft" ||
		!strings.Contains(fmt.Sprint(at(e, "message")), "not loaded") {
		t.Errorf("status %d: %s", status, b)
	}
}

// TestUnknownFields: what a server does not know it ignores, and null is absent.
func TestUnknownFields(t *testing.T) {
	f := start(t, options{})
	f.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"x","weight":1}],"max_tokens":2,"user":"u","store":true,"metadata":{"a":1},"service_tier":"auto",
		"modalities":["text"],"temperature":null,"stop":null,"seed":null,"logit_bias":null,"tools":null,"tool_choice":null,"response_format":null,"n":null,"stream":null,"stream_options":null,"strobe":null,"top_logprobs":null}`)
}

func TestTooLong(t *testing.T) {
	f := start(t, options{engine: engine.Config{Context: 128}})
	long := strings.Repeat("word ", 400)
	for path, body := range map[string]any{
		"/v1/chat/completions": dict{"messages": user(long), "stream": true},
		"/v1/completions":      dict{"prompt": long},
		"/v1/responses":        dict{"input": long, "stream": true},
		"/v1/messages":         dict{"messages": user(long), "max_tokens": 5},
		"/v1/embeddings":       dict{"input": long},
	} {
		status, b := f.do("POST", path, encode(t, body))
		e := at(decodeObject(t, b), "error")
		want := "exceed_context_size_error"
		if path == "/v1/messages" {
			want = "invalid_request_error"
		}
		if status != http.StatusBadRequest || text(e, "type") != want || number(e, "n_prompt_tokens") < 128 ||
			number(e, "n_ctx") != 128 {
			t.Errorf("%s: %d %s", path, status, b)
		}
	}
}

// TestNotFound: paths and methods that do not exist say so in JSON.
func TestNotFound(t *testing.T) {
	f := start(t, options{})
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/nope", 404}, {"POST", "/v1/nope", 404}, {"GET", "/v1/chat/completions", 405}, {"POST", "/health", 405},
		{"DELETE", "/v1/models", 405}, {"GET", "/ui/../server.go", 404}, {"GET", "/ui/nope.js", 404},
		{"GET", "/v1/stream?conv_id=1", 404},
	} {
		status, b := f.do(c.method, c.path, "")
		if status != c.status || text(decodeObject(t, b), "error", "message") == "" {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, b)
		}
	}
}

// TestExplain: every error the engine tells apart has its status.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		kind   string
	}{
		{engine.ErrQueueFull, 503, "unavailable_error"},
		{engine.ErrNoRoom, 503, "unavailable_error"},
		{&engine.MemoryError{Tokens: 7, Err: engine.ErrNoMemory}, 503, "unavailable_error"},
		{engine.ErrClosed, 503, "unavailable_error"},
		{engine.ErrNoModelName, 400, "invalid_request_error"},
		{engine.ErrNoneResident, 400, "invalid_request_error"},
		{&engine.UnknownModelError{Name: "x"}, 404, "invalid_request_error"},
		{&engine.LoadError{Name: "x", Err: errors.New("broken")}, 500, "server_error"},
		{&engine.ContextError{Prompt: 9, Context: 5}, 400, "exceed_context_size_error"},
		{engine.ErrUnsupported, 501, "not_supported_error"},
		{errors.New("anything"), 500, "server_error"},
	} {
		if e := explain(fmt.Errorf("wrapped: %w", c.err)); e.Status != c.status || e.Type != c.kind {
			t.Errorf("%v: %d %s, want %d %s", c.err, e.Status, e.Type, c.status, c.kind)
		}
	}
}
