// Package strobe runs language models on this machine and drafts ahead where that is faster, without changing a
// token of what the model says.
//
//	m, err := strobe.Open(ctx, "qwen3.5-4b", strobe.Options{})
//	if err != nil {
//		return err
//	}
//	defer m.Close()
//	question := []strobe.Message{{Role: "user", Content: "Why is the sky blue?"}}
//	answer, err := m.Chat(ctx, question, strobe.Settings{})
//	if err != nil {
//		return err
//	}
//	for piece, err := range answer.Pieces() {
//		if err != nil {
//			return err
//		}
//		fmt.Print(piece.Text)
//	}
//
// A drafter that lies beside the model is found by itself; without one, repetitions in prompt and answer are used.
// A Model may be used by any number of goroutines: answers run together in shared batches, and what
// runs beside an answer has no influence on it. Beginnings that prompts share are computed once.
//
// Control tokens belong to the chat template. A message that spells one gets its characters, not its effect.
//
// Errors that programs tell apart are variables and types of this package, for errors.Is and errors.As. A nil or a
// closed *Model and a nil context give an error; nothing here panics because of its arguments.
package strobe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/sample"
	"strobe/internal/sample/grammar"
	"strobe/internal/speculate"
	"strobe/internal/tokenizer"
)

// Options says how to open a model. The zero value works.
type Options struct {
	Drafter     string // the drafter, named as the model is; "" takes the model's own, "none" uses none
	Vision      string // file of the image encoder (mmproj); "" looks beside the model, "none" uses none
	ImageTokens int    // tokens an image may have; 0 means what suits the model and the device
	Threads     int    // CPU threads; 0 means all cores
	Device      string // cpu, cuda:0, or several GPUs: cuda:0,cuda:1; "" takes GPUs that have room, or the processor
	KV          string // type of cached keys and values: f16 (""), f32, q8_0, q4_1, q4_0, turbo4 or turbo3
	KVKey       string // of keys, if another one
	KVValue     string // of values, if another one
	KVDraft     string // of the drafter's keys and values; f16 ("") or one of the others
	Context     int    // most tokens of a prompt with its answer; 0 means what the model was trained for
	Parallel    int    // answers that run together, others wait; 0 means 4
	CacheBytes  int64  // memory for beginnings of prompts; 0 means a part of what is free, negative none

	// Offline uses files of this machine only, also for names.
	Offline bool
	// Progress is called while a file is downloaded and while a GPU gets the weights, one call at a time and none after
	// Open has returned. nil is silence.
	Progress func(Progress)
}

// Progress is how far Open is.
type Progress struct {
	Stage       string // "download" or "load"
	File        string // that is downloaded
	Done, Total int64  // bytes
}

// Model is an open model. Its methods may be called from any goroutine.
type Model struct {
	dialog *dialog.Model
	vocab  func() *grammar.Vocab // what formats may write
}

// Open opens a model. Its name is a GGUF file, a short name that "strobe list --known" shows (qwen3.5-4b, or
// qwen3.5-4b:Q8_0 for another type), or a file of the Hugging Face hub (OWNER/REPO, OWNER/REPO:FILE, OWNER/REPO:TYPE).
// What is not on this machine is downloaded into the hub's usual cache (HF_HOME, HF_TOKEN and HF_ENDPOINT have their
// effect); a short name brings its drafter.
//
// When ctx ends, Open returns its error. A model that was being loaded then is closed as soon as that is possible.
func Open(ctx context.Context, name string, opt Options) (*Model, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	report := &reporter{to: opt.Progress}
	defer report.end()
	path, drafter, err := fetch(ctx, name, &opt, report)
	if err != nil {
		return nil, public(err)
	}
	return load(ctx, &opt, func() (*engine.Model, error) {
		o := opt.load(report)
		o.Drafter = drafter
		return engine.Load(path, o)
	})
}

// OpenBytes opens a model from GGUF files in memory, such as embedded ones. The drafter may be nil; Options.Drafter is
// not used. The bytes must not be changed while the model is open.
func OpenBytes(ctx context.Context, target, drafter []byte, opt Options) (*Model, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	report := &reporter{to: opt.Progress}
	defer report.end()
	return load(ctx, &opt, func() (*engine.Model, error) {
		var src engine.Source
		var err error
		if src.Target, err = gguf.Parse("the model in memory", target); err != nil {
			return nil, err
		}
		if drafter != nil {
			if src.Drafter, err = gguf.Parse("the drafter in memory", drafter); err != nil {
				return nil, err
			}
		}
		return engine.LoadFiles(src, opt.load(report))
	})
}

