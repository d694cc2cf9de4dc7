package server

import (
	"fmt"
	"strings"
	"testing"

	"strobe/internal/engine"
)

// TestDraftSources: an answer, /metrics and /api/ps say the same of what each source of drafts did, and name a drafter
// that was not asked.
func TestDraftSources(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.s.tweak = func(req *engine.Request, _ *model) { req.Spec.Fixed = true } // drafting need not pay here
	ask := func(source string) dict {
		return f.post("/v1/chat/completions", dict{"messages": user(strings.Repeat("red green blue ", 10)), "max_tokens": 60,
			"temperature": 0, "grammar": `root ::= ("red, "){20} "end"`, "strobe": dict{"draft": source}})
	}
	fields := map[string]string{"drafts": "drafts_total", "bad": "drafts_bad_total", "right": "drafts_right_total",
		"failed": "draft_failures_total", "draft_n": "draft_tokens_total", "draft_n_accepted": "draft_tokens_accepted_total"}
	sum := map[string]int{} // by source and field
	for _, source := range []string{"ngram", "ngram", "dflash"} {
		m := ask(source)
		if s := at(m, "timings", "draft_sources").(dict); len(s) != 1 || number(s, source, "drafts") == 0 ||
			number(s, source, "draft_n") != number(m, "timings", "draft_n") {
			t.Errorf("%s drafted: %v", source, at(m, "timings"))
		}
		for name := range fields {
			sum[source+name] += number(m, "timings", "draft_sources", source, name)
		}
		_, metrics := f.do("GET", "/metrics", "")
		_, b := f.do("GET", "/api/ps", "")
		list := at(decodeObject(t, b), "models", 0, "draft_sources")
		for _, s := range []string{"ngram", "dflash"} {
			for name, metric := range fields {
				want := fmt.Sprintf("strobe:source_%s{model_name=\"qwen35\",source=%q} %d\n", metric, s, sum[s+name])
				if !strings.Contains(string(metrics), want) || number(list, s, name) != sum[s+name] || at(list, s) == nil {
					t.Errorf("after %s: %s of %s should be %d; /api/ps says %v", source, name, s, sum[s+name], at(list, s))
				}
			}
		}
	}
	if sum["ngramdraft_n_accepted"] == 0 || sum["ngramright"] == 0 || sum["dflashdraft_n"] == 0 {
		t.Errorf("guesses: %v", sum)
	}
}
