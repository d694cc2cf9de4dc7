// Package dialog turns what people and programs say into the tokens a model reads: messages go through the
// model's chat template, plain text stands for itself.
//
// One rule holds for everything built here: control tokens are the template's. <|im_end|> in a message, a
// tool's description or a text to be continued stands for its characters, never for the token that ends a turn.
// Only a text that is declared raw may contain control tokens, because its author takes the place of the template.
//
// A Model answers: it owns an engine and gives out what it says as Answers (answer.go).
//
// A Format belongs to one model and may be used by any goroutine.
package dialog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
	"strobe/internal/engine"
	"strobe/internal/pflash"
	"strobe/internal/tokenizer"
)

// Format is how one model converses.
type Format struct {
	BOS, EOS string // text of the tokens that templates may write

	model *engine.Model
	own   string                  // template in place of the file's; "" takes that
	load  func() (*format, error) // once, when a conversation needs it
}

// format is what conversations need besides the tokenizer.
type format struct {
	template *chat.Template
	control  []string // texts of the control tokens
	longest  int      // bytes of the longest token
	// keepControl: the markers of reasoning or calls are control tokens, which the parser has to see.
	keepControl bool
	harmony     bool  // the model speaks gpt-oss's format
	endMessage  int32 // token that ends a message there, not a turn; -1 elsewhere
}

// markers stand around reasoning and tool calls in answers.
var markers = []string{"<|channel>", "<channel|>", "<|tool_call>", "<think>", "</think>", "<tool_call>", "</tool_call>",
	"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "<|python_tag|>",
	"<|channel|>", "<|message|>"}

// For returns the format of a model. It uses the model's tokenizer and template only.
func For(m *engine.Model) *Format { return WithTemplate(m, "") }

// WithTemplate returns the format of a model with another template than its file's.
func WithTemplate(m *engine.Model, template string) *Format {
	f := &Format{model: m, own: template}
	if id, ok := m.Tokenizer.BOS(); ok {
		f.BOS = m.Tokenizer.Text(id)
	}
	if id, ok := m.Tokenizer.EOS(); ok {
		f.EOS = m.Tokenizer.Text(id)
	}
	f.load = sync.OnceValues(func() (*format, error) { return load(m, f.source()) })
	return f
}

// source is the text of the template; "" if the model has none.
func (f *Format) source() string { return cmp.Or(f.own, f.model.Template) }

func load(m *engine.Model, template string) (*format, error) {
	f := &format{harmony: parse.Harmony(template), endMessage: -1}
	var err error
	if f.template, err = chat.ForModel(template); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Path, err)
	}
	for id := range tokenizer.ID(m.Tokenizer.Size()) {
		piece := m.Tokenizer.Piece(id, true)
		f.longest = max(f.longest, len(piece))
		if m.Tokenizer.Kind(id) == tokenizer.Control && len(piece) > 0 {
			f.control = append(f.control, string(piece))
			if f.harmony && string(piece) == parse.HarmonyEnd {
				f.endMessage = id
			}
		}
	}
	for _, s := range markers {
		f.keepControl = f.keepControl || strings.Contains(f.template.Source(), s) && slices.Contains(f.control, s)
	}
	return f, nil
}

// Template returns the model's chat template, or a plain one when its file has none. It fails when the file's cannot
// be read.
func (f *Format) Template() (*chat.Template, error) {
	x, err := f.load()
	if err != nil {
		return nil, err
	}
	return x.template, nil
}

// Converses reports whether the model's file has a chat template.
func (f *Format) Converses() bool { return f.source() != "" }

// Options of one prompt. The zero value lets the template decide.
type Options struct {
	System   string            // said first in conversations without a message of the system
	Tools    []json.RawMessage // in OpenAI's shape
	Thinking *bool             // nil leaves it to the template
	Extra    map[string]any    // more variables of the template
	Whole    bool              // leave reasoning and tool calls in the text of the answer
	Context  int               // most tokens of a prompt, the answer included; 0 means no limit here
	// Continue: an assistant's message at the end is continued (nil and true), or one that is complete.
	Continue *bool
	NoTurn   bool // do not open the assistant's turn
	// ImageRows is how many tokens an image may have; 0 leaves it to the image's detail and the model. Fetch gets images
	// at URLs that are no data URLs; nil refuses them.
	ImageRows int
	Fetch     func(url string) ([]byte, error)
	Done      <-chan struct{} // ends the work with ErrStopped when it is closed; nil never does
}

// ErrStopped is the error of a prompt that is no longer wanted: Options.Done was closed.
var ErrStopped = errors.New("the prompt is not wanted any more")

// stopped is what is wrong with a prompt that was made while done may have been closed: it may lack its end.
func stopped(done <-chan struct{}) error {
	select {
	case <-done:
		return ErrStopped
	default:
		return nil
	}
}

