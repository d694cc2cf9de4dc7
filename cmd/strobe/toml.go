package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"

	"strobe/internal/platform"
)

// decodeTOML reads a file of settings into v.
func decodeTOML(file string, v any) (toml.MetaData, error) {
	b, err := platform.ReadFile(file, platform.MaxText)
	if err != nil {
		return toml.MetaData{}, err
	}
	if line := tooDeep(string(b)); line > 0 {
		return toml.MetaData{}, fmt.Errorf("%s:%d: has more than %d tables or lists inside each other", file, line, maxNesting)
	}
	meta, err := toml.Decode(string(b), v)
	var wrong toml.ParseError
	switch {
	case errors.As(err, &wrong):
		return meta, fmt.Errorf("%s:%d: %s", file, wrong.Position.Line, wrong.Message)
	case err != nil:
		return meta, fmt.Errorf("%s: %s", file, oneLine(err))
	}
	return meta, nil
}

// maxNesting is how many tables or lists may be inside each other. No setting needs more than four. The parser calls
// itself for each of them, and takes quadratic time.
const maxNesting = 32

// tooDeep is the line of text, counted from 1, that nests too deeply; 0 if none does. Strings and comments are passed
// over.
func tooDeep(text string) int {
	line, open, dots := 1, 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\n':
			line++
			dots = 0
		case '#':
			n := strings.IndexByte(text[i:], '\n')
			if n < 0 {
				return 0
			}
			i += n - 1
		case '"', '\'':
			n := stringEnd(text[i:], c)
			line += strings.Count(text[i:i+n], "\n")
			i += n - 1
		case '[', '{':
			open++
			dots = 0
		case ']', '}':
			open = max(0, open-1)
			dots = 0
		case '=', ',':
			dots = 0
		case '.':
			dots++ // in a key each is a table
		}
		if open > maxNesting || dots > maxNesting {
			return line
		}
	}
	return 0
}

// stringEnd is the length of the string that text begins with, in the quotes of TOML: one or three, " with escapes.
func stringEnd(text string, quote byte) int {
	end, from := string(quote), 1
	if three := strings.Repeat(end, 3); strings.HasPrefix(text, three) {
		end, from = three, 3
	}
	for i := from; i < len(text); i++ {
		switch {
		case quote == '"' && text[i] == '\\':
			i++
		case text[i] == '\n' && len(end) == 1: // not a string; the parser says so
			return i
		case strings.HasPrefix(text[i:], end):
			return i + len(end)
		}
	}
	return len(text)
}
