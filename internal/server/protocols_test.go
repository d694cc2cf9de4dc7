package server

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/sample"
)

// TestSamplingReachesTheSampler: what a request says about sampling arrives, by every protocol, and what it leaves
// out is the server's default.
func TestSamplingReachesTheSampler(t *testing.T) {
	defaults := sample.Params{Temp: 0.5, TopK: 11, TopP: 0.8, MinP: 0.11, TypicalP: 0.77}
	f := start(t, options{config: Config{Params: defaults}})
	var got sample.Params
	f.s.tweak = func(req *engine.Request, _ *model) { got = req.Params }
	want := sample.Params{Temp: 0.7, TopK: 7, TopP: 0.9, MinP: 0.2, TypicalP: 0.6}
	given := dict{"temperature": 0.7, "top_k": 7, "top_p": 0.9, "min_p": 0.2, "typical_p": 0.6}
	for path, q := range map[string]dict{
		"/v1/chat/completions": {"messages": user("x"), "max_tokens": 1},
		"/v1/completions":      {"prompt": "x", "max_tokens": 1},
		"/v1/messages":         {"messages": user("x"), "max_tokens": 1},
		"/v1/responses":        {"input": "x", "max_output_tokens": 1},
	} {
		for _, c := range []struct {
			fields dict
			want   sample.Params
		}{{dict{}, defaults}, {given, want}} {
			f.post(path, with(q, c.fields))
			g := sample.Params{Temp: got.Temp, TopK: got.TopK, TopP: got.TopP, MinP: got.MinP, TypicalP: got.TypicalP}
			if !reflect.DeepEqual(g, c.want) {
				t.Errorf("%s with %v: %+v, want %+v", path, c.fields, g, c.want)
			}
		}
	}
}

func TestCompletions(t *testing.T) {
	f := start(t, options{engine: engineConfig(8)})
	q := dict{"prompt": "func main", "max_tokens": 16, "temperature": 0, "ignore_eos": true}
	m := f.post("/v1/completions", q)
	want := text(m, "choices", 0, "text")
	if want == "" || text(m, "object") != "text_completion" || text(m, "choices", 0, "finish_reason") != "length" {
		t.Errorf("answer %v", m)
	}
	got := ""
	for _, e := range f.events("/v1/completions",
		with(q, dict{"stream": true, "stream_options": dict{"include_usage": true}})) {
		got += text(e.data, "choices", 0, "text")
	}
	if got != want {
		t.Errorf("stream %q, whole %q", got, want)
	}

	// The same prompt as tokens, in a list, and twice.
	ids := at(f.post("/tokenize", dict{"content": "func main"}), "tokens")
	for _, p := range []any{ids, []any{ids}, []string{"func main"}} {
		if s := text(f.post("/v1/completions", with(q, dict{"prompt": p})), "choices", 0, "text"); s != want {
			t.Errorf("prompt %v: %q, want %q", p, s, want)
		}
	}
	two := f.post("/v1/completions", with(q, dict{"prompt": []string{"func main", "package"}, "n": 2}))
	list := at(two, "choices").([]any)
	if len(list) != 4 || text(list[0], "text") != want || text(list[1], "text") != want || text(list[2], "text") == want {
		t.Errorf("two prompts, two choices: %v", list)
	}
	one := f.post("/v1/completions", with(q, dict{"prompt": "package"}))
	if n := number(two, "usage", "prompt_tokens"); n != number(m, "usage", "prompt_tokens")+number(one, "usage",
		"prompt_tokens") {
		t.Errorf("%d prompt tokens", n)
	}

	if s := text(f.post("/v1/completions", with(q, dict{"echo": true})), "choices", 0, "text"); s != "func main"+want {
		t.Errorf("echo: %q", s)
	}
	lp := at(f.post("/v1/completions", with(q, dict{"logprobs": 2})), "choices", 0, "logprobs")
	for _, k := range []string{"tokens", "token_logprobs", "top_logprobs", "text_offset"} {
		if l, _ := at(lp, k).([]any); len(l) != 16 {
			t.Errorf("logprobs.%s: %v", k, at(lp, k))
		}
	}
}

