package engine

import (
	"crypto/sha256"
	"slices"
	"sort"

	"strobe/internal/cache"
	"strobe/internal/invariants"
)

// prefixes keeps the memory of token sequences for requests that begin alike. An entry is the
// target's memory and the drafters' of the same tokens, together: a sequence that is restored
// without a drafter's memory is drafted for badly at first. Where nobody drafts (loop.needs), entries
// come without, and serve those who do not draft either, or who would have much to read (blind).
// There is one way in (add) and one way out (take), also for what comes from disk.
//
// Memory that can be cut serves any beginning of its tokens. Recurrent state cannot be cut, so an
// entry serves its exact length only; windowed memory is in between. CanCut decides.
//
// Where memory is short, the entry that was not used for the longest time gets shorter from its end, or goes if it
// cannot be cut. Of a text that does not fit as a whole a beginning is kept, at most half of the cache, so that it
// does not push everything else out (keeps).
type prefixes struct {
	target   *cache.Memory
	drafters []*cache.Memory // per source; nil for those that keep nothing
	limit    int64
	entries  []*entry // least recently used first
	stats    CacheStats
}

// salt separates clients: prefixes are shared by requests of the same salt only. It is a hash, so that what a client is
// told apart by, such as its key, is not written to disk.
type salt [16]byte

func saltOf(s string) (out salt) {
	if s != "" {
		h := sha256.Sum256([]byte(s))
		copy(out[:], h[:])
	}
	return out
}

// text is tokens of those who share a salt.
type text struct {
	salt   salt
	tokens []int32
}

// common is the number of tokens that two texts begin with and may share.
func (t text) common(o text) int {
	if t.salt != o.salt {
		return 0
	}
	return common(t.tokens, o.tokens)
}

type entry struct {
	text
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

// size is what an entry of n tokens with the memory of all drafters takes.
func (c *prefixes) size(n int) int64 { return sizeOf(c.target, c.drafters, n) }

// sizeOf is what the sequences of a target and its drafters take for n tokens.
func sizeOf(target *cache.Memory, drafters []*cache.Memory, n int) int64 {
	bytes := target.BytesOf(n)
	for _, m := range drafters {
		if m != nil {
			bytes += m.BytesOf(n)
		}
	}
	return int64(bytes)
}

// keeps is how many tokens at the beginning of a text of n can be kept.
func (c *prefixes) keeps(n int) int {
	if c.size(n) <= c.limit {
		return n
	}
	return min(n, c.part())
}

// part is how many tokens, in whole pages, half of the cache holds.
func (c *prefixes) part() int {
	few := sort.Search(1<<24, func(pages int) bool { return c.size((pages+1)*cache.PageTokens) > c.limit/2 })
	return few * cache.PageTokens
}

// bytes is what an entry holds; pages that it shares with others count in full.
func (e *entry) bytes() int64 {
	n := e.seq.Bytes()
	e.drafts.each(func(s *cache.Seq) { n += s.Bytes() })
	return int64(n)
}

// shorten cuts an entry to its first n tokens, if it can be cut there and that many are worth keeping.
func (e *entry) shorten(n int) bool {
	n = beforeImage(e.tokens, n)
	if n < minReuse || n >= len(e.tokens) || !e.serves(n) {
		return false
	}
	e.abort()
	ok := e.seq.Truncate(n) == nil
	e.drafts.each(func(s *cache.Seq) { ok = s.Truncate(n) == nil && ok })
	e.tokens = e.tokens[:n]
	return ok
}

// find returns the entry that saves the most of a prompt that wants contexts, and how many of its tokens it gives. The
// last one is never among them: its logits are needed.
func (c *prefixes) find(prompt text, want set) (best *entry, n int) {
	most := minReuse
	for _, e := range c.entries {
		k := beforeImage(prompt.tokens, min(e.common(prompt), len(prompt.tokens)-1))
		if saves := e.drafts.sources().worth(k, want); saves >= most && e.serves(k) {
			best, n, most = e, k, saves
		}
	}
	return best, n
}

// longest is the largest number of tokens that a prompt has in common with any entry, usable or not.
func (c *prefixes) longest(prompt text) int {
	n := 0
	for _, e := range c.entries {
		n = max(n, e.common(prompt))
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

// add keeps an entry, of a text of whole tokens in the end, and closes those it makes superfluous. The sequences belong
// to the cache from then on, whatever becomes of them.
func (c *prefixes) add(e *entry, whole int) {
	e.seq.Pack()
	e.drafts.each((*cache.Seq).Pack)
	if n := c.part(); (e.bytes() > c.limit || c.size(whole) > c.limit) && len(e.tokens) > n {
		if !e.shorten(n) {
			c.stats.TooLarge++
			e.close()
			return
		}
		c.stats.Shortened++
	}
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
	e.seq.Cache()
	e.drafts.each((*cache.Seq).Cache)
	c.shrink(c.limit)
	c.check()
}

// check compares what the cache counts with what its entries hold.
func (c *prefixes) check() {
	if !invariants.Enabled {
		return
	}
	var seqs []*cache.Seq
	for _, e := range c.entries {
		seqs = append(seqs, e.seq)
	}
	held, counted := c.target.Held(seqs), c.target.CachedBytes()
	invariants.Check(held == counted, "prefixes hold %d bytes, %d are counted", held, counted)
}

// covers reports whether e serves everything x does.
func (e *entry) covers(x *entry) bool {
	n := len(x.tokens)
	return n <= len(e.tokens) && e.drafts.sources().all(x.drafts.sources()) && e.serves(n) && e.common(x.text) == n
}

// shrink takes memory from the least recently used entries until they hold at most limit bytes.
func (c *prefixes) shrink(limit int64) {
	for c.bytes() > limit && len(c.entries) > 0 {
		e := c.entries[0]
		n := len(e.tokens)
		// What it takes if no page is shared, and an eighth at least, since pages that are give nothing back.
		less := max(int((c.bytes()-limit)*int64(n)/max(1, e.bytes())), n/8)
		if e.shorten((n - less - 1) / cache.PageTokens * cache.PageTokens) {
			c.stats.Shortened++
			continue
		}
		c.drop(e)
		c.stats.Evicted++
	}
}

// drop removes an entry. Running streams keep the pages they share with it.
func (c *prefixes) drop(e *entry) {
	if i := slices.Index(c.entries, e); i >= 0 {
		c.entries = slices.Delete(c.entries, i, i+1)
		e.close()
	}
}

// bytes is the memory of all entries; pages they share count once.
func (c *prefixes) bytes() int64 {
	n := c.target.CachedBytes()
	for _, m := range c.drafters {
		if m != nil {
			n += m.CachedBytes()
		}
	}
	return int64(n)
}

// abort gives up writing the entry to its file.
func (e *entry) abort() {
	if e.writing != nil {
		e.writing.abort()
		e.writing = nil
	}
}

func (e *entry) close() {
	e.abort()
	e.seq.Close()
	e.drafts.close()
}

// common is the number of tokens two sequences begin with. It ends before an image that one of them has a part of only.
func common(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return min(beforeImage(a, n), beforeImage(b, n))
}
