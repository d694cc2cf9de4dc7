package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// A conversation is a list of items that responses read and add to. The memory keeps it as a turn whose input these
// items are, under the same limits as responses.

// conversationName is a conversation as responses refer to it.
type conversationName struct {
	ID string `json:"id"`
}

type conversationJSON struct {
	ID        string          `json:"id"`
	Object    string          `json:"object"`
	CreatedAt int64           `json:"created_at"`
	Metadata  json.RawMessage `json:"metadata"`
}

// conversationRequest is the body of requests that begin or change one.
type conversationRequest struct {
	Items    []json.RawMessage `json:"items"`
	Metadata json.RawMessage   `json:"metadata"`
}

// check makes sure that the metadata is an object.
func (q *conversationRequest) check() error {
	switch kindOf(q.Metadata) {
	case "object":
	case "null":
		q.Metadata = json.RawMessage("{}")
	default:
		return invalid("metadata", "must be an object")
	}
	return nil
}

// conversationID is the id of the conversation that a response belongs to, "" for none.
func (q *responsesRequest) conversationID() (string, error) {
	var name conversationName
	switch kindOf(q.Conversation) {
	case "null":
		return "", nil
	case "string":
		if err := decodeJSON(q.Conversation, "conversation", &name.ID); err != nil {
			return "", err
		}
	default:
		if err := decodeJSON(q.Conversation, "conversation", &name); err != nil {
			return "", err
		}
	}
	if !isConversation(name.ID) {
		return "", invalid("conversation", "%q is not the id of a conversation; POST /v1/conversations makes one", name.ID)
	}
	if q.Previous != nil {
		return "", invalid("previous_response_id", "cannot be used together with conversation")
	}
	return name.ID, nil
}

// addTo adds the input and the output of a response to its conversation. One that is gone by now needs nothing.
func (q *responsesRequest) addTo(m *memory, owner string, output []outputItem) error {
	if q.talk == "" {
		return nil
	}
	items, err := conversationItems(q.added)
	if err != nil {
		return err
	}
	for _, it := range output {
		raw, err := json.Marshal(it)
		if err != nil {
			return err
		}
		items = append(items, raw)
	}
	found, fits := m.change(ownedID{owner, q.talk}, func(t *turn) { t.input = slices.Concat(t.input, items) })
	if found && !fits {
		return tooLarge(m)
	}
	return nil
}