// Prompt is what a model is to go on from.
type Prompt struct {
	Text   string
	Tokens []int32
	Images []engine.Image // whose rows are among the tokens
	// Thinking: it ends inside an open block of reasoning.
	Thinking bool
	// Shortened is what was left out of it before, and how long that took. Its counts are the scorer's.
	Shortened pflash.Report

	tok    *tokenizer.Tokenizer
	format *format // nil for text to be continued
	tools  []json.RawMessage
	whole  bool
}

// Text returns the prompt of a text that is to be continued. Raw text may contain control tokens. Its only
// error is ErrStopped, when done is closed.
func (f *Format) Text(text string, raw bool, done <-chan struct{}) (*Prompt, error) {
	return f.text(text, raw, Options{Done: done})
}

func (f *Format) text(text string, raw bool, o Options) (*Prompt, error) {
	var p Prompt
	var err error
	if !raw || !f.hasControls(text, o.Done) { // control tokens give a prompt a form that must stay whole
		if text, p.Shortened, err = f.shortenText(text, o); err != nil {
			return nil, err
		}
	}
	opt := tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: raw, Done: o.Done}
	p.Text, p.Tokens = text, f.model.Tokenizer.Encode(text, opt)
	return &p, stopped(o.Done)
}

// Prompt returns the prompt for an answer, or, when it is to be raw or the model has no chat template, for a
// continuation of what the messages say.
func (f *Format) Prompt(msgs []chat.Message, raw bool, o Options) (*Prompt, error) {
	if !raw && f.Converses() {
		return f.Chat(msgs, o)
	}
	var text strings.Builder
	for i := range msgs {
		parts, _ := msgs[i].Content.([]chat.Part)
		if slices.ContainsFunc(parts, func(p chat.Part) bool { return isImage(&p) }) {
			return nil, fmt.Errorf("images need the chat template of a model; a text that is continued has none")
		}
		text.WriteString(msgs[i].Text())
	}
	return f.text(text.String(), raw, o)
}

// Chat returns the prompt for an answer to a conversation. A conversation that ends with the assistant is to be
// continued there, unless Options say otherwise. Errors are *engine.ContextError, ErrStopped or the template's.
func (f *Format) Chat(msgs []chat.Message, o Options) (*Prompt, error) {
	x, err := f.load()
	if err != nil {
		return nil, err
	}
	shown := map[string]bool{}
	for i := range msgs {
		role := msgs[i].Role
		if !shown[role] && !x.template.Shows(role) {
			return nil, &chat.FieldError{Field: fmt.Sprintf("messages[%d].role", i),
				Msg: fmt.Sprintf("the model's template does not know %q", role)}
		}
		shown[role] = true
	}
	msgs, images, err := f.takeImages(msgs, &o)
	if err != nil {
		return nil, err
	}
	system := func(m chat.Message) bool { return m.Role == "system" || m.Role == "developer" }
	if o.System != "" && !slices.ContainsFunc(msgs, system) {
		msgs = append([]chat.Message{{Role: "system", Content: o.System}}, msgs...)
	}
	msgs, short, err := f.shorten(msgs, o)
	if err != nil {
		return nil, err
	}
	size := 0
	for i := range msgs {
		size += messageSize(&msgs[i])
	}
	for _, t := range o.Tools {
		size += len(t)
	}
	// Whatever its tokens, it may be too long. It is counted all the same: clients cut by how much it is.
	long := o.Context > 0 && size/max(x.longest, 1) >= o.Context && !f.model.Prefill.Active()
	opt := chat.Options{
		Tools: o.Tools, AddGenerationPrompt: !o.NoTurn, EnableThinking: o.Thinking, Extra: o.Extra,
		BOS: f.BOS, EOS: f.EOS, Done: o.Done,
	}
	continued, opens := "", "" // opens is what follows the template's text
	if x.harmony {
		if opt.Extra, err = harmonyEffort(o.Extra); err != nil {
			return nil, err
		}
		if o.Thinking != nil && !*o.Thinking && !o.NoTurn { // it has thought already, as far as it can tell
			opens = parse.HarmonyThink + parse.HarmonyEnd + parse.HarmonyTurn
		}
	}
	continueLast := o.Continue == nil || *o.Continue
	if n := len(msgs); continueLast && n > 1 && msgs[n-1].Role == "assistant" && len(msgs[n-1].ToolCalls) == 0 {
		opt.AddGenerationPrompt = true // the turn that the message is in
		continued = msgs[n-1].Text()
		if x.harmony {
			opens = parse.HarmonyAnswer
		}
		msgs = msgs[:n-1]
		if opt.EnableThinking == nil && x.template.Thinking() {
			off := false
			opt.EnableThinking = &off
		}
	}
	tok := f.model.Tokenizer
	render := func(msgs []chat.Message) (text string, ids []int32, err error) {
		text, plain, err := x.template.RenderMarked(msgs, opt, x.control)
		if stop := stopped(o.Done); stop != nil {
			return "", nil, stop // whatever the template says of it, or found in it
		}
		if err != nil {
			return "", nil, err
		}
		text += opens
		plain = append(plain, spoken(text+continued, len(text))...)
		text += continued
		return text, encode(tok, text, plain, o.Done), stopped(o.Done)
	}
	text, ids, err := render(msgs)
	if n := len(images.images); n > 0 {
		if images.tool && (err != nil || f.pads(ids) != n) && !errors.Is(err, ErrStopped) {
			text, ids, err = render(fromTools(msgs))
		}
		if err == nil && f.pads(ids) != n {
			err = &chat.FieldError{Field: images.fields[0], Msg: "the model's chat template shows no images in such a message"}
		}
		if err == nil {
			ids = images.place(f.model.Vision, ids)
		}
	}
	if err != nil && long && !errors.Is(err, ErrStopped) {
		return nil, &engine.ContextError{Context: o.Context}
	}
	if err != nil {
		return nil, err
	}
	if long {
		return nil, &engine.ContextError{Prompt: len(ids), Context: o.Context}
	}
	return &Prompt{Text: text, Tokens: ids, Images: images.images, Thinking: parse.ThinkingOpen(text),
		Shortened: short, tok: tok, format: x, tools: o.Tools, whole: o.Whole}, nil
}

