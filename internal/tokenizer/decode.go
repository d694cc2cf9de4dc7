package tokenizer

import (
	"bytes"
	"unicode/utf8"
)

// DecodeOptions steer Decode. The zero value leaves control tokens out.
type DecodeOptions struct {
	Special bool // render control, unknown and unused tokens as their text
	// Opens: the ids begin a text, or follow others of which Tokenizer.Opens is true.
	Opens bool
}

// Decode returns the bytes of ids. Ids outside the vocabulary render as nothing.
func (t *Tokenizer) Decode(ids []ID, opt DecodeOptions) []byte {
	out := make([]byte, 0, 5*len(ids))
	for _, id := range ids {
		out = append(out, t.next(id, opt.Special, &opt.Opens)...)
	}
	return out
}

// next renders a token after others. Opens says whether they leave room for a space that Encode puts in front of
// text, and is set for the token after it. The result aliases the vocabulary.
func (t *Tokenizer) next(id ID, special bool, opens *bool) []byte {
	b := t.rendered(id, special)
	if !t.addSpace || !t.valid(id) {
		return b
	}
	if opened := *opens; t.isSpecial(id) {
		*opens = true
	} else if *opens = false; opened {
		b = bytes.TrimPrefix(b, []byte(" "))
	}
	return b
}

// Piece returns the bytes of one token, a copy; see DecodeOptions for special. Beside others a token may have a
// space less: see Tokenizer.Opens.
func (t *Tokenizer) Piece(id ID, special bool) []byte {
	return append([]byte(nil), t.rendered(id, special)...)
}

// rendered aliases the vocabulary.
func (t *Tokenizer) rendered(id ID, special bool) []byte {
	if !t.valid(id) {
		return nil
	}
	if k := t.kinds[id]; !special && (k == Control || k == Unknown || k == Unused) {
		return nil
	}
	return t.piece(id)
}

// Text returns a token's text as the vocabulary writes it ("Ġthe", "<0x0A>"), or
// "" for ids outside it.
func (t *Tokenizer) Text(id ID) string {
	if !t.valid(id) {
		return ""
	}
	return t.textOf(id)
}

// Lookup finds a token by its vocabulary text.
func (t *Tokenizer) Lookup(text string) (ID, bool) { return t.lookup(text) }

// Stream decodes tokens one at a time and holds back the bytes of a character
// until it is complete. Bytes that can no longer become valid UTF-8 are passed on
// as they are, so the output always adds up to what Decode gives.
type Stream struct {
	Special bool // render control tokens
	Opens   bool // as in DecodeOptions
	t       *Tokenizer
	buf     []byte // what the last Push returned, then what is held back
	held    int    // length of the held-back tail of buf
}

// NewStream returns a decoder for one sequence. Not for concurrent use.
func (t *Tokenizer) NewStream() *Stream { return &Stream{t: t} }

// Push adds a token and returns the bytes that are complete with it, possibly
// none. The result is valid until the next call.
func (s *Stream) Push(id ID) []byte {
	n := copy(s.buf, s.buf[len(s.buf)-s.held:])
	s.buf = append(s.buf[:n], s.t.next(id, s.Special, &s.Opens)...)
	s.held = incomplete(s.buf)
	return s.buf[:len(s.buf)-s.held]
}

// Flush returns what is held back: the bytes of a character that never completed.
func (s *Stream) Flush() []byte {
	tail := s.buf[len(s.buf)-s.held:]
	s.held = 0
	return tail
}

// incomplete returns the length of the unfinished character at the end of b.
func incomplete(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			break
		}
	}
	return 0
}
