package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tData tokenKind = iota
	tName
	tString
	tNumber
	tOp
	tBlockBegin
	tBlockEnd
	tVarBegin
	tVarEnd
	tEOF
)

type token struct {
	kind tokenKind
	s    string // data, name, decoded string or operator
	v    any    // number value
	line int
}

// describe names a token in an error message.
func (t token) describe() string {
	switch t.kind {
	case tEOF:
		return "end of template"
	case tBlockEnd:
		return "'%}'"
	case tVarEnd:
		return "'}}'"
	case tBlockBegin:
		return "'{%'"
	case tVarBegin:
		return "'{{'"
	case tNumber:
		return "number"
	case tString:
		return "string"
	case tData:
		return "text"
	}
	return "'" + t.s + "'"
}

// isSpace is Python's str.isspace for one character.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f
}

func trimLeft(s string) string  { return strings.TrimLeftFunc(s, isSpace) }
func trimRight(s string) string { return strings.TrimRightFunc(s, isSpace) }

type lexer struct {
	src  string
	pos  int
	line int
	toks []token
	// lineStarting: everything on the current line before pos was removed by a
	// tag that swallowed the line break, so lstrip_blocks applies from pos.
	lineStarting bool
}

// lex splits a template into data and tag tokens. Whitespace control happens
// here: '-' and '+' signs, lstrip_blocks and trim_blocks, as in Jinja's lexer.
func lex(src string) ([]token, error) {
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	// Only one trailing line break is dropped (keep_trailing_newline is off).
	src = strings.TrimSuffix(src, "\n")
	l := &lexer{src: src, line: 1, lineStarting: true}
	for {
		j := l.nextTag()
		if j < 0 {
			l.data(l.src[l.pos:])
			l.emit(token{kind: tEOF})
			return l.toks, nil
		}
		text := l.src[l.pos:j]
		kind := l.src[j+1]
		end := j + 2
		sign := byte(0)
		if end < len(l.src) && (l.src[end] == '-' || l.src[end] == '+') {
			sign = l.src[end]
			end++
		}
		rawEnd := -1
		if kind == '%' {
			rawEnd = matchRawBegin(l.src, end)
		}
		l.text(text, sign, kind == '{')
		l.pos = end
		var err error
		switch {
		case rawEnd >= 0:
			l.line += strings.Count(l.src[end:rawEnd], "\n")
			l.pos = rawEnd
			l.lineStarting = strings.HasSuffix(l.src[:rawEnd], "\n")
			err = l.raw()
		case kind == '#':
			err = l.comment()
		case kind == '%':
			err = l.tag(tBlockBegin, tBlockEnd, "%}")
		default:
			err = l.tag(tVarBegin, tVarEnd, "}}")
		}
		if err != nil {
			return nil, err
		}
	}
}

func (l *lexer) errorf(format string, args ...any) error {
	return &Error{Line: l.line, Msg: fmt.Sprintf(format, args...)}
}

func (l *lexer) emit(t token) {
	t.line = l.line
	l.toks = append(l.toks, t)
}

// data emits a text token; empty text is dropped.
func (l *lexer) data(s string) {
	if s != "" {
		l.emit(token{kind: tData, s: s})
	}
}

// nextTag returns the offset of the next "{{", "{%" or "{#", or -1.
func (l *lexer) nextTag() int {
	for j := l.pos; ; j++ {
		k := strings.IndexByte(l.src[j:], '{')
		if k < 0 {
			return -1
		}
		j += k
		if j+1 < len(l.src) {
			switch l.src[j+1] {
			case '{', '%', '#':
				return j
			}
		}
	}
}

// text emits the text before a tag after whitespace control, and counts its lines.
func (l *lexer) text(text string, sign byte, variable bool) {
	out := text
	switch {
	case sign == '-':
		out = trimRight(text)
	case sign != '+' && !variable:
		at := strings.LastIndexByte(text, '\n') + 1
		if (at > 0 || l.lineStarting) && strings.TrimFunc(text[at:], isSpace) == "" {
			out = text[:at]
		}
	}
	l.data(out)
	l.line += strings.Count(text, "\n")
}

// skipSpace returns the offset of the first character at or after i that is not space.
func skipSpace(s string, i int) int {
	return len(s) - len(trimLeft(s[i:]))
}

// matchRawBegin returns the offset after "raw %}" starting at i, or -1.
func matchRawBegin(s string, i int) int {
	i = skipSpace(s, i)
	if !strings.HasPrefix(s[i:], "raw") {
		return -1
	}
	i = skipSpace(s, i+len("raw"))
	switch {
	case strings.HasPrefix(s[i:], "%}"):
		return i + 2
	case strings.HasPrefix(s[i:], "-%}"):
		return skipSpace(s, i+3)
	}
	return -1
}

