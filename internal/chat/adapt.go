package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"strobe/internal/chat/jinja"
)

// shape is one way to present messages to a template.
type shape struct {
	decodeArguments bool // JSON text of arguments becomes an object
	textArguments   bool // objects become JSON text
	emptyContent    bool // null content becomes ""
	mergeSystem     bool // all system messages become one, in front
	thinking        bool // reasoning is called "thinking", too
	joinThinking    bool // what is said before a call becomes part of the reasoning
}

// caps is what a template was found to understand.
type caps struct {
	parts     bool // content as a list of parts
	needParts bool // content only as a list of parts
	system    bool // a system message
	developer bool // the developer role
	oneSystem bool // later messages of the system are left out
	oneCall   bool // of the calls of a message, all but the first are left out
	thinking  bool // reasoning is a message's "thinking", not its "reasoning_content"
}

// try renders a small conversation. What cannot be rendered is empty.
func (t *Template) try(msgs ...Message) string {
	list, err := values(msgs, shape{})
	if err != nil {
		return ""
	}
	vars := jinja.NewDict()
	vars.Set("messages", list)
	vars.Set("tools", nil)
	vars.Set("documents", nil)
	vars.Set("add_generation_prompt", true)
	vars.Set("bos_token", "")
	vars.Set("eos_token", "")
	text, _ := t.jinja.Render(vars, jinja.Options{Limits: jinja.Limits{Steps: 1_000_000, Bytes: 16 << 20}})
	return text
}

// word and sysWord are what is looked for in small conversations.
const word, sysWord, lateWord = "zqxprobe", "zqxsystem", "zqxlater"

// Shows reports whether what a role says becomes part of the prompt. Templates know the usual roles and leave out
// others, or refuse them.
func (t *Template) Shows(role string) bool {
	if slices.Contains([]string{"system", "developer", "user", "assistant", "tool"}, role) {
		return true
	}
	said := t.try(Message{Role: "user", Content: "?"}, Message{Role: role, Content: word})
	return strings.Contains(said, word)
}

// findCaps renders small conversations and looks where their words end up.
func (t *Template) findCaps() {
	asString := strings.Contains(t.try(Message{Role: "user", Content: word}), word)
	parts := t.try(Message{Role: "user", Content: []Part{{Type: "text", Text: word}}})
	// A template that does not know parts may print the list instead.
	t.caps.parts = strings.Contains(parts, word) && !strings.Contains(parts, "'text'") &&
		!strings.Contains(parts, `"text"`)
	t.caps.needParts = t.caps.parts && !asString
	sys := Message{Role: "system", Content: any(sysWord)}
	user := Message{Role: "user", Content: any(word)}
	if t.caps.needParts {
		sys.Content = []Part{{Type: "text", Text: sysWord}}
		user.Content = []Part{{Type: "text", Text: word}}
	}
	// Without any sign of life the template wants something the probe lacks;
	// leave the messages alone then.
	alive := asString || t.caps.parts
	t.caps.system = !alive || strings.Contains(t.try(sys, user), sysWord)
	t.caps.developer = t.jinja.HasString("developer")
	late := sys
	late.Content = any(lateWord)
	if t.caps.needParts {
		late.Content = []Part{{Type: "text", Text: lateWord}}
	}
	text := t.try(sys, user, late)
	t.caps.oneSystem = strings.Contains(text, sysWord) && !strings.Contains(text, lateWord)
	object := json.RawMessage("{}")
	text = t.try(user, Message{Role: "assistant", Content: "",
		ToolCalls: []ToolCall{{Name: sysWord, Arguments: object}, {Name: lateWord, Arguments: object}}})
	t.caps.oneCall = strings.Contains(text, sysWord) && !strings.Contains(text, lateWord)
	t.caps.thinking = t.jinja.HasString("thinking") && !t.jinja.HasString("reasoning_content") &&
		!t.jinja.HasName("reasoning_content")
}

// shapes lists the presentations worth trying for these messages, best first.
func (t *Template) shapes(msgs []Message) []shape {
	var hasNull, hasCalls, hasBoth bool
	systems, late := 0, false
	for i, m := range msgs {
		hasNull = hasNull || m.Content == nil
		hasCalls = hasCalls || len(m.ToolCalls) > 0
		hasBoth = hasBoth || len(m.ToolCalls) > 0 && m.Reasoning != "" && m.Text() != ""
		if m.Role == "system" || m.Role == "developer" {
			systems++
			late = late || i > 0
		}
	}
	several := systems > 1 || late
	out := []shape{{decodeArguments: true, thinking: t.caps.thinking, mergeSystem: several && t.caps.oneSystem}}
	vary := func(applies bool, change func(*shape)) {
		if !applies {
			return
		}
		for _, s := range slices.Clone(out) {
			change(&s)
			out = append(out, s)
		}
	}
	vary(hasNull, func(s *shape) { s.emptyContent = true })
	vary(hasBoth && t.caps.thinking, func(s *shape) { s.joinThinking = true })
	vary(several && !t.caps.oneSystem, func(s *shape) { s.mergeSystem = true })
	vary(hasCalls, func(s *shape) { s.decodeArguments, s.textArguments = false, true })
	return out
}

