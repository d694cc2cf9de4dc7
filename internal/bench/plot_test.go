package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/color"
	"image/png"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sampleReport has everything a picture shows, and a name that needs care.
func sampleReport() *Report {
	r := &Report{Schema: Schema}
	r.Model.Name = "tiny <model> & \"co\"\x01"
	r.System.Device = "cpu (generic, 2 threads)"
	r.Settings = Settings{Source: "suite code", Prompts: 3, Tokens: 64, Repeats: 3}
	r.Modes = []ModeReport{
		{Name: "plain", TokensPerSecond: NewSpread([]float64{10, 11, 9}), SpeedUp: NewSpread([]float64{1, 1, 1}), Tokens: 30,
			Passes: 30, Lengths: []int{30}},
		{Name: "chain", TokensPerSecond: NewSpread([]float64{25, 22, 24}), SpeedUp: NewSpread([]float64{2.5, 2, 2.7}),
			Against: Comparison{2.5, 2.1, 2.9, 3, Real}, BreakEven: 1.4, Tokens: 30, Passes: 10, TokensPerPass: 3,
			Guessed: 150, Accepted: 20, Lengths: []int{2, 3, 1, 4}, ByPosition: []float64{0.8, 0.6, 0.5},
			Sources: map[string]int{"dflash": 10}},
	}
	r.Identical = Identical{Checked: true, Same: true, SHA256: strings.Repeat("0123456789abcdef", 4)}
	return r
}

func TestPlotSVG(t *testing.T) {
	b, err := sampleReport().Plot("svg")
	if err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(bytes.NewReader(b))
	rects, texts := 0, ""
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not well-formed: %v\n%s", err, b)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			if e.Name.Local == "rect" {
				rects++
			}
		case xml.CharData:
			texts += string(e) + "|"
		}
	}
	for _, want := range []string{"tiny <model> & \"co\"\ufffd", "plain", "chain", "23.7", "2.50x", "real",
		"mean 3.00, as fast as plain at 1.40", "same tokens"} {
		if !strings.Contains(texts, want) {
			t.Errorf("no text %q in %s", want, texts)
		}
	}
	if rects < 2+4 {
		t.Errorf("%d rectangles for two modes and four lengths", rects)
	}
}

func TestPlotPNG(t *testing.T) {
	b, err := sampleReport().Plot("png")
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	count := map[[3]uint32]int{}
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, b, _ := img.At(x, y).RGBA()
			count[[3]uint32{r >> 8, g >> 8, b >> 8}]++
		}
	}
	for name, c := range map[string]struct{ R, G, B uint8 }{"plain": {muted.R, muted.G, muted.B},
		"drafted": {accent.R, accent.G, accent.B}, "text": {ink.R, ink.G, ink.B}} {
		if count[[3]uint32{uint32(c.R), uint32(c.G), uint32(c.B)}] < 100 {
			t.Errorf("hardly any pixel has the colour of %s", name)
		}
	}
}

// TestPlotOdd: nothing measured, or nonsense, still gives a picture.
func TestPlotOdd(t *testing.T) {
	odd := sampleReport()
	odd.Modes[0].TokensPerSecond = NewSpread([]float64{math.NaN()})
	odd.Modes[1].TokensPerSecond = NewSpread([]float64{math.Inf(1)})
	for _, r := range []*Report{{}, odd} {
		for _, format := range []string{"svg", "png"} {
			if b, err := r.Plot(format); err != nil || len(b) == 0 {
				t.Errorf("%s: %d bytes, error %v", format, len(b), err)
			}
		}
	}
	if _, err := odd.Plot("gif"); err == nil {
		t.Error("gif was accepted")
	}
	if err := odd.WritePlot(filepath.Join(t.TempDir(), "a.jpg")); err == nil {
		t.Error("a.jpg was accepted")
	}
}

func TestRoundStep(t *testing.T) {
	for top, want := range map[float64]float64{0: 1, 1: 0.5, 3: 1, 8: 2, 100: 50, 130: 50, 2500: 1000} {
		if got := roundStep(top); math.Abs(got-want) > 1e-9 {
			t.Errorf("step for %g is %g, want %g", top, got, want)
		}
	}
}

// boxes is a canvas that notes where texts stand.
type boxes struct{ texts []box }

type box struct {
	text                     string
	left, top, right, bottom float64
}

func (b *boxes) rect(x, y, w, h float64, c color.RGBA) {}

func (b *boxes) text(x, y float64, size int, anchor float64, c color.RGBA, s string) {
	w := textWidth(size, s)
	x -= anchor * w
	b.texts = append(b.texts, box{s, x, y - 0.8*float64(size), x + w, y + 0.2*float64(size)})
}

func (b *boxes) encode() ([]byte, error) { return nil, nil }

// check fails for texts that overlap or leave the picture.
func (b *boxes) check(t *testing.T, width, height float64) {
	t.Helper()
	if len(b.texts) < 10 {
		t.Errorf("%d texts", len(b.texts))
	}
	for i, x := range b.texts {
		if x.left < 0 || x.top < 0 || x.right > width || x.bottom > height {
			t.Errorf("%q leaves the picture: %+v", x.text, x)
		}
		for _, y := range b.texts[:i] {
			if x.left < y.right && y.left < x.right && x.top < y.bottom && y.top < x.bottom {
				t.Errorf("%q and %q overlap", x.text, y.text)
			}
		}
	}
}

// crowded has all modes, large numbers, long names and blocks of 16.
func crowded() *Report {
	r := sampleReport()
	r.Model.Name = strings.Repeat("A model with a long name ", 6)
	r.Settings.Source = strings.Repeat("folder/", 12) + "prompts.jsonl"
	r.Modes = nil
	for i, name := range ModeNames {
		m := ModeReport{Name: name, TokensPerSecond: NewSpread([]float64{12345.6 + float64(i), 11000, 13000}), Guessed: i,
			Against: Comparison{12.34, 11, 13, 16, TooFew}, BreakEven: 12.34, Passes: 160, TokensPerPass: 12.34}
		m.Lengths = slices.Repeat([]int{10}, 16)
		r.Modes = append(r.Modes, m)
	}
	return r
}

// TestPlotOverlap: no text runs into another, whatever the names and numbers.
func TestPlotOverlap(t *testing.T) {
	for _, r := range []*Report{sampleReport(), crowded()} {
		b := &boxes{}
		r.draw(b)
		b.check(t, plotWidth, plotHeight)
	}
	s := &Sweep{Reports: []*Report{sampleReport(), crowded(), crowded()}}
	b := &boxes{}
	s.draw(b)
	b.check(t, plotWidth, s.height())
	for _, format := range []string{"svg", "png"} {
		if pic, err := s.Plot(format); err != nil || len(pic) == 0 {
			t.Errorf("%s: %v", format, err)
		}
	}
}
