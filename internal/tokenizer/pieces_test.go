package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// pieceVocab is a small SentencePiece vocabulary: the usual three tokens, one for every byte, and some texts, of which
// the first has the highest score.
func pieceVocab(extra ...string) Config {
	c := Config{Model: "llama", Tokens: []string{"<unk>", "<s>", "</s>"}, Types: []TokenKind{Unknown, Control, Control},
		Scores: []float32{0, 0, 0}}
	add := func(s string, k TokenKind, score float32) {
		c.Tokens, c.Types, c.Scores = append(c.Tokens, s), append(c.Types, k), append(c.Scores, score)
	}
	for b := range 256 {
		add(fmt.Sprintf("<0x%02X>", b), Byte, 0)
	}
	for i, s := range append(extra, "\u2581", "a", "b", "c", "h", "e", "l", "o", "é", "<", "s", ">") {
		add(s, Normal, -float32(i))
	}
	return c
}

func TestPieces(t *testing.T) {
	c := pieceVocab("\u2581he", "lo", "\u2581h", "hel", "\u2581hel", "\u2581\u2581", "ab", "bc", "<s", "aé")
	c.Scores[slices.Index(c.Tokens, "bc")] = c.Scores[slices.Index(c.Tokens, "ab")] // equal: the leftmost wins
	tok := mustNew(t, c)
	plain := mustNew(t, func() Config { c := c; c.AddSpace = ptr(false); return c }())
	for _, tc := range []struct {
		tok   *Tokenizer
		text  string
		parse bool
		want  []string
	}{
		{tok, "", false, nil},
		// "▁he" scores best, but nothing leads there: "▁h" comes first, then "▁he", then "lo".
		{tok, "helo", false, []string{"\u2581he", "lo"}},
		{tok, "hello", false, []string{"\u2581hel", "lo"}},
		{plain, "hello", false, []string{"h", "e", "l", "lo"}},
		{tok, " a", false, []string{"\u2581\u2581", "a"}},
		{tok, "\u2581a", false, []string{"\u2581\u2581", "a"}},
		{tok, "abc", false, []string{"\u2581", "ab", "c"}},
		{tok, "aé", false, []string{"\u2581", "aé"}},
		{tok, "a\nü", false, []string{"\u2581", "a", "<0x0A>", "<0xC3>", "<0xBC>"}},
		{plain, "\xff\xc3(", false, []string{"<0xFF>", "<0xC3>", "<0x28>"}},
		// Text never becomes a control token or a byte token; asked for, a control token is followed by a space.
		{plain, "<s>", false, []string{"<s", ">"}},
		{plain, "<0x41>", false, []string{"<", "<0x30>", "<0x78>", "<0x34>", "<0x31>", ">"}},
		{tok, "<s>a</s> b", true, []string{"<s>", "\u2581", "a", "</s>", "\u2581\u2581", "b"}},
		{plain, "<s>a</s> b", true, []string{"<s>", "a", "</s>", "\u2581", "b"}},
	} {
		ids := tc.tok.Encode(tc.text, EncodeOptions{ParseSpecial: tc.parse})
		if got := texts(tc.tok, ids); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.text, got, tc.want)
		}
		back := string(tc.tok.Decode(ids, DecodeOptions{Special: true, Opens: true}))
		if want := strings.ReplaceAll(tc.text, "\u2581", " "); back != want {
			t.Errorf("%q comes back as %q", tc.text, back)
		}
	}
	encoded := func(opt EncodeOptions) []string { return texts(tok, tok.Encode("a", opt)) }
	if got := encoded(EncodeOptions{AddSpecial: true}); !slices.Equal(got, []string{"<s>", "\u2581", "a"}) {
		t.Errorf("with BOS: %q", got)
	}
	if got := encoded(EncodeOptions{Continue: true}); !slices.Equal(got, []string{"a"}) {
		t.Errorf("inside a text: %q", got)
	}
	if w := tok.Warning(); w != "" || tok.Pre() != "" {
		t.Errorf("pre %q, warning %q", tok.Pre(), w)
	}
}

// TestPieceSpaces: a space that stands for the beginning of a text is there once, however the text is put together.
func TestPieceSpaces(t *testing.T) {
	tok := mustNew(t, pieceVocab("\u2581h"))
	h, _ := tok.Lookup("\u2581h")
	bos, _ := tok.BOS()
	ids := tok.AppendEncode(nil, "h", EncodeOptions{AddSpecial: true})
	ids = tok.AppendEncode(ids, "h", EncodeOptions{})
	ids = append(ids, bos, -1) // an id that is none
	ids = tok.AppendEncode(ids[:len(ids)-1], "h", EncodeOptions{})
	if got := texts(tok, ids); !slices.Equal(got, []string{"<s>", "\u2581h", "h", "<s>", "\u2581h"}) {
		t.Fatalf("%q", got)
	}
	for _, tc := range []struct {
		ids  []ID
		opt  DecodeOptions
		want string
	}{
		{[]ID{h, h}, DecodeOptions{Opens: true}, "h h"},
		{[]ID{h, h}, DecodeOptions{}, " h h"},
		{[]ID{bos, h, h}, DecodeOptions{}, "h h"},
		{[]ID{bos, bos, h}, DecodeOptions{Special: true}, "<s><s>h"},
		{[]ID{h, bos, -1, h}, DecodeOptions{Special: true}, " h<s>h"},
	} {
		if got := string(tok.Decode(tc.ids, tc.opt)); got != tc.want {
			t.Errorf("%q with %+v: %q, want %q", texts(tok, tc.ids), tc.opt, got, tc.want)
		}
	}
	if tok.Opens([]ID{h}) || tok.Opens([]ID{-1}) || tok.Opens([]ID{1 << 30}) || !tok.Opens([]ID{bos}) || !tok.Opens(nil) {
		t.Error("only text at the beginning and after special tokens gets a space")
	}
}

