package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"strobe/internal/bench"
	"strobe/internal/bench/loadgen"
	"strobe/internal/chat"
)

type benchServeOptions struct {
	loadgen.Settings
	url, model, key   string
	against, vary     []string
	prompts           string
	temperature, topP float64
	topK, logProbs    int
	body              string
	json, plot        string
}

func newBenchServeCmd() *cobra.Command {
	var opt benchServeOptions
	cmd := &cobra.Command{
		Use:   "serve [--base-url URL]",
		Short: "Measure a running server with OpenAI's API: throughput, first token, gaps",
		Long: `Serve sends requests to a server that is already running (Strobe, llama.cpp, vLLM or any other with OpenAI's API), as
"vllm bench serve" does, and measures output and total tokens per second, the time to the first token, the time per token
after it and the gaps between arrivals of text.

Each of --clients sends one request after the other; with --rate requests begin at random times instead (Poisson), and
--clients limits how many run at a time. Prompts are random words, about --input-len tokens of them; no prompt is sent
twice, so that a prefix cache has only what --prefix-share and --turns leave to it. Tokens are those the server counts
(usage). Fields that are not given, such as --temperature, are not sent: the server's defaults are measured.

--against measures other servers, --vary the same one with other fields. They take turns in every round, in another order
each time, and are compared with the first round by round. With separate servers every one gets the same prompts.

Ctrl-C ends the measurement and prints what was measured until then.`,
		Example: `  strobe bench serve --clients 1,8,32
  strobe bench serve --clients 16 --vary temperature=0,0.8 --rounds 5
  strobe bench serve --vary strobe.draft=off,auto --prompts code --endpoint completions
  strobe bench serve --against http://127.0.0.1:8081 --rounds 5 --json run.json --plot run.svg
  strobe bench serve --rate 4 --requests 200 --input-len 2000 --prefix-share 0.8 --turns 2`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return opt.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&opt.url, "base-url", "http://127.0.0.1:8080", "address of the server")
	f.StringVar(&opt.model, "model", "", "model to ask for (default: the first that the server lists)")
	f.StringVar(&opt.key, "api-key", "", "key that the servers want (also "+keyVariable+")")
	f.StringVar(&opt.Endpoint, "endpoint", loadgen.Chat, "chat or completions")
	f.IntSliceVar(&opt.Clients, "clients", []int{1}, "requests at a time; several numbers are measured one after the other")
	f.Float64Var(&opt.Rate, "rate", 0, "requests that begin in a second, at random times; 0: whenever a client is free")
	f.IntVar(&opt.Requests, "requests", 32, "requests of a run; with --turns: conversations")
	f.IntVar(&opt.Rounds, "rounds", 1, "how often everything runs")
	f.IntVar(&opt.Warmup, "warmup", -1, "requests that do not count, before the first round (default: one for each client)")
	f.IntVar(&opt.InputLen, "input-len", 512, "tokens of a prompt, about")
	f.IntVar(&opt.OutputLen, "output-len", 128, "tokens of an answer")
	f.BoolVar(&opt.IgnoreEOS, "ignore-eos", true, "go on after the model has ended its text, if the server can")
	f.Float64Var(&opt.PrefixShare, "prefix-share", 0, "share of a prompt that all requests have in common, 0 to 1")
	f.IntVar(&opt.Turns, "turns", 1, "turns of a conversation; each sends all that was said before")
	f.IntVar(&opt.TurnLen, "turn-len", 64, "tokens of what the user says in later turns, about")
	f.StringVar(&opt.prompts, "prompts", "",
		"file of prompts, one JSON object per line, or the suite code or general, instead of random words; a number in front makes "+
			"each of them new to the server")
	f.Float64Var(&opt.temperature, "temperature", 0, "temperature of requests (default: the server's)")
	f.Float64Var(&opt.topP, "top-p", 0, "top_p of requests (default: the server's)")
	f.IntVar(&opt.topK, "top-k", 0, "top_k of requests (default: the server's)")
	f.IntVar(&opt.logProbs, "logprobs", 0, "alternatives with their probabilities in every answer")
	f.Uint64Var(&opt.Seed, "seed", 1, "seed of prompts and arrivals; if given, requests have seeds, too")
	f.StringVar(&opt.body, "extra-body", "", "further fields of requests, as a JSON object")
	f.DurationVar(&opt.Timeout, "timeout", 10*time.Minute, "longest time of a request; 0: no limit")
	f.StringArrayVar(&opt.against, "against", nil, "another server to compare with: URL or URL,MODEL; may be repeated")
	f.StringArrayVar(&opt.vary, "vary", nil,
		"compare values of a field of requests, such as temperature=0,0.8 or strobe.draft=off,auto; may be repeated")
	f.StringVar(&opt.json, "json", "", "also write all numbers to this file")
	f.StringVar(&opt.plot, "plot", "", "also draw them into this .svg file")
	return cmd
}

