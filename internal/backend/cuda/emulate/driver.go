//go:build linux && (amd64 || arm64)

package emulate

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"strobe/internal/backend"
	"strobe/internal/backend/cuda"
	"strobe/internal/backend/gpu"
)

// Options configures a device. The zero value works.
type Options struct {
	Units   int    // multiprocessors; 0 means 8
	Memory  int    // bytes; 0 means 8 GiB
	Sources string // folder of kernels; empty for those of this repository
	Races   bool   // look for races, as if $STROBE_RACES were set: what nothing orders fails the launch
	Hopper  bool   // be a device of compute capability 9.0, for kernels that emulate_hopper.h is enough for
}

// library is the compiled kernels and the functions of emulate.cc.
type library struct {
	file                                     string
	handle                                   uintptr
	alloc, release, move, fill, errorMessage uintptr
}

var (
	libraries   = map[libraryKey]*library{}
	librariesMu sync.Mutex
	running     sync.Mutex // the run time of the emulation exists once
)

type libraryKey struct {
	dir   string
	races bool
}

func load(k libraryKey) (*library, error) {
	librariesMu.Lock()
	defer librariesMu.Unlock()
	if l := libraries[k]; l != nil {
		return l, nil
	}
	file, err := build(k.dir, k.races)
	if err != nil {
		return nil, err
	}
	l := &library{file: file}
	if l.handle, err = purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL); err != nil {
		return nil, err
	}
	for name, f := range map[string]*uintptr{"emu_alloc": &l.alloc, "emu_release": &l.release, "emu_move": &l.move,
		"emu_fill": &l.fill, "emu_error": &l.errorMessage} {
		if *f, err = purego.Dlsym(l.handle, name); err != nil {
			return nil, err
		}
	}
	libraries[k] = l
	return l, nil
}

// Device is an emulated GPU. Launches are done when Launch returns; failures are stored for Wait all the same.
type Device struct {
	lib   *library
	props gpu.Props
	live  []block // allocations by address
	used  int
	err   error

	Allocs     int // allocations so far
	Launches   int // kernels launched so far, also by Replay
	FailAlloc  int // if positive: the allocation that fails, counted from now
	FailLaunch int // if positive: the launch that fails, counted from now
}

type block struct {
	addr  gpu.Addr
	bytes int
}

var _ gpu.Driver = (*Device)(nil)

// New opens a device; the first one in a process may take a while to compile the kernels.
func New(o Options) (*Device, error) {
	if o.Units == 0 {
		o.Units = 8
	}
	if o.Memory == 0 {
		o.Memory = 8 << 30
	}
	if o.Sources == "" {
		o.Sources = Sources()
	}
	lib, err := load(libraryKey{o.Sources, o.Races || os.Getenv("STROBE_RACES") != ""})
	if err != nil {
		return nil, err
	}
	props := gpu.Props{Name: "emulated GPU", Major: 8, Minor: 0, Units: o.Units, Memory: o.Memory, SharedBlock: 163 << 10}
	if o.Hopper {
		props.Major, props.SharedBlock = 9, 227<<10
	}
	if !o.Hopper {
		if err := cuda.Pretend(&props); err != nil {
			return nil, err
		}
	}
	return &Device{lib: lib, props: props}, nil
}

// Props describes the device.
func (d *Device) Props() gpu.Props { return d.props }

// Free returns the memory that is left.
func (d *Device) Free() (free, total int) { return d.props.Memory - d.used, d.props.Memory }

// Live returns the number of allocations that were not released.
func (d *Device) Live() int { return len(d.live) }

// Alloc returns memory that is full of NaN.
func (d *Device) Alloc(bytes int) (gpu.Addr, error) {
	d.Allocs++
	if d.FailAlloc > 0 {
		if d.FailAlloc--; d.FailAlloc == 0 {
			return 0, fmt.Errorf("allocating %d bytes: failing on purpose", bytes)
		}
	}
	if bytes < 0 || d.used+bytes > d.props.Memory {
		return 0, fmt.Errorf("allocating %d bytes: %w, %d of %d are free", bytes, backend.ErrNoMemory, d.props.Memory-d.used,
			d.props.Memory)
	}
	bytes = max(bytes, 1)
	running.Lock()
	p, _, _ := purego.SyscallN(d.lib.alloc, uintptr(bytes))
	running.Unlock()
	if p == 0 {
		return 0, fmt.Errorf("allocating %d bytes: the host is out of memory", bytes)
	}
	a := gpu.Addr(p)
	i := sort.Search(len(d.live), func(i int) bool { return d.live[i].addr > a })
	d.live = slices.Insert(d.live, i, block{a, bytes})
	d.used += bytes
	return a, nil
}

