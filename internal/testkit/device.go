package testkit

import (
	"testing"

	"strobe/internal/backend"
)

// Device is a backend that fails the test when a step breaks the rules a recording device relies on:
// steps are closed and not nested, and inside one nothing is freed, bound, read, written by the host or waited
// for, and no memory of a sequence is moved. The CPU would not mind.
type Device struct {
	backend.Backend
	t      testing.TB
	inside bool
	live   int
	plan   *backend.Plan // of the pass, and
	own    *backend.Plan // what the device below is given for it
	Fail   func() error  // if set, asked before every allocation, of buffers, pages and slots
	// Lost, if set, is asked whenever the host waits for the device. From its first error on the device is lost for good,
	// as a GPU is: nothing is read any more, everything else seems to go on, and Sync says it.
	Lost func() error
	lost error
}

// NewDevice watches b.
func NewDevice(t testing.TB, b backend.Backend) *Device { return &Device{Backend: b, t: t} }

// Live returns the number of values, slots and rows of tapes that were taken and not given back.
func (d *Device) Live() int { return d.live }

func (d *Device) outside(what string) {
	d.t.Helper()
	if d.inside {
		d.t.Errorf("%s inside a step", what)
	}
}

func (d *Device) refuse() error {
	if d.Fail == nil {
		return nil
	}
	return d.Fail()
}

// gone reports whether the device is lost.
func (d *Device) gone() bool {
	if d.Lost != nil && d.lost == nil {
		d.lost = d.Lost()
	}
	return d.lost != nil
}

func (d *Device) BeginStep(p *backend.Plan) {
	d.inside = true
	d.Backend.BeginStep(d.unwrap(p))
}

func (d *Device) EndStep() (int, error) {
	if !d.inside {
		d.t.Error("EndStep outside a step")
	}
	d.inside = false
	return d.Backend.EndStep()
}

// Pad is that of the device.
func (d *Device) Pad(n int) int { return backend.Pad(d.Backend, n) }

func (d *Device) Repeat(name int, p *backend.Plan, ints ...[]int32) (bool, error) {
	d.outside("Repeat")
	return backend.Repeat(d.Backend, name, d.unwrap(p), ints...)
}

func (d *Device) Sync() error {
	d.outside("Sync")
	if d.gone() {
		return d.lost
	}
	return d.Backend.Sync()
}

func (d *Device) Alloc(rows, cols int) (backend.Tensor, error) {
	if err := d.refuse(); err != nil {
		return backend.Tensor{}, err
	}
	t, err := d.Backend.Alloc(rows, cols)
	if err == nil {
		d.live += t.Buf.Len()
	}
	return t, err
}

