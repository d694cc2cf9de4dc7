package gpu

import (
	"fmt"
	"time"

	"strobe/internal/backend"
)

// Counter is a Driver without a device: it counts memory and does nothing else. A model that is opened on it and runs
// its passes shows what it would take on a real device. Weights need no values.
type Counter struct {
	props Props
	next  Addr
	sizes map[Addr]int
	used  int
	limit int // 0: none
}

var _ Driver = (*Counter)(nil)

// NewCounter counts for a device with such properties. It has as many bytes of memory as limit says, 0 for endless.
func NewCounter(p Props, limit int) *Counter {
	return &Counter{props: p, next: countAlign, sizes: map[Addr]int{}, limit: limit}
}

// countAlign is what sizes are rounded up to. Drivers take larger steps for small sizes; few allocations are small.
const countAlign = 512

// Used is the memory in use.
func (c *Counter) Used() int { return c.used }

// Props describes the device that is counted for.
func (c *Counter) Props() Props { return c.props }

// Free is what is left, or more than any model takes.
func (c *Counter) Free() (free, total int) {
	if c.limit == 0 {
		return 1 << 50, 1 << 50
	}
	return c.limit - c.used, c.limit
}

// Alloc counts.
func (c *Counter) Alloc(bytes int) (Addr, error) {
	n := (max(bytes, 1) + countAlign - 1) / countAlign * countAlign
	if c.limit > 0 && c.used+n > c.limit {
		return 0, fmt.Errorf("%s: allocating %d bytes: %w", c.props.Name, bytes, backend.ErrNoMemory)
	}
	at := c.next
	c.next += Addr(n)
	c.sizes[at] = n
	c.used += n
	return at, nil
}

// Release counts.
func (c *Counter) Release(a Addr) {
	c.used -= c.sizes[a]
	delete(c.sizes, a)
}

// Everything else does nothing.

func (c *Counter) Upload(Addr, []byte)                {}
func (c *Counter) Download([]byte, Addr) error        { return nil }
func (c *Counter) Copy(Addr, Addr, int)               {}
func (c *Counter) Fill(Addr, byte, int)               {}
func (c *Counter) Kernel(k Kernel) (Handle, error)    { return k, nil }
func (c *Counter) Compiling() time.Duration           { return 0 }
func (c *Counter) Launch(*Launch)                     {}
func (c *Counter) Record([]Launch) (Recording, error) { return countedRecording{}, nil }
func (c *Counter) Replay(Recording)                   {}
func (c *Counter) Wait() error                        { return nil }
func (c *Counter) Close() error                       { return nil }

type countedRecording struct{}

func (countedRecording) Close() {}

// Counting returns a device like b that only counts memory, and what it has counted so far.
func (b *Backend) Counting() (backend.Backend, func() int, error) {
	c := NewCounter(b.props, 0)
	if own, ok := b.d.(*Counter); ok {
		c.limit = own.limit
	}
	counting, err := New(c)
	return counting, c.Used, err
}
