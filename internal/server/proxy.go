package server

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"strobe/internal/upstream"
)

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
	if !passed[path] || s.cfg.Upstreams.Lacks(model, path) {
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

// copyAnswer sends what comes from an upstream as soon as it comes. When it breaks off, a stream ends with an event
// that says so; anything else is cut off, so that nobody takes it for whole.
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
