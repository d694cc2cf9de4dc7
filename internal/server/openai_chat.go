package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
)

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	samplingFields
	Model             string            `json:"model"`
	Messages          []json.RawMessage `json:"messages"`
	Tools             []json.RawMessage `json:"tools"`
	ToolChoice        json.RawMessage   `json:"tool_choice"`
	ParallelToolCalls *bool             `json:"parallel_tool_calls"`
	Functions         []json.RawMessage `json:"functions"` // what tools were called before, like the next one
	FunctionCall      json.RawMessage   `json:"function_call"`
	Stream            bool              `json:"stream"`
	StreamOptions     *streamOptions    `json:"stream_options"`
	N                 *int              `json:"n"`
	LogProbs          bool              `json:"logprobs"`
	TopLogProbs       *int              `json:"top_logprobs"`
	AddTurn           *bool             `json:"add_generation_prompt"`
	ContinueLast      *bool             `json:"continue_final_message"`
	ImageMaxTokens    int               `json:"image_max_tokens"`
	Modalities        []string          `json:"modalities"`
	ParseToolCalls    *bool             `json:"parse_tool_calls"`
	thinkingFields
	formatFields
	refusedFields
}

// openAI answers OpenAI's endpoints. Paths without /v1 are llama.cpp's.
type openAI struct{ *core }

func (s *openAI) endpoints() map[string]endpoint {
	return map[string]endpoint{
		"POST /v1/chat/completions":                  post(s.core, s.chat),
		"POST /chat/completions":                     post(s.core, s.chat),
		"POST /apply-template":                       post(s.core, s.applyTemplate),
		"POST /v1/chat/completions/input_tokens":     post(s.core, s.chatTokens),
		"POST /chat/completions/input_tokens":        post(s.core, s.chatTokens),
		"POST /v1/completions":                       post(s.core, s.completions),
		"POST /completions":                          post(s.core, s.completions),
		"POST /v1/responses":                         post(s.core, s.responses),
		"POST /responses":                            post(s.core, s.responses),
		"POST /v1/responses/input_tokens":            post(s.core, s.inputTokens),
		"POST /responses/input_tokens":               post(s.core, s.inputTokens),
		"POST /v1/responses/compact":                 absent("conversations are not shortened here; clients do that themselves"),
		"GET /v1/responses/{id}":                     s.getResponse,
		"GET /v1/responses/{id}/input_items":         s.responseInput,
		"DELETE /v1/responses/{id}":                  s.deleteResponse,
		"POST /v1/responses/{id}/cancel":             s.cancelResponse,
		"POST /v1/conversations":                     optional(post(s.core, s.newConversation)),
		"GET /v1/conversations/{id}":                 s.getConversation,
		"POST /v1/conversations/{id}":                post(s.core, s.changeConversation),
		"DELETE /v1/conversations/{id}":              s.deleteConversation,
		"POST /v1/conversations/{id}/items":          post(s.core, s.addItems),
		"GET /v1/conversations/{id}/items":           s.conversationItems,
		"GET /v1/conversations/{id}/items/{item}":    s.conversationItem,
		"DELETE /v1/conversations/{id}/items/{item}": s.deleteItem,
		"/v1/files":              absent("it keeps no files; send what they say in the messages"),
		"/v1/files/":             absent("it keeps no files; send what they say in the messages"),
		"/v1/batches":            absent("it has no batches; send the requests at once, they wait in a queue and run together"),
		"/v1/batches/":           absent("it has no batches; send the requests at once, they wait in a queue and run together"),
		"POST /v1/embeddings":    post(s.core, s.embeddings),
		"POST /embeddings":       post(s.core, s.embeddings),
		"GET /v1/models":         s.listModels,
		"GET /models":            s.listModels,
		"GET /v1/models/{id...}": s.getModel,
	}
}

