package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

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

// toolChoice says whether the model may, must or must not call tools.
type toolChoice struct {
	none, required bool
	name           string // the only one to call
	// allowed are the tools to choose from; nil is all of them.
	allowed []string
}

// offered are the tools that the choice leaves, which are all the model hears of.
func (c *toolChoice) offered(tools []json.RawMessage) []json.RawMessage {
	if c.allowed == nil {
		return tools
	}
	return slices.DeleteFunc(slices.Clone(tools), func(raw json.RawMessage) bool {
		return !slices.Contains(c.allowed, nameOf(raw))
	})
}

// nameOf is the name of a tool, "" if it has none.
func nameOf(tool json.RawMessage) string {
	var t struct{ Function struct{ Name string } }
	if json.Unmarshal(tool, &t) != nil {
		return ""
	}
	return t.Function.Name
}

// conversation is what the chat protocols have in common.
type conversation struct {
	messages []chat.Message
	tools    []json.RawMessage // in OpenAI's shape
	choice   toolChoice
	oneCall  bool            // at most one tool call
	format   *format         // of the answer; nil for free text
	thinking *bool           // nil leaves it to the template
	budget   int             // most tokens of thinking; < 0 for no limit
	kwargs   map[string]any  // template variables
	raw      bool            // leave reasoning and tool calls in the text
	goOn     *bool           // whether the assistant's last message is continued; nil is yes
	noTurn   bool            // do not open the assistant's turn
	sampling *samplingFields // as the client gave them
	done     <-chan struct{} // closed when nobody wants the answer any more; its prompt is incomplete then
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

// decodeMessages reads OpenAI's messages and names the one that is wrong.
func decodeMessages(raw []json.RawMessage) ([]chat.Message, error) {
	if len(raw) == 0 {
		return nil, invalid("messages", "must be a list with at least one message")
	}
	msgs := make([]chat.Message, len(raw))
	for i, m := range raw {
		at := fmt.Sprintf("messages[%d]", i)
		if kindOf(m) != "object" {
			return nil, invalid(at, "must be an object")
		}
		if err := decodeJSON(m, at, &msgs[i]); err != nil {
			return nil, err
		}
		if err := newCalls(&msgs[i], at); err != nil {
			return nil, err
		}
		if msgs[i].Content == nil {
			switch msgs[i].Role {
			case "assistant":
			case "tool": // one that returns nothing
				msgs[i].Content = ""
			default:
				return nil, invalid(at+".content", "is missing")
			}
		}
	}
	return msgs, nil
}
