//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"strobe/internal/backend/gpu"
)

// kernel is a kernel, compiled when it is first needed.
type kernel struct {
	name   string
	source *source
	module uintptr
	handle uintptr // 0: not compiled yet
	shared int     // bytes of dynamic shared memory it is allowed to ask for
}

// Kernel finds a kernel.
func (d *Driver) Kernel(kind gpu.Kernel) (gpu.Handle, error) {
	name := kind.Name()
	if k := d.kernels[name]; k != nil {
		return k, nil
	}
	s, err := sourceOf(name, d.dev.Major, d.dev.Minor)
	if err != nil {
		return nil, err
	}
	k := &kernel{name: name, source: s}
	d.kernels[name] = k
	return k, nil
}

// Compiling is how long kernels were compiled, or looked for where the driver keeps them.
func (d *Driver) Compiling() time.Duration { return d.spent }

// Prepare compiles the kernels of launches that are not compiled yet.
//
// The driver compiles them one after the other in a context, and keeps what it compiled for the next start. Where it
// has none, contexts beside ours compile them all at once, and ours finds them there.
func (d *Driver) Prepare(ls []gpu.Launch) error {
	var fresh []*kernel
	for i := range ls {
		if k, ok := ls[i].Kernel.(*kernel); ok && k.handle == 0 && !slices.Contains(fresh, k) {
			fresh = append(fresh, k)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	slices.SortFunc(fresh, func(a, b *kernel) int { return cmp.Compare(len(b.source.kernel), len(a.source.kernel)) })
	middle := len(fresh) / 2 // of middling length, to see how long it takes
	begin := time.Now()
	if err := d.load(fresh[middle]); err != nil {
		return err
	}
	fresh = slices.Delete(fresh, middle, middle+1)
	if begin, took := time.Now(), time.Since(begin); took > notKept {
		d.compileBeside(fresh)
		d.spent += time.Since(begin)
	}
	for _, k := range fresh {
		if err := d.load(k); err != nil {
			return err
		}
	}
	return nil
}

// notKept is how long loading takes if the driver has to compile: a tenth of a second or more for most kernels, where
// it reads what it has stored in a few milliseconds.
const notKept = 50 * time.Millisecond

// Contexts that compile: each needs a core, and memory of the device, up to half of contextBytes.
const maxBeside, contextBytes = 8, 1 << 30

// compileBeside has contexts of their own compile kernels, the longest first. What fails there is tried
// again when it is needed.
func (d *Driver) compileBeside(ks []*kernel) {
	free, _ := d.Free()
	contexts := min(len(ks), maxBeside, runtime.NumCPU(), free/contextBytes)
	if contexts < 2 {
		return
	}
	todo := make(chan *kernel, len(ks))
	for _, k := range ks {
		todo <- k
	}
	close(todo)
	var wait sync.WaitGroup
	for range contexts {
		wait.Go(func() {
			runtime.LockOSThread() // to which the context belongs
			defer runtime.UnlockOSThread()
			var context uintptr
			if api.contextCreate.call(uintptr(unsafe.Pointer(&context)), 0, uintptr(d.handle)) != 0 {
				return
			}
			defer func() { api.contextDestroy.call(context) }()
			for k := range todo {
				module, err := d.compile(k)
				if err != nil {
					return
				}
				api.moduleUnload.call(module)
			}
		})
	}
	wait.Wait()
}

// load makes a kernel ready, if it is not.
func (d *Driver) load(k *kernel) error {
	if k.handle != 0 {
		return nil
	}
	defer d.enter()()
	start := time.Now()
	var err error
	if k.module, err = d.compile(k); err != nil {
		return err
	}
	d.spent += time.Since(start)
	failed := func(doing string, r result) error {
		api.moduleUnload.call(k.module)
		k.handle = 0
		return fmt.Errorf("%s: %s kernel %q: %w", d.dev.Name, doing, k.name, r)
	}
	text := append([]byte(k.name), 0)
	if r := api.function.call(uintptr(unsafe.Pointer(&k.handle)), k.module, uintptr(unsafe.Pointer(&text[0]))); r != 0 {
		return failed("finding", r)
	}
	// All kernels want the same, largest share of shared memory: a multiprocessor must be empty to change it, so
	// kernels that want different ones cannot run side by side.
	if r := api.functionSet.call(k.handle, funcCarveOut, 100); r != 0 {
		return failed("setting the carve-out of", r)
	}
	return nil
}

// compile makes a module of a kernel's PTX in the thread's context.
func (d *Driver) compile(k *kernel) (module uintptr, err error) {
	// The compiler's complaints. The driver gets the buffer's address as a number, so it must not move.
	const errorLog, errorLogBytes = 5, 6
	log := make([]byte, 1<<14)
	var pin runtime.Pinner
	pin.Pin(&log[0])
	defer pin.Unpin()
	options := [2]int32{errorLog, errorLogBytes}
	values := [2]uintptr{uintptr(unsafe.Pointer(&log[0])), uintptr(len(log) - 1)}
	text := k.source.text()
	if r := api.moduleLoad.call(uintptr(unsafe.Pointer(&module)), uintptr(unsafe.Pointer(&text[0])), uintptr(len(options)),
		uintptr(unsafe.Pointer(&options[0])), uintptr(unsafe.Pointer(&values[0]))); r != 0 {
		return 0, fmt.Errorf("%s: compiling kernel %q (%s): %w: %s", d.dev.Name, k.name, k.source.arch, r,
			cString(unsafe.Pointer(&log[0])))
	}
	return module, nil
}

// launchConfig and launchAttr mirror CUlaunchConfig and CUlaunchAttribute.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	stream      uintptr
	attrs       unsafe.Pointer
	count       uint32
}

type launchAttr struct {
	id    uint32
	_     uint32
	value [16]uint32
}

// launchCall is what a launch points to; it is part of the Driver, so that launches allocate nothing.
type launchCall struct {
	config launchConfig
	params [1]unsafe.Pointer
}

// Launch starts a kernel.
func (d *Driver) Launch(l *gpu.Launch) {
	defer d.enter()()
	d.launch(l)
}

func (d *Driver) launch(l *gpu.Launch) {
	if d.err != nil {
		return
	}
	k, ok := l.Kernel.(*kernel)
	if !ok {
		d.err = fmt.Errorf("%s: launching %s: %T is not a kernel of this device", d.dev.Name, l.Name, l.Kernel)
		return
	}
	if d.err = d.load(k); d.err != nil {
		return
	}
	if l.Shared > k.shared {
		d.check(api.functionSet.call(k.handle, funcShared, uintptr(l.Shared)),
			"allowing kernel %s %d bytes of shared memory", k.name, l.Shared)
		k.shared = l.Shared
	}
	c := &d.call.config
	*c = launchConfig{grid: [3]uint32{uint32(l.Grid[0]), uint32(l.Grid[1]), uint32(l.Grid[2])},
		block:  [3]uint32{uint32(l.Threads), 1, 1},
		shared: uint32(l.Shared), stream: d.stream}
	if l.Early && d.dev.Major >= 9 {
		c.attrs, c.count = unsafe.Pointer(&d.attrs[0]), 1
		if l.Cluster > 0 {
			const clusterDimension = 4
			d.attrs[1] = launchAttr{id: clusterDimension, value: [16]uint32{uint32(l.Cluster), 1, 1}}
			c.count = 2
		}
	}
	d.call.params[0] = unsafe.Pointer(&l.Args[0])
	d.check(api.launch.call(uintptr(unsafe.Pointer(c)), k.handle, uintptr(unsafe.Pointer(&d.call.params[0])), 0),
		"launching %s (kernel %s, grid %v, %d threads, %d bytes of shared memory)", l.Name, k.name, l.Grid, l.Threads,
		l.Shared)
	d.call.params[0] = nil
}

// recording is an executable graph.
type recording struct {
	d    *Driver
	exec uintptr
}

// Close gives the graph back.
func (r *recording) Close() {
	if r.exec != 0 && !r.d.hangs {
		defer r.d.enter()()
		r.d.check(api.execDestroy.call(r.exec), "giving a recording back")
		r.exec = 0
	}
}

// Record makes a graph of launches; the kernels are not run.
func (d *Driver) Record(ls []gpu.Launch) (gpu.Recording, error) {
	defer d.enter()()
	if d.err != nil {
		return nil, d.err
	}
	const relaxed = 2
	d.check(api.captureBegin.call(d.stream, relaxed), "beginning to record")
	if d.err != nil {
		return nil, d.err
	}
	for i := range ls {
		d.launch(&ls[i])
	}
	var graph uintptr
	d.check(api.captureEnd.call(d.stream, uintptr(unsafe.Pointer(&graph))), "recording %d launches", len(ls))
	if graph != 0 {
		defer func() { api.graphDestroy.call(graph) }()
	}
	if d.err != nil {
		return nil, d.err
	}
	rec := &recording{d: d}
	r := api.instantiate.call(uintptr(unsafe.Pointer(&rec.exec)), graph, 0)
	if r == outOfMemory {
		return nil, nil
	}
	if d.check(r, "making a graph of %d launches", len(ls)); d.err != nil {
		return nil, d.err
	}
	return rec, nil
}

// Replay starts the launches of a recording.
func (d *Driver) Replay(r gpu.Recording) {
	if d.err != nil {
		return
	}
	defer d.enter()()
	d.check(api.graphLaunch.call(r.(*recording).exec, d.stream), "replaying")
}

// Times runs launches one after the other and says how long each took, with what it costs to begin by itself.
func (d *Driver) Times(ls []gpu.Launch) ([]time.Duration, error) {
	defer d.enter()()
	events := make([]uintptr, len(ls)+1)
	defer func() {
		for _, e := range events {
			if e != 0 {
				api.eventDestroy.call(e)
			}
		}
	}()
	for i := range events {
		d.check(api.eventCreate.call(uintptr(unsafe.Pointer(&events[i])), 0), "creating an event")
	}
	if d.err != nil {
		return nil, d.err
	}
	d.check(api.eventRecord.call(events[0], d.stream), "timing")
	for i := range ls {
		d.launch(&ls[i])
		d.check(api.eventRecord.call(events[i+1], d.stream), "timing")
	}
	d.wait("timing")
	times := make([]time.Duration, len(ls))
	for i := range times {
		var ms float32
		d.check(api.eventTime.call(uintptr(unsafe.Pointer(&ms)), events[i], events[i+1]), "timing")
		times[i] = time.Duration(float64(ms) * 1e6)
	}
	return times, d.err
}