func TestResponses(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.script("I wonder.</think>\n\nHello.<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": " +
		"\"Bonn\"}}\n</tool_call>")
	tool := json.RawMessage(`{"type":"function","name":"get_weather",` +
		`"parameters":{"type":"object","properties":{"city":{"type":"string"}}}}`)
	q := dict{"model": "m", "instructions": "Be brief.", "input": "Weather?",
		"tools": []any{tool, dict{"type": "web_search"}}, "chat_template_kwargs": dict{"enable_thinking": true}}
	check := func(where string, m dict) {
		t.Helper()
		out, _ := at(m, "output").([]any)
		if len(out) != 3 || text(m, "status") != "completed" || text(m, "object") != "response" {
			t.Fatalf("%s: %v", where, m)
		}
		if text(out[0], "type") != "reasoning" || text(out[0], "content", 0, "text") != "I wonder." {
			t.Errorf("%s: %v", where, out[0])
		}
		if text(out[1], "type") != "message" || text(out[1], "content", 0, "text") != "Hello." ||
			text(out[1], "role") != "assistant" {
			t.Errorf("%s: %v", where, out[1])
		}
		if text(out[2], "type") != "function_call" || text(out[2], "name") != "get_weather" ||
			text(out[2], "arguments") != `{"city": "Bonn"}` || text(out[2], "call_id") == "" {
			t.Errorf("%s: %v", where, out[2])
		}
		if number(m, "usage", "total_tokens") != number(m, "usage", "input_tokens")+number(m, "usage", "output_tokens") ||
			number(m, "usage", "output_tokens") == 0 {
			t.Errorf("%s: usage %v", where, at(m, "usage"))
		}
	}
	check("whole", f.post("/v1/responses", q))
	evs := f.events("/v1/responses", with(q, dict{"stream": true}))
	var text0, args string
	for i, e := range evs {
		if number(e.data, "sequence_number") != i || text(e.data, "type") != e.name {
			t.Errorf("event %d: %v", i, e)
		}
		switch e.name {
		case "response.output_text.delta":
			text0 += text(e.data, "delta")
		case "response.function_call_arguments.delta":
			args += text(e.data, "delta")
		}
	}
	check("stream", at(evs[len(evs)-1].data, "response").(dict))
	if text0 != "Hello." || args != `{"city": "Bonn"}` {
		t.Errorf("deltas %q, %q", text0, args)
	}
	want := []string{
		"response.created", "response.in_progress",
		"response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
		"response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
		"response.output_item.added", "response.content_part.added", "response.output_text.delta",
		"response.output_text.done", "response.content_part.done", "response.output_item.done",
		"response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.done",
		"response.output_item.done",
		"response.completed",
	}
	if got := names(evs); !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// What was said comes back as items.
	f.s.tweak = nil
	m := f.post("/v1/responses", with(q, dict{"max_output_tokens": 3, "input": []any{
		dict{"role": "developer", "content": "d"},
		dict{"type": "message", "role": "user", "content": []any{dict{"type": "input_text", "text": "Weather?"}}},
		dict{"type": "reasoning", "summary": []any{}, "content": []any{dict{"type": "reasoning_text", "text": "hm"}}},
		dict{"type": "message", "role": "assistant", "content": []any{dict{"type": "output_text", "text": "I look."}}},
		dict{"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": `{"city":"Bonn"}`},
		dict{"type": "function_call_output", "call_id": "c1", "output": "rain"},
	}}))
	if text(m, "status") != "incomplete" || text(m, "incomplete_details", "reason") != "max_output_tokens" {
		t.Errorf("cut: %v", m)
	}
}

