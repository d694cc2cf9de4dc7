package engine

import (
	"slices"

	"strobe/internal/cache"
)

// prefixes keeps the memory of token sequences for requests that begin alike. An entry is the
// target's memory and the drafters' of the same tokens, together: a sequence that is restored
// without a drafter's memory is drafted for badly at first. Where nobody drafts (loop.needs), entries
// come without, and serve those who do not draft either, or who would have much to read (blind).
// There is one way in (add) and one way out (take), also for what comes from disk.
//
// Memory that can be cut serves any beginning of its tokens. Recurrent state cannot be cut, so an
// entry serves its exact length only; windowed memory is in between. CanCut decides.
type prefixes struct {
	target   *cache.Memory
	drafters []*cache.Memory // per source; nil for those that keep nothing
	limit    int64
	entries  []*entry // least recently used first
	bytes    int64
	stats    CacheStats
}

type entry struct {
	tokens []int32
	seq    *cache.Seq
	drafts contexts
	saved  bool // a file has it, or it is not worth one

	writing *write // its file in progress, nil if there is none
}

// minReuse is the shortest beginning worth copying a memory for.
const minReuse = 8

// cuttable reports whether an entry of n tokens serves any beginning of them.
func (c *prefixes) cuttable(n int) bool {
	for _, m := range c.drafters {
		if m != nil && !m.Cuttable(n) {
			return false
		}
	}
	return c.target.Cuttable(n)
}

// serves reports whether an entry can give the first n of its tokens.
func (e *entry) serves(n int) bool {
	return e.seq.CanCut(n) && e.drafts.canCut(n)
}

// find returns the entry that saves the most of a prompt that wants contexts, and how many of its tokens it gives. The
// last one is never among them: its logits are needed.
func (c *prefixes) find(prompt []int32, want set) (best *entry, n int) {
	most := minReuse
	for _, e := range c.entries {
		k := min(common(e.tokens, prompt), len(prompt)-1)
		if saves := e.drafts.sources().worth(k, want); saves >= most && e.serves(k) {
			best, n, most = e, k, saves
		}
	}
	return best, n
}

// longest is the largest number of tokens that a prompt has in common with any entry, usable or not.
func (c *prefixes) longest(prompt []int32) int {
	n := 0
	for _, e := range c.entries {
		n = max(n, common(e.tokens, prompt))
	}
	return n
}

// take copies the first n tokens of an entry. Drafters that it knows nothing of begin after them.
func (c *prefixes) take(e *entry, n int, want set) (seq *cache.Seq, drafts contexts, err error) {
	c.touch(e)
	if seq, err = cut(e.seq, n); err != nil {
		return nil, nil, err
	}
	if drafts, err = e.drafts.cut(n, want); err != nil {
		seq.Close()
		return nil, nil, err
	}
	drafts.complete(c.drafters, want)
	return seq, drafts, nil
}

func cut(s *cache.Seq, n int) (*cache.Seq, error) {
	f, err := s.Fork()
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(n); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (c *prefixes) touch(e *entry) {
	if i := slices.Index(c.entries, e); i >= 0 {
		c.entries = append(slices.Delete(c.entries, i, i+1), e)
	}
}

// add keeps an entry and closes those it makes superfluous. The sequences belong to the cache from
// then on, whatever becomes of them.
func (c *prefixes) add(e *entry) {
	e.seq.Pack()
	e.drafts.each((*cache.Seq).Pack)
	for _, x := range c.entries {
		if x.covers(e) {
			c.touch(x)
			e.close()
			return
		}
	}
	c.entries = slices.DeleteFunc(c.entries, func(x *entry) bool {
		if e.covers(x) {
			x.close()
			return true
		}
		return false
	})
	c.entries = append(c.entries, e)
	c.shrink(c.limit)
}

// covers reports whether e serves everything x does.
func (e *entry) covers(x *entry) bool {
	n := len(x.tokens)
	return n <= len(e.tokens) && e.drafts.sources().all(x.drafts.sources()) && e.serves(n) && common(e.tokens,
		x.tokens) == n
}

// shrink drops the least recently used entries until they hold at most limit bytes.
func (c *prefixes) shrink(limit int64) {
	for c.measure(); c.bytes > limit && len(c.entries) > 0; c.measure() {
		c.drop(c.entries[0])
		c.stats.Evicted++
	}
}

// drop removes an entry. Running streams keep the pages they share with it.
func (c *prefixes) drop(e *entry) {
	if i := slices.Index(c.entries, e); i >= 0 {
		c.entries = slices.Delete(c.entries, i, i+1)
		e.close()
		c.measure()
	}
}

// measure counts the memory of all entries, shared pages once.
func (c *prefixes) measure() {
	held := func(m *cache.Memory, of func(*entry) *cache.Seq) int64 {
		var seqs []*cache.Seq
		for _, e := range c.entries {
			if s := of(e); s != nil {
				seqs = append(seqs, s)
			}
		}
		return int64(m.Held(seqs))
	}
	c.bytes = held(c.target, func(e *entry) *cache.Seq { return e.seq })
	for i, m := range c.drafters {
		if m != nil {
			c.bytes += held(m, func(e *entry) *cache.Seq { return e.drafts[i] })
		}
	}
}

func (e *entry) close() {
	if e.writing != nil {
		e.writing.abort()
		e.writing = nil
	}
	e.seq.Close()
	e.drafts.close()
}

// common is the number of tokens two sequences begin with.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