// adapt changes roles and content to what the template takes. The caller's
// messages stay as they are.
func (t *Template) adapt(msgs []Message, s shape) ([]Message, error) {
	out := slices.Clone(msgs)
	for i := range out {
		m := &out[i]
		if m.Role == "developer" && !t.caps.developer {
			m.Role = "system"
		}
		if s.joinThinking && len(m.ToolCalls) > 0 && m.Reasoning != "" && m.Text() != "" {
			m.Reasoning += "\n\n" + m.Text()
			m.Content = ""
		}
		switch c := m.Content.(type) {
		case []Part:
			if t.caps.parts {
				m.Content = plainParts(c)
				break
			}
			for _, p := range c {
				if !p.IsText() {
					return nil, fmt.Errorf("messages[%d]: the model's template takes text only, not a part of type %q", i, p.Type)
				}
			}
			m.Content = m.Text()
		case string:
			if t.caps.needParts {
				m.Content = []Part{{Type: "text", Text: c}}
			}
		case nil:
			if s.emptyContent {
				m.Content = ""
				m.keys = present(m.keys, "content")
			}
		}
	}
	if s.mergeSystem {
		out = mergeSystem(out)
	}
	if !t.caps.system {
		out = systemIntoUser(out)
	}
	if t.caps.oneCall {
		out = splitCalls(out)
	}
	return out, nil
}

// splitCalls gives every call a message of its own, followed by its results.
func splitCalls(msgs []Message) []Message {
	var out []Message
	for i := 0; i < len(msgs); i++ {
		m := msgs[i]
		if len(m.ToolCalls) < 2 {
			out = append(out, m)
			continue
		}
		var results []Message
		for i+1 < len(msgs) && msgs[i+1].Role == "tool" {
			i++
			results = append(results, msgs[i])
		}
		for j, call := range m.ToolCalls {
			one := Message{Role: m.Role, Content: ""}
			if j == 0 {
				one = m
			}
			one.ToolCalls = []ToolCall{call}
			out = append(out, one)
			last := j == len(m.ToolCalls)-1
			results = slices.DeleteFunc(results, func(r Message) bool {
				mine := last || call.ID != "" && r.ToolCallID == call.ID
				if mine {
					out = append(out, r)
				}
				return mine
			})
			// Results without an id come in the order of the calls.
			if !last && len(results) > 0 && results[0].ToolCallID == "" {
				out = append(out, results[0])
				results = results[1:]
			}
		}
	}
	return out
}

// plainParts gives the text parts of other APIs the type templates know.
func plainParts(parts []Part) []Part {
	out := slices.Clone(parts)
	for i, p := range out {
		if p.IsText() && p.Type != "text" {
			out[i] = Part{Type: "text", Text: p.Text}
		}
	}
	return out
}

// present adds a key that a message from JSON did not have.
func present(keys []string, key string) []string {
	if keys == nil || slices.Contains(keys, key) {
		return keys
	}
	return append(slices.Clone(keys), key)
}

func mergeSystem(msgs []Message) []Message {
	var texts []string
	rest := []Message{{Role: "system"}}
	for _, m := range msgs {
		if m.Role == "system" || m.Role == "developer" {
			if s := m.Text(); s != "" {
				texts = append(texts, s)
			}
			continue
		}
		rest = append(rest, m)
	}
	rest[0].Content = strings.Join(texts, "\n\n")
	return rest
}

// systemIntoUser puts the system text before the first user message, for
// models that have no system role.
func systemIntoUser(msgs []Message) []Message {
	var texts []string
	var rest []Message
	for _, m := range msgs {
		if m.Role == "system" {
			texts = append(texts, m.Text())
			continue
		}
		rest = append(rest, m)
	}
	if len(texts) == 0 {
		return msgs
	}
	sys := strings.Join(texts, "\n\n")
	for i := range rest {
		if rest[i].Role != "user" {
			continue
		}
		switch c := rest[i].Content.(type) {
		case string:
			rest[i].Content = sys + "\n\n" + c
		case []Part:
			rest[i].Content = append([]Part{{Type: "text", Text: sys + "\n\n"}}, c...)
		}
		return rest
	}
	return append([]Message{{Role: "user", Content: sys}}, rest...)
}

