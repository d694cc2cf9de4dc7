package gpu

import (
	"fmt"
	"math/bits"

	"strobe/internal/backend"
)

// States is a backend.StatePool on a device. Every slot has its state in memory of its own, and two tapes: a pass reads
// what the pass before taped and writes its own rows beside it. Keeping rows of a tape moves nothing: the next pass
// gets a list of them.
type States struct {
	*Delta
	d      Driver
	layers int
	slots  []stateSlot
	free   []int32
	spare  map[int][]Addr // memory that was given back, by size
	table  Addr           // of Settle
	room   int            // bytes of it

	passSegs  *backend.DeltaSeg // of the latest pass
	passTable *DeltaTables      // and its tables
}

type stateSlot struct {
	used  bool
	state Addr
	tapes [2]stateTape
	last  int     // the tape of the last pass
	path  []int32 // its rows, if they were chosen; nil means as they are
}

type stateTape struct {
	at   Addr
	rows int
}

var _ backend.StatePool = (*States)(nil)

// NewStates returns an empty pool.
func NewStates(d Driver, dims backend.DeltaDims, layers int) (*States, error) {
	t, err := NewDelta(d.Props(), dims)
	if err != nil {
		return nil, err
	}
	return &States{Delta: t, d: d, layers: layers, spare: map[int][]Addr{}}, nil
}

func (p *States) stateBytes() int        { return 4 * p.layers * p.dims.StateValues() }
func (p *States) tapeBytes(rows int) int { return 4 * p.layers * rows * DeltaTapeRow(p.dims) }

// take returns memory, used memory of the same size if there is some. Memory of other sizes is only given up when the
// device has no more.
func (p *States) take(bytes int) (Addr, error) {
	if s := p.spare[bytes]; len(s) > 0 {
		p.spare[bytes] = s[:len(s)-1]
		return s[len(s)-1], nil
	}
	return p.alloc(bytes)
}

func (p *States) alloc(bytes int) (Addr, error) {
	a, err := p.d.Alloc(bytes)
	if err != nil && p.drop() {
		a, err = p.d.Alloc(bytes)
	}
	if err != nil {
		return 0, fmt.Errorf("recurrent memory: %w", err)
	}
	return a, nil
}

// drop gives spare memory back to the device and reports whether there was any.
func (p *States) drop() bool {
	any := false
	for n, s := range p.spare {
		for _, a := range s {
			p.d.Release(a)
			any = true
		}
		delete(p.spare, n)
	}
	return any
}

func (p *States) give(a Addr, bytes int) {
	if a != 0 {
		p.spare[bytes] = append(p.spare[bytes], a)
	}
}

// spareTape is the longest tape that is reused for the next sequence: longer drafts are rare, and each row of a large
// model takes megabytes.
const spareTape = 16

// giveTape gives a tape back.
func (p *States) giveTape(t stateTape) {
	if t.rows > spareTape {
		p.d.Release(t.at)
		return
	}
	p.give(t.at, p.tapeBytes(t.rows))
}

// Alloc returns a slot that has seen no token.
func (p *States) Alloc() (int32, error) {
	a, err := p.take(p.stateBytes())
	if err != nil {
		return 0, err
	}
	var slot int32
	if n := len(p.free); n > 0 {
		slot, p.free = p.free[n-1], p.free[:n-1]
	} else {
		slot = int32(len(p.slots))
		p.slots = append(p.slots, stateSlot{})
	}
	p.slots[slot] = stateSlot{used: true, state: a}
	p.Clear(slot)
	return slot, nil
}

// Free gives a slot back.
func (p *States) Free(slot int32) {
	s := &p.slots[slot]
	if !s.used {
		return
	}
	p.Release(slot)
	p.give(s.state, p.stateBytes())
	*s = stateSlot{}
	p.free = append(p.free, slot)
}

// Clear forgets all tokens.
func (p *States) Clear(slot int32) { p.d.Fill(p.slots[slot].state, 0, p.stateBytes()) }

// Copy copies the state, not the tape.
func (p *States) Copy(dst, src int32) {
	p.d.Copy(p.slots[dst].state, p.slots[src].state, p.stateBytes())
}

// Reserve makes room for a pass over rows. It will write the other tape, so what the last pass taped stays.
func (p *States) Reserve(slot int32, rows int) error {
	s := &p.slots[slot]
	t := &s.tapes[1-s.last]
	if rows <= t.rows {
		return nil
	}
	n := 1 << bits.Len(uint(rows-1)) // so that memory that was given back fits again
	if err := p.reserveTable(n); err != nil {
		return err
	}
	a, err := p.take(p.tapeBytes(n))
	if err != nil {
		return err
	}
	p.giveTape(*t)
	*t = stateTape{a, n}
	return nil
}

