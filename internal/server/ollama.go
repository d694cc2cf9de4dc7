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
	Options  struct {
		samplingFields
		NumPredict *int `json:"num_predict"`
		refusedFields
	} `json:"options"`
}

type ollamaMessage struct {
	Role      string       `json:"role"`
	Content   string       `json:"content"`
	Thinking  string       `json:"thinking,omitempty"`
	Images    []string     `json:"images,omitempty"`
	ToolCalls []ollamaCall `json:"tool_calls,omitempty"`
	ToolName  string       `json:"tool_name,omitempty"`
}

type ollamaCall struct {
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

	Total          time.Duration `json:"total_duration,omitempty"`
	Load           time.Duration `json:"load_duration,omitempty"`
	PromptCount    int           `json:"prompt_eval_count,omitempty"`
	PromptDuration time.Duration `json:"prompt_eval_duration,omitempty"`
	Count          int           `json:"eval_count,omitempty"`
	Duration       time.Duration `json:"eval_duration,omitempty"`
}

// ollamaName is the name of a model without the tag that Ollama's clients add to names that have none.
func (s *Server) ollamaName(name string) string {
	short, tagged := strings.CutSuffix(name, ":latest")
	if tagged && slices.ContainsFunc(s.models().List(), func(m engine.ModelInfo) bool { return m.Name == short }) {
		return short
	}
	return name
}

