package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/sample/grammar"
	"strobe/internal/speculate"
	"strobe/internal/upstream"
)

// apiError is an error a client gets to see.
type apiError struct {
	Status  int
	Type    string // OpenAI's and llama.cpp's word for the kind
	Code    string // a finer one where clients know it
	Param   string // the request's field that is at fault
	Detail  string // Anthropic's code for what its clients can repair themselves
	Message string
	// Log is what the log says instead: more than clients may know, or less where the message may have their text in it.
	Log string

	Prompt, Context int // tokens, of a prompt that does not fit
	Retry           int // seconds after which to try again
}

func (e *apiError) Error() string { return e.Message }

// invalid reports a wrong value of a field of the request.
func invalid(param, format string, args ...any) error {
	msg := fmt.Sprintf(format, args...)
	if param != "" {
		msg = param + ": " + msg
	}
	return &apiError{Status: http.StatusBadRequest, Type: "invalid_request_error", Param: param, Message: msg}
}

// refused is a wrong value whose description repeats what the client sent, such as a piece of a conversation. The log
// says only what kind of thing it was.
func refused(param, what string, err error) error {
	return &apiError{Status: http.StatusBadRequest, Type: "invalid_request_error", Param: param, Log: what,
		Message: strings.TrimPrefix(param+": "+err.Error(), ": ")}
}

// badUpstream reports an upstream that answered with something that is no answer.
func badUpstream(msg string) *apiError {
	return &apiError{Status: http.StatusBadGateway, Type: "server_error", Code: "upstream_failed", Message: msg}
}

// internal reports a fault of this server or of its files, without their paths.
func internal(code string, err error) *apiError {
	return &apiError{Status: http.StatusInternalServerError, Type: "server_error", Code: code,
		Message: withoutPaths(err), Log: err.Error()}
}

// folders are what stands before the last slash of a file's name or an address, with spaces in between.
var folders = regexp.MustCompile(`[^\s"']*[/\\](?:[^"':\n]*[/\\])?`)

// withoutPaths is an error that names files without their folders: clients must not see the server's paths.
func withoutPaths(err error) string {
	msg := err.Error()
	var network *net.OpError
	if errors.As(err, &network) {
		msg = strings.ReplaceAll(msg, network.Error(), "the connection failed")
	}
	return folders.ReplaceAllString(msg, "")
}

// maxLogged bounds an error in the log, and maxValue a value of the client in it, in characters.
const maxLogged, maxValue = 300, 32

// values are the parts of messages that are quoted, as everything is that a client sent.
var values = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// logged is the error as the log has it, with what clients sent cut.
func (e *apiError) logged() string {
	if e.Log != "" {
		return e.Log
	}
	msg := values.ReplaceAllStringFunc(e.Message, func(s string) string {
		if short := cutText(s, maxValue); short != s {
			return short + `"`
		}
		return s
	})
	return cutText(msg, maxLogged)
}

// cutText is the beginning of a text.
func cutText(s string, most int) string {
	n := 0
	for i := range s {
		if n++; n > most {
			return s[:i] + "…"
		}
	}
	return s
}

// queueError reports a full queue and when it will have room.
type queueError struct {
	wait time.Duration
	err  error
}

func (e *queueError) Error() string { return e.err.Error() }
func (e *queueError) Unwrap() error { return e.err }

func unavailable(msg string) *apiError {
	return &apiError{Status: http.StatusServiceUnavailable, Type: "unavailable_error", Message: msg, Retry: 1}
}

// Errors the server itself makes.
var (
	errShutdown = errors.New("the server is shutting down")
	errHeld     = errors.New("the requests being handled take too much memory; try again later")
	errLoading  = errors.New("the model is being loaded; try again later")
	// errClient ends a request whose client is gone.
	errClient = errors.New("the client has left")
)

// statusClientGone is what logs show for a request whose client left, as nginx has it.
const statusClientGone = 499

