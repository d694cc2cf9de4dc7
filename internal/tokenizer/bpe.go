package tokenizer

import (
	"hash/maphash"
	"strings"
	"unicode/utf8"
)

// scratch is the working memory of one Encode call. It carries a small cache of
// pieces that take several tokens; being private to a call, it needs no locks.
type scratch struct {
	done   <-chan struct{}
	inside bool // EncodeOptions.Continue
	hits   []int32
	syms   []symbol
	queue  pairQueue
	cache  [cacheSize]cacheEntry
}

// shrink lets go of what an unusually long piece needed.
func (sc *scratch) shrink() {
	if cap(sc.syms) > 1<<16 {
		sc.syms, sc.queue = nil, pairQueue{}
	}
}

const (
	cacheSize = 1 << 12
	cacheKey  = 23
	cacheIDs  = 8
)

// cacheEntry fits one cache line. n == 0 means empty.
type cacheEntry struct {
	ids  [cacheIDs]ID
	n    uint8
	klen uint8
	key  [cacheKey]byte
}

// maxPiece bounds what one merge run holds, at about a hundred times its bytes. Longer stretches without any
// boundary, which no language has, are cut; the tokens around a cut may be others than those of the whole.
const maxPiece = 1 << 18

// stopped reports whether nobody wants the result any more.
func (sc *scratch) stopped() bool {
	select {
	case <-sc.done:
		return true
	default:
		return false
	}
}

// stopCheck is how many pieces are encoded between two looks at whether to stop.
const stopCheck = 1 << 10

// appendText encodes text that contains no special tokens.
func (t *Tokenizer) appendText(dst []ID, s string, sc *scratch) []ID {
	split := t.split
	switch {
	case split == nil:
		return t.appendWhole(dst, s, sc)
	case t.raw:
		return t.appendLines(dst, s, sc)
	}
	for i, n := 0, 0; i < len(s); n++ {
		if n%stopCheck == 0 && sc.stopped() {
			break
		}
		j := split(s, i)
		dst = t.appendPieceIDs(dst, s[i:j], sc)
		i = j
	}
	return dst
}

// appendLines is appendText for gemma4. Nearly every word boundary is a place that
// no merge crosses, so lines are cut there and words found whole.
func (t *Tokenizer) appendLines(dst []ID, s string, sc *scratch) []ID {
	if strings.Contains(s, "\u2581") {
		s = strings.ReplaceAll(s, "\u2581", " ")
	}
	for i, n := 0, 0; i < len(s); n++ {
		if n%stopCheck == 0 && sc.stopped() {
			break
		}
		j := splitLines(s, i)
		if s[i] == '\n' {
			// A run of line feeds with a token of its own is taken whole.
			if sym := t.find(s[i:j]); sym >= 0 && t.token(sym) >= 0 {
				dst = append(dst, t.token(sym))
				i = j
				continue
			}
		}
		for i < j {
			k := t.nextCut(s[i:j]) + i
			dst = t.appendSegment(dst, s[i:k], sc)
			i = k
		}
	}
	return dst
}

// appendWhole is appendText for SentencePiece, which merges a text as a whole. Here, too, it is cut where no merge
// crosses.
func (t *Tokenizer) appendWhole(dst []ID, s string, sc *scratch) []ID {
	if s == "" {
		return dst
	}
	if strings.Contains(s, "\u2581") {
		s = strings.ReplaceAll(s, "\u2581", " ")
	}
	i := 0
	if t.Opens(dst) && !(sc.inside && len(dst) == 0) {
		if t.joinable(' ', s[0]) || !utf8.RuneStart(s[0]) {
			i = t.nextCut(s)
		}
		dst = t.appendSegment(dst, " "+s[:i], sc)
	}
	for n := 0; i < len(s); n++ {
		if n%stopCheck == 0 && sc.stopped() {
			break
		}
		k := t.nextCut(s[i:]) + i
		dst = t.appendSegment(dst, s[i:k], sc)
		i = k
	}
	return dst
}

