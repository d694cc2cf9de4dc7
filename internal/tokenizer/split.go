package tokenizer

import (
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A splitter returns the end of the piece of s that starts at i < len(s). Pieces
// are what merging never crosses. Splitters are regular expressions written by
// hand; the expressions are in the tests, which compare the two.
type splitter func(s string, i int) int

// preset is what a tokenizer.ggml.pre value stands for.
type preset struct {
	split      splitter
	raw        bool // spaces written U+2581 instead of the byte alphabet
	scored     bool // merges by the scores of the tokens instead of a list
	wholeFirst bool // a piece that is a token is taken as it is
	addBOS     bool // default of add_bos_token
}

var (
	qwen2  = preset{split: splitQwen2}
	qwen35 = preset{split: splitQwen35}
	llama3 = preset{split: splitLlama3, wholeFirst: true, addBOS: true}
	gpt2   = preset{split: splitGPT2}
	simple = preset{split: splitDefault}
	gpt4o  = preset{split: splitGPT4o}
	tekken = preset{split: splitTekken, wholeFirst: true, addBOS: true}
	single = preset{split: splitSingle}
	gemma4 = preset{split: splitLines, raw: true, addBOS: true}

	sentencePiece = preset{raw: true, scored: true, addBOS: true}
)

// presets also holds the names under which converters stored the same splitter.
var presets = map[string]preset{
	"qwen2": qwen2, "deepseek-r1-qwen": qwen2, "megrez": qwen2,
	"qwen35": qwen35,
	"llama3": llama3, "llama-v3": llama3, "llama-bpe": llama3, "falcon3": llama3, "pixtral": llama3, "lfm2": llama3,
	"midm-2.0": llama3, "smaug-bpe": {split: splitLlama3},
	"gpt2": gpt2, "gpt-2": gpt2, "phi-2": gpt2, "mellum": gpt2, "trillion": gpt2,
	"gpt-4o": gpt4o, "llama4": gpt4o, "kanana2": gpt4o,
	"tekken": tekken,
	"smollm": single, "starcoder": single, "refact": single, "command-r": single, "codeshell": single, "exaone": single,
	"minerva-7b": single,
	"default":    simple,
	"gemma4":     gemma4,
}

// PreNames returns the known tokenizer.ggml.pre values, sorted.
func PreNames() []string { return slices.Sorted(maps.Keys(presets)) }

// Character classes. Everything else, including an invalid byte, is 0: a symbol.
const (
	clsL   = 1 << iota // letter
	clsM               // mark
	clsN               // number
	clsWS              // white space
	clsNL              // CR or LF, always together with clsWS
	clsUp              // capital or title-case letter, always together with clsL
	clsLow             // small letter, always together with clsL
)

// classes covers the basic plane. Filling it takes some 50 microseconds.
var classes = func() (t [1 << 16]uint8) {
	fill := func(tab *unicode.RangeTable, c uint8) {
		for _, r := range tab.R16 {
			for x := int(r.Lo); x <= int(r.Hi); x += int(r.Stride) {
				t[x] |= c
			}
		}
	}
	fill(unicode.L, clsL)
	fill(unicode.Lu, clsUp)
	fill(unicode.Lt, clsUp)
	fill(unicode.Ll, clsLow)
	fill(unicode.M, clsM)
	fill(unicode.N, clsN)
	fill(unicode.White_Space, clsWS)
	t['\r'] |= clsNL
	t['\n'] |= clsNL
	return t
}()

// ascii holds the classes of one-byte characters and multi for all other bytes.
var ascii = func() (t [256]uint8) {
	for i := range t {
		switch c := byte(i); {
		case c >= utf8.RuneSelf:
			t[i] = multi
		case c >= 'a' && c <= 'z':
			t[i] = clsL | clsLow
		case c >= 'A' && c <= 'Z':
			t[i] = clsL | clsUp
		case c >= '0' && c <= '9':
			t[i] = clsN
		case c == '\r' || c == '\n':
			t[i] = clsWS | clsNL
		case c == ' ' || c >= '\t' && c <= '\r':
			t[i] = clsWS
		}
	}
	return t
}()

const multi = 0x80 // not a class: look at the whole character

// classAt returns the class and length of the character at i.
func classAt(s string, i int) (uint8, int) {
	if c := ascii[s[i]]; c != multi {
		return c, 1
	}
	return classMulti(s, i)
}

func classMulti(s string, i int) (uint8, int) {
	r, n := utf8.DecodeRuneInString(s[i:])
	if r < 1<<16 {
		return classes[r], n
	}
	switch {
	case unicode.Is(unicode.Lu, r): // title case lies in the basic plane
		return clsL | clsUp, n
	case unicode.Is(unicode.Ll, r):
		return clsL | clsLow, n
	case unicode.Is(unicode.L, r):
		return clsL, n
	case unicode.Is(unicode.M, r):
		return clsM, n
	case unicode.Is(unicode.N, r):
		return clsN, n
	}
	return 0, n // no white space beyond the basic plane
}

func splitQwen2(s string, i int) int  { return splitWords(s, i, clsL, 1) }
func splitQwen35(s string, i int) int { return splitWords(s, i, clsL|clsM, 1) }
func splitLlama3(s string, i int) int { return splitWords(s, i, clsL, 3) }

// splitWords tries the alternatives of the Qwen and Llama 3 expressions in order.
// letters is the class of a word's characters, digits the most in one piece.
func splitWords(s string, i int, letters uint8, digits int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], true); n > 0 {
			return i + 1 + n
		}
	}
	c, n := classAt(s, i)
	j := i + n
	if c&letters != 0 {
		return skip(s, j, letters)
	}
	if c&clsN != 0 {
		for k := 1; k < digits && j < len(s); k++ {
			c, n := classAt(s, j)
			if c&clsN == 0 {
				break
			}
			j += n
		}
		return j
	}
	var next uint8
	var nn int
	if j < len(s) {
		next, nn = classAt(s, j)
		if next&letters != 0 && c&clsNL == 0 {
			return skip(s, j+nn, letters)
		}
	}
	solid := letters | clsN | clsWS
	if c&clsWS != 0 {
		if s[i] != ' ' || j == len(s) || next&solid != 0 {
			return splitSpace(s, i, true)
		}
		j += nn
	}
	for j < len(s) {
		c, n := classAt(s, j)
		if c&solid != 0 {
			break
		}
		j += n
	}
	return skip(s, j, clsNL)
}

// splitGPT2 is the original expression: lower-case contractions, at most a space
// in front, no special care for line ends.
func splitGPT2(s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], false); n > 0 {
			return i + 1 + n
		}
	}
	j := i
	if s[i] == ' ' && i+1 < len(s) {
		j++
	}
	c, n := classAt(s, j)
	switch {
	case c&clsWS != 0:
		return splitSpace(s, i, false)
	case c&clsL != 0:
		return skip(s, j+n, clsL)
	case c&clsN != 0:
		return skip(s, j+n, clsN)
	}
	for j < len(s) {
		c, n := classAt(s, j)
		if c&(clsL|clsN|clsWS) != 0 {
			break
		}
		j += n
	}
	return j
}

// splitSingle parts numbers into their digits before it splits as GPT-2 does, so a space never goes with one.
func splitSingle(s string, i int) int {
	c, n := classAt(s, i)
	if c&clsN != 0 {
		return i + n
	}
	if c&clsWS != 0 {
		end := skip(s, i, clsWS)
		if end < len(s) {
			if c, _ = classAt(s, end); c&clsN != 0 {
				return end
			}
		}
	}
	return splitGPT2(s, i)
}

// splitTekken is Mistral's: words end before a capital letter, contractions are words like others, and a slash may
// follow the line ends after punctuation. Letters beyond ASCII are taken for both cases, as llama.cpp does.
func splitTekken(s string, i int) int {
	c, n := classAt(s, i)
	word := i
	if c&(clsL|clsN|clsNL) == 0 {
		word += n
	}
	if word < len(s) {
		if c, _ := classAt(s, word); c&clsL != 0 {
			return splitCase(s, word)
		}
	}
	j, mark := splitWords(s, i, clsL, 1), i
	if s[i] == ' ' && j > i+1 {
		mark++
	}
	if c, _ := classAt(s, mark); c&(clsN|clsWS) == 0 {
		for j < len(s) && (s[j] == '\r' || s[j] == '\n' || s[j] == '/') {
			j++
		}
	}
	return j
}

// splitCase ends a word at i: capitals, then at least one small letter. Without one it ends after the last letter that
// could be small, and only if there is none, after the capitals.
func splitCase(s string, i int) int {
	run := func(i int, from, to byte) (end, last int) {
		last = -1
		for i < len(s) {
			c, n := classAt(s, i)
			if c&clsL == 0 || s[i] >= from && s[i] <= to {
				break
			}
			if i += n; n > 1 {
				last = i
			}
		}
		return i, last
	}
	capitals, both := run(i, 'a', 'z')
	end, _ := run(capitals, 'A', 'Z')
	if end == capitals && both >= 0 {
		return both
	}
	return end
}

