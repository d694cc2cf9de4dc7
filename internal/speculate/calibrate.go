package speculate

import (
	"time"

	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/sample"
	"strobe/internal/speculate/control"
)

// Calibrate measures what passes and drafts of a few sizes cost, so that the first decisions of the
// first stream rest on more than one sample, taken while memory is touched for the first time.
// It stops when the budget is spent; a model whose passes are slow learns while it works. Devices that compile kernels
// do so first.
func (r *Runner) Calibrate(budget time.Duration) error {
	if err := r.Rehearse(); err != nil {
		return err
	}
	start := r.clock()
	late := func() bool { return r.clock().Sub(start) > budget }
	seq := r.Target.NewSeq()
	defer seq.Close()
	tokens := make([]int32, 16)
	pass := func(rows int) (*model.Output, error) {
		begin := r.clock()
		seg := model.Segment{Seq: seq, Tokens: tokens[:rows], Logits: model.LogitsAll, Want: sample.WantBest}
		out, err := r.Target.Forward([]model.Segment{seg})
		if err == nil {
			err = r.Target.Backend().Sync()
		}
		if err == nil {
			r.control.MeasuredPass(rows, r.clock().Sub(begin))
		}
		return out, err
	}
	out, err := pass(1)
	if err != nil || r.width == 0 {
		return err
	}
	for !r.control.Settled() { // the unit of all other costs
		if late() {
			return nil
		}
		if err := seq.Commit(nil); err != nil {
			return err
		}
		if out, err = pass(1); err != nil {
			return err
		}
	}
	contexts := make([]draft.Context, len(r.Sources))
	for i, src := range r.Sources {
		if r.widths[i] > 0 {
			contexts[i] = src.NewContext()
			defer contexts[i].Close()
			first := draft.Rows{Seq: contexts[i], Tokens: tokens[:1], Rows: []int32{0}}
			if err := src.Extend(r.columns(out.Features, i), []draft.Rows{first}); err != nil {
				return err
			}
		}
	}
	if err := seq.CommitAll(); err != nil { // sources may look at the target's memory of the token they know
		return err
	}
	for range 4 {
		for _, rows := range []int{1, 2, 4, 8, 16} {
			if late() {
				return nil
			}
			if err := seq.Commit(nil); err != nil {
				return err
			}
			if _, err := pass(rows); err != nil {
				return err
			}
		}
		for i, ctx := range contexts {
			for size := range control.BlockSizes {
				if ctx == nil || late() {
					continue
				}
				n := r.control.BlockLen(i, size)
				req := draft.Request{Seq: ctx, Target: seq, Last: tokens[0], N: n, Tree: true}
				begin := r.clock()
				if _, err := r.Sources[i].Draft([]draft.Request{req}, candidates); err != nil {
					return err
				}
				r.control.MeasuredDraft(i, n, r.clock().Sub(begin))
			}
		}
	}
	return nil
}