func TestAnthropic(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.script("I wonder.</think>\n\nHello.<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bonn\", " +
		"\"days\": 2}}\n</tool_call>")
	tool := json.RawMessage(`{"name":"get_weather","input_schema":{"type":"object",` +
		`"properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}`)
	q := dict{"model": "m", "max_tokens": 300, "system": "Be brief.", "messages": user("Weather?"), "tools": []any{tool},
		"thinking": dict{"type": "enabled", "budget_tokens": 1000}}
	check := func(where string, m dict) {
		t.Helper()
		c, _ := at(m, "content").([]any)
		if len(c) != 3 || text(m, "stop_reason") != "tool_use" || text(m, "role") != "assistant" ||
			text(m, "type") != "message" {
			t.Fatalf("%s: %v", where, m)
		}
		if text(c[0], "type") != "thinking" || text(c[0], "thinking") != "I wonder." || at(c[0], "signature") != "" {
			t.Errorf("%s: %v", where, c[0])
		}
		if text(c[1], "type") != "text" || text(c[1], "text") != "Hello." {
			t.Errorf("%s: %v", where, c[1])
		}
		if text(c[2], "type") != "tool_use" || text(c[2], "name") != "get_weather" || text(c[2], "input", "city") != "Bonn" ||
			number(c[2], "input", "days") != 2 {
			t.Errorf("%s: %v", where, c[2])
		}
	}
	whole := f.post("/v1/messages", q)
	check("whole", whole)
	if n := number(f.post("/v1/messages/count_tokens", q), "input_tokens"); n != number(whole, "usage",
		"input_tokens")+number(whole, "usage", "cache_read_input_tokens") {
		t.Errorf("count_tokens says %d, usage %v", n, at(whole, "usage"))
	}

	evs := f.events("/v1/messages", with(q, dict{"stream": true}))
	m := at(evs[0].data, "message").(dict)
	var content []any
	var input string
	for _, e := range evs {
		i := number(e.data, "index")
		switch e.name {
		case "content_block_start":
			if i != len(content) {
				t.Errorf("block %d starts, there are %d", i, len(content))
			}
			content = append(content, at(e.data, "content_block"))
			input = ""
		case "content_block_delta":
			d := at(e.data, "delta")
			b := content[i].(dict)
			switch text(d, "type") {
			case "text_delta":
				b["text"] = text(b, "text") + text(d, "text")
			case "thinking_delta":
				b["thinking"] = text(b, "thinking") + text(d, "thinking")
			case "input_json_delta":
				input += text(d, "partial_json")
				var v any
				if json.Unmarshal([]byte(input), &v) == nil {
					b["input"] = v
				}
			}
		case "message_delta":
			m["stop_reason"] = at(e.data, "delta", "stop_reason")
		}
	}
	m["content"] = content
	check("stream", m)
	want := []string{
		"message_start",
		"content_block_start", "content_block_delta", "content_block_stop",
		"content_block_start", "content_block_delta", "content_block_stop",
		"content_block_start", "content_block_delta", "content_block_stop",
		"message_delta", "message_stop",
	}
	if got := names(evs); !slices.Equal(got, want) {
		t.Errorf("events %v", got)
	}

	f.script("one two three")
	m = f.post("/v1/messages", dict{"max_tokens": 50, "messages": user("?"), "stop_sequences": []string{"two"}})
	if text(m, "stop_reason") != "stop_sequence" || text(m, "stop_sequence") != "two" ||
		strings.TrimSpace(text(m, "content", 0, "text")) != "one" {
		t.Errorf("stop sequence: %v", m)
	}
	m = f.post("/v1/messages", dict{"max_tokens": 2, "messages": user("?")})
	if text(m, "stop_reason") != "max_tokens" {
		t.Errorf("max_tokens: %v", m)
	}
}

