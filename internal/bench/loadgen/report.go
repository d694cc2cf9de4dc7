package loadgen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Schema names the form of the JSON.
const Schema = "strobe-bench-serve/1"

// Report is all that was measured.
type Report struct {
	Schema      string       `json:"schema"`
	Settings    Settings     `json:"settings"`
	Targets     []TargetInfo `json:"targets"`
	Runs        []*Run       `json:"runs"` // in the order they ran
	Summaries   []Summary    `json:"summaries"`
	Ratios      []Ratio      `json:"ratios"`
	Interrupted bool         `json:"interrupted"`
}

// TargetInfo is a target and what was found out about it.
type TargetInfo struct {
	Target
	Notes []string `json:"notes,omitempty"`
}

// Run is what one target did in one round with a number of clients.
type Run struct {
	Target  int `json:"target"` // index
	Clients int `json:"clients"`
	Round   int `json:"round"` // from 1
	Result
	Interrupted bool `json:"interrupted,omitempty"` // it was not finished, and its speed is not its own

	pool pool
}

// Summary is all rounds of a target with a number of clients.
type Summary struct {
	Target  int `json:"target"`
	Clients int `json:"clients"`
	Result
	// Rounds are the speeds of those that were finished.
	Rounds []float64 `json:"output_tokens_per_second_by_round"`
}

// Result is what was counted. Speeds of a summary are medians of its rounds, all else is of their requests together.
type Result struct {
	Requests int                    `json:"requests"` // answered
	Failed   int                    `json:"failed"`
	Errors   map[string]*ErrorCount `json:"errors,omitempty"`
	Cut      int                    `json:"cut,omitempty"` // not finished when the measurement was interrupted
	Seconds  float64                `json:"seconds"`

	InputTokens  int `json:"input_tokens"`
	CachedTokens int `json:"cached_tokens"` // of them
	OutputTokens int `json:"output_tokens"`
	Uncounted    int `json:"uncounted,omitempty"` // requests whose tokens were counted by events
	Short        int `json:"short,omitempty"`     // requests that ended before the length asked for

	OutputPerSecond   float64 `json:"output_tokens_per_second"`
	TotalPerSecond    float64 `json:"total_tokens_per_second"`
	RequestsPerSecond float64 `json:"requests_per_second"`

	First      Spread  `json:"ttft_ms"`                 // of first turns
	LaterFirst *Spread `json:"later_ttft_ms,omitempty"` // of later turns
	PerToken   Spread  `json:"tpot_ms"`                 // time per token after the first
	Gap        Spread  `json:"itl_ms"`                  // between arrivals of text; one may bring several tokens
	Total      Spread  `json:"latency_ms"`              // of a whole answer
	Late       *Spread `json:"late_ms,omitempty"`       // sent after its time, for lack of a free client
}

// ErrorCount is how often an error happened, with the first message.
type ErrorCount struct {
	Count   int    `json:"count"`
	Message string `json:"message,omitempty"`
}

// Spread is a distribution in short.
type Spread struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Ratio compares a target with the first one, round by round.
type Ratio struct {
	Target  int       `json:"target"`
	Clients int       `json:"clients"`
	What    string    `json:"what"`
	Rounds  []float64 `json:"rounds"`
	Median  float64   `json:"median"`
}

// pool are single values, in milliseconds.
type pool struct{ first, later, perToken, gap, total, late []float64 }

func (p *pool) add(q *pool) {
	p.first, p.later = append(p.first, q.first...), append(p.later, q.later...)
	p.perToken, p.gap = append(p.perToken, q.perToken...), append(p.gap, q.gap...)
	p.total, p.late = append(p.total, q.total...), append(p.late, q.late...)
}

