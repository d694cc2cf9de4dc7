package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// send writes a request by hand, all of it before it reads the answer, as simple clients do.
func (l *live) send(t *testing.T, header string, body func(w io.Writer) error) *http.Response {
	t.Helper()
	c, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c,
		"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+header+
			"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := body(c); err != nil {
		t.Errorf("sending the body: %v", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	return resp
}

// TestSlowBody: a body that does not come in time gets its 408 before the connection closes.
func TestSlowBody(t *testing.T) {
	l := startLive(t, options{config: Config{BodyTimeout: 50 * time.Millisecond}})
	for _, header := range []string{"Content-Length: 1000", "Transfer-Encoding: chunked"} {
		resp := l.send(t, header, func(w io.Writer) error { return nil })
		b, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusRequestTimeout || err != nil ||
			!strings.Contains(string(b), "did not arrive within 50ms") {
			t.Errorf("%s: %d %s %v", header, resp.StatusCode, b, err)
		}
		if !resp.Close {
			t.Errorf("%s: the connection is kept, though the rest of the body may come", header)
		}
	}
}

// TestLargeBody: one that is too large gets its 413, also when the client sends all of it first.
func TestLargeBody(t *testing.T) {
	l := startLive(t, options{config: Config{MaxBody: 10 << 10}})
	const size = 20 << 20 // far more than the system's buffers hold
	piece := make([]byte, 1<<16)
	for _, chunked := range []bool{false, true} {
		header := fmt.Sprintf("Content-Length: %d", size)
		if chunked {
			header = "Transfer-Encoding: chunked"
		}
		resp := l.send(t, header, func(w io.Writer) error {
			for range size / len(piece) {
				if chunked {
					if _, err := fmt.Fprintf(w, "%x\r\n", len(piece)); err != nil {
						return err
					}
				}
				if _, err := w.Write(piece); err != nil {
					return err
				}
				if chunked {
					if _, err := io.WriteString(w, "\r\n"); err != nil {
						return err
					}
				}
			}
			if chunked {
				_, err := io.WriteString(w, "0\r\n\r\n")
				return err
			}
			return nil
		})
		b, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusRequestEntityTooLarge || err != nil ||
			!strings.Contains(string(b), "larger than 10240") {
			t.Errorf("chunked %v: %d %s %v", chunked, resp.StatusCode, b, err)
		}
		if n := l.s.held.Load(); n != 0 {
			t.Errorf("%d bytes are still counted as held", n)
		}
	}
}

// TestRefusedBody: the same for a request that is refused before anybody looks at its body.
func TestRefusedBody(t *testing.T) {
	l := startLive(t, options{config: Config{Keys: []string{"key"}}})
	const size = 10 << 20
	resp := l.send(t, fmt.Sprintf("Content-Length: %d", size), func(w io.Writer) error {
		_, err := w.Write(make([]byte, size))
		return err
	})
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("%d", resp.StatusCode)
	}
}
