package tokenizer

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// vocab holds the tokens and the merge table.
//
// Merging works on symbols: numbers below len(kinds) are token ids; above them
// come texts that merges mention but no token has. A symbol's bytes are text as it
// appears in a prompt (byte-level tokens un-mapped, U+2581 as a space), so that a
// piece of text can be looked up as it stands and decoding is a copy.
type vocab struct {
	kinds []TokenKind
	arena []byte   // bytes of all symbols, one after the other
	offs  []uint32 // symbol i is arena[offs[i]:offs[i+1]]
	raw   bool

	// alias maps the extra symbol that carries a token's spelling during merging
	// to the token, where that spelling differs from what the token decodes to
	// (byte tokens, specials with non-ASCII text).
	alias map[int32]ID
	odd   map[string]ID // tokens whose text no prompt can spell, by vocabulary text
	texts map[ID]string // vocabulary text where textOf cannot rebuild it

	seed  maphash.Seed
	index []uint64 // open addressing: hash tag << 32 | symbol + 1
	merge mergeTable

	bytes    [256]int32 // byte-level: symbol of a byte; raw: token for a byte, mostly <0xXX>; -1 = none
	bytePair []uint64   // byte-level: rank<<32 | symbol for a pair of bytes; noMerge = none
	joins    [256][4]uint64
}

// maxArena bounds the vocabulary text so that offsets fit 32 bits.
const maxArena = 1 << 31

func (v *vocab) piece(sym int32) []byte { return v.arena[v.offs[sym]:v.offs[sym+1]] }

// build fills everything but the merges. The kinds are final.
func (v *vocab) build(tokens []string, kinds []TokenKind, raw bool) error {
	n, total := len(tokens), 0
	for _, s := range tokens {
		total += len(s)
	}
	if total >= maxArena || n >= maxArena {
		return fmt.Errorf("tokenizer.ggml.tokens: %d bytes of text in %d tokens is too much", total, n)
	}
	v.kinds, v.raw = kinds, raw
	v.seed = maphash.MakeSeed()
	v.arena = make([]byte, 0, total)
	v.offs = make([]uint32, 1, n+1)
	v.alias = map[int32]ID{}
	v.odd = map[string]ID{}
	v.texts = map[ID]string{}
	v.grow(2 * n)

	var spelled []ID // tokens whose spelling is not what they decode to
	var buf []byte
	for i, s := range tokens {
		id := ID(i)
		key, ok := v.spelling(buf[:0], s)
		buf = key
		start := len(v.arena)
		if ok && kinds[i] == Normal {
			v.arena = append(v.arena, key...)
		} else {
			v.arena = v.appendPiece(v.arena, s, kinds[i])
		}
		v.offs = append(v.offs, uint32(len(v.arena)))

		if kinds[i] == Normal && !ok || kinds[i] == Byte && !plainByteToken(s) {
			v.texts[id] = strings.Clone(s)
		}
		switch {
		case s == "":
		case !ok:
			if other, dup := v.odd[s]; dup {
				return duplicate(s, other, id)
			}
			v.odd[strings.Clone(s)] = id
		case string(key) != string(v.arena[start:]):
			spelled = append(spelled, id)
		default:
			if other := v.insert(int32(i)); other >= 0 {
				return duplicate(s, ID(other), id)
			}
		}
	}
	for _, id := range spelled {
		buf, _ = v.spelling(buf[:0], tokens[id])
		sym := v.addSymbol(buf)
		if 2*len(v.offs) > 2*len(v.index)-len(v.index)/2 {
			v.grow(2 * len(v.index))
		}
		if other := v.insert(sym); other >= 0 {
			return duplicate(tokens[id], v.token(other), id)
		}
		v.alias[sym] = id
	}
	for b := range v.bytes {
		v.bytes[b] = -1
		if v.raw {
			if id, ok := v.lookup(fmt.Sprintf("<0x%02X>", b)); ok {
				v.bytes[b] = id
			}
		}
	}
	return nil
}

func duplicate(s string, a, b ID) error {
	return fmt.Errorf("tokenizer.ggml.tokens: %q is both token %d and token %d", s, a, b)
}

// token is the id a symbol stands for, or -1.
func (v *vocab) token(sym int32) ID {
	if int(sym) < len(v.kinds) {
		return sym
	}
	if id, ok := v.alias[sym]; ok {
		return id
	}
	return -1
}

