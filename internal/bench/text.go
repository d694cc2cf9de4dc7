package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"strobe/internal/engine"
)

// WriteText prints the report for people; verbose adds a line per prompt.
func (r *Report) WriteText(w io.Writer, verbose bool) error {
	p := &printer{w: w}
	r.head(p)
	r.speed(p)
	r.split(p)
	r.acceptance(p)
	if verbose {
		r.perPrompt(p)
	}
	if r.Machine != nil {
		r.Machine.text(p, &r.Model)
	}
	r.memory(p)
	p.line("")
	p.line("%s", r.Verdict())
	return p.err
}

// printer keeps the first error of many prints.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// table prints rows of cells in columns, the first left-aligned, the others right-aligned.
func (p *printer) table(rows [][]string) {
	if p.err != nil {
		return
	}
	tw := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	width := 0
	for _, r := range rows {
		width = max(width, len([]rune(r[0])))
	}
	for _, r := range rows {
		fmt.Fprintf(tw, "  %-*s\t%s\t\n", width, r[0], strings.Join(r[1:], "\t"))
	}
	p.err = tw.Flush()
}

// name is what people call the model.
func (r *Report) name() string {
	for _, n := range []string{r.Model.Name, r.Model.Path} {
		if n != "" {
			return n
		}
	}
	return r.Model.Arch
}

func (r *Report) head(p *printer) {
	p.line("%s (%s) on %s", r.name(), r.Model.Arch, r.System.Device)
	for _, d := range append([]*DrafterInfo{r.Drafter}, r.Others...) {
		if d != nil {
			p.line("drafter %s (%s), block %d", d.Path, d.Name, d.Block)
		}
	}
	p.line("%s", r.Settings.text())
}

func (r *Report) speed(p *printer) {
	p.line("")
	rows := [][]string{{"mode", "tokens/s", "against plain", "", "tokens/pass", "break-even", "first token ms", "accepted",
		"prompt tokens/s"}}
	for _, m := range r.Modes {
		accepted := "-"
		if m.Guessed > 0 {
			accepted = fmt.Sprintf("%d of %d", m.Accepted, m.Guessed)
		}
		rows = append(rows, append(append([]string{m.Name}, m.cells()...), accepted, m.PromptTokensPerSecond.around(0)))
	}
	p.table(rows)
	p.line("%s", howToRead)
}

// cells are a mode's speed in a table: tokens/s, against plain, verdict, tokens per pass, break-even, first token.
func (m *ModeReport) cells() []string {
	against, verdict, even := m.Against.text(), m.Against.Verdict, fmt.Sprintf("%.2f", m.BreakEven)
	if m.Name == "plain" {
		against, verdict, even = "1.00", "", "-"
	}
	return []string{m.TokensPerSecond.around(1), against, verdict, fmt.Sprintf("%.2f", m.TokensPerPass), even,
		m.FirstToken.around(1)}
}

func (r *Report) split(p *printer) {
	p.line("")
	p.line("Milliseconds per token")
	rows := [][]string{{"mode", "draft", "verify", "commit", "sampling", "rest", "sum"}}
	for _, m := range r.Modes {
		t := m.Time
		row := []string{m.Name}
		for _, v := range []float64{t.Draft, t.Verify, t.Commit, t.Sampling, t.Rest, t.Total()} {
			row = append(row, fmt.Sprintf("%.3f", v))
		}
		rows = append(rows, row)
	}
	p.table(rows)
	r.stages(p)
}

// stages shows what each source did and what its rounds took.
func (r *Report) stages(p *printer) {
	rows := [][]string{{"mode and source", "drafts", "first right", "rounds", "guesses", "right", "draft", "verify",
		"accept", "host"}}
	for _, m := range r.Modes {
		for _, s := range m.BySource {
			row := []string{m.Name + " " + s.Name}
			for _, n := range []int{s.Drafts, s.Right, s.Rounds, s.Guessed, s.Accepted} {
				row = append(row, fmt.Sprint(n))
			}
			for _, v := range []float64{s.Draft, s.Verify, s.Accept, s.Host} {
				row = append(row, fmt.Sprintf("%.3f", v))
			}
			rows = append(rows, row)
		}
	}
	if len(rows) == 1 {
		return
	}
	p.line("")
	p.line("Sources of guesses: counts, and milliseconds of a draft and of the stages of a round that verified its guesses")
	p.table(rows)
}

