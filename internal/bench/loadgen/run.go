package loadgen

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bench is a measurement. Its callbacks may be nil; they are not called at the same time.
type Bench struct {
	Settings Settings
	Targets  []Target
	HTTP     *http.Client              // nil: one for as many clients as there are
	Progress func(done, of int)        // requests of the run in progress
	Done     func(name string, r *Run) // a run ended
}

// target is a server that was asked what it can do.
type target struct {
	*Target
	path   string
	fields map[string]any
	notes  []string
}

func (t *target) authorize(r *http.Request) {
	if t.Key != "" {
		r.Header.Set("Authorization", "Bearer "+t.Key)
	}
}

// client sends one request at a time.
type client struct {
	http    *http.Client
	timeout time.Duration
	body    timed
	buf     *bufio.Reader
}

func newClient(h *http.Client, timeout time.Duration) *client {
	return &client{http: h, timeout: timeout, buf: bufio.NewReaderSize(nil, maxEvent)}
}

// Run measures all targets. When ctx ends it returns what was measured so far with the context's error.
func (b *Bench) Run(ctx context.Context) (*Report, error) {
	s := &b.Settings
	if err := s.Check(); err != nil {
		return nil, err
	}
	h := b.HTTP
	if h == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConns, t.MaxIdleConnsPerHost, t.DisableCompression = 0, 10_000, true
		h = &http.Client{Transport: t}
		defer t.CloseIdleConnections()
	}
	var targets []*target
	var l lengths
	for i := range b.Targets {
		x := b.Targets[i]
		t, measured, err := prepare(ctx, newClient(h, s.Timeout), s, &x)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			l = measured
		}
		targets = append(targets, t)
	}
	report := newReport(s, targets)
	for round := range s.Rounds {
		for _, clients := range s.Clients {
			for turn := range targets {
				i := (round + turn) % len(targets) // none is always the first
				if round == 0 && s.Warmup != 0 {
					n := s.Warmup
					if n < 0 {
						n = min(max(1, clients), s.Requests)
					}
					b.once(ctx, h, targets, i, l, clients, n, -1)
				}
				if ctx.Err() == nil {
					r := b.once(ctx, h, targets, i, l, clients, s.Requests, round)
					report.Runs = append(report.Runs, r)
					if b.Done != nil {
						b.Done(targets[i].Name, r)
					}
				}
				if ctx.Err() != nil {
					report.finish()
					return report, ctx.Err()
				}
			}
		}
	}
	report.finish()
	return report, nil
}

// once runs a number of conversations on a target. Round -1 is for warming up.
func (b *Bench) once(ctx context.Context, h *http.Client, targets []*target, i int, l lengths,
	clients, n, round int) *Run {
	s, t := &b.Settings, targets[i]
	before, all := copies(targets, i)
	// A run of its own number for every round, number of clients and target of the same server.
	number := (uint64(round+1)*uint64(len(s.Clients))+uint64(slices.Index(s.Clients, clients)))*uint64(all) + uint64(before)
	p := newPrompts(s, l, number)
	workers := min(clients, n)
	if clients == 0 {
		workers = n
	}
	type job struct {
		i   int
		due time.Time // zero: at once
	}
	jobs := make(chan job, n) // requests begin at their time, whether or not a client is free
	began := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(jobs)
		rng := rand.New(rand.NewPCG(s.Seed, ^number))
		due := began
		for i := range n {
			j := job{i: i}
			if s.Rate > 0 && round >= 0 {
				if i > 0 {
					due = due.Add(time.Duration(rng.ExpFloat64() / s.Rate * float64(time.Second)))
				}
				if j.due = due; !sleep(ctx, time.Until(due)) {
					return
				}
			}
			jobs <- j
		}
	})
	var done atomic.Int64
	var progress sync.Mutex
	samples := make([][]sample, workers)
	for w := range workers {
		wg.Go(func() {
			c := newClient(h, s.Timeout)
			for j := range jobs {
				if ctx.Err() != nil {
					return
				}
				var late time.Duration
				if !j.due.IsZero() {
					late = time.Since(j.due)
				}
				samples[w] = append(samples[w], b.converse(ctx, c, t, p, j.i, late)...)
				if round >= 0 && b.Progress != nil {
					progress.Lock()
					b.Progress(int(done.Add(1)), n)
					progress.Unlock()
				}
			}
		})
	}
	wg.Wait()
	r := &Run{Target: i, Clients: clients, Round: round + 1, Interrupted: ctx.Err() != nil}
	r.sum(s, samples, time.Since(began))
	return r
}

