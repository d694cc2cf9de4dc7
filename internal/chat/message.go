package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Message is one turn of a conversation. Its JSON form is that of the OpenAI
// chat API; fields this package does not know are passed to the template.
type Message struct {
	Role       string
	Content    any    // nil, string or []Part
	Reasoning  string // "reasoning_content", the model's thinking before the answer
	ToolCalls  []ToolCall
	ToolCallID string // of a tool result: the call it answers
	Name       string
	Extra      []Field

	// keys are the JSON keys in the order they were sent, nil for a message made in
	// Go. Templates ask whether a key is present at all.
	keys []string
}

// Field is a JSON member this package has no name for.
type Field struct {
	Key   string
	Value json.RawMessage
}

// Part is one piece of a message's content.
type Part struct {
	Type string // "text", "image_url", ...
	Text string
	Raw  json.RawMessage // the part as received; nil for one built in Go
	At   string          // what a client calls the part, for errors; "" means by its place among the messages
}

// ToolCall is a function the model wants called.
type ToolCall struct {
	ID   string
	Type string // "function" when empty
	Name string
	// Arguments is the JSON value as received: an object, or a string that
	// holds JSON text, which is what OpenAI's clients send.
	Arguments json.RawMessage
}

// FieldError says which field of a message has a wrong value.
type FieldError struct{ Field, Msg string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Msg }

func fieldError(field, format string, args ...any) error {
	return &FieldError{field, fmt.Sprintf(format, args...)}
}

// Text returns the text of the content: the string, or the text parts joined.
func (m *Message) Text() string {
	switch c := m.Content.(type) {
	case string:
		return c
	case []Part:
		var texts []string
		for _, p := range c {
			if p.IsText() {
				texts = append(texts, p.Text)
			}
		}
		return strings.Join(texts, "\n")
	}
	return ""
}

// IsText reports whether the part is text, under any of the names APIs have for it.
func (p *Part) IsText() bool {
	return p.Type == "text" || p.Type == "input_text" || p.Type == "output_text"
}

// ArgumentsText returns the arguments as JSON text, whether they came as an
// object or as a string.
func (c *ToolCall) ArgumentsText() string {
	var s string
	if json.Unmarshal(c.Arguments, &s) == nil {
		return s
	}
	return string(c.Arguments)
}

func isNull(raw json.RawMessage) bool { return string(bytes.TrimSpace(raw)) == "null" }

// UnmarshalJSON reads a message and names the field that is wrong. Content may
// be null, a string or a list of parts.
func (m *Message) UnmarshalJSON(data []byte) error {
	members, err := members(data)
	if err != nil {
		return fieldError("message", "%v", err)
	}
	*m = Message{}
	for _, f := range members {
		if slices.Contains(m.keys, f.Key) {
			return fieldError(f.Key, "given twice")
		}
		m.keys = append(m.keys, f.Key)
		if f.Key != "content" && isNull(f.Value) {
			m.Extra = append(m.Extra, f) // a null stays a null for the template
			continue
		}
		str := func(dst *string) error {
			if json.Unmarshal(f.Value, dst) != nil {
				return fieldError(f.Key, "must be a string")
			}
			return nil
		}
		switch f.Key {
		case "role":
			err = str(&m.Role)
		case "content":
			m.Content, err = decodeContent(f.Value)
		case "reasoning_content":
			err = str(&m.Reasoning)
		case "tool_calls":
			m.ToolCalls, err = decodeCalls(f.Value)
		case "tool_call_id":
			err = str(&m.ToolCallID)
		case "name":
			err = str(&m.Name)
		default:
			m.Extra = append(m.Extra, f)
		}
		if err != nil {
			return err
		}
	}
	if m.Role == "" {
		return fieldError("role", "missing")
	}
	// The newer spelling of the same thing; both stay visible to templates.
	if m.Reasoning == "" {
		for _, f := range m.Extra {
			if f.Key == "reasoning" {
				_ = json.Unmarshal(f.Value, &m.Reasoning) // another type is someone else's field
			}
		}
	}
	return nil
}

