package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"strobe/internal/bench"
	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/engine"
)

type benchOptions struct {
	modelFlags
	sampleFlags
	more                []string // models beside the first
	together            bool     // all drafters draft for each model
	prompts, suite, dir string
	limit               int
	n, repeats          int
	modes               []string
	synthetic           float64
	ignoreEnd           bool
	json, verbose       bool
	plot                string
	machine             bool
	readMB              int
	depth               int
	context             int
	stress, timeLoad    bool
	kvTypes             []string
	needles             int
	kind                string
}

func newBenchCmd() *cobra.Command {
	var opt benchOptions
	cmd := &cobra.Command{
		Use:   "bench [MODEL] [-d DRAFTER]",
		Short: "Measure speed with and without drafting",
		Long: `Bench generates the same text in several ways and compares them:

  plain   one token per pass
  chain   every pass verifies one block of the drafter
  tree    every pass verifies a tree of the drafter's alternatives
  mtp     guesses of the model's layer for multi-token prediction, as many as pay
  eagle3  guesses of an EAGLE-3 drafter beside another one, as many as pay
  ngram   guesses are repetitions of earlier text; needs no drafter
  auto    the controller decides each round, as in normal use

All modes take turns on every prompt, so that whatever else the machine does hits all of them alike. Speeds are means
over the repeats with their standard deviation. Ratios are those of runs on the same prompt in the same repeat; a
difference is "real" if the 95 % confidence interval of their geometric mean over the prompts (Student's t on the
logarithms) leaves 1 out, and "noise" otherwise. Break-even is how many tokens a pass must yield for drafting to be as
fast as plain decoding. The report also shows the time to the first token, where the time went, how many guesses were right, what memory was used, and how far passes of the model
are from the machine's floors (reading the weights, multiplying integers). It ends with a check that all
modes generated the same tokens; if they did not, the exit code is 1.

With several -m or -d every model runs with every drafter. All are in memory at once and take turns on every prompt, and
each is compared with the first: a sweep of quantisations or of drafters. "-d none" is a pair without a drafter; modes it
cannot run are left out and named. With --together all drafters, each of another kind, draft for every model, as they do in
other commands.

Prompts come from a suite or a file of JSON lines. The suites code (beginnings of Go files) and general
(questions) are part of the program; humaneval, gsm8k, mt-bench, math and agent are read from the folder
--prompts-dir (or STROBE_PROMPTS). A line of a prompt file has "messages", "prompt" (with "raw": true to be continued
instead of answered), "turns", "question" or "tokens".

With --stress it fills a context of --context random tokens instead, generates n tokens after it plainly, in chains, in
trees and with a sampler, each on a copy of the filled memory, and checks that nothing was lost: texts are those of
plain decoding, and the cache holds what its bytes per token promise. If something was lost, the exit code is 1.

With --suite niah it hides --needles facts in a text of --context tokens and asks for each of them, twice: how many are
found, and where the time to the first token went (scoring and choosing with --prefill-scorer, prefill, weights that were
parked).

With --load it only loads the model, --repeats times, and shows where the time goes: opening and mapping files, opening the
device, weights (repacked for a GPU and copied to it at the same time), drafters, kernels (compiled and rehearsed), and how
much processor time and how many page faults that took.

With --kv-types it compares types of cached keys and values: loss on the prompts, greedy agreement with the first type,
and tokens per pass of the drafter's chains.`,
		Example: `  strobe bench -m target.gguf -d drafter.gguf
  strobe bench -m target-Q4_K_M.gguf -m target-Q8_0.gguf -d drafter.gguf --plot sweep.svg
  strobe bench -m target.gguf -d dflash.gguf -d eagle3.gguf --together
  strobe bench -m target.gguf -d drafter.gguf --suite humaneval --prompts-dir prompts -n 256 --json
  strobe bench -m synth.gguf -d synth-dflash.gguf --synthetic-accept 4.5 --plot speed.svg
  strobe bench -m target.gguf -d drafter.gguf --kv turbo3 --context 262144 --stress -n 64
  strobe bench -m target.gguf --prefill-scorer Qwen3-0.6B.gguf --suite niah --context 65536 --needles 3 --kind text
  strobe bench -m target.gguf --device cuda --load
  strobe bench --kv-types f16,q8_0,turbo4,turbo3,q8_0/turbo3`,
		Args: opt.positionalModel(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runBench(cmd, &opt) },
	}
	opt.modelFlags.add(cmd)
	opt.sampleFlags.add(cmd, 0)
	f := cmd.Flags()
	model := f.Lookup("model")
	model.Value = &several{&opt.model, &opt.more}
	model.Usage += "; may be repeated"
	drafter := f.Lookup("drafter")
	drafter.Usage = strings.Replace(drafter.Usage, drafterTurns, "repeated, each is measured", 1)
	f.BoolVar(&opt.together, "together", false, "use all drafters at once instead of comparing them")
	f.StringVar(&opt.prompts, "prompts", "", "file of prompts, one JSON object per line")
	f.StringVar(&opt.suite, "suite", "code", "named prompts: "+strings.Join(bench.SuiteNames(), ", "))
	f.StringVar(&opt.dir, "prompts-dir", os.Getenv("STROBE_PROMPTS"), "folder with the files of public suites")
	f.IntVar(&opt.limit, "limit", 0, "use only this many prompts, spread over the suite (default: all)")
	f.IntVarP(&opt.n, "predict", "n", 128, "most tokens to generate per prompt")
	f.IntVar(&opt.repeats, "repeats", 3, "how often everything runs")
	f.StringSliceVar(&opt.modes, "modes", nil, "modes to compare: "+strings.Join(bench.ModeNames,
		", ")+" (default: those that the model allows)")
	f.Float64Var(&opt.synthetic, "synthetic-accept", 0,
		"pretend that passes yield this many tokens on average, to measure speed on models with random weights")
	f.BoolVar(&opt.ignoreEnd, "ignore-eos", false, "go on after the model has ended its text")
	f.BoolVarP(&opt.verbose, "verbose", "v", false, "also show each prompt")
	f.BoolVar(&opt.json, "json", false, "print the report as one JSON object")
	f.StringVar(&opt.plot, "plot", "", "also draw the comparison into this .svg or .png file")
	f.BoolVar(&opt.machine, "machine", true, "measure the machine's floors and the cost of passes by their size")
	f.IntVar(&opt.depth, "depth", 0, "tokens in the cache when passes are timed (default 64, 1024 on a GPU)")
	f.IntVar(&opt.context, "context", 0,
		"with --stress: tokens to fill (default: the model's context); with --suite niah: tokens of the text (default: 3/4 of it)")
	f.IntVar(&opt.needles, "needles", 3, "with --suite niah: facts hidden in the text")
	f.StringVar(&opt.kind, "kind", "text", "with --suite niah: what they are hidden in: text or code")
	f.BoolVar(&opt.stress, "stress", false, "fill a context, generate after it and check that nothing was lost")
	f.BoolVar(&opt.timeLoad, "load", false, "only load the model and show where the time goes")
	f.StringSliceVar(&opt.kvTypes, "kv-types", nil,
		"compare types of cached keys and values, such as f16,turbo3,q8_0/turbo3 (keys/values)")
	cmd.AddCommand(newBenchFleetCmd(), newBenchServeCmd())
	f.IntVar(&opt.readMB, "read-mb", 512, "megabytes to read when measuring memory; must exceed the processor's caches")
	return cmd
}

