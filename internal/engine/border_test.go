package engine

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/testkit"
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
	l.cache.shrink(l.cache.bytes() - 1)
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

// TestStopsAgainstAModel: text ends before the stop string that begins first, the first in the list of several, however
// its bytes come; before that all is said but what a stop string may begin with.
func TestStopsAgainstAModel(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 71))
		letters := func(n int) (out []byte) {
			for range n {
				out = append(out, "ab"[r.IntN(2)])
			}
			return out
		}
		x := &Text{}
		for range r.IntN(4) {
			x.stops = append(x.stops, letters(1+r.IntN(5)))
		}
		var all, said []byte
		for range 12 {
			b := letters(r.IntN(4))
			all = append(all, b...)
			text, done := x.add(slices.Clone(b))
			said = append(said, text...)
			first, stop, keep := -1, []byte(nil), 0
			for _, s := range x.stops {
				if i := bytes.Index(all, s); i >= 0 && (first < 0 || i < first) {
					first, stop = i, s
				}
				for n := range s {
					if bytes.HasSuffix(all, s[:n]) {
						keep = max(keep, n)
					}
				}
			}
			want := all[:len(all)-keep]
			if first >= 0 {
				want = all[:first]
			}
			if done != (first >= 0) || !bytes.Equal(said, want) || !bytes.Equal(x.Stopped, stop) {
				t.Fatalf("seed %d, stops %q: of %q it says %q and stops by %q, %t; want %q and %q", seed, x.stops, all, said,
					x.Stopped, done, want, stop)
			}
			if done {
				break
			}
		}
	}
}

// TestProgress: when it begins and after every step, a request that asks for it gets how far its prompt is; others do
// not.
func TestProgress(t *testing.T) {
	for _, asked := range []bool{true, false} {
		h := newByHand(t, "progress", loadGolden(t, "qwen3", false), Config{Chunk: 64})
		g := submit(t, h.e, Request{Tokens: randomPrompt(1, 200), MaxTokens: 3, IgnoreEOG: true, Progress: asked})
		over, cancel := context.WithCancel(t.Context())
		cancel() // what is there is read, nothing is waited for
		var reported []int
		h.sent = []*sent{{g: g}}
		for range 3 {
			if !h.l.admit() {
				t.Fatal("the loop ends")
			}
			if ev, err := g.Next(over); err == nil && ev.Prompt != nil {
				reported = append(reported, ev.Prompt.Processed)
			}
			if _, err := h.l.turn(); err != nil {
				t.Fatal(err)
			}
			if ev, err := g.Next(over); err == nil && ev.Prompt != nil {
				reported = append(reported, ev.Prompt.Processed)
				if ev.Prompt.Phase != PhasePrompt || ev.Prompt.Slot != 0 {
					t.Errorf("reported %+v", ev.Prompt)
				}
			}
		}
		if want := []int{0, 64, 128, 192}; asked != slices.Equal(reported, want) || !asked && reported != nil {
			t.Errorf("asked %t: reported %v, want %v", asked, reported, want)
		}
		h.sent = nil
		for h.l.jobs != nil && len(h.l.jobs) > 0 {
			if _, err := h.l.turn(); err != nil {
				t.Fatal(err)
			}
		}
		if ev := wait(t, g); ev.Result.Generated != 3 {
			t.Errorf("%d tokens", ev.Result.Generated)
		}
		h.e.closing = true
		h.l.close()
		if err := h.e.model.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTypeOfDraftersCache: a drafter keeps halves, or what KVDraft says; where the target keeps floats it does, too.
func TestTypeOfDraftersCache(t *testing.T) {
	for _, c := range []struct{ kv, draft, want string }{
		{"", "", "f16"}, {"f32", "", "f32"}, {"F32", "", "f32"}, {"f32", "f16", "f16"}, {"", "f32", "f32"},
		{"q8_0", "", "f16"},
	} {
		m, err := Load(testkit.Golden(t, "qwen3/model.gguf"), Options{Threads: 1, KV: c.kv, KVDraft: c.draft,
			Drafter: testkit.Golden(t, "dflash-qwen3/model.gguf")})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Drafter.Memory().Types(); len(got) != 1 || got[0] != c.want {
			t.Errorf("%+v: the drafter keeps %v", c, got)
		}
		m.Close()
	}
}
