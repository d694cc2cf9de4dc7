package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/testkit"
)

// TestTranslatedUsage: counts and the reason for the end of an upstream's answer are the client's, too.
func TestTranslatedUsage(t *testing.T) {
	for _, reason := range []string{"stop", "length"} {
		url, _ := oddUpstream(t, func(w io.Writer) {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":%q}]}\n\n", reason)
			io.WriteString(w, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":5}}}`+
				"\n\ndata: [DONE]\n\n")
		})
		f := front(t, Config{}, url)
		for _, stream := range []bool{false, true} {
			_, b := f.do("POST", "/v1/responses", encode(t, dict{"model": "far", "input": "x", "stream": stream}))
			m := map[bool]string{true: "incomplete", false: "completed"}[reason == "length"]
			last := b[bytes.LastIndex(b, []byte(`"usage":{`)):]
			for _, want := range []string{`"input_tokens":9`, `"cached_tokens":5`, `"output_tokens":4`, `"total_tokens":13`} {
				if !bytes.Contains(last, []byte(want)) {
					t.Errorf("%s, stream %v: no %s in %s", reason, stream, want, b)
				}
			}
			if !bytes.Contains(b, []byte(`"status":"`+m+`"`)) {
				t.Errorf("%s, stream %v: not %s: %s", reason, stream, m, b)
			}
			_, b = f.do("POST", "/api/chat", encode(t, dict{"model": "far", "messages": user("x"), "stream": stream}))
			for _, want := range []string{`"prompt_eval_count":9`, `"eval_count":4`, `"done_reason":"` + reason + `"`} {
				if !bytes.Contains(b, []byte(want)) {
					t.Errorf("%s, stream %v: no %s in %s", reason, stream, want, b)
				}
			}
		}
	}
}

// TestUpstreamChunksComeAtOnce: what an upstream has sent its client has, while the upstream thinks about the rest.
func TestUpstreamChunksComeAtOnce(t *testing.T) {
	goOn := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"far"}]}`)
		case "/v1/chat/completions":
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, `data: {"choices":[{"delta":{"content":"one"}}]}`+"\n\n")
			_ = http.NewResponseController(w).Flush()
			<-goOn
			io.WriteString(w, `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
		}
	}))
	defer srv.Close()
	f := front(t, Config{}, srv.URL)
	for path, q := range map[string]dict{
		"/v1/chat/completions": {"messages": user("x")}, "/v1/responses": {"input": "x"},
		"/api/chat": {"messages": user("x")},
	} {
		client := &http.Client{Timeout: 20 * time.Second}
		resp, err := client.Post(f.url+path, "application/json",
			strings.NewReader(encode(t, with(q, dict{"model": "far", "stream": true}))))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for sc := bufio.NewScanner(resp.Body); !found && sc.Scan(); {
			found = strings.Contains(sc.Text(), "one")
		}
		if !found {
			t.Errorf("%s: the first chunk does not come before the last", path)
		}
		goOn <- struct{}{}
		_ = resp.Body.Close()
	}
}

// TestMemoryBorders: a response is kept for its whole time and no longer, and is a copy of its request.
func TestMemoryBorders(t *testing.T) {
	now := time.Unix(0, 0)
	m := newMemory(40<<10, time.Hour)
	m.now = func() time.Time { return now }
	raw := json.RawMessage(`{"id":"i","role":"user","content":"mine"}`)
	if ok, err := m.put("", &responseJSON{ID: "r"}, []json.RawMessage{raw}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	copy(raw, strings.Repeat("x", len(raw))) // the body of another request
	if got := string(m.item(ownedID{"", "i"})); !strings.Contains(got, "mine") {
		t.Errorf("the item became %s", got)
	}
	now = now.Add(time.Hour)
	if m.get(ownedID{"", "r"}) == nil {
		t.Error("it is gone before its time")
	}
	now = now.Add(time.Hour + 1)
	if m.get(ownedID{"", "r"}) != nil {
		t.Error("it is there after its time")
	}
	// One that fits exactly is kept.
	size := func(limit int64) (int64, bool) {
		m := newMemory(limit, time.Hour)
		ok, _ := m.put("", &responseJSON{ID: "r"}, nil)
		return m.bytes, ok
	}
	n, _ := size(1 << 20)
	if _, ok := size(n); !ok {
		t.Error("one that fits is not kept")
	}
	if _, ok := size(n - 1); ok {
		t.Error("one that does not fit is kept")
	}
}

// TestLastPage: the last page says that it is the last, also when it is full.
func TestLastPage(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	var input []dict
	for i := range 4 {
		input = append(input, dict{"id": fmt.Sprint("i", i), "type": "message", "role": "user", "content": "x"})
	}
	id := text(f.post("/v1/responses", dict{"input": input, "max_output_tokens": 1}), "id")
	page := func(query string) string {
		_, b := f.do("GET", "/v1/responses/"+id+"/input_items?order=asc&"+query, "")
		m := decodeObject(t, b)
		return fmt.Sprint(text(m, "first_id"), text(m, "last_id"), at(m, "has_more"))
	}
	for query, want := range map[string]string{
		"limit=2": "i0i1true", "limit=2&after=i1": "i2i3false", "limit=2&after=i0": "i1i2true", "limit=4": "i0i3false",
		"limit=3": "i0i2true",
	} {
		if got := page(query); got != want {
			t.Errorf("%s: %s, not %s", query, got, want)
		}
	}
}

// TestBuckets: a time that is exactly a bound counts in its bucket.
func TestBuckets(t *testing.T) {
	m := newMeter(time.Now(), nil, nil)
	for _, d := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 5 * time.Minute, time.Hour} {
		m.observe("x", "a", d)
	}
	h := m.hists["x{a"]
	if h.counts[0] != 1 || h.counts[3] != 1 || h.counts[len(bounds)-1] != 1 || h.counts[len(bounds)] != 1 {
		t.Errorf("counts %v", h.counts)
	}
}