// sleep reports whether the time passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// converse runs all turns of a conversation. It ends with the first that fails.
func (b *Bench) converse(ctx context.Context, c *client, t *target, p *prompts, i int, late time.Duration) []sample {
	s := &b.Settings
	messages, rng := p.first(i)
	var all []sample
	for turn := range s.Turns {
		body, err := t.request(s, messages, p.Seed+p.run<<32+uint64(i))
		if err != nil {
			return append(all, sample{turn: turn, err: err})
		}
		x := c.post(ctx, t, body, turn+1 < s.Turns)
		x.turn = turn
		if turn == 0 {
			x.late = late
		}
		all = append(all, x)
		if x.err != nil {
			break
		}
		if turn+1 < s.Turns {
			messages = p.next(messages, string(x.text), rng)
			all[len(all)-1].text = nil
		}
	}
	return all
}

// request is the body of a request.
func (t *target) request(s *Settings, messages []Message, seed uint64) ([]byte, error) {
	body := make(map[string]any, len(t.fields)+2)
	for k, v := range t.fields {
		body[k] = v
	}
	if s.Endpoint == Chat {
		body["messages"] = messages
	} else {
		body["prompt"] = flat(messages)
	}
	if s.SendSeed {
		body["seed"] = seed & (1<<31 - 1) // what every server takes
	}
	return json.Marshal(body)
}

// prepare asks a server for its model, for what it takes, and how many tokens words have.
func prepare(ctx context.Context, c *client, s *Settings, x *Target) (*target, lengths, error) {
	t := &target{Target: x, path: "/v1/chat/completions"}
	if s.Endpoint == Completions {
		t.path = "/v1/completions"
	}
	var err error
	if x.URL, err = normal(x.URL); err != nil {
		return nil, lengths{}, err
	}
	if x.Model == "" {
		if x.Model, err = firstModel(ctx, c, t); err != nil {
			return nil, lengths{}, err
		}
	}
	const short, long = 64, 192 // words; the difference is what words cost without a template
	ask := func(words int) sample {
		rng := rand.New(rand.NewPCG(s.Seed, 1))
		body, err := t.request(s, []Message{{"user", text(rng, words)}}, s.Seed)
		if err != nil {
			return sample{err: err}
		}
		return c.post(ctx, t, body, false)
	}
	// Some servers refuse fields they do not know.
	full := s.fields(x)
	full["max_tokens"] = 1
	var one sample
	for _, without := range [][]string{{}, {"ignore_eos"}, {"stream_options"}, {"ignore_eos", "stream_options"}} {
		t.fields, t.notes = map[string]any{}, nil
		for k, v := range full {
			t.fields[k] = v
		}
		t.fields["stream_options"] = map[string]any{"include_usage": true}
		if s.IgnoreEOS {
			t.fields["ignore_eos"] = true
		}
		for _, name := range without {
			delete(t.fields, name)
			t.notes = append(t.notes, "the server does not take "+name)
		}
		one = ask(short)
		var refused *requestError
		if !errors.As(one.err, &refused) || refused.Status != http.StatusBadRequest &&
			refused.Status != http.StatusUnprocessableEntity {
			break
		}
	}
	if one.err != nil {
		return nil, lengths{}, x.failed(one.err)
	}
	l := lengths{perWord: 1}
	if one.counted {
		two := ask(long)
		if two.err != nil {
			return nil, l, x.failed(two.err)
		}
		l = measured(short, one.in, long, two.in)
	} else {
		t.notes = append(t.notes, "the server does not count tokens: events are counted, and words of prompts")
	}
	t.fields["max_tokens"] = s.OutputLen
	return t, l, nil
}

// failed is the error of a server that cannot be measured.
func (t *Target) failed(err error) error {
	var e *requestError
	if errors.As(err, &e) && e.Kind == "connection refused" {
		return fmt.Errorf("no server answers at %s; \"strobe serve\" starts one", t.URL)
	}
	if errors.As(err, &e) && e.Status == http.StatusUnauthorized {
		return fmt.Errorf("%s: %w (--api-key)", t.URL, err)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s: %w", t.URL, err)
}

// firstModel asks a server which models it has.
func firstModel(ctx context.Context, c *client, t *target) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.URL+"/v1/models", nil)
	if err != nil {
		return "", err
	}
	t.authorize(req)
	resp, err := c.http.Do(req)
	if err != nil {
		return "", t.failed(networkError(err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return "", t.failed(networkError(err))
	}
	if resp.StatusCode != http.StatusOK {
		return "", t.failed(&requestError{fmt.Sprintf("http %d", resp.StatusCode), errorText(b), resp.StatusCode})
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(b, &list); err != nil || len(list.Data) == 0 || strings.TrimSpace(list.Data[0].ID) == "" {
		return "", fmt.Errorf("%s/v1/models names no model; give one with --model", t.URL)
	}
	return list.Data[0].ID, nil
}
