package upstream

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestHangsInMidStream: an answer that stops coming in the middle is no failure of its replica and is not asked for
// again: part of it is with the client. It ends when the client leaves or closes it, even while it is read; until then
// its replica counts as busy.
func TestHangsInMidStream(t *testing.T) {
	for name, end := range map[string]func(res *Response, leave context.CancelFunc){
		"the client leaves":      func(_ *Response, leave context.CancelFunc) { leave() },
		"the answer is given up": func(res *Response, _ context.CancelFunc) { _ = res.Body.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := newFake(t, "m"), newFake(t, "m")
			bad.answer = func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, "data: one\n\n")
				flush(w, r)
				hang(w, r)
			}
			opt := Options{Begin: time.Millisecond, Policy: LeastLoaded}
			f := fleetWith(t, opt, Model{Name: "m", URLs: []string{bad.URL, good.URL}})
			waitFor(t, f, wellAll)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			var res *Response
			for res == nil || res.Replica != bad.URL {
				if res != nil {
					_ = res.Body.Close()
				}
				var err error
				q := Request{Model: "m", Path: "/v1/completions", Body: []byte(`{"stream":true}`)}
				if res, err = f.Send(ctx, q); err != nil {
					t.Fatal(err)
				}
			}
			read := make(chan error, 1)
			begun := make(chan struct{})
			go func() {
				buf := make([]byte, 100)
				n, err := res.Body.Read(buf)
				if string(buf[:n]) != "data: one\n\n" || err != nil {
					t.Errorf("it begins with %q, %v", buf[:n], err)
				}
				close(begun)
				_, err = res.Body.Read(buf)
				read <- err
			}()
			<-begun
			for range 10 { // the other replica is free and this one is not
				if text, _ := send(t, f, Request{Model: "m"}); text != good.URL {
					t.Fatalf("got %q", text)
				}
			}
			if r := f.States()[0].Replicas[0]; r.Load != 1 || r.Failed != 0 || r.Err != nil {
				t.Errorf("while it hangs its state is %+v", r)
			}
			end(res, leave)
			if err := <-read; err == nil || err == io.EOF {
				t.Errorf("the rest ends with %v", err)
			}
			_ = res.Body.Close()
			if r := f.States()[0].Replicas[0]; r.Load != 0 || r.Failed != 0 || r.Err != nil {
				t.Errorf("afterwards its state is %+v", r)
			}
		})
	}
}

// spy is a transport that remembers the requests it carried.
type spy struct {
	http.RoundTripper
	mu      sync.Mutex
	carried []*spied
}

// spied is a request with the body of its answer.
type spied struct {
	path string
	ctx  context.Context
	io.ReadCloser
	closed bool
}

func (s *spied) Close() error {
	s.closed = true
	return s.ReadCloser.Close()
}

func (s *spy) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := s.RoundTripper.RoundTrip(req)
	x := &spied{path: req.URL.Path, ctx: req.Context()}
	if err == nil {
		x.ReadCloser = res.Body
		res.Body = x
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.carried = append(s.carried, x)
	return res, err
}

// TestNothingStaysOpen: whatever becomes of a request, the answers of all replicas are closed, their contexts are
// ended, and none counts as busy.
func TestNothingStaysOpen(t *testing.T) {
	status := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w, "no")
		}
	}
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"whole":     nil,
		"redirect":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusFound) },
		"refused":   status(http.StatusBadRequest),
		"lacking":   status(http.StatusNotFound),
		"busy":      status(http.StatusServiceUnavailable),
		"empty":     flush,
		"drops":     raw(""),
		"too late":  hang,
		"cut short": raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newFake(t, "m"), newFake(t, "m")
			a.answer, b.answer = answer, answer
			s := &spy{}
			opt := Options{Interval: 10 * time.Millisecond, Timeout: 2 * time.Second, Begin: time.Millisecond}
			f, err := New([]Model{{Name: "m", URLs: []string{a.URL, b.URL}}}, opt)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			waitFor(t, f, wellAll)
			if name == "too late" { // the last one is waited for while it is well
				a.sick.Store(true)
				b.sick.Store(true)
			}
			s.RoundTripper = f.client.Transport
			watched := &Fleet{opt: f.opt, groups: f.groups,
				client: &http.Client{Transport: s, CheckRedirect: f.client.CheckRedirect}}
			_, _ = watched.ask(t.Context(), f.groups["m"], f.groups["m"].replicas[0])
			res, err := watched.Send(t.Context(), Request{Model: "m", Path: "/v1/completions", Body: []byte(`{"stream":true}`)})
			if err == nil {
				_, _ = io.ReadAll(res.Body)
				_ = res.Body.Close()
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.carried) == 0 {
				t.Error("nothing was sent")
			}
			for i, x := range s.carried {
				if x.ReadCloser != nil && !x.closed {
					t.Errorf("answer %d is still open", i)
				}
				if x.ctx.Err() == nil {
					t.Errorf("the context of request %d goes on", i)
				}
			}
			for _, r := range f.States()[0].Replicas {
				if r.Load != 0 {
					t.Errorf("%s has %d requests", r.URL, r.Load)
				}
			}
		})
	}
}

