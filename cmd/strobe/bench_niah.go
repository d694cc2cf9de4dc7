package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"strobe/internal/bench"
	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/tokenizer"
)

// runNiah hides facts in a long text and asks for them.
func (o *benchOptions) runNiah(cmd *cobra.Command) error {
	switch {
	case o.needles < 1 || o.needles > 64:
		return usagef("--needles %d: want 1 to 64", o.needles)
	case o.kind != "text" && o.kind != "code":
		return usagef("--kind %q: want text or code", o.kind)
	case o.context != 0 && o.context < 256:
		return usagef("--context %d: want 256 tokens or more", o.context)
	}
	loaded, err := o.load()
	if err != nil {
		return err
	}
	c := bench.NiahConfig{Context: o.context, Needles: o.needles, Code: o.kind == "code"}
	if c.Context == 0 {
		c.Context = loaded.Target.Context * 3 / 4
	}
	c.Count = func(text string) int { return len(loaded.Tokenizer.Encode(text, tokenizer.EncodeOptions{})) }
	m := dialog.New(loaded, engine.Config{Parallel: 1, Context: o.ctx, Chunk: loaded.Chunk()})
	defer m.Close()
	spec, err := o.spec()
	if err != nil {
		return err
	}
	c.Ask = func(ctx context.Context, text, question string) (t bench.NiahTimes, answer string, err error) {
		began := time.Now()
		p, err := m.Format().Prompt([]chat.Message{{Role: "user", Content: text + "\n" + question}}, false,
			dialog.Options{Context: m.Engine().Config().Context, Done: ctx.Done()})
		if err != nil {
			return t, "", err
		}
		t.Score, t.Park = p.Shortened.Score-p.Shortened.Load, p.Shortened.Load
		t.Select = time.Since(began) - p.Shortened.Score
		a, err := m.Answer(ctx, p, dialog.Settings{MaxTokens: o.n, Drafting: spec})
		if err != nil {
			return t, "", err
		}
		if err := a.Wait(nil); err != nil {
			return t, "", err
		}
		r := a.Result()
		t.Prefill, t.Seen, t.Kept = r.First, max(r.Seen, r.Prompt), r.Prompt
		return t, a.Text(), nil
	}
	bar := newRunBar(cmd)
	c.Progress = bar.step
	r, err := bench.Niah(cmd.Context(), c)
	bar.stop()
	if err != nil {
		return err
	}
	return o.print(cmd, r.WriteJSON, r.WriteText)
}
