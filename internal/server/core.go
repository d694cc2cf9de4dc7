package server

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/sample"
)

// core is what all protocols share: the models, the defaults of requests, counters and traces. The
// protocols (openAI, anthropic, ollama, llamaCPP) have a type each that embeds it.
type core struct {
	cfg     Config
	metrics *meter
	tracer  tracer
	started time.Time

	stopping context.Context // ends when Serve begins to drain
	stop     context.CancelFunc

	offer   atomic.Pointer[Models]          // nil while loading
	changed atomic.Pointer[sample.Defaults] // by POST /props
	pull    atomic.Pointer[PullFunc]        // nil downloads nothing

	memory *memory // of conversations that later requests continue

	jobs    sync.WaitGroup  // requests that go on without their clients
	jobsEnd context.Context // ends them
	endJobs context.CancelFunc

	mu      sync.Mutex
	inUse   map[*engine.Engine]*model
	derived map[string]*derivedModel // by name

	// tweak changes requests on their way to the engine, in tests.
	tweak func(*engine.Request, *model)
}

func newCore(cfg Config) *core {
	s := &core{cfg: cfg.withDefaults(), started: time.Now(), inUse: map[*engine.Engine]*model{},
		derived: map[string]*derivedModel{}}
	s.memory = newMemory(s.cfg.MaxStored, s.cfg.StoredAge)
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.jobsEnd, s.endJobs = context.WithCancel(context.Background())
	s.metrics = newMeter(s.started, s.models, cfg.Upstreams)
	if cfg.Traces != nil {
		s.tracer.Tracer = cfg.Traces.Tracer("strobe")
	}
	return s
}

// models returns the models of the server; nil while they are loaded, which the middleware refuses requests for.
func (s *core) models() Models {
	if m := s.offer.Load(); m != nil {
		return *m
	}
	return nil
}

// fingerprint tells builds apart in answers.
func (s *core) fingerprint() string {
	if s.cfg.Version == "" {
		return "strobe"
	}
	return "strobe-" + s.cfg.Version
}

// lease is a model of this server in use by a request.
type lease struct {
	*model
	core *core
	keep *time.Duration // for how long the model stays loaded afterwards; nil leaves it open
	free func(*time.Duration)
}

func (l *lease) release() { l.free(l.keep) }

// acquire returns the model of this server that a request names, loading it if need be. It does not wait for that when
// the server is to stop.
func (s *core) acquire(ctx context.Context, name string) (*lease, error) {
	if s.cfg.Upstreams.Has(name) {
		return nil, fmt.Errorf("%w: %s lives on another server, which is asked for conversations only", engine.ErrUnsupported, name)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errShutdown) })()
	derived := s.derivedOf(name)
	if derived != nil {
		name = derived.from
	}
	resolved, e, release, err := s.models().Acquire(ctx, name)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	m, err := s.modelOf(resolved, e)
	if err == nil && derived != nil {
		m, err = derived.model(m)
	}
	if err != nil {
		release(nil)
		return nil, err
	}
	return &lease{model: m, core: s, free: release}, nil
}

// modelOf returns the model of an engine, built at its first use.
func (s *core) modelOf(name string, e *engine.Engine) (*model, error) {
	s.mu.Lock()
	m := s.inUse[e]
	s.mu.Unlock()
	if m != nil {
		return m, nil
	}
	defaults := s.cfg.Chat
	if m := s.cfg.PerModel[name]; m.Chat != nil {
		defaults = *m.Chat
	}
	m, err := newModel(name, e, defaults)
	if err != nil {
		return nil, err
	}
	m.fills = !slices.Contains(s.cfg.NoFill, name)
	resident := slices.Collect(maps.Values(s.models().Resident()))
	s.mu.Lock()
	defer s.mu.Unlock()
	// Engines that were unloaded would keep their memory.
	maps.DeleteFunc(s.inUse, func(old *engine.Engine, _ *model) bool { return !slices.Contains(resident, old) })
	s.inUse[e] = m
	return m, nil
}

// loaded returns a loaded model for endpoints that only ask about it: the one named, the only one, or
// the one used last. They must not load anything.
func (s *core) loaded(name string) (*model, error) {
	engines := s.models().Resident()
	if e := engines[name]; e != nil {
		return s.modelOf(name, e)
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
	return s.modelOf(best, engines[best])
}

// defaults returns a request with the defaults of a model. In rising order of precedence they are the program's, those
// of the model's file, the configuration's for all models and for this one, and what POST /props changed.
func (s *core) defaults(m *model) engine.Request {
	req := engine.Request{Params: s.cfg.Params, Spec: s.cfg.Spec, MaxTokens: s.cfg.MaxTokens, Shift: s.cfg.Shift}
	own := m.engine.Model().Sampling
	own.Apply(&req.Params)
	s.cfg.Sampling.Apply(&req.Params)
	if configured, ok := s.cfg.PerModel[m.name]; ok {
		configured.Sampling.Apply(&req.Params)
		if configured.MaxTokens > 0 {
			req.MaxTokens = configured.MaxTokens
		}
	}
	if changed := s.changed.Load(); changed != nil {
		changed.Apply(&req.Params)
	}
	if req.Params.Seed = rand.Uint64(); s.cfg.Seed != nil {
		req.Params.Seed = *s.cfg.Seed
	}
	return req
}

// prompt returns the prompt of a conversation without running it.
func (s *core) prompt(r *http.Request, c *conversation) (*dialog.Prompt, error) {
	l, err := s.acquire(r.Context(), c.model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	c.done, c.fetch = r.Context().Done(), s.fetch(r.Context())
	return l.render(c)
}
