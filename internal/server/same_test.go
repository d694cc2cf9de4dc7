package server

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"strobe/internal/engine"
)

// TestSameText: what a request says does not depend on what else runs, on speculation or on the cache,
// greedily and with a seed.
func TestSameText(t *testing.T) {
	for _, model := range []string{"qwen35", "gemma4", "qwen35moe"} {
		t.Run(model, func(t *testing.T) {
			f := start(t, options{model: model, engine: engine.Config{Parallel: 8, Queue: 64}})
			var queries []dict
			for i := range 8 {
				queries = append(queries, dict{
					"prompt": strings.Repeat(fmt.Sprintf("request %d says ", i%5), 3+7*i), "max_tokens": 20 + 3*i, "ignore_eos": true,
					"temperature": i % 2, "seed": i,
				})
			}
			say := func(q dict, more dict) string {
				return text(f.post("/v1/completions", with(q, more)), "choices", 0, "text")
			}
			var want []string
			for _, q := range queries {
				want = append(want, say(q, dict{"cache_prompt": false, "strobe": dict{"draft": "off"}}))
			}
			for _, more := range []dict{
				{"cache_prompt": false}, {}, {"strobe": dict{"draft": "dflash"}}, {"strobe": dict{"draft": "ngram"}},
				{"strobe": dict{"draft": "off"}},
			} {
				var wg sync.WaitGroup
				for i, q := range queries {
					wg.Go(func() {
						if got := say(q, more); got != want[i] {
							t.Errorf("with %v, request %d beside the others: %q, alone %q", more, i, got, want[i])
						}
					})
				}
				wg.Wait()
			}
			if f.e.Snapshot().Cache.Hits == 0 {
				t.Error("the cache was never hit")
			}
		})
	}
}