func runBench(cmd *cobra.Command, opt *benchOptions) error {
	// Mistakes that can be seen before the model is loaded come first.
	if opt.prompts != "" && cmd.Flags().Changed("suite") {
		return usagef("give prompts with --prompts or --suite, not both")
	}
	if opt.n < 1 || opt.repeats < 1 {
		return usagef("--n and --repeats must be at least 1")
	}
	if opt.synthetic != 0 && (opt.synthetic < 1 || opt.synthetic > 64) {
		return usagef("--synthetic-accept %g: want 1 to 64 tokens per pass", opt.synthetic)
	}
	if opt.plot != "" {
		if _, err := bench.PlotFormat(opt.plot); err != nil {
			return usageError{err}
		}
	}
	niah := opt.suite == "niah"
	if opt.context != 0 && !opt.stress && !niah || opt.context < 0 {
		return usagef("--context %d belongs to --stress and --suite niah; --ctx limits the others", opt.context)
	}
	if niah {
		return opt.runNiah(cmd)
	}
	if opt.several() && (opt.stress || opt.timeLoad || len(opt.kvTypes) > 0) {
		return usagef("--stress, --load and --kv-types take one model and one drafter")
	}
	if opt.timeLoad {
		return opt.runLoad(cmd)
	}
	if opt.stress {
		return opt.runStress(cmd)
	}
	prompts, source, err := opt.read()
	if err != nil {
		return err
	}
	if len(opt.kvTypes) > 0 {
		return opt.compareTypes(cmd, prompts)
	}
	if opt.several() {
		return opt.sweep(cmd, prompts, source)
	}
	m, err := opt.load()
	if err != nil {
		return err
	}
	defer m.Close()
	cfg, err := opt.config(m, prompts, false)
	if err != nil {
		return err
	}
	bar := newRunBar(cmd)
	cfg.Progress = bar.step
	report, err := bench.Measure(cmd.Context(), m, cfg)
	bar.stop()
	if err != nil {
		return err
	}
	opt.describe(report, source)
	if opt.machine {
		mc := bench.MachineConfig{ReadBytes: opt.readMB << 20, Context: opt.depth, Chunk: m.Chunk()}
		if report.Machine, err = bench.MeasureMachine(cmd.Context(), m, mc); err != nil {
			return err
		}
	}
	if opt.plot != "" {
		if err := report.WritePlot(opt.plot); err != nil {
			return err
		}
	}
	err = opt.print(cmd, report.WriteJSON, func(w io.Writer) error { return report.WriteText(w, opt.verbose) })
	if err != nil {
		return err
	}
	if report.Identical.Checked && !report.Identical.Same {
		return fmt.Errorf("%s", report.Verdict())
	}
	return nil
}

