//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
)

// Driver is an open GPU. Everything happens in order on one stream.
type Driver struct {
	dev      Device
	handle   int32 // the driver's name of it
	props    gpu.Props
	context  uintptr // its own: what fails in one is lost with it, and memory that was not released goes with it
	stream   uintptr
	up       staging
	down     unsafe.Pointer // pinned memory that downloads pass through
	kernels  map[string]*kernel
	spent    time.Duration // on compiling kernels
	err      error         // the first failure
	hangs    bool          // it was given up on
	patience time.Duration
	older    error // why kernels for an older device are used
	call     launchCall
	attrs    [2]launchAttr
}

var (
	_ gpu.Driver   = (*Driver)(nil)
	_ gpu.Preparer = (*Driver)(nil)
)

// downBytes is the size of the memory for downloads: ids and a few rows of logits in one piece.
const downBytes = 4 << 20

func open(dev Device, as string, why error) (gpu.Driver, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d := &Driver{dev: dev, kernels: map[string]*kernel{}, older: why, patience: defaultPatience}
	if r := api.device.call(uintptr(unsafe.Pointer(&d.handle)), uintptr(dev.Index)); r != 0 {
		return nil, fmt.Errorf("opening %s: %w", dev.Name, r)
	}
	if r := api.contextCreate.call(uintptr(unsafe.Pointer(&d.context)), 0, uintptr(d.handle)); r != 0 {
		return nil, fmt.Errorf("opening %s: %w", dev.Name, r)
	}
	d.props = gpu.Props{Name: dev.Name, Major: dev.Major, Minor: dev.Minor, Memory: dev.Memory,
		Units: attribute(d.handle, attrUnits), SharedBlock: attribute(d.handle, attrSharedBlock)}
	if err := pretend(&d.props, as); err != nil {
		d.Close()
		return nil, err
	}
	d.dev.Major, d.dev.Minor = d.props.Major, d.props.Minor
	const nonBlocking = 1 // not ordered with the null stream, which we do not use
	if r := api.streamCreate.call(uintptr(unsafe.Pointer(&d.stream)), nonBlocking); r != 0 {
		d.Close()
		return nil, fmt.Errorf("opening %s: creating a stream: %w", dev.Name, r)
	}
	if r := d.up.open(); r != 0 {
		d.Close()
		return nil, fmt.Errorf("opening %s: pinning memory for uploads: %w", dev.Name, r)
	}
	if r := api.hostAlloc.call(uintptr(unsafe.Pointer(&d.down)), downBytes, 0); r != 0 {
		d.Close()
		return nil, fmt.Errorf("opening %s: pinning memory for downloads: %w", dev.Name, r)
	}
	// The attribute of a launch that may begin before the one before it has ended (programmatic stream serialization).
	d.attrs[0] = launchAttr{id: 6, value: [16]uint32{1}}
	return d, nil
}

// enter makes the context that of the calling thread, and keeps the goroutine on it until the returned function is
// called.
func (d *Driver) enter() func() {
	runtime.LockOSThread()
	if r := api.setCurrent.call(d.context); r != 0 {
		d.check(r, "making the context current")
	}
	return runtime.UnlockOSThread
}

// check keeps the first failure.
func (d *Driver) check(r result, format string, args ...any) {
	if r != 0 && d.err == nil {
		d.err = fmt.Errorf("%s: "+format+": %w", append(append([]any{d.dev.Name}, args...), r)...)
	}
}

// Props describes the device.
func (d *Driver) Props() gpu.Props { return d.props }

// Paths says which kernels it uses.
func (d *Driver) Paths() string {
	how := fmt.Sprintf("kernels for %d.%d", d.props.Major, d.props.Minor)
	if d.older != nil {
		how += ", because newer ones failed: " + d.older.Error()
	}
	return how
}

// defaultPatience is how long a device may be busy: a wait without an end would hide a hang. A pass takes less than a
// second.
const defaultPatience = time.Minute

// wait waits until everything is done.
func (d *Driver) wait(doing string) { d.poll(doing, api.streamQuery, d.stream) }

// poll asks whether a stream or an event is done until it is. The functions of the driver that wait ask again and again
// as well, but they never return if a kernel does not end.
func (d *Driver) poll(doing string, query fn, of uintptr) {
	const notReady = result(600)
	var begin time.Time
	for i := 0; d.err == nil; i++ {
		r := query.call(of)
		if r != notReady {
			d.check(r, "%s", doing)
			return
		}
		if i%256 > 0 {
			continue
		}
		if i == 0 {
			begin = time.Now()
		} else if time.Since(begin) > d.patience {
			d.hangs = true
			d.err = fmt.Errorf("%s: %s: no answer for %v", d.dev.Name, doing, d.patience)
		}
		runtime.Gosched()
	}
}

// Free returns the free memory and the total.
func (d *Driver) Free() (free, total int) {
	defer d.enter()()
	var f, t uintptr
	d.check(api.memInfo.call(uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t))), "asking for free memory")
	return int(f), int(t)
}

// Alloc returns device memory. That there is not enough is no failure of the device.
func (d *Driver) Alloc(bytes int) (gpu.Addr, error) {
	defer d.enter()()
	if d.err != nil {
		return 0, d.err
	}
	var a gpu.Addr
	r := api.alloc.call(uintptr(unsafe.Pointer(&a)), uintptr(max(bytes, 1)))
	if r == outOfMemory {
		var f, t uintptr
		api.memInfo.call(uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t)))
		return 0, fmt.Errorf("%s: allocating %d bytes: %w, %d of %d are free", d.dev.Name, bytes, backend.ErrNoMemory, f, t)
	}
	d.check(r, "allocating %d bytes", bytes)
	return a, d.err
}

