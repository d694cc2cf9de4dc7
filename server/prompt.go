package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"strobe/chat"
	"strobe/chat/parse"
	"strobe/engine"
	"strobe/sample/grammar"
	"strobe/tokenizer"
)

// view is what the server derives from a model, once.
type view struct {
	name     string
	engine   *engine.Engine
	tok      *tokenizer.Tokenizer
	template *chat.Template
	bos, eos string
	longest  int      // bytes of the longest token
	control  []string // texts of the control tokens
	// keepControl: the markers of reasoning or calls are control tokens, which the parser has to see.
	keepControl bool

	vocab    func() *grammar.Vocab // for constraints
	mu       sync.Mutex
	grammars map[string]*grammar.Grammar // compiled schemas
}

func newView(name string, e *engine.Engine) (*view, error) {
	m := e.Model()
	v := &view{name: name, engine: e, tok: m.Tokenizer, grammars: map[string]*grammar.Grammar{}}
	var err error
	if v.template, err = chat.ForModel(m.Template); err != nil {
		return nil, err
	}
	if id, ok := v.tok.BOS(); ok {
		v.bos = v.tok.Text(id)
	}
	if id, ok := v.tok.EOS(); ok {
		v.eos = v.tok.Text(id)
	}
	for id := range tokenizer.ID(v.tok.Size()) {
		piece := v.tok.Piece(id, true)
		v.longest = max(v.longest, len(piece))
		if v.tok.Kind(id) == tokenizer.Control && len(piece) > 0 {
			v.control = append(v.control, string(piece))
		}
	}
	for _, marker := range []string{"<|channel>", "<|tool_call>", "<think>", "</think>", "<tool_call>", "</tool_call>"} {
		v.keepControl = v.keepControl || strings.Contains(v.template.Source(), marker) && slices.Contains(v.control, marker)
	}
	v.vocab = sync.OnceValue(func() *grammar.Vocab { return newVocab(v.tok) })
	return v, nil
}

// encode turns a rendered prompt into tokens. Plain are the places where control tokens are spelled by
// the conversation and not by the template: nobody can end a turn or open one by writing its marker.
func (v *view) encode(text string, plain []chat.Span, done <-chan struct{}) []int32 {
	var ids []int32
	at := 0
	for _, s := range plain {
		ids = v.tok.AppendEncode(ids, text[at:s.Start], tokenizer.EncodeOptions{ParseSpecial: true, Done: done})
		ids = v.tok.AppendEncode(ids, text[s.Start:s.End], tokenizer.EncodeOptions{Done: done})
		at = s.End
	}
	ids = v.tok.AppendEncode(ids, text[at:], tokenizer.EncodeOptions{ParseSpecial: true, Done: done})
	// Some templates write the beginning-of-text token themselves, others leave it to the tokenizer.
	if bos, ok := v.tok.BOS(); ok && v.tok.AddBOS() && (len(ids) == 0 || ids[0] != bos) {
		ids = append([]int32{bos}, ids...)
	}
	return ids
}

// fits refuses a text that is too long whatever its tokens, before any work is done on it.
func (v *view) fits(bytes int) error {
	if n, limit := bytes/max(v.longest, 1), v.engine.Config().Context; n >= limit {
		return &engine.ContextError{Prompt: n, Context: limit}
	}
	return nil
}

// toolChoice says whether the model may, must or must not call tools.
type toolChoice struct {
	none, required bool
	name           string // the only one to call
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
	done     <-chan struct{} // closed when nobody wants the answer any more; its prompt is incomplete then
}

// prompt is a rendered conversation.
type prompt struct {
	text     string
	tokens   []int32
	thinking bool // it ends inside an open block of reasoning
}

// render makes the prompt of a conversation.
func (v *view) render(c *conversation) (*prompt, error) {
	opt := chat.Options{
		Tools: c.tools, AddGenerationPrompt: true, EnableThinking: c.thinking, Extra: c.kwargs,
		BOS: v.bos, EOS: v.eos, Now: time.Now(), Done: c.done,
	}
	if c.choice.none {
		opt.Tools = nil
	}
	msgs := c.messages
	size := 0
	for i := range msgs {
		size += messageSize(&msgs[i])
	}
	for _, t := range opt.Tools {
		size += len(t)
	}
	if err := v.fits(size); err != nil {
		return nil, err
	}
	// A conversation that ends with the assistant is to be continued there.
	continued := ""
	if n := len(msgs); n > 1 && msgs[n-1].Role == "assistant" && len(msgs[n-1].ToolCalls) == 0 {
		continued = msgs[n-1].Text()
		msgs = msgs[:n-1]
		if opt.EnableThinking == nil && v.template.Thinking() {
			off := false
			opt.EnableThinking = &off
		}
	}
	text, plain, err := v.template.RenderMarked(msgs, opt, v.control)
	if err != nil { // the template refuses the conversation, or cannot show it
		return nil, invalid("", "%v", err)
	}
	text += continued
	p := &prompt{text: text, tokens: v.encode(text, plain, c.done), thinking: parse.ThinkingOpen(text)}
	select {
	case <-c.done:
		return nil, errClient
	default:
	}
	return p, nil
}

// messageSize is how much text a message adds to the prompt at least; templates may leave out
// reasoning.
func messageSize(m *chat.Message) int {
	size := 0
	for _, c := range m.ToolCalls {
		size += len(c.Arguments)
	}
	switch c := m.Content.(type) {
	case string:
		size += len(c)
	case []chat.Part:
		for _, p := range c {
			size += len(p.Text)
		}
	}
	return size
}

// checkpoints are the lengths of a prompt after which a later one may differ: the ends of its turns.
func (v *view) checkpoints(tokens []int32) []int {
	var at []int
	for i, id := range tokens {
		if v.tok.IsEOG(id) {
			at = append(at, i+1)
		}
	}
	return at
}

// answers makes the engine's requests for n answers to a conversation, and the replies that will
// read them. What is common to them, the sampling, is already in req.
func (v *view) answers(c *conversation, req engine.Request, n int, stream bool) ([]engine.Request, []*reply, error) {
	p, err := v.render(c)
	if err != nil {
		return nil, nil, err
	}
	req.Tokens = p.tokens
	req.Checkpoints = v.checkpoints(p.tokens)
	req.KeepSpecial = !c.raw && v.keepControl
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

// parser takes the answers to a prompt apart.
func (v *view) parser(c *conversation, p *prompt) *parse.Parser {
	if c.raw {
		return nil
	}
	tools := c.tools
	if c.choice.none {
		tools = nil
	}
	return parse.For(v.template.Source(), tools, p.thinking)
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
		if msgs[i].Role != "assistant" && msgs[i].Content == nil {
			return nil, invalid(at+".content", "is missing")
		}
	}
	return msgs, nil
}
