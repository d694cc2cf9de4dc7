//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"strobe/internal/backend/gpu"
)

// Stages and accesses of barriers.
const (
	stageCompute  = 0x20 // of pipelines and push constants
	atCompute     = 0x800
	atTransfer    = 0x1000
	atHost        = 0x4000
	atAll         = 0x10000
	shaderRead    = 0x20
	shaderWrite   = 0x40
	transferRead  = 0x800
	transferWrite = 0x1000
	hostRead      = 0x2000
)

// barriers are the kinds that are used: between launches, between two commands if one is a copy, and at the end of a
// submission, for the next one and the host.
type barriers struct{ launch, next, last *dependency }

func newBarriers() barriers {
	of := func(from, wrote, to, accessed uint64) *dependency {
		m := &memoryBarrier2{head: head{sType: stMemoryBarrier2}, srcStage: from, srcAccess: wrote, dstStage: to,
			dstAccess: accessed}
		return &dependency{head: head{sType: stDependency}, nMem: 1, mem: m}
	}
	const stages, writes = atCompute | atTransfer, shaderWrite | transferWrite
	const reads = shaderRead | transferRead
	return barriers{launch: of(atCompute, shaderWrite, atCompute, shaderRead|shaderWrite),
		next: of(stages, writes, stages, writes|reads),
		last: of(stages, writes, stages|atHost, writes|reads|hostRead)}
}

// timestamps is a kind of queries.
const timestamps = 2

// commands is a command buffer. Every command in it waits for those before it, but for launches that are said to need
// nothing of the one before.
type commands struct {
	pool    uint64
	handle  uintptr
	queries uint64 // two timestamps
	timed   bool
	some    bool   // it has commands
	first   string // kernel
	copied  bool   // the last of them copies or fills
	groups  int    // workgroups in it
	ticket  uint64
}

func (d *Driver) newCommands() (*commands, error) {
	c := &commands{}
	pc := &commandPoolCreate{head: head{sType: stCommandPoolCreate}, family: d.family}
	if err := d.f.createPool.do(d.handle, uintptr(unsafe.Pointer(pc)), 0, uintptr(unsafe.Pointer(&c.pool))); err != nil {
		return nil, err
	}
	ac := &commandBufferAlloc{head: head{sType: stCommandBufferAlloc}, pool: c.pool, count: 1}
	err := d.f.allocCommands.do(d.handle, uintptr(unsafe.Pointer(ac)), uintptr(unsafe.Pointer(&c.handle)))
	if err == nil {
		qc := &queryPoolCreate{head: head{sType: stQueryPoolCreate}, typ: timestamps, count: 2}
		err = d.f.createQuery.do(d.handle, uintptr(unsafe.Pointer(qc)), 0, uintptr(unsafe.Pointer(&c.queries)))
	}
	if err != nil {
		c.close(d)
		return nil, err
	}
	return c, nil
}

func (c *commands) close(d *Driver) {
	if c.queries != 0 {
		d.f.destroyQuery.call(d.handle, uintptr(c.queries), 0)
	}
	d.f.destroyPool.call(d.handle, uintptr(c.pool), 0)
}

// begin starts a command buffer anew.
func (d *Driver) begin(c *commands) error {
	if err := d.f.resetPool.do(d.handle, uintptr(c.pool), 0); err != nil {
		return err
	}
	b := &commandBufferBegin{head: head{sType: stCommandBufferBegin}}
	if err := d.f.begin.do(c.handle, uintptr(unsafe.Pointer(b))); err != nil {
		return err
	}
	c.groups, c.some, c.copied, c.ticket, c.first = 0, false, false, 0, ""
	if c.timed = d.pace.period > 0; c.timed {
		d.f.resetQuery.call(c.handle, uintptr(c.queries), 0, 2)
		d.f.timestamp.call(c.handle, atAll, uintptr(c.queries), 0)
	}
	return nil
}

