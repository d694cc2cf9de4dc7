package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"strobe/internal/engine"
)

// LoadReport is how long a model takes until it can be used.
type LoadReport struct {
	Schema string    `json:"schema"`
	Path   string    `json:"path"`
	Device string    `json:"device"`
	Bytes  int       `json:"weight_bytes"` // drafters included
	Runs   []LoadRun `json:"runs"`
}

// LoadRun is one time. Weights are repacked and copied at the same time, both within the phases "weights" and
// "drafters".
type LoadRun struct {
	Seconds float64            `json:"seconds"`
	Phases  []engine.LoadPhase `json:"phases"`
	Repack  float64            `json:"repack_seconds"`
	Upload  float64            `json:"upload_seconds"`
	CPU     float64            `json:"cpu_seconds"` // of all cores; 0 if unknown, like the next
	Faults  int64              `json:"page_faults"`
}

// MeasureLoad loads a model several times.
func MeasureLoad(ctx context.Context, repeats int, load func() (*engine.Model, error)) (*LoadReport, error) {
	r := &LoadReport{Schema: "strobe-load/1"}
	for range repeats {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		cpu, faults := usage()
		began := time.Now()
		m, err := load()
		if err != nil {
			return nil, err
		}
		run := LoadRun{Seconds: time.Since(began).Seconds(), Phases: m.Phases}
		cpuEnd, faultsEnd := usage()
		run.CPU, run.Faults = (cpuEnd - cpu).Seconds(), faultsEnd-faults
		repack, upload := m.Uploads()
		run.Repack, run.Upload = repack.Seconds(), upload.Seconds()
		r.Path, r.Device, r.Bytes = m.Path, m.Backend().Name(), m.Target.WeightBytes()
		for _, d := range m.Drafters() {
			r.Bytes += d.WeightBytes()
		}
		r.Runs = append(r.Runs, run)
		if err := m.Close(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// WriteJSON writes the report as one JSON object.
func (r *LoadReport) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteText writes a line for every phase, with all times.
func (r *LoadReport) WriteText(w io.Writer) error {
	p := &printer{w: w}
	p.line("%s on %s: %s of weights", r.Path, r.Device, engine.Bytes(r.Bytes))
	line := func(name string, value func(*LoadRun) string) {
		var b strings.Builder
		for i := range r.Runs {
			fmt.Fprintf(&b, " %10s", value(&r.Runs[i]))
		}
		p.line("  %-28s%s", name, b.String())
	}
	seconds := func(s float64) string { return fmt.Sprintf("%.3f", s) }
	for i, x := range r.Runs[0].Phases {
		line(x.Name+", s", func(run *LoadRun) string { return seconds(run.Phases[i].Took.Seconds()) })
		if x.Name == "weights" && r.Runs[0].Repack > 0 {
			line("  repacking, s", func(run *LoadRun) string { return seconds(run.Repack) })
			line("  copying beside it, s", func(run *LoadRun) string { return seconds(run.Upload) })
		}
	}
	line("in all, s", func(run *LoadRun) string { return seconds(run.Seconds) })
	line("GB/s", func(run *LoadRun) string { return fmt.Sprintf("%.2f", float64(r.Bytes)/1e9/run.Seconds) })
	if r.Runs[0].CPU > 0 {
		line("processor, s of all cores", func(run *LoadRun) string { return fmt.Sprintf("%.2f", run.CPU) })
		line("page faults", func(run *LoadRun) string { return fmt.Sprint(run.Faults) })
	}
	return p.err
}
