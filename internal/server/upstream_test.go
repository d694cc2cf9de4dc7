package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/upstream"
)

// noModels is what a server offers that has upstreams only.
func noModels(t *testing.T) Models {
	p, err := engine.NewPool(engine.PoolConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	return Pool(p, "")
}

// front is a server whose model "far" lives at the given addresses.
func front(t *testing.T, config Config, urls ...string) *fixture {
	t.Helper()
	fleet, err := upstream.New(
		[]upstream.Model{{Name: "far", URLs: urls, Key: "sk-upstream"}},
		upstream.Options{Interval: 20 * time.Millisecond},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)
	eventually(t, "an upstream that is ready", func() bool { return fleet.States()[0].Ready() })
	config.Upstreams, config.Models = fleet, noModels(t)
	f := &fixture{t: t, s: New(config)}
	srv := httptest.NewServer(f.s.Handler())
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

// without is a server in front of another one that lacks a path.
func without(t *testing.T, to, path string) (string, *atomic.Int64) {
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	refused := &atomic.Int64{}
	proxy := httputil.NewSingleHostReverseProxy(u)
	proxy.FlushInterval = -1
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path {
			refused.Add(1)
			http.NotFound(w, r)
			return
		}
		// The whole body first: ReverseProxy looks for its end while the answer begins, and net/http closes the body
		// then, which sometimes breaks the connection.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client is gone
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, refused
}

var farTool = dict{"type": "function", "function": dict{"name": "weather", "description": "d",
	"parameters": dict{"type": "object", "properties": dict{"city": dict{"type": "string"}}}}}

// TestThroughAnUpstream: whatever the protocol, the answer of a model elsewhere is what it says there.
func TestThroughAnUpstream(t *testing.T) {
	back := start(t, options{template: hermesTemplate, config: Config{Keys: []string{"sk-upstream"}}})
	back.script(
		"<think>well</think>Hello<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_call>",
	)
	lacking, refused := without(t, back.url, "/v1/messages")
	for name, base := range map[string]string{"passed on": back.url, "translated": lacking} {
		f := front(t, Config{}, base)
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream %v", name, stream), func(t *testing.T) {
				chat := dict{"model": "far", "messages": user("hi"), "tools": []dict{farTool}, "stream": stream}
				check(
					t,
					f,
					"/v1/chat/completions",
					chat,
					`content:Hello`,
					`reasoning_content:well`,
					`name:weather`,
					`Bonn`,
					`finish_reason:tool_calls`,
				)
				check(t, f, "/v1/messages", dict{"model": "far", "max_tokens": 99, "messages": user("hi"), "stream": stream,
					"tools": []dict{{"name": "weather", "input_schema": dict{"type": "object"}}}},
					`text:Hello`, `thinking:well`, `name:weather`, `Bonn`, `stop_reason:tool_use`)
				check(t, f, "/v1/responses", dict{"model": "far", "input": "hi", "stream": stream,
					"tools": []dict{{"type": "function", "name": "weather", "parameters": dict{"type": "object"}}}},
					`Hello`, `well`, `weather`, `Bonn`, `completed`)
				check(t, f, "/api/chat", dict{"model": "far", "messages": user("hi"), "tools": []dict{farTool}, "stream": stream},
					`content:Hello`, `thinking:well`, `name:weather`, `Bonn`, `done:`)
				check(
					t,
					f,
					"/v1/completions",
					dict{"model": "far", "prompt": "hi", "max_tokens": 3, "stream": stream},
					`object:text_completion`,
				)
			})
		}
	}
	if refused.Load() == 0 {
		t.Error("the upstream was never asked for the path it lacks")
	}
	if refused.Load() > 1 {
		t.Errorf("it was asked %d times for what it lacks", refused.Load())
	}
}

func check(t *testing.T, f *fixture, path string, q dict, want ...string) {
	t.Helper()
	status, body := f.do("POST", path, encode(t, q))
	if status != http.StatusOK {
		t.Errorf("%s: %d %s", path, status, body)
		return
	}
	all := said(t, body)
	for _, w := range want {
		if !strings.Contains(all, w) {
			t.Errorf("%s: no %s in\n%s", path, w, body)
		}
	}
}

