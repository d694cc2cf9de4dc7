package server

import (
	"bytes"
	"container/list"
	"encoding/json"
	"slices"
	"sync"
	"time"
)

// memory keeps turns of conversations (OpenAI's responses and conversations, Anthropic's threads) and their items for
// requests that refer to them, in RAM and within limits: the least recently used are dropped first. Its methods may be
// called from any goroutine.
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
	job           *job // that makes the answer, or made it; nil if its client waited for it
}

// stored is a turn that is kept. The turn is never changed, so that what get returns can be read without the lock.
type stored struct {
	turn
	key  ownedID
	ids  []ownedID // of the items
	size int64
	used time.Time
}

// newStored returns a turn with its size.
func newStored(key ownedID, t turn) *stored {
	s := &stored{turn: t, key: key, size: int64(len(t.body)) + itemCost}
	s.input = nil
	for _, raw := range t.input {
		s.input = append(s.input, bytes.Clone(raw)) // the request it is a part of shall not stay
	}
	for _, raw := range slices.Concat(s.input, s.output) {
		s.size += int64(len(raw)) + itemCost
	}
	if t.job != nil {
		s.size += t.job.size()
	}
	return s
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
	s := newStored(ownedID{owner, t.id}, t)
	if s.size > m.limit {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.used = m.now()
	e := m.recent.PushFront(s)
	m.byID[s.key] = e
	m.bytes += s.size
	m.index(e)
	m.trim()
	return true
}

// change replaces what is kept under an id by what fn makes of it. fn must not write into the turn's slices. found is
// false if nothing is kept there; what does not fit stays as it was.
func (m *memory) change(id ownedID, fn func(*turn)) (found, fits bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trim()
	e := m.byID[id]
	if e == nil {
		return false, false
	}
	old := e.Value.(*stored)
	t := old.turn
	fn(&t)
	s := newStored(id, t)
	if s.size > m.limit {
		return true, false
	}
	m.unindex(e)
	e.Value = s
	m.bytes += s.size - old.size
	m.index(e)
	m.use(e)
	m.trim()
	return true, true
}

// grow counts n more bytes of what is kept under an id.
func (m *memory) grow(id ownedID, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.byID[id]; e != nil {
		e.Value.(*stored).size += int64(n)
		m.bytes += int64(n)
		m.use(e)
		m.trim()
	}
}

// index makes the items of an element known by their ids.
func (m *memory) index(e *list.Element) {
	s := e.Value.(*stored)
	for _, raw := range slices.Concat(s.input, s.output) {
		if id, ref := itemID(raw); id != "" && !ref {
			key := ownedID{s.key.owner, id}
			m.items[key] = keptItem{raw, e}
			s.ids = append(s.ids, key)
		}
	}
}

func (m *memory) unindex(e *list.Element) {
	for _, id := range e.Value.(*stored).ids {
		if m.items[id].owner == e { // a later response may have said it again
			delete(m.items, id)
		}
	}
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

// forget drops an element. A job whose answer has no place any more is of no use to anyone.
func (m *memory) forget(e *list.Element) {
	m.unindex(e)
	s := m.recent.Remove(e).(*stored)
	m.bytes -= s.size
	delete(m.byID, s.key)
	if s.job != nil {
		s.job.cancel(errClient)
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
