package upstream

import (
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
)

// maxKeyed bounds how much of a text without messages counts as its beginning: enough to tell documents apart, little
// enough to stay the same while one is written.
const maxKeyed = 2048

// Key stands for the beginning of a request: of a conversation everything up to its first message by the user, which
// no later turn changes, of another prompt its first characters. Requests with the same key find each
// other's prefixes in a cache. 0 is a request without a beginning.
func Key(body []byte) uint64 {
	var q struct {
		Model        string          `json:"model"`
		System       json.RawMessage `json:"system"`
		Instructions json.RawMessage `json:"instructions"`
		Messages     []message       `json:"messages"`
		Input        json.RawMessage `json:"input"`
		Prompt       json.RawMessage `json:"prompt"`
	}
	if json.Unmarshal(body, &q) != nil {
		return 0
	}
	h := fnv.New64a()
	written := false
	put := func(raw []byte) {
		written = written || len(raw) > 0
		_, _ = h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(raw)))) // so that pieces do not run together
		_, _ = h.Write(raw)
	}
	put(q.System)
	put(q.Instructions)
	var items []message
	if json.Unmarshal(q.Input, &items) == nil && q.Messages == nil {
		q.Messages = items
	} else if q.Prompt == nil {
		q.Prompt = q.Input
	}
	for _, m := range q.Messages {
		put([]byte(m.Role))
		put(m.Content)
		if m.Role == "user" {
			break
		}
	}
	if q.Messages == nil {
		put(q.Prompt[:min(len(q.Prompt), maxKeyed)])
	}
	if !written {
		return 0
	}
	return max(1, h.Sum64())
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}
