package bench

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"strobe/internal/draft"
	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/speculate"
)

// Case is a prompt ready to run.
type Case struct {
	ID       string
	Category string // see Accept
	Tokens   []int32
	Max      int // most tokens to generate; 0: Config.Tokens
}

// Config says what to measure.
type Config struct {
	Modes   []Mode
	LeftOut []string // modes that were asked for and cannot run, with what they need
	Cases   []Case
	Tokens  int           // most tokens per prompt; 0 means 128
	Repeats int           // 0 means 3
	Context int           // most tokens in the cache; 0 means the model's
	Chunk   int           // prompt tokens per pass; 0 means 128
	Params  sample.Params // of sampling, the same in every run; zero is greedy
	// IgnoreEnd goes on after an end-of-generation token.
	IgnoreEnd bool
	// Progress, if set, is called after each run.
	Progress func(done, total int)
}

func (c Config) withDefaults() Config {
	if c.Tokens <= 0 {
		c.Tokens = 128
	}
	if c.Repeats <= 0 {
		c.Repeats = 3
	}
	if c.Chunk <= 0 {
		c.Chunk = 128
	}
	return c
}

// result is one run of one prompt in one mode.
type result struct {
	tokens     []int32
	prompt     speculate.Stats // until the first token
	decode     speculate.Stats // after it
	first      time.Duration   // until the first token
	cacheBytes int
	draftBytes int
}

// bencher runs prompts on one model.
type bencher struct {
	model   *engine.Model
	cfg     Config
	runners []*speculate.Runner // per mode: each learns for itself, as it would alone
	results [][][]result        // by mode, case and repeat
}

// Measure runs every case in every mode, Repeats times.
func Measure(ctx context.Context, m *engine.Model, cfg Config) (*Report, error) {
	s, err := MeasureAll(ctx, []Entry{{m, cfg}})
	if err != nil {
		return nil, err
	}
	return s.Reports[0], nil
}

func newBencher(m *engine.Model, cfg Config) (*bencher, error) {
	cfg = cfg.withDefaults()
	if len(cfg.Cases) == 0 || len(cfg.Modes) == 0 {
		return nil, fmt.Errorf("bench: nothing to measure")
	}
	b := &bencher{model: m, cfg: cfg}
	for _, mode := range cfg.Modes {
		r, err := b.runner(mode)
		if err != nil {
			return nil, err
		}
		b.runners = append(b.runners, r)
		b.results = append(b.results, make([][]result, len(cfg.Cases)))
	}
	return b, nil
}

// runner returns the runner of a mode. Plain decoding has none of the drafter's costs.
func (b *bencher) runner(mode Mode) (*speculate.Runner, error) {
	var sources []draft.Source
	for _, s := range b.model.Runner.Sources {
		if mode.Options.Draft == speculate.Auto || mode.Options.Draft == s.Name() {
			sources = append(sources, s)
		}
	}
	return speculate.NewRunner(b.model.Target, sources...)
}

// warm brings the weights into memory and lets each controller see its costs once.
func (b *bencher) warm(ctx context.Context) error {
	c := &b.cfg.Cases[0]
	for mode := range b.cfg.Modes {
		if _, err := b.run(ctx, mode, c, min(32, b.cfg.Tokens)); err != nil {
			return fmt.Errorf("prompt %s, mode %s: %w", c.ID, b.cfg.Modes[mode].Name, err)
		}
	}
	return nil
}

// run generates up to limit tokens.
func (b *bencher) run(ctx context.Context, mode int, c *Case, limit int) (result, error) {
	r := b.runners[mode]
	if err := r.Capture(); err != nil {
		return result{}, err
	}
	if c.Max > 0 {
		limit = min(limit, c.Max)
	}
	var res result
	s, err := b.model.Solo(r, engine.Request{
		Tokens: c.Tokens, Params: b.cfg.Params, Spec: b.cfg.Modes[mode].Options, MaxTokens: limit, IgnoreEOG: b.cfg.IgnoreEnd,
	}, b.cfg.Context)
	if err != nil {
		return res, err
	}
	defer s.Close()
	start := time.Now()
	for !s.Done() {
		if err := ctx.Err(); err != nil {
			return res, err
		}
		prefilling := s.Prefilling()
		if _, err := s.Step(b.cfg.Chunk); err != nil {
			return res, err
		}
		if prefilling && !s.Prefilling() {
			res.prompt, res.first = s.Stats(), time.Since(start)
		}
	}
	res.tokens = s.Tokens()
	res.decode = since(s.Stats(), &res.prompt)
	if res.decode.DraftErr != nil {
		return res, fmt.Errorf("the drafter failed: %w", res.decode.DraftErr)
	}
	res.cacheBytes, res.draftBytes = s.Bytes()
	return res, nil
}

// since takes what happened before the first token out of the times.
func since(st speculate.Stats, before *speculate.Stats) speculate.Stats {
	st.Draft -= before.Draft
	st.Verify -= before.Verify
	st.Sample -= before.Sample
	st.Commit -= before.Commit
	st.Rest -= before.Rest
	return st
}

