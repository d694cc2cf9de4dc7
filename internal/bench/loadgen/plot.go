package loadgen

import (
	"fmt"
	"math"
	"slices"

	"strobe/internal/svg"
)

// Colours of the picture; targets take theirs in turn.
var (
	colours = []string{"#9aa5b1", "#1f9d76", "#3b6fd4", "#d4843b", "#a04fb5", "#c23b4e"}
	ink     = "#22262b"
	faint   = "#6b737d"
	grid    = "#e3e6ea"
)

// Plot draws throughput, time to the first token and gaps by the number of clients, as SVG.
func (r *Report) Plot() []byte {
	const panel, left, height = 330, 60, 400
	p := svg.New(3*panel+30, height, "font-family", "Go, system-ui, sans-serif", "font-size", "12")
	p.Rect(0, 0, 3*panel+30, height, "fill", "#ffffff")
	for i := range r.Targets {
		y := 24 + 16*float64(i%3)
		x := 24 + 320*float64(i/3)
		p.Rect(x, y-9, 10, 10, "fill", colour(i))
		p.Text(x+16, y, r.Targets[i].Name+" ("+r.Targets[i].Model+")", "fill", ink)
	}
	for i, d := range []struct {
		title     string
		low, high func(*Summary) float64 // the bar, and how far the line on it goes
	}{
		{"output tokens/s, line: fastest round", func(s *Summary) float64 { return s.OutputPerSecond },
			func(s *Summary) float64 { return max(s.OutputPerSecond, slices.Max(append([]float64{0}, s.Rounds...))) }},
		{"ms to the first token, line: 95 %", func(s *Summary) float64 { return s.First.P50 },
			func(s *Summary) float64 { return s.First.P95 }},
		{"ms between arrivals, line: 99 %", func(s *Summary) float64 { return s.Gap.P50 },
			func(s *Summary) float64 { return s.Gap.P99 }},
	} {
		r.panel(p, left+panel*float64(i), 110, panel-left-20, 220, d.title, d.low, d.high)
	}
	return p.Bytes()
}

func colour(i int) string { return colours[i%len(colours)] }

// panel draws bars by number of clients and target.
func (r *Report) panel(p *svg.Picture, x, y, w, h float64, title string, low, high func(*Summary) float64) {
	top := 0.0
	for i := range r.Summaries {
		top = max(top, low(&r.Summaries[i]), high(&r.Summaries[i]))
	}
	step := roundStep(top)
	top = step * max(1, math.Ceil(top/step))
	at := func(v float64) float64 { return y + h*(1-v/top) }
	p.Text(x, y-16, title, "fill", ink)
	for v := 0.0; v <= top+step/2; v += step {
		p.Rect(x, at(v)-0.5, w, 1, "fill", grid)
		p.Text(x-6, at(v)+4, fmt.Sprintf("%g", v), "fill", faint, "text-anchor", "end")
	}
	group := w / float64(max(1, len(r.Settings.Clients)))
	bar := group * 0.8 / float64(max(1, len(r.Targets)))
	for i := range r.Summaries {
		s := &r.Summaries[i]
		left := x + group*(float64(slices.Index(r.Settings.Clients, s.Clients))+0.1) + bar*float64(s.Target)
		p.Rect(left, at(low(s)), bar*0.9, at(0)-at(low(s)), "fill", colour(s.Target))
		p.Rect(left+bar*0.45-1, at(high(s)), 2, at(low(s))-at(high(s)), "fill", ink)
	}
	for i, n := range r.Settings.Clients {
		p.Text(x+group*(float64(i)+0.5), y+h+18, clientsText(n), "fill", ink, "text-anchor", "middle")
	}
	p.Text(x+w/2, y+h+36, "clients", "fill", faint, "text-anchor", "middle")
}

// roundStep is a distance of about a quarter of top that reads well: 1, 2 or 5 times a power of ten.
func roundStep(top float64) float64 {
	if !(top > 0) || math.IsInf(top, 0) {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(top/4)))
	for _, k := range []float64{1, 2, 5} {
		if top/4 <= k*p {
			return k * p
		}
	}
	return 10 * p
}
