package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"strobe/chat"
	"strobe/chat/parse"
	"strobe/engine"
)

// responsesRequest is the body of POST /v1/responses. Nothing is stored: a conversation comes whole
// in its input.
type responsesRequest struct {
	Model             string            `json:"model"`
	Input             json.RawMessage   `json:"input"`
	Instructions      *string           `json:"instructions"`
	Previous          *string           `json:"previous_response_id"`
	Tools             []json.RawMessage `json:"tools"`
	ToolChoice        json.RawMessage   `json:"tool_choice"`
	ParallelToolCalls *bool             `json:"parallel_tool_calls"`
	MaxOutputTokens   *int              `json:"max_output_tokens"`
	Temperature       *float32          `json:"temperature"`
	TopP              *float32          `json:"top_p"`
	TopK              *int              `json:"top_k"` // not OpenAI's, like the next ones
	MinP              *float32          `json:"min_p"`
	TypicalP          *float32          `json:"typical_p"`
	Stream            bool              `json:"stream"`
	Text              *struct {
		Format *responseFormat `json:"format"`
	} `json:"text"`
	Reasoning *struct {
		Effort string `json:"effort"`
	} `json:"reasoning"`
	Kwargs   map[string]any  `json:"chat_template_kwargs"`
	Metadata json.RawMessage `json:"metadata"`
	Strobe   *strobeFields   `json:"strobe"`
}