// TestRates: averages begin anew with a model that was loaded anew, and are over the time since the last look.
func TestRates(t *testing.T) {
	m := newMeter(time.Now(), nil, nil)
	look := func(tokens, steps int) float64 {
		s := &engine.Snapshot{Steps: int64(steps), BatchRows: int64(2 * steps)}
		s.Stats.Tokens, s.Stats.DecodeTime = tokens, time.Duration(tokens)*100*time.Millisecond
		_, rate, busy := m.averages("m", s)
		if busy != 2 {
			t.Errorf("%d steps: %v streams", steps, busy)
		}
		return rate
	}
	for _, c := range []struct{ tokens, steps int }{{10, 10}, {30, 20}, {5, 5}} {
		if got := look(c.tokens, c.steps); got != 10 {
			t.Errorf("%d tokens: %v per second", c.tokens, got)
		}
	}
}

// TestLastUsedIsShown: of several loaded models the one used last is what /props shows.
func TestLastUsedIsShown(t *testing.T) {
	p, err := engine.NewPool(engine.PoolConfig{
		Files: []string{testkit.Golden(t, "qwen3/model.gguf"), goldenWith(t, "qwen35", hermesTemplate)},
		Load:  engine.Options{Drafter: "none", Threads: 1}, Engine: engine.Config{Context: 256},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	f := &fixture{t: t}
	f.serve(New(Config{Models: Pool(p, "")}))
	for _, m := range append(p.Models(), p.Models()...) {
		f.post("/v1/completions", dict{"model": m.Name, "prompt": "x", "max_tokens": 1})
		_, b := f.do("GET", "/props", "")
		if got := text(decodeObject(t, b), "model_alias"); got != m.Name {
			t.Errorf("%s was used last, %s is shown", m.Name, got)
		}
	}
	// Views of models that are gone are gone.
	for _, m := range p.Models() {
		f.post("/models/unload", dict{"model": m.Name})
	}
	f.post("/v1/completions", dict{"model": p.Models()[0].Name, "prompt": "x", "max_tokens": 1})
	if n := len(f.s.inUse); n != 1 {
		t.Errorf("%d models", n)
	}
}

// TestAllOrNone: when one of several answers cannot be queued, none runs, and their slots are free.
func TestAllOrNone(t *testing.T) {
	f := start(t, options{engine: engine.Config{Parallel: 1, Queue: 1}})
	status, b := f.do("POST", "/v1/chat/completions", encode(t, dict{"messages": user("x"), "n": 4, "ignore_eos": true,
		"max_tokens": 1500}))
	if status != http.StatusServiceUnavailable {
		t.Fatalf("%d %s", status, b)
	}
	eventually(t, "nothing runs", func() bool { s := f.e.Snapshot(); return s.Active() == 0 && s.Queued == 0 })
	for reason, n := range f.e.Snapshot().Requests {
		if reason != engine.ReasonCancelled && n > 0 {
			t.Errorf("%d ended by %v", n, reason)
		}
	}
}

// TestManyChoicesUsage: choices share their prompt and add up what they say and think.
func TestManyChoicesUsage(t *testing.T) {
	f := start(t, options{template: hermesTemplate, engine: engineConfig(2)})
	f.script("<think>well well</think>Hello")
	q := dict{"messages": user("hi")}
	one := f.post("/v1/chat/completions", q)
	two := f.post("/v1/chat/completions", with(q, dict{"n": 2}))
	for _, path := range [][]any{
		{"usage", "completion_tokens"}, {"usage", "completion_tokens_details", "reasoning_tokens"},
	} {
		if a, b := number(one, path...), number(two, path...); a == 0 || b != 2*a {
			t.Errorf("%v: %d of one choice, %d of two", path, a, b)
		}
	}
	if a, b := number(one, "usage", "prompt_tokens"), number(two, "usage", "prompt_tokens"); a != b {
		t.Errorf("the prompt has %d tokens, with two choices %d", a, b)
	}
}

// TestBusyInAnthropicsWords: the kinds of errors that its clients know.
func TestBusyInAnthropicsWords(t *testing.T) {
	for status, want := range map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
		413: "request_too_large", 429: "invalid_request_error", 500: "api_error", 502: "api_error", 503: "overloaded_error",
	} {
		if got := (&apiError{Status: status}).anthropic(); got.Error.Type != want || got.Type != "error" {
			t.Errorf("%d is %+v", status, got)
		}
	}
	for path, yes := range map[string]bool{
		"/v1/messages": true, "/v1/messages/count_tokens": true, "/v1/messagesx": false, "/v1/models": false,
	} {
		if speaksAnthropic(httptest.NewRequest("GET", path, nil)) != yes {
			t.Errorf("%s speaks Anthropic: %v", path, !yes)
		}
	}
}

// TestBodyTimeEnds: the time for a body says nothing about the time for its answer.
func TestBodyTimeEnds(t *testing.T) {
	t.Parallel() // it waits more than it works
	l := startLive(t, options{config: Config{BodyTimeout: 200 * time.Millisecond}})
	l.s.mux.HandleFunc("POST /slow", func(w http.ResponseWriter, r *http.Request) {
		if _, err := l.s.readBody(w, r); err != nil {
			t.Error(err)
		}
		select {
		case <-r.Context().Done():
			t.Error("the request ended with the time for its body")
		case <-time.After(500 * time.Millisecond):
		}
	})
	if status, b := l.do("POST", "/slow", "{}"); status != http.StatusOK {
		t.Errorf("%d %s", status, b)
	}
}

// TestTimings: the first token belongs to the prompt's time, so rates are of the others.
func TestTimings(t *testing.T) {
	res := &engine.Result{Generated: 5, Cached: 3}
	res.Stats.Prompt, res.Stats.PromptTime, res.Stats.DecodeTime = 8, 2*time.Second, time.Second
	got := timings(res)
	if got.PredictedPerSecond != 4 || got.PredictedPerTokenMS != 250 || got.PredictedMS != 1000 || got.PredictedN != 5 ||
		got.PromptPerSecond != 4 || got.PromptPerTokenMS != 250 || got.PromptN != 8 || got.CacheN != 3 {
		t.Errorf("%+v", got)
	}
}

// TestRecallBorder: a conversation may be as large as a request, and no larger.
func TestRecallBorder(t *testing.T) {
	s := New(Config{MaxBody: 100})
	half := json.RawMessage(`{"type":"message","x":"` + strings.Repeat("x", 25) + `"}`)
	for size, fits := range map[int]bool{100: true, 101: false} {
		items := []json.RawMessage{half, append(half[:len(half):len(half)], strings.Repeat(" ", size-2*len(half))...)}
		if _, err := newOpenAI(s.core).recall("", "", items); err == nil != fits {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// TestWaitingConnection: a connection that waits for room gets it as soon as another one ends.
func TestWaitingConnection(t *testing.T) {
	l := newConns(nil, 1, 0)
	a, b := &conn{l: l, addr: "a"}, &conn{l: l, addr: "b"}
	l.admit(a)
	l.state(a, http.StateActive)
	var admitted atomic.Bool
	go func() {
		l.admit(b)
		admitted.Store(true)
	}()
	time.Sleep(20 * time.Millisecond)
	if admitted.Load() {
		t.Error("there is one too many")
	}
	l.mu.Lock()
	l.remove(a)
	l.mu.Unlock()
	eventually(t, "it is admitted", admitted.Load)
	l.mu.Lock()
	l.remove(b)
	l.mu.Unlock()
}
