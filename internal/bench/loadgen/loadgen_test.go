package loadgen

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a server of scripted streams. It remembers what it was asked.
type fake struct {
	mu     sync.Mutex
	asked  []map[string]any
	now    int // requests in progress
	most   int // at a time
	script func(w http.ResponseWriter, r *http.Request, n int, b map[string]any)
	n      int
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/models" {
		io.WriteString(w, `{"data":[{"id":"tiny"}]}`)
		return
	}
	var b map[string]any
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	f.asked = append(f.asked, b)
	f.now++
	f.most = max(f.most, f.now)
	n := -1
	if b["max_tokens"] != 1.0 {
		n = f.n
		f.n++
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.now--
		f.mu.Unlock()
	}()
	if f.script != nil && n >= 0 {
		f.script(w, r, n, b)
		return
	}
	answer(w, b, int(b["max_tokens"].(float64)), 0, 0)
}

// promptOf is the text of a request.
func promptOf(b map[string]any) string {
	if p, ok := b["prompt"].(string); ok {
		return p
	}
	var s []string
	for _, m := range b["messages"].([]any) {
		s = append(s, m.(map[string]any)["content"].(string))
	}
	return strings.Join(s, "\n")
}

// tokens are counted as this server does: two for a word, ten for the template.
func tokens(b map[string]any) int { return 2*len(strings.Fields(promptOf(b))) + 10 }

func event(w http.ResponseWriter, format string, args ...any) {
	fmt.Fprintf(w, "data: "+format+"\n\n", args...)
	w.(http.Flusher).Flush()
}

// answer streams n tokens, the first after one time and the others after another.
func answer(w http.ResponseWriter, b map[string]any, n int, first, other time.Duration) {
	w.Header().Set("Content-Type", "text/event-stream")
	event(w, `{"choices":[{"delta":{"role":"assistant","content":""}}],"usage":null}`)
	time.Sleep(first)
	for i := range n {
		if i > 0 {
			time.Sleep(other)
		}
		event(w, `{"choices":[{"index": 0, "delta": {"content": "w%d "}, "finish_reason": null}], "usage": null}`, i)
	}
	event(w, `{"choices":[{"delta":{},"finish_reason":"length"}],"usage":null}`)
	event(w, `{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":4}}}`,
		tokens(b), n)
	event(w, "[DONE]")
}

func settings() Settings {
	return Settings{Endpoint: Chat, Clients: []int{1}, Requests: 4, Rounds: 1, InputLen: 100, OutputLen: 5, Turns: 1,
		TurnLen: 20, Seed: 1, IgnoreEOS: true}
}

// pipes is a network inside the process, so that time can stand still in it.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }
func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- b:
		return a, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// inside runs a test with a server on such a network and the test's own time.
func inside(t *testing.T, f *fake, test func(t *testing.T, h *http.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		s := &http.Server{Handler: f}
		go s.Serve(p)
		tr := &http.Transport{DialContext: p.dial, MaxIdleConnsPerHost: 100}
		test(t, &http.Client{Transport: tr})
		tr.CloseIdleConnections()
		s.Close()
		synctest.Wait()
	})
}