// load runs open, which nothing can interrupt, and leaves it when ctx ends.
func load(ctx context.Context, opt *Options, open func() (*engine.Model, error)) (*Model, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	type opened struct {
		m   *engine.Model
		err error
	}
	done := make(chan opened, 1)
	go func() {
		m, err := open()
		done <- opened{m, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, public(o.err)
		}
		return newModel(o.m, opt), nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				o.m.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

func newModel(m *engine.Model, opt *Options) *Model {
	cfg := engine.Config{Context: opt.Context, Parallel: opt.Parallel, CacheBytes: opt.CacheBytes}
	return &Model{dialog: dialog.New(m, cfg), vocab: sync.OnceValue(func() *grammar.Vocab {
		pieces := make([][]byte, m.Tokenizer.Size())
		for id := range pieces {
			pieces[id] = m.Tokenizer.Piece(int32(id), false)
		}
		return grammar.NewVocab(pieces, m.Tokenizer.EOG())
	})}
}

func (o *Options) load(report *reporter) engine.Options {
	opt := engine.Options{Threads: o.Threads, Device: o.Device, KV: o.KV, KVKey: o.KVKey, KVValue: o.KVValue,
		KVDraft: o.KVDraft, Vision: o.Vision, ImageRows: o.ImageTokens}
	opt.Progress = func(done, total int) {
		report.say(Progress{Stage: "load", Done: int64(done), Total: int64(total)})
	}
	return opt
}

// reporter passes progress on until Open returns: what loads a model may go on longer than that.
type reporter struct {
	to    func(Progress)
	mu    sync.Mutex
	ended bool
}

func (r *reporter) say(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.to != nil && !r.ended {
		r.to(p)
	}
}

func (r *reporter) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}

// Close ends answers in progress and gives everything back. It may be called more than once.
func (m *Model) Close() error {
	if m == nil || m.dialog == nil {
		return nil
	}
	return m.dialog.Close()
}

// usable says why a call cannot be served.
func (m *Model) usable(ctx context.Context) error {
	switch {
	case m == nil || m.dialog == nil:
		return ErrClosed
	case ctx == nil:
		return errNilContext
	}
	return nil
}

// Info describes a model.
type Info struct {
	Path    string // of its file
	Drafter string // file of its drafter; "" for none, or for one inside the model's file
	Device  string // what runs it
	Context int    // most tokens of a prompt with its answer
	Vocab   int    // tokens it knows
	Hidden  int    // length of an embedding

	Chats  bool // its file has a chat template
	Tools  bool // the template describes tools
	Images bool // it reads images
}

// Info describes the model; the zero value for one that is nil.
func (m *Model) Info() Info {
	if m == nil || m.dialog == nil {
		return Info{}
	}
	e := m.dialog.Engine()
	of := e.Model()
	info := Info{Path: of.Path, Drafter: of.DrafterPath, Device: of.Backend().Name(), Context: e.Config().Context,
		Vocab: of.Tokenizer.Size(), Hidden: of.Target.Hidden, Chats: m.dialog.Format().Converses(), Images: of.Vision != nil}
	if t, err := m.dialog.Format().Template(); err == nil {
		info.Tools = t.Tools()
	}
	return info
}

// Settings of one answer. The zero value takes the most likely tokens until the model ends or the context is full.
type Settings struct {
	Sampling  Sampling
	Drafting  Drafting
	MaxTokens int      // 0 means as many as the context holds
	Stops     []string // the text ends before any of these
	IgnoreEnd bool     // go on when the model has ended its text
	// Format is what the text has to fit: JSONSchema, JSON or Grammar. The zero value leaves it free. A model with a
	// switch for reasoning does not reason then.
	Format Format
	// Tools are functions the model may ask for, if its template can describe them. Only Chat and Converse use them.
	Tools []Tool
	// Rounds is how often Converse lets the model call tools; 0 means 16.
	Rounds int
	// Thinking asks for reasoning before the answer, or for none, if the template has a switch; nil leaves it alone.
	Thinking *bool
	// Raw lets control tokens in the text of Complete be control tokens, for programs that write a whole prompt.
	Raw bool
}

// Sampling says how tokens are chosen. The zero value always takes the most likely one.
type Sampling struct {
	Temp     float32 // <= 0: the most likely token
	TopK     int     // choose among the k most likely; 0: off
	TopP     float32 // choose among the most likely tokens that reach this probability; 0 or 1: off
	MinP     float32 // drop tokens less likely than this fraction of the best; 0: off
	TypicalP float32 // locally typical sampling; 0 or 1: off

	RepeatPenalty    float32 // divides positive, multiplies negative logits of seen tokens; 0 or 1: off
	FrequencyPenalty float32 // subtracted once per occurrence; 0: off
	PresencePenalty  float32 // subtracted if the token occurred; 0: off
	RepeatLastN      int     // how many tokens these three look back; 0: 64, negative: all

	LogitBias map[int32]float32 // added to logits, by token; negative infinity bans a token
	Seed      uint64            // of the random numbers, also 0: the same seed gives the same text
}

func (s *Sampling) params() sample.Params {
	return sample.Params{Temp: s.Temp, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP, TypicalP: s.TypicalP,
		RepeatPenalty: s.RepeatPenalty, FrequencyPenalty: s.FrequencyPenalty, PresencePenalty: s.PresencePenalty,
		RepeatLastN: s.RepeatLastN, LogitBias: s.LogitBias, Seed: s.Seed}
}

// Drafting says what drafts and how. The zero value lets a controller decide by measured speed. No setting changes the
// text.
type Drafting struct {
	Draft string // DraftAuto, DraftOff, or the name of a source: dflash, eagle3, mtp or ngram
	Max   int    // most tokens drafted at a time; 0 means what the source can do
}

// What drafts, for Drafting.Draft.
const (
	DraftAuto = speculate.Auto // whatever pays
	DraftOff  = speculate.Off
)

// Chat begins the answer to a conversation, through the model's chat template or, when its file has none, a simple one.
// It does not wait for the answer, which ends early when ctx does.
func (m *Model) Chat(ctx context.Context, messages []Message, set Settings) (*Answer, error) {
	if err := m.usable(ctx); err != nil {
		return nil, err
	}
	p, err := m.prompt(ctx, messages, &set)
	if err != nil {
		return nil, public(cmp.Or(ctx.Err(), err))
	}
	if p.Thinking && set.Format.compile != nil {
		return nil, &FieldError{"Settings.Format", "the model's chat template always begins with reasoning"}
	}
	return m.answer(ctx, p, &set)
}

// Complete begins the continuation of a text. It does not wait for it. It ends early when ctx does.
func (m *Model) Complete(ctx context.Context, text string, set Settings) (*Answer, error) {
	if err := m.usable(ctx); err != nil {
		return nil, err
	}
	p, err := m.dialog.Format().Text(text, set.Raw, ctx.Done())
	if err != nil {
		return nil, public(cmp.Or(ctx.Err(), err))
	}
	return m.answer(ctx, p, &set)
}

// prompt turns a conversation into what the model reads.
func (m *Model) prompt(ctx context.Context, messages []Message, set *Settings) (*dialog.Prompt, error) {
	turns := make([]chat.Message, len(messages))
	for i := range messages {
		var err error
		if turns[i], err = messages[i].turn(fmt.Sprintf("messages[%d]", i)); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(messages[i].Parts, func(p Part) bool { return p.Image != nil }) &&
			m.dialog.Engine().Model().Vision == nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, ErrNoImages)
		}
	}
	opt := dialog.Options{Thinking: set.Thinking, Context: m.dialog.Engine().Config().Context, Done: ctx.Done()}
	if set.Format.compile != nil {
		if len(set.Tools) > 0 {
			return nil, &FieldError{"Settings.Format", "an answer in a format has no room for calls of tools; ask without Tools"}
		}
		no := false
		opt.Thinking = cmp.Or(set.Thinking, &no) // the format is that of the answer
	}
	if len(set.Tools) > 0 {
		t, err := m.dialog.Format().Template()
		if err != nil {
			return nil, err
		}
		if !t.Tools() {
			return nil, &FieldError{"Settings.Tools", "the model's chat template does not describe tools"}
		}
	}
	for i := range set.Tools {
		tool, err := set.Tools[i].describe(fmt.Sprintf("Settings.Tools[%d]", i))
		if err != nil {
			return nil, err
		}
		opt.Tools = append(opt.Tools, tool)
	}
	return m.dialog.Format().Chat(turns, opt)
}