// explain decides which status and message a client gets for an error. It is the only place that does.
func explain(err error) *apiError {
	var (
		api     *apiError
		tooLong *engine.ContextError
		unknown *engine.UnknownModelError
		load    *engine.LoadError
		field   *chat.FieldError
		schema  *grammar.Error
		size    *http.MaxBytesError
		slot    *engine.SlotError
		file    *engine.SlotFileError
		full    *queueError
	)
	bad := func(param string) *apiError {
		return &apiError{Status: http.StatusBadRequest, Type: "invalid_request_error", Param: param, Message: err.Error()}
	}
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &tooLong):
		return &apiError{Status: http.StatusBadRequest, Type: "exceed_context_size_error", Code: "context_length_exceeded",
			Message: tooLong.Error(), Prompt: tooLong.Prompt, Context: tooLong.Context}
	case errors.As(err, &unknown):
		return &apiError{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "model_not_found", Param: "model",
			Message: unknown.Error() + "; GET /v1/models lists what there is"}
	case errors.Is(err, engine.ErrNoModelName), errors.Is(err, engine.ErrNoneResident):
		return bad("model")
	case errors.As(err, &load):
		return internal("model_load_failed", load)
	case errors.As(err, &field):
		return bad(field.Field)
	case errors.As(err, &schema):
		e := bad("response_format")
		e.Log = "the schema cannot be used"
		return e
	case errors.As(err, &size):
		return &apiError{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "request_too_large",
			Message: fmt.Sprintf("the request is larger than %d bytes", size.Limit)}
	case errors.Is(err, engine.ErrEmptyPrompt), errors.Is(err, engine.ErrSlotEmpty), errors.Is(err, grammar.ErrWork):
		return bad("")
	case errors.As(err, &slot):
		return bad("id_slot")
	case errors.As(err, &file):
		return bad("filename")
	case errors.Is(err, engine.ErrNotSaved):
		return &apiError{Status: http.StatusNotFound, Type: "not_found_error", Param: "filename", Message: err.Error()}
	case errors.Is(err, engine.ErrInUse):
		return &apiError{Status: http.StatusConflict, Type: "invalid_request_error", Param: "model", Message: err.Error()}
	case errors.Is(err, speculate.ErrNoSource):
		return bad("strobe.draft")
	case errors.Is(err, engine.ErrUnsupported):
		return &apiError{Status: http.StatusNotImplemented, Type: "not_supported_error", Message: err.Error()}
	case errors.As(err, &full):
		e := unavailable(err.Error())
		e.Retry = int(math.Ceil(full.wait.Seconds()))
		return e
	case errors.Is(err, engine.ErrQueueFull), errors.Is(err, engine.ErrNoRoom), errors.Is(err, errLoading),
		errors.Is(err, errHeld), errors.Is(err, engine.ErrNoMemory),
		errors.Is(err, engine.ErrFileChanged):
		return unavailable(err.Error())
	case errors.Is(err, upstream.ErrDown):
		return &apiError{Status: http.StatusBadGateway, Type: "server_error", Code: "upstream_unavailable",
			Message: err.Error()}
	case errors.Is(err, engine.ErrClosed), errors.Is(err, errShutdown):
		return unavailable(errShutdown.Error())
	case errors.Is(err, errClient), errors.Is(err, context.Canceled), errors.Is(err, dialog.ErrStopped):
		return &apiError{Status: statusClientGone, Type: "server_error", Message: errClient.Error()}
	}
	return internal("", err)
}

// errorJSON is OpenAI's shape of an error, with llama.cpp's counts of a prompt that does not fit.
type errorJSON struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
	Prompt  int     `json:"n_prompt_tokens,omitempty"`
	Context int     `json:"n_ctx,omitempty"`
	Details any     `json:"details,omitempty"` // Anthropic's
}

func (e *apiError) json() errorJSON {
	j := errorJSON{Message: e.Message, Type: e.Type, Prompt: e.Prompt, Context: e.Context}
	if e.Param != "" {
		j.Param = &e.Param
	}
	if e.Code != "" {
		j.Code = &e.Code
	}
	return j
}

// anthropicType is Anthropic's word for the kind of an error.
func (e *apiError) anthropicType() string {
	switch e.Status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	if e.Status < 500 {
		return "invalid_request_error"
	}
	return "api_error"
}

// anthropicError is the shape of an error under /v1/messages.
type anthropicError struct {
	Type  string    `json:"type"` // "error"
	Error errorJSON `json:"error"`
}

func (e *apiError) anthropic() anthropicError {
	j := e.json()
	j.Type = e.anthropicType()
	if e.Context > 0 { // the words that clients look for before they shorten the conversation
		j.Message = "prompt is too long: "
		if e.Prompt > 0 {
			j.Message += fmt.Sprintf("%d tokens > ", e.Prompt)
		}
		j.Message += fmt.Sprintf("%d maximum", e.Context)
	}
	if e.Detail != "" {
		j.Details = map[string]string{"error_code": e.Detail}
	}
	return anthropicError{"error", j}
}

// speaksAnthropic reports whether a request is made in Anthropic's protocol.
func speaksAnthropic(r *http.Request) bool {
	return r.URL.Path == "/v1/messages" || strings.HasPrefix(r.URL.Path, "/v1/messages/")
}

// body is the error in the shape of the request's protocol.
func (e *apiError) body(r *http.Request) any {
	switch {
	case speaksAnthropic(r):
		return e.anthropic()
	case speaksOllama(r):
		return map[string]string{"error": e.Message}
	}
	return map[string]any{"error": e.json()}
}

// speaksOllama reports whether a request is made in Ollama's protocol.
func speaksOllama(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") }

// brokeOff reports an upstream whose answer ended before it was complete.
func brokeOff(err error) error { return badUpstream("the upstream broke off: " + err.Error()) }