func measure(t *testing.T, ctx context.Context, h *http.Client, s Settings, targets ...Target) *Report {
	t.Helper()
	if len(targets) == 0 {
		targets = []Target{{Name: "it", URL: "http://server/v1/"}}
	}
	r, err := (&Bench{Settings: s, Targets: targets, HTTP: h}).Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestNumbers: what is printed is what a server with known times did.
func TestNumbers(t *testing.T) {
	f := &fake{}
	f.script = func(w http.ResponseWriter, _ *http.Request, n int, b map[string]any) {
		answer(w, b, 5, time.Duration(n+1)*100*time.Millisecond, 10*time.Millisecond)
	}
	inside(t, f, func(t *testing.T, h *http.Client) {
		r := measure(t, t.Context(), h, settings())
		x := r.Summaries[0]
		// Four answers one after the other: 100, 200, 300, 400 ms to the first token and 40 more each.
		if x.Requests != 4 || x.Failed != 0 || x.OutputTokens != 20 || x.CachedTokens != 16 || x.Short != 0 || x.Uncounted != 0 {
			t.Errorf("%+v", x.Result)
		}
		took := r.Runs[0].Seconds
		if took != 1.16 || x.OutputPerSecond != 20/took || x.RequestsPerSecond != 4/took || x.TotalPerSecond != 420/took {
			t.Errorf("%v s, %+v", r.Runs[0].Seconds, x.Result)
		}
		want := Spread{4, 250, 250, 385, 397, 400} // numpy.percentile([100, 200, 300, 400], ...)
		for _, p := range [][2]float64{{x.First.Mean, want.Mean}, {x.First.P50, want.P50}, {x.First.P95, want.P95},
			{x.First.P99, want.P99}, {x.First.Max, want.Max}, {x.PerToken.Mean, 10}, {x.PerToken.P99, 10}, {x.Gap.P50, 10},
			{x.Gap.Max, 10}, {x.Total.Max, 440}} {
			if d := p[0] - p[1]; d < -1e-9 || d > 1e-9 {
				t.Errorf("got %v, want %v in %+v", p[0], p[1], x.Result)
			}
		}
		if x.First.N != 4 || x.Gap.N != 16 || x.PerToken.N != 4 {
			t.Errorf("%+v", x.Result)
		}
		// The words were chosen so that prompts have the tokens asked for.
		if got := x.InputTokens; got != 400 {
			t.Errorf("%d tokens in 4 prompts of 100", got)
		}
		for _, b := range f.asked {
			if b["model"] != "tiny" || b["ignore_eos"] != true || b["stream_options"].(map[string]any)["include_usage"] != true {
				t.Errorf("%v", b)
			}
			if _, sent := b["temperature"]; sent || b["seed"] != nil {
				t.Errorf("fields that were not given were sent: %v", b)
			}
		}
	})
}

// TestClients: as many requests at a time as there are clients, and several numbers one after the other.
func TestClients(t *testing.T) {
	f := &fake{}
	f.script = func(w http.ResponseWriter, _ *http.Request, _ int, b map[string]any) {
		answer(w, b, 5, 10*time.Millisecond, 10*time.Millisecond)
	}
	inside(t, f, func(t *testing.T, h *http.Client) {
		s := settings()
		s.Clients, s.Requests, s.Rounds, s.Warmup = []int{3, 1}, 9, 2, -1
		r := measure(t, t.Context(), h, s)
		if f.most != 3 {
			t.Errorf("%d requests at a time", f.most)
		}
		if len(r.Runs) != 4 || len(r.Summaries) != 2 || r.Interrupted {
			t.Fatalf("%d runs", len(r.Runs))
		}
		// 3 and 1 to warm up, and 9 in each of 4 runs.
		if f.n != 3+1+4*9 {
			t.Errorf("%d requests", f.n)
		}
		if a, b := r.Summaries[0], r.Summaries[1]; a.Clients != 3 || a.Requests != 18 || a.OutputPerSecond != 3*b.OutputPerSecond {
			t.Errorf("%+v, %+v", a, b)
		}
		// No prompt was sent twice: a server would not have to read it again.
		seen := map[string]bool{}
		for _, b := range f.asked[2:] {
			if p := promptOf(b); seen[p] {
				t.Errorf("sent twice: %.60s", p)
			} else {
				seen[p] = true
			}
		}
	})
}

// TestRate: requests begin at their times although the server is busy, and what waits for a client is late.
func TestRate(t *testing.T) {
	for _, clients := range []int{0, 1} {
		f := &fake{}
		var began []time.Time
		f.script = func(w http.ResponseWriter, _ *http.Request, _ int, b map[string]any) {
			f.mu.Lock()
			began = append(began, time.Now())
			f.mu.Unlock()
			answer(w, b, 5, 2*time.Second, 0)
		}
		inside(t, f, func(t *testing.T, h *http.Client) {
			s := settings()
			s.Clients, s.Rate, s.Requests = []int{clients}, 10, 200
			r := measure(t, t.Context(), h, s)
			x := r.Summaries[0]
			slices.SortFunc(began, time.Time.Compare)
			took := began[len(began)-1].Sub(began[0]).Seconds()
			if clients == 1 {
				if f.most != 1 || x.Late == nil || x.Late.Max < 100_000 || took != 398 {
					t.Errorf("%d at a time, %v s, late %+v", f.most, took, x.Late)
				}
				return
			}
			// 199 gaps of 0.1 s on average; their sum deviates by 7 %.
			if f.most < 10 || took < 15 || took > 26 || x.Late == nil || x.Late.Max != 0 || x.First.Max != 2000 {
				t.Errorf("%d at a time, %v s, late %+v, first %+v", f.most, took, x.Late, x.First)
			}
			equal := 0
			for i := 2; i < len(began); i++ {
				if began[i].Sub(began[i-1]) == began[i-1].Sub(began[i-2]) {
					equal++
				}
			}
			if equal > 2 {
				t.Errorf("%d of 200 gaps are equal: not at random times", equal)
			}
		})
	}
}

// TestArrivals: tokens that arrive together are one arrival; the time per token counts all of them.
func TestArrivals(t *testing.T) {
	f := &fake{}
	f.script = func(w http.ResponseWriter, _ *http.Request, _ int, b map[string]any) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			if i > 0 {
				time.Sleep(30 * time.Millisecond)
			}
			for range 2 {
				fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"two tokens\"}]}\n\n")
			}
			w.(http.Flusher).Flush()
		}
		event(w, `{"choices":[{"text":"","finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":13}}`)
	}
	inside(t, f, func(t *testing.T, h *http.Client) {
		s := settings()
		s.Endpoint, s.OutputLen = Completions, 20
		x := measure(t, t.Context(), h, s).Summaries[0]
		if x.Gap.N != 8 || x.Gap.P50 != 30 || x.PerToken.P50 != 5 || x.OutputTokens != 4*13 {
			t.Errorf("%+v", x.Result)
		}
		if x.Short != 4 {
			t.Errorf("%d answers are said to be short", x.Short)
		}
		if _, ok := f.asked[2]["prompt"].(string); !ok {
			t.Errorf("%v", f.asked[2])
		}
	})
}

