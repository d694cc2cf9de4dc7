package engine

import (
	"context"
	"io"
	"sync"
	"time"
)

// Generation is a request in progress. Its methods may be called from any goroutine, Next from one
// at a time.
//
// The engine never waits for a reader: what is not read yet is kept, at most the tokens the
// request may generate, and handed out by Next as one event.
type Generation struct {
	req       Request
	salt      salt
	ctx       context.Context
	cancel    context.CancelCauseFunc
	stop      func() bool // ends the watch on ctx
	submitted time.Time

	mu      sync.Mutex
	pending Event
	ready   chan struct{} // holds a value while pending has something to read
	read    bool          // the result was handed out
	state   State
	done    chan struct{} // closed when the result is known
}

// Phase is where a generation stands.
type Phase int

// The phases.
const (
	PhaseQueued Phase = iota
	PhasePrompt
	PhaseGenerate
	PhaseDone
)

var phaseNames = [...]string{"queued", "prompt", "generate", "done"}

func (p Phase) String() string { return phaseNames[p] }

// State is a snapshot of a generation.
type State struct {
	Phase     Phase
	Slot      int // -1 while queued
	Prompt    int // tokens of the prompt
	Processed int // of them, run or found in the cache
	Cached    int // of them, found in the cache
	Generated int
	Encoding  int // per cent of the image that is being encoded; 0 without one
}

func newGeneration(ctx context.Context, req Request) *Generation {
	g := &Generation{req: req, salt: saltOf(req.Salt), submitted: time.Now(), ready: make(chan struct{}, 1),
		done: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	g.state = State{Slot: -1, Prompt: len(req.Tokens)}
	return g
}

// text is the prompt as the prefix cache knows it.
func (g *Generation) text() text { return text{g.salt, g.req.Tokens} }

// Next waits for more of the generation and returns everything that has come since the last call.
// After the event with the Result it returns io.EOF. When ctx ends first, Next returns its
// error; the generation goes on.
func (g *Generation) Next(ctx context.Context) (Event, error) {
	for {
		g.mu.Lock()
		ev, read := g.pending, g.read
		if len(ev.Tokens) > 0 || len(ev.Text) > 0 || ev.Prompt != nil || ev.Result != nil {
			g.pending = Event{}
			g.read = ev.Result != nil
			g.mu.Unlock()
			return ev, nil
		}
		g.mu.Unlock()
		if read {
			return Event{}, io.EOF
		}
		select {
		case <-g.ready:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// Wait reads the generation to its end and returns the whole text and all tokens. When ctx ends
// first it cancels the generation and returns what there is with the context's error.
func (g *Generation) Wait(ctx context.Context) (Event, error) {
	var all Event
	for {
		ev, err := g.Next(ctx)
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			g.Cancel()
			return all, err
		}
		all.Text = append(all.Text, ev.Text...)
		all.Tokens = append(all.Tokens, ev.Tokens...)
		if ev.Result != nil {
			all.Result = ev.Result
			return all, nil
		}
	}
}

// Cancel ends the generation at the next step boundary. It does not wait.
func (g *Generation) Cancel() { g.cancel(context.Canceled) }

// Done is closed when the generation has ended and its Result is there to read.
func (g *Generation) Done() <-chan struct{} { return g.done }

// State returns a snapshot.
func (g *Generation) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

// emit adds the tokens of a round to what is to be read.
func (g *Generation) emit(tokens []Token) {
	if len(tokens) == 0 {
		return
	}
	g.mu.Lock()
	g.pending.Tokens = append(g.pending.Tokens, tokens...)
	for _, t := range tokens {
		g.pending.Text = append(g.pending.Text, t.Text...)
	}
	g.state.Generated += len(tokens)
	g.mu.Unlock()
	g.wake()
}

// progress tells the reader how far the prompt is.
func (g *Generation) progress() {
	g.mu.Lock()
	s := g.state
	g.pending.Prompt = &s
	g.mu.Unlock()
	g.wake()
}

// finish ends the generation. rest is text that was held back.
func (g *Generation) finish(rest []byte, r Result) {
	g.mu.Lock()
	g.pending.Text = append(g.pending.Text, rest...)
	r.Prompt, r.Seen = g.state.Prompt, g.req.Seen
	r.Total = time.Since(g.submitted)
	g.pending.Result = &r
	g.state.Phase = PhaseDone
	g.mu.Unlock()
	g.wake()
	close(g.done)
	g.stop()
	g.cancel(nil)
}

// update changes the snapshot.
func (g *Generation) update(fn func(s *State)) {
	g.mu.Lock()
	fn(&g.state)
	g.mu.Unlock()
}

func (g *Generation) wake() {
	select {
	case g.ready <- struct{}{}:
	default:
	}
}
