package strobe

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"time"

	"strobe/internal/dialog"
)

// Piece is a part of an answer as it comes.
type Piece struct {
	Text      string // whole characters
	Reasoning bool   // it is not part of the answer's text
	Drafted   bool   // it was drafted and accepted
}

// Answer is what a model says. One goroutine reads it, with Pieces, Next or Wait; Stop may be called from any. Its text
// is kept, so a slow reader holds up nothing, and an answer that is not read ends by itself.
type Answer struct {
	of *dialog.Answer
}

// Pieces reads the answer as it comes. An error is the last thing it yields; an answer that ended as it should has
// none. Leaving the loop early stops the answer.
func (a *Answer) Pieces() iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		for {
			pieces, err := a.Next()
			for _, p := range pieces {
				if !yield(p, nil) {
					a.Stop()
					return
				}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					yield(Piece{}, err)
				}
				return
			}
		}
	}
}

// Next waits for more of the answer. After the last piece it returns io.EOF, also when Stop ended it, or why the answer
// failed; what was said until then stays.
func (a *Answer) Next() ([]Piece, error) {
	if a == nil || a.of == nil {
		return nil, io.EOF
	}
	pieces, err := a.of.Next()
	var out []Piece
	for _, p := range pieces {
		out = append(out, Piece{p.Text, p.Reasoning, p.Drafted})
	}
	return out, public(err)
}

// Wait reads the answer to its end.
func (a *Answer) Wait() error {
	for _, err := range a.Pieces() {
		if err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the answer soon. It does not wait.
func (a *Answer) Stop() {
	if a != nil && a.of != nil {
		a.of.Stop()
	}
}

// Text is the answer so far, without reasoning and tool calls.
func (a *Answer) Text() string {
	if a == nil || a.of == nil {
		return ""
	}
	return a.of.Text()
}

// Message is the answer so far as the next message of the conversation, with reasoning and tool calls.
func (a *Answer) Message() Message {
	if a == nil || a.of == nil {
		return Message{Role: "assistant"}
	}
	said := a.of.Message()
	m := Message{Role: "assistant", Content: said.Text(), Reasoning: said.Reasoning}
	for _, c := range said.ToolCalls {
		arguments := json.RawMessage(c.ArgumentsText())
		if !json.Valid(arguments) { // a call that was cut off
			arguments, _ = json.Marshal(string(arguments)) // strings always can be written
		}
		m.ToolCalls = append(m.ToolCalls, ToolCall{ID: c.ID, Name: c.Name, Arguments: arguments})
	}
	return m
}

// Reason says why an answer ended.
type Reason string

// The reasons.
const (
	ReasonEnd       Reason = "eog"       // the model ended its turn
	ReasonStop      Reason = "stop"      // the text reached one of Settings.Stops
	ReasonLength    Reason = "length"    // Settings.MaxTokens, or the context is full
	ReasonCancelled Reason = "cancelled" // the context ended, Stop was called, or the model was closed
	ReasonError     Reason = "error"     // see Result.Err
)

// Result is how an answer ended.
type Result struct {
	Reason Reason
	Stop   string // the stop that ended the text
	Err    error  // why it failed or was cancelled; nil otherwise

	PromptTokens int // of the prompt
	CachedTokens int // of them, computed before for another prompt
	Tokens       int // generated, the end of the turn included
	Passes       int // of the model that generated: fewer than tokens where drafts were right
	Drafted      int // tokens that were drafted and verified
	Accepted     int // of them, right

	Queued time.Duration // until a place was free
	First  time.Duration // until the first token; 0 without one
	Total  time.Duration
	Speed  float64 // generated tokens per second, after the first
}

// Result is how the answer ended, nil before it has.
func (a *Answer) Result() *Result {
	if a == nil || a.of == nil || a.of.Result() == nil {
		return nil
	}
	r := a.of.Result()
	return &Result{Reason: Reason(r.Reason.String()), Stop: r.Stop, Err: public(r.Err),
		PromptTokens: r.Prompt, CachedTokens: r.Cached, Tokens: r.Generated, Passes: r.Stats.Rounds,
		Drafted: r.Stats.Guessed, Accepted: r.Stats.Accepted,
		Queued: r.Queued, First: r.First, Total: r.Total, Speed: r.Stats.Speed()}
}

// Tool is a function that the model may ask for.
type Tool struct {
	Name        string
	Description string          // what it does, for the model
	Parameters  json.RawMessage // JSON schema of its arguments, an object; nil means none
	// Call runs it for Converse. The text it returns is shown to the model; so is the text of an error, with which the
	// model may do better. Chat alone does not use it.
	Call func(ctx context.Context, arguments json.RawMessage) (string, error)
}

// ToolCall is a function the model wants called.
type ToolCall struct {
	ID        string          `json:"id,omitempty"` // names the call in the message that answers it
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"` // a JSON object
}

// describe is the tool in the shape that templates read; at is its place, for errors.
func (t *Tool) describe(at string) (json.RawMessage, error) {
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters"`
	}
	f := function{t.Name, t.Description, t.Parameters}
	var schema map[string]json.RawMessage
	switch {
	case t.Name == "":
		return nil, &FieldError{at + ".Name", "is missing"}
	case t.Parameters == nil:
		f.Parameters = json.RawMessage(`{"type":"object","properties":{}}`)
	case json.Unmarshal(t.Parameters, &schema) != nil || schema == nil:
		return nil, &FieldError{at + ".Parameters", "must be a JSON schema, which is an object"}
	}
	return json.Marshal(struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}{"function", f})
}
