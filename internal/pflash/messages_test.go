package pflash

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	params := Params{Trigger: 100, Growth: 1.25, Keep: 0.2, Chunk: 10, Min: 50, LastMax: 1000, LastTail: 10, Head: 1,
		Tail: 1, MinGap: 1}
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

// TestCompressorMemory: what is remembered is bounded, and what was used last is there.
func TestCompressorMemory(t *testing.T) {
	var comp Compressor
	name := func(i int) (k key) {
		binary.LittleEndian.PutUint64(k[:], uint64(i))
		return k
	}
	const all = 5*memory/2 + 1
	for i := range all {
		comp.keep(name(i), frozen{floor: i})
		if i == memory-1 && (len(comp.now) != memory || len(comp.old) != 0) || i == memory && (len(comp.now) != 1 ||
			len(comp.old) != memory) {
			t.Errorf("after %d messages %d are remembered and %d before them", i+1, len(comp.now), len(comp.old))
		}
	}
	if n := len(comp.now) + len(comp.old); n > 2*memory {
		t.Errorf("%d messages are remembered, at most %d", n, 2*memory)
	}
	for i := all - memory; i < all; i++ {
		if f, ok := comp.find(name(i)); !ok || f.floor != i {
			t.Fatalf("message %d of %d is forgotten", i, all)
		}
	}
}

// TestCompressorTogether: conversations may be compressed at the same time.
func TestCompressorTogether(t *testing.T) {
	var comp Compressor
	var wg sync.WaitGroup
	params := Params{Trigger: 100, Growth: 1.25, Keep: 0.2, Chunk: 10, Min: 50, LastMax: 1000, LastTail: 10, MinGap: 1}
	for g := range 8 {
		wg.Go(func() {
			for i := range 300 {
				m := said("user", "a", 20)
				m.More = fmt.Sprint(g, i)
				turn, err := comp.Turn([]Message{m, said("user", "b", 1)}, params, nil)
				if err != nil || len(turn.compressed) != 1 {
					t.Errorf("compressed %v, error %v", turn.compressed, err)
				}
			}
		})
	}
	wg.Wait()
	if len(comp.now) == 0 {
		t.Error("nothing is remembered")
	}
}

// TestCompressorFails: without scores messages stay as they are, and the failure is not remembered.
func TestCompressorFails(t *testing.T) {
	var comp Compressor
	params := Params{Trigger: 100, Growth: 1.25, Keep: 0.2, Chunk: 10, Min: 50, LastMax: 1000, LastTail: 10, MinGap: 1}
	msgs := []Message{said("user", "a", 20), said("user", "b", 1)}
	broken := errors.New("broken")
	turn, err := comp.Turn(msgs, params, func([]int) error { return broken })
	if !errors.Is(err, broken) || len(turn.compressed) > 0 || turn.Texts[0] != msgs[0].Text || turn.After != turn.Before {
		t.Errorf("compressed %v, %d of %d tokens, error %v", turn.compressed, turn.After, turn.Before, err)
	}
	if turn, err := comp.Turn(msgs, params, nil); err != nil || !slices.Equal(turn.compressed, []int{0}) {
		t.Errorf("afterwards: compressed %v, error %v", turn.compressed, err)
	}
}

// TestCandidates: which messages may be compressed, at the borders of their sizes and places.
func TestCandidates(t *testing.T) {
	p := Params{Min: 50}
	msgs := []Message{said("system", "s", 9), said("user", "a", 9), said("user", "b", 5), said("tool", "c", 4),
		{Role: "user", Tokens: 90, Fixed: true}, said("developer", "d", 9), said("user", "e", 9), said("assistant", "f", 9)}
	forms := make([]form, len(msgs))
	for _, c := range []struct {
		recent, lastMax int
		want            []int
	}{
		{0, 90, []int{1, 2, 7}}, // 90 tokens of the last user message are not more than 90
		{0, 89, []int{1, 2, 6, 7}},
		{1, 89, []int{1, 2, 6}},
		{6, 89, []int{1, 6}},
		{7, 89, []int{6}},
	} {
		if got := candidates(msgs, forms, p, c.recent, c.lastMax); !slices.Equal(got, c.want) {
			t.Errorf("%d recent ones, the last from %d tokens on: %v, want %v", c.recent, c.lastMax, got, c.want)
		}
	}
	forms[1].chunks = []int{0}
	if got := candidates(msgs, forms, p, 0, 90); !slices.Equal(got, []int{2, 7}) {
		t.Errorf("one is compressed already: %v", got)
	}
	if got := lastUser(msgs[:1]); got != -1 {
		t.Errorf("no user: message %d", got)
	}
}