// TestToolResultsReachThePrompt (failure F181): what tools answered reaches the prompt, in every shape.
func TestToolResultsReachThePrompt(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	v, err := f.s.loaded("")
	if err != nil {
		t.Fatal(err)
	}
	var q messagesRequest
	err = json.Unmarshal([]byte(`{"max_tokens":5,"system":[{"type":"text","text":"x-anthropic-billing-header: cc=1"},{"type":"text","text":"sys"}],"messages":[
		{"role":"user","content":"q"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"look"},{"type":"tool_use","id":"t1","name":"get_weather","input":{"city":"Bonn"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"rain"}]},{"type":"tool_result","tool_use_id":"t2","content":"snow","is_error":true},{"type":"text","text":"and?"}]}
	]}`), &q)
	if err != nil {
		t.Fatal(err)
	}
	c, err := q.conversation()
	if err != nil {
		t.Fatal(err)
	}
	p, err := v.render(c)
	if err != nil {
		t.Fatal(err)
	}
	want := "<|im_start|>system\nsys<|im_end|>\n<|im_start|>user\nq<|im_end|>\n" +
		"<|im_start|>assistant\n<think>hm</think>look<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": " +
		"\"Bonn\"}}\n</tool_call><|im_end|>\n" +
		"<|im_start|>tool\nrain<|im_end|>\n<|im_start|>tool\nError: " +
		"snow<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
	if p.Text != want {
		t.Errorf("prompt\n%s\nwant\n%s", p.Text, want)
	}
}

func TestEmbeddings(t *testing.T) {
	f := start(t, options{})
	m := f.post("/v1/embeddings", dict{"input": []string{"hello world", "bye"}})
	data := at(m, "data").([]any)
	if len(data) != 2 || number(m, "usage", "prompt_tokens") < 2 {
		t.Fatalf("answer %v", m)
	}
	x := at(data[0], "embedding").([]any)
	sum := 0.0
	for _, v := range x {
		sum += v.(float64) * v.(float64)
	}
	if len(x) != 64 || math.Abs(sum-1) > 1e-4 {
		t.Errorf("%d values, length %g", len(x), math.Sqrt(sum))
	}
	b64 := f.post("/v1/embeddings", dict{"input": "hello world", "encoding_format": "base64"})
	raw, err := base64.StdEncoding.DecodeString(text(b64, "data", 0, "embedding"))
	if err != nil || len(raw) != 4*64 {
		t.Fatalf("base64: %d bytes, %v", len(raw), err)
	}
	for i := range x {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])); math.Abs(float64(v)-x[i].(float64)) > 1e-6 {
			t.Errorf("value %d: %g, %g", i, v, x[i])
			break
		}
	}
	if status, _ := f.do("POST", "/v1/embeddings", `{"input":""}`); status != http.StatusBadRequest {
		t.Errorf("an empty input: status %d", status)
	}
}

