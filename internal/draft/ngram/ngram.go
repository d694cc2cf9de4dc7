// Package ngram guesses by looking back: when the last few tokens have occurred before, what
// followed then is likely to follow now. It needs no model and suits code edits, summaries and
// loops over the prompt.
package ngram

// minMatch is the shortest repetition worth a guess; maxMatch bounds the work to measure one.
const (
	minMatch = 3
	maxMatch = 32
	tries    = 8 // earlier occurrences compared per guess, newest first
)

// Index remembers where every run of minMatch tokens occurred. The zero value is empty.
type Index struct {
	tokens []int32
	last   map[uint64]int32 // key of a run -> index after its newest occurrence
	prev   []int32          // index after a run -> index after the occurrence before it, 0 for none
}

// Append adds tokens to the history.
func (x *Index) Append(tokens ...int32) {
	if x.last == nil {
		x.last = make(map[uint64]int32)
	}
	for _, t := range tokens {
		x.tokens = append(x.tokens, t)
		x.prev = append(x.prev, 0)
		if n := len(x.tokens); n >= minMatch {
			k := key(x.tokens[n-minMatch:])
			// Entries point at the token after the run, so the newest run has none yet and
			// is not found as its own repetition.
			x.prev[n-1] = x.last[k]
			x.last[k] = int32(n)
		}
	}
}

func key(t []int32) uint64 {
	h := uint64(0)
	for _, v := range t {
		h = (h ^ uint64(uint32(v))) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h
}

// drop takes the newest token back.
func (x *Index) drop() {
	n := len(x.tokens)
	if n >= minMatch {
		k := key(x.tokens[n-minMatch:])
		if before := x.prev[n-1]; before > 0 {
			x.last[k] = before
		} else {
			delete(x.last, k)
		}
	}
	x.tokens, x.prev = x.tokens[:n-1], x.prev[:n-1]
}

// Len returns the number of tokens seen.
func (x *Index) Len() int { return len(x.tokens) }

// Close forgets them.
func (x *Index) Close() { *x = Index{} }

// Guess returns n tokens that followed the longest earlier occurrence of the newest tokens, and
// how many tokens matched. Where that occurrence runs into the newest tokens the text has a
// period, and the guess goes on with it. It returns none without a match of at least minMatch.
func (x *Index) Guess(n int) (tokens []int32, match int) {
	end := len(x.tokens)
	if end < minMatch+1 || n <= 0 {
		return nil, 0
	}
	best, at := 0, 0
	p := x.prev[end-1]
	for i := 0; i < tries && p > 0; i++ {
		if m := x.matchLen(int(p), end); m > best {
			best, at = m, int(p)
		}
		p = x.prev[p-1]
	}
	if best < minMatch { // a collision of keys
		return nil, 0
	}
	for i := at; len(tokens) < n; i++ {
		if i < end {
			tokens = append(tokens, x.tokens[i])
		} else {
			tokens = append(tokens, tokens[i-end])
		}
	}
	return tokens, best
}

// matchLen counts the equal tokens before a and b.
func (x *Index) matchLen(a, b int) int {
	m := 0
	for m < maxMatch && m < a && x.tokens[a-1-m] == x.tokens[b-1-m] {
		m++
	}
	return m
}