func (m *Model) answer(ctx context.Context, p *dialog.Prompt, set *Settings) (*Answer, error) {
	spec := speculate.Options{Draft: set.Drafting.Draft, Max: set.Drafting.Max}
	if err := m.dialog.Engine().Model().Runner.Check(spec.Draft); err != nil {
		return nil, &FieldError{"Settings.Drafting.Draft", err.Error()}
	}
	how := dialog.Settings{Sampling: set.Sampling.params(), Drafting: spec, MaxTokens: set.MaxTokens, Stops: set.Stops,
		IgnoreEnd: set.IgnoreEnd}
	if set.Format.compile != nil {
		g, err := set.Format.compile()
		if err != nil {
			return nil, public(err)
		}
		how.Constraint = g.NewMatcher(m.vocab())
	}
	a, err := m.dialog.Answer(ctx, p, how)
	if err != nil {
		return nil, public(err)
	}
	return &Answer{of: a}, nil
}

// Embed returns the model's summary of each text: its last hidden state, scaled to length 1.
func (m *Model) Embed(ctx context.Context, texts ...string) ([][]float32, error) {
	if err := m.usable(ctx); err != nil {
		return nil, err
	}
	all := make([][]float32, len(texts))
	for i, text := range texts {
		p, err := m.dialog.Format().Text(text, false, ctx.Done())
		if err != nil {
			return nil, public(cmp.Or(ctx.Err(), err))
		}
		v, err := m.dialog.Engine().Embed(ctx, p.Tokens)
		if err != nil {
			return nil, fmt.Errorf("texts[%d]: %w", i, public(err))
		}
		var sum float64
		for _, x := range v {
			sum += float64(x) * float64(x)
		}
		if !(sum > 0) || math.IsInf(sum, 1) {
			return nil, fmt.Errorf("texts[%d]: %w", i, ErrNotFinite)
		}
		for j := range v {
			v[j] = float32(float64(v[j]) / math.Sqrt(sum))
		}
		all[i] = v
	}
	return all, nil
}

