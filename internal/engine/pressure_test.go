package engine

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/speculate"
)

// TestShortOfMemoryTogether: requests that do not fit into memory together, though each does alone, all end with the
// text they have alone: in the middle of their prompts or of their answers, with and without the cache, greedy and
// seeded.
func TestShortOfMemoryTogether(t *testing.T) {
	for name, pages := range map[string]int{"qwen3": 12, "qwen35": 12, "gemma4": 24} {
		for _, c := range []struct{ prompt, answer int }{{420, 40}, {150, 300}} {
			b := &small{Backend: cpu.New(cpu.Options{Threads: 1}), left: pages}
			e := startModel(t, smallModel(t, name, b), Config{Parallel: 4, Chunk: 64})
			var reqs []Request
			var want [][]int32
			for i := range 4 {
				req := Request{Tokens: randomPrompt(uint64(i), c.prompt+17*i), MaxTokens: c.answer, IgnoreEOG: true,
					NoCache: i == 2, Stops: []string{"never said"}}
				if i%2 == 1 {
					req.Params = seeded
				}
				reqs = append(reqs, req)
				want = append(want, plain(t, name, req))
			}
			together(t, e, reqs, speculate.Options{}, func(i int, ev Event) {
				if !slices.Equal(ids(ev.Tokens), want[i]) || ev.Result.Generated != c.answer || ev.Result.Cached > 0 {
					t.Errorf("%s, %+v: request %d: %d tokens, %d cached, or another text", name, c, i, ev.Result.Generated,
						ev.Result.Cached)
				}
			})
			// Those that wait begin anew when there is room, not before.
			if s := e.Snapshot(); s.Paused == 0 || s.Paused > 12 {
				t.Errorf("%s, %+v: %d times one had to wait", name, c, s.Paused)
			}
			// Nothing is left of it: what fits runs together again.
			paused := e.Snapshot().Paused
			for i := range reqs[:2] {
				reqs[i].Tokens, reqs[i].MaxTokens = randomPrompt(uint64(i+10), 40), 10
			}
			together(t, e, reqs[:2], speculate.Options{}, func(int, Event) {})
			if s := e.Snapshot(); s.Paused != paused {
				t.Errorf("%s, %+v: %d more had to wait", name, c, s.Paused-paused)
			}
			stop(t, e)
			if b.left != pages {
				t.Errorf("%s, %+v: %d of %d pages are free in the end", name, c, b.left, pages)
			}
		}
	}
}

// TestNeverFits: a request that does not fit alone is refused with the reason while others are served, those that wait
// for memory can be cancelled, and an engine that closes waits for them.
func TestNeverFits(t *testing.T) {
	e := startModel(t, smallModel(t, "qwen3", &small{Backend: cpu.New(cpu.Options{Threads: 1}), left: 8}),
		Config{Parallel: 3, Chunk: 64})
	fits := Request{Tokens: randomPrompt(1, 300), MaxTokens: 5, IgnoreEOG: true}
	want := plain(t, "qwen3", fits)
	large := fits
	large.Tokens = randomPrompt(2, 600)
	gs := []*Generation{submit(t, e, large), submit(t, e, fits)}
	var refused *MemoryError
	if r := wait(t, gs[0]).Result; r.Reason != ReasonError || !errors.As(r.Err, &refused) || refused.Tokens != 600 ||
		refused.Bytes != int64(e.Model().Target.Memory().BytesOf(600)) || !errors.Is(r.Err, ErrNoMemory) {
		t.Errorf("the large one: %v, error %v", r.Reason, r.Err)
	}
	if ev := wait(t, gs[1]); ev.Result.Err != nil || !slices.Equal(ids(ev.Tokens), want) {
		t.Errorf("the one that fits: error %v, or another text", ev.Result.Err)
	}
	// The first holds all but a page; the second waits for memory and is cancelled, the third gets it.
	hold := newGate(2)
	first := fits
	first.Tokens, first.Constraint = randomPrompt(3, 420), hold
	second, third := fits, fits
	second.Tokens, third.Tokens = randomPrompt(4, 300), randomPrompt(5, 300)
	want = plain(t, "qwen3", third)
	gs = []*Generation{submit(t, e, first)}
	<-hold.ready
	gs = append(gs, submit(t, e, second), submit(t, e, third))
	close(hold.open)
	gs[1].Cancel()
	if r := wait(t, gs[1]).Result; r.Reason != ReasonCancelled {
		t.Errorf("cancelled: %v, error %v", r.Reason, r.Err)
	}
	stop(t, e)
	for _, g := range []*Generation{gs[0], gs[2]} {
		if ev := wait(t, g); ev.Result.Err != nil || g == gs[2] && !slices.Equal(ids(ev.Tokens), want) {
			t.Errorf("error %v, or another text", ev.Result.Err)
		}
	}
}

