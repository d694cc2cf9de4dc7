package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/speculate"
)

// byHand is an engine whose loop the test turns itself, so that it can look at everything between two turns.
type byHand struct {
	t    *testing.T
	what string
	l    *loop
	e    *Engine
	dir  string // of the cache
	sent []*sent
	past []*sent // of an engine before, with the same folder

	embeds []chan error
}

// sent is a request and what the model says to it alone.
type sent struct {
	g         *Generation
	want      []int32
	ev        Event
	ended     bool
	cancelled bool
}

func newByHand(t *testing.T, what string, m *Model, cfg Config) *byHand {
	t.Helper()
	e := &Engine{model: m, files: m.files, cfg: cfg.withDefaults(m), work: make(chan struct{}, 1),
		done: make(chan struct{})}
	for i := range e.cfg.Parallel {
		e.snap.Slots = append(e.snap.Slots, Slot{ID: i, State: State{Slot: -1}})
	}
	h := &byHand{t: t, what: what, e: e, l: newLoop(e), dir: cfg.CacheDir}
	h.l.prepare()
	return h
}

// turn runs the loop once and looks at all of it.
func (h *byHand) turn() {
	h.t.Helper()
	if !h.l.admit() {
		h.t.Fatalf("%s: the loop ends", h.what)
	}
	busy, err := h.l.turn()
	if err != nil {
		h.t.Fatalf("%s: %v", h.what, err)
	}
	h.check()
	if !busy { // something is read or written in the background
		select {
		case <-h.e.work:
		case <-time.After(time.Millisecond):
		}
	}
}

// until turns the loop until a condition holds.
func (h *byHand) until(what string, ok func() bool) {
	h.t.Helper()
	for range 20000 {
		if ok() {
			return
		}
		h.turn()
	}
	h.t.Fatalf("%s: never: %s", h.what, what)
}

// end closes the engine as Close does and looks for what is left.
func (h *byHand) end() {
	h.t.Helper()
	h.until("all requests end", func() bool { return len(h.l.jobs) == 0 && len(h.e.queue) == 0 && len(h.l.embeds) == 0 })
	h.e.closing = true
	if h.l.admit() {
		h.t.Fatalf("%s: the loop goes on although the engine closes", h.what)
	}
	h.l.close()
	close(h.e.done)
	h.check()
	if s := h.e.Snapshot(); s.TargetBytes != 0 || s.DrafterBytes != 0 || s.Cache.Bytes != 0 || s.Cache.Entries != 0 {
		h.t.Fatalf("%s: in the end %d and %d bytes are in use, %d of them in the cache", h.what, s.TargetBytes,
			s.DrafterBytes, s.Cache.Bytes)
	}
	if h.dir != "" {
		prefixFiles(h.t, h.dir) // complains of temporary ones
		if open := openFiles(h.dir); len(open) > 0 {
			h.t.Fatalf("%s: open: %v", h.what, open)
		}
	}
	for _, c := range h.embeds {
		if err := <-c; err != nil && !errors.Is(err, ErrNoMemory) {
			h.t.Fatalf("%s: embedding: %v", h.what, err)
		}
	}
	if err := h.e.model.Close(); err != nil {
		h.t.Fatal(err)
	}
}

// check looks at slots, memory, the cache, its files and the counters: all say the same at any time.
func (h *byHand) check() {
	t, l := h.t, h.l
	t.Helper()
	snap := h.e.Snapshot()
	for i, j := range l.slots {
		if j != nil && (j.slot != i || !slices.Contains(l.jobs, j)) || snap.Slots[i].Busy != (j != nil) {
			t.Fatalf("%s: slot %d is busy: %v, its job is elsewhere", h.what, i, snap.Slots[i].Busy)
		}
	}
	if snap.Active() != len(l.jobs) {
		t.Fatalf("%s: %d jobs in %d busy slots", h.what, len(l.jobs), snap.Active())
	}
	h.checkMemory()
	if l.cache != nil {
		bytes := l.cache.bytes()
		for _, e := range l.cache.entries {
			if e.seq.Closed() || e.seq.Len() != len(e.tokens) || e.drafts.at(len(e.tokens)) != e.drafts.sources() {
				t.Fatalf("%s: an entry of %d tokens remembers %d, drafters %b of %b", h.what, len(e.tokens), e.seq.Len(),
					e.drafts.at(len(e.tokens)), e.drafts.sources())
			}
		}
		if bytes > l.cache.limit || snap.Cache.Bytes != bytes || len(l.cache.entries) == 0 && bytes != 0 {
			t.Fatalf("%s: the cache counts %d bytes of %d for %d entries, and shows %d", h.what, bytes, l.cache.limit,
				len(l.cache.entries), snap.Cache.Bytes)
		}
	}
	h.checkCounts(&snap)
}

