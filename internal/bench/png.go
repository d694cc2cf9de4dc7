package bench

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"
	"sync"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
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

func (p *raster) text(x, y float64, size int, anchor float64, c color.RGBA, s string) {
	d := font.Drawer{Dst: p.img, Src: image.NewUniform(c), Face: face(size)}
	fix := func(v float64) fixed.Int26_6 { return fixed.Int26_6(math.Round(v * 64)) }
	d.Dot = fixed.Point26_6{X: fix(x*fine - anchor*float64(d.MeasureString(s))/64), Y: fix(y * fine)}
	d.DrawString(s)
}

// typeface is the font that pictures are drawn and measured with.
var typeface = sync.OnceValue(func() *opentype.Font {
	f, err := opentype.Parse(goregular.TTF)
	if err != nil {
		panic("bench: the built-in font: " + err.Error())
	}
	return f
})

// face is the font at a size of the picture.
func face(size int) font.Face {
	f, err := opentype.NewFace(typeface(), &opentype.FaceOptions{Size: float64(size * fine), DPI: 72})
	if err != nil {
		panic("bench: the built-in font: " + err.Error())
	}
	return f
}

// textWidth is how many pixels of the picture a text takes.
func textWidth(size int, s string) float64 {
	return float64(font.MeasureString(face(size), s)) / 64 / fine
}

func (p *raster) encode() ([]byte, error) {
	var b bytes.Buffer
	err := png.Encode(&b, p.img)
	return b.Bytes(), err
}
