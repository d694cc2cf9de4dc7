// Package termtext makes text from files and clients safe to print: a terminal obeys what it is sent, so a model's
// name could move the cursor, change the window's title or hide what follows.
package termtext

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Printable is s on one line, with every character that a terminal would obey instead of show written as an escape
// (\x1b, \n, \u202e). Text without such characters is returned as it is.
func Printable(s string) string { return escape(s, "") }

// Lines is Printable for text of several lines: newlines and tabs stay.
func Lines(s string) string { return escape(s, "\n\t") }

func escape(s, keep string) string {
	var b strings.Builder
	from := 0 // what comes before is in b
	for i, r := range s {
		n := utf8.RuneLen(r)
		if r == utf8.RuneError {
			_, n = utf8.DecodeRuneInString(s[i:])
		}
		invalid := r == utf8.RuneError && n == 1
		if !invalid && !obeyed(r) || strings.ContainsRune(keep, r) {
			continue
		}
		b.WriteString(s[from:i])
		switch {
		case invalid:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		from = i + n
	}
	if from == 0 {
		return s
	}
	return b.String() + s[from:]
}

// obeyed reports whether a terminal acts on a character: control characters of both sets, line separators, and those
// that change the direction of text, which make it read as something else. Joiners stay: emoji and many scripts need
// them.
func obeyed(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r <= 0x9f, r == 0x2028, r == 0x2029:
		return true
	case r == 0x61c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return true
	}
	return false
}
