package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// threadField is what a request says of a thread: its conversation is kept (create), or it goes on with one that is and
// has only the new messages (continue).
type threadField struct {
	Type     string `json:"type"`
	Previous string `json:"previous_message_id"`
}

// threadHead is what the first request of a thread says for all of it.
type threadHead struct {
	System json.RawMessage   `json:"system,omitempty"`
	Tools  []json.RawMessage `json:"tools,omitempty"`
}

// threadOwner is the owner of threads in the store, apart from that of responses: neither API finds those of the other.
func threadOwner(owner string) string { return "thread " + owner }

// threadError is an error about a thread. Clients that get one of its codes send the whole conversation again:
// thread_not_found for a new thread, thread_unsupported_request without any.
func threadError(status int, code, format string, args ...any) error {
	return &apiError{Status: status, Type: "invalid_request_error", Param: "thread", Detail: code,
		Message: "thread: " + fmt.Sprintf(format, args...)}
}

// resume puts what is kept of a thread before the new messages. The fields that were sent stay in q.sent.
func (q *messagesRequest) resume(m *memory, owner string, most int64) error {
	if q.Thread == nil {
		return nil
	}
	q.sent = q.Messages
	switch q.Thread.Type {
	case "create":
		if m.limit <= 0 {
			return threadError(http.StatusBadRequest, "thread_unsupported_request",
				"this server keeps no conversations; send the whole one without thread")
		}
		return nil
	case "continue":
	default:
		return invalid("thread.type", "%q is neither create nor continue", q.Thread.Type)
	}
	if q.Thread.Previous == "" {
		return invalid("thread.previous_message_id", "is missing")
	}
	if kindOf(q.System) != "null" || len(q.Tools) > 0 {
		return threadError(http.StatusBadRequest, "thread_unsupported_request",
			"a request that continues a thread cannot have system or tools; those of its first request count")
	}
	turns, missing := m.chain(threadOwner(owner), q.Thread.Previous)
	if missing != "" {
		return threadError(http.StatusNotFound, "thread_not_found",
			"there is no message %q: it is too old, made room for others, or was not part of a thread", missing)
	}
	var head threadHead
	if err := json.Unmarshal(turns[0].body, &head); err != nil {
		return err
	}
	q.System, q.Tools = head.System, head.Tools
	var messages []anthropicMessage
	size := int64(len(turns[0].body))
	for _, t := range turns {
		for _, raw := range slices.Concat(t.input, t.output) {
			if size += int64(len(raw)); size > most {
				return &apiError{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error",
					Code: "request_too_large", Message: fmt.Sprintf("the conversation is larger than %d bytes", most)}
			}
			var msg anthropicMessage
			if err := json.Unmarshal(raw, &msg); err != nil {
				return err
			}
			messages = append(messages, msg)
		}
	}
	q.before = len(messages)
	q.Messages = append(messages, q.Messages...)
	return nil
}

// remember keeps an answer of a thread, so that the next request can continue it. One that is too large is not kept.
func (q *messagesRequest) remember(m *memory, owner, id string, said []block) error {
	if q.Thread == nil {
		return nil
	}
	t := turn{id: id, previous: q.Thread.Previous}
	var err error
	if q.Thread.Type == "create" {
		t.previous = ""
		if t.body, err = json.Marshal(threadHead{q.System, q.Tools}); err != nil {
			return err
		}
	}
	for _, msg := range q.sent {
		raw, err := json.Marshal(msg)
		if err != nil {
			return err
		}
		t.input = append(t.input, raw)
	}
	content, err := json.Marshal(said)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(anthropicMessage{"assistant", content})
	if err != nil {
		return err
	}
	t.output = []json.RawMessage{raw}
	m.put(threadOwner(owner), t)
	return nil
}
