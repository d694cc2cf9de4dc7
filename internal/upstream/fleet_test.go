package upstream

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an upstream that says who it is.
type fake struct {
	*httptest.Server
	mu     sync.Mutex
	last   *http.Request
	body   string
	served atomic.Int64
	sick   atomic.Bool
	// answer takes a request instead of saying who it is.
	answer func(w http.ResponseWriter, r *http.Request)
}

func newFake(t *testing.T, models ...string) *fake {
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			if f.sick.Load() {
				w.WriteHeader(http.StatusInternalServerError)
			}
		case "/v1/models":
			type model struct {
				ID string `json:"id"`
			}
			var list []model
			for _, m := range models {
				list = append(list, model{m})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"data": list})
		default:
			body, _ := io.ReadAll(r.Body)
			f.mu.Lock()
			f.last, f.body = r, string(body)
			f.mu.Unlock()
			f.served.Add(1)
			if f.answer != nil {
				f.answer(w, r)
				return
			}
			fmt.Fprint(w, f.URL)
		}
	}))
	t.Cleanup(f.Close)
	return f
}

func newFleet(t *testing.T, models ...Model) *Fleet {
	t.Helper()
	return fleetWith(t, Options{}, models...)
}

func fleetWith(t *testing.T, opt Options, models ...Model) *Fleet {
	t.Helper()
	opt.Interval, opt.Timeout = 10*time.Millisecond, 2*time.Second
	f, err := New(models, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// waitFor waits until every replica's health is as wanted.
func waitFor(t *testing.T, f *Fleet, well func(i int, err error) bool) {
	t.Helper()
	for range 500 {
		ok := true
		for _, s := range f.States() {
			for i, r := range s.Replicas {
				ok = ok && well(i, r.Err)
			}
		}
		if ok {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("states stay %+v", f.States())
}

func wellAll(_ int, err error) bool { return err == nil }

func send(t *testing.T, f *Fleet, q Request) (string, *Response) {
	t.Helper()
	if q.Path == "" {
		q.Path = "/v1/chat/completions"
	}
	if q.Body == nil {
		q.Body = []byte(`{"model":"m"}`)
	}
	res, err := f.Send(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), res
}

func TestKeysStayApart(t *testing.T) {
	up := newFake(t, "m")
	f := newFleet(t, Model{Name: "m", URLs: []string{up.URL + "/v1/"}, Key: "sk-upstream"})
	waitFor(t, f, wellAll)
	client := http.Header{}
	for _, k := range []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie", "X-Forwarded-For"} {
		client.Set(k, "Bearer sk-client")
	}
	client.Set("Anthropic-Version", "2023-06-01")
	send(t, f, Request{Model: "m", Head: Forwarded(client)})
	if got := up.last.Header.Get("Authorization"); got != "Bearer sk-upstream" {
		t.Errorf("the upstream got Authorization %q", got)
	}
	for k, v := range up.last.Header {
		if strings.Contains(strings.Join(v, " "), "sk-client") {
			t.Errorf("the upstream got the client's %s", k)
		}
	}
	if up.last.Header.Get("Anthropic-Version") == "" {
		t.Error("the version of the protocol was lost")
	}
	up.answer = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "sk-upstream")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, "wrong key sk-upstream")
	}
	text, res := send(t, f, Request{Model: "m"})
	if text != "wrong key ***" || len(res.Head) != 1 {
		t.Errorf("a client sees %q with %v", text, res.Head)
	}
}