// spreads sorts the values of a pool and sums them up.
func (r *Result) spreads(p *pool) {
	r.First, r.PerToken, r.Gap, r.Total = spread(p.first), spread(p.perToken), spread(p.gap), spread(p.total)
	if len(p.later) > 0 {
		s := spread(p.later)
		r.LaterFirst = &s
	}
	if len(p.late) > 0 {
		s := spread(p.late)
		r.Late = &s
	}
}

// spread sums up values, which it sorts.
func spread(v []float64) Spread {
	if len(v) == 0 {
		return Spread{}
	}
	slices.Sort(v)
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return Spread{len(v), sum / float64(len(v)), quantile(v, 0.5), quantile(v, 0.95), quantile(v, 0.99), v[len(v)-1]}
}

// quantile interpolates between neighbours of sorted values, as numpy does by default.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// sum counts the requests of a run.
func (r *Run) sum(s *Settings, samples [][]sample, took time.Duration) {
	r.Seconds = took.Seconds()
	p := &r.pool
	for _, list := range samples {
		for i := range list {
			x := &list[i]
			if x.err != nil {
				r.fail(x.err)
				continue
			}
			r.Requests++
			r.InputTokens += x.in
			r.CachedTokens += x.cache
			r.OutputTokens += x.out
			if !x.counted {
				r.Uncounted++
			}
			if x.out < s.OutputLen {
				r.Short++
			}
			if x.turn == 0 {
				p.first = append(p.first, ms(x.first))
			} else {
				p.later = append(p.later, ms(x.first))
			}
			if s.Rate > 0 && x.turn == 0 {
				p.late = append(p.late, ms(x.late))
			}
			if x.out > 1 {
				p.perToken = append(p.perToken, ms(x.last-x.first)/float64(x.out-1))
			}
			for _, g := range x.gaps {
				p.gap = append(p.gap, ms(g))
			}
			p.total = append(p.total, ms(x.total))
		}
	}
	if r.Seconds > 0 {
		r.OutputPerSecond = float64(r.OutputTokens) / r.Seconds
		r.TotalPerSecond = float64(r.InputTokens+r.OutputTokens) / r.Seconds
		r.RequestsPerSecond = float64(r.Requests) / r.Seconds
	}
	r.spreads(p)
}

// fail counts an error.
func (r *Result) fail(err error) {
	if errors.Is(err, context.Canceled) {
		r.Cut++
		return
	}
	r.Failed++
	e := &requestError{Kind: "other", Message: clean(err.Error())}
	errors.As(err, &e)
	r.addError(e.Kind, ErrorCount{1, e.Message})
}

func (r *Result) addError(kind string, c ErrorCount) {
	if r.Errors == nil {
		r.Errors = map[string]*ErrorCount{}
	}
	if have := r.Errors[kind]; have != nil {
		have.Count += c.Count
	} else {
		r.Errors[kind] = &c
	}
}

func newReport(s *Settings, targets []*target) *Report {
	r := &Report{Schema: Schema, Settings: *s, Runs: []*Run{}}
	for _, t := range targets {
		r.Targets = append(r.Targets, TargetInfo{*t.Target, t.notes})
	}
	return r
}

// finish sums up the rounds and compares the targets.
func (r *Report) finish() {
	r.Summaries, r.Ratios = []Summary{}, []Ratio{}
	for _, clients := range r.Settings.Clients {
		for t := range r.Targets {
			if runs := r.of(t, clients); len(runs) > 0 {
				r.Summaries = append(r.Summaries, summarize(t, clients, runs))
			}
		}
		for t := 1; t < len(r.Targets); t++ {
			for _, c := range compared {
				if x := r.ratio(t, clients, c.value); len(x.Rounds) > 0 {
					x.What = c.what
					r.Ratios = append(r.Ratios, x)
				}
			}
		}
	}
	for _, x := range r.Runs {
		r.Interrupted = r.Interrupted || x.Interrupted
	}
	r.Interrupted = r.Interrupted || len(r.Runs) < r.Settings.Rounds*len(r.Settings.Clients)*len(r.Targets)
}

