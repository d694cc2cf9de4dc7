package pflash

import (
	"cmp"
	"math"
	"slices"
)

// Rule says which chunks of a prompt are kept besides those with the best scores. The zero value is not useful; see
// DefaultRule.
type Rule struct {
	Chunk      int // tokens
	Head, Tail int // chunks at the ends that are always kept, fewer if few are kept at all
	// Query is how many tokens at the end are taken for the question: where Gram of them in a row occur before, at most
	// MaxHits times, the chunk and Radius chunks on either side are kept.
	Query, Gram, MaxHits, Radius int
	// Repeats keeps chunks with tokens that come 4 to 32 times before the question, most frequent first, for scorers with
	// few attention layers.
	Repeats bool
}

// DefaultRule returns the rule for prompts. They are the numbers of Luce's implementation.
func DefaultRule() Rule {
	return Rule{Chunk: 32, Head: 8, Tail: 24, Query: 96, Gram: 4, MaxHits: 8, Radius: 2}
}

const (
	lookahead            = 8 // tokens whose queries score a prompt
	repeatMin, repeatMax = 4, 32
)

// Selection is the part of a prompt that is kept.
type Selection struct {
	Unchanged  bool // too short to be scored
	Keep       int  // chunks wanted
	Head, Tail int  // chunks at the ends that were kept for certain
	Ends       []int
	Anchors    []int
	Repeated   []int // in order
	Filled     []int // by score, in order
	Chunks     []int // all of them
	Spans      [][2]int
}

// Tokens is the number of tokens kept.
func (s *Selection) Tokens() (n int) {
	for _, x := range s.Spans {
		n += x[1] - x[0]
	}
	return n
}

// Select chooses the chunks of a prompt to keep as Luce's implementation does, by the scores c of all chunks: a share
// of them, or what the rule demands if that is more.
func Select(ids []int32, c []float64, ratio float64, r Rule) Selection {
	n := len(ids)
	if n < lookahead+1 {
		return Selection{Unchanged: true, Spans: [][2]int{{0, n}}}
	}
	all := (n + r.Chunk - 1) / r.Chunk
	s := Selection{Keep: share(all, ratio), Head: r.Head, Tail: r.Tail}
	if ends := r.Head + r.Tail; ends > 0 && ends >= s.Keep {
		b := max(1, s.Keep-1)
		s.Head = r.Head * b / ends
		s.Tail = b - s.Head
	}
	chosen := make([]bool, all)
	count := 0
	add := func(b int) bool {
		if b < 0 || b >= all || chosen[b] {
			return false
		}
		chosen[b] = true
		count++
		return true
	}
	for b := range all {
		if (b < s.Head || b >= all-s.Tail) && add(b) {
			s.Ends = append(s.Ends, b)
		}
	}
	text, question := ids[:max(0, n-r.Query)], ids[max(0, n-r.Query):]
	anchored := make([]bool, all)
	for _, p := range hits(question, r, text) {
		for b := max(0, p[1]/r.Chunk-r.Radius); b <= min(all-1, p[1]/r.Chunk+r.Radius); b++ {
			anchored[b] = true
			add(b)
		}
	}
	for b, is := range anchored {
		if is {
			s.Anchors = append(s.Anchors, b)
		}
	}
	if r.Repeats {
		for _, p := range repeated(text) {
			if count >= s.Keep {
				break
			}
			if add(p / r.Chunk) {
				s.Repeated = append(s.Repeated, p/r.Chunk)
			}
		}
	}
	for _, b := range byScore(c) {
		if count >= s.Keep {
			break
		}
		if add(b) {
			s.Filled = append(s.Filled, b)
		}
	}
	s.keep(chosen, r.Chunk, n)
	return s
}

// keep notes the chosen chunks of n tokens.
func (s *Selection) keep(chosen []bool, chunk, n int) {
	for b, is := range chosen {
		if !is {
			continue
		}
		s.Chunks = append(s.Chunks, b)
		from, to := b*chunk, min(n, (b+1)*chunk)
		if k := len(s.Spans) - 1; k >= 0 && s.Spans[k][1] == from {
			s.Spans[k][1] = to
		} else {
			s.Spans = append(s.Spans, [2]int{from, to})
		}
	}
}

