package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
	"strobe/internal/engine"
	"strobe/internal/upstream"
)

// outgoing are the headers that go to an upstream with a request.
func (s *Server) outgoing(r *http.Request) http.Header {
	h := upstream.Forwarded(r.Header)
	h.Set("X-Request-Id", requestID(r))
	if s.tracer != nil {
		traceContext.Inject(r.Context(), propagation.HeaderCarrier(h))
	}
	return h
}

// partner gets the model of a conversation, here or elsewhere.
func (s *Server) partner(r *http.Request, name string) (*lease, error) {
	if !s.cfg.Upstreams.Has(name) {
		return s.acquire(r.Context(), name)
	}
	return &lease{&view{name: name, remote: &remote{s.cfg.Upstreams, s.outgoing(r)}}, nil, func(*time.Duration) {}}, nil
}

// brokeOff reports an upstream whose answer ended before it was complete.
func brokeOff(err error) error { return badUpstream("the upstream broke off: " + err.Error()) }

// remote is a model of an upstream, asked with OpenAI's chat protocol.
type remote struct {
	fleet *upstream.Fleet
	head  http.Header
}

// chatBody makes the request to an upstream from a conversation.
func chatBody(model string, c *conversation, req *engine.Request) ([]byte, error) {
	q := map[string]any{"model": model, "stream": true, "stream_options": map[string]bool{"include_usage": true}}
	var messages []map[string]any
	for i := range c.messages {
		messages = append(messages, openAIMessage(&c.messages[i]))
	}
	q["messages"] = messages
	if len(c.tools) > 0 {
		q["tools"] = c.tools
		switch {
		case c.choice.none:
			q["tool_choice"] = "none"
		case c.choice.name != "":
			q["tool_choice"] = map[string]any{"type": "function", "function": map[string]string{"name": c.choice.name}}
		case c.choice.required:
			q["tool_choice"] = "required"
		}
		if c.oneCall {
			q["parallel_tool_calls"] = false
		}
	}
	if c.format != nil && c.format.gbnf != "" {
		return nil, invalid("grammar", "is not supported for a model of another server")
	}
	if c.format != nil && c.format.schema == nil {
		q["response_format"] = map[string]string{"type": "json_object"}
	} else if c.format != nil {
		q["response_format"] = map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "answer",
			"schema": c.format.schema}}
	}
	kwargs := map[string]any{}
	for k, v := range c.kwargs {
		kwargs[k] = v
	}
	if c.thinking != nil {
		kwargs["enable_thinking"] = *c.thinking
	}
	if len(kwargs) > 0 {
		q["chat_template_kwargs"] = kwargs
	}
	if f := c.sampling; f != nil { // what the client said, not this server's defaults
		set := func(name string, given bool, v any) {
			if given {
				q[name] = v
			}
		}
		set("temperature", f.Temperature != nil, f.Temperature)
		set("top_p", f.TopP != nil, f.TopP)
		set("top_k", f.TopK != nil, f.TopK)
		set("min_p", f.MinP != nil, f.MinP)
		set("presence_penalty", f.PresencePenalty != nil, f.PresencePenalty)
		set("frequency_penalty", f.FrequencyPenalty != nil, f.FrequencyPenalty)
		set("seed", f.Seed != nil, f.Seed)
		set("stop", len(req.Stops) > 0, req.Stops)
		set("max_tokens", req.MaxTokens > 0 || req.PromptOnly, req.MaxTokens)
	}
	return json.Marshal(q)
}

// openAIMessage is a message as every OpenAI-compatible server takes it.
func openAIMessage(m *chat.Message) map[string]any {
	out := map[string]any{"role": m.Role, "content": m.Text()}
	if m.Reasoning != "" {
		out["reasoning_content"] = m.Reasoning
	}
	if m.ToolCallID != "" {
		out["tool_call_id"] = m.ToolCallID
	}
	var calls []toolCallJSON
	for _, c := range m.ToolCalls {
		calls = append(calls, toolCallJSON{ID: c.ID, Type: "function", Function: functionJSON{c.Name, c.ArgumentsText()}})
	}
	if calls != nil {
		out["tool_calls"] = calls
	}
	return out
}