// Opens reports whether text that follows these ids begins with a space of the vocabulary's own: in SentencePiece
// vocabularies at the beginning and after special tokens. Encode puts it there and decoding takes it away.
func (t *Tokenizer) Opens(before []ID) bool {
	if !t.addSpace || len(before) == 0 {
		return t.addSpace
	}
	id := before[len(before)-1]
	return t.valid(id) && t.isSpecial(id)
}

// nextCut returns the end of the first stretch of s that no merge can leave.
func (t *Tokenizer) nextCut(s string) int {
	for k := 1; k < len(s); k++ {
		if !t.joinable(s[k-1], s[k]) && (!t.raw || utf8.RuneStart(s[k])) {
			return k
		}
	}
	return len(s)
}

// appendPieceIDs encodes one piece of byte-level text.
func (t *Tokenizer) appendPieceIDs(dst []ID, s string, sc *scratch) []ID {
	if t.wholeFirst {
		if sym := t.find(s); sym >= 0 && t.token(sym) >= 0 {
			return append(dst, t.token(sym))
		}
	}
	if len(s) > 64 { // cutting pays only for what would be merged slowly
		for len(s) > 0 {
			k := t.nextCut(s)
			dst = t.appendSegment(dst, s[:k], sc)
			s = s[k:]
		}
		return dst
	}
	return t.appendSegment(dst, s, sc)
}

// appendSegment encodes a stretch that merging does not leave.
func (t *Tokenizer) appendSegment(dst []ID, s string, sc *scratch) []ID {
	if len(s) == 1 && !t.raw {
		if sym := t.bytes[s[0]]; sym >= 0 && int(sym) < len(t.kinds) {
			return append(dst, sym)
		}
	}
	h := maphash.String(t.seed, s)
	sym := t.findHash(s, h)
	if sym >= 0 && int(sym) < len(t.kinds) {
		word, bit := &t.stable[sym/16], uint(sym%16)*2
		switch word.Load() >> bit & 3 {
		case stableYes:
			return append(dst, sym)
		case stableUnknown:
			n := len(dst)
			dst = t.mergeAll(dst, s, sc)
			if len(dst) == n+1 && dst[n] == sym {
				word.Or(stableYes << bit)
			} else {
				word.Or(stableNo << bit)
			}
			return dst
		}
	}
	if len(s) > cacheKey {
		return t.mergeAll(dst, s, sc)
	}
	e := &sc.cache[h%cacheSize]
	if e.n > 0 && string(e.key[:e.klen]) == s {
		return append(dst, e.ids[:e.n]...)
	}
	n := len(dst)
	dst = t.mergeAll(dst, s, sc)
	if k := len(dst) - n; k > 0 && k <= cacheIDs {
		e.n, e.klen = uint8(k), uint8(len(s))
		copy(e.ids[:], dst[n:])
		copy(e.key[:], s)
	}
	return dst
}

const (
	stableUnknown = 0
	stableYes     = 1
	stableNo      = 2
)

// symbol is a node of the list being merged. pair is rank<<32 | symbol of the merge
// with the next node, noMerge if there is none.
type symbol struct {
	pair       uint64
	sym        int32 // -1: no token, no merges
	start      int32 // offset in the piece
	prev, next int32 // -1 at the ends; a merged-away node has next == dead
}

const dead = -2

// shortPiece is the most symbols for which scanning for the best pair beats a heap.
const shortPiece = 40

// mergeAll is byte-pair encoding proper: of all adjacent pairs, merge the one of
// lowest rank, the leftmost of equals, until no pair has a rank.
func (t *Tokenizer) mergeAll(dst []ID, s string, sc *scratch) []ID {
	for len(s) > maxPiece && !sc.stopped() {
		k := maxPiece
		for k > maxPiece-utf8.UTFMax && !utf8.RuneStart(s[k]) {
			k--
		}
		dst = t.mergeAll(dst, s[:k], sc)
		s = s[k:]
	}
	s = s[:min(len(s), maxPiece)]
	syms := t.symbols(sc.syms[:0], s)
	sc.syms = syms
	if len(syms) <= shortPiece {
		return t.mergeShort(dst, s, syms)
	}
	return t.mergeLong(dst, s, syms, sc)
}

