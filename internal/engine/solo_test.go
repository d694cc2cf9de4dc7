package engine

import (
	"math"
	"slices"
	"testing"

	"strobe/internal/speculate"
)

// solo runs a request step by step and returns what its steps said.
func solo(t *testing.T, m *Model, req Request, chunk int) (all Event, s *Solo) {
	t.Helper()
	s, err := m.Solo(m.Runner, req, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for !s.Done() {
		prompt := s.Prefilling()
		ev, err := s.Step(chunk)
		if err != nil {
			t.Fatal(err)
		}
		if prompt && s.Prefilling() && len(ev.Tokens) > 0 {
			t.Error("tokens before the end of the prompt")
		}
		all.Tokens = append(all.Tokens, ev.Tokens...)
		all.Text = append(all.Text, ev.Text...)
	}
	if target, drafter := s.Bytes(); target == 0 || wanted(m.Runner, req.Spec) != 0 && drafter == 0 {
		t.Errorf("%d and %d bytes in use", target, drafter)
	}
	return all, s
}

// TestSolo: a generation that is stepped by hand says what the engine says, text that was held back included.
func TestSolo(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		for _, req := range []Request{
			{Params: greedy}, {Params: seeded}, {Params: seeded, Spec: speculate.Options{Draft: speculate.Off}},
		} {
			req.Tokens, req.MaxTokens = randomPrompt(4, 50), 33
			e := start(t, name, Config{Parallel: 1})
			text := generate(t, e, req).Text
			// The end of the text may be the beginning of this one, so it is held back until the end.
			req.Stops = []string{string(text[len(text)-1:]) + "\x00"}
			want := generate(t, e, req)
			if len(want.Rest()) == 0 {
				t.Fatalf("%s: nothing is held back of %q", name, want.Text)
			}
			m := loadGolden(t, name, true)
			for _, chunk := range []int{7, 64} {
				got, s := solo(t, m, req, chunk)
				if !slices.Equal(ids(got.Tokens), ids(want.Tokens)) || string(got.Text) != string(want.Text) {
					t.Errorf("%s, chunk %d: %q, the engine says %q", name, chunk, got.Text, want.Text)
				}
				if len(s.Tokens()) != want.Result.Generated {
					t.Errorf("%s: %d tokens, the engine drew %d", name, len(s.Tokens()), want.Result.Generated)
				}
			}
			if n := m.Target.Memory().UsedBytes(); n != 0 {
				t.Errorf("%s: %d bytes in use after Close", name, n)
			}
			m.Close()
		}
	}
}

// ends forces an end-of-generation token at the third place.
type ends struct {
	eog  int32
	seen int
}

func (c *ends) Accept(int32) { c.seen++ }

func (c *ends) Mask(logits []float32) {
	for i := range logits {
		if (c.seen == 2) != (int32(i) == c.eog) {
			logits[i] = float32(math.Inf(-1))
		}
	}
}

// TestSoloIgnoreEOG: the token that ends the text is drawn, and the generation goes on after it if that was asked for.
func TestSoloIgnoreEOG(t *testing.T) {
	m := loadGolden(t, "qwen3", false)
	defer m.Close()
	eog := m.Tokenizer.EOG()[0]
	for ignore, want := range map[bool]int{false: 3, true: 6} {
		req := Request{Tokens: randomPrompt(2, 9), MaxTokens: 6, IgnoreEOG: ignore, Constraint: &ends{eog: eog}}
		_, s := solo(t, m, req, 64)
		if got := s.Tokens(); len(got) != want || got[2] != eog {
			t.Errorf("ignored %v: tokens %v", ignore, got)
		}
	}
}

// TestSoloRefuses: a prompt that is empty or does not fit.
func TestSoloRefuses(t *testing.T) {
	m := loadGolden(t, "qwen3", true)
	defer m.Close()
	for _, n := range []int{0, 20, 30} {
		if _, err := m.Solo(m.Runner, Request{Tokens: randomPrompt(1, n)}, 20); err == nil {
			t.Errorf("%d tokens in a context of 20", n)
		}
	}
	if n := m.Target.Memory().UsedBytes(); n != 0 {
		t.Errorf("%d bytes in use", n)
	}
}
