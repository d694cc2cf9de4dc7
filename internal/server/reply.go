package server

import (
	"log/slog"
	"math"
	"strings"
	"time"

	"strobe/internal/chat/parse"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/tokenizer"
)

// reply is an answer in progress: what the engine generated, taken apart. Every protocol turns its
// deltas into events of its own, or waits for the end and shows the whole.
type reply struct {
	tok     *tokenizer.Tokenizer
	parser  parser        // nil leaves the text as it is
	asked   *conversation // of another server
	oneCall bool          // ends after the first tool call

	content, reasoning strings.Builder
	calls              []*toolCall // with those a stream began and the text did not finish
	tokens             []engine.Token
	keepTokens         bool   // for log probabilities
	drafted            []bool // of the tokens since the last chunk
	count              int
	thinkTokens        int
	thinking           bool
	enough             bool // the rest is not wanted
	result             *engine.Result
	began, firstAt     time.Time
	prompt             *promptProgress // news of it, for those who want them
}

// parser takes apart what a model says.
type parser interface {
	Push(text string) []parse.Event
	Close() []parse.Event
}

// toolCall is a function the model wants called.
type toolCall struct {
	id, name string
	args     strings.Builder
	complete bool
}

// delta is a piece of an answer.
type delta struct {
	kind    parse.Kind
	text    string
	call    int // index of the tool call it belongs to
	drafted bool
}

// newReply returns a reply whose deltas are shown as they come, or one that is shown whole. In
// a stream a tool call begins as soon as its name is known; a whole answer has complete calls only.
func newReply(v *view, c *conversation, p *dialog.Prompt, stream bool) *reply {
	r := &reply{tok: v.tok, began: time.Now()}
	if c != nil {
		r.oneCall, r.thinking = c.oneCall, p.Thinking
		if ps := p.Parser(); ps != nil {
			ps.Whole = !stream
			r.parser = ps
		}
	}
	return r
}

// take adds what the engine has sent and returns what it says.
func (r *reply) take(ev engine.Event) []delta {
	var out []delta
	if len(ev.Tokens) > 0 && r.firstAt.IsZero() {
		r.firstAt = time.Now()
	}
	for _, t := range ev.Tokens {
		if r.enough {
			break
		}
		r.count++
		r.drafted = append(r.drafted, t.Drafted)
		if r.keepTokens {
			r.tokens = append(r.tokens, t)
		}
		out = r.push(out, string(t.Text), t.Drafted)
		if r.thinking {
			r.thinkTokens++
		}
	}
	out = r.push(out, string(ev.Rest()), false)
	if ev.Result != nil {
		r.result = ev.Result
		if r.enough && r.result.Reason == engine.ReasonLength {
			// The answer ended before; the engine was at its limit when it heard of that.
			res := *r.result
			res.Reason = engine.ReasonStop
			r.result = &res
		}
		if r.parser != nil && !r.enough {
			out = r.events(out, r.parser.Close(), false)
		}
	}
	return out
}

func (r *reply) push(out []delta, text string, drafted bool) []delta {
	if text == "" || r.enough {
		return out
	}
	if r.parser == nil {
		r.content.WriteString(text)
		return append(out, delta{kind: parse.Content, text: text, drafted: drafted})
	}
	return r.events(out, r.parser.Push(text), drafted)
}

func (r *reply) events(out []delta, evs []parse.Event, drafted bool) []delta {
	for _, e := range evs {
		if r.enough {
			break
		}
		d := delta{kind: e.Kind, text: e.Text, drafted: drafted}
		r.thinking = e.Kind == parse.Reasoning
		switch e.Kind {
		case parse.Content:
			r.content.WriteString(e.Text)
		case parse.Reasoning:
			r.reasoning.WriteString(e.Text)
		case parse.ToolBegin:
			r.calls = append(r.calls, &toolCall{id: newID("call_"), name: e.Name})
		case parse.ToolArguments:
			r.calls[len(r.calls)-1].args.WriteString(e.Text)
		case parse.ToolEnd:
			r.calls[len(r.calls)-1].complete = true
			r.enough = r.oneCall
		case parse.ToolAbort:
			// What a stream has sent cannot be taken back: the call stays, unfinished.
			continue
		}
		d.call = len(r.calls) - 1
		out = append(out, d)
	}
	return out
}

// called reports whether the answer has a complete tool call.
func (r *reply) called() bool {
	for _, c := range r.calls {
		if c.complete {
			return true
		}
	}
	return false
}

// err is why the generation failed, nil if it did not.
func (r *reply) err() error {
	if r.result == nil || r.enough {
		return nil
	}
	switch r.result.Reason {
	case engine.ReasonError:
		return r.result.Err
	case engine.ReasonCancelled:
		if r.result.Err == nil {
			return errClient
		}
		return r.result.Err
	}
	return nil
}

// finish is OpenAI's word for why the answer ended.
func (r *reply) finish() string {
	switch {
	case r.result.Reason == engine.ReasonLength:
		return "length"
	case r.called():
		return "tool_calls"
	}
	return "stop"
}

