package engine

import (
	"slices"
	"testing"
)

// TestDiskGainBorder: a file is read for 32 tokens more than memory has, and for 31 it is not; one that is larger than
// the whole cache in memory is never read.
func TestDiskGainBorder(t *testing.T) {
	dir := t.TempDir()
	const long = 150
	first := newByHand(t, "first", loadGolden(t, "qwen3", false), Config{CacheDir: dir})
	first.sent = []*sent{{g: submit(t, first.e, Request{Tokens: randomPrompt(1, long), PromptOnly: true})}}
	first.end()
	for _, c := range []struct {
		have int
		read bool
	}{{0, true}, {long - 1 - diskGain, true}, {long - diskGain, false}, {long - 1, false}} {
		for _, exact := range []int64{0, 1, -1} {
			h := newByHand(t, "second", loadGolden(t, "qwen3", false), Config{CacheDir: dir, Parallel: 1})
			l := h.l
			if len(l.disk.files) != 1 || len(l.disk.files[0].tokens) != long {
				t.Fatalf("%d files, want one of %d tokens", len(l.disk.files), long)
			}
			if c.have > 0 {
				l.cache.add(&entry{text: text{tokens: randomPrompt(1, c.have)}, saved: true,
					seq: remembers(t, l.cache.target, c.have)}, 0)
			}
			if exact != 0 { // as large as the file, or a byte less
				l.cache.limit = l.disk.files[0].size + min(exact, 0)
			}
			want := c.read && exact >= 0
			j := newJob(l.m, newGeneration(t.Context(), Request{Tokens: randomPrompt(1, long)}))
			r := l.wanted(j)
			if (r != nil) != want {
				t.Errorf("%d tokens in memory, limit %d bytes of %d: the file is read: %v, want %v", c.have, l.cache.limit,
					l.disk.files[0].size, r != nil, want)
			}
			if want && l.wanted(j) != r {
				t.Error("a file is read twice at a time")
			}
			l.disk.wg.Wait()
			for len(l.restores) > 0 {
				l.restoreStep()
			}
			if open := openFiles(dir); len(open) > 0 {
				t.Errorf("open after a restore: %v", open)
			}
			if n := len(l.cache.entries); want && (n != 1 || len(l.cache.entries[0].tokens) != long) {
				t.Errorf("%d entries after a restore", n)
			}
			l.publish()
			h.end()
		}
	}
}

// TestShortenedWhileWritten: an entry that gets shorter while its file is being written gets another file, of what is
// left of it.
func TestShortenedWhileWritten(t *testing.T) {
	dir := t.TempDir()
	h := newByHand(t, "shortened", loadGolden(t, "qwen3", false), Config{CacheDir: dir, CacheMinTokens: 20})
	l := h.l
	e := &entry{text: text{tokens: randomPrompt(1, 200)}, seq: remembers(t, l.cache.target, 200)}
	l.cache.add(e, 0)
	var err error
	if e.writing, err = l.disk.begin(e); err != nil {
		t.Fatal(err)
	}
	if done, err := e.writing.more(1); done || err != nil {
		t.Fatalf("the file is complete at once, or %v: the test says nothing", err)
	}
	l.soon = append(l.soon, e)
	l.cache.shrink(l.cache.bytes - 1)
	if n := len(e.tokens); n >= 200 || n == 0 || e.writing != nil {
		t.Fatalf("%d tokens are left, still being written: %v", n, e.writing != nil)
	}
	l.publish()
	h.end()
	files := prefixFiles(t, dir)
	if len(files) != 1 {
		t.Fatalf("%d files, want one", len(files))
	}
	f, err := l.disk.readHeader(files[0])
	if err != nil || !slices.Equal(f.tokens, e.tokens) {
		t.Errorf("the file has another text than the entry: %v", err)
	}
}
