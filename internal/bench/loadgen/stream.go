package loadgen

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// Limits of what a server can make us keep.
const (
	maxEvent  = 256 << 10 // bytes of an event; those with logprobs of a whole draft are the longest
	maxError  = 4 << 10   // bytes read of an error
	maxAnswer = 4 << 20   // bytes of an answer that the next turn repeats
)

// sample is one request.
type sample struct {
	turn           int
	late           time.Duration // sent this much after its time
	first, total   time.Duration
	gaps           []time.Duration
	last           time.Duration // when the last text arrived
	in, out, cache int
	counted        bool // by the server
	text           []byte
	err            error
}

// requestError is what a request failed with. Kinds are counted, one message of each is shown.
type requestError struct {
	Kind, Message string
	Status        int
}

func (e *requestError) Error() string {
	if e.Message == "" {
		return e.Kind
	}
	return e.Kind + ": " + e.Message
}

// timed notes when bytes arrived. Events of one read arrived together.
type timed struct {
	r  io.Reader
	at time.Time
}

func (t *timed) Read(b []byte) (int, error) {
	n, err := t.r.Read(b)
	t.at = time.Now()
	return n, err
}

// post sends a request and reads its stream to the end. keep is for answers that are needed.
func (c *client) post(ctx context.Context, t *target, body []byte, keep bool) (s sample) {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL+t.path, bytes.NewReader(body))
	if err != nil {
		s.err = &requestError{Kind: "bad address", Message: clean(err.Error())}
		return s
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	t.authorize(req)
	start := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		s.err = networkError(err)
		return s
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
		s.err = &requestError{Kind: fmt.Sprintf("http %d", resp.StatusCode), Message: errorText(b), Status: resp.StatusCode}
		return s
	}
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		s.err = &requestError{Kind: "no stream", Message: "the server answered with " + clean(fmt.Sprintf("%q", kind))}
		return s
	}
	c.body.r = resp.Body
	c.buf.Reset(&c.body)
	s.err = c.read(&s, start, keep)
	s.total = c.body.at.Sub(start)
	if s.err == nil { // a connection is used again if its answer was read to the end
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxError))
	}
	return s
}

// read reads events up to the end of a stream.
func (c *client) read(s *sample, start time.Time, keep bool) error {
	finished, events := false, 0
	var arrived time.Time
	for {
		line, err := c.buf.ReadSlice('\n')
		data, isData := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data:"))
		if data = bytes.TrimSpace(data); isData && err == nil {
			if string(data) == "[DONE]" {
				finished = true
				break
			}
			hasText := hasText(data)
			if hasText {
				events++
				if keep && len(s.text) < maxAnswer {
					s.text = append(s.text, content(data)...)
				}
			}
			if value(data, "error", '{') != nil {
				return &requestError{Kind: "error in the stream", Message: errorText(data)}
			}
			end := value(data, "finish_reason", '"') != nil
			finished = finished || end
			if at := c.body.at; hasText || end && arrived.IsZero() {
				switch {
				case arrived.IsZero():
					s.first = at.Sub(start)
				case !at.Equal(arrived):
					s.gaps = append(s.gaps, at.Sub(arrived))
				}
				arrived = at
				s.last = at.Sub(start)
			}
			if u := value(data, "usage", '{'); u != nil {
				s.count(data)
			}
		}
		if err == io.EOF {
			break
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			return &requestError{Kind: "event too long", Message: fmt.Sprintf("more than %d bytes", maxEvent)}
		}
		if err != nil {
			return networkError(err)
		}
	}
	if !finished {
		return &requestError{Kind: "stream ended early"}
	}
	if arrived.IsZero() { // an answer without any event of its own
		s.first = c.body.at.Sub(start)
		s.last = s.first
	}
	if !s.counted {
		s.out = events
	}
	return nil
}

// count takes the tokens from an event with usage.
func (s *sample) count(data []byte) {
	var e struct {
		Usage *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
			Details    *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(data, &e) != nil || e.Usage == nil || e.Usage.Prompt < 0 || e.Usage.Completion < 0 {
		return
	}
	s.counted, s.in, s.out = true, e.Usage.Prompt, e.Usage.Completion
	if e.Usage.Details != nil {
		s.cache = max(0, e.Usage.Details.Cached)
	}
}

// value finds a member by its name and the first byte of its value, and returns what follows that byte. Quotes in texts
// are escaped, so a name in quotes with a colon behind it is a name.
func value(data []byte, name string, first byte) []byte {
	for {
		i := bytes.Index(data, []byte(name))
		if i < 0 {
			return nil
		}
		quoted := i > 0 && data[i-1] == '"'
		data = data[i+len(name):]
		rest, ok := bytes.CutPrefix(data, []byte{'"'})
		if !quoted || !ok {
			continue
		}
		if rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " "), []byte{':'}); !ok {
			continue
		}
		if rest = bytes.TrimLeft(rest, " "); len(rest) > 0 && rest[0] == first {
			return rest[1:]
		}
	}
}

// hasText reports whether an event brings tokens: text of an answer or of reasoning, or a call.
func hasText(data []byte) bool {
	for _, name := range [...]string{"content", "text", "reasoning_content", "reasoning", "arguments"} {
		if v := value(data, name, '"'); len(v) > 0 && v[0] != '"' {
			return true
		}
	}
	return false
}

// content is the text of an event.
func content(data []byte) string {
	var e struct {
		Choices []struct {
			Text  string `json:"text"`
			Delta struct {
				Content string `json:"content"`
			} `json:"delta"`
		} `json:"choices"`
	}
	if json.Unmarshal(data, &e) != nil || len(e.Choices) == 0 {
		return ""
	}
	return e.Choices[0].Text + e.Choices[0].Delta.Content
}

// errorText is the message in the body of an error.
func errorText(b []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  any             `json:"detail"`
	}
	if json.Unmarshal(b, &e) != nil {
		return clean(string(b))
	}
	var inner struct {
		Message string `json:"message"`
	}
	var plain string
	switch {
	case json.Unmarshal(e.Error, &inner) == nil && inner.Message != "":
		return clean(inner.Message)
	case json.Unmarshal(e.Error, &plain) == nil && plain != "":
		return clean(plain)
	case e.Message != "":
		return clean(e.Message)
	case e.Detail != nil:
		return clean(fmt.Sprint(e.Detail))
	}
	return clean(string(b))
}

// clean makes a line for a terminal out of what a server sent.
func clean(s string) string {
	const most = 200
	r := []rune(strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " "))
	if len(r) > most {
		r = append(r[:most], '…')
	}
	return string(r)
}

// networkError says what a connection failed with.
func networkError(err error) error {
	e := &requestError{Kind: "connection failed", Message: clean(err.Error())}
	var timeout net.Error
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Kind, e.Message = "connection refused", ""
	case errors.As(err, &dns):
		e.Kind, e.Message = "unknown host", clean(dns.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		e.Kind, e.Message = "timeout", ""
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE):
		e.Kind, e.Message = "connection closed early", ""
	}
	return e
}
