package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"strobe/internal/bench/fleet"
	"strobe/internal/engine"
	"strobe/internal/platform"
	"strobe/internal/upstream"
)

type fleetOptions struct {
	modelFlags
	fleet.Settings
	service  string
	cacheRAM byteSize
	repeats  int
	json     bool
}

// fleetReport is what --json prints, and what --service reads.
type fleetReport struct {
	Schema   string          `json:"schema"`
	Service  fleet.Service   `json:"service"`
	Settings fleet.Settings  `json:"settings"`
	Outcomes []fleet.Outcome `json:"outcomes"`
}

func newBenchFleetCmd() *cobra.Command {
	opt := fleetOptions{cacheRAM: 2 << 30}
	cmd := &cobra.Command{
		Use:   "fleet [MODEL] [--service FILE]",
		Short: "Simulate several servers behind a front server, with times measured here",
		Long: `Fleet measures how long this machine takes for prompts and for tokens of one and several streams, and simulates
several such servers behind "strobe serve --upstream": throughput, queues and how many tokens of prompts are
found in prefix caches when requests go to the servers in turn, to the least loaded one, and to the one
that knows their beginning. It is the front server's own code that decides.

The traffic is that of agents: conversations that grow turn by turn, each turn sent whole, with pauses for tools. The same
settings and the same times give the same numbers. --json prints everything; --service reads such a file, so that
times measured on another machine can be planned with here.`,
		Example: `  strobe bench fleet
  strobe bench fleet qwen3.5-4b --replicas 8 --agents 200 --json >fleet.json
  strobe bench fleet --service fleet.json --replicas 16`,
		Args: opt.positionalModel(),
		RunE: func(cmd *cobra.Command, _ []string) error { return opt.run(cmd) },
	}
	opt.modelFlags.add(cmd)
	f := cmd.Flags()
	f.IntVar(&opt.Replicas, "replicas", 4, "servers")
	f.IntVar(&opt.Parallel, "parallel", 4, "requests that run together on one")
	f.IntVar(&opt.Chunk, "chunk", 256, "tokens of prompts in one step")
	f.IntVar(&opt.Agents, "agents", 64, "conversations at a time")
	f.IntVar(&opt.Projects, "projects", 16, "different system prompts among them")
	f.IntVar(&opt.Turns, "turns", 8, "turns of each")
	f.IntVar(&opt.System, "system-tokens", 1000, "tokens of a system prompt")
	f.IntVar(&opt.User, "user-tokens", 300, "new tokens of a turn, on average")
	f.IntVar(&opt.Answer, "answer-tokens", 100, "tokens of an answer, on average")
	f.DurationVar(&opt.Think, "think", 2*time.Second, "pause between an answer and the next turn, on average")
	f.Uint64Var(&opt.Seed, "seed", 1, "another one is other traffic")
	f.StringVar(&opt.service, "service", "", "file with measured times, from --json; no model is loaded then")
	f.Var(&opt.cacheRAM, "cache-ram", "bytes of each server's prefix cache")
	f.IntVar(&opt.repeats, "repeats", 3, "how often times are measured")
	f.BoolVar(&opt.json, "json", false, "print one object of JSON")
	return cmd
}

func (o *fleetOptions) run(cmd *cobra.Command) error {
	if err := o.Check(); err != nil {
		return usageError{err}
	}
	if o.repeats < 1 {
		return usagef("--repeats must be at least 1")
	}
	r := fleetReport{Schema: "strobe-fleet/1", Settings: o.Settings}
	var err error
	if o.service != "" {
		r.Service, err = readService(o.service)
	} else {
		r.Service, err = o.measure(cmd)
	}
	if err != nil {
		return err
	}
	for _, p := range []upstream.Policy{upstream.RoundRobin, upstream.LeastLoaded, upstream.Sticky} {
		r.Outcomes = append(r.Outcomes, fleet.Simulate(o.Settings, r.Service, p))
	}
	if o.json {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(&r)
	}
	return r.print(cmd)
}

// readService reads the times of a report.
func readService(file string) (fleet.Service, error) {
	var r fleetReport
	b, err := platform.ReadFile(file, maxInput)
	if err == nil {
		if err = json.Unmarshal(b, &r); err == nil {
			err = r.Service.Check()
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", file, err)
		}
	}
	return r.Service, err
}

// measure times this machine.
func (o *fleetOptions) measure(cmd *cobra.Command) (s fleet.Service, err error) {
	m, err := o.load()
	if err != nil {
		return s, err
	}
	cache := int64(o.cacheRAM)
	if cache == 0 {
		cache = -1
	}
	e := engine.New(m, engine.Config{Parallel: o.Parallel, Chunk: o.Chunk, CacheBytes: cache})
	defer e.Close(cmd.Context())
	const prompt, answer = 512, 64 // long enough to forget the beginning, short enough to repeat
	bar := newRunBar(cmd)
	defer bar.stop()
	return fleet.Measure(cmd.Context(), e, strings.TrimSuffix(filepath.Base(m.Path), ".gguf"), fleet.MeasureConfig{
		Prompt: min(prompt, e.Config().Context/2), Answer: answer, Repeats: o.repeats, Progress: bar.step,
	})
}

func (r *fleetReport) print(cmd *cobra.Command) error {
	w := cmd.OutOrStdout()
	s := &r.Service
	fmt.Fprintf(w, "%s: %.0f tokens/s of a prompt", s.Model, 1/s.Prompt.Seconds())
	for _, t := range s.Tokens {
		fmt.Fprintf(w, ", %.4g ms a token with %d", float64(t.Took.Microseconds())/1e3, t.Streams)
	}
	fmt.Fprintf(w, " streams; %d tokens of prefixes are kept\n", s.CacheTokens)
	fmt.Fprintf(w, "%d servers with %d slots, %d agents of %d projects with %d turns each\n\n", r.Settings.Replicas,
		r.Settings.Parallel, r.Settings.Agents, r.Settings.Projects, r.Settings.Turns)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\ttokens/s\tprefix hits\tqueue ms, mean\t95 %\tfirst token ms, mean\t95 %\tanswer ms, mean\tbusiest\t")
	for _, x := range r.Outcomes {
		fmt.Fprintf(tw, "%s\t%.1f\t%.1f %%\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t\n", x.Policy, x.Speed, 100*x.HitRate,
			x.Queue.Mean, x.Queue.P95, x.First.Mean, x.First.P95, x.Total.Mean, x.Busiest)
	}
	return tw.Flush()
}