// TestErrors: every way to fail is counted as what it is, and the others count all the same.
func TestErrors(t *testing.T) {
	long := strings.Repeat("x", maxEvent+10)
	scripts := map[string]func(w http.ResponseWriter, r *http.Request, b map[string]any){
		"http 503": func(w http.ResponseWriter, _ *http.Request, _ map[string]any) {
			w.WriteHeader(503)
			io.WriteString(w, `{"error":{"message":"no room\u001b[31m\nhere"}}`)
		},
		"http 500": func(w http.ResponseWriter, _ *http.Request, _ map[string]any) { http.Error(w, long, 500) },
		"error in the stream": func(w http.ResponseWriter, _ *http.Request, _ map[string]any) {
			w.Header().Set("Content-Type", "text/event-stream")
			event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
			event(w, `{"error":{"message":"the model broke"}}`)
		},
		"stream ended early": func(w http.ResponseWriter, _ *http.Request, _ map[string]any) {
			w.Header().Set("Content-Type", "text/event-stream")
			event(w, `{"choices":[{"delta":{"content":"a"},"finish_reason":null}]}`)
		},
		"connection closed early": func(w http.ResponseWriter, _ *http.Request, _ map[string]any) {
			w.Header().Set("Content-Type", "text/event-stream")
			event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
			panic(http.ErrAbortHandler)
		},
		"event too long": func(w http.ResponseWriter, _ *http.Request, _ map[string]any) {
			w.Header().Set("Content-Type", "text/event-stream")
			event(w, "%s", long)
		},
		"no stream": func(w http.ResponseWriter, _ *http.Request, _ map[string]any) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, "{}")
		},
		"timeout": func(w http.ResponseWriter, r *http.Request, _ map[string]any) {
			w.Header().Set("Content-Type", "text/event-stream")
			event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
			<-r.Context().Done()
		},
		"": func(w http.ResponseWriter, _ *http.Request, b map[string]any) { answer(w, b, 5, 0, 0) },
	}
	kinds := slices.Sorted(maps.Keys(scripts))
	f := &fake{}
	f.script = func(w http.ResponseWriter, r *http.Request, n int, b map[string]any) {
		scripts[kinds[n%len(kinds)]](w, r, b)
	}
	inside(t, f, func(t *testing.T, h *http.Client) {
		s := settings()
		s.Requests, s.Timeout = 2*len(kinds), time.Minute
		r := measure(t, t.Context(), h, s)
		x := r.Summaries[0]
		if x.Requests != 2 || x.Failed != 2*(len(kinds)-1) || x.OutputTokens != 10 || x.First.N != 2 || x.Cut != 0 {
			t.Errorf("%+v", x.Result)
		}
		for _, kind := range kinds[1:] {
			if e := x.Errors[kind]; e == nil || e.Count != 2 {
				t.Errorf("%s: %+v", kind, e)
			}
		}
		if len(x.Errors) != len(kinds)-1 {
			t.Errorf("kinds: %v", slices.Sorted(maps.Keys(x.Errors)))
		}
		var b bytes.Buffer
		if err := r.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if text := b.String(); !strings.Contains(text, "it, 1 client: 2 requests failed: http 503: no room [31m here\n") ||
			!strings.Contains(text, "the model broke") || strings.Contains(text, "\x1b") || b.Len() > 10_000 {
			t.Errorf("%s", text)
		}
	})
}

