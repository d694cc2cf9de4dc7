package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"strobe/internal/engine"
)

// Models gives the server its engines.
type Models interface {
	// Acquire returns the engine of a model and keeps it loaded until release is called, which takes how long it is to
	// stay after that; nil leaves that to the models. The name it returns is the model's own, whatever it was called
	// in the request.
	Acquire(ctx context.Context, name string) (resolved string, e *engine.Engine, release func(keep *time.Duration),
		err error)
	// Unload takes a model out of memory.
	Unload(ctx context.Context, name string) error
	// List describes what there is.
	List() []engine.ModelInfo
	// Resident returns the engines of the loaded models by name.
	Resident() map[string]*engine.Engine
	// alone reports whether there is one model, which answers to every name.
	alone() bool
}

// Pool offers the models of a pool. Where only is not empty, every request gets that model, whatever
// name it gives: clients of a server with one model often have a fixed name in their settings.
func Pool(p *engine.Pool, only string) Models { return pool{p, only} }

type pool struct {
	p    *engine.Pool
	only string
}

func (p pool) Acquire(ctx context.Context, name string) (string, *engine.Engine, func(*time.Duration), error) {
	if p.only != "" {
		name = p.only
	}
	l, err := p.p.Acquire(ctx, name)
	if err != nil {
		return "", nil, nil, err
	}
	return l.Name, l.Engine, func(keep *time.Duration) {
		l.Keep = keep
		l.Release()
	}, nil
}

// alone: clients get this model whatever they ask for.
func (p pool) alone() bool    { return p.only != "" }
func (s *single) alone() bool { return true }

func (p pool) Unload(ctx context.Context, name string) error {
	if p.only != "" {
		name = p.only
	}
	return p.p.Unload(ctx, name)
}

func (p pool) List() []engine.ModelInfo            { return p.p.Models() }
func (p pool) Resident() map[string]*engine.Engine { return p.p.Resident() }

// Single offers one engine under every name. The engine stays the caller's.
func Single(name string, e *engine.Engine) Models { return &single{name: name, e: e} }

type single struct {
	name string
	e    *engine.Engine

	mu    sync.Mutex
	users int
	last  time.Time
}

func (s *single) Acquire(_ context.Context, _ string) (string, *engine.Engine, func(*time.Duration), error) {
	if err := s.e.Err(); err != nil {
		return "", nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	s.last = time.Now()
	release := sync.OnceFunc(func() {
		s.mu.Lock()
		s.users--
		s.mu.Unlock()
	})
	return s.name, s.e, func(*time.Duration) { release() }, nil
}

// Unload refuses: where the engine came from is not known here.
func (s *single) Unload(context.Context, string) error {
	return fmt.Errorf("%w: it is part of the program and stays loaded", engine.ErrUnsupported)
}

func (s *single) List() []engine.ModelInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.e.Model()
	i := engine.ModelInfo{
		Name: s.name, Path: m.Path, Drafter: m.DrafterPath, Arch: m.Target.Arch, Size: int64(m.Target.WeightBytes()),
		Context: s.e.Config().Context, State: engine.StateLoaded, LastUsed: s.last, Users: s.users,
	}
	if err := s.e.Err(); err != nil {
		i.State, i.Err = engine.StateFailed, err
	}
	return []engine.ModelInfo{i}
}

func (s *single) Resident() map[string]*engine.Engine { return map[string]*engine.Engine{s.name: s.e} }

// lease is a model in use by a request.
type lease struct {
	*view
	keep *time.Duration // for how long the model is to stay loaded afterwards; nil leaves it open
	free func(*time.Duration)
}

func (l *lease) release() { l.free(l.keep) }

// acquire gets the model a request names. A server that is to stop does not wait for one to load.
func (s *Server) acquire(ctx context.Context, name string) (*lease, error) {
	if s.cfg.Upstreams.Has(name) {
		return nil, fmt.Errorf("%w: %s lives on another server, which is asked for conversations only", engine.ErrUnsupported, name)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errShutdown) })()
	resolved, e, release, err := s.models().Acquire(ctx, name)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	v, err := s.view(resolved, e)
	if err != nil {
		release(nil)
		return nil, err
	}
	return &lease{view: v, free: release}, nil
}

// view returns what the server derived from a model, made at its first use.
func (s *Server) view(name string, e *engine.Engine) (*view, error) {
	s.mu.Lock()
	v := s.views[e]
	s.mu.Unlock()
	if v != nil {
		return v, nil
	}
	defaults := s.cfg.Chat
	if m := s.cfg.PerModel[name]; m.Chat != nil {
		defaults = *m.Chat
	}
	v, err := newView(name, e, defaults)
	if err != nil {
		return nil, err
	}
	resident := slices.Collect(maps.Values(s.models().Resident()))
	s.mu.Lock()
	defer s.mu.Unlock()
	// Views of models that were unloaded would keep their memory.
	maps.DeleteFunc(s.views, func(old *engine.Engine, _ *view) bool { return !slices.Contains(resident, old) })
	s.views[e] = v
	return v, nil
}

// loaded returns a loaded model for endpoints that only ask about it: the one named, the only one, or
// the one used last. They must not load anything.
func (s *Server) loaded(name string) (*view, error) {
	engines := s.models().Resident()
	if e := engines[name]; e != nil {
		return s.view(name, e)
	}
	if name != "" && name != engine.Any && len(s.models().List()) > 1 {
		return nil, invalid("model", "%q is not loaded", name)
	}
	var best string
	var last time.Time
	for _, m := range s.models().List() {
		if engines[m.Name] != nil && (best == "" || m.LastUsed.After(last)) {
			best, last = m.Name, m.LastUsed
		}
	}
	if best == "" {
		return nil, fmt.Errorf("%w", engine.ErrNoneResident)
	}
	return s.view(best, engines[best])
}
