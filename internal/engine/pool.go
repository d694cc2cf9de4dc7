package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"strobe/internal/platform"
)

// PoolConfig says which models a Pool offers.
type PoolConfig struct {
	Dir   string   // folder whose GGUF files are offered, subfolders included; "" for none
	Files []string // further model files
	Alias string   // name of the first of Files; "" takes that of the file
	// Named are further model files by their names, and Aliases other names of models.
	Named   map[string]string
	Aliases map[string]string
	Load    Options // how every model is loaded
	Engine  Config  // how every engine runs; a CacheDir is shared, entries are told apart by model
	// Of, if set, changes how the model of a name is loaded and run. It is called from any goroutine.
	Of func(name string, load *Options, run *Config)
	// MaxModels limits how many models are resident; 0 means no limit.
	MaxModels int
	// MemoryBytes limits what the resident models hold together: files of weights, sequences and
	// prefix caches. 0 means no limit. A model that is larger alone is still loaded, alone.
	MemoryBytes int64
	// Wait is how long a request waits for room while every resident model is in use; 0 means a
	// minute. Loading itself is not limited by it.
	Wait time.Duration
	Log  *slog.Logger // nil discards
	// Idle is how long a model stays loaded after its last use; 0 means until another one needs its memory.
	Idle time.Duration
}

// ModelState is where a model of a Pool stands.
type ModelState string

// The states.
const (
	StateUnloaded ModelState = "unloaded"
	StateLoading  ModelState = "loading"
	StateLoaded   ModelState = "loaded"
	StateFailed   ModelState = "failed" // the last load failed; the next request tries again
)

// ModelInfo describes a model of a Pool.
type ModelInfo struct {
	Name         string // what requests say
	Path         string
	Drafter      string   // path of the drafter, "" for none
	MoreDrafters []string // paths of drafters beside that one
	Vision       string   // path of the image encoder, "" for none
	Arch         string
	Size         int64 // bytes of the files
	Context      int   // most tokens of a sequence
	State        ModelState
	Err          error     // of the last failed load, or why the file cannot be read
	LastUsed     time.Time // zero if never
	Expires      time.Time // when it is unloaded unless it is used; zero for never
	Users        int       // leases held now
	Modified     time.Time // of the file
}

// Any is the reserved name that stands for the most recently used resident model or, when none is, the model that was
// used last.
const Any = "any"

// Errors of Acquire that callers tell apart.
var (
	ErrNoModelName  = errors.New("the model's name is missing")
	ErrNoneResident = errors.New(`model "any": no model was used yet; name one`)
	ErrNoRoom       = errors.New("no memory for another model: all loaded ones are in use; try again later")
)

// UnknownModelError reports a name the pool does not offer.
type UnknownModelError struct{ Name string }

func (e *UnknownModelError) Error() string { return fmt.Sprintf("unknown model %q", e.Name) }

// LoadError reports a model that could not be loaded. Every request that waited for the load gets it.
type LoadError struct {
	Name string
	Err  error
}

func (e *LoadError) Error() string { return fmt.Sprintf("load model %q: %v", e.Name, e.Err) }
func (e *LoadError) Unwrap() error { return e.Err }

// Pool offers several models and keeps those in memory that fit. Its methods may be called from any
// goroutine.
//
// A model is loaded when it is first asked for, by a goroutine of its own; all who want it wait for
// the same load. When memory is short, the least recently used model without users makes
// room. A model in use is never evicted.
type Pool struct {
	cfg PoolConfig

	mu      sync.Mutex
	models  []*resident // by name
	retired []*resident // whose file was changed or replaced; they go with their last user
	scanned map[string]scan
	added   map[string]string // paths of further files, by name
	room    []*resident       // models that wait for memory, oldest first
	changed chan struct{}     // closed and replaced when any state changes
	closed  bool
	work    sync.WaitGroup  // evictions
	hurry   context.Context // ends when evictions are to give up saving
	giveUp  context.CancelFunc

	scanning *scanning                                      // nil unless one is in progress
	stat     func(path string) (os.FileInfo, error)         // os.Stat, but in tests
	read     func(path string, opt Options) (*Model, error) // Load, but in tests
	after    func(d time.Duration, f func()) (stop func())  // time.AfterFunc, but in tests
}

// resident is a model of the pool, loaded or not.
type resident struct {
	ModelInfo
	engine  *Engine
	loading *loading       // nil unless a load runs
	closing bool           // it is being evicted
	waiters int            // requests that wait for room for it
	rest    func()         // stops the wait for the end of its idle time; nil when there is none
	keep    *time.Duration // for how long its last user wants it to stay; nil leaves it to the pool
}

