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

// layout breaks a prompt and the tokens after it into rows of at most width columns, between words where it can.
func layout(prompt string, tokens []raceToken, width int) [][]textRun {
	b := &rowBuilder{width: max(8, width)}
	b.add(prompt, textRun{prompt: true})
	for _, t := range tokens {
		b.add(t.text, textRun{drafted: t.drafted, at: t.at})
	}
	b.feed()
	return b.rows
}

// rowBuilder fills rows character by character: words go on from token to token, so none is known when it begins.
type rowBuilder struct {
	width int
	rows  [][]textRun
	row   []cell
	col   int
}

// cell is a character on a row.
type cell struct {
	text  string
	width int
	look  textRun
}

func (b *rowBuilder) add(text string, look textRun) {
	for text = harmless(text); text != ""; {
		char, width := ansi.FirstGraphemeCluster(text, ansi.GraphemeWidth)
		text = text[len(char):]
		switch {
		case char == "\n":
			b.feed()
			continue
		case b.col+width > b.width && char == " ":
			b.feed() // a space between rows is not seen
			continue
		case b.col+width > b.width:
			b.wrap()
		}
		b.row = append(b.row, cell{char, width, look})
		b.col += width
	}
}

// wrap begins a new row with the word that has no room on this one. A word that fills the row is cut.
func (b *rowBuilder) wrap() {
	from := len(b.row)
	for from > 0 && b.row[from-1].text != " " {
		from--
	}
	var word []cell
	if strings.TrimSpace(textOf(b.row[:from])) != "" {
		word = append(word, b.row[from:]...)
		b.row = b.row[:from]
	}
	b.feed()
	for _, c := range word {
		b.row = append(b.row, c)
		b.col += c.width
	}
}

func textOf(cells []cell) string {
	var b strings.Builder
	for _, c := range cells {
		b.WriteString(c.text)
	}
	return b.String()
}

// feed ends the row: characters of the same look become one run.
func (b *rowBuilder) feed() {
	var row []textRun
	col := 0
	for _, c := range b.row {
		if n := len(row); n > 0 && row[n-1].sameLook(&c.look) {
			row[n-1].text += c.text
		} else {
			c.look.text, c.look.col = c.text, col
			row = append(row, c.look)
		}
		col += c.width
	}
	b.rows = append(b.rows, row)
	b.row, b.col = nil, 0
}

func (r *textRun) sameLook(x *textRun) bool {
	return r.prompt == x.prompt && r.drafted == x.drafted && r.at == x.at
}

// flow joins parts with commas, breaking lines between parts alone.
func flow(parts []string, width int) []string {
	var lines []string
	for _, p := range parts {
		n := len(lines)
		if n > 0 && ansi.StringWidth(lines[n-1]+", "+p) < width { // a comma may follow
			lines[n-1] += ", " + p
			continue
		}
		if n > 0 {
			lines[n-1] += ","
		}
		lines = append(lines, p)
	}
	return lines
}

// wrapWords breaks text into lines between words, and within a word only where it is longer than a line.
func wrapWords(text string, width int) string {
	const joiner = "\uf8ff" // stands for hyphens, after which Wrap would break
	text = ansi.Wrap(strings.ReplaceAll(text, "-", joiner), max(8, width), "")
	return strings.ReplaceAll(text, joiner, "-")
}
