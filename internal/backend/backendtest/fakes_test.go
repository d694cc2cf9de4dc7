package backendtest

import (
	"slices"

	"strobe/internal/backend"
)

// fakeStates is a pool of recurrent state with some functions replaced.
type fakeStates struct {
	backend.StatePool
	keep    func(p states, slot int32, path []int32)
	reserve func(p states, slot int32, rows int) error
	settle  func(p states, slot int32, pending int)
	copy    func(p states, dst, src int32)
	write   func(p states, slot int32, layer int, v []float32)
	clear   func(p states, slot int32)
}

func (p *fakeStates) Keep(slot int32, path []int32) {
	if p.keep == nil {
		p.StatePool.Keep(slot, path)
		return
	}
	p.keep(p.StatePool, slot, path)
}

func (p *fakeStates) Reserve(slot int32, rows int) error {
	if p.reserve == nil {
		return p.StatePool.Reserve(slot, rows)
	}
	return p.reserve(p.StatePool, slot, rows)
}

func (p *fakeStates) Settle(slot int32, pending int) {
	if p.settle == nil {
		p.StatePool.Settle(slot, pending)
		return
	}
	p.settle(p.StatePool, slot, pending)
}

func (p *fakeStates) Copy(dst, src int32) {
	if p.copy == nil {
		p.StatePool.Copy(dst, src)
		return
	}
	p.copy(p.StatePool, dst, src)
}

func (p *fakeStates) Write(slot int32, layer int, v []float32) {
	if p.write == nil {
		p.StatePool.Write(slot, layer, v)
		return
	}
	p.write(p.StatePool, slot, layer, v)
}

func (p *fakeStates) Clear(slot int32) {
	if p.clear == nil {
		p.StatePool.Clear(slot)
		return
	}
	p.clear(p.StatePool, slot)
}

// fakePages is a pool of pages with some functions replaced.
type fakePages struct {
	backend.KVPool
	move  func(p pages, rows []backend.RowMove)
	write func(p pages, page int32, src []byte)
}

func (p *fakePages) Move(rows []backend.RowMove) {
	if p.move == nil {
		p.KVPool.Move(rows)
		return
	}
	p.move(p.KVPool, rows)
}

func (p *fakePages) WritePage(page int32, src []byte) {
	if p.write == nil {
		p.KVPool.WritePage(page, src)
		return
	}
	p.write(p.KVPool, page, src)
}

// pooled is a device whose pools are replaced.
type pooled struct {
	backend.Backend
	states fakeStates
	pages  fakePages
}

func withStates(f fakeStates) func(device) device {
	return func(b device) device { return &pooled{Backend: b, states: f} }
}

func withPages(f fakePages) func(device) device {
	return func(b device) device { return &pooled{Backend: b, pages: f} }
}

func (d *pooled) NewStatePool(dims backend.DeltaDims, layers int) (backend.StatePool, error) {
	p, err := d.Backend.NewStatePool(dims, layers)
	f := d.states
	f.StatePool = p
	return &f, err
}

func (d *pooled) NewKVPool(l backend.KVLayout) (backend.KVPool, error) {
	p, err := d.Backend.NewKVPool(l)
	f := d.pages
	f.KVPool = p
	return &f, err
}

// BeginStep hands the device the pools it knows.
func (d *pooled) BeginStep(p *backend.Plan) {
	own := *p
	if s, ok := p.State.(*fakeStates); ok {
		own.State = s.StatePool
	}
	own.KV = slices.Clone(p.KV)
	for i := range own.KV {
		own.KV[i].Pool = own.KV[i].Pool.(*fakePages).KVPool
	}
	d.Backend.BeginStep(&own)
}
