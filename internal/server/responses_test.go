package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/engine"
)

// ask makes a response and returns it.
func (f *fixture) ask(q dict) dict {
	f.t.Helper()
	return f.post("/v1/responses", with(dict{"model": "m", "max_output_tokens": 100}, q))
}

// inputTokens is the length of a prompt.
func (f *fixture) inputTokens(q dict) int {
	f.t.Helper()
	m := f.post("/v1/responses/input_tokens", q)
	if text(m, "object") != "response.input_tokens" || number(m, "input_tokens") == 0 {
		f.t.Fatalf("input tokens: %v", m)
	}
	return number(m, "input_tokens")
}

// TestResponsesMemory: a conversation goes on from a response, and from items of it, as if all of it had been sent.
func TestResponsesMemory(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.script("I wonder.</think>\n\nHello.")
	thinking := dict{"enable_thinking": true}
	for _, stream := range []bool{false, true} {
		q := dict{"input": "Good morning", "chat_template_kwargs": thinking}
		var first dict
		if stream {
			evs := f.events("/v1/responses", with(q, dict{"stream": true}))
			first = at(evs[len(evs)-1].data, "response").(dict)
		} else {
			first = f.ask(q)
		}
		id := text(first, "id")
		if at(first, "store") != true {
			t.Fatalf("store: %v", first)
		}
		said := []any{
			dict{"role": "user", "content": "Good morning"},
			dict{"type": "reasoning", "content": []any{dict{"type": "reasoning_text", "text": "I wonder."}}},
			dict{"role": "assistant", "content": "Hello."},
			dict{"role": "user", "content": "And now?"},
		}
		want := f.inputTokens(dict{"input": said})
		refs := []any{said[0], dict{"type": "item_reference", "id": text(first, "output", 0, "id")},
			dict{"id": text(first, "output", 1, "id")}, said[3]}
		for name, q := range map[string]dict{
			"previous":   {"previous_response_id": id, "input": "And now?"},
			"references": {"input": refs},
		} {
			if n := f.inputTokens(q); n != want {
				t.Errorf("%s: %d tokens, want %d", name, n, want)
			}
			second := f.ask(q)
			if n := number(second, "usage", "input_tokens"); n != want {
				t.Errorf("%s: the answer counts %d input tokens, want %d", name, n, want)
			}
			if p := at(second, "previous_response_id"); (name == "previous") != (p == id) {
				t.Errorf("%s: previous_response_id %v", name, p)
			}
			// A third turn has the second's items too, and what they refer to.
			more := append(slices.Clone(said), dict{"role": "assistant",
				"content": text(second, "output", 0, "content", 0, "text")}, dict{"role": "user", "content": "x"})
			if got, want := f.inputTokens(dict{"previous_response_id": text(second, "id"), "input": "x"}),
				f.inputTokens(dict{"input": more}); got != want {
				t.Errorf("%s, third turn: %d tokens, want %d", name, got, want)
			}
		}

		status, b := f.do("GET", "/v1/responses/"+id, "")
		if got := decodeObject(t, b); status != http.StatusOK || encode(t, got) != encode(t, first) {
			t.Errorf("GET: %d %s\nwant %v", status, b, first)
		}
		status, b = f.do("GET", "/v1/responses/"+id+"/input_items", "")
		if got := decodeObject(t, b); status != http.StatusOK || text(got, "data", 0, "content") != "Good morning" ||
			text(got, "data", 0, "id") != text(got, "first_id") || text(got, "first_id") == "" {
			t.Errorf("input items: %d %s", status, b)
		}
		status, b = f.do("DELETE", "/v1/responses/"+id, "")
		if got := decodeObject(t, b); status != http.StatusOK || at(got, "deleted") != true || text(got, "id") != id {
			t.Errorf("DELETE: %d %s", status, b)
		}
		for _, method := range []string{"GET", "DELETE"} {
			if status, _ := f.do(method, "/v1/responses/"+id, ""); status != http.StatusNotFound {
				t.Errorf("%s after it was deleted: %d", method, status)
			}
		}
		status, b = f.do("POST", "/v1/responses", encode(t, dict{"previous_response_id": id, "input": "x"}))
		if got := decodeObject(t, b); status != http.StatusBadRequest ||
			text(got, "error", "code") != "previous_response_not_found" {
			t.Errorf("a deleted response is referred to: %d %s", status, b)
		}
		status, b = f.do("POST", "/v1/responses", encode(t, dict{"input": refs}))
		if got := decodeObject(t, b); status != http.StatusNotFound || text(got, "error", "param") != "input[1]" {
			t.Errorf("a deleted item is referred to: %d %s", status, b)
		}
	}
}

