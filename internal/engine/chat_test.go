package engine

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"strobe/internal/draft"
	"strobe/internal/speculate"
)

// turns runs a conversation on one slot: every prompt is the one before, its answer (or another text
// where the template changes it) and a new message.
func turns(t *testing.T, e *Engine, n int, rewrite, cold bool) (evs []Event, prompts [][]int32) {
	t.Helper()
	prompt := randomPrompt(1, 70)
	for i := range n {
		req := Request{Tokens: prompt, MaxTokens: 30, IgnoreEOG: true, NoCache: cold,
			Spec: speculate.Options{Fixed: true, Tree: speculate.TreeOff}}
		ev := generate(t, e, req)
		evs, prompts = append(evs, ev), append(prompts, prompt)
		answer := ids(ev.Tokens)
		if rewrite {
			answer = answer[len(answer)/2:]
		}
		prompt = slices.Concat(prompt, answer, randomPrompt(uint64(i)+50, 25))
	}
	return evs, prompts
}

// TestTurnsReuseTheCache (failure F152): on every kind of model the next turn of a chat runs the new tokens only,
// also when the template rewrites the last answer.
func TestTurnsReuseTheCache(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4", "qwen35moe"} {
		for _, rewrite := range []bool{false, true} {
			cold := start(t, name, Config{Parallel: 1})
			want, _ := turns(t, cold, 4, rewrite, true)
			warm := start(t, name, Config{Parallel: 1})
			got, prompts := turns(t, warm, 4, rewrite, false)
			for i := range got {
				if !slices.Equal(ids(got[i].Tokens), ids(want[i].Tokens)) {
					t.Errorf("%s, turn %d, rewritten %v: text differs with the cache", name, i, rewrite)
				}
				if i == 0 {
					continue
				}
				expect := len(prompts[i-1]) - tailGap
				if !rewrite {
					expect = len(prompts[i-1]) + 30 - 1
				}
				if c := got[i].Result.Cached; c < expect {
					t.Errorf("%s, turn %d, rewritten %v: %d of %d prompt tokens cached, want at least %d", name, i, rewrite, c,
						len(prompts[i]), expect)
				}
			}
		}
	}
}

// recorder notes what the drafter guesses, so that tests can compare it: tiny drafters are rarely
// right, so acceptance alone would not notice a damaged memory.
type recorder struct {
	draft.Source
	mu  sync.Mutex
	log []string
}

func (r *recorder) Draft(reqs []draft.Request, top int) ([]draft.Proposal, error) {
	ps, err := r.Source.Draft(reqs, top)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, p := range ps {
		r.log = append(r.log, fmt.Sprint(reqs[i].Seq.Len(), reqs[i].Last, p.At))
	}
	return ps, err
}

// startRecorded is start with a recorder around the drafter.
func startRecorded(t *testing.T, name string, cfg Config) (*Engine, *recorder) {
	t.Helper()
	return recorded(t, loadGolden(t, name, true), "dflash", cfg)
}

func recorded(t *testing.T, m *Model, source string, cfg Config) (*Engine, *recorder) {
	t.Helper()
	i := slices.IndexFunc(m.Runner.Sources, func(s draft.Source) bool { return s.Name() == source })
	r := &recorder{Source: m.Runner.Sources[i]}
	m.Runner.Sources[i] = r
	return startModel(t, m, cfg), r
}

// guesses runs a prompt and returns everything the drafter guessed.
func (r *recorder) guesses(t *testing.T, e *Engine, req Request) []string {
	t.Helper()
	r.mu.Lock()
	r.log = nil
	r.mu.Unlock()
	req.Spec = speculate.Options{Fixed: true, Tree: speculate.TreeOff, Draft: r.Name()}
	res := generate(t, e, req).Result
	if res.Stats.Cold || res.Stats.DraftErr != nil || res.Stats.BadDrafts > 0 {
		t.Errorf("drafter cold %v, error %v, bad drafts %d", res.Stats.Cold, res.Stats.DraftErr, res.Stats.BadDrafts)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.log) == 0 {
		t.Error("nothing was drafted")
	}
	return r.log
}

// TestSecondTurnDraftsAsAColdRun (failure F5): what the drafter guesses after a cache hit is exactly what it guesses
// on a cold run, because its memory is restored with the target's.
func TestSecondTurnDraftsAsAColdRun(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		e, r := startRecorded(t, name, Config{Parallel: 1})
		first := generate(t, e, Request{Tokens: randomPrompt(3, 100), MaxTokens: 40, IgnoreEOG: true})
		second := Request{Tokens: slices.Concat(randomPrompt(3, 100), ids(first.Tokens), randomPrompt(4, 20)), MaxTokens: 60,
			IgnoreEOG: true}
		cold := second
		cold.NoCache = true
		want := r.guesses(t, e, cold)
		hits := e.Snapshot().Cache.Hits
		got := r.guesses(t, e, second)
		if e.Snapshot().Cache.Hits != hits+1 {
			t.Errorf("%s: the second turn missed the cache", name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the drafter guesses differently after a hit", name)
		}
	}
}

// TestIdenticalPrompts (failure F6): five times the same prompt on one slot.
func TestIdenticalPrompts(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		e, r := startRecorded(t, name, Config{Parallel: 1})
		req := Request{Tokens: randomPrompt(5, 90), MaxTokens: 50, IgnoreEOG: true}
		want := r.guesses(t, e, req)
		for i := range 4 {
			if !slices.Equal(r.guesses(t, e, req), want) {
				t.Errorf("%s: the drafter guesses differently on repeat %d", name, i+1)
			}
		}
		if s := e.Snapshot(); s.Cache.Hits != 4 || s.Stats.Cached < 4*(90-tailGap) {
			t.Errorf("%s: %d hits, %d tokens cached", name, s.Cache.Hits, s.Stats.Cached)
		}
	}
}

// TestDraftsAfterACheckpoint (failures F7, F105, F164): a recurrent or windowed model goes back to a checkpoint in
// the middle of what it cached; drafts are as good as on a cold run.
func TestDraftsAfterACheckpoint(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4", "qwen3next"} {
		e, r := startRecorded(t, name, Config{Parallel: 1, Chunk: 48})
		base := randomPrompt(6, 200)
		generate(t, e, Request{Tokens: base, MaxTokens: 100, IgnoreEOG: true, Checkpoints: []int{60, 130}})
		for _, keep := range []int{61, 131, 150, 199} {
			req := Request{Tokens: slices.Concat(base[:keep], randomPrompt(uint64(keep), 40)), MaxTokens: 50, IgnoreEOG: true}
			cold := req
			cold.NoCache = true
			if want := r.guesses(t, e, cold); !slices.Equal(r.guesses(t, e, req), want) {
				t.Errorf("%s, common beginning of %d: the drafter guesses differently after a restore", name, keep)
			}
			got, want := generate(t, e, req), generate(t, e, cold)
			if !slices.Equal(ids(got.Tokens), ids(want.Tokens)) {
				t.Errorf("%s, common beginning of %d: text differs", name, keep)
			}
			least := 60
			if keep >= 130 {
				least = 130
			}
			if got.Result.Cached < least {
				t.Errorf("%s, common beginning of %d: only %d tokens cached", name, keep, got.Result.Cached)
			}
		}
	}
}

// TestWithoutDrafterMemory: what a request without speculation leaves in the cache has no
// drafter memory. It serves its like, and never leaves a drafting request with a cold drafter.
func TestWithoutDrafterMemory(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		e, r := startRecorded(t, name, Config{Parallel: 1})
		req := Request{Tokens: randomPrompt(8, 80), MaxTokens: 20, IgnoreEOG: true,
			Spec: speculate.Options{Draft: speculate.Off}}
		generate(t, e, req)
		if c := generate(t, e, req).Result.Cached; c < 80-tailGap {
			t.Errorf("%s: %d tokens cached for the same kind of request", name, c)
		}
		cold := req
		cold.NoCache = true
		if want := r.guesses(t, e, cold); !slices.Equal(r.guesses(t, e, req), want) {
			t.Errorf("%s: the drafter guesses differently after a request without it", name)
		}
		if c := generate(t, e, Request{Tokens: req.Tokens, MaxTokens: 20, IgnoreEOG: true}).Result.Cached; c < 80-tailGap {
			t.Errorf("%s: %d tokens cached after a drafting request", name, c)
		}
	}
}

// TestBranchPoint: where a prompt left an earlier one, a recurrent model has a checkpoint the third
// time, though nobody named that length.
func TestBranchPoint(t *testing.T) {
	e := start(t, "qwen35", Config{Parallel: 1})
	system := randomPrompt(9, 120)
	for i := range 4 {
		req := Request{Tokens: slices.Concat(system, randomPrompt(uint64(100+i), 60)), MaxTokens: 5, IgnoreEOG: true}
		c := generate(t, e, req).Result.Cached
		if want := 120; i >= 2 && c < want {
			t.Errorf("request %d: %d tokens cached, want %d", i, c, want)
		}
	}
}
