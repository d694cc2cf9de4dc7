package server

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// oddUpstream answers conversations with the lines it is given, and keeps the last request.
func oddUpstream(t *testing.T, lines func(w io.Writer)) (url string, asked *atomic.Pointer[string]) {
	asked = &atomic.Pointer[string]{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"far"}]}`)
		case "/v1/chat/completions":
			b, _ := io.ReadAll(r.Body)
			body := string(b)
			asked.Store(&body)
			w.Header().Set("Content-Type", "text/event-stream")
			lines(w)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, asked
}

// TestUpstreamCalls: some servers name a function in every piece of its call, others number all calls alike.
func TestUpstreamCalls(t *testing.T) {
	call := func(index, id, name, args string) string {
		return `data: {"choices":[{"delta":{"tool_calls":[{"index":` + index + `,"id":"` + id + `","function":{"name":"` +
			name + `","arguments":"` + args + `"}}]}}]}` + "\n\n"
	}
	for name, said := range map[string]string{
		"named once": call("0", "a", "f", "") + call("0", "", "", "{}") + call("1", "b", "g", "") + call("1", "", "", "[]"),
		"named often": call("0", "a", "f", "{") + call("0", "a", "f", "}") +
			call("1", "b", "g", "[") + call("1", "b", "g", "]"),
		"no numbers": strings.ReplaceAll(call("0", "", "f", "{}")+call("0", "", "g", "[]"), `"index":0,`, ""),
		"one number": call("0", "a", "f", "{}") + call("0", "b", "g", "[]"),
	} {
		url, _ := oddUpstream(t, func(w io.Writer) {
			io.WriteString(w, said+`data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`+"\n\ndata: [DONE]\n\n")
		})
		m := front(t, Config{}, url).post("/v1/responses", dict{"model": "far", "input": "x"})
		out, _ := at(m, "output").([]any)
		if len(out) != 2 || text(out[0], "name")+text(out[0], "arguments") != "f{}" ||
			text(out[1], "name")+text(out[1], "arguments") != "g[]" {
			t.Errorf("%s: %v", name, out)
		}
	}
}

// TestUpstreamEndlessLine: an upstream that never ends its line cannot fill the memory.
func TestUpstreamEndlessLine(t *testing.T) {
	url, _ := oddUpstream(t, func(w io.Writer) {
		_, err := io.WriteString(w, "data: ")
		for piece := strings.Repeat("x", 1<<16); err == nil; {
			_, err = io.WriteString(w, piece)
		}
	})
	f := front(t, Config{MaxBody: 1 << 20}, url)
	status, b := f.do("POST", "/api/chat", encode(t, dict{"model": "far", "messages": user("x"), "stream": false}))
	if status != http.StatusBadGateway || !strings.Contains(string(b), "the upstream") {
		t.Errorf("%d %s", status, b)
	}
}

// TestUpstreamNothingWanted: no token is no token elsewhere, too.
func TestUpstreamNothingWanted(t *testing.T) {
	url, asked := oddUpstream(t, func(w io.Writer) {
		io.WriteString(w, `data: {"choices":[{"delta":{},"finish_reason":"length"}]}`+"\n\ndata: [DONE]\n\n")
	})
	f := front(t, Config{}, url)
	f.post("/api/chat", dict{"model": "far", "messages": user("x"), "stream": false, "options": dict{"num_predict": 0}})
	if q := asked.Load(); q == nil || !strings.Contains(*q, `"max_tokens":0`) {
		t.Errorf("asked %v", q)
	}
}

// translated are requests that are asked of an upstream in another protocol than the client's.
var translated = map[string]dict{
	"/v1/responses": {"input": "x"}, "/api/chat": {"messages": user("x")}, "/api/generate": {"prompt": "x"},
}

// TestUpstreamNoAnswer: what is no answer, or half of one, does not become an answer when it is translated.
func TestUpstreamNoAnswer(t *testing.T) {
	const (
		chunk  = `data: {"choices":[{"delta":{"content":"Hel"}}]}` + "\n\n"
		finish = `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	)
	for name, c := range map[string]struct {
		says string
		ok   bool
	}{
		"complete":                 {chunk + finish + "data: [DONE]\n\n", true},
		"complete without a mark":  {chunk + finish, true},
		"a mark without a reason":  {chunk + "data: [DONE]\n\n", true},
		"empty on purpose":         {finish + "data: [DONE]\n\n", true},
		"ends early":               {chunk, false},
		"only the mark":            {"data: [DONE]\n\n", false},
		"chunks of something else": {`data: {"foo":1}` + "\n\ndata: [DONE]\n\n", false},
		"empty chunks":             {`data: {"choices":[{"delta":{}}]}` + "\n\ndata: [DONE]\n\n", false},
		"null":                     {"data: null\n\ndata: [DONE]\n\n", false},
		"a page":                   {"<html>hello</html>", false},
		"JSON, not streamed":       {`{"choices":[{"message":{"content":"Hello"}}]}`, false},
		"not JSON":                 {"data: {\n\n", false},
		"comments":                 {":\n\n:\n\n", false},
		"an error":                 {chunk + `data: {"error":{"message":"no memory"}}` + "\n\n", false},
	} {
		url, _ := oddUpstream(t, func(w io.Writer) { io.WriteString(w, c.says) })
		f := front(t, Config{}, url)
		for path, q := range translated {
			for _, stream := range []bool{false, true} {
				status, b := f.do("POST", path, encode(t, with(q, dict{"model": "far", "stream": stream})))
				failed := status == http.StatusBadGateway || stream && strings.Contains(string(b), "the upstream")
				if c.ok == failed || c.ok != (status == 200 && !strings.Contains(string(b), "the upstream")) {
					t.Errorf("%s, %s, stream %v: %d %s", name, path, stream, status, b)
				}
			}
		}
	}
}

// TestUpstreamEndless: an answer that never ends cannot fill the memory, whatever it is made of.
func TestUpstreamEndless(t *testing.T) {
	for name, delta := range map[string]string{
		"text":      `{"content":"` + strings.Repeat("x", 4000) + `"}`,
		"reasoning": `{"reasoning":"` + strings.Repeat("x", 4000) + `"}`,
		"calls":     `{"tool_calls":[` + strings.Repeat(`{"function":{"name":"f"}},`, 100) + `{"function":{"name":"f"}}]}`,
		"arguments": `{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"` + strings.Repeat("x", 4000) + `"}}]}`,
		"nothing":   `{}`,
	} {
		url, _ := oddUpstream(t, func(w io.Writer) {
			chunk := `data: {"choices":[{"index":0,"delta":` + delta + `}]}` + "\n\n"
			if delta == `{}` {
				chunk = strings.Repeat(chunk, 1000)
			}
			for err := error(nil); err == nil; {
				_, err = io.WriteString(w, chunk)
			}
		})
		f := front(t, Config{MaxBody: 1 << 14}, url)
		for path, q := range translated {
			for _, stream := range []bool{false, true} {
				status, b := f.do("POST", path, encode(t, with(q, dict{"model": "far", "stream": stream})))
				if !strings.Contains(string(b), "larger than 16384 bytes") || !stream && status != http.StatusBadGateway {
					t.Errorf("%s, %s, stream %v: %d %.300s", name, path, stream, status, b)
				}
			}
		}
	}
}

// TestUpstreamLogProbs: what cannot be had of a model elsewhere is refused.
func TestUpstreamLogProbs(t *testing.T) {
	url, asked := oddUpstream(t, func(w io.Writer) { io.WriteString(w, "data: [DONE]\n\n") })
	f := front(t, Config{}, url)
	for path, q := range map[string]dict{"/api/chat": {"messages": user("x")}, "/api/generate": {"prompt": "x"}} {
		for _, stream := range []bool{false, true} {
			status, b := f.do("POST", path, encode(t, with(q, dict{"model": "far", "stream": stream, "logprobs": true})))
			if status != http.StatusBadRequest || !strings.Contains(string(b), "logprobs") {
				t.Errorf("%s, stream %v: %d %s", path, stream, status, b)
			}
		}
	}
	if asked.Load() != nil {
		t.Error("the upstream was asked")
	}
}

// TestUpstreamAddresses: clients do not learn where an upstream is, and the log does not say what clients said.
func TestUpstreamAddresses(t *testing.T) {
	var log syncBuffer
	refuses := false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			io.WriteString(w, `{"data":[{"id":"far"}]}`)
		case r.Method == "POST" && refuses:
			b, _ := io.ReadAll(r.Body)
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, encode(t, dict{"error": dict{"message": "wrong: " + string(b)}}))
		case r.Method == "POST":
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, `data: {"choices":[{"delta":{"content":"Hel"}}]}`+"\n\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	defer srv.Close()
	f := front(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, srv.URL)
	ask := func(want string) {
		t.Helper()
		for path, q := range map[string]dict{
			"/v1/chat/completions": {"messages": user("SECRET")}, "/v1/responses": {"input": "SECRET"},
		} {
			for _, stream := range []bool{false, true} {
				status, b := f.do("POST", path, encode(t, with(q, dict{"model": "far", "stream": stream})))
				if !strings.Contains(string(b), want) || strings.Contains(string(b), "127.0.0.1") {
					t.Errorf("%s, stream %v: %d %s", path, stream, status, b)
				}
			}
		}
	}
	refuses = true
	ask("wrong: ")
	refuses = false
	ask("the upstream broke off: the connection broke")
	srv.CloseClientConnections()
	srv.Close()
	eventually(t, "an upstream that is out", func() bool { return !f.s.cfg.Upstreams.States()[0].Ready() })
	ask("no replica answers: it cannot be reached")
	if _, b := f.do("GET", "/v1/models", ""); !strings.Contains(string(b), "it cannot be reached") ||
		strings.Contains(string(b), "127.0.0.1") {
		t.Errorf("the list: %s", b)
	}
	if strings.Contains(log.String(), "SECRET") {
		t.Errorf("the log tells what was said: %s", log.String())
	}
}