// addSymbol appends a symbol beyond the tokens; the caller inserts it.
func (v *vocab) addSymbol(text []byte) int32 {
	v.arena = append(v.arena, text...)
	v.offs = append(v.offs, uint32(len(v.arena)))
	return int32(len(v.offs) - 2)
}

// spelling appends the prompt text whose symbols spell the vocabulary text s. It
// reports false when no prompt text does: a character outside the byte alphabet,
// or, where spaces are written U+2581, a literal space.
func (v *vocab) spelling(dst []byte, s string) ([]byte, bool) {
	if v.raw {
		if strings.IndexByte(s, ' ') >= 0 {
			return dst, false
		}
		return appendUnescaped(dst, s), true
	}
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if c <= ' ' || c == 0x7f {
				return dst, false
			}
			dst = append(dst, c)
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		b := byteOfRune(r)
		if b < 0 || n == 1 {
			return dst, false
		}
		dst = append(dst, byte(b))
		i += n
	}
	return dst, true
}

// appendPiece appends what a token decodes to when it is rendered.
func (v *vocab) appendPiece(dst []byte, s string, k TokenKind) []byte {
	switch {
	case k == Control || k == Unknown || k == UserDefined || k == Unused:
		return append(dst, s...)
	case k == Byte:
		if b, ok := parseByteToken(s); ok {
			return append(dst, b)
		}
	}
	if v.raw {
		return appendUnescaped(dst, s)
	}
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if b := byteOfRune(r); b >= 0 && !(r == utf8.RuneError && n == 1) {
			dst = append(dst, byte(b))
		} else {
			dst = append(dst, s[i:i+n]...)
		}
		i += n
	}
	return dst
}

// textOf rebuilds the vocabulary text of a token from its bytes.
func (v *vocab) textOf(id ID) string {
	if s, ok := v.texts[id]; ok {
		return s
	}
	p := string(v.piece(id))
	switch k := v.kinds[id]; {
	case k == Control || k == Unknown || k == UserDefined || k == Unused:
		return p
	case k == Byte && len(p) == 1:
		return fmt.Sprintf("<0x%02X>", p[0])
	case v.raw:
		return strings.ReplaceAll(p, " ", "\u2581")
	}
	var b strings.Builder
	for i := range len(p) {
		b.WriteRune(runeOfByte(p[i]))
	}
	return b.String()
}

// lookup finds a token by its vocabulary text.
func (v *vocab) lookup(s string) (ID, bool) {
	if id, ok := v.odd[s]; ok {
		return id, true
	}
	var buf [64]byte
	key, ok := v.spelling(buf[:0], s)
	if !ok || len(key) == 0 {
		return -1, false
	}
	if sym := v.find(string(key)); sym >= 0 {
		id := v.token(sym)
		return id, id >= 0
	}
	return -1, false
}

// grow makes room in the index for n symbols at half load.
func (v *vocab) grow(n int) {
	size := 16
	for size < n {
		size *= 2
	}
	old := v.index
	v.index = make([]uint64, size)
	for _, e := range old {
		if e != 0 {
			v.insert(int32(uint32(e) - 1))
		}
	}
}

// insert adds a symbol to the index; if its bytes are there already it returns
// the symbol that has them, otherwise -1.
func (v *vocab) insert(sym int32) int32 {
	key := v.arena[v.offs[sym]:v.offs[sym+1]]
	h := maphash.Bytes(v.seed, key)
	mask := uint64(len(v.index) - 1)
	tag := h >> 32
	for i := h & mask; ; i = (i + 1) & mask {
		e := v.index[i]
		if e == 0 {
			v.index[i] = tag<<32 | uint64(uint32(sym)+1)
			return -1
		}
		if e>>32 == tag {
			o := uint32(e) - 1
			if string(v.arena[v.offs[o]:v.offs[o+1]]) == string(key) {
				return int32(o)
			}
		}
	}
}

// find returns the symbol with these bytes, or -1.
func (v *vocab) find(s string) int32 {
	return v.findHash(s, maphash.String(v.seed, s))
}

func (v *vocab) findHash(s string, h uint64) int32 {
	mask := uint64(len(v.index) - 1)
	tag := h >> 32
	for i := h & mask; ; i = (i + 1) & mask {
		e := v.index[i]
		if e == 0 {
			return -1
		}
		if e>>32 == tag {
			o := uint32(e) - 1
			if string(v.arena[v.offs[o]:v.offs[o+1]]) == s {
				return int32(o)
			}
		}
	}
}

