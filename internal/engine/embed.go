package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"strobe/internal/cache"
	"strobe/internal/model"
	"strobe/internal/platform"
)

// embedding is a call of Embed in progress.
type embedding struct {
	e      *Engine
	ctx    context.Context
	all    []int32
	tokens []int32 // still to run
	seq    *cache.Seq
	done   chan struct{}
	value  []float32
	err    error
}

func (c *embedding) finish(v []float32, err error) {
	if c.seq != nil {
		c.seq.Close()
	}
	c.value, c.err = v, err
	c.e.mu.Lock()
	c.e.embeds--
	c.e.mu.Unlock()
	close(c.done)
}

// Embed returns the final hidden state of the last token: the model's summary of the text,
// Hidden values, not normalised. It runs in chunks between the steps of generations.
func (e *Engine) Embed(ctx context.Context, tokens []int32) ([]float32, error) {
	req := Request{Tokens: tokens, PromptOnly: true}
	if err := e.check(&req); err != nil {
		return nil, err
	}
	c := &embedding{e: e, ctx: ctx, all: tokens, tokens: tokens, done: make(chan struct{})}
	e.mu.Lock()
	err := e.failed
	switch {
	case err != nil:
	case e.closing:
		err = ErrClosed
	case e.embeds >= e.cfg.Queue+e.cfg.Parallel:
		err = ErrQueueFull
	default:
		e.calls = append(e.calls, c)
		e.embeds++
	}
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	e.wake()
	select {
	case <-c.done:
		return c.value, c.err
	case <-ctx.Done():
		return nil, ctx.Err() // the loop drops it at its next turn
	}
}

// embedStep runs one chunk of the oldest embedding. It reports whether there was one. An error is the end of
// the engine.
func (l *loop) embedStep() (bool, error) {
	l.embeds = slices.DeleteFunc(l.embeds, func(c *embedding) bool {
		if c.ctx.Err() != nil {
			c.finish(nil, c.ctx.Err())
			return true
		}
		return false
	})
	if len(l.embeds) == 0 {
		return false, nil
	}
	c := l.embeds[0]
	var v []float32
	err := l.guard(func() (err error) {
		v, err = l.embed(c)
		return err
	})
	if l.e.change() == platform.Overwritten {
		err = fmt.Errorf("%s: %w", l.m.Path, ErrFileChanged)
	}
	if err != nil {
		if end := l.ending(err); end != nil {
			return true, end
		}
		if errors.Is(err, ErrNoMemory) && l.halve() { // from its beginning: the pass may have ended half-way
			c.seq.Close()
			c.seq, c.tokens = nil, c.all
			return true, nil
		}
	}
	if err != nil || v != nil {
		l.embeds = l.embeds[1:]
		c.finish(v, err)
	}
	return true, nil
}

// embed runs a chunk and returns the value after the last one.
func (l *loop) embed(c *embedding) ([]float32, error) {
	if c.seq == nil {
		c.seq = l.m.Target.NewSeq()
	}
	n := min(len(c.tokens), l.e.cfg.Chunk)
	seg := model.Segment{Seq: c.seq, Tokens: c.tokens[:n], Prompt: true}
	if n == len(c.tokens) {
		seg.Logits = model.LogitsLast
	}
	out, err := l.m.Target.Forward([]model.Segment{seg})
	if err != nil {
		return nil, err
	}
	var v []float32
	if c.tokens = c.tokens[n:]; len(c.tokens) == 0 {
		if out.Final.Rows != 1 {
			return nil, fmt.Errorf("the model gave %d final states, want 1", out.Final.Rows)
		}
		v = slices.Clone(l.m.Target.Backend().Read(out.Final))
	}
	// After every chunk: a generation that runs meanwhile would be told of the failure otherwise.
	if err := l.m.Target.Sync(); err != nil {
		return nil, err
	}
	return v, c.seq.CommitAll()
}
