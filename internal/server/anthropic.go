package server

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
	"strobe/internal/dialog"
	"strobe/internal/engine"
)

// messagesRequest is the body of POST /v1/messages.
type messagesRequest struct {
	Model         string             `json:"model"`
	MaxTokens     *int               `json:"max_tokens"`
	System        json.RawMessage    `json:"system"`
	Messages      []anthropicMessage `json:"messages"`
	Tools         []json.RawMessage  `json:"tools"`
	ToolChoice    *anthropicChoice   `json:"tool_choice"`
	StopSequences []string           `json:"stop_sequences"`
	Stream        bool               `json:"stream"`
	commonSampling
	Thinking *struct {
		Type         string `json:"type"`
		BudgetTokens *int   `json:"budget_tokens"`
	} `json:"thinking"`
	OutputFormat *responseFormat `json:"output_format"`
	OutputConfig *struct {
		Format *responseFormat `json:"format"`
		Effort string          `json:"effort"`
	} `json:"output_config"`
	Thread     *threadField      `json:"thread"`
	MCPServers []json.RawMessage `json:"mcp_servers"` // refused, like the next ones
	Container  json.RawMessage   `json:"container"`
	Compaction json.RawMessage   `json:"compaction"`

	sent   []anthropicMessage // the messages of the request itself, when a thread has more
	before int                // how many messages the thread has before them
}

type anthropicMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type anthropicChoice struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	OneCall bool   `json:"disable_parallel_tool_use"`
}

// block is a piece of a message, in requests and answers.
type block struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   json.RawMessage `json:"content,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`

	Source  *anthropicSource `json:"source,omitempty"`  // of an image or a document
	Title   string           `json:"title,omitempty"`   // of a document, like the next one
	Context string           `json:"context,omitempty"` // what is to be known of it
}

// blocks reads a string, which is one block of text, or a list of blocks.
func blocks(raw json.RawMessage, at string) ([]block, error) {
	return decodeBlocks(raw, at, func(text *string) block { return block{Type: "text", Text: text} })
}

// conversation turns the request into messages the template knows.
func (q *messagesRequest) conversation() (*conversation, error) {
	if err := q.refuse(); err != nil {
		return nil, err
	}
	c := newConversation(q.Model, &samplingFields{commonSampling: q.commonSampling, MaxTokens: q.MaxTokens}, q.Stream)
	system, err := systemText(q.System)
	if err != nil {
		return nil, err
	}
	if system != "" {
		c.messages = append(c.messages, chat.Message{Role: "system", Content: system})
	}
	if len(q.Messages) == q.before {
		return nil, invalid("messages", "must be a list with at least one message")
	}
	for i, m := range q.Messages {
		at := "messages" + index(i-q.before)
		if i < q.before {
			at = "thread"
		}
		msgs, err := m.messages(at)
		if err != nil {
			return nil, err
		}
		c.messages = append(c.messages, msgs...)
	}
	if err := q.tools(c); err != nil {
		return nil, err
	}
	f := q.OutputFormat
	if f == nil && q.OutputConfig != nil {
		f = q.OutputConfig.Format
	}
	if c.format, err = f.format(); err != nil {
		return nil, err
	}
	if q.OutputConfig != nil {
		if err := (&thinkingFields{ReasoningEffort: q.OutputConfig.Effort}).apply(c); err != nil {
			return nil, err
		}
	}
	if t := q.Thinking; t != nil {
		if !slices.Contains([]string{"enabled", "disabled", "adaptive"}, t.Type) {
			return nil, invalid("thinking.type", "%q is none of enabled, disabled and adaptive", t.Type)
		}
		on := t.Type != "disabled"
		c.thinking = &on
		if on && t.BudgetTokens != nil {
			c.setBudget(*t.BudgetTokens)
		}
	}
	return c, nil
}