// intern returns the symbol with these bytes, adding one if there is none.
func (v *vocab) intern(key []byte) int32 {
	if sym := v.find(string(key)); sym >= 0 {
		return sym
	}
	sym := v.addSymbol(key)
	if 2*len(v.offs) > 2*len(v.index)-len(v.index)/2 {
		v.grow(2 * len(v.index))
	}
	v.insert(sym)
	return sym
}

// resolved is one parsed merge. A negative symbol needs interning.
type resolved struct{ left, right, result int32 }

// addMerges fills the merge table. A merge may name texts that are not tokens, as
// upstream allows: they become symbols and fall back to bytes when they survive.
func (v *vocab) addMerges(merges []string) error {
	if len(merges) >= maxArena {
		return fmt.Errorf("tokenizer.ggml.merges: %d entries is too much", len(merges))
	}
	res := make([]resolved, len(merges))
	workers := min(runtime.GOMAXPROCS(0), 4, len(merges)/4096+1)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			var buf []byte
			for i := len(merges) * w / workers; i < len(merges)*(w+1)/workers; i++ {
				var m, k int
				buf, m, k = v.spellMerge(buf[:0], merges[i])
				if k < 0 {
					errs[w] = fmt.Errorf("tokenizer.ggml.merges: entry %d: %q is not two texts separated by a space", i, merges[i])
					return
				}
				res[i] = resolved{-1, -1, -1}
				if m > 0 { // an impossible spelling can never meet text: leave it out
					res[i] = resolved{v.find(string(buf[:m])), v.find(string(buf[m:])), v.find(string(buf))}
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	v.merge.init(len(merges))
	var buf []byte
	for i := range res {
		r := res[i]
		if r.left < 0 || r.right < 0 || r.result < 0 {
			var m int
			buf, m, _ = v.spellMerge(buf[:0], merges[i])
			if m == 0 {
				continue
			}
			if len(v.arena)+3*len(buf) >= maxArena {
				return fmt.Errorf("tokenizer.ggml.merges: too many texts that are not tokens")
			}
			r = resolved{v.intern(buf[:m]), v.intern(buf[m:]), v.intern(buf)}
		}
		v.join(r, uint32(i))
	}
	if !v.raw {
		v.buildBytePairs()
	}
	return nil
}

// maxScored is the most bytes of a token that text merges to. Finding the pairs of a token takes the square of its
// length; the longest tokens of real vocabularies have a few dozen characters.
const maxScored = 512

// addScores fills the merge table of a SentencePiece vocabulary: any two symbols merge whose texts together are a
// normal token, first those whose token has the highest score. Symbols are tokens and single characters, which fall
// back to bytes when they have no token. All other tokens are never what text merges to.
func (v *vocab) addScores(scores []float32) error {
	if len(scores) < len(v.kinds) {
		return fmt.Errorf("tokenizer.ggml.scores: %d entries for %d tokens", len(scores), len(v.kinds))
	}
	var order []ID
	for i, k := range v.kinds {
		if math.IsNaN(float64(scores[i])) {
			return fmt.Errorf("tokenizer.ggml.scores: entry %d is not a number", i)
		}
		if _, odd := v.texts[ID(i)]; odd || k != Normal {
			continue
		}
		if n := len(v.piece(ID(i))); n > maxScored {
			return fmt.Errorf("tokenizer.ggml.tokens: token %d has %d bytes, more than %d", i, n, maxScored)
		}
		order = append(order, ID(i))
	}
	slices.SortStableFunc(order, func(a, b ID) int { return cmp.Compare(scores[b], scores[a]) })

	symbol := func(text []byte) int32 {
		if _, n := utf8.DecodeRune(text); n == len(text) {
			return v.intern(text)
		}
		return v.find(string(text))
	}
	type pair struct {
		resolved
		rank uint32
	}
	var pairs []pair
	rank := uint32(0)
	for i, id := range order {
		if i > 0 && scores[id] != scores[order[i-1]] {
			rank++
		}
		text := v.piece(id)
		for k := 0; ; {
			_, n := utf8.DecodeRune(text[k:])
			if k += n; k >= len(text) {
				break
			}
			if left, right := symbol(text[:k]), symbol(text[k:]); left >= 0 && right >= 0 {
				pairs = append(pairs, pair{resolved{left, right, id}, rank})
			}
		}
	}
	v.merge.init(len(pairs))
	for _, p := range pairs {
		v.join(p.resolved, p.rank)
	}
	return v.coverBytes()
}

// join adds a merge to the tables.
func (v *vocab) join(r resolved, rank uint32) {
	v.merge.add(r.left, r.right, rank, uint32(r.result))
	a, b := v.arena[v.offs[r.left+1]-1], v.arena[v.offs[r.right]]
	v.joins[a][b>>6] |= 1 << (b & 63)
}

// coverBytes makes sure that every byte can be written: with its own token <0xXX>, or a token that is this character.
func (v *vocab) coverBytes() error {
	for b := range v.bytes {
		one := []byte{byte(b)}
		if id := v.bytes[b]; id >= 0 && bytes.Equal(v.piece(id), one) {
			continue
		}
		if v.bytes[b] = v.find(string(one)); v.bytes[b] < 0 || v.token(v.bytes[b]) < 0 {
			return fmt.Errorf("tokenizer.ggml.tokens: no byte token <0x%02X>, so not every text can be written", b)
		}
	}
	return nil
}

// spellMerge appends the spelling of both parts of a merge and returns where the
// second begins: 0 when one of them cannot be spelled. k < 0 means malformed.
func (v *vocab) spellMerge(dst []byte, s string) (_ []byte, m, k int) {
	k = -1
	if len(s) > 1 {
		k = strings.IndexByte(s[1:], ' ')
	}
	if k < 0 || k+2 >= len(s) {
		return dst, 0, -1
	}
	k++
	left, right := s[:k], s[k+1:]
	dst, ok := v.spelling(dst, left)
	m = len(dst)
	if ok {
		dst, ok = v.spelling(dst, right)
	}
	if !ok {
		return dst, 0, k
	}
	return dst, m, k
}

// buildBytePairs resolves the symbols of single bytes and the merges of two of
// them, the first step of every merge, into direct tables.
func (v *vocab) buildBytePairs() {
	var one [1]byte
	for b := range v.bytes {
		one[0] = byte(b)
		v.bytes[b] = v.find(string(one[:]))
	}
	v.bytePair = make([]uint64, 1<<16)
	for a := range 256 {
		for b := range 256 {
			e := uint64(noMerge)
			if v.joins[a][b>>6]>>(b&63)&1 != 0 {
				e = v.merge.get(v.bytes[a], v.bytes[b])
			}
			v.bytePair[a<<8|b] = e
		}
	}
}

// joinable reports whether some merge joins a symbol ending in byte a with one
// beginning with byte b. Where none does, text can be cut without changing the
// result, because no symbol ever spans the place.
func (v *vocab) joinable(a, b byte) bool { return v.joins[a][b>>6]>>(b&63)&1 != 0 }

// noMerge is the rank half of a pair that does not merge, with symbol 0.
const noMerge = uint64(0xffffffff) << 32

// mergeTable maps a pair of symbols to rank<<32 | symbol by open addressing.
type mergeTable struct {
	slots []mergeSlot
	shift uint
}

type mergeSlot struct{ key, val uint64 } // key = (left<<32 | right) + 1

func (m *mergeTable) init(n int) {
	bits := uint(4)
	for 1<<bits < n+n/2 {
		bits++
	}
	m.slots = make([]mergeSlot, 1<<bits)
	m.shift = 64 - bits
}

// add keeps the first (lowest) rank of a pair that occurs twice.
func (m *mergeTable) add(left, right int32, rank, result uint32) {
	key := uint64(left)<<32 | uint64(uint32(right)) + 1
	mask := uint64(len(m.slots) - 1)
	for i := key * 0x9e3779b97f4a7c15 >> m.shift; ; i = (i + 1) & mask {
		s := &m.slots[i]
		if s.key == key {
			return
		}
		if s.key == 0 {
			*s = mergeSlot{key, uint64(rank)<<32 | uint64(result)}
			return
		}
	}
}

// get returns rank<<32 | symbol, or noMerge. Negative symbols never merge.
func (m *mergeTable) get(left, right int32) uint64 {
	if left|right < 0 {
		return noMerge
	}
	key := uint64(left)<<32 | uint64(uint32(right)) + 1
	mask := uint64(len(m.slots) - 1)
	for i := key * 0x9e3779b97f4a7c15 >> m.shift; ; i = (i + 1) & mask {
		s := &m.slots[i]
		if s.key == key {
			return s.val
		}
		if s.key == 0 {
			return noMerge
		}
	}
}
