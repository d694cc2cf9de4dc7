package server

import (
	"bytes"
	"container/list"
	"encoding/json"
	"slices"
	"sync"
	"time"
)

// memory keeps turns of conversations (OpenAI's responses, Anthropic's threads) and their items for requests that refer
// to them, in RAM and within limits: the least recently used are dropped first. Its methods may be called from any
// goroutine.
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

// turn is an answer with what it answered.
type turn struct {
	id, previous  string          // of the answer and the one before it; "" begins a conversation
	body          json.RawMessage // what the protocol wants to know of it later
	input, output []json.RawMessage
}

// stored is a turn that is kept.
type stored struct {
	key           ownedID
	previous      string
	body          json.RawMessage
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

// put keeps a turn of an owner and reports whether it has room. Its items must have ids where clients may refer to
// them.
func (m *memory) put(owner string, t turn) bool {
	s := &stored{key: ownedID{owner, t.id}, previous: t.previous, body: t.body, output: t.output,
		size: int64(len(t.body)) + itemCost}
	for _, raw := range t.input {
		s.input = append(s.input, bytes.Clone(raw)) // the request it is a part of shall not stay
	}
	for _, raw := range slices.Concat(s.input, s.output) {
		s.size += int64(len(raw)) + itemCost
	}
	if s.size > m.limit {
		return false
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
	return true
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

// chain returns the turns of a conversation that ends with id, the first one first. missing is the id of the one
// that is not kept; "" when all are.
func (m *memory) chain(owner, id string) (turns []*stored, missing string) {
	for id != "" {
		s := m.get(ownedID{owner, id})
		if s == nil {
			return nil, id
		}
		turns = append(turns, s)
		id = s.previous
	}
	slices.Reverse(turns)
	return turns, ""
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
