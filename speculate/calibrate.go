package speculate

import (
	"time"

	"strobe/draft"
	"strobe/model"
)

// Calibrate measures what passes and drafts of a few sizes cost, so that the first decisions of the
// first stream rest on more than one sample, taken while memory is touched for the first time.
// It stops when the budget is spent; a model whose passes are slow learns while it works.
func (r *Runner) Calibrate(budget time.Duration) error {
	start := r.clock()
	seq := r.Target.NewSeq()
	defer seq.Close()
	tokens := make([]int32, 16)
	pass := func(rows int) (*model.Output, error) {
		begin := r.clock()
		out, err := r.Target.Forward([]model.Segment{{Seq: seq, Tokens: tokens[:rows], Logits: model.LogitsAll}})
		if err == nil {
			err = r.Target.Backend().Sync()
		}
		if err == nil {
			r.costs.learn(&plan{rows: rows, base: 1}, r.clock().Sub(begin))
		}
		return out, err
	}
	out, err := pass(1)
	if err != nil {
		return err
	}
	if r.Drafter == nil {
		return nil
	}
	for range plainSamples - 1 { // the unit of all other costs
		if err := seq.Commit(nil); err != nil {
			return err
		}
		if r.clock().Sub(start) > budget {
			return nil
		}
		if out, err = pass(1); err != nil {
			return err
		}
	}
	ctx := r.Drafter.NewSeq()
	defer ctx.Close()
	if err := r.Drafter.Extend(out.Features, []draft.Rows{{Seq: ctx, Rows: []int32{0}}}); err != nil {
		return err
	}
	for range 4 {
		for _, rows := range []int{1, 2, 4, 8, 16} {
			if r.clock().Sub(start) > budget {
				return nil
			}
			if err := seq.Commit(nil); err != nil {
				return err
			}
			if _, err := pass(rows); err != nil {
				return err
			}
		}
		for size := range blockSizes {
			n := r.blockLen(size)
			begin := r.clock()
			if _, err := r.Drafter.Draft([]draft.Request{{Seq: ctx, Last: tokens[0], N: n}}, candidates); err != nil {
				return err
			}
			r.costs.draft.learn(n, r.clock().Sub(begin).Seconds()/r.costs.load)
		}
	}
	return nil
}
