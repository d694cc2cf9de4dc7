package bench

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"strings"
)

// canvas is what a plot is drawn on. Coordinates are pixels from the upper left corner.
type canvas interface {
	rect(x, y, w, h float64, c color.RGBA)
	// text draws one line whose letters stand on y; anchor is the share of its width left of x.
	text(x, y float64, size int, anchor float64, c color.RGBA, s string)
	encode() ([]byte, error)
}

// newCanvas returns an empty picture of the given format, "svg" or "png".
func newCanvas(format string, width, height int) (canvas, error) {
	switch format {
	case "svg":
		return newSVG(width, height), nil
	case "png":
		return newPNG(width, height), nil
	}
	return nil, fmt.Errorf("picture format %q: want svg or png", format)
}

// Plot draws the comparison as a picture of the given format, "svg" or "png".
func (r *Report) Plot(format string) ([]byte, error) {
	c, err := newCanvas(format, plotWidth, plotHeight)
	if err != nil {
		return nil, err
	}
	r.draw(c)
	return c.encode()
}

// PlotFormat is the format a file name asks for.
func PlotFormat(path string) (string, error) {
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".svg", ".png":
		return ext[1:], nil
	}
	return "", fmt.Errorf("%s: pictures are written as .svg or .png", path)
}

// WritePlot writes the picture to a file; its name decides the format.
func (r *Report) WritePlot(path string) error { return writePlot(path, r.Plot) }

// heading draws a title and a line below it.
func heading(c canvas, title, below string) {
	fitted(c, 24, 32, 16, plotWidth-48, ink, title)
	fitted(c, 24, 52, 12, plotWidth-48, faint, below)
}

// fitted draws text no wider than a width: smaller if it must be, and cut if that is not enough.
func fitted(c canvas, x, y float64, size int, width float64, col color.RGBA, s string) {
	for size > 9 && textWidth(size, s) > width {
		size--
	}
	if textWidth(size, s) > width {
		r := []rune(s)
		for len(r) > 0 && textWidth(size, string(r)+"…") > width {
			r = r[:len(r)-1]
		}
		s = string(r) + "…"
	}
	c.text(x, y, size, 0, col, s)
}

const (
	plotWidth  = 820
	plotHeight = 380
)

var (
	paper  = color.RGBA{0xff, 0xff, 0xff, 0xff}
	ink    = color.RGBA{0x22, 0x26, 0x2b, 0xff}
	faint  = color.RGBA{0x6b, 0x73, 0x7d, 0xff}
	grid   = color.RGBA{0xe3, 0xe6, 0xea, 0xff}
	muted  = color.RGBA{0x9a, 0xa5, 0xb1, 0xff} // plain decoding
	accent = color.RGBA{0x1f, 0x9d, 0x76, 0xff} // drafted
)

// area is a part of the picture with a scale from 0 to top.
type area struct {
	x, y, w, h float64
	top        float64
}

// at is the height on the picture of a value.
func (a *area) at(v float64) float64 { return a.y + a.h*(1-v/a.top) }

func (r *Report) draw(c canvas) {
	c.rect(0, 0, plotWidth, plotHeight, paper)
	heading(c, r.name()+" on "+r.System.Device, r.Settings.text())
	r.drawSpeed(c, area{x: 70, y: 100, w: 320, h: 220})
	r.drawLengths(c, area{x: 480, y: 100, w: 310, h: 220})
	verdict := "same tokens in all modes"
	switch {
	case !r.Identical.Checked:
		verdict = "acceptance pretended"
	case !r.Identical.Same:
		verdict = "MODES DIFFER"
	}
	c.text(plotWidth-30, plotHeight-14, 12, 1, faint, verdict)
}

// drawSpeed draws mean tokens per second as bars, with the range over the repeats as a thin line.
func (r *Report) drawSpeed(c canvas, a area) {
	c.text(a.x, a.y-18, 12, 0, ink, "tokens per second")
	for _, m := range r.Modes {
		a.top = max(a.top, 1.08*m.TokensPerSecond.Max) // room for the number
	}
	a.axis(c)
	step := a.w / float64(max(1, len(r.Modes)))
	for i, m := range r.Modes {
		x, bar := a.x+step*(float64(i)+0.2), step*0.6
		fill := accent
		if m.Guessed == 0 {
			fill = muted
		}
		s := m.TokensPerSecond
		c.rect(x, a.at(s.Mean), bar, a.at(0)-a.at(s.Mean), fill)
		c.rect(x+bar/2-1, a.at(s.Max), 2, a.at(s.Min)-a.at(s.Max), ink)
		c.text(x+bar/2, a.at(s.Max)-6, 12, 0.5, ink, fmt.Sprintf("%.1f", s.Mean))
		c.text(x+bar/2, a.at(0)+18, 12, 0.5, ink, m.Name)
		if i > 0 {
			c.text(x+bar/2, a.at(0)+34, 12, 0.5, faint, fmt.Sprintf("%.2fx", m.Against.Ratio))
			c.text(x+bar/2, a.at(0)+49, 12, 0.5, faint, m.Against.Verdict)
		}
	}
}

// drawLengths draws how many tokens passes yielded, for the mode that shows the drafter best.
func (r *Report) drawLengths(c canvas, a area) {
	var m *ModeReport
	for i := range r.Modes {
		if x := &r.Modes[i]; x.Guessed > 0 && (m == nil || x.Name == "chain") {
			m = x
		}
	}
	if m == nil {
		return
	}
	c.text(a.x, a.y-34, 12, 0, ink, m.Name+": share of passes (%) by the tokens they yield")
	c.text(a.x, a.y-18, 12, 0, faint, fmt.Sprintf("mean %.2f, as fast as plain at %.2f", m.TokensPerPass, m.BreakEven))
	for _, n := range m.Lengths {
		a.top = max(a.top, 100*float64(n)/float64(max(1, m.Passes)))
	}
	a.axis(c)
	step := a.w / float64(max(1, len(m.Lengths)))
	for i, n := range m.Lengths {
		v := 100 * float64(n) / float64(max(1, m.Passes))
		c.rect(a.x+step*(float64(i)+0.15), a.at(v), step*0.7, a.at(0)-a.at(v), accent)
		if len(m.Lengths) <= 16 || i%4 == 0 {
			c.text(a.x+step*(float64(i)+0.5), a.at(0)+18, 12, 0.5, ink, fmt.Sprint(i+1))
		}
	}
}

// axis draws lines at round values, the highest at or above the top.
func (a *area) axis(c canvas) {
	step := roundStep(a.top)
	a.top = step * max(1, math.Ceil(a.top/step))
	for v := 0.0; v <= a.top+step/2; v += step {
		c.rect(a.x, a.at(v)-0.5, a.w, 1, grid)
		c.text(a.x-8, a.at(v)+4, 12, 1, faint, fmt.Sprintf("%g", v))
	}
}

// roundStep is a distance of about a quarter of top that reads well: 1, 2 or 5 times a power of ten.
func roundStep(top float64) float64 {
	if !(top > 0) || math.IsInf(top, 0) {
		return 1
	}
	raw := top / 4
	p := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, k := range []float64{1, 2, 5} {
		if raw <= k*p {
			return k * p
		}
	}
	return 10 * p
}
