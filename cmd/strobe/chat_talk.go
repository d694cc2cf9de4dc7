package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/platform"
	"strobe/internal/speculate"
)

// talk is a conversation with a model, apart from how it is shown.
type talk struct {
	*dialog.Model
	opt   *chatOptions
	flags *pflag.FlagSet
	spec  speculate.Options
	think *bool

	system   string
	messages []chat.Message // user and assistant in turn
	images   []chat.Part    // for the next message
	turns    int
	total    speculate.Stats
	last     speculate.Stats
	context  int // tokens of the conversation after the last answer
}

func newTalk(m *dialog.Model, cmd *cobra.Command, opt *chatOptions) (*talk, error) {
	t := &talk{Model: m, opt: opt, flags: cmd.Flags(), system: opt.system}
	var err error
	if t.spec, err = opt.modelFlags.spec(); err != nil {
		return nil, err
	}
	if _, err := opt.params(0); err != nil {
		return nil, err
	}
	if opt.n < 0 {
		return nil, usagef("--predict %d: want 0 or more", opt.n)
	}
	return t, t.check(m)
}

// check reports what is wrong with a model's chat template, if it is to be used.
func (t *talk) check(m *dialog.Model) error {
	if t.opt.raw || !m.Format().Converses() {
		return nil
	}
	_, err := m.Format().Template()
	return err
}

// switchTo goes on with another model. If that cannot be loaded the old one stays; until then both are in memory.
func (t *talk) switchTo(name string) error {
	flags := t.opt.modelFlags
	// What belongs to the old one fits no other.
	flags.model, flags.drafter, flags.moreDrafters, flags.mmproj = name, "", nil, ""
	m, err := flags.load()
	if err != nil {
		return err
	}
	next := dialog.New(m, t.opt.config(m))
	if err := t.check(next); err != nil {
		next.Close()
		return err
	}
	old := t.Model
	t.Model, t.opt.modelFlags = next, flags
	t.images, t.context = nil, 0
	return old.Close()
}

// continues reports whether the model goes on with the text instead of answering.
func (t *talk) continues() bool { return t.opt.raw || !t.Format().Converses() }

func (t *talk) model() *engine.Model { return t.Engine().Model() }

// turn is an answer in progress.
type turn struct {
	*dialog.Answer
	talk  *talk
	ended bool
}

// say adds a message of the user and begins the answer. An error leaves the conversation as it was.
func (t *talk) say(ctx context.Context, text string) (*turn, error) {
	m := chat.Message{Role: "user", Content: text}
	if len(t.images) > 0 {
		m.Content = append(slices.Clone(t.images), chat.Part{Type: "text", Text: text})
	}
	t.messages = append(t.messages, m)
	u, err := t.begin(ctx)
	if err != nil {
		t.messages = t.messages[:len(t.messages)-1]
		return u, err
	}
	t.images = nil
	return u, nil
}

// show adds an image to the next message.
func (t *talk) show(path string) error {
	if t.model().Vision == nil {
		return engine.ErrNoVision
	}
	if t.continues() {
		return errors.New("images need a model with a chat template")
	}
	p, err := imageOf(path)
	if err == nil {
		t.images = append(t.images, p)
	}
	return err
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
	set := dialog.Settings{Drafting: t.spec, MaxTokens: t.opt.n}
	if t.opt.n == 0 && t.continues() {
		set.MaxTokens = continued
	}
	var err error
	if set.Sampling, err = t.opt.params(t.turns); err != nil {
		return nil, err
	}
	p, err := t.Format().Prompt(t.all(), t.opt.raw, dialog.Options{Thinking: t.think,
		Context: t.Engine().Config().Context, Done: ctx.Done()})
	if err != nil {
		return nil, err
	}
	a, err := t.Answer(ctx, p, set)
	return &turn{Answer: a, talk: t}, err
}

// all is the conversation with its system message.
func (t *talk) all() []chat.Message {
	if t.system == "" {
		return t.messages
	}
	return append([]chat.Message{{Role: "system", Content: t.system}}, t.messages...)
}

// next waits for more of the answer. After the last piece it returns io.EOF and the
// conversation has the answer, also when it was stopped half-way.
func (u *turn) next() ([]dialog.Piece, error) {
	ps, err := u.Next()
	if r := u.Result(); r != nil && !u.ended {
		u.ended = true
		t := u.talk
		t.last = r.Stats
		t.total.Add(r.Stats)
		t.context = r.Prompt + r.Generated
		t.turns++
		t.messages = append(t.messages, u.Message())
	}
	return ps, err
}

// footer is the line of numbers after an answer.
func (u *turn) footer() string {
	st := &u.Result().Stats
	s := summary(st, len(u.talk.model().Drafters()) > 0 && u.talk.spec.Draft != speculate.Off)
	s = shortened(u.Result()) + s
	if st.Cached > 0 {
		s = count(st.Cached, "token") + " cached, " + s
	}
	switch u.Result().Reason {
	case engine.ReasonCancelled:
		s = "stopped; " + s
	case engine.ReasonLength:
		s = cutNote(u.Result(), u.talk.Engine()) + "; " + s
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
	b, err := json.MarshalIndent(conversation{t.all()}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

// loadFile replaces the conversation. An error leaves it as it was.
func (t *talk) loadFile(path string) error {
	b, err := platform.ReadFile(path, maxInput)
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
	if r := u.Result(); r != nil && r.Reason == engine.ReasonError {
		return r.Err
	}
	return nil
}