// SelectText chooses the chunks to keep of a text that is to be continued. It is Select but for this:
//   - It never keeps more than asked for. Where words of the end occur counts by how many do, and what is around the
//     most of them comes first: words that are everywhere would keep everything.
//   - The beginning is not kept in any case. Of a rendered conversation it is the system's message; of a text it is
//     what is farthest from where the text goes on.
//   - The first chunk has no score. Heads without a target attend to the first tokens (attention sinks).
//   - The end leaves a third of what is kept to be chosen, also where little is kept.
func SelectText(ids []int32, c []float64, ratio float64, r Rule) Selection {
	n := len(ids)
	if n < lookahead+1 {
		return Selection{Unchanged: true, Spans: [][2]int{{0, n}}}
	}
	all := (n + r.Chunk - 1) / r.Chunk
	s := Selection{Keep: share(all, ratio)}
	s.Tail = min(r.Tail, max(1, s.Keep*2/3))
	chosen := make([]bool, all)
	count := 0
	add := func(to *[]int, b int) {
		if b >= 0 && b < all && !chosen[b] && count < s.Keep {
			chosen[b] = true
			count++
			*to = append(*to, b)
		}
	}
	for b := all - s.Tail; b < all; b++ {
		add(&s.Ends, b)
	}
	found := make([]float64, all)
	for _, p := range hits(ids[max(0, n-r.Query):], r, ids[:max(0, n-r.Query)]) {
		found[p[1]/r.Chunk]++
	}
	for _, b := range byScore(found) {
		if found[b] == 0 {
			break
		}
		add(&s.Anchors, b)
		for d := 1; d <= r.Radius; d++ {
			add(&s.Anchors, b+d)
			add(&s.Anchors, b-d)
		}
	}
	for _, b := range byScore(c) {
		if b > 0 {
			add(&s.Filled, b)
		}
	}
	add(&s.Filled, 0)
	s.keep(chosen, r.Chunk, n)
	return s
}

// share is how many of n chunks a ratio stands for.
func share(n int, ratio float64) int { return min(n, max(1, int(math.Floor(float64(n)*ratio+1e-9)))) }

// byScore orders chunks, the best first, earlier ones before their equals.
func byScore(c []float64) []int {
	order := make([]int, len(c))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c[b], c[a]) })
	return order
}

// hits finds where runs of the question's tokens occur in texts, those that do not occur too often: text and position.
func hits(question []int32, r Rule, texts ...[]int32) (found [][2]int) {
	const longest = 8
	if r.Gram > longest {
		panic("pflash: runs of more than 8 tokens")
	}
	gram := func(t []int32) (g [longest]int32) {
		copy(g[:], t[:r.Gram])
		return g
	}
	wanted := map[[longest]int32][][2]int{}
	for q := 0; q+r.Gram <= len(question); q++ {
		wanted[gram(question[q:])] = nil
	}
	for i, t := range texts {
		for p := 0; p+r.Gram <= len(t); p++ {
			g := gram(t[p:])
			if at, ok := wanted[g]; ok && len(at) <= r.MaxHits { // one too many is enough to know
				wanted[g] = append(at, [2]int{i, p})
			}
		}
	}
	for q := 0; q+r.Gram <= len(question); q++ {
		if at := wanted[gram(question[q:])]; len(at) <= r.MaxHits {
			found = append(found, at...)
		}
	}
	return found
}

// repeated lists the positions of tokens that come again and again, by falling frequency, then by id.
func repeated(text []int32) (at []int) {
	places := map[int32][]int{}
	for p, id := range text {
		places[id] = append(places[id], p)
	}
	var ids []int32
	for id, p := range places {
		if len(p) >= repeatMin && len(p) <= repeatMax {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int32) int {
		return cmp.Or(cmp.Compare(len(places[b]), len(places[a])), cmp.Compare(a, b))
	})
	for _, id := range ids {
		at = append(at, places[id]...)
	}
	return at
}

// pool averages each score with its neighbours, width of them in all, fewer at the ends.
func pool(s []float64, width int) []float64 {
	sums := make([]float64, len(s)+1)
	for i, v := range s {
		sums[i+1] = sums[i] + v
	}
	out := make([]float64, len(s))
	for i := range out {
		from, to := max(0, i-width/2), min(len(s), i+width/2+1)
		out[i] = (sums[to] - sums[from]) / float64(to-from)
	}
	return out
}

// means averages the scores of each chunk.
func means(s []float64, chunk int) []float64 {
	var out []float64
	for len(s) > 0 {
		n := min(chunk, len(s))
		sum := 0.0
		for _, v := range s[:n] {
			sum += v
		}
		out, s = append(out, sum/float64(n)), s[n:]
	}
	return out
}
