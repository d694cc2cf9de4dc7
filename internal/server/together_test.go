package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/sample/grammar"
)

// together runs functions at the same time, each many times. What they share without a lock the race detector finds.
func together(fns ...func(i int)) {
	var all sync.WaitGroup
	for _, fn := range fns {
		for range 2 {
			all.Go(func() {
				for i := range 40 {
					fn(i)
				}
			})
		}
	}
	all.Wait()
}

// TestCountersTogether: requests are counted while others are, and while the counters are read.
func TestCountersTogether(t *testing.T) {
	m := newMeter(time.Now(), nil, nil)
	s := &engine.Snapshot{Started: time.Now().Add(-time.Minute)}
	together(
		func(i int) { m.observe("x", fmt.Sprint(i%3), time.Millisecond) },
		func(int) { m.writeHistograms(&page{io.Discard, map[string]bool{}}) },
		func(i int) { m.pace(fmt.Sprint(i%3), s) },
		func(i int) { m.averages(fmt.Sprint(i%3), s) },
	)
	if h := m.hists["x{0"]; h == nil || h.counts[0] != 2*14 || len(m.hists) != 3 || len(m.marks) != 3 ||
		len(m.rates) != 3 {
		t.Errorf("counted %+v of %d", h, len(m.hists))
	}
}

// TestModelsTogether: models are used, listed and compiled for by many requests at a time.
func TestModelsTogether(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	models := f.s.models()
	gs := &grammars{compiled: map[string]*grammar.Grammar{}}
	together(
		func(int) {
			_, _, release, err := models.Acquire(t.Context(), "")
			if err != nil {
				t.Error(err)
				return
			}
			release(nil)
			release(nil) // without effect
		},
		func(int) { models.List() },
		func(int) {
			if m, err := f.s.loaded(""); err != nil || m.engine != f.e {
				t.Error(err)
			}
		},
		func(i int) {
			if _, err := gs.compile(fmt.Sprint(i%5), func() (*grammar.Grammar, error) {
				return grammar.CompileGBNF(`root ::= "x"`)
			}); err != nil {
				t.Error(err)
			}
		},
	)
	if n := models.List()[0].Users; n != 0 || len(gs.compiled) != 5 {
		t.Errorf("%d requests use the model, %d grammars", n, len(gs.compiled))
	}
}

// TestConnectionsTogether: connections come, work, rest and go at the same time.
func TestConnectionsTogether(t *testing.T) {
	l := newConns(nil, 6, 0)
	together(func(i int) {
		one, other := net.Pipe()
		c := &conn{Conn: one, l: l, addr: fmt.Sprint(i % 3)}
		ok, victims := l.admit(c)
		for _, v := range victims {
			v.Conn.Close()
		}
		if !ok {
			t.Error("not admitted")
		}
		l.state(c, http.StateActive)
		l.state(c, http.StateIdle)
		c.Close()
		other.Close()
	}, func(int) { l.isClosed() })
	if l.open != 0 || len(l.idle) != 0 || len(l.byAddr) != 0 {
		t.Errorf("%d connections are open, %d idle, of addresses %v", l.open, len(l.idle), l.byAddr)
	}
}

// TestOnlyCallEndsTheAnswer: when the only call that is wanted is complete, the rest is not generated.
func TestOnlyCallEndsTheAnswer(t *testing.T) {
	f := start(t, options{template: hermesTemplate, plain: true})
	f.script(`<tool_call>{"name": "f", "arguments": {}}</tool_call>` + strings.Repeat(" and more", 200))
	tools := []dict{{"type": "function", "function": dict{"name": "f"}}}
	q := dict{"messages": user("x"), "tools": tools, "parallel_tool_calls": false, "max_tokens": 1500}
	m := f.post("/v1/chat/completions", q)
	if text(m, "choices", 0, "message", "tool_calls", 0, "function", "name") != "f" ||
		text(m, "choices", 0, "finish_reason") != "tool_calls" {
		t.Fatalf("answer %v", m)
	}
	if n := f.e.Snapshot().Requests[engine.ReasonCancelled]; n != 1 {
		t.Errorf("%d generations were cancelled, want 1: %v", n, f.e.Snapshot().Requests)
	}
}

// TestBrokenStreamSaysSo: a stream of an upstream that breaks off ends with an event that says so, whatever the stream
// says of its letters.
func TestBrokenStreamSaysSo(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "text/event-stream; charset=utf-8"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/chat/completions" {
				io.WriteString(w, `{"data":[{"id":"far"}]}`)
				return
			}
			w.Header().Set("Content-Type", kind)
			io.WriteString(w, "data: {\"choices\":[]}\n\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}))
		t.Cleanup(srv.Close)
		f := front(t, Config{}, srv.URL)
		status, b := f.do("POST", "/v1/chat/completions", encode(t, dict{"model": "far", "messages": user("x"),
			"stream": true}))
		if status != http.StatusOK || !strings.Contains(string(b), `"choices":[]`) ||
			!strings.Contains(string(b), `"error"`) {
			t.Errorf("%s: %d %s", kind, status, b)
		}
	}
}