// sweep compares every model with every drafter.
func (o *benchOptions) sweep(cmd *cobra.Command, prompts []bench.Prompt, source string) error {
	var entries []bench.Entry
	bar := newRunBar(cmd)
	drafters := append([]string{o.drafter}, o.moreDrafters...)
	for _, model := range append([]string{o.model}, o.more...) {
		for i := range drafters {
			if o.model, o.drafter, o.moreDrafters = model, drafters[i], nil; o.together {
				o.moreDrafters = drafters[1:]
			}
			m, err := o.load()
			if err != nil {
				return err
			}
			defer m.Close()
			cfg, err := o.config(m, prompts, true)
			if err != nil {
				return err
			}
			cfg.Progress = bar.step
			entries = append(entries, bench.Entry{Model: m, Config: cfg})
			if o.together {
				break
			}
		}
	}
	s, err := bench.MeasureAll(cmd.Context(), entries)
	bar.stop()
	if err != nil {
		return err
	}
	for _, r := range s.Reports {
		o.describe(r, source)
	}
	if o.plot != "" {
		if err := s.WritePlot(o.plot); err != nil {
			return err
		}
	}
	err = o.print(cmd, s.WriteJSON, s.WriteText)
	for _, r := range s.Reports {
		if err == nil && r.Identical.Checked && !r.Identical.Same {
			err = fmt.Errorf("%s", r.Verdict())
		}
	}
	return err
}

// several reports whether there is more than one pair to measure.
func (o *benchOptions) several() bool {
	return len(o.more) > 0 || len(o.moreDrafters) > 0 && !o.together
}

// print writes a report in the form that was asked for.
func (o *benchOptions) print(cmd *cobra.Command, asJSON, asText func(io.Writer) error) error {
	if o.json {
		return asJSON(cmd.OutOrStdout())
	}
	return asText(cmd.OutOrStdout())
}

// describe adds what a measurement does not know.
func (o *benchOptions) describe(r *bench.Report, source string) {
	r.Settings.Source = source
	r.Settings.Temperature = float64(max(0, o.Temp))
}

// runLoad times loading.
func (o *benchOptions) runLoad(cmd *cobra.Command) error {
	r, err := bench.MeasureLoad(cmd.Context(), o.repeats, o.load)
	if err != nil {
		return err
	}
	return o.print(cmd, r.WriteJSON, r.WriteText)
}

// runStress fills a context and generates after it.
func (o *benchOptions) runStress(cmd *cobra.Command) error {
	m, err := o.load()
	if err != nil {
		return err
	}
	defer m.Close()
	so, err := o.spec()
	if err != nil {
		return err
	}
	c := bench.StressConfig{Context: o.context, Tokens: o.n, Chunk: m.Chunk(), Tree: max(0, so.Tree)}
	if c.Context == 0 {
		c.Context = m.Target.Context
	}
	bar := newRunBar(cmd)
	c.Progress = bar.step
	r, err := bench.Stress(cmd.Context(), m, c)
	bar.stop()
	if err != nil {
		return err
	}
	err = o.print(cmd, r.WriteJSON, r.WriteText)
	if n := r.Failed(); err == nil && n > 0 {
		return fmt.Errorf("%d of %d runs lost something", n, len(r.Runs))
	}
	return err
}

