package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// stores reports whether a response shall be kept.
func (q *responsesRequest) stores() bool { return q.Store == nil || *q.Store }

// turn is a response as the memory keeps it.
func (resp *responseJSON) turn(input []json.RawMessage) (turn, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(resp); err != nil {
		return turn{}, err
	}
	t := turn{id: resp.ID, body: b.Bytes(), input: input} // the body is as the client got it
	if resp.PreviousResponseID != nil {
		t.previous = *resp.PreviousResponseID
	}
	for _, it := range resp.Output {
		raw, err := json.Marshal(it)
		if err != nil {
			return turn{}, err
		}
		t.output = append(t.output, raw)
	}
	return t, nil
}

// putResponse keeps a response of an owner and reports whether there is room. The input must have ids.
func putResponse(m *memory, owner string, resp *responseJSON, input []json.RawMessage) (bool, error) {
	t, err := resp.turn(input)
	return err == nil && m.put(owner, t), err
}

// keep stores the response as it is now.
func (a *responseAnswer) keep() error {
	if a.memory == nil {
		return nil
	}
	if a.job == nil {
		stored, err := putResponse(a.memory, a.owner, &a.base, a.q.items)
		a.base.Store = stored
		return err
	}
	t, err := a.base.turn(a.q.items)
	if err != nil {
		return err
	}
	key := ownedID{a.owner, t.id}
	found, fits := a.memory.change(key, func(old *turn) {
		t.job = old.job
		*old = t
	})
	if found && !fits {
		a.memory.remove(key)
		return tooLarge(a.memory)
	}
	return nil
}

// tooLarge refuses what cannot be kept even if nothing else is.
func tooLarge(m *memory) error {
	return &apiError{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error",
		Message: fmt.Sprintf("this does not fit into the %d bytes that this server keeps; see --responses-memory", m.limit)}
}

// placedItem is an item of a conversation and where errors say it stands.
type placedItem struct {
	at  string
	raw json.RawMessage
}

// recall returns a whole conversation: the items of the one that before names, or what the response of that id and
// those before it were made of; then the new input. Every reference is replaced by what it refers to. All of it
// together may be as large as one request.
func (s *openAI) recall(owner, before string, input []json.RawMessage) ([]placedItem, error) {
	var out []placedItem
	if isConversation(before) {
		x, err := s.findConversation(owner, before)
		if err != nil {
			return nil, err
		}
		for _, raw := range x.input {
			out = append(out, placedItem{"conversation " + before, raw})
		}
		before = ""
	}
	chain, missing := s.memory.chain(owner, before)
	if missing != "" {
		why := "it was deleted, is too old or made room for others, or this server never made it"
		if s.memory.limit <= 0 {
			why = "this server keeps no responses; send the whole conversation as input"
		}
		return nil, &apiError{Status: http.StatusBadRequest, Type: "invalid_request_error",
			Code: "previous_response_not_found", Param: "previous_response_id",
			Message: fmt.Sprintf("previous_response_id: there is no response %q: %s", missing, why)}
	}
	for _, r := range chain {
		if err := continuable(r); err != nil {
			return nil, err
		}
		for _, raw := range slices.Concat(r.input, r.output) {
			out = append(out, placedItem{"previous_response_id " + r.key.id, raw})
		}
	}
	for i, raw := range input {
		out = append(out, placedItem{"input" + index(i), raw})
	}
	size := int64(0)
	for i := range out {
		if id, reference := itemID(out[i].raw); reference {
			if out[i].raw = s.memory.item(ownedID{owner, id}); out[i].raw == nil {
				return nil, &apiError{Status: http.StatusNotFound, Type: "invalid_request_error", Param: out[i].at,
					Message: fmt.Sprintf("%s: there is no item %q; those of deleted or old responses, or with store: false, are not kept",
						out[i].at, id)}
			}
		}
		if size += int64(len(out[i].raw)); size > s.cfg.MaxBody {
			return nil, &apiError{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error",
				Code:    "request_too_large",
				Message: fmt.Sprintf("the conversation with what it refers to is larger than %d bytes", s.cfg.MaxBody)}
		}
	}
	return out, nil
}