func (d *Driver) end(c *commands) error {
	d.f.barrier.call(c.handle, uintptr(unsafe.Pointer(d.barriers.last)))
	if c.timed {
		d.f.timestamp.call(c.handle, atAll, uintptr(c.queries), 1)
	}
	return d.f.end.do(c.handle)
}

// fresh returns a command buffer that has just begun.
func (d *Driver) fresh() (c *commands, err error) {
	if n := len(d.spare); n > 0 {
		c, d.spare = d.spare[n-1], d.spare[:n-1]
	} else if c, err = d.newCommands(); err != nil {
		return nil, err
	}
	if err := d.begin(c); err != nil {
		c.close(d)
		return nil, err
	}
	return c, nil
}

// collect returns the command buffer that is being collected.
func (d *Driver) collect() *commands {
	if d.now == nil && d.err == nil {
		var err error
		d.now, err = d.fresh()
		d.fail(err, "beginning a command buffer")
	}
	return d.now
}

// flush sends what was collected, and a recorded command buffer after it.
func (d *Driver) flush(then *commands) {
	var list []*commands
	if c := d.now; c != nil {
		d.now = nil
		d.busy = append(d.busy, c)
		d.fail(d.end(c), "ending a command buffer")
		list = append(list, c)
	}
	if then != nil {
		list = append(list, then)
	}
	if d.err != nil || len(list) == 0 {
		return
	}
	d.sent++
	cs := make([]commandSubmit, len(list))
	first := ""
	for i, c := range list {
		c.ticket, first = d.sent, cmp.Or(first, c.first)
		cs[i] = commandSubmit{head: head{sType: stCommandSubmit}, buffer: c.handle}
	}
	signal := &semaphoreSubmit{head: head{sType: stSemaphoreSubmit}, semaphore: d.timeline, value: d.sent, stages: atAll}
	s := &submit2{head: head{sType: stSubmit2}, nCmd: uint32(len(cs)), cmd: &cs[0], nSignal: 1, signal: signal}
	if err := d.f.submit.do(d.queue, 1, uintptr(unsafe.Pointer(s)), 0); err != nil {
		d.sent--
		d.fail(err, "submitting %s and what follows", cmp.Or(first, "copies"))
	}
	runtime.KeepAlive(s)
	d.up.sent(d.sent)
}

// pace estimates how long submissions take: drivers end programs whose submissions take seconds. It is measured, per
// workgroup.
type pace struct {
	period   float64 // nanoseconds of a timestamp's tick; 0: unknown
	perGroup float64 // nanoseconds
}

// Submissions are cut where they are estimated to take longest. A recording that was found to take tooLong is cut
// again: the shortest time after which a system takes its device away is two seconds.
const (
	longest = 100 * time.Millisecond
	tooLong = 5 * longest
)

func newPace(period float32) pace {
	const cautious = 20e3 // until there are measurements
	return pace{float64(period), cautious}
}

func (p *pace) full(groups int) bool { return float64(groups)*p.perGroup > float64(longest) }

// took learns from a submission: at once if it was slower than thought, slowly if it was faster. A few workgroups say
// little, unless they take too long.
func (p *pace) took(groups int, d time.Duration) {
	const few, slowly = 64, 0.2
	if groups == 0 || groups < few && d < tooLong {
		return
	}
	if now := float64(d) / float64(groups); now > p.perGroup {
		p.perGroup = now
	} else {
		p.perGroup += slowly * (now - p.perGroup)
	}
}

// measure learns from a command buffer that is done, and returns how long it took; 0: unknown.
func (d *Driver) measure(c *commands) (took time.Duration) {
	if !c.timed || d.err != nil {
		return 0
	}
	var t [2]uint64
	const bits64 = 1
	if d.f.queryResults.do(d.handle, uintptr(c.queries), 0, 2, 16, uintptr(unsafe.Pointer(&t[0])), 8, bits64) == nil &&
		t[1] > t[0] {
		took = time.Duration(float64(t[1]-t[0]) * d.pace.period)
		d.pace.took(c.groups, took)
	}
	return took
}

