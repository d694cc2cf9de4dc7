package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"strobe/internal/engine"
)

// Entry is a model to measure, with its drafter.
type Entry struct {
	Model  *engine.Model
	Config Config // Cases must be the same prompts for all entries, and Repeats and Progress are those of the first
}

// SweepSchema names the form of a Sweep.
const SweepSchema = "strobe-bench-sweep/1"

// Sweep compares models and drafters. All of them were in memory at once and took turns on every prompt.
type Sweep struct {
	Schema  string    `json:"schema"`
	Reports []*Report `json:"reports"`
	// Against compares each report but the first with the first, by the name of the mode.
	Against []map[string]Comparison `json:"against_first"`
}

// MeasureAll runs every case on every entry in every mode, Repeats times.
func MeasureAll(ctx context.Context, entries []Entry) (*Sweep, error) {
	var all []*bencher
	type way struct{ entry, mode int }
	var ways []way
	for i, e := range entries {
		b, err := newBencher(e.Model, e.Config)
		if err != nil {
			return nil, err
		}
		if i > 0 && len(b.cfg.Cases) != len(all[0].cfg.Cases) {
			return nil, fmt.Errorf("bench: %d prompts for one model, %d for another", len(all[0].cfg.Cases), len(b.cfg.Cases))
		}
		defer e.Model.Runner.Capture()
		all = append(all, b)
		for mode := range b.cfg.Modes {
			ways = append(ways, way{i, mode})
		}
		if err := b.warm(ctx); err != nil {
			return nil, err
		}
	}
	first := &all[0].cfg
	done, total := 0, first.Repeats*len(first.Cases)*len(ways)
	for rep := range first.Repeats {
		for c := range first.Cases {
			for i := range ways {
				// Another one begins each time: whoever comes first pays for what the others did to the caches.
				w := ways[(i+rep+c)%len(ways)]
				b := all[w.entry]
				r, err := b.run(ctx, w.mode, &b.cfg.Cases[c], b.cfg.Tokens)
				if err != nil {
					return nil, fmt.Errorf("prompt %s, mode %s: %w", b.cfg.Cases[c].ID, b.cfg.Modes[w.mode].Name, err)
				}
				b.results[w.mode][c] = append(b.results[w.mode][c], r)
				if done++; first.Progress != nil {
					first.Progress(done, total)
				}
			}
		}
	}
	s := &Sweep{Schema: SweepSchema}
	for i, b := range all {
		s.Reports = append(s.Reports, b.report(b.results))
		if i == 0 {
			continue
		}
		against := map[string]Comparison{}
		for x, mode := range b.cfg.Modes {
			for y, other := range first.Modes {
				if mode.Name == other.Name {
					against[mode.Name] = compare(b.results[x], all[0].results[y])
				}
			}
		}
		s.Against = append(s.Against, against)
	}
	return s, nil
}

// title names the pair of a report.
func (r *Report) title() string {
	s := r.name()
	if path := r.Model.Path; path != "" {
		s = filepath.Base(path)
	}
	join := " with "
	for _, d := range append([]*DrafterInfo{r.Drafter}, r.Others...) {
		switch {
		case d == nil:
			continue
		case d.Path == "" || d.Path == r.Model.Path:
			s += join + d.Name
		default:
			s += join + filepath.Base(d.Path)
		}
		join = " and "
	}
	return s
}

// WriteText prints the comparison as a table.
func (s *Sweep) WriteText(w io.Writer) error {
	p := &printer{w: w}
	first := s.Reports[0]
	p.line("%d pairs on %s; all took turns on every prompt", len(s.Reports), first.System.Device)
	p.line("%s", first.Settings.text())
	rows := [][]string{{"mode", "tokens/s", "against plain", "", "against pair 1", "", "tokens/pass", "break-even",
		"first token ms"}}
	for i, r := range s.Reports {
		p.line("  %d  %s, %s", i+1, r.title(), engine.Bytes(r.Model.WeightBytes))
		for _, s := range r.LeftOut {
			p.line("     left out: %s", s)
		}
		for _, m := range r.Modes {
			against, verdict := "", ""
			if i > 0 {
				if c, ok := s.Against[i-1][m.Name]; ok {
					against, verdict = c.text(), c.Verdict
				}
			}
			row := append([]string{fmt.Sprintf("%d %s", i+1, m.Name)}, m.cells()...)
			rows = append(rows, append(append(row[:4:4], against, verdict), row[4:]...))
		}
	}
	p.line("")
	p.table(rows)
	p.line("")
	p.line("%s", howToRead)
	for i, r := range s.Reports {
		p.line("%d %s", i+1, r.Verdict())
	}
	return p.err
}

