package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"strobe/internal/sample"
	"strobe/internal/testkit"
)

// modelDir is a folder with golden models under the given names; "x=qwen3" puts qwen3 there as x.gguf.
func modelDir(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, n := range names {
		name, golden, _ := strings.Cut(n, "=")
		data, err := os.ReadFile(testkit.Golden(t, golden+"/model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(name)+".gguf")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func newPool(t *testing.T, cfg PoolConfig) *Pool {
	t.Helper()
	cfg.Load.Threads = 1
	p, err := NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func acquire(t *testing.T, p *Pool, name string) *Lease {
	t.Helper()
	l, err := p.Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// states is the list as "name state" lines.
func states(p *Pool) string {
	var out []string
	for _, m := range p.Models() {
		out = append(out, m.Name+" "+string(m.State))
	}
	return strings.Join(out, ", ")
}

func size(t *testing.T, p *Pool, name string) int64 {
	t.Helper()
	for _, m := range p.Models() {
		if m.Name == name {
			return m.Size
		}
	}
	t.Fatalf("no model %q", name)
	return 0
}

func TestPoolList(t *testing.T) {
	dir := modelDir(t, "a=qwen3", "sub/b=qwen35", "sub/b-dflash=dflash-qwen35", "any=qwen3", "c-00002-of-00002=qwen3",
		".hidden/d=qwen3")
	os.WriteFile(filepath.Join(dir, "broken.gguf"), []byte("GGUF nothing"), 0o644)
	os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("no model"), 0o644)
	p := newPool(t, PoolConfig{Dir: dir, Files: []string{testkit.Golden(t, "gemma4/model.gguf")}})
	if got, want := states(p), "a unloaded, any.gguf unloaded, broken failed, model unloaded, sub/b unloaded"; got != want {
		t.Errorf("models: %s\nwant %s", got, want)
	}
	for _, m := range p.Models() {
		if m.Name == "sub/b" && (m.Drafter == "" || m.Arch != "qwen35" || m.Context == 0 || m.Size == 0) {
			t.Errorf("%+v", m)
		}
		if m.Name == "broken" && m.Err == nil {
			t.Error("a broken file has no error")
		}
	}
	// A file that comes later is found, one that goes is not offered any more.
	data, _ := os.ReadFile(filepath.Join(dir, "a.gguf"))
	os.WriteFile(filepath.Join(dir, "new.gguf"), data, 0o644)
	acquire(t, p, "new").Release()
	os.Remove(filepath.Join(dir, "a.gguf"))
	if got, want := states(p), "any.gguf unloaded, broken failed, model unloaded, new loaded, sub/b unloaded"; got != want {
		t.Errorf("models: %s\nwant %s", got, want)
	}
	if _, err := NewPool(PoolConfig{Dir: filepath.Join(dir, "missing")}); err == nil {
		t.Error("a missing folder is no error")
	}
}

func TestPoolNames(t *testing.T) {
	dir := modelDir(t, "a=qwen3", "b=qwen3")
	p := newPool(t, PoolConfig{Dir: dir})
	var unknown *UnknownModelError
	for _, name := range []string{"c", "../a", "a.gguf", filepath.Join(dir, "a.gguf"), "A"} {
		if _, err := p.Acquire(t.Context(), name); !errors.As(err, &unknown) || unknown.Name != name {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := p.Acquire(t.Context(), ""); !errors.Is(err, ErrNoModelName) {
		t.Errorf("no name: %v", err)
	}
}

// TestAnyIsTheModelUsedLast (failure F30): any is the most recently used resident model, else the one that was used
// last, and an error when none was.
func TestAnyIsTheModelUsedLast(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen3", "b=qwen3")})
	if _, err := p.Acquire(t.Context(), Any); !errors.Is(err, ErrNoneResident) {
		t.Errorf("any without a resident model: %v", err)
	}
	for _, name := range []string{"a", "b", "a"} {
		acquire(t, p, name).Release()
		l := acquire(t, p, Any)
		if l.Name != name {
			t.Errorf("any is %q, want %q", l.Name, name)
		}
		l.Release()
	}
	for _, m := range p.Models() {
		if m.LastUsed.IsZero() || m.Users != 0 {
			t.Errorf("%s: last used %v, %d users", m.Name, m.LastUsed, m.Users)
		}
	}
}

// TestAnySleeps: without a resident model, any is the one used last.
func TestAnySleeps(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen3", "b=qwen3", "c=qwen3"), MaxModels: 1})
	for _, name := range []string{"b", "a"} {
		acquire(t, p, name).Release()
	}
	if got, want := states(p), "a loaded, b unloaded, c unloaded"; got != want {
		t.Errorf("with room for one model: %s, want %s", got, want)
	}
	if err := p.Unload(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	l := acquire(t, p, Any)
	defer l.Release()
	if l.Name != "a" {
		t.Errorf("any is %q", l.Name)
	}
}

// TestPoolPresets: single models have names, other names and settings of their own.
func TestPoolPresets(t *testing.T) {
	dir := modelDir(t, "a=qwen3", "b=qwen3")
	p := newPool(t, PoolConfig{
		Named:   map[string]string{"one": filepath.Join(dir, "a.gguf"), "two": filepath.Join(dir, "b.gguf")},
		Aliases: map[string]string{"uno": "one", "none": "nosuch"}, Engine: Config{Context: 512},
		Of: func(name string, load *Options, run *Config) {
			if name == "one" {
				load.Template, run.Context = "own", 256
			}
		}})
	if got, want := states(p), "one unloaded, two unloaded"; got != want {
		t.Fatalf("models: %s, want %s", got, want)
	}
	for name, want := range map[string]int{"uno": 256, "one": 256, "two": 512} {
		l := acquire(t, p, name)
		if got := l.Engine.Config().Context; got != want || l.Engine.Model().Template == "own" != (want == 256) {
			t.Errorf("%s is %s with a context of %d and the template %q", name, l.Name, got, l.Engine.Model().Template)
		}
		l.Release()
	}
	var unknown *UnknownModelError
	if _, err := p.Acquire(t.Context(), "none"); !errors.As(err, &unknown) || unknown.Name != "none" {
		t.Errorf("an alias of nothing: %v", err)
	}
}

// TestPoolOneLoad: all who ask for a model at once share one load.
func TestPoolOneLoad(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen35")})
	var wg sync.WaitGroup
	engines := make([]*Engine, 16)
	for i := range engines {
		wg.Go(func() {
			l, err := p.Acquire(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Release()
			engines[i] = l.Engine
			g, err := l.Engine.Submit(t.Context(), Request{Tokens: randomPrompt(1, 5), MaxTokens: 3})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := g.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if slices.ContainsFunc(engines, func(e *Engine) bool { return e != engines[0] }) {
		t.Error("a model was loaded more than once")
	}
}

// TestPoolLoadError: a load that fails gives its error to every waiter and wedges nothing; the next
// request tries again.
func TestPoolLoadError(t *testing.T) {
	dir := modelDir(t, "a=qwen3", "bad=qwen3")
	path := filepath.Join(dir, "bad.gguf")
	good, _ := os.ReadFile(path)
	os.WriteFile(path, good[:len(good)/2], 0o644)
	p := newPool(t, PoolConfig{Dir: dir})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var le *LoadError
			if _, err := p.Acquire(t.Context(), "bad"); !errors.As(err, &le) || le.Name != "bad" ||
				!strings.Contains(err.Error(), "bad.gguf") {
				t.Errorf("error %v", err)
			}
		})
	}
	wg.Wait()
	if got, want := states(p), "a unloaded, bad failed"; got != want {
		t.Errorf("models: %s, want %s", got, want)
	}
	acquire(t, p, "a").Release()
	os.WriteFile(path, good, 0o644)
	acquire(t, p, "bad").Release()
	if got, want := states(p), "a loaded, bad loaded"; got != want {
		t.Errorf("models: %s, want %s", got, want)
	}
}

// TestPoolEviction: the least recently used idle model makes room; one in use stays.
func TestPoolEviction(t *testing.T) {
	dir := modelDir(t, "a=qwen3", "b=qwen3", "c=qwen3")
	p := newPool(t, PoolConfig{Dir: dir})
	one := size(t, p, "a")
	p.cfg.MemoryBytes = 2*one + one/2
	p.cfg.Engine.CacheBytes = -1
	acquire(t, p, "a").Release()
	acquire(t, p, "b").Release()
	acquire(t, p, "a").Release()
	acquire(t, p, "c").Release()
	if got, want := states(p), "a loaded, b unloaded, c loaded"; got != want {
		t.Errorf("models: %s, want %s", got, want)
	}
	// c is older than b would be, but in use.
	c := acquire(t, p, "c")
	acquire(t, p, "a").Release()
	acquire(t, p, "b").Release()
	if got, want := states(p), "a unloaded, b loaded, c loaded"; got != want {
		t.Errorf("models: %s, want %s", got, want)
	}
	// Everything in use: the wait has an end, for the caller's reasons or the pool's.
	b := acquire(t, p, "b")
	p.cfg.Wait = time.Millisecond
	if _, err := p.Acquire(t.Context(), "a"); !errors.Is(err, ErrNoRoom) {
		t.Errorf("no room: %v", err)
	}
	p.cfg.Wait = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Acquire(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// Two models wait for room; both get it when a lease ends.
	var wg sync.WaitGroup
	os.WriteFile(filepath.Join(dir, "d.gguf"), must(os.ReadFile(filepath.Join(dir, "a.gguf"))), 0o644)
	for _, name := range []string{"a", "d"} {
		wg.Go(func() {
			l, err := p.Acquire(t.Context(), name)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			l.Release()
		})
	}
	b.Release()
	b.Release() // again, without effect
	wg.Wait()
	if got := c.Engine.Err(); got != nil {
		t.Error(got)
	}
	generate(t, c.Engine, Request{Tokens: randomPrompt(1, 5), MaxTokens: 3})
	c.Release()
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// TestStoppedEngineIsLoadedAnew (failure F28): a model whose engine stopped by a defect is loaded anew for the next
// request.
func TestStoppedEngineIsLoadedAnew(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen3")})
	l := acquire(t, p, "a")
	// On the engine's own goroutine: whatever it was, the loop panics at its next step.
	defect := watch(func() { l.Engine.model.Runner.Target = nil })
	for _, c := range []sample.Constraint{defect, nil} {
		g, err := l.Engine.Submit(t.Context(), Request{Tokens: randomPrompt(1, 5), MaxTokens: 50, IgnoreEOG: true,
			Constraint: c})
		if err == nil {
			var ev Event
			if ev, err = g.Wait(t.Context()); err == nil {
				err = ev.Result.Err
			}
		}
		if err == nil || l.Engine.Err() == nil {
			t.Errorf("request of a dead engine: %v", err)
		}
	}
	l2 := acquire(t, p, "a")
	if l2.Engine == l.Engine {
		t.Fatal("the dead engine is handed out again")
	}
	generate(t, l2.Engine, Request{Tokens: randomPrompt(1, 5), MaxTokens: 3})
	l.Release()
	l2.Release()
}

// TestPoolHammer: many clients of three models with room for one or two.
func TestPoolHammer(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen3", "b=qwen3", "c=qwen3"), Engine: Config{Queue: 1000}})
	p.cfg.MemoryBytes = size(t, p, "a") * 5 / 2
	p.cfg.Engine.CacheBytes = -1
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for k := range 4 {
				l, err := p.Acquire(t.Context(), fmt.Sprintf("%c", 'a'+(i+k)%3))
				if err != nil {
					t.Error(err)
					continue
				}
				g, err := l.Engine.Submit(t.Context(), Request{Tokens: randomPrompt(uint64(i), 8), MaxTokens: 3, IgnoreEOG: true})
				if err != nil {
					t.Error(err)
				} else if ev, err := g.Wait(t.Context()); err != nil || ev.Result.Reason != ReasonLength {
					t.Errorf("%v, %+v", err, ev.Result)
				}
				l.Release()
			}
		})
	}
	wg.Wait()
}

func TestPoolClose(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen3", "b=qwen3")})
	l := acquire(t, p, "a")
	g, err := l.Engine.Submit(t.Context(), Request{Tokens: randomPrompt(1, 5), MaxTokens: 20, IgnoreEOG: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ev, err := g.Wait(t.Context()); err != nil || ev.Result.Generated != 20 {
		t.Errorf("drained: %+v, %v", ev.Result, err)
	}
	if _, err := p.Acquire(t.Context(), "b"); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	l.Release()
}

// TestPoolIdle: a model that nobody used for a while is unloaded, and loaded again when somebody does.
func TestPoolIdle(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen3"), Idle: time.Hour})
	var over []func()
	stopped := 0
	p.after = func(d time.Duration, f func()) func() {
		if d != time.Hour {
			t.Errorf("waits for %v", d)
		}
		over = append(over, f)
		return func() { stopped++ }
	}
	first, second := acquire(t, p, "a"), acquire(t, p, "a")
	first.Release()
	if len(over) != 0 {
		t.Fatal("a model in use is idle")
	}
	second.Release()
	third := acquire(t, p, "a")
	over[0]() // too late: it is in use again
	if s := states(p); s != "a loaded" {
		t.Fatal(s)
	}
	third.Release()
	if stopped != 1 || len(over) != 2 {
		t.Fatalf("%d waits, %d of them stopped", len(over), stopped)
	}
	over[0]() // an older wait says nothing about the new one
	if s := states(p); s != "a loaded" {
		t.Fatal(s)
	}
	over[1]()
	p.work.Wait()
	if s := states(p); s != "a unloaded" {
		t.Fatal(s)
	}
	acquire(t, p, "a").Release()
	if s := states(p); s != "a loaded" {
		t.Fatal(s)
	}
}

// waitFor waits until a condition holds that another goroutine brings about.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 20000 {
		if ok() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

// TestGivenUpPlaceIsFree: a request that stops waiting for room leaves the line: those behind it get the room that is
// there for them, and those that come later do not wait for it.
func TestGivenUpPlaceIsFree(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "big=qwen35moe", "c=qwen3", "d=qwen3", "used=qwen3"), Wait: time.Minute})
	small, big := size(t, p, "c"), size(t, p, "big")
	if big <= small+small/4 {
		t.Fatalf("%d and %d bytes: the test shows nothing", big, small)
	}
	p.cfg.MemoryBytes = 2*small + small/4 // one more of the small ones
	p.cfg.Engine.CacheBytes = -1
	used := acquire(t, p, "used")
	line := func(n int) func() bool {
		return func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			waiting := 0
			for _, m := range p.models {
				waiting += m.waiters
			}
			return len(p.room) == n && waiting == n
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp, behind := make(chan error), make(chan *Lease)
	go func() {
		_, err := p.Acquire(ctx, "big")
		gaveUp <- err
	}()
	waitFor(t, "the large model waits", line(1))
	go func() {
		l, err := p.Acquire(t.Context(), "c")
		if err != nil {
			t.Error(err)
		}
		behind <- l
	}()
	waitFor(t, "a small one waits behind it", line(2))
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up gets %v", err)
	}
	var c *Lease
	select {
	case c = <-behind:
	case <-time.After(20 * time.Second):
		t.Fatal("the model behind one that was given up is not loaded although it fits")
	}
	// The line is empty: the next request must not find the place taken either.
	p.cfg.Wait = time.Millisecond
	if _, err := p.Acquire(t.Context(), "big"); !errors.Is(err, ErrNoRoom) {
		t.Errorf("no room: %v", err)
	}
	c.Release()
	p.cfg.Wait = 20 * time.Second
	acquire(t, p, "d").Release()
	used.Release()
}

// TestRoomIsExact: models that fill the limit to the last byte stay together.
func TestRoomIsExact(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen3", "b=qwen3")})
	p.cfg.MemoryBytes = 2 * size(t, p, "a")
	p.cfg.Engine.CacheBytes = -1
	acquire(t, p, "a").Release()
	acquire(t, p, "b").Release()
	if got, want := states(p), "a loaded, b loaded"; got != want {
		t.Errorf("models: %s, want %s", got, want)
	}
}