// staging is host memory that the device reads: what is uploaded, and the arguments of launches that are not
// recorded. Its segments are used in turn; one is used again when the submissions that read it are done.
type staging struct {
	d    *Driver
	b    *buffer
	seg  int
	at   int
	last [stagingSegs]uint64 // submission that read the segment
	used [stagingSegs]bool   // by what is being collected
}

const (
	stagingSegs  = 4
	stagingBytes = 8 << 20
	downBytes    = 4 << 20
)

func (s *staging) open(d *Driver) (err error) {
	s.d = d
	// The device's own memory if the host sees it: arguments are read by every kernel.
	s.b, err = d.newBuffer(stagingSegs*stagingBytes, memoryLocal|memoryVisible|memoryCoherent,
		memoryVisible|memoryCoherent)
	return err
}

// room returns up to want bytes of host memory, and where the device finds them. It may send what was collected.
func (s *staging) room(want int, whole bool) ([]byte, int) {
	if left := stagingBytes - s.at; left == 0 || whole && left < want {
		s.d.flush(nil)
		s.seg, s.at = (s.seg+1)%stagingSegs, 0
		s.d.waitFor(s.last[s.seg])
	}
	n := min(want, stagingBytes-s.at)
	at := s.seg*stagingBytes + s.at
	s.at += (n + 15) &^ 15
	s.used[s.seg] = true
	return s.b.host[at:][:n], at
}

// sent says that what was collected is on its way.
func (s *staging) sent(ticket uint64) {
	for i := range s.used {
		if s.used[i] {
			s.last[i], s.used[i] = ticket, false
		}
	}
}

// idle reports whether the device has nothing to do.
func (d *Driver) idle() bool {
	if d.now != nil {
		return false
	}
	if d.done < d.sent {
		d.look()
	}
	return d.done == d.sent
}

// Upload copies from the host: at once where the host sees the memory and nothing uses it, otherwise in order.
func (d *Driver) Upload(dst gpu.Addr, src []byte) {
	b, at := d.find(dst)
	if len(src) == 0 || d.err != nil {
		return
	}
	if b == nil || at+len(src) > b.size {
		d.fail(fmt.Errorf("no memory at %#x", uint64(dst)), "uploading %d bytes", len(src))
		return
	}
	if b.host != nil && d.idle() {
		copy(b.host[at:], src)
		return
	}
	for len(src) > 0 && d.err == nil {
		room, from := d.up.room(len(src), false)
		n := copy(room, src)
		d.copy(b, at, d.up.b, from, n)
		src, at = src[n:], at+n
	}
}

// Download copies to the host when everything before is done.
func (d *Driver) Download(dst []byte, src gpu.Addr) error {
	b, at := d.find(src)
	if b == nil || at+len(dst) > b.size {
		d.fail(fmt.Errorf("no memory at %#x", uint64(src)), "downloading %d bytes", len(dst))
		return d.err
	}
	if b.cached {
		if err := d.Wait(); err != nil {
			return err
		}
		copy(dst, b.host[at:])
		return nil
	}
	for len(dst) > 0 && d.err == nil {
		n := min(len(dst), downBytes)
		d.copy(d.down, 0, b, at, (n+3)&^3)
		if d.Wait() == nil {
			copy(dst, d.down.host[:n])
		}
		dst, at = dst[n:], at+n
	}
	return d.err
}

func (d *Driver) copy(dst *buffer, to int, src *buffer, from, n int) {
	c := d.collect()
	if c == nil {
		return
	}
	region := &bufferCopy{uint64(from), uint64(to), uint64(n)}
	d.next(c, true)
	d.f.copyBuffer.call(c.handle, uintptr(src.handle), uintptr(dst.handle), 1, uintptr(unsafe.Pointer(region)))
}

// next lets the next command wait for those before; the first one of a buffer finds them done.
func (d *Driver) next(c *commands, copies bool) {
	if c.some {
		b := d.barriers.launch
		if copies || c.copied {
			b = d.barriers.next
		}
		d.f.barrier.call(c.handle, uintptr(unsafe.Pointer(b)))
	}
	c.some, c.copied = true, copies
}