// TestUncounted: a server that knows neither usage nor ignore_eos is measured by its events, and the report says so.
func TestUncounted(t *testing.T) {
	f := &fake{}
	h := func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil && (bytes.Contains(b, []byte("stream_options")) || bytes.Contains(b, []byte("ignore_eos"))) {
			http.Error(w, `{"detail":"extra fields not permitted"}`, 422)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		f.ServeHTTP(w, r)
	}
	f.script = func(w http.ResponseWriter, _ *http.Request, _ int, _ map[string]any) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		event(w, `{"choices":[{"delta":{"reasoning_content":"hm"}}]}`)
		event(w, `{"choices":[{"delta":{"content":"\"content\":\"\""}}]}`)
		event(w, `{"choices":[{"delta":{"content":""}}]}`)
		event(w, "[DONE]")
	}
	server := httptest.NewServer(http.HandlerFunc(h))
	defer server.Close()
	plain := &fake{} // answers without usage, also when asked how long prompts are
	f2 := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			plain.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		event(w, `{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}`)
	})
	other := httptest.NewServer(f2)
	defer other.Close()
	r := measure(t, t.Context(), nil, settings(), Target{Name: "a", URL: server.URL}, Target{Name: "b", URL: other.URL})
	a, b := r.Summaries[0], r.Summaries[1]
	if a.OutputTokens != 8 || a.Uncounted != 4 || a.Short != 4 || b.OutputTokens != 4 || b.Uncounted != 4 {
		t.Errorf("%+v\n%+v", a.Result, b.Result)
	}
	if a.PerToken.N != 4 || b.PerToken.N != 0 { // a single token has no time between tokens
		t.Errorf("%+v, %+v", a.PerToken, b.PerToken)
	}
	if n := r.Targets[0].Notes; len(n) != 2 || !strings.Contains(n[0], "ignore_eos") || !strings.Contains(n[1], "stream_options") {
		t.Errorf("%q", n)
	}
	if n := r.Targets[1].Notes; len(n) != 1 || !strings.Contains(n[0], "does not count") {
		t.Errorf("%q", n)
	}
}

