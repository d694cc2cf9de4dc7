package server

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"strobe/internal/engine"
)

// answer is how a protocol shows replies: as a stream, or step by step for the whole.
type answer interface {
	stream(w http.ResponseWriter, r *http.Request, b *batch)
	step(i int, ds []delta) error
	whole() (any, error)
}

// answer runs requests and shows their replies.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, v *view, reqs []engine.Request, replies []*reply,
	stream bool, a answer) (any, error) {
	b, err := s.submit(r.Context(), v, reqs, replies)
	if err != nil {
		return nil, err
	}
	if q := reqs[0]; q.Seen > 0 {
		w.Header().Set("Strobe-Prefill", fmt.Sprintf("seen=%d, kept=%d", q.Seen, len(q.Tokens)))
	}
	if stream {
		a.stream(w, r, b)
		return nil, nil
	}
	if err := b.run(r, a.step, nil); err != nil {
		return nil, err
	}
	return a.whole()
}

// generation is an answer in the making, by an engine of this server or by another server.
type generation interface {
	Next(ctx context.Context) (engine.Event, error)
	Cancel()
	Done() <-chan struct{}
	State() engine.State
}

// batch is the generations of one HTTP request, with a reply each.
type batch struct {
	s       *Server
	v       *view
	gens    []generation
	replies []*reply
	rounds  []*rounds // of each that is traced
}

// submit queues the requests. They all run, or none does.
func (s *Server) submit(ctx context.Context, v *view, reqs []engine.Request, replies []*reply) (*batch, error) {
	b := &batch{s: s, v: v, replies: replies}
	for i := range reqs {
		reqs[i].Salt = ownerOf(ctx)
		if s.tweak != nil {
			s.tweak(&reqs[i], v)
		}
		b.rounds = append(b.rounds, s.watch(ctx, &reqs[i]))
		var g generation
		var err error
		if v.remote != nil {
			g, err = s.ask(ctx, v, replies[i].asked, &reqs[i])
		} else {
			g, err = v.engine.Submit(ctx, reqs[i])
		}
		if err != nil {
			b.cancel()
			return nil, err
		}
		b.gens = append(b.gens, g)
	}
	return b, nil
}

func (b *batch) cancel() {
	for _, g := range b.gens {
		g.Cancel()
	}
}

// run reads the generations to their end. step is called with the deltas of each event; idle, when it
// is not nil, after every silence of the ping interval. An error of either ends everything, as does
// that of a generation. Calls never overlap.
func (b *batch) run(r *http.Request, step func(i int, d []delta) error, idle func() error) error {
	ctx := r.Context()
	err := b.read(ctx, func(i int, ev engine.Event) error {
		rep := b.replies[i]
		over := rep.enough
		d := rep.take(ev)
		if ev.Prompt != nil {
			rep.prompt = newPromptProgress(ev.Prompt, time.Since(rep.began))
		}
		if rep.enough && !over {
			b.gens[i].Cancel()
		}
		if ev.Result != nil {
			b.ended(r, i, ev.Result)
			if err := rep.err(); err != nil {
				return err
			}
		}
		return step(i, d)
	}, idle)
	if err != nil {
		b.abandon(r)
	}
	return err
}

// abandon ends what still runs and waits for it, which takes a step of the engine at most: when a
// handler returns, its slots are free and its model may go.
func (b *batch) abandon(r *http.Request) {
	b.cancel()
	for i, g := range b.gens {
		if b.replies[i].result != nil {
			continue
		}
		<-g.Done()
		if ev, err := g.Next(context.WithoutCancel(r.Context())); err == nil && ev.Result != nil {
			b.replies[i].result = ev.Result
			b.ended(r, i, ev.Result)
		}
	}
}

// ended books a generation that ended.
func (b *batch) ended(r *http.Request, i int, res *engine.Result) {
	b.s.metrics.generation(b.v.name, res)
	logOf(r).generation(b.v.name, res)
	b.s.traceGeneration(r.Context(), b.v.name, b.rounds[i], res)
}

// read calls fn with every event of all generations.
func (b *batch) read(ctx context.Context, fn func(i int, ev engine.Event) error, idle func() error) error {
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
	for i, g := range b.gens {
		readers.Go(func() {
			for {
				ev, err := g.Next(ctx)
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
	tick := time.NewTicker(b.s.cfg.Ping)
	defer tick.Stop()
	for left := len(b.gens); left > 0; {
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
			tick.Reset(b.s.cfg.Ping)
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
