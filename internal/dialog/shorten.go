package dialog

import (
	"context"
	"encoding/json"
	"slices"

	"strobe/internal/chat"
	"strobe/internal/pflash"
	"strobe/internal/tokenizer"
)

// limit is how many tokens of contents leave room for an answer in the context, and for what the template adds.
func (o *Options) limit(messages int) int {
	if o.Context == 0 {
		return 0
	}
	const (
		answer = 1024 // tokens, or a quarter of a short context
		frame  = 8    // around each message
	)
	n := o.Context - min(answer, o.Context/4) - frame*messages
	for _, t := range o.Tools {
		n -= len(t) / 3 // bytes of JSON to a token, or a few more
	}
	return max(1, n)
}

// waiting is a context that ends when done is closed.
func waiting(done <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	if done != nil {
		go func() {
			select {
			case <-done:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// hasControls reports whether control tokens are in a text that is to be parsed for them. Where prompts are not
// shortened it does not look.
func (f *Format) hasControls(text string, done <-chan struct{}) bool {
	tok := f.model.Tokenizer
	return f.model.Prefill.Active() &&
		slices.ContainsFunc(tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true, Done: done}),
			func(id int32) bool { return tok.Kind(id) == tokenizer.Control })
}

// shortenText leaves parts of a text out, if the model was loaded to do so.
func (f *Format) shortenText(text string, o Options) (string, pflash.Report, error) {
	if !f.model.Prefill.Active() {
		return text, pflash.Report{}, nil
	}
	ctx, cancel := waiting(o.Done)
	defer cancel()
	text, r, err := f.model.Prefill.Text(ctx, text, o.limit(0))
	if err != nil {
		err = ErrStopped
	}
	return text, r, err
}

// shorten leaves parts of messages out, if the model was loaded to do so. Roles, calls and everything but text stay.
func (f *Format) shorten(msgs []chat.Message, o Options) ([]chat.Message, pflash.Report, error) {
	if !f.model.Prefill.Active() {
		return msgs, pflash.Report{}, nil
	}
	list := make([]pflash.Message, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		// What else is in the message, and that it is not text that another message has.
		more, err := json.Marshal([]any{m.Reasoning, m.ToolCalls, m.ToolCallID, m.Name})
		if err != nil {
			return nil, pflash.Report{}, err
		}
		list[i] = pflash.Message{Role: m.Role, Text: m.Text(), More: string(more)}
		// The last one may have to be continued. A message with an image stays as it is: what is said refers to it.
		parts, _ := m.Content.([]chat.Part)
		list[i].Fixed = i == len(msgs)-1 && m.Role == "assistant" ||
			slices.ContainsFunc(parts, func(p chat.Part) bool { return !p.IsText() })
	}
	ctx, cancel := waiting(o.Done)
	defer cancel()
	turn, r, err := f.model.Prefill.Messages(ctx, list, o.limit(len(msgs)))
	if err != nil {
		return nil, r, ErrStopped
	}
	out := slices.Clone(msgs)
	for i, text := range turn.Texts {
		if text != list[i].Text {
			out[i].Content = text
		}
	}
	return out, r, nil
}