func (q *ollamaRequest) conversation(chatting bool) (*conversation, error) {
	c := &conversation{}
	var err error
	if chatting {
		for i, m := range q.Messages {
			at := "messages" + index(i)
			msg := chat.Message{Role: m.Role, Content: m.Content, Reasoning: m.Thinking, Name: m.ToolName}
			switch {
			case m.Role == "":
				return nil, invalid(at+".role", "is missing")
			case len(m.Images) > 0 && m.Role == "tool":
				msg.Content = m.Content + "\n" + dialog.Placeholder("image")
			case len(m.Images) > 0:
				return nil, invalid(at+".images", "are not supported; this model reads text only")
			}
			for j, call := range m.ToolCalls {
				if call.Function.Name == "" {
					return nil, invalid(at+".tool_calls"+index(j)+".function.name", "is missing")
				}
				if kindOf(call.Function.Arguments) == "null" {
					call.Function.Arguments = json.RawMessage("{}")
				}
				c := chat.ToolCall{Name: call.Function.Name, Arguments: call.Function.Arguments}
				msg.ToolCalls = append(msg.ToolCalls, c)
			}
			c.messages = append(c.messages, msg)
		}
		if c.tools, err = checkTools(q.Tools); err != nil {
			return nil, err
		}
	} else {
		given := map[string]bool{"images": len(q.Images) > 0, "suffix": q.Suffix != "", "template": q.Template != ""}
		for name, yes := range given {
			if yes {
				return nil, invalid(name, "is not supported")
			}
		}
		if q.System != "" {
			c.messages = append(c.messages, chat.Message{Role: "system", Content: q.System})
		}
		c.messages = append(c.messages, chat.Message{Role: "user", Content: q.Prompt})
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
	if err := q.Options.refusedFields.check(); err != nil {
		return nil, err
	}
	return c, think.apply(c)
}

func (s *Server) ollamaChat(w http.ResponseWriter, r *http.Request, q *ollamaRequest) (any, error) {
	return s.ollamaAnswer(w, r, q, true)
}

func (s *Server) ollamaGenerate(w http.ResponseWriter, r *http.Request, q *ollamaRequest) (any, error) {
	return s.ollamaAnswer(w, r, q, false)
}

func (s *Server) ollamaAnswer(w http.ResponseWriter, r *http.Request, q *ollamaRequest, chatting bool) (any, error) {
	start := time.Now()
	c, err := q.conversation(chatting)
	if err != nil {
		return nil, err
	}
	keep, err := keepAlive(q.Keep)
	if err != nil {
		return nil, err
	}
	a := &ollamaAnswer{name: q.Model, chat: chatting, start: start}
	empty := chatting && len(q.Messages) == 0 || !chatting && q.Prompt == "" && q.System == ""
	if empty && keep != nil && *keep == 0 { // only to unload the model
		if err := s.models().Unload(r.Context(), s.ollamaName(q.Model)); err != nil {
			return nil, err
		}
		out := a.chunk("", "", nil)
		out.Done, out.DoneReason = true, "unload"
		return out, nil
	}
	l, err := s.partner(r, s.ollamaName(q.Model))
	if err != nil {
		return nil, err
	}
	l.keep = keep
	defer l.release()
	a.load = time.Since(start)
	if empty { // only to load it
		out := a.chunk("", "", nil)
		out.Done, out.DoneReason = true, "load"
		return out, nil
	}
	req := s.request(l.view)
	if q.Options.NumPredict != nil {
		q.Options.samplingFields.NPredict = q.Options.NumPredict
	}
	c.sampling = &q.Options.samplingFields
	if err := c.sampling.apply(&req, l.tok); err != nil {
		return nil, err
	}
	if q.LogProbs {
		if err := logProbs(&req, "top_logprobs", q.Top); err != nil {
			return nil, err
		}
	}
	c.done = r.Context().Done()
	stream := q.Stream == nil || *q.Stream
	reqs, replies, err := l.ollamaRequests(q, c, req, stream)
	if err != nil {
		return nil, err
	}
	a.rep = replies[0]
	a.rep.keepTokens = q.LogProbs
	return s.answer(w, r, l.view, reqs, replies, stream, a)
}

// ollamaRequests is answers for a conversation, and for raw text without a template.
func (v *view) ollamaRequests(q *ollamaRequest, c *conversation, req engine.Request, stream bool) (
	[]engine.Request, []*reply, error) {
	if !q.Raw {
		return v.answers(c, req, 1, stream)
	}
	if v.remote != nil {
		return nil, nil, invalid("raw", "is not supported for a model of another server")
	}
	if err := v.format.Fits(len(q.Prompt), v.engine.Config().Context); err != nil {
		return nil, nil, err
	}
	p, err := v.format.Text(q.Prompt, true, c.done)
	if err != nil {
		return nil, nil, err
	}
	req = p.Request(req)
	req.Constraint, err = v.constraint(c, p)
	return []engine.Request{req}, []*reply{newReply(v, nil, nil, stream)}, err
}

// ollamaAnswer shows a reply in lines of JSON. Calls are shown when they are complete.
type ollamaAnswer struct {
	name  string
	chat  bool
	rep   *reply
	start time.Time
	load  time.Duration
}

func (a *ollamaAnswer) chunk(content, thinking string, calls []*toolCall) *ollamaChunk {
	out := &ollamaChunk{Model: a.name, CreatedAt: time.Now().UTC()}
	if a.rep != nil && len(a.rep.tokens) > 0 {
		out.LogProbs = newLogProbs(a.rep.tok, a.rep.tokens).Content
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
	out.Total, out.Load = time.Since(a.start), a.load
	out.PromptCount, out.PromptDuration = res.Prompt, res.Stats.PromptTime
	out.Count, out.Duration = res.Generated, res.Stats.DecodeTime
	return out
}

func (a *ollamaAnswer) step(int, []delta) error { return nil }

func (a *ollamaAnswer) whole() (any, error) {
	calls := slices.DeleteFunc(slices.Clone(a.rep.calls), func(c *toolCall) bool { return !c.complete })
	return a.end(a.chunk(a.rep.content.String(), a.rep.reasoning.String(), calls)), nil
}

func (a *ollamaAnswer) stream(w http.ResponseWriter, r *http.Request, b *batch) {
	st := newStream(w)
	st.lines = true
	err := b.run(r, func(_ int, ds []delta) error {
		for _, d := range merge(ds) {
			var out *ollamaChunk
			switch d.kind {
			case parse.Content:
				out = a.chunk(d.text, "", nil)
			case parse.Reasoning:
				out = a.chunk("", d.text, nil)
			case parse.ToolEnd:
				out = a.chunk("", "", a.rep.calls[d.call:d.call+1])
			default:
				continue
			}
			if err := st.send("", out); err != nil {
				return err
			}
		}
		if a.rep.result != nil {
			if err := st.send("", a.end(a.chunk("", "", nil))); err != nil {
				return err
			}
		}
		return st.flush()
	}, nil)
	if err != nil {
		st.fail(r, err)
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