// checkMemory compares the memory in use with what jobs, entries and embeddings hold.
func (h *byHand) checkMemory() {
	h.t.Helper()
	if len(h.l.restores) > 0 {
		return // the cache package has what is half read
	}
	for i := -1; i < len(h.l.drafters); i++ {
		m := h.l.m.Target.Memory()
		if i >= 0 {
			m = h.l.drafters[i]
		}
		if m == nil {
			continue
		}
		var seqs []*cache.Seq
		add := func(target *cache.Seq, drafts contexts) {
			if i >= 0 {
				target = nil
				if i < len(drafts) {
					target = drafts[i]
				}
			}
			if target != nil {
				seqs = append(seqs, target)
			}
		}
		for _, j := range h.l.jobs {
			add(j.seq, j.drafts)
			if j.paused && (j.seq != nil || j.stream != nil) {
				h.t.Fatalf("%s: a paused job has memory", h.what)
			}
		}
		if h.l.cache != nil {
			for _, e := range h.l.cache.entries {
				add(e.seq, e.drafts)
			}
		}
		for _, c := range h.l.embeds {
			add(c.seq, nil)
		}
		if held := m.Held(seqs); held != m.UsedBytes() {
			h.t.Fatalf("%s: memory %d: %d bytes are in use, jobs and entries hold %d", h.what, i, m.UsedBytes(), held)
		}
	}
}

// checkCounts compares the counters with the requests that ended, and those with what the model says.
func (h *byHand) checkCounts(snap *Snapshot) {
	t := h.t
	t.Helper()
	reasons := map[Reason]int64{}
	var cached, generated, asked, found, looked int
	for _, s := range h.sent {
		select {
		case <-s.g.Done():
		default:
			if r := s.g.State(); r.Processed > len(s.g.req.Tokens) || r.Phase == PhaseDone {
				t.Fatalf("%s: a running request is at %+v", h.what, r)
			}
			continue
		}
		if !s.ended {
			s.ended = true
			var err error
			if s.ev, err = s.g.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.checkEnd(s)
		}
		r := s.ev.Result
		reasons[r.Reason]++
		cached += r.Cached
		generated += r.Generated
		if r.Slot >= 0 && !s.g.req.NoCache && (r.Prompt > 0 && s.ev.Result.Stats.Prompt > 0) {
			asked, found, looked = asked+r.Prompt, found+r.Cached, looked+1
		}
	}
	if !maps.Equal(reasons, snap.Requests) {
		t.Fatalf("%s: ended %v, counted %v", h.what, reasons, snap.Requests)
	}
	if snap.Stats.Cached != cached {
		t.Fatalf("%s: %d tokens cached, counted %d", h.what, cached, snap.Stats.Cached)
	}
	if len(h.l.jobs) == 0 && h.l.cache != nil {
		c := snap.Cache
		if c.Found != int64(cached) || c.Asked < int64(asked) || c.Hits+c.Misses < int64(looked) || c.Found < int64(found) {
			t.Fatalf("%s: %d of %d tokens found for %d requests, counted %+v", h.what, cached, asked, looked, c)
		}
	}
}