// loading is a load that requests wait for.
type loading struct {
	done chan struct{}
	err  error
}

// Lease keeps a model resident while it is used.
type Lease struct {
	Name   string // resolved, never Any
	Engine *Engine
	// Keep is for how long the model is to stay loaded after this use; nil leaves it to the pool, negative is for good.
	Keep  *time.Duration
	once  sync.Once
	pool  *Pool
	model *resident
}

// NewPool returns a pool. Nothing is loaded before the first Acquire.
func NewPool(cfg PoolConfig) (*Pool, error) {
	if cfg.Wait == 0 {
		cfg.Wait = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Engine.Log == nil {
		cfg.Engine.Log = cfg.Log
	}
	p := &Pool{cfg: cfg, scanned: make(map[string]scan), changed: make(chan struct{}), stat: os.Stat, read: Load,
		added: maps.Clone(cfg.Named)}
	p.hurry, p.giveUp = context.WithCancel(context.Background())
	p.after = func(d time.Duration, f func()) func() {
		t := time.AfterFunc(d, f)
		return func() { t.Stop() }
	}
	return p, p.scan()
}

// Models lists what the pool offers, by name. Files that came since are included.
func (p *Pool) Models() []ModelInfo {
	if err := p.rescan(context.Background()); err != nil {
		p.cfg.Log.Warn("models", "error", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []ModelInfo
	for _, m := range p.models {
		out = append(out, m.ModelInfo)
	}
	return out
}

// Resident returns the engines of the loaded models, by name, for metrics. They may close any time.
func (p *Pool) Resident() map[string]*Engine {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]*Engine)
	for _, m := range p.models {
		if m.engine != nil && !m.closing {
			out[m.Name] = m.engine
		}
	}
	return out
}

// Acquire returns the engine of a model, loading it when needed, and keeps it resident until
// Release. ctx ends the wait of this caller only. Errors: ErrNoModelName, *UnknownModelError,
// ErrNoneResident, *LoadError, ErrNoRoom, ErrClosed, or that of ctx.
func (p *Pool) Acquire(ctx context.Context, name string) (*Lease, error) {
	if name == "" {
		return nil, ErrNoModelName
	}
	m, err := p.resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	p.refresh(m)
	p.mu.Lock()
	defer p.mu.Unlock()
	var deadline <-chan time.Time // of the wait for room
	for {
		if p.closed {
			return nil, ErrClosed
		}
		if !slices.Contains(p.models, m) { // its file is gone or another one since
			if m = p.named(m.Name); m == nil {
				return nil, &UnknownModelError{name}
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if m.engine != nil && !m.closing {
			if m.engine.Err() == nil {
				m.Users++
				m.LastUsed = time.Now()
				return &Lease{Name: m.Name, Engine: m.engine, pool: p, model: m}, nil
			}
			p.evict(m)
		}
		if l := m.loading; l != nil {
			if err := p.wait(ctx, l.done, nil); err != nil {
				return nil, err
			}
			if l.err != nil {
				return nil, &LoadError{m.Name, l.err}
			}
			continue
		}
		changed := p.changed
		if p.makeRoom(m) {
			p.load(m)
			continue
		}
		if deadline == nil {
			t := time.NewTimer(p.cfg.Wait)
			defer t.Stop()
			deadline = t.C
		}
		m.waiters++
		err := p.wait(ctx, changed, deadline)
		if m.waiters--; m.waiters == 0 && err != nil {
			// Nobody wants it any more; those behind may have the room.
			p.room = slices.DeleteFunc(p.room, func(x *resident) bool { return x == m })
			p.broadcast()
		}
		if err != nil {
			return nil, err
		}
	}
}

// wait releases the lock until c is closed.
func (p *Pool) wait(ctx context.Context, c <-chan struct{}, deadline <-chan time.Time) error {
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-deadline:
		return ErrNoRoom
	}
}

// resolve finds the model a name stands for.
func (p *Pool) resolve(ctx context.Context, name string) (*resident, error) {
	if name == Any {
		return p.mostRecent()
	}
	find := func() *resident {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.named(name)
	}
	m := find()
	if m == nil { // it may have been added since
		if err := p.rescan(ctx); err != nil {
			p.cfg.Log.Warn("models", "error", err)
		}
		m = find()
	}
	if m == nil {
		return nil, &UnknownModelError{name}
	}
	return m, nil
}

// named returns the model of a name, nil if there is none.
func (p *Pool) named(name string) *resident {
	if other, ok := p.cfg.Aliases[name]; ok {
		name = other
	}
	i, ok := slices.BinarySearchFunc(p.models, name, func(m *resident, n string) int { return strings.Compare(m.Name, n) })
	if !ok {
		return nil
	}
	return p.models[i]
}

// refresh puts a new model into the place of one whose file was changed or replaced since it was loaded. Those who
// use a replaced one finish with it; an overwritten one fails by itself.
func (p *Pool) refresh(m *resident) {
	p.mu.Lock()
	e := m.engine
	p.mu.Unlock()
	if e == nil || e.change() == platform.Unchanged {
		return
	}
	s, _ := p.look(m.Path)
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.models, m)
	if p.closed || i < 0 || m.engine != e || m.closing {
		return // somebody else was faster
	}
	s.info.Name = m.Name
	p.models[i] = &resident{ModelInfo: s.info}
	p.retired = append(p.retired, m)
	p.cfg.Log.Info("model file changed", "model", m.Name)
	if m.Users == 0 {
		p.evict(m)
	}
	p.broadcast()
}

func (p *Pool) mostRecent() (*resident, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var best, sleeping *resident
	for _, m := range p.models {
		switch {
		case m.engine != nil && !m.closing && m.engine.Err() == nil:
			if best == nil || m.LastUsed.After(best.LastUsed) {
				best = m
			}
		case !m.LastUsed.IsZero() && (sleeping == nil || m.LastUsed.After(sleeping.LastUsed)):
			sleeping = m
		}
	}
	if best == nil {
		best = sleeping
	}
	if best == nil {
		return nil, ErrNoneResident
	}
	return best, nil
}

// makeRoom reports whether a model fits now. If not, it evicts an idle one when that helps; the
// caller tries again when something has changed. Models get room in the order they asked.
func (p *Pool) makeRoom(m *resident) bool {
	used, others := int64(0), 0
	var idle *resident
	for _, x := range slices.Concat(p.models, p.retired) {
		if x.engine == nil && x.loading == nil {
			continue
		}
		others++
		used += x.held()
		if x.engine != nil && !x.closing && x.Users == 0 && x.waiters == 0 &&
			(idle == nil || x.LastUsed.Before(idle.LastUsed)) {
			idle = x
		}
	}
	first := len(p.room) == 0 || p.room[0] == m
	fits := p.cfg.MemoryBytes <= 0 || others == 0 || used+m.Size <= p.cfg.MemoryBytes
	fits = fits && (p.cfg.MaxModels <= 0 || others < p.cfg.MaxModels)
	if first && !m.closing && fits {
		if len(p.room) > 0 {
			p.room = p.room[1:]
			p.broadcast()
		}
		return true
	}
	if !slices.Contains(p.room, m) {
		p.room = append(p.room, m)
	}
	evicting := slices.ContainsFunc(slices.Concat(p.models, p.retired), func(x *resident) bool { return x.closing })
	if first && idle != nil && !evicting {
		p.evict(idle)
	}
	return false
}

// held is the memory a model takes.
func (m *resident) held() int64 {
	n := m.Size
	if m.engine != nil {
		s := m.engine.Snapshot()
		n += int64(s.TargetBytes) + int64(s.DrafterBytes)
	}
	return n
}

// load starts loading a model. Nothing can interrupt that; a pool that is closed meanwhile does not wait for it.
func (p *Pool) load(m *resident) {
	l := &loading{done: make(chan struct{})}
	m.loading, m.State, m.Err = l, StateLoading, nil
	name, path := m.Name, m.Path
	go func() {
		start := time.Now()
		e, err := p.open(name, path)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed && err == nil {
			p.mu.Unlock()
			e.Close(context.Background())
			p.mu.Lock()
			e, err = nil, ErrClosed
		}
		m.loading, l.err = nil, err
		if err != nil {
			m.State, m.Err = StateFailed, err
			p.cfg.Log.Error("model not loaded", "model", m.Name, "error", err)
		} else {
			m.engine, m.State = e, StateLoaded
			m.Drafter, m.MoreDrafters = e.Model().DrafterPath, e.Model().MoreDrafterPaths
			m.Context = e.Config().Context
			m.LastUsed = time.Now()
			p.cfg.Log.Info("model loaded", "model", m.Name, "seconds", time.Since(start).Seconds(), "what", e.Model().Summary())
		}
		close(l.done)
		p.broadcast()
	}()
}

// open loads a file and starts its engine. A defect in reading it is an error like any other.
func (p *Pool) open(name, path string) (e *Engine, err error) {
	defer func() {
		if r := recover(); r != nil {
			p.cfg.Log.Error("loading stopped by a defect", "file", path, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("%s: a defect in loading: %v", path, r)
		}
	}()
	load, cfg := p.cfg.Load, p.cfg.Engine
	if p.cfg.Of != nil {
		p.cfg.Of(name, &load, &cfg)
	}
	m, err := p.read(path, load)
	if err != nil {
		return nil, err
	}
	if cfg.CacheBytes == 0 && p.cfg.MemoryBytes > 0 {
		// What is free is not all the pool's: the caches of a few models must fit beside their weights.
		cfg.CacheBytes = min(m.cacheBytes(), max(1, p.cfg.MemoryBytes/4))
	}
	return New(m, cfg), nil
}

// evictTime is how long an evicted engine may take to save its cache.
const evictTime = 10 * time.Second

// evict unloads a model in the background.
func (p *Pool) evict(m *resident) {
	e := m.engine
	m.closing = true
	p.work.Go(func() {
		ctx, cancel := context.WithTimeout(p.hurry, evictTime)
		defer cancel()
		err := e.Close(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		m.engine, m.closing, m.State = nil, false, StateUnloaded
		p.retired = slices.DeleteFunc(p.retired, func(x *resident) bool { return x == m })
		if err != nil {
			p.cfg.Log.Warn("model unloaded", "model", m.Name, "error", err)
		} else {
			p.cfg.Log.Info("model unloaded", "model", m.Name)
		}
		p.broadcast()
	})
}

// broadcast wakes everyone who waits for a change.
func (p *Pool) broadcast() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Release gives the lease back. It may be called more than once.
func (l *Lease) Release() {
	l.once.Do(func() {
		l.pool.mu.Lock()
		defer l.pool.mu.Unlock()
		l.model.Users--
		l.model.LastUsed = time.Now()
		l.model.keep = l.Keep
		if l.model.Users == 0 && !l.model.closing && slices.Contains(l.pool.retired, l.model) && !l.pool.closed {
			l.pool.evict(l.model)
		}
		l.pool.idle(l.model)
		l.pool.broadcast()
	})
}

// idle begins the wait after which a model that nobody uses is unloaded.
func (p *Pool) idle(m *resident) {
	if m.rest != nil {
		m.rest()
		m.rest = nil
	}
	m.Expires = time.Time{}
	rest, ever := p.cfg.Idle, p.cfg.Idle > 0
	if m.keep != nil {
		rest, ever = *m.keep, *m.keep >= 0
	}
	if !ever || m.Users > 0 || p.closed {
		return
	}
	used := m.LastUsed
	m.Expires = used.Add(rest)
	m.rest = p.after(rest, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if m.Users == 0 && m.waiters == 0 && m.engine != nil && !m.closing && !p.closed && m.LastUsed.Equal(used) {
			p.evict(m)
		}
	})
}

// ErrInUse reports a model that cannot be unloaded now.
var ErrInUse = errors.New("the model is in use")

// Unload takes a model out of memory. One that is not loaded is unloaded already; one that somebody uses or waits for
// is ErrInUse.
func (p *Pool) Unload(ctx context.Context, name string) error {
	if name == "" {
		return ErrNoModelName
	}
	m, err := p.resolve(ctx, name)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return ErrClosed
	case m.Users > 0 || m.waiters > 0 || m.loading != nil:
		return ErrInUse
	case m.engine != nil && !m.closing:
		p.evict(m)
	}
	for m.closing {
		if err := p.wait(ctx, p.changed, nil); err != nil {
			return err
		}
	}
	return nil
}

// Add offers one more file under a name.
func (p *Pool) Add(ctx context.Context, name, path string) error {
	p.mu.Lock()
	if p.added == nil {
		p.added = map[string]string{}
	}
	p.added[name] = path
	p.mu.Unlock()
	return p.rescan(ctx)
}

// Close refuses further leases and closes every engine as Engine.Close does. A load in progress ends on its own and
// gives back what it took.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	for _, m := range slices.Concat(p.models, p.retired) {
		p.idle(m)
	}
	p.broadcast()
	p.mu.Unlock()
	defer context.AfterFunc(ctx, p.giveUp)()
	p.work.Wait()
	var engines []*Engine
	p.mu.Lock()
	for _, m := range slices.Concat(p.models, p.retired) {
		if m.engine != nil {
			engines = append(engines, m.engine)
			m.engine, m.State = nil, StateUnloaded
		}
	}
	p.mu.Unlock()
	errs := make([]error, len(engines))
	var wg sync.WaitGroup
	for i, e := range engines {
		wg.Go(func() { errs[i] = e.Close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
