package server

import (
	"encoding/json"
	"math/rand/v2"
	"net/http/httptest"
	"testing"

	"strobe/internal/chat/parse"
	"strobe/internal/dialog"
	"strobe/internal/engine"
)

// FuzzRequests: no body of a request makes the decoders panic, and what they refuse they explain.
func FuzzRequests(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"role":"user","content":"x"}` +
			`],"tools":[{"type":"function","function":{"name":"a",` +
			`"parameters":{}}}],"tool_choice":{"type":"function","function":{"name":"a"}}}`,
		`{"messages":[{"role":"user","content":[{"type":"text",` +
			`"text":"x"},{"type":"tool_result","tool_use_id":"1",` +
			`"content":[{"type":"text","text":"y"}]}]}],"system":[{"type":"text","text":"s"}]}`,
		`{"input":[{"role":"user","content":"x"}` +
			`,{"type":"function_call","name":"a","arguments":"{"}` +
			`,{"type":"function_call_output","output":"x"},{"type":"reasoning"}],"text":{"format":{"type":"json_object"}}}`,
		`{"prompt":[[1,2],"x"],"logit_bias":[["a",false],[5,1e99]],"stop":["a"],"seed":-1,"strobe":{"tree":0}}`,
		`{"messages":[null],"tools":[null],"tool_choice":[],` +
			`"thinking":{"type":"enabled","budget_tokens":-5},"chat_template_kwargs":{"enable_thinking":null}}`,
	} {
		f.Add([]byte(s))
	}
	v := newTestModel(f)
	s := New(Config{})
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(err error) bool {
			if err == nil {
				return true
			}
			if e := explain(err); e.Status != 400 && e.Status != 404 || e.Message == "" { // 404 for an item that is not kept
				t.Errorf("%s: status %d, %q", b, e.Status, e.Message)
			}
			return false
		}
		render := func(c *conversation, err error) {
			if check(err) {
				p, err := v.render(c)
				if check(err) {
					_, err = v.grammars.constraint(c, p)
					check(err)
				}
			}
		}
		var q chatRequest
		if check(decodeJSON(b, "", &q)) {
			c, err := q.conversation()
			render(c, err)
			req := engine.Request{}
			check(q.samplingFields.apply(&req, v.tok))
		}
		var m messagesRequest
		if check(decodeJSON(b, "", &m)) {
			c, err := m.conversation()
			render(c, err)
		}
		var r responsesRequest
		if check(decodeJSON(b, "", &r)) {
			c, err := (&openAI{s.core}).responsesConversation(httptest.NewRequest("POST", "/v1/responses", nil), &r)
			render(c, err)
		}
		var t1 completionRequest
		if check(decodeJSON(b, "", &t1)) {
			_, err := v.prompts(t.Context(), "prompt", t1.Prompt)
			check(err)
		}
	})
}

func newTestModel(t testing.TB) *model {
	t.Helper()
	v, err := newModel("m", startEngine(t, &options{template: hermesTemplate, plain: true}), ChatDefaults{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestChunking: how the engine's events cut the text never shows in an answer.
func TestChunking(t *testing.T) {
	v := newTestModel(t)
	p, err := v.format.Chat(mustMessages(t, user("hi")), dialog.Options{Tools: weather})
	if err != nil {
		t.Fatal(err)
	}
	p.Thinking = true
	said := "I wönder <b>.\n</think>\n\nText\n```\n<tool_call>\n```\nand\n<tool_call>\n{\"name\": \"get_weather\", " +
		"\"arguments\": {\"city\": \"K\\u00f6ln 🙂\", \"days\": 2}}\n</tool_call>\nmore <tool_call>broken"
	r := rand.New(rand.NewPCG(1, 2))
	var want string
	for round := range 300 {
		rep := newReply(v.tok, &conversation{tools: weather, budget: -1, stream: round%2 == 0}, p)
		var ds []delta
		rest := said
		for rest != "" {
			var ev engine.Event
			for range r.IntN(4) {
				runes := []rune(rest)
				n := min(r.IntN(9), len(runes))
				piece := string(runes[:n])
				rest = string(runes[n:])
				ev.Tokens = append(ev.Tokens, engine.Token{Text: []byte(piece), Drafted: n%2 == 0})
				ev.Text = append(ev.Text, piece...)
			}
			ds = append(ds, rep.take(ev)...)
		}
		ds = append(ds, rep.take(engine.Event{Result: &engine.Result{Reason: engine.ReasonEOG}})...)
		var content, reasoning string
		for _, d := range merge(ds) {
			switch d.kind {
			case parse.Content:
				content += d.text
			case parse.Reasoning:
				reasoning += d.text
			}
		}
		if content != rep.content.String() || reasoning != rep.reasoning.String() {
			t.Fatalf("deltas %q %q, whole %q %q", content, reasoning, rep.content.String(), rep.reasoning.String())
		}
		if len(rep.calls) != 1 || !rep.calls[0].complete || rep.finish() != "tool_calls" {
			t.Fatalf("calls %v, end %s", rep.calls, rep.finish())
		}
		b, err := json.Marshal([]string{content, reasoning, rep.calls[0].name, rep.calls[0].args.String()})
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			want = string(b)
			t.Log(want)
		}
		if string(b) != want {
			t.Fatalf("round %d: %s\nwant %s", round, b, want)
		}
	}
}
