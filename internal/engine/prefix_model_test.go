package engine

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/quant"
)

// shelf is a prefix cache and, beside it, a simple model of what it should hold.
type shelf struct {
	t     *testing.T
	c     *prefixes
	d     *disk
	specs []cache.Spec // of the target and of the drafters
	want  []*book      // least recently used first
	stats CacheStats
}

// book is what the model knows of an entry.
type book struct {
	e *entry
	text
	sources set
	whole   int // tokens it once had: pages that left a window then do not come back
}

// memoryOf is the memory of source i, the target's for -1.
func (s *shelf) memoryOf(i int) *cache.Memory {
	if i < 0 {
		return s.c.target
	}
	return s.c.drafters[i]
}

// gives reports whether a book can be cut to n tokens: always to all of them, never below where a state is all there
// is, and below a window only as long as its pages are there.
func (s *shelf) gives(b *book, n int) bool {
	for i, spec := range s.specs {
		if i > 0 && !b.sources.has(i-1) || n == len(b.tokens) {
			continue
		}
		if len(spec.Recurrent) > 0 {
			return false
		}
		for _, l := range spec.Layers {
			if l.Window > 0 && max(0, n-l.Window)/cache.PageTokens < max(0, b.whole-l.Window)/cache.PageTokens {
				return false
			}
		}
	}
	return n <= len(b.tokens)
}

// bytes is what n tokens with the memory of some sources take.
func (s *shelf) bytes(n int, of set) (sum int64) {
	for i := range s.specs {
		if m := s.memoryOf(i - 1); m != nil && (i == 0 || of.has(i-1)) {
			sum += int64(m.BytesOf(n))
		}
	}
	return sum
}

// everyone is all sources with memory.
func (s *shelf) everyone() (of set) {
	for i, m := range s.c.drafters {
		if m != nil {
			of |= 1 << i
		}
	}
	return of
}

// half is the most tokens in whole pages that take at most half of the cache.
func (s *shelf) half() int {
	n := 0
	for s.bytes(n+cache.PageTokens, s.everyone()) <= s.c.limit/2 {
		n += cache.PageTokens
	}
	return n
}

func (s *shelf) covers(a, b *book) bool {
	n := len(b.tokens)
	return a.salt == b.salt && a.sources&b.sources == b.sources && len(a.tokens) >= n &&
		slices.Equal(a.tokens[:n], b.tokens) && s.gives(a, n)
}

// cut shortens a book, if that is possible and leaves enough.
func (s *shelf) cut(b *book, n int) bool {
	if n < 8 || n >= len(b.tokens) || !s.gives(b, n) {
		return false
	}
	b.tokens = b.tokens[:n]
	return true
}

// add is what the cache should do with a new entry.
func (s *shelf) add(b *book, whole int) {
	if n := s.half(); len(b.tokens) > n &&
		(s.bytes(len(b.tokens), b.sources) > s.c.limit || s.bytes(whole, s.everyone()) > s.c.limit) {
		if !s.cut(b, n) {
			s.stats.TooLarge++
			return
		}
		s.stats.Shortened++
	}
	if i := slices.IndexFunc(s.want, func(x *book) bool { return s.covers(x, b) }); i >= 0 {
		s.use(i)
		return
	}
	s.want = slices.DeleteFunc(s.want, func(x *book) bool { return s.covers(b, x) })
	s.want = append(s.want, b)
	s.shrink(s.c.limit)
}

func (s *shelf) use(i int) {
	b := s.want[i]
	s.want = append(slices.Delete(s.want, i, i+1), b)
}

// shrink takes whole pages from the end of the oldest one, at least an eighth, or all of it.
func (s *shelf) shrink(limit int64) {
	for len(s.want) > 0 {
		total := int64(0)
		for _, b := range s.want {
			total += s.bytes(len(b.tokens), b.sources)
		}
		if total <= limit {
			return
		}
		b := s.want[0]
		n := len(b.tokens)
		less := max(int((total-limit)*int64(n)/s.bytes(n, b.sources)), n/8)
		if s.cut(b, (n-less-1)/cache.PageTokens*cache.PageTokens) {
			s.stats.Shortened++
			continue
		}
		s.want = s.want[1:]
		s.stats.Evicted++
	}
}

// find is the book that saves most of a prompt, the newest of several.
func (s *shelf) find(prompt text, want set) (at, n int) {
	at, most := -1, 8
	for i, b := range s.want {
		k := 0
		for b.salt == prompt.salt && k < min(len(b.tokens), len(prompt.tokens)-1) && b.tokens[k] == prompt.tokens[k] {
			k++
		}
		saves := k
		if b.sources&want != want {
			saves -= 1024
		}
		if saves >= most && s.gives(b, k) {
			at, n, most = i, k, saves
		}
	}
	return at, n
}