func (l *lexer) raw() error {
	for j := l.pos; ; j += 2 {
		k := strings.Index(l.src[j:], "{%")
		if k < 0 {
			return l.errorf("missing end of raw block")
		}
		j += k
		i := j + 2
		sign := byte(0)
		if i < len(l.src) && (l.src[i] == '-' || l.src[i] == '+') {
			sign = l.src[i]
			i++
		}
		i = skipSpace(l.src, i)
		if !strings.HasPrefix(l.src[i:], "endraw") {
			continue
		}
		i = skipSpace(l.src, i+len("endraw"))
		n := l.tagEnd(i, "%}", true)
		if n < 0 {
			continue
		}
		l.text(l.src[l.pos:j], sign, false)
		l.line += strings.Count(l.src[j:n], "\n")
		l.leave(n)
		return nil
	}
}

func (l *lexer) comment() error {
	k := strings.Index(l.src[l.pos:], "#}")
	if k < 0 {
		return l.errorf("missing end of comment")
	}
	i := l.pos + k
	if k > 0 && (l.src[i-1] == '-' || l.src[i-1] == '+') {
		i--
	}
	n := l.tagEnd(i, "#}", true)
	l.line += strings.Count(l.src[l.pos:n], "\n")
	l.leave(n)
	return nil
}

// tagEnd matches the end of a tag at i with its whitespace control and returns
// the offset after it, or -1. trim is trim_blocks: one line break goes with it.
func (l *lexer) tagEnd(i int, end string, trim bool) int {
	s := l.src[i:]
	switch {
	case strings.HasPrefix(s, end):
		i += len(end)
		if trim && i < len(l.src) && l.src[i] == '\n' {
			i++
		}
		return i
	case strings.HasPrefix(s, "-"+end):
		return skipSpace(l.src, i+1+len(end))
	case trim && strings.HasPrefix(s, "+"+end):
		return i + 1 + len(end)
	}
	return -1
}

func (l *lexer) leave(pos int) {
	l.lineStarting = l.src[pos-1] == '\n'
	l.pos = pos
}

// operators, longest first.
var operators = []string{"==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~",
	"(", ")", "[", "]", "{", "}", ",", ":", ".", "|", "=", "<", ">", ";"}

var closers = map[string]string{"(": ")", "[": "]", "{": "}"}

// tag scans the inside of a block or variable tag up to its end.
func (l *lexer) tag(begin, endKind tokenKind, end string) error {
	l.emit(token{kind: begin})
	var open []string // brackets waiting for their closer: an end marker inside them is not one
	for {
		n := skipSpace(l.src, l.pos)
		l.line += strings.Count(l.src[l.pos:n], "\n")
		l.pos = n
		if n >= len(l.src) {
			return l.errorf("unexpected end of template, expected '%s'", end)
		}
		if len(open) == 0 {
			if n := l.tagEnd(l.pos, end, begin == tBlockBegin); n >= 0 {
				l.emit(token{kind: endKind})
				l.line += strings.Count(l.src[l.pos:n], "\n")
				l.leave(n)
				return nil
			}
		}
		switch c := l.src[l.pos]; {
		case c == '\'' || c == '"':
			if err := l.str(c); err != nil {
				return err
			}
		case c >= '0' && c <= '9':
			if err := l.number(); err != nil {
				return err
			}
		default:
			if n := nameLen(l.src[l.pos:]); n > 0 {
				l.emit(token{kind: tName, s: l.src[l.pos : l.pos+n]})
				l.pos += n
				continue
			}
			op := ""
			for _, o := range operators {
				if strings.HasPrefix(l.src[l.pos:], o) {
					op = o
					break
				}
			}
			if op == "" {
				r, _ := utf8.DecodeRuneInString(l.src[l.pos:])
				return l.errorf("unexpected character %q", r)
			}
			if c := closers[op]; c != "" {
				open = append(open, c)
			} else if op == ")" || op == "]" || op == "}" {
				if len(open) == 0 {
					return l.errorf("unexpected '%s'", op)
				}
				if want := open[len(open)-1]; want != op {
					return l.errorf("unexpected '%s', expected '%s'", op, want)
				}
				open = open[:len(open)-1]
			}
			l.emit(token{kind: tOp, s: op})
			l.pos += len(op)
		}
	}
}