// WriteJSON writes the comparison as one JSON object.
func (s *Sweep) WriteJSON(w io.Writer) error { return writeJSON(w, s) }

// Plot draws the comparison as a picture of the given format, "svg" or "png".
func (s *Sweep) Plot(format string) ([]byte, error) {
	c, err := newCanvas(format, plotWidth, int(s.height()))
	if err != nil {
		return nil, err
	}
	s.draw(c)
	return c.encode()
}

// Distances of the picture of a sweep.
const (
	sweepTop  = 86.0
	sweepLine = 22.0
	sweepGap  = 22.0 // after a pair
)

func (s *Sweep) height() float64 {
	h := sweepTop
	for _, r := range s.Reports {
		h += float64(1+len(r.Modes))*sweepLine + sweepGap
	}
	return h
}

// draw has a row for every pair and mode.
func (s *Sweep) draw(c canvas) {
	c.rect(0, 0, plotWidth, s.height(), paper)
	first := s.Reports[0]
	heading(c, "Tokens per second on "+first.System.Device, first.Settings.text())
	most := 0.0
	for _, r := range s.Reports {
		for _, m := range r.Modes {
			most = max(most, m.TokensPerSecond.Max)
		}
	}
	const left, right = 84.0, plotWidth - 190.0
	scale := func(v float64) float64 {
		if !(most > 0) || !(v > 0) || v > most {
			return 0
		}
		return (right - left) * v / most
	}
	y := sweepTop
	for i, r := range s.Reports {
		fitted(c, 24, y, 13, plotWidth-48, ink, fmt.Sprintf("%d  %s", i+1, r.title()))
		y += sweepLine
		for _, m := range r.Modes {
			fill := accent
			if m.Guessed == 0 {
				fill = muted
			}
			t := m.TokensPerSecond
			c.text(left-8, y, 12, 1, ink, m.Name)
			c.rect(left, y-12, scale(t.Mean), 15, fill)
			c.rect(left+scale(t.Min), y-5.5, scale(t.Max)-scale(t.Min), 2, ink)
			note := fmt.Sprintf("%.1f", t.Mean)
			if m.Name != "plain" {
				note += fmt.Sprintf(", %.2fx plain (%s)", m.Against.Ratio, m.Against.Verdict)
			}
			c.text(left+scale(t.Max)+8, y, 12, 0, ink, note)
			y += sweepLine
		}
		y += sweepGap
	}
}

// WritePlot writes the picture to a file; its name decides the format.
func (s *Sweep) WritePlot(path string) error { return writePlot(path, s.Plot) }

func writePlot(path string, plot func(format string) ([]byte, error)) error {
	format, err := PlotFormat(path)
	if err != nil {
		return err
	}
	b, err := plot(format)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// text is one line about what was asked for.
func (s *Settings) text() string {
	how := "greedy"
	if s.Temperature > 0 {
		how = fmt.Sprintf("temperature %g, the same seed for all", s.Temperature)
	}
	if s.SyntheticAccept > 0 {
		how = fmt.Sprintf("%g tokens per pass pretended", s.SyntheticAccept)
	}
	return fmt.Sprintf("%d prompts (%s, %d tokens), up to %d tokens each, %d repeats, %s", s.Prompts, s.Source,
		s.PromptTokens, s.Tokens, s.Repeats, how)
}

// howToRead explains the columns of speed.
var howToRead = strings.Join([]string{
	"tokens/s: mean ± standard deviation over the repeats. Against plain: geometric mean of the ratio over the prompts with",
	"its 95 % confidence interval; \"real\" if 1 is outside, else \"noise\". Break-even: tokens per pass at which it would be",
	"as fast as plain decoding.",
}, "\n")
