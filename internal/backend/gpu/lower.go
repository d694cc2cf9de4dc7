package gpu

import "strobe/internal/backend"

// lowering turns a list of operations into calls of kernels: it traces their values (trace.go) and tries the patterns
// of fuse.go at each operation. An operation that begins no pattern gets a kernel of its own (schedule.go). At the end
// each matrix product learns which weights the next one reads, to prefetch them. Emit makes launches from the calls.
//
// Two things are put off until something needs them. The results of matrix products stay in pieces (partial sums of
// split columns), which most operations that read them add up themselves (pieces.go). And what feeds a product is
// packed by the kernel that computes it, where there is one. No result depends on a pattern: without it the bits are
// the same.
type lowering struct {
	b        *Backend
	ops      []op
	operands [][]*value // of each operation
	plan     *backend.Plan
	lay      layout
	out      []Call
	pieces   []piecewise
	packed   []packedRows
	halved   []halfRows
	groups   expertGroups
	routed   routerRows
	late     lateNorm
	splits   splitRows
	now      int        // the operation in progress
	unmoved  *DeltaCall // the recurrent layer whose newest inputs must still move up; nil: none
	later    []Addr     // scratch to give back after it: its kernels may still read what it overwrites
	held     []Addr     // scratch that the last launch uses, which the next operation may become a part of
	heldAt   int        // launches when it was given back
	err      error
}

// lower returns the calls of a list. It lowers once more where the scratch memory had to grow.
func (b *Backend) lower(ops []op, plan *backend.Plan, lay layout) ([]Call, error) {
	for {
		calls, err := b.lowerOnce(ops, plan, lay)
		if err != nil {
			return calls, err
		}
		if enough, err := b.spare.enough(); enough || err != nil {
			return calls, err
		}
	}
}

// lowerOnce is lower with addresses of scratch memory that may not be there yet.
func (b *Backend) lowerOnce(ops []op, plan *backend.Plan, lay layout) ([]Call, error) {
	l := &lowering{b: b, ops: ops, operands: trace(ops), plan: plan, lay: lay}
	b.spare.reset()
	for i := 0; i < len(ops) && l.err == nil; {
		l.now = i
		l.dropUnread()
		l.giveBack()
		if s := l.splits; s.splits != nil && s.launches < len(l.out) {
			b.spare.give(s.scratch)
			l.splits = splitRows{}
		}
		n := l.fused(i)
		if n == 0 {
			n = l.single(i)
		}
		i += n
	}
	if l.unmoved != nil {
		l.out = plan.State.(*States).Delta.Shift(l.out, *l.unmoved)
	}
	for len(l.pieces) > 0 && l.err == nil { // what comes after the step reads rows
		l.summed(l.pieces[0].v)
	}
	b.products.LookAhead(l.out)
	return l.out, l.err
}

// giveBack gives scratch back that no launch needs to which anything may be added.
func (l *lowering) giveBack() {
	if len(l.out) > l.heldAt {
		for _, a := range l.held {
			l.b.spare.give(a)
		}
		l.held = l.held[:0]
	}
	l.held, l.later, l.heldAt = append(l.held, l.later...), l.later[:0], len(l.out)
}

// keep takes the list of launches that an emitter returned, or its error.
func (l *lowering) keep(ls []Call, err error) {
	l.out = ls
	if l.err == nil {
		l.err = err
	}
}

func (l *lowering) take(bytes int) Addr { return l.b.spare.take(bytes) }

// products are the outputs of the MatMul at i.
func (l *lowering) products(i int) []op { return l.ops[i+1:][:l.ops[i].outputs] }

// tiled reports whether a MatMul has a matrix in tiles, mixed whether it has one that is not.
func (l *lowering) tiled(i int) bool {
	for _, p := range l.products(i) {
		if p.w.Format.Tiled() {
			return true
		}
	}
	return false
}

func (l *lowering) mixed(i int) bool {
	for _, p := range l.products(i) {
		if !p.w.Format.Tiled() {
			return true
		}
	}
	return false
}

// after is the place behind a product's outputs.
func (l *lowering) after(i int) int { return i + 1 + int(l.ops[i].outputs) }

// at returns the operation at i, or one that matches nothing.
func (l *lowering) at(i int) *op {
	if i < len(l.ops) {
		return &l.ops[i]
	}
	return &op{kind: opProduct}
}
