package engine

import (
	"slices"
	"testing"

	"strobe/internal/cache"
	"strobe/internal/speculate"
)

// TestPrefixWithoutDrafters: what was kept without a drafter's memory serves whoever does not need it; the drafter
// begins after it then, with nothing. A long one serves everybody: reading it again would take longer than drafting
// badly for a while.
func TestPrefixWithoutDrafters(t *testing.T) {
	e := startModel(t, loadGolden(t, "qwen3", true), Config{Parallel: 1})
	req := Request{Tokens: randomPrompt(8, 80), MaxTokens: 20, IgnoreEOG: true,
		Spec: speculate.Options{Draft: speculate.Off}}
	generate(t, e, req)
	long := req
	long.Tokens = randomPrompt(9, blind+minReuse+1)
	generate(t, e, long)
	err := e.do(t.Context(), 0, func(l *loop) error {
		if _, n := l.cache.find(text{tokens: long.Tokens}, wanted(l.r, speculate.Options{})); n != blind+minReuse {
			t.Errorf("%d tokens of a long prompt found", n)
		}
		if _, n := l.cache.find(text{tokens: long.Tokens[:blind+minReuse]}, wanted(l.r, speculate.Options{})); n != 0 {
			t.Errorf("%d tokens found where reading them takes no longer than drafting without them costs", n)
		}
		want := wanted(l.r, speculate.Options{})
		if x, _ := l.cache.find(text{tokens: req.Tokens}, want); x != nil {
			t.Error("a prefix without a drafter's memory serves a request that needs it")
		}
		x, n := l.cache.find(text{tokens: req.Tokens}, 0)
		if x == nil || n < 79 {
			t.Fatalf("%d tokens found", n)
		}
		seq, drafts, err := l.cache.take(x, n, want)
		if err != nil {
			return err
		}
		defer seq.Close()
		defer drafts.close()
		i := slices.IndexFunc(drafts, func(c *cache.Seq) bool { return c != nil })
		if drafts.sources() != want || i < 0 || drafts[i].Len() != 0 || seq.Len() != n {
			t.Errorf("the target knows %d tokens of %d, drafters %v", seq.Len(), n, drafts)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
