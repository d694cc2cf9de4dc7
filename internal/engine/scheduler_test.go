package engine

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
	"strobe/internal/tokenizer"
)

// gate is a constraint that forbids nothing and holds the engine up: after the first n tokens it waits
// for the test before each further one.
type gate struct {
	free  int
	ready chan struct{} // one value per token that waits
	open  chan struct{} // closed or fed by the test
}

func newGate(free int) *gate {
	return &gate{free: free, ready: make(chan struct{}, 1000), open: make(chan struct{})}
}

func (g *gate) Mask([]float32) {}
func (g *gate) Accept(int32) {
	if g.free--; g.free < 0 {
		g.ready <- struct{}{}
		<-g.open
	}
}

func submit(t *testing.T, e *Engine, req Request) *Generation {
	t.Helper()
	g, err := e.Submit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func wait(t *testing.T, g *Generation) Event {
	t.Helper()
	ev, err := g.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

func TestBadRequests(t *testing.T) {
	e := start(t, "qwen3", Config{Context: 64})
	var ce *ContextError
	if _, err := e.Submit(t.Context(), Request{Tokens: randomPrompt(1, 64)}); !errors.As(err, &ce) || ce.Prompt != 64 ||
		ce.Context != 64 {
		t.Errorf("prompt as long as the context: %v", err)
	}
	if ev := generate(t, e, Request{Tokens: randomPrompt(1, 63), IgnoreEOG: true}); ev.Result.Generated != 1 ||
		ev.Result.Reason != ReasonLength {
		t.Errorf("prompt with room for one token: %d generated, %v", ev.Result.Generated, ev.Result.Reason)
	}
	if _, err := e.Submit(t.Context(), Request{}); !errors.Is(err, ErrEmptyPrompt) {
		t.Errorf("empty prompt: %v", err)
	}
	for _, req := range []Request{
		{Tokens: []int32{-1}}, {Tokens: []int32{1 << 20}}, {Tokens: []int32{1}, MaxTokens: -1},
		{Tokens: []int32{1}, Params: sample.Params{Temp: float32(math.NaN())}},
	} {
		if _, err := e.Submit(t.Context(), req); err == nil {
			t.Errorf("accepted %+v", req)
		}
	}
	if _, err := e.Embed(t.Context(), nil); !errors.Is(err, ErrEmptyPrompt) {
		t.Errorf("embedding of nothing: %v", err)
	}
}

// TestPromptOnly (failure F174): no token is generated, and the prompt is in the cache.
func TestPromptOnly(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		e := start(t, name, Config{Parallel: 1})
		ev := generate(t, e, Request{Tokens: randomPrompt(1, 50), PromptOnly: true})
		if len(ev.Tokens) != 0 || ev.Result.Generated != 0 || ev.Result.Stats.Tokens != 0 || ev.Result.Stats.Prompt != 50 {
			t.Errorf("%s: %+v", name, ev.Result)
		}
		if c := generate(t, e, Request{Tokens: randomPrompt(1, 60), MaxTokens: 1}).Result.Cached; c != 50 {
			t.Errorf("%s: %d tokens cached", name, c)
		}
	}
}

func TestQueueLimit(t *testing.T) {
	e := start(t, "qwen3", Config{Parallel: 1, Queue: 2})
	hold := newGate(0)
	first := submit(t, e, Request{Tokens: randomPrompt(1, 10), MaxTokens: 2, Constraint: hold, IgnoreEOG: true})
	<-hold.ready
	var queued []*Generation
	for i := range 2 {
		queued = append(queued, submit(t, e, Request{Tokens: randomPrompt(uint64(i), 10), MaxTokens: 3, IgnoreEOG: true}))
	}
	if _, err := e.Submit(t.Context(), Request{Tokens: randomPrompt(1, 10)}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("third waiting request: %v", err)
	}
	// A queued request that is given up makes room at once, though the engine is busy.
	queued[0].Cancel()
	if r := wait(t, queued[0]).Result; r.Reason != ReasonCancelled || r.Slot != -1 {
		t.Errorf("cancelled while queued: %+v", r)
	}
	queued[0] = submit(t, e, Request{Tokens: randomPrompt(5, 10), MaxTokens: 3, IgnoreEOG: true})
	if s := e.Snapshot(); s.Queued != 2 || s.Active() != 1 || s.Rejected != 1 {
		t.Errorf("%d queued, %d active, %d rejected", s.Queued, s.Active(), s.Rejected)
	}
	close(hold.open)
	for _, g := range append(queued, first) {
		if r := wait(t, g).Result; r.Reason != ReasonLength {
			t.Errorf("%v, error %v", r.Reason, r.Err)
		}
	}
}

// TestOrder: requests are admitted in the order they came.
func TestOrder(t *testing.T) {
	e := start(t, "qwen3", Config{Parallel: 1, Queue: 100})
	var mu sync.Mutex
	var order []int
	var gs []*Generation
	for i := range 20 {
		gs = append(gs, submit(t, e, Request{Tokens: randomPrompt(uint64(i), 12), MaxTokens: 1, IgnoreEOG: true,
			Constraint: watch(func() { mu.Lock(); order = append(order, i); mu.Unlock() })}))
	}
	for _, g := range gs {
		wait(t, g)
	}
	if !slices.IsSorted(order) || len(order) != 20 {
		t.Errorf("ran in order %v", order)
	}
}

// watch is a constraint that only looks.
type watch func()

func (w watch) Mask([]float32) { w() }
func (w watch) Accept(int32)   {}

// TestLongPromptHoldsNobodyUp: while long prompts run, others get their share of every step: a
// generation goes on, a short prompt is served.
func TestLongPromptHoldsNobodyUp(t *testing.T) {
	e := start(t, "qwen3", Config{Parallel: 4, Chunk: 16, Context: 4096})
	hold := newGate(1)
	running := submit(t, e, Request{Tokens: randomPrompt(1, 10), MaxTokens: 200, IgnoreEOG: true, Constraint: hold,
		Spec: speculate.Options{Draft: speculate.Off}})
	<-hold.ready // the engine stands still in its second step
	var long []*Generation
	for i := range 2 {
		long = append(long, submit(t, e, Request{Tokens: randomPrompt(uint64(2+i), 900), MaxTokens: 1, IgnoreEOG: true}))
	}
	var steps int64
	var processed, generated int
	short := submit(t, e, Request{Tokens: randomPrompt(4, 40), MaxTokens: 1, IgnoreEOG: true, Constraint: watch(func() {
		steps, processed, generated = e.Snapshot().Steps, long[0].State().Processed, running.State().Generated
	})})
	close(hold.open)
	wait(t, short)
	// 40 tokens are three chunks, and three prompts take turns.
	if steps > 2+3*3+1 || processed >= 900 || generated < int(steps)-3 {
		t.Errorf("a short prompt took %d steps beside long ones; one of these had run %d tokens, and %d were generated",
			steps, processed, generated)
	}
	for _, g := range append(long, running) {
		wait(t, g)
	}
}

// TestChunks: on a GPU a prompt runs in large parts while nobody generates, and in smaller ones beside a generation;
// the least ones if steps take long; in parts of the size that was asked for in any case. Where memory is short all
// parts are small.
func TestChunks(t *testing.T) {
	for _, c := range []struct {
		free, chunk, alone, beside int
		step                       time.Duration
	}{
		{ample, 0, 2, 6, 0}, {ample - 1, 0, 4, 6, 0}, {ample, 300, 7, 7, 0}, {ample, 300, 7, 7, time.Second},
		{ample, 0, 2, 1 + 30, time.Second}, // 128, and the rest in parts of 64
	} {
		gpu := &roomy{weighing{cpu.New(cpu.Options{})}, "GPU 0", c.free}
		var clock time.Time
		now := func() time.Time {
			clock = clock.Add(c.step)
			return clock
		}
		e := startModel(t, loadOn(t, "qwen3", gpu), Config{Parallel: 2, Chunk: c.chunk, CacheBytes: -1, now: now})
		first := func(seed uint64) (steps int) {
			before := e.Snapshot().Steps
			wait(t, submit(t, e, Request{Tokens: randomPrompt(seed, 2000), MaxTokens: 1, IgnoreEOG: true,
				Constraint: watch(func() { steps = int(e.Snapshot().Steps-before) + 1 })}))
			return steps
		}
		if got := first(1); got != c.alone {
			t.Errorf("chunk %d: 2,000 tokens alone took %d steps, want %d", c.chunk, got, c.alone)
		}
		hold := newGate(1)
		running := submit(t, e, Request{Tokens: randomPrompt(2, 10), MaxTokens: 200, IgnoreEOG: true, Constraint: hold,
			Spec: speculate.Options{Draft: speculate.Off}})
		<-hold.ready // the engine stands still in its second step, which is counted after it
		var steps int
		g := submit(t, e, Request{Tokens: randomPrompt(3, 2000), MaxTokens: 1, IgnoreEOG: true,
			Constraint: watch(func() { steps = int(e.Snapshot().Steps) })})
		before := int(e.Snapshot().Steps) + 1
		close(hold.open)
		wait(t, g)
		if got := steps - before + 1; got != c.beside {
			t.Errorf("chunk %d: 2,000 tokens beside a generation took %d steps, want %d", c.chunk, got, c.beside)
		}
		wait(t, running)
	}
}

// TestSlowReader: a reader that does not read holds nobody up, and gets everything in the end.
func TestSlowReader(t *testing.T) {
	e := start(t, "qwen3", Config{Parallel: 2})
	slow := submit(t, e, Request{Tokens: randomPrompt(1, 10), MaxTokens: 200, IgnoreEOG: true})
	for i := range 5 {
		generate(t, e, Request{Tokens: randomPrompt(uint64(i), 10), MaxTokens: 50, IgnoreEOG: true})
	}
	<-slow.Done()
	ev, err := slow.Next(t.Context())
	if err != nil || len(ev.Tokens) != 200 || ev.Result == nil {
		t.Errorf("%d tokens, result %v, error %v", len(ev.Tokens), ev.Result, err)
	}
	if _, err := slow.Next(t.Context()); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
}

// TestCancel: a request that is cancelled ends at the next step, in every phase, and leaves a prefix that
// others use. Cancelling happens on the engine's goroutine, in the middle of a step.
func TestCancel(t *testing.T) {
	gone := errors.New("client gone")
	for _, name := range []string{"qwen3", "qwen35"} {
		e := start(t, name, Config{Parallel: 2, Chunk: 16, Context: 2048})
		ctx, cancel := context.WithCancelCause(t.Context())
		var g atomic.Pointer[Generation]
		other := submit(t, e, Request{Tokens: randomPrompt(9, 20), MaxTokens: 300, IgnoreEOG: true, Constraint: watch(func() {
			if g := g.Load(); g != nil && g.State().Processed >= 100 {
				cancel(gone)
			}
		}), Spec: speculate.Options{Draft: speculate.Off}})
		long, err := e.Submit(ctx, Request{Tokens: randomPrompt(1, 1500), IgnoreEOG: true})
		if err != nil {
			t.Fatal(err)
		}
		g.Store(long)
		r := wait(t, long).Result
		if r.Reason != ReasonCancelled || !errors.Is(r.Err, gone) || r.Generated != 0 || r.Stats.Prompt < 100 {
			t.Errorf("%s: cancelled in the prompt: %v, error %v, %d tokens generated, %d run", name, r.Reason, r.Err,
				r.Generated, r.Stats.Prompt)
		}

		ctx2, cancel2 := context.WithCancelCause(t.Context())
		n := 0
		again, err := e.Submit(ctx2, Request{Tokens: randomPrompt(1, 1500), IgnoreEOG: true,
			Spec: speculate.Options{Draft: speculate.Off}, Constraint: watch(func() {
				if n++; n == 5 {
					cancel2(gone)
				}
			})})
		if err != nil {
			t.Fatal(err)
		}
		r = wait(t, again).Result
		if r.Reason != ReasonCancelled || r.Generated != 5 || r.Cached < 90 {
			t.Errorf("%s: cancelled while generating: %v after %d tokens, %d cached", name, r.Reason, r.Generated, r.Cached)
		}
		if got := wait(t, other); len(got.Tokens) != 300 {
			t.Errorf("%s: the other request generated %d tokens", name, len(got.Tokens))
		}
		if s := e.Snapshot(); s.Active() != 0 || s.Requests[ReasonCancelled] != 2 {
			t.Errorf("%s: %d active, ended %v", name, s.Active(), s.Requests)
		}
	}
}

// tick waits for the engine to make a step or so.
func tick(e *Engine) <-chan struct{} {
	n := e.Snapshot().Steps
	c := make(chan struct{})
	for range 1000000 {
		if e.Snapshot().Steps != n {
			break
		}
	}
	close(c)
	return c
}

func TestStopStrings(t *testing.T) {
	e := start(t, "qwen3", Config{})
	req := Request{Tokens: randomPrompt(1, 10), MaxTokens: 60, IgnoreEOG: true}
	full := generate(t, e, req)
	text := string(full.Text)
	var pieces strings.Builder
	for _, tok := range full.Tokens {
		pieces.Write(tok.Text)
	}
	if !strings.HasPrefix(text, pieces.String()) {
		t.Error("the tokens' text is not the text")
	}
	for _, at := range []int{len(text) / 3, len(text) / 2} {
		stop := text[at : at+5]
		first := strings.Index(text, stop)
		for _, opt := range []speculate.Options{{Draft: speculate.Off}, fixed} {
			req.Stops, req.Spec = []string{"never occurs", stop}, opt
			ev := generate(t, e, req)
			if string(ev.Text) != text[:first] || ev.Result.Reason != ReasonStop || ev.Result.Stop != stop {
				t.Errorf("stop %q: text %q, want %q; %v %q", stop, ev.Text, text[:first], ev.Result.Reason, ev.Result.Stop)
			}
		}
	}
	// Text held back for a stop string that never completes is there in the end.
	req.Stops = []string{text[len(text)-3:] + "never"}
	if ev := generate(t, e, req); string(ev.Text) != text || ev.Result.Reason != ReasonLength {
		t.Errorf("text %q, want %q", ev.Text, text)
	}
}

// TestLogProbsOfEveryToken (failure F166): every token has its log probabilities, accepted guesses too, and they are
// those of plain decoding.
func TestLogProbsOfEveryToken(t *testing.T) {
	e := start(t, "qwen3", Config{})
	req := Request{Tokens: randomPrompt(1, 30), MaxTokens: 40, IgnoreEOG: true, LogProbs: 5,
		Spec: speculate.Options{Draft: speculate.Off}}
	want := generate(t, e, req)
	req.Spec, req.NoCache = fixed, true
	got := generate(t, e, req)
	if len(got.Tokens) != 40 {
		t.Fatalf("%d tokens", len(got.Tokens))
	}
	for i, tok := range got.Tokens {
		w := want.Tokens[i]
		if len(tok.Top) != 5 || tok.Top[0].ID != tok.ID || math.Abs(tok.Top[0].LP-tok.LogProb) > 1e-9 || !(tok.LogProb <= 0) {
			t.Fatalf("token %d: %+v", i, tok)
		}
		if tok.LogProb != w.LogProb || !slices.Equal(tok.Top, w.Top) {
			t.Errorf("token %d: %v, want %v", i, tok.LogProb, w.LogProb)
		}
	}
	req.LogProbs, req.WantLogProb = 0, true
	if ev := generate(t, e, req); ev.Tokens[3].LogProb != want.Tokens[3].LogProb || ev.Tokens[3].Top != nil {
		t.Errorf("own log probability %v, want %v", ev.Tokens[3].LogProb, want.Tokens[3].LogProb)
	}
}

// faulty panics after some tokens.
type faulty struct{ mask, accept int }

func (f *faulty) Mask([]float32) {
	if f.mask--; f.mask == 0 {
		panic("broken mask")
	}
}
func (f *faulty) Accept(int32) {
	if f.accept--; f.accept == 0 {
		panic("broken accept")
	}
}

// forbid allows nothing from the n-th token on.
type forbid struct{ n int }

func (f *forbid) Mask(l []float32) {
	if f.n--; f.n < 0 {
		for i := range l {
			l[i] = float32(math.Inf(-1))
		}
	}
}
func (f *forbid) Accept(int32) {}

// TestFaultyRequest: a request that fails takes nobody with it.
func TestFaultyRequest(t *testing.T) {
	for _, opt := range []speculate.Options{{}, fixed} {
		e := start(t, "qwen35", Config{Parallel: 4})
		req := Request{Tokens: randomPrompt(1, 10), MaxTokens: 60, IgnoreEOG: true, Spec: opt}
		want := generate(t, e, req)
		others := []*Generation{submit(t, e, req), submit(t, e, req)}
		for _, c := range []sample.Constraint{&faulty{mask: 5}, &faulty{accept: 5}, &faulty{mask: 1}, &forbid{7},
			&forbid{0}} {
			bad := req
			bad.Constraint = c
			if r := wait(t, submit(t, e, bad)).Result; r.Reason != ReasonError || r.Err == nil {
				t.Errorf("%T: %v, error %v", c, r.Reason, r.Err)
			}
		}
		for _, g := range others {
			if ev := wait(t, g); !slices.Equal(ids(ev.Tokens), ids(want.Tokens)) {
				t.Error("another request's text differs")
			}
		}
	}
}

// small is a CPU whose cache memory runs out.
type small struct {
	backend.Backend
	left int // pages
}

type smallPool struct {
	backend.KVPool
	b *small
}

var errFull = errors.New("cache has no free page")

func (b *small) NewKVPool(l backend.KVLayout) (backend.KVPool, error) {
	p, err := b.Backend.NewKVPool(l)
	return &smallPool{p, b}, err
}

func (b *small) BeginStep(p *backend.Plan) {
	b.Backend.BeginStep(testkit.WithPools(p, func(p backend.KVPool) backend.KVPool { return p.(*smallPool).KVPool }))
}

func (p *smallPool) Alloc() (int32, error) {
	if p.b.left == 0 {
		return 0, errFull
	}
	p.b.left--
	return p.KVPool.Alloc()
}

func (p *smallPool) Free(page int32) {
	p.b.left++
	p.KVPool.Free(page)
}

// smallModel loads a golden model without a drafter on a device.
func smallModel(t *testing.T, name string, b backend.Backend) *Model {
	t.Helper()
	f, err := gguf.Open(testkit.Golden(t, name+"/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{backends: []backend.Backend{b}, files: []*gguf.File{f}}
	if m.Target, err = model.Open(f, b, model.Options{}); err != nil {
		t.Fatal(err)
	}
	if m.Tokenizer, err = tokenizer.FromGGUF(f); err != nil {
		t.Fatal(err)
	}
	if m.Runner, err = speculate.NewRunner(m.Target); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestFullMemoryFailsOneRequest (failure F176): when memory runs out, the cache gives up its entries first; then the
// request that needs more fails, alone.
func TestFullMemoryFailsOneRequest(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		e := startModel(t, smallModel(t, name, &small{Backend: cpu.New(cpu.Options{Threads: 2}), left: 12}),
			Config{Parallel: 3, Chunk: 64})
		// Fills the cache with 8 of 12 pages, which later requests need.
		for i := range 4 {
			generate(t, e, Request{Tokens: randomPrompt(uint64(i), 80), MaxTokens: 2, IgnoreEOG: true})
		}
		short := Request{Tokens: randomPrompt(7, 100), MaxTokens: 80, IgnoreEOG: true}
		want := plain(t, name, short)
		long := submit(t, e, Request{Tokens: randomPrompt(9, 60), IgnoreEOG: true})
		ok := submit(t, e, short)
		if ev := wait(t, ok); ev.Result.Err != nil || !slices.Equal(ids(ev.Tokens), want) {
			t.Errorf("%s: the short request: error %v", name, ev.Result.Err)
		}
		var full *MemoryError
		if r := wait(t, long).Result; r.Reason != ReasonError || !errors.Is(r.Err, errFull) || !errors.As(r.Err, &full) ||
			r.Generated < 12*64-200-60 {
			t.Errorf("%s: the long request: %v, error %v after %d tokens", name, r.Reason, r.Err, r.Generated)
		}
		if ev := generate(t, e, short); !slices.Equal(ids(ev.Tokens), want) {
			t.Errorf("%s: text differs after memory ran out", name)
		}
	}
}

// TestSeedRepeatsARun (failure F87): the same seed gives the same text whatever ran before, zero included.
func TestSeedRepeatsARun(t *testing.T) {
	e := start(t, "qwen3", Config{})
	for _, seed := range []uint64{0, 1, math.MaxUint64} {
		req := Request{Tokens: randomPrompt(1, 20), MaxTokens: 30, IgnoreEOG: true,
			Params: sample.Params{Temp: 1.5, Seed: seed}}
		want := ids(generate(t, e, req).Tokens)
		other := req
		other.Params.Seed = 77
		if slices.Equal(ids(generate(t, e, other).Tokens), want) {
			t.Errorf("seeds %d and 77 say the same", seed)
		}
		if !slices.Equal(ids(generate(t, e, req).Tokens), want) {
			t.Errorf("seed %d says something else the second time", seed)
		}
	}
}

// TestIdenticalPromptsTogether: of eight equal requests one runs the prompt and the others find it
// in the cache.
func TestIdenticalPromptsTogether(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		e := start(t, name, Config{Parallel: 8, Chunk: 64})
		var reqs []Request
		for i := range 8 {
			reqs = append(reqs, Request{Tokens: randomPrompt(1, 400), MaxTokens: 10, IgnoreEOG: true,
				Params: sample.Params{Temp: 1, Seed: uint64(i)}})
		}
		together(t, e, reqs, speculate.Options{}, func(int, Event) {})
		if s := e.Snapshot().Stats; s.Prompt > 400+7*(tailGap+1)+20 || s.Prompt+s.Cached != 8*400 {
			t.Errorf("%s: %d prompt tokens run, %d cached", name, s.Prompt, s.Cached)
		}
		// A common beginning is computed once as well.
		for i := range reqs {
			reqs[i].Tokens = slices.Concat(randomPrompt(2, 300), randomPrompt(uint64(50+i), 40))
		}
		before := e.Snapshot().Stats.Prompt
		together(t, e, reqs, speculate.Options{}, func(int, Event) {})
		if n := e.Snapshot().Stats.Prompt - before; n > 300+8*40+8*markGap {
			t.Errorf("%s: %d prompt tokens run for a common beginning of 300 and 8 times 40", name, n)
		}
	}
}

// TestCacheBudget: entries stay within the budget, the least recently used go first, and what a running
// stream uses is not harmed.
func TestCacheBudget(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		m := loadGolden(t, name, true)
		e := startModel(t, m, Config{Parallel: 2, CacheBytes: 1 << 40})
		generate(t, e, Request{Tokens: randomPrompt(0, 200), MaxTokens: 5, IgnoreEOG: true})
		one := e.Snapshot().Cache.Bytes
		stop(t, e)

		e = start(t, name, Config{Parallel: 2, CacheBytes: 3*one + one/2})
		running := submit(t, e, Request{Tokens: randomPrompt(100, 200), MaxTokens: 500, IgnoreEOG: true})
		want := plain(t, name, Request{Tokens: randomPrompt(100, 200), MaxTokens: 500, IgnoreEOG: true})
		for i := range 8 {
			generate(t, e, Request{Tokens: randomPrompt(uint64(i), 200), MaxTokens: 5, IgnoreEOG: true})
			if c := e.Snapshot().Cache; c.Bytes > c.Limit {
				t.Errorf("%s: the cache holds %d bytes, limit %d", name, c.Bytes, c.Limit)
			}
		}
		if got := wait(t, running); !slices.Equal(ids(got.Tokens), want) {
			t.Errorf("%s: a running stream changed its text", name)
		}
		s := e.Snapshot()
		if s.Cache.Evicted == 0 || int64(s.TargetBytes+s.DrafterBytes) != s.Cache.Bytes {
			t.Errorf("%s: %d evicted; %d bytes in use, the cache counts %d", name, s.Cache.Evicted, s.TargetBytes+s.DrafterBytes,
				s.Cache.Bytes)
		}
		if c := generate(t, e, Request{Tokens: randomPrompt(0, 201), MaxTokens: 1}).Result.Cached; c != 0 {
			t.Errorf("%s: the oldest prompt still has %d tokens cached", name, c)
		}
		stop(t, e)
	}
}

// TestLongPromptLeavesOthers: a prompt that does not fit into the cache leaves half of it to others, and a beginning of
// the prompt is kept as well.
func TestLongPromptLeavesOthers(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		e := start(t, name, Config{Parallel: 2, Chunk: 256, CacheBytes: 1 << 20})
		short := Request{Tokens: randomPrompt(1, 200), MaxTokens: 3, IgnoreEOG: true}
		long := Request{Tokens: randomPrompt(2, 3000), MaxTokens: 3, IgnoreEOG: true}
		var cached []int
		var texts [][]int32
		for _, req := range []Request{short, short, long, short, long, short} {
			ev := generate(t, e, req)
			cached = append(cached, ev.Result.Cached)
			texts = append(texts, ids(ev.Tokens))
			if c := e.Snapshot().Cache; c.Bytes > c.Limit {
				t.Errorf("%s: the cache holds %d bytes, limit %d", name, c.Bytes, c.Limit)
			}
		}
		least := 200 - tailGap
		if cached[0] != 0 || cached[1] < least || cached[2] != 0 || cached[3] < least || cached[4] < 200 ||
			cached[5] < least {
			t.Errorf("%s: tokens cached of prompts of 200, 200, 3000, 200, 3000 and 200: %v", name, cached)
		}
		if !slices.Equal(texts[2], texts[4]) || !slices.Equal(texts[0], texts[5]) {
			t.Errorf("%s: the text differs with a part of its prompt from the cache", name)
		}
	}
}

