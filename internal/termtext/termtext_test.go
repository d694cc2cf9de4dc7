package termtext_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"strobe/internal/termtext"
)

func TestPrintable(t *testing.T) {
	for _, c := range []struct{ in, one, lines string }{
		{"", "", ""},
		{"Qwen3 4B", "Qwen3 4B", "Qwen3 4B"},
		{"a\x1b[31mred\x1b[0m", `a\x1b[31mred\x1b[0m`, `a\x1b[31mred\x1b[0m`},
		{"\x1b]0;title\a", `\x1b]0;title\x07`, `\x1b]0;title\x07`},
		{"a\nb\tc\r", `a\nb\tc\r`, "a\nb\tc\\r"},
		{"\u009b2J", `\u009b2J`, `\u009b2J`},                // the other way to begin a command
		{"\x9b2J\xff", `\x9b2J\xff`, `\x9b2J\xff`},          // the same for terminals without UTF-8
		{"\u202egpj.exe", `\u202egpj.exe`, `\u202egpj.exe`}, // reads as exe.jpg
		{"\u2028\x7f\x00 ", `\u2028\x7f\x00 `, `\u2028\x7f\x00 `},
		{"né 你好 👩‍👩‍👧 \u00a0\ufffd", "né 你好 👩‍👩‍👧 \u00a0\ufffd", "né 你好 👩‍👩‍👧 \u00a0\ufffd"},
		{`back\slash "quoted"`, `back\slash "quoted"`, `back\slash "quoted"`},
	} {
		if got := termtext.Printable(c.in); got != c.one {
			t.Errorf("Printable(%q) is %q, want %q", c.in, got, c.one)
		}
		if got := termtext.Lines(c.in); got != c.lines {
			t.Errorf("Lines(%q) is %q, want %q", c.in, got, c.lines)
		}
	}
}

// Every character, alone and inside text, leaves nothing to obey, and what is safe is unchanged.
func TestEveryCharacter(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		in := "a" + string(r) + "b"
		got := termtext.Printable(in)
		bad := unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
		if bad == (got == in) || bad && strings.ContainsRune(got, r) || !strings.HasSuffix(got, "b") {
			t.Fatalf("%U: %q", r, got)
		}
		if keeps := r == '\n' || r == '\t'; (termtext.Lines(in) == in) != (!bad || keeps) {
			t.Fatalf("%U: Lines gives %q", r, termtext.Lines(in))
		}
	}
	for b := range 256 {
		if got := termtext.Printable(string([]byte{byte(b)})); !utf8.ValidString(got) {
			t.Errorf("byte %#x: %q", b, got)
		}
	}
}