// TestPieceRoles: files may leave out the ids that SentencePiece always gives.
func TestPieceRoles(t *testing.T) {
	tok := mustNew(t, pieceVocab())
	unk, _ := tok.Unk()
	bos, _ := tok.BOS()
	eos, _ := tok.EOS()
	if unk != 0 || bos != 1 || eos != 2 || !tok.IsEOG(2) || !tok.AddBOS() || tok.AddEOS() {
		t.Errorf("unknown %d, bos %d, eos %d, adds %v %v", unk, bos, eos, tok.AddBOS(), tok.AddEOS())
	}
	c := pieceVocab()
	c.AddBOS = ptr(false)
	if mustNew(t, c).AddBOS() {
		t.Error("BOS is added though the file says no")
	}
}

// TestHostilePieces: what cannot be used is refused by the key at fault.
func TestHostilePieces(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"no scores", func(c *Config) { c.Scores = nil }, "tokenizer.ggml.scores 0 271"},
		{"few scores", func(c *Config) { c.Scores = c.Scores[:9] }, "tokenizer.ggml.scores 9 271"},
		{"no number", func(c *Config) { c.Scores[260] = float32(math.NaN()) }, "tokenizer.ggml.scores entry 260"},
		{"no byte tokens", func(c *Config) {
			c.Tokens, c.Types, c.Scores = c.Tokens[259:], c.Types[259:], c.Scores[259:]
		}, "tokenizer.ggml.tokens <0x00>"},
		{"a byte is missing", func(c *Config) { c.Tokens[3+0x80] = "x" }, "tokenizer.ggml.tokens <0x80>"},
		{"bytes are texts", func(c *Config) { c.Types = nil }, "tokenizer.ggml.tokens <0x00>"},
		{"long token", func(c *Config) { c.Tokens[260] = strings.Repeat("a", maxScored+1) }, "token 260 513"},
		{"twice", func(c *Config) { c.Tokens[261] = "a" }, `tokenizer.ggml.tokens "a"`},
	} {
		c := pieceVocab()
		tc.edit(&c)
		_, err := New(c)
		if err == nil {
			t.Errorf("%s: no error", tc.name)
			continue
		}
		for _, w := range strings.Fields(tc.want) {
			if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %q does not say %q in one line", tc.name, err, w)
			}
		}
	}
	// A character of one byte may do instead of its byte token, and infinite scores are in order.
	c := pieceVocab()
	c.Tokens[3+'a'] = "x"
	c.Types[3+'a'] = Normal
	c.Scores[260], c.Scores[261] = float32(math.Inf(1)), float32(math.Inf(-1))
	tok := mustNew(t, c)
	if got := string(tok.Decode(tok.Encode("xaéb", EncodeOptions{}), DecodeOptions{Opens: true})); got != "xaéb" {
		t.Errorf("%q", got)
	}
	// Every prefix a token: the most pairs for the bytes.
	all := []string{}
	for n := 2; n <= maxScored; n++ {
		all = append(all, strings.Repeat("a", n))
	}
	tok = mustNew(t, pieceVocab(all...))
	text := strings.Repeat("a", 1<<16)
	if got := string(tok.Decode(tok.Encode(text, EncodeOptions{}), DecodeOptions{Opens: true})); got != text {
		t.Error("a run of one character does not come back")
	}
}

// TestSentencePiece compares with ids that SentencePiece itself gave, for a vocabulary that it trained. The file says
// how.
func TestSentencePiece(t *testing.T) {
	b, err := os.ReadFile("testdata/sentencepiece.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Pieces, Cases [][]json.RawMessage
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	read := func(raw json.RawMessage, v any) {
		if err := json.Unmarshal(raw, v); err != nil {
			t.Fatal(err)
		}
	}
	c := Config{Model: "llama"}
	for _, p := range file.Pieces {
		var s string
		var score float32
		var kind TokenKind
		read(p[0], &s)
		read(p[1], &score)
		read(p[2], &kind)
		c.Tokens, c.Scores, c.Types = append(c.Tokens, s), append(c.Scores, score), append(c.Types, kind)
	}
	tok, o := mustNew(t, c), newOracle(c)
	if len(file.Cases) < 200 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	for _, x := range file.Cases {
		var text string
		var want []ID
		read(x[0], &text)
		read(x[1], &want)
		got := tok.Encode(text, EncodeOptions{})
		if !slices.Equal(got, want) {
			t.Errorf("%q:\n got %q\nwant %q", text, texts(tok, got), texts(tok, want))
		}
		if slow := o.encode(t, text, false); !slices.Equal(slow, want) {
			t.Errorf("%q: the slow reference says %q\nwant %q", text, texts(tok, slow), texts(tok, want))
		}
	}
}