// Release gives memory back. Whoever uses it later fails.
func (d *Device) Release(a gpu.Addr) {
	if a == 0 {
		return
	}
	i := sort.Search(len(d.live), func(i int) bool { return d.live[i].addr >= a })
	if i == len(d.live) || d.live[i].addr != a {
		d.fail(fmt.Errorf("releasing %#x, which is not an allocation", a))
		return
	}
	purego.SyscallN(d.lib.release, uintptr(a), uintptr(d.live[i].bytes))
	d.used -= d.live[i].bytes
	d.live = slices.Delete(d.live, i, i+1)
}

func (d *Device) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// inside finds the allocation that holds a.
func (d *Device) inside(a gpu.Addr) (block, bool) {
	i := sort.Search(len(d.live), func(i int) bool { return d.live[i].addr > a }) - 1
	if i < 0 || a > d.live[i].addr+gpu.Addr(d.live[i].bytes) {
		return block{}, false
	}
	return d.live[i], true
}

// check reports whether bytes from a on are memory of the device, and fails if not.
func (d *Device) check(op string, a gpu.Addr, bytes int) bool {
	b, ok := d.inside(a)
	if ok = ok && bytes >= 0 && a+gpu.Addr(bytes) <= b.addr+gpu.Addr(b.bytes); !ok {
		d.fail(fmt.Errorf("%s: %d bytes at %#x are not in an allocation", op, bytes, a))
	}
	return ok
}

// Upload copies from the host.
func (d *Device) Upload(dst gpu.Addr, src []byte) {
	if len(src) > 0 && d.check("uploading", dst, len(src)) {
		purego.SyscallN(d.lib.move, uintptr(dst), uintptr(unsafe.Pointer(&src[0])), uintptr(len(src)))
	}
}

// Download copies to the host.
func (d *Device) Download(dst []byte, src gpu.Addr) error {
	if len(dst) > 0 && d.err == nil && d.check("downloading", src, len(dst)) {
		purego.SyscallN(d.lib.move, uintptr(unsafe.Pointer(&dst[0])), uintptr(src), uintptr(len(dst)))
	}
	return d.err
}

// Copy copies on the device.
func (d *Device) Copy(dst, src gpu.Addr, bytes int) {
	if bytes != 0 && d.check("copying to", dst, bytes) && d.check("copying from", src, bytes) {
		purego.SyscallN(d.lib.move, uintptr(dst), uintptr(src), uintptr(bytes))
	}
}

// Fill sets bytes.
func (d *Device) Fill(dst gpu.Addr, value byte, bytes int) {
	if bytes != 0 && d.check("filling", dst, bytes) {
		purego.SyscallN(d.lib.fill, uintptr(dst), uintptr(value), uintptr(bytes))
	}
}

type kernel struct {
	name string
	fn   uintptr
	args int // bytes of its parameter
}

// Compiling is how long kernels were compiled, which is done before a test begins.
func (d *Device) Compiling() time.Duration { return 0 }

// Kernel finds a kernel.
func (d *Device) Kernel(k gpu.Kernel) (gpu.Handle, error) {
	name := k.Name()
	fn, err := purego.Dlsym(d.lib.handle, name)
	if err != nil {
		return nil, fmt.Errorf("no kernel %q", name)
	}
	size, err := purego.Dlsym(d.lib.handle, name+"_args")
	if err != nil {
		return nil, fmt.Errorf("no kernel %q", name)
	}
	return &kernel{name, fn, int(*(*int32)(inLibrary(size)))}, nil
}

