package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// The vocabulary files come with texts and the ids that llama.cpp gives them. They
// are not part of the repository; without them these tests are skipped.

var loaded sync.Map // name -> *Tokenizer: loading once keeps the tests quick

// realVocab loads one of the vocabulary-only files, or skips.
func realVocab(t testing.TB, name string) *Tokenizer {
	t.Helper()
	path := filepath.Join(testkit.Shared(t, "vocab"), "ggml-vocab-"+name+".gguf")
	if v, ok := loaded.Load(name); ok {
		return v.(*Tokenizer)
	}
	tok := load(t, path)
	loaded.Store(name, tok)
	return tok
}

func load(t testing.TB, path string) *Tokenizer {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	// The tokenizer must not depend on the mapping.
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestReferenceIDs(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma-4", "gpt-2"} {
		t.Run(name, func(t *testing.T) {
			tok := realVocab(t, name)
			base := filepath.Join(testkit.Shared(t, "vocab"), "ggml-vocab-"+name+".gguf")
			inp, err := os.ReadFile(base + ".inp")
			if err != nil {
				t.Fatal(err)
			}
			out, err := os.ReadFile(base + ".out")
			if err != nil {
				t.Fatal(err)
			}
			const sep = "\n__ggml_vocab_test__\n"
			texts := strings.Split(strings.TrimSuffix(string(inp), sep), sep)
			lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			if len(lines) != len(texts) || len(texts) < 40 {
				t.Fatalf("%d texts, %d lines of ids", len(texts), len(lines))
			}
			for i, text := range texts {
				var want []ID
				for _, s := range strings.Fields(lines[i]) {
					id, err := strconv.Atoi(s)
					if err != nil {
						t.Fatal(err)
					}
					want = append(want, ID(id))
				}
				got := tok.Encode(text, EncodeOptions{})
				if !slices.Equal(got, want) {
					t.Errorf("case %d %q:\n got %v\nwant %v", i, text, got, want)
				}
				if back := string(tok.Decode(got, DecodeOptions{})); back != text {
					t.Errorf("case %d: %q decodes to %q", i, text, back)
				}
			}
		})
	}
}

// TestMissingMerges: llama.cpp refuses such files, too; without merges every text is right, and useless, in bytes.
func TestMissingMerges(t *testing.T) {
	path := edit.Golden(t, "qwen3").Set("tokenizer.ggml.merges", nil).Write(t)
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := FromGGUF(f); err == nil || !strings.Contains(err.Error(), path+": tokenizer.ggml.merges: missing") {
		t.Errorf("error is %v", err)
	}
}