func TestUpstreamsNameOfTheModel(t *testing.T) {
	for _, c := range []struct {
		name, alias string
		has         []string
		want, err   string
	}{
		{"m", "", []string{"a", "m"}, "m", ""},
		{"m", "", []string{"only<one>"}, "only<one>", ""},
		{"m", "b", []string{"a", "b"}, "b", ""},
		{"m", "c", []string{"a", "b"}, "", `it has no model "c"`},
		{"m", "", []string{"a", "b"}, "", "it has 2 models and none is called m"},
	} {
		up := newFake(t, c.has...)
		f := newFleet(t, Model{Name: c.name, Alias: c.alias, URLs: []string{up.URL}})
		waitFor(t, f, func(_ int, err error) bool {
			return err == nil == (c.err == "") && (err == nil || strings.Contains(err.Error(), c.err))
		})
		if c.err != "" {
			continue
		}
		send(t, f, Request{Model: c.name, Body: []byte(`{"model":"m","x":"<&>","n":1.50}`)})
		var got map[string]json.RawMessage
		if json.Unmarshal([]byte(up.body), &got) != nil || string(got["x"]) != `"<&>"` || string(got["n"]) != "1.50" {
			t.Errorf("the upstream got %s", up.body)
		}
		var name string
		if json.Unmarshal(got["model"], &name) != nil || name != c.want {
			t.Errorf("%+v: the upstream was asked for %s", c, got["model"])
		}
	}
}

// dead is an address where nobody listens.
func dead(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return "http://" + ln.Addr().String()
}

func TestAnotherReplicaAnswers(t *testing.T) {
	broken := map[string]func(w http.ResponseWriter, r *http.Request){
		"busy":     func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"limited":  func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"drops":    func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://127.0.0.1:1/", 307) },
		"drops before the first byte": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"closes before the first byte": raw("HTTP/1.1 200 OK\r\n\r\n"),
		"ends before the first byte":   flush,
		"an empty answer":              func(w http.ResponseWriter, r *http.Request) {},
		"no content":                   func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"redirect with a text": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusPermanentRedirect)
			fmt.Fprint(w, "moved")
		},
		"not HTTP": raw("\x00\x01garbage\r\n\r\n"),
	}
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		t.Run(name, func(t *testing.T) {
			bad, good := newFake(t, "m"), newFake(t, "m")
			bad.answer = broken[name]
			f := newFleet(t, Model{Name: "m", URLs: []string{bad.URL, good.URL}})
			waitFor(t, f, wellAll)
			for key := uint64(1); key < 20; key++ {
				if text, _ := send(t, f, Request{Model: "m", Key: key}); text != good.URL {
					t.Fatalf("request %d got %q", key, text)
				}
			}
			if bad.served.Load() == 0 {
				t.Error("the broken replica was never asked, so nothing was shown")
			}
			for _, s := range f.States() {
				for _, r := range s.Replicas {
					if r.Load != 0 {
						t.Errorf("%s still has %d requests", r.URL, r.Load)
					}
				}
			}
		})
	}
}

func flush(w http.ResponseWriter, r *http.Request) { _ = http.NewResponseController(w).Flush() }

// raw answers with these bytes, HTTP or not, and closes the connection.
func raw(text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(c, text)
		_ = c.Close()
	}
}