// TestEvictionShortens: the entry that was used least recently gets shorter before it goes, if it can be cut; what is
// used stays whole.
func TestEvictionShortens(t *testing.T) {
	e := startModel(t, loadGolden(t, "qwen3", false), Config{Parallel: 1, CacheBytes: 1 << 40})
	generate(t, e, Request{Tokens: randomPrompt(0, 63), PromptOnly: true})
	page := e.Snapshot().Cache.Bytes
	stop(t, e)
	e = startModel(t, loadGolden(t, "qwen3", false), Config{Parallel: 1, CacheBytes: 20 * page})
	run := func(seed uint64, n int) int {
		return generate(t, e, Request{Tokens: randomPrompt(seed, n), PromptOnly: true}).Result.Cached
	}
	run(1, 10*64)
	run(2, 6*64)
	run(1, 10*64) // used more recently than the second
	run(3, 6*64)  // two pages too many
	if c := e.Snapshot().Cache; c.Bytes > c.Limit || c.Entries != 3 || c.Evicted != 0 || c.Shortened == 0 {
		t.Errorf("%+v", c)
	}
	if a, b, c := run(1, 10*64), run(3, 6*64), run(2, 6*64); a != 10*64-1 || b != 6*64-1 || c < 3*64 || c > 4*64 {
		t.Errorf("%d, %d and %d tokens cached", a, b, c)
	}
}