// said is all that the JSON of an answer says, by key, pieces of a stream joined.
func said(t *testing.T, body []byte) string {
	parts := map[string]string{}
	var walk func(key string, v any)
	walk = func(key string, v any) {
		switch x := v.(type) {
		case dict:
			for k, v := range x {
				walk(k, v)
			}
		case []any:
			for _, v := range x {
				walk(key, v)
			}
		case nil:
		default:
			parts[key] += fmt.Sprint(x)
		}
	}
	for _, line := range strings.Split(string(body), "\n") {
		line = strings.TrimPrefix(line, "data: ")
		if strings.HasPrefix(line, "{") {
			walk("", decodeObject(t, []byte(line)))
		}
	}
	return fmt.Sprint(parts)
}

// TestUpstreamConversationGoesOn: later requests may refer to answers that came from elsewhere.
func TestUpstreamConversationGoesOn(t *testing.T) {
	back := start(t, options{template: hermesTemplate, config: Config{Keys: []string{"sk-upstream"}}})
	back.script("one")
	f := front(t, Config{}, back.url)
	_, body := f.do("POST", "/v1/responses", encode(t, dict{"model": "far", "input": "first question"}))
	id := text(decodeObject(t, body), "id")
	before := back.e.Snapshot().Stats.Prompt + back.e.Snapshot().Stats.Cached
	status, body := f.do(
		"POST",
		"/v1/responses",
		encode(t, dict{"model": "far", "input": "second", "previous_response_id": id}),
	)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if got := number(decodeObject(t, body), "usage", "input_tokens"); got <= before {
		t.Errorf("the second request had %d tokens, the first %d: what came before is missing", got, before)
	}
}

func TestUpstreamsAreListed(t *testing.T) {
	back := start(t, options{config: Config{Keys: []string{"sk-upstream"}}})
	f := front(t, Config{Keys: []string{"sk-client"}}, back.url)
	_, body := f.do("GET", "/v1/models", "", "Authorization", "Bearer sk-client")
	if got := decodeObject(t, body); text(got, "data", 0, "id") != "far" || text(got, "data", 0, "state") != "loaded" {
		t.Errorf("listed as %s", body)
	}
	if bytes.Contains(body, []byte("127.0.0.1")) || bytes.Contains(body, []byte("sk-")) {
		t.Errorf("the list says too much: %s", body)
	}
	if status, _ := f.do("POST", "/v1/chat/completions", encode(t, dict{"model": "far",
		"messages": user("x")})); status != http.StatusUnauthorized {
		t.Errorf("without a key: %d", status)
	}
	if status, body := f.do("POST", "/v1/chat/completions", encode(t, dict{"model": "near", "messages": user("x")}),
		"Authorization", "Bearer sk-client"); status != http.StatusNotFound {
		t.Errorf("a model that nobody has: %d %s", status, body)
	}
	if status, body := f.do("POST", "/tokenize", encode(t, dict{"model": "far", "content": "x"}),
		"Authorization", "Bearer sk-client"); status != http.StatusNotImplemented {
		t.Errorf("what upstreams are not asked for: %d %s", status, body)
	}
}

