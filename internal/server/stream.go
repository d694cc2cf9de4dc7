package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
)

// stream writes server-sent events, or lines. The status line is sent with the first of them, so that whatever
// fails before can still be an ordinary error.
//
// Events are gathered by send and go out with flush: what one step of the engine brought is one
// write.
type stream struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	buf     bytes.Buffer
	enc     *json.Encoder
	err     error // of an event that cannot be JSON
	started bool
	lines   bool // Ollama's streams: lines of JSON
	// idle is called after a silence, so that proxies do not take the stream for dead; nil sends nothing.
	idle func() error
	// failed returns the event of an error; nil takes the protocol's.
	failed func(*apiError) (name string, v any)
}

func newStream(w http.ResponseWriter) *stream {
	s := &stream{w: w, rc: http.NewResponseController(w)}
	s.enc = json.NewEncoder(&s.buf)
	s.enc.SetEscapeHTML(false)
	s.idle = s.ping
	return s
}

// send adds an event. A name is what Anthropic and the Responses API have and the others lack. flush reports errors.
func (s *stream) send(name string, v any) {
	before := s.buf.Len()
	if name != "" {
		s.buf.WriteString("event: ")
		s.buf.WriteString(name)
		s.buf.WriteByte('\n')
	}
	if !s.lines {
		s.buf.WriteString("data: ")
	}
	if err := s.enc.Encode(v); err != nil { // ends with a line break
		s.buf.Truncate(before)
		s.err = cmp.Or(s.err, err)
		return
	}
	if !s.lines {
		s.buf.WriteByte('\n')
	}
}

// useLines turns the stream into one of lines of JSON, which have no comments to break a silence with.
func (s *stream) useLines() { s.lines, s.idle = true, nil }

// ping sends a comment, which clients ignore and proxies count as a sign of life.
func (s *stream) ping() error {
	s.buf.WriteString(":\n\n")
	return s.flush()
}

// flush sends what was gathered. An error means that the client is gone, or is that of an event.
func (s *stream) flush() error {
	if s.err != nil || s.buf.Len() == 0 {
		return s.err
	}
	if !s.started {
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		if s.lines {
			h.Set("Content-Type", "application/x-ndjson")
		}
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // nginx would collect events
		s.w.WriteHeader(http.StatusOK)
		s.started = true
	}
	_, err := s.w.Write(s.buf.Bytes())
	s.buf.Reset()
	if err == nil {
		err = s.rc.Flush()
	}
	if err != nil {
		return errClient
	}
	return nil
}

// fail ends a stream with an error: an ordinary one while nothing was sent, else an event of the protocol.
func (s *stream) fail(r *http.Request, err error) {
	if !s.started {
		fail(s.w, r, err)
		return
	}
	if r.Context().Err() != nil {
		err = context.Cause(r.Context())
	}
	e := explain(err)
	logOf(r).fail(e)
	if e.Status == statusClientGone {
		return
	}
	name, v := "", e.body(r)
	if speaksAnthropic(r) {
		name = "error"
	}
	if s.failed != nil {
		name, v = s.failed(e)
	}
	s.err = nil
	s.send(name, v)
	_ = s.flush()
}

// fail answers with an error. Nothing may have been written before.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	e := explain(err)
	// Why the request ended explains more than what failed then, unless that is why it ended.
	if r.Context().Err() != nil && e.Status != http.StatusRequestTimeout {
		e = explain(context.Cause(r.Context()))
	}
	logOf(r).fail(e)
	if e.Retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.Retry))
	}
	writeJSON(w, e.Status, e.body(r))
}

func jsonHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
}

// writeJSON answers with a value. Errors of the connection show when the handler ends.
func writeJSON(w http.ResponseWriter, status int, v any) {
	jsonHeader(w)
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}