// values converts messages to what a template sees. Keys keep the order they
// were sent in; a key that was absent stays absent.
func values(msgs []Message, s shape) (*jinja.List, error) {
	list := jinja.NewList()
	for i := range msgs {
		d, err := msgs[i].value(s)
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		list.Items = append(list.Items, d)
	}
	return list, nil
}

func (m *Message) value(s shape) (*jinja.Dict, error) {
	d := jinja.NewDict()
	set := func(key string) error {
		var v any
		var err error
		switch key {
		case "role":
			v = m.Role
		case "content":
			v, err = contentValue(m.Content)
		case "reasoning_content":
			v = orNone(m.Reasoning, m.null(key))
		case "tool_calls":
			if m.ToolCalls != nil {
				v, err = callValues(m.ToolCalls, s)
			}
		case "tool_call_id":
			v = orNone(m.ToolCallID, m.null(key))
		case "name":
			v = orNone(m.Name, m.null(key))
		default:
			for _, f := range m.Extra {
				if f.Key == key {
					v, err = jinja.FromJSON(f.Value)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		d.Set(key, v)
		return nil
	}
	keys := m.keys
	if keys == nil {
		keys = []string{"role", "content"}
		for _, f := range m.Extra {
			keys = append(keys, f.Key)
		}
	}
	for _, k := range keys {
		if err := set(k); err != nil {
			return nil, err
		}
	}
	if s.thinking && m.Reasoning != "" {
		d.Set("thinking", m.Reasoning)
	}
	for _, f := range []struct {
		key string
		has bool
	}{
		{"reasoning_content", m.Reasoning != ""},
		{"tool_calls", len(m.ToolCalls) > 0},
		{"tool_call_id", m.ToolCallID != ""},
		{"name", m.Name != ""},
	} {
		if _, ok := d.Get(f.key); f.has && !ok {
			if err := set(f.key); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

// null reports whether the message has this key set to null.
func (m *Message) null(key string) bool {
	return slices.ContainsFunc(m.Extra, func(f Field) bool { return f.Key == key && isNull(f.Value) })
}

func orNone(s string, null bool) any {
	if s == "" && null {
		return nil
	}
	return s
}

func contentValue(c any) (any, error) {
	switch c := c.(type) {
	case nil:
		return nil, nil
	case string:
		return c, nil
	case []Part:
		l := jinja.NewList()
		for i, p := range c {
			if p.Raw != nil {
				v, err := jinja.FromJSON(p.Raw)
				if err != nil {
					return nil, fmt.Errorf("part %d: %w", i, err)
				}
				l.Items = append(l.Items, v)
				continue
			}
			d := jinja.NewDict()
			d.Set("type", p.Type)
			d.Set("text", p.Text)
			l.Items = append(l.Items, d)
		}
		return l, nil
	}
	return nil, fmt.Errorf("must be nil, a string or parts, not %T", c)
}

func callValues(calls []ToolCall, s shape) (any, error) {
	l := jinja.NewList()
	for i, c := range calls {
		d := jinja.NewDict()
		if c.ID != "" {
			d.Set("id", c.ID)
		}
		typ := c.Type
		if typ == "" {
			typ = "function"
		}
		d.Set("type", typ)
		f := jinja.NewDict()
		f.Set("name", c.Name)
		args, err := argumentsValue(c, s)
		if err != nil {
			return nil, fmt.Errorf("call %d: arguments: %w", i, err)
		}
		if c.Arguments != nil {
			f.Set("arguments", args)
		}
		d.Set("function", f)
		l.Items = append(l.Items, d)
	}
	return l, nil
}

func argumentsValue(c ToolCall, s shape) (any, error) {
	if c.Arguments == nil {
		return nil, nil
	}
	if s.textArguments {
		return c.ArgumentsText(), nil
	}
	v, err := jinja.FromJSON(c.Arguments)
	if err != nil {
		return nil, err
	}
	text, ok := v.(string)
	if !ok || !s.decodeArguments {
		return v, nil
	}
	if strings.TrimSpace(text) == "" { // what clients send for a call without arguments
		return jinja.NewDict(), nil
	}
	// Text that is no JSON object goes to the template as it is.
	if obj, err := jinja.FromJSON(json.RawMessage(text)); err == nil {
		if _, ok := obj.(*jinja.Dict); ok {
			return obj, nil
		}
	}
	return text, nil
}
