package server

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"strobe/internal/engine"
)

// exchange is a request for answers with the model that gives them. Every protocol goes the same way, whatever server
// the model is on:
//
//	x, err := s.begin(w, r, c)  // finds the model and prepares a reply for each answer
//	defer x.release()
//	return x.answer(w, r, a)    // generates, and lets the protocol show the replies
type exchange struct {
	*core
	model   chatModel
	name    string         // the model's
	req     engine.Request // what all answers have in common
	replies []*reply
	stream  bool // the answer is sent to st while it is generated
	st      *stream
	loading time.Duration // how long the model took to be ready
	release func()
}

// answer is how a protocol shows replies.
type answer interface {
	// chunk sends what one event of the engine brought for a reply.
	chunk(i int, ds []delta) error
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

// begin finds the model of a conversation and prepares the replies. release must be called unless it fails.
func (s *core) begin(w http.ResponseWriter, r *http.Request, c *conversation) (x *exchange, err error) {
	start := time.Now()
	x = &exchange{core: s, stream: c.stream, st: newStream(w)}
	if x.model, x.release, err = s.acquireModel(r, c); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			x.release()
		}
	}()
	x.name, x.loading = x.model.modelName(), time.Since(start)
	if x.req, err = x.model.request(c.sampling); err != nil {
		return nil, err
	}
	x.req.Stops = append(x.req.Stops, c.stops...)
	if c.logProbs != nil {
		x.req.LogProbs, x.req.WantLogProb = *c.logProbs, true
	}
	c.done = r.Context().Done()
	x.replies, err = x.model.answers(c, x.req)
	return x, err
}

// answer generates the replies and shows them as the protocol does.
func (x *exchange) answer(w http.ResponseWriter, r *http.Request, a answer) (any, error) {
	if err := x.submit(r.Context()); err != nil {
		return nil, err
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
	err := x.run(r, func(i int, ds []delta) error {
		if err := a.chunk(i, ds); err != nil {
			return err
		}
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

// ended reports whether all replies are complete.
func (x *exchange) ended() bool {
	for _, rep := range x.replies {
		if rep.result == nil {
			return false
		}
	}
	return true
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
		if ev.Prompt != nil {
			rep.reading = newPromptProgress(ev.Prompt, time.Since(rep.began))
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
