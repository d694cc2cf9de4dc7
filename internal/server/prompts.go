package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"

	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/tokenizer"
)

// maxPrompts is how many prompts a request may give, as at OpenAI.
const maxPrompts = 2048

// textPrompt returns the prompt of a text that is continued as it is, without the template.
func (m *model) textPrompt(text string, done <-chan struct{}) (*dialog.Prompt, error) {
	return m.format.Text(text, true, done)
}

// prompts reads a string, a list of strings, tokens, or a list of token lists. A list of both tokens and strings is one
// prompt, as at llama.cpp.
func (m *model) prompts(ctx context.Context, name string, raw json.RawMessage) ([]*dialog.Prompt, error) {
	tokens := func(raw json.RawMessage, at string) (*dialog.Prompt, error) {
		ids, err := m.tokenList(raw, at)
		return &dialog.Prompt{Tokens: ids}, err
	}
	decode := func(raw json.RawMessage, at string) (*dialog.Prompt, error) {
		if kindOf(raw) == "object" { // llama.cpp's way to send more than text
			var o struct {
				Text *string  `json:"prompt_string"`
				Data []string `json:"multimodal_data"`
			}
			if err := decodeJSON(raw, at, &o); err != nil {
				return nil, err
			}
			if o.Text == nil {
				return nil, invalid(at+".prompt_string", "is missing")
			}
			if len(o.Data) > 0 {
				return m.mediaPrompt(ctx, *o.Text, o.Data, at)
			}
			return m.textPrompt(*o.Text, ctx.Done())
		}
		if kindOf(raw) == "string" {
			var s string
			if err := decodeJSON(raw, at, &s); err != nil {
				return nil, err
			}
			return m.textPrompt(s, ctx.Done())
		}
		if kindOf(raw) == "array" {
			if p, err := m.mixedPrompt(raw, at, ctx.Done()); p != nil || err != nil {
				return p, err
			}
		}
		return tokens(raw, at)
	}
	switch kindOf(raw) {
	case "string", "object":
		p, err := decode(raw, name)
		return []*dialog.Prompt{p}, err
	case "array":
	case "null":
		return nil, invalid(name, "is missing")
	default:
		return nil, invalid(name, "must be a string, a list of strings or a list of tokens")
	}
	if first := bytes.TrimSpace(raw)[1:]; kindOf(first) == "number" &&
		!bytes.HasPrefix(bytes.TrimSpace(first), []byte("]")) {
		p, err := decode(raw, name)
		return []*dialog.Prompt{p}, err
	}
	var list []json.RawMessage
	if err := decodeJSON(raw, name, &list); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, invalid(name, "is empty")
	}
	if len(list) > maxPrompts {
		return nil, invalid(name, "has %d entries; at most %d are allowed", len(list), maxPrompts)
	}
	if p, err := m.mixedPrompt(raw, name, ctx.Done()); p != nil || err != nil {
		return []*dialog.Prompt{p}, err
	}
	out := make([]*dialog.Prompt, len(list))
	for i, x := range list {
		var err error
		if out[i], err = decode(x, name+index(i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// mixedPrompt reads a list of tokens and strings, at least one of each; nil for anything else. Strings may contain
// control tokens, as in prompts that are one string.
func (m *model) mixedPrompt(raw json.RawMessage, at string, done <-chan struct{}) (*dialog.Prompt, error) {
	if !bytes.ContainsRune(raw, '"') {
		return nil, nil // there may be millions of tokens; they are read once
	}
	var list []json.RawMessage
	if err := decodeJSON(raw, at, &list); err != nil {
		return nil, err
	}
	numbers, strings := 0, 0
	for _, x := range list {
		switch kindOf(x) {
		case "number":
			numbers++
		case "string":
			strings++
		}
	}
	if numbers == 0 || strings == 0 || numbers+strings < len(list) {
		return nil, nil
	}
	p := &dialog.Prompt{}
	for i, x := range list {
		var text string
		var id int32
		if kindOf(x) == "number" {
			if err := decodeJSON(x, at+index(i), &id); err != nil {
				return nil, err
			}
			if err := m.checkTokens([]int32{id}, at+index(i)); err != nil {
				return nil, err
			}
			p.Tokens = append(p.Tokens, id)
			continue
		}
		if err := decodeJSON(x, at+index(i), &text); err != nil {
			return nil, err
		}
		opt := tokenizer.EncodeOptions{AddSpecial: i == 0, ParseSpecial: true, Continue: i > 0, Done: done}
		p.Tokens = m.tok.AppendEncode(p.Tokens, text, opt)
	}
	select {
	case <-done:
		return nil, dialog.ErrStopped
	default:
		return p, nil
	}
}

// tokenList reads token ids.
func (m *model) tokenList(raw json.RawMessage, at string) ([]int32, error) {
	if kindOf(raw) != "array" {
		return nil, invalid(at, "must be a string or a list of tokens")
	}
	// An id with its comma takes 32 bytes at most in any list worth reading; a list that must be too
	// long is refused unread.
	if limit := m.engine.Config().Context; len(raw)/32 > limit {
		return nil, &engine.ContextError{Prompt: bytes.Count(raw, []byte(",")) + 1, Context: limit}
	}
	var ids []int32
	if err := decodeJSON(raw, at, &ids); err != nil {
		return nil, err
	}
	return ids, m.checkTokens(ids, at)
}

// checkTokens makes sure that all ids are those of tokens.
func (m *model) checkTokens(ids []int32, at string) error {
	for i, id := range ids {
		if id < 0 || int(id) >= m.tok.Size() {
			return invalid(at+index(i), "%d is not the id of a token", id)
		}
	}
	return nil
}

// fill returns the prompt of what stands between two texts, for models that were trained for it.
func (m *model) fill(prefix, suffix string, extra []infillFile, done <-chan struct{}) (*dialog.Prompt, error) {
	var ids []int32
	missing := !m.fills
	role := func(r tokenizer.Role) {
		id, ok := m.tok.Role(r)
		missing = missing || !ok
		ids = append(ids, id)
	}
	text := func(s string) { ids = m.tok.AppendEncode(ids, s, tokenizer.EncodeOptions{Done: done}) }
	if bos, ok := m.tok.BOS(); ok && m.tok.AddBOS() {
		ids = append(ids, bos)
	}
	if _, ok := m.tok.Role(tokenizer.RoleFIMSep); ok && len(extra) > 0 {
		if id, ok := m.tok.Role(tokenizer.RoleFIMRep); ok {
			ids = append(ids, id)
			text("project\n")
		}
		for _, f := range extra {
			role(tokenizer.RoleFIMSep)
			text(*f.Name + "\n" + *f.Text)
		}
		role(tokenizer.RoleFIMSep)
		text("file\n")
	} else {
		for _, f := range extra {
			text("--- " + *f.Name + " ---\n" + *f.Text + "\n\n")
		}
	}
	role(tokenizer.RoleFIMPre)
	text(prefix)
	role(tokenizer.RoleFIMSuf)
	text(suffix)
	role(tokenizer.RoleFIMMid)
	if missing {
		return nil, fmt.Errorf("%w: the model was not trained for filling in the middle", engine.ErrUnsupported)
	}
	select {
	case <-done:
		return nil, dialog.ErrStopped
	default:
		return &dialog.Prompt{Tokens: ids}, nil
	}
}

// infillFile is a file that is not the one to be filled in.
type infillFile struct {
	Name *string `json:"filename"`
	Text *string `json:"text"`
}

// embed returns the vectors of texts or lists of tokens, each of length 1, and how many tokens they have. truncate cuts
// those that do not fit into the context.
func (m *lease) embed(ctx context.Context, input json.RawMessage, dimensions *int, truncate bool) (
	out [][]float32, tokens int, err error) {
	inputs, err := m.prompts(ctx, "input", input)
	if err != nil {
		return nil, 0, err
	}
	hidden := m.engine.Model().Target.Hidden
	if dimensions != nil && (*dimensions < 1 || *dimensions > hidden) {
		return nil, 0, invalid("dimensions", "%d is not between 1 and the %d that this model has", *dimensions, hidden)
	}
	for i, in := range inputs {
		if len(in.Tokens) == 0 {
			return nil, 0, invalid("input"+index(i), "is empty")
		}
		if len(in.Images) > 0 {
			return nil, 0, invalid("input"+index(i), "has images; embeddings are made of text")
		}
		if n := m.engine.Config().Context; truncate && len(in.Tokens) > n {
			in.Tokens = in.Tokens[:n]
		}
		x, err := m.engine.Embed(ctx, in.Tokens)
		if err != nil {
			return nil, 0, err
		}
		if dimensions != nil { // the first ones, which are made to be of use alone where a model has such
			x = x[:*dimensions]
		}
		normalise(x)
		out = append(out, x)
		tokens += len(in.Tokens)
	}
	m.core.metrics.embedded(m.name, len(out), tokens)
	return out, tokens, nil
}

// normalise makes a vector's length 1. JSON has no words for what is not a number, so such values
// become 0.
func normalise(x []float32) {
	var sum float64
	for i, f := range x {
		if f != f || math.IsInf(float64(f), 0) {
			x[i] = 0
		}
		sum += float64(x[i]) * float64(x[i])
	}
	if sum > 0 {
		scale := float32(1 / math.Sqrt(sum))
		for i := range x {
			x[i] *= scale
		}
	}
}
