package tokenizer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// The oracle does everything the slow and obvious way: regular expressions, merging
// by strings, special tokens one after the other. Texts given to it must be valid
// UTF-8 (the regular expressions work on characters).

// patterns are the expressions of the splitters. Each of several is applied to the pieces of the one before; what is
// between matches stays in one piece.
var patterns = map[string][]string{
	"qwen2": {`(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ` +
		`?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"qwen35": {`(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ` +
		`?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"llama3": {`(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ` +
		`?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"gpt2":   {`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`},
	"gemma4": {`[^\n]+|[\n]+`},
	"smollm": {`\p{N}`, `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`},
	"tekken": {`[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|` +
		`[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|` +
		`\s*[\r\n]+|\s+(?!\S)|\s+`},
	"gpt-4o": {`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` +
		`(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` +
		`(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"default": {`[\p{P}\$\+<=>\^~\|]+`,
		`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`, `\p{N}+`, `[0-9][0-9][0-9]`},
}

var compiled = func() map[string][]*regexp2.Regexp {
	m := map[string][]*regexp2.Regexp{}
	for name, ps := range patterns {
		for _, p := range ps {
			m[name] = append(m[name], regexp2.MustCompile(p))
		}
	}
	return m
}()

func oracleSplit(t testing.TB, pre, s string) []string {
	t.Helper()
	if s == "" {
		return nil
	}
	pieces := []string{s}
	for _, re := range compiled[pre] {
		var next []string
		for _, p := range pieces {
			at := 0
			m, err := re.FindStringMatch(p)
			for ; m != nil && err == nil; m, err = re.FindNextMatch(m) {
				from, n := m.ByteRange()
				if from > at {
					next = append(next, p[at:from])
				}
				next, at = append(next, m.String()), from+n
			}
			if err != nil {
				t.Fatal(err)
			}
			if at < len(p) {
				next = append(next, p[at:])
			}
		}
		pieces = next
	}
	return pieces
}

type oracle struct {
	c     Config
	ids   map[string]ID
	ranks map[[2]string]int
	raw   bool
	spm   bool
}

func newOracle(c Config) *oracle {
	o := &oracle{c: c, ids: map[string]ID{}, ranks: map[[2]string]int{}, raw: c.Model != "gpt2", spm: c.Model == "llama"}
	for i, s := range c.Tokens {
		o.ids[s] = ID(i)
	}
	for i, s := range c.Merges {
		k := strings.Index(s[1:], " ") + 1
		p := [2]string{s[:k], s[k+1:]}
		if _, ok := o.ranks[p]; !ok {
			o.ranks[p] = i
		}
	}
	return o
}

func (o *oracle) encode(t testing.TB, text string, parse bool) []ID {
	type frag struct {
		s  string
		id ID
	}
	var special []ID
	for i, k := range o.c.Types {
		if k == UserDefined || parse && (k == Control || k == Unknown) {
			special = append(special, ID(i))
		}
	}
	slices.SortStableFunc(special, func(a, b ID) int { return len(o.c.Tokens[b]) - len(o.c.Tokens[a]) })
	frags := []frag{{text, -1}}
	for _, id := range special {
		var next []frag
		for _, f := range frags {
			if f.id >= 0 {
				next = append(next, f)
				continue
			}
			for i, s := range strings.Split(f.s, o.c.Tokens[id]) {
				if i > 0 {
					next = append(next, frag{"", id})
				}
				next = append(next, frag{s, -1})
			}
		}
		frags = next
	}
	var out []ID
	opens := o.spm && (o.c.AddSpace == nil || *o.c.AddSpace)
	for _, f := range frags {
		if f.id >= 0 {
			out = append(out, f.id)
			opens = o.spm && (o.c.AddSpace == nil || *o.c.AddSpace)
			continue
		}
		s := f.s
		if s == "" {
			continue
		}
		if opens {
			s, opens = " "+s, false
		}
		if o.raw {
			s = strings.ReplaceAll(s, " ", "\u2581")
		}
		if o.spm {
			out = append(out, o.bpe(s)...)
			continue
		}
		pre := o.c.Pre
		for _, piece := range oracleSplit(t, pre, s) {
			out = append(out, o.bpe(piece)...)
		}
	}
	return out
}

// rank is what decides which pair merges first: the lowest.
func (o *oracle) rank(a, b string) (float64, bool) {
	if o.spm {
		id, ok := o.ids[a+b]
		if !ok || o.c.Types[id] != Normal {
			return 0, false
		}
		return -float64(o.c.Scores[id]), true
	}
	r, ok := o.ranks[[2]string{a, b}]
	return float64(r), ok
}

func (o *oracle) bpe(piece string) []ID {
	if o.raw && !o.spm && strings.Trim(piece, "\n") == "" {
		if id, ok := o.ids[piece]; ok {
			return []ID{id}
		}
	}
	if !o.raw {
		var b strings.Builder
		for i := range len(piece) {
			b.WriteRune(runeOfByte(piece[i]))
		}
		piece = b.String()
	}
	if presets[o.c.Pre].wholeFirst {
		if id, ok := o.ids[piece]; ok {
			return []ID{id}
		}
	}
	var syms []string
	for _, r := range piece {
		syms = append(syms, string(r))
	}
	for {
		best, at := 0.0, -1
		for i := 0; i+1 < len(syms); i++ {
			if r, ok := o.rank(syms[i], syms[i+1]); ok && (at < 0 || r < best) {
				best, at = r, i
			}
		}
		if at < 0 {
			break
		}
		syms[at] += syms[at+1]
		syms = slices.Delete(syms, at+1, at+2)
	}
	var out []ID
	for _, s := range syms {
		if id, ok := o.ids[s]; ok {
			out = append(out, id)
			continue
		}
		if o.raw {
			s = strings.ReplaceAll(s, "\u2581", " ")
			for i := range len(s) {
				if id, ok := o.ids[fmt.Sprintf("<0x%02X>", s[i])]; ok {
					out = append(out, id)
				}
			}
			continue
		}
		for _, r := range s {
			if id, ok := o.ids[string(r)]; ok {
				out = append(out, id)
			}
		}
	}
	return out
}

// randomConfig makes a vocabulary over a small alphabet: all byte tokens (a few
// left out if holes), random merges, some naming texts without a token, some in an
// order no training would give, and special tokens that overlap each other.
func randomConfig(rng *rand.Rand, pre string, holes bool) Config {
	c := Config{Model: "gpt2", Pre: pre}
	if pre == "gemma4" || pre == "llama" {
		c.Model = pre
	}
	seen := map[string]bool{}
	add := func(s string, k TokenKind) bool {
		if seen[s] {
			return false
		}
		seen[s] = true
		c.Tokens, c.Types = append(c.Tokens, s), append(c.Types, k)
		return true
	}
	var parts []string
	if c.Model != "gpt2" {
		for b := range 256 {
			if !holes || c.Model == "llama" || rng.IntN(20) > 0 {
				add(fmt.Sprintf("<0x%02X>", b), Byte)
			}
		}
		for _, r := range "abcAB1 ,.'<|>\u2581é我\u0301🙂-" {
			s := string(r)
			if s == " " {
				continue
			}
			parts = append(parts, s)
			if !holes || rng.IntN(4) > 0 {
				add(s, Normal)
			}
		}
	} else {
		for b := range 256 {
			if s := string(runeOfByte(byte(b))); !holes || rng.IntN(20) > 0 {
				add(s, Normal)
			}
		}
		for _, s := range []string{"a", "b", "c", "A", "B", "1", "Ġ", "Ċ", ",", ".", "'", "Ã", "©", "æ", "Ī", "ĳ", "<", "|",
			">", "-"} {
			parts = append(parts, s)
		}
	}
	for range 60 {
		l, r := parts[rng.IntN(len(parts))], parts[rng.IntN(len(parts))]
		if len(l)+len(r) > 24 {
			continue
		}
		c.Merges = append(c.Merges, l+" "+r)
		parts = append(parts, l+r)
		if !holes || rng.IntN(5) > 0 {
			add(l+r, Normal)
		}
	}
	if rng.IntN(2) == 0 {
		rng.Shuffle(len(c.Merges), func(i, j int) { c.Merges[i], c.Merges[j] = c.Merges[j], c.Merges[i] })
	}
	for _, s := range []string{"<|a|>", "<|a", "a|><", "|><|", "bb", "<é>", "我我", "\u2581b", "cc c"} {
		if rng.IntN(2) == 0 {
			add(s, []TokenKind{Control, UserDefined, Unknown}[rng.IntN(3)])
		}
	}
	if c.Model == "llama" {
		c.Merges, c.AddSpace = nil, ptr(rng.IntN(2) == 0)
		for range c.Tokens {
			c.Scores = append(c.Scores, -float32(rng.IntN(20))) // few values, so that many are equal
		}
	}
	return c
}

// randomText draws from characters the vocabularies know and some they do not.
func randomText(rng *rand.Rand, n int) string {
	chars := []string{"a", "b", "c", "A", "B", "1", "2", " ", "  ", "\n", "\n\n", "\r\n", "\t", ",", ".", "'", "é", "我",
		"\u0301",
		"🙂", "-", "<|a|>", "<|a", "|>", "<", "bb", "cc c", "\u2581", "ß", "'s", "'LL", "\u00a0", "\u3000", "½", "\u2028",
		"aaa"}
	var b strings.Builder
	for range n {
		b.WriteString(chars[rng.IntN(len(chars))])
	}
	return b.String()
}

func TestEncodeAgainstOracle(t *testing.T) {
	for _, pre := range append(slices.Collect(maps.Keys(patterns)), "llama") {
		t.Run(pre, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(len(pre))))
			for round := range 60 {
				c := randomConfig(rng, pre, round%2 == 1)
				tok, err := New(c)
				if err != nil {
					t.Fatal(err)
				}
				o := newOracle(c)
				for range 40 {
					text := randomText(rng, 1+rng.IntN(60))
					for _, parse := range []bool{false, true} {
						got := tok.Encode(text, EncodeOptions{ParseSpecial: parse})
						want := o.encode(t, text, parse)
						if !slices.Equal(got, want) {
							t.Fatalf("round %d, parse %v, %q:\n got %q\nwant %q\nmerges %q", round, parse, text, texts(tok, got),
								texts(tok, want), c.Merges)
						}
					}
				}
			}
		})
	}
}

// TestLongPieces drives the heap against the scanning merge on pieces of all lengths.
func TestLongPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, pre := range []string{"qwen2", "gemma4", "llama"} {
		for range 30 {
			c := randomConfig(rng, pre, false)
			tok, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			o := newOracle(c)
			var b strings.Builder
			for range 1 + rng.IntN(400) {
				b.WriteByte("aaaabcAB"[rng.IntN(8)])
			}
			text := b.String()
			if got, want := tok.Encode(text, EncodeOptions{}), o.encode(t, text, false); !slices.Equal(got, want) {
				t.Fatalf("%s %q:\n got %q\nwant %q\nmerges %q", pre, text, texts(tok, got), texts(tok, want), c.Merges)
			}
		}
	}
}

func texts(tok *Tokenizer, ids []ID) []string {
	var out []string
	for _, id := range ids {
		out = append(out, tok.Text(id))
	}
	return out
}

func splitAll(pre, s string) []string {
	var out []string
	for i := 0; i < len(s); {
		j := presets[pre].split(s, i)
		out = append(out, s[i:j])
		i = j
	}
	return out
}

func TestSplitAgainstPatterns(t *testing.T) {
	// One character of every class and of every kind of white space, in all orders.
	alphabet := []string{"a", "É", "é", "我", "\u0301", "\u0903", "1", "½", "٣", " ", "\t", "\n", "\r", "\v", "\u0085",
		"\u00a0", "\u1680",
		"\u2003", "\u2028", "\u202f", "\u3000", "\u200b", "'", "s", "T", "re", "VE", "ll", "m", "'d", "ſ", ".", "_", "🙂",
		"\U00020000", "\U000e0100", "\ufffd", "\x00", "  ", "-", "/"}
	rng := rand.New(rand.NewPCG(5, 6))
	for pre := range patterns {
		check := func(s string) {
			t.Helper()
			if got, want := splitAll(pre, s), oracleSplit(t, pre, s); !slices.Equal(got, want) {
				t.Fatalf("%s %q:\n got %q\nwant %q", pre, s, got, want)
			}
		}
		for _, a := range alphabet {
			for _, b := range alphabet {
				for _, c := range alphabet {
					check(a + b + c)
				}
			}
		}
		for range 2000 {
			var b strings.Builder
			for range rng.IntN(30) {
				b.WriteString(alphabet[rng.IntN(len(alphabet))])
			}
			check(b.String())
		}
		check(repoText(t, 1<<16, ".go"))
		check(mixedSample)
		check("aǅb ǅǅa ABǅ 𝐀𝐚𝐀 ʰA Aʰ") // title case, capitals beyond the basic plane, letters without case
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"", "I've 'LL  go\r\n\n to\t3.14 ½ x", mixedSample, "a\u0301b '\u017f", "  \n \n x",
		"\xff\xc3(", "don'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for pre := range patterns {
			got := splitAll(pre, s)
			if strings.Join(got, "") != s {
				t.Fatalf("%s: pieces of %q do not add up: %q", pre, s, got)
			}
			if !utf8.ValidString(s) || len(s) > 1000 {
				continue
			}
			if want := oracleSplit(t, pre, s); !slices.Equal(got, want) {
				t.Fatalf("%s %q:\n got %q\nwant %q", pre, s, got, want)
			}
		}
	})
}
