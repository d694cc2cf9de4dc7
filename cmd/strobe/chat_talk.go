package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"strobe/chat"
	"strobe/chat/parse"
	"strobe/engine"
	"strobe/sample"
	"strobe/speculate"
	"strobe/tokenizer"
)

// talk is a conversation with a model, apart from how it is shown.
type talk struct {
	engine   *engine.Engine
	opt      *chatOptions
	flags    *pflag.FlagSet
	template *chat.Template // nil: continue the text
	spec     speculate.Options
	think    *bool

	system   string
	messages []chat.Message // user and assistant in turn
	turns    int
	total    speculate.Stats
	last     speculate.Stats
	context  int // tokens of the conversation after the last answer
}

// piece is a part of an answer as it comes.
type piece struct {
	text      string
	reasoning bool
	drafted   bool
}

func newTalk(e *engine.Engine, cmd *cobra.Command, opt *chatOptions) (*talk, error) {
	t := &talk{engine: e, opt: opt, flags: cmd.Flags(), system: opt.system}
	var err error
	if t.spec, err = opt.modelFlags.spec(); err != nil {
		return nil, err
	}
	if _, err := t.params(); err != nil {
		return nil, usageError{err}
	}
	if src := e.Model().Template; src != "" && !opt.raw {
		if t.template, err = chat.ParseTemplate(e.Model().Path, src); err != nil {
			return nil, err
		}
	}
	if t.template == nil && opt.n == 0 {
		opt.n = 256
	}
	return t, nil
}

func (t *talk) model() *engine.Model { return t.engine.Model() }

// params are the sampling settings of the next turn.
func (t *talk) params() (sample.Params, error) {
	p := t.opt.Params
	p.Seed = uint64(t.opt.seed) + uint64(t.turns)
	if t.opt.seed < 0 {
		p.Seed = rand.Uint64()
	}
	return p, p.Validate()
}

// turn is an answer in progress.
type turn struct {
	talk   *talk
	gen    *engine.Generation
	parser *parse.Parser // nil: all text is the answer
	prompt int
	answer parse.Collector
	result *engine.Result
}

// say adds a message of the user and begins the answer. An error leaves the conversation as it was.
func (t *talk) say(ctx context.Context, text string) (*turn, error) {
	t.messages = append(t.messages, chat.Message{Role: "user", Content: text})
	u, err := t.begin(ctx)
	if err != nil {
		t.messages = t.messages[:len(t.messages)-1]
	}
	return u, err
}

// retry begins another answer to the last message.
func (t *talk) retry(ctx context.Context) (*turn, error) {
	n := len(t.messages)
	if n > 0 && t.messages[n-1].Role == "assistant" {
		n--
	}
	if n == 0 {
		return nil, errors.New("there is no message to answer")
	}
	t.messages = t.messages[:n]
	return t.begin(ctx)
}

func (t *talk) begin(ctx context.Context) (*turn, error) {
	params, err := t.params()
	if err != nil {
		return nil, err
	}
	u := &turn{talk: t}
	req := engine.Request{Params: params, Spec: t.spec, MaxTokens: t.opt.n}
	if t.template == nil {
		req.Tokens = t.model().Tokenizer.Encode(t.transcript(), tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: true})
	} else {
		text, err := t.render(true)
		if err != nil {
			return nil, err
		}
		req.Tokens = t.encode(text)
		req.KeepSpecial = true // the parser looks for them
		if before, err := t.render(false); err == nil {
			// Later turns may leave out the opening of the answer, and reasoning in it.
			req.Checkpoints = []int{commonPrefix(req.Tokens, t.encode(before))}
		}
		u.parser = parse.For(t.model().Template, nil, parse.ThinkingOpen(text))
	}
	u.prompt = len(req.Tokens)
	if u.gen, err = t.engine.Submit(ctx, req); err != nil {
		return nil, err
	}
	return u, nil
}

// transcript is the conversation as one text.
func (t *talk) transcript() string {
	var b strings.Builder
	b.WriteString(t.system)
	for i := range t.messages {
		b.WriteString(t.messages[i].Text())
	}
	return b.String()
}

// render gives the prompt for the conversation, with the opening of the answer or without.
func (t *talk) render(answer bool) (string, error) {
	msgs := t.messages
	if t.system != "" {
		msgs = append([]chat.Message{{Role: "system", Content: t.system}}, msgs...)
	}
	opt := chat.Options{AddGenerationPrompt: answer, EnableThinking: t.think}
	tok := t.model().Tokenizer
	if id, ok := tok.BOS(); ok {
		opt.BOS = tok.Text(id)
	}
	if id, ok := tok.EOS(); ok {
		opt.EOS = tok.Text(id)
	}
	return t.template.Render(msgs, opt)
}

