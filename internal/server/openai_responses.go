package server

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"strobe/internal/chat/parse"
	"strobe/internal/engine"
)

// responseJSON is the object the whole API is named after.
type responseJSON struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	CreatedAt          int64             `json:"created_at"`
	Status             string            `json:"status"`
	Background         bool              `json:"background"`
	Conversation       *conversationName `json:"conversation,omitempty"`
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
		shortened
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
	Summary   *[]outputPart `json:"summary,omitempty"`
	Content   *[]outputPart `json:"content,omitempty"`
	Encrypted *string       `json:"encrypted_content,omitempty"`
	CallID    string        `json:"call_id,omitempty"`
	Name      string        `json:"name,omitempty"`
	Namespace string        `json:"namespace,omitempty"`
	Arguments *string       `json:"arguments,omitempty"`

	Input     *string         `json:"input,omitempty"`  // of a custom tool's call
	Action    json.RawMessage `json:"action,omitempty"` // of other calls that the client runs, like the next two
	Operation json.RawMessage `json:"operation,omitempty"`
	Checks    *[]any          `json:"pending_safety_checks,omitempty"`
}

type outputPart struct {
	Type        string         `json:"type"`
	Text        string         `json:"text"`
	Annotations *[]any         `json:"annotations,omitempty"`
	LogProbs    *[]logProbJSON `json:"logprobs,omitempty"`
}

func (s *openAI) responses(w http.ResponseWriter, r *http.Request, q *responsesRequest) (any, error) {
	c, err := s.responsesConversation(r, q)
	if err != nil {
		return nil, err
	}
	if q.Background {
		return s.respondLater(w, r, q, c)
	}
	return s.converse(w, r, c, func(x *exchange) answer { return s.newResponseAnswer(r, q, x) })
}

func (s *openAI) newResponseAnswer(r *http.Request, q *responsesRequest, x *exchange) *responseAnswer {
	a := &responseAnswer{exchange: x, rep: x.replies[0], base: q.response(x.name, &x.req), q: q,
		owner: ownerOf(r.Context())}
	a.rep.keepDeltas = !x.stream
	a.seal = slices.Contains(q.Include, "reasoning.encrypted_content")
	if q.Reasoning != nil {
		summary := cmp.Or(q.Reasoning.Summary, q.Reasoning.OldSummary)
		if a.summary = summary != "" && summary != "none"; a.summary {
			a.base.Reasoning["summary"] = summary
		}
	}
	if q.stores() {
		a.memory = s.memory
		a.base.Store = s.memory.limit > 0
	}
	x.st.idle = func() error {
		a.start()
		return a.st.ping()
	}
	x.st.failed = func(e *apiError) (string, any) {
		a.base.Status, a.base.Error = "failed", &responseError{"server_error", e.Message}
		if a.job != nil {
			_ = a.keep() // the failure is what the client gets to see
		}
		return "response.failed", map[string]any{"type": "response.failed", "sequence_number": a.seq, "response": &a.base}
	}
	return a
}

// inputTokens counts the tokens of a request without running it.
func (s *openAI) inputTokens(w http.ResponseWriter, r *http.Request, q *responsesRequest) (any, error) {
	c, err := s.responsesConversation(r, q)
	if err != nil {
		return nil, err
	}
	return s.countTokens(r, c)
}

// chatTokens does that for a request of the chat API.
func (s *openAI) chatTokens(w http.ResponseWriter, r *http.Request, q *chatRequest) (any, error) {
	c, err := q.conversation()
	if err != nil {
		return nil, err
	}
	return s.countTokens(r, c)
}

func (s *openAI) countTokens(r *http.Request, c *conversation) (any, error) {
	p, err := s.prompt(r, c)
	if err != nil {
		return nil, err
	}
	return map[string]any{"object": "response.input_tokens", "input_tokens": len(p.Tokens)}, nil
}

func (a *responseAnswer) whole() (any, error) {
	a.add(a.rep.deltas)
	return &a.base, a.finish()
}

func (a *responseAnswer) chunk(_ int, ds []delta) {
	a.start()
	if a.job != nil && !a.running {
		a.running = true
		a.st.err = cmp.Or(a.st.err, a.keep())
	}
	for _, p := range a.rep.reading {
		a.event("response.in_progress", map[string]any{"response": &a.base, "prompt_progress": p})
	}
	a.rep.reading = nil
	a.add(ds)
	if a.rep.result != nil {
		a.st.err = cmp.Or(a.st.err, a.finish())
	}
}

