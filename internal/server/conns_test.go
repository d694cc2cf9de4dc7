package server

import (
	"bufio"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
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
	// Both busy: a further one is closed.
	l2 := startLive(t, options{config: Config{MaxPerAddress: 2}})
	begun, goOn := make(chan struct{}), make(chan struct{})
	l2.s.mux.HandleFunc("GET /slow", func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-goOn
	})
	for range 2 {
		c, err := net.Dial("tcp", l2.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		<-begun
	}
	c, err := net.Dial("tcp", l2.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a third connection was served")
	}
	close(goOn)
}

// TestSilentConnections: connections that say nothing, or half a header, make room for others.
func TestSilentConnections(t *testing.T) {
	t.Parallel() // it waits more than it works
	l := startLive(t, options{config: Config{MaxConns: 8, HeaderTimeout: time.Hour}})
	for i := range 20 {
		c, err := net.Dial("tcp", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /health HTTP/1.1\r\nHost:"[:i]); err != nil {
			t.Fatal(err)
		}
	}
	if status, b := l.do("GET", "/health", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, b)
	}
}

// TestNewConnectionsStay: a connection whose request is on its way is not closed for another one.
func TestNewConnectionsStay(t *testing.T) {
	t.Parallel() // it waits more than it works
	l := newConns(nil, 2, 0)
	a, b := &conn{l: l, addr: "a"}, &conn{l: l, addr: "b"}
	for _, c := range []*conn{a, b} {
		if ok, victims := l.admit(c); !ok || victims != nil {
			t.Fatalf("%v, %v", ok, victims)
		}
	}
	idle := func() []*conn {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.Clone(l.idle)
	}
	if len(idle()) != 0 {
		t.Error("a new connection counts as idle")
	}
	l.state(a, http.StateActive)
	eventually(t, "the silent connection counts as idle", func() bool { return len(idle()) > 0 })
	if got := idle(); got[0] != b || len(got) != 1 {
		t.Errorf("idle are %v", got)
	}
	c := &conn{l: l, addr: "c"}
	if ok, victims := l.admit(c); !ok || len(victims) != 1 || victims[0] != b {
		t.Errorf("%v, %v", ok, victims)
	}
	l.state(b, http.StateIdle) // what the HTTP server says of one that is closed already
	if slices.Contains(idle(), b) {
		t.Error("a closed connection counts as idle")
	}
	for _, x := range []*conn{a, c} {
		l.state(x, http.StateClosed)
	}
}

// TestDefaultPerAddress: one address does not get all connections, unless that is asked for or it is this machine's.
func TestDefaultPerAddress(t *testing.T) {
	for _, c := range []struct {
		given int
		addr  string
		want  int
	}{
		{0, "10.0.0.1", 6}, {0, "2001:db8::1", 6}, {0, "127.0.0.1", math.MaxInt}, {0, "::1", math.MaxInt},
		{0, "@", math.MaxInt},
		{3, "10.0.0.1", 3}, {3, "127.0.0.1", 3}, {-1, "10.0.0.1", math.MaxInt},
	} {
		if got := newConns(nil, 8, c.given).limit(c.addr); got != c.want {
			t.Errorf("%d for %s means %d, not %d", c.given, c.addr, got, c.want)
		}
	}
	if got := newConns(nil, 1, 0).limit("10.0.0.1"); got != 1 {
		t.Errorf("of one connection an address may have %d", got)
	}
	l := newConns(nil, 4, 0)
	var kept []*conn
	for i, addr := range []string{"10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2"} {
		c := &conn{l: l, addr: addr}
		ok, _ := l.admit(c)
		if ok != (i != 3) {
			t.Errorf("connection %d of %s: %v", i, addr, ok)
		}
		if ok {
			l.rest(c, false) // a request has come
			kept = append(kept, c)
		}
	}
	for _, c := range kept {
		l.remove(c)
		l.remove(c) // closed twice
	}
	if l.open != 0 || len(l.byAddr) != 0 || len(l.idle) != 0 {
		t.Errorf("%d open, %v by address, %d idle", l.open, l.byAddr, len(l.idle))
	}
}
