package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"path/filepath"
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
			Tokens: 30, Passes: 10, TokensPerPass: 3,
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
	for _, want := range []string{"tiny <model> & \"co\"\ufffd", "plain", "chain", "24.0", "2.50x", "mean 3.00",
		"same tokens"} {
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