func nameLen(s string) int {
	for i, r := range s {
		if r == '_' || unicode.IsLetter(r) || i > 0 && (unicode.IsDigit(r) || unicode.IsMark(r)) {
			continue
		}
		return i
	}
	return len(s)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func (l *lexer) number() error {
	s := l.src[l.pos:]
	n := 0
	digits := func() {
		for n < len(s) && (isDigit(s[n]) || s[n] == '_' && n+1 < len(s) && isDigit(s[n+1])) {
			n++
		}
	}
	if len(s) > 2 && s[0] == '0' && strings.ContainsRune("xXoObB", rune(s[1])) {
		n = 2
		for n < len(s) && (isDigit(s[n]) || s[n] == '_' || s[n] >= 'a' && s[n] <= 'f' || s[n] >= 'A' && s[n] <= 'F') {
			n++
		}
		v, err := strconv.ParseInt(s[:n], 0, 64)
		if err != nil {
			return l.errorf("bad number %q", clip(s[:n]))
		}
		l.emit(token{kind: tNumber, v: v})
		l.pos += n
		return nil
	}
	digits()
	float := false
	// "x.0.1" indexes twice: a number after a dot has no fraction.
	afterDot := l.pos > 0 && l.src[l.pos-1] == '.'
	if !afterDot && n+1 < len(s) && s[n] == '.' && isDigit(s[n+1]) {
		float = true
		n++
		digits()
	}
	if !afterDot && n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		m := n + 1
		if m < len(s) && (s[m] == '+' || s[m] == '-') {
			m++
		}
		if m < len(s) && isDigit(s[m]) {
			float = true
			n = m
			digits()
		}
	}
	lit := strings.ReplaceAll(s[:n], "_", "")
	if len(lit) > 400 {
		return l.errorf("number with %d digits is not supported", len(lit))
	}
	t := token{kind: tNumber}
	if float {
		t.v, _ = strconv.ParseFloat(lit, 64) // out of range is infinity, as in Python
	} else if i, err := strconv.ParseInt(lit, 10, 64); err == nil {
		t.v = i
	} else {
		b, _ := new(big.Int).SetString(lit, 10)
		t.v = b
	}
	l.emit(t)
	l.pos += n
	return nil
}

// str scans a string literal with Python's escapes.
func (l *lexer) str(quote byte) error {
	var b strings.Builder
	line := l.line
	for i := l.pos + 1; i < len(l.src); i++ {
		switch c := l.src[i]; c {
		case quote:
			l.toks = append(l.toks, token{kind: tString, s: b.String(), line: line})
			l.pos = i + 1
			return nil
		case '\\':
			i++
			if i >= len(l.src) {
				return l.errorf("unclosed string")
			}
			n, err := unescape(&b, l.src[i:])
			if err != nil {
				return l.errorf("%v", err)
			}
			if l.src[i] == '\n' {
				l.line++
			}
			i += n - 1
		case '\n':
			l.line++
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return l.errorf("unclosed string")
}

var simpleEscapes = map[byte]string{'n': "\n", 't': "\t", 'r': "\r", '\\': "\\", '\'': "'", '"': "\"",
	'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v", '\n': ""}

// unescape writes the character that the escape at s (after the backslash)
// stands for and returns how many bytes of s it used.
func unescape(b *strings.Builder, s string) (int, error) {
	c := s[0]
	if e, ok := simpleEscapes[c]; ok {
		b.WriteString(e)
		return 1, nil
	}
	hex := func(digits int) (rune, error) {
		if len(s) < 1+digits {
			return 0, fmt.Errorf("truncated \\%c escape", c)
		}
		v, err := strconv.ParseUint(s[1:1+digits], 16, 32)
		if err != nil || v > unicode.MaxRune {
			return 0, fmt.Errorf("bad \\%c escape", c)
		}
		return rune(v), nil
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	switch {
	case digits > 0:
		r, err := hex(digits)
		if err != nil {
			return 0, err
		}
		n := 1 + digits
		// A surrogate pair written as two escapes is one character.
		if c == 'u' && r >= 0xd800 && r < 0xdc00 && len(s) >= 11 && s[5] == '\\' && s[6] == 'u' {
			if lo, err := strconv.ParseUint(s[7:11], 16, 32); err == nil && lo >= 0xdc00 && lo < 0xe000 {
				r = 0x10000 + (r-0xd800)<<10 + (rune(lo) - 0xdc00)
				n = 11
			}
		}
		b.WriteRune(r)
		return n, nil
	case c >= '0' && c <= '7':
		n, v := 0, 0
		for n < 3 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			v = v*8 + int(s[n]-'0')
			n++
		}
		b.WriteRune(rune(v))
		return n, nil
	case c == 'N':
		return 0, fmt.Errorf("\\N escapes are not supported")
	}
	// Python keeps the backslash of an escape it does not know.
	b.WriteByte('\\')
	r, n := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && n <= 1 {
		b.WriteByte(c)
		return 1, nil
	}
	b.WriteString(s[:n])
	return n, nil
}

// clip shortens text for an error message.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
