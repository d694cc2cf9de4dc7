package server

import (
	"strings"
	"testing"

	"strobe/internal/engine"
)

// TestContextShift: a server that may forget says what it forgot, does it as the request wants, and not at all for
// requests that refuse it. One that may not ends answers as before.
func TestContextShift(t *testing.T) {
	f := start(t, options{template: hermesTemplate, engine: engine.Config{Context: 64},
		config: Config{Shift: &engine.Shift{Keep: 2}}})
	prompt := strings.Repeat("word ", 4)
	q := dict{"prompt": prompt, "n_predict": 120, "ignore_eos": true, "temperature": 0}
	m := f.post("/completion", q)
	if number(m, "tokens_predicted") != 120 || at(m, "truncated") != true || number(m, "timings", "forgotten_n") < 60 {
		t.Errorf("forgotten: %v of %v, truncated %v", at(m, "timings", "forgotten_n"), at(m, "tokens_predicted"),
			at(m, "truncated"))
	}
	one := f.post("/completion", with(q, dict{"n_predict": 64, "n_keep": -1, "n_discard": 20}))
	if n := number(one, "timings", "forgotten_n"); n != 20 {
		t.Errorf("%d tokens were forgotten, want 20", n)
	}
	if got := f.post("/completion", with(q, dict{"n_discard": -1})); text(got, "content") != text(m, "content") {
		t.Errorf("a negative n_discard is not half: %q, want %q", text(got, "content"), text(m, "content"))
	}
	short := f.post("/completion", with(q, dict{"n_predict": 5}))
	if at(short, "truncated") != false || at(short, "timings", "forgotten_n") != nil {
		t.Errorf("nothing was forgotten: %v", short)
	}
	options := dict{"num_predict": 120, "ignore_eos": true, "num_keep": 3}
	for shift, want := range map[bool]bool{true: true, false: false} {
		m := f.post("/api/generate", dict{"prompt": prompt, "stream": false, "shift": shift, "options": options})
		if n := number(m, "eval_count"); (n == 120) != want {
			t.Errorf("shift %t: %d tokens", shift, n)
		}
	}
	f.serve(New(Config{Models: Single("m", f.e)}))
	if m := f.post("/completion", with(q, dict{"n_keep": 3})); at(m, "truncated") != false ||
		number(m, "tokens_predicted") >= 64 {
		t.Errorf("a server that forgets nothing: %v", m)
	}
}
