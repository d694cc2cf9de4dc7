package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// mcpFake is an MCP server with the tools a test gives it. Sessions can be forgotten, and answers come as JSON or as
// events.
type mcpFake struct {
	t     *testing.T
	tools []dict
	call  func(name string, args dict) dict // a result

	mu      sync.Mutex
	events  bool // answers are streams
	session int
	heads   []http.Header // of requests
	calls   []string
	begun   int // sessions that were begun
}

func (f *mcpFake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heads = append(f.heads, r.Header.Clone())
	var q struct {
		ID     *int
		Method string
		Params struct {
			Name      string
			Arguments dict
			Cursor    string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		f.t.Error(err)
	}
	var result dict
	switch q.Method {
	case "initialize":
		f.session++
		f.begun++
		w.Header().Set("Mcp-Session-Id", fmt.Sprint("session-", f.session))
		result = dict{"protocolVersion": "2025-06-18", "capabilities": dict{"tools": dict{}},
			"serverInfo": dict{"name": "fake"}}
	case "notifications/initialized":
		w.WriteHeader(http.StatusAccepted)
		return
	default:
		if r.Header.Get("Mcp-Session-Id") != fmt.Sprint("session-", f.session) {
			http.Error(w, "no such session", http.StatusNotFound)
			return
		}
		if q.Method == "tools/list" { // in two pages
			half := len(f.tools) / 2
			if result = (dict{"tools": f.tools[:half], "nextCursor": "more"}); q.Params.Cursor != "" {
				result = dict{"tools": f.tools[half:]}
			}
			break
		}
		said, _ := json.Marshal(q.Params.Arguments)
		f.calls = append(f.calls, q.Params.Name+string(said))
		result = f.call(q.Params.Name, q.Params.Arguments)
	}
	b, _ := json.Marshal(dict{"jsonrpc": "2.0", "id": q.ID, "result": result})
	if f.events {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ": hello\r\n\r\nevent: message\r\n"+
			"data: {\"jsonrpc\": \"2.0\", \"method\": \"notifications/progress\"}\r\n\r\n")
		fmt.Fprintf(w, "data:%s\n\n", b)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write(b)
}

// forget makes the server forget its session.
func (f *mcpFake) forget(events bool) {
	f.mu.Lock()
	f.session += 100
	f.events = events
	f.mu.Unlock()
}

func (f *mcpFake) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.calls, " ")
}

// TestMCP: requests reach the servers that were named and no others, with their key and without the client's, and what
// comes back is data, bounded, and never taken for this server's own words.
func TestMCP(t *testing.T) {
	var mu sync.Mutex
	var got *http.Request
	answer := func(w http.ResponseWriter, _ *http.Request) {}
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got = r
		f := answer
		mu.Unlock()
		f(w, r)
	}))
	defer back.Close()
	f := start(t, options{config: Config{Keys: []string{"ours"}, MCP: []MCPServer{
		{Name: "docs", URL: back.URL + "/mcp?x=1", Key: "theirs"}, {Name: "gone", URL: "http://127.0.0.1:1/mcp"},
	}}})
	head := []string{"Authorization", "Bearer ours", "Mcp-Session-Id", "s1", "Cookie", "a=b", "X-Other", "c"}
	do := func(method, path, body string, header ...string) (int, string, http.Header) {
		t.Helper()
		req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return 0, err.Error(), resp.Header
		}
		return resp.StatusCode, string(b), resp.Header
	}
	set := func(h http.HandlerFunc) {
		mu.Lock()
		answer, got = h, nil
		mu.Unlock()
	}

	set(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Mcp-Session-Id", "s2")
		w.Header().Set("Set-Cookie", "evil=1")
		fmt.Fprint(w, `{"result":1}`)
	})
	status, body, h := do("POST", "/mcp/docs", `{"id":1}`, head...)
	if status != 200 || body != `{"result":1}` || h.Get("Mcp-Session-Id") != "s2" || h.Get("Set-Cookie") != "" ||
		!strings.Contains(h.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%d %s %v", status, body, h)
	}
	mu.Lock()
	if got.URL.String() != "/mcp?x=1" || got.Header.Get("Authorization") != "Bearer theirs" ||
		got.Header.Get("Mcp-Session-Id") != "s1" || got.Header.Get("Cookie") != "" || got.Header.Get("X-Other") != "" {
		t.Errorf("it got %v %v", got.URL, got.Header)
	}
	mu.Unlock()

	for what, c := range map[string]struct {
		answer http.HandlerFunc
		status int
		says   string
	}{
		"a redirect": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", 307) }, 502,
			"status 307"},
		"a page": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<script>alert(1)</script>")
		}, 502, "neither JSON nor events"},
		"a wrong key":     {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(401) }, 502, "--mcp-key"},
		"an old session":  {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) }, 404, "session"},
		"a broken server": {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) }, 502, "status 500"},
		"no words":        {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(202) }, 202, ""},
		"too much": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(make([]byte, mcpAnswer+1))
		}, 0, "unexpected EOF"},
		"just not too much": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(make([]byte, mcpAnswer))
		}, 200, ""},
		"an answer that breaks off": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 0, "unexpected EOF"},
	} {
		set(c.answer)
		if status, body, _ := do("POST", "/mcp/docs", `{}`, head...); status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %.200s", what, status, body)
		}
	}

	set(func(w http.ResponseWriter, _ *http.Request) {})
	for _, c := range []struct {
		method, path, body string
		head               []string
		status             int
		says               string
	}{
		{"POST", "/mcp/docs", "{}", nil, 401, "API key"},
		{"POST", "/mcp/docs", "{}", append([]string{"Origin", "https://evil.example"}, head...), 403, "another origin"},
		{"POST", "/mcp/other", "{}", head, 404, `no MCP server \"other\"`},
		{"POST", "/mcp/" + strings.ReplaceAll(back.URL, "/", "%2F"), "{}", head, 404, "no MCP server"},
		{"POST", "/mcp/docs", strings.Repeat(" ", mcpRequest+1), head, 413, "at most"},
		{"GET", "/mcp/docs", "", head, 405, "POST"},
		{"POST", "/mcp/gone", "{}", head, 502, "the MCP server gone cannot be reached"},
	} {
		if status, body, _ := do(c.method, c.path, c.body, c.head...); status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
		}
		mu.Lock()
		if got != nil {
			t.Errorf("%s %s reached the server", c.method, c.path)
		}
		mu.Unlock()
	}

	// A client that leaves ends the call.
	left := make(chan struct{})
	set(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	})
	req, _ := http.NewRequest("POST", f.url+"/mcp/docs", strings.NewReader("{}"))
	req.Header.Set("Authorization", "Bearer ours")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	select {
	case <-left:
	case <-time.After(30 * time.Second):
		t.Error("the call goes on without its client")
	}

	for _, m := range []MCPServer{{"", "http://a", ""}, {"a/b", "http://a", ""}, {"..", "http://a", ""},
		{"a", "ftp://a", ""}, {"a", "http://", ""}, {"a", "http://user:pw@host", ""}, {"a", "::", ""}} {
		if m.Check() == nil {
			t.Errorf("%v passes", m)
		}
	}
	if err := (MCPServer{"docs-1", "https://host/mcp?key=a", ""}).Check(); err != nil {
		t.Error(err)
	}
}