// gasping is a device that has no memory for some passes, which it notices when they have begun.
type gasping struct {
	backend.Backend
	fail int // passes that fail
}

func (b *gasping) EndStep() (int, error) {
	n, err := b.Backend.EndStep()
	if b.fail > 0 {
		b.fail--
		return 0, fmt.Errorf("allocating 7 bytes: %w", backend.ErrNoMemory)
	}
	return n, err
}

// TestNoMemoryInAPass: generations whose pass ended half-way for want of memory begin anew and say the same; one that
// runs alone ends when that happens again with nothing left to give up.
func TestNoMemoryInAPass(t *testing.T) {
	for _, name := range tiny {
		b := &gasping{Backend: cpu.New(cpu.Options{Threads: 1})}
		e := startModel(t, smallModel(t, name, b), Config{Parallel: 2, Chunk: 64})
		var reqs []Request
		var want [][]int32
		armed := 0
		for i := range 2 {
			reqs = append(reqs, Request{Tokens: randomPrompt(uint64(i), 60), MaxTokens: 30, IgnoreEOG: true, Params: seeded})
			want = append(want, plain(t, name, reqs[i]))
			reqs[i].Constraint = watch(func() {
				if armed++; armed == 20 {
					b.fail = 1
				}
			})
		}
		together(t, e, reqs, speculate.Options{}, func(i int, ev Event) {
			if !slices.Equal(ids(ev.Tokens), want[i]) || ev.Result.Cached > 0 {
				t.Errorf("%s: request %d differs, or %d tokens were cached", name, i, ev.Result.Cached)
			}
		})
		if s := e.Snapshot(); s.Paused == 0 {
			t.Errorf("%s: nothing began anew", name)
		}
		alone := reqs[0]
		alone.Constraint = watch(func() { b.fail = 1 << 30 })
		if r := wait(t, submit(t, e, alone)).Result; !errors.Is(r.Err, ErrNoMemory) {
			t.Errorf("%s: a pass that never has memory: %v, error %v", name, r.Reason, r.Err)
		}
		if err := e.do(t.Context(), 0, func(*loop) error { b.fail = 0; return nil }); err != nil {
			t.Fatal(err)
		}
		alone.Constraint = nil
		if ev := generate(t, e, alone); !slices.Equal(ids(ev.Tokens), want[0]) {
			t.Errorf("%s: the text differs afterwards", name)
		}
	}
}

