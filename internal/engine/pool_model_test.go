package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
)

// poolModel is a pool and, beside it, a simple model of what it should have loaded. Its clock stands still: idle times
// end when the test says so.
type poolModel struct {
	t      *testing.T
	p      *Pool
	dir    string
	fits   int          // models at a time
	files  []*fileModel // by name, and replaced ones that are still in use
	leases []*heldLease
	timers []*timer
	clock  int // grows with every use
	seen   map[*Engine]bool
}

type fileModel struct {
	name   string
	file   int // version of the file now
	loaded int // version that is loaded, 0 for none
	users  int
	used   int // clock of its last use
	keep   *time.Duration
	timer  *timer // that runs for it; nil if none
}

type heldLease struct {
	*Lease
	c *fileModel
}

// timer is an idle time.
type timer struct {
	c       *fileModel
	used    int
	d       time.Duration
	end     func()
	stopped bool
}

const modelIdle = time.Hour

func newPoolModel(t *testing.T, fits int, limit func(size int64) int64) *poolModel {
	g := &poolModel{t: t, fits: fits, seen: map[*Engine]bool{}}
	g.dir = modelDir(t, "a=qwen3", "b=qwen3", "c=qwen3", "d=qwen3")
	g.p = newPool(t, PoolConfig{Dir: g.dir, Idle: modelIdle, Engine: Config{CacheBytes: -1}})
	g.p.cfg.MemoryBytes = limit(size(t, g.p, "a"))
	g.p.after = func(d time.Duration, f func()) func() {
		x := &timer{d: d, end: f}
		g.timers = append(g.timers, x)
		return func() { x.stopped = true }
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		g.files = append(g.files, &fileModel{name: name, file: 1})
	}
	return g
}

func (g *poolModel) named(name string) *fileModel {
	return g.files[slices.IndexFunc(g.files, func(c *fileModel) bool { return c.name == name })]
}

// room unloads the least recently used model until another one fits, and reports whether it does.
func (g *poolModel) room() bool {
	for {
		var oldest *fileModel
		n := 0
		for _, c := range g.files {
			if c.loaded == 0 {
				continue
			}
			if n++; c.users == 0 && (oldest == nil || c.used < oldest.used) {
				oldest = c
			}
		}
		if n < g.fits {
			return true
		}
		if oldest == nil {
			return false
		}
		oldest.loaded = 0
	}
}

// acquire asks for a model, and knows what it will get.
func (g *poolModel) acquire(name string) {
	t := g.t
	t.Helper()
	want, chosen := name, (*fileModel)(nil)
	if name == Any {
		for _, c := range g.files {
			if c.name != "" && c.loaded != 0 && (chosen == nil || c.used > chosen.used) {
				chosen = c
			}
		}
		if chosen == nil {
			if _, err := g.p.Acquire(t.Context(), name); !errors.Is(err, ErrNoneResident) {
				t.Fatalf("any of none: %v", err)
			}
			return
		}
		want = chosen.name
	}
	chosen = g.named(want)
	if chosen.loaded != 0 && chosen.loaded != chosen.file { // the file was replaced: a new one takes the name
		old := *chosen
		if old.name = ""; old.users > 0 {
			g.files = append(g.files, &old)
			for _, l := range g.leases {
				if l.c == chosen {
					l.c = &old
				}
			}
		}
		for _, x := range g.timers {
			if x.c == chosen {
				x.c = &old
			}
		}
		chosen.loaded, chosen.users, chosen.keep, chosen.timer = 0, 0, nil, nil
	}
	ok := chosen.loaded != 0 || g.room()
	g.p.cfg.Wait = time.Minute
	if !ok {
		g.p.cfg.Wait = time.Millisecond
	}
	l, err := g.p.Acquire(t.Context(), name)
	if !ok {
		if !errors.Is(err, ErrNoRoom) {
			t.Fatalf("%s where all are in use: %v", name, err)
		}
		return
	}
	if err != nil || l.Name != want {
		t.Fatalf("%s: %v, want %s", name, err, want)
	}
	g.clock++
	chosen.loaded, chosen.used = chosen.file, g.clock
	chosen.users++
	g.seen[l.Engine] = true
	g.leases = append(g.leases, &heldLease{l, chosen})
}

// release gives a lease back, twice, with or without a wish for how long the model stays.
func (g *poolModel) release(i int, keep *time.Duration) {
	l := g.leases[i]
	g.leases = slices.Delete(g.leases, i, i+1)
	before := len(g.timers)
	l.Keep = keep
	l.Release()
	l.Release()
	c := l.c
	g.clock++
	c.users--
	c.used, c.keep = g.clock, keep
	if c.timer != nil && !c.timer.stopped {
		g.t.Fatalf("%s: an older idle time goes on", c.name)
	}
	c.timer = nil
	d := modelIdle
	if keep != nil {
		d = *keep
	}
	if c.users == 0 && d >= 0 {
		if len(g.timers) != before+1 || g.timers[before].d != d {
			g.t.Fatalf("%s: %d idle times begin, want one of %v", c.name, len(g.timers)-before, d)
		}
		c.timer = g.timers[before]
		c.timer.c, c.timer.used = c, c.used
	} else if len(g.timers) != before {
		g.t.Fatalf("%s: an idle time begins with %d users and %v", c.name, c.users, d)
	}
	if c.name == "" && c.users == 0 {
		g.files = slices.DeleteFunc(g.files, func(x *fileModel) bool { return x == c })
	}
}

