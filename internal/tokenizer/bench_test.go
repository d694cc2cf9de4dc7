package tokenizer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
)

// repoText collects text of this repository by file ending, at least size bytes
// (repeated if need be): realistic and always at hand.
func repoText(t testing.TB, size int, exts ...string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(testkit.Root(t), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil // a file that vanished while others work is no concern of ours
		}
		for _, e := range exts {
			if !d.IsDir() && filepath.Ext(path) == e && b.Len() < size {
				if data, err := os.ReadFile(path); err == nil {
					b.Write(data)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if b.Len() == 0 {
		t.Skipf("no files with endings %v in the repository", exts)
	}
	s := b.String()
	for len(s) < size {
		s += s
	}
	return s[:size]
}

// prose makes English-looking text from the comments of the repository's Go files.
func prose(t testing.TB, size int) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(repoText(t, 8*size, ".go")) {
		if s, ok := strings.CutPrefix(strings.TrimSpace(line), "// "); ok {
			b.WriteString(s)
			if strings.HasSuffix(s, ".") {
				b.WriteString("\n")
			} else {
				b.WriteString(" ")
			}
		}
	}
	s := b.String()
	for len(s) < size {
		s += s
	}
	return s[:size]
}

const mixedSample = "Широкая электрификация южных губерний даст мощный толчок подъёму сельского хозяйства. " +
	"我能吞下玻璃而不伤身体。いろはにほへと ちりぬるを。 كل إنسان حر. ठीक है, चलो। 🙂🚀 naïve façade Straße 3.14159 "

func BenchmarkEncode(b *testing.B) {
	for _, vocab := range []string{"qwen35", "gemma-4"} {
		for _, c := range []struct{ name, text string }{
			{"english", prose(b, 1<<20)},
			{"code", repoText(b, 1<<20, ".go")},
			{"mixed", strings.Repeat(mixedSample, 1<<20/len(mixedSample))},
			{"repeated", strings.Repeat("a", 1<<20)},
			{"spaces", strings.Repeat(" ", 1<<20)},
		} {
			b.Run(vocab+"/"+c.name, func(b *testing.B) {
				tok := realVocab(b, vocab)
				b.SetBytes(int64(len(c.text)))
				var ids []ID
				for b.Loop() {
					ids = tok.AppendEncode(ids[:0], c.text, EncodeOptions{ParseSpecial: true})
				}
				b.ReportMetric(float64(len(c.text))/float64(len(ids)), "bytes/token")
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := realVocab(b, "qwen35")
	text := prose(b, 1<<20)
	ids := tok.Encode(text, EncodeOptions{})
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Decode(ids, DecodeOptions{})
	}
}

func BenchmarkSplit(b *testing.B) {
	text := prose(b, 1<<20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		for i := 0; i < len(text); {
			i = splitQwen35(text, i)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, vocab := range []string{"qwen35", "gemma-4"} {
		b.Run(vocab, func(b *testing.B) {
			path := filepath.Join(testkit.Shared(b, "vocab"), "ggml-vocab-"+vocab+".gguf")
			b.ReportAllocs()
			for b.Loop() {
				f, err := gguf.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := FromGGUF(f); err != nil {
					b.Fatal(err)
				}
				f.Close()
			}
		})
	}
}