// conversationItems are items in the shape in which the API shows them: with a type, a status, and parts as content.
func conversationItems(list []json.RawMessage) ([]json.RawMessage, error) {
	out := make([]json.RawMessage, len(list))
	for i, raw := range list {
		var it map[string]json.RawMessage
		if err := json.Unmarshal(raw, &it); err != nil {
			return nil, err
		}
		if kindOf(it["type"]) == "null" {
			it["type"] = json.RawMessage(`"message"`)
		}
		if kindOf(it["status"]) == "null" {
			it["status"] = json.RawMessage(`"completed"`)
		}
		if kindOf(it["content"]) == "string" {
			kind := "input_text"
			if string(it["role"]) == `"assistant"` {
				kind = "output_text"
			}
			part := map[string]any{"type": kind, "text": it["content"]}
			if kind == "output_text" {
				part["annotations"] = []any{}
			}
			parts, err := json.Marshal([]any{part})
			if err != nil {
				return nil, err
			}
			it["content"] = parts
		}
		var err error
		if out[i], err = json.Marshal(it); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// newItems are the items of a request, checked, with ids, and with what they refer to.
func (s *openAI) newItems(r *http.Request, list []json.RawMessage) ([]json.RawMessage, error) {
	if len(list) == 0 {
		return nil, nil
	}
	items, err := withIDs(list, "items")
	if err != nil {
		return nil, err
	}
	placed, err := s.recall(ownerOf(r.Context()), "", items)
	if err != nil {
		return nil, err
	}
	if _, err := inputMessages(placed); err != nil {
		return nil, err
	}
	for i := range placed {
		items[i] = placed[i].raw
	}
	return conversationItems(items)
}

func (s *openAI) newConversation(w http.ResponseWriter, r *http.Request, q *conversationRequest) (any, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	items, err := s.newItems(r, q.Items)
	if err != nil {
		return nil, err
	}
	j := conversationJSON{newID("conv_"), "conversation", time.Now().Unix(), q.Metadata}
	body, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	if !s.memory.put(ownerOf(r.Context()), turn{id: j.ID, body: body, input: items}) {
		return nil, tooLarge(s.memory)
	}
	return j, nil
}

// findConversation returns a conversation of an owner.
func (s *openAI) findConversation(owner, id string) (*stored, error) {
	if x := s.memory.get(ownedID{owner, id}); x != nil && isConversation(id) {
		return x, nil
	}
	return nil, &apiError{Status: http.StatusNotFound, Type: "invalid_request_error",
		Message: fmt.Sprintf("there is no conversation %q: it was deleted, is too old or made room for others, "+
			"or this server never made it", id)}
}

// inPath returns the conversation that a path names.
func (s *openAI) inPath(r *http.Request) (*stored, error) {
	return s.findConversation(ownerOf(r.Context()), r.PathValue("id"))
}

// alter changes the conversation that a path names, and returns it.
func (s *openAI) alter(r *http.Request, fn func(*turn)) (any, error) {
	x, err := s.inPath(r)
	if err != nil {
		return nil, err
	}
	var body json.RawMessage
	found, fits := s.memory.change(x.key, func(t *turn) {
		fn(t)
		body = t.body
	})
	if found && !fits {
		return nil, tooLarge(s.memory)
	}
	return body, nil
}

func (s *openAI) getConversation(w http.ResponseWriter, r *http.Request) (any, error) {
	x, err := s.inPath(r)
	if err != nil {
		return nil, err
	}
	return x.body, nil
}

// changeConversation replaces the metadata.
func (s *openAI) changeConversation(w http.ResponseWriter, r *http.Request, q *conversationRequest) (any, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	x, err := s.inPath(r)
	if err != nil {
		return nil, err
	}
	var j conversationJSON
	if err := json.Unmarshal(x.body, &j); err != nil {
		return nil, err
	}
	j.Metadata = q.Metadata
	body, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	return s.alter(r, func(t *turn) { t.body = body })
}

// deleteConversation forgets a conversation with its items.
func (s *openAI) deleteConversation(w http.ResponseWriter, r *http.Request) (any, error) {
	x, err := s.inPath(r)
	if err != nil {
		return nil, err
	}
	s.memory.remove(x.key)
	return map[string]any{"id": x.key.id, "object": "conversation.deleted", "deleted": true}, nil
}

func (s *openAI) addItems(w http.ResponseWriter, r *http.Request, q *conversationRequest) (any, error) {
	if len(q.Items) == 0 {
		return nil, invalid("items", "is missing")
	}
	items, err := s.newItems(r, q.Items)
	if err != nil {
		return nil, err
	}
	if _, err := s.alter(r, func(t *turn) { t.input = slices.Concat(t.input, items) }); err != nil {
		return nil, err
	}
	return itemList(items, false), nil
}

func (s *openAI) conversationItems(w http.ResponseWriter, r *http.Request) (any, error) {
	x, err := s.inPath(r)
	if err != nil {
		return nil, err
	}
	return itemPage(x.input, r.URL.Query())
}

// itemAt is where in a conversation the item that a path names stands.
func itemAt(items []json.RawMessage, r *http.Request) (int, error) {
	id := r.PathValue("item")
	i := slices.IndexFunc(items, func(raw json.RawMessage) bool { return idOf(raw) == id })
	if i < 0 {
		return 0, &apiError{Status: http.StatusNotFound, Type: "invalid_request_error",
			Message: fmt.Sprintf("the conversation has no item %q", id)}
	}
	return i, nil
}

func (s *openAI) conversationItem(w http.ResponseWriter, r *http.Request) (any, error) {
	x, err := s.inPath(r)
	if err != nil {
		return nil, err
	}
	i, err := itemAt(x.input, r)
	if err != nil {
		return nil, err
	}
	return x.input[i], nil
}

// deleteItem takes an item out of a conversation, and returns the conversation.
func (s *openAI) deleteItem(w http.ResponseWriter, r *http.Request) (any, error) {
	missing := error(nil)
	body, err := s.alter(r, func(t *turn) {
		i, err := itemAt(t.input, r)
		if missing = err; err == nil {
			t.input = slices.Concat(t.input[:i], t.input[i+1:])
		}
	})
	if err == nil {
		err = missing
	}
	return body, err
}
