package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// endpoint makes the answer to a request: a value that is sent as JSON, or nil when it was streamed.
type endpoint func(w http.ResponseWriter, r *http.Request) (any, error)

func (e endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch v, err := e(w, r); {
	case err != nil:
		fail(w, r, err)
	case v != nil:
		writeJSON(w, http.StatusOK, v)
	}
}

// post is an endpoint whose requests have a body.
func post[Q any](s *core, e func(w http.ResponseWriter, r *http.Request, q *Q) (any, error)) endpoint {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		body, err := s.readBody(w, r)
		if err != nil {
			return nil, err
		}
		here := func() (any, error) {
			var q Q
			if err := decodeJSON(body, "", &q); err != nil {
				return nil, err
			}
			return e(w, r, &q)
		}
		if name := s.upstreamOf(body); name != "" {
			return s.elsewhere(w, r, name, body, here)
		}
		return here()
	}
}

// readBody reads the whole request within the limits on its size and time.
func (s *core) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	limit := s.cfg.MaxBody
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, &apiError{Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error",
			Message: fmt.Sprintf("Content-Encoding: %q is not supported; send the JSON as it is", enc)}
	}
	if r.ContentLength > limit {
		// Said before reading, so that a large upload is not waited for.
		return nil, &http.MaxBytesError{Limit: limit}
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout))
	var buf bytes.Buffer // grows with what has come, whatever length was announced
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		var size *http.MaxBytesError
		var network *net.OpError
		switch {
		case errors.As(err, &size), errors.Is(err, errHeld):
			return nil, err
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, &apiError{Status: http.StatusRequestTimeout, Type: "invalid_request_error",
				Message: fmt.Sprintf("the request's body did not arrive within %v", s.cfg.BodyTimeout)}
		case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network):
			return nil, fmt.Errorf("%w: %v", errClient, err)
		}
		return nil, invalid("", "the request's body cannot be read: %v", err)
	}
	// The deadline must not outlive the body: it would end the watch for a client that leaves.
	_ = rc.SetReadDeadline(time.Time{})
	// Parts of it are shown again as they are, so they have to be text.
	return bytes.ToValidUTF8(bytes.TrimPrefix(buf.Bytes(), []byte("\ufeff")), []byte("\ufffd")), nil
}