// Copy copies on the device.
func (d *Driver) Copy(dst, src gpu.Addr, bytes int) {
	to, at := d.find(dst)
	from, off := d.find(src)
	if to == nil || from == nil {
		d.fail(fmt.Errorf("no memory at %#x or %#x", uint64(dst), uint64(src)), "copying %d bytes", bytes)
		return
	}
	if bytes > 0 {
		d.copy(to, at, from, off, bytes)
	}
}

// Fill sets every byte; their number is a multiple of four.
func (d *Driver) Fill(dst gpu.Addr, value byte, bytes int) {
	b, at := d.find(dst)
	if b == nil {
		d.fail(fmt.Errorf("no memory at %#x", uint64(dst)), "filling %d bytes", bytes)
		return
	}
	if bytes == 0 {
		return
	}
	if c := d.collect(); c != nil {
		d.next(c, true)
		d.f.fill.call(c.handle, uintptr(b.handle), uintptr(at), uintptr(bytes), uintptr(uint32(value)*0x01010101))
	}
}

// Launch starts a kernel.
func (d *Driver) Launch(l *gpu.Launch) {
	if d.err != nil {
		return
	}
	if l.Alone {
		d.flush(nil)
	}
	room, at := d.up.room(len(l.Args), true)
	copy(room, l.Args)
	if c := d.collect(); c != nil {
		d.launch(c, l, d.up.b.addr+gpu.Addr(at))
		if l.Alone || d.pace.full(c.groups) {
			d.flush(nil)
		}
	}
}

// launch appends a launch whose arguments lie at args.
func (d *Driver) launch(c *commands, l *gpu.Launch, args gpu.Addr) {
	k, ok := l.Kernel.(*kernel)
	if !ok {
		d.fail(fmt.Errorf("%T is not a kernel of this device", l.Kernel), "launching %s", l.Name)
		return
	}
	if d.fail(d.compile(k), "compiling kernel %s", k.name); d.err != nil {
		return
	}
	for i, n := range l.Grid {
		if most := d.phys.properties.Limits.MaxComputeWorkGroupCount[i]; n > int(most) {
			d.fail(fmt.Errorf("%d workgroups, its driver allows %d", n, most), "launching %s", l.Name)
			return
		}
	}
	push := l.Args
	if !k.shader.Pushed {
		push = binary.LittleEndian.AppendUint64(nil, uint64(args))
	}
	if !l.Beside || !c.some {
		d.next(c, false)
	}
	c.first = cmp.Or(c.first, k.name)
	d.f.bindPipeline.call(c.handle, 1, uintptr(k.pipeline))
	d.f.push.call(c.handle, uintptr(d.layout), stageCompute, 0, uintptr(len(push)),
		uintptr(unsafe.Pointer(&push[0])))
	d.f.dispatch.call(c.handle, uintptr(l.Grid[0]), uintptr(l.Grid[1]), uintptr(l.Grid[2]))
	if !l.Alone { // its workgroups say nothing about others
		c.groups += l.Grid[0] * l.Grid[1] * l.Grid[2]
	}
}

// recording is launches in command buffers, each short enough for the device, and their arguments.
type recording struct {
	d        *Driver
	launches []gpu.Launch
	args     gpu.Addr
	places   []int // of arguments
	list     []*commands
	parts    int // of the list at first
}

// Record records launches; the kernels are not run.
func (d *Driver) Record(ls []gpu.Launch) (gpu.Recording, error) { return d.record(ls, 0) }

// record records launches, and timestamps of their ends if there is a place for them.
func (d *Driver) record(ls []gpu.Launch, times uint64) (gpu.Recording, error) {
	r := &recording{d: d, launches: slices.Clone(ls)}
	var all []byte
	for i := range ls {
		r.places = append(r.places, len(all))
		all = append(all, ls[i].Args...)
		all = append(all, make([]byte, -len(all)&15)...)
	}
	var err error
	if r.args, err = d.Alloc(len(all)); err != nil {
		return nil, err
	}
	d.Upload(r.args, all)
	if err := r.fill(times); err != nil {
		r.Close()
		return nil, err
	}
	r.parts = len(r.list)
	return r, nil
}