// compared are the quantities that targets are compared by.
var compared = []struct {
	what  string
	value func(*Run) float64
}{
	{"output tokens/s", func(r *Run) float64 { return r.OutputPerSecond }},
	{"first token, p50", func(r *Run) float64 { return r.First.P50 }},
	{"per token, p50", func(r *Run) float64 { return r.PerToken.P50 }},
	{"gaps, p99", func(r *Run) float64 { return r.Gap.P99 }},
}

// of are the runs of a target.
func (r *Report) of(t, clients int) (runs []*Run) {
	for _, x := range r.Runs {
		if x.Target == t && x.Clients == clients {
			runs = append(runs, x)
		}
	}
	return runs
}

// ratio compares finished runs of a target with those of the first in the same rounds.
func (r *Report) ratio(t, clients int, value func(*Run) float64) Ratio {
	x := Ratio{Target: t, Clients: clients}
	base := map[int]float64{}
	for _, run := range r.of(0, clients) {
		if !run.Interrupted {
			base[run.Round] = value(run)
		}
	}
	for _, run := range r.of(t, clients) {
		if b := base[run.Round]; !run.Interrupted && b > 0 {
			x.Rounds = append(x.Rounds, value(run)/b)
		}
	}
	x.Median = median(x.Rounds)
	return x
}

func summarize(t, clients int, runs []*Run) Summary {
	s := Summary{Target: t, Clients: clients, Rounds: []float64{}}
	var p pool
	var output, total, requests []float64
	for _, x := range runs {
		s.Requests += x.Requests
		s.Failed += x.Failed
		s.Cut += x.Cut
		s.Seconds += x.Seconds
		s.InputTokens += x.InputTokens
		s.CachedTokens += x.CachedTokens
		s.OutputTokens += x.OutputTokens
		s.Uncounted += x.Uncounted
		s.Short += x.Short
		for kind, c := range x.Errors {
			s.addError(kind, *c)
		}
		p.add(&x.pool)
		if !x.Interrupted {
			s.Rounds = append(s.Rounds, x.OutputPerSecond)
		}
		if !x.Interrupted || len(runs) == 1 { // better than nothing
			output, total = append(output, x.OutputPerSecond), append(total, x.TotalPerSecond)
			requests = append(requests, x.RequestsPerSecond)
		}
	}
	s.OutputPerSecond, s.TotalPerSecond, s.RequestsPerSecond = median(output), median(total), median(requests)
	s.spreads(&p)
	return s
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return quantile(v, 0.5)
}

// WriteJSON writes everything.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// number prints four digits, and all of a larger number.
func number(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Sprint(v)
	}
	digits := max(0, 3-int(math.Floor(math.Log10(math.Abs(v)))))
	return fmt.Sprintf("%.*f", min(digits, 6), v)
}

// clientsText is a number of clients in words.
func clientsText(n int) string {
	if n == 0 {
		return "no limit"
	}
	return fmt.Sprint(n)
}

// Clients is a number of clients for a sentence.
func Clients(n int) string {
	if n == 0 {
		return "any number of clients"
	}
	return plural(n, "client")
}

