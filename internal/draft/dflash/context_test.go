package dflash

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/quant"
)

// history is the features of a long text.
type history struct {
	width int
	v     []float32
}

func newHistory(d *Drafter, seed uint64, n int) history {
	w := len(d.Capture()) * d.target.Hidden
	return history{w, normal(seed, n*w, 0, 1)}
}

func (h history) rows(from, to int) []float32 { return h.v[from*h.width : to*h.width] }

// fresh returns a sequence that has seen the first n rows in the largest portions.
func (h history) fresh(t *testing.T, d *Drafter, n int) *cache.Seq {
	t.Helper()
	seq := d.NewSeq()
	for from := 0; from < n; from += 512 {
		feed(t, d, seq, h.rows(from, min(n, from+512)))
	}
	return seq
}

// TestSlidesForever: thousands of tokens in rounds of a few, drafts between them, sliding and full layers:
// never a failure, at any point the bits of a context built in one go, and pages that left the
// windows are given back.
func TestSlidesForever(t *testing.T) {
	const n = 6000
	for name, window := range map[string]int{"qwen35": WindowOff, "gemma4": 0} {
		m := openTarget(t, name)
		d := golden(t, name).open(t, m, Options{Window: window})
		h := newHistory(d, 1, n)
		r := rand.New(rand.NewPCG(4, 4))
		seq := d.NewSeq()
		next := 0
		for seq.Len() < n {
			k := min(1+r.IntN(17), n-seq.Len())
			feed(t, d, seq, h.rows(seq.Len(), seq.Len()+k))
			req := draft.Request{Seq: seq, Last: int32(r.IntN(500)), N: 1 + r.IntN(d.Max())}
			if _, err := d.Draft([]draft.Request{req}, 2); err != nil {
				t.Fatalf("%s: draft after %d tokens: %v", name, seq.Len(), err)
			}
			if seq.Len() >= next {
				again := h.fresh(t, d, seq.Len())
				if !sameBits(blockLogits(t, d, seq, 5), blockLogits(t, d, again, 5)) {
					t.Fatalf("%s: after %d tokens in rounds: other bits than in one go", name, seq.Len())
				}
				again.Close()
				next = seq.Len() + n/6
			}
		}
		for g := range d.mem.Groups() {
			used, w := d.mem.Pool(g).Used(), d.mem.Window(g)
			if w > 0 && used > (w+d.block)/cache.PageTokens+2 {
				t.Errorf("%s: a window of %d holds %d pages after %d tokens", name, w, used, n)
			}
			if w == 0 && used < n/cache.PageTokens {
				t.Errorf("%s: full layers hold %d pages after %d tokens", name, used, n)
			}
		}
	}
}

// TestFourSequences: sequences that extend and draft in common passes give the bits each gives alone.
func TestFourSequences(t *testing.T) {
	m := openTarget(t, "qwen35")
	for _, c := range []struct {
		name string
		file *drafterFile
	}{{"plain", golden(t, "qwen35")}, {"markov", markovFile(t, "qwen35", 0)}, {"selector", selectorFile(t, "qwen35")}} {
		t.Run(c.name, func(t *testing.T) {
			d := c.file.open(t, m, Options{})
			const n = 200
			var hs []history
			var seqs []*cache.Seq
			for i := range 4 {
				hs = append(hs, newHistory(d, uint64(20+i), n))
				seqs = append(seqs, d.NewSeq())
			}
			r := rand.New(rand.NewPCG(8, 8))
			for round := range 25 {
				// Rows of all sequences lie interleaved, as a mixed batch leaves them.
				var items []draft.Rows
				var v []float32
				take := make([]int, 4)
				for i, s := range seqs {
					take[i] = min(r.IntN(9), n-s.Len())
					items = append(items, draft.Rows{Seq: s})
				}
				for k := range 9 {
					for i, s := range seqs {
						if k < take[i] {
							items[i].Rows = append(items[i].Rows, int32(len(v)/hs[i].width))
							v = append(v, hs[i].rows(s.Len()+k, s.Len()+k+1)...)
						}
					}
				}
				if len(v) > 0 {
					if err := d.Extend(upload(d.b, v, len(v)/hs[0].width, hs[0].width), items); err != nil {
						t.Fatal(err)
					}
				}
				d.rule.sliding = r.IntN(2) > 0
				var reqs []draft.Request
				for i, s := range seqs {
					if r.IntN(4) > 0 {
						reqs = append(reqs, draft.Request{Seq: s, Last: int32(10*i + round), N: 1 + r.IntN(d.Max())})
					}
				}
				all := propose(t, d, 3, reqs...)
				for j, q := range reqs {
					i := slices.Index(seqs, q.Seq.(*cache.Seq))
					q.Seq = hs[i].fresh(t, d, seqs[i].Len())
					alone := propose(t, d, 3, q)[0]
					q.Seq.Close()
					for at := range alone.At {
						if !slices.Equal(alone.At[at], all[j].At[at]) {
							t.Fatalf("round %d, sequence %d, position %d: %v together, %v alone", round, i, at, all[j].At[at], alone.At[at])
						}
					}
				}
			}
		})
	}
}