func (q *chatRequest) conversation() (*conversation, error) {
	c := newConversation(q.Model, &q.samplingFields, q.Stream)
	err := q.refusedFields.check()
	if err != nil {
		return nil, err
	}
	if c.messages, err = decodeMessages(q.Messages); err != nil {
		return nil, err
	}
	if c.imageRows = q.ImageMaxTokens; c.imageRows < 0 {
		return nil, invalid("image_max_tokens", "must be at least 1")
	}
	for i, m := range q.Modalities {
		if m != "text" {
			return nil, invalid("modalities"+index(i), "%q is not supported; answers are text", m)
		}
	}
	if q.ParseToolCalls != nil && !*q.ParseToolCalls {
		return nil, invalid("parse_tool_calls", "is not supported; reasoning_format \"none\" leaves the text as it is")
	}
	if q.ContinueLast != nil && *q.ContinueLast && q.AddTurn != nil && *q.AddTurn {
		return nil, invalid("add_generation_prompt", "cannot be used with continue_final_message")
	}
	c.continueLast, c.noTurn = q.ContinueLast, q.AddTurn != nil && !*q.AddTurn
	if q.ContinueLast != nil && *q.ContinueLast && c.messages[len(c.messages)-1].Role != "assistant" {
		return nil, invalid("continue_final_message", "the last message is not the assistant's")
	}
	if q.hasFunctions() {
		if err := q.functionsToTools(); err != nil {
			return nil, err
		}
	}
	if c.tools, err = checkTools(q.Tools); err != nil {
		return nil, err
	}
	if c.choice, err = decodeChoice(q.ToolChoice, c.tools); err != nil {
		return nil, err
	}
	c.tools = c.choice.offered(c.tools)
	c.oneCall = q.hasFunctions() || q.ParallelToolCalls != nil && !*q.ParallelToolCalls
	if c.format, err = q.formatFields.format(); err != nil {
		return nil, err
	}
	if c.format != nil && c.format.gbnf != "" && len(c.tools) > 0 && !c.choice.none {
		// Nothing tells an answer of any grammar from a call.
		return nil, invalid("grammar", "cannot be used with tools")
	}
	return c, q.thinkingFields.apply(c)
}

