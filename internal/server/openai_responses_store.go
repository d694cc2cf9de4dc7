package server

import (
	"bytes"
	"container/list"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// memory keeps responses and their items for requests that refer to them, in RAM and within limits: the least recently
// used are dropped first. Its methods may be called from any goroutine.
type memory struct {
	limit int64         // bytes of all; none keeps nothing
	age   time.Duration // since the last use
	now   func() time.Time

	mu     sync.Mutex
	bytes  int64
	recent *list.List                // of *stored, the one used last in front
	byID   map[ownedID]*list.Element // of recent
	items  map[ownedID]keptItem
}

// ownedID is the id of a response or an item among those of one owner. Clients choose ids of items, so those of others
// must not be in their way.
type ownedID struct{ owner, id string }

// stored is a response with what it answered.
type stored struct {
	key           ownedID
	previous      string
	body          json.RawMessage // as the client got it
	input, output []json.RawMessage
	ids           []ownedID // of the items
	size          int64
	used          time.Time
}

type keptItem struct {
	raw   json.RawMessage
	owner *list.Element
}

func newMemory(limit int64, age time.Duration) *memory {
	return &memory{limit: limit, age: age, now: time.Now, recent: list.New(),
		byID: map[ownedID]*list.Element{}, items: map[ownedID]keptItem{}}
}

// put keeps a response of an owner and reports whether it has room. The input must have ids.
func (m *memory) put(owner string, resp *responseJSON, input []json.RawMessage) (bool, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(resp); err != nil {
		return false, err
	}
	s := &stored{key: ownedID{owner, resp.ID}, body: b.Bytes(), size: int64(b.Len()) + itemCost}
	if resp.PreviousResponseID != nil {
		s.previous = *resp.PreviousResponseID
	}
	for _, raw := range input {
		s.input = append(s.input, bytes.Clone(raw)) // the request it is a part of shall not stay
	}
	for _, it := range resp.Output {
		raw, err := json.Marshal(it)
		if err != nil {
			return false, err
		}
		s.output = append(s.output, raw)
	}
	for _, raw := range slices.Concat(s.input, s.output) {
		s.size += int64(len(raw)) + itemCost
	}
	if s.size > m.limit {
		return false, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.used = m.now()
	e := m.recent.PushFront(s)
	m.byID[s.key] = e
	m.bytes += s.size
	for _, raw := range slices.Concat(s.input, s.output) {
		if id, ref := itemID(raw); id != "" && !ref {
			key := ownedID{owner, id}
			m.items[key] = keptItem{raw, e}
			s.ids = append(s.ids, key)
		}
	}
	m.trim()
	return true, nil
}

// trim forgets what is too old or too much.
func (m *memory) trim() {
	for e := m.recent.Back(); e != nil; e = m.recent.Back() {
		if m.bytes <= m.limit && m.now().Sub(e.Value.(*stored).used) <= m.age {
			return
		}
		m.forget(e)
	}
}

func (m *memory) forget(e *list.Element) {
	s := m.recent.Remove(e).(*stored)
	m.bytes -= s.size
	delete(m.byID, s.key)
	for _, id := range s.ids {
		if m.items[id].owner == e { // a later response may have said it again
			delete(m.items, id)
		}
	}
}

func (m *memory) use(e *list.Element) *stored {
	s := e.Value.(*stored)
	s.used = m.now()
	m.recent.MoveToFront(e)
	return s
}

// get returns a response, nil when there is none.
func (m *memory) get(id ownedID) *stored {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trim()
	if e := m.byID[id]; e != nil {
		return m.use(e)
	}
	return nil
}

// item returns an item of a response, nil when there is none.
func (m *memory) item(id ownedID) json.RawMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trim()
	it, ok := m.items[id]
	if !ok {
		return nil
	}
	m.use(it.owner)
	return it.raw
}

// remove forgets a response and reports whether there was one.
func (m *memory) remove(id ownedID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.byID[id]
	if e != nil {
		m.forget(e)
	}
	return e != nil
}

// itemID returns the id of an item and whether it only refers to another one of that id.
func itemID(raw json.RawMessage) (id string, reference bool) {
	var it struct {
		Type *string `json:"type"`
		ID   string  `json:"id"`
		Role *string `json:"role"`
	}
	if json.Unmarshal(raw, &it) != nil {
		return "", false
	}
	if it.Type == nil {
		return it.ID, it.Role == nil && it.ID != ""
	}
	return it.ID, *it.Type == "item_reference"
}

// placedItem is an item of a conversation and where errors say it stands.
type placedItem struct {
	at  string
	raw json.RawMessage
}

// recall returns a whole conversation: what a response and those before it were made of, then the new input, with
// every reference replaced by what it refers to. All of it together may be as large as one request.
func (s *openAI) recall(owner, previous string, input []json.RawMessage) ([]placedItem, error) {
	var chain []*stored
	for id := previous; id != ""; {
		r := s.memory.get(ownedID{owner, id})
		if r == nil {
			why := "it was deleted, is too old or made room for others, or this server never made it"
			if s.memory.limit <= 0 {
				why = "this server keeps no responses; send the whole conversation as input"
			}
			return nil, &apiError{Status: http.StatusBadRequest, Type: "invalid_request_error",
				Code: "previous_response_not_found", Param: "previous_response_id",
				Message: fmt.Sprintf("previous_response_id: there is no response %q: %s", id, why)}
		}
		chain = append(chain, r)
		id = r.previous
	}
	var out []placedItem
	for _, r := range slices.Backward(chain) {
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