// WriteText writes tables for people.
func (r *Report) WriteText(w io.Writer) error {
	s := &r.Settings
	fmt.Fprintf(w, "%s, %d requests", s.Endpoint, s.Requests)
	if s.Turns > 1 {
		fmt.Fprintf(w, " of %d turns", s.Turns)
	}
	if s.Source == "" {
		fmt.Fprintf(w, ", %d tokens in", s.InputLen)
	} else {
		fmt.Fprintf(w, ", prompts of %s", s.Source)
	}
	if s.PrefixShare > 0 {
		fmt.Fprintf(w, " (%g of them common)", s.PrefixShare)
	}
	fmt.Fprintf(w, ", %d out", s.OutputLen)
	if s.Rate > 0 {
		fmt.Fprintf(w, ", %g requests/s", s.Rate)
	}
	for _, k := range sortedKeys(s.Body) {
		fmt.Fprintf(w, ", %s %v", k, s.Body[k])
	}
	fmt.Fprintf(w, ", %s\n", plural(s.Rounds, "round"))
	for i := range r.Targets {
		t := &r.Targets[i]
		fmt.Fprintf(w, "%s: %s, model %s", t.Name, t.URL, t.Model)
		for _, n := range t.Notes {
			fmt.Fprintf(w, "; %s", n)
		}
		fmt.Fprintln(w)
	}
	if len(r.Summaries) == 0 {
		fmt.Fprintln(w, "nothing was measured")
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\nclients\tserver\toutput tokens/s\tby round\ttotal tokens/s\trequests/s\tanswered\tfailed\ttokens in\tcached\tout\t")
	for i := range r.Summaries {
		x := &r.Summaries[i]
		n := float64(max(1, x.Requests))
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%.1f\t%.0f %%\t%.1f\t\n", clientsText(x.Clients),
			r.Targets[x.Target].Name, number(x.OutputPerSecond), joined(x.Rounds), number(x.TotalPerSecond),
			number(x.RequestsPerSecond), x.Requests, x.Failed, float64(x.InputTokens)/n,
			100*float64(x.CachedTokens)/float64(max(1, x.InputTokens)), float64(x.OutputTokens)/n)
	}
	fmt.Fprintln(tw, "\nclients\tserver\tms\tmean\tp50\tp95\tp99\tmax\t")
	for i := range r.Summaries {
		x := &r.Summaries[i]
		for _, l := range []struct {
			name string
			s    *Spread
		}{
			{"first token", &x.First}, {"of later turns", x.LaterFirst}, {"per token", &x.PerToken},
			{"gaps", &x.Gap}, {"answer", &x.Total}, {"sent late", x.Late},
		} {
			if l.s != nil && l.s.N > 0 {
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", clientsText(x.Clients), r.Targets[x.Target].Name, l.name,
					number(l.s.Mean), number(l.s.P50), number(l.s.P95), number(l.s.P99), number(l.s.Max))
			}
		}
	}
	if len(r.Ratios) > 0 {
		fmt.Fprintf(tw, "\nclients\tagainst %s\t\tmedian\tby round\t\n", r.Targets[0].Name)
		for _, x := range r.Ratios {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%.3f\t%s\t\n", clientsText(x.Clients), r.Targets[x.Target].Name, x.What, x.Median,
				ratioText(x.Rounds))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return r.writeNotes(w)
}

// writeNotes says what makes numbers mean something else than they seem to.
func (r *Report) writeNotes(w io.Writer) error {
	var err error
	note := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format+"\n", args...)
		}
	}
	for i := range r.Summaries {
		x := &r.Summaries[i]
		who := r.Targets[x.Target].Name + ", " + Clients(x.Clients)
		for _, kind := range sortedKeys(x.Errors) {
			e := x.Errors[kind]
			note("%s: %s failed: %s", who, plural(e.Count, "request"), (&requestError{Kind: kind, Message: e.Message}).Error())
		}
		if x.Short > 0 {
			note("%s: %d of %d answers have fewer tokens than the %d asked for", who, x.Short, x.Requests, r.Settings.OutputLen)
		}
		if x.Uncounted > 0 {
			note("%s: the server did not count the tokens of %s; events were counted", who, plural(x.Uncounted, "answer"))
		}
	}
	if r.Interrupted {
		note("interrupted: this is what was measured until then; speeds are those of finished rounds, if there are any")
	}
	return err
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func joined(v []float64) string {
	var parts []string
	for _, x := range v {
		parts = append(parts, number(x))
	}
	return strings.Join(parts, " ")
}

func ratioText(v []float64) string {
	var parts []string
	for _, x := range v {
		parts = append(parts, fmt.Sprintf("%.3f", x))
	}
	return strings.Join(parts, " ")
}