// TestHealth: what is said of a replica by its health and its list of models, both asked for with the key.
func TestHealth(t *testing.T) {
	reply := func(status int, text string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.WriteHeader(status)
			fmt.Fprint(w, text)
		}
	}
	short := func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, `{"data":`)
	}
	const list = `{"data":[{"id":"m"}]}`
	for _, c := range []struct {
		want           string
		health, models func(http.ResponseWriter)
	}{
		{"", reply(200, ""), reply(200, list)},
		{"", reply(404, ""), reply(200, list)}, // many have no such path
		{"", reply(499, ""), reply(200, list)},
		{"its health is 500", reply(500, ""), reply(200, list)},
		{"its health is 503", reply(503, ""), reply(200, list)},
		{"the connection broke", short, reply(200, list)},
		{"it refuses the key", reply(200, ""), reply(401, list)},
		{"it refuses the key", reply(200, ""), reply(403, list)},
		{"its list of models is 404", reply(200, ""), reply(404, list)},
		{"its list of models is 201", reply(200, ""), reply(201, list)},
		{"its list of models is not one of OpenAI's", reply(200, ""), reply(200, "[]")},
		{"the connection broke", reply(200, ""), short},
		{"it has 0 models and none is called m; name one with URL#MODEL", reply(200, ""), reply(200, "{}")},
	} {
		up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Authorization"); got != "Bearer k" {
				t.Errorf("%s is asked with the key %q", r.URL.Path, got)
			}
			if r.URL.Path == "/health" {
				c.health(w)
			} else {
				c.models(w)
			}
		}))
		f := newFleet(t, Model{Name: "m", URLs: []string{up.URL}, Key: "k"})
		waitFor(t, f, func(_ int, err error) bool { return err != errUnasked })
		got := ""
		if err := f.States()[0].Replicas[0].Err; err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		f.Close()
		up.Close()
	}
}

// waits reports whether a call waits for a lock, and gives it back.
func waits(lock *sync.Mutex, call func()) bool {
	lock.Lock()
	done := make(chan struct{})
	go func() {
		call()
		close(done)
	}()
	waited := true
	select {
	case <-done:
		waited = false
	case <-time.After(30 * time.Millisecond): // a call that does not wait is over by then, or goes unnoticed
	}
	lock.Unlock()
	<-done
	if !lock.TryLock() {
		return false
	}
	lock.Unlock()
	return waited
}

// TestLocks: whatever reads or changes the state of a replica or the end of an answer holds its lock.
func TestLocks(t *testing.T) {
	f := newFleet(t)
	g, r := &group{}, &replica{}
	b := &rest{Reader: strings.NewReader("x"), c: io.NopCloser(nil), end: func(Usage) {}}
	for name, c := range map[string]struct {
		lock *sync.Mutex
		call func()
	}{
		"state": {&r.mu, func() { _, _ = r.state() }},
		"fail":  {&r.mu, func() { r.fail(nil) }},
		"note":  {&r.mu, func() { f.note(g, r, "", nil) }},
		"read":  {&b.mu, func() { _, _ = b.Read(make([]byte, 1)) }},
		"close": {&b.mu, func() { _ = b.Close() }},
	} {
		if !waits(c.lock, c.call) {
			t.Errorf("%s does not wait for the lock, or keeps it", name)
		}
	}
}