// members splits a JSON object into its members, in order.
func members(data []byte) ([]Field, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('{') {
		return nil, fmt.Errorf("must be an object")
	}
	var out []Field
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return nil, err
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		out = append(out, Field{k.(string), v}) // the decoder accepts no other kind of key
	}
	_, err = d.Token()
	return out, err
}

func decodeContent(raw json.RawMessage) (any, error) {
	if isNull(raw) {
		return nil, nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil, fieldError("content", "must be a string or a list of parts")
	}
	parts := make([]Part, len(list))
	for i, p := range list {
		if err := json.Unmarshal(p, &parts[i]); err != nil {
			return nil, fieldError(fmt.Sprintf("content[%d]", i), "%v", err)
		}
	}
	return parts, nil
}

// UnmarshalJSON reads a part and keeps its JSON for the template.
func (p *Part) UnmarshalJSON(data []byte) error {
	var v struct {
		Type *string
		Text *string
	}
	if json.Unmarshal(data, &v) != nil {
		return fmt.Errorf("must be an object with a type")
	}
	if v.Type == nil {
		return fmt.Errorf("type is missing")
	}
	*p = Part{Type: *v.Type, Raw: bytes.Clone(data)}
	if v.Text != nil {
		p.Text = *v.Text
	} else if p.IsText() {
		return fmt.Errorf("text is missing")
	}
	return nil
}

// MarshalJSON writes the part as received.
func (p Part) MarshalJSON() ([]byte, error) {
	if p.Raw != nil {
		return p.Raw, nil
	}
	return json.Marshal(struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}{p.Type, p.Text})
}

func decodeCalls(raw json.RawMessage) ([]ToolCall, error) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil, fieldError("tool_calls", "must be a list")
	}
	calls := make([]ToolCall, len(list))
	for i, c := range list {
		if err := json.Unmarshal(c, &calls[i]); err != nil {
			return nil, fieldError(fmt.Sprintf("tool_calls[%d]", i), "%v", err)
		}
	}
	return calls, nil
}

// UnmarshalJSON reads {"id","type","function":{"name","arguments"}}.
func (c *ToolCall) UnmarshalJSON(data []byte) error {
	var v struct {
		ID       string
		Type     string
		Function *struct {
			Name      string
			Arguments json.RawMessage
		}
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("must be an object with id, type and function")
	}
	if v.Function == nil || v.Function.Name == "" {
		return fmt.Errorf("function.name is missing")
	}
	*c = ToolCall{ID: v.ID, Type: v.Type, Name: v.Function.Name, Arguments: v.Function.Arguments}
	return nil
}

// MarshalJSON writes the call as OpenAI does, with the arguments as text.
func (c ToolCall) MarshalJSON() ([]byte, error) {
	type function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	typ := c.Type
	if typ == "" {
		typ = "function"
	}
	return marshal(struct {
		ID       string   `json:"id"`
		Type     string   `json:"type"`
		Function function `json:"function"`
	}{c.ID, typ, function{c.Name, c.ArgumentsText()}})
}

// MarshalJSON writes the message in OpenAI's shape.
func (m Message) MarshalJSON() ([]byte, error) {
	type member struct {
		key   string
		value any
		given bool
	}
	list := []member{
		{"role", m.Role, true}, {"content", m.Content, true}, {"reasoning_content", m.Reasoning, m.Reasoning != ""},
		{"tool_calls", m.ToolCalls, len(m.ToolCalls) > 0}, {"tool_call_id", m.ToolCallID, m.ToolCallID != ""},
		{"name", m.Name, m.Name != ""},
	}
	for _, f := range m.Extra {
		list = append(list, member{f.Key, f.Value, !isNull(f.Value)})
	}
	b := []byte{'{'}
	for _, f := range list {
		if !f.given {
			continue
		}
		key, err := marshal(f.key)
		if err != nil {
			return nil, err
		}
		value, err := marshal(f.value)
		if err != nil {
			return nil, err
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = slices.Concat(b, key, []byte{':'}, value)
	}
	return append(b, '}'), nil
}

// marshal is json.Marshal without escaping <, > and &, which prompts are full of.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