// TestUpstreamMetrics: what replicas do can be counted here, whatever the protocol.
func TestUpstreamMetrics(t *testing.T) {
	back := start(t, options{template: hermesTemplate, config: Config{Keys: []string{"sk-upstream"}}})
	f := front(t, Config{}, back.url)
	long := strings.Repeat("word ", 100)
	for _, stream := range []bool{false, true} {
		for path, q := range map[string]dict{
			"/v1/chat/completions": {"messages": user(long)}, "/v1/responses": {"input": long},
		} {
			if status, body := f.do("POST", path, encode(t, with(q, dict{"model": "far", "stream": stream, "temperature": 0,
				"ignore_eos": true, "max_tokens": 5, "max_output_tokens": 5}))); status != http.StatusOK {
				t.Fatalf("%s: %d %s", path, status, body)
			}
		}
	}
	_, b := f.do("GET", "/metrics", "")
	checkMetrics(t, string(b))
	label := fmt.Sprintf(`{model_name="far",replica=%q} `, back.url)
	stats := back.e.Snapshot().Stats
	for name, want := range map[string]int{
		"up": 1, "requests_running": 0, "requests_total": 4, "failures_total": 0,
		"prompt_tokens_total":        stats.Prompt + stats.Cached,
		"prompt_tokens_cached_total": stats.Cached, "generation_tokens_total": 20, "draft_tokens_total": stats.Guessed,
	} {
		if line := fmt.Sprintf("strobe:upstream_%s%s%d\n", name, label, want); !strings.Contains(string(b), line) {
			t.Errorf("no %sin %s", line, b)
		}
	}
	if stats.Cached == 0 {
		t.Error("nothing was cached, so nothing was shown")
	}
}

// TestRoutersSeeLoad: while requests run and wait, the metrics say so.
func TestRoutersSeeLoad(t *testing.T) {
	f := start(t, options{engine: engineConfig(1)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 3 {
		go func() {
			req, _ := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/completions",
				strings.NewReader(`{"prompt":"x","ignore_eos":true,"max_tokens":2000}`))
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
	}
	eventually(t, "one request that runs and two that wait", func() bool {
		_, b := f.do("GET", "/metrics", "")
		page := string(b)
		return strings.Contains(page, `vllm:num_requests_running{model_name="qwen35"} 1`) &&
			strings.Contains(page, `vllm:num_requests_waiting{model_name="qwen35"} 2`) &&
			strings.Contains(page, `vllm:kv_cache_usage_perc{model_name="qwen35"} 0.`)
	})
}

// TestUpstreamBreaksOff: a stream that ends too early says so, in the words of its protocol.
func TestUpstreamBreaksOff(t *testing.T) {
	chunk := `data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}` + "\n\n"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"far"}]}`)
		case "/v1/messages":
			http.NotFound(w, r)
		case "/v1/embeddings":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"data":[`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, chunk)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(20 * time.Millisecond)
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(srv.Close)
	f := front(t, Config{}, srv.URL)
	for path, q := range map[string]dict{
		"/v1/chat/completions": {"messages": user("x")}, "/v1/completions": {"prompt": "x"}, "/v1/responses": {"input": "x"},
		"/v1/messages": {"messages": user("x"), "max_tokens": 9}, "/api/chat": {"messages": user("x")},
	} {
		_, body := f.do("POST", path, encode(t, with(q, dict{"model": "far", "stream": true})))
		if !bytes.Contains(body, []byte("Hel")) || !bytes.Contains(body, []byte("the upstream broke off")) {
			t.Errorf("%s: %s", path, body)
		}
	}
	resp, err := http.Post(f.url+"/v1/embeddings", "application/json", strings.NewReader(`{"model":"far","input":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("half an answer counts as whole: %s", body)
	}
}

// TestLeavingFreesTheUpstream: a client that goes takes its request with it, through both servers.
func TestLeavingFreesTheUpstream(t *testing.T) {
	back := start(
		t,
		options{template: hermesTemplate, engine: engineConfig(1), config: Config{Keys: []string{"sk-upstream"}}},
	)
	f := front(t, Config{}, back.url)
	for path, q := range map[string]dict{
		"/v1/chat/completions": {"messages": user("x")}, "/v1/responses": {"input": "x"},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		q := with(q, dict{"model": "far", "stream": true, "ignore_eos": true, "max_tokens": 2000})
		req, err := http.NewRequestWithContext(ctx, "POST", f.url+path, strings.NewReader(encode(t, q)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		cancel()
		_ = resp.Body.Close()
		eventually(t, path+": a free slot", func() bool { s := back.e.Snapshot(); return s.Active() == 0 && s.Queued == 0 })
		eventually(t, path+": a free replica", func() bool { return f.s.cfg.Upstreams.States()[0].Replicas[0].Load == 0 })
	}
}
