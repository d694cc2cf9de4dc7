package bench

import (
	"fmt"
	"image/color"
	"strings"
)

// svg is a canvas that writes a scalable picture.
type svg struct {
	w, h int
	b    strings.Builder
}

func newSVG(w, h int) *svg { return &svg{w: w, h: h} }

func (s *svg) rect(x, y, w, h float64, c color.RGBA) {
	fmt.Fprintf(&s.b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, max(0, w),
		max(0, h), hex(c))
}

func (s *svg) text(x, y float64, size int, anchor float64, c color.RGBA, t string) {
	where := "start"
	switch {
	case anchor > 0.75:
		where = "end"
	case anchor > 0.25:
		where = "middle"
	}
	fmt.Fprintf(&s.b, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x, y,
		size, where, hex(c), escape(t))
}

func (s *svg) encode() ([]byte, error) {
	return fmt.Appendf(nil, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "+
		"%d\" font-family=\"system-ui, sans-serif\">\n%s</svg>\n",
		s.w, s.h, s.w, s.h, s.b.String()), nil
}

func hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

// escape makes text safe inside an element. Characters that XML does not allow become a question mark.
func escape(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0xfffd || r == 0xfffe || r == 0xffff {
			return '?'
		}
		return r
	}, s)
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(s)
}
