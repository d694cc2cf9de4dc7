package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
	"strobe/internal/engine"
	"strobe/internal/upstream"
)

// remoteModel is a model of another server for one request, asked with OpenAI's chat protocol whatever the client's is.
type remoteModel struct {
	name  string
	fleet *upstream.Fleet
	head  http.Header
	most  int64  // bytes of an answer
	body  []byte // of the request
}

func (m *remoteModel) modelName() string { return m.name }

// request returns no defaults: the other server has its own.
func (m *remoteModel) request(f *samplingFields) (req engine.Request, err error) {
	return req, f.apply(&req, nil)
}

func (m *remoteModel) answers(c *conversation, req engine.Request) ([]*reply, error) {
	if req.WantLogProb {
		return nil, invalid("logprobs", "is not supported for a model of another server")
	}
	var err error
	if m.body, err = chatBody(m.name, c, &req); err != nil {
		return nil, err
	}
	out := make([]*reply, c.choices)
	for i := range out {
		out[i] = &reply{parser: &chunks{}, oneCall: c.oneCall, req: req}
	}
	return out, nil
}

// chatBody returns the body of a request to an upstream. Of sampling it holds what the client said; the rest is left to
// the upstream's defaults.
func chatBody(model string, c *conversation, req *engine.Request) ([]byte, error) {
	f := c.sampling
	q := struct {
		Model            string            `json:"model"`
		Messages         []map[string]any  `json:"messages"`
		Stream           bool              `json:"stream"`
		StreamOptions    streamOptions     `json:"stream_options"`
		Tools            []json.RawMessage `json:"tools,omitempty"`
		ToolChoice       any               `json:"tool_choice,omitempty"`
		Parallel         *bool             `json:"parallel_tool_calls,omitempty"`
		Format           any               `json:"response_format,omitempty"`
		Kwargs           map[string]any    `json:"chat_template_kwargs,omitempty"`
		Temperature      *float32          `json:"temperature,omitempty"`
		TopP             *float32          `json:"top_p,omitempty"`
		TopK             *int              `json:"top_k,omitempty"`
		MinP             *float32          `json:"min_p,omitempty"`
		PresencePenalty  *float32          `json:"presence_penalty,omitempty"`
		FrequencyPenalty *float32          `json:"frequency_penalty,omitempty"`
		Seed             json.RawMessage   `json:"seed,omitempty"`
		Stop             []string          `json:"stop,omitempty"`
		MaxTokens        *int              `json:"max_tokens,omitempty"`
	}{
		Model: model, Stream: true, StreamOptions: streamOptions{IncludeUsage: true}, Tools: c.tools,
		Kwargs: map[string]any{}, Temperature: f.Temperature, TopP: f.TopP, TopK: f.TopK, MinP: f.MinP,
		PresencePenalty: f.PresencePenalty, FrequencyPenalty: f.FrequencyPenalty, Seed: f.Seed, Stop: req.Stops,
	}
	for i := range c.messages {
		q.Messages = append(q.Messages, openAIMessage(&c.messages[i]))
	}
	if len(c.tools) > 0 {
		switch {
		case c.choice.none:
			q.ToolChoice = "none"
		case c.choice.name != "":
			q.ToolChoice = map[string]any{"type": "function", "function": map[string]string{"name": c.choice.name}}
		case c.choice.required:
			q.ToolChoice = "required"
		}
		if c.oneCall {
			q.Parallel = new(bool)
		}
	}
	switch {
	case c.format == nil:
	case c.format.gbnf != "":
		return nil, invalid("grammar", "is not supported for a model of another server")
	case c.format.schema == nil:
		q.Format = map[string]string{"type": "json_object"}
	default:
		q.Format = map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "answer",
			"schema": c.format.schema}}
	}
	maps.Copy(q.Kwargs, c.kwargs)
	if c.thinking != nil {
		q.Kwargs["enable_thinking"] = *c.thinking
	}
	if req.MaxTokens > 0 || req.PromptOnly {
		q.MaxTokens = &req.MaxTokens
	}
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return withRest(body, f)
}

// notPassed are fields of sampling that this server itself obeys, or has put into the request already.
var notPassed = []string{"strobe", "stop", "logit_bias", "max_tokens", "max_completion_tokens", "n_predict", "id_slot",
	"return_progress", "timings_per_token"}

// withRest adds the fields of sampling that a request does not have yet, under llama.cpp's names, to its body.
func withRest(body []byte, f *samplingFields) ([]byte, error) {
	raw, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	var said, all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &said); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, err
	}
	out := body[:len(body)-1]
	for _, name := range slices.Sorted(maps.Keys(said)) {
		value := said[name]
		_, given := all[name]
		if !given && kindOf(value) != "null" && string(value) != "false" && !slices.Contains(notPassed, name) {
			out = fmt.Appendf(out, ",%q:%s", name, value)
		}
	}
	return append(out, '}'), nil
}

// openAIMessage is a message as every OpenAI-compatible server takes it.
func openAIMessage(m *chat.Message) map[string]any {
	out := map[string]any{"role": m.Role, "content": m.Text()}
	parts, _ := m.Content.([]chat.Part)
	if slices.ContainsFunc(parts, func(p chat.Part) bool { return !p.IsText() }) {
		out["content"] = parts
	}
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

// submit begins an answer of an upstream.
func (m *remoteModel) submit(ctx context.Context, _ *reply) (generation, error) {
	g := &remoteGeneration{begun: time.Now(), done: make(chan struct{}), most: m.most}
	ctx, g.cancel = context.WithCancel(ctx)
	g.end = sync.OnceFunc(func() { close(g.done) })
	var err error
	g.res, err = m.fleet.Send(ctx, upstream.Request{
		Model: m.name, Path: "/v1/chat/completions", Body: m.body, Head: m.head, Key: upstream.Key(m.body),
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
	traceUpstream(ctx, m.name, g.res.Replica)
	g.lines = bufio.NewScanner(g.res.Body)
	g.lines.Buffer(nil, int(m.most))
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

// Cancel ends the answer, also while another goroutine reads it.
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

type toolCallJSON struct {
	Index    *int         `json:"index,omitempty"` // in deltas only
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function functionJSON `json:"function"`
}

type functionJSON struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}
