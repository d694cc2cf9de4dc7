package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
	"strobe/internal/tokenizer"
)

// Each test of this file proves a property that failed in other servers; numbers such as F25 count those failures.
// Those about drafts and caches themselves are tested in their packages; here they are seen through HTTP.

// TestDraftsReachTheServer (failure F25): speculation is not lost on the way, and the answer shows it.
func TestDraftsReachTheServer(t *testing.T) {
	f := start(t, options{config: Config{Spec: speculate.Options{Draft: "dflash", Fixed: true}}})
	m := f.post("/v1/chat/completions", dict{"messages": user("hi"), "max_tokens": 30, "temperature": 0,
		"ignore_eos": true})
	if n := number(m, "timings", "draft_n"); n == 0 {
		t.Errorf("timings %v", at(m, "timings"))
	}
	m = f.post("/v1/chat/completions", dict{"messages": user("hi"), "max_tokens": 30, "temperature": 0, "ignore_eos": true,
		"strobe": dict{"draft": "off"}})
	if at(m, "timings", "draft_n") != nil {
		t.Errorf("drafts although they are off: %v", at(m, "timings"))
	}
}

// TestReasoningOnlyIsNotEmpty (failure F26): an answer that is all reasoning is not an empty one.
func TestReasoningOnlyIsNotEmpty(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.script("thinking and thinking and thinking")
	m := f.post("/v1/chat/completions", dict{"messages": user("hi"), "enable_thinking": true, "max_tokens": 8})
	if text(m, "choices", 0, "message", "reasoning_content") == "" || text(m, "choices", 0, "finish_reason") != "length" {
		t.Errorf("answer %v", at(m, "choices", 0))
	}
}

// TestAbortedStreamsEndAlone (failure F27): clients that leave in the middle end their generation and nothing else.
func TestAbortedStreamsEndAlone(t *testing.T) {
	f := start(t, options{})
	for i := range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		body := encode(t, dict{"messages": user("hi"), "stream": true, "ignore_eos": true, "max_tokens": 2000})
		req, err := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(resp.Body)
		for range i {
			if _, err := r.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		resp.Body.Close()
	}
	eventually(t, "all slots are free", func() bool { s := f.e.Snapshot(); return s.Active() == 0 && s.Queued == 0 })
	if n := f.e.Snapshot().Requests[engine.ReasonCancelled]; n != 10 {
		t.Errorf("%d cancelled requests", n)
	}
	f.post("/v1/chat/completions", dict{"messages": user("hi"), "max_tokens": 5})
}

// TestStoppedEngineIsReported (failure F28): an engine that stopped gives every request its error; the server lives
// on and says so.
func TestStoppedEngineIsReported(t *testing.T) {
	f := start(t, options{})
	models := f.s.models()
	f.s.SetModels(&broken{models})
	status, b := f.do("POST", "/v1/chat/completions", encode(t, dict{"messages": user("hi")}))
	if status != http.StatusInternalServerError ||
		!strings.Contains(text(decodeObject(t, b), "error", "message"), "no such weights") {
		t.Errorf("%d %s", status, b)
	}
	f.s.SetModels(models)
	f.post("/v1/chat/completions", dict{"messages": user("hi"), "max_tokens": 2})
}

// broken is a model that cannot be loaded.
type broken struct{ Models }

func (b *broken) Acquire(context.Context, string) (string, *engine.Engine, func(*time.Duration), error) {
	return "", nil, nil, &engine.LoadError{Name: "m", Err: fmt.Errorf("no such weights")}
}

