package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// keep opens a connection, gets an answer on it and keeps it.
func (l *live) keep(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l.get(t, c)
	return c
}

func (l *live) get(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, error %v", resp.StatusCode, err)
	}
	// The server notices a little later that the connection is idle.
	for {
		x := l.s.conns.Load()
		x.mu.Lock()
		n := len(x.idle)
		noticed := n > 0 && x.idle[n-1].RemoteAddr().String() == c.LocalAddr().String()
		x.mu.Unlock()
		if noticed {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestIdleConnsMakeRoom: clients that keep their connections lock nobody out; the one that has been idle longest
// is closed.
func TestIdleConnsMakeRoom(t *testing.T) {
	l := startLive(t, options{config: Config{MaxConns: 3}})
	var kept []net.Conn
	for range 3 {
		kept = append(kept, l.keep(t))
	}
	l.get(t, kept[0]) // now the second one is the oldest
	for range 2 {
		l.keep(t)
	}
	for i, c := range kept[1:] {
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("idle connection %d: %v", i+1, err)
		}
	}
	l.get(t, kept[0])
}

// TestBusyConnsStay: one with a request in progress is not closed for another.
func TestBusyConnsStay(t *testing.T) {
	l := startLive(t, options{config: Config{MaxConns: 2}})
	begun, goOn := make(chan struct{}), make(chan struct{})
	l.s.mux.HandleFunc("GET /slow", func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-goOn
		io.WriteString(w, "done")
	})
	got := make(chan string)
	go func() {
		resp, err := http.Get(l.url + "/slow")
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		got <- string(b)
	}()
	<-begun
	for range 5 {
		l.keep(t)
	}
	close(goOn)
	if s := <-got; s != "done" {
		t.Errorf("the request in progress got %q", s)
	}
}

// TestPerAddress: one address has a few connections; a further one is closed unless one of its own is idle.
func TestPerAddress(t *testing.T) {
	l := startLive(t, options{config: Config{MaxPerAddress: 2}})
	one := l.keep(t)
	l.keep(t)
	l.keep(t) // takes the place of the first
	if _, err := one.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the first idle connection: %v", err)
	}
	// Both busy: half a request each.
	l2 := startLive(t, options{config: Config{MaxPerAddress: 2}})
	for range 2 {
		c, err := net.Dial("tcp", l2.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /health HTTP/1.1\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	c, err := net.Dial("tcp", l2.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a third connection was served")
	}

}
