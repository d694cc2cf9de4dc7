package server

import (
	"fmt"
	"strings"
	"testing"
)

// TestConversations: responses read a conversation and add to it, and its items can be listed, added and removed.
func TestConversations(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.script("Hello.")
	conv := f.post("/v1/conversations", dict{"metadata": dict{"topic": "a"},
		"items": []dict{{"role": "developer", "content": "Be brief."}}})
	id := text(conv, "id")
	if text(conv, "object") != "conversation" || text(conv, "metadata", "topic") != "a" ||
		number(conv, "created_at") == 0 {
		t.Errorf("created: %v", conv)
	}
	path := "/v1/conversations/" + id
	said := []any{dict{"role": "developer", "content": "Be brief."}, dict{"role": "user", "content": "Good morning"},
		dict{"role": "assistant", "content": "Hello."}, dict{"role": "user", "content": "And now?"}}
	for i, stream := range []bool{false, true} {
		q := dict{"conversation": id, "input": said[1+2*i].(dict)["content"]}
		if stream {
			q["conversation"] = dict{"id": id}
		}
		if got, want := f.inputTokens(q), f.inputTokens(dict{"input": said[:2+2*i]}); got != want {
			t.Errorf("turn %d: %d tokens, want %d", i, got, want)
		}
		var m dict
		if stream {
			evs := f.events("/v1/responses", with(q, dict{"stream": true, "store": false}))
			m = at(evs[len(evs)-1].data, "response").(dict)
		} else {
			m = f.ask(q)
			// What belongs to a conversation is continued there.
			status, b := f.do("POST", "/v1/responses", encode(t, dict{"input": "x", "previous_response_id": text(m, "id")}))
			if status != 400 || !strings.Contains(string(b), id) {
				t.Errorf("a response of a conversation is continued alone: %d %s", status, b)
			}
		}
		if text(m, "conversation", "id") != id {
			t.Errorf("the response says %v", at(m, "conversation"))
		}
	}
	list := f.get(path+"/items?order=asc", 200)
	var got []string
	for i := range at(list, "data").([]any) {
		it := at(list, "data", i)
		got = append(got, text(it, "type")+" "+text(it, "role")+" "+text(it, "content", 0, "type")+" "+
			text(it, "content", 0, "text")+" "+text(it, "status"))
	}
	want := []string{"message developer input_text Be brief. completed", "message user input_text Good morning completed",
		"message assistant output_text Hello. completed", "message user input_text And now? completed",
		"message assistant output_text Hello. completed"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("items: %q, want %q", got, want)
	}
	if page := f.get(path+"/items?limit=2", 200); text(page, "data", 0, "id") != text(list, "data", 4, "id") ||
		at(page, "has_more") != true {
		t.Errorf("a page: %v", page)
	}
	// Items can be referred to, added, looked at and removed.
	ref := dict{"type": "item_reference", "id": text(list, "data", 1, "id")}
	added := f.post(path+"/items", dict{"items": []dict{ref, {"role": "user", "content": "more"}}})
	if text(added, "data", 0, "content", 0, "text") != "Good morning" ||
		text(added, "data", 1, "content", 0, "text") != "more" {
		t.Errorf("added: %v", added)
	}
	item := text(added, "last_id")
	if it := f.get(path+"/items/"+item, 200); text(it, "content", 0, "text") != "more" {
		t.Errorf("an item: %v", it)
	}
	for _, want := range []int{200, 404} {
		if status, b := f.do("DELETE", path+"/items/"+item, ""); status != want ||
			want == 200 && text(decodeObject(t, b), "id") != id {
			t.Errorf("an item is removed: %d %s", status, b)
		}
	}
	f.get(path+"/items/"+item, 404)
	if n := len(at(f.get(path+"/items", 200), "data").([]any)); n != 6 {
		t.Errorf("%d items are left", n)
	}
	// Metadata are replaced, and nothing else.
	f.post(path, dict{"metadata": dict{"b": "c"}})
	if c := f.get(path, 200); text(c, "metadata", "b") != "c" || at(c, "metadata", "topic") != nil ||
		at(c, "created_at") != at(conv, "created_at") {
		t.Errorf("changed: %v", c)
	}
	if status, b := f.do("DELETE", path, ""); status != 200 ||
		text(decodeObject(t, b), "object") != "conversation.deleted" {
		t.Errorf("deleted: %d %s", status, b)
	}
	f.get(path, 404)
	if status, b := f.do("POST", "/v1/responses", encode(t, dict{"input": "x", "conversation": id})); status != 404 {
		t.Errorf("a conversation that is gone: %d %s", status, b)
	}
}