// systemText joins the system prompt. One client puts a stamp into it that changes with every request
// and would keep the prefix cache from ever being hit.
func systemText(raw json.RawMessage) (string, error) {
	list, err := blocks(raw, "system")
	if err != nil {
		return "", err
	}
	var parts []string
	for i, b := range list {
		if b.Type != "text" || b.Text == nil {
			return "", invalid("system"+index(i), "must be a block of type text")
		}
		if !strings.HasPrefix(*b.Text, "x-anthropic-billing-header:") {
			parts = append(parts, *b.Text)
		}
	}
	return strings.Join(parts, "\n"), nil
}

// messages turns one message into those of the template: results of tools have a message each, before
// whatever else the user said.
func (m *anthropicMessage) messages(at string) ([]chat.Message, error) {
	if m.Role != "user" && m.Role != "assistant" && m.Role != "system" {
		return nil, invalid(at+".role", "%q is none of user and assistant", m.Role)
	}
	if kindOf(m.Content) == "null" {
		return nil, invalid(at+".content", "is missing")
	}
	list, err := blocks(m.Content, at+".content")
	if err != nil {
		return nil, err
	}
	var results []chat.Message
	out := chat.Message{Role: m.Role}
	var said contents
	for i, b := range list {
		at := at + ".content" + index(i)
		switch b.Type {
		case "text":
			if b.Text == nil {
				return nil, invalid(at+".text", "is missing")
			}
			said.text(*b.Text)
		case "image":
			p, err := b.Source.part(at)
			if err != nil {
				return nil, err
			}
			said.image(p)
		case "document":
			text, err := b.document(at)
			if err != nil {
				return nil, err
			}
			said.text(text)
		case "thinking":
			if b.Thinking != nil {
				out.Reasoning += *b.Thinking
			}
		case "redacted_thinking":
		case "tool_use":
			if b.Name == "" {
				return nil, invalid(at+".name", "is missing")
			}
			if kindOf(b.Input) != "object" {
				return nil, invalid(at+".input", "must be an object")
			}
			out.ToolCalls = append(out.ToolCalls, chat.ToolCall{ID: b.ID, Name: b.Name, Arguments: b.Input})
		case "tool_result":
			content, err := resultContent(b.Content, at+".content")
			if err != nil {
				return nil, err
			}
			if text, ok := content.(string); ok && b.IsError && !strings.HasPrefix(strings.ToLower(text), "error") {
				content = "Error: " + text
			}
			results = append(results, chat.Message{Role: "tool", Content: content, ToolCallID: b.ToolUseID})
		default:
			return nil, invalid(at+".type", "%q is not supported; this server takes text, images and documents of text", b.Type)
		}
	}
	if len(said.parts) > 0 || len(out.ToolCalls) > 0 || out.Reasoning != "" || len(results) == 0 {
		out.Content = said.content()
		results = append(results, out)
	}
	return results, nil
}

// resultContent is a tool's result; what is neither text nor an image is mentioned.
func resultContent(raw json.RawMessage, at string) (any, error) {
	list, err := blocks(raw, at)
	if err != nil {
		return nil, err
	}
	var said contents
	for i, b := range list {
		switch {
		case b.Type == "image" && b.Source != nil:
			p, err := b.Source.part(at + index(i))
			if err != nil {
				return nil, err
			}
			said.image(p)
		case b.Type != "text":
			said.text(dialog.Placeholder(b.Type))
		case b.Text == nil:
			return nil, invalid(at+index(i)+".text", "is missing")
		default:
			said.text(*b.Text)
		}
	}
	return said.content(), nil
}

