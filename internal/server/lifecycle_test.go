package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"strobe/internal/engine"
)

// live is a server on a listener of its own, as the command runs it.
type live struct {
	*fixture
	stop func() // and wait
	addr string
}

func startLive(t *testing.T, o options) *live {
	t.Helper()
	l := &live{fixture: &fixture{t: t, e: startEngine(t, &o)}}
	o.config.Models = Single(o.model, l.e)
	l.s = New(o.config)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if o.buffer > 0 {
		ln = &smallBuffers{ln, o.buffer}
	}
	l.addr = ln.Addr().String()
	l.url = "http://" + l.addr
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.s.Serve(ctx, ln) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		l.stop()
	})
	return l
}

// smallBuffers makes writes wait for a reader soon.
type smallBuffers struct {
	net.Listener
	n int
}

func (l *smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(l.n)
	}
	return c, err
}

// open starts a stream and reads its first line.
func (l *live) open(t *testing.T, path string, body any) (*http.Response, *bufio.Reader) {
	t.Helper()
	resp, err := http.Post(l.url+path, "application/json", strings.NewReader(encode(t, body)))
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(resp.Body)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return resp, r
}

// TestShutdownFinishes: a stream that ends in time is not cut.
func TestShutdownFinishes(t *testing.T) {
	l := startLive(t, options{})
	resp, r := l.open(t, "/v1/completions", dict{"prompt": "x", "max_tokens": 300, "ignore_eos": true, "stream": true})
	defer resp.Body.Close()
	go l.stop()
	b, err := io.ReadAll(r)
	if err != nil || !bytes.HasSuffix(b, []byte("data: [DONE]\n\n")) {
		t.Errorf("the stream ended with %q, %v", b[max(0, len(b)-100):], err)
	}
	l.stop()
	if _, err := net.DialTimeout("tcp", l.addr, time.Second); err == nil {
		t.Error("the address still answers")
	}
}

// TestShutdownCancels: after the deadline streams end with an error, in the words of their protocol.
func TestShutdownCancels(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/completions": `data: {"error":{"message":"the server is shutting down"`,
		"/v1/messages":    `event: error`,
		"/v1/responses":   `event: response.failed`,
	} {
		l := startLive(t, options{config: Config{Drain: 50 * time.Millisecond}, engine: engine.Config{Context: 32768}})
		l.s.tweak = func(req *engine.Request, _ *model) { req.IgnoreEOG = true }
		resp, r := l.open(t, path, dict{"prompt": "x", "input": "x", "messages": user("x"), "stream": true,
			"strobe":     dict{"draft": "off"},
			"max_tokens": 32000, "max_output_tokens": 32000})
		l.stop()
		b, err := io.ReadAll(r)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(b), want) || strings.Contains(string(b), "[DONE]") {
			t.Errorf("%s: the stream ended with %q, %v", path, b[max(0, len(b)-300):], err)
		}
		if s := l.e.Snapshot(); s.Active() != 0 || s.Queued != 0 {
			t.Errorf("%s: %d active, %d queued", path, s.Active(), s.Queued)
		}
	}
}

// TestLoading: until there are models everything but the page says so.
func TestLoading(t *testing.T) {
	f := start(t, options{})
	models := f.s.models()
	f.s.offer.Store(nil)
	for path, want := range map[string]int{"/health": 503, "/v1/models": 503, "/": 200} {
		if status, b := f.do("GET", path, ""); status != want {
			t.Errorf("%s: %d %s", path, status, b)
		}
	}
	f.s.SetModels(models)
	if status, _ := f.do("GET", "/health", ""); status != 200 {
		t.Errorf("health: %d", status)
	}
}

