// Package svg writes pictures of rectangles and lines of text.
package svg

import (
	"bytes"
	"encoding/xml"
	"fmt"
)

// Picture is a picture under construction. Coordinates are pixels from the upper left corner.
type Picture struct{ b bytes.Buffer }

// New begins a picture; attributes come in pairs of name and value, here and below.
func New(width, height float64, attributes ...string) *Picture {
	p := &Picture{}
	p.open("svg", append([]string{
		"xmlns", "http://www.w3.org/2000/svg", "width", fmt.Sprintf("%.0f", width), "height", fmt.Sprintf("%.0f", height),
		"viewBox", fmt.Sprintf("0 0 %.0f %.0f", width, height),
	}, attributes...))
	p.b.WriteString(">\n")
	return p
}

func (p *Picture) open(name string, attributes []string) {
	p.b.WriteString("<" + name)
	for i := 0; i+1 < len(attributes); i += 2 {
		p.b.WriteString(" " + attributes[i] + `="`)
		xml.EscapeText(&p.b, []byte(attributes[i+1]))
		p.b.WriteByte('"')
	}
}

// Style adds a style sheet, which must be sound.
func (p *Picture) Style(css string) { fmt.Fprintf(&p.b, "<style>\n%s</style>\n", css) }

// Rect adds a rectangle.
func (p *Picture) Rect(x, y, width, height float64, attributes ...string) {
	p.open("rect", append([]string{"x", pixels(x), "y", pixels(y), "width", pixels(max(0, width)),
		"height", pixels(max(0, height))}, attributes...))
	p.b.WriteString("/>\n")
}

// Text adds a line of text whose letters stand on y. Characters that XML does not allow are replaced.
func (p *Picture) Text(x, y float64, text string, attributes ...string) {
	p.open("text", append([]string{"x", pixels(x), "y", pixels(y)}, attributes...))
	p.b.WriteByte('>')
	xml.EscapeText(&p.b, []byte(text))
	p.b.WriteString("</text>\n")
}

// Bytes ends the picture and returns it.
func (p *Picture) Bytes() []byte {
	p.b.WriteString("</svg>\n")
	return p.b.Bytes()
}

func pixels(v float64) string { return fmt.Sprintf("%.1f", v) }
