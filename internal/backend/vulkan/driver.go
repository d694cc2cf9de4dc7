//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"strobe/internal/backend/gpu"
)

// Driver is an open device with one queue. What is launched, copied and filled is collected in a command buffer and
// sent when somebody waits, when it is estimated to keep the device busy for long enough, or together with a
// recording.
type Driver struct {
	dev      Device
	opt      Options
	inst     *instance
	phys     *physical
	props    gpu.Props
	f        functions
	handle   uintptr
	queue    uintptr
	family   uint32
	period   float32 // nanoseconds of its timestamps' ticks; 0: it has none
	layout   uint64  // of pipelines: pushBytes of push constants
	cache    uint64  // of compiled pipelines
	compiled int     // how many were compiled since
	timeline uint64  // counts submissions that are done
	sent     uint64  // submissions
	done     uint64  // those that are known to be done
	err      error   // the first failure; nothing is sent to a device after it
	hangs    bool    // nothing waits for it any more
	shuffles bool    // how lanes exchange values; the self-test decides
	matrices bool    // it has cooperative matrices; the self-test decides whether they are used
	kernels  map[gpu.Kernel]*kernel
	spent    time.Duration // on compiling them
	modules  map[string]uint64
	buffers  []*buffer // by address
	small    []*arena
	dead     []grave // buffers that the device may still use
	up       staging
	down     *buffer
	now      *commands // being collected
	spare    []*commands
	busy     []*commands
	pace     pace
	barriers barriers
}

var _ gpu.Driver = (*Driver)(nil)

type functions struct {
	createBuffer, destroyBuffer, requirements, allocate, free, bind, mapMemory, address        fn
	createModule, destroyModule, createLayout, destroyLayout, createPipelines, destroyPipeline fn
	createCache, destroyCache, cacheData                                                       fn
	createPool, destroyPool, allocCommands, resetPool, begin, end                              fn
	bindPipeline, push, dispatch, barrier, copyBuffer, fill, timestamp, resetQuery             fn
	submit, createSemaphore, destroySemaphore, waitSemaphores, counter, waitIdle, destroy      fn
	createQuery, destroyQuery, queryResults, getQueue                                          fn
}

func (f *functions) names() map[string]*fn {
	return map[string]*fn{
		"vkCreateBuffer": &f.createBuffer, "vkDestroyBuffer": &f.destroyBuffer,
		"vkGetBufferMemoryRequirements": &f.requirements,
		"vkAllocateMemory":              &f.allocate, "vkFreeMemory": &f.free,
		"vkBindBufferMemory": &f.bind, "vkMapMemory": &f.mapMemory,
		"vkGetBufferDeviceAddress": &f.address, "vkCreateShaderModule": &f.createModule,
		"vkDestroyShaderModule":  &f.destroyModule,
		"vkCreatePipelineLayout": &f.createLayout, "vkDestroyPipelineLayout": &f.destroyLayout,
		"vkCreateComputePipelines": &f.createPipelines,
		"vkDestroyPipeline":        &f.destroyPipeline, "vkCreatePipelineCache": &f.createCache,
		"vkDestroyPipelineCache": &f.destroyCache,
		"vkGetPipelineCacheData": &f.cacheData, "vkCreateCommandPool": &f.createPool, "vkDestroyCommandPool": &f.destroyPool,
		"vkAllocateCommandBuffers": &f.allocCommands, "vkResetCommandPool": &f.resetPool, "vkBeginCommandBuffer": &f.begin,
		"vkEndCommandBuffer": &f.end, "vkCmdBindPipeline": &f.bindPipeline, "vkCmdPushConstants": &f.push,
		"vkCmdDispatch":         &f.dispatch,
		"vkCmdPipelineBarrier2": &f.barrier, "vkCmdCopyBuffer": &f.copyBuffer, "vkCmdFillBuffer": &f.fill,
		"vkCmdWriteTimestamp2": &f.timestamp, "vkCmdResetQueryPool": &f.resetQuery, "vkQueueSubmit2": &f.submit,
		"vkCreateSemaphore": &f.createSemaphore, "vkDestroySemaphore": &f.destroySemaphore,
		"vkWaitSemaphores":           &f.waitSemaphores,
		"vkGetSemaphoreCounterValue": &f.counter, "vkDeviceWaitIdle": &f.waitIdle, "vkDestroyDevice": &f.destroy,
		"vkCreateQueryPool": &f.createQuery, "vkDestroyQueryPool": &f.destroyQuery, "vkGetQueryPoolResults": &f.queryResults,
		"vkGetDeviceQueue": &f.getQueue,
	}
}