// TestAnyIsTheModelUsedLast (failure F30): the reserved name means the loaded model used last, and the answer tells
// which it was.
func TestAnyIsTheModelUsedLast(t *testing.T) {
	p, err := engine.NewPool(engine.PoolConfig{Files: []string{testkit.Golden(t, "qwen3/model.gguf")},
		Load: engine.Options{Threads: 1, Drafter: "none"}, Engine: engine.Config{Context: 512}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	f := &fixture{t: t}
	f.serve(New(Config{Models: Pool(p, "")}))
	q := dict{"messages": user("hi"), "max_tokens": 2}
	status, b := f.do("POST", "/v1/chat/completions", encode(t, with(q, dict{"model": "any"})))
	if status != http.StatusBadRequest || text(decodeObject(t, b), "error", "param") != "model" {
		t.Errorf("nothing loaded: %d %s", status, b)
	}
	if status, _ := f.do("POST", "/v1/chat/completions", encode(t, q)); status != http.StatusBadRequest {
		t.Errorf("no name: %d", status)
	}
	if status, b := f.do("POST", "/v1/chat/completions",
		encode(t, with(q, dict{"model": "nope"}))); status != http.StatusNotFound {
		t.Errorf("unknown: %d %s", status, b)
	}
	_, b = f.do("GET", "/v1/models", "")
	if m := at(decodeObject(t, b), "data", 0); text(m, "state") != "unloaded" || number(m, "last_used_ms") != 0 {
		t.Errorf("before: %s", b)
	}
	name := text(at(decodeObject(t, b), "data", 0), "id")
	f.post("/v1/chat/completions", with(q, dict{"model": name}))
	if m := f.post("/v1/chat/completions", with(q, dict{"model": "any"})); text(m, "model") != name {
		t.Errorf("any is %v", m["model"])
	}
	_, b = f.do("GET", "/v1/models", "")
	if m := at(decodeObject(t, b), "data", 0); text(m, "state") != "loaded" || number(m, "last_used_ms") == 0 {
		t.Errorf("after: %s", b)
	}
}

// TestOddOutputIsAnAnswer (failure F55): whatever a model writes, the answer is one.
func TestOddOutputIsAnAnswer(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	for _, said := range []string{
		"<tool_call>", "<tool_call>{", "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"",
		"</tool_call></think><think>", "<tool_call>{\"name\": \"nobody\", \"arguments\": {}}</tool_call>",
		"\x00\x01\xff\xfe<\xc3", "<|im_start|>", "<think><think></think>",
	} {
		f.script(said)
		for _, path := range []string{"/v1/chat/completions", "/v1/responses", "/v1/messages"} {
			q := dict{"messages": user("?"), "input": "?", "max_tokens": 100}
			if path == "/v1/chat/completions" {
				q["tools"] = weather
			}
			f.post(path, q)
			f.events(path, with(q, dict{"stream": true}))
		}
	}
	// Random sampling of the raw model: random bytes through the parsers.
	f.s.tweak = nil
	for seed := range 5 {
		f.events("/v1/chat/completions", dict{"messages": user("?"), "tools": weather, "stream": true, "seed": seed,
			"temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 200, "ignore_eos": true})
	}
}

// TestLongPromptThroughHTTP (failure F58): prompts of many chunks give what short chunks give.
func TestLongPromptThroughHTTP(t *testing.T) {
	q := dict{"prompt": strings.Repeat("a long prompt ", 40), "max_tokens": 20, "temperature": 0, "ignore_eos": true}
	var want string
	for i, chunk := range []int{16, 61, 500} {
		f := start(t, options{engine: engine.Config{Chunk: chunk}})
		got := text(f.post("/v1/completions", q), "choices", 0, "text")
		if i == 0 {
			want = got
		}
		if got != want || got == "" {
			t.Errorf("chunks of %d: %q, want %q", chunk, got, want)
		}
	}
}

// TestSeedRepeatsARun (failure F87): a seed repeats a run whatever ran before, also seed 0; without one, runs differ.
func TestSeedRepeatsARun(t *testing.T) {
	f := start(t, options{config: Config{Params: sampleParams()}})
	say := func(more dict) string {
		return text(f.post("/v1/completions", with(dict{"prompt": "x", "max_tokens": 20, "ignore_eos": true}, more)),
			"choices", 0, "text")
	}
	zero, seven := say(dict{"seed": 0}), say(dict{"seed": 7})
	a, b := say(dict{}), say(dict{"seed": -1})
	if say(dict{"seed": 7}) != seven || say(dict{"seed": 0}) != zero {
		t.Error("a seed does not repeat a run")
	}
	if zero == seven || a == b {
		t.Errorf("runs with different seeds are the same: %q %q %q %q", zero, seven, a, b)
	}
}

// TestSamplingCountsWithDrafts (failure F100): temperature is not ignored when drafts are verified.
func TestSamplingCountsWithDrafts(t *testing.T) {
	f := start(t, options{})
	seen := map[string]bool{}
	for seed := range 4 {
		for _, temp := range []int{0, 1} {
			m := f.post("/v1/completions", dict{"prompt": "x", "max_tokens": 12, "ignore_eos": true, "seed": seed,
				"temperature": temp, "strobe": dict{"draft": "dflash"}})
			seen[fmt.Sprint(temp, text(m, "choices", 0, "text"))] = true
		}
	}
	if len(seen) < 4 { // one greedy text and several others
		t.Errorf("%d different texts", len(seen))
	}
}

// TestSchemaHoldsAfterReasoning (failure F151): a format does not touch reasoning and holds for the answer.
func TestSchemaHoldsAfterReasoning(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	sch := compileSchema(t, personSchema)
	for seed := range 3 {
		m := f.post("/v1/chat/completions", dict{
			"messages": user("?"), "enable_thinking": true, "thinking_budget_tokens": 10, "temperature": 1, "seed": seed,
			"max_tokens":      400,
			"response_format": dict{"type": "json_schema", "json_schema": dict{"schema": rawJSON(personSchema)}},
		})
		if text(m, "choices", 0, "message", "reasoning_content") == "" {
			t.Errorf("seed %d: no reasoning: %v", seed, at(m, "choices", 0))
		}
		validate(t, sch, text(m, "choices", 0, "message", "content"))
	}
}

// TestReasoningIsFreeOfTheSchema (failure F151): while the model reasons every token is possible, whatever the format
// of the answer is; from its end on the format holds.
func TestReasoningIsFreeOfTheSchema(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	v, err := f.s.modelOf("m", f.e)
	if err != nil {
		t.Fatal(err)
	}
	on := true
	c := &conversation{messages: mustMessages(t, user("?")), thinking: &on, budget: -1}
	c.format = &format{schema: rawJSON(personSchema)}
	p, err := v.render(c)
	if err != nil {
		t.Fatal(err)
	}
	con, err := v.grammars.constraint(c, p)
	if err != nil {
		t.Fatal(err)
	}
	forbidden := func() int {
		logits := make([]float32, v.tok.Size())
		con.Mask(logits)
		n := 0
		for id, l := range logits {
			if math.IsInf(float64(l), -1) && !v.tok.IsEOG(int32(id)) { // there has to be an answer
				n++
			}
		}
		return n
	}
	reasoning := "I wonder {\"what\": [1, 2 to say.\n</thin"
	if !p.Thinking {
		reasoning = "<think>" + reasoning
	}
	for i, id := range v.tok.Encode(reasoning, tokenizer.EncodeOptions{ParseSpecial: true}) {
		if n := forbidden(); p.Thinking && n > 0 || i > 8 && n > 0 {
			t.Fatalf("token %d of the reasoning: %d of %d are forbidden", i, n, v.tok.Size())
		}
		con.Accept(id)
	}
	for _, id := range v.tok.Encode("</think>\n\n", tokenizer.EncodeOptions{ParseSpecial: true}) {
		con.Accept(id)
	}
	if n := forbidden(); n < v.tok.Size()/2 {
		t.Errorf("the answer may begin with anything: only %d of %d are forbidden", n, v.tok.Size())
	}
}

// TestSecondTurnRunsItsOwnTokens (failure F152): the next turn of a chat runs little more than its own tokens.
func TestSecondTurnRunsItsOwnTokens(t *testing.T) {
	for _, model := range []string{"qwen3", "qwen35", "gemma4"} {
		f := start(t, options{model: model})
		msgs := user(strings.Repeat("tell me more ", 20))
		first := f.post("/v1/chat/completions", dict{"messages": msgs, "max_tokens": 20, "temperature": 0})
		msgs = append(msgs, dict{"role": "assistant", "content": text(first, "choices", 0, "message", "content")},
			dict{"role": "user", "content": "go on"})
		q := dict{"messages": msgs, "max_tokens": 20, "temperature": 0}
		second := f.post("/v1/chat/completions", q)
		cached, all := number(second, "timings", "cache_n"), number(second, "usage", "prompt_tokens")
		if turn := number(first, "usage", "prompt_tokens"); cached < turn-20 {
			t.Errorf("%s: %d of %d tokens cached, the first turn had %d", model, cached, all, turn)
		}
		if cached != number(second, "usage", "prompt_tokens_details", "cached_tokens") ||
			cached+number(second, "timings", "prompt_n") != all {
			t.Errorf("%s: counts %v, %v", model, second["usage"], second["timings"])
		}
		cold := f.post("/v1/chat/completions", with(q, dict{"cache_prompt": false}))
		if text(cold, "choices", 0, "message", "content") != text(second, "choices", 0, "message", "content") ||
			number(cold, "timings", "cache_n") != 0 {
			t.Errorf("%s: without the cache: %v", model, cold)
		}
	}
}

// TestNegativeCountsDoNoHarm (failure F165): numbers nobody should send do no harm.
func TestNegativeCountsDoNoHarm(t *testing.T) {
	f := start(t, options{engine: engine.Config{Context: 256}})
	for _, field := range []string{"n_discard", "n_keep", "n_predict", "max_tokens", "id_slot", "n_indent",
		"t_max_predict_ms", "n_probs", "min_keep"} {
		for _, v := range []int{-1, math.MinInt32} {
			status, b := f.do("POST", "/v1/completions",
				fmt.Sprintf(`{"prompt":"x","temperature":0,"max_completion_tokens":3,"%s":%d}`, field, v))
			if status != 200 || number(decodeObject(t, b), "usage", "completion_tokens") > 3 {
				t.Errorf("%s %d: %d %s", field, v, status, b)
			}
		}
	}
	m := f.post("/v1/completions", dict{"prompt": "x", "max_tokens": -1, "ignore_eos": true})
	if n := number(m, "usage", "total_tokens"); n < 250 || n > 257 || text(m, "choices", 0, "finish_reason") != "length" {
		t.Errorf("without a limit %d tokens", n)
	}
}

// TestNobodyListsOthersRequests (failure F172): nobody can list what others do.
func TestNobodyListsOthersRequests(t *testing.T) {
	f := start(t, options{})
	for _, p := range []string{"/v1/streams", "/v1/streams/lookup", "/v1/stream", "/v1/responses/resp_1",
		"/v1/chat/completions/x"} {
		if status, _ := f.do("GET", p, ""); status != 404 {
			t.Errorf("%s: %d", p, status)
		}
	}
	f.post("/v1/completions", dict{"prompt": "secret words", "max_tokens": 2})
	_, b := f.do("GET", "/slots", "")
	if strings.Contains(string(b), "secret") {
		t.Errorf("slots show the prompt: %s", b)
	}
}

// TestStampedSystemPromptHitsTheCache (failure F173): a system prompt that differs in a stamp only hits the cache.
func TestStampedSystemPromptHitsTheCache(t *testing.T) {
	f := start(t, options{})
	ask := func(stamp string) dict {
		return f.post("/v1/messages", dict{"max_tokens": 4, "messages": user("hello"), "system": []dict{
			{"type": "text", "text": "x-anthropic-billing-header: cch=" + stamp},
			{"type": "text", "text": strings.Repeat("You are a helper. ", 20)},
		}})
	}
	ask("aaaa")
	m := ask("bbbb")
	if n := number(m, "usage", "cache_read_input_tokens"); n < 50 {
		t.Errorf("%d tokens cached: %v", n, at(m, "usage"))
	}
}

// TestNothingToGenerate (failures F174 and F175): with a limit of 0 the prompt runs and nothing is generated, and
// rates are numbers.
func TestNothingToGenerate(t *testing.T) {
	f := start(t, options{})
	for _, n := range []int{0, 1} {
		m := f.post("/v1/completions", dict{"prompt": "x y z", "max_tokens": n, "ignore_eos": true})
		if number(m, "timings", "predicted_n") != n || number(m, "usage", "completion_tokens") != n ||
			(n == 0) != (text(m, "choices", 0, "text") == "") {
			t.Errorf("limit %d: %v", n, m)
		}
		for k, v := range at(m, "timings").(dict) {
			if x, ok := v.(float64); !ok || x < 0 {
				t.Errorf("limit %d: %s is %v", n, k, v)
			}
		}
		if number(m, "timings", "predicted_per_second") != 0 {
			t.Errorf("limit %d: a rate without a second token: %v", n, at(m, "timings"))
		}
	}
}

// TestFullContextEndsOneRequest (failure F176): a request that fills its context ends alone.
func TestFullContextEndsOneRequest(t *testing.T) {
	f := start(t, options{engine: engine.Config{Context: 200, Parallel: 2}})
	long := make(chan dict)
	go func() {
		long <- f.post("/v1/completions", dict{"prompt": strings.Repeat("x", 100), "ignore_eos": true})
	}()
	for range 5 {
		if m := f.post("/v1/completions", dict{"prompt": "y", "max_tokens": 20, "ignore_eos": true}); number(m, "usage",
			"completion_tokens") != 20 {
			t.Errorf("the other one: %v", m)
		}
	}
	if m := <-long; text(m, "choices", 0, "finish_reason") != "length" {
		t.Errorf("the long one: %v", m)
	}
}

// TestSecondReasoningBlockHasABudget (failure F185): a second block of reasoning has a budget as well.
func TestSecondReasoningBlockHasABudget(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	v, err := f.s.loaded("")
	if err != nil {
		t.Fatal(err)
	}
	c := &conversation{budget: 3}
	p := &dialog.Prompt{Thinking: true}
	con, err := v.grammars.constraint(c, p)
	if err != nil {
		t.Fatal(err)
	}
	g := con.(*guide)
	say := func(s string) {
		for _, id := range v.tok.Encode(s, tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: true}) {
			g.Accept(id)
		}
	}
	say("a</think>answer<think>")
	if !g.thinking || g.left != 3 {
		t.Fatalf("second block: thinking %v, %d tokens left", g.thinking, g.left)
	}
	say("xyz!")
	if len(g.forced) == 0 {
		t.Error("the second block goes on")
	}
	for len(g.forced) > 0 {
		g.Accept(g.forced[0])
	}
	if g.thinking {
		t.Error("the second block was not ended")
	}
}

// TestSplitsOfCallsJudgedAtTheirEnd (failure F150) is TestSplits with a template whose calls are judged at their end;
// see there.
func TestSplitsOfCallsJudgedAtTheirEnd(t *testing.T) {
	f := start(t, options{template: xmlTemplate})
	said := "x<tool_call>\n<function=get_weather>\n<parameter=city>\na </para " +
		"b\n</parameter>\n<parameter=days>\n12\n</parameter>\n</function>\n</tool_call>"
	f.script(said)
	q := dict{"messages": user("?"), "tools": weather}
	m := f.post("/v1/chat/completions", q)
	_, _, _, calls := joined(f.events("/v1/chat/completions", with(q, dict{"stream": true})))
	want := text(m, "choices", 0, "message", "tool_calls", 0, "function", "arguments")
	if len(calls) != 1 || text(calls[0], "arguments") != want || !strings.Contains(want, `a </para b`) {
		t.Errorf("streamed %v, whole %q", calls, want)
	}
}

// TestHeldMemory: bodies have a limit, each and all together, and are not kept.
func TestHeldMemory(t *testing.T) {
	f := start(t, options{config: Config{MaxBody: 1000, MaxHeld: 2000}})
	if status, b := f.do("POST", "/v1/completions",
		`{"prompt":"`+strings.Repeat("x", 2000)+`"}`); status != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %d %s", status, b)
	}
	// A body of unknown length is cut off where it is too long.
	req, err := http.NewRequestWithContext(t.Context(), "POST", f.url+"/v1/completions",
		io.MultiReader(strings.NewReader(`{"prompt":"`), strings.NewReader(strings.Repeat("x", 5000))))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("unknown length: %d", resp.StatusCode)
	}
	eventually(t, "nothing is held", func() bool { return f.s.held.Load() == 0 })
	f.s.held.Add(2000)
	if status, _ := f.do("POST", "/v1/completions", `{"prompt":"x"}`); status != http.StatusServiceUnavailable {
		t.Errorf("memory taken: %d", status)
	}
	f.s.held.Add(-2000)
	f.post("/v1/completions", dict{"prompt": "x", "max_tokens": 1})
}

// TestFaultyConstraint: a defect in what constrains one answer ends that answer only.
func TestFaultyConstraint(t *testing.T) {
	f := start(t, options{})
	for _, stream := range []bool{false, true} {
		f.s.tweak = func(req *engine.Request, _ *model) { req.Constraint = &faulty{} }
		status, b := f.do("POST", "/v1/chat/completions",
			encode(t, dict{"messages": user("hi"), "stream": stream, "ignore_eos": true}))
		// A stream that has begun ends with an event; one that has not is an ordinary error.
		begun := stream && status == 200 && strings.Contains(string(b), `data: {"error":`) &&
			!strings.Contains(string(b), "[DONE]")
		if status != 500 && !begun {
			t.Errorf("stream %v: %d %s", stream, status, b)
		}
		f.s.tweak = nil
		f.post("/v1/chat/completions", dict{"messages": user("hi"), "max_tokens": 2})
	}
}

// faulty panics at its fifth token.
type faulty struct{ n int }

func (f *faulty) Mask([]float32) {}

func (f *faulty) Accept(int32) {
	if f.n++; f.n == 5 {
		panic("made to fail")
	}
}