// compareTypes measures what types of keys and values cost.
func (o *benchOptions) compareTypes(cmd *cobra.Command, prompts []bench.Prompt) error {
	load := func(kv string) (*engine.Model, error) {
		key, value, two := strings.Cut(kv, "/")
		if !two {
			value = key
		}
		o.kv, o.kvk, o.kvv = "", key, value
		return o.load()
	}
	m, err := load(o.kvTypes[0]) // for its tokenizer
	if err != nil {
		return err
	}
	c, err := o.config(m, prompts, false)
	m.Close()
	if err != nil {
		return err
	}
	bar := newRunBar(cmd)
	c.Progress = bar.step
	r, err := bench.CompareTypes(cmd.Context(), o.kvTypes, c, load)
	bar.stop()
	if err != nil {
		return err
	}
	return o.print(cmd, r.WriteJSON, r.WriteText)
}

// read returns the prompts and what to call them.
func (o *benchOptions) read() (ps []bench.Prompt, source string, err error) {
	if o.prompts != "" {
		ps, err = bench.ReadPromptFile(o.prompts)
		source = o.prompts
	} else {
		ps, err = bench.Suite(o.suite, o.dir)
		source = "suite " + o.suite
	}
	return bench.Pick(ps, o.limit), source, err
}

// config encodes the prompts and chooses the modes. In a sweep one pair may lack what the others have.
func (o *benchOptions) config(m *engine.Model, prompts []bench.Prompt, sweep bool) (bench.Config, error) {
	c := bench.Config{Tokens: o.n, Repeats: o.repeats, Context: o.ctx, Chunk: m.Chunk(), IgnoreEnd: o.ignoreEnd}
	so, err := o.spec()
	if err != nil {
		return c, err
	}
	mo := bench.ModeOptions{Names: o.modes, Max: so.Max, Tree: max(0, so.Tree), Synthetic: o.synthetic}
	for _, d := range m.Drafters() {
		mo.Drafters = append(mo.Drafters, d.Name())
	}
	if sweep && len(o.modes) > 0 {
		mo.Names = []string{"plain"}
		for _, name := range o.modes {
			if what := mo.Lacks(name); what != "" {
				c.LeftOut = append(c.LeftOut, fmt.Sprintf("%s, which needs %s", name, what))
			} else {
				mo.Names = append(mo.Names, name)
			}
		}
	}
	if c.Modes, err = bench.Modes(mo); err != nil {
		return c, usageError{err}
	}
	f := dialog.For(m)
	for _, p := range prompts {
		ids, err := encodeBench(f, &p)
		if err != nil {
			return c, fmt.Errorf("prompt %s: %w", p.ID, err)
		}
		c.Cases = append(c.Cases, bench.Case{ID: p.ID, Tokens: ids, Max: p.Max})
	}
	if o.seed < 0 {
		o.seed = 1 // all runs must draw the same
	}
	c.Params, err = o.params(0)
	return c, err
}

// encodeBench turns a prompt into tokens. A model without a chat template continues what a user would
// have said.
func encodeBench(f *dialog.Format, p *bench.Prompt) ([]int32, error) {
	if len(p.Tokens) > 0 {
		return p.Tokens, nil
	}
	msgs, raw := p.Messages, false
	if len(msgs) == 0 {
		msgs, raw = []chat.Message{{Role: "user", Content: p.Text}}, p.Raw
	}
	x, err := f.Prompt(msgs, raw, dialog.Options{})
	if err != nil {
		return nil, err
	}
	return x.Tokens, nil
}

// runBar shows how many runs are done, on a terminal only.
type runBar struct{ bar *progressbar.ProgressBar }

func newRunBar(cmd *cobra.Command) *runBar {
	w := cmd.ErrOrStderr()
	if isQuiet(cmd) || !canDraw(w) {
		return &runBar{}
	}
	return &runBar{progressbar.NewOptions(1, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription("runs"),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())}
}

func (b *runBar) step(done, total int) {
	if b.bar != nil {
		b.bar.ChangeMax(total)
		_ = b.bar.Set(done)
	}
}

func (b *runBar) stop() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}
