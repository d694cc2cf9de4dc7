package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
	"strobe/internal/dialog"
	"strobe/internal/engine"
)

// ollamaVersion is the version of Ollama whose API this is. Clients ask before they use what came later.
const ollamaVersion = "0.13.5"

// ollamaRequest is the body of POST /api/chat and POST /api/generate.
type ollamaRequest struct {
	Model    string            `json:"model"`
	Messages []ollamaMessage   `json:"messages"` // of chat
	Tools    []json.RawMessage `json:"tools"`
	Prompt   string            `json:"prompt"` // of generate
	System   string            `json:"system"`
	Raw      bool              `json:"raw"`
	Suffix   string            `json:"suffix"`
	Template string            `json:"template"`
	Images   []string          `json:"images"`
	Format   json.RawMessage   `json:"format"`
	Think    json.RawMessage   `json:"think"`
	Stream   *bool             `json:"stream"`
	Keep     json.RawMessage   `json:"keep_alive"`
	LogProbs bool              `json:"logprobs"`
	Top      int               `json:"top_logprobs"`
	Context  []int32           `json:"context"` // of generate: the tokens of what was said before
	Options  ollamaOptions     `json:"options"`
	Shift    *bool             `json:"shift"` // false ends the answer when the context is full

	RenderOnly bool `json:"_debug_render_only"` // refused, like the next ones, which are for models that paint
	Width      int  `json:"width"`
	Height     int  `json:"height"`
	Steps      int  `json:"steps"`
}

// refuse names what this server cannot do and a client must not believe it did.
func (q *ollamaRequest) refuse() error {
	if q.RenderOnly {
		return invalid("_debug_render_only", "is not supported; /apply-template shows prompts")
	}
	for name, v := range map[string]int{"width": q.Width, "height": q.Height, "steps": q.Steps} {
		if v != 0 {
			return invalid(name, "is not supported; this server makes no images")
		}
	}
	return nil
}

// ollamaOptions are the settings of an answer. num_ctx is not among them: the server's context is fixed, and a
// larger one than asked for changes no answer that fits.
type ollamaOptions struct {
	samplingFields
	NumPredict *int `json:"num_predict"`
	NumKeep    *int `json:"num_keep"`
	refusedFields
}

// fields are the settings in the words of all protocols.
func (o *ollamaOptions) fields() (samplingFields, error) {
	f := o.samplingFields
	if o.NumPredict != nil {
		f.NPredict = o.NumPredict
	}
	if o.NumKeep != nil {
		f.NKeep = o.NumKeep
	}
	return f, o.refusedFields.check()
}

type ollamaMessage struct {
	Role      string       `json:"role"`
	Content   string       `json:"content"`
	Thinking  string       `json:"thinking,omitempty"`
	Images    []string     `json:"images,omitempty"`
	ToolCalls []ollamaCall `json:"tool_calls,omitempty"`
	ToolName  string       `json:"tool_name,omitempty"`
	CallID    string       `json:"tool_call_id,omitempty"`
}