// tools turns Anthropic's tools into OpenAI's, which templates know.
func (q *messagesRequest) tools(c *conversation) error {
	for i, raw := range q.Tools {
		at := "tools" + index(i)
		var t struct {
			Type        string          `json:"type"`
			Name        string          `json:"name"`
			Description string          `json:"description"`
			InputSchema json.RawMessage `json:"input_schema"`
		}
		if err := decodeFields(raw, at, &t); err != nil {
			return err
		}
		if t.Type != "" && t.Type != "custom" {
			tool, err := anthropicClientTool(t.Type, t.Name, at)
			if err != nil {
				return err
			}
			if tool != nil {
				c.tools = append(c.tools, tool)
			}
			continue
		}
		if t.Name == "" {
			return invalid(at+".name", "is missing")
		}
		if kindOf(t.InputSchema) != "object" {
			return invalid(at+".input_schema", "must be an object")
		}
		tool, err := functionTool(t.Name, t.Description, t.InputSchema)
		if err != nil {
			return err
		}
		c.tools = append(c.tools, tool)
	}
	tools, err := checkTools(c.tools)
	if err != nil || q.ToolChoice == nil {
		return err
	}
	c.oneCall = q.ToolChoice.OneCall
	switch q.ToolChoice.Type {
	case "", "auto":
	case "none":
		c.choice.none = true
	case "any":
		c.choice.required = true
	case "tool":
		if c.choice.name = q.ToolChoice.Name; c.choice.name == "" {
			return invalid("tool_choice.name", "is missing")
		}
	default:
		return invalid("tool_choice.type", "%q is none of auto, any, tool and none", q.ToolChoice.Type)
	}
	if (c.choice.required || c.choice.name != "") && len(tools) == 0 {
		return invalid("tool_choice", "needs tools, and there are none")
	}
	return nil
}

// anthropicUsage counts tokens; those found in the cache are not among the input's.
type anthropicUsage struct {
	InputTokens   int `json:"input_tokens"`
	CacheRead     int `json:"cache_read_input_tokens"`
	CacheCreation int `json:"cache_creation_input_tokens"`
	OutputTokens  int `json:"output_tokens"`
}

type anthropicResponse struct {
	ID           string         `json:"id"`
	Type         string         `json:"type"`
	Role         string         `json:"role"`
	Model        string         `json:"model"`
	Content      []block        `json:"content"`
	StopReason   *string        `json:"stop_reason"`
	StopSequence *string        `json:"stop_sequence"`
	Usage        anthropicUsage `json:"usage"`
}

// anthropic answers Anthropic's endpoints.
type anthropic struct{ *core }

func (s *anthropic) endpoints() map[string]endpoint {
	return map[string]endpoint{
		"POST /v1/messages":              post(s.core, s.messages),
		"POST /v1/messages/count_tokens": post(s.core, s.countTokens),
	}
}

func (s *anthropic) messages(w http.ResponseWriter, r *http.Request, q *messagesRequest) (any, error) {
	owner := ownerOf(r.Context())
	if err := q.resume(s.memory, owner, s.cfg.MaxBody); err != nil {
		return nil, err
	}
	c, err := q.conversation()
	if err != nil {
		return nil, err
	}
	if q.MaxTokens != nil && *q.MaxTokens < 1 {
		return nil, invalid("max_tokens", "must be at least 1")
	}
	if c.stops, err = stopList("stop_sequences", q.StopSequences); err != nil {
		return nil, err
	}
	return s.converse(w, r, c, func(x *exchange) answer {
		a := &messageAnswer{exchange: x, q: q, owner: owner, rep: x.replies[0], base: anthropicResponse{ID: newID("msg_"),
			Type: "message",
			Role: "assistant", Model: x.name, Content: []block{}}}
		x.st.idle = func() error {
			a.begin()
			a.event("ping", map[string]any{})
			return a.st.flush()
		}
		return a
	})
}

// messageAnswer is the answer to a messages request. A stream has one block open at a time.
type messageAnswer struct {
	*exchange
	q     *messagesRequest
	owner string
	base  anthropicResponse
	rep   *reply
	begun bool
	index int // of the open block, or the next one
	kind  parse.Kind
	open  bool
}

// stop is Anthropic's word for why the answer ended.
func (a *messageAnswer) stop() (reason string, sequence *string) {
	switch {
	case a.rep.result.Reason == engine.ReasonLength:
		return "max_tokens", nil
	case a.rep.called():
		return "tool_use", nil
	case a.rep.result.Reason == engine.ReasonStop:
		return "stop_sequence", &a.rep.result.Stop
	}
	return "end_turn", nil
}

func (a *messageAnswer) usage() anthropicUsage {
	res := a.rep.result
	return anthropicUsage{InputTokens: res.Prompt - res.Cached, CacheRead: res.Cached, OutputTokens: res.Generated}
}

