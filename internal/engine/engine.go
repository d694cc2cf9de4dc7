package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/platform"
)

// Config says how an Engine shares its model. The zero value works.
type Config struct {
	Parallel int // generations that run together; 0 means 4
	Queue    int // requests that may wait for a slot; 0 means 512, < 0 none
	Context  int // most tokens of a sequence, prompt and answer; 0 means the trained context
	// Chunk is prompt tokens per step: how long a prompt may hold up the others. 0 means 256, or as many as take 45 ms on
	// a GPU, 512 at most, and 1,024 there while no other request generates, if memory is ample.
	Chunk int

	CacheBytes     int64  // memory of the prefix cache; 0 means a part of what is free, < 0 turns it off
	CacheDir       string // folder that keeps the prefix cache over restarts; "" for none
	CacheDiskBytes int64  // limit of that folder; 0 means 8 GiB
	CacheMinTokens int    // shortest prefix that is worth a file; 0 means 64
	SlotDir        string // folder of the files of SaveSlot, up to CacheDiskBytes; "" for none

	Log *slog.Logger // nil discards

	alone int  // Chunk while no request generates
	paced bool // Chunk is the most; pace chooses
	now   func() time.Time
}

func (c Config) withDefaults(m *Model) Config {
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	set(&c.Parallel, 4)
	set(&c.Queue, 512)
	if c.alone = c.Chunk; c.Chunk == 0 {
		c.Chunk, c.alone = max(256, min(512, m.Chunk())), max(256, m.Chunk())
		_, c.paced = m.Backend().(gpu)
	}
	set(&c.CacheMinTokens, 64)
	// Every running generation needs a row in the batch, and prompts want some too.
	c.Parallel = min(max(c.Parallel, 1), model.MaxRows/4)
	c.Queue = max(c.Queue, 0)
	c.Chunk, c.alone = min(max(c.Chunk, 1), model.MaxRows), min(max(c.alone, 1), model.MaxRows)
	if c.Context <= 0 || c.Context > m.Target.Context {
		c.Context = m.Target.Context
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = m.cacheBytes()
	}
	if c.CacheDiskBytes == 0 {
		c.CacheDiskBytes = 8 << 30
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Engine runs the generations of one model. Its methods may be called from any goroutine.
//
// One goroutine, started by New and ended by Close, owns the model: it admits requests in the order
// they came, runs up to Parallel of them in shared batches and drops those whose context ended.
// What runs together has no influence on what any of them says.
type Engine struct {
	model *Model
	files []*gguf.File // of the model
	cfg   Config

	mu      sync.Mutex
	queue   []*Generation // waiting, oldest first
	calls   []*embedding  // waiting for the loop
	tasks   []func(*loop) // likewise
	embeds  int           // embeddings that wait or run
	closing bool          // no new requests
	abort   bool          // running ones are to be cancelled
	failed  error         // a defect ended the loop
	snap    Snapshot

	saveDelay time.Duration // of idleness before the cache is saved

	release sync.Once     // of the model
	work    chan struct{} // wakes the loop
	done    chan struct{} // closed when the loop has ended
}

// New starts an engine for m, which belongs to the engine from then on.
func New(m *Model, cfg Config) *Engine {
	e := &Engine{model: m, files: m.files, cfg: cfg.withDefaults(m), work: make(chan struct{}, 1),
		done: make(chan struct{})}
	e.saveDelay = 3 * time.Second
	if n := m.Target.Context; cfg.Context > n {
		e.cfg.Log.Warn("the context is shorter than asked for: the model was trained for no more", "file", m.Path,
			"asked", cfg.Context, "context", n)
	}
	e.start()
	return e
}

func (e *Engine) start() {
	e.snap.Started = time.Now()
	for i := range e.cfg.Parallel {
		e.snap.Slots = append(e.snap.Slots, Slot{ID: i, State: State{Slot: -1}})
	}
	go func() { newLoop(e).run() }()
}

// Model returns the engine's model. Only its tokenizer, template, paths and sizes may be used.
func (e *Engine) Model() *Model { return e.model }

// Config returns the effective configuration.
func (e *Engine) Config() Config { return e.cfg }

// Submit queues a request. The generation ends early when ctx does. Errors are about the request
// (*ContextError, ErrEmptyPrompt, invalid parameters) or the engine (ErrQueueFull, ErrClosed);
// what happens later is in the generation's Result.
func (e *Engine) Submit(ctx context.Context, req Request) (*Generation, error) {
	if err := e.check(&req); err != nil {
		return nil, err
	}
	g := newGeneration(ctx, req)
	g.stop = context.AfterFunc(g.ctx, func() { e.dropQueued(g) })
	if err := e.enqueue(g); err != nil {
		g.stop()
		g.cancel(nil)
		return nil, err
	}
	if g.ctx.Err() != nil { // it may have ended before there was anything to drop
		e.dropQueued(g)
	}
	e.wake()
	return g, nil
}

func (e *Engine) check(req *Request) error {
	if len(req.Tokens) == 0 {
		return ErrEmptyPrompt
	}
	limit := e.cfg.Context
	if req.PromptOnly {
		limit++
	}
	if len(req.Tokens) >= limit {
		return &ContextError{Prompt: len(req.Tokens), Context: e.cfg.Context}
	}
	if err := e.checkTokens(req); err != nil {
		return err
	}
	if s := req.Slot; s != nil && (*s < 0 || *s >= e.cfg.Parallel) {
		return &SlotError{*s, e.cfg.Parallel}
	}
	if req.MaxTokens < 0 {
		return fmt.Errorf("MaxTokens is %d; want at least 0", req.MaxTokens)
	}
	if err := e.model.Runner.Check(req.Spec.Draft); err != nil {
		return err
	}
	return req.Params.Validate()
}

// checkTokens makes sure that tokens are in the vocabulary or stand for the rows of the request's images.
func (e *Engine) checkTokens(req *Request) error {
	at := 0
	text := func(to int) error {
		for _, id := range req.Tokens[at:to] {
			if id < 0 || int(id) >= e.model.Target.Vocab {
				return fmt.Errorf("token id %d is outside the vocabulary of %d", id, e.model.Target.Vocab)
			}
		}
		return nil
	}
	for i := range req.Images {
		p := &req.Images[i]
		end := p.At + p.Len()
		switch {
		case e.model.Vision == nil:
			return ErrNoVision
		case e.model.window > 0:
			return fmt.Errorf("%w: images with --decode-window, which would hide parts of them", ErrUnsupported)
		case e.model.Target.Mutual && p.Len() > model.MaxMutual:
			return fmt.Errorf("an image of %d rows; this model takes at most %d", p.Len(), model.MaxMutual)
		case p.At < at || end > len(req.Tokens) || !slices.Equal(p.IDs(nil), req.Tokens[p.At:end]):
			return fmt.Errorf("image %d is not at token %d of the prompt", i+1, p.At)
		}
		if err := text(p.At); err != nil {
			return err
		}
		at = end
	}
	return text(len(req.Tokens))
}

func (e *Engine) enqueue(g *Generation) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.failed != nil:
		return e.failed
	case e.closing:
		return ErrClosed
	case len(e.queue) >= e.cfg.Queue+e.snap.free():
		e.snap.Rejected++
		return ErrQueueFull
	}
	e.queue = append(e.queue, g)
	return nil
}