// timingsJSON is llama.cpp's account of where the time went, with our additions at the end.
type timingsJSON struct {
	CacheN              int     `json:"cache_n"`
	PromptN             int     `json:"prompt_n"`
	PromptMS            float64 `json:"prompt_ms"`
	PromptPerTokenMS    float64 `json:"prompt_per_token_ms"`
	PromptPerSecond     float64 `json:"prompt_per_second"`
	PredictedN          int     `json:"predicted_n"`
	PredictedMS         float64 `json:"predicted_ms"`
	PredictedPerTokenMS float64 `json:"predicted_per_token_ms"`
	PredictedPerSecond  float64 `json:"predicted_per_second"`

	DraftN         *int    `json:"draft_n,omitempty"`
	DraftNAccepted *int    `json:"draft_n_accepted,omitempty"`
	DraftCycles    int     `json:"draft_cycles,omitempty"`
	AcceptLenMean  float64 `json:"accept_len_mean,omitempty"` // tokens per pass of the target
	DraftMS        float64 `json:"draft_ms,omitempty"`
	VerifyMS       float64 `json:"verify_ms,omitempty"`
	PlainPerSecond float64 `json:"plain_per_second,omitempty"` // what decoding without drafts would reach
	SpeedupEst     float64 `json:"speedup_est,omitempty"`
	QueuedMS       float64 `json:"queued_ms,omitempty"`
	FirstMS        float64 `json:"first_token_ms,omitempty"` // from the request's arrival in the queue
}

// perSecond and perToken are finite whatever happened.
func perSecond(n int, d time.Duration) float64 {
	if d <= 0 || n <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

func perToken(d time.Duration, n int) float64 {
	if n <= 0 {
		return 0
	}
	return ms(d) / float64(n)
}

// timings accounts for a generation that ended.
func timings(res *engine.Result) *timingsJSON {
	st := &res.Stats
	t := &timingsJSON{
		CacheN: res.Cached, PromptN: st.Prompt, PromptMS: ms(st.PromptTime),
		PromptPerTokenMS: perToken(st.PromptTime, st.Prompt), PromptPerSecond: perSecond(st.Prompt, st.PromptTime),
		PredictedN: res.Generated, PredictedMS: ms(st.DecodeTime),
		PredictedPerTokenMS: perToken(st.DecodeTime, res.Generated-1),
		PredictedPerSecond:  perSecond(res.Generated-1, st.DecodeTime),
		QueuedMS:            ms(res.Queued), FirstMS: ms(res.First),
	}
	if st.Guessed > 0 {
		t.DraftN, t.DraftNAccepted = &st.Guessed, &st.Accepted
		t.DraftCycles, t.AcceptLenMean = st.Drafts, st.Mean()
		t.DraftMS, t.VerifyMS = ms(st.Draft), ms(st.Verify)
	}
	if st.PlainCost > 0 {
		t.PlainPerSecond = 1 / st.PlainCost.Seconds()
		t.SpeedupEst = st.SpeedUp()
	}
	return t
}

// progress accounts for a generation that is still running. What plain decoding would reach is known from
// generations that ended before.
func (r *reply) progress(s engine.State, e *engine.Engine) *timingsJSON {
	t := &timingsJSON{CacheN: s.Cached, PromptN: max(0, s.Processed-s.Cached), PredictedN: r.count}
	if !r.firstAt.IsZero() {
		d := time.Since(r.firstAt)
		t.PredictedMS = ms(d)
		t.PredictedPerTokenMS = perToken(d, r.count-1)
		t.PredictedPerSecond = perSecond(r.count-1, d)
	}
	if cost := e.Snapshot().Stats.PlainCost; cost > 0 {
		t.PlainPerSecond = 1 / cost.Seconds()
	}
	return t
}

// generation adds a generation to the request's log line, which has room for the first one.
func (l *record) generation(model string, res *engine.Result) {
	if l.choices++; l.choices > 1 {
		return
	}
	t := timings(res)
	l.add(slog.String("model", model), slog.String("end", res.Reason.String()),
		slog.Int("prompt", res.Prompt), slog.Int("cached", res.Cached), slog.Int("tokens", res.Generated),
		slog.Float64("queued_ms", round(t.QueuedMS)), slog.Float64("prompt_ms", round(t.PromptMS)),
		slog.Float64("first_ms", round(t.FirstMS)),
		slog.Float64("decode_ms", round(t.PredictedMS)), slog.Float64("tokens_per_second", round(t.PredictedPerSecond)))
	if t.DraftN != nil {
		l.add(slog.Int("draft_n", *t.DraftN), slog.Int("draft_n_accepted", *t.DraftNAccepted),
			slog.Float64("accept_len_mean", round(t.AcceptLenMean)))
	}
	if err := res.Stats.DraftErr; err != nil {
		l.add(slog.String("draft_error", err.Error()))
	}
}

func round(x float64) float64 { return math.Round(x*100) / 100 }

// merge joins neighbouring deltas of the same text.
func merge(ds []delta) []delta {
	var out []delta
	for _, d := range ds {
		if n := len(out) - 1; n >= 0 && out[n].kind == d.kind && out[n].call == d.call && d.kind != parse.ToolBegin &&
			d.kind != parse.ToolEnd {
			out[n].text += d.text
			continue
		}
		out = append(out, d)
	}
	return out
}