// TestOldestGoesOn: of generations that do not fit together the one that began last waits, and requests that come later
// do not overtake it.
func TestOldestGoesOn(t *testing.T) {
	m := smallModel(t, "qwen3", &small{Backend: cpu.New(cpu.Options{Threads: 1}), left: 9})
	defer m.Close()
	e := &Engine{model: m, cfg: Config{Chunk: 64, CacheBytes: -1}.withDefaults(m), work: make(chan struct{}, 1),
		done: make(chan struct{})}
	for i := range e.cfg.Parallel {
		e.snap.Slots = append(e.snap.Slots, Slot{ID: i})
	}
	l := newLoop(e)
	l.prepare()
	var gs []*Generation
	for i := range 3 {
		g := newGeneration(t.Context(), Request{Tokens: randomPrompt(uint64(i), 400), MaxTokens: 5, IgnoreEOG: true})
		g.stop = func() bool { return true }
		gs = append(gs, g)
	}
	l.start(gs[0], 0)
	l.start(gs[1], 1)
	jobs := slices.Clone(l.jobs)
	third := gs[2]
	e.queue = []*Generation{third}
	for len(l.jobs) == 2 {
		if _, err := l.step(); err != nil {
			t.Fatal(err)
		}
		l.resume()
		if jobs[0].paused {
			t.Fatal("the oldest one waits")
		}
		if g, _, _ := l.take(); g != nil && jobs[1].paused {
			t.Fatal("a request overtakes one that waits for memory")
		} else if g != nil {
			e.queue = []*Generation{third}
		}
	}
	if e.snap.Paused != 1 || len(jobs[0].tokens) != 5 || !jobs[1].again {
		t.Errorf("%d had to wait; the oldest has %d tokens", e.snap.Paused, len(jobs[0].tokens))
	}
	for len(l.jobs) > 0 {
		l.resume()
		if _, err := l.step(); err != nil {
			t.Fatal(err)
		}
	}
	if n := m.Target.Memory().UsedBytes(); n > 0 || len(jobs[1].tokens) != 5 {
		t.Errorf("%d bytes are in use; the other has %d tokens", n, len(jobs[1].tokens))
	}
}

// TestLossyIsNotRepeated: where a generated token is remembered differently from one of a prompt, a generation does not
// begin anew: it ends with an error rather than with another text.
func TestLossyIsNotRepeated(t *testing.T) {
	req := Request{Tokens: randomPrompt(5, 150), MaxTokens: 200, IgnoreEOG: true, NoCache: true}
	b := &small{Backend: cpu.New(cpu.Options{Threads: 1}), left: 100}
	m := smallModel(t, "qwen3", b)
	m.window, m.lossy = 64, "0 64"
	e := startModel(t, m, Config{Parallel: 2, Chunk: 64})
	want := ids(generate(t, e, req).Tokens)
	if slices.Equal(want, plain(t, "qwen3", req)) {
		t.Fatal("the window changes nothing: the test shows nothing")
	}
	b.left = 9
	failed := 0
	for _, g := range []*Generation{submit(t, e, req), submit(t, e, req)} {
		ev := wait(t, g)
		if ev.Result.Err != nil {
			failed++
		} else if !slices.Equal(ids(ev.Tokens), want) {
			t.Error("another text")
		}
	}
	if failed != 1 {
		t.Errorf("%d of 2 failed", failed)
	}
}

// TestEmbeddingShortOfMemory: an embedding gets the memory of the prefix cache; where there is none it fails alone.
func TestEmbeddingShortOfMemory(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		b := &small{Backend: cpu.New(cpu.Options{Threads: 1}), left: 100}
		e := startModel(t, smallModel(t, name, b), Config{Parallel: 1, Chunk: 64})
		want, err := e.Embed(t.Context(), randomPrompt(1, 400))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			generate(t, e, Request{Tokens: randomPrompt(uint64(i+5), 120), MaxTokens: 2, IgnoreEOG: true})
		}
		if err := e.do(t.Context(), 0, func(*loop) error { b.left = 5; return nil }); err != nil {
			t.Fatal(err)
		}
		if got, err := e.Embed(t.Context(), randomPrompt(1, 400)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: error %v, or another value", name, err)
		}
		if _, err := e.Embed(t.Context(), randomPrompt(1, 900)); !errors.Is(err, ErrNoMemory) {
			t.Errorf("%s: error %v where nothing helps", name, err)
		}
		generate(t, e, Request{Tokens: randomPrompt(9, 60), MaxTokens: 2, IgnoreEOG: true})
	}
}
