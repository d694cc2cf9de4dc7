package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/sample/grammar"
	"strobe/internal/tokenizer"
)

// view is what the server derives from a model, once.
type view struct {
	name     string
	engine   *engine.Engine
	tok      *tokenizer.Tokenizer
	format   *dialog.Format
	template *chat.Template
	defaults ChatDefaults
	remote   *remote // instead of all of the above but the name: the model lives on another server

	vocab     func() *grammar.Vocab // for constraints
	callVocab func() *grammar.Vocab // for those of calls
	mu        sync.Mutex
	grammars  map[string]*grammar.Grammar // compiled schemas

	grammarBytes int // of them
}

func newView(name string, e *engine.Engine, defaults ChatDefaults) (*view, error) {
	m := e.Model()
	v := &view{name: name, engine: e, tok: m.Tokenizer, format: dialog.For(m), defaults: defaults}
	v.grammars = map[string]*grammar.Grammar{}
	var err error
	if v.template, err = v.format.Template(); err != nil {
		return nil, err
	}
	v.vocab = sync.OnceValue(func() *grammar.Vocab { return newVocab(v.tok) })
	v.callVocab = sync.OnceValue(func() *grammar.Vocab {
		for id := range tokenizer.ID(v.tok.Size()) {
			if v.tok.Kind(id) == tokenizer.Control && slices.Contains(callMarkers, string(v.tok.Piece(id, true))) {
				return newVocab(v.tok, callMarkers...)
			}
		}
		return v.vocab()
	})
	return v, nil
}

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

// request is the start of every engine request: the defaults. A model's own come before the program's, what was
// said for all models before those, and what was said for this one first.
func (s *Server) request(v *view) engine.Request {
	if v.remote != nil { // the other server has defaults of its own
		return engine.Request{}
	}
	req := engine.Request{Params: s.cfg.Params, Spec: s.cfg.Spec, MaxTokens: s.cfg.MaxTokens}
	own := v.engine.Model().Sampling
	own.Apply(&req.Params)
	s.cfg.Sampling.Apply(&req.Params)
	if m, ok := s.cfg.PerModel[v.name]; ok {
		m.Sampling.Apply(&req.Params)
		if m.MaxTokens > 0 {
			req.MaxTokens = m.MaxTokens
		}
	}
	if d := s.changed.Load(); d != nil {
		d.Apply(&req.Params)
	}
	if req.Params.Seed = rand.Uint64(); s.cfg.Seed != nil {
		req.Params.Seed = *s.cfg.Seed
	}
	return req
}

// render makes the prompt of a conversation.
func (v *view) render(c *conversation) (*dialog.Prompt, error) {
	if v.remote != nil {
		return nil, fmt.Errorf("%w: the server of %s does not do this", engine.ErrUnsupported, v.name)
	}
	opt := dialog.Options{Tools: c.tools, Thinking: c.thinking, Extra: c.kwargs, Whole: c.raw, Done: c.done}
	opt.Context, opt.Continue, opt.NoTurn = v.engine.Config().Context, c.goOn, c.noTurn
	if c.choice.none {
		opt.Tools = nil
	}
	opt.System = v.defaults.System
	if len(v.defaults.Kwargs) > 0 {
		opt.Extra = maps.Clone(v.defaults.Kwargs)
		maps.Copy(opt.Extra, c.kwargs)
	}
	if _, given := opt.Extra["enable_thinking"]; opt.Thinking == nil && !given {
		opt.Thinking = v.defaults.Thinking
	}
	p, err := v.format.Chat(c.messages, opt)
	var long *engine.ContextError
	var field *chat.FieldError
	if err != nil && !errors.As(err, &long) && !errors.As(err, &field) && !errors.Is(err, dialog.ErrStopped) {
		// The template refuses the conversation, or cannot show it.
		return nil, refused("", "the chat template refuses the conversation", err)
	}
	return p, err
}

// prompt makes the prompt of a conversation that nobody wants answered.
func (s *Server) prompt(r *http.Request, model string, c *conversation) (*dialog.Prompt, error) {
	l, err := s.acquire(r.Context(), model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	c.done = r.Context().Done()
	return l.render(c)
}

// answers makes the engine's requests for n answers to a conversation, and the replies that will
// read them. What is common to them, the sampling, is already in req.
func (v *view) answers(c *conversation, req engine.Request, n int, stream bool) ([]engine.Request, []*reply, error) {
	if v.remote != nil {
		if req.WantLogProb {
			return nil, nil, invalid("logprobs", "is not supported for a model of another server")
		}
		reqs, replies := make([]engine.Request, n), make([]*reply, n)
		for i := range reqs {
			reqs[i] = req
			replies[i] = &reply{parser: &chunks{}, oneCall: c.oneCall, asked: c}
		}
		return reqs, replies, nil
	}
	p, err := v.render(c)
	if err != nil {
		return nil, nil, err
	}
	req = p.Request(req)
	reqs, replies := make([]engine.Request, n), make([]*reply, n)
	for i := range reqs {
		reqs[i] = req
		reqs[i].Params.Seed += uint64(i)
		if reqs[i].Constraint, err = v.constraint(c, p); err != nil {
			return nil, nil, err
		}
		replies[i] = newReply(v, c, p, stream)
	}
	return reqs, replies, nil
}