func TestKeys(t *testing.T) {
	f := start(t, options{config: Config{Keys: []string{"first", "second"}}})
	for _, c := range []struct {
		path   string
		header []string
		status int
	}{
		{"/v1/models", nil, 401},
		{"/v1/models", []string{"Authorization", "Bearer wrong"}, 401},
		{"/v1/models", []string{"Authorization", "first"}, 401},
		{"/v1/models", []string{"Authorization", "Bearer "}, 401},
		{"/v1/models", []string{"Authorization", "Bearer first"}, 200},
		{"/v1/models", []string{"Authorization", "bearer second"}, 200},
		{"/v1/models", []string{"X-Api-Key", "second"}, 200},
		{"/metrics", nil, 401}, {"/slots", nil, 401}, {"/props", nil, 401},
		{"/health", nil, 200}, {"/", nil, 200},
	} {
		status, b := f.do("GET", c.path, "", c.header...)
		if status != c.status {
			t.Errorf("%s with %q: %d %s", c.path, c.header, status, b)
		}
		if status == 401 && text(decodeObject(t, b), "error", "type") != "authentication_error" {
			t.Errorf("%s", b)
		}
	}
}

func TestCORS(t *testing.T) {
	body := `{"prompt":"x","max_tokens":1}`
	for _, c := range []struct {
		cors          []string
		origin        string
		method        string
		status        int
		allowedOrigin string
	}{
		{nil, "", "POST", 200, ""}, // no browser
		{nil, "https://evil.example", "POST", 403, ""},
		{nil, "https://evil.example", "OPTIONS", 204, ""},
		{[]string{"https://good.example"}, "https://good.example", "POST", 200, "https://good.example"},
		{[]string{"https://good.example"}, "https://good.example", "OPTIONS", 204, "https://good.example"},
		{[]string{"https://good.example"}, "https://evil.example", "POST", 403, ""},
		{[]string{"*"}, "https://evil.example", "POST", 200, "https://evil.example"},
	} {
		f := start(t, options{config: Config{CORS: c.cors}})
		req, err := http.NewRequestWithContext(t.Context(), c.method, f.url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
			req.Header.Set("Sec-Fetch-Site", "cross-site")
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status || resp.Header.Get("Access-Control-Allow-Origin") != c.allowedOrigin {
			t.Errorf("%v, %s from %q: %d, allowed %q", c.cors, c.method, c.origin, resp.StatusCode,
				resp.Header.Get("Access-Control-Allow-Origin"))
		}
	}
}

// TestHosts: a page that made its own name point here is refused.
func TestHosts(t *testing.T) {
	f := start(t, options{config: Config{Hosts: []string{"localhost", "box"}}})
	for host, want := range map[string]int{"localhost:1": 200, "BOX": 200, "127.0.0.1:99": 200, "[::1]:5": 200,
		"evil.example": 403, "evil.example:80": 403,
		"evillocalhost": 403, "localhost.evil.example": 403, "xbox": 403, "local": 403, "127.0.0.1.evil.example": 403,
		"localhost.": 200, "localhost.:80": 200, "other.": 403} { // the full name of a host ends with a dot
		req, err := http.NewRequestWithContext(t.Context(), "GET", f.url+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("host %s: %d, want %d", host, resp.StatusCode, want)
		}
	}
}

// TestLog: a line per request with its numbers, and nothing of what was said.
func TestLog(t *testing.T) {
	var buf syncBuffer
	f := start(t, options{config: Config{Keys: []string{"sesame"}, Log: slog.New(slog.NewJSONHandler(&buf, nil))}})
	f.do("POST", "/v1/completions", `{"prompt":"my secret","max_tokens":5,"ignore_eos":true}`, "Authorization",
		"Bearer sesame", "X-Request-Id", "abc-1")
	f.do("POST", "/v1/completions", `{"prompt":7}`, "Authorization", "Bearer sesame")
	f.do("GET", "/health", "")
	var lines []dict
	eventually(t, "two lines are logged", func() bool {
		lines = nil
		for line := range strings.Lines(buf.String()) {
			lines = append(lines, decodeObject(t, []byte(line)))
		}
		return len(lines) >= 2
	})
	if len(lines) != 2 {
		t.Errorf("%d lines", len(lines))
	}
	a := lines[0]
	if text(a, "msg") != "request" || text(a, "id") != "abc-1" || text(a, "path") != "/v1/completions" ||
		number(a, "status") != 200 || number(a, "tokens") != 5 || text(a, "end") != "length" || text(a, "model") != "qwen35" {
		t.Errorf("line %v", a)
	}
	if number(lines[1], "status") != 400 || !strings.Contains(text(lines[1], "error"), "prompt") {
		t.Errorf("line %v", lines[1])
	}
	if s := buf.String(); strings.Contains(s, "secret") || strings.Contains(s, "sesame") {
		t.Errorf("the log tells secrets: %s", s)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	l := startLive(t, options{config: Config{MaxConns: 1, MaxBody: 1 << 20,
		TLS: &tls.Config{NextProtos: []string{"h2", "http/1.1"},
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}}})
	pool := x509.NewCertPool()
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(cert)
	for _, http2 := range []bool{false, true, false} { // clients for one connection: the idle one makes room
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: http2}}
		defer c.CloseIdleConnections()
		resp, err := c.Get("https://" + l.addr + "/health")
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || resp.ProtoMajor == 2 != http2 {
			t.Errorf("status %d, %s", resp.StatusCode, resp.Proto)
		}
		// Streams, and requests that are refused before they are read.
		resp, err = c.Post("https://"+l.addr+"/v1/completions", "application/json",
			strings.NewReader(`{"prompt":"x","max_tokens":3,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
			t.Errorf("%q, %v", b, err)
		}
		resp, err = c.Post("https://"+l.addr+"/v1/completions", "application/json",
			strings.NewReader(strings.Repeat(" ", 2<<20)))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("a large request: status %d", resp.StatusCode)
		}
	}
}

// TestPing: while nothing is generated a stream shows signs of life.
func TestPing(t *testing.T) {
	l := startLive(t, options{engine: engine.Config{Parallel: 1}, config: Config{Ping: 10 * time.Millisecond}})
	for path, want := range map[string]string{"/v1/completions": ":\n", "/v1/messages": "event: ping\n",
		"/v1/responses": ":\n"} {
		release := make(chan struct{})
		l.s.tweak = func(req *engine.Request, _ *model) { req.Constraint = &blocked{release: release} }
		resp, r := l.open(t, path, dict{"prompt": "x", "input": "x", "messages": user("x"), "max_tokens": 2,
			"max_output_tokens": 2, "stream": true})
		// The first token waits until there was a sign; without one the test does not end.
		seen := path == "/v1/completions" // it was the first line
		for !seen {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			seen = line == want
		}
		close(release)
		b, err := io.ReadAll(r)
		resp.Body.Close()
		if err != nil || len(b) == 0 {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
}

// blocked makes the first token wait.
type blocked struct{ release chan struct{} }

func (b *blocked) Mask([]float32) { <-b.release }
func (b *blocked) Accept(int32)   {}

// loadingForever is a model that never gets loaded.
type loadingForever struct {
	Models
	begun chan struct{}
}

func (m *loadingForever) Acquire(ctx context.Context, _ string) (string, *engine.Engine, func(*time.Duration), error) {
	close(m.begun)
	<-ctx.Done()
	return "", nil, nil, ctx.Err()
}

// TestShutdownWhileLoading: requests that wait for a model are told at once, whatever time others have to finish.
func TestShutdownWhileLoading(t *testing.T) {
	l := startLive(t, options{config: Config{Drain: time.Hour}})
	m := &loadingForever{Models: l.s.models(), begun: make(chan struct{})}
	l.s.SetModels(m)
	type answer struct {
		status int
		body   []byte
	}
	got := make(chan answer)
	go func() {
		status, b := l.do("POST", "/v1/completions", `{"prompt":"x"}`)
		got <- answer{status, b}
	}()
	<-m.begun
	go l.stop()
	if a := <-got; a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), "shutting down") {
		t.Errorf("%d %s", a.status, a.body)
	}
	l.stop()
}

// TestShutdownLeavesBehind: a handler that does not look at its context cannot keep the server from ending.
func TestShutdownLeavesBehind(t *testing.T) {
	l := startLive(t, options{config: Config{Drain: time.Millisecond}})
	begun, goOn := make(chan struct{}), make(chan struct{})
	defer close(goOn)
	l.s.mux.HandleFunc("GET /hang", func(http.ResponseWriter, *http.Request) {
		close(begun)
		<-goOn
	})
	go http.Get(l.url + "/hang")
	<-begun
	l.stop()
}
