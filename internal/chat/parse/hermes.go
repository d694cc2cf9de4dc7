package parse

import (
	"encoding/json"
	"strings"
)

// hermes reads {"name": ..., "arguments": {...}}</tool_call>, the notation of
// Hermes and Qwen3. The arguments stream as they are written.
type hermes struct {
	p     *Parser
	state hermesState
	text  strings.Builder // the string being read
	value *jsonScan
	key   string
	name  string
	args  strings.Builder // arguments that stand before the name
	named bool            // the call has begun
	given bool            // arguments were given
	tail  string          // of the closing marker, still to come
	bare  bool            // no marker says that it is a call
}

type hermesState uint8

const (
	hermesOpen hermesState = iota
	hermesKey
	hermesKeyString
	hermesColon
	hermesValue // before the first byte of a value
	hermesInValue
	hermesComma
	hermesTail
)

const hermesTailText = "</tool_call>"

func newHermes(p *Parser, _ bool) call { return &hermes{p: p, tail: hermesTailText} }

// newJSONCall reads {"name": ..., "parameters": {...}} with nothing behind it: Llama 3's notation, where it is the
// whole answer or stands after <|python_tag|>, and with "arguments" an element of Mistral's lists. A bare one has
// its brace read already.
func newJSONCall(p *Parser, bare bool) call {
	h := &hermes{p: p}
	if bare {
		h.state = hermesKey
		h.bare = p.alone
		p.unsure = h.bare
	}
	return h
}

func (h *hermes) feed(c byte) status {
	if isJSONSpace(c) && h.state != hermesKeyString && h.state != hermesInValue &&
		(h.state != hermesTail || h.tail == hermesTailText) {
		return more
	}
	switch h.state {
	case hermesOpen:
		if c != '{' {
			return bad
		}
		h.state = hermesKey
	case hermesKey:
		if c == '}' && h.key == "" {
			return bad // a call without a name
		}
		if c != '"' {
			return bad
		}
		h.readString(hermesKeyString)
		h.value.feed(c)
	case hermesKeyString:
		switch h.value.feed(c) {
		case scanBad:
			return bad
		case scanDone:
			if json.Unmarshal([]byte(h.text.String()), &h.key) != nil {
				return bad
			}
			h.state = hermesColon
		}
	case hermesColon:
		if c != ':' {
			return bad
		}
		h.p.unsure = h.p.unsure && h.key != "name"
		h.state = hermesValue
	case hermesValue:
		isArgs := h.key == "arguments" || h.key == "parameters"
		if h.bare && !isArgs && h.key != "name" && h.key != "type" && h.key != "id" {
			return bad // JSON that is an answer
		}
		if isArgs && h.given || h.key == "name" && h.name != "" {
			return bad
		}
		h.state = hermesInValue
		h.text.Reset()
		// An object streams to the caller; everything else is judged at its end.
		if isArgs && c == '{' {
			h.given = true
			h.value = &jsonScan{out: h.argument}
		} else {
			h.value = &jsonScan{out: func(s string) { h.text.WriteString(s) }}
		}
		return h.inValue(c)
	case hermesInValue:
		return h.inValue(c)
	case hermesComma:
		switch c {
		case ',':
			h.state = hermesKey
		case '}':
			return h.endObject()
		default:
			return bad
		}
	case hermesTail:
		if h.tail[0] != c {
			return bad
		}
		h.tail = h.tail[1:]
		if h.tail == "" {
			return done
		}
	}
	return more
}

func (h *hermes) readString(s hermesState) {
	h.state = s
	h.text.Reset()
	h.value = &jsonScan{out: func(s string) { h.text.WriteString(s) }}
}

// argument passes arguments on once the call has a name.
func (h *hermes) argument(s string) {
	if h.named {
		h.p.arguments(s)
		return
	}
	h.args.WriteString(s)
}

func (h *hermes) inValue(c byte) status {
	switch h.value.feed(c) {
	case scanMore:
		return more
	case scanBad:
		return bad
	case scanDone:
		h.state = hermesComma
		return h.endValue()
	}
	// A number or literal ended before c.
	h.state = hermesComma
	if s := h.endValue(); s != more {
		return s
	}
	return h.feed(c)
}

func (h *hermes) endValue() status {
	switch h.key {
	case "name":
		if json.Unmarshal([]byte(h.text.String()), &h.name) != nil || h.bare && h.p.tools[h.name] == nil ||
			!h.p.begin(h.name) {
			return bad
		}
		h.named = true
		h.p.arguments(h.args.String())
		h.args.Reset()
	case "arguments", "parameters":
		if h.given {
			return more
		}
		// null, or the object once more inside a string
		h.given = true
		var s string
		if json.Unmarshal([]byte(h.text.String()), &s) != nil {
			return bad
		}
		if strings.TrimSpace(s) == "" {
			s = "{}"
		}
		obj, ok := repairJSON(strings.TrimSpace(s))
		if !ok || obj[0] != '{' {
			return bad
		}
		h.argument(obj)
	}
	return more
}

func (h *hermes) endObject() status {
	if !h.named {
		return bad
	}
	if !h.given {
		h.p.arguments("{}")
	}
	if h.tail == "" {
		return done
	}
	h.state = hermesTail
	h.p.settle()
	return more
}