// Release gives memory back when the device is done with it.
func (d *Driver) Release(a gpu.Addr) {
	if a == 0 || d.hangs {
		return
	}
	defer d.enter()()
	d.check(api.free.call(uintptr(a)), "releasing memory")
}

// copyAll copies like copy, large pieces on several processors: one of them is slower than the bus.
func copyAll(dst, src []byte) int {
	const piece = 1 << 20
	n := min(len(dst), len(src))
	if n <= piece {
		return copy(dst, src)
	}
	var all sync.WaitGroup
	for at := 0; at < n; at += piece {
		all.Go(func() { copy(dst[at:min(n, at+piece)], src[at:]) })
	}
	all.Wait()
	return n
}

// Upload copies from the host, through pinned memory.
func (d *Driver) Upload(dst gpu.Addr, src []byte) {
	defer d.enter()()
	for len(src) > 0 {
		buf := d.up.room(d, len(src))
		if d.err != nil {
			return
		}
		n := copyAll(buf, src)
		if r := api.toDevice.call(uintptr(dst), uintptr(unsafe.Pointer(&buf[0])), uintptr(n), d.stream); r != 0 {
			d.check(r, "uploading %d bytes", n)
			return
		}
		dst += gpu.Addr(n)
		src = src[n:]
	}
}

// Download copies to the host when everything before is done.
func (d *Driver) Download(dst []byte, src gpu.Addr) error {
	defer d.enter()()
	buf := unsafe.Slice((*byte)(d.down), downBytes)
	for len(dst) > 0 && d.err == nil {
		n := min(len(dst), downBytes)
		d.check(api.toHost.call(uintptr(d.down), uintptr(src), uintptr(n), d.stream), "downloading %d bytes", n)
		d.wait("waiting for a download")
		if d.err == nil {
			copyAll(dst, buf[:n])
		}
		dst = dst[n:]
		src += gpu.Addr(n)
	}
	return d.err
}

// Copy copies on the device.
func (d *Driver) Copy(dst, src gpu.Addr, bytes int) {
	if bytes == 0 {
		return
	}
	defer d.enter()()
	d.check(api.onDevice.call(uintptr(dst), uintptr(src), uintptr(bytes), d.stream), "copying %d bytes", bytes)
}

// Fill sets bytes.
func (d *Driver) Fill(dst gpu.Addr, value byte, bytes int) {
	if bytes == 0 {
		return
	}
	defer d.enter()()
	d.check(api.fill.call(uintptr(dst), uintptr(value), uintptr(bytes), d.stream), "filling %d bytes", bytes)
}

// Wait waits until everything is done and returns the first failure.
func (d *Driver) Wait() error {
	defer d.enter()()
	d.wait("waiting")
	return d.err
}

// Close gives everything back. What a device that hangs may still use is left to the end of the process: every call
// that gives something back would wait for it.
func (d *Driver) Close() error {
	if d.stream != 0 && d.err == nil {
		d.Wait()
	}
	if d.hangs {
		return d.err
	}
	defer d.enter()()
	d.up.close()
	if d.down != nil {
		api.hostFree.call(uintptr(d.down))
		d.down = nil
	}
	for _, k := range d.kernels {
		if k.handle != 0 {
			api.moduleUnload.call(k.module)
		}
	}
	clear(d.kernels)
	if d.stream != 0 {
		api.streamDestroy.call(d.stream)
		d.stream = 0
	}
	if d.context != 0 {
		api.contextDestroy.call(d.context)
		d.context = 0
	}
	return d.err
}

// staging is pinned memory that uploads pass through: a ring of segments, each with an event that tells when it is free
// again.
type staging struct {
	memory unsafe.Pointer
	events [stagingSegments]uintptr
	busy   [stagingSegments]bool
	seg    int // being filled
	at     int // bytes of it in use
}

// A segment is large enough for full speed over the bus, and two of them let the host copy while the device does; two
// more make waiting rare.
const (
	stagingSegments = 4
	stagingBytes    = 8 << 20
)

func (s *staging) open() result {
	for i := range s.events {
		const noTiming = 2
		if r := api.eventCreate.call(uintptr(unsafe.Pointer(&s.events[i])), noTiming); r != 0 {
			return r
		}
	}
	return api.hostAlloc.call(uintptr(unsafe.Pointer(&s.memory)), stagingSegments*stagingBytes, 0)
}

// room returns memory for up to want bytes of the next upload.
func (s *staging) room(d *Driver, want int) []byte {
	if s.at == stagingBytes {
		d.check(api.eventRecord.call(s.events[s.seg], d.stream), "marking an upload")
		s.busy[s.seg] = true
		s.seg, s.at = (s.seg+1)%stagingSegments, 0
		if s.busy[s.seg] {
			d.poll("waiting for earlier uploads", api.eventQuery, s.events[s.seg])
			s.busy[s.seg] = false
		}
	}
	n := min(want, stagingBytes-s.at)
	b := unsafe.Slice((*byte)(unsafe.Add(s.memory, s.seg*stagingBytes+s.at)), n)
	s.at += (n + 15) &^ 15
	return b
}

func (s *staging) close() {
	if s.memory != nil {
		api.hostFree.call(uintptr(s.memory))
		s.memory = nil
	}
	for i, e := range s.events {
		if e != 0 {
			api.eventDestroy.call(e)
			s.events[i] = 0
		}
	}
}
