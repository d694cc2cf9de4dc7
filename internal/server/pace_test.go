package server

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"strobe/internal/engine"
)

// TestPace: the wait is the queue times what one generation took, within limits.
func TestPace(t *testing.T) {
	begin := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		every  time.Duration
		ends   int
		queued int
		want   time.Duration
	}{
		"nothing known": {0, 0, 512, time.Second},
		"one end":       {time.Second, 1, 512, time.Second},
		"two ends":      {100 * time.Millisecond, 2, 50, 5 * time.Second},
		"a full ring":   {100 * time.Millisecond, paceEnds, 50, 5 * time.Second},
		"more than one": {100 * time.Millisecond, 3*paceEnds + 5, 50, 5 * time.Second},
		"fast":          {time.Millisecond, 40, 5, time.Second},
		"slow":          {time.Hour, 40, 1 << 40, time.Minute},
		"no queue":      {time.Second, 40, 0, time.Second},
	} {
		var p pace
		for i := range c.ends {
			p.ended(begin.Add(time.Duration(i) * c.every))
		}
		if got := p.wait(c.queued); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestManyClients: two hundred clients at once all get their answer with the default queue. With a short queue those
// that are refused learn when to come again.
func TestManyClients(t *testing.T) {
	ask := func(f *fixture, clients int) (refused []int) {
		var mu sync.Mutex
		var wait sync.WaitGroup
		for range clients {
			wait.Go(func() {
				res, err := http.Post(f.url+"/v1/completions", "application/json",
					strings.NewReader(`{"prompt":"a","max_tokens":1}`))
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if res.StatusCode == http.StatusOK {
					return
				}
				n, err := strconv.Atoi(res.Header.Get("Retry-After"))
				if res.StatusCode != http.StatusServiceUnavailable || err != nil {
					t.Errorf("status %d, Retry-After %q", res.StatusCode, res.Header.Get("Retry-After"))
				}
				mu.Lock()
				refused = append(refused, n)
				mu.Unlock()
			})
		}
		wait.Wait()
		return refused
	}
	f := start(t, options{plain: true})
	if refused := ask(f, 200); len(refused) > 0 {
		t.Errorf("%d of 200 clients were refused", len(refused))
	}
	f = start(t, options{plain: true, engine: engine.Config{Parallel: 1, Queue: 4}})
	m, err := f.s.loaded("")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * paceEnds { // a generation takes 3 s
		m.pace.ended(time.Unix(int64(3*i), 0))
	}
	release := make(chan struct{})
	f.s.tweak = func(req *engine.Request, _ *model) { req.Constraint = &held{release: release} }
	var running sync.WaitGroup
	running.Go(func() { ask(f, 5) })
	eventually(t, "a full queue", func() bool { return f.e.Snapshot().Queued == 4 })
	f.s.tweak = nil
	if refused := ask(f, 1); len(refused) != 1 || refused[0] != 12 {
		t.Errorf("Retry-After %v, want 12", refused)
	}
	close(release)
	running.Wait()
}

// held is a constraint that lets nothing happen before it is released.
type held struct{ release chan struct{} }

func (h *held) Mask([]float32) { <-h.release }
func (h *held) Accept(int32)   {}
