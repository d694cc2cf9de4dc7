package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"strobe/internal/termtext"
)

// progress reports how far a long job is: a bar on a terminal, a plain line now
// and then in a log, nothing with --quiet. The zero-cost nil *progress is valid
// and silent, so library callbacks need no checks.
type progress struct {
	w     io.Writer
	label string
	total int64
	done  int64
	bar   *progressbar.ProgressBar

	start    time.Time
	lastLine time.Time
}

// newProgress starts a report of total bytes (total <= 0: unknown).
func newProgress(cmd *cobra.Command, label string, total int64) *progress {
	if isQuiet(cmd) {
		return nil
	}
	p := &progress{w: cmd.ErrOrStderr(), label: label, total: total, start: time.Now()}
	p.lastLine = p.start
	if canDraw(p.w) {
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(p.w),
			progressbar.OptionSetDescription(label),
			progressbar.OptionShowBytes(true),
			progressbar.OptionSetWidth(30),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionClearOnFinish(),
		)
	}
	return p
}

// logInterval is how often a log (not a terminal) gets a line.
const logInterval = 10 * time.Second

// Add records n more bytes. Calls come from one goroutine.
func (p *progress) Add(n int64) {
	if p == nil {
		return
	}
	p.done += n
	if p.bar != nil {
		_ = p.bar.Add64(n)
		return
	}
	if now := time.Now(); now.Sub(p.lastLine) >= logInterval {
		p.lastLine = now
		if p.total > 0 {
			fmt.Fprintf(p.w, "%s: %d%% (%s of %s)\n", p.label, p.done*100/p.total, formatBytes(p.done), formatBytes(p.total))
		} else {
			fmt.Fprintf(p.w, "%s: %s\n", p.label, formatBytes(p.done))
		}
	}
}

// Line writes a line for people above the bar.
func (p *progress) Line(s string) {
	if p == nil {
		return
	}
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintln(p.w, s)
}

// Finish removes the bar and prints one closing line.
func (p *progress) Finish() {
	if p == nil {
		return
	}
	p.Stop()
	sec := time.Since(p.start).Seconds()
	fmt.Fprintf(p.w, "%s: %s in %.1f s\n", p.label, formatBytes(p.done), sec)
}

// Stop removes the bar without a closing line, for the error path.
func (p *progress) Stop() {
	if p != nil && p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}

// isTerminal reports whether v is a file attached to a terminal.
func isTerminal(v any) bool {
	f, ok := v.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// canDraw reports whether v is a terminal that knows colours and moves of the cursor.
func canDraw(v any) bool { return isTerminal(v) && os.Getenv("TERM") != "dumb" }

func isQuiet(cmd *cobra.Command) bool {
	q, err := cmd.Flags().GetBool("quiet")
	return err == nil && q
}

// infof writes a line for people; silent with --quiet.
func infof(cmd *cobra.Command, format string, args ...any) {
	if !isQuiet(cmd) {
		fmt.Fprintln(cmd.ErrOrStderr(), termtext.Lines(fmt.Sprintf(format, args...)))
	}
}

// formatBytes prints a size the way file managers do: 1.5 GB, 820 MB, 12 kB.
func formatBytes(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	v, u := float64(n), 0
	for v >= 1000 && u < len(units)-1 {
		v /= 1000
		u++
	}
	if u == 0 || v >= 100 {
		return fmt.Sprintf("%.0f %s", v, units[u])
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}
