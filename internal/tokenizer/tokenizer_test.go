package tokenizer

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"strobe/internal/testkit"
)

func ptr[T any](v T) *T { return &v }

// byteVocab is a byte-level configuration with one token per byte and the given
// extra tokens as control tokens.
func byteVocab(pre string, control ...string) Config {
	c := Config{Model: "gpt2", Pre: pre}
	for b := range 256 {
		c.Tokens = append(c.Tokens, string(runeOfByte(byte(b))))
		c.Types = append(c.Types, Normal)
	}
	for _, s := range control {
		c.Tokens, c.Types = append(c.Tokens, s), append(c.Types, Control)
	}
	return c
}

func gemmaVocab(extra ...string) Config {
	c := Config{Model: "gemma4", Special: map[Role]ID{RoleBOS: 0, RoleEOS: 1}}
	c.Tokens, c.Types = []string{"<bos>", "<eos>"}, []TokenKind{Control, Control}
	for b := range 256 {
		c.Tokens = append(c.Tokens, "<0x"+string("0123456789ABCDEF"[b>>4])+string("0123456789ABCDEF"[b&15])+">")
		c.Types = append(c.Types, Byte)
	}
	for _, s := range append([]string{"a", "b", "\u2581", "\n", "\n\n", "\u2581a", "é"}, extra...) {
		c.Tokens, c.Types = append(c.Tokens, s), append(c.Types, Normal)
	}
	c.Merges = []string{"\u2581 a"}
	return c
}

