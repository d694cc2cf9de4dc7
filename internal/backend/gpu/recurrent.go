package gpu

import "strobe/internal/backend"

// NewStatePool returns an empty pool.
func (b *Backend) NewStatePool(d backend.DeltaDims, layers int) (backend.StatePool, error) {
	return NewStates(b.d, d, layers)
}

// deltaCall is the part of a recurrent layer's launches that both of its operations share.
func (l *lowering) deltaCall(layer int32, rows int) (*Delta, DeltaCall) {
	u := l.lay.delta
	return l.plan.State.(*States).Delta, DeltaCall{Table: l.lay.base + Addr(u.at), Segs: u.room.Segs, Rows: rows,
		Layer: int(layer), Chains: u.room.Chains}
}

// shortConv runs the convolution, and the delta rule with it if that comes next and nobody else reads what lies
// between.
func (l *lowering) shortConv(i int) int {
	o, g := l.ops[i], *l.at(i + 1)
	delta, c := l.deltaCall(o.layer, int(o.a.rows))
	c.U, c.W, c.QKV = l.in(o.a), o.v, o.dst.out()
	l.overwrite(o.dst)
	if g.kind != opGatedDelta || g.a != o.dst || g.layer != o.layer || l.wanted(i+1, o.dst) {
		l.out = delta.ShortConv(l.out, c)
		return 1
	}
	c.Alpha, c.Beta, c.A, c.DT = l.in(g.b), l.in(g.c), g.v, g.v2
	l.overwrite(g.dst)
	if delta.CanWhole(&c) && l.gatesHeads(i+2) && sameRows(l.ops[i+2].a, g.dst) {
		norm, gate, x := l.ops[i+2], l.ops[i+3], l.act(i+4)
		l.out = delta.Whole(l.out, c, HeadGate{Packed{x.ActLayout, x.P}, l.in(gate.a), norm.v, norm.f}, l.unmoved)
		l.unmoved = &c
		l.overwrite(gate.dst)
		l.packed = append(l.packed, packedRows{v: l.ops[i+4].a, x: x})
		return 4
	}
	c.Out, c.Scratch = g.dst.out(), l.take(delta.ScratchBytes(c.Rows))
	l.out = delta.Both(l.out, c)
	l.later = append(l.later, c.Scratch)
	return 2
}

// gatedDelta runs the delta rule by itself.
func (l *lowering) gatedDelta(o op) {
	delta, c := l.deltaCall(o.layer, int(o.a.rows))
	x := l.plain(o.a)
	c.QKV, c.Alpha, c.Beta, c.A, c.DT = x.out(), l.in(o.b), l.in(o.c), o.v, o.v2
	l.overwrite(o.dst)
	c.Out, c.Scratch = o.dst.out(), l.take(delta.ScratchBytes(c.Rows))
	l.out = delta.GatedDelta(l.out, c)
	l.later = append(l.later, c.Scratch)
}