// TestTurns: later turns send all that was said, and their first tokens are counted by themselves.
func TestTurns(t *testing.T) {
	for _, endpoint := range []string{Chat, Completions} {
		f := &fake{}
		f.script = func(w http.ResponseWriter, _ *http.Request, n int, b map[string]any) {
			answer(w, b, 5, time.Duration(1+n%3)*time.Second, 0)
		}
		inside(t, f, func(t *testing.T, h *http.Client) {
			s := settings()
			s.Endpoint, s.Turns, s.Requests, s.PrefixShare = endpoint, 3, 2, 0.5
			x := measure(t, t.Context(), h, s).Summaries[0]
			if x.Requests != 6 || x.First.N != 2 || x.First.Max != 1000 || x.LaterFirst == nil || x.LaterFirst.N != 4 ||
				x.LaterFirst.P50 != 2500 {
				t.Errorf("%s: %+v", endpoint, x.Result)
			}
			asked := f.asked[2:]
			for i := 1; i < 3; i++ {
				before, now := promptOf(asked[i-1]), promptOf(asked[i])
				rest, ok := strings.CutPrefix(now, before)
				// Ten words have twenty tokens here.
				if !ok || !strings.HasPrefix(strings.TrimSpace(rest), "w0 w1 w2 w3 w4 ") || len(strings.Fields(rest)) != 15 {
					t.Errorf("%s: turn %d asks %q after %q", endpoint, i, now, before)
				}
			}
			one, two := strings.Fields(promptOf(asked[0])), strings.Fields(promptOf(asked[3]))
			common := 0
			for common < len(one) && one[common] == two[common] {
				common++
			}
			if want := len(one) / 2; common < want || common > want+2 {
				t.Errorf("%d of %d words are common", common, len(one))
			}
		})
	}
}

// TestPrompts: prompts of a file take part in turn, all runs have the same ones, and none is known to the server.
func TestPrompts(t *testing.T) {
	f := &fake{}
	inside(t, f, func(t *testing.T, h *http.Client) {
		s := settings()
		s.Requests, s.Rounds, s.Source = 5, 2, "file"
		s.Prompts = []Prompt{{Messages: []Message{{"system", "Be short."}, {"user", "Why?"}}}, {Messages: []Message{{"user", "How?"}}},
			{Messages: []Message{{"user", "package main"}}, Raw: true}}
		measure(t, t.Context(), h, s, Target{Name: "a", URL: "http://server"}, Target{Name: "b", URL: "http://server"})
		seen, kinds := map[string]bool{}, map[string]int{}
		for _, b := range f.asked[4:] {
			p := promptOf(b)
			if seen[p] {
				t.Errorf("sent twice: %q", p)
			}
			seen[p] = true
			_, tail, ok := strings.Cut(p, "] ")
			if !ok {
				_, tail, ok = strings.Cut(p, "\n")
			}
			if !ok {
				t.Errorf("%q has no number", p)
			}
			kinds[tail]++
		}
		want := map[string]int{"Be short.\nWhy?": 8, "How?": 8, "package main": 4}
		if !maps.Equal(kinds, want) {
			t.Errorf("%v", kinds)
		}
		if s.Prompts[0].Messages[0].Content != "Be short." {
			t.Error("the prompts themselves were changed")
		}
	})
}

