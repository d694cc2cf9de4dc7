package server

import (
	"io"
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
	if status != http.StatusInternalServerError || !strings.Contains(string(b), "the upstream") {
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