// check compares the cache with the model, entry by entry, and all memory with what entries hold.
func (s *shelf) check(what string) {
	t, c := s.t, s.c
	t.Helper()
	if len(c.entries) != len(s.want) {
		t.Fatalf("%s: %d entries, want %d", what, len(c.entries), len(s.want))
	}
	writing := 0
	for i, e := range c.entries {
		b := s.want[i]
		if e != b.e || e.salt != b.salt || !slices.Equal(e.tokens, b.tokens) || e.drafts.sources() != b.sources {
			t.Fatalf("%s: entry %d has %d tokens of %b, want %d of %b, or another text", what, i, len(e.tokens),
				e.drafts.sources(), len(b.tokens), b.sources)
		}
		if e.seq.Closed() || e.seq.Len() != len(b.tokens) {
			t.Fatalf("%s: entry %d: closed %v, %d tokens of %d", what, i, e.seq.Closed(), e.seq.Len(), len(b.tokens))
		}
		e.drafts.each(func(x *cache.Seq) {
			if x.Closed() || x.Len() != len(b.tokens) {
				t.Fatalf("%s: entry %d: a drafter's part is closed or has %d tokens of %d", what, i, x.Len(), len(b.tokens))
			}
		})
		if e.writing != nil {
			if writing++; len(e.writing.out.tokens) != len(e.tokens) {
				t.Fatalf("%s: %d tokens are written of an entry of %d", what, len(e.writing.out.tokens), len(e.tokens))
			}
		}
	}
	used := int64(c.target.UsedBytes())
	for _, m := range c.drafters {
		if m != nil {
			used += int64(m.UsedBytes())
		}
	}
	if c.bytes() != used || used > c.limit {
		t.Fatalf("%s: the cache counts %d bytes of %d, sequences hold %d", what, c.bytes(), c.limit, used)
	}
	got := CacheStats{Evicted: c.stats.Evicted, Shortened: c.stats.Shortened, TooLarge: c.stats.TooLarge}
	if got != s.stats {
		t.Fatalf("%s: counted %+v, want %+v", what, got, s.stats)
	}
	if temp, _ := filepath.Glob(filepath.Join(s.d.dir, "*"+tempExt)); len(temp) != writing {
		t.Fatalf("%s: %d temporary files of %d entries that are being written", what, len(temp), writing)
	}
}

// TestPrefixesAgainstAModel: whatever is added, found, dropped, shortened and written, the prefix cache holds what a
// list that is kept by hand holds, in the same order of use, and no memory and no file beside it.
func TestPrefixesAgainstAModel(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	dims := backend.KVDims{Heads: 1, KeyDim: 8, ValueDim: 8, Key: quant.F16, Value: quant.F16}
	attention := cache.Spec{Layers: []cache.Layer{{KVDims: dims}}}
	window := cache.Spec{Layers: []cache.Layer{{KVDims: dims}, {KVDims: dims, Window: 100}}}
	recurrent := cache.Spec{Layers: []cache.Layer{{KVDims: dims}}, Recurrent: []int{0},
		Delta: backend.DeltaDims{KHeads: 1, VHeads: 1, KDim: 4, VDim: 4, Kernel: 4}}
	for name, specs := range map[string][]cache.Spec{
		"attention": {attention}, "windows": {window, {}, attention}, "recurrent": {recurrent, attention},
		"drafters": {attention, attention, {}, window},
	} {
		for seed := range uint64(12) {
			r := rand.New(rand.NewPCG(seed, 3))
			s := &shelf{t: t, specs: specs, c: &prefixes{limit: int64(8000 + r.IntN(60000))}}
			for i, spec := range specs {
				m, err := cache.New([]backend.Backend{dev}, spec)
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					s.c.target = m
					continue
				}
				if len(spec.Layers) == 0 {
					m = nil // a source that keeps nothing
				}
				s.c.drafters = append(s.c.drafters, m)
			}
			var err error
			s.d, err = openDisk(&disk{root: t.TempDir(), model: "model", limit: 1 << 30, log: slog.New(slog.DiscardHandler),
				stats: &CacheStats{}, wake: func() {}, sources: s.everyone(), cuttable: s.c.cuttable})
			if err != nil {
				t.Fatal(err)
			}
			for step := range 150 {
				s.random(r, fmt.Sprintf("%s, seed %d, step %d", name, seed, step))
			}
			s.c.shrink(0)
			s.want, s.stats.Evicted, s.stats.Shortened = nil, s.c.stats.Evicted, s.c.stats.Shortened
			s.check("emptied")
			s.d.close()
			s.checkFiles()
		}
	}
}

// randomText begins as other texts do, sometimes long, sometimes to the border of a page.
func randomText(r *rand.Rand) text {
	n := 1 + r.IntN(400)
	switch r.IntN(6) {
	case 0:
		n = (1 + n/cache.PageTokens) * cache.PageTokens
	case 1:
		n += 1024
	}
	out := text{tokens: randomPrompt(uint64(r.IntN(3)), n)}
	if k := r.IntN(2 * n); k < n { // another end
		copy(out.tokens[k:], randomPrompt(uint64(5+r.IntN(3)), n-k))
	}
	if r.IntN(4) == 0 {
		out.salt = saltOf("other")
	}
	return out
}