// hang takes requests and says nothing until their client leaves.
func hang(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// TestHangingReplica: a request whose replica does not begin to answer goes to another one, as soon as health finds it
// ill, or after the time to begin if it claims to be well.
func TestHangingReplica(t *testing.T) {
	for name, c := range map[string]struct {
		begin time.Duration
		ill   bool
		body  string
	}{
		"ill, streamed":  {time.Hour, true, `{"stream":true}`},
		"ill, whole":     {time.Hour, true, `{}`},
		"well, streamed": {50 * time.Millisecond, false, `{"stream":true}`},
		"well, whole":    {5 * time.Millisecond, false, `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := newFake(t, "m"), newFake(t, "m")
			bad.answer = func(w http.ResponseWriter, r *http.Request) {
				if c.ill {
					defer time.AfterFunc(50*time.Millisecond, func() { bad.sick.Store(true) }).Stop() // after a few looks at it
				}
				hang(w, r)
			}
			f := fleetWith(t, Options{Begin: c.begin, Policy: RoundRobin}, Model{Name: "m", URLs: []string{bad.URL, good.URL}})
			waitFor(t, f, wellAll)
			for bad.served.Load() == 0 {
				if text, _ := send(t, f, Request{Model: "m", Body: []byte(c.body)}); text != good.URL {
					t.Fatalf("got %q", text)
				}
			}
			r := f.States()[0].Replicas[0]
			if r.Load != 0 || r.Failed == 0 {
				t.Errorf("the replica that hangs has %d requests and %d failures", r.Load, r.Failed)
			}
		})
	}
}

// TestBegunOrLeft: an answer that began is never left, however close the two are.
func TestBegunOrLeft(t *testing.T) {
	f := &Fleet{opt: Options{Interval: time.Nanosecond}}
	var left atomic.Int64
	kept := 0
	for i := range 2000 {
		before := left.Load()
		begun := f.await(&replica{}, nil, true, func() { left.Add(1) })
		time.Sleep(time.Duration(i%2) * 100 * time.Microsecond)
		if begun() {
			time.Sleep(time.Microsecond)
			if kept++; left.Load() != before {
				t.Fatal("left after it began")
			}
		}
	}
	if kept == 0 || left.Load() == 0 {
		t.Errorf("%d began and %d were left, so nothing was shown", kept, left.Load())
	}
}

// TestSlowReplica: where no other replica is left, a slow one is waited for, unless it is ill as well.
func TestSlowReplica(t *testing.T) {
	for _, ill := range []bool{false, true} {
		up := newFake(t, "m")
		goOn := make(chan struct{})
		up.answer = func(w http.ResponseWriter, r *http.Request) {
			up.sick.Store(ill)
			select {
			case <-goOn:
				fmt.Fprint(w, "slow")
			case <-r.Context().Done():
			}
		}
		f := fleetWith(t, Options{Begin: time.Millisecond}, Model{Name: "m", URLs: []string{up.URL}})
		waitFor(t, f, wellAll)
		if !ill {
			time.AfterFunc(200*time.Millisecond, func() { close(goOn) }) // long after the time to begin
		}
		res, err := f.Send(t.Context(), Request{Model: "m", Path: "/v1/completions", Body: []byte(`{"stream":true}`)})
		if ill {
			if !errors.Is(err, ErrDown) || !strings.Contains(err.Error(), errLate.Error()) {
				t.Errorf("ill: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); string(b) != "slow" || err != nil {
			t.Errorf("well: %q %v", b, err)
		}
		_ = res.Body.Close()
	}
}

// TestBegunIsNotLate: an answer that has begun may take as long as it likes, also when its replica is found ill.
func TestBegunIsNotLate(t *testing.T) {
	a, b := newFake(t, "m"), newFake(t, "m")
	goOn := make(chan struct{})
	for _, up := range []*fake{a, b} {
		up.answer = func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "one ")
			_ = http.NewResponseController(w).Flush()
			<-goOn
			fmt.Fprint(w, "two")
		}
	}
	f := fleetWith(t, Options{Begin: time.Millisecond}, Model{Name: "m", URLs: []string{a.URL, b.URL}})
	waitFor(t, f, wellAll)
	res, err := f.Send(t.Context(), Request{Model: "m", Path: "/v1/completions", Body: []byte(`{"stream":true}`)})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	a.sick.Store(true)
	b.sick.Store(true)
	waitFor(t, f, func(_ int, err error) bool { return err != nil })
	time.Sleep(50 * time.Millisecond) // a few looks at it
	close(goOn)
	if text, err := io.ReadAll(res.Body); string(text) != "one two" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
}

// TestNoAddresses: what clients may see of a replica does not say where it is; the log does.
func TestNoAddresses(t *testing.T) {
	breaks := newFake(t, "m")
	breaks.answer = func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "data: x\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for want, base := range map[string]string{
		"it cannot be reached": dead(t), "the connection broke": breaks.URL,
	} {
		var log lockedBuffer
		f := fleetWith(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, Model{Name: "m", URLs: []string{base}})
		var err error
		var res *Response
		if base == breaks.URL {
			waitFor(t, f, wellAll)
		} else {
			waitFor(t, f, func(_ int, err error) bool { return err != nil && err != errUnasked })
			if got := f.States()[0].Replicas[0].Err.Error(); got != want {
				t.Errorf("its state is %q, not %q", got, want)
			}
		}
		if res, err = f.Send(t.Context(), Request{Model: "m", Path: "/v1/completions", Body: []byte("{}")}); err == nil {
			_, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
		}
		host := strings.TrimPrefix(base, "http://")
		if err == nil || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), host) {
			t.Errorf("%s: a client sees %v", want, err)
		}
		if base != breaks.URL && !strings.Contains(log.String(), "dial tcp "+host) {
			t.Errorf("%s: the log says %s", want, log.String())
		}
	}
}

// TestPlainErrors: errors of connections in words without addresses.
func TestPlainErrors(t *testing.T) {
	for want, err := range map[string]error{
		"its name is not known":          &net.OpError{Op: "dial", Err: &net.DNSError{Name: "gpu1", Server: "10.0.0.1:53"}},
		"it did not answer in time":      &url.Error{URL: "gpu1", Err: &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}},
		"its certificate is not trusted": &url.Error{URL: "http://gpu1", Err: &tls.CertificateVerificationError{Err: io.EOF}},
		"the connection broke":           &net.OpError{Op: "read", Err: errors.New("gpu1")},
	} {
		if got := plain(err); got.Error() != want || detail(got) != err || !errors.Is(got, err) {
			t.Errorf("%v is %q with the detail %v", err, got, detail(got))
		}
	}
	if plain(nil) != nil || detail(errEmpty) != errEmpty {
		t.Error("other errors change")
	}
}

// lockedBuffer may be written to by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestBusyEverywhereIsPassedOn(t *testing.T) {
	a, b := newFake(t, "m"), newFake(t, "m")
	for _, up := range []*fake{a, b} {
		up.answer = func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}
	f := newFleet(t, Model{Name: "m", URLs: []string{a.URL, b.URL}})
	waitFor(t, f, wellAll)
	if _, res := send(t, f, Request{Model: "m"}); res.Status != http.StatusTooManyRequests ||
		res.Head.Get("Retry-After") != "7" {
		t.Errorf("a client sees %d %v", res.Status, res.Head)
	}
}

func TestSickReplicasAreLeftOut(t *testing.T) {
	a, b := newFake(t, "m"), newFake(t, "m")
	f := newFleet(t, Model{Name: "m", URLs: []string{a.URL, b.URL}})
	waitFor(t, f, wellAll)
	a.sick.Store(true)
	waitFor(t, f, func(i int, err error) bool { return err == nil == (i == 1) })
	for key := uint64(1); key < 20; key++ {
		send(t, f, Request{Model: "m", Key: key})
	}
	if a.served.Load() != 0 {
		t.Error("a replica that says it is ill got requests")
	}
	a.sick.Store(false)
	waitFor(t, f, wellAll)
	for key := uint64(1); key < 20; key++ {
		send(t, f, Request{Model: "m", Key: key})
	}
	if a.served.Load() == 0 {
		t.Error("a replica that is well again gets no requests")
	}
}

func TestNobodyAnswers(t *testing.T) {
	f := newFleet(t, Model{Name: "m", URLs: []string{dead(t)}})
	_, err := f.Send(context.Background(), Request{Model: "m", Path: "/v1/completions", Body: []byte("{}")})
	if err == nil || !strings.Contains(err.Error(), "upstream m: no replica answers: ") {
		t.Errorf("got %v", err)
	}
	if f.States()[0].Ready() {
		t.Error("it counts as ready")
	}
}

func TestCancelReachesTheUpstream(t *testing.T) {
	up := newFake(t, "m")
	left := make(chan struct{})
	up.answer = func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "data: x\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	}
	f := newFleet(t, Model{Name: "m", URLs: []string{up.URL}})
	waitFor(t, f, wellAll)
	ctx, cancel := context.WithCancel(context.Background())
	res, err := f.Send(ctx, Request{Model: "m", Path: "/v1/completions", Body: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the answer ends as if it were whole")
	}
	_ = res.Body.Close()
	<-left
	if err := f.States()[0].Replicas[0].Err; err != nil {
		t.Errorf("a client that leaves makes the replica count as broken: %v", err)
	}
}

func TestPathsTheUpstreamLacks(t *testing.T) {
	up := newFake(t, "m")
	up.answer = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/rerank" {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		if r.URL.Path == "/v1/completions" {
			fmt.Fprint(w, "the model is gone")
		}
	}
	f := newFleet(t, Model{Name: "m", URLs: []string{up.URL}})
	waitFor(t, f, wellAll)
	for path, lacks := range map[string]bool{"/v1/messages": true, "/v1/rerank": true, "/v1/completions": false} {
		if f.Lacks("m", path) {
			t.Errorf("%s counts as lacking before it was asked for", path)
		}
		send(t, f, Request{Model: "m", Path: path})
		if f.Lacks("m", path) != lacks {
			t.Errorf("%s counts as lacking: %v", path, !lacks)
		}
	}
	up.sick.Store(true)
	waitFor(t, f, func(_ int, err error) bool { return err != nil })
	for range 500 { // noted right after
		if !f.Lacks("m", "/v1/messages") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("what an older version lacked is remembered after it went away")
}

// TestFailureTakesOut: a replica that broke off a request gets no other one before it is found well.
func TestFailureTakesOut(t *testing.T) {
	bad, good := newFake(t, "m"), newFake(t, "m")
	bad.answer = raw("")
	m := Model{Name: "m", URLs: []string{bad.URL, good.URL}}
	f, err := New([]Model{m}, Options{Interval: time.Hour, Policy: RoundRobin})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	waitFor(t, f, wellAll)
	for range 10 {
		send(t, f, Request{Model: "m"})
	}
	if n := bad.served.Load(); n != 1 {
		t.Errorf("it got %d requests", n)
	}
	if r := f.States()[0].Replicas[0]; r.Err == nil || r.Failed != 1 || r.Sent != 1 {
		t.Errorf("its state is %+v", r)
	}
}

// TestClientLeavesEarly: a client that leaves before the answer began is no failure of the replica, and no other
// replica is asked.
func TestClientLeavesEarly(t *testing.T) {
	a, b := newFake(t, "m"), newFake(t, "m")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, up := range []*fake{a, b} {
		up.answer = func(w http.ResponseWriter, r *http.Request) {
			cancel()
			hang(w, r)
		}
	}
	f := newFleet(t, Model{Name: "m", URLs: []string{a.URL, b.URL}})
	waitFor(t, f, wellAll)
	if _, err := f.Send(ctx, Request{Model: "m", Path: "/v1/completions", Body: []byte("{}")}); err != context.Canceled {
		t.Errorf("error %v", err)
	}
	for _, r := range f.States()[0].Replicas {
		if r.Failed != 0 || r.Err != nil || r.Load != 0 {
			t.Errorf("its state is %+v", r)
		}
	}
	if n := a.served.Load() + b.served.Load(); n != 1 {
		t.Errorf("%d replicas were asked", n)
	}
}

// TestClosedTwice: an answer that is closed again counts once.
func TestClosedTwice(t *testing.T) {
	up := newFake(t, "m")
	up.answer = func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"usage":{"prompt_tokens":3}}`) }
	f := newFleet(t, Model{Name: "m", URLs: []string{up.URL}})
	waitFor(t, f, wellAll)
	_, res := send(t, f, Request{Model: "m"})
	_ = res.Body.Close()
	if r := f.States()[0].Replicas[0]; r.Usage.Prompt != 3 || r.Load != 0 {
		t.Errorf("its state is %+v", r)
	}
}

func TestWrongSettings(t *testing.T) {
	for _, s := range []string{"", "m", "m=", "=http://x", "m=x:1", "m=ftp://x", "m=http://user:pass@x",
		"m=http://x?key=1"} {
		if _, err := ParseModel(s); err == nil {
			t.Errorf("%q is taken", s)
		} else if strings.Contains(err.Error(), "pass") {
			t.Errorf("%q: the error shows the password: %v", s, err)
		}
	}
	for _, ms := range [][]Model{
		{{Name: "m"}},
		{{Name: "m", URLs: []string{"http://x", "http://x/v1"}}},
		{{Name: "m", URLs: []string{"http://x"}, Key: "a"}, {Name: "m", URLs: []string{"http://y"}, Key: "b"}},
		{{Name: "m", URLs: []string{"http://x"}, Alias: "a"}, {Name: "m", URLs: []string{"http://y"}, Alias: "b"}},
	} {
		if f, err := New(ms, Options{}); err == nil {
			f.Close()
			t.Errorf("%+v is taken", ms)
		}
	}
}
