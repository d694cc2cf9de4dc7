package server

import (
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// conns is a listener that bounds the connections that are open at a time. When there is no room for a new one, the
// connection that has been idle longest is closed: clients keep theirs open for minutes after a request, or open them
// and say nothing, and would lock others out. When none is idle, the new one waits.
type conns struct {
	net.Listener
	most, perAddress int

	mu      sync.Mutex
	changed sync.Cond // a connection ended or became idle
	open    int
	idle    []*conn // oldest first
	byAddr  map[string]int
	closed  bool
}

// conn is a connection of conns.
type conn struct {
	net.Conn
	l    *conns
	addr string

	// Guarded by l.mu.
	silent *time.Timer
	spoke  bool // the headers of a request have come
	gone   bool
}

// silence is how long a new connection may say nothing before it counts as idle. A client that has something to say
// says it at once; less would close connections whose request is on its way.
const silence = time.Second

func newConns(ln net.Listener, most, perAddress int) *conns {
	l := &conns{Listener: ln, most: most, perAddress: perAddress, byAddr: map[string]int{}}
	l.changed.L = &l.mu
	return l
}

// Accept returns the next connection that there is room for. Those of an address that has too many are closed.
func (l *conns) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, l: l, addr: raw.RemoteAddr().String()}
		if host, _, err := net.SplitHostPort(c.addr); err == nil {
			c.addr = host
		}
		admitted, victims := l.admit(c)
		for _, v := range victims {
			v.Conn.Close()
		}
		if admitted {
			return c, nil
		}
		raw.Close()
		if l.isClosed() {
			return nil, net.ErrClosed
		}
	}
}

// limit is how many connections an address may have.
func (l *conns) limit(addr string) int {
	ip := net.ParseIP(addr)
	switch {
	case l.perAddress > 0:
		return l.perAddress
	case l.perAddress < 0, ip == nil, ip.IsLoopback():
		return math.MaxInt
	}
	return max(1, l.most*3/4)
}

// admit makes room for a connection, waiting for it if need be, and returns those to close for it.
func (l *conns) admit(c *conn) (ok bool, victims []*conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	evict := func(fits func(*conn) bool) bool {
		i := slices.IndexFunc(l.idle, fits)
		if i < 0 {
			return false
		}
		victims = append(victims, l.idle[i])
		l.remove(l.idle[i])
		return true
	}
	same := func(x *conn) bool { return x.addr == c.addr }
	if l.byAddr[c.addr] >= l.limit(c.addr) && !evict(same) {
		return false, victims
	}
	for !l.closed && l.open >= l.most && !evict(func(*conn) bool { return true }) {
		l.changed.Wait()
	}
	if l.closed {
		return false, victims
	}
	l.open++
	l.byAddr[c.addr]++
	c.silent = time.AfterFunc(silence, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !c.spoke {
			l.rest(c, true)
		}
	})
	return true, victims
}

// remove takes a connection out of the count.
func (l *conns) remove(c *conn) {
	if c.gone {
		return
	}
	c.gone = true
	c.silent.Stop()
	l.rest(c, false)
	l.open--
	if l.byAddr[c.addr]--; l.byAddr[c.addr] == 0 {
		delete(l.byAddr, c.addr)
	}
	l.changed.Broadcast()
}

// rest notes whether a connection is idle.
func (l *conns) rest(c *conn, idle bool) {
	l.idle = slices.DeleteFunc(l.idle, func(x *conn) bool { return x == c })
	if idle && !c.gone {
		l.idle = append(l.idle, c)
		l.changed.Broadcast()
	}
}

// state is the ConnState hook of the HTTP server: it notes which connections are idle.
func (l *conns) state(nc net.Conn, s http.ConnState) {
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok { // TLS
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s != http.StateNew {
		c.spoke = true
		l.rest(c, s == http.StateIdle)
	}
}

func (l *conns) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// Close stops accepting.
func (l *conns) Close() error {
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// Close closes the connection and makes room for another one.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.remove(c)
	return err
}