// checkEnd compares what a request got with what the model says alone.
func (h *byHand) checkEnd(s *sent) {
	t, r, req := h.t, s.ev.Result, &s.g.req
	t.Helper()
	got := ids(s.ev.Tokens)
	switch {
	case r.Reason == ReasonCancelled && s.cancelled:
		if len(got) > len(s.want) || !slices.Equal(got, s.want[:len(got)]) || !errors.Is(r.Err, context.Canceled) {
			t.Fatalf("%s: a cancelled request got another text, error %v", h.what, r.Err)
		}
	case r.Err != nil || r.Reason != ReasonLength || !slices.Equal(got, s.want) || r.Generated != len(s.want):
		t.Fatalf("%s: %v, error %v: %d tokens of %d, or another text", h.what, r.Reason, r.Err, len(got), len(s.want))
	}
	if r.Prompt != len(req.Tokens) || r.Cached >= r.Prompt || r.Cached > 0 && req.NoCache {
		t.Fatalf("%s: %d of %d tokens were cached, no cache %v", h.what, r.Cached, r.Prompt, req.NoCache)
	}
	if req.Slot != nil && r.Slot >= 0 && r.Slot != *req.Slot {
		t.Fatalf("%s: it ran in slot %d, not %d", h.what, r.Slot, *req.Slot)
	}
	if r.Cached > 0 && h.shares(s) < r.Cached {
		t.Fatalf("%s: %d tokens were cached, %d of them may be shared", h.what, r.Cached, h.shares(s))
	}
}

// shares is how much of a prompt requests of the same salt have in common with it.
func (h *byHand) shares(s *sent) (n int) {
	for _, x := range slices.Concat(h.past, h.sent) {
		if x != s && !x.g.req.NoCache {
			n = max(n, text{x.g.salt, slices.Concat(x.g.req.Tokens, x.want)}.common(s.g.text()))
		}
	}
	return n
}

// do runs one of the operations on slots, which wait for the loop.
func (h *byHand) do(op func()) {
	done := make(chan struct{})
	go func() {
		op()
		close(done)
	}()
	for {
		h.l.runTasks()
		select {
		case <-done:
			return
		case <-time.After(50 * time.Microsecond):
		}
	}
}

// answers knows what a model says to the prompts of the scenario.
type answers struct {
	t    *testing.T
	name string
	memo map[string][]int32
}

const longestAnswer = 10

func (a *answers) of(req Request) []int32 {
	if req.PromptOnly {
		return nil
	}
	key := fmt.Sprint(req.Tokens, req.Params.Temp)
	if a.memo[key] == nil {
		whole := req
		whole.MaxTokens = longestAnswer
		a.memo[key] = plain(a.t, a.name, whole)
	}
	return a.memo[key][:req.MaxTokens]
}

// randomRequest is one of a few prompts that begin alike.
func randomRequest(r *rand.Rand, slots int) Request {
	seed, n := uint64(r.IntN(2)), []int{30, 64, 130, 300}[r.IntN(4)]
	req := Request{Tokens: randomPrompt(seed, n), MaxTokens: 1 + r.IntN(longestAnswer), IgnoreEOG: true}
	if r.IntN(3) == 0 {
		copy(req.Tokens[n/2:], randomPrompt(7, n))
	}
	if r.IntN(3) == 0 {
		req.Params = seeded
	}
	if r.IntN(3) == 0 {
		req.Salt = "another client"
	}
	if r.IntN(2) == 0 {
		req.Checkpoints = []int{n / 3, n / 2, n - 5}
	}
	if r.IntN(4) == 0 {
		req.Spec.Draft = speculate.Off
	}
	if r.IntN(5) == 0 {
		slot := r.IntN(slots)
		req.Slot = &slot
	}
	req.NoCache, req.PromptOnly = r.IntN(6) == 0, r.IntN(8) == 0
	return req
}