// remoteGeneration is an answer of an upstream, read as if an engine of this server made it: a token for every chunk.
type remoteGeneration struct {
	res    *upstream.Response
	lines  *bufio.Scanner
	begun  time.Time
	first  time.Duration
	cancel context.CancelFunc
	done   chan struct{}
	end    func()
	finish string
	usage  usageJSON
	count  int
	said   bool  // something
	size   int64 // of what is kept of it
	most   int64 // of that
}

// ask begins an answer of an upstream.
func (s *Server) ask(ctx context.Context, v *view, c *conversation, req *engine.Request) (*remoteGeneration, error) {
	body, err := chatBody(v.name, c, req)
	if err != nil {
		return nil, err
	}
	g := &remoteGeneration{begun: time.Now(), done: make(chan struct{}), most: s.cfg.MaxBody}
	ctx, g.cancel = context.WithCancel(ctx)
	g.end = sync.OnceFunc(func() { close(g.done) })
	g.res, err = v.remote.fleet.Send(ctx, upstream.Request{
		Model: v.name, Path: "/v1/chat/completions", Body: body, Head: v.remote.head, Key: upstream.Key(body),
	})
	if err != nil {
		g.cancel()
		return nil, err
	}
	if g.res.Status != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(g.res.Body, 4096))
		_ = g.res.Body.Close()
		g.cancel()
		return nil, upstreamError(g.res, text)
	}
	traceUpstream(ctx, v.name, g.res.Replica)
	g.lines = bufio.NewScanner(g.res.Body)
	g.lines.Buffer(nil, int(s.cfg.MaxBody))
	return g, nil
}

