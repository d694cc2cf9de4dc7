package upstream

import (
	"bytes"
	"encoding/json"
	"sync/atomic"
)

// Usage counts what replicas said of their answers.
type Usage struct {
	Prompt, Cached, Generated int64 // tokens; those cached are part of the prompt
	Guessed, Accepted         int64 // drafted tokens, from servers that tell (Strobe, llama.cpp)
}

// usage adds up.
type usage struct{ prompt, cached, generated, guessed, accepted atomic.Int64 }

func (u *usage) add(x Usage) {
	u.prompt.Add(x.Prompt)
	u.cached.Add(x.Cached)
	u.generated.Add(x.Generated)
	u.guessed.Add(x.Guessed)
	u.accepted.Add(x.Accepted)
}

func (u *usage) sum() Usage {
	return Usage{u.prompt.Load(), u.cached.Load(), u.generated.Load(), u.guessed.Load(), u.accepted.Load()}
}

// maxTail is how much of an answer's end is kept: its last events have the counts.
const maxTail = 4096

// tail keeps the end of what is written to it.
type tail struct{ buf []byte }

func (t *tail) add(p []byte) {
	t.buf = append(t.buf, p[max(0, len(p)-maxTail):]...)
	if len(t.buf) > 2*maxTail {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-maxTail:]...)
	}
}

// usage reads the counts, whole or streamed, in OpenAI's and Anthropic's words, and llama.cpp's timings.
func (t *tail) usage() (u Usage) {
	var c struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Details    struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		Input  int64 `json:"input_tokens"` // without what was cached
		Read   int64 `json:"cache_read_input_tokens"`
		Output int64 `json:"output_tokens"`
	}
	if t.last("usage", &c) {
		u = Usage{Prompt: c.Prompt + c.Input + c.Read, Cached: c.Details.Cached + c.Read, Generated: c.Completion + c.Output}
	}
	var x struct {
		Prompt    int64 `json:"prompt_n"` // without what was cached
		Cached    int64 `json:"cache_n"`
		Predicted int64 `json:"predicted_n"`
		Drafted   int64 `json:"draft_n"`
		Accepted  int64 `json:"draft_n_accepted"`
	}
	if t.last("timings", &x) {
		if u == (Usage{}) {
			u = Usage{Prompt: x.Prompt + x.Cached, Cached: x.Cached, Generated: x.Predicted}
		}
		u.Guessed, u.Accepted = x.Drafted, x.Accepted
	}
	return u
}

// last decodes the last object of a name.
func (t *tail) last(name string, v any) bool {
	key := []byte(`"` + name + `"`)
	for rest := t.buf; ; {
		i := bytes.LastIndex(rest, key)
		if i < 0 {
			return false
		}
		value := bytes.TrimLeft(t.buf[i+len(key):], ": \t\n")
		if bytes.HasPrefix(value, []byte("{")) && json.NewDecoder(bytes.NewReader(value)).Decode(v) == nil {
			return true
		}
		rest = rest[:i]
	}
}