// splitGPT4o is that of OpenAI's o200k vocabularies: words end before a capital letter and take a contraction along,
// marks belong to words, numbers have at most three digits, and a slash may follow the line ends after punctuation.
// Cases are those of Unicode, as the models were trained; llama.cpp knows them of ASCII alone.
func splitGPT4o(s string, i int) int {
	c, n := classAt(s, i)
	word := i
	if c&(clsL|clsN|clsNL) == 0 {
		word += n
	}
	end, capitals := casedWord(s, word)
	if end < 0 && word > i { // a mark may be a word by itself
		end, _ = casedWord(s, i)
	}
	if end < 0 && capitals > word {
		end = capitals
	}
	if end >= 0 {
		if end < len(s) && s[end] == '\'' {
			if n := contraction(s[end+1:], true); n > 0 {
				end += 1 + n
			}
		}
		return end
	}
	j, mark := splitWords(s, i, clsL, 3), i
	if s[i] == ' ' && j > i+1 {
		mark++
	}
	if c, _ := classAt(s, mark); c&(clsN|clsWS) == 0 {
		for j < len(s) && (s[j] == '\r' || s[j] == '\n' || s[j] == '/') {
			j++
		}
	}
	return j
}

// casedWord returns two ends of a word at i. The first is after capitals and at least one small letter, -1 if there is
// none; marks and letters without case are both. The second is after the capitals.
func casedWord(s string, i int) (small, capitals int) {
	run := func(i int, stop uint8) (end, last int) {
		last = -1
		for i < len(s) {
			c, n := classAt(s, i)
			if c&(clsL|clsM) == 0 || c&stop != 0 {
				break
			}
			if i += n; c&(clsUp|clsLow) == 0 {
				last = i
			}
		}
		return i, last
	}
	capitals, both := run(i, clsLow)
	if end, _ := run(capitals, clsUp); end > capitals {
		return end, capitals
	}
	return both, capitals
}

// splitDefault is what files get that do not name a splitter: four expressions, each applied to the pieces of the one
// before. Runs of punctuation stand alone; the rest is cut as GPT-2 does, but numbers are parted from a space in front
// and cut into groups of three digits.
func splitDefault(s string, i int) int {
	if mark(s, i) {
		for i < len(s) && mark(s, i) {
			_, n := classAt(s, i)
			i += n
		}
		return i
	}
	c, n := classAt(s, i)
	j := i
	if c&clsWS != 0 {
		end, last := i, i
		for end < len(s) {
			c, n := classAt(s, end)
			if c&clsWS == 0 {
				break
			}
			last = end
			end += n
		}
		if end == len(s) || mark(s, end) {
			return end
		}
		if last > i {
			return last
		}
		if c, n = classAt(s, end); s[i] != ' ' || c&clsN != 0 {
			return end
		}
		j = end
	}
	switch {
	case c&clsN != 0:
		return splitDigits(s, i, skip(s, i, clsN))
	case c&clsL != 0:
		return skip(s, j, clsL)
	}
	for j += n; j < len(s) && !mark(s, j); j += n {
		if c, n = classAt(s, j); c&(clsL|clsN|clsWS) != 0 {
			break
		}
	}
	return j
}

// splitDigits cuts a number that ends at end before or after three decimal digits.
func splitDigits(s string, i, end int) int {
	three := func(j int) bool {
		for k := j; k < j+3; k++ {
			if k >= end || s[k] < '0' || s[k] > '9' {
				return false
			}
		}
		return true
	}
	if three(i) {
		return i + 3
	}
	for j := i; j < end; j++ {
		if three(j) {
			return j
		}
	}
	return end
}

// mark reports whether the character at i is punctuation, or one of a few symbols of ASCII.
func mark(s string, i int) bool {
	r, _ := utf8.DecodeRuneInString(s[i:])
	return unicode.IsPunct(r) || strings.ContainsRune("$+<=>^~|", r)
}

// splitLines cuts between lines and runs of line feeds.
func splitLines(s string, i int) int {
	nl := s[i] == '\n'
	for i < len(s) && (s[i] == '\n') == nl {
		i++
	}
	return i
}

// skip returns the end of the run of characters of the given class.
func skip(s string, i int, class uint8) int {
	for i < len(s) {
		c, n := classAt(s, i)
		if c&class == 0 {
			break
		}
		i += n
	}
	return i
}

// splitSpace ends a piece that starts with white space at i. With lines set, a run
// with a line end in it stops after the last one. A run before other text leaves
// its last character to that text.
func splitSpace(s string, i int, lines bool) int {
	j, last, afterNL := i, i, -1
	for j < len(s) {
		c, n := classAt(s, j)
		if c&clsWS == 0 {
			break
		}
		last = j
		j += n
		if c&clsNL != 0 {
			afterNL = j
		}
	}
	if lines && afterNL >= 0 {
		return afterNL
	}
	if j == len(s) || last == i {
		return j
	}
	return last
}

// contraction returns the length of an English contraction after an apostrophe.
func contraction(s string, fold bool) int {
	lower := func(i int) byte {
		c := s[i]
		if fold && c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}
	if len(s) == 0 {
		return 0
	}
	switch lower(0) {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v':
		if len(s) > 1 && lower(1) == 'e' {
			return 2
		}
	case 'l':
		if len(s) > 1 && lower(1) == 'l' {
			return 2
		}
	}
	return 0
}
