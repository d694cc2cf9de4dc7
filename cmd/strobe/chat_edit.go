package main

import (
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

// editor is a text of several lines with a cursor, and the earlier texts one can go back to.
type editor struct {
	text []rune
	at   int // cursor: index into text

	history []string
	past    int    // index into history of what is shown; len(history): the new text
	draft   string // the new text while an earlier one is shown
}

func (e *editor) String() string { return string(e.text) }

// set replaces the text and puts the cursor at its end.
func (e *editor) set(s string) {
	e.text = []rune(s)
	e.at = len(e.text)
}

// insert adds text at the cursor. Line ends of other systems become line feeds, and what a terminal
// would act on is left out.
func (e *editor) insert(s string) {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	var add []rune
	for _, r := range strings.ReplaceAll(s, "\r", "\n") {
		if r == '\n' || r == '\t' || !unicode.IsControl(r) {
			add = append(add, r)
		}
	}
	e.text = append(e.text[:e.at:e.at], append(add, e.text[e.at:]...)...)
	e.at += len(add)
}

// cut removes [from, to).
func (e *editor) cut(from, to int) {
	from, to = max(0, from), min(len(e.text), to)
	if from < to {
		e.text = append(e.text[:from:from], e.text[to:]...)
		e.at = from
	}
}

// lineStart and lineEnd are the ends of the line with index i.
func (e *editor) lineStart(i int) int {
	for i > 0 && e.text[i-1] != '\n' {
		i--
	}
	return i
}

func (e *editor) lineEnd(i int) int {
	for i < len(e.text) && e.text[i] != '\n' {
		i++
	}
	return i
}

// wordLeft and wordRight are where the next word begins or ends.
func (e *editor) wordLeft() int {
	i := e.at
	for i > 0 && !letter(e.text[i-1]) {
		i--
	}
	for i > 0 && letter(e.text[i-1]) {
		i--
	}
	return i
}

func (e *editor) wordRight() int {
	i := e.at
	for i < len(e.text) && !letter(e.text[i]) {
		i++
	}
	for i < len(e.text) && letter(e.text[i]) {
		i++
	}
	return i
}

func letter(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

// up and down move the cursor by a line and, beyond the first and the last, through the history.
func (e *editor) up() {
	start := e.lineStart(e.at)
	if start == 0 {
		e.recall(e.past - 1)
		return
	}
	above := e.lineStart(start - 1)
	e.at = min(above+e.at-start, start-1)
}

func (e *editor) down() {
	end := e.lineEnd(e.at)
	if end == len(e.text) {
		e.recall(e.past + 1)
		return
	}
	e.at = min(end+1+e.at-e.lineStart(e.at), e.lineEnd(end+1))
}

// recall shows an earlier text.
func (e *editor) recall(i int) {
	if i < 0 || i > len(e.history) {
		return
	}
	if e.past == len(e.history) {
		e.draft = e.String()
	}
	e.past = i
	if i == len(e.history) {
		e.set(e.draft)
	} else {
		e.set(e.history[i])
	}
}

// take returns the text, remembers it and starts a new one.
func (e *editor) take() string {
	s := e.String()
	if n := len(e.history); strings.TrimSpace(s) != "" && (n == 0 || e.history[n-1] != s) {
		e.history = append(e.history, s)
	}
	e.set("")
	e.past, e.draft = len(e.history), ""
	return s
}

// key handles a key by its name. It reports whether the text is to be sent.
func (e *editor) key(name, text string) (send bool) {
	switch name {
	case "enter":
		if e.at > 0 && e.text[e.at-1] == '\\' {
			e.cut(e.at-1, e.at)
			e.insert("\n")
			return false
		}
		return true
	case "alt+enter", "shift+enter", "ctrl+j":
		e.insert("\n")
	case "backspace", "ctrl+h":
		e.cut(e.at-1, e.at)
	case "delete", "ctrl+d":
		e.cut(e.at, e.at+1)
	case "left", "ctrl+b":
		e.at = max(0, e.at-1)
	case "right", "ctrl+f":
		e.at = min(len(e.text), e.at+1)
	case "alt+left", "ctrl+left", "alt+b":
		e.at = e.wordLeft()
	case "alt+right", "ctrl+right", "alt+f":
		e.at = e.wordRight()
	case "home", "ctrl+a":
		e.at = e.lineStart(e.at)
	case "end", "ctrl+e":
		e.at = e.lineEnd(e.at)
	case "ctrl+w", "alt+backspace":
		e.cut(e.wordLeft(), e.at)
	case "ctrl+u":
		e.cut(e.lineStart(e.at), e.at)
	case "ctrl+k":
		e.cut(e.at, max(e.lineEnd(e.at), min(e.at+1, len(e.text))))
	case "up", "ctrl+p":
		e.up()
	case "down", "ctrl+n":
		e.down()
	case "tab":
		e.complete()
	default:
		e.insert(text)
	}
	return false
}

// complete finishes the name of a command, as far as it is certain.
func (e *editor) complete() {
	s := e.String()
	if !strings.HasPrefix(s, "/") || strings.ContainsAny(s, " \n") || e.at != len(e.text) {
		e.insert("\t")
		return
	}
	found := ""
	for _, c := range chatCommands {
		if !strings.HasPrefix(c.name, s) {
			continue
		}
		if found == "" {
			found = c.name + " "
		}
		for !strings.HasPrefix(c.name+" ", found) {
			found = found[:len(found)-1]
		}
	}
	if len(found) > len(s) {
		e.set(found)
	}
}

// rows lays the text out on a screen of the given width, behind a mark of two columns, between words where it can,
// and says where the cursor is.
func (e *editor) rows(width int) (rows []string, x, y int) {
	width = max(4, width-2)
	// The row in progress is text[from:i]; a word in it begins at word.
	from, word, used := 0, 0, 0
	flush := func(to int) {
		if from <= e.at && e.at <= to {
			x, y = 2+columns(e.text[from:e.at]), len(rows)
		}
		rows = append(rows, strings.ReplaceAll(string(e.text[from:to]), "\t", "    "))
	}
	for i, r := range e.text {
		if r == '\n' {
			flush(i)
			from, word, used = i+1, i+1, 0
			continue
		}
		w := columns(e.text[i : i+1])
		if used+w > width {
			if word == from || r == ' ' {
				word = i // one word fills the row
			}
			flush(word)
			from = word
			used = columns(e.text[from:i])
		}
		used += w
		if r == ' ' {
			word = i + 1
		}
	}
	flush(len(e.text))
	if x-2 >= width && y == len(rows)-1 { // behind the last column
		rows = append(rows, "")
		x, y = 2, y+1
	}
	return rows, x, y
}

// columns is the width of text without line feeds.
func columns(text []rune) int {
	return ansi.StringWidth(strings.ReplaceAll(string(text), "\t", "    "))
}
