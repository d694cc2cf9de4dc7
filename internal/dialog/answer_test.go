package dialog

import (
	"encoding/json"
	"strings"
	"testing"

	"strobe/internal/chat/parse"
)

// TestAnswerSplits: reasoning, text and tool calls are told apart however the output is cut.
func TestAnswerSplits(t *testing.T) {
	const template = "<think> <tool_call> {\"name\": arguments}"
	tool := []byte(`{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}`)
	said := "First I thünk.\n</think>\n\nThen I say 🙂.\n" +
		"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"
	for size := 1; size < len(said); size++ {
		a := &Answer{parser: parse.For(template, []json.RawMessage{tool}, true)}
		var ps []Piece
		for s := said; s != ""; {
			n := min(size, len(s))
			ps = a.take(ps, s[:n], true)
			s = s[n:]
		}
		ps = a.add(ps, a.parser.Close(), false)
		var thought, text string
		for _, p := range ps {
			if p.Reasoning {
				thought += p.Text
			} else {
				text += p.Text
			}
		}
		if strings.TrimSpace(thought) != "First I thünk." || strings.TrimSpace(text) != "Then I say 🙂." {
			t.Errorf("pieces of %d: thought %q, said %q", size, thought, text)
		}
		m := a.Message()
		if m.Reasoning != thought || m.Text() != text || a.Text() != text || len(m.ToolCalls) != 1 {
			t.Fatalf("pieces of %d: message %+v", size, m)
		}
		if c := m.ToolCalls[0]; c.Name != "f" || strings.TrimSpace(string(c.Arguments)) != `{"a": 1}` {
			t.Errorf("pieces of %d: call %+v", size, c)
		}
	}
}
