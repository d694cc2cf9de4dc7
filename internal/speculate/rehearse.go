package speculate

import (
	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/sample"
	"strobe/internal/speculate/control"
)

// Rehearse makes the devices compile the kernels of all kinds of passes, and allocate what these need, before the first
// request. It does nothing if the CPU runs a part of the model, because a CPU has no rehearsal and would run the
// passes.
func (r *Runner) Rehearse() error {
	passes := r.rehearsal
	for _, d := range r.devices {
		c, ok := d.(backend.Compiler)
		if !ok {
			return nil
		}
		inner := passes
		passes = func() error { return c.Rehearse(inner) }
	}
	return passes()
}

// rehearsal goes through passes of all kinds: chains of guesses, a tree, a prompt, and a token after a long text.
// Sources extend their contexts and draft. All results are undefined.
func (r *Runner) rehearsal() error {
	const longest = maxGuesses + 1
	text := r.Target.NewSeq()
	defer text.Close()
	rows := make([]int32, max(1, min(model.MaxRows/2, r.Target.Context-longest)))
	for i := range rows {
		rows[i] = int32(i)
	}
	pass := func(n int, parents []int32, want sample.Want) error {
		prompt := n > longest
		seg := model.Segment{Seq: text, Tokens: make([]int32, n), Parents: parents, Prompt: prompt,
			Logits: model.LogitsAll, Want: want}
		if prompt {
			seg.Logits = model.LogitsLast
		}
		out, err := r.Target.Forward([]model.Segment{seg})
		if err != nil {
			return err
		}
		for i := range r.Sources {
			if r.widths[i] == 0 || parents != nil {
				continue
			}
			if err := r.rehearse(i, text, r.columns(out.Features, i), rows[:n]); err != nil {
				return err
			}
		}
		switch {
		case prompt:
			return text.CommitAll()
		case parents != nil:
			return text.Commit([]int32{0, 2})
		}
		return text.Commit(nil)
	}
	for _, n := range []int{1, 2, 4, 8, 16, 24, 32, 40, 48, longest, len(rows), 1} {
		if n > len(rows) {
			continue
		}
		if err := pass(n, nil, sample.WantBest); err != nil {
			return err
		}
	}
	if err := pass(1, nil, sample.WantWeighed); err != nil || len(rows) < 3 {
		return err
	}
	return pass(3, []int32{-1, 0, 0}, sample.WantBest)
}

// rehearse extends a context of a source by the rows of a pass and, once there is a text, drafts.
func (r *Runner) rehearse(source int, text *cache.Seq, features backend.Tensor, rows []int32) error {
	src := r.Sources[source]
	ctx := src.NewContext()
	defer ctx.Close()
	items := []draft.Rows{{Seq: ctx, Tokens: make([]int32, len(rows)), Rows: rows}}
	if err := src.Extend(features, items); err != nil || text.Len() == 0 {
		return err
	}
	for size := range control.BlockSizes {
		req := draft.Request{Seq: ctx, Target: text, N: r.control.BlockLen(source, size), Tree: true}
		if _, err := src.Draft([]draft.Request{req}, candidates); err != nil {
			return err
		}
	}
	return nil
}
