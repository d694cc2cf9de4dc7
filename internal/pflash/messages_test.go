package pflash

import (
	"strings"
	"testing"
)

// said is a message of n chunks with scores that rise, each of 10 tokens and 10 bytes.
func said(role, letter string, n int) Message {
	m := Message{Role: role, Text: strings.Repeat(letter+"23456789\n", n), Tokens: 10 * n}
	for i := range n {
		m.Chunks = append(m.Chunks, Chunk{From: 10 * i, To: 10 * (i + 1), Tokens: 10, Score: float64(i)})
	}
	return m
}

// TestCompressorKey: what was decided about a message holds for the same conversation with the same settings only.
// A conversation that differs anywhere at or before the message is compressed anew.
func TestCompressorKey(t *testing.T) {
	talk := func() []Message {
		return []Message{said("user", "a", 40), said("assistant", "b", 2), said("user", "c", 2)}
	}
	params := Params{Trigger: 100, Growth: 1.25, Keep: 0.2, Chunk: 10, Min: 50, LastMax: 1000, LastTail: 10, Head: 1, Tail: 1,
		Snap: 0, MinGap: 1}
	for _, c := range []struct {
		name   string
		change func(m []Message, p *Params)
		known  bool
	}{
		{"nothing", func([]Message, *Params) {}, true},
		{"a later message", func(m []Message, _ *Params) { m[2].Text = "other" }, true},
		{"the trigger", func(_ []Message, p *Params) { p.Trigger = 90 }, true},
		{"the limit", func(_ []Message, p *Params) { p.Limit = 5000 }, true},
		{"tool calls", func(m []Message, _ *Params) { m[0].More = `[{"name":"f"}]` }, false},
		{"the role", func(m []Message, _ *Params) { m[0].Role = "tool" }, false},
		{"the text", func(m []Message, _ *Params) { m[0].Text = "A" + m[0].Text[1:] }, false},
		{"where the text ends", func(m []Message, _ *Params) {
			n := len(m[0].Text) - 1
			m[0].Text, m[0].More = m[0].Text[:n], m[0].Text[n:]
			m[0].Chunks[len(m[0].Chunks)-1].To--
		}, false},
		{"the share to keep", func(_ []Message, p *Params) { p.Keep = 0.3 }, false},
		{"chunks at the start", func(_ []Message, p *Params) { p.Head = 2 }, false},
	} {
		var comp Compressor
		if first, err := comp.Turn(talk(), params, nil); err != nil || len(first.compressed) != 1 {
			t.Fatalf("the first turn compressed messages %v, want one; error %v", first.compressed, err)
		}
		msgs, p := talk(), params
		c.change(msgs, &p)
		again, err := comp.Turn(msgs, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if known := len(again.compressed) == 0; known != c.known {
			t.Errorf("another conversation differs in %s: known is %t, want %t", c.name, known, c.known)
		}
	}
	// A message that is unchanged after one that is not.
	var comp Compressor
	before := append([]Message{said("assistant", "x", 1)}, talk()...)
	if _, err := comp.Turn(before, params, nil); err != nil {
		t.Fatal(err)
	}
	before[0].More = "a call"
	if again, err := comp.Turn(before, params, nil); err != nil || len(again.compressed) != 1 {
		t.Errorf("a message before differs in its tool calls: compressed %v, want one message; error %v", again.compressed, err)
	}
}