// report sums up.
func (b *bencher) report(results [][][]result) *Report {
	rep := &Report{Schema: Schema, System: system(b.model), Model: describe(b.model), LeftOut: b.cfg.LeftOut}
	for i, d := range b.model.Drafters() {
		info := describeDrafter(b.model, d)
		if i == 0 {
			rep.Drafter = info
			continue
		}
		rep.Others = append(rep.Others, info)
		if d.Name() == "mtp" {
			rep.MTP = info
		}
	}
	rep.Settings = Settings{Tokens: b.cfg.Tokens, Repeats: b.cfg.Repeats, Prompts: len(b.cfg.Cases),
		IgnoreEnd: b.cfg.IgnoreEnd}
	for _, c := range b.cfg.Cases {
		rep.Settings.PromptTokens += len(c.Tokens)
	}
	var plain []float64
	for i, mode := range b.cfg.Modes {
		rep.Settings.SyntheticAccept = max(rep.Settings.SyntheticAccept, mode.Options.Synthetic)
		m := summarise(mode.Name, results[i], b.cfg.Repeats)
		if i == 0 {
			plain = m.TokensPerSecond.Values
		}
		m.SpeedUp = NewSpread(ratios(m.TokensPerSecond.Values, plain))
		m.Against = compare(results[i], results[0])
		m.BreakEven = breakEven(results[i], results[0])
		rep.Modes = append(rep.Modes, m)
	}
	rep.Prompts = b.prompts(results)
	rep.Identical = b.identical(results)
	rep.Memory = memory(b.model, results)
	return rep
}

// summarise adds the runs of one mode.
func summarise(name string, cases [][]result, repeats int) ModeReport {
	m := ModeReport{Name: name, Sources: map[string]int{}}
	var speeds, prompts, firsts []float64
	var all speculate.Stats
	for rep := range repeats {
		var tokens, promptTokens int
		var decode, prompt, first time.Duration
		for _, c := range cases {
			r := &c[rep]
			tokens += max(0, len(r.tokens)-1)
			decode += r.decode.DecodeTime
			promptTokens += r.decode.Prompt
			prompt += r.decode.PromptTime
			first += r.first
			all.Add(r.decode)
		}
		speeds = append(speeds, rate(tokens, decode))
		prompts = append(prompts, rate(promptTokens, prompt))
		firsts = append(firsts, first.Seconds()*1e3/float64(len(cases)))
	}
	m.TokensPerSecond = NewSpread(speeds)
	m.PromptTokensPerSecond = NewSpread(prompts)
	m.FirstToken = NewSpread(firsts)
	m.Tokens, m.Passes, m.Drafts = all.Tokens, all.Rounds, all.Drafts
	m.TokensPerPass = all.Mean()
	m.Guessed, m.Accepted = all.Guessed, all.Accepted
	m.Lengths = histogram(all.ByLength[:])
	m.ByPosition = byPosition(&all)
	for s, x := range all.BySource {
		if x.Rounds > 0 {
			m.Sources[s] = x.Rounds
		}
	}
	perToken := func(d time.Duration) float64 {
		if all.Tokens == 0 {
			return 0
		}
		return d.Seconds() * 1e3 / float64(all.Tokens)
	}
	m.Time = Split{perToken(all.Draft), perToken(all.Verify), perToken(all.Commit), perToken(all.Sample),
		perToken(all.Rest)}
	m.BySource = bySource(&all)
	return m
}

// breakEven is how many tokens a pass of one way must yield for it to be as fast as another, whose passes yield one.
func breakEven(cases, plain [][]result) float64 {
	perPass := func(cases [][]result) float64 {
		var all speculate.Stats
		for _, c := range cases {
			for _, r := range c {
				all.DecodeTime += r.decode.DecodeTime
				all.Rounds += r.decode.Rounds
			}
		}
		return all.DecodeTime.Seconds() / float64(max(1, all.Rounds))
	}
	if p := perPass(plain); p > 0 {
		return perPass(cases) / p
	}
	return 0
}

// histogram returns the passes by the tokens they yielded: element 0 counts passes of one token.
func histogram(byLength []int) []int {
	h := slices.Clone(byLength[1:])
	for len(h) > 0 && h[len(h)-1] == 0 {
		h = h[:len(h)-1]
	}
	return append([]int{}, h...)
}

// byPosition returns how often a guess was right, given that all before it were.
func byPosition(st *speculate.Stats) []float64 {
	p := []float64{}
	for d, n := range st.Reached {
		if n == 0 {
			break
		}
		p = append(p, float64(st.Hit[d])/float64(n))
	}
	return p
}

func rate(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// prompts reports each prompt on its own.
func (b *bencher) prompts(results [][][]result) []PromptReport {
	var ps []PromptReport
	for c := range b.cfg.Cases {
		p := PromptReport{ID: b.cfg.Cases[c].ID, PromptTokens: len(b.cfg.Cases[c].Tokens),
			Tokens: len(results[0][c][0].tokens), Modes: map[string]PromptMode{}}
		for i, mode := range b.cfg.Modes {
			var all speculate.Stats
			var speeds []float64
			for _, r := range results[i][c] {
				all.Add(r.decode)
				speeds = append(speeds, rate(len(r.tokens)-1, r.decode.DecodeTime))
			}
			p.Modes[mode.Name] = PromptMode{median(speeds), all.Mean()}
		}
		ps = append(ps, p)
	}
	return ps
}

// identical compares the tokens of all runs with those of the first mode's first run.
func (b *bencher) identical(results [][][]result) Identical {
	id := Identical{Checked: true, Same: true}
	for _, mode := range b.cfg.Modes {
		if mode.Options.Synthetic > 0 {
			return Identical{} // made-up acceptance makes up the text, too
		}
	}
	h := sha256.New()
	for c := range b.cfg.Cases {
		want := results[0][c][0].tokens
		for _, t := range want {
			h.Write(binary.LittleEndian.AppendUint32(nil, uint32(t)))
		}
		for i, mode := range b.cfg.Modes {
			for _, r := range results[i][c] {
				if at := firstDifference(want, r.tokens); at >= 0 {
					id.Same = false
					id.Differences = append(id.Differences, Difference{mode.Name, b.cfg.Cases[c].ID, at})
					break
				}
			}
		}
	}
	id.SHA256 = fmt.Sprintf("%x", h.Sum(nil))
	return id
}

// firstDifference returns where a and b differ, or -1.
func firstDifference(a, b []int32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}