// TestCompare: targets take turns, each begins a round once, and ratios are those of the same round.
func TestCompare(t *testing.T) {
	f := &fake{}
	var order []string
	f.script = func(w http.ResponseWriter, _ *http.Request, _ int, b map[string]any) {
		temp := fmt.Sprint(b["temperature"])
		f.mu.Lock()
		order = append(order, temp)
		times := len(order)
		f.mu.Unlock()
		d := 100 * time.Millisecond
		if temp == "0.8" {
			d = 200 * time.Millisecond
		}
		if times > 4 { // the machine is slower in the second round
			d *= 3
		}
		answer(w, b, 5, d, d)
	}
	inside(t, f, func(t *testing.T, h *http.Client) {
		s := settings()
		s.Requests, s.Rounds = 2, 2
		s.Body = map[string]any{"logprobs": 5.0, "strobe": map[string]any{"tree": 0}}
		var targets []Target
		for _, temp := range []float64{0, 0.8} {
			body, err := Set(map[string]any{"temperature": temp}, "strobe.draft", "off")
			if err != nil {
				t.Fatal(err)
			}
			targets = append(targets, Target{Name: fmt.Sprint(temp), URL: "http://server", Body: body})
		}
		r := measure(t, t.Context(), h, s, targets...)
		if want := "0 0 0.8 0.8 0.8 0.8 0 0"; strings.Join(order, " ") != want {
			t.Errorf("order %v, want %s", order, want)
		}
		if len(r.Ratios) != 4 || r.Ratios[0].What != "output tokens/s" || !slices.Equal(r.Ratios[0].Rounds, []float64{0.5, 0.5}) ||
			r.Ratios[0].Median != 0.5 || r.Ratios[1].Median != 2 {
			t.Errorf("%+v", r.Ratios)
		}
		b := f.asked[len(f.asked)-1]
		inner := b["strobe"].(map[string]any)
		if b["logprobs"] != true || b["top_logprobs"] != 5.0 || inner["draft"] != "off" || inner["tree"] != 0.0 {
			t.Errorf("%v", b)
		}
		picture := r.Plot()
		if err := xml.Unmarshal(picture, new(struct{})); err != nil {
			t.Error(err)
		}
		var buf bytes.Buffer
		if err := r.WriteJSON(&buf); err != nil {
			t.Fatal(err)
		}
		var back Report
		if err := json.Unmarshal(buf.Bytes(), &back); err != nil || back.Schema != Schema || len(back.Runs) != 4 ||
			back.Runs[3].OutputPerSecond != r.Runs[3].OutputPerSecond {
			t.Errorf("%v\n%s", err, buf.Bytes())
		}
		buf.Reset()
		if err := r.WriteText(&buf); err != nil || !strings.Contains(buf.String(), "0.500  0.500 0.500") {
			t.Errorf("%v\n%s", err, buf.String())
		}
	})
}

// TestCancel: whatever is in progress is cut, what was measured is there, and nothing is left behind.
func TestCancel(t *testing.T) {
	f := &fake{}
	ctx, cancel := context.WithCancel(t.Context())
	f.script = func(w http.ResponseWriter, r *http.Request, n int, b map[string]any) {
		if n == 5 {
			cancel()
			<-r.Context().Done()
			return
		}
		answer(w, b, 5, time.Second, 0)
	}
	inside(t, f, func(t *testing.T, h *http.Client) {
		s := settings()
		s.Rounds = 3
		b := &Bench{Settings: s, Targets: []Target{{Name: "it", URL: "http://server", Key: "secret"}}, HTTP: h}
		r, err := b.Run(ctx)
		if !errors.Is(err, context.Canceled) || r == nil {
			t.Fatalf("%v, %v", r, err)
		}
		x := r.Summaries[0]
		if !r.Interrupted || len(r.Runs) != 2 || !r.Runs[1].Interrupted || r.Runs[1].Requests != 1 || x.Requests != 5 ||
			x.Cut != 1 || x.Failed != 0 || !slices.Equal(x.Rounds, []float64{5}) || x.OutputPerSecond != 5 {
			t.Errorf("%+v, %+v", r.Runs[len(r.Runs)-1], x)
		}
		var buf bytes.Buffer
		if err := r.WriteText(&buf); err != nil || !strings.Contains(buf.String(), "interrupted") {
			t.Errorf("%v\n%s", err, buf.String())
		}
		if err := r.WriteJSON(&buf); err != nil || strings.Contains(buf.String(), "secret") {
			t.Errorf("%v\n%s", err, buf.String())
		}
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.n != 6 || f.now != 0 {
			t.Errorf("%d requests, %d in progress", f.n, f.now)
		}
	})
}