// namedTool is {"type":"function","function":{"name"}} or, in the Responses API, {"type":"function","name"}.
type namedTool struct {
	Type      string `json:"type"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Function  struct {
		Name string `json:"name"`
	} `json:"function"`
}

func (t *namedTool) flat() string {
	if t.Function.Name != "" {
		return t.Function.Name
	}
	return toolName{t.Namespace, t.Name}.flat()
}

// choiceJSON is a tool_choice that is an object: a tool, or several to choose from.
type choiceJSON struct {
	namedTool
	Mode    string      `json:"mode"`
	Tools   []namedTool `json:"tools"`
	Allowed *struct {   // where chat has mode and tools
		Mode  string      `json:"mode"`
		Tools []namedTool `json:"tools"`
	} `json:"allowed_tools"`
}

// allow limits the choice to some of the tools.
func (c *toolChoice) allow(mode string, some []namedTool, tools []json.RawMessage) error {
	const at = "tool_choice"
	switch mode {
	case "auto":
	case "required":
		c.required = true
	default:
		return invalid(at+".mode", "%q is neither auto nor required", mode)
	}
	c.allowed = []string{}
	for i, t := range some {
		name := t.flat()
		if !slices.ContainsFunc(tools, func(raw json.RawMessage) bool { return nameOf(raw) == name }) {
			return invalid(at+".tools"+index(i), "there is no tool named %q", name)
		}
		c.allowed = append(c.allowed, name)
	}
	if len(some) == 0 {
		return invalid(at+".tools", "is empty")
	}
	return nil
}

// decodeChoice reads OpenAI's tool_choice.
func decodeChoice(raw json.RawMessage, tools []json.RawMessage) (c toolChoice, err error) {
	const at = "tool_choice"
	switch kindOf(raw) {
	case "null":
		return c, nil
	case "string":
		var s string
		if err := decodeJSON(raw, at, &s); err != nil {
			return c, err
		}
		switch s {
		case "auto":
		case "none":
			c.none = true
		case "required", "any":
			c.required = true
		default:
			return c, invalid(at, "%q is none of auto, none and required", s)
		}
	case "object":
		var o choiceJSON
		if err := decodeJSON(raw, at, &o); err != nil {
			return c, err
		}
		if o.Type == "allowed_tools" {
			if o.Allowed != nil {
				o.Mode, o.Tools = o.Allowed.Mode, o.Allowed.Tools
			}
			return c, c.allow(o.Mode, o.Tools, tools)
		}
		if c.name = o.flat(); c.name == "" {
			c.name = clientTools[o.Type].name // named by its type alone
		}
		if c.name == "" {
			return c, invalid(at+".function.name", "is missing")
		}
	default:
		return c, invalid(at, "must be a string or an object")
	}
	if (c.required || c.name != "") && len(tools) == 0 {
		return c, invalid(at, "needs tools, and there are none")
	}
	return c, nil
}

// choicesJSON is the body of an answer of chat (C is chatChoice) or completions, whole or in chunks.
type choicesJSON[C any] struct {
	ID                string          `json:"id"`
	Object            string          `json:"object"`
	Created           int64           `json:"created"`
	Model             string          `json:"model"`
	SystemFingerprint string          `json:"system_fingerprint"`
	Choices           []C             `json:"choices"`
	Usage             any             `json:"usage,omitempty"`
	Timings           *timingsJSON    `json:"timings,omitempty"`
	Strobe            *strobeJSON     `json:"strobe,omitempty"`
	Progress          *promptProgress `json:"prompt_progress,omitempty"`
}

// choicesAnswer is what answers of chat and completions have in common.
type choicesAnswer[C any] struct {
	*exchange
	base      choicesJSON[C]
	perPrompt int    // choices that share a prompt
	begun     []bool // the replies of a stream
}

func newChoicesAnswer[C any](x *exchange, id, object string, perPrompt int, o *streamOptions) choicesAnswer[C] {
	a := choicesAnswer[C]{exchange: x, perPrompt: perPrompt, begun: make([]bool, len(x.replies)), base: choicesJSON[C]{
		ID: newID(id), Object: object, Created: time.Now().Unix(), Model: x.name, SystemFingerprint: x.fingerprint(),
	}}
	if x.stream {
		a.base.Usage = o.none()
	}
	return a
}

// total is a body with the counts of all choices.
func (a *choicesAnswer[C]) total(choices []C) *choicesJSON[C] {
	out := a.base
	out.Choices, out.Usage, out.Timings = choices, usage(a.replies, a.perPrompt), timings(a.replies[0].result)
	return &out
}

// progress sends what is new of a reply's prompt, in chunks with an empty choice.
func (a *choicesAnswer[C]) progress(rep *reply, empty C) {
	for _, p := range rep.reading {
		out := a.base
		out.Choices, out.Progress = []C{empty}, p
		a.st.send("", &out)
	}
	rep.reading = nil
}

// endStream sends what follows the last chunk of the last choice.
func (a *choicesAnswer[C]) endStream() {
	if slices.ContainsFunc(a.replies, func(rep *reply) bool { return rep.result == nil }) {
		return
	}
	if a.base.Usage != nil {
		a.st.send("", a.total([]C{}))
	}
	a.st.buf.WriteString("data: [DONE]\n\n")
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      *chatMessage  `json:"message,omitempty"`
	Delta        *chatDelta    `json:"delta,omitempty"`
	LogProbs     *logProbsJSON `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

type chatMessage struct {
	Role      string         `json:"role"`
	Content   *string        `json:"content"`
	Reasoning string         `json:"reasoning_content,omitempty"`
	ToolCalls []toolCallJSON `json:"tool_calls,omitempty"`
	Function  *functionJSON  `json:"function_call,omitempty"` // instead of tool_calls, of requests with functions
}

type chatDelta struct {
	Role      string         `json:"role,omitempty"`
	Content   *string        `json:"content,omitempty"`
	Reasoning *string        `json:"reasoning_content,omitempty"`
	ToolCalls []toolCallJSON `json:"tool_calls,omitempty"`
	Function  *functionJSON  `json:"function_call,omitempty"`
}

func (s *openAI) chat(w http.ResponseWriter, r *http.Request, q *chatRequest) (any, error) {
	c, err := q.conversation()
	if err != nil {
		return nil, err
	}
	if q.N != nil {
		c.choices = *q.N
	}
	if c.choices < 1 || c.choices > maxChoices {
		return nil, invalid("n", "%d is not between 1 and %d", c.choices, maxChoices)
	}
	if q.LogProbs {
		top := 0
		if q.TopLogProbs != nil {
			top = *q.TopLogProbs
		}
		if err := c.wantLogProbs("top_logprobs", top); err != nil {
			return nil, err
		}
	}
	return s.converse(w, r, c, func(x *exchange) answer {
		if len(c.tools) > 0 {
			logOf(r).add(slog.Int("tools", len(c.tools)))
		}
		object := "chat.completion"
		if q.Stream {
			object = "chat.completion.chunk"
		}
		return &chatAnswer{newChoicesAnswer[chatChoice](x, "chatcmpl-", object, len(x.replies), q.StreamOptions), q}
	})
}

// chatAnswer is the answer to a chat request.
type chatAnswer struct {
	choicesAnswer[chatChoice]
	q *chatRequest
}

// finish is why a reply ended, in the words of the request.
func (a *chatAnswer) finish(rep *reply) string {
	why := rep.finish()
	if why == "tool_calls" && a.q.hasFunctions() {
		return "function_call"
	}
	return why
}

func (a *chatAnswer) whole() (any, error) {
	var choices []chatChoice
	for i, rep := range a.replies {
		m := &chatMessage{Role: "assistant", Reasoning: rep.reasoning.String()}
		text := rep.content.String()
		if m.Content = &text; text == "" && len(rep.calls) > 0 {
			m.Content = nil
		}
		for _, c := range rep.calls {
			if a.q.hasFunctions() {
				m.Function = &functionJSON{c.name, c.args.String()}
				continue
			}
			m.ToolCalls = append(m.ToolCalls, toolCallJSON{ID: c.id, Type: "function",
				Function: functionJSON{c.name, c.args.String()}})
		}
		finish := a.finish(rep)
		ch := chatChoice{Index: i, Message: m, FinishReason: &finish}
		if a.q.LogProbs {
			ch.LogProbs = newLogProbs(rep.tok, rep.tokens)
		}
		choices = append(choices, ch)
	}
	return a.total(choices), nil
}

func (a *chatAnswer) chunk(i int, ds []delta) {
	rep := a.replies[i]
	if !a.begun[i] {
		a.begun[i] = true
		a.send(i, &chatDelta{Role: "assistant", Content: new(string)}, nil, nil)
	}
	a.progress(rep, chatChoice{Index: i, Delta: &chatDelta{}})
	a.deltas(i, ds)
	if rep.result != nil {
		finish := a.finish(rep)
		a.send(i, &chatDelta{}, &finish, nil)
		a.endStream()
	}
}

// deltas sends what one event of the engine brought, text of the same kind in one chunk.
func (a *chatAnswer) deltas(i int, ds []delta) {
	begin := 0
	for _, d := range merge(ds) {
		parts := ds[begin:d.end] // by token
		begin = d.end
		var cd chatDelta
		switch d.kind {
		case parse.Content:
			cd.Content = &d.text
		case parse.Reasoning:
			cd.Reasoning = &d.text
		case parse.ToolBegin:
			c := a.replies[i].calls[d.call]
			cd.ToolCalls = []toolCallJSON{{Index: &d.call, ID: c.id, Type: "function", Function: functionJSON{Name: c.name}}}
		case parse.ToolArguments:
			cd.ToolCalls = []toolCallJSON{{Index: &d.call, Function: functionJSON{Arguments: d.text}}}
		default:
			continue
		}
		if len(cd.ToolCalls) > 0 && a.q.hasFunctions() {
			cd.Function, cd.ToolCalls = &cd.ToolCalls[0].Function, nil
		}
		a.send(i, &cd, nil, parts)
	}
}

// send sends one chunk. The last one of a single choice has the timings.
func (a *chatAnswer) send(i int, d *chatDelta, finish *string, ds []delta) {
	rep := a.replies[i]
	out := a.base
	ch := chatChoice{Index: i, Delta: d, FinishReason: finish}
	if a.q.LogProbs && len(rep.tokens) > 0 && (d.Role == "" || finish != nil) {
		ch.LogProbs = newLogProbs(rep.tok, rep.tokens)
		rep.tokens = rep.tokens[:0]
	}
	out.Choices = []chatChoice{ch}
	switch {
	case finish != nil && len(a.replies) == 1:
		out.Timings = timings(rep.result)
	case a.q.TimingsPerToken && d.Role == "" && finish == nil:
		out.Timings = rep.timingsSoFar()
	}
	if a.q.Strobe != nil && a.q.Strobe.Spans && d.Role == "" {
		out.Strobe = rep.spans(ds)
	}
	a.st.send("", &out)
}

// decodeMessages reads OpenAI's messages and names the one that is wrong.
func decodeMessages(raw []json.RawMessage) ([]chat.Message, error) {
	if len(raw) == 0 {
		return nil, invalid("messages", "must be a list with at least one message")
	}
	msgs := make([]chat.Message, len(raw))
	for i, m := range raw {
		at := fmt.Sprintf("messages[%d]", i)
		if err := decodeFields(m, at, &msgs[i]); err != nil {
			return nil, err
		}
		if err := functionCallToToolCall(&msgs[i], at); err != nil {
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

// applyTemplate is llama.cpp's POST /apply-template: it shows the prompt of a chat request without running it.
func (s *openAI) applyTemplate(w http.ResponseWriter, r *http.Request, q *chatRequest) (any, error) {
	c, err := q.conversation()
	if err != nil {
		return nil, err
	}
	p, err := s.prompt(r, c)
	if err != nil {
		return nil, err
	}
	return map[string]any{"prompt": p.Text, "n_tokens": len(p.Tokens)}, nil
}