// fill writes command buffers, as long as they may be by what is known now.
func (r *recording) fill(times uint64) error {
	d, ls := r.d, r.launches
	d.spare = append(d.spare, r.list...)
	r.list = nil
	var c *commands
	for i := range ls {
		if c == nil || d.pace.full(c.groups) || ls[i].Alone || ls[i-1].Alone {
			if c != nil {
				if err := d.end(c); err != nil {
					return err
				}
			}
			var err error
			if c, err = d.fresh(); err != nil {
				return err
			}
			r.list = append(r.list, c)
			if i == 0 && times != 0 {
				d.f.resetQuery.call(c.handle, uintptr(times), 0, uintptr(len(ls)+1))
				d.f.timestamp.call(c.handle, atAll, uintptr(times), 0)
			}
		}
		d.launch(c, &ls[i], r.args+gpu.Addr(r.places[i]))
		if times != 0 {
			d.f.timestamp.call(c.handle, atAll, uintptr(times), uintptr(i+1))
		}
	}
	if c != nil {
		if err := d.end(c); err != nil {
			return err
		}
	}
	return d.err
}

// Close gives the recording back when the device is done with it.
func (r *recording) Close() {
	d := r.d
	if d.handle == 0 {
		return
	}
	for _, c := range r.list {
		d.waitFor(c.ticket)
		d.spare = append(d.spare, c)
	}
	if r.list = nil; r.args != 0 {
		d.Release(r.args)
		r.args = 0
	}
}

// Replay starts the launches of a recording. Its command buffers are sent again when the device is done with them. If
// one of them took too long they are first cut by the pace of that one, and made whole again when the device turns out
// to be faster: another program may have kept it busy. Launches that are alone cannot be cut.
func (d *Driver) Replay(rec gpu.Recording) {
	r := rec.(*recording)
	var slow *commands
	groups := 0
	for _, c := range r.list {
		if d.waitFor(c.ticket); c.ticket > 0 && d.measure(c) > tooLong && c.groups > 0 {
			slow = c
		}
		groups += c.groups
	}
	if slow != nil {
		d.measure(slow) // others were faster
	}
	if slow != nil || len(r.list) > r.parts && !d.pace.full(groups) {
		d.fail(r.fill(0), "cutting a recording")
	}
	for _, c := range r.list {
		d.flush(c)
	}
}

// Times runs launches and says how long each took, with what it costs to wait for the one before. Of launches beside
// each other the first one takes all the time.
func (d *Driver) Times(ls []gpu.Launch) ([]time.Duration, error) {
	times := make([]time.Duration, len(ls))
	if d.pace.period == 0 || len(ls) == 0 {
		return times, nil
	}
	pool := new(uint64)
	qc := &queryPoolCreate{head: head{sType: stQueryPoolCreate}, typ: timestamps, count: uint32(len(ls) + 1)}
	err := d.f.createQuery.do(d.handle, uintptr(unsafe.Pointer(qc)), 0, uintptr(unsafe.Pointer(pool)))
	if err != nil {
		return nil, err
	}
	defer d.f.destroyQuery.call(d.handle, uintptr(*pool), 0)
	rec, err := d.record(ls, *pool)
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	d.Replay(rec)
	if err := d.Wait(); err != nil {
		return nil, err
	}
	t := make([]uint64, len(ls)+1)
	const bits64 = 1
	err = d.f.queryResults.do(d.handle, uintptr(*pool), 0, uintptr(len(t)), uintptr(8*len(t)),
		uintptr(unsafe.Pointer(&t[0])), 8, bits64)
	for i := range ls {
		times[i] = time.Duration(float64(t[i+1]-t[i]) * d.pace.period)
	}
	return times, err
}
