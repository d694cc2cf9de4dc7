package server

import (
	"os"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/gguf"
)

// TestLongSecondTurn: the second turn of an agent whose prompt has 50,000 tokens runs what is new and no more, so
// that its first byte comes as soon as that of a short prompt.
func TestLongSecondTurn(t *testing.T) {
	if os.Getenv("STROBE_E2E") == "" {
		t.Skip("needs STROBE_E2E, which e2e/run sets: 50,000 tokens take minutes; TestSecondTurn is shorter")
	}
	f := start(t, options{
		model:    "qwen35",
		template: hermesTemplate,
		plain:    true,
		keys:     []gguf.KV{{Key: "qwen35.context_length", Value: uint32(60_000)}},
		engine:   engine.Config{Context: 60_000, Parallel: 1},
	})
	said := "I look. " + notations[0].right
	f.script(said)
	system := strings.Repeat("Use the tool when it helps. ", 50_000*3/len("Use the tool when it helps. "))
	count := func(q dict) int { return number(f.post("/v1/messages/count_tokens", q), "input_tokens") }
	tools := []dict{{"name": "set", "description": "sets", "input_schema": rawJSON(setSchema)}}
	q := dict{"max_tokens": 100, "tools": tools, "system": system, "messages": user("Begin.")}
	for n := count(q); n > 52_000 || n < 50_000; n = count(q) { // tokens have no fixed length
		system = strings.Repeat("Use the tool when it helps. ", len(system)*51_000/n/len("Use the tool when it helps. "))
		q["system"] = system
	}
	first := f.post("/v1/messages", q)
	content := at(first, "content").([]any)
	last := content[len(content)-1]
	if text(last, "type") != "tool_use" {
		t.Fatalf("no call: %v", content)
	}
	more := []dict{
		{"role": "assistant", "content": content},
		{"role": "user", "content": []dict{{"type": "tool_result", "tool_use_id": text(last, "id"), "content": "set"}}},
	}
	before := count(q)
	q["messages"] = append(user("Begin."), more...)
	after := count(q)
	f.script("Done.")
	second := f.post("/v1/messages", q)
	cached, run := number(second, "usage", "cache_read_input_tokens"), number(second, "usage", "input_tokens")
	t.Logf("%d tokens, then %d: %d run, %d from the cache", before, after, run, cached)
	// What the model said is cached, too, but for the last tokens, where its text and the template's may differ.
	if before < 50_000 || cached+run != after || run > after-before+32 {
		t.Errorf("of %d tokens, %d of them new, %d were run and %d cached", after, after-before, run, cached)
	}
}
