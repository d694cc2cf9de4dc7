package loadgen

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Settings are what is sent to every target. Their names in errors are those of the command's flags.
type Settings struct {
	Endpoint string `json:"endpoint"` // Chat or Completions
	// Clients are numbers of requests at a time, measured one after the other. 0 has no limit and needs a Rate.
	Clients []int `json:"clients"`
	// Rate is how many requests (conversations) begin in a second, at random times (Poisson); 0: whenever a client is free.
	Rate     float64 `json:"rate"`
	Requests int     `json:"requests"` // of one run; with Turns: conversations
	Rounds   int     `json:"rounds"`
	Warmup   int     `json:"warmup"` // requests before the first round of every setting; -1: one for each client

	InputLen    int     `json:"input_len"` // tokens of a prompt, about
	OutputLen   int     `json:"output_len"`
	PrefixShare float64 `json:"prefix_share"` // of a prompt: common to all of them
	Turns       int     `json:"turns"`
	TurnLen     int     `json:"turn_len"` // tokens of the user's text in later turns, about
	Seed        uint64  `json:"seed"`
	SendSeed    bool    `json:"send_seed"` // requests have seeds of their own
	IgnoreEOS   bool    `json:"ignore_eos"`

	Body    map[string]any `json:"body"` // further fields of requests
	Prompts []Prompt       `json:"-"`    // instead of random words
	Source  string         `json:"prompts,omitempty"`
	Timeout time.Duration  `json:"timeout_ns"` // of a request; 0: none
}

// Endpoints.
const (
	Chat        = "chat"
	Completions = "completions"
)

// Target is a server, or one way to ask it.
type Target struct {
	Name  string         `json:"name"`
	URL   string         `json:"url"`
	Model string         `json:"model"` // empty: the first that the server lists
	Key   string         `json:"-"`
	Body  map[string]any `json:"body,omitempty"` // added to those of the settings
}

// Prompt is a conversation to be answered or, if Raw, a text to be continued.
type Prompt struct {
	Messages []Message
	Raw      bool
}

// Message is one of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Check says what is wrong with settings.
func (s *Settings) Check() error {
	if s.Endpoint != Chat && s.Endpoint != Completions {
		return fmt.Errorf("--endpoint %q: want %s or %s", s.Endpoint, Chat, Completions)
	}
	for _, x := range []struct {
		name              string
		value, from, most int
	}{
		{"requests", s.Requests, 1, 10_000_000}, {"rounds", s.Rounds, 1, 1000}, {"warmup", s.Warmup, -1, 1_000_000},
		{"input-len", s.InputLen, 1, 1 << 22}, {"output-len", s.OutputLen, 1, 1 << 20}, {"turns", s.Turns, 1, 1000},
		{"turn-len", s.TurnLen, 1, 1 << 20},
	} {
		if x.value < x.from || x.value > x.most {
			return fmt.Errorf("--%s %d: want %d to %d", x.name, x.value, x.from, x.most)
		}
	}
	if len(s.Clients) == 0 {
		return fmt.Errorf("--clients: want at least one number")
	}
	for i, n := range s.Clients {
		if slices.Contains(s.Clients[:i], n) {
			return fmt.Errorf("--clients: %d is there twice", n)
		}
		if n < 0 || n > 10_000 || n == 0 && s.Rate == 0 {
			return fmt.Errorf("--clients %d: want 1 to 10000, or 0 (no limit) with --rate", n)
		}
	}
	if !(s.Rate >= 0 && s.Rate <= 1e6) {
		return fmt.Errorf("--rate %g: want 0 to 1e6 requests per second", s.Rate)
	}
	if !(s.PrefixShare >= 0 && s.PrefixShare <= 1) {
		return fmt.Errorf("--prefix-share %g: want 0 to 1", s.PrefixShare)
	}
	if s.PrefixShare > 0 && len(s.Prompts) > 0 {
		return fmt.Errorf("--prefix-share belongs to random prompts, --prompts has its own")
	}
	if s.Timeout < 0 {
		return fmt.Errorf("--timeout %v: want at least 0", s.Timeout)
	}
	return nil
}

// normal brings an address into the form that paths are appended to.
func normal(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("%q: want an address such as http://127.0.0.1:8080", address)
	}
	return strings.TrimSuffix(strings.TrimSuffix(address, "/"), "/v1"), nil
}

// Set sets a field of a request; dots lead into objects ("strobe.draft"). What is there is copied, not changed.
func Set(body map[string]any, field string, value any) (map[string]any, error) {
	out := maps.Clone(body)
	if out == nil {
		out = map[string]any{}
	}
	name, rest, nested := strings.Cut(field, ".")
	if name == "" {
		return nil, fmt.Errorf("%q: want the name of a field of requests", field)
	}
	if !nested {
		out[name] = value
		return out, nil
	}
	inner, isObject := out[name].(map[string]any)
	if out[name] != nil && !isObject {
		return nil, fmt.Errorf("%q: %s is not an object", field, name)
	}
	inner, err := Set(inner, rest, value)
	if err != nil {
		return nil, err
	}
	out[name] = inner
	return out, nil
}

// fields are those of a target's requests that are the same for all of them.
func (s *Settings) fields(t *Target) map[string]any {
	out := map[string]any{}
	maps.Copy(out, s.Body)
	for name, v := range t.Body { // objects are merged, one level deep
		a, ok1 := out[name].(map[string]any)
		b, ok2 := v.(map[string]any)
		if ok1 && ok2 {
			both := maps.Clone(a)
			maps.Copy(both, b)
			v = both
		}
		out[name] = v
	}
	out["model"], out["stream"], out["max_tokens"] = t.Model, true, s.OutputLen
	if n, isNumber := out["logprobs"].(float64); isNumber {
		switch {
		case n <= 0:
			delete(out, "logprobs")
		case s.Endpoint == Chat: // completions have the number in this field
			out["logprobs"], out["top_logprobs"] = true, int(n)
		}
	}
	return out
}

// copies counts the targets before one that are the same server, and those of all of it.
func copies(targets []*target, i int) (before, all int) {
	for j, t := range targets {
		if t.URL == targets[i].URL {
			all++
			if j < i {
				before++
			}
		}
	}
	return before, all
}

// sortedKeys are the keys of errors and fields, for output that is the same every time.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