func (r *Report) acceptance(p *printer) {
	first := true
	for _, m := range r.Modes {
		if m.Guessed == 0 {
			continue
		}
		if first {
			p.line("")
			p.line("Share of passes by the tokens they yielded, and how often the guess at each position was right")
			first = false
		}
		p.line("  %s", m.Name)
		p.table([][]string{
			number(max(len(m.Lengths), len(m.ByPosition))),
			append([]string{"  passes %"}, shares(m.Lengths, m.Passes)...),
			append([]string{"  right %"}, percents(m.ByPosition)...),
		})
		if len(m.Sources) > 1 {
			var s []string
			without := m.Passes
			for _, name := range slices.Sorted(maps.Keys(m.Sources)) {
				s = append(s, fmt.Sprintf("%s %d", name, m.Sources[name]))
				without -= m.Sources[name]
			}
			p.line("    rounds by source: %s; %d rounds without guesses", strings.Join(s, ", "), without)
		}
	}
}

// perPrompt prints the speed and the accepted length of each prompt.
func (r *Report) perPrompt(p *printer) {
	p.line("")
	p.line("Prompts: tokens/s and tokens per pass")
	head := []string{"prompt", "tokens"}
	for _, m := range r.Modes {
		head = append(head, m.Name, "")
	}
	rows := [][]string{head}
	for _, x := range r.Prompts {
		row := []string{x.ID, fmt.Sprint(x.Tokens)}
		for _, m := range r.Modes {
			v := x.Modes[m.Name]
			row = append(row, fmt.Sprintf("%.1f", v.TokensPerSecond), fmt.Sprintf("%.2f", v.TokensPerPass))
		}
		rows = append(rows, row)
	}
	p.table(rows)
}

func number(n int) []string {
	row := []string{""}
	for i := range n {
		row = append(row, fmt.Sprint(i+1))
	}
	return row
}

func shares(counts []int, total int) []string {
	var row []string
	for _, n := range counts {
		row = append(row, fmt.Sprintf("%.0f", 100*float64(n)/float64(max(1, total))))
	}
	return row
}

func percents(ps []float64) []string {
	var row []string
	for _, v := range ps {
		row = append(row, fmt.Sprintf("%.0f", 100*v))
	}
	return row
}

func (mc *Machine) text(p *printer, m *ModelInfo) {
	const giga = 1e9
	if mc.Profiles != nil {
		mc.gpuText(p, m)
		return
	}
	p.line("")
	p.line("Machine")
	p.line("  reading memory   %.1f GB/s with 1 thread, %.1f GB/s with %d", mc.ReadOne.Median/giga, mc.ReadAll.Median/giga,
		mc.Threads)
	p.line("  reading %s over and over, which is what a token needs: %.1f GB/s", engine.Bytes(m.BytesPerToken),
		mc.ReadWeights.Median/giga)
	p.line("  integer products %.0f G/s; a token needs %.2f G", mc.Dot.Median/giga, float64(m.MACsPerToken)/giga)
	p.line("  decoding one token runs at %.0f %% of what these floors allow (%.0f %% in the fastest rounds)",
		100*mc.DecodeShare, 100*mc.QuietDecodeShare)
	p.line("  a prompt of %d tokens runs at %s tokens/s", mc.PromptTokens, mc.PromptTokensPerSecond.text(0))
	rows := [][]string{{"tokens in a pass", "ms", "against 1", "fastest", "read floor ms", "integer floor ms",
		"% of the floor", "fastest"}}
	for _, x := range mc.Passes {
		rows = append(rows, []string{fmt.Sprint(x.Rows), x.Milliseconds.text(2), fmt.Sprintf("%.2f", x.Ratio),
			fmt.Sprintf("%.2f", x.QuietRatio),
			fmt.Sprintf("%.2f", x.ReadFloor), fmt.Sprintf("%.2f", x.DotFloor), fmt.Sprintf("%.0f", 100*x.Share),
			fmt.Sprintf("%.0f", 100*x.QuietShare)})
	}
	p.table(rows)
}

