package server

import (
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
	parser  parser // nil leaves the text as it is
	oneCall bool   // ends after the first tool call

	req    engine.Request
	prompt *dialog.Prompt // nil for a model of another server, like the next one
	engine *engine.Engine
	gen    generation
	rounds *rounds // for the trace; nil if there is none

	content, reasoning strings.Builder
	calls              []*toolCall // with those a stream began and the text did not finish
	tokens             []engine.Token
	keepTokens         bool // for log probabilities
	deltas             []delta
	keepDeltas         bool   // for an answer that is shown in one piece and in their order
	drafted            []bool // of the tokens since the last chunk
	count              int
	thinkTokens        int
	thinking           bool
	enough             bool // the rest is not wanted
	result             *engine.Result
	began, firstAt     time.Time
	reading            []*promptProgress // news of the prompt, until they are sent
	lastRead           *promptProgress   // the latest of them; nil before the first
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
	end     int // of a merged delta: the index after its last part
	tokens  int // how many tokens there were with the last of its text, where they are kept
}

// newReply returns a reply to a prompt. In a stream a tool call begins as soon as its name is known; a whole answer
// has complete calls only.
func newReply(tok *tokenizer.Tokenizer, c *conversation, p *dialog.Prompt) *reply {
	r := &reply{tok: tok, prompt: p, oneCall: c.oneCall, thinking: p.Thinking, keepTokens: c.logProbs != nil,
		began: time.Now()}
	if ps := p.Parser(); ps != nil {
		ps.Whole = !c.stream
		r.parser = ps
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
		before := len(out)
		out = r.push(out, string(t.Text), t.Drafted)
		for i := range out[before:] {
			out[before+i].tokens = len(r.tokens)
		}
		if r.thinking {
			r.thinkTokens++
		}
	}
	out = r.push(out, string(ev.Rest()), false)
	if ev.Result != nil {
		r.result = ev.Result
		if r.enough && r.result.Reason == engine.ReasonLength {
			// The answer was complete before; the engine reached its limit before it was cancelled.
			res := *r.result
			res.Reason = engine.ReasonStop
			r.result = &res
		}
		if r.parser != nil && !r.enough {
			out = r.events(out, r.parser.Close(), false)
		}
	}
	if r.keepDeltas {
		r.deltas = append(r.deltas, out...)
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

// merge joins neighbouring deltas of the same text.
func merge(ds []delta) []delta {
	var out []delta
	for i, d := range ds {
		d.end = i + 1
		if n := len(out) - 1; n >= 0 && out[n].kind == d.kind && out[n].call == d.call && d.kind != parse.ToolBegin &&
			d.kind != parse.ToolEnd {
			out[n].text += d.text
			out[n].end, out[n].tokens = d.end, d.tokens
			continue
		}
		out = append(out, d)
	}
	return out
}

// promptText is the text of a reply's prompt, also of one that was given in tokens.
func (r *reply) promptText() string {
	if r.prompt.Text != "" {
		return r.prompt.Text
	}
	return string(r.tok.Decode(r.prompt.Tokens, tokenizer.DecodeOptions{Special: true, Opens: true}))
}