func open(dev Device, opt Options) (gpu.Driver, error) {
	d := &Driver{dev: dev, opt: opt, kernels: map[gpu.Kernel]*kernel{}, modules: map[string]uint64{}}
	err := d.open()
	if err == nil {
		err = d.selfTest()
	}
	if err == nil {
		return d, nil
	}
	d.Close()
	switch {
	case err == errMatrices:
		opt.Plain, opt.Loops = true, false
		return open(dev, opt)
	case d.err != nil:
		return nil, fmt.Errorf("the self-test failed: %w", d.err)
	}
	return nil, fmt.Errorf("opening %s: %w", dev.Name, err)
}

func (d *Driver) open() (err error) {
	if d.inst, err = instanceOf(d.opt.Validate); err != nil {
		return err
	}
	all, err := d.inst.handles()
	if err != nil {
		return err
	}
	if d.dev.number >= len(all) {
		return errors.New("it is gone")
	}
	d.phys = d.inst.physical(all[d.dev.number])
	if err := d.create(); err != nil {
		return err
	}
	st := &semaphoreType{head: head{sType: stSemaphoreType}, typ: 1}
	sc := &semaphoreCreate{head: head{stSemaphoreCreate, unsafe.Pointer(st)}}
	if err := d.f.createSemaphore.do(d.handle, uintptr(unsafe.Pointer(sc)), 0,
		uintptr(unsafe.Pointer(&d.timeline))); err != nil {
		return err
	}
	lc := &layoutCreate{head: head{sType: stPipelineLayout}, nRanges: 1,
		ranges: &pushRange{stages: stageCompute, size: pushBytes}}
	if err := d.f.createLayout.do(d.handle, uintptr(unsafe.Pointer(lc)), 0,
		uintptr(unsafe.Pointer(&d.layout))); err != nil {
		return err
	}
	cc := &pipelineCacheCreate{head: head{sType: stPipelineCacheCreate}}
	if b := d.readCache(); len(b) > 0 {
		cc.size, cc.data = uint64(len(b)), unsafe.Pointer(&b[0])
	}
	if err := d.f.createCache.do(d.handle, uintptr(unsafe.Pointer(cc)), 0, uintptr(unsafe.Pointer(&d.cache))); err != nil {
		return err
	}
	d.barriers = newBarriers()
	d.pace = newPace(d.period)
	if err := d.up.open(d); err != nil {
		return err
	}
	if d.down, err = d.newBuffer(downBytes, memoryVisible|memoryCoherent|memoryCached,
		memoryVisible|memoryCoherent); err != nil {
		return err
	}
	limits := &d.phys.properties.Limits
	d.props = gpu.Props{Name: d.dev.Name, NoTensorCores: true, Units: d.units(), Memory: d.dev.Memory,
		SharedBlock: int(limits.MaxComputeSharedMemorySize),
		Threads:     int(min(limits.MaxComputeWorkGroupInvocations, limits.MaxComputeWorkGroupSize[0]))}
	return nil
}

// units is how many blocks products have; each is four workgroups: half as many again as the device has
// multiprocessors, or a middling number where that is unknown. On an H200 a product of 8 rows takes 23.9 us with these
// and 29.7 with one block to a multiprocessor, which is 1.5 to 1.8 % better for a pass of one row.
func (d *Driver) units() int {
	n := 32
	switch {
	case d.dev.Software:
		return 4
	case d.phys.nv.Units > 0:
		n = int(d.phys.nv.Units)
	case d.phys.amd.Units > 0:
		n = int(d.phys.amd.Engines * d.phys.amd.Arrays * d.phys.amd.Units)
	}
	return n * 3 / 2
}

