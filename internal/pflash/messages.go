package pflash

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
)

// Params says when and how conversations are compressed. Token counts are the scorer's, of contents only.
type Params struct {
	Trigger  int     // tokens from which on anything is compressed
	Growth   float64 // what was once compressed is so again when it has grown by this factor
	Keep     float64 // share of chunks to keep; 0 chooses by the length
	Chunk    int     // tokens
	Min      int     // messages with fewer tokens stay as they are
	Recent   int     // last messages that do
	LastMax  int     // tokens of the last user message from which on it is compressed, too
	LastTail int     // its last tokens, which stay then
	Head     int     // first chunks of a message that stay,
	Tail     int     // and last ones
	Radius   int     // chunks that stay around one with words of the question
	Snap     int     // bytes that a kept range may move to the end of a line
	MinGap   int     // bytes; shorter ranges are not worth leaving out
	Limit    int     // most tokens there may be; 0 means no limit
}

// DefaultParams returns what suits real models.
func DefaultParams() Params {
	return Params{Trigger: 32000, Growth: 1.25, Chunk: 32, Min: 512, Recent: 2, LastMax: 2048, LastTail: 512,
		Head: 1, Tail: 1, Radius: 2, Snap: 80, MinGap: 64}
}

// KeepRatio is the share of a text that is kept unless something else was asked for. With 0.05 long texts keep single
// facts, with 0.02 they lose some; short ones have less to spare.
func KeepRatio(tokens int) float64 {
	switch {
	case tokens >= 64<<10:
		return 0.05
	case tokens >= 32<<10:
		return 0.1
	}
	return 0.3
}

// Message is one message of a conversation.
type Message struct {
	Role, Text string
	More       string // whatever else it says that later messages depend on, such as tool calls
	Fixed      bool   // it has more than text and stays as it is
	Tokens     int
	Chunks     []Chunk // needed when it is compressed
	Hits       []int   // chunks with words of the question
}

// Chunk is a run of a message's tokens.
type Chunk struct {
	From, To int // bytes
	Tokens   int
	Score    float64
}

// form is what is left of a message.
type form struct {
	chunks []int // that are kept; nil for all
	spans  []span
	tokens int
}

// frozen is what was decided about a message and those before it.
type frozen struct {
	form  form
	floor int
}

type key [sha256.Size]byte

// Compressor compresses conversations. What a message was compressed to is remembered with everything said before
// it, so that the next request, which goes on, finds the same beginning. It may be used by any goroutine.
type Compressor struct {
	mu       sync.Mutex
	now, old map[key]frozen // now gets what was used since old was put away
}

// memory is how many messages are remembered at least, of those used last.
const memory = 1 << 14

// Turn is a compressed conversation.
type Turn struct {
	Texts         []string // of all messages
	Before, After int      // tokens
	TooLong       bool     // it exceeds the limit all the same

	compressed []int // messages, now
	known      int   // tokens, with what was compressed before
	floor      int
	forms      []form
}

// Turn compresses a conversation if it is long enough. Prepare is called when messages are to be compressed: it gives
// them Chunks and Hits. If it fails they stay as they are, and the error is returned with the result.
func (c *Compressor) Turn(msgs []Message, p Params, prepare func(which []int) error) (t Turn, err error) {
	keys := chain(msgs, p)
	t.forms = make([]form, len(msgs))
	c.mu.Lock()
	for i := range msgs {
		t.forms[i] = form{tokens: msgs[i].Tokens}
		if f, ok := c.find(keys[i]); ok {
			t.forms[i], t.floor = f.form, f.floor
		}
	}
	c.mu.Unlock()
	total := func() (n int) {
		for _, f := range t.forms {
			n += f.tokens
		}
		return n
	}
	for _, m := range msgs {
		t.Before += m.Tokens
	}
	try := func(recent, lastMax int) {
		which := candidates(msgs, t.forms, p, recent, lastMax)
		if len(which) == 0 || err != nil {
			return
		}
		if prepare != nil {
			err = prepare(which)
		}
		if err == nil {
			choose(msgs, which, p, t.forms)
			t.compressed = append(t.compressed, which...)
		}
	}
	if t.known = total(); t.known > max(p.Trigger, int(math.Floor(float64(t.floor)*p.Growth))) {
		try(p.Recent, p.LastMax)
		if p.Limit > 0 && total() > p.Limit {
			try(0, p.LastTail)
		}
	}
	if t.After = total(); len(t.compressed) > 0 {
		t.floor = t.After
	}
	slices.Sort(t.compressed)
	if err == nil {
		c.mu.Lock()
		for i := range msgs {
			c.keep(keys[i], frozen{t.forms[i], t.floor})
		}
		c.mu.Unlock()
	}
	t.TooLong = p.Limit > 0 && t.After > p.Limit
	for i, m := range msgs {
		text := m.Text
		if t.forms[i].chunks != nil {
			text = keptText(text, t.forms[i].spans, p.Snap, p.MinGap)
		}
		t.Texts = append(t.Texts, text)
	}
	return t, err
}