// dropQueued ends a generation whose context ended before it was admitted.
func (e *Engine) dropQueued(g *Generation) {
	e.mu.Lock()
	i := slices.Index(e.queue, g)
	if i >= 0 {
		e.queue = slices.Delete(e.queue, i, i+1)
		e.snap.count(ReasonCancelled)
	}
	e.mu.Unlock()
	if i >= 0 {
		g.finish(nil, Result{Reason: ReasonCancelled, Err: context.Cause(g.ctx), Slot: -1, Queued: time.Since(g.submitted)})
	}
	e.wake()
}

func (e *Engine) wake() {
	select {
	case e.work <- struct{}{}:
	default:
	}
}

// Close refuses new requests, lets the queued and running ones finish, saves the prefix cache where
// there is a folder for it, and releases the model. When ctx ends first, everything still running is
// cancelled at the next step boundary and a file being written is given up. Close returns
// after the engine's goroutines have ended; it may be called more than once.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closing = true
	e.mu.Unlock()
	e.wake()
	select {
	case <-e.done:
	case <-ctx.Done():
		e.mu.Lock()
		e.abort = true
		e.mu.Unlock()
		e.wake()
		<-e.done
	}
	var err error
	e.release.Do(func() { err = e.model.Close() })
	return err
}

// change tells what became of the model's files.
func (e *Engine) change() platform.Change {
	worst := platform.Unchanged
	for _, f := range e.files {
		worst = max(worst, f.Change())
	}
	return worst
}

// Err returns why the engine stopped by itself, nil while it works.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failed
}
