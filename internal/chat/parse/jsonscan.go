package parse

import (
	"unicode/utf8"

	"strobe/internal/jsontext"
)

// jsonScan checks one JSON value byte by byte and passes it on. It forgives
// raw control characters in strings, which models write for line breaks, and
// emits them escaped.
type jsonScan struct {
	out   func(s string)
	stack []byte // '{' or '['
	state scanState
	word  string // the number or literal being read
}

type scanState uint8

const (
	scanValue   scanState = iota // a value must follow
	scanFirst                    // after '[': a value or ']'
	scanKey                      // after '{': a key or '}'
	scanNextKey                  // after ',' in an object
	scanColon
	scanAfter // after a value inside a container
	scanString
	scanEscape
	scanHex1
	scanHex2
	scanHex3
	scanHex4
	scanWord
)

const maxDepth = 200

// scanned is the outcome of a byte: it may end the value without being part of it.
type scanned uint8

const (
	scanMore scanned = iota
	scanDone
	scanDoneBefore
	scanBad
)

func isJSONSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func (j *jsonScan) inObject() bool { return len(j.stack) > 0 && j.stack[len(j.stack)-1] == '{' }

// key strings and value strings share the string states; isKey tells them apart.
func (j *jsonScan) endString() scanned {
	if j.inObject() && j.word == "key" {
		j.word = ""
		j.state = scanColon
		return scanMore
	}
	return j.endValue()
}

func (j *jsonScan) endValue() scanned {
	j.word = ""
	if len(j.stack) == 0 {
		return scanDone
	}
	j.state = scanAfter
	return scanMore
}

func (j *jsonScan) feed(c byte) scanned {
	emit := func() { j.out(string([]byte{c})) }
	switch j.state {
	case scanString:
		switch {
		case c == '"':
			emit()
			return j.endString()
		case c == '\\':
			emit()
			j.state = scanEscape
		case c < 0x20:
			j.out(escapeByte(c))
		default:
			emit()
		}
		return scanMore
	case scanEscape:
		switch c {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			j.state = scanString
		case 'u':
			j.state = scanHex1
		default:
			return scanBad
		}
		emit()
		return scanMore
	case scanHex1, scanHex2, scanHex3, scanHex4:
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return scanBad
		}
		emit()
		if j.state == scanHex4 {
			j.state = scanString
		} else {
			j.state++
		}
		return scanMore
	case scanWord:
		if c == ',' || c == '}' || c == ']' || isJSONSpace(c) {
			if !validWord(j.word) {
				return scanBad
			}
			if j.endValue() == scanDone {
				return scanDoneBefore
			}
			return j.feed(c)
		}
		if len(j.word) > 400 {
			return scanBad
		}
		j.word += string([]byte{c})
		emit()
		return scanMore
	}
	if isJSONSpace(c) {
		if len(j.stack) > 0 {
			emit()
		}
		return scanMore
	}
	emitOK := scanMore
	switch j.state {
	case scanKey, scanNextKey:
		switch {
		case c == '"':
			j.word, j.state = "key", scanString
		case c == '}' && j.state == scanKey:
			j.stack = j.stack[:len(j.stack)-1]
			emitOK = j.endValue()
		default:
			return scanBad
		}
	case scanColon:
		if c != ':' {
			return scanBad
		}
		j.state = scanValue
	case scanAfter:
		top := j.stack[len(j.stack)-1]
		switch {
		case c == ',' && top == '{':
			j.state = scanNextKey
		case c == ',':
			j.state = scanValue
		case c == '}' && top == '{', c == ']' && top == '[':
			j.stack = j.stack[:len(j.stack)-1]
			emitOK = j.endValue()
		default:
			return scanBad
		}
	default: // scanValue, scanFirst
		switch {
		case c == ']' && j.state == scanFirst:
			j.stack = j.stack[:len(j.stack)-1]
			emitOK = j.endValue()
		case c == '"':
			j.word, j.state = "", scanString
		case c == '{' || c == '[':
			if len(j.stack) >= maxDepth {
				return scanBad
			}
			j.stack = append(j.stack, c)
			j.state = scanKey
			if c == '[' {
				j.state = scanFirst
			}
		case c == '-' || c >= '0' && c <= '9' || c == 't' || c == 'f' || c == 'n':
			j.word, j.state = string([]byte{c}), scanWord
		default:
			return scanBad
		}
	}
	emit()
	return emitOK
}

// validWord reports whether s is a JSON number, true, false or null.
func validWord(s string) bool {
	switch s {
	case "true", "false", "null":
		return true
	}
	return validNumber(s)
}

func validNumber(s string) bool {
	digits := func() bool {
		n := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		s = s[n:]
		return n > 0
	}
	if s != "" && s[0] == '-' {
		s = s[1:]
	}
	if s != "" && s[0] == '0' {
		s = s[1:]
	} else if !digits() {
		return false
	}
	if s != "" && s[0] == '.' {
		s = s[1:]
		if !digits() {
			return false
		}
	}
	if s != "" && (s[0] == 'e' || s[0] == 'E') {
		s = s[1:]
		if s != "" && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if !digits() {
			return false
		}
	}
	return s == ""
}

// escapeByte is the JSON string form of one byte of text. Bytes of multi-byte
// characters pass as they are.
func escapeByte(c byte) string {
	if c >= utf8.RuneSelf {
		return string([]byte{c})
	}
	return jsontext.Escape(rune(c))
}

// quote is the JSON string of s.
func quote(s string) string {
	b := []byte{'"'}
	for _, r := range s {
		b = append(b, jsontext.Escape(r)...)
	}
	return string(append(b, '"'))
}