// response is the object as it is before anything was generated.
func (q *responsesRequest) response(model string, req *engine.Request) responseJSON {
	out := responseJSON{
		ID: newID("resp_"), Object: "response", CreatedAt: time.Now().Unix(), Status: "in_progress",
		Instructions: q.Instructions, MaxOutputTokens: q.MaxOutputTokens, Model: model, Output: []outputItem{},
		ParallelToolCalls: q.ParallelToolCalls == nil || *q.ParallelToolCalls,
		Reasoning:         map[string]any{"effort": nil, "summary": nil},
		Temperature:       req.Params.Temp, TopP: req.Params.TopP, Truncation: "disabled",
		Text: map[string]any{"format": map[string]string{"type": "text"}}, ToolChoice: "auto", Tools: q.Tools,
		Metadata:           q.Metadata,
		PreviousResponseID: q.Previous, Background: q.Background,
	}
	if q.talk != "" {
		out.Conversation = &conversationName{q.talk}
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
	*exchange
	q       *responsesRequest
	base    responseJSON
	rep     *reply
	memory  *memory // stores the response at its end; nil does not
	owner   string  // of the stored response
	job     *job    // makes the response in the background; nil does not
	summary bool    // reasoning is shown where summaries are
	seal    bool    // and in encrypted_content
	seq     int
	running bool // a job's response is no longer queued
	open    bool
	kind    parse.Kind
	text    strings.Builder // of the open item
	begun   bool
	used    int           // tokens whose log probabilities were shown or are of something else
	probs   []logProbJSON // of the open item
	client  string        // type of the tool that is being called, of those whose shape the API fixes; "" for a function
}

// shown is how text of a kind appears: the type of its part, the field that numbers its parts, and its events.
type shown struct{ part, index, partEvent, textEvent string }

func (a *responseAnswer) shown() shown {
	switch {
	case a.kind == parse.Reasoning && a.summary:
		return shown{"summary_text", "summary_index", "response.reasoning_summary_part", "response.reasoning_summary_text"}
	case a.kind == parse.Reasoning:
		return shown{"reasoning_text", "content_index", "response.content_part", "response.reasoning_text"}
	case a.kind == parse.Content:
		return shown{"output_text", "content_index", "response.content_part", "response.output_text"}
	}
	return shown{textEvent: "response.function_call_arguments"}
}

func (a *responseAnswer) part(text string) outputPart {
	p := outputPart{Type: a.shown().part, Text: text}
	if a.kind == parse.Content {
		p.Annotations, p.LogProbs = &[]any{}, &[]logProbJSON{}
		if text != "" {
			*p.LogProbs = append(*p.LogProbs, a.probs...)
		}
	}
	return p
}

// event sends an event with its type and number.
func (a *responseAnswer) event(name string, fields map[string]any) {
	if a.stream {
		fields["type"], fields["sequence_number"] = name, a.seq
		a.seq++
		a.st.send(name, fields)
	}
}

// start sends the two events every stream begins with.
func (a *responseAnswer) start() {
	if !a.begun {
		a.begun = true
		a.event("response.created", map[string]any{"response": &a.base})
		a.base.Status = "in_progress"
		a.event("response.in_progress", map[string]any{"response": &a.base})
	}
}

func (a *responseAnswer) item() *outputItem { return &a.base.Output[len(a.base.Output)-1] }

// place names the open item in an event.
func (a *responseAnswer) place(more map[string]any) map[string]any {
	more["item_id"], more["output_index"] = a.item().ID, len(a.base.Output)-1
	if name := a.shown().index; name != "" {
		more[name] = 0
	}
	return more
}

func (a *responseAnswer) begin(kind parse.Kind, it outputItem) {
	a.end("completed")
	a.open, a.kind = true, kind
	a.text.Reset()
	a.probs = nil
	it.Status = "in_progress"
	a.base.Output = append(a.base.Output, it)
	a.event("response.output_item.added", map[string]any{"output_index": len(a.base.Output) - 1, "item": a.item()})
	if kind != parse.ToolBegin {
		a.event(a.shown().partEvent+".added", a.place(map[string]any{"part": a.part("")}))
	}
}

// addText adds text to the open item.
func (a *responseAnswer) addText(d *delta) {
	first := a.text.Len() == 0
	a.text.WriteString(d.text)
	m := a.place(map[string]any{"delta": d.text})
	probs := a.tokenProbs(d, first)
	if a.kind == parse.Content {
		m["logprobs"] = probs
		a.probs = append(a.probs, probs...)
	}
	a.event(a.shown().textEvent+".delta", m)
}

// tokenProbs are the log probabilities of the tokens of a piece of text. Before the first one of an item, tokens of
// markers and layout stand, which are not part of it.
func (a *responseAnswer) tokenProbs(d *delta, first bool) []logProbJSON {
	if !a.rep.keepTokens || d.tokens <= a.used {
		return []logProbJSON{}
	}
	tokens := a.rep.tokens[a.used:d.tokens]
	a.used = d.tokens
	if first {
		size := 0
		for _, t := range tokens {
			size += len(t.Text)
		}
		for len(tokens) > 1 && size-len(tokens[0].Text) >= len(d.text) {
			size -= len(tokens[0].Text)
			tokens = tokens[1:]
		}
	}
	return newLogProbs(a.rep.tok, tokens).Content
}

// end completes the open item, or leaves it incomplete.
func (a *responseAnswer) end(status string) {
	if !a.open {
		return
	}
	a.open = false
	text, it := a.text.String(), a.item()
	it.Status = status
	how := a.shown()
	m := a.place(map[string]any{"text": text})
	switch {
	case a.kind == parse.ToolBegin:
		it.Arguments = &text
		m = a.place(map[string]any{"arguments": text, "name": it.Name})
	case a.kind == parse.Content:
		m["logprobs"] = append([]logProbJSON{}, a.probs...)
		it.Content = &[]outputPart{a.part(text)}
	case a.summary:
		it.Summary = &[]outputPart{a.part(text)}
	default:
		it.Content = &[]outputPart{a.part(text)}
	}
	if a.kind == parse.Reasoning && a.seal {
		code := seal(text)
		it.Encrypted = &code
	}
	a.event(how.textEvent+".done", m)
	if how.part != "" {
		a.event(how.partEvent+".done", a.place(map[string]any{"part": a.part(text)}))
	}
	a.event("response.output_item.done", map[string]any{"output_index": len(a.base.Output) - 1, "item": it})
}

// add adds what the model generated to the output.
func (a *responseAnswer) add(ds []delta) {
	for _, d := range merge(ds) {
		another := !a.open || a.kind != d.kind
		switch d.kind {
		case parse.Content:
			if another {
				a.begin(d.kind, outputItem{Type: "message", ID: newID("msg_"), Role: "assistant", Content: &[]outputPart{}})
			}
			a.addText(&d)
		case parse.Reasoning:
			if another {
				it := outputItem{Type: "reasoning", ID: newID("rs_"), Summary: &[]outputPart{}}
				if !a.summary {
					it.Content = &[]outputPart{}
				}
				a.begin(d.kind, it)
			}
			a.addText(&d)
		case parse.ToolBegin:
			c := a.rep.calls[d.call]
			if a.client = a.q.kinds[c.name]; a.client != "" {
				continue // shown at its end
			}
			it := outputItem{Type: "function_call", ID: newID("fc_"), CallID: c.id, Name: c.name, Arguments: new(string)}
			if n, ok := a.q.names[c.name]; ok {
				it.Name, it.Namespace = n.name, n.namespace
			}
			a.begin(d.kind, it)
		case parse.ToolArguments:
			if a.client == "" {
				a.addText(&d)
			}
		case parse.ToolEnd:
			if a.client != "" {
				c := a.rep.calls[d.call]
				a.clientCall(clientTools[a.client], c)
				a.client = ""
				continue
			}
			a.end("completed")
		}
	}
}

// finish completes the response.
func (a *responseAnswer) finish() error {
	res, status := a.rep.result, "completed"
	if res.Reason == engine.ReasonLength {
		status = "incomplete"
		a.base.IncompleteDetails = &incompleteJSON{"max_output_tokens"}
	}
	a.end(status)
	u := &responseUsage{InputTokens: res.Prompt, OutputTokens: res.Generated, TotalTokens: res.Prompt + res.Generated}
	u.InputDetails.CachedTokens = res.Cached
	u.InputDetails.add(res)
	u.OutputDetails.ReasoningTokens = a.rep.thinkTokens
	a.base.Usage, a.base.Timings, a.base.Status = u, timings(res), status
	if err := a.keep(); err != nil { // before the client can refer to it
		return err
	}
	if err := a.q.addTo(a.core.memory, a.owner, a.base.Output); err != nil {
		return err
	}
	a.event("response."+status, map[string]any{"response": &a.base})
	return nil
}