// TestKeptText: ranges grow to the ends of lines, gaps are counted in characters, and fences stay complete.
func TestKeptText(t *testing.T) {
	for _, c := range []struct {
		name, text string
		kept       []span
		snap, gap  int
		want       string
	}{
		{"everything", "abc", []span{{0, 3}}, 0, 1, "abc"},
		{"nothing", "abcdef", nil, 0, 1, "[... 6 characters omitted ...]\n"},
		{"a gap that is long enough", "abcdefgh", []span{{0, 2}, {6, 8}}, 0, 4, "ab\n[... 4 characters omitted ...]\ngh"},
		{"a gap that is too short", "abcdefgh", []span{{0, 2}, {6, 8}}, 0, 5, "abcdefgh"},
		{"characters, not bytes", "abÄÖÜßgh", []span{{0, 2}, {10, 12}}, 0, 4, "ab\n[... 4 characters omitted ...]\ngh"},
		{"inside of a character", "äöü---", []span{{1, 3}}, 0, 1, "äö\n[... 4 characters omitted ...]\n"},
		{"to the end of the line", "one\ntwo\nthree\n", []span{{5, 6}}, 4, 1,
			"[... 4 characters omitted ...]\ntwo\n[... 6 characters omitted ...]\n"},
		{"a line that ends too far away", "onetwothree\n", []span{{5, 6}}, 4, 1,
			"[... 5 characters omitted ...]\no\n[... 6 characters omitted ...]\n"},
		{"to white space", "one two three four", []span{{9, 10}}, 4, 1,
			"[... 8 characters omitted ...]\nthree \n[... 4 characters omitted ...]\n"},
		{"a fence", "```go\na\nb\nc\n```\nd\n", []span{{8, 10}}, 0, 1,
			"```go\n[... 2 characters omitted ...]\nb\n[... 2 characters omitted ...]\n```\n[... 2 characters omitted ...]\n"},
		{"a line that does not end the fence", "```\na\n``` x\nb\n```\nc\n", []span{{12, 14}}, 0, 1,
			"```\n[... 8 characters omitted ...]\nb\n```\n[... 2 characters omitted ...]\n"},
		{"another mark inside", "~~~\na\n```\nb\n~~~\nc\n", []span{{10, 12}}, 0, 1,
			"~~~\n[... 6 characters omitted ...]\nb\n~~~\n[... 2 characters omitted ...]\n"},
		{"a shorter mark inside", "````\na\n```\nb\n````\nc\n", []span{{11, 13}}, 0, 1,
			"````\n[... 6 characters omitted ...]\nb\n````\n[... 2 characters omitted ...]\n"},
		{"a fence that does not end", "```\na\nb\nc", []span{{6, 8}}, 0, 1,
			"```\n[... 2 characters omitted ...]\nb\n[... 1 characters omitted ...]\n"},
		{"three spaces before it", "   ```\na\nb\n", []span{{9, 11}}, 0, 1, "   ```\n[... 2 characters omitted ...]\nb\n"},
		{"four spaces before it", "    ```\na\nb\n", []span{{10, 12}}, 0, 1, "[... 10 characters omitted ...]\nb\n"},
		{"two backticks", "``\na\nb\n", []span{{5, 7}}, 0, 1, "[... 5 characters omitted ...]\nb\n"},
	} {
		if got := keptText(c.text, c.kept, c.snap, c.gap); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