// TestResponsesNotStored: what shall not be kept is not, and a server may keep nothing.
func TestResponsesNotStored(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	m := f.ask(dict{"input": "x", "store": false, "max_output_tokens": 2})
	if at(m, "store") != false {
		t.Errorf("store: %v", at(m, "store"))
	}
	if status, _ := f.do("GET", "/v1/responses/"+text(m, "id"), ""); status != http.StatusNotFound {
		t.Errorf("it is kept: %d", status)
	}
	f = start(t, options{template: hermesTemplate, config: Config{MaxStored: -1}})
	m = f.ask(dict{"input": "x", "max_output_tokens": 2})
	if at(m, "store") != false {
		t.Errorf("store: %v", at(m, "store"))
	}
	status, b := f.do("POST", "/v1/responses", encode(t, dict{"previous_response_id": text(m, "id"), "input": "x"}))
	if status != http.StatusBadRequest || !strings.Contains(string(b), "keeps no responses") {
		t.Errorf("%d %s", status, b)
	}
}

// TestMemoryLimits: size and age bound what is kept, use keeps it, and nothing of what went stays.
func TestMemoryLimits(t *testing.T) {
	now := time.Unix(0, 0)
	m := newMemory(40<<10, time.Hour)
	m.now = func() time.Time { return now }
	put := func(i int) {
		t.Helper()
		resp := &responseJSON{ID: fmt.Sprint("r", i), Output: []outputItem{{ID: fmt.Sprint("o", i), Type: "message"}}}
		input := []json.RawMessage{json.RawMessage(fmt.Sprintf(`{"id":"i%d","type":"message","content":%q}`, i,
			strings.Repeat("x", 1000)))}
		if ok, err := putResponse(m, "", resp, input); !ok || err != nil {
			t.Fatalf("%d: %v, %v", i, ok, err)
		}
	}
	put(0)
	for i := 1; i < 100; i++ {
		now = now.Add(time.Minute)
		put(i)
		if m.bytes > m.limit {
			t.Fatalf("%d bytes", m.bytes)
		}
		if m.item(ownedID{"", "i0"}) == nil { // in use
			t.Fatalf("after %d more, the one in use is gone", i)
		}
	}
	if n := m.recent.Len(); n != len(m.byID) || len(m.items) != 2*n || n < 5 || n > 30 {
		t.Errorf("%d responses, %d by id, %d items", n, len(m.byID), len(m.items))
	}
	if m.get(ownedID{"", "r1"}) != nil || m.get(ownedID{"", "r99"}) == nil ||
		m.item(ownedID{"", "o99"}) == nil || m.item(ownedID{"", "o1"}) != nil {
		t.Error("the wrong ones are gone")
	}
	now = now.Add(time.Hour + time.Second)
	if m.get(ownedID{"", "r99"}) != nil || m.bytes != 0 || len(m.items) != 0 || len(m.byID) != 0 {
		t.Errorf("after their time %d bytes, %d items are left", m.bytes, len(m.items))
	}
	big := &responseJSON{ID: "big", Output: []outputItem{}}
	if ok, err := putResponse(m, "", big, []json.RawMessage{json.RawMessage(`"` + strings.Repeat("x", 50<<10) +
		`"`)}); ok ||
		err != nil || m.bytes != 0 {
		t.Errorf("too large: %v, %v, %d bytes", ok, err, m.bytes)
	}
	// An item said again belongs to the later response.
	same := []json.RawMessage{json.RawMessage(`{"id":"same","role":"user","content":"x"}`)}
	for _, id := range []string{"a", "b"} {
		if ok, err := putResponse(m, "", &responseJSON{ID: id}, same); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if m.remove(ownedID{"", "a"}); m.item(ownedID{"", "same"}) == nil {
		t.Error("an item of a response that is kept is gone")
	}
}

// TestRecallIsBounded: a small request cannot refer to more than a request may hold.
func TestRecallIsBounded(t *testing.T) {
	f := start(t, options{template: hermesTemplate, config: Config{MaxBody: 100 << 10}})
	m := f.ask(dict{"input": []any{dict{"id": "big", "role": "user", "content": strings.Repeat("many words ", 50)}},
		"max_output_tokens": 1})
	if at(m, "store") != true {
		t.Fatal(m)
	}
	refs := make([]any, 1000)
	for i := range refs {
		refs[i] = dict{"type": "item_reference", "id": "big"}
	}
	if status, b := f.do("POST", "/v1/responses",
		encode(t, dict{"input": refs})); status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %.200s", status, b)
	}
	if n := f.inputTokens(dict{"input": refs[:2]}); n < 200 {
		t.Errorf("two references are %d tokens", n)
	}
}

