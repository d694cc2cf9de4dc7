//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"unsafe"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
)

// buffer is memory with an address.
type buffer struct {
	addr   gpu.Addr
	size   int
	handle uint64
	memory uint64
	host   []byte // nil if the host does not see it
	cached bool   // the host reads it fast
}

// grave is a buffer that is given back when a submission is done.
type grave struct {
	b      *buffer
	ticket uint64
}

// arena is a buffer that is given out in small pieces: devices have few allocations.
type arena struct {
	*buffer
	free  []span           // in order, not touching each other
	taken map[gpu.Addr]int // sizes of what was taken
}

type span struct{ at, size int }

// Sizes of arenas, of what has a buffer of its own, and what all pieces are multiples of.
const (
	arenaBytes = 16 << 20
	ownBytes   = 2 << 20
	align      = 256
)

// newBuffer makes a buffer in memory of one of the wanted kinds, the first one that has room. Every type that fits is
// tried: a small or a full heap may come first.
func (d *Driver) newBuffer(size int, wants ...uint32) (*buffer, error) {
	if most := min(d.phys.p11.MaxMemoryAllocationSize, d.phys.p13.MaxBufferSize); uint64(size) > most {
		return nil, fmt.Errorf("%s: allocating %d bytes: its driver allows %d at a time", d.dev.Name, size, most)
	}
	b := &buffer{size: size}
	const copyFrom, copyTo, storage, address = 1, 2, 0x20, 0x20000
	bc := &bufferCreate{head: head{sType: stBufferCreate}, size: uint64(size),
		usage: copyFrom | copyTo | storage | address}
	if err := d.f.createBuffer.do(d.handle, uintptr(unsafe.Pointer(bc)), 0,
		uintptr(unsafe.Pointer(&b.handle))); err != nil {
		return nil, err
	}
	need := &memoryRequirements{}
	d.f.requirements.call(d.handle, uintptr(b.handle), uintptr(unsafe.Pointer(need)))
	budget := d.budget()
	for _, want := range wants {
		for t := range int(d.phys.memory.NTypes) {
			typ := d.phys.memory.Types[t]
			if need.Types>>t&1 == 0 || typ.Flags&want != want || typ.Flags&memoryAMD != 0 || need.Size > budget[typ.Heap] {
				continue
			}
			flags := &memoryAllocFlags{head: head{sType: stMemAllocFlags}, flags: 2} // it has an address
			ma := &memoryAllocate{head: head{stMemoryAllocate, unsafe.Pointer(flags)}, size: need.Size, typ: uint32(t)}
			if d.f.allocate.do(d.handle, uintptr(unsafe.Pointer(ma)), 0, uintptr(unsafe.Pointer(&b.memory))) != nil {
				continue
			}
			if err := d.finish(b, typ.Flags); err != nil {
				d.freeBuffer(b)
				return nil, err
			}
			return b, nil
		}
	}
	d.freeBuffer(b)
	free, total := d.Free()
	return nil, fmt.Errorf("%s: allocating %d bytes: %w, %d of %d are free", d.dev.Name, size, backend.ErrNoMemory, free,
		total)
}

// finish binds a buffer to its memory and lets the host see it if it can.
func (d *Driver) finish(b *buffer, flags uint32) error {
	if err := d.f.bind.do(d.handle, uintptr(b.handle), uintptr(b.memory), 0); err != nil {
		return err
	}
	if flags&memoryVisible != 0 && flags&memoryCoherent != 0 {
		var at unsafe.Pointer
		if err := d.f.mapMemory.do(d.handle, uintptr(b.memory), 0, ^uintptr(0), 0, uintptr(unsafe.Pointer(&at))); err != nil {
			return err
		}
		b.host, b.cached = unsafe.Slice((*byte)(at), b.size), flags&memoryCached != 0
	}
	ba := &bufferAddress{head: head{sType: stBufferAddress}, buffer: b.handle}
	b.addr = gpu.Addr(d.f.address.call(d.handle, uintptr(unsafe.Pointer(ba))))
	i := sort.Search(len(d.buffers), func(i int) bool { return d.buffers[i].addr > b.addr })
	d.buffers = slices.Insert(d.buffers, i, b)
	return nil
}

func (d *Driver) freeBuffer(b *buffer) {
	d.f.destroyBuffer.call(d.handle, uintptr(b.handle), 0)
	if b.memory != 0 {
		d.f.free.call(d.handle, uintptr(b.memory), 0)
	}
}

