package server

import (
	"context"
	"fmt"
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
		Name: s.name, Path: m.Path, Drafter: m.DrafterPath, MoreDrafters: m.MoreDrafterPaths, Arch: m.Target.Arch,
		Size:    int64(m.Target.WeightBytes()),
		Context: s.e.Config().Context, State: engine.StateLoaded, LastUsed: s.last, Users: s.users,
	}
	if err := s.e.Err(); err != nil {
		i.State, i.Err = engine.StateFailed, err
	}
	return []engine.ModelInfo{i}
}

func (s *single) Resident() map[string]*engine.Engine { return map[string]*engine.Engine{s.name: s.e} }

// PullFunc makes a model from elsewhere one of the server's. It tells how far it is, from its own goroutine.
type PullFunc func(ctx context.Context, name string, report func(file string, done, total int64)) error
