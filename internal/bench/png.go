package bench

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"
	"unicode"
)

// raster is a canvas of pixels, twice as fine as its coordinates.
type raster struct{ img *image.RGBA }

const fine = 2

func newPNG(w, h int) *raster { return &raster{image.NewRGBA(image.Rect(0, 0, fine*w, fine*h))} }

func (p *raster) rect(x, y, w, h float64, c color.RGBA) {
	at := func(v float64) int { return int(math.Round(v * fine)) }
	draw.Draw(p.img, image.Rect(at(x), at(y), max(at(x+w), at(x)), max(at(y+h), at(y))), image.NewUniform(c),
		image.Point{}, draw.Src)
}

// text draws with the dots of font.go, one cell of six by nine dots per letter.
func (p *raster) text(x, y float64, size int, anchor float64, c color.RGBA, s string) {
	dot := max(1, size*fine/11)
	runes := []rune(s)
	left := int(x*fine) - int(anchor*float64(len(runes)*6*dot))
	top := int(y*fine) - 7*dot
	for i, r := range runes {
		rows, ok := glyphs[unicode.ToUpper(r)]
		if !ok {
			rows = glyphs['?']
		}
		for n, d := range rows {
			if d != '#' {
				continue
			}
			px, py := left+(i*6+n%6)*dot, top+n/6*dot
			draw.Draw(p.img, image.Rect(px, py, px+dot, py+dot), image.NewUniform(c), image.Point{}, draw.Src)
		}
	}
}

func (p *raster) encode() ([]byte, error) {
	var b bytes.Buffer
	err := png.Encode(&b, p.img)
	return b.Bytes(), err
}