// inputItem is an element of the input.
type inputItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Summary   json.RawMessage `json:"summary"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

func (q *responsesRequest) conversation() (*conversation, error) {
	if q.Previous != nil && *q.Previous != "" {
		return nil, invalid("previous_response_id", "this server keeps no responses; send the whole conversation as input")
	}
	c := &conversation{budget: -1}
	if q.Instructions != nil && *q.Instructions != "" {
		c.messages = append(c.messages, chat.Message{Role: "system", Content: *q.Instructions})
	}
	input, err := inputMessages(q.Input)
	if err != nil {
		return nil, err
	}
	c.messages = append(c.messages, input...)
	for i, raw := range q.Tools {
		at := "tools" + index(i)
		var t struct {
			Type        string          `json:"type"`
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
		}
		if err := decodeJSON(raw, at, &t); err != nil {
			return nil, err
		}
		if t.Type != "function" {
			continue // tools that run on OpenAI's servers
		}
		if kindOf(t.Parameters) == "null" {
			t.Parameters = nil
		}
		tool, err := functionTool(t.Name, t.Description, t.Parameters)
		if err != nil {
			return nil, err
		}
		c.tools = append(c.tools, tool)
	}
	if c.tools, err = checkTools(c.tools); err != nil {
		return nil, err
	}
	if c.choice, err = decodeChoice(q.ToolChoice, c.tools); err != nil {
		return nil, err
	}
	c.oneCall = q.ParallelToolCalls != nil && !*q.ParallelToolCalls
	if q.Text != nil {
		if c.format, err = q.Text.Format.format(); err != nil {
			return nil, err
		}
	}
	t := thinkingFields{Kwargs: q.Kwargs}
	if q.Reasoning != nil {
		t.ReasoningEffort = q.Reasoning.Effort
	}
	return c, t.apply(c)
}

// inputMessages turns the input into messages. What the model said in several items is one message.
func inputMessages(raw json.RawMessage) ([]chat.Message, error) {
	switch kindOf(raw) {
	case "string":
		var s string
		err := decodeJSON(raw, "input", &s)
		return []chat.Message{{Role: "user", Content: s}}, err
	case "array":
	case "null":
		return nil, invalid("input", "is missing")
	default:
		return nil, invalid("input", "must be a string or a list of items")
	}
	var items []json.RawMessage
	if err := decodeJSON(raw, "input", &items); err != nil {
		return nil, err
	}
	var out []chat.Message
	// assistant is the message that items of the model are gathered in.
	assistant := func() *chat.Message {
		if n := len(out); n == 0 || out[n-1].Role != "assistant" {
			out = append(out, chat.Message{Role: "assistant", Content: ""})
		}
		return &out[len(out)-1]
	}
	for i, raw := range items {
		at := "input" + index(i)
		if kindOf(raw) != "object" {
			return nil, invalid(at, "must be an object")
		}
		var it inputItem
		if err := decodeJSON(raw, at, &it); err != nil {
			return nil, err
		}
		switch it.Type {
		case "", "message":
			text, err := itemText(it.Content, at+".content")
			if err != nil {
				return nil, err
			}
			switch it.Role {
			case "assistant":
				m := assistant()
				m.Content = m.Content.(string) + text
			case "user", "system", "developer":
				out = append(out, chat.Message{Role: it.Role, Content: text})
			default:
				return nil, invalid(at+".role", "%q is none of user, assistant, system and developer", it.Role)
			}
		case "function_call":
			if it.Name == "" {
				return nil, invalid(at+".name", "is missing")
			}
			args := json.RawMessage(it.Arguments)
			if !json.Valid(args) {
				var err error
				if args, err = json.Marshal(it.Arguments); err != nil {
					return nil, err
				}
			}
			m := assistant()
			m.ToolCalls = append(m.ToolCalls, chat.ToolCall{ID: it.CallID, Name: it.Name, Arguments: args})
		case "function_call_output":
			text, err := itemText(it.Output, at+".output")
			if err != nil {
				return nil, err
			}
			out = append(out, chat.Message{Role: "tool", Content: text, ToolCallID: it.CallID})
		case "reasoning":
			text, err := itemText(it.Content, at+".content")
			if err != nil {
				return nil, err
			}
			if text != "" {
				assistant().Reasoning += text
			}
		default:
			return nil, invalid(at+".type", "%q is not supported", it.Type)
		}
	}
	if len(out) == 0 {
		return nil, invalid("input", "is empty")
	}
	return out, nil
}

// itemText is the text of a string or of a list of parts.
func itemText(raw json.RawMessage, at string) (string, error) {
	list, err := blocks(raw, at)
	if err != nil {
		return "", err
	}
	var texts []string
	for i, b := range list {
		switch b.Type {
		case "text", "input_text", "output_text", "reasoning_text", "summary_text":
			if b.Text == nil {
				return "", invalid(at+index(i)+".text", "is missing")
			}
			texts = append(texts, *b.Text)
		case "refusal":
		default:
			return "", invalid(at+index(i)+".type", "%q is not supported; this server takes text only", b.Type)
		}
	}
	return strings.Join(texts, "\n"), nil
}

// responseJSON is the object the whole API is named after.
type responseJSON struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	CreatedAt          int64             `json:"created_at"`
	Status             string            `json:"status"`
	Background         bool              `json:"background"`
	Error              *responseError    `json:"error"`
	IncompleteDetails  *incompleteJSON   `json:"incomplete_details"`
	Instructions       *string           `json:"instructions"`
	MaxOutputTokens    *int              `json:"max_output_tokens"`
	Model              string            `json:"model"`
	Output             []outputItem      `json:"output"`
	ParallelToolCalls  bool              `json:"parallel_tool_calls"`
	PreviousResponseID *string           `json:"previous_response_id"`
	Reasoning          map[string]any    `json:"reasoning"`
	Store              bool              `json:"store"`
	Temperature        float32           `json:"temperature"`
	Text               map[string]any    `json:"text"`
	ToolChoice         any               `json:"tool_choice"`
	Tools              []json.RawMessage `json:"tools"`
	TopP               float32           `json:"top_p"`
	Truncation         string            `json:"truncation"`
	Usage              *responseUsage    `json:"usage"`
	Metadata           json.RawMessage   `json:"metadata"`
	Timings            *timingsJSON      `json:"timings,omitempty"`
}

type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type incompleteJSON struct {
	Reason string `json:"reason"`
}

type responseUsage struct {
	InputTokens  int `json:"input_tokens"`
	InputDetails struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens  int `json:"output_tokens"`
	OutputDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

// outputItem is an element of the output: reasoning, a message or a function call.
type outputItem struct {
	Type      string        `json:"type"`
	ID        string        `json:"id"`
	Status    string        `json:"status"`
	Role      string        `json:"role,omitempty"`
	Summary   *[]any        `json:"summary,omitempty"`
	Content   *[]outputPart `json:"content,omitempty"`
	CallID    string        `json:"call_id,omitempty"`
	Name      string        `json:"name,omitempty"`
	Arguments *string       `json:"arguments,omitempty"`
}

type outputPart struct {
	Type        string `json:"type"`
	Text        string `json:"text"`
	Annotations *[]any `json:"annotations,omitempty"`
	LogProbs    *[]any `json:"logprobs,omitempty"`
}

func newPart(kind parse.Kind, text string) outputPart {
	if kind == parse.Reasoning {
		return outputPart{Type: "reasoning_text", Text: text}
	}
	return outputPart{Type: "output_text", Text: text, Annotations: &[]any{}, LogProbs: &[]any{}}
}

func (s *Server) responses(w http.ResponseWriter, r *http.Request, q *responsesRequest) (any, error) {
	c, err := q.conversation()
	if err != nil {
		return nil, err
	}
	l, err := s.acquire(r.Context(), q.Model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	req := s.request()
	f := samplingFields{
		Temperature: q.Temperature, TopP: q.TopP, TopK: q.TopK, MinP: q.MinP, TypicalP: q.TypicalP,
		MaxTokens: q.MaxOutputTokens, Strobe: q.Strobe,
	}
	if err := f.apply(&req, l.tok); err != nil {
		return nil, err
	}
	c.done = r.Context().Done()
	reqs, replies, err := l.answers(c, req, 1, q.Stream)
	if err != nil {
		return nil, err
	}
	a := &responseAnswer{rep: replies[0], base: q.response(l.name, &req)}
	return s.answer(w, r, l.view, reqs, replies, q.Stream, a)
}

func (a *responseAnswer) step(_ int, ds []delta) error { return a.deltas(ds) }

func (a *responseAnswer) whole() (any, error) { return &a.base, a.finish() }

// response is the object as it is before anything was generated.
func (q *responsesRequest) response(model string, req *engine.Request) responseJSON {
	out := responseJSON{
		ID: newID("resp_"), Object: "response", CreatedAt: time.Now().Unix(), Status: "in_progress",
		Instructions: q.Instructions, MaxOutputTokens: q.MaxOutputTokens, Model: model, Output: []outputItem{},
		ParallelToolCalls: q.ParallelToolCalls == nil || *q.ParallelToolCalls,
		Reasoning:         map[string]any{"effort": nil, "summary": nil},
		Temperature:       req.Params.Temp, TopP: req.Params.TopP, Truncation: "disabled",
		Text: map[string]any{"format": map[string]string{"type": "text"}}, ToolChoice: "auto", Tools: q.Tools, Metadata: q.Metadata,
	}
	if q.Reasoning != nil && q.Reasoning.Effort != "" {
		out.Reasoning["effort"] = q.Reasoning.Effort
	}
	if q.Text != nil && q.Text.Format != nil {
		out.Text["format"] = q.Text.Format
	}
	if kindOf(q.ToolChoice) != "null" {
		out.ToolChoice = q.ToolChoice
	}
	if out.Tools == nil {
		out.Tools = []json.RawMessage{}
	}
	if kindOf(out.Metadata) == "null" {
		out.Metadata = json.RawMessage("{}")
	}
	return out
}

// responseAnswer builds the output item by item. One is open at a time; each change is also an event
// when the answer is streamed.
type responseAnswer struct {
	base  responseJSON
	rep   *reply
	st    *stream // nil for a whole answer
	seq   int
	open  bool
	kind  parse.Kind
	text  strings.Builder // of the open item
	begun bool
}

// event sends an event with its type and number.
func (a *responseAnswer) event(name string, fields map[string]any) error {
	if a.st == nil {
		return nil
	}
	fields["type"], fields["sequence_number"] = name, a.seq
	a.seq++
	return a.st.send(name, fields)
}

// start sends the two events every stream begins with.
func (a *responseAnswer) start() error {
	if a.begun {
		return nil
	}
	a.begun = true
	for _, name := range []string{"response.created", "response.in_progress"} {
		if err := a.event(name, map[string]any{"response": &a.base}); err != nil {
			return err
		}
	}
	return nil
}

func (a *responseAnswer) item() *outputItem { return &a.base.Output[len(a.base.Output)-1] }

// place names the open item in an event.
func (a *responseAnswer) place(more map[string]any) map[string]any {
	more["item_id"], more["output_index"] = a.item().ID, len(a.base.Output)-1
	if a.kind == parse.Content || a.kind == parse.Reasoning {
		more["content_index"] = 0
	}
	return more
}

func (a *responseAnswer) begin(kind parse.Kind, it outputItem) error {
	if err := a.end(); err != nil {
		return err
	}
	a.open, a.kind = true, kind
	a.text.Reset()
	it.Status = "in_progress"
	a.base.Output = append(a.base.Output, it)
	if err := a.event("response.output_item.added", map[string]any{"output_index": len(a.base.Output) - 1, "item": a.item()}); err != nil {
		return err
	}
	if kind == parse.ToolBegin {
		return nil
	}
	return a.event("response.content_part.added", a.place(map[string]any{"part": newPart(kind, "")}))
}

// eventNames are the events of each kind of text.
var eventNames = map[parse.Kind][2]string{
	parse.Content:   {"response.output_text.delta", "response.output_text.done"},
	parse.Reasoning: {"response.reasoning_text.delta", "response.reasoning_text.done"},
	parse.ToolBegin: {"response.function_call_arguments.delta", "response.function_call_arguments.done"},
}

func (a *responseAnswer) add(text string) error {
	a.text.WriteString(text)
	m := a.place(map[string]any{"delta": text})
	if a.kind == parse.Content {
		m["logprobs"] = []any{}
	}
	return a.event(eventNames[a.kind][0], m)
}

// end completes the open item.
func (a *responseAnswer) end() error {
	if !a.open {
		return nil
	}
	a.open = false
	text, it := a.text.String(), a.item()
	it.Status = "completed"
	switch a.kind {
	case parse.ToolBegin:
		it.Arguments = &text
		if err := a.event(eventNames[a.kind][1], a.place(map[string]any{"arguments": text, "name": it.Name})); err != nil {
			return err
		}
	default:
		it.Content = &[]outputPart{newPart(a.kind, text)}
		m := a.place(map[string]any{"text": text})
		if a.kind == parse.Content {
			m["logprobs"] = []any{}
		}
		if err := a.event(eventNames[a.kind][1], m); err != nil {
			return err
		}
		if err := a.event("response.content_part.done", a.place(map[string]any{"part": newPart(a.kind, text)})); err != nil {
			return err
		}
	}
	return a.event("response.output_item.done", map[string]any{"output_index": len(a.base.Output) - 1, "item": it})
}

func (a *responseAnswer) deltas(ds []delta) error {
	for _, d := range merge(ds) {
		var err error
		switch d.kind {
		case parse.Content, parse.Reasoning:
			if !a.open || a.kind != d.kind {
				it := outputItem{Type: "message", ID: newID("msg_"), Role: "assistant", Content: &[]outputPart{}}
				if d.kind == parse.Reasoning {
					it = outputItem{Type: "reasoning", ID: newID("rs_"), Summary: &[]any{}, Content: &[]outputPart{}}
				}
				if err = a.begin(d.kind, it); err != nil {
					return err
				}
			}
			err = a.add(d.text)
		case parse.ToolBegin:
			c := a.rep.calls[d.call]
			err = a.begin(d.kind, outputItem{Type: "function_call", ID: newID("fc_"), CallID: c.id, Name: c.name, Arguments: new(string)})
		case parse.ToolArguments:
			err = a.add(d.text)
		case parse.ToolEnd:
			err = a.end()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// finish completes the response.
func (a *responseAnswer) finish() error {
	cut := a.rep.result.Reason == engine.ReasonLength
	if err := a.end(); err != nil {
		return err
	}
	res := a.rep.result
	u := &responseUsage{InputTokens: res.Prompt, OutputTokens: res.Generated, TotalTokens: res.Prompt + res.Generated}
	u.InputDetails.CachedTokens = res.Cached
	u.OutputDetails.ReasoningTokens = a.rep.thinkTokens
	a.base.Usage, a.base.Timings, a.base.Status = u, timings(res), "completed"
	name := "response.completed"
	if cut {
		name, a.base.Status = "response.incomplete", "incomplete"
		a.base.IncompleteDetails = &incompleteJSON{"max_output_tokens"}
		if n := len(a.base.Output); n > 0 {
			a.base.Output[n-1].Status = "incomplete"
		}
	}
	return a.event(name, map[string]any{"response": &a.base})
}

func (a *responseAnswer) stream(w http.ResponseWriter, r *http.Request, b *batch) {
	a.st = newStream(w)
	err := b.run(r, func(_ int, ds []delta) error {
		if err := a.start(); err != nil {
			return err
		}
		if err := a.deltas(ds); err != nil {
			return err
		}
		if a.rep.result != nil {
			if err := a.finish(); err != nil {
				return err
			}
		}
		return a.st.flush()
	}, func() error {
		if err := a.start(); err != nil {
			return err
		}
		return a.st.ping()
	})
	if err != nil {
		a.st.fail(r, err, func(e *apiError) (string, any) {
			a.base.Status, a.base.Error = "failed", &responseError{"server_error", e.Message}
			return "response.failed", map[string]any{"type": "response.failed", "sequence_number": a.seq, "response": &a.base}
		})
	}
}
