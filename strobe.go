// Package strobe runs language models on this machine and drafts ahead where that is faster, without changing a
// token of what the model says.
//
//	m, err := strobe.Open("model.gguf", strobe.Options{})
//	if err != nil {
//		return err
//	}
//	defer m.Close()
//	question := []strobe.Message{{Role: "user", Content: "Why is the sky blue?"}}
//	answer, err := m.Chat(ctx, question, strobe.Settings{})
//	if err != nil {
//		return err
//	}
//	err = answer.Wait(func(p strobe.Piece) error {
//		_, err := fmt.Print(p.Text)
//		return err
//	})
//
// A drafter that lies beside the model is found by itself; without one, repetitions in prompt and answer are used.
// A Model may be used by any number of goroutines: answers run together in shared batches, and what
// runs beside an answer has no influence on it. Beginnings that prompts share are computed once.
//
// Control tokens belong to the chat template. A message that spells one gets its characters, not its effect.
package strobe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/sample"
	"strobe/internal/speculate"
)

// What the packages below call these things.
type (
	// Message is a turn of a conversation in the shape of the OpenAI API: a Role (system, user, assistant, tool), a
	// Content (a string is enough, a []Part has images), and for the assistant perhaps Reasoning and ToolCalls.
	Message = chat.Message
	// Part is a piece of a message: Text or Image make one.
	Part = chat.Part
	// Sampling says how tokens are chosen. The zero value always takes the most likely one.
	Sampling = sample.Params
	// Drafting says who drafts and how. The zero value lets a controller decide by measured speed.
	Drafting = speculate.Options
	// Result is how an answer ended: the reason, counts, times and statistics of drafting.
	Result = engine.Result
	// ToolCall is a function the model wants called.
	ToolCall = chat.ToolCall
	// Tool describes a function the model may ask for: a JSON object in OpenAI's shape.
	Tool = json.RawMessage
)

// Who drafts, for Drafting.Draft: one of these, or the name of a source ("dflash", "eagle3", "mtp", "ngram").
const (
	DraftAuto = speculate.Auto // whatever pays
	DraftOff  = speculate.Off
)

// Text is a piece of a message that also has images.
func Text(s string) Part { return Part{Type: "text", Text: s} }

// Image is an image of a message: the bytes of a PNG, JPEG, GIF, WebP or BMP file. The model needs an image encoder.
func Image(file []byte) Part { return dialog.ImagePart(file) }

// Options says how to open a model. The zero value works.
type Options struct {
	Drafter    string // file of the drafter; "" looks beside the model, "none" uses none
	Vision     string // file of the image encoder (mmproj), likewise
	ImageRows  int    // tokens an image may have; 0 means what suits the model and the device
	Threads    int    // CPU threads; 0 means all cores
	Device     string // cpu, cuda:0, or several GPUs: cuda:0,cuda:1; "" takes GPUs that have room, or the processor
	KV         string // type of cached keys and values: f16 (""), f32, q8_0, q4_1, q4_0, turbo4 or turbo3
	KVKey      string // of keys, if another one
	KVValue    string // of values, if another one
	KVDraft    string // of the drafter's keys and values; f16 ("") or one of the others
	Context    int    // most tokens of a prompt with its answer; 0 means what the model was trained for
	Parallel   int    // answers that run together, others wait; 0 means 4
	CacheBytes int64  // memory for beginnings of prompts; 0 means a part of what is free, negative none
}

// Model is an open model. Its methods may be called from any goroutine.
type Model struct {
	engine *engine.Engine
	format *dialog.Format
}

// Open opens the model in a GGUF file.
func Open(path string, opt Options) (*Model, error) {
	m, err := engine.Load(path, opt.load())
	if err != nil {
		return nil, err
	}
	return New(m, opt.config()), nil
}

