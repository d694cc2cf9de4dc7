package tokenizer

import "strings"

// GPT-2's byte alphabet writes every byte as a printable character: the printable
// bytes of Latin-1 as themselves, the other 68 as U+0100 and following, in order.

var (
	byteToRune [256]rune
	runeToByte [256 + 68]int16 // -1 = not in the alphabet
)

func init() {
	for i := range runeToByte {
		runeToByte[i] = -1
	}
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r = next
			next++
		}
		byteToRune[b] = r
		runeToByte[r] = int16(b)
	}
}

func runeOfByte(b byte) rune { return byteToRune[b] }

// byteOfRune returns -1 for characters outside the alphabet.
func byteOfRune(r rune) int {
	if r < 0 || int(r) >= len(runeToByte) {
		return -1
	}
	return int(runeToByte[r])
}

// appendUnescaped appends s with U+2581 written as a space.
func appendUnescaped(dst []byte, s string) []byte {
	for {
		i := strings.Index(s, "\u2581")
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(append(dst, s[:i]...), ' ')
		s = s[i+len("\u2581"):]
	}
}

// parseByteToken reads "<0xXX>".
func parseByteToken(s string) (byte, bool) {
	if len(s) != 6 || s[:3] != "<0x" || s[5] != '>' {
		return 0, false
	}
	hi, lo := hexDigit(s[3]), hexDigit(s[4])
	if hi < 0 || lo < 0 {
		return 0, false
	}
	return byte(hi<<4 | lo), true
}

// plainByteToken reports whether s is the usual, upper-case spelling.
func plainByteToken(s string) bool {
	_, ok := parseByteToken(s)
	return ok && s[3] < 'a' && s[4] < 'a'
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