// queueFor returns the family of queues to compute on, one without graphics if there is one; -1 if there is none.
// What computes also copies.
func queueFor(families []queueFamily) int {
	best := -1
	const graphics, compute = 1, 2
	for i, q := range families {
		if q.Flags&compute != 0 && (best < 0 || q.Flags&graphics == 0 && families[best].Flags&graphics != 0) {
			best = i
		}
	}
	return best
}

// create makes the logical device. Only what is used is enabled: some drivers list features that they refuse.
func (d *Driver) create() error {
	p := d.phys
	var n uint32
	queues := d.inst.get("vkGetPhysicalDeviceQueueFamilyProperties")
	queues.call(p.handle, uintptr(unsafe.Pointer(&n)), 0)
	families := make([]queueFamily, n+1)
	queues.call(p.handle, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&families[0])))
	best := queueFor(families[:n])
	if best < 0 {
		return errors.New("it has no queue for computing")
	}
	if d.family = uint32(best); families[best].TimestampBits > 0 {
		d.period = p.properties.Limits.TimestampPeriod
	}
	f13 := &vulkan13Features{head: head{sType: stVulkan13Features}}
	f13.F[f13Sync2], f13.F[f13IntDot], f13.F[f13Maintenance4] = 1, 1, p.f13.F[f13Maintenance4]
	f13.F[f13SubgroupSizeControl], f13.F[f13FullSubgroups] = p.f13.F[f13SubgroupSizeControl], p.f13.F[f13FullSubgroups]
	f12 := &vulkan12Features{head: head{stVulkan12Features, unsafe.Pointer(f13)}}
	f12.F[f12BufferAddress], f12.F[f12Timeline] = 1, 1
	f11 := &vulkan11Features{head: head{stVulkan11Features, unsafe.Pointer(f12)}, Storage16: 1}
	f2 := &features2{head: head{stFeatures2, unsafe.Pointer(f11)}}
	f2.F[featureInt64] = 1
	var extensions []unsafe.Pointer
	if d.matrices = !d.opt.Plain && p.mayHaveMatrices() && d.inst.hasMatrices(p); d.matrices {
		extensions = append(extensions, cText(matrixExtension))
		f12.F[f12MemoryModel], f12.F[f12Int8] = 1, 1
		f2.next = unsafe.Pointer(&matrixFeatures{head: head{stMatrixFeatures, f2.next}, Matrices: 1})
	}
	priority := float32(1)
	qc := &queueCreate{head: head{sType: stDeviceQueueCreate}, family: d.family, count: 1, priorities: &priority}
	dc := &deviceCreate{head: head{stDeviceCreate, unsafe.Pointer(f2)}, nQueues: 1, queues: qc}
	const subset = "VK_KHR_portability_subset" // MoltenVK wants to hear that its limits are known
	if slices.Contains(p.extensions, subset) {
		extensions = append(extensions, cText(subset))
	}
	if dc.nExt = uint32(len(extensions)); dc.nExt > 0 {
		dc.extensions = unsafe.Pointer(&extensions[0])
	}
	if err := d.inst.get("vkCreateDevice").do(p.handle, uintptr(unsafe.Pointer(dc)), 0,
		uintptr(unsafe.Pointer(&d.handle))); err != nil {
		return err
	}
	get := d.inst.get("vkGetDeviceProcAddr")
	var missing []string
	for name, f := range d.f.names() {
		if *f = fn(get.call(d.handle, uintptr(cText(name)))); *f == 0 {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		if d.f.destroy != 0 {
			d.f.destroy.call(d.handle, 0)
		}
		d.handle = 0 // Close must not call what is missing
		slices.Sort(missing)
		return fmt.Errorf("its driver has no %s", strings.Join(missing, ", "))
	}
	d.f.getQueue.call(d.handle, uintptr(d.family), 0, uintptr(unsafe.Pointer(&d.queue)))
	return nil
}

// Props describes the device.
func (d *Driver) Props() gpu.Props { return d.props }