// TestWrongRequests: what cannot be sent is an error, and does not count as running.
func TestWrongRequests(t *testing.T) {
	up := newFake(t, "m")
	f := newFleet(t, Model{Name: "m", URLs: []string{up.URL}})
	waitFor(t, f, wellAll)
	for want, q := range map[string]Request{
		`there is no upstream named "x"`: {Model: "x", Path: "/v1/completions", Body: []byte("{}")},
		"invalid character":              {Model: "m", Path: "/v1/completions", Body: []byte("no JSON")},
		"invalid URL escape":             {Model: "m", Path: "/%zz", Body: []byte("{}")},
	} {
		if _, err := f.Send(t.Context(), q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if up.served.Load() != 0 || f.States()[0].Replicas[0].Load != 0 {
		t.Error("one of them was sent, or counts as running")
	}
}

// TestNote: a replica that comes or goes is logged once, is ill exactly while it is out, keeps the name of its model,
// and may have other paths when it comes back.
func TestNote(t *testing.T) {
	var log lockedBuffer
	f := &Fleet{opt: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	g, r := &group{Model: Model{Name: "m"}}, &replica{base: "http://x", err: errUnasked, model: "before"}
	for i, c := range []struct {
		err         error
		model, says string
		lacks       bool // the path that was missing before
	}{
		{errEmpty, "before", "upstream is out", false}, // never well, which is said as well
		{errLate, "before", "", false},
		{nil, "a", "upstream is ready\" model=m replica=http://x name=a", true},
		{nil, "b", "", true},
		{errLate, "b", "upstream is out", false},
		{nil, "c", "upstream is ready", true},
	} {
		g.lacks.Store("/x", true)
		before := len(log.String())
		f.note(g, r, c.model, c.err)
		said := log.String()[before:]
		if !strings.Contains(said, c.says) || (said == "") != (c.says == "") ||
			said != "" && !strings.Contains(said, "model=m replica=http://x ") {
			t.Errorf("%d: the log says %q", i, said)
		}
		if err, model := r.state(); err != c.err || model != c.model || r.ill.Load() != (c.err != nil) {
			t.Errorf("%d: the state is %v, %q, ill %v", i, err, model, r.ill.Load())
		}
		if _, lacks := g.lacks.Load("/x"); lacks != c.lacks {
			t.Errorf("%d: a missing path is remembered: %v", i, lacks)
		}
	}
	var nothing *Fleet
	if nothing.Has("m") || nothing.States() != nil {
		t.Error("no fleet has models")
	}
}

// TestStatus: which answers are passed on, errors without the key, and which make another replica be asked.
func TestStatus(t *testing.T) {
	for status, passed := range map[int]bool{
		200: true, 299: true, 300: false, 399: false, 400: true, 401: true, 404: true, 405: true, 500: true, 501: true,
		502: false, 503: false, 504: false, 429: false,
	} {
		bad, good := newFake(t, "m"), newFake(t, "m")
		bad.answer = func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/x")
			w.WriteHeader(status)
			fmt.Fprint(w, "bad sk-1")
		}
		want := "bad sk-1"
		if status >= 400 { // errors may repeat the key
			want = "bad ***"
		}
		f := fleetWith(t, Options{Policy: RoundRobin}, Model{Name: "m", URLs: []string{bad.URL, good.URL}, Key: "sk-1"})
		waitFor(t, f, wellAll)
		for bad.served.Load() == 0 {
			text, res := send(t, f, Request{Model: "m"})
			if asked := bad.served.Load() > 0; asked && (res.Replica == bad.URL) != passed {
				t.Errorf("%d: the client gets %d of %s", status, res.Status, res.Replica)
			}
			if res.Replica == bad.URL && (res.Status != status || text != want || res.Head.Get("Content-Type") != "text/x") {
				t.Errorf("%d: the client gets %d, %q, %v", status, res.Status, text, res.Head)
			}
		}
	}
}

// TestTurns: replicas that are equal take turns, each the first in its turn and the next one after it.
func TestTurns(t *testing.T) {
	for _, p := range []Policy{LeastLoaded, Sticky} {
		if got := fmt.Sprint(p.Order(nodes(1, 0), 0, 0)); got != "[1 0]" {
			t.Errorf("%v: of two the busier one comes first: %s", p, got)
		}
	}
	for turn, want := range []string{"[0 1 2]", "[1 2 0]", "[2 0 1]", "[0 1 2]"} {
		for _, p := range []Policy{RoundRobin, LeastLoaded, Sticky} {
			if got := fmt.Sprint(p.Order(nodes(1, 1, 1), 0, uint64(turn))); got != want {
				t.Errorf("%v, turn %d: %s", p, turn, got)
			}
		}
	}
}

// TestTailLength: as much of an answer's end is kept as was promised, and no more than twice that.
func TestTailLength(t *testing.T) {
	for _, piece := range []int{1, 3, maxTail, 2*maxTail + 1} {
		var b tail
		for n := piece; n < 5*maxTail; n += piece {
			b.add(make([]byte, piece))
			if got := len(b.buf); got < min(n, maxTail) || got > 2*maxTail {
				t.Fatalf("%d bytes in pieces of %d: %d are kept", n, piece, got)
			}
		}
	}
	var b tail
	b.add(make([]byte, maxTail))
	b.add(make([]byte, maxTail))
	if len(b.buf) != 2*maxTail {
		t.Errorf("what fits is cut to %d", len(b.buf))
	}
}

// TestFailureIsLogged: the log says which replica failed and why, which clients do not get to see.
func TestFailureIsLogged(t *testing.T) {
	var log lockedBuffer
	base := dead(t)
	f := fleetWith(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, Model{Name: "m", URLs: []string{base}})
	if _, err := f.Send(t.Context(), Request{Model: "m", Path: "/v1/completions", Body: []byte("{}")}); err == nil {
		t.Error("a dead replica answers")
	}
	if want := `msg="upstream fails" model=m replica=` + base + " error="; !strings.Contains(log.String(), want) {
		t.Errorf("the log says %s", log.String())
	}
	if h := Forwarded(http.Header{"Accept": {}, "Cookie": {"x"}}); len(h) != 0 {
		t.Errorf("headers without values are sent: %v", h)
	}
}

// TestEndlessError: an error with an endless body is passed on with the part that was received in time.
func TestEndlessError(t *testing.T) {
	bad := newFake(t, "m")
	bad.answer = func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, "too long")
		flush(w, r)
		hang(w, r)
	}
	f := fleetWith(t, Options{Timeout: 50 * time.Millisecond}, Model{Name: "m", URLs: []string{bad.URL}})
	waitFor(t, f, wellAll)
	res, err := f.Send(t.Context(), Request{Model: "m", Path: "/v1/completions", Body: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); res.Status != http.StatusBadRequest || string(b) != "too long" || err != nil {
		t.Errorf("status %d, %q, %v", res.Status, b, err)
	}
}
