package engine

import (
	"testing"
)

// TestWatch: what is told of the rounds adds up to what the result says.
func TestWatch(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		e := start(t, name, Config{Chunk: 16})
		for range 2 { // the second finds the first's prompt in the cache
			var sum Round
			rounds := 0
			tokens := randomPrompt(3, 50)
			ev := generate(t, e, Request{Tokens: tokens, MaxTokens: 30, IgnoreEOG: true, Checkpoints: []int{20, 40},
				Spec: fixed, Watch: func(r Round) {
					rounds++
					sum.Prompt += r.Prompt
					sum.Tokens += r.Tokens
					sum.Guessed += r.Guessed
					sum.Accepted += r.Accepted
					if r.Start.IsZero() || r.Took <= 0 || r.Verify <= 0 || r.Verify > r.Took || r.Prompt+r.Tokens == 0 {
						t.Errorf("%s: a round %+v", name, r)
					}
				}})
			st := &ev.Result.Stats
			want := Round{Prompt: len(tokens) - ev.Result.Cached, Tokens: 30, Guessed: st.Guessed, Accepted: st.Accepted}
			if sum != want || rounds < 2 || st.Guessed == 0 {
				t.Errorf("%s: %d rounds are %+v, want %+v", name, rounds, sum, want)
			}
		}
	}
}