func TestNative(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	if status, b := f.do("GET", "/health", ""); status != 200 || text(decodeObject(t, b), "status") != "ok" {
		t.Errorf("health: %d %s", status, b)
	}
	ids := at(f.post("/tokenize", dict{"content": "héllo <|im_end|>", "with_pieces": true}), "tokens").([]any)
	var list []any
	for _, x := range ids {
		list = append(list, at(x, "id"))
	}
	if s := text(f.post("/detokenize", dict{"tokens": list}), "content"); s != "héllo <|im_end|>" {
		t.Errorf("round trip: %q", s)
	}
	f.post("/v1/chat/completions", dict{"messages": user("hi"), "max_tokens": 4, "temperature": 0})
	_, b := f.do("GET", "/slots", "")
	var slots []dict
	if err := json.Unmarshal(b, &slots); err != nil || len(slots) != 4 || slots[0]["is_processing"] != false ||
		number(slots[0], "n_prompt_tokens") == 0 {
		t.Errorf("slots: %s (%v)", b, err)
	}
	_, b = f.do("GET", "/metrics", "")
	for _, want := range []string{
		"# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total{model_name=\"qwen35\"} 4\n",
		"llamacpp:requests_processing{", "vllm:num_requests_waiting{",
		"vllm:time_to_first_token_seconds_bucket{model_name=\"qwen35\",le=\"+Inf\"} 1\n",
		"vllm:request_success_total{model_name=\"qwen35\",finished_reason=\"length\"} 1\n",
		`strobe:http_requests_total{path="/v1/chat/completions",code="200"} 1`,
		"vllm:spec_decode_num_draft_tokens_total{", "go_goroutines ",
		// What endpoint pickers and autoscalers read.
		"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"qwen35\"} 0\n",
		"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"qwen35\"} 0\n",
		"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"qwen35\"} 0\n",
		`vllm:cache_config_info{model_name="qwen35",block_size="64",num_gpu_blocks="`,
		"vllm:prefix_cache_hits_total{model_name=\"qwen35\"} 0\n",
		"strobe:prefix_cache_hit_ratio{", "strobe:draft_acceptance_ratio{", "strobe:tokens_per_second{",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	checkMetrics(t, string(b))
	_, b = f.do("GET", "/v1/models", "")
	m := at(decodeObject(t, b), "data", 0)
	if text(m, "id") != "qwen35" || text(m, "state") != "loaded" || number(m, "size") == 0 ||
		number(m, "last_used_ms") == 0 || number(m, "context_length") != 2048 {
		t.Errorf("models: %s", b)
	}
	if _, b := f.do("GET", "/v1/models?client_version=1.0", ""); text(decodeObject(t, b), "models", 0,
		"slug") != "qwen35" || number(decodeObject(t, b), "models", 0, "context_window") != 2048 {
		t.Errorf("models for Codex: %s", b)
	}
	if status, b := f.do("GET", "/v1/models/qwen35", ""); status != 200 {
		t.Errorf("model: %d %s", status, b)
	}
	if status, _ := f.do("GET", "/v1/models/other/thing", ""); status != 404 {
		t.Errorf("an unknown model: %d", status)
	}
}

// checkMetrics makes sure that every line is one of the text format.
func checkMetrics(t *testing.T, page string) {
	t.Helper()
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "# HELP ") || strings.HasPrefix(line, "# TYPE ") {
			continue
		}
		name, value, ok := cutLast(line, " ")
		var x float64
		if _, err := fmt.Sscanf(value, "%g", &x); !ok || err != nil || strings.ContainsAny(name[:1], "0123456789{ ") {
			t.Errorf("metrics line %q", line)
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			t.Errorf("metrics line %q is not a number", line)
		}
	}
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// TestPropsShowWhatRuns (failure F140): what runs is shown, not what was asked for.
func TestPropsShowWhatRuns(t *testing.T) {
	f := start(t, options{engine: engine.Config{Parallel: 3, Context: 1 << 30}, config: Config{Version: "v9"}})
	_, b := f.do("GET", "/props", "")
	m := decodeObject(t, b)
	if at(m, "runtime", "cache_types", 0) != "f16" || at(m, "speculative", "cache_types", 0) != "f16" ||
		at(m, "speculative", "cache_bytes_per_sequence") == nil {
		t.Errorf("types of caches in %s", b)
	}
	if number(m, "total_slots") != 3 || number(m, "default_generation_settings", "n_ctx") != 32768 {
		t.Errorf("slots %v, context %v", m["total_slots"], at(m, "default_generation_settings"))
	}
	if at(m, "speculative", "drafter") != true || number(m, "speculative", "block") == 0 ||
		text(m, "runtime", "backend") == "" || text(m, "build_info") != "strobe-v9" {
		t.Errorf("props %v", m)
	}
	plain := start(t, options{plain: true})
	if _, b := plain.do("GET", "/props", ""); at(decodeObject(t, b), "speculative", "drafter") != false {
		t.Errorf("without a drafter: %s", b)
	}
}