// said is the answer in blocks.
func (a *messageAnswer) said() []block {
	out := []block{}
	if s := a.rep.reasoning.String(); s != "" {
		out = append(out, block{Type: "thinking", Thinking: &s, Signature: new(string)})
	}
	if s := a.rep.content.String(); s != "" {
		out = append(out, block{Type: "text", Text: &s})
	}
	for _, c := range a.rep.calls {
		out = append(out, block{Type: "tool_use", ID: c.id, Name: c.name, Input: objectOr(c.args.String())})
	}
	return out
}

func (a *messageAnswer) whole() (any, error) {
	out := a.base
	out.Content = a.said()
	reason, seq := a.stop()
	out.StopReason, out.StopSequence, out.Usage = &reason, seq, a.usage()
	return &out, a.q.remember(a.memory, a.owner, out.ID, out.Content)
}

// begin sends the event that every stream begins with.
func (a *messageAnswer) begin() {
	if a.begun {
		return
	}
	a.begun = true
	msg, s := a.base, a.rep.gen.State()
	msg.Usage = anthropicUsage{InputTokens: s.Prompt - s.Cached, CacheRead: s.Cached}
	a.event("message_start", map[string]any{"message": &msg})
}

// event sends an event with its type.
func (a *messageAnswer) event(name string, fields map[string]any) {
	fields["type"] = name
	a.st.send(name, fields)
}

func (a *messageAnswer) openBlock(kind parse.Kind, b block) {
	a.closeBlock()
	a.open, a.kind = true, kind
	a.event("content_block_start", map[string]any{"index": a.index, "content_block": b})
}

// addToBlock sends a piece of the open block.
func (a *messageAnswer) addToBlock(kind, field, text string) {
	a.event("content_block_delta", map[string]any{"index": a.index, "delta": map[string]string{"type": kind, field: text}})
}

func (a *messageAnswer) closeBlock() {
	if !a.open {
		return
	}
	if a.kind == parse.Reasoning {
		a.addToBlock("signature_delta", "signature", "")
	}
	a.event("content_block_stop", map[string]any{"index": a.index})
	a.open = false
	a.index++
}

func (a *messageAnswer) chunk(_ int, ds []delta) {
	a.begin()
	for _, d := range merge(ds) {
		a.delta(d)
	}
	if a.rep.result == nil {
		return
	}
	a.closeBlock()
	if err := a.q.remember(a.memory, a.owner, a.base.ID, a.said()); err != nil {
		a.st.err = cmp.Or(a.st.err, err)
		return
	}
	reason, seq := a.stop()
	a.event("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": reason, "stop_sequence": seq}, "usage": a.usage(),
	})
	a.event("message_stop", map[string]any{})
}

func (a *messageAnswer) delta(d delta) {
	another := !a.open || a.kind != d.kind
	switch d.kind {
	case parse.Content:
		if another {
			a.openBlock(d.kind, block{Type: "text", Text: new(string)})
		}
		a.addToBlock("text_delta", "text", d.text)
	case parse.Reasoning:
		if another {
			a.openBlock(d.kind, block{Type: "thinking", Thinking: new(string), Signature: new(string)})
		}
		a.addToBlock("thinking_delta", "thinking", d.text)
	case parse.ToolBegin:
		c := a.rep.calls[d.call]
		a.openBlock(d.kind, block{Type: "tool_use", ID: c.id, Name: c.name, Input: json.RawMessage("{}")})
	case parse.ToolArguments:
		a.addToBlock("input_json_delta", "partial_json", d.text)
	default:
		a.closeBlock()
	}
}

// countTokens answers POST /v1/messages/count_tokens.
func (s *anthropic) countTokens(w http.ResponseWriter, r *http.Request, q *messagesRequest) (any, error) {
	if err := q.resume(s.memory, ownerOf(r.Context()), s.cfg.MaxBody); err != nil {
		return nil, err
	}
	c, err := q.conversation()
	if err != nil {
		return nil, err
	}
	p, err := s.prompt(r, c)
	if err != nil {
		return nil, err
	}
	return map[string]int{"input_tokens": len(p.Tokens)}, nil
}
