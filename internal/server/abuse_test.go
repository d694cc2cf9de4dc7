package server

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"strobe/internal/engine"
)

// TestVanishingClients: 200 clients connect, stream and vanish at random points. Afterwards no slot is
// taken, no memory but the cache's is in use, and no goroutine is left. It takes two seconds;
// STROBE_ABUSE gives another time, such as 60s.
func TestVanishingClients(t *testing.T) {
	span := 2 * time.Second
	if s := os.Getenv("STROBE_ABUSE"); s != "" {
		var err error
		if span, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	l := startLive(t, options{engine: engine.Config{Parallel: 4, Queue: 16, CacheBytes: 4 << 20}})
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	var wg sync.WaitGroup
	var sent, answered atomic.Int64
	for i := range 200 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for ctx.Err() == nil {
				sent.Add(1)
				if vanish(ctx, r, l.addr) {
					answered.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if sent.Load() < 200 || answered.Load() == 0 {
		t.Errorf("%d requests, %d answered to the end", sent.Load(), answered.Load())
	}
	eventually(t, "all slots are free", func() bool { s := l.e.Snapshot(); return s.Active() == 0 && s.Queued == 0 })
	s := l.e.Snapshot()
	if s.Cache.Bytes > 4<<20 {
		t.Errorf("the cache has %d bytes, its limit is %d", s.Cache.Bytes, 4<<20)
	}
	if held := int64(s.TargetBytes + s.DrafterBytes); held != s.Cache.Bytes {
		t.Errorf("%d bytes are in use, the cache has %d of them", held, s.Cache.Bytes)
	}
	eventually(t, "no request is held", func() bool { return l.s.held.Load() == 0 })
	eventually(t, "no goroutine is left over", func() bool { return runtime.NumGoroutine() <= before+2 })
	l.post("/v1/completions", dict{"prompt": "x", "max_tokens": 3})
	for _, m := range l.s.models().List() {
		if m.Users != 0 {
			t.Errorf("%d leases are held", m.Users)
		}
	}
	t.Logf("%d requests, %d answered to the end, %d rejected", sent.Load(), answered.Load(), s.Rejected)
}

// vanish sends a request and leaves at a random point: before, while or after sending it, in the
// queue, in the stream, or at its end. It reports whether the whole answer came.
func vanish(ctx context.Context, r *rand.Rand, addr string) bool {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer c.Close()
	paths := []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
	body := fmt.Sprintf(`{"prompt":"%[1]s","input":"%[1]s","messages":[{"role":"user",`+
		`"content":"%[1]s"}],"stream":%[2]v,"max_tokens":%[3]d,"max_output_tokens":%[3]d,"n":%[4]d}`,
		strings.Repeat("word ", 1+r.IntN(60)), r.IntN(4) > 0, 1+r.IntN(60), 1+r.IntN(2))
	req := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		paths[r.IntN(len(paths))], len(body), body)
	if r.IntN(5) == 0 {
		req = req[:r.IntN(len(req))]
	}
	if _, err := io.WriteString(c, req); err != nil {
		return false
	}
	if r.IntN(3) == 0 {
		_ = c.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(100)) * time.Millisecond))
	} else {
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
	}
	if tcp, ok := c.(*net.TCPConn); ok && r.IntN(2) == 0 {
		_ = tcp.SetLinger(0) // vanish with a reset
	}
	br := bufio.NewReader(c)
	for n := r.IntN(400); ; n-- {
		line, err := br.ReadString('\n')
		if err != nil {
			return err == io.EOF && line == ""
		}
		if n == 0 && r.IntN(2) == 0 {
			return false
		}
	}
}

// TestManyQueued: of 1,000 requests at once some are answered, the others are refused, and none is lost.
func TestManyQueued(t *testing.T) {
	l := startLive(t, options{engine: engine.Config{Parallel: 2, Queue: 8}})
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1000}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	var ok, refused atomic.Int64
	for range 1000 {
		wg.Go(func() {
			resp, err := client.Post(l.url+"/v1/completions", "application/json",
				strings.NewReader(`{"prompt":"x","max_tokens":20,"ignore_eos":true}`))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Error(err)
			}
			switch resp.StatusCode {
			case 200:
				ok.Add(1)
			case 503:
				refused.Add(1)
				if resp.Header.Get("Retry-After") == "" || !bytes.Contains(b, []byte("unavailable_error")) {
					t.Errorf("refused with %s", b)
				}
			default:
				t.Errorf("status %d: %s", resp.StatusCode, b)
			}
		})
	}
	wg.Wait()
	if ok.Load() < 2 || ok.Load()+refused.Load() != 1000 {
		t.Errorf("%d answered, %d refused", ok.Load(), refused.Load())
	}
	if s := l.e.Snapshot(); s.Rejected != refused.Load() || s.Active() != 0 || s.Queued != 0 {
		t.Errorf("%d rejected, %d active, %d queued", s.Rejected, s.Active(), s.Queued)
	}
}

