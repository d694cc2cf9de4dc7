package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"strobe/internal/engine"
)

// Service is how long a server takes, as measured on one machine.
type Service struct {
	Model  string        `json:"model"`
	Prompt time.Duration `json:"prompt_ns"` // for a token of a prompt
	// Tokens is how long a token of every stream takes, by the number of streams that run together, ascending.
	Tokens []TokenTime `json:"tokens"`
	// CacheTokens is how many tokens the prefix cache holds.
	CacheTokens int `json:"cache_tokens"`
}

// TokenTime is a point of Service.Tokens.
type TokenTime struct {
	Streams int           `json:"streams"`
	Took    time.Duration `json:"ns"`
}

// Check says what is wrong with times that come from a file.
func (s *Service) Check() error {
	if s.Prompt <= 0 || len(s.Tokens) == 0 || s.CacheTokens < 0 {
		return errors.New("it has no times of a server")
	}
	last := 0
	for _, t := range s.Tokens {
		if t.Streams <= last || t.Took <= 0 {
			return fmt.Errorf("%d streams take %v: want more and more streams, and times above zero", t.Streams, t.Took)
		}
		last = t.Streams
	}
	return nil
}

// token is how long a token of each of n streams takes: between measured points on the line through them, beyond them
// on the last one.
func (s *Service) token(n int) time.Duration {
	if n == 0 {
		return 0
	}
	if len(s.Tokens) == 1 || n <= s.Tokens[0].Streams {
		return s.Tokens[0].Took
	}
	i := 1
	for i < len(s.Tokens)-1 && s.Tokens[i].Streams < n {
		i++
	}
	a, b := s.Tokens[i-1], s.Tokens[i]
	return max(0, a.Took+time.Duration(float64(b.Took-a.Took)*float64(n-a.Streams)/float64(b.Streams-a.Streams)))
}

// MeasureConfig says how a server is measured.
type MeasureConfig struct {
	Prompt, Answer int // tokens of each measured request
	Repeats        int // the fastest counts: whatever disturbs only makes slower
	Progress       func(done, of int)
}

// Measure times an engine: prompts, then streams, as many as it has slots.
func Measure(ctx context.Context, e *engine.Engine, name string, c MeasureConfig) (Service, error) {
	cfg := e.Config()
	s := Service{Model: name}
	if b := e.Model().Target.Memory().TokenBytes(); b > 0 {
		s.CacheTokens = int(max(0, cfg.CacheBytes)) / b
	}
	var counts []int
	for n := 1; n < cfg.Parallel; n *= 2 {
		counts = append(counts, n)
	}
	counts = append(counts, cfg.Parallel)
	rng := rand.New(rand.NewPCG(1, 2))
	tokens := func(n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = int32(rng.IntN(min(e.Model().Target.Vocab, 1<<15)))
		}
		return out
	}
	done := 0
	for range c.Repeats {
		r, err := together(ctx, e, 1, func() engine.Request {
			return engine.Request{Tokens: tokens(c.Prompt), MaxTokens: 1, IgnoreEOG: true, NoCache: true}
		})
		if err != nil {
			return s, err
		}
		keep(&s.Prompt, r[0].First/time.Duration(c.Prompt))
		for i, n := range counts {
			r, err := together(ctx, e, n, func() engine.Request {
				return engine.Request{Tokens: tokens(16), MaxTokens: c.Answer, IgnoreEOG: true, NoCache: true}
			})
			if err != nil {
				return s, err
			}
			var sum time.Duration
			for _, x := range r {
				sum += (x.Total - x.First) / time.Duration(c.Answer-1)
			}
			if len(s.Tokens) <= i {
				s.Tokens = append(s.Tokens, TokenTime{Streams: n})
			}
			keep(&s.Tokens[i].Took, sum/time.Duration(n))
			if done++; c.Progress != nil {
				c.Progress(done, c.Repeats*len(counts))
			}
		}
	}
	return s, s.Check()
}

// keep keeps the shorter time.
func keep(best *time.Duration, d time.Duration) {
	if *best == 0 || d < *best {
		*best = d
	}
}

// together runs n requests at once.
func together(ctx context.Context, e *engine.Engine, n int, next func() engine.Request) ([]engine.Result, error) {
	out, errs := make([]engine.Result, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		g, err := e.Submit(ctx, next())
		if err != nil {
			return nil, err
		}
		wg.Go(func() {
			ev, err := g.Wait(ctx)
			if err == nil {
				out[i], err = *ev.Result, ev.Result.Err
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}
