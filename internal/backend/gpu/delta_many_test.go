package gpu_test

import (
	"fmt"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
)

// TestDeltaMany: with more sequences than run at once, which have a kernel of their own, each has the outputs and the
// memory it has alone: single tokens, chains, trees and prompts, with and without pending rows.
func TestDeltaMany(t *testing.T) {
	g := newRig(t)
	dims := backend.DeltaDims{KHeads: 1, VHeads: 2, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6}
	blocks := dims.VHeads * dims.VDim / 32
	r := newRecurrence(g, dims, 1)
	width := dims.VHeads * dims.VDim
	many := 4*g.d.Props().Units/blocks + 3
	ls := r.pool.Both(nil, gpu.DeltaCall{Rows: many, Segs: many})
	if ls[len(ls)-1].Kernel.Name() != "delta_rule_128_many" {
		t.Skipf("needs delta_rule_128_many, a kernel for CUDA: %s launches %s", g.d.Props().Name, ls[len(ls)-1].Kernel.Name())
	}
	kinds := []backend.DeltaSeg{{N: 1}, {N: 1, Pending: 1}, {N: 3, Pending: 2}, {N: 1, Pending: 1},
		{N: 5, Parents: []int32{-1, -1, 0, 1, 3}, Pending: 1}, {N: 2, Prompt: true, Pending: 1}, {N: 20}}
	var batch tokens
	var segs, alone []backend.DeltaSeg
	var each []tokens
	for i := range many {
		s := kinds[i%len(kinds)]
		other := s
		for _, to := range []*backend.DeltaSeg{&s, &other} {
			slot, err := r.pool.Alloc()
			g.must(err)
			to.Slot = slot
		}
		x := r.tokens(3 + s.Pending) // what the sequence begins with: a prompt, and rows that are pending
		for _, slot := range []int32{s.Slot, other.Slot} {
			r.pass("both", r.pick(x, 0, 1, 2), backend.DeltaSeg{N: 3, Slot: slot, Prompt: true})
			if s.Pending > 0 {
				r.pass("both", r.pick(x, span(3, 3+s.Pending)...), backend.DeltaSeg{N: s.Pending, Slot: slot})
			}
		}
		y := r.tokens(s.N)
		batch = tokens{slices.Concat(batch.u, y.u), slices.Concat(batch.alpha, y.alpha), slices.Concat(batch.beta, y.beta)}
		segs, alone, each = append(segs, s), append(alone, other), append(each, y)
	}
	got := r.pass("both", batch, segs...)
	for i, s := range alone {
		what := fmt.Sprintf("sequence %d of %d, %+v", i, many, kinds[i%len(kinds)])
		g.same(what, got[:s.N*width], r.pass("both", each[i], s))
		got = got[s.N*width:]
		if !s.Prompt {
			r.pool.Settle(segs[i].Slot, 1)
			r.pool.Settle(s.Slot, 1)
		}
		g.same(what+": memory", r.pool.Read(segs[i].Slot, 0), r.pool.Read(s.Slot, 0))
	}
}