// upstreamError is what an upstream refused, in its own words.
func upstreamError(res *upstream.Response, text []byte) error {
	var e struct {
		Error struct {
			Message string `json:"message"`
			Type    string `json:"type"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &e) != nil || e.Error.Message == "" {
		e.Error.Message = strings.TrimSpace(string(text))
	}
	if e.Error.Type == "" {
		e.Error.Type = "upstream_error"
	}
	return &apiError{Status: res.Status, Type: e.Error.Type, Message: "the upstream says: " + e.Error.Message,
		Log: fmt.Sprintf("the upstream refuses the request with status %d", res.Status)} // its words may be the client's
}

// Cancel ends the answer, whether somebody reads it or not.
func (g *remoteGeneration) Cancel() {
	g.cancel()
	_ = g.res.Body.Close()
	g.end()
}

func (g *remoteGeneration) Done() <-chan struct{} { return g.done }
func (g *remoteGeneration) State() engine.State   { return engine.State{} }

// Next returns the next chunk, and at the end what is known of the whole. Its reader blocks without the caller's
// context, so that ends the answer.
func (g *remoteGeneration) Next(ctx context.Context) (engine.Event, error) {
	defer context.AfterFunc(ctx, g.cancel)()
	for {
		more := g.lines.Scan()
		data, isData := bytes.CutPrefix(bytes.TrimSpace(g.lines.Bytes()), []byte("data:"))
		data = bytes.Clone(bytes.TrimSpace(data))
		switch {
		case isData && string(data) == "[DONE]" && g.finish == "" && !g.said:
			return g.over(badUpstream("the upstream's answer is empty")), nil
		case isData && string(data) == "[DONE]":
			return g.over(nil), nil
		case isData && len(data) > 0:
			if err := g.note(data); err != nil {
				return g.over(err), nil
			}
			return engine.Event{Text: data, Tokens: []engine.Token{{Text: data}}}, nil
		case !more && g.lines.Err() == nil && g.finish != "":
			return g.over(nil), nil
		case !more && ctx.Err() != nil:
			return g.over(context.Cause(ctx)), nil
		case !more:
			return g.over(brokeOff(cmp.Or(g.lines.Err(), io.ErrUnexpectedEOF))), nil
		}
	}
}

// chunkJSON is a chunk of a streamed answer.
type chunkJSON struct {
	Choices []struct {
		Delta struct {
			Content   string         `json:"content"`
			Reasoning string         `json:"reasoning_content"`
			Thinking  string         `json:"reasoning"` // newer servers' name for it
			ToolCalls []toolCallJSON `json:"tool_calls"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *usageJSON `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// note keeps what a chunk says of the whole.
func (g *remoteGeneration) note(data []byte) error {
	var c chunkJSON
	if err := json.Unmarshal(data, &c); err != nil {
		return badUpstream("the upstream sent a chunk that is not JSON")
	}
	if c.Error != nil {
		e := badUpstream("the upstream says: " + c.Error.Message)
		e.Log = "the upstream ends its answer with an error" // its words may be the client's
		return e
	}
	if c.Usage != nil {
		g.usage = *c.Usage
	}
	for _, ch := range c.Choices {
		if ch.FinishReason != "" {
			g.finish = ch.FinishReason
		}
		g.count++
		d := &ch.Delta
		text := len(d.Content) + len(d.Reasoning) + len(d.Thinking)
		for _, call := range d.ToolCalls {
			text += len(call.Function.Name) + len(call.Function.Arguments) + itemCost
		}
		g.said = g.said || text > 0
		g.size += int64(text)
	}
	// All of it is kept until the end, so an upstream that never ends must not fill the memory.
	g.size++ // a little of every chunk is
	if g.size > g.most {
		return badUpstream(fmt.Sprintf("the upstream's answer is larger than %d bytes", g.most))
	}
	if g.first == 0 {
		g.first = time.Since(g.begun)
	}
	return nil
}

// over ends the answer.
func (g *remoteGeneration) over(err error) engine.Event {
	g.Cancel()
	r := &engine.Result{Reason: engine.ReasonEOG, Err: err, Prompt: g.usage.PromptTokens,
		Cached:    g.usage.PromptDetails.CachedTokens,
		Generated: g.usage.CompletionTokens, First: g.first, Total: time.Since(g.begun)}
	if r.Generated == 0 {
		r.Generated = g.count
	}
	switch {
	case err != nil:
		r.Reason = engine.ReasonError
	case g.finish == "length":
		r.Reason = engine.ReasonLength
	}
	r.Stats.Prompt, r.Stats.Tokens, r.Stats.DecodeTime = r.Prompt-r.Cached, r.Generated, r.Total-r.First
	return engine.Event{Result: r}
}

// chunks takes the chunks of an upstream apart, as a parser does with the text of an engine.
type chunks struct {
	open bool
	call toolCallJSON // the one that is open, as it began
}

// Push returns what a chunk says.
func (p *chunks) Push(data string) []parse.Event {
	var c chunkJSON
	if json.Unmarshal([]byte(data), &c) != nil || len(c.Choices) == 0 {
		return nil
	}
	var out []parse.Event
	d := &c.Choices[0].Delta
	if text := d.Reasoning + d.Thinking; text != "" {
		out = append(out, parse.Event{Kind: parse.Reasoning, Text: text})
	}
	if d.Content != "" {
		out = append(out, parse.Event{Kind: parse.Content, Text: d.Content})
	}
	for _, call := range d.ToolCalls {
		if call.Function.Name != "" && !(p.open && call.continues(&p.call)) {
			out = append(out, p.Close()...)
			out = append(out, parse.Event{Kind: parse.ToolBegin, Name: call.Function.Name})
			p.open, p.call = true, call
		}
		if call.Function.Arguments != "" && p.open {
			out = append(out, parse.Event{Kind: parse.ToolArguments, Text: call.Function.Arguments})
		}
	}
	return out
}

// continues reports whether a piece of a call with a name belongs to the one before. Some servers repeat the name in
// every piece, others give all calls the same index.
func (c *toolCallJSON) continues(open *toolCallJSON) bool {
	return c.Index != nil && open.Index != nil && *c.Index == *open.Index && c.Function.Name == open.Function.Name &&
		(c.ID == "" || c.ID == open.ID)
}

// Close ends the call that is open.
func (p *chunks) Close() []parse.Event {
	if !p.open {
		return nil
	}
	p.open = false
	return []parse.Event{{Kind: parse.ToolEnd}}
}
