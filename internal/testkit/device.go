package testkit

import (
	"testing"

	"strobe/backend"
	"strobe/gguf"
)

// Device is a backend that fails the test when a step breaks the rules a recording device relies on:
// steps are closed and not nested, and inside one nothing is allocated, freed, bound, read or waited
// for. The CPU would not mind.
type Device struct {
	backend.Backend
	t    testing.TB
	step string // key of the step in progress
	live int
}

// NewDevice watches b.
func NewDevice(t testing.TB, b backend.Backend) *Device { return &Device{Backend: b, t: t} }

// Live returns the number of values allocated and not freed.
func (d *Device) Live() int { return d.live }

func (d *Device) outside(what string) {
	d.t.Helper()
	if d.step != "" {
		d.t.Errorf("%s inside step %q", what, d.step)
	}
}

func (d *Device) BeginStep(key string) {
	d.outside("BeginStep")
	if key == "" {
		d.t.Error("a step without a key")
	}
	d.step = key
	d.Backend.BeginStep(key)
}

func (d *Device) EndStep() {
	if d.step == "" {
		d.t.Error("EndStep outside a step")
	}
	d.step = ""
	d.Backend.EndStep()
}

func (d *Device) Sync() error {
	d.outside("Sync")
	return d.Backend.Sync()
}

func (d *Device) Alloc(rows, cols int) backend.Tensor {
	d.outside("Alloc")
	t := d.Backend.Alloc(rows, cols)
	d.live += t.Buf.Len()
	return t
}

func (d *Device) Free(t backend.Tensor) {
	d.outside("Free")
	if t.Buf != nil {
		d.live -= t.Buf.Len()
	}
	d.Backend.Free(t)
}

func (d *Device) AllocInts(n int) backend.Ints {
	d.outside("AllocInts")
	return d.Backend.AllocInts(n)
}

func (d *Device) Ints(v backend.Ints) []int32 {
	d.outside("Ints")
	return d.Backend.Ints(v)
}

func (d *Device) Read(t backend.Tensor) []float32 {
	d.outside("Read")
	return d.Backend.Read(t)
}

func (d *Device) Write(t backend.Tensor, v []float32) {
	d.outside("Write")
	d.Backend.Write(t, v)
}

func (d *Device) NewKVPool(l backend.KVLayout) (backend.KVPool, error) {
	d.outside("NewKVPool")
	return d.Backend.NewKVPool(l)
}

func (d *Device) Weight(t, scale *gguf.Tensor) (backend.Weight, error) {
	d.outside("Weight")
	return d.Backend.Weight(t, scale)
}

func (d *Device) Vector(t *gguf.Tensor) (backend.Vector, error) {
	d.outside("Vector")
	return d.Backend.Vector(t)
}

func (d *Device) VectorOf(v []float32) backend.Vector {
	d.outside("VectorOf")
	return d.Backend.VectorOf(v)
}