// random does one thing.
func (h *byHand) random(r *rand.Rand, a *answers) {
	t, l := h.t, h.l
	slot := r.IntN(h.e.cfg.Parallel)
	switch r.IntN(12) {
	case 0, 1, 2:
		req := randomRequest(r, h.e.cfg.Parallel)
		s := &sent{g: nil, want: a.of(req)}
		g, err := h.e.Submit(t.Context(), req)
		if full := len(h.e.queue) >= h.e.cfg.Queue+h.e.cfg.Parallel-len(l.jobs); err != nil {
			if !full || !errors.Is(err, ErrQueueFull) {
				t.Fatalf("%s: %v", h.what, err)
			}
			return
		}
		s.g = g
		h.sent = append(h.sent, s)
	case 3:
		if len(h.sent) > 0 {
			s := h.sent[len(h.sent)-1-r.IntN(min(4, len(h.sent)))]
			s.cancelled = true
			s.g.Cancel()
			if !slices.ContainsFunc(l.jobs, func(j *job) bool { return j.g == s.g }) {
				<-s.g.Done() // it leaves the queue at once
			}
		}
	case 4:
		if l.slots[slot] == nil {
			h.erase(slot)
		}
	case 5:
		if l.slots[slot] == nil {
			h.saveAndRestore(slot)
		}
	case 6:
		if len(l.jobs) == 0 && l.disk != nil { // as in an idle moment
			if x := l.unsaved(); x != nil {
				l.save(x, func() bool { return false })
			}
		}
	case 7:
		if r.IntN(4) == 0 && len(l.embeds) == 0 {
			done := make(chan error, 1)
			go func() {
				_, err := h.e.Embed(t.Context(), randomPrompt(3, 90))
				done <- err
			}()
			h.embeds = append(h.embeds, done)
			waitFor(t, "the embedding is in line", func() bool {
				h.e.mu.Lock()
				defer h.e.mu.Unlock()
				return len(h.e.calls) > 0
			})
		}
	default:
		h.turn()
	}
}

// erase forgets a slot: nothing of its text is left in memory, on disk or on the way there.
func (h *byHand) erase(slot int) {
	t, l := h.t, h.l
	was := l.texts[slot]
	h.do(func() {
		if n, err := h.e.EraseSlot(t.Context(), slot); n != len(was.tokens) || err != nil {
			t.Errorf("%s: %d of %d tokens erased, error %v", h.what, n, len(was.tokens), err)
		}
	})
	gone := func(x text) bool { return len(x.tokens) > 0 && x.common(was) == len(x.tokens) }
	for _, e := range slices.Concat(l.cache.entries, l.soon) {
		if gone(e.text) {
			t.Fatalf("%s: an entry of %d tokens is left of an erased slot", h.what, len(e.tokens))
		}
	}
	if l.disk == nil {
		return
	}
	l.disk.wg.Wait()
	for _, f := range l.disk.files {
		if gone(f.text) {
			t.Fatalf("%s: a file of %d tokens is left of an erased slot", h.what, len(f.tokens))
		}
		if _, err := os.Stat(f.path); err != nil {
			t.Fatalf("%s: %v", h.what, err)
		}
	}
	if len(l.texts[slot].tokens) > 0 {
		t.Fatalf("%s: the erased slot has a text", h.what)
	}
}

// saveAndRestore writes a slot's text to a file and takes it back, into the same slot.
func (h *byHand) saveAndRestore(slot int) {
	t, l := h.t, h.l
	was := l.texts[slot]
	owner := ""
	if was.salt != saltOf("") {
		owner = "another client"
	}
	h.do(func() {
		name := "name" + owner
		n, bytes, err := h.e.SaveSlot(t.Context(), slot, owner, name)
		if errors.Is(err, ErrSlotEmpty) || errors.Is(err, ErrNoMemory) { // for the copy that is written
			return
		}
		if err != nil || n < minReuse || n > len(was.tokens) || bytes <= 0 {
			t.Errorf("%s: %d of %d tokens and %d bytes saved, error %v", h.what, n, len(was.tokens), bytes, err)
			return
		}
		if k, _, err := h.e.RestoreSlot(t.Context(), slot, owner, name); err != nil || k < n {
			t.Errorf("%s: %d of %d tokens restored, error %v", h.what, k, n, err)
		}
		if _, _, err := h.e.RestoreSlot(t.Context(), slot, owner, "another"); !errors.Is(err, ErrNotSaved) {
			t.Errorf("%s: a name that was never saved: %v", h.what, err)
		}
	})
	if now := l.texts[slot]; now.common(was) != len(now.tokens) || now.salt != was.salt {
		t.Fatalf("%s: another text was restored", h.what)
	}
}

