package dialog

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/speculate"
)

// Model is a model that answers. Its methods may be called from any goroutine.
type Model struct {
	engine *engine.Engine
	format *Format
}

// New makes a loaded model answer. It belongs to the Model from then on.
func New(m *engine.Model, cfg engine.Config) *Model {
	return &Model{engine: engine.New(m, cfg), format: For(m)}
}

// Close ends answers in progress and gives everything back. It may be called more than once.
func (m *Model) Close() error {
	ended, end := context.WithCancel(context.Background())
	end() // answers in progress are cancelled, not finished: their text will not be read
	return m.engine.Close(ended)
}

// Engine returns what runs the model.
func (m *Model) Engine() *engine.Engine { return m.engine }

// Format returns how the model converses.
func (m *Model) Format() *Format { return m.format }

// Settings of one answer. The zero value takes the most likely tokens until the model ends or the context is full.
type Settings struct {
	Sampling  sample.Params
	Drafting  speculate.Options
	MaxTokens int      // 0 means as many as the context holds
	Stops     []string // the text ends before any of these
	IgnoreEnd bool     // go on when the model has ended its text
	// Constraint limits the tokens that may come next; nil leaves them free. It belongs to this answer alone.
	Constraint sample.Constraint
}

// Answer begins the answer to a prompt that Format made.
func (m *Model) Answer(ctx context.Context, p *Prompt, set Settings) (*Answer, error) {
	req := p.Request(engine.Request{Params: set.Sampling, Spec: set.Drafting, MaxTokens: set.MaxTokens, Stops: set.Stops,
		IgnoreEOG: set.IgnoreEnd, Constraint: set.Constraint})
	g, err := m.engine.Submit(ctx, req)
	if err != nil {
		return nil, err
	}
	return &Answer{ctx: ctx, generation: g, parser: p.Parser()}, nil
}

// Piece is a part of an answer as it comes.
type Piece struct {
	Text      string // whole characters
	Reasoning bool   // it is not part of the answer's text
	Drafted   bool   // it was drafted and accepted
}

// Answer is what a model says. One goroutine reads it, with Next or Wait; Stop may be called from any. Its text is
// kept until it is read, and an answer that is not read ends by itself.
type Answer struct {
	ctx        context.Context
	generation *engine.Generation
	parser     *parse.Parser // nil: all text is the answer
	said       parse.Collector
	result     *engine.Result
}

// Next waits for more of the answer. After the last piece it returns io.EOF, also when Stop ended it, or why the answer
// failed; what was said until then stays.
func (a *Answer) Next() ([]Piece, error) {
	if a.result != nil {
		return nil, a.end()
	}
	ev, err := a.generation.Next(context.Background()) // ends with the generation, and that with its own context
	if err != nil {
		return nil, err
	}
	var ps []Piece
	for _, t := range ev.Tokens {
		ps = a.take(ps, string(t.Text), t.Drafted)
	}
	ps = a.take(ps, string(ev.Rest()), false)
	if a.result = ev.Result; a.result != nil && a.parser != nil {
		ps = a.add(ps, a.parser.Close(), false)
	}
	return ps, nil
}

func (a *Answer) take(ps []Piece, text string, drafted bool) []Piece {
	switch {
	case text == "":
		return ps
	case a.parser == nil:
		return a.add(ps, []parse.Event{{Kind: parse.Content, Text: text}}, drafted)
	}
	return a.add(ps, a.parser.Push(text), drafted)
}

func (a *Answer) add(ps []Piece, evs []parse.Event, drafted bool) []Piece {
	a.said.Add(evs...)
	for _, e := range evs {
		if e.Kind == parse.Content || e.Kind == parse.Reasoning {
			ps = append(ps, Piece{e.Text, e.Kind == parse.Reasoning, drafted})
		}
	}
	return ps
}

// end is what Next says after the last piece. An answer that its reader stopped is no failure.
func (a *Answer) end() error {
	r := a.result
	stopped := r.Err == context.Canceled && a.ctx.Err() == nil
	if r.Reason == engine.ReasonError || r.Reason == engine.ReasonCancelled && !stopped {
		return r.Err
	}
	return io.EOF
}

// Wait reads the answer to its end and calls show, which may be nil, with every piece. An error of show stops the
// answer.
func (a *Answer) Wait(show func(Piece) error) error {
	for {
		ps, err := a.Next()
		for _, p := range ps {
			if show == nil {
				break
			}
			if err := show(p); err != nil {
				a.Stop()
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Progress is how many tokens of the prompt were read, and how many it has. It may be called from any goroutine.
func (a *Answer) Progress() (read, prompt int) {
	s := a.generation.State()
	return s.Processed, s.Prompt
}

// Stop ends the answer soon. It does not wait.
func (a *Answer) Stop() { a.generation.Cancel() }

// Text is the answer so far, without reasoning and tool calls.
func (a *Answer) Text() string { return a.said.Result().Content }

// Message is the answer so far as the next message of the conversation, with reasoning and tool calls.
func (a *Answer) Message() chat.Message {
	r := a.said.Result()
	m := chat.Message{Role: "assistant", Content: r.Content, Reasoning: r.Reasoning}
	for _, c := range r.Calls {
		m.ToolCalls = append(m.ToolCalls, chat.ToolCall{Name: c.Name, Arguments: json.RawMessage(c.Arguments)})
	}
	return m
}

// Result is how the answer ended, nil before it has.
func (a *Answer) Result() *engine.Result { return a.result }