// TestDraftLeavesNoTrace: drafting changes nothing of the context, also when another sequence shares its
// pages.
func TestDraftLeavesNoTrace(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").open(t, m, Options{})
	for _, n := range []int{1, 60, 63, 64, 65, 130} {
		h := newHistory(d, uint64(n), n+40)
		seq := h.fresh(t, d, n)
		twin, err := seq.Fork()
		if err != nil {
			t.Fatal(err)
		}
		want := blockLogits(t, d, seq, 3)
		for i := range 5 {
			propose(t, d, 2, draft.Request{Seq: seq, Last: int32(i), N: 1 + 3*i})
			if seq.Len() != n {
				t.Fatalf("a draft left %d tokens of %d", seq.Len(), n)
			}
		}
		if !sameBits(blockLogits(t, d, seq, 3), want) || !sameBits(blockLogits(t, d, twin, 3), want) {
			t.Errorf("%d tokens: other bits after drafts", n)
		}
		feed(t, d, seq, h.rows(n, n+40))
		if !sameBits(blockLogits(t, d, twin, 3), want) {
			t.Errorf("%d tokens: a fork changed with its original", n)
		}
		if !sameBits(blockLogits(t, d, seq, 3), blockLogits(t, d, h.fresh(t, d, n+40), 3)) {
			t.Errorf("%d tokens: drafts before an extension show after it", n)
		}
	}
}

// poisonScratch overwrites everything a pass could read by mistake.
func (d *Drafter) poisonScratch() {
	d.arenas[0].Poison(float32(math.NaN()))
	for g := range d.mem.Groups() {
		pool := d.mem.Pool(g)
		junk := make([]byte, pool.PageBytes())
		for i := range junk {
			junk[i] = 0xff // NaN in every float type
		}
		var pages []int32
		for range 4 { // pages that will be handed out next
			p, err := pool.Alloc()
			if err != nil {
				panic(err)
			}
			pool.WritePage(p, junk)
			pages = append(pages, p)
		}
		for _, p := range pages {
			pool.Free(p)
		}
	}
}

// TestContextIsBounded: what a context takes does not grow with the text, whatever the file says of windows.
func TestContextIsBounded(t *testing.T) {
	m := openTarget(t, "qwen3")
	const n = 300
	for name, c := range map[string]struct {
		file *drafterFile
		opt  Options
	}{
		"asked for":     {golden(t, "qwen3"), Options{Window: 100}},
		"in the file":   {golden(t, "qwen35"), Options{Window: 100}},
		"no windows":    {golden(t, "qwen3").del("dflash.attention.sliding_window"), Options{Window: 100}},
		"quantised too": {golden(t, "qwen3"), Options{Window: 100, KV: cache.Uniform(quant.Q8_0)}},
	} {
		target := m
		if name == "in the file" {
			target = openTarget(t, "qwen35")
		}
		d := c.file.open(t, target, c.opt)
		h := newHistory(d, 1, n)
		var held []int
		seq := d.NewSeq()
		for range 10 {
			feed(t, d, seq, h.rows(0, n))
			if _, err := d.Draft([]draft.Request{{Seq: seq, Last: 7, N: d.Max()}}, 2); err != nil {
				t.Fatal(err)
			}
			held = append(held, seq.Bytes())
		}
		page := 0
		for g := range d.mem.Groups() {
			page += d.mem.Pool(g).PageBytes()
		}
		if grown := held[9] - held[0]; grown > page {
			t.Errorf("%s: %d bytes after %d tokens, %d after %d", name, held[0], n, held[9], 10*n)
		}
		if d.mem.TokenBytes() != 0 {
			t.Errorf("%s: a token costs %d bytes", name, d.mem.TokenBytes())
		}
	}
}

