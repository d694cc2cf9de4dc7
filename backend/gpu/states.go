package gpu

import (
	"encoding/binary"
	"math"
	"slices"

	"strobe/backend"
)

// statePool is the recurrent memory of sequences on the device.
type statePool struct {
	b      *Backend
	d      backend.DeltaDims
	delta  *Delta
	layers int
	slots  []*stateSlot // nil where free
	free   []int32
	table  Addr // for Settle
	room   int
}

// stateSlot is the memory of one sequence. A pass reads pending rows from one tape while it writes its own to the other, since blocks of
// some heads may be done before those of others have begun.
type stateSlot struct {
	state Addr
	tape  [2]Addr
	rows  [2]int  // room
	last  int     // tape of the last pass
	path  []int32 // rows of it that were kept, in order; nil means the first ones
}

// NewStatePool returns an empty pool.
func (b *Backend) NewStatePool(d backend.DeltaDims, layers int) (backend.StatePool, error) {
	delta, err := NewDelta(b.d, d)
	if err != nil {
		return nil, err
	}
	return &statePool{b: b, d: d, delta: delta, layers: layers}, nil
}

func (p *statePool) layerBytes() int { return 4 * p.d.StateValues() }

func (p *statePool) Alloc() (int32, error) {
	a, err := p.b.d.Alloc(p.layers * p.layerBytes())
	if err != nil {
		return 0, err
	}
	s := &stateSlot{state: a}
	id := int32(len(p.slots))
	if n := len(p.free); n > 0 {
		id, p.free = p.free[n-1], p.free[:n-1]
		p.slots[id] = s
	} else {
		p.slots = append(p.slots, s)
	}
	p.Clear(id)
	return id, nil
}

func (p *statePool) Free(id int32) {
	p.Release(id)
	p.b.d.Release(p.slots[id].state)
	p.slots[id] = nil
	p.free = append(p.free, id)
}

func (p *statePool) Clear(id int32) { p.b.d.Fill(p.slots[id].state, 0, p.layers*p.layerBytes()) }

func (p *statePool) Copy(dst, src int32) {
	p.b.d.Copy(p.slots[dst].state, p.slots[src].state, p.layers*p.layerBytes())
}

// Reserve makes room on the tape that the next pass writes.
func (p *statePool) Reserve(id int32, rows int) error {
	s := p.slots[id]
	next := 1 - s.last
	if rows <= s.rows[next] {
		return nil
	}
	rows = roomFor(rows)
	a, err := p.b.d.Alloc(rows * p.layers * DeltaTapeRow(p.d) * 4)
	if err != nil {
		return err
	}
	if s.tape[next] != 0 {
		p.b.d.Release(s.tape[next])
	}
	s.tape[next], s.rows[next] = a, rows
	return nil
}

func (p *statePool) Release(id int32) {
	s := p.slots[id]
	for i, a := range s.tape {
		if a != 0 {
			p.b.d.Release(a)
		}
		s.tape[i], s.rows[i] = 0, 0
	}
	s.path = nil
}

// Keep moves nothing: the next pass reads the rows where they are.
func (p *statePool) Keep(id int32, path []int32) { p.slots[id].path = slices.Clone(path) }

func (p *statePool) memory(id int32) DeltaMemory {
	s := p.slots[id]
	return DeltaMemory{State: s.state, Read: s.tape[s.last], Write: s.tape[1-s.last], ReadRows: s.rows[s.last], WriteRows: s.rows[1-s.last], Path: s.path}
}

func (p *statePool) tables(segs []backend.DeltaSeg) (*DeltaTables, error) {
	return NewDeltaTables(p.d, segs, p.memory)
}

// stepped says that a pass over the segments was launched.
func (p *statePool) stepped(segs []backend.DeltaSeg) {
	for _, g := range segs {
		s := p.slots[g.Slot]
		s.path = nil
		if !g.Prompt {
			s.last = 1 - s.last
		}
	}
}

func (b *Backend) stepped(plan *backend.Plan) {
	if plan != nil && plan.State != nil {
		plan.State.(*statePool).stepped(plan.Delta)
	}
}

// Settle applies pending rows of the tape.
func (p *statePool) Settle(id int32, pending int) {
	t, err := p.tables([]backend.DeltaSeg{{Slot: id, Pending: pending}})
	if err != nil {
		p.b.fail(err)
		return
	}
	r := t.Room()
	if r.Bytes() > p.room {
		a, err := p.b.d.Alloc(r.Bytes())
		if err != nil {
			p.b.fail(err)
			return
		}
		if p.table != 0 {
			p.b.d.Release(p.table)
		}
		p.table, p.room = a, r.Bytes()
	}
	blk := make([]byte, r.Bytes())
	t.Put(blk, r)
	p.b.d.Upload(p.table, blk)
	p.b.run(p.delta.Settle(nil, p.table, r.Segs, p.layers)...)
	p.slots[id].path = nil
}

func (p *statePool) Read(id int32, layer int) []float32 {
	raw := make([]byte, p.layerBytes())
	if err := p.b.d.Download(raw, p.slots[id].state+Addr(layer*p.layerBytes())); err != nil {
		p.b.fail(err)
	}
	v := make([]float32, len(raw)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return v
}

func (p *statePool) Write(id int32, layer int, v []float32) {
	p.b.d.Upload(p.slots[id].state+Addr(layer*p.layerBytes()), floatBytes(v))
}

// deltaCall is the part of a recurrent layer's launches that both of its operations share.
func (l *lowering) deltaCall(layer int32, rows int) (*Delta, DeltaCall) {
	u := l.lay.delta
	return l.plan.State.(*statePool).delta, DeltaCall{Table: l.lay.base + Addr(u.at), Segs: u.room.Segs, Rows: rows, Layer: int(layer)}
}

// shortConv runs the convolution, and the delta rule with it if that comes next and nobody else reads what lies between.
func (l *lowering) shortConv(i int) int {
	o, g := l.ops[i], *l.at(i + 1)
	delta, c := l.deltaCall(o.n, int(o.a.rows))
	c.U, c.W, c.QKV = l.in(o.a), o.v, o.dst.out()
	l.overwrite(o.dst)
	if g.kind != opGatedDelta || g.a != o.dst || g.n != o.n || l.wanted(i+1, o.dst) {
		l.out = delta.ShortConv(l.out, c)
		return 1
	}
	c.Alpha, c.Beta, c.A, c.DT = l.in(g.b), l.in(g.c), g.v, g.v2
	l.overwrite(g.dst)
	c.Out, c.Scratch = g.dst.out(), l.take(delta.ScratchBytes(c.Rows))
	l.out = delta.Both(l.out, c)
	l.b.spare.give(c.Scratch)
	return 2
}

// gatedDelta runs the delta rule by itself.
func (l *lowering) gatedDelta(o op) {
	delta, c := l.deltaCall(o.n, int(o.a.rows))
	x := l.plain(o.a)
	c.QKV, c.Alpha, c.Beta, c.A, c.DT = x.out(), l.in(o.b), l.in(o.c), o.v, o.v2
	l.overwrite(o.dst)
	c.Out, c.Scratch = o.dst.out(), l.take(delta.ScratchBytes(c.Rows))
	l.out = delta.GatedDelta(l.out, c)
	l.b.spare.give(c.Scratch)
}