// TestLoopKeepsItsBooks: whatever requests come, are cancelled, wait for memory, save and erase, after every turn of
// the loop slots, memory, cache, files and counters agree, and every request gets the text that the model says
// alone.
func TestLoopKeepsItsBooks(t *testing.T) {
	paused := map[uint64]int64{} // by seed
	for name, pages := range map[string]int{"qwen3": 9, "qwen35": 9, "gemma4": 13} {
		a := &answers{t: t, name: name, memo: map[string][]int32{}}
		for seed := range uint64(5) {
			r := rand.New(rand.NewPCG(seed, 21))
			var log strings.Builder
			cfg := Config{Parallel: 3, Queue: 3, Chunk: 64, CacheDir: t.TempDir(), SlotDir: t.TempDir(), CacheMinTokens: 20,
				Log: slog.New(slog.NewTextHandler(&log, nil))}
			load := func() *Model { return loadGolden(t, name, true) }
			switch seed {
			case 1: // a small cache, so that entries are shortened and dropped
				m := load()
				cfg.CacheBytes = 3 * sizeOf(m.Target.Memory(), memories(m.Runner), 200)
				m.Close()
			case 2:
				cfg.CacheDir = ""
			case 3, 4: // a small memory, so that jobs wait for each other, without a drafter and with one
				b := &small{Backend: cpu.New(cpu.Options{Threads: 1}), left: pages}
				if load = func() *Model { return smallModel(t, name, b) }; seed == 4 {
					b.left += pages / 2
					load = func() *Model { return loadOn(t, name, b) }
				}
			}
			h := newByHand(t, fmt.Sprintf("%s, seed %d", name, seed), load(), cfg)
			for range 250 {
				h.random(r, a)
			}
			h.end()
			s := h.e.Snapshot()
			if paused[seed] += s.Paused; seed == 0 && s.Cache.Hits == 0 {
				t.Fatalf("%s: no hits", h.what)
			}
			if seed != 0 {
				continue
			}
			// After a restart everything is still there.
			if files, _ := filepath.Glob(filepath.Join(cfg.CacheDir, "*", "*"+prefixExt)); len(files) == 0 {
				t.Fatalf("%s: nothing was saved", h.what)
			}
			past := h.sent
			h = newByHand(t, h.what+", restarted", load(), cfg)
			h.past = past
			for _, s := range past {
				if req := s.g.req; !req.PromptOnly && !req.NoCache {
					again := &sent{g: submit(t, h.e, req), want: s.want}
					h.sent = append(h.sent, again)
					h.until("it ends", func() bool { return again.ended })
				}
			}
			if h.e.Snapshot().Cache.DiskHits == 0 {
				t.Fatalf("%s: no file was used; log:\n%s", h.what, &log)
			}
			h.end()
		}
	}
	if paused[3] == 0 || paused[4] == 0 {
		t.Errorf("requests waited for memory %d and %d times: the test says nothing", paused[3], paused[4])
	}
}

// TestClosedBeforeAdmitted: requests that wait for a slot when the engine is closed in a hurry are cancelled, and
// counted.
func TestClosedBeforeAdmitted(t *testing.T) {
	h := newByHand(t, "closed", loadGolden(t, "qwen3", false), Config{Parallel: 1, Queue: 4})
	for i := range 3 {
		req := Request{Tokens: randomPrompt(uint64(i), 20), MaxTokens: 30, IgnoreEOG: true}
		h.sent = append(h.sent, &sent{g: submit(t, h.e, req)})
	}
	h.turn()
	h.e.closing, h.e.abort = true, true
	if h.l.admit() {
		t.Fatal("the loop goes on")
	}
	h.l.close()
	for i, s := range h.sent {
		if r := wait(t, s.g).Result; r.Reason != ReasonCancelled || !errors.Is(r.Err, ErrClosed) || (r.Slot < 0) != (i > 0) {
			t.Errorf("request %d: %v in slot %d, error %v", i, r.Reason, r.Slot, r.Err)
		}
	}
	if s := h.e.Snapshot(); s.Requests[ReasonCancelled] != 3 || s.TargetBytes != 0 || s.Active() != 0 {
		t.Errorf("counted %v; %d bytes and %d slots are in use", s.Requests, s.TargetBytes, s.Active())
	}
	if err := h.e.model.Close(); err != nil {
		t.Fatal(err)
	}
}