// fire ends an idle time, also one that was stopped: it may have been on its way.
func (g *poolModel) fire(x *timer) {
	x.end()
	if c := x.c; c.loaded != 0 && c.users == 0 && c.used == x.used {
		c.loaded = 0
	}
}

func (g *poolModel) unload(name string) {
	g.t.Helper()
	c := g.named(name)
	err := g.p.Unload(g.t.Context(), name)
	if inUse := c.users > 0; inUse != errors.Is(err, ErrInUse) || !inUse && err != nil {
		g.t.Fatalf("unload %s with %d users: %v", name, c.users, err)
	}
	if c.users == 0 {
		c.loaded = 0
	}
}

// replace puts another file into a model's place.
func (g *poolModel) replace(name string) {
	path := filepath.Join(g.dir, name+".gguf")
	if err := os.WriteFile(path+".new", must(os.ReadFile(path)), 0o644); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		g.t.Fatal(err)
	}
	g.named(name).file++
}

// check compares the pool with the model once nothing is being unloaded.
func (g *poolModel) check(what string) {
	t, p := g.t, g.p
	t.Helper()
	p.work.Wait()
	retired, open := 0, 0
	for _, c := range g.files {
		if c.loaded != 0 {
			open++
		}
		if c.name == "" {
			retired++
		}
	}
	for _, m := range p.Models() {
		c := g.named(m.Name)
		want := StateUnloaded
		if c.loaded != 0 {
			want = StateLoaded
		}
		if m.State != want || m.Users != c.users || m.Err != nil {
			t.Fatalf("%s: %s is %s with %d users (%v), want %s with %d", what, m.Name, m.State, m.Users, m.Err, want, c.users)
		}
		if c.timer != nil && c.loaded != 0 && c.users == 0 && m.Expires.Sub(m.LastUsed) != c.timer.d {
			t.Fatalf("%s: %s expires %v after its last use, want %v", what, m.Name, m.Expires.Sub(m.LastUsed), c.timer.d)
		}
	}
	if n := len(p.Resident()); n != open-retired {
		t.Fatalf("%s: %d models are resident, want %d", what, n, open-retired)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.retired) != retired || len(p.room) > 0 || p.closed {
		t.Fatalf("%s: %d replaced models stay, want %d; %d wait for room", what, len(p.retired), retired, len(p.room))
	}
	running := 0
	for e := range g.seen {
		select {
		case <-e.done:
			delete(g.seen, e)
		default:
			running++
		}
	}
	if running != open {
		t.Fatalf("%s: %d engines run, want %d", what, running, open)
	}
}

// TestPoolAgainstAModel: whatever is acquired, released, unloaded, replaced and left idle, the pool has loaded what a
// list that is kept by hand says, and no engine runs beside it.
func TestPoolAgainstAModel(t *testing.T) {
	for seed, c := range []struct {
		fits  int
		limit func(size int64) int64
	}{
		{2, func(size int64) int64 { return 2 * size }},
		{1, func(size int64) int64 { return 2*size - 1 }},
		{1, func(size int64) int64 { return size / 2 }}, // larger than the limit: alone
		{3, func(size int64) int64 { return 3*size + size/2 }},
		{100, func(size int64) int64 { return 0 }}, // no limit
	} {
		r := rand.New(rand.NewPCG(uint64(seed), 31))
		g := newPoolModel(t, c.fits, c.limit)
		names := []string{"a", "b", "c", "d", Any}
		keeps := []time.Duration{0, -1, 5 * time.Minute}
		for step := range 80 {
			what := fmt.Sprintf("seed %d, step %d", seed, step)
			name := names[r.IntN(len(names))]
			switch op := r.IntN(12); {
			case op < 5 && len(g.leases) < 5:
				g.acquire(name)
			case op < 8 && len(g.leases) > 0:
				keep := (*time.Duration)(nil)
				if r.IntN(3) == 0 {
					keep = &keeps[r.IntN(len(keeps))]
				}
				g.release(r.IntN(len(g.leases)), keep)
			case op == 8 && len(g.timers) > 0:
				g.fire(g.timers[r.IntN(len(g.timers))])
			case op == 9 && len(g.timers) > 0:
				g.fire(g.timers[len(g.timers)-1])
			case op == 10 && name != Any:
				g.unload(name)
			case op == 11 && name != Any && runtime.GOOS != "windows": // which does not let a mapped file be replaced
				g.replace(name)
			}
			g.check(what)
		}
		used := g.leases
		if err := g.p.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		before := len(g.timers)
		for _, l := range used {
			l.Release()
		}
		for _, x := range g.timers {
			x.end() // too late
		}
		if len(g.timers) != before {
			t.Errorf("seed %d: an idle time begins in a closed pool", seed)
		}
		for e := range g.seen {
			select {
			case <-e.done:
			default:
				t.Errorf("seed %d: an engine runs in a closed pool", seed)
			}
		}
		if _, err := g.p.Acquire(t.Context(), "a"); !errors.Is(err, ErrClosed) {
			t.Errorf("seed %d: acquired from a closed pool: %v", seed, err)
		}
		if err := g.p.Unload(t.Context(), "a"); !errors.Is(err, ErrClosed) {
			t.Errorf("seed %d: unloaded in a closed pool: %v", seed, err)
		}
	}
}
