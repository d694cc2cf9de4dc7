package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/draft"
	"strobe/internal/engine"
	"strobe/internal/speculate"
)

// slice is how long a lane runs before the other one's turn.
const slice = 50 * time.Millisecond

// race generates one text in two lanes that take turns.
type race struct {
	title  string
	prompt string
	max    int
	lanes  [2]*lane
}

// lane is one way to generate the text.
type lane struct {
	name   string
	model  *engine.Model
	ids    []int32
	runner *speculate.Runner
	opt    speculate.Options
	solo   *engine.Solo

	tokens  []raceToken
	output  []byte
	elapsed time.Duration // of this lane's own steps after the prompt
	stats   speculate.Stats
	done    bool
}

// raceToken is a token as it appeared.
type raceToken struct {
	text    string
	drafted bool
	at      time.Duration // on the lane's own clock
}

func newRace(m *engine.Model, opt *demoOptions, text string, raw bool) (*race, error) {
	so, err := opt.spec()
	if err != nil {
		return nil, err
	}
	if so.Draft == speculate.Off {
		return nil, usagef("--draft off leaves nothing to race against")
	}
	p, err := dialog.For(m).Prompt([]chat.Message{{Role: "user", Content: text}}, raw, dialog.Options{Whole: true})
	if err != nil {
		return nil, err
	}
	r := &race{title: demoTitle(m), prompt: text, max: opt.n}
	name := "n-gram drafts"
	switch {
	case m.Drafter != nil:
		name = "DFlash"
	case m.Eagle != nil:
		name = "EAGLE-3"
	case m.MTP != nil:
		name = "MTP"
	}
	for i, l := range []*lane{
		{name: "plain", opt: speculate.Options{Draft: speculate.Off}},
		{name: name, opt: so},
	} {
		l.model, l.ids = m, p.Tokens
		var sources []draft.Source
		if i == 1 {
			sources = m.Runner.Sources
		}
		if l.runner, err = speculate.NewRunner(m.Target, sources...); err != nil {
			return nil, err
		}
		r.lanes[i] = l
	}
	for _, l := range r.lanes {
		// A short run first brings the weights into memory and shows the controller what passes cost.
		if err := l.start(opt.ctx, min(24, opt.n)); err == nil {
			for !l.done && err == nil {
				err = l.step()
			}
		}
		if err != nil {
			r.close()
			return nil, err
		}
	}
	for _, l := range r.lanes {
		if err := l.start(opt.ctx, opt.n); err != nil {
			r.close()
			return nil, err
		}
	}
	return r, nil
}

// start begins the text from the beginning.
func (l *lane) start(ctx, limit int) error {
	l.close()
	l.tokens, l.output, l.elapsed, l.done = nil, nil, 0, false
	var err error
	l.solo, err = l.model.Solo(l.runner, engine.Request{Tokens: l.ids, Spec: l.opt, MaxTokens: limit}, ctx)
	return err
}

func (l *lane) close() {
	if l.solo != nil {
		l.solo.Close()
	}
	l.solo = nil
}

// step advances the lane by one pass.
func (l *lane) step() error {
	prefilling := l.solo.Prefilling()
	start := time.Now()
	ev, err := l.solo.Step(l.model.Chunk())
	if err != nil {
		return err
	}
	if !prefilling {
		l.elapsed += time.Since(start)
	}
	for _, t := range ev.Tokens {
		l.tokens = append(l.tokens, raceToken{string(t.Text), t.Drafted, l.elapsed})
	}
	if rest := ev.Rest(); len(rest) > 0 {
		l.tokens = append(l.tokens, raceToken{text: string(rest), at: l.elapsed})
	}
	l.output = append(l.output, ev.Text...)
	l.done, l.stats = l.solo.Done(), l.solo.Stats()
	return nil
}

// speed is tokens per second after the first one.
func (l *lane) speed() float64 {
	if l.elapsed <= 0 || l.stats.Tokens < 2 {
		return 0
	}
	return float64(l.stats.Tokens-1) / l.elapsed.Seconds()
}

func (l *lane) hash() string { return fmt.Sprintf("%x", sha256.Sum256(l.output)) }

// run lets the lanes take turns until both are done, and calls shown after each turn.
func (r *race) run(ctx context.Context, shown func()) error {
	for !r.lanes[0].done || !r.lanes[1].done {
		for _, l := range r.lanes {
			turn := l.elapsed
			for !l.done && l.elapsed-turn < slice {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := l.step(); err != nil {
					return err
				}
			}
			shown()
		}
	}
	return nil
}

func (r *race) close() {
	for _, l := range r.lanes {
		if l != nil {
			l.close()
		}
	}
}

func (r *race) identical() bool { return string(r.lanes[0].output) == string(r.lanes[1].output) }

// ratio is how many times as fast the drafted lane was.
func (r *race) ratio() float64 {
	if p := r.lanes[0].speed(); p > 0 {
		return r.lanes[1].speed() / p
	}
	return 0
}

// numbers sum a lane up.
func (l *lane) numbers() []string {
	ns := []string{fmt.Sprintf("%.2f s", l.elapsed.Seconds()), fmt.Sprintf("%.1f tokens/s", l.speed())}
	if l.stats.Rounds > 0 {
		ns = append(ns, fmt.Sprintf("%.2f per pass", l.stats.Mean()))
	}
	return ns
}

// verdict are the last lines: who was faster, and whether the texts are the same.
func (r *race) verdict() []string {
	plain, fast := r.lanes[0], r.lanes[1]
	lines := []string{fmt.Sprintf("%.2f times as fast with %s: %.1f tokens/s against %.1f plainly",
		r.ratio(), fast.name, fast.speed(), plain.speed())}
	if !plain.done || !fast.done {
		n := min(len(plain.output), len(fast.output))
		if string(plain.output[:n]) == string(fast.output[:n]) {
			return append(lines, "stopped before the end; as far as both came, the texts are identical")
		}
	} else if r.identical() {
		return append(lines, fmt.Sprintf("the texts are identical: sha256 %.12s = %.12s", plain.hash(), fast.hash()))
	}
	return append(lines, fmt.Sprintf("THE TEXTS DIFFER: sha256 %.12s and %.12s", plain.hash(), fast.hash()))
}