// continuable refuses a response that another one cannot follow.
func continuable(x *stored) error {
	var resp struct {
		Status       string
		Conversation *conversationName
	}
	if err := json.Unmarshal(x.body, &resp); err != nil {
		return err
	}
	switch {
	case resp.Conversation != nil:
		return invalid("previous_response_id", "response %q belongs to a conversation; send conversation: %q instead",
			x.key.id, resp.Conversation.ID)
	case resp.Status == "queued" || resp.Status == "in_progress":
		return invalid("previous_response_id", "response %q is not complete yet", x.key.id)
	}
	return nil
}

// isConversation tells ids of conversations from those of responses.
func isConversation(id string) bool { return strings.HasPrefix(id, "conv_") }

// storedResponse returns what a path names.
func (s *openAI) storedResponse(r *http.Request) (*stored, error) {
	id := r.PathValue("id")
	if x := s.memory.get(ownedID{ownerOf(r.Context()), id}); x != nil && !isConversation(id) {
		return x, nil
	}
	return nil, noResponse(id)
}

func noResponse(id string) error {
	return &apiError{Status: http.StatusNotFound, Type: "invalid_request_error",
		Message: fmt.Sprintf("there is no response %q", id)}
}

func (s *openAI) getResponse(w http.ResponseWriter, r *http.Request) (any, error) {
	x, err := s.storedResponse(r)
	if err != nil {
		return nil, err
	}
	if query := r.URL.Query(); query.Get("stream") == "true" {
		return nil, s.resume(w, r, x, query.Get("starting_after"))
	}
	return x.body, nil
}

func (s *openAI) deleteResponse(w http.ResponseWriter, r *http.Request) (any, error) {
	id := r.PathValue("id")
	if isConversation(id) || !s.memory.remove(ownedID{ownerOf(r.Context()), id}) {
		return nil, noResponse(id)
	}
	return map[string]any{"id": id, "object": "response", "deleted": true}, nil
}

// responseInput lists what a response answered, a page at a time.
func (s *openAI) responseInput(w http.ResponseWriter, r *http.Request) (any, error) {
	x, err := s.storedResponse(r)
	if err != nil {
		return nil, err
	}
	return itemPage(x.input, r.URL.Query())
}

// itemPage is a page of a list of items as a query asks for it, the last item first unless it says otherwise.
func itemPage(list []json.RawMessage, query url.Values) (any, error) {
	items := slices.Clone(list)
	switch order := query.Get("order"); order {
	case "", "desc":
		slices.Reverse(items)
	case "asc":
	default:
		return nil, invalid("order", "%q is neither asc nor desc", order)
	}
	limit := 20
	if l := query.Get("limit"); l != "" {
		var err error
		if limit, err = strconv.Atoi(l); err != nil || limit < 1 || limit > 100 {
			return nil, invalid("limit", "%q is not between 1 and 100", l)
		}
	}
	if after := query.Get("after"); after != "" {
		i := slices.IndexFunc(items, func(raw json.RawMessage) bool { return idOf(raw) == after })
		if i < 0 {
			return nil, invalid("after", "there is no item %q", after)
		}
		items = items[i+1:]
	}
	more := len(items) > limit
	return itemList(items[:min(limit, len(items))], more), nil
}

// itemList is a list of items as the API shows it.
func itemList(items []json.RawMessage, more bool) any {
	out := map[string]any{"object": "list", "data": []any{}, "has_more": more, "first_id": nil, "last_id": nil}
	if len(items) > 0 {
		out["data"], out["first_id"], out["last_id"] = items, idOf(items[0]), idOf(items[len(items)-1])
	}
	return out
}

func idOf(item json.RawMessage) string {
	id, _ := itemID(item)
	return id
}
