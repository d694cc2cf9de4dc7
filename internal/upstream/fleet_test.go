package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
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
				w.WriteHeader(http.StatusServiceUnavailable)
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
	f, err := New(models, Options{Interval: 10 * time.Millisecond, Timeout: 2 * time.Second})
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
		w.WriteHeader(http.StatusNotFound)
		if r.URL.Path == "/v1/completions" {
			fmt.Fprint(w, "the model is gone")
		}
	}
	f := newFleet(t, Model{Name: "m", URLs: []string{up.URL}})
	waitFor(t, f, wellAll)
	for path, lacks := range map[string]bool{"/v1/messages": true, "/v1/completions": false} {
		if f.Lacks("m", path) {
			t.Errorf("%s counts as lacking before it was asked for", path)
		}
		send(t, f, Request{Model: "m", Path: path})
		if f.Lacks("m", path) != lacks {
			t.Errorf("%s counts as lacking: %v", path, !lacks)
		}
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
	} {
		if f, err := New(ms, Options{}); err == nil {
			f.Close()
			t.Errorf("%+v is taken", ms)
		}
	}
}
