package strobe

import (
	"errors"
	"fmt"

	"strobe/internal/chat"
	"strobe/internal/engine"
	"strobe/internal/hub"
	"strobe/internal/sample/grammar"
)

// Errors that programs tell apart, with errors.Is.
var (
	ErrClosed      = engine.ErrClosed      // the model is nil or was closed
	ErrBusy        = engine.ErrQueueFull   // too many answers are waiting
	ErrEmptyPrompt = engine.ErrEmptyPrompt // the prompt has no tokens
	ErrUnsupported = engine.ErrUnsupported // the model cannot do this
	ErrNoImages    = engine.ErrNoVision    // the model reads no images
	ErrNotFinite   = engine.ErrNotFinite   // its file may be damaged
	ErrFileChanged = engine.ErrFileChanged // the model's file was changed while it was in use
	ErrUnknownName = errors.New("no file and no name of a model")
	ErrRounds      = errors.New("the model calls tools again and again")
)

var errNilContext = errors.New("the context is nil")

// ContextError reports a prompt that does not fit; the answer needs room, too.
type ContextError struct {
	Prompt  int // tokens; 0 if they were not counted
	Context int // tokens
}

func (e *ContextError) Error() string {
	return (&engine.ContextError{Prompt: e.Prompt, Context: e.Context}).Error()
}

// FieldError is an argument that makes no sense.
type FieldError struct {
	Field   string // such as messages[2].Role
	Message string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Message }

// FormatError is a schema or a grammar that cannot be used.
type FormatError struct {
	Path    string // JSON pointer into a schema; "" in a grammar
	Line    int    // of a grammar, from 1; 0 where the whole is meant
	Message string
}

func (e *FormatError) Error() string {
	switch {
	case e.Path != "":
		return "schema " + e.Path + ": " + e.Message
	case e.Line > 0:
		return fmt.Sprintf("grammar: line %d: %s", e.Line, e.Message)
	}
	return "grammar: " + e.Message
}

// HubError is a refusal of the hub: no such repository, no access.
type HubError struct {
	Status  int    // of HTTP
	Code    string // the hub's own, such as GatedRepo
	Message string
}

func (e *HubError) Error() string { return e.Message }

// public replaces errors of other packages by those of this one, whose fields programs can see. The text stays.
func public(err error) error {
	var (
		long   *engine.ContextError
		field  *chat.FieldError
		schema *grammar.Error
		gbnf   *grammar.GBNFError
		status *hub.StatusError
		with   error
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &long):
		with = &ContextError{long.Prompt, long.Context}
	case errors.As(err, &field):
		with = &FieldError{field.Field, field.Msg}
	case errors.As(err, &schema):
		with = &FormatError{Path: schema.Path, Message: schema.Msg}
	case errors.As(err, &gbnf):
		with = &FormatError{Line: gbnf.Line, Message: gbnf.Msg}
	case errors.As(err, &status):
		with = &HubError{status.Status, status.Code, status.Message}
	default:
		return err
	}
	if with.Error() == err.Error() {
		return with
	}
	return &within{err, with}
}

// within is an error with the text of one and the fields of another.
type within struct{ said, fields error }

func (w *within) Error() string   { return w.said.Error() }
func (w *within) Unwrap() []error { return []error{w.fields, w.said} }
