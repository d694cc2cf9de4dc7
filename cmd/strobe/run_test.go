package main

import (
	"strings"
	"testing"
	"time"

	"strobe/internal/speculate"
)

// TestSummary: the last line says what drafting gained, or that it was paused, and no ratio that means nothing.
func TestSummary(t *testing.T) {
	st := speculate.Stats{Tokens: 101, Rounds: 40, Guessed: 80, DecodeTime: time.Second, PlainCost: 20 * time.Millisecond,
		BySource: map[string]int{"dflash": 30}}
	if s := summary(&st, true); !strings.Contains(s, "about 2.00x plain decoding") || strings.Contains(s, "paused") {
		t.Error(s)
	}
	st.DecodeTime = 30 * time.Second
	if s := summary(&st, true); strings.Contains(s, "plain decoding") {
		t.Error(s)
	}
	st.Guessed, st.BySource = 0, nil
	if s := summary(&st, true); !strings.Contains(s, "drafting paused") {
		t.Error(s)
	}
	if s := summary(&st, false); strings.Contains(s, "paused") {
		t.Error(s)
	}
}
