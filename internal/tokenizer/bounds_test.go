package tokenizer

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

// everyKind is a tokenizer of each kind.
func everyKind(t *testing.T) map[string]*Tokenizer {
	return map[string]*Tokenizer{
		"bytes": load(t, testkit.Golden(t, "qwen3/model.gguf")), "gemma": mustNew(t, gemmaVocab("aa", "aaaa")),
		"sentencepiece": mustNew(t, pieceVocab("aa", "aaaa")),
	}
}

// TestMemory: text without any boundary takes memory in proportion, not a hundred times its size.
func TestMemory(t *testing.T) {
	for name, tok := range everyKind(t) {
		for _, s := range []string{" ", "a", "я"} {
			text := strings.Repeat(s, 4<<20/len(s))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			ids := tok.Encode(text, EncodeOptions{})
			runtime.ReadMemStats(&after)
			// Four bytes per id, five times over for growing the list, and what one merge run takes.
			if n := after.TotalAlloc - before.TotalAlloc; n > uint64(25*len(text)) {
				t.Errorf("%s: %d MB were allocated for %d MB of %q", name, n>>20, len(text)>>20, s)
			}
			if !bytes.Equal(tok.Decode(ids, DecodeOptions{Opens: true}), []byte(text)) {
				t.Errorf("%s: %q does not come back", name, s)
			}
		}
	}
}

// TestCutIsLate: up to a quarter of a megabyte without a boundary is encoded as a whole, and what follows a longer
// stretch is not touched by the cut.
func TestCutIsLate(t *testing.T) {
	tok := load(t, testkit.Golden(t, "qwen3/model.gguf"))
	run := strings.Repeat("a", 3*maxPiece)
	want := tok.Encode(". And so on: 17, 18.\n", EncodeOptions{})
	got := tok.Encode(run+". And so on: 17, 18.\n", EncodeOptions{})
	if !slices.Equal(got[len(got)-len(want):], want) {
		t.Error("the text after a long run is encoded differently")
	}
}

// TestEncodeStops: nobody waits for text that nobody wants any more.
func TestEncodeStops(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for name, tok := range everyKind(t) {
		for _, text := range []string{strings.Repeat("one two\n", 1<<17), strings.Repeat(" ", 1<<20)} {
			if n := len(tok.Encode(text, EncodeOptions{Done: closed})); n > 2*maxPiece {
				t.Errorf("%s: %d tokens after the end", name, n)
			}
			ids := tok.Encode(text, EncodeOptions{Done: make(chan struct{})})
			if !slices.Equal(ids, tok.Encode(text, EncodeOptions{})) {
				t.Errorf("%s: an open channel changes the tokens", name)
			}
		}
	}
}