// TestInputPages: long inputs are listed page by page, in both orders.
func TestInputPages(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	var items []any
	for i := range 5 {
		items = append(items, dict{"role": "user", "content": fmt.Sprint(i)})
	}
	id := text(f.ask(dict{"input": items, "max_output_tokens": 1}), "id")
	for order, want := range map[string]string{"asc": "01234", "desc": "43210", "": "43210"} {
		got, after := "", ""
		for range 5 {
			status, b := f.do("GET", "/v1/responses/"+id+"/input_items?limit=2&order="+order+"&after="+after, "")
			m := decodeObject(t, b)
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, b)
			}
			for _, it := range at(m, "data").([]any) {
				got += text(it, "content")
			}
			if at(m, "has_more") != true {
				break
			}
			after = text(m, "last_id")
		}
		if got != want {
			t.Errorf("order %q: %s", order, got)
		}
	}
	for _, query := range []string{"limit=0", "limit=x", "order=up", "after=nobody"} {
		if status, b := f.do("GET", "/v1/responses/"+id+"/input_items?"+query, ""); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, status, b)
		}
	}
}

// TestReasoningItems: reasoning is shown where the client looks for it and comes back from where it was kept.
func TestReasoningItems(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.script("I wonder.</think>\n\nHello.")
	q := dict{"input": "x", "chat_template_kwargs": dict{"enable_thinking": true}, "reasoning": dict{"summary": "auto"},
		"include": []string{"reasoning.encrypted_content"}, "store": false}
	m := f.ask(q)
	item := at(m, "output", 0)
	if text(item, "type") != "reasoning" || text(item, "summary", 0, "text") != "I wonder." ||
		text(item, "summary", 0, "type") != "summary_text" || at(item, "content") != nil {
		t.Errorf("reasoning %v", item)
	}
	evs := f.events("/v1/responses", with(q, dict{"stream": true}))
	want := []string{
		"response.created", "response.in_progress",
		"response.output_item.added", "response.reasoning_summary_part.added", "response.reasoning_summary_text.delta",
		"response.reasoning_summary_text.done", "response.reasoning_summary_part.done", "response.output_item.done",
		"response.output_item.added", "response.content_part.added", "response.output_text.delta",
		"response.output_text.done", "response.content_part.done", "response.output_item.done",
		"response.completed",
	}
	if got := names(evs); !slices.Equal(got, want) {
		t.Errorf("events %v", got)
	}
	if d := evs[4].data; at(d, "summary_index") != 0.0 || !strings.HasPrefix("I wonder.", text(d, "delta")) {
		t.Errorf("delta %v", d)
	}
	// However a client sends it back, the prompt is the same.
	prompt := func(item any) int {
		return f.inputTokens(dict{"input": []any{dict{"role": "user", "content": "x"}, item,
			dict{"role": "assistant", "content": "Hello."}, dict{"role": "user", "content": "y"}}})
	}
	plain := prompt(dict{"type": "reasoning", "content": []any{dict{"type": "reasoning_text", "text": "I wonder."}}})
	sealed := dict{"type": "reasoning", "summary": []any{}, "encrypted_content": at(item, "encrypted_content")}
	for name, it := range map[string]any{"whole": item, "sealed": sealed,
		"summary": dict{"type": "reasoning", "summary": at(item, "summary")}} {
		if n := prompt(it); n != plain {
			t.Errorf("%s: %d tokens, want %d", name, n, plain)
		}
	}
	if n := prompt(dict{"type": "reasoning", "summary": []any{},
		"encrypted_content": "gAAAA of somebody else"}); n >= plain {
		t.Errorf("reasoning nobody can read took %d tokens", n)
	}
}