type ollamaCall struct {
	ID       string `json:"id,omitempty"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// ollamaChunk is a piece of an answer, or the whole. Chat has a message, generate a response.
type ollamaChunk struct {
	Model      string         `json:"model"`
	CreatedAt  time.Time      `json:"created_at"`
	Message    *ollamaMessage `json:"message,omitempty"`
	Response   *string        `json:"response,omitempty"`
	Thinking   string         `json:"thinking,omitempty"`
	LogProbs   []logProbJSON  `json:"logprobs,omitempty"` // of the tokens since the last chunk
	Done       bool           `json:"done"`
	DoneReason string         `json:"done_reason,omitempty"`
	Context    []int32        `json:"context,omitempty"` // of generate, for a request that goes on

	Total          time.Duration `json:"total_duration,omitempty"`
	Load           time.Duration `json:"load_duration,omitempty"`
	PromptCount    int           `json:"prompt_eval_count,omitempty"`
	PromptDuration time.Duration `json:"prompt_eval_duration,omitempty"`
	Count          int           `json:"eval_count,omitempty"`
	Duration       time.Duration `json:"eval_duration,omitempty"`
}

// ollama answers Ollama's endpoints.
type ollama struct {
	*core
	files ggufFacts
}

func (s *ollama) endpoints() map[string]endpoint {
	return map[string]endpoint{
		"POST /api/copy":       post(s.core, s.copyModel),
		"DELETE /api/delete":   post(s.core, s.deleteModel),
		"POST /api/create":     post(s.core, s.createModel),
		"GET /api/version":     s.version,
		"GET /api/tags":        s.tags,
		"GET /api/ps":          s.loadedModels,
		"POST /api/show":       post(s.core, s.show),
		"POST /api/pull":       post(s.core, s.pullModel),
		"POST /api/chat":       post(s.core, s.chat),
		"POST /api/generate":   post(s.core, s.generate),
		"POST /api/embed":      post(s.core, s.embedding),
		"POST /api/embeddings": post(s.core, s.embedding),
	}
}

// name is the name of a model without the tag that Ollama's clients add to names that have none.
func (s *ollama) name(name string) string {
	short, tagged := strings.CutSuffix(name, ":latest")
	if tagged && slices.ContainsFunc(s.offered(), func(m engine.ModelInfo) bool { return m.Name == short }) {
		return short
	}
	return name
}

func (q *ollamaRequest) conversation(chatting bool) (*conversation, error) {
	if err := q.refuse(); err != nil {
		return nil, err
	}
	fields, err := q.Options.fields()
	if err != nil {
		return nil, err
	}
	c := newConversation(q.Model, &fields, q.Stream == nil || *q.Stream)
	c.noShift = q.Shift != nil && !*q.Shift
	if c.keepAlive, err = keepAlive(q.Keep); err != nil {
		return nil, err
	}
	if chatting {
		for i, m := range q.Messages {
			at := "messages" + index(i)
			msg := chat.Message{Role: m.Role, Content: m.Content, Reasoning: m.Thinking, Name: m.ToolName,
				ToolCallID: m.CallID}
			switch {
			case m.Role == "":
				return nil, invalid(at+".role", "is missing")
			case len(m.Images) > 0:
				msg.Content = ollamaContent(m.Content, m.Images, at+".images")
			}
			for j, call := range m.ToolCalls {
				if call.Function.Name == "" {
					return nil, invalid(at+".tool_calls"+index(j)+".function.name", "is missing")
				}
				if kindOf(call.Function.Arguments) == "null" {
					call.Function.Arguments = json.RawMessage("{}")
				}
				c := chat.ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments}
				msg.ToolCalls = append(msg.ToolCalls, c)
			}
			c.messages = append(c.messages, msg)
		}
		if c.tools, err = checkTools(q.Tools); err != nil {
			return nil, err
		}
	} else {
		given := map[string]bool{"images": len(q.Images) > 0 && q.Raw, "template": q.Template != ""}
		for name, yes := range given {
			if yes {
				return nil, invalid(name, "is not supported")
			}
		}
		if q.System != "" {
			c.messages = append(c.messages, chat.Message{Role: "system", Content: q.System})
		}
		c.messages = append(c.messages, chat.Message{Role: "user", Content: ollamaContent(q.Prompt, q.Images, "images")})
	}
	f := formatFields{}
	switch kindOf(q.Format) {
	case "object":
		f.JSONSchema = q.Format
	case "string":
		if s := string(bytes.TrimSpace(q.Format)); s == `"json"` {
			f.ResponseFormat = &responseFormat{Type: "json_object"}
		} else if s != `""` {
			return nil, invalid("format", "must be \"json\" or a schema")
		}
	case "null":
	default:
		return nil, invalid("format", "must be \"json\" or a schema")
	}
	if c.format, err = f.format(); err != nil {
		return nil, err
	}
	var think thinkingFields
	switch kindOf(q.Think) {
	case "null":
	case "bool":
		on := string(bytes.TrimSpace(q.Think)) == "true"
		think.EnableThinking = &on
	case "string": // how much
		on := true
		think.EnableThinking = &on
		if err := decodeJSON(q.Think, "think", &think.ReasoningEffort); err != nil {
			return nil, err
		}
	default:
		return nil, invalid("think", "must be true, false or a word")
	}
	if q.LogProbs {
		if err := c.wantLogProbs("top_logprobs", q.Top); err != nil {
			return nil, err
		}
	}
	return c, think.apply(c)
}

func (s *ollama) chat(w http.ResponseWriter, r *http.Request, q *ollamaRequest) (any, error) {
	return s.answer(w, r, q, true)
}

func (s *ollama) generate(w http.ResponseWriter, r *http.Request, q *ollamaRequest) (any, error) {
	return s.answer(w, r, q, false)
}

func (s *ollama) answer(w http.ResponseWriter, r *http.Request, q *ollamaRequest, chatting bool) (any, error) {
	start := time.Now()
	c, err := q.conversation(chatting)
	if err != nil {
		return nil, err
	}
	c.model = s.name(q.Model)
	if !chatting {
		if err := s.ownPrompt(q, c); err != nil {
			return nil, err
		}
	}
	a := &ollamaAnswer{name: q.Model, chat: chatting, start: start, logProbs: q.LogProbs,
		context: !chatting && !q.Raw && q.Suffix == "" && !s.cfg.Upstreams.Has(c.model)}
	if chatting && len(q.Messages) == 0 || !chatting && q.Prompt == "" && q.System == "" {
		return s.loadOnly(r, c, a)
	}
	return s.converse(w, r, c, func(x *exchange) answer {
		a.exchange, a.rep = x, x.replies[0]
		a.rep.keepTokens = a.rep.keepTokens || a.context
		x.st.useLines()
		return a
	})
}

// ownPrompt sets the prompt of a request to generate that is not a single message: text as it is, text between two
// others, or a message that goes on with what was said before.
func (s *ollama) ownPrompt(q *ollamaRequest, c *conversation) error {
	given := ""
	switch {
	case q.Raw:
		given = "raw"
		c.prompts = func(m *model) ([]*dialog.Prompt, error) {
			p, err := m.textPrompt(q.Prompt, c.done)
			return []*dialog.Prompt{p}, err
		}
	case q.Suffix != "":
		given = "suffix"
		c.raw = true
		c.prompts = func(m *model) ([]*dialog.Prompt, error) {
			p, err := m.fill(q.Prompt, q.Suffix, nil, c.done)
			return []*dialog.Prompt{p}, err
		}
	case len(q.Context) > 0:
		given = "context"
		c.prompts = func(m *model) ([]*dialog.Prompt, error) {
			if err := m.checkTokens(q.Context, "context"); err != nil {
				return nil, err
			}
			p, err := m.render(c)
			if err != nil {
				return nil, err
			}
			more := p.Tokens
			if bos, ok := m.tok.BOS(); ok && len(more) > 0 && more[0] == bos {
				more = more[1:] // the text has begun
			}
			p.Text, p.Tokens = "", slices.Concat(q.Context, more)
			return []*dialog.Prompt{p}, nil
		}
	}
	if given != "" && s.cfg.Upstreams.Has(c.model) {
		return invalid(given, "is not supported for a model of another server")
	}
	return nil
}

// loadOnly loads or unloads a model for a request that asks it nothing.
func (s *ollama) loadOnly(r *http.Request, c *conversation, a *ollamaAnswer) (any, error) {
	out := a.piece("", "", nil)
	out.Done, out.DoneReason = true, "load"
	if c.keepAlive != nil && *c.keepAlive == 0 {
		out.DoneReason = "unload"
		return out, s.models().Unload(r.Context(), c.model)
	}
	_, release, err := s.acquireModel(r, c)
	if err != nil {
		return nil, err
	}
	release()
	return out, nil
}

// ollamaAnswer shows a reply in lines of JSON. Calls are shown when they are complete.
type ollamaAnswer struct {
	*exchange
	name     string // as the client says it
	chat     bool
	rep      *reply
	start    time.Time
	logProbs bool
	context  bool    // the end has the tokens of all that was said
	said     []int32 // so far
}

// piece is a chunk of an answer, with the log probabilities of the tokens since the last one.
func (a *ollamaAnswer) piece(content, thinking string, calls []*toolCall) *ollamaChunk {
	out := &ollamaChunk{Model: a.name, CreatedAt: time.Now().UTC()}
	if a.rep != nil && len(a.rep.tokens) > 0 {
		if a.logProbs {
			out.LogProbs = newLogProbs(a.rep.tok, a.rep.tokens).Content
		}
		if a.context {
			for _, t := range a.rep.tokens {
				a.said = append(a.said, t.ID)
			}
		}
		a.rep.tokens = a.rep.tokens[:0]
	}
	if !a.chat {
		out.Response, out.Thinking = &content, thinking
		return out
	}
	out.Message = &ollamaMessage{Role: "assistant", Content: content, Thinking: thinking}
	for _, c := range calls {
		call := ollamaCall{}
		call.Function.Name, call.Function.Arguments = c.name, json.RawMessage(c.args.String())
		if !json.Valid(call.Function.Arguments) {
			call.Function.Arguments = json.RawMessage("{}")
		}
		out.Message.ToolCalls = append(out.Message.ToolCalls, call)
	}
	return out
}

// end puts the reasons and counts of the end into a chunk.
func (a *ollamaAnswer) end(out *ollamaChunk) *ollamaChunk {
	res := a.rep.result
	if out.Done, out.DoneReason = true, "stop"; res.Reason == engine.ReasonLength {
		out.DoneReason = "length"
	}
	out.Total, out.Load = time.Since(a.start), a.loading
	out.PromptCount, out.PromptDuration = res.Prompt, res.Stats.PromptTime
	out.Count, out.Duration = res.Generated, res.Stats.DecodeTime
	if a.context {
		out.Context = slices.Concat(a.rep.prompt.Tokens, a.said)
		if eos, ok := a.rep.tok.EOS(); ok && res.Reason == engine.ReasonEOG &&
			!a.rep.tok.IsEOG(out.Context[len(out.Context)-1]) {
			out.Context = append(out.Context, eos) // the turn is over
		}
	}
	return out
}

func (a *ollamaAnswer) whole() (any, error) {
	calls := slices.DeleteFunc(slices.Clone(a.rep.calls), func(c *toolCall) bool { return !c.complete })
	return a.end(a.piece(a.rep.content.String(), a.rep.reasoning.String(), calls)), nil
}

func (a *ollamaAnswer) chunk(_ int, ds []delta) {
	for _, d := range merge(ds) {
		switch d.kind {
		case parse.Content:
			a.line(a.piece(d.text, "", nil))
		case parse.Reasoning:
			a.line(a.piece("", d.text, nil))
		case parse.ToolEnd:
			a.line(a.piece("", "", a.rep.calls[d.call:d.call+1]))
		}
	}
	if a.rep.result != nil {
		a.line(a.end(a.piece("", "", nil)))
	}
}

// line sends a line at once: clients take what they read at a time for one line.
func (a *ollamaAnswer) line(v *ollamaChunk) {
	a.st.send("", v)
	if err := a.st.flush(); err != nil {
		a.st.err = err
	}
}

// keepAlive reads Ollama's time for which a model stays loaded: seconds, or a text like 5m. Negative is for ever.
func keepAlive(raw json.RawMessage) (*time.Duration, error) {
	var d time.Duration
	switch kindOf(raw) {
	case "null":
		return nil, nil
	case "number":
		n, err := strconv.ParseFloat(string(bytes.TrimSpace(raw)), 64)
		if err != nil {
			return nil, invalid("keep_alive", "must be a number of seconds or a duration")
		}
		d = seconds(n)
	case "string":
		var text string
		if err := decodeJSON(raw, "keep_alive", &text); err != nil {
			return nil, err
		}
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			d = seconds(n)
		} else if d, err = time.ParseDuration(text); err != nil {
			return nil, invalid("keep_alive", "%q is no duration like 5m", text)
		}
	default:
		return nil, invalid("keep_alive", "must be a number of seconds or a duration")
	}
	return &d, nil
}

// seconds is a duration of at most some years.
func seconds(n float64) time.Duration {
	if !(n >= 0) {
		return -1
	}
	return time.Duration(min(n, 1e8) * float64(time.Second))
}