// chain returns a name for each message and all before it.
func chain(msgs []Message, p Params) []key {
	p.Trigger, p.Limit = 0, 0 // they say when, not how; the limit depends on what else is in the prompt
	last := sha256.Sum256(fmt.Append(nil, p))
	keys := make([]key, len(msgs))
	for i, m := range msgs {
		h := sha256.New()
		h.Write(last[:])
		for _, s := range []string{m.Role, m.Text, m.More} {
			binary.Write(h, binary.LittleEndian, int64(len(s)))
			h.Write([]byte(s))
		}
		h.Sum(last[:0])
		keys[i] = last
	}
	return keys
}

func (c *Compressor) find(k key) (frozen, bool) {
	f, ok := c.now[k]
	if !ok {
		f, ok = c.old[k]
	}
	return f, ok
}

func (c *Compressor) keep(k key, f frozen) {
	if len(c.now) >= memory || c.now == nil {
		c.now, c.old = map[key]frozen{}, c.now
	}
	c.now[k] = f
}

// candidates lists the messages that may be compressed: not those of the system, nor what was said last.
func candidates(msgs []Message, forms []form, p Params, recent, lastMax int) (which []int) {
	last := lastUser(msgs)
	for i, m := range msgs {
		switch {
		case m.Role == "system" || m.Role == "developer" || m.Fixed || forms[i].chunks != nil:
		case i == last && m.Tokens > lastMax, i != last && i < len(msgs)-recent && m.Tokens >= p.Min:
			which = append(which, i)
		}
	}
	return which
}

// lastUser is the last message of the user, -1 if there is none.
func lastUser(msgs []Message) int {
	for i := len(msgs) - 1; i >= 0; i-- {
		if msgs[i].Role == "user" {
			return i
		}
	}
	return -1
}

// choose decides which chunks of some messages are kept.
func choose(msgs []Message, which []int, p Params, forms []form) {
	type place struct{ message, chunk int }
	var all []place
	chosen := map[place]bool{}
	tokens := 0
	last := lastUser(msgs)
	for _, i := range which {
		m := &msgs[i]
		n := len(m.Chunks)
		tokens += m.Tokens
		keep := func(from, to int) {
			for b := max(0, from); b < min(n, to); b++ {
				chosen[place{i, b}] = true
			}
		}
		for b := range n {
			all = append(all, place{i, b})
		}
		keep(0, p.Head)
		keep(n-p.Tail, n)
		if i == last {
			left := 0
			for b := n - 1; b >= 0 && left < p.LastTail; b-- {
				keep(b, b+1)
				left += m.Chunks[b].Tokens
			}
		}
		for _, b := range m.Hits {
			keep(b-p.Radius, b+p.Radius+1)
		}
	}
	ratio := p.Keep
	if ratio == 0 {
		ratio = KeepRatio(tokens)
	}
	budget := max(len(which), int(math.Floor(ratio*float64(len(all))+1e-9)))
	slices.SortStableFunc(all, func(a, b place) int {
		return cmp.Compare(msgs[b.message].Chunks[b.chunk].Score, msgs[a.message].Chunks[a.chunk].Score)
	})
	for _, x := range all {
		if len(chosen) >= budget {
			break
		}
		chosen[x] = true
	}
	for _, i := range which {
		f := form{}
		for b, c := range msgs[i].Chunks {
			if chosen[place{i, b}] {
				f.chunks, f.spans, f.tokens = append(f.chunks, b), append(f.spans, span{c.From, c.To}), f.tokens+c.Tokens
			}
		}
		if len(f.chunks) < len(msgs[i].Chunks) {
			forms[i] = f
		}
	}
}