// symbols cuts s into its initial symbols, with pair filled in.
func (t *Tokenizer) symbols(syms []symbol, s string) []symbol {
	if !t.raw {
		for i := range len(s) {
			syms = append(syms, symbol{pair: noMerge, sym: t.bytes[s[i]], start: int32(i)})
			if i > 0 {
				syms[i-1].pair = t.bytePair[int(s[i-1])<<8|int(s[i])]
			}
		}
		return syms
	}
	for i := 0; i < len(s); {
		n := 1
		if s[i] >= utf8.RuneSelf {
			_, n = utf8.DecodeRuneInString(s[i:])
		}
		k := len(syms)
		syms = append(syms, symbol{pair: noMerge, sym: t.find(s[i : i+n]), start: int32(i)})
		if k > 0 {
			syms[k-1].pair = t.merge.get(syms[k-1].sym, syms[k].sym)
		}
		i += n
	}
	return syms
}

// mergeShort scans for the best pair each time and closes the gap by moving.
func (t *Tokenizer) mergeShort(dst []ID, s string, syms []symbol) []ID {
	for {
		best, at := uint64(noMerge), -1
		for i := range syms {
			// Ranks alone are compared, since of equal ones the leftmost wins: tokens may have the same score.
			if p := syms[i].pair &^ 0xffffffff; p < best {
				best, at = p, i
			}
		}
		if at < 0 {
			break
		}
		syms[at].sym = int32(uint32(syms[at].pair))
		copy(syms[at+1:], syms[at+2:])
		syms = syms[:len(syms)-1]
		syms[at].pair = noMerge
		if at+1 < len(syms) {
			syms[at].pair = t.merge.get(syms[at].sym, syms[at+1].sym)
		}
		if at > 0 {
			syms[at-1].pair = t.merge.get(syms[at-1].sym, syms[at].sym)
		}
	}
	for i := range syms {
		end := len(s)
		if i+1 < len(syms) {
			end = int(syms[i+1].start)
		}
		dst = t.emit(dst, s[syms[i].start:end], syms[i].sym)
	}
	return dst
}

// mergeLong keeps the pairs in a queue of rank<<32 | node.
func (t *Tokenizer) mergeLong(dst []ID, s string, syms []symbol, sc *scratch) []ID {
	q := &sc.queue
	q.reset()
	for i := range syms {
		syms[i].prev, syms[i].next = int32(i-1), int32(i+1)
		q.push(syms[i].pair, int32(i))
	}
	syms[len(syms)-1].next = -1
	for {
		top, ok := q.pop()
		if !ok {
			break
		}
		i := int32(uint32(top))
		a := &syms[i]
		if a.next == dead || a.pair>>32 != top>>32 {
			continue // the pair is gone
		}
		b := &syms[a.next]
		a.sym = int32(uint32(a.pair))
		a.next, b.next = b.next, dead
		if a.prev >= 0 {
			p := &syms[a.prev]
			p.pair = t.merge.get(p.sym, a.sym)
			q.push(p.pair, a.prev)
		}
		a.pair = noMerge
		if a.next >= 0 {
			n := &syms[a.next]
			n.prev = i
			a.pair = t.merge.get(a.sym, n.sym)
			q.push(a.pair, i)
		}
	}
	for i := int32(0); i >= 0; i = syms[i].next {
		end := len(s)
		if n := syms[i].next; n >= 0 {
			end = int(syms[n].start)
		}
		dst = t.emit(dst, s[syms[i].start:end], syms[i].sym)
	}
	return dst
}

// emit appends the token of a final symbol, or what its bytes fall back to. Bytes
// without a token are dropped, as upstream does.
func (t *Tokenizer) emit(dst []ID, text string, sym int32) []ID {
	if sym >= 0 {
		if id := t.token(sym); id >= 0 {
			return append(dst, id)
		}
	}
	for i := range len(text) {
		if b := t.bytes[text[i]]; b >= 0 {
			if id := t.token(b); id >= 0 {
				dst = append(dst, id)
			}
		}
	}
	return dst
}