// TestNamespaces: tools in namespaces have one name for the model and two for the client.
func TestNamespaces(t *testing.T) {
	schema := dict{"type": "object", "properties": dict{"q": dict{"enum": []string{"a", "b"}}}}
	for _, namespace := range []string{"mcp__docs", "mcp__docs__"} {
		f := start(t, options{template: hermesTemplate})
		f.script("<tool_call>\n{\"name\": \"mcp__docs__search\", \"arguments\": {\"q\": " +
			"\"a\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"plain\", \"arguments\": {}}\n</tool_call>")
		tools := []any{
			dict{"type": "namespace", "name": namespace, "description": "d",
				"tools": []any{dict{"type": "function", "name": "search", "parameters": schema}}},
			dict{"type": "function", "name": "plain", "parameters": schema},
		}
		q := dict{"input": "x", "tools": tools}
		evs := f.events("/v1/responses", with(q, dict{"stream": true}))
		for where, m := range map[string]any{"whole": f.ask(q), "stream": at(evs[len(evs)-1].data, "response")} {
			call := at(m, "output", 0)
			if text(call, "name") != "search" || text(call, "namespace") != namespace {
				t.Errorf("%s: %v", where, call)
			}
			if plain := at(m, "output", 1); text(plain, "name") != "plain" || at(plain, "namespace") != nil {
				t.Errorf("%s: %v", where, plain)
			}
		}
		f.s.tweak = nil
		history := func(call dict) int {
			return f.inputTokens(with(q, dict{"input": []any{dict{"role": "user", "content": "x"},
				with(dict{"type": "function_call", "call_id": "c", "arguments": "{}"}, call),
				dict{"type": "function_call_output", "call_id": "c", "output": "found"}}}))
		}
		if a, b := history(dict{"name": "search", "namespace": namespace}),
			history(dict{"name": "mcp__docs__search"}); a != b {
			t.Errorf("in history: %d tokens with a namespace, %d with the flat name", a, b)
		}
		m := f.ask(with(q, dict{"tool_choice": dict{"type": "function", "name": "search", "namespace": namespace},
			"parallel_tool_calls": false}))
		if text(m, "output", 0, "name") != "search" || text(m, "output", 0, "namespace") != namespace {
			t.Errorf("forced: %v", at(m, "output"))
		}
	}
}

// TestAllowedTools: the model hears of no tool that it may not call.
func TestAllowedTools(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	tool := func(name string) dict {
		return dict{"type": "function", "function": dict{"name": name,
			"parameters": dict{"type": "object", "properties": dict{}}}}
	}
	q := dict{"messages": user("x"), "tools": []any{tool("one"), tool("two")}}
	choice := dict{"type": "allowed_tools", "allowed_tools": dict{"mode": "required",
		"tools": []any{dict{"type": "function", "function": dict{"name": "two"}}}}}
	m := f.post("/apply-template", with(q, dict{"tool_choice": choice}))
	if p := text(m, "prompt"); strings.Contains(p, `"one"`) || !strings.Contains(p, `"two"`) {
		t.Errorf("prompt %s", p)
	}
	m = f.post("/v1/chat/completions", with(q, dict{"tool_choice": choice, "max_tokens": 100,
		"parallel_tool_calls": false}))
	if text(m, "choices", 0, "message", "tool_calls", 0, "function", "name") != "two" {
		t.Errorf("%v", m)
	}
	m = f.ask(dict{"input": "x", "parallel_tool_calls": false,
		"tools": []any{dict{"type": "function", "name": "one",
			"parameters": dict{"type": "object", "properties": dict{}}}, dict{"type": "function", "name": "two"}},
		"tool_choice": dict{"type": "allowed_tools", "mode": "required",
			"tools": []any{dict{"type": "function", "name": "one"}}}})
	if text(m, "output", 0, "name") != "one" {
		t.Errorf("%v", at(m, "output"))
	}
}