// reserveTable makes sure that Settle has room for the tables of so many pending rows.
func (p *States) reserveTable(rows int) error {
	n := 4 * (4 + deltaSeg + rows + p.dims.KHeads)
	if n <= p.room {
		return nil
	}
	a, err := p.alloc(n)
	if err != nil {
		return err
	}
	p.d.Release(p.table)
	p.table, p.room = a, n
	return nil
}

// Release gives the tapes back.
func (p *States) Release(slot int32) {
	s := &p.slots[slot]
	for i, t := range s.tapes {
		p.giveTape(t)
		s.tapes[i] = stateTape{}
	}
	s.path = nil
}

// Keep makes row path[i] of the tape row i.
func (p *States) Keep(slot int32, path []int32) {
	s := &p.slots[slot]
	next := make([]int32, len(path))
	for i, r := range path {
		next[i] = r
		if s.path != nil {
			next[i] = s.path[r]
		}
	}
	s.path = next
}

// memory says where a slot lies for a pass that reads its last tape.
func (p *States) memory(slot int32) DeltaMemory {
	s := &p.slots[slot]
	read, write := s.tapes[s.last], s.tapes[1-s.last]
	return DeltaMemory{State: s.state, Read: read.at, ReadRows: read.rows, Write: write.at, WriteRows: write.rows,
		Path: s.path}
}

// Tables makes the tables of a pass over so many rows, padding included, which must follow: from now on the tapes are
// those that it writes.
func (p *States) Tables(segs []backend.DeltaSeg, rows int) (*DeltaTables, error) {
	for i, s := range segs {
		if s.Slot < 0 || int(s.Slot) >= len(p.slots) || !p.slots[s.Slot].used {
			return nil, fmt.Errorf("segment %d of the recurrent layers has the slot %d, which is not in use", i, s.Slot)
		}
	}
	t, err := NewDeltaTables(p.dims, segs, rows, p.memory)
	if err != nil {
		return nil, err
	}
	for _, s := range segs {
		if !s.Prompt && s.N > 0 {
			p.slots[s.Slot].last = 1 - p.slots[s.Slot].last
			p.slots[s.Slot].path = nil
		}
	}
	return t, nil
}

// pass makes the tables of a pass once for all its steps: making them turns the tapes around.
func (p *States) pass(segs []backend.DeltaSeg, rows int) (*DeltaTables, error) {
	if len(segs) > 0 && p.passSegs == &segs[0] {
		return p.passTable, nil
	}
	t, err := p.Tables(segs, rows)
	if err == nil && len(segs) > 0 {
		p.passSegs, p.passTable = &segs[0], t
	}
	return t, err
}

// Settle applies the first pending rows of the tape.
func (p *States) Settle(slot int32, pending int) {
	if pending == 0 {
		return
	}
	t, err := NewDeltaTables(p.dims, []backend.DeltaSeg{{Slot: slot, Pending: pending}}, 0, p.memory)
	if err != nil {
		panic("gpu: " + err.Error()) // more rows than the last pass had: a mistake of the caller
	}
	p.d.Upload(p.table, bytesOf(t.ints))
	launchNow(p.d, p.Delta.Settle(nil, p.table, 1, p.layers)...)
}

// Read returns the state of a layer.
func (p *States) Read(slot int32, layer int) []float32 {
	n := p.dims.StateValues()
	v := make([]float32, n)
	if err := p.d.Download(bytesOf(v), p.slots[slot].state+Addr(4*layer*n)); err != nil {
		clear(v) // the device has failed, which Sync says
	}
	return v
}

// Write replaces the state of a layer.
func (p *States) Write(slot int32, layer int, v []float32) {
	p.d.Upload(p.slots[slot].state+Addr(4*layer*p.dims.StateValues()), bytesOf(v[:p.dims.StateValues()]))
}

// Close gives all memory back.
func (p *States) Close() {
	for i := range p.slots {
		p.Free(int32(i))
	}
	p.drop()
	p.d.Release(p.table)
	p.table, p.room = 0, 0
}

// NewStatePool returns an empty pool.
func (b *Backend) NewStatePool(d backend.DeltaDims, layers int) (backend.StatePool, error) {
	return NewStates(b.d, d, layers)
}