// inLibrary is a place in the library's own memory. It is not read with the library's move: a move that touches the
// device's range orders the launches before and after it, for the race detector, and Go's heap, which begins at a
// random address, may lie in that range.
func inLibrary(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

// The range that emulate.cc takes addresses from.
const rangeFrom, rangeTo = 0x3a7b00000000, 0x3a7b00000000 + 1<<40

// launch mirrors EmuLaunch.
type launch struct {
	grid                            [3]int32
	threads, shared, reverse, early int32
}

// Launch runs a kernel. Every other launch runs blocks and threads in reverse, so that kernels that rely on an order
// show it.
func (d *Device) Launch(l *gpu.Launch) {
	d.Launches++
	if d.FailLaunch > 0 {
		if d.FailLaunch--; d.FailLaunch == 0 {
			d.fail(fmt.Errorf("launching %s: failing on purpose", l.Name))
		}
	}
	if d.err != nil {
		return
	}
	if err := d.run(l); err != nil {
		d.fail(fmt.Errorf("launching %s: %w", l.Name, err))
	}
}

func (d *Device) run(l *gpu.Launch) error {
	k, ok := l.Kernel.(*kernel)
	if !ok {
		return fmt.Errorf("%T is not a kernel of this device", l.Kernel)
	}
	if len(l.Args) != k.args {
		return fmt.Errorf("%d bytes of arguments, kernel %s takes %d", len(l.Args), k.name, k.args)
	}
	for i := 0; i+8 <= len(l.Args); i += 8 {
		a := *(*uint64)(unsafe.Pointer(&l.Args[i]))
		if a >= rangeFrom && a < rangeTo {
			if _, ok := d.inside(gpu.Addr(a)); !ok {
				return fmt.Errorf("argument at byte %d of kernel %s is the address %#x, which is not in an allocation", i, k.name, a)
			}
		}
	}
	if l.Shared > d.props.SharedBlock {
		return fmt.Errorf("%d bytes of shared memory, the device has %d for a block", l.Shared, d.props.SharedBlock)
	}
	for _, n := range append(l.Grid[:], l.Threads) {
		if n <= 0 || n > math.MaxInt32 {
			return fmt.Errorf("grid %v of %d threads", l.Grid, l.Threads)
		}
	}
	c := launch{[3]int32{int32(l.Grid[0]), int32(l.Grid[1]), int32(l.Grid[2])}, int32(l.Threads), int32(l.Shared),
		int32(d.Launches & 1), 0}
	if l.Early {
		c.early = 1
	}
	running.Lock()
	defer running.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if r, _, _ := purego.SyscallN(k.fn, uintptr(unsafe.Pointer(&l.Args[0])),
		uintptr(unsafe.Pointer(&c))); int32(r) != 0 {
		text := make([]byte, 1<<14)
		at, _, _ := purego.SyscallN(d.lib.errorMessage)
		copy(text, unsafe.Slice((*byte)(inLibrary(at)), len(text)))
		return errors.New(d.lib.lines(string(text[:slices.Index(text, 0)])))
	}
	return nil
}

// symbolizer comes with the compiler, if its recommended packages are installed as well.
const symbolizer = "llvm-symbolizer-19"

var (
	place   = regexp.MustCompile(`@[0-9a-f]+`)
	numbers = regexp.MustCompile(` (0x[0-9a-f]+|[0-9,]+)`) // of blocks, threads and bytes; lines follow a colon
)

// lines puts lines of source where a message has places in the library, and leaves lines out that say the same again.
func (l *library) lines(text string) string {
	places := place.FindAllString(text, -1)
	if len(places) == 0 {
		return text
	}
	args := []string{"--functions=none", "--basenames", "--obj=" + l.file}
	for _, p := range places {
		args = append(args, "0x"+p[1:])
	}
	out, err := exec.Command(symbolizer, args...).Output()
	if err != nil {
		return text + "\n" + err.Error()
	}
	stacks := strings.Split(string(out), "\n\n") // frames of inlined functions, the innermost first
	i := 0
	text = place.ReplaceAllStringFunc(text, func(string) string {
		frames := strings.Fields(stacks[i])
		frames = slices.DeleteFunc(frames, func(f string) bool { return strings.HasPrefix(f, "emulate") })
		i++
		for j, f := range frames {
			frames[j] = f[:strings.LastIndexByte(f, ':')] // without the column
		}
		return strings.Join(frames, " < ")
	})
	var kept, seen []string
	for line := range strings.Lines(text) {
		if what := numbers.ReplaceAllString(line, ""); !slices.Contains(seen, what) {
			kept, seen = append(kept, line), append(seen, what)
		}
	}
	return strings.Join(kept, "")
}

// recording is a list of launches with their arguments as they were.
type recording []gpu.Launch

func (r recording) Close() {}

// Record keeps launches.
func (d *Device) Record(ls []gpu.Launch) (gpu.Recording, error) {
	r := make(recording, len(ls))
	for i, l := range ls {
		if _, ok := l.Kernel.(*kernel); !ok {
			return nil, fmt.Errorf("recording %s: %T is not a kernel of this device", l.Name, l.Kernel)
		}
		l.Args = slices.Clone(l.Args)
		r[i] = l
	}
	return r, nil
}

// Replay runs a recording.
func (d *Device) Replay(r gpu.Recording) {
	for i, l := range r.(recording) {
		l.Early = l.Early && i > 0 // recordings do not overlap
		d.Launch(&l)
	}
}

// Wait returns the first failure.
func (d *Device) Wait() error { return d.err }

// Close releases everything.
func (d *Device) Close() error {
	for len(d.live) > 0 {
		d.Release(d.live[len(d.live)-1].addr)
	}
	return nil
}