// Tensor returns memory that does not count.
func (d *Device) Tensor(t testing.TB, rows, cols int) backend.Tensor {
	t.Helper()
	x, err := d.Backend.Alloc(rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (d *Device) Free(t backend.Tensor) {
	d.outside("Free")
	if t.Buf != nil {
		d.live -= t.Buf.Len()
	}
	d.Backend.Free(t)
}

func (d *Device) Ints(v backend.Ints) []int32 {
	d.outside("Ints")
	if d.gone() {
		return make([]int32, v.Len())
	}
	return d.Backend.Ints(v)
}

func (d *Device) Read(t backend.Tensor) []float32 {
	d.outside("Read")
	if d.gone() {
		return make([]float32, t.Rows*t.Cols)
	}
	return d.Backend.Read(t)
}

func (d *Device) Write(t backend.Tensor, v []float32) {
	d.outside("Write")
	d.Backend.Write(t, v)
}

func (d *Device) Weight(m backend.Matrix) (backend.Weight, error) {
	d.outside("Weight")
	return d.Backend.Weight(m)
}

func (d *Device) Vector(v []float32) (backend.Vector, error) {
	d.outside("Vector")
	return d.Backend.Vector(v)
}

// watchedPool is a pool whose pages count.
type watchedPool struct {
	backend.KVPool
	d *Device
}

func (d *Device) NewKVPool(l backend.KVLayout) (backend.KVPool, error) {
	d.outside("NewKVPool")
	p, err := d.Backend.NewKVPool(l)
	return &watchedPool{p, d}, err
}

func (p *watchedPool) Alloc() (int32, error) {
	p.d.outside("Alloc of a page")
	if err := p.d.refuse(); err != nil {
		return 0, err
	}
	p.d.live++
	return p.KVPool.Alloc()
}

func (p *watchedPool) Free(page int32) {
	p.d.live--
	p.KVPool.Free(page)
}

func (p *watchedPool) Copy(dst, src int32) {
	p.d.outside("Copy of a page")
	p.KVPool.Copy(dst, src)
}

func (p *watchedPool) ReadPage(page int32, dst []byte) {
	p.d.outside("ReadPage")
	if !p.d.gone() {
		p.KVPool.ReadPage(page, dst)
	}
}

func (p *watchedPool) Move(rows []backend.RowMove) {
	p.d.outside("Move of rows")
	p.KVPool.Move(rows)
}

// watchedStates is a pool whose slots and tapes count.
type watchedStates struct {
	backend.StatePool
	d    *Device
	rows map[int32]int
}

func (d *Device) NewStatePool(dims backend.DeltaDims, layers int) (backend.StatePool, error) {
	d.outside("NewStatePool")
	p, err := d.Backend.NewStatePool(dims, layers)
	return &watchedStates{p, d, map[int32]int{}}, err
}

func (p *watchedStates) Alloc() (int32, error) {
	p.d.outside("Alloc of a slot")
	if err := p.d.refuse(); err != nil {
		return 0, err
	}
	p.d.live++
	return p.StatePool.Alloc()
}

func (p *watchedStates) Free(slot int32) {
	p.d.live -= 1 + p.rows[slot]
	delete(p.rows, slot)
	p.StatePool.Free(slot)
}

func (p *watchedStates) Reserve(slot int32, rows int) error {
	p.d.outside("Reserve")
	if err := p.d.refuse(); err != nil {
		return err
	}
	if more := rows - p.rows[slot]; more > 0 {
		p.d.live += more
		p.rows[slot] = rows
	}
	return p.StatePool.Reserve(slot, rows)
}

func (p *watchedStates) Release(slot int32) {
	p.d.live -= p.rows[slot]
	delete(p.rows, slot)
	p.StatePool.Release(slot)
}

func (p *watchedStates) Settle(slot int32, pending int) {
	p.d.outside("Settle")
	p.StatePool.Settle(slot, pending)
}

func (p *watchedStates) Read(slot int32, layer int) []float32 {
	p.d.outside("Read of a state")
	v := p.StatePool.Read(slot, layer)
	if p.d.gone() {
		clear(v)
	}
	return v
}

// unwrap is the plan with the pools that the device below knows, the same one for all steps of a pass.
func (d *Device) unwrap(p *backend.Plan) *backend.Plan {
	if p != nil && p == d.plan {
		return d.own
	}
	d.plan = p
	p = WithPools(p, func(p backend.KVPool) backend.KVPool {
		if w, ok := p.(*watchedPool); ok {
			return w.KVPool
		}
		return p
	})
	if p != nil {
		if w, ok := p.State.(*watchedStates); ok {
			p.State = w.StatePool
		}
	}
	d.own = p
	return p
}

// WithPools returns the plan with other pools, for devices that wrap those of another one.
func WithPools(p *backend.Plan, pool func(backend.KVPool) backend.KVPool) *backend.Plan {
	if p == nil {
		return nil
	}
	own := *p
	own.KV = append([]backend.KVPlan(nil), p.KV...)
	for i := range own.KV {
		own.KV[i].Pool = pool(own.KV[i].Pool)
	}
	return &own
}
