package gpu

import (
	"fmt"
	"time"

	"strobe/internal/backend"
)

// DriverBytes is what a driver takes for itself once a model runs: compiled kernels, their stacks and graphs. 0.43 GB
// were seen on an H200 with a model of 27B parameters and its drafter.
const DriverBytes = 450 << 20

// limited is a device that may use only a part of its memory.
type limited struct {
	Driver
	limit int
	used  int
	sizes map[Addr]int
}

// Limit makes a device behave as one with less memory: what does not fit there does not fit here.
func Limit(d Driver, bytes int) Driver {
	return &limited{Driver: d, limit: bytes, sizes: map[Addr]int{}}
}

// Props describes the device with its pretended memory.
func (d *limited) Props() Props {
	p := d.Driver.Props()
	p.Memory = min(p.Memory, d.limit)
	return p
}

// Free is what is left of the limit, or of the device.
func (d *limited) Free() (free, total int) {
	free, total = d.Driver.Free()
	return max(0, min(free, d.limit-DriverBytes-d.used)), min(total, d.limit)
}

// Alloc refuses what does not fit into the limit.
func (d *limited) Alloc(bytes int) (Addr, error) {
	if d.used+bytes > d.limit-DriverBytes {
		free, total := d.Free()
		return 0, fmt.Errorf("%s: allocating %d bytes: %w, %d of %d are free", d.Props().Name, bytes, backend.ErrNoMemory,
			free, total)
	}
	a, err := d.Driver.Alloc(bytes)
	if err == nil {
		d.sizes[a] = bytes
		d.used += bytes
	}
	return a, err
}

// Release gives memory back.
func (d *limited) Release(a Addr) {
	d.used -= d.sizes[a]
	delete(d.sizes, a)
	d.Driver.Release(a)
}

// Prepare and Times are what the device itself may have.

func (d *limited) Prepare(ls []Launch) error {
	if p, ok := d.Driver.(Preparer); ok {
		return p.Prepare(ls)
	}
	return nil
}

func (d *limited) Times(ls []Launch) ([]time.Duration, error) {
	if t, ok := d.Driver.(Timer); ok {
		return t.Times(ls)
	}
	for i := range ls {
		d.Launch(&ls[i])
	}
	return make([]time.Duration, len(ls)), nil
}