// Placeholder stands in the result of a tool for a part that the model cannot read.
func Placeholder(kind string) string {
	for _, known := range []string{"image", "audio", "video", "file", "document"} {
		if strings.Contains(kind, known) {
			return "[" + known + " left out: this model reads text only]"
		}
	}
	return "[content left out: this model reads text only]"
}

// spoken is the range of the beginning of an answer, without the markers in it: those the model wrote itself.
func spoken(text string, start int) (spans []chat.Span) {
	end := start
	for end < len(text) {
		n := 0
		for _, m := range markers {
			if strings.HasPrefix(text[end:], m) {
				n = len(m)
			}
		}
		if n > 0 {
			spans = append(spans, chat.Span{Start: start, End: end})
			start = end + n
		}
		end += max(n, 1)
	}
	return append(spans, chat.Span{Start: start, End: end})
}

// encode turns a rendered prompt into tokens. Plain are the places where control tokens
// would be the conversation's and not the template's.
func encode(tok *tokenizer.Tokenizer, text string, plain []chat.Span, done <-chan struct{}) []int32 {
	control, words := tokenizer.EncodeOptions{ParseSpecial: true, Done: done}, tokenizer.EncodeOptions{Done: done}
	var ids []int32
	at := 0
	for _, s := range plain {
		ids = tok.AppendEncode(ids, text[at:s.Start], control)
		ids = tok.AppendEncode(ids, text[s.Start:s.End], words)
		at = s.End
	}
	ids = tok.AppendEncode(ids, text[at:], control)
	// Some templates write the beginning-of-text token themselves, others leave it to the tokenizer.
	if bos, ok := tok.BOS(); ok && tok.AddBOS() && (len(ids) == 0 || ids[0] != bos) {
		ids = append([]int32{bos}, ids...)
	}
	return ids
}

// messageSize is how much text a message adds to the prompt at least; templates may leave out reasoning.
func messageSize(m *chat.Message) int {
	size := 0
	for _, c := range m.ToolCalls {
		size += len(c.Arguments)
	}
	switch c := m.Content.(type) {
	case string:
		size += len(c)
	case []chat.Part:
		for _, p := range c {
			size += len(p.Text)
		}
	}
	return size
}

// Request adds the prompt to a request.
func (p *Prompt) Request(req engine.Request) engine.Request {
	req.Tokens, req.Images = p.Tokens, p.Images
	if p.Shortened.Changed() {
		req.Seen = len(p.Tokens) + p.Shortened.Seen - p.Shortened.Kept
	}
	if p.format == nil {
		return req
	}
	req.KeepSpecial = p.format.keepControl && (!p.whole || p.format.harmony)
	for i, id := range p.Tokens { // later prompts may differ after the end of any turn
		if p.tok.IsEOG(id) || id == p.format.endMessage {
			req.Checkpoints = append(req.Checkpoints, i+1)
		}
	}
	return req
}

// Parser takes answers to the prompt apart; nil when all their text is the answer.
func (p *Prompt) Parser() *parse.Parser {
	if p.format == nil || p.whole {
		return nil
	}
	return parse.For(p.format.template.Source(), p.tools, p.Thinking)
}