// Tokenize turns a text into the model's tokens, without those that only templates write.
func (m *Model) Tokenize(text string) ([]int32, error) {
	if err := m.usable(context.Background()); err != nil {
		return nil, err
	}
	return m.dialog.Engine().Model().Tokenizer.Encode(text, tokenizer.EncodeOptions{}), nil
}

// Detokenize turns tokens into text, control tokens included. Tokens the model does not have are an error.
func (m *Model) Detokenize(tokens []int32) (string, error) {
	if err := m.usable(context.Background()); err != nil {
		return "", err
	}
	tok := m.dialog.Engine().Model().Tokenizer
	var text bytes.Buffer
	for i, id := range tokens {
		if id < 0 || int(id) >= tok.Size() {
			return "", &FieldError{fmt.Sprintf("tokens[%d]", i), fmt.Sprintf("the model has no token %d", id)}
		}
		text.Write(tok.Piece(id, true))
	}
	return text.String(), nil
}

// CountTokens is how many tokens a conversation has as Chat would ask it: with the template, the tools and the images.
func (m *Model) CountTokens(ctx context.Context, messages []Message, set Settings) (int, error) {
	if err := m.usable(ctx); err != nil {
		return 0, err
	}
	p, err := m.prompt(ctx, messages, &set)
	if long := (*engine.ContextError)(nil); errors.As(err, &long) && long.Prompt > 0 {
		return long.Prompt, nil // a program counts in order to cut
	}
	if err != nil {
		return 0, public(cmp.Or(ctx.Err(), err))
	}
	return len(p.Tokens), nil
}

// Message is a turn of a conversation.
type Message struct {
	Role    string `json:"role"`              // system, user, assistant or tool
	Content string `json:"content,omitempty"` // its text
	Parts   []Part `json:"parts,omitempty"`   // in place of Content: text and images

	Reasoning  string     `json:"reasoning,omitempty"`    // of the assistant, before its text
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`   // of the assistant
	ToolCallID string     `json:"tool_call_id,omitempty"` // of a tool: the call that the text answers
	Name       string     `json:"name,omitempty"`         // of a tool: the function
}

// Part is a piece of a message: a text or an image.
type Part struct {
	Text  string `json:"text,omitempty"`
	Image []byte `json:"image,omitempty"` // a PNG, JPEG, GIF, WebP or BMP file. The model needs an image encoder
}

// turn is the message as the template reads it; at is its place, for errors.
func (m *Message) turn(at string) (chat.Message, error) {
	out := chat.Message{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, ToolCallID: m.ToolCallID, Name: m.Name}
	if m.Role == "" {
		return out, &FieldError{at + ".Role", "is missing; want system, user, assistant or tool"}
	}
	if len(m.Parts) > 0 {
		if m.Content != "" {
			return out, &FieldError{at, "has both Content and Parts"}
		}
		parts := make([]chat.Part, len(m.Parts))
		for i, p := range m.Parts {
			switch {
			case p.Image == nil:
				parts[i] = chat.Part{Type: "text", Text: p.Text}
			case p.Text != "":
				return out, &FieldError{fmt.Sprintf("%s.Parts[%d]", at, i), "has both Text and Image"}
			default:
				parts[i] = dialog.ImagePart(p.Image)
			}
		}
		out.Content = parts
	}
	for i, c := range m.ToolCalls {
		if len(c.Arguments) == 0 {
			c.Arguments = json.RawMessage("{}")
		}
		if !json.Valid(c.Arguments) {
			return out, &FieldError{fmt.Sprintf("%s.ToolCalls[%d].Arguments", at, i), "are not JSON"}
		}
		out.ToolCalls = append(out.ToolCalls, chat.ToolCall{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
	}
	return out, nil
}
