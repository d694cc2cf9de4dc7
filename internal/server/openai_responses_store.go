package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// putResponse keeps a response of an owner and reports whether there is room. The input must have ids.
func putResponse(m *memory, owner string, resp *responseJSON, input []json.RawMessage) (bool, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(resp); err != nil {
		return false, err
	}
	t := turn{id: resp.ID, body: b.Bytes(), input: input} // the body is as the client got it
	if resp.PreviousResponseID != nil {
		t.previous = *resp.PreviousResponseID
	}
	for _, it := range resp.Output {
		raw, err := json.Marshal(it)
		if err != nil {
			return false, err
		}
		t.output = append(t.output, raw)
	}
	return m.put(owner, t), nil
}

// placedItem is an item of a conversation and where errors say it stands.
type placedItem struct {
	at  string
	raw json.RawMessage
}

// recall returns a whole conversation: what a response and those before it were made of, then the new input, with
// every reference replaced by what it refers to. All of it together may be as large as one request.
func (s *openAI) recall(owner, previous string, input []json.RawMessage) ([]placedItem, error) {
	chain, missing := s.memory.chain(owner, previous)
	if missing != "" {
		why := "it was deleted, is too old or made room for others, or this server never made it"
		if s.memory.limit <= 0 {
			why = "this server keeps no responses; send the whole conversation as input"
		}
		return nil, &apiError{Status: http.StatusBadRequest, Type: "invalid_request_error",
			Code: "previous_response_not_found", Param: "previous_response_id",
			Message: fmt.Sprintf("previous_response_id: there is no response %q: %s", missing, why)}
	}
	var out []placedItem
	for _, r := range chain {
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

// storedResponse returns what a path names.
func (s *openAI) storedResponse(r *http.Request) (*stored, error) {
	id := r.PathValue("id")
	if x := s.memory.get(ownedID{ownerOf(r.Context()), id}); x != nil {
		return x, nil
	}
	return nil, noResponse(id)
}

func noResponse(id string) error {
	return &apiError{Status: http.StatusNotFound, Type: "invalid_request_error",
		Message: fmt.Sprintf("there is no response %q", id)}
}

func (s *openAI) getResponse(w http.ResponseWriter, r *http.Request) (any, error) {
	if r.URL.Query().Get("stream") == "true" {
		return nil, invalid("stream", "a response that is over is not streamed again")
	}
	x, err := s.storedResponse(r)
	if err != nil {
		return nil, err
	}
	return x.body, nil
}

func (s *openAI) deleteResponse(w http.ResponseWriter, r *http.Request) (any, error) {
	id := r.PathValue("id")
	if !s.memory.remove(ownedID{ownerOf(r.Context()), id}) {
		return nil, noResponse(id)
	}
	return map[string]any{"id": id, "object": "response", "deleted": true}, nil
}

// responseInput lists what a response answered, a page at a time, the last item first unless asked otherwise.
func (s *openAI) responseInput(w http.ResponseWriter, r *http.Request) (any, error) {
	x, err := s.storedResponse(r)
	if err != nil {
		return nil, err
	}
	query := r.URL.Query()
	items := slices.Clone(x.input)
	switch order := query.Get("order"); order {
	case "", "desc":
		slices.Reverse(items)
	case "asc":
	default:
		return nil, invalid("order", "%q is neither asc nor desc", order)
	}
	limit := 20
	if l := query.Get("limit"); l != "" {
		if limit, err = strconv.Atoi(l); err != nil || limit < 1 || limit > 100 {
			return nil, invalid("limit", "%q is not between 1 and 100", l)
		}
	}
	idOf := func(raw json.RawMessage) string { id, _ := itemID(raw); return id }
	if after := query.Get("after"); after != "" {
		i := slices.IndexFunc(items, func(raw json.RawMessage) bool { return idOf(raw) == after })
		if i < 0 {
			return nil, invalid("after", "there is no item %q", after)
		}
		items = items[i+1:]
	}
	out := map[string]any{"object": "list", "data": []any{}, "has_more": len(items) > limit, "first_id": nil,
		"last_id": nil}
	if items = items[:min(limit, len(items))]; len(items) > 0 {
		out["data"], out["first_id"], out["last_id"] = items, idOf(items[0]), idOf(items[len(items)-1])
	}
	return out, nil
}
