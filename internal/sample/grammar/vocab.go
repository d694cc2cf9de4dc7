package grammar

import (
	"bytes"
	"maps"
	"slices"
	"sync"
)

// Vocab is a model's vocabulary arranged for finding the tokens a grammar
// allows. It is immutable but for a cache and may be shared by goroutines.
type Vocab struct {
	size   int
	eog    []int32
	isEOG  map[int32]bool
	pieces [][]byte

	// The trie of all pieces, in depth-first order. Node i stands for the text
	// on the way to it; its subtree is i+1 .. end[i]-1. Node 0 is the root.
	char  []byte
	depth []uint16
	end   []int32
	token []int32 // a token with exactly this text, or -1
	twin  []int32 // by token: the next token with the same text, or -1

	maxLen int // bytes of the longest piece in the trie

	mu     sync.Mutex
	bases  map[baseKey]*base
	learnt int // bytes of the bases that are not of built-in rules
	chars  *charBase
}

// baseKey is a state of a grammar, which is 0 for the built-in rules that all grammars share. It is a number so that
// the bases do not hold grammars in memory that are no longer used.
type baseKey struct {
	grammar uint64
	state   int32
}

// maxLearnt bounds the bytes of the bases of all grammars with a vocabulary.
const maxLearnt = 64 << 20

func (v *Vocab) base(key baseKey) *base {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.bases[key]
}

// learn adds a base.
func (v *Vocab) learn(key baseKey, b *base) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.bases[key] != nil {
		return
	}
	if key.grammar != 0 {
		n := 8*len(b.allowed) + 4*len(b.exits)
		if v.learnt += n; v.learnt > maxLearnt {
			maps.DeleteFunc(v.bases, func(k baseKey, _ *base) bool { return k.grammar != 0 })
			v.learnt = n
		}
	}
	v.bases[key] = b
}

// maxPiece bounds the text of a token in the trie; longer ones are never
// allowed. Real vocabularies stay far below.
const maxPiece = 1 << 12

// NewVocab arranges a vocabulary. pieces[id] is the text of token id; one that
// is empty, as control tokens should be given, is never allowed. eog are the
// tokens that end the output, allowed when the grammar is complete.
func NewVocab(pieces [][]byte, eog []int32) *Vocab {
	v := &Vocab{size: len(pieces), eog: slices.Clone(eog), isEOG: map[int32]bool{}, pieces: pieces,
		bases: map[baseKey]*base{}}
	for _, id := range eog {
		v.isEOG[id] = true
	}
	ids := make([]int32, 0, len(pieces))
	for id, p := range pieces {
		if len(p) > 0 && len(p) <= maxPiece && !v.isEOG[int32(id)] {
			ids = append(ids, int32(id))
			v.maxLen = max(v.maxLen, len(p))
		}
	}
	slices.SortFunc(ids, func(a, b int32) int {
		if c := bytes.Compare(pieces[a], pieces[b]); c != 0 {
			return c
		}
		return int(a - b)
	})
	v.twin = make([]int32, len(pieces))
	for i := range v.twin {
		v.twin[i] = -1
	}
	add := func(c byte, depth int) {
		v.char = append(v.char, c)
		v.depth = append(v.depth, uint16(depth))
		v.end = append(v.end, 0)
		v.token = append(v.token, -1)
	}
	add(0, 0)
	path := []int32{0} // nodes on the way to the current piece
	var prev []byte
	last := int32(-1)
	for _, id := range ids {
		p := pieces[id]
		if last >= 0 && bytes.Equal(p, prev) {
			v.twin[last] = id
			last = id
			continue
		}
		common := 0
		for common < len(prev) && common < len(p) && prev[common] == p[common] {
			common++
		}
		for len(path) > common+1 {
			v.end[path[len(path)-1]] = int32(len(v.char))
			path = path[:len(path)-1]
		}
		for d := common; d < len(p); d++ {
			path = append(path, int32(len(v.char)))
			add(p[d], d+1)
		}
		v.token[path[len(path)-1]] = id
		prev, last = p, id
	}
	for _, n := range path {
		v.end[n] = int32(len(v.char))
	}
	return v
}

// Size is the number of tokens.
func (v *Vocab) Size() int { return v.size }

// bitset has one bit per token.
type bitset []uint64

func (v *Vocab) newBitset() bitset { return make(bitset, (v.size+63)/64) }

// allow sets the bits of the tokens at a node.
func (v *Vocab) allow(b bitset, node int32) {
	for id := v.token[node]; id >= 0; id = v.twin[id] {
		b[id>>6] |= 1 << (uint(id) & 63)
	}
}

// charBase tells how many characters of a JSON string each token adds. Strings
// with a length get their masks from it without walking the vocabulary.
type charBase struct {
	// Tokens that stay inside a string, by the characters they need: those up
	// to n are byNeed[:upTo[n]]. A character only begun counts.
	byNeed []int32
	upTo   []int32
	all    bitset
	exits  []charExit
}

// charExit is a trie node that ends a string after some characters.
type charExit struct {
	node  int32
	chars int32
}

// charBase finds or computes the table.
func (v *Vocab) charBase(p *program) *charBase {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.chars != nil {
		return v.chars
	}
	m := newMachine(p)
	c := &charBase{all: v.newBitset()}
	confs := make([]int32, v.maxLen+1)
	counts := make([]int32, v.maxLen+1)
	confs[0] = m.start(ruleChars, anyStack)
	byCount := make([][]int32, v.maxLen+2)
	for i := int32(1); i < int32(len(v.char)); {
		d := v.depth[i]
		before := confs[d-1]
		// At a boundary between characters the string may end.
		if v.char[i] == '"' && m.configs[before].pops {
			c.exits = append(c.exits, charExit{i, counts[d-1]})
		}
		n := m.tableStep(before, v.char[i])
		if n < 0 {
			i = v.end[i]
			continue
		}
		confs[d], counts[d] = n, counts[d-1]
		need := counts[d] + 1
		if m.configs[n].pops {
			counts[d]++
			need = counts[d]
		}
		for id := v.token[i]; id >= 0; id = v.twin[id] {
			byCount[need] = append(byCount[need], id)
		}
		v.allow(c.all, i)
		i++
	}
	for _, ids := range byCount {
		c.byNeed = append(c.byNeed, ids...)
		c.upTo = append(c.upTo, int32(len(c.byNeed)))
	}
	v.chars = c
	return c
}

// upToChars adds the tokens that need at most n characters.
func (c *charBase) upToChars(n int32, out bitset) {
	at := len(c.byNeed)
	if int(n) < len(c.upTo) {
		at = int(c.upTo[n])
	}
	if at < len(c.byNeed)/2 {
		for _, id := range c.byNeed[:at] {
			out[id>>6] |= 1 << (uint(id) & 63)
		}
		return
	}
	tmp := append(bitset(nil), c.all...)
	for _, id := range c.byNeed[at:] {
		tmp[id>>6] &^= 1 << (uint(id) & 63)
	}
	for i, w := range tmp {
		out[i] |= w
	}
}
