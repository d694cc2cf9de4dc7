package server

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"strobe/internal/engine"
)

// exchange is a conversation with the model that answers it.
type exchange struct {
	*core
	model   chatModel
	name    string         // the model's
	req     engine.Request // what all answers have in common
	replies []*reply
	stream  bool // the answer is sent to st while it is generated
	st      *stream
	loading time.Duration // how long the model took to be ready
}

// answer is how a protocol shows replies.
type answer interface {
	// chunk sends what one event of the engine brought for a reply.
	chunk(i int, ds []delta)
	// whole returns the answer in one piece.
	whole() (any, error)
}

// generation is an answer that is being generated, by an engine of this server or by another server.
type generation interface {
	Next(ctx context.Context) (engine.Event, error)
	Cancel()
	Done() <-chan struct{}
	State() engine.State
}

// acquireModel returns the model of a conversation, on this server or another one. Prompts without a template need one
// of this server.
func (s *core) acquireModel(r *http.Request, c *conversation) (m chatModel, release func(), err error) {
	if c.prompts == nil && s.cfg.Upstreams.Has(c.model) {
		return &remoteModel{name: c.model, fleet: s.cfg.Upstreams, head: s.outgoing(r), most: s.cfg.MaxBody}, func() {}, nil
	}
	l, err := s.acquire(r.Context(), c.model)
	if err != nil {
		return nil, nil, err
	}
	l.keep = c.keepAlive
	return l, l.release, nil
}

// converse answers a conversation. All protocols and models go this way: find the model, prepare a reply for each
// answer, generate them, and let the protocol show them.
func (s *core) converse(w http.ResponseWriter, r *http.Request, c *conversation,
	show func(*exchange) answer) (any, error) {
	start := time.Now()
	m, release, err := s.acquireModel(r, c)
	if err != nil {
		return nil, err
	}
	defer release()
	x := &exchange{core: s, model: m, name: m.modelName(), stream: c.stream, st: newStream(w), loading: time.Since(start)}
	if x.req, err = m.request(c.sampling); err != nil {
		return nil, err
	}
	x.req.Stops = append(x.req.Stops, c.stops...)
	if c.noShift {
		x.req.Shift = nil
	}
	if c.logProbs != nil {
		x.req.LogProbs, x.req.WantLogProb = *c.logProbs, true
	}
	c.done, c.fetch = r.Context().Done(), s.fetch(r.Context())
	if x.replies, err = m.answers(c, x.req); err != nil {
		return nil, err
	}
	a := show(x)
	if err := x.submit(r.Context()); err != nil {
		return nil, err
	}
	if c.accepted != nil {
		if err := c.accepted(); err != nil {
			x.abandon(r)
			return nil, err
		}
	}
	if q := &x.replies[0].req; q.Seen > 0 {
		w.Header().Set("Strobe-Prefill", fmt.Sprintf("seen=%d, kept=%d", q.Seen, len(q.Tokens)))
	}
	if !x.stream {
		if err := x.run(r, func(int, []delta) error { return nil }, nil); err != nil {
			return nil, err
		}
		return a.whole()
	}
	err = x.run(r, func(i int, ds []delta) error {
		a.chunk(i, ds)
		return x.st.flush()
	}, x.st.idle)
	if err != nil {
		x.st.fail(r, err)
	}
	return nil, nil
}

// submit queues the requests. They all run, or none does.
func (x *exchange) submit(ctx context.Context) error {
	for i, rep := range x.replies {
		rep.req.Salt = ownerOf(ctx)
		rep.rounds = x.tracer.watch(ctx, &rep.req)
		var err error
		if rep.gen, err = x.model.submit(ctx, rep); err != nil {
			for _, before := range x.replies[:i] {
				before.gen.Cancel()
			}
			return err
		}
	}
	return nil
}

// run reads the generations to their end. step is called with the deltas of each event; idle, when it
// is not nil, after every silence of the ping interval. An error of either ends everything, as does
// that of a generation. Calls never overlap.
func (x *exchange) run(r *http.Request, step func(i int, d []delta) error, idle func() error) error {
	ctx := r.Context()
	err := x.read(ctx, func(i int, ev engine.Event) error {
		rep := x.replies[i]
		over := rep.enough
		d := rep.take(ev)
		if rep.req.Progress {
			rep.readSome(&ev)
		}
		if rep.enough && !over {
			rep.gen.Cancel()
		}
		if ev.Result != nil {
			x.count(r, rep, ev.Result)
			if err := rep.err(); err != nil {
				return err
			}
		}
		return step(i, d)
	}, idle)
	if err != nil {
		x.abandon(r)
	}
	return err
}

// abandon cancels what still runs and waits for it, which takes a step of the engine at most: when a
// handler returns, its slots are free and its model may be unloaded.
func (x *exchange) abandon(r *http.Request) {
	for _, rep := range x.replies {
		rep.gen.Cancel()
	}
	for _, rep := range x.replies {
		if rep.result != nil {
			continue
		}
		<-rep.gen.Done()
		if ev, err := rep.gen.Next(context.WithoutCancel(r.Context())); err == nil && ev.Result != nil {
			rep.result = ev.Result
			x.count(r, rep, ev.Result)
		}
	}
}

// count puts a reply that ended into the metrics, the log and the trace.
func (x *exchange) count(r *http.Request, rep *reply, res *engine.Result) {
	if l, ok := x.model.(*lease); ok {
		l.pace.ended(time.Now())
	}
	x.metrics.generation(x.name, res)
	logOf(r).generation(x.name, res)
	x.tracer.generation(r.Context(), x.name, rep.rounds, res)
}

// read calls fn with every event of all generations.
func (x *exchange) read(ctx context.Context, fn func(i int, ev engine.Event) error, idle func() error) error {
	type item struct {
		i   int
		ev  engine.Event
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	items := make(chan item)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for i, rep := range x.replies {
		readers.Go(func() {
			for {
				ev, err := rep.gen.Next(ctx)
				select {
				case items <- item{i, ev, err}:
				case <-ctx.Done():
					return
				}
				if err != nil || ev.Result != nil {
					return
				}
			}
		})
	}
	tick := time.NewTicker(x.cfg.Ping)
	defer tick.Stop()
	for left := len(x.replies); left > 0; {
		select {
		case it := <-items:
			if it.err != nil {
				return it.err
			}
			if err := fn(it.i, it.ev); err != nil {
				return err
			}
			if it.ev.Result != nil {
				left--
			}
			tick.Reset(x.cfg.Ping)
		case <-tick.C:
			if idle != nil {
				if err := idle(); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