// gpuText is the report of a GPU: passes against the time its memory takes to read the weights, and where their time
// goes.
func (mc *Machine) gpuText(p *printer, m *ModelInfo) {
	p.line("")
	p.line("Device")
	p.line("  memory moves %.2f TB/s; a token needs %s", mc.ReadAll.Median/1e12, engine.Bytes(m.BytesPerToken))
	p.line("  a prompt of %d tokens runs at %s tokens/s", mc.PromptTokens, mc.PromptTokensPerSecond.text(0))
	rows := [][]string{{"tokens in a pass", "ms", "against 1", "host ms", "read floor ms", "% of the bandwidth"}}
	for _, x := range mc.Passes {
		rows = append(rows, []string{fmt.Sprint(x.Rows), x.Milliseconds.text(3), fmt.Sprintf("%.2f", x.Ratio),
			fmt.Sprintf("%.2f", x.HostMilliseconds), fmt.Sprintf("%.2f", x.ReadFloor), fmt.Sprintf("%.0f", 100*x.Share)})
	}
	p.table(rows)
	for _, f := range mc.Profiles {
		var sum, products time.Duration
		for _, k := range f.Kernels {
			sum += k.Time
			if isProduct(k.Name) {
				products += k.Time
			}
		}
		p.line("")
		p.line("  A pass of %d tokens, kernel by kernel: %.3f ms, %.0f %% of it outside products", f.Rows, sum.Seconds()*1e3,
			100*(1-products.Seconds()/sum.Seconds()))
		rows := [][]string{{"kernel", "launches", "ms", "us each"}}
		for i, k := range f.Kernels {
			if i == 14 {
				break
			}
			rows = append(rows, []string{k.Name, fmt.Sprint(k.Count), fmt.Sprintf("%.3f", k.Time.Seconds()*1e3),
				fmt.Sprintf("%.1f", k.Time.Seconds()*1e6/float64(k.Count))})
		}
		p.table(rows)
	}
}

// isProduct tells the kernels that read weights from the others.
func isProduct(kernel string) bool {
	for _, prefix := range []string{"solo", "pipe", "prompt", "wide", "moe_pipe", "float", "rows_", "tiles_", "experts_",
		"gated_k", "gated_all", "router"} {
		if strings.HasPrefix(kernel, prefix) {
			return true
		}
	}
	return false
}

func (r *Report) memory(p *printer) {
	m := &r.Memory
	p.line("")
	s := fmt.Sprintf("Memory: weights %s", engine.Bytes(m.Weights))
	if r.Drafter != nil {
		s += fmt.Sprintf(" + drafter %s", engine.Bytes(m.DrafterWeights))
	}
	s += fmt.Sprintf(", longest cache %s (%s, %s per token)", engine.Bytes(m.Cache), r.Model.KV,
		engine.Bytes(r.Model.TokenBytes))
	if d := r.Drafter; d != nil {
		perToken, perSequence := d.TokenBytes, d.SeqBytes
		for _, other := range r.Others {
			perToken, perSequence = perToken+other.TokenBytes, perSequence+other.SeqBytes
		}
		s += fmt.Sprintf(" + drafter %s (%s, %s per token, %s per sequence)", engine.Bytes(m.DrafterCache), d.KV,
			engine.Bytes(perToken), engine.Bytes(perSequence))
	}
	if m.Resident > 0 {
		s += fmt.Sprintf("; process %s, at its peak %s", engine.Bytes(m.Resident), engine.Bytes(m.PeakResident))
	}
	p.line("%s", s)
}

// Verdict says in one line whether all modes generated the same tokens.
func (r *Report) Verdict() string {
	id := &r.Identical
	switch {
	case !id.Checked:
		return "Identical: not checked, because acceptance was pretended"
	case len(r.Modes) < 2:
		return fmt.Sprintf("Identical: nothing to compare (sha256 of the tokens %.16s)", id.SHA256)
	case id.Same:
		return fmt.Sprintf("Identical: yes, all %d modes generated the same tokens for all %d prompts (sha256 %.16s)",
			len(r.Modes), r.Settings.Prompts, id.SHA256)
	}
	d := id.Differences[0]
	return fmt.Sprintf("Identical: NO, %d differences; mode %s differs from %s on prompt %s at token %d",
		len(id.Differences), d.Mode, r.Modes[0].Name, d.Prompt, d.Token)
}