// OpenFiles opens a model from files that are open already, such as those of the package models. They belong to
// the model from then on, also after an error. The drafter may be nil; Options.Drafter is not used.
func OpenFiles(target, drafter *gguf.File, opt Options) (*Model, error) {
	m, err := engine.LoadFiles(engine.Source{Target: target, Drafter: drafter}, opt.load())
	if err != nil {
		return nil, err
	}
	return New(m, opt.config()), nil
}

func (o *Options) load() engine.Options {
	return engine.Options{
		Threads: o.Threads,
		Device:  o.Device,
		KV:      o.KV,
		KVKey:   o.KVKey,
		KVValue: o.KVValue,
		KVDraft: o.KVDraft,
		Drafter: o.Drafter,

		Vision:    o.Vision,
		ImageRows: o.ImageRows,
	}
}

func (o *Options) config() engine.Config {
	return engine.Config{Context: o.Context, Parallel: o.Parallel, CacheBytes: o.CacheBytes}
}

// New is for programs that load a model themselves. It belongs to the Model from then on.
func New(m *engine.Model, cfg engine.Config) *Model {
	return &Model{engine: engine.New(m, cfg), format: dialog.For(m)}
}

// Close ends answers in progress and gives everything back. It may be called more than once.
func (m *Model) Close() error {
	ended, end := context.WithCancel(context.Background())
	end() // nobody has to wait for what nobody will read
	return m.engine.Close(ended)
}

// Engine returns what runs the model, for programs that need more than this package offers.
func (m *Model) Engine() *engine.Engine { return m.engine }

// Format returns how the model converses.
func (m *Model) Format() *dialog.Format { return m.format }

// Settings of one answer. The zero value takes the most likely tokens until the model ends or the context is full.
type Settings struct {
	Sampling  Sampling
	Drafting  Drafting
	MaxTokens int      // 0 means as many as the context holds
	Stops     []string // the text ends before any of these
	IgnoreEnd bool     // go on when the model has ended its text
	// Constraint limits the tokens that may come next; nil leaves them free. It belongs to this answer alone.
	Constraint sample.Constraint
	Tools      []Tool // for Chat, if the model's template can describe them
	// Thinking asks for reasoning before the answer, or for none, if the template has a switch; nil leaves it alone.
	Thinking *bool
	// Raw lets control tokens in the text of Complete be control tokens, for programs that write a whole prompt.
	Raw bool
}

// Chat begins the answer to a conversation, through the model's chat template or, when its file has none, a plain one.
// It does not wait for the answer, which ends early when ctx does.
func (m *Model) Chat(ctx context.Context, messages []Message, set Settings) (*Answer, error) {
	opt := dialog.Options{Tools: set.Tools, Thinking: set.Thinking, Done: ctx.Done()}
	opt.Context = m.engine.Config().Context
	p, err := m.format.Chat(messages, opt)
	if err != nil {
		return nil, cmp.Or(ctx.Err(), err) // a prompt nobody waits for fails because of that
	}
	return m.Answer(ctx, p, set)
}

// Complete begins the continuation of a text. It does not wait for it. It ends early when ctx does.
func (m *Model) Complete(ctx context.Context, text string, set Settings) (*Answer, error) {
	p, err := m.format.Text(text, set.Raw, ctx.Done())
	if err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	return m.Answer(ctx, p, set)
}

// Answer begins the answer to a prompt that Format made.
func (m *Model) Answer(ctx context.Context, p *dialog.Prompt, set Settings) (*Answer, error) {
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
// kept, so nobody has to be quick, and an answer that is not read ends by itself.
type Answer struct {
	ctx        context.Context
	generation *engine.Generation
	parser     *parse.Parser // nil: all text is the answer
	said       parse.Collector
	result     *Result
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
func (a *Answer) Message() Message {
	r := a.said.Result()
	m := Message{Role: "assistant", Content: r.Content, Reasoning: r.Reasoning}
	for _, c := range r.Calls {
		m.ToolCalls = append(m.ToolCalls, ToolCall{Name: c.Name, Arguments: json.RawMessage(c.Arguments)})
	}
	return m
}

// Result is how the answer ended, nil before it has.
func (a *Answer) Result() *Result { return a.result }