func mustNew(t testing.TB, c Config) *Tokenizer {
	t.Helper()
	tok, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestGoldenModel(t *testing.T) {
	tok := load(t, testkit.Golden(t, "qwen35/model.gguf"))
	if tok.Size() != 512 || tok.Pre() != "qwen35" || tok.Model() != "gpt2" {
		t.Errorf("size %d, pre %q, model %q", tok.Size(), tok.Pre(), tok.Model())
	}
	if eos, ok := tok.EOS(); !ok || tok.Text(eos) != "<|im_end|>" {
		t.Errorf("eos %d %v", eos, ok)
	}
	if bos, ok := tok.BOS(); ok {
		t.Errorf("file without BOS reports %d", bos)
	}
	if got := texts(tok, tok.EOG()); !slices.Equal(got, []string{"<|im_end|>", "<|endoftext|>"}) {
		t.Errorf("EOG %q", got)
	}
	text := "<|im_start|>user\nHello, wörld 🙂!<|im_end|>\n"
	ids := tok.Encode(text, EncodeOptions{AddSpecial: true, ParseSpecial: true})
	if tok.Text(ids[0]) != "<|im_start|>" || tok.Text(ids[len(ids)-2]) != "<|im_end|>" {
		t.Errorf("specials not parsed: %q", texts(tok, ids))
	}
	if got := string(tok.Decode(ids, DecodeOptions{Special: true})); got != text {
		t.Errorf("decodes to %q", got)
	}
	if got := string(tok.Decode(ids, DecodeOptions{})); got != "user\nHello, wörld 🙂!\n" {
		t.Errorf("without specials decodes to %q", got)
	}
	plain := tok.Encode(text, EncodeOptions{AddSpecial: true})
	if slices.ContainsFunc(plain, func(id ID) bool { return tok.Kind(id) == Control }) {
		t.Errorf("control tokens from plain text: %q", texts(tok, plain))
	}
	if got := string(tok.Decode(plain, DecodeOptions{})); got != text {
		t.Errorf("plain text decodes to %q", got)
	}
}

func TestTextLookup(t *testing.T) {
	for _, c := range []Config{
		byteVocab("qwen2", "<|x|>", "spaced out", "éé", "<｜odd｜>"),
		gemmaVocab("\u2581\u2581", "word space"),
	} {
		tok := mustNew(t, c)
		for i, s := range c.Tokens {
			if got := tok.Text(ID(i)); got != s {
				t.Errorf("%s: Text(%d) = %q, want %q", c.Model, i, got, s)
			}
			if id, ok := tok.Lookup(s); !ok || id != ID(i) {
				t.Errorf("%s: Lookup(%q) = %d, %v, want %d", c.Model, s, id, ok, i)
			}
		}
		for _, s := range []string{"", "nothing", " ", "\xff", "ab"} {
			if id, ok := tok.Lookup(s); ok {
				t.Errorf("%s: Lookup(%q) = %d", c.Model, s, id)
			}
		}
	}
}

func TestAddSpecial(t *testing.T) {
	c := byteVocab("qwen2", "<s>", "</e>")
	c.Special = map[Role]ID{RoleBOS: 256, RoleEOS: 257}
	a := ID('a')
	for _, tc := range []struct {
		name     string
		bos, eos *bool
		text     string
		opt      EncodeOptions
		want     []ID
	}{
		{"qwen adds nothing", nil, nil, "a", EncodeOptions{AddSpecial: true}, []ID{a}},
		{"asked for", ptr(true), ptr(true), "a", EncodeOptions{AddSpecial: true}, []ID{256, a, 257}},
		{"caller does not ask", ptr(true), ptr(true), "a", EncodeOptions{}, []ID{a}},
		{"empty", ptr(true), nil, "", EncodeOptions{AddSpecial: true}, []ID{256}},
		{"already there", ptr(true), ptr(true), "<s>a</e>", EncodeOptions{AddSpecial: true, ParseSpecial: true},
			[]ID{256, a, 257}},
		{"only there", ptr(true), nil, "<s>", EncodeOptions{AddSpecial: true, ParseSpecial: true}, []ID{256}},
	} {
		c.AddBOS, c.AddEOS = tc.bos, tc.eos
		tok := mustNew(t, c)
		if got := tok.Encode(tc.text, tc.opt); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		dst := []ID{7, 256}
		if got := tok.AppendEncode(dst, tc.text, tc.opt); !slices.Equal(got[2:], tc.want) || got[1] != 256 {
			t.Errorf("%s: appended %v, want %v", tc.name, got, tc.want)
		}
	}
	g := gemmaVocab()
	g.AddBOS = ptr(false)
	if tok := mustNew(t, g); !tok.AddBOS() {
		t.Error("gemma4 must add BOS whatever the file says")
	}
	if tok := mustNew(t, byteVocab("llama-bpe")); !tok.AddBOS() {
		t.Error("llama-bpe adds BOS by default")
	}
}

func TestGemma(t *testing.T) {
	c := gemmaVocab()
	c.Pre = "default" // as some converters wrote
	tok := mustNew(t, c)
	for _, tc := range []struct {
		text string
		want []string
	}{
		{"a a", []string{"a", "\u2581a"}},
		{"  a", []string{"\u2581", "\u2581a"}},
		{"\n\n", []string{"\n\n"}},             // a token of its own, taken whole
		{"\n\n\n", []string{"\n", "\n", "\n"}}, // no such token and no merges
		{"ü", []string{"<0xC3>", "<0xBC>"}},
		{"a\xff", []string{"a", "<0xFF>"}},
		{"é\xc3", []string{"é", "<0xC3>"}},
		{"<0x41>", []string{"<0x3C>", "<0x30>", "<0x78>", "<0x34>", "<0x31>", "<0x3E>"}},
	} {
		ids := tok.Encode(tc.text, EncodeOptions{})
		if got := texts(tok, ids); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.text, got, tc.want)
		}
		if back := string(tok.Decode(ids, DecodeOptions{})); back != tc.text {
			t.Errorf("%q comes back as %q", tc.text, back)
		}
	}
}