// encode turns a rendered prompt into tokens. Some templates write the beginning-of-text token
// themselves, others leave it to the tokenizer.
func (t *talk) encode(text string) []int32 {
	tok := t.model().Tokenizer
	ids := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
	if bos, ok := tok.BOS(); ok && tok.AddBOS() && (len(ids) == 0 || ids[0] != bos) {
		ids = append([]int32{bos}, ids...)
	}
	return ids
}

func commonPrefix(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// next waits for more of the answer. After the last piece it returns io.EOF and the
// conversation has the answer, also when it was stopped half-way.
func (u *turn) next() ([]piece, error) {
	if u.result != nil {
		return nil, io.EOF
	}
	ev, err := u.gen.Next(context.Background())
	if err != nil {
		return nil, err
	}
	var ps []piece
	given := 0
	for _, tok := range ev.Tokens {
		ps = u.take(ps, string(tok.Text), tok.Drafted)
		given += len(tok.Text)
	}
	ps = u.take(ps, string(ev.Text[min(given, len(ev.Text)):]), false)
	if ev.Result != nil {
		if u.parser != nil {
			ps = u.events(ps, u.parser.Close(), false)
		}
		err = u.end(ev.Result)
	}
	return ps, err
}

func (u *turn) take(ps []piece, text string, drafted bool) []piece {
	switch {
	case text == "":
		return ps
	case u.parser == nil:
		return u.events(ps, []parse.Event{{Kind: parse.Content, Text: text}}, drafted)
	}
	return u.events(ps, u.parser.Push(text), drafted)
}

func (u *turn) events(ps []piece, evs []parse.Event, drafted bool) []piece {
	u.answer.Add(evs...)
	for _, e := range evs {
		if e.Text != "" {
			ps = append(ps, piece{e.Text, e.Kind == parse.Reasoning, drafted})
		}
	}
	return ps
}

// end adds the answer to the conversation.
func (u *turn) end(r *engine.Result) error {
	t := u.talk
	u.result = r
	t.last = r.Stats
	t.total.Add(r.Stats)
	t.context = u.prompt + r.Generated
	t.turns++
	a := u.answer.Result()
	t.messages = append(t.messages, chat.Message{Role: "assistant", Content: a.Content, Reasoning: a.Reasoning})
	if r.Reason == engine.ReasonError {
		return r.Err
	}
	return nil
}

// stop ends the answer soon; next returns what there is.
func (u *turn) stop() { u.gen.Cancel() }

// footer is the line of numbers after an answer.
func (u *turn) footer() string {
	st := &u.result.Stats
	s := summary(st)
	if st.Cached > 0 {
		s = fmt.Sprintf("%d tokens cached, ", st.Cached) + s
	}
	switch u.result.Reason {
	case engine.ReasonCancelled:
		s = "stopped; " + s
	case engine.ReasonLength:
		s = "cut at the limit of tokens; " + s
	}
	return s
}

// undo removes the last message of the user and its answer.
func (t *talk) undo() bool {
	n := len(t.messages)
	for n > 0 {
		n--
		if t.messages[n].Role == "user" {
			t.messages = t.messages[:n]
			return true
		}
	}
	return false
}

// conversation is the file that save writes.
type conversation struct {
	Messages []chat.Message `json:"messages"`
}

func (t *talk) saveFile(path string) error {
	c := conversation{Messages: t.messages}
	if t.system != "" {
		c.Messages = append([]chat.Message{{Role: "system", Content: t.system}}, c.Messages...)
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

// loadFile replaces the conversation. An error leaves it as it was.
func (t *talk) loadFile(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var c conversation
	if err := json.Unmarshal(b, &c); err != nil {
		if json.Unmarshal(b, &c.Messages) != nil { // a bare list will do
			return fmt.Errorf("%s: not a conversation: %w", path, err)
		}
	}
	system := ""
	if len(c.Messages) > 0 && c.Messages[0].Role == "system" {
		system = c.Messages[0].Text()
		c.Messages = c.Messages[1:]
	}
	for i := range c.Messages {
		if r := c.Messages[i].Role; r != "user" && r != "assistant" {
			return fmt.Errorf("%s: message %d has the role %q; chat knows user and assistant", path, i, r)
		}
	}
	t.system, t.messages = system, c.Messages
	return nil
}

// failure is why the answer failed, nil if it did not.
func (u *turn) failure() error {
	if u.result == nil || u.result.Reason != engine.ReasonError {
		return nil
	}
	return u.result.Err
}
