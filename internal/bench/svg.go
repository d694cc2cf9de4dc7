package bench

import (
	"fmt"
	"image/color"

	"strobe/internal/svg"
)

// vector is a canvas that writes a scalable picture.
type vector struct{ p *svg.Picture }

func newSVG(w, h int) vector {
	return vector{svg.New(float64(w), float64(h), "font-family", "Go, system-ui, sans-serif")}
}

func (v vector) rect(x, y, w, h float64, c color.RGBA) { v.p.Rect(x, y, w, h, "fill", hex(c)) }

func (v vector) text(x, y float64, size int, anchor float64, c color.RGBA, t string) {
	where := "start"
	switch {
	case anchor > 0.75:
		where = "end"
	case anchor > 0.25:
		where = "middle"
	}
	// Whatever font a viewer has, the text is as wide as it was measured.
	v.p.Text(x, y, t, "font-size", fmt.Sprint(size), "text-anchor", where, "fill", hex(c),
		"textLength", fmt.Sprintf("%.1f", textWidth(size, t)), "lengthAdjust", "spacingAndGlyphs")
}

func (v vector) encode() ([]byte, error) { return v.p.Bytes(), nil }

func hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }
