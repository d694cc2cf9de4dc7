package server

import (
	"context"
	"errors"
	"maps"

	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/tokenizer"
)

// chatModel answers conversations: a model of this server (lease), or one of another server (remoteModel).
type chatModel interface {
	modelName() string
	// request returns a request with the model's defaults and what a client says about sampling.
	request(*samplingFields) (engine.Request, error)
	// answers returns a reply for each answer to a conversation. What they have in common is in req.
	answers(c *conversation, req engine.Request) ([]*reply, error)
	// submit begins to generate a reply.
	submit(context.Context, *reply) (generation, error)
}

// model is a loaded model with what conversations need and the server derives from it once.
type model struct {
	name     string
	engine   *engine.Engine
	tok      *tokenizer.Tokenizer
	format   *dialog.Format
	template *chat.Template
	defaults ChatDefaults
	grammars *grammars
	pace     pace
	derived  *derivedModel // what it was derived as; nil for the file as it is
	fills    bool          // it may be asked to fill in the middle
}

func newModel(name string, e *engine.Engine, defaults ChatDefaults) (*model, error) {
	tok, format := e.Model().Tokenizer, dialog.For(e.Model())
	template, err := format.Template()
	if err != nil {
		return nil, err
	}
	return &model{name: name, engine: e, tok: tok, format: format, template: template, defaults: defaults,
		grammars: newGrammars(tok, template)}, nil
}

func (m *model) modelName() string { return m.name }

func (l *lease) request(f *samplingFields) (engine.Request, error) {
	req := l.core.defaults(l.model)
	if l.derived != nil {
		for i := range l.derived.fields {
			if err := l.derived.fields[i].apply(&req, l.tok); err != nil {
				return req, err
			}
		}
	}
	return req, f.apply(&req, l.tok)
}

func (l *lease) submit(ctx context.Context, rep *reply) (generation, error) {
	if l.core.tweak != nil {
		l.core.tweak(&rep.req, l.model)
	}
	g, err := l.engine.Submit(ctx, rep.req)
	if errors.Is(err, engine.ErrQueueFull) {
		return nil, &queueError{l.pace.wait(l.engine.Snapshot().Queued), err}
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

// render returns the prompt of a conversation.
func (m *model) render(c *conversation) (*dialog.Prompt, error) {
	opt := dialog.Options{Tools: c.tools, Thinking: c.thinking, Extra: c.kwargs, Whole: c.raw, Done: c.done,
		ImageRows: c.imageRows, Fetch: c.fetch}
	opt.Context, opt.Continue, opt.NoTurn = m.engine.Config().Context, c.continueLast, c.noTurn
	if c.choice.none {
		opt.Tools = nil
	}
	opt.System = m.defaults.System
	if len(m.defaults.Kwargs) > 0 {
		opt.Extra = maps.Clone(m.defaults.Kwargs)
		maps.Copy(opt.Extra, c.kwargs)
	}
	if _, given := opt.Extra["enable_thinking"]; opt.Thinking == nil && !given {
		opt.Thinking = m.defaults.Thinking
	}
	p, err := m.format.Chat(c.messages, opt)
	var long *engine.ContextError
	var field *chat.FieldError
	if err != nil && !errors.As(err, &long) && !errors.As(err, &field) && !errors.Is(err, dialog.ErrStopped) {
		// The template refuses the conversation, or cannot show it.
		return nil, refused("", "the chat template refuses the conversation", err)
	}
	return p, err
}

func (m *model) answers(c *conversation, req engine.Request) ([]*reply, error) {
	prompts := c.prompts
	if prompts == nil {
		prompts = func(m *model) ([]*dialog.Prompt, error) {
			p, err := m.render(c)
			return []*dialog.Prompt{p}, err
		}
	}
	list, err := prompts(m)
	if err != nil {
		return nil, err
	}
	var out []*reply
	for _, p := range list {
		for choice := range c.choices {
			one := p.Request(req)
			one.Params.Seed += uint64(choice)
			if one.Constraint, err = m.grammars.constraint(c, p); err != nil {
				return nil, err
			}
			rep := newReply(m.tok, c, p)
			rep.req, rep.engine = one, m.engine
			out = append(out, rep)
		}
	}
	return out, nil
}
