//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"bytes"
	"testing"

	"github.com/ebitengine/purego"

	"strobe/internal/backend/gpu"
)

// lazy is a device that does nothing before it is waited for: what the host changes too early shows. It needs no
// Vulkan.
type lazy struct {
	memory    map[uint64][]byte // of buffers, by handle
	collected []func()
	sent      map[uint64][]func() // by the value that says they are done
	done      uint64
}

// driver returns a driver of the device, with staging memory and one buffer of so many bytes at the returned address.
func (l *lazy) driver(size int) (*Driver, gpu.Addr) {
	const staged, other, at = 1, 2, 1 << 30
	l.memory = map[uint64][]byte{staged: make([]byte, stagingSegs*stagingBytes), other: make([]byte, size)}
	l.sent = map[uint64][]func(){}
	d := &Driver{dev: Device{Name: "lazy"}, handle: 1, barriers: newBarriers()}
	nothing := fn(purego.NewCallback(func() uintptr { return 0 }))
	for _, f := range d.f.names() {
		*f = nothing
	}
	d.f.copyBuffer = fn(purego.NewCallback(func(_, src, dst, _ uintptr, r *bufferCopy) uintptr {
		c := *r
		l.collected = append(l.collected, func() {
			copy(l.memory[uint64(dst)][c.dst:][:c.size], l.memory[uint64(src)][c.src:])
		})
		return 0
	}))
	d.f.submit = fn(purego.NewCallback(func(_, _ uintptr, s *submit2, _ uintptr) uintptr {
		l.sent[s.signal.value], l.collected = l.collected, nil
		return 0
	}))
	d.f.waitSemaphores = fn(purego.NewCallback(func(_ uintptr, w *semaphoreWait, _ uintptr) uintptr {
		for l.done < *w.values {
			l.done++
			for _, do := range l.sent[l.done] {
				do()
			}
		}
		return 0
	}))
	d.f.counter = fn(purego.NewCallback(func(_, _ uintptr, v *uint64) uintptr {
		*v = l.done
		return 0
	}))
	d.up = staging{d: d, b: &buffer{addr: 1 << 20, size: stagingSegs * stagingBytes, handle: staged,
		host: l.memory[staged]}}
	d.buffers = []*buffer{d.up.b, {addr: at, size: size, handle: other}}
	return d, at
}

// TestStagingIsReadFirst: staging memory is used again only when the device has read it.
func TestStagingIsReadFirst(t *testing.T) {
	const size = (stagingSegs + 2) * stagingBytes
	l := &lazy{}
	d, at := l.driver(size)
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i>>20 + i)
	}
	// Pieces that end inside of segments, one that takes several, and one that ends with a segment.
	for from := 0; from < size; {
		n := min(size-from, []int{stagingBytes / 3, 1, 2*stagingBytes + 5, stagingBytes}[from%4])
		d.Upload(at+gpu.Addr(from), want[from:from+n])
		from += n
	}
	if l.done == 0 || l.done == d.sent {
		t.Errorf("%d of %d submissions were waited for; the test wants some and not all", l.done, d.sent)
	}
	if err := d.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := l.memory[2]; !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		t.Errorf("byte %d of %d is %d, want %d: staging memory changed before the device had read it", i, size, got[i], want[i])
	}
}

// TestArgumentsStayWhole: what must lie in one piece, such as a launch's arguments, does, and waits for its place, too.
func TestArgumentsStayWhole(t *testing.T) {
	l := &lazy{}
	d, at := l.driver(stagingBytes)
	const n = stagingBytes/2 + 1 // a segment has room for one
	for i := range 3 * stagingSegs {
		room, from := d.up.room(n, true)
		if len(room) != n || from/stagingBytes != (from+n-1)/stagingBytes {
			t.Fatalf("piece %d has %d bytes from %d on, want %d in one segment", i, len(room), from, n)
		}
		if first := room[0]; i >= stagingSegs && first != byte(i-stagingSegs) {
			t.Fatalf("piece %d lies where %d was, want the segments in turn", i, first)
		}
		room[0] = byte(i)
		b, off := d.find(at)
		d.copy(b, off, d.up.b, from, n) // the device reads it
		if i >= stagingSegs && l.done != uint64(i-stagingSegs+1) {
			t.Errorf("piece %d is given out when the device is done with %d, want %d", i, l.done, i-stagingSegs+1)
		}
	}
}
