package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"strobe/internal/speculate"
	"strobe/internal/testkit"
)

// TestSummary: the last line says what drafting gained, or that it was paused, and no ratio that means nothing.
func TestSummary(t *testing.T) {
	st := speculate.Stats{Tokens: 101, Rounds: 40, Guessed: 80, DecodeTime: time.Second, PlainCost: 20 * time.Millisecond,
		BySource: map[string]speculate.SourceStats{"dflash": {Rounds: 30}}}
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

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'a'
	}
	return len(b), nil
}

// TestLongInput: more than any model can read is refused before it is made into tokens.
func TestLongInput(t *testing.T) {
	for _, command := range []string{"run", "tokenize", "detokenize"} {
		var errs bytes.Buffer
		if code := run(t.Context(), []string{command}, endless{}, io.Discard, &errs); code != exitError ||
			!strings.HasPrefix(errs.String(), "strobe: standard input: ") {
			t.Errorf("%s: code %d, %s", command, code, errs.String())
		}
	}
	model := testkit.Golden(t, "qwen3/model.gguf")
	for _, args := range [][]string{{"run", "-m", model, "--ctx", "64"}, {"demo", "-m", model, "--ctx", "64", "-f", "-"}} {
		var errs bytes.Buffer
		if code := run(t.Context(), args, io.LimitReader(endless{}, 20_000_000), io.Discard, &errs); code != exitError ||
			!strings.Contains(errs.String(), "the prompt has 20000000 bytes") {
			t.Errorf("%v: code %d, %s", args, code, errs.String())
		}
	}
}
