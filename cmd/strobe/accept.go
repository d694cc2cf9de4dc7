package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/bench"
	"strobe/internal/dialog"
	"strobe/internal/engine"
)

type acceptOptions struct {
	modelFlags
	sampleFlags
	prompts, suites []string
	dir             string
	limit, n        int
	lengths         []int
	sources         []string
	ignoreEnd, json bool
}

func newAcceptCmd() *cobra.Command {
	var opt acceptOptions
	cmd := &cobra.Command{
		Use:   "accept [MODEL] [-d DRAFTER]...",
		Short: "Measure how many guesses of each drafter are right",
		Long: `Accept generates texts with the guesses of one source after the other, and shows how many tokens a pass yields (the
accepted length) and how often the guess at each position is right: for all prompts, for each suite, and for each category
that a suite has. Every round drafts and verifies as much as its length allows. Times do not matter and are not shown, so the
numbers are the same on every machine with the same kind of device; "strobe bench" measures speed.

Beside them stand lengths that others have published for the same model and kind of drafter, where some are known.

Prompts come from suites and files of JSON lines, as for "strobe bench". The layouts of HumanEval (prompt), GSM8K (question),
MATH-500 (problem, subject) and MT-Bench (turns, category) are read as they are published. With several -d all drafters are
loaded and each is measured alone.`,
		Example: `  strobe accept --suite code --limit 4
  strobe accept -m target.gguf -d dflash.gguf -d eagle3.gguf --suite humaneval,gsm8k,math,mt-bench --prompts-dir prompts
  strobe accept -m target.gguf -d drafter.gguf --prompts own.jsonl --lengths 3,7,15 --json`,
		Args: opt.positionalModel(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runAccept(cmd, &opt) },
	}
	opt.modelFlags.add(cmd)
	opt.sampleFlags.add(cmd, 0)
	f := cmd.Flags()
	f.StringArrayVar(&opt.prompts, "prompts", nil, "file of prompts, one JSON object per line; may be repeated")
	f.StringSliceVar(&opt.suites, "suite", nil, "named prompts: "+strings.Join(bench.SuiteNames(), ", ")+
		" (default: code, unless there are files)")
	f.StringVar(&opt.dir, "prompts-dir", os.Getenv("STROBE_PROMPTS"), "folder with the files of public suites")
	f.IntVar(&opt.limit, "limit", 0, "use only this many prompts of each suite, spread over it (default: all)")
	f.IntVarP(&opt.n, "predict", "n", 256, "most tokens to generate per prompt")
	f.IntSliceVar(&opt.lengths, "lengths", nil,
		"most guesses of a draft, such as 3,7,15: each is measured (default: --draft-max, or what the drafter can do)")
	f.StringSliceVar(&opt.sources, "sources", nil, "sources to measure: dflash, eagle3, mtp, ngram (default: all drafters, "+
		"or ngram without any)")
	f.BoolVar(&opt.ignoreEnd, "ignore-eos", false, "go on after the model has ended its text")
	f.BoolVar(&opt.json, "json", false, "print the report as one JSON object")
	return cmd
}

func runAccept(cmd *cobra.Command, o *acceptOptions) error {
	if o.n < 1 || o.limit < 0 {
		return usagef("--predict must be at least 1 and --limit at least 0")
	}
	for _, n := range o.lengths {
		if n < 1 {
			return usagef("--lengths %d: want 1 or more", n)
		}
	}
	for _, s := range o.sources {
		if source, err := engine.ParseDraft(s); err != nil || source != s || s == "off" {
			return usagef("--sources %q: want dflash, eagle3, mtp or ngram", s)
		}
	}
	prompts, source, err := o.read()
	if err != nil {
		return err
	}
	m, err := o.load()
	if err != nil {
		return err
	}
	defer m.Close()
	c := bench.AcceptConfig{Lengths: o.lengths, Sources: o.sources, Config: bench.Config{Tokens: o.n, Context: o.ctx,
		Chunk: m.Chunk(), IgnoreEnd: o.ignoreEnd}}
	if len(c.Lengths) == 0 && o.draftMax > 0 {
		c.Lengths = []int{o.draftMax}
	}
	if len(c.Sources) == 0 {
		for _, d := range m.Drafters() {
			c.Sources = append(c.Sources, d.Name())
		}
		if len(c.Sources) == 0 {
			c.Sources = []string{"ngram"}
		}
	}
	for _, s := range c.Sources {
		if err := m.Runner.Check(s); err != nil {
			return usageError{err}
		}
	}
	f := dialog.For(m)
	for i := range prompts {
		ids, err := encodeBench(f, &prompts[i])
		if err != nil {
			return fmt.Errorf("prompt %s: %w", prompts[i].ID, err)
		}
		c.Cases = append(c.Cases, bench.Case{ID: prompts[i].ID, Category: prompts[i].Category, Tokens: ids,
			Max: prompts[i].Max})
	}
	if o.seed < 0 {
		o.seed = 1 // all sources must draw the same
	}
	if c.Params, err = o.params(0); err != nil {
		return err
	}
	bar := newRunBar(cmd)
	c.Progress = bar.step
	r, err := bench.Accept(cmd.Context(), m, c)
	bar.stop()
	if err != nil {
		return err
	}
	r.Settings.Source, r.Settings.Temperature = source, float64(max(0, o.Temp))
	if o.json {
		err = r.WriteJSON(cmd.OutOrStdout())
	} else {
		err = r.WriteText(cmd.OutOrStdout())
	}
	if err == nil && !r.Identical.Same {
		err = fmt.Errorf("sources yielded different tokens, %d times", len(r.Identical.Differences))
	}
	return err
}

// read returns the prompts of all suites and files, and what to call them. The category of a prompt begins with the
// name of its suite: mt-bench/writing.
func (o *acceptOptions) read() (all []bench.Prompt, source string, err error) {
	var names []string
	add := func(name string, ps []bench.Prompt, err error) error {
		if err != nil {
			return err
		}
		for _, p := range bench.Pick(ps, o.limit) {
			p.Category = strings.TrimSuffix(name+"/"+p.Category, "/")
			all = append(all, p)
		}
		names = append(names, name)
		return nil
	}
	suites := o.suites
	if len(suites) == 0 && len(o.prompts) == 0 {
		suites = []string{"code"}
	}
	for _, s := range suites {
		ps, err := bench.Suite(s, o.dir)
		if err := add(s, ps, err); err != nil {
			return nil, "", err
		}
	}
	for _, path := range o.prompts {
		ps, err := bench.ReadPromptFile(path)
		if err := add(strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), ps, err); err != nil {
			return nil, "", err
		}
	}
	return all, strings.Join(names, ", "), nil
}
