package engine

import (
	"bytes"

	"strobe/internal/tokenizer"
)

// Text turns tokens into text as they come. It holds back what might change: bytes of an unfinished
// character, and text that may turn out to be the beginning of a stop string.
type Text struct {
	stream *tokenizer.Stream
	stops  [][]byte
	held   []byte
	// Stopped is the stop string that ended the text, nil if none did.
	Stopped []byte
}

// NewText returns a Text that ends before any of the stop strings.
func NewText(t *tokenizer.Tokenizer, stops []string) *Text {
	x := &Text{stream: t.NewStream()}
	for _, s := range stops {
		if s != "" {
			x.stops = append(x.stops, []byte(s))
		}
	}
	return x
}

// Push adds a token and returns the text that is now certain. When a stop string is complete,
// done is true and the text ends before it.
func (x *Text) Push(id int32) (text []byte, done bool) {
	return x.add(x.stream.Push(id))
}

// Flush ends the text and returns what was held back.
func (x *Text) Flush() []byte {
	if x.Stopped != nil {
		return nil
	}
	text, done := x.add(x.stream.Flush())
	if done {
		return text
	}
	text = append(bytes.Clone(text), x.held...)
	x.held = nil
	return text
}

func (x *Text) add(b []byte) (text []byte, done bool) {
	x.held = append(x.held, b...)
	first, stop := -1, []byte(nil)
	for _, s := range x.stops {
		if i := bytes.Index(x.held, s); i >= 0 && (first < 0 || i < first) {
			first, stop = i, s
		}
	}
	if first >= 0 {
		text = x.held[:first:first]
		x.held, x.Stopped = nil, stop
		return text, true
	}
	keep := 0
	for _, s := range x.stops {
		keep = max(keep, overlap(x.held, s))
	}
	n := len(x.held) - keep
	text = bytes.Clone(x.held[:n])
	x.held = append(x.held[:0], x.held[n:]...)
	return text, false
}

// overlap is the length of the longest proper beginning of s that b ends with.
func overlap(b, s []byte) int {
	for n := min(len(s)-1, len(b)); n > 0; n-- {
		if bytes.HasSuffix(b, s[:n]) {
			return n
		}
	}
	return 0
}
