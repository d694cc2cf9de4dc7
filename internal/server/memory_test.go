package server

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"strobe/internal/tokenizer"
)

// TestTokenizeMemory: an answer larger than its request is sent as it is made.
func TestTokenizeMemory(t *testing.T) {
	f := start(t, options{})
	text := strings.Repeat("~ ", 1<<18) // a token for nearly every byte
	body := encode(t, dict{"content": text, "with_pieces": true})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	status, b := f.do("POST", "/tokenize", body)
	runtime.ReadMemStats(&after)
	if status != http.StatusOK {
		t.Fatalf("%d %.200s", status, b)
	}
	var out struct {
		Tokens []struct {
			ID    int32
			Piece string
		}
	}
	if err := decodeJSON(b, "", &out); err != nil {
		t.Fatal(err)
	}
	var back strings.Builder
	ids := make([]int32, len(out.Tokens))
	for i, x := range out.Tokens {
		ids[i] = x.ID
		back.WriteString(x.Piece)
	}
	if back.String() != text {
		t.Error("the pieces do not add up to the text")
	}
	// Most of it is this test's, which reads the answer. A list of maps took 690.
	if n := (after.TotalAlloc - before.TotalAlloc) / uint64(len(ids)); n > 300 {
		t.Errorf("%d bytes were allocated per token", n)
	}
	status, b = f.do("POST", "/detokenize", encode(t, dict{"tokens": ids[:1000]}))
	if got := contentOf(t, b); status != http.StatusOK || got != text[:len(got)] || got == "" {
		t.Errorf("detokenize: %d %.100s", status, b)
	}
}

func contentOf(t *testing.T, b []byte) string {
	t.Helper()
	var out struct{ Content string }
	if err := decodeJSON(b, "", &out); err != nil {
		t.Fatal(err)
	}
	return out.Content
}

// TestDetokenizeText: what comes back in pieces is what would come back at once: quotes, line feeds, half characters.
func TestDetokenizeText(t *testing.T) {
	f := start(t, options{})
	for _, s := range []string{"", "a \"quoted\"\n<b>&amp;</b>\\", "Wörter, 漢字 🙂", "tab\t\x01"} {
		ids := f.e.Model().Tokenizer.Encode(s, tokenizer.EncodeOptions{})
		if ids == nil {
			ids = []int32{}
		}
		status, b := f.do("POST", "/detokenize", encode(t, dict{"tokens": ids}))
		if got := contentOf(t, b); status != http.StatusOK || got != s {
			t.Errorf("%q: %d %s", s, status, b)
		}
		if strings.Contains(string(b), `\u003c`) {
			t.Errorf("escaped as for a web page: %s", b)
		}
	}
}

// TestBiasText: texts of logit_bias are short.
func TestBiasText(t *testing.T) {
	f := start(t, options{})
	for n, want := range map[int]int{maxBiasText: 200, maxBiasText + 1: 400, 1 << 20: 400} {
		body := encode(t, dict{"prompt": "x", "max_tokens": 1, "logit_bias": [][]any{{strings.Repeat("a", n), 1}}})
		if status, b := f.do("POST", "/v1/completions", body); status != want {
			t.Errorf("a text of %d bytes: %d %.200s", n, status, b)
		}
	}
}

// TestWorkStops: a prompt that nobody waits for any more is not rendered and not encoded to its end.
func TestWorkStops(t *testing.T) {
	f := start(t, options{})
	v, err := f.s.modelOf("m", f.e)
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	c := &conversation{messages: mustMessages(t, user(strings.Repeat("word ", 100))), done: gone.Done()}
	if _, err := v.render(c); err == nil {
		t.Error("the prompt was rendered")
	}
	if _, err := v.prompts(gone, "prompt", rawJSON(`"text"`)); err == nil {
		t.Error("the prompt was encoded")
	}
}