// TestNoServer: what cannot be measured is one line that says why.
func TestNoServer(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer key" {
			http.Error(w, `{"error":{"message":"wrong key"}}`, 401)
			return
		}
		io.WriteString(w, `{"data":[]}`)
	}))
	defer locked.Close()
	for _, c := range []struct {
		t    Target
		want string
	}{
		{Target{URL: closed.URL}, "no server answers at " + closed.URL},
		{Target{URL: closed.URL, Model: "m"}, "no server answers at " + closed.URL},
		{Target{URL: locked.URL}, "http 401: wrong key (--api-key)"},
		{Target{URL: locked.URL, Model: "m"}, "http 401: wrong key (--api-key)"},
		{Target{URL: locked.URL, Key: "key"}, "names no model; give one with --model"},
		{Target{URL: "localhost:8080"}, "want an address such as http://127.0.0.1:8080"},
	} {
		r, err := (&Bench{Settings: settings(), Targets: []Target{c.t}}).Run(t.Context())
		if r != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.t, err, c.want)
		}
	}
}

func TestSettings(t *testing.T) {
	for want, change := range map[string]func(*Settings){
		"--endpoint":                 func(s *Settings) { s.Endpoint = "embeddings" },
		"--requests 0: want 1":       func(s *Settings) { s.Requests = 0 },
		"--clients 0: want 1":        func(s *Settings) { s.Clients = []int{0} },
		"--clients: 2 is there":      func(s *Settings) { s.Clients = []int{2, 2} },
		"--clients: want at least":   func(s *Settings) { s.Clients = nil },
		"--rate -1":                  func(s *Settings) { s.Rate = -1 },
		"--prefix-share 1.5":         func(s *Settings) { s.PrefixShare = 1.5 },
		"--prefix-share belongs":     func(s *Settings) { s.PrefixShare, s.Prompts = 0.5, make([]Prompt, 1) },
		"--timeout -1ns":             func(s *Settings) { s.Timeout = -1 },
		"--turns 0: want 1 to 1000":  func(s *Settings) { s.Turns = 0 },
		"--warmup -2: want -1":       func(s *Settings) { s.Warmup = -2 },
		"--output-len 0: want 1 to ": func(s *Settings) { s.OutputLen = 0 },
	} {
		s := settings()
		change(&s)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if s := settings(); s.Check() != nil {
		t.Error(s.Check())
	}
	before := map[string]any{"a": map[string]any{"b": 1}, "c": 2}
	after, err := Set(before, "a.d.e", true)
	if err != nil || fmt.Sprint(after) != "map[a:map[b:1 d:map[e:true]] c:2]" || fmt.Sprint(before) != "map[a:map[b:1] c:2]" {
		t.Errorf("%v, %v, %v", after, before, err)
	}
	for _, bad := range []string{"", "a.", "c.d"} {
		if _, err := Set(before, bad, 1); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// FuzzEvent: no bytes of a server make more than an error.
func FuzzEvent(f *testing.F) {
	for _, s := range []string{"", "data: [DONE]\n", "data: {\"error\":{}}\n", "data: {\"content\" : \"x\n\ndata:",
		`data: {"usage":{"prompt_tokens":-1}}` + "\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newClient(nil, 0)
		c.body.r = bytes.NewReader(b)
		c.buf.Reset(&c.body)
		var s sample
		if err := c.read(&s, time.Time{}, true); err == nil && (s.out < 0 || s.in < 0 || s.cache < 0) {
			t.Errorf("%+v", s)
		}
	})
}

// BenchmarkRead is what the generator itself costs for a token.
func BenchmarkRead(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1700000000,"model":"m",` +
		`"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n")
	stream := append(bytes.Repeat(event, 128), "data: [DONE]\n\n"...)
	c := newClient(nil, 0)
	for b.Loop() {
		c.body.r = bytes.NewReader(stream)
		c.buf.Reset(&c.body)
		var s sample
		if err := c.read(&s, time.Time{}, false); err != nil || s.out != 128 {
			b.Fatal(s.out, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/128, "ns/token")
}
