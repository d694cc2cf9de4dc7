package main

import (
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
)

// run is a piece of text in one look on one row.
type textRun struct {
	text    string
	col     int
	prompt  bool
	drafted bool
	at      time.Duration
}

// layout breaks a prompt and the tokens after it into rows of at most width columns.
func layout(prompt string, tokens []raceToken, width int) [][]textRun {
	b := &rowBuilder{width: max(8, width)}
	b.add(prompt, textRun{prompt: true})
	for _, t := range tokens {
		b.add(t.text, textRun{drafted: t.drafted, at: t.at})
	}
	return append(b.rows, b.row)
}

type rowBuilder struct {
	width int
	rows  [][]textRun
	row   []textRun
	col   int
}

func (b *rowBuilder) add(text string, look textRun) {
	for i, line := range strings.Split(harmless(text), "\n") {
		if i > 0 {
			b.feed()
		}
		b.line(line, look)
	}
}

// line adds text without line feeds, cutting it where a row is full.
func (b *rowBuilder) line(text string, look textRun) {
	for text != "" {
		if b.col >= b.width {
			b.feed()
		}
		part := ansi.Truncate(text, b.width-b.col, "")
		if part == "" { // a wide character at the end of a row
			if b.col == 0 {
				return
			}
			b.feed()
			continue
		}
		look.text, look.col = part, b.col
		b.row = append(b.row, look)
		b.col += ansi.StringWidth(part)
		text = text[len(part):]
	}
}

func (b *rowBuilder) feed() {
	b.rows = append(b.rows, b.row)
	b.row, b.col = nil, 0
}
