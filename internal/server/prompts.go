package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"

	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/tokenizer"
)

// textPrompt is one prompt of a completion.
type textPrompt struct {
	text   string
	tokens []int32
}

// maxPrompts is how many prompts a request may give, as at OpenAI.
const maxPrompts = 2048

// prompts reads a string, a list of strings, tokens, or a list of token lists.
func (v *view) prompts(ctx context.Context, name string, raw json.RawMessage) ([]textPrompt, error) {
	encode := func(s string) (textPrompt, error) {
		if err := v.format.Fits(len(s), v.engine.Config().Context); err != nil {
			return textPrompt{}, err
		}
		p, err := v.format.Text(s, true, ctx.Done())
		if err != nil {
			return textPrompt{}, err
		}
		return textPrompt{s, p.Tokens}, nil
	}
	decode := func(raw json.RawMessage, at string) (textPrompt, error) {
		if kindOf(raw) == "object" { // llama.cpp's way to send more than text
			var o struct {
				Text *string         `json:"prompt_string"`
				Data json.RawMessage `json:"multimodal_data"`
			}
			if err := decodeJSON(raw, at, &o); err != nil {
				return textPrompt{}, err
			}
			if o.Text == nil {
				return textPrompt{}, invalid(at+".prompt_string", "is missing")
			}
			if s := string(o.Data); kindOf(o.Data) != "null" && s != "[]" {
				return textPrompt{}, invalid(at+".multimodal_data", "is not supported; this server takes text only")
			}
			return encode(*o.Text)
		}
		if kindOf(raw) == "string" {
			var s string
			if err := decodeJSON(raw, at, &s); err != nil {
				return textPrompt{}, err
			}
			return encode(s)
		}
		ids, err := v.tokenList(raw, at)
		return textPrompt{"", ids}, err
	}
	switch kindOf(raw) {
	case "string", "object":
		p, err := decode(raw, name)
		return []textPrompt{p}, err
	case "array":
	case "null":
		return nil, invalid(name, "is missing")
	default:
		return nil, invalid(name, "must be a string, a list of strings or a list of tokens")
	}
	if first := bytes.TrimSpace(raw)[1:]; kindOf(first) == "number" &&
		!bytes.HasPrefix(bytes.TrimSpace(first), []byte("]")) {
		ids, err := v.tokenList(raw, name) // there may be millions, so they are read once
		return []textPrompt{{"", ids}}, err
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
	out := make([]textPrompt, len(list))
	for i, x := range list {
		var err error
		if out[i], err = decode(x, name+index(i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// tokenList reads token ids.
func (v *view) tokenList(raw json.RawMessage, at string) ([]int32, error) {
	if kindOf(raw) != "array" {
		return nil, invalid(at, "must be a string or a list of tokens")
	}
	// An id with its comma takes 32 bytes at most in any list worth reading; a list that must be too
	// long is refused unread.
	if n, limit := len(raw)/32, v.engine.Config().Context; n > limit {
		return nil, &engine.ContextError{Prompt: n, Context: limit}
	}
	var ids []int32
	if err := decodeJSON(raw, at, &ids); err != nil {
		return nil, err
	}
	for i, id := range ids {
		if id < 0 || int(id) >= v.tok.Size() {
			return nil, invalid(at+index(i), "%d is not the id of a token", id)
		}
	}
	return ids, nil
}

// fill is the prompt of what stands between two texts, for models that learnt it.
func (v *view) fill(prefix, suffix string, extra []infillFile, done <-chan struct{}) (textPrompt, error) {
	size := len(prefix) + len(suffix)
	for _, f := range extra {
		size += len(f.Name) + len(f.Text)
	}
	if err := v.format.Fits(size, v.engine.Config().Context); err != nil {
		return textPrompt{}, err
	}
	var ids []int32
	missing := false
	role := func(r tokenizer.Role) {
		id, ok := v.tok.Role(r)
		missing = missing || !ok
		ids = append(ids, id)
	}
	text := func(s string) { ids = v.tok.AppendEncode(ids, s, tokenizer.EncodeOptions{Done: done}) }
	if bos, ok := v.tok.BOS(); ok && v.tok.AddBOS() {
		ids = append(ids, bos)
	}
	if _, ok := v.tok.Role(tokenizer.RoleFIMSep); ok && len(extra) > 0 {
		if id, ok := v.tok.Role(tokenizer.RoleFIMRep); ok {
			ids = append(ids, id)
			text("project\n")
		}
		for _, f := range extra {
			role(tokenizer.RoleFIMSep)
			text(f.Name + "\n" + f.Text)
		}
		role(tokenizer.RoleFIMSep)
		text("file\n")
	} else {
		for _, f := range extra {
			text("--- " + f.Name + " ---\n" + f.Text + "\n\n")
		}
	}
	role(tokenizer.RoleFIMPre)
	text(prefix)
	role(tokenizer.RoleFIMSuf)
	text(suffix)
	role(tokenizer.RoleFIMMid)
	if missing {
		return textPrompt{}, fmt.Errorf("%w: it has no tokens for filling in the middle", engine.ErrUnsupported)
	}
	select {
	case <-done:
		return textPrompt{}, dialog.ErrStopped
	default:
		return textPrompt{"", ids}, nil
	}
}

// infillFile is a file that is not the one to be filled in.
type infillFile struct {
	Name string `json:"filename"`
	Text string `json:"text"`
}

// embeddingRequest is the body of POST /v1/embeddings.
type embeddingRequest struct {
	Model          string          `json:"model"`
	Input          json.RawMessage `json:"input"`
	EncodingFormat string          `json:"encoding_format"`
	Dimensions     *int            `json:"dimensions"`
}

type embeddingJSON struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"`
}

func (v *view) embed(r *http.Request, q *embeddingRequest) (data []embeddingJSON, tokens int, err error) {
	inputs, err := v.prompts(r.Context(), "input", q.Input)
	if err != nil {
		return nil, 0, err
	}
	if hidden := v.engine.Model().Target.Hidden; q.Dimensions != nil && *q.Dimensions != hidden {
		return nil, 0, invalid("dimensions", "this model has %d", hidden)
	}
	for i, in := range inputs {
		if len(in.tokens) == 0 {
			return nil, 0, invalid(fmt.Sprintf("input[%d]", i), "is empty")
		}
		x, err := v.engine.Embed(r.Context(), in.tokens)
		if err != nil {
			return nil, 0, err
		}
		normalise(x)
		e := embeddingJSON{Object: "embedding", Index: i, Embedding: x}
		if q.EncodingFormat == "base64" {
			b := make([]byte, 0, 4*len(x))
			for _, f := range x {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
			}
			e.Embedding = base64.StdEncoding.EncodeToString(b)
		}
		data = append(data, e)
		tokens += len(in.tokens)
	}
	return data, tokens, nil
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