// find returns the buffer of an address and the place in it.
func (d *Driver) find(a gpu.Addr) (*buffer, int) {
	i := sort.Search(len(d.buffers), func(i int) bool { return d.buffers[i].addr > a })
	if i > 0 && a < d.buffers[i-1].addr+gpu.Addr(d.buffers[i-1].size) {
		return d.buffers[i-1], int(a - d.buffers[i-1].addr)
	}
	return nil, 0
}

// budget is what every heap has left for this process.
func (d *Driver) budget() (left [16]uint64) {
	b := &memoryBudget{head: head{sType: stMemoryBudget}}
	m := &memoryProperties2{head: head{sType: stMemoryProperties2}}
	known := slices.Contains(d.phys.extensions, "VK_EXT_memory_budget")
	if known {
		m.next = unsafe.Pointer(b)
		d.inst.get("vkGetPhysicalDeviceMemoryProperties2").call(d.phys.handle, uintptr(unsafe.Pointer(m)))
	}
	for h := range int(d.phys.memory.NHeaps) {
		left[h] = d.phys.memory.Heaps[h].Size
		if known {
			left[h] = b.Budget[h] - min(b.Budget[h], b.Usage[h])
		}
	}
	return left
}

// Free returns the free memory and the total.
func (d *Driver) Free() (free, total int) {
	left := d.budget()
	for _, h := range d.phys.heaps() {
		free += int(left[h])
		total += int(d.phys.memory.Heaps[h].Size)
	}
	return free, total
}

// Alloc returns device memory: the device's own, or the host's if that is full.
func (d *Driver) Alloc(bytes int) (gpu.Addr, error) {
	if d.err != nil {
		return 0, d.err
	}
	n := (max(bytes, 1) + align - 1) / align * align
	if n >= ownBytes {
		b, err := d.deviceBuffer(n)
		if err != nil {
			return 0, err
		}
		return b.addr, nil
	}
	for _, a := range d.small {
		if at, ok := a.take(n); ok {
			return at, nil
		}
	}
	b, err := d.deviceBuffer(arenaBytes)
	if err != nil {
		return 0, err
	}
	a := &arena{b, []span{{0, arenaBytes}}, map[gpu.Addr]int{}}
	d.small = append(d.small, a)
	at, _ := a.take(n)
	return at, nil
}

// Release gives memory back. Pieces of arenas may be used anew at once: the queue is in order. A buffer of its own is
// freed when the device is done with what was asked of it so far.
func (d *Driver) Release(a gpu.Addr) {
	for _, s := range d.small {
		if n := s.taken[a]; n > 0 {
			delete(s.taken, a)
			s.give(int(a-s.addr), n)
			return
		}
	}
	if b, at := d.find(a); b != nil && at == 0 {
		d.buffers = slices.DeleteFunc(d.buffers, func(o *buffer) bool { return o == b })
		ticket := d.sent
		if d.now != nil {
			ticket++ // what is being collected may use it
		}
		d.dead = append(d.dead, grave{b, ticket})
		d.bury()
	}
}

// bury frees buffers that the device is done with.
func (d *Driver) bury() {
	d.dead = slices.DeleteFunc(d.dead, func(g grave) bool {
		if g.ticket <= d.done {
			d.freeBuffer(g.b)
		}
		return g.ticket <= d.done
	})
}

func (d *Driver) deviceBuffer(size int) (*buffer, error) {
	d.look()
	if d.phys.properties.Type == kindDiscrete {
		return d.newBuffer(size, memoryLocal, memoryVisible|memoryCoherent)
	}
	// Memory is shared with the host: what it sees it fills without a copy.
	return d.newBuffer(size, memoryLocal|memoryVisible|memoryCoherent, memoryLocal, memoryVisible|memoryCoherent)
}

func (a *arena) take(n int) (gpu.Addr, bool) {
	for i := range a.free {
		if f := &a.free[i]; f.size >= n {
			at := a.addr + gpu.Addr(f.at)
			f.at, f.size = f.at+n, f.size-n
			a.taken[at] = n
			return at, true
		}
	}
	return 0, false
}

func (a *arena) give(at, n int) {
	i, _ := slices.BinarySearchFunc(a.free, at, func(s span, at int) int { return cmp.Compare(s.at, at) })
	a.free = slices.Insert(a.free, i, span{at, n})
	out := a.free[:0]
	for _, s := range a.free {
		if n := len(out); n > 0 && out[n-1].at+out[n-1].size == s.at {
			out[n-1].size += s.size
		} else if s.size > 0 {
			out = append(out, s)
		}
	}
	a.free = out
}