// Paths says which of several ways the self-test chose.
func (d *Driver) Paths() string {
	how := "values exchanged through shared memory"
	if d.shuffles {
		how = "values exchanged by shuffles"
	}
	if d.phys.p13.IntDot[4] != 0 {
		how += ", fast products of bytes"
	} else {
		how += ", slow products of bytes"
	}
	if d.props.Matrices {
		how += ", cooperative matrices"
	}
	return how
}

// Messages is what the validation layer has said so far.
func (d *Driver) Messages() []string {
	d.inst.mu.Lock()
	defer d.inst.mu.Unlock()
	return slices.Clone(d.inst.messages)
}

// fail keeps the first failure.
func (d *Driver) fail(err error, format string, args ...any) {
	if err != nil && d.err == nil {
		d.err = fmt.Errorf("%s: "+format+": %w", append(append([]any{d.dev.Name}, args...), err)...)
	}
}

// Wait sends what was collected, waits for everything, and reports the first failure.
func (d *Driver) Wait() error {
	d.flush(nil)
	d.waitFor(d.sent)
	return d.err
}

const waitStep = time.Second

// patience is how many steps a submission may take: a wait without end would hide a hang. Most systems take a device
// away after seconds; a processor may be slow.
func (d *Driver) patience() int {
	if d.dev.Software {
		return 600
	}
	return 60
}

// waitFor waits for a submission.
func (d *Driver) waitFor(ticket uint64) {
	last := d.done
	for step := 0; d.err == nil && d.done < ticket; step++ {
		if d.done > last { // not this one, but one before it
			last, step = d.done, 0
		}
		if most := d.patience(); step == most {
			d.hangs = true
			d.fail(fmt.Errorf("no answer for %v", time.Duration(most)*waitStep), "waiting")
			return
		}
		w := &semaphoreWait{head: head{sType: stSemaphoreWait}, count: 1, semaphores: &d.timeline, values: &ticket}
		d.fail(d.f.waitSemaphores.do(d.handle, uintptr(unsafe.Pointer(w)), uintptr(waitStep)), "waiting")
		runtime.KeepAlive(w)
		d.look()
	}
}

// look finds out which submissions are done, and takes back what they used.
func (d *Driver) look() {
	if d.err != nil {
		return
	}
	v := new(uint64)
	d.fail(d.f.counter.do(d.handle, uintptr(d.timeline), uintptr(unsafe.Pointer(v))), "asking what is done")
	if d.err != nil || *v <= d.done {
		return
	}
	d.done = *v
	d.busy = slices.DeleteFunc(d.busy, func(c *commands) bool {
		if c.ticket > d.done {
			return false
		}
		d.measure(c)
		d.spare = append(d.spare, c)
		return true
	})
	d.bury()
}

// Close gives everything back. What a device that hangs may still use is left to the end of the process: waiting for it
// might take for ever.
func (d *Driver) Close() error {
	if d.handle != 0 && !d.hangs {
		d.f.waitIdle.call(d.handle)
		d.writeCache()
		for _, k := range d.kernels {
			if k.pipeline != 0 {
				d.f.destroyPipeline.call(d.handle, uintptr(k.pipeline), 0)
			}
		}
		for _, m := range d.modules {
			d.f.destroyModule.call(d.handle, uintptr(m), 0)
		}
		for _, c := range slices.Concat(d.busy, d.spare, []*commands{d.now}) {
			if c != nil {
				c.close(d)
			}
		}
		for _, b := range d.buffers {
			d.freeBuffer(b)
		}
		for _, g := range d.dead {
			d.freeBuffer(g.b)
		}
		d.f.destroyCache.call(d.handle, uintptr(d.cache), 0)
		d.f.destroyLayout.call(d.handle, uintptr(d.layout), 0)
		d.f.destroySemaphore.call(d.handle, uintptr(d.timeline), 0)
		d.f.destroy.call(d.handle, 0)
	}
	d.handle, d.buffers, d.dead, d.busy, d.spare, d.now = 0, nil, nil, nil, nil, nil
	return nil
}
