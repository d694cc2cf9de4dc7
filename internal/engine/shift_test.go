package engine

import (
	"fmt"
	"slices"
	"testing"

	"strobe/internal/sample"
	"strobe/internal/speculate"
)

// shifted is what a model says that forgets, by requests of their own: each begins with what is left of the text.
func shifted(t *testing.T, e *Engine, req Request, keep, drop int) (tokens []int32, forgotten int) {
	t.Helper()
	most, limit := req.MaxTokens, e.Config().Context
	text := slices.Clone(req.Tokens)
	for {
		req.Tokens, req.Shift, req.MaxTokens = text, nil, min(most-len(tokens), limit-len(text))
		got := ids(generate(t, e, req).Tokens)
		tokens = append(tokens, got...)
		if len(tokens) == most {
			return tokens, forgotten
		}
		text = slices.Concat(text, got)
		if len(text) != limit {
			t.Fatalf("the text ended with %d tokens", len(text))
		}
		n := drop
		if n == 0 {
			n = (len(text) - keep) / 2
		}
		forgotten += n
		text = slices.Concat(text[:keep], text[keep+n:])
	}
}

// TestShift: a full context is forgotten in part, and the text goes on as that of a request with what is left, with and
// without drafts and cache.
func TestShift(t *testing.T) {
	for _, model := range []string{"qwen35", "qwen3"} { // memory that cannot be cut, and that can
		e := start(t, model, Config{Context: 64, Parallel: 2})
		drafts := []string{speculate.Auto, "dflash"}
		for i, c := range []struct {
			Shift
			keep int // in effect
		}{
			{Shift{}, 0}, {Shift{Keep: 7}, 7}, {Shift{Keep: -1, Discard: 9}, 20}, {Shift{Keep: 1000}, 60},
			{Shift{Discard: 1000}, 0},
		} {
			req := Request{Tokens: randomPrompt(uint64(i), 20), IgnoreEOG: true, MaxTokens: 150}
			drop := c.Discard
			if drop == 1000 {
				drop = 63
			}
			if c.Keep == 1000 {
				req.MaxTokens = 52 // four tokens more than fit: every other one forgets two
			}
			plain := req
			plain.Spec.Draft, plain.NoCache = speculate.Off, true
			want, forgotten := shifted(t, e, plain, c.keep, drop)
			for _, draft := range drafts {
				for _, noCache := range []bool{false, true} {
					req.Shift, req.Spec.Draft, req.NoCache = &c.Shift, draft, noCache
					ev := generate(t, e, req)
					at := fmt.Sprintf("%s, %+v, draft %q, without cache %t", model, c.Shift, draft, noCache)
					if got := ids(ev.Tokens); !slices.Equal(got, want) {
						t.Fatalf("%s: %v\nwant %v", at, got, want)
					}
					if r := ev.Result; r.Generated != len(want) || r.Prompt != 20 || r.Forgotten != forgotten ||
						r.Reason != ReasonLength {
						t.Errorf("%s: %+v; want %d forgotten", at, r, forgotten)
					}
				}
			}
		}
	}
}

// TestShiftSampled: with sampling and penalties drafts change nothing either, and other requests keep their texts.
func TestShiftSampled(t *testing.T) {
	e := start(t, "qwen35", Config{Context: 64, Parallel: 4})
	req := Request{Tokens: randomPrompt(3, 30), IgnoreEOG: true, MaxTokens: 120, Params: seeded, Shift: &Shift{Keep: 4}}
	req.Spec.Draft = speculate.Off
	want := ids(generate(t, e, req).Tokens)
	other := Request{Tokens: randomPrompt(4, 10), IgnoreEOG: true, MaxTokens: 40, Params: sample.Params{Temp: 1, Seed: 5}}
	beside := ids(generate(t, e, other).Tokens)
	req.Spec.Draft = speculate.Auto
	var running []*Generation
	for range 2 {
		running = append(running, submit(t, e, req), submit(t, e, other))
	}
	for i, g := range running {
		want := [][]int32{want, beside}[i%2]
		if got := ids(wait(t, g).Tokens); !slices.Equal(got, want) {
			t.Errorf("request %d: %v, want %v", i, got, want)
		}
	}
}

// TestShiftEnds: without a limit of its own, an answer that forgets ends after as many tokens as the model was trained
// for; stop strings and prompts that do not fit are as without.
func TestShiftEnds(t *testing.T) {
	e := start(t, "qwen3", Config{Context: 64})
	most := e.Model().Target.Context
	ev := generate(t, e, Request{Tokens: randomPrompt(1, 20), IgnoreEOG: true, Shift: &Shift{}})
	if n := len(ev.Tokens); n != most || ev.Result.Reason != ReasonLength {
		t.Errorf("%d tokens, %v; want %d", n, ev.Result.Reason, most)
	}
	if _, err := e.Submit(t.Context(), Request{Tokens: randomPrompt(1, 64), Shift: &Shift{}}); err == nil {
		t.Error("a prompt that does not fit is taken")
	}
}
