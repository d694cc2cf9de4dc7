package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"strobe/internal/engine"
	"strobe/internal/speculate"
)

// AcceptSchema names the form of an AcceptReport. Fields are only ever added to it.
const AcceptSchema = "strobe-accept/1"

// AcceptReport says how long the guesses of each source are right. It has no times: the numbers are the same on every
// machine.
type AcceptReport struct {
	Schema   string         `json:"schema"`
	Model    ModelInfo      `json:"model"`
	Drafters []*DrafterInfo `json:"drafters"`
	Settings Settings       `json:"settings"`
	Rows     []AcceptRow    `json:"rows"`
	// Identical says whether all sources and lengths yielded the same tokens.
	Identical Identical `json:"identical"`
}

// AcceptRow is what one source yielded with drafts of one length, in one category of prompts.
type AcceptRow struct {
	Source        string      `json:"source"`
	Length        int         `json:"length"`   // most guesses of a draft
	Category      string      `json:"category"` // SUITE or SUITE/CATEGORY; "" for all prompts
	Prompts       int         `json:"prompts"`
	Tokens        int         `json:"tokens"`
	Passes        int         `json:"passes"`
	TokensPerPass float64     `json:"tokens_per_pass"` // the accepted length, with the target's own token
	Guessed       int         `json:"guessed"`
	Accepted      int         `json:"accepted"`
	ByPosition    []float64   `json:"acceptance_by_position"` // given that all guesses before were right
	Published     []Published `json:"published,omitempty"`
}

// AcceptConfig says what to measure. Cases, Tokens, Context, Chunk, Params, IgnoreEnd and Progress of Config count.
type AcceptConfig struct {
	Config
	Lengths []int // most guesses of a draft, one after the other; none: what each source can do
	Sources []string
}

// Accept measures sources one by one: every round drafts as much as its length allows, and verifies all of it as a
// chain.
func Accept(ctx context.Context, m *engine.Model, c AcceptConfig) (*AcceptReport, error) {
	type way struct {
		source string
		length int
	}
	var ways []way
	c.Modes, c.Repeats = nil, 1
	for _, s := range m.Runner.Sources {
		if !slices.Contains(c.Sources, s.Name()) {
			continue
		}
		lengths := c.Lengths
		if len(lengths) == 0 {
			lengths = []int{s.Max()}
		}
		seen := map[int]bool{}
		for _, n := range lengths {
			if n = min(n, s.Max()); seen[n] {
				continue // longer than the source's longest
			}
			seen[n] = true
			ways = append(ways, way{s.Name(), n})
			c.Modes = append(c.Modes, Mode{fmt.Sprintf("%s %d", s.Name(), n),
				speculate.Options{Draft: s.Name(), Fixed: true, Tree: speculate.TreeOff, Max: n}})
		}
	}
	if len(ways) == 0 {
		return nil, fmt.Errorf("the model has none of the sources %v", c.Sources)
	}
	b, err := newBencher(m, c.Config)
	if err != nil {
		return nil, err
	}
	defer m.Runner.Capture()
	r := &AcceptReport{Schema: AcceptSchema, Model: describe(m)}
	for _, d := range m.Drafters() {
		r.Drafters = append(r.Drafters, describeDrafter(m, d))
	}
	r.Settings = Settings{Tokens: b.cfg.Tokens, Repeats: 1, Prompts: len(c.Cases), IgnoreEnd: c.IgnoreEnd}
	var categories []string
	for i := range c.Cases {
		r.Settings.PromptTokens += len(c.Cases[i].Tokens)
		suite, _, _ := strings.Cut(c.Cases[i].Category, "/")
		categories = append(categories, "", suite, c.Cases[i].Category)
	}
	slices.Sort(categories)
	categories = slices.Compact(categories)
	done := 0
	for i := range ways {
		for k := range c.Cases {
			res, err := b.run(ctx, i, &b.cfg.Cases[k], b.cfg.Tokens)
			if err != nil {
				return nil, fmt.Errorf("prompt %s, %s: %w", c.Cases[k].ID, c.Modes[i].Name, err)
			}
			b.results[i][k] = append(b.results[i][k], res)
			if done++; c.Progress != nil {
				c.Progress(done, len(ways)*len(c.Cases))
			}
		}
	}
	for i, w := range ways {
		for _, category := range categories {
			row := acceptRow(b.cfg.Cases, b.results[i], category)
			row.Source, row.Length = w.source, w.length
			row.Published = publishedFor(m, row.Source, category)
			r.Rows = append(r.Rows, row)
		}
	}
	r.Identical = b.identical(b.results)
	return r, nil
}

// acceptRow sums up the prompts of a category and of those inside it; all of them for "".
func acceptRow(cases []Case, results [][]result, category string) AcceptRow {
	row := AcceptRow{Category: category}
	var all speculate.Stats
	for k := range cases {
		if own := cases[k].Category; category == "" || own == category || strings.HasPrefix(own, category+"/") {
			row.Prompts++
			all.Add(results[k][0].decode)
		}
	}
	row.Tokens, row.Passes, row.TokensPerPass = all.Tokens, all.Rounds, all.Mean()
	row.Guessed, row.Accepted, row.ByPosition = all.Guessed, all.Accepted, byPosition(&all)
	return row
}

// WriteJSON writes the report as one JSON object.
func (r *AcceptReport) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteText prints the report for people.
func (r *AcceptReport) WriteText(w io.Writer) error {
	p := &printer{w: w}
	s := &Report{Model: r.Model, Settings: r.Settings, Identical: r.Identical}
	p.line("%s (%s)", s.name(), r.Model.Arch)
	for _, d := range r.Drafters {
		p.line("drafter %s (%s), block %d", d.Path, d.Name, d.Block)
	}
	p.line("%s", r.Settings.text())
	p.line("")
	rows := [][]string{{"source, length, category", "prompts", "tokens", "tokens/pass", "accepted", "published"}}
	for _, x := range r.Rows {
		name := fmt.Sprintf("%s %d", x.Source, x.Length)
		if x.Category != "" {
			name = "  " + x.Category
		}
		published := "-"
		for i, f := range x.Published {
			if i == 0 {
				published = ""
			} else {
				published += ", "
			}
			published += fmt.Sprintf("%.2f (%s)", f.TokensPerPass, f.Drafter)
		}
		rows = append(rows, []string{name, fmt.Sprint(x.Prompts), fmt.Sprint(x.Tokens),
			fmt.Sprintf("%.2f", x.TokensPerPass), fmt.Sprintf("%d of %d", x.Accepted, x.Guessed), published})
	}
	p.table(rows)
	p.line("tokens/pass: the accepted length, with the target's own token. Published: of the same model and kind of drafter,")
	p.line("by its makers or others, with their prompts and settings.")
	p.line("")
	p.line("How often the guess at each position was right, in percent, given that all before it were")
	for _, x := range r.Rows {
		if x.Category == "" && x.Guessed > 0 {
			p.line("  %s %d", x.Source, x.Length)
			p.table([][]string{number(len(x.ByPosition)), append([]string{"  right %"}, percents(x.ByPosition)...)})
		}
	}
	p.line("")
	if r.Identical.Same {
		p.line("Identical: yes, all sources and lengths yielded the same tokens (sha256 %.16s)", r.Identical.SHA256)
	} else {
		p.line("Identical: NO, %d differences", len(r.Identical.Differences))
	}
	return p.err
}