func (o *benchServeOptions) run(cmd *cobra.Command) error {
	if err := o.settle(cmd); err != nil {
		return usageError{err}
	}
	if err := o.readPrompts(); err != nil {
		return err
	}
	if err := o.Check(); err != nil {
		return usageError{err}
	}
	targets, err := o.targets()
	if err != nil {
		return usageError{err}
	}
	bar := newRunBar(cmd)
	b := loadgen.Bench{Settings: o.Settings, Targets: targets, Progress: bar.step, Done: func(name string, r *loadgen.Run) {
		bar.stop()
		if len(targets)*len(o.Clients)*o.Rounds > 1 {
			infof(cmd, "round %d, %s, %s: %.1f output tokens/s", r.Round, loadgen.Clients(r.Clients), name, r.OutputPerSecond)
		}
	}}
	report, err := b.Run(cmd.Context())
	bar.stop()
	if report == nil {
		return err
	}
	// Whatever interrupted the measurement, what was measured is written.
	if o.json != "" {
		var buf bytes.Buffer
		if e := report.WriteJSON(&buf); e != nil {
			return e
		}
		if e := os.WriteFile(o.json, buf.Bytes(), 0o666); e != nil {
			return e
		}
	}
	if o.plot != "" {
		if e := os.WriteFile(o.plot, report.Plot(), 0o666); e != nil {
			return e
		}
	}
	if e := report.WriteText(cmd.OutOrStdout()); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	for _, s := range report.Summaries {
		if s.Requests == 0 {
			return fmt.Errorf("%s: no request was answered", report.Targets[s.Target].Name)
		}
	}
	return nil
}

// settle turns flags into settings.
func (o *benchServeOptions) settle(cmd *cobra.Command) error {
	if o.key == "" {
		o.key = os.Getenv(keyVariable)
	}
	if o.plot != "" && !strings.EqualFold(filepath.Ext(o.plot), ".svg") {
		return fmt.Errorf("--plot %s: pictures are written as .svg", o.plot)
	}
	o.Body = map[string]any{}
	if o.body != "" {
		if err := json.Unmarshal([]byte(o.body), &o.Body); err != nil || o.Body == nil {
			return fmt.Errorf("--extra-body: want a JSON object such as {\"min_p\": 0.1}")
		}
	}
	given := cmd.Flags().Changed
	for _, x := range []struct {
		flag, field string
		value       float64
	}{
		{"temperature", "temperature", o.temperature}, {"top-p", "top_p", o.topP}, {"top-k", "top_k", float64(o.topK)},
		{"logprobs", "logprobs", float64(o.logProbs)},
	} {
		if given(x.flag) {
			o.Body[x.field] = x.value
		}
	}
	o.SendSeed = given("seed")
	if o.Rate > 0 && !given("clients") {
		o.Clients = []int{0}
	}
	return nil
}

// readPrompts reads what is asked instead of random words.
func (o *benchServeOptions) readPrompts() (err error) {
	var ps []bench.Prompt
	switch o.prompts {
	case "":
		return nil
	case "code", "general":
		ps, err = bench.Suite(o.prompts, "")
	default:
		ps, err = bench.ReadPromptFile(o.prompts)
	}
	if err != nil {
		return err
	}
	o.Source = o.prompts
	for _, p := range ps {
		x := loadgen.Prompt{Raw: p.Raw}
		switch {
		case len(p.Tokens) > 0:
			return fmt.Errorf("%s: prompt %s: token ids mean something else on every server; give text", o.prompts, p.ID)
		case len(p.Messages) == 0:
			x.Messages = []loadgen.Message{{Role: "user", Content: p.Text}}
		}
		for _, m := range p.Messages {
			text, ok := plainText(&m)
			if !ok {
				return fmt.Errorf("%s: prompt %s: only messages of text can be sent", o.prompts, p.ID)
			}
			x.Messages = append(x.Messages, loadgen.Message{Role: m.Role, Content: text})
		}
		o.Prompts = append(o.Prompts, x)
	}
	return nil
}

// plainText is the content of a message that has nothing else.
func plainText(m *chat.Message) (string, bool) {
	s, ok := m.Content.(string)
	return s, ok && len(m.ToolCalls) == 0
}

// targets are the servers, each with every combination of the values to compare.
func (o *benchServeOptions) targets() ([]loadgen.Target, error) {
	all := []loadgen.Target{{Name: o.url, URL: o.url, Model: o.model}}
	for _, x := range o.against {
		url, model, _ := strings.Cut(x, ",")
		if model == "" {
			model = o.model
		}
		all = append(all, loadgen.Target{Name: url, URL: url, Model: model})
	}
	for i := range all {
		all[i].Key = o.key
		if n := slices.IndexFunc(all[:i], func(t loadgen.Target) bool { return t.Name == all[i].Name }); n >= 0 {
			all[i].Name += " " + all[i].Model // two models of one server
		}
	}
	for n, v := range o.vary {
		field, values, ok := strings.Cut(v, "=")
		list := strings.Split(values, ",")
		if !ok || len(list) < 2 && len(o.vary) == 1 {
			return nil, fmt.Errorf("--vary %s: want a field and its values, such as temperature=0,0.8", v)
		}
		var more []loadgen.Target
		for _, t := range all {
			for _, text := range list {
				x := t
				var err error
				if x.Body, err = loadgen.Set(t.Body, field, jsonOrText(text)); err != nil {
					return nil, fmt.Errorf("--vary %s: %w", v, err)
				}
				label := strings.TrimPrefix(field, "strobe.") + " " + text
				switch {
				case n == 0 && len(o.against) == 0:
					x.Name = label
				default:
					x.Name += ", " + label
				}
				more = append(more, x)
			}
		}
		all = more
	}
	return all, nil
}

// jsonOrText is a value of a field: JSON if it is, else a text.
func jsonOrText(s string) any {
	var v any
	if json.Unmarshal([]byte(s), &v) == nil {
		return v
	}
	return s
}