// TestHugePrompt: ten megabytes are refused for what they are, without being read into tokens.
func TestHugePrompt(t *testing.T) {
	l := startLive(t, options{})
	for _, body := range []string{
		`{"prompt":"` + strings.Repeat("word ", 2<<20) + `"}`,
		`{"prompt":[` + strings.Repeat("5,", 5<<20) + `5]}`,
	} {
		status, b := l.do("POST", "/v1/completions", body)
		if e := at(decodeObject(t, b), "error"); status != 400 || text(e, "type") != "exceed_context_size_error" {
			t.Errorf("%.20s: %d %s", body, status, b)
		}
	}
	status, b := l.do("POST", "/v1/chat/completions", encode(t, dict{"messages": user(strings.Repeat("x", 10<<20))}))
	if e := at(decodeObject(t, b), "error"); status != 400 || text(e, "type") != "exceed_context_size_error" {
		t.Errorf("chat: %d %s", status, b)
	}
	status, b = l.do("POST", "/v1/completions", `{"prompt":"`+strings.Repeat("x", 17<<20)+`"}`)
	if status != 413 {
		t.Errorf("17 MB: %d %s", status, b)
	}
	eventually(t, "nothing is held", func() bool { return l.s.held.Load() == 0 })
}

// TestHeaderFlood: too many headers end the connection with an error.
func TestHeaderFlood(t *testing.T) {
	l := startLive(t, options{})
	c, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		w := bufio.NewWriter(c)
		fmt.Fprint(w, "GET /health HTTP/1.1\r\nHost: x\r\n")
		for i := range 100000 {
			if _, err := fmt.Fprintf(w, "X-%d: %s\r\n", i, strings.Repeat("y", 100)); err != nil {
				return
			}
		}
		w.Flush()
	}()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	line, _ := bufio.NewReader(c).ReadString('\n')
	if line != "" && !strings.Contains(line, " 431 ") {
		t.Errorf("answer %q", line)
	}
	if status, _ := l.do("GET", "/health", ""); status != 200 {
		t.Errorf("afterwards: %d", status)
	}
}

// TestSlowLoris: headers and bodies that never end do not keep their connections.
func TestSlowLoris(t *testing.T) {
	t.Parallel() // it waits more than it works
	l := startLive(t, options{config: Config{HeaderTimeout: 100 * time.Millisecond, BodyTimeout: 100 * time.Millisecond,
		Keys: []string{"k"}}})
	for _, start := range []string{
		"GET /health HTTP/1.1\r\nHost: x\r\nX-A",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: 1000\r\n\r\n{\"prompt\":",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 1000\r\n\r\n{\"prompt\":",
	} {
		c, err := net.Dial("tcp", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, start); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Errorf("%.40q keeps its connection", start)
			}
		}
		c.Close()
	}
	eventually(t, "nothing is held", func() bool { return l.s.held.Load() == 0 })
}

// TestSlowReader: a client that takes nothing of its answer loses it, and its slot.
func TestSlowReader(t *testing.T) {
	l := startLive(t, options{config: Config{WriteTimeout: 100 * time.Millisecond},
		engine: engine.Config{Parallel: 1, Context: 32768}, buffer: 4096})
	c, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	body := `{"prompt":"x","max_tokens":32000,"ignore_eos":true,"stream":true,"logprobs":5}`
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	eventually(t, "the slot is free again", func() bool { return l.e.Snapshot().Requests[engine.ReasonCancelled] == 1 })
	l.post("/v1/completions", dict{"prompt": "x", "max_tokens": 2})
}

// TestManyConnections: connections beyond the limit wait for others to close.
func TestManyConnections(t *testing.T) {
	l := startLive(t, options{config: Config{MaxConns: 3}})
	var idle []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	done := make(chan int)
	go func() {
		status, _ := l.do("GET", "/health", "")
		done <- status
	}()
	select {
	case <-done:
		t.Error("a fourth connection was served")
	case <-time.After(100 * time.Millisecond):
		idle[0].Close()
		if status := <-done; status != 200 {
			t.Errorf("status %d", status)
		}
	}
	for _, c := range idle {
		c.Close()
	}
}