// TestImagesInResults: a picture that a tool returned is mentioned and the conversation goes on, in every protocol.
func TestImagesInResults(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	mention := "[image left out: this model reads text only]"
	args := dict{"type": "function", "function": dict{"name": "shot", "arguments": "{}"}, "id": "c"}
	m := f.post("/apply-template",
		dict{"messages": []dict{{"role": "user", "content": "x"},
			{"role": "assistant", "content": nil, "tool_calls": []any{args}},
			{"role": "tool", "tool_call_id": "c", "content": []any{dict{"type": "text", "text": "done"},
				dict{"type": "image_url", "image_url": dict{"url": "data:"}}}}}})
	if !strings.Contains(text(m, "prompt"), "done\n"+mention) {
		t.Errorf("chat: %s", text(m, "prompt"))
	}
	prompts := map[string]func(any) int{
		"anthropic": func(content any) int {
			return number(f.post("/v1/messages/count_tokens", dict{"messages": []dict{{"role": "user", "content": "x"},
				{"role": "assistant", "content": []any{dict{"type": "tool_use", "id": "c", "name": "shot", "input": dict{}}}},
				{"role": "user", "content": []any{dict{"type": "tool_result", "tool_use_id": "c", "content": content}}}}}),
				"input_tokens")
		},
		"responses": func(content any) int {
			return f.inputTokens(dict{"input": []any{dict{"role": "user", "content": "x"},
				dict{"type": "function_call", "call_id": "c", "name": "shot", "arguments": "{}"},
				dict{"type": "function_call_output", "call_id": "c", "output": content}}})
		},
	}
	for name, prompt := range prompts {
		kind := map[string]string{"anthropic": "image", "responses": "input_image"}[name]
		if got, want := prompt([]any{dict{"type": "text", "text": "done"}, dict{"type": kind}}),
			prompt("done\n"+mention); got != want {
			t.Errorf("%s: %d tokens, want %d", name, got, want)
		}
	}
}

// TestSecondTurn: of a long conversation that goes on, only what is new is run, in every protocol and however it is
// referred to.
func TestSecondTurn(t *testing.T) {
	long := strings.Repeat("All work and no play makes Jack a dull boy. ", 80)
	for _, model := range []string{"qwen3", "qwen35"} {
		f := start(t, options{model: model, template: hermesTemplate, engine: engine.Config{Context: 4096}})
		f.script("Hello.")
		first := f.ask(dict{"input": long})
		messages := []dict{{"role": "user", "content": long}, {"role": "assistant", "content": "Hello."},
			{"role": "user", "content": "And now?"}}
		all := f.inputTokens(dict{"input": messages})
		for name, ask := range map[string]func() dict{
			"previous": func() dict { return f.ask(dict{"previous_response_id": text(first, "id"), "input": "And now?"}) },
			"references": func() dict {
				return f.ask(dict{"input": []any{messages[0], dict{"type": "item_reference", "id": text(first, "output", 0, "id")},
					messages[2]}})
			},
			"chat":   func() dict { return f.post("/v1/chat/completions", dict{"messages": messages}) },
			"ollama": func() dict { return f.post("/api/chat", dict{"messages": messages, "stream": false}) },
		} {
			m := ask()
			if name == "ollama" { // says how long the prompt is, not what was run
				if number(m, "prompt_eval_count") != all {
					t.Errorf("%s, %s: %d tokens of %d", model, name, number(m, "prompt_eval_count"), all)
				}
				continue
			}
			cached, run := number(m, "timings", "cache_n"), number(m, "timings", "prompt_n")
			if cached+run != all || all < 1000 || run > 60 {
				t.Errorf("%s, %s: %d of %d tokens were run, %d cached", model, name, run, all, cached)
			}
		}
	}
}

// TestResponseLogProbs: the text of an answer has its log probabilities, without those of reasoning and markers.
func TestResponseLogProbs(t *testing.T) {
	f := start(t, options{template: hermesTemplate, plain: true})
	join := func(list any) (out string) {
		for _, e := range list.([]any) {
			out += text(e, "token")
			if top := at(e, "top_logprobs").([]any); len(top) != 2 {
				t.Errorf("%v has %d alternatives", e, len(top))
			}
		}
		return out
	}
	f.script("<think>Hm.</think>\n\nFine <b>so</b>.")
	q := dict{"input": "?", "include": []string{"message.output_text.logprobs"}, "top_logprobs": 2}
	m := f.post("/v1/responses", q)
	if got := join(at(m, "output", 1, "content", 0, "logprobs")); got != "Fine <b>so</b>." {
		t.Errorf("the tokens are %q", got)
	}
	var deltas string
	for _, e := range f.events("/v1/responses", with(q, dict{"stream": true})) {
		switch e.data["type"] {
		case "response.output_text.delta":
			deltas += join(e.data["logprobs"])
		case "response.output_text.done":
			if got := join(e.data["logprobs"]); got != "Fine <b>so</b>." {
				t.Errorf("at the end the tokens are %q", got)
			}
		}
	}
	if deltas != "Fine <b>so</b>." {
		t.Errorf("streamed, the tokens are %q", deltas)
	}
	m = f.post("/v1/responses", dict{"input": "?"})
	if got := at(m, "output", 1, "content", 0, "logprobs").([]any); len(got) > 0 {
		t.Errorf("logprobs without being asked for: %v", got)
	}
}
