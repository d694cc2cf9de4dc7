package engine

import (
	"context"
	"errors"
	"slices"
	"testing"

	"strobe/internal/speculate"
)

// slow is a constraint with a mask that takes as long as the test wants.
type slow struct {
	from  int // tokens before that mask
	n     int
	begun chan struct{} // closed when the work begins
	end   chan struct{} // closed to end it
	ready bool
	err   error // the outcome
}

func newSlow(from int) *slow {
	return &slow{from: from, begun: make(chan struct{}), end: make(chan struct{})}
}

func (s *slow) Mask([]float32) {
	if s.n == s.from && !s.ready {
		panic("the mask was asked for before it was prepared")
	}
}
func (s *slow) Accept(int32) { s.n++ }
func (s *slow) Err() error {
	if s.ready {
		return s.err
	}
	return nil
}

func (s *slow) Prepare(ctx context.Context, quick bool) bool {
	if s.n != s.from || s.ready {
		return true
	}
	if quick {
		return false
	}
	close(s.begun)
	select {
	case <-s.end:
	case <-ctx.Done():
		s.err = ctx.Err()
	}
	s.ready = true
	return true
}

// TestWorkBeside: a mask that takes long delays no other request, also in the middle of accepted guesses, and does not
// change the text.
func TestWorkBeside(t *testing.T) {
	accepted := fixed
	accepted.Synthetic = 3 // of each pass: the text is another one each time
	for _, opt := range []speculate.Options{{}, fixed, accepted} {
		e := start(t, "qwen35", Config{Parallel: 3})
		req := Request{Tokens: randomPrompt(1, 10), MaxTokens: 40, IgnoreEOG: true, Spec: opt}
		want := ids(generate(t, e, req).Tokens)
		for _, from := range []int{0, 1, 2, 3, 7, 39} {
			s := newSlow(from)
			held := req
			held.Constraint = s
			g := submit(t, e, held)
			<-s.begun
			for range 2 {
				if got := ids(generate(t, e, req).Tokens); opt.Synthetic == 0 && !slices.Equal(got, want) {
					t.Errorf("beside work after %d tokens: %v, want %v", from, got, want)
				}
			}
			close(s.end)
			ev := wait(t, g)
			if ev.Result.Reason != ReasonLength || opt.Synthetic == 0 && !slices.Equal(ids(ev.Tokens), want) {
				t.Errorf("after work at %d tokens: %v, %+v", from, ids(ev.Tokens), ev.Result)
			}
		}
	}
}

// TestWorkCancelled: a request may be given up while its mask is worked on, and one that cannot go on says why.
func TestWorkCancelled(t *testing.T) {
	e := start(t, "qwen35", Config{Parallel: 2})
	req := Request{Tokens: randomPrompt(1, 10), MaxTokens: 40, IgnoreEOG: true}
	for _, from := range []int{0, 3} {
		s := newSlow(from)
		req.Constraint = s
		g := submit(t, e, req)
		<-s.begun
		g.Cancel()
		if r := wait(t, g).Result; r.Reason != ReasonCancelled {
			t.Errorf("given up after %d tokens: %+v", from, r)
		}
		s = newSlow(from)
		s.err = errors.New("too much")
		req.Constraint = s
		g = submit(t, e, req)
		<-s.begun
		close(s.end)
		if r := wait(t, g).Result; r.Reason != ReasonError || !errors.Is(r.Err, s.err) || r.Generated != from {
			t.Errorf("too much after %d tokens: %+v", from, r)
		}
	}
}
