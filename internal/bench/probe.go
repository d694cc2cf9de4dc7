package bench

import (
	"context"
	"time"

	"strobe/internal/cache"
	"strobe/internal/engine"
	"strobe/internal/model"
	"strobe/internal/sample"
)

// probe times single passes of a target, on a sequence that never advances.
type probe struct {
	m      *engine.Model
	tokens []int32
	seq    *cache.Seq
	host   time.Duration // of the last pass: until the device had its work
}

func newProbe(m *engine.Model, cfg MachineConfig) (*probe, error) {
	p := &probe{m: m, seq: m.Target.NewSeq()}
	// Any tokens will do, but not one alone: it would always choose the same experts.
	for i := range max(cfg.Prompt, cfg.Context, model.MaxRows) {
		p.tokens = append(p.tokens, int32((i*7919+13)%m.Target.Vocab))
	}
	if err := p.prefill(p.seq, cfg.Context, cfg.Chunk); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *probe) close() { p.seq.Close() }

// prefill runs the first n tokens in chunks.
func (p *probe) prefill(seq *cache.Seq, n, chunk int) error {
	for seq.Len() < n {
		end := min(n, seq.Len()+chunk)
		seg := model.Segment{Seq: seq, Tokens: p.tokens[seq.Len():end], Prompt: true}
		if end == n {
			seg.Logits = model.LogitsLast
		}
		if _, err := p.m.Target.Forward([]model.Segment{seg}); err != nil {
			return err
		}
		if err := seq.CommitAll(); err != nil {
			return err
		}
	}
	return p.m.Backend().Sync()
}

// pass times a pass of rows tokens and the choice of the best token after each, as greedy verification needs them.
func (p *probe) pass(rows int) (time.Duration, error) {
	start := time.Now()
	out, err := p.m.Target.Forward([]model.Segment{{Seq: p.seq, Tokens: p.tokens[:rows], Logits: model.LogitsAll,
		Want: sample.WantBest}})
	if err != nil {
		return 0, err
	}
	p.host = time.Since(start)
	out.Best(0, rows-1) // waits for the device
	took := time.Since(start)
	if err := p.m.Target.Sync(); err != nil {
		return 0, err
	}
	return took, p.seq.Commit(nil)
}

// settle runs passes until weights and workers are back where the measurements of the floors took them from:
// in the caches, and each on a core of its own.
func (p *probe) settle() error {
	for start := time.Now(); ; {
		if _, err := p.pass(1); err != nil || time.Since(start) > 60*time.Millisecond {
			return err
		}
	}
}

// prompt returns the tokens per second of a prompt of n tokens.
func (p *probe) prompt(ctx context.Context, n, chunk int) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	seq := p.m.Target.NewSeq()
	defer seq.Close()
	start := time.Now()
	if err := p.prefill(seq, n, chunk); err != nil {
		return 0, err
	}
	return rate(n, time.Since(start)), nil
}
