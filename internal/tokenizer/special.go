package tokenizer

import (
	"cmp"
	"slices"
	"strings"
)

// Special tokens are cut out of the text before it is split: the longest first,
// each wherever it occurs in what is left. Doing that literally costs one pass
// over the text per special token (some vocabularies have thousands), so one pass
// with a trie finds the places, and only where occurrences overlap are the
// tokens concerned applied one after the other.

// trie holds the special tokens' texts. Node 0 is the root.
type trie struct {
	nodes []trieNode
	edges []trieEdge
	order []ID         // special tokens, longest first
	first [2][256]bool // first bytes: [0] of user-defined tokens, [1] of all
	any   [2]bool
}

type trieNode struct {
	edge, n int32 // edges[edge:edge+n], sorted by byte
	rank    int32 // index into order of the token ending here, or -1
	always  bool  // that token is cut out even without ParseSpecial
}

type trieEdge struct {
	b  byte
	to int32
}

func (t *Tokenizer) isSpecial(id ID) bool {
	k := t.kinds[id]
	return k == Control || k == Unknown || k == UserDefined
}

func (t *Tokenizer) buildSpecials() trie {
	var tr trie
	for i := range t.kinds {
		if id := ID(i); t.isSpecial(id) && len(t.piece(id)) > 0 {
			tr.order = append(tr.order, id)
		}
	}
	slices.SortStableFunc(tr.order, func(a, b ID) int { return cmp.Compare(len(t.piece(b)), len(t.piece(a))) })
	ranks := make([]int32, len(tr.order))
	for i := range ranks {
		ranks[i] = int32(i)
		id := tr.order[i]
		b := t.piece(id)[0]
		tr.first[1][b], tr.any[1] = true, true
		if t.kinds[id] == UserDefined {
			tr.first[0][b], tr.any[0] = true, true
		}
	}
	text := func(r int32) []byte { return t.piece(tr.order[r]) }
	slices.SortFunc(ranks, func(a, b int32) int { return slices.Compare(text(a), text(b)) })

	// Breadth first: a node covers ranks[lo:hi], whose texts agree in the first
	// depth bytes.
	type span struct{ lo, hi, depth int }
	queue := []span{{0, len(ranks), 0}}
	tr.nodes = []trieNode{{}}
	for ni := 0; ni < len(queue); ni++ {
		q := queue[ni]
		n := trieNode{edge: int32(len(tr.edges)), rank: -1}
		lo := q.lo
		if lo < q.hi && len(text(ranks[lo])) == q.depth {
			n.rank = ranks[lo]
			n.always = t.kinds[tr.order[n.rank]] == UserDefined
			lo++
		}
		for lo < q.hi {
			b := text(ranks[lo])[q.depth]
			hi := lo + 1
			for hi < q.hi && text(ranks[hi])[q.depth] == b {
				hi++
			}
			tr.edges = append(tr.edges, trieEdge{b, int32(len(queue))})
			queue = append(queue, span{lo, hi, q.depth + 1})
			tr.nodes = append(tr.nodes, trieNode{})
			lo = hi
		}
		n.n = int32(len(tr.edges)) - n.edge
		tr.nodes[ni] = n
	}
	return tr
}

func (tr *trie) step(node int32, b byte) int32 {
	n := &tr.nodes[node]
	lo, hi := n.edge, n.edge+n.n
	for lo < hi {
		mid := (lo + hi) / 2
		switch e := tr.edges[mid]; {
		case e.b == b:
			return e.to
		case e.b < b:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return -1
}

// appendParts encodes text, cutting out special tokens first.
func (t *Tokenizer) appendParts(dst []ID, text string, parse bool, sc *scratch) []ID {
	tr := &t.specials
	set := 0
	if parse {
		set = 1
	}
	if !tr.any[set] {
		return t.appendText(dst, text, sc)
	}
	first := &tr.first[set]
	raw := 0 // start of the text not yet encoded
	for i := 0; i < len(text); {
		if !first[text[i]] {
			i++
			continue
		}
		// A cluster is a run of occurrences each overlapping an earlier one.
		start, end := i, i
		hits := sc.hits[:0]
		for j := i; j < len(text) && (j == start || j < end); j++ {
			if !first[text[j]] {
				continue
			}
			for node, k := int32(0), j; k < len(text); {
				if node = tr.step(node, text[k]); node < 0 {
					break
				}
				k++
				if n := &tr.nodes[node]; n.rank >= 0 && (parse || n.always) {
					end = max(end, k)
					if !slices.Contains(hits, n.rank) {
						hits = append(hits, n.rank)
					}
				}
			}
		}
		sc.hits = hits
		if len(hits) == 0 {
			i++
			continue
		}
		if len(hits) == 1 && end-start == len(t.piece(tr.order[hits[0]])) {
			dst = t.appendText(dst, text[raw:start], sc)
			dst = append(dst, tr.order[hits[0]])
			raw, i = end, end
			continue
		}
		// The cluster's first and last bytes may turn out to be text, which then
		// belongs together with the text around.
		slices.Sort(hits)
		var rest int
		dst, rest = t.appendCluster(dst, text[raw:end], hits, sc)
		raw, i = raw+rest, end
	}
	return t.appendText(dst, text[raw:], sc)
}

// part is a stretch of a cluster: raw text, or a token if id >= 0.
type part struct {
	start, end int
	id         ID
}

// appendCluster resolves overlapping occurrences by cutting the given tokens out
// of s one after the other. It returns the offset of the raw text at the end,
// which is not encoded.
func (t *Tokenizer) appendCluster(dst []ID, s string, ranks []int32, sc *scratch) ([]ID, int) {
	parts := []part{{0, len(s), -1}}
	for _, r := range ranks {
		id := t.specials.order[r]
		text := string(t.piece(id))
		var next []part
		for _, p := range parts {
			if p.id >= 0 {
				next = append(next, p)
				continue
			}
			for {
				k := strings.Index(s[p.start:p.end], text)
				if k < 0 {
					break
				}
				if k > 0 {
					next = append(next, part{p.start, p.start + k, -1})
				}
				next = append(next, part{p.start + k, p.start + k + len(text), id})
				p.start += k + len(text)
			}
			if p.start < p.end {
				next = append(next, p)
			}
		}
		parts = next
	}
	rest := len(s)
	if last := parts[len(parts)-1]; last.id < 0 {
		rest = last.start
		parts = parts[:len(parts)-1]
	}
	for _, p := range parts {
		if p.id >= 0 {
			dst = append(dst, p.id)
		} else {
			dst = t.appendText(dst, s[p.start:p.end], sc)
		}
	}
	return dst, rest
}