func TestEOG(t *testing.T) {
	for _, tc := range []struct {
		name    string
		control []string
		special map[Role]ID
		want    []string
	}{
		{"by key", []string{"<a>", "<b>", "<c>"}, map[Role]ID{RoleEOS: 256, RoleEOT: 257, RoleEOM: 258},
			[]string{"<a>", "<b>", "<c>"}},
		{"by text", []string{"<|im_end|>", "<|endoftext|>", "<|im_start|>"}, nil, []string{"<|im_end|>", "<|endoftext|>"}},
		{"fim", []string{"<|fim_prefix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}, nil,
			[]string{"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}},
		{"fim by key wins", []string{"<|fim_pad|>", "<x>"}, map[Role]ID{RoleFIMPad: 257}, []string{"<x>"}},
		{"harmony", []string{"<|end|>", "<|return|>", "<|call|>"}, nil, []string{"<|return|>", "<|call|>"}},
		{"solar", []string{"<|end|>", "<|flush|>", "<|calls|>"}, nil, []string{"<|flush|>", "<|calls|>"}},
		{"phi", []string{"<|end|>", "<|call|>"}, nil, []string{"<|end|>", "<|call|>"}},
		{"gemma", []string{"</s>", "<|tool_response>", "<eos>"}, nil, []string{"<|tool_response>", "<eos>"}},
		{"llama2", []string{"</s>"}, nil, []string{"</s>"}},
		{"deepseek", []string{"<｜end▁of▁sentence｜>"}, nil, []string{"<｜end▁of▁sentence｜>"}},
		{"out of range", []string{"<x>"}, map[Role]ID{RoleEOS: 999, RoleEOT: -5}, nil},
		{"no comma by default", nil, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := byteVocab("qwen2", tc.control...)
			c.Special = tc.special
			tok := mustNew(t, c)
			if got := texts(tok, tok.EOG()); !slices.Equal(got, tc.want) {
				t.Errorf("EOG %q, want %q", got, tc.want)
			}
			for _, id := range tok.EOG() {
				if !tok.IsEOG(id) {
					t.Errorf("IsEOG(%d) is false", id)
				}
			}
		})
	}
	// Converters that leave such tokens normal or user-defined are corrected.
	c := byteVocab("qwen2", "<|im_end|>", "<|tool_response>", "<|call|>")
	c.Types[256], c.Types[257] = Normal, UserDefined
	tok := mustNew(t, c)
	for id := ID(256); id < 258; id++ {
		if tok.Kind(id) != Control {
			t.Errorf("%s stays %s", tok.Text(id), tok.Kind(id))
		}
	}
	if got := tok.Encode("<|im_end|>", EncodeOptions{}); slices.Contains(got, 256) {
		t.Error("a control token came out of plain text")
	}
}

func TestKinds(t *testing.T) {
	c := byteVocab("qwen2", "<unused1>", "<u>", "[PAD]", "")
	c.Types[257], c.Types[258] = UserDefined, Unused
	c.Types = append(c.Types, 99) // more types than tokens is tolerated
	tok := mustNew(t, c)
	want := []TokenKind{Unused, UserDefined, Control, Control} // [PAD] is the fim padding
	for i, k := range want {
		if got := tok.Kind(ID(256 + i)); got != k {
			t.Errorf("%q is %s, want %s", tok.Text(ID(256+i)), got, k)
		}
	}
	if got := tok.Encode("x<u>y<unused1>", EncodeOptions{}); !slices.Contains(got, 257) || slices.Contains(got, 256) {
		t.Errorf("user-defined always, control never without asking: %v", got)
	}
	if got := tok.Encode("<unused1>", EncodeOptions{ParseSpecial: true}); !slices.Equal(got, []ID{256}) {
		t.Errorf("control on request: %v", got)
	}
}

func TestOutOfRange(t *testing.T) {
	tok := mustNew(t, byteVocab("qwen2"))
	s := tok.NewStream()
	for _, id := range []ID{-1, 256, math.MaxInt32, math.MinInt32} {
		if tok.Text(id) != "" || len(tok.Piece(id, true)) != 0 || tok.IsEOG(id) || tok.Kind(id) != Unused ||
			len(tok.Decode([]ID{id}, DecodeOptions{Special: true})) != 0 || len(s.Push(id)) != 0 {
			t.Errorf("id %d is not inert", id)
		}
	}
}

// TestNoPre: a file that does not say how text is split gets llama.cpp's default, and a warning.
func TestNoPre(t *testing.T) {
	if tok := mustNew(t, byteVocab("")); tok.Pre() != "default" || tok.Warning() == "" || tok.AddBOS() {
		t.Errorf("pre %q, warning %q", tok.Pre(), tok.Warning())
	}
	for _, pre := range []string{"default", "qwen2"} {
		if w := mustNew(t, byteVocab(pre)).Warning(); w != "" {
			t.Errorf("%s: %s", pre, w)
		}
	}
	got := splitAll("default", "Hi  there, 12345!? it's\n\nx <=> 7")
	want := []string{"Hi", " ", " there", ",", " ", "123", "45", "!?", " it", "'", "s",
		"\n", "\n", "x", " ", "<=>", " ", "7"}
	if !slices.Equal(got, want) {
		t.Errorf("split into %q, want %q", got, want)
	}
}

func TestErrors(t *testing.T) {
	long := byteVocab("qwen2")
	for _, tc := range []struct {
		name string
		edit func(*Config)
		want string // all of these words
	}{
		{"no model", func(c *Config) { c.Model = "" }, "tokenizer.ggml.model missing"},
		{"other model", func(c *Config) { c.Model = "bert" }, `tokenizer.ggml.model "bert" gpt2 llama`},
		{"unigram", func(c *Config) { c.Model = "t5" }, `tokenizer.ggml.model "t5" unigram`},
		{"unknown pre", func(c *Config) { c.Pre = "qwen99" }, `tokenizer.ggml.pre "qwen99" qwen35 llama-bpe gemma4`},
		{"no tokens", func(c *Config) { c.Tokens = nil }, "tokenizer.ggml.tokens no tokens"},
		{"few types", func(c *Config) { c.Types = c.Types[:100] }, "tokenizer.ggml.token_type 100 256"},
		{"duplicate", func(c *Config) { c.Tokens = append(slices.Clone(c.Tokens), "!"); c.Types = nil },
			`tokenizer.ggml.tokens "!" 33 256`},
		{"odd duplicate", func(c *Config) { c.Tokens = append(slices.Clone(c.Tokens), "a b", "a b"); c.Types = nil },
			`"a b" 256 257`},
		{"merge without space", func(c *Config) { c.Merges = []string{"a b", "ab"} }, `tokenizer.ggml.merges 1 "ab"`},
		{"empty merge", func(c *Config) { c.Merges = []string{""} }, `tokenizer.ggml.merges 0`},
		{"half a merge", func(c *Config) { c.Merges = []string{"a "} }, `tokenizer.ggml.merges 0 "a "`},
	} {
		c := long
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
}

func TestMergesOfUnknownTexts(t *testing.T) {
	c := byteVocab("qwen2")
	// "ab" is no token; "abc" is, reachable only through it. "x y" cannot be spelled.
	c.Tokens, c.Types = append(c.Tokens, "abc"), append(c.Types, Normal)
	c.Merges = []string{"a b", "ab c", "我 x"}
	tok := mustNew(t, c)
	if got := texts(tok, tok.Encode("abcab", EncodeOptions{})); !slices.Equal(got, []string{"abc", "a", "b"}) {
		t.Errorf("got %q", got)
	}
}

func TestStream(t *testing.T) {
	tok := mustNew(t, byteVocab("qwen2", "<|c|>"))
	var byteTokens []string
	for id := range ID(256) {
		byteTokens = append(byteTokens, string(tok.Piece(id, false)))
	}
	encode := func(s string) (ids []ID) {
		for i := range len(s) {
			ids = append(ids, ID(slices.Index(byteTokens, s[i:i+1])))
		}
		return ids
	}
	for _, text := range []string{"abc", "é我🙂", "\xff\xfe", "é\xc3", "\xf0\x9f\x99", "\xf0\x9f\x99x",
		"\xe6\x88\xe6\x88\x91", "\x80\x80\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"} {
		s := tok.NewStream()
		var out []byte
		for i, id := range encode(text) {
			got := s.Push(id)
			out = append(out, got...)
			if utf8.ValidString(text) && !utf8.Valid(got) {
				t.Errorf("%q: token %d emits half a character %q", text, i, got)
			}
			if len(text[:i+1])-len(out) > 3 {
				t.Errorf("%q: %d bytes held back", text, len(text[:i+1])-len(out))
			}
		}
		out = append(out, s.Flush()...)
		if string(out) != text {
			t.Errorf("%q streams as %q", text, out)
		}
		if len(s.Flush()) != 0 {
			t.Errorf("%q: second Flush gives more", text)
		}
	}
	s := tok.NewStream()
	if got := s.Push(256); len(got) != 0 {
		t.Errorf("control token rendered: %q", got)
	}
	s.Special = true
	if got := s.Push(256); string(got) != "<|c|>" {
		t.Errorf("control token with Special: %q", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := load(t, testkit.Golden(t, "qwen3/model.gguf"))
	text := repoText(t, 1<<14, ".go") + mixedSample
	want := tok.Encode(text, EncodeOptions{ParseSpecial: true})
	fresh := load(t, testkit.Golden(t, "qwen3/model.gguf"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 4 {
				if got := fresh.Encode(text, EncodeOptions{ParseSpecial: true}); !slices.Equal(got, want) {
					t.Error("another goroutine changed the result")
				}
			}
		})
	}
	wg.Wait()
}

func TestEncodeAllocates(t *testing.T) {
	tok := load(t, testkit.Golden(t, "qwen3/model.gguf"))
	text := prose(t, 1<<14)
	ids := tok.Encode(text, EncodeOptions{})
	// A collection may empty the pool and cost a new scratch now and then.
	if n := testing.AllocsPerRun(50,
		func() { ids = tok.AppendEncode(ids[:0], text, EncodeOptions{ParseSpecial: true}) }); n >= 1 {
		t.Errorf("%v allocations per call", n)
	}
}

// TestHostileInput finishes only if no input makes encoding quadratic: each text
// would take hours if it did.
func TestHostileInput(t *testing.T) {
	for _, tok := range []*Tokenizer{load(t, testkit.Golden(t, "qwen3/model.gguf")),
		mustNew(t, gemmaVocab("aa", "aaaa")), mustNew(t, pieceVocab("aa", "aaaa"))} {
		for _, s := range []string{"a", " ", "\n", "=", "<", "<|", "'", "我", "\xff", "a ", "\n ", "the"} {
			text := strings.Repeat(s, 1<<20/len(s))
			ids := tok.Encode(text, EncodeOptions{ParseSpecial: true})
			if !bytes.Equal(tok.Decode(ids, DecodeOptions{Special: true, Opens: true}), []byte(text)) {
				t.Errorf("a megabyte of %q does not come back", s)
			}
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"", "Hello, wörld 🙂", "\xff\xfe\x00", "<|im_end|>", "a  b\n\n\tc", mixedSample, "\xe2\x96",
		"aaaa<|x|>"} {
		f.Add(s, true)
	}
	byteLevel := map[string]*Tokenizer{}
	for pre := range patterns {
		if pre != "gemma4" {
			c := byteVocab(pre, "<|x|>", "<|im_end|>")
			rng := rand.New(rand.NewPCG(9, 9))
			for range 200 {
				l, r := c.Tokens[rng.IntN(len(c.Tokens))], c.Tokens[rng.IntN(256)]
				if !slices.Contains(c.Tokens, l+r) && !strings.Contains(l, "|") {
					c.Tokens, c.Types = append(c.Tokens, l+r), append(c.Types, Normal)
					c.Merges = append(c.Merges, l+" "+r)
				}
			}
			byteLevel[pre] = mustNew(f, c)
		}
	}
	gemma := mustNew(f, gemmaVocab("aa", "ab", "\u2581\u2581"))
	pieces := pieceVocab("aa", "ab", "\u2581\u2581", "\u2581l", "\u2581l\u2581", "lo", "\n\u2581")
	spaced := mustNew(f, pieces)
	pieces.AddSpace = ptr(false)
	plain := mustNew(f, pieces)
	f.Fuzz(func(t *testing.T, s string, parse bool) {
		check := func(tok *Tokenizer, want string) {
			ids := tok.Encode(s, EncodeOptions{ParseSpecial: parse})
			if got := string(tok.Decode(ids, DecodeOptions{Special: true, Opens: true})); got != want {
				t.Fatalf("%s: %q comes back as %q", tok.Pre(), s, got)
			}
			st := tok.NewStream()
			st.Special, st.Opens = true, true
			var out []byte
			for _, id := range ids {
				p := st.Push(id)
				if utf8.ValidString(want) && !utf8.Valid(p) {
					t.Fatalf("%s: %q: half a character %q", tok.Pre(), s, p)
				}
				out = append(out, p...)
			}
			if out = append(out, st.Flush()...); string(out) != want {
				t.Fatalf("%s: %q streams as %q", tok.Pre(), s, out)
			}
		}
		for _, tok := range byteLevel {
			check(tok, s)
		}
		for _, tok := range []*Tokenizer{gemma, spaced, plain} {
			check(tok, strings.ReplaceAll(s, "\u2581", " "))
		}
	})
}

// FuzzNew feeds arbitrary vocabularies: lines of tokens, then lines of merges.
func FuzzNew(f *testing.F) {
	f.Add("a\nb\nab\n<x>", "a b", "abab<x>", []byte{1, 1, 1, 3}, uint8(0))
	f.Add("<0x41>\n\u2581\na\n\u2581a\n<bos>", "\u2581 a\na a", "a a\n", []byte{6, 1, 1, 1, 4}, uint8(1))
	f.Add("é\n\xff\n \n\n", "é \xff\nx y", "\xff é", []byte{0, 255, 5, 2}, uint8(0))
	f.Add("\u2581\na\n\u2581a\n<s>\n\xff\n<0x61>\naa", "", "a <s>a\xff", []byte{1, 1, 1, 3, 1, 6, 1}, uint8(2))
	f.Fuzz(func(t *testing.T, tokens, merges, text string, types []byte, model uint8) {
		c := Config{Model: "gpt2", Pre: "qwen35", Tokens: strings.Split(tokens, "\n"), Merges: strings.Split(merges, "\n"),
			Special: map[Role]ID{RoleBOS: ID(len(types)), RoleEOS: -1}, AddBOS: ptr(true)}
		if len(types) > 0 {
			for _, k := range types {
				c.Types = append(c.Types, TokenKind(k))
			}
		}
		switch model % 3 {
		case 1:
			c.Model, c.Pre = "gemma4", ""
		case 2: // with byte tokens, without which nothing is accepted
			c.Model, c.Pre = "llama", ""
			for len(c.Types) < len(c.Tokens) {
				c.Types = append(c.Types, Normal)
			}
			for b := range 256 {
				if s := fmt.Sprintf("<0x%02X>", b); !slices.Contains(c.Tokens, s) {
					c.Tokens, c.Types = append(c.Tokens, s), slices.Insert(c.Types, len(c.Tokens), Byte)
				}
			}
			for i := range c.Tokens {
				c.Scores = append(c.Scores, -float32(i%7))
			}
		}
		tok, err := New(c)
		if err != nil {
			return
		}
		for i, s := range c.Tokens {
			if got := tok.Text(ID(i)); got != s {
				t.Fatalf("Text(%d) = %q, want %q", i, got, s)
			}
			if id, ok := tok.Lookup(s); s != "" && (!ok || id != ID(i)) {
				t.Fatalf("Lookup(%q) = %d %v, want %d", s, id, ok, i)
			}
		}
		for _, id := range tok.Encode(text, EncodeOptions{AddSpecial: true, ParseSpecial: true}) {
			if id < 0 || int(id) >= tok.Size() {
				t.Fatalf("id %d of %d", id, tok.Size())
			}
		}
	})
}