// TestSalt: requests of different salts share nothing, in memory or on disk, running together or one after the other;
// those of one salt do.
func TestSalt(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		dir := t.TempDir()
		cfg := Config{Parallel: 2, CacheDir: dir}
		e := start(t, name, cfg)
		req := func(salt string) Request {
			return Request{Tokens: randomPrompt(1, 150), MaxTokens: 3, IgnoreEOG: true, Salt: salt}
		}
		check := func(when, salt string, cached bool) {
			t.Helper()
			if n := generate(t, e, req(salt)).Result.Cached; (n > 0) != cached {
				t.Errorf("%s, %s, salt %q: %d tokens cached", name, when, salt, n)
			}
		}
		// Together: the second neither waits for the first nor gets anything of it.
		for i, g := range []*Generation{submit(t, e, req("")), submit(t, e, req("a"))} {
			if n := wait(t, g).Result.Cached; n > 0 {
				t.Errorf("%s: request %d: %d tokens of another salt are cached", name, i, n)
			}
		}
		check("after others", "b", false)
		for _, s := range []string{"", "a", "b"} {
			check("again", s, true)
		}
		stop(t, e)
		e = start(t, name, cfg)
		check("after a restart", "c", false)
		for _, s := range []string{"a", "", "b"} {
			check("after a restart", s, true)
		}
		if s := e.Snapshot().Cache; s.DiskHits != 3 {
			t.Errorf("%s: %d hits on disk, want one for each salt", name, s.DiskHits)
		}
		// What a slot remembers has the salt of its request.
		if _, err := e.EraseSlot(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		check("erased", "b", false)
		check("others were not", "a", true)
	}
}

