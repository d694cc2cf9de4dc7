// Package jsontext spells characters inside JSON strings. Grammars, parsed calls and templates all write them, and
// they must agree: a grammar allows one spelling of a text, and that is the one a model has seen in its template.
package jsontext

import "fmt"

// Escape is the spelling of a character: itself, unless JSON demands otherwise.
func Escape(r rune) string {
	switch r {
	case '"':
		return `\"`
	case '\\':
		return `\\`
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	if r < 0x20 {
		return fmt.Sprintf(`\u%04x`, r)
	}
	return string(r)
}