// random does one thing to the cache and to the model.
func (s *shelf) random(r *rand.Rand, what string) {
	t, c := s.t, s.c
	some := set(r.IntN(8)) & s.everyone()
	at, op := r.IntN(max(1, len(c.entries))), r.IntN(10)
	switch {
	case op < 4: // a new entry
		b := &book{text: randomText(r), sources: some}
		b.whole = len(b.tokens)
		b.e = &entry{text: text{b.salt, slices.Clone(b.tokens)}, seq: remembers(t, c.target, len(b.tokens)),
			drafts: make(contexts, len(c.drafters))}
		for i := range c.drafters {
			if some.has(i) {
				b.e.drafts[i] = remembers(t, c.drafters[i], len(b.tokens))
			}
		}
		whole := 0
		if r.IntN(3) == 0 {
			whole = len(b.tokens) + r.IntN(3000)
		}
		c.add(b.e, whole)
		s.add(b, whole)
		if !slices.Contains(c.entries, b.e) && !b.e.seq.Closed() {
			t.Fatalf("%s: what was not kept is not closed", what)
		}
	case op < 7: // a request
		prompt := randomText(r)
		if r.IntN(3) == 0 && len(c.entries) > 0 { // one that goes on with what is there
			prompt = text{c.entries[at].salt, append(slices.Clone(c.entries[at].tokens), 1)}
		}
		longest := 0
		for _, b := range s.want {
			longest = max(longest, b.common(prompt))
		}
		if n := c.longest(prompt); n != longest {
			t.Fatalf("%s: the longest common beginning is %d, want %d", what, n, longest)
		}
		e, n := c.find(prompt, some)
		at, k := s.find(prompt, some)
		if n != k || (e == nil) != (at < 0) || e != nil && e != s.want[at].e {
			t.Fatalf("%s: %d tokens found, want %d, or another entry", what, n, k)
		}
		if e == nil {
			break
		}
		seq, drafts, err := c.take(e, n, some)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if seq.Len() != n || drafts.sources() != some || drafts.at(n)&e.drafts.sources() != some&e.drafts.sources() ||
			drafts.at(0) != some&^e.drafts.sources() {
			t.Fatalf("%s: %d tokens taken, drafters %b of which %b know them; want %d and %b", what, seq.Len(),
				drafts.sources(), drafts.at(n), n, some)
		}
		seq.Close()
		drafts.close()
		s.use(at)
	case op == 7 && len(c.entries) > 0:
		c.drop(c.entries[at])
		s.want = slices.Delete(s.want, at, at+1)
	case op == 8:
		limit := c.limit * int64(r.IntN(5)) / 4
		c.shrink(limit)
		s.shrink(limit)
	case op == 9 && len(c.entries) > 0: // a piece of a file
		e := c.entries[at]
		if e.writing == nil {
			var err error
			if e.writing, err = s.d.begin(e); err != nil {
				t.Fatal(err)
			}
			if r.IntN(2) == 0 {
				break // nothing is written yet
			}
		}
		done, err := e.writing.more(1)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			e.writing = nil
			s.d.wg.Wait()
		}
	}
	for _, n := range []int{1, 63, 64, 65, 100, 101, 500, 4000} {
		most, cuttable := n, true
		if s.bytes(n, s.everyone()) > c.limit {
			most = min(n, s.half())
		}
		for _, spec := range s.specs {
			cuttable = cuttable && len(spec.Recurrent) == 0
			for _, l := range spec.Layers {
				cuttable = cuttable && (l.Window == 0 || n <= l.Window)
			}
		}
		if c.keeps(n) != most || c.cuttable(n) != cuttable {
			t.Fatalf("%s: %d of %d tokens can be kept, cuttable %v; want %d, %v", what, c.keeps(n), n, c.cuttable(n), most,
				cuttable)
		}
	}
	s.check(what)
}

// checkFiles loads every file that was written: each has all tokens of its header.
func (s *shelf) checkFiles() {
	s.t.Helper()
	if open := openFiles(s.d.dir); len(open) > 0 {
		s.t.Fatalf("open: %v", open)
	}
	for _, f := range s.d.files {
		h, err := s.d.readHeader(f.path)
		if err != nil || !slices.Equal(h.tokens, f.tokens) || h.drafts != f.drafts || h.salt != f.salt {
			s.t.Fatalf("%s: %v, or another text", f.path, err)
		}
		in, err := os.Open(f.path)
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := in.Seek(f.head, 0); err != nil {
			s.t.Fatal(err)
		}
		for i := range s.specs {
			if i > 0 && !f.drafts.has(i-1) {
				continue
			}
			seq, err := s.memoryOf(i - 1).ReadSeq(in)
			if err != nil || seq.Len() != len(f.tokens) {
				s.t.Fatalf("%s: part %d: %v", f.path, i, err)
			}
			seq.Close()
		}
		in.Close()
	}
}

// openFiles lists what this process has open below a folder, where the system tells.
func openFiles(dir string) (open []string) {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			if rel, err := filepath.Rel(dir, to); err == nil && filepath.IsLocal(rel) && rel != "." {
				open = append(open, to)
			}
		}
	}
	return open
}