// TestConversationErrors: wrong requests change nothing, ids of one kind are not taken for the other, and what does not
// fit is refused.
func TestConversationErrors(t *testing.T) {
	f := start(t, options{template: hermesTemplate, config: Config{MaxStored: 8000}})
	conv := text(f.post("/v1/conversations", ""), "id")
	resp := text(f.ask(dict{"input": "x", "max_output_tokens": 1}), "id")
	long := strings.Repeat("x", 7000)
	for _, c := range []struct {
		method, path string
		body         any
		status       int
	}{
		{"POST", "/v1/conversations", dict{"metadata": "x"}, 400},
		{"POST", "/v1/conversations", dict{"items": []dict{{"type": "unknown"}}}, 400},
		{"POST", "/v1/conversations", dict{"items": []dict{{"type": "item_reference", "id": "none"}}}, 404},
		{"POST", "/v1/conversations", dict{"items": []dict{{"role": "user", "content": long + long}}}, 413},
		{"POST", "/v1/conversations/" + conv + "/items", dict{}, 400},
		{"POST", "/v1/conversations/" + conv + "/items",
			dict{"items": []dict{{"role": "user", "content": long + long}}}, 413},
		{"POST", "/v1/conversations/" + resp + "/items", dict{"items": []dict{{"role": "user", "content": "x"}}}, 404},
		{"GET", "/v1/conversations/" + resp, "", 404},
		{"DELETE", "/v1/conversations/" + resp, "", 404},
		{"GET", "/v1/responses/" + conv, "", 404},
		{"DELETE", "/v1/responses/" + conv, "", 404},
		{"POST", "/v1/responses/" + conv + "/cancel", "", 404},
		{"POST", "/v1/responses", dict{"input": "x", "previous_response_id": conv}, 400},
		{"POST", "/v1/responses", dict{"input": "x", "conversation": resp}, 400},
		{"POST", "/v1/responses", dict{"input": "x", "conversation": conv, "previous_response_id": resp}, 400},
		{"POST", "/v1/responses", dict{"input": "x", "conversation": dict{}}, 400},
	} {
		if status, b := f.do(c.method, c.path, encode(t, c.body)); status != c.status {
			t.Errorf("%s %s %.80v: %d %s, want %d", c.method, c.path, c.body, status, b, c.status)
		}
	}
	if items := f.get("/v1/conversations/"+conv+"/items", 200); len(at(items, "data").([]any)) != 0 {
		t.Errorf("wrong requests added %v", items)
	}
	// A server that keeps nothing says so.
	f.serve(New(Config{Models: Single("m", f.e), MaxStored: -1}))
	if status, b := f.do("POST", "/v1/conversations", "{}"); status != 413 ||
		!strings.Contains(string(b), "responses-memory") {
		t.Errorf("a server that keeps nothing: %d %s", status, b)
	}
	if status, b := f.do("POST", "/v1/responses", `{"input":"x","background":true}`); status != 400 {
		t.Errorf("a server that keeps nothing, in the background: %d %s", status, b)
	}
}

// TestConversationOwners: a conversation belongs to the key it was made with.
func TestConversationOwners(t *testing.T) {
	f := start(t, options{template: hermesTemplate, config: Config{Keys: []string{"one", "two"}}})
	_, b := f.do("POST", "/v1/conversations", "{}", "X-Api-Key", "one")
	id := text(decodeObject(t, b), "id")
	for key, want := range map[string]int{"one": 200, "two": 404} {
		if status, b := f.do("GET", "/v1/conversations/"+id, "", "X-Api-Key", key); status != want {
			t.Errorf("%s: %d %s", key, status, b)
		}
		q := encode(t, dict{"input": "x", "conversation": id, "max_output_tokens": 1})
		if status, b := f.do("POST", "/v1/responses", q, "X-Api-Key", key); status != want {
			t.Errorf("%s asks: %d %s", key, status, b)
		}
	}
}
