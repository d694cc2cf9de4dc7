package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"strobe/internal/upstream"
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

// optional is an endpoint whose requests may come without a body.
func optional(e endpoint) endpoint {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		if r.ContentLength == 0 {
			r.Body = io.NopCloser(strings.NewReader("{}"))
		}
		return e(w, r)
	}
}

// absent is an endpoint of another server that this one does not have. It says what is to be done instead.
func absent(instead string) endpoint {
	return func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return nil, &apiError{Status: http.StatusNotFound, Type: "not_found_error",
			Message: r.URL.Path + " does not exist on this server: " + instead}
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

// passed are the requests that an upstream gets as they are. What it does not have is asked of it as a conversation, if
// it is one. The Responses API always is: its later requests refer to earlier ones, which another replica would not
// know.
var passed = map[string]bool{
	"/v1/chat/completions": true, "/v1/completions": true, "/v1/embeddings": true, "/v1/rerank": true,
	"/v1/messages": true, "/v1/messages/count_tokens": true,
}

// elsewhere answers a request whose model lives on another server. here answers it with the code for models of this
// one, for protocols that the upstream lacks.
func (s *core) elsewhere(w http.ResponseWriter, r *http.Request, model string, body []byte,
	here func() (any, error)) (any, error) {
	path := r.URL.Path
	if !strings.HasPrefix(path, "/v1/") {
		path = "/v1" + path
	}
	logOf(r).add(slog.String("model", model))
	if !passed[path] || s.cfg.Upstreams.Lacks(model, path) || refersToEarlier(body) {
		return here()
	}
	res, err := s.cfg.Upstreams.Send(r.Context(), upstream.Request{
		Model: model, Path: path, Body: body, Head: s.outgoing(r), Key: upstream.Key(body),
	})
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if s.cfg.Upstreams.Lacks(model, path) {
		return here()
	}
	logOf(r).add(slog.String("replica", res.Replica))
	traceUpstream(r.Context(), model, res.Replica)
	for k, v := range res.Head {
		w.Header()[k] = v
	}
	w.WriteHeader(res.Status)
	return nil, s.copyAnswer(w, r, res)
}

// refersToEarlier reports whether a request is a part of a thread. Other servers do not know threads, or not on all of
// their replicas, and would answer its last messages alone.
func refersToEarlier(body []byte) bool {
	var q struct {
		Thread json.RawMessage `json:"thread"`
	}
	return json.Unmarshal(body, &q) == nil && kindOf(q.Thread) != "null"
}

// upstreamOf is the model a request names if it lives on another server, else "".
func (s *core) upstreamOf(body []byte) string {
	if s.cfg.Upstreams == nil {
		return ""
	}
	var q struct {
		Model string `json:"model"`
	}
	if json.Unmarshal(body, &q) != nil || !s.cfg.Upstreams.Has(q.Model) {
		return ""
	}
	return q.Model
}

// copyAnswer passes an upstream's answer on as it arrives. When it breaks off, a stream ends with an event that says
// so; anything else is cut off, so that no client takes it for complete.
func (s *core) copyAnswer(w http.ResponseWriter, r *http.Request, res *upstream.Response) error {
	rc := http.NewResponseController(w)
	buf := make([]byte, 32<<10)
	for {
		n, err := res.Body.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return nil // the client is gone, and with the request's context the answer
			}
			_ = rc.Flush()
		}
		if err == io.EOF {
			return nil
		}
		if err == nil {
			continue
		}
		if r.Context().Err() != nil {
			return nil
		}
		err = brokeOff(err)
		logOf(r).fail(explain(err))
		if !strings.HasPrefix(res.Head.Get("Content-Type"), "text/event-stream") {
			panic(http.ErrAbortHandler)
		}
		st := newStream(w)
		st.started = true
		st.buf.WriteString("\n\n") // ends what was begun
		st.fail(r, err)
		return nil
	}
}

// outgoing are the headers that go to an upstream with a request.
func (s *core) outgoing(r *http.Request) http.Header {
	h := upstream.Forwarded(r.Header)
	h.Set("X-Request-Id", requestID(r))
	if s.tracer.Tracer != nil {
		traceContext.Inject(r.Context(), propagation.HeaderCarrier(h))
	}
	return h
}