// TestKnownWindows: a file without windows whose name is known gets them, for all layers but the last.
func TestKnownWindows(t *testing.T) {
	m := openTarget(t, "qwen3")
	bare := func() *drafterFile {
		return golden(t, "qwen3").del("dflash.attention.sliding_window").del("dflash.attention.sliding_window_pattern")
	}
	d := bare().set("general.name", "Qwen3.6 27B DFlash").open(t, m, Options{})
	for i, w := range d.window {
		if want := 2048; i < len(d.window)-1 && w != want || i == len(d.window)-1 && w != 0 {
			t.Errorf("layer %d has a window of %d", i, w)
		}
	}
	if d.full != fullWindow || d.mem.TokenBytes() != 0 {
		t.Errorf("layers that do not slide see %d tokens, a token costs %d bytes", d.full, d.mem.TokenBytes())
	}
	d = bare().set("general.name", "nobody").open(t, m, Options{})
	if !d.trial.open || d.trial.from != trialWindow || d.slides() {
		t.Errorf("no trial of an unknown drafter: %+v", d.trial)
	}
	if d = bare().open(t, m, Options{Window: WindowOff}); d.trial.open || d.full != 0 || d.mem.TokenBytes() == 0 {
		t.Errorf("windows that were turned off: %+v", d.trial)
	}
}

// TestTrialFindsTheWindow: drafts look back a window and farther by turns, and the tokens that follow decide.
func TestTrialFindsTheWindow(t *testing.T) {
	m := openTarget(t, "qwen3")
	bare := golden(t, "qwen3").del("dflash.attention.sliding_window").del("dflash.attention.sliding_window_pattern")
	for want := range 2 {
		d, judge := bare.open(t, m, Options{}), bare.open(t, m, Options{})
		const window = 20
		d.trial.from, judge.trial = window, trial{}
		if want == 1 {
			judge.seen = window
		}
		h := newHistory(d, 4, 400)
		seq := h.fresh(t, d, 30)
		for drafts := 0; d.trial.open; drafts++ {
			if drafts > 3*trialDrafts {
				t.Fatalf("no verdict after %d drafts: %+v", drafts, d.trial)
			}
			last, from := int32(drafts), seq.Len()
			text := propose(t, judge, 1, draft.Request{Seq: h.fresh(t, judge, from), Last: last, N: 3})[0].Chain([]int32{last})
			propose(t, d, 2, draft.Request{Seq: seq, Last: last, N: 3})
			v := h.rows(from, from+4)
			err := d.Extend(upload(d.b, v, 4, h.width), []draft.Rows{{Seq: seq, Tokens: text, Rows: []int32{0, 1, 2, 3}}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if d.seen != want*window {
			t.Errorf("text of rule %d: drafts look %d tokens back", want, d.seen)
		}
	}
}

// TestRestoredWindow: a context that was saved and restored, or cut, has all that a block sees, which is a token more
// than the next token would, also where that one lies on a page of its own.
func TestRestoredWindow(t *testing.T) {
	const window = 30
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").open(t, m, Options{Window: window})
	h := newHistory(d, 1, 3*cache.PageTokens)
	for n := cache.PageTokens + window - 3; n < cache.PageTokens+window+3; n++ {
		seq := h.fresh(t, d, n)
		want := blockLogits(t, d, seq, 7)
		var saved bytes.Buffer
		if _, err := seq.WriteTo(&saved); err != nil {
			t.Fatal(err)
		}
		back, err := d.Memory().ReadSeq(&saved)
		if err != nil {
			t.Fatal(err)
		}
		if !sameBits(blockLogits(t, d, back, 7), want) {
			t.Errorf("%d tokens: other bits after they were restored", n)
		}
		for longer := n + 1; longer < n+window; longer++ {
			feed(t, d, seq, h.rows(longer-1, longer))
			if !seq.CanCut(n) {
				break
			}
			f, err := seq.Fork()
			if err == nil {
				err = f.Truncate(n)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !sameBits(blockLogits(t, d, f, 7), want) {
				t.Errorf("%d tokens: other bits after %d were cut", n, longer)
			}
			f.Close()
		}
		seq.Close()
		back.Close()
	}
}
