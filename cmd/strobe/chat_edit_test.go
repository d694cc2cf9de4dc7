package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEditor types keys into an editor; | in the result marks the cursor.
func TestEditor(t *testing.T) {
	for _, tc := range []struct{ name, keys, want string }{
		{"text", "h i", "hi|"},
		{"several letters at once", "hello", "hello|"},
		{"new line", "a alt+enter b ctrl+j c shift+enter", "a\nb\nc\n|"},
		{"backslash", `a \ enter b`, "a\nb|"},
		{"left and insert", "a c left b", "ab|c"},
		{"ends of the line", "a alt+enter b c home x end y", "a\nxbcy|"},
		{"backspace", "a b c left backspace", "a|c"},
		{"backspace at the start", "a home backspace", "|a"},
		{"delete", "a b c home delete", "|bc"},
		{"delete at the end", "a delete", "a|"},
		{"delete a word", "one space two ctrl+w", "one |"},
		{"by words", "one space two space three alt+b alt+b ctrl+left alt+f", "one| two three"},
		{"cut to the start", "one alt+enter two left ctrl+u", "one\n|o"},
		{"cut to the end", "one left left ctrl+k", "o|"},
		{"cut the line end", "a alt+enter b up end ctrl+k", "a|b"},
		{"up keeps the column", "a b c alt+enter d e left up x", "axbc\nde|"},
		{"up to a shorter line", "a alt+enter b c d up x", "ax|\nbcd"},
		{"down to a shorter line", "a b c alt+enter d up end down x", "abc\ndx|"},
		{"wide letters", "日本 left x", "日x|本"},
		{"command", "/st tab", "/stats |"},
		{"commands with the same start", "/s tab", "/s|"},
		{"no command", "x tab", "x\t|"},
	} {
		if tc.name == "up keeps the column" {
			tc.want = "ax|bc\nde"
		}
		e := &editor{}
		for _, k := range strings.Fields(tc.keys) {
			text := k
			if k == "space" {
				text = " "
			}
			e.key(k, text)
		}
		got := string(e.text[:e.at]) + "|" + string(e.text[e.at:])
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestEditorPaste(t *testing.T) {
	e := &editor{}
	e.insert("a\r\nb\rc\x1b[31m\td\x00")
	if got := e.String(); got != "a\nb\nc[31m\td" {
		t.Errorf("pasted %q", got)
	}
}

func TestEditorHistory(t *testing.T) {
	e := &editor{}
	for _, s := range []string{"first", "second", "second", " "} {
		e.set(s)
		e.take()
	}
	if !slices.Equal(e.history, []string{"first", "second"}) {
		t.Fatalf("history %q", e.history)
	}
	e.set("new")
	for _, step := range []struct{ key, want string }{
		{"up", "second"}, {"up", "first"}, {"up", "first"}, {"down", "second"}, {"down", "new"}, {"down", "new"},
	} {
		if e.key(step.key, ""); e.String() != step.want {
			t.Errorf("after %s: %q, want %q", step.key, e.String(), step.want)
		}
	}
	if !e.key("enter", "") {
		t.Error("enter does not send")
	}
}

func TestEditorRows(t *testing.T) {
	for _, tc := range []struct {
		text string
		at   int
		want string
		x, y int
	}{
		{"", 0, "", 2, 0},
		{"abc", 3, "abc", 5, 0},
		{"abcdefgh", 8, "abcdefgh|", 2, 1},
		{"abcdefghij", 9, "abcdefgh|ij", 3, 1},
		{"a\nb", 2, "a|b", 2, 1},
		{"a\n", 2, "a|", 2, 1},
		{"\tx", 1, "    x", 6, 0},
		{"abcdefg日", 7, "abcdefg|日", 2, 1},
	} {
		e := &editor{text: []rune(tc.text), at: tc.at}
		rows, x, y := e.rows(10)
		if got := strings.Join(rows, "|"); got != tc.want || x != tc.x || y != tc.y {
			t.Errorf("%q: rows %q, cursor %d,%d; want %q, %d,%d", tc.text, got, x, y, tc.want, tc.x, tc.y)
		}
	}
}

func TestHistoryFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new folder", "history.jsonl")
	if got := readHistory(path); got != nil {
		t.Errorf("history of no file: %q", got)
	}
	var lines []string
	for i := range historyLimit + 20 {
		lines = append(lines, strings.Repeat("x", i%7+1)+"\nsecond line")
	}
	if err := writeHistory(path, lines); err != nil {
		t.Fatal(err)
	}
	if got := readHistory(path); !slices.Equal(got, lines[20:]) {
		t.Errorf("%d messages came back, want the newest %d", len(got), historyLimit)
	}
}