// TestCacheOff: without a cache nothing stays in memory.
func TestCacheOff(t *testing.T) {
	e := start(t, "qwen35", Config{CacheBytes: -1})
	for range 2 {
		if r := generate(t, e, Request{Tokens: randomPrompt(1, 100), MaxTokens: 5, IgnoreEOG: true}).Result; r.Cached != 0 {
			t.Errorf("%d tokens cached", r.Cached)
		}
		if s := e.Snapshot(); s.TargetBytes+s.DrafterBytes != 0 {
			t.Errorf("%d bytes in use", s.TargetBytes+s.DrafterBytes)
		}
	}
}

func TestEmbed(t *testing.T) {
	e := start(t, "qwen35", Config{Chunk: 16})
	a, err := e.Embed(t.Context(), randomPrompt(1, 50))
	if err != nil {
		t.Fatal(err)
	}
	running := submit(t, e, Request{Tokens: randomPrompt(3, 20), MaxTokens: 100, IgnoreEOG: true})
	b, err := e.Embed(t.Context(), randomPrompt(1, 50))
	if err != nil {
		t.Fatal(err)
	}
	c, err := e.Embed(t.Context(), randomPrompt(2, 50))
	if err != nil {
		t.Fatal(err)
	}
	if len(a) != e.Model().Target.Hidden || !slices.Equal(a, b) || slices.Equal(a, c) {
		t.Errorf("%d values; same text equal %v, other text equal %v", len(a), slices.Equal(a, b), slices.Equal(a, c))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Embed(ctx, randomPrompt(1, 50)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	wait(t, running)

	// The number that may wait is limited.
	e = start(t, "qwen3", Config{Parallel: 1, Queue: 2})
	hold := newGate(0)
	running = submit(t, e, Request{Tokens: randomPrompt(3, 20), MaxTokens: 1, IgnoreEOG: true, Constraint: hold})
	<-hold.ready
	errs := make(chan error)
	for range 6 {
		go func() {
			_, err := e.Embed(t.Context(), randomPrompt(1, 50))
			errs <- err
		}()
	}
	for range 3 {
		if err := <-errs; !errors.Is(err, ErrQueueFull) {
			t.Errorf("too many embeddings: %v", err)
		}
	}
	close(hold.open)
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	wait(t, running)
}

// TestClose: closing drains what runs, or cancels it when its context ends first.
func TestClose(t *testing.T) {
	e := start(t, "qwen3", Config{Parallel: 1, Queue: 10})
	var gs []*Generation
	for i := range 3 {
		gs = append(gs, submit(t, e, Request{Tokens: randomPrompt(uint64(i), 10), MaxTokens: 50, IgnoreEOG: true}))
	}
	stop(t, e)
	for _, g := range gs {
		if r := wait(t, g).Result; r.Reason != ReasonLength || r.Generated != 50 {
			t.Errorf("drained: %v after %d tokens", r.Reason, r.Generated)
		}
	}
	if _, err := e.Submit(t.Context(), Request{Tokens: []int32{1}}); !errors.Is(err, ErrClosed) {
		t.Errorf("Submit after Close: %v", err)
	}
	if _, err := e.Embed(t.Context(), []int32{1}); !errors.Is(err, ErrClosed) {
		t.Errorf("Embed after Close: %v", err)
	}

	e = start(t, "qwen3", Config{Parallel: 1, Context: 100000})
	hold := newGate(3)
	running := submit(t, e, Request{Tokens: randomPrompt(1, 10), IgnoreEOG: true, Constraint: hold})
	queued := submit(t, e, Request{Tokens: randomPrompt(2, 10), IgnoreEOG: true})
	<-hold.ready
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error)
	go func() { done <- e.Close(ctx) }()
	close(hold.open)
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, g := range []*Generation{running, queued} {
		if r := wait(t, g).Result; r.Reason != ReasonCancelled || !errors.Is(r.Err, ErrClosed) {
			t.Errorf("cancelled by Close: %v, %v", r.Reason, r.Err)
		}
	}
}

// TestHammer: many clients that come, stream and vanish. Nothing may leak.
func TestHammer(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4"} {
		e := start(t, name, Config{Parallel: 6, Queue: 1000, Chunk: 32, CacheBytes: 600 << 10})
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				for range 4 {
					ctx, cancel := context.WithCancel(t.Context())
					req := Request{
						Tokens: randomPrompt(uint64(r.IntN(4)), 5+r.IntN(200)), MaxTokens: 1 + r.IntN(40), IgnoreEOG: true,
						Params: sample.Params{Temp: float32(r.IntN(2)), Seed: r.Uint64()}, NoCache: r.IntN(5) == 0,
						Checkpoints: []int{r.IntN(300), r.IntN(300) - 100},
						Spec: speculate.Options{Draft: []string{speculate.Auto, speculate.Off, "dflash", "ngram"}[r.IntN(4)],
							Fixed: r.IntN(3) == 0},
						LogProbs: r.IntN(2) * 3,
					}
					g, err := e.Submit(ctx, req)
					if err != nil {
						t.Error(err)
						cancel()
						continue
					}
					for n := r.IntN(12); n > 0; n-- {
						if _, err := g.Next(t.Context()); err != nil {
							break
						}
					}
					cancel() // sometimes after the end, often before
					if r.IntN(2) == 0 {
						<-g.Done()
					}
				}
			})
		}
		wg.Wait()
		generate(t, e, Request{Tokens: randomPrompt(1, 10), MaxTokens: 3, IgnoreEOG: true})
		s := e.Snapshot()
		for s.Active() > 0 || s.Queued > 0 {
			<-tick(e)
			s = e.Snapshot()
		}
		if int64(s.TargetBytes+s.DrafterBytes) != s.Cache.Bytes || s.Cache.Bytes > s.Cache.Limit {
			t.Errorf("%s: %d bytes in use, the cache counts %d of %d", name, s.TargetBytes+s.DrafterBytes, s.Cache.Bytes,
				s.Cache.Limit)
		}
	}
}
