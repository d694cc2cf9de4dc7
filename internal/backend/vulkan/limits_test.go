//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"encoding/binary"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// What drivers of other devices have or lack, tried on the one that there is.

// TestMissing: a device that lacks something is not opened, and one line says what it lacks.
func TestMissing(t *testing.T) {
	d := openFirst(t, Options{})
	defer d.Close()
	if s := d.phys.missing(); s != "" {
		t.Fatalf("the device lacks %s", s)
	}
	for want, change := range map[string]func(p *physical){
		"Vulkan 1.3 (it has 1.2)": func(p *physical) { p.properties.API = 1<<22 | 2<<12 },
		"64-bit integers":         func(p *physical) { p.f2.F[featureInt64] = 0 },
		"16-bit storage":          func(p *physical) { p.f11.Storage16 = 0 },
		"buffer addresses":        func(p *physical) { p.f12.F[f12BufferAddress] = 0 },
		"timeline semaphores":     func(p *physical) { p.f12.F[f12Timeline] = 0 },
		"synchronization2":        func(p *physical) { p.f13.F[f13Sync2] = 0 },
		"integer dot products":    func(p *physical) { p.f13.F[f13IntDot] = 0 },
		"shuffles of subgroups":   func(p *physical) { p.p11.SubgroupOps = 1 },
		"workgroups of 256 with 22528 bytes of shared memory": func(p *physical) {
			p.properties.Limits.MaxComputeWorkGroupSize[0] = 128
		},
		"synchronization2, workgroups of 256 with 22528 bytes of shared memory": func(p *physical) {
			p.properties.Limits.MaxComputeSharedMemorySize, p.f13.F[f13Sync2] = 16<<10, 0
		},
	} {
		p := *d.phys
		change(&p)
		if got := p.missing(); got != want {
			t.Errorf("%q is missing, want %q", got, want)
		}
	}
}

// TestAskForMatrices: where a driver crashes when it is asked, or nobody wants them, it is not asked.
func TestAskForMatrices(t *testing.T) {
	has := physical{}
	has.matrices.Matrices, has.f12.F[f12MemoryModel], has.f12.F[f12Int8] = 1, 1, 1
	has.f13.F[f13SubgroupSizeControl], has.p13.MinSubgroup, has.p13.MaxSubgroup = 1, 8, 32
	for name, c := range map[string]struct {
		change func(p *physical)
		want   bool
	}{
		"32 of 8 to 32": {func(p *physical) {}, true},
		"none":          {func(p *physical) { p.matrices.Matrices = 0 }, false},
		"AMD's driver":  {func(p *physical) { p.driver.ID = driverAMD }, false},
		"64 alone":      {func(p *physical) { p.p13.MinSubgroup, p.p13.MaxSubgroup = 64, 64 }, false},
		"no choice":     {func(p *physical) { p.f13.F[f13SubgroupSizeControl] = 0 }, false},
	} {
		p := has
		if c.change(&p); p.mayHaveMatrices() != c.want {
			t.Errorf("subgroups and matrices: %s: asked %t, want %t", name, !c.want, c.want)
		}
	}
}

// TestQueues: a family that only computes is taken before one with graphics, one that only copies never.
func TestQueues(t *testing.T) {
	for _, c := range []struct {
		flags []uint32
		want  int
	}{{nil, -1}, {[]uint32{4, 1}, -1}, {[]uint32{4, 7, 6}, 2}, {[]uint32{7}, 0}, {[]uint32{2, 7, 2}, 0}} {
		var list []queueFamily
		for _, f := range c.flags {
			list = append(list, queueFamily{Flags: f})
		}
		if got := queueFor(list); got != c.want {
			t.Errorf("families %v: %d, want %d", c.flags, got, c.want)
		}
	}
}

// TestWithoutTimestamps: a queue need not have any.
func TestWithoutTimestamps(t *testing.T) {
	d := openFirst(t, Options{})
	calls := 0
	d.f.timestamp = fn(purego.NewCallback(func(_, _, _, _ uintptr) uintptr { calls++; return 0 }))
	d.pace = newPace(0)
	b, err := gpu.New(d)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := work(b); err != nil || calls > 0 {
		t.Errorf("%d timestamps are asked for, %v", calls, err)
	}
}

// TestMemoryTypes: memory that AMD's drivers list for debuggers is not taken.
func TestMemoryTypes(t *testing.T) {
	d := openFirst(t, Options{})
	defer d.Close()
	for i := range d.phys.memory.Types {
		d.phys.memory.Types[i].Flags |= 0x40
	}
	if _, err := d.Alloc(ownBytes); err == nil || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("memory that is coherent for devices: %v", err)
	}
	for i := range d.phys.memory.Types {
		d.phys.memory.Types[i].Flags &^= 0x40
	}
	if _, err := d.Alloc(ownBytes); err != nil {
		t.Error(err)
	}
}

// TestHeaps: memory comes from the kind that suits the device, and from the host's if the device's own is used up: by
// what the driver says is left, or because it has none in spite of that.
func TestHeaps(t *testing.T) {
	const own, host, both = 0, 1, 2 // types
	const much = 1 << 30
	var left, used [2]uint64
	budget := fn(purego.NewCallback(func(_ uintptr, m *memoryProperties2) uintptr {
		b := (*memoryBudget)(m.next)
		copy(b.Budget[:], left[:])
		copy(b.Usage[:], used[:])
		return 0
	}))
	planted(t, map[string]func(fn) fn{"vkGetPhysicalDeviceMemoryProperties2": func(fn) fn { return budget }})
	left = [2]uint64{much, much}
	d := openFirst(t, Options{})
	defer d.Close()
	d.phys.extensions = []string{"VK_EXT_memory_budget"}
	m := memoryProperties{NTypes: 3, NHeaps: 2}
	m.Heaps[0], m.Heaps[1] = memoryHeap{Size: 2 * much, Flags: memoryLocal}, memoryHeap{Size: much}
	m.Types[own] = memoryType{Flags: memoryLocal}
	m.Types[host] = memoryType{Flags: memoryVisible | memoryCoherent, Heap: 1}
	m.Types[both] = memoryType{Flags: memoryLocal | memoryVisible | memoryCoherent}
	d.phys.memory = m
	requirements, allocate := d.f.requirements, d.f.allocate
	d.f.requirements = fn(purego.NewCallback(func(a, b uintptr, need *memoryRequirements) uintptr {
		requirements.call(a, b, uintptr(unsafe.Pointer(need)))
		need.Types = 7
		return 0
	}))
	var tried []uint32
	full := map[uint32]bool{}
	d.f.allocate = fn(purego.NewCallback(func(a uintptr, m *memoryAllocate, b, c uintptr) uintptr {
		if tried = append(tried, m.typ); full[m.typ] {
			r := outOfDevice
			return uintptr(uint32(r))
		}
		m.typ = 0 // the device has one type
		return allocate.call(a, uintptr(unsafe.Pointer(m)), b, c)
	}))
	for _, c := range []struct {
		name       string
		kind       uint32
		left, used [2]uint64
		full       []uint32
		want       []uint32 // types that are tried; the last one has room
	}{
		{"card", kindDiscrete, [2]uint64{much, much}, [2]uint64{}, nil, []uint32{own}},
		{"card, small budget", kindDiscrete, [2]uint64{ownBytes - 1, much}, [2]uint64{}, nil, []uint32{host}},
		{"card, used", kindDiscrete, [2]uint64{much, much}, [2]uint64{much - 1, 0}, nil, []uint32{host}},
		{"card, used beyond its budget", kindDiscrete, [2]uint64{much, much}, [2]uint64{much + 1, 0}, nil, []uint32{host}},
		{"card, full", kindDiscrete, [2]uint64{much, much}, [2]uint64{}, []uint32{own, both}, []uint32{own, both, host}},
		{"chip", kindIntegrated, [2]uint64{much, much}, [2]uint64{}, nil, []uint32{both}},
		{"chip, full", kindIntegrated, [2]uint64{much, much}, [2]uint64{}, []uint32{own, both},
			[]uint32{both, own, both, host}},
		{"chip, small budget", kindIntegrated, [2]uint64{0, much}, [2]uint64{}, nil, []uint32{host}},
		{"nothing left", kindDiscrete, [2]uint64{ownBytes - 1, ownBytes - 1}, [2]uint64{}, nil, nil},
	} {
		d.phys.properties.Type = c.kind
		tried, left, used = nil, c.left, c.used
		clear(full)
		for _, f := range c.full {
			full[f] = true
		}
		a, err := d.Alloc(ownBytes)
		if !slices.Equal(tried, c.want) || (err == nil) != (len(c.want) > 0) {
			t.Errorf("%s: types %d are tried, want %d; %v", c.name, tried, c.want, err)
		}
		if err == nil {
			d.Release(a)
		} else if want := "out of memory, 2097151 of 2147483648 are free"; !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// copier is a device with kernels that copy and a megabyte to copy in.
func copier(t *testing.T) (*Driver, *gpu.Small, gpu.Addr) {
	t.Helper()
	d := openFirst(t, Options{})
	t.Cleanup(func() { d.Close() })
	a, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	return d, gpu.NewSmall(d.props), a
}

// copies copy the second half of a megabyte to the first, again and again.
func copies(d *Driver, s *gpu.Small, a gpu.Addr, n int) []gpu.Launch {
	var cs []gpu.Call
	for range n {
		cs = s.Copy(cs, gpu.Out{P: a, Stride: 1 << 16}, gpu.Rows(a+1<<19, 1<<16), 1, 1<<16)
		cs[len(cs)-1].Grid[0] = 64 // enough to learn from
	}
	ls, err := gpu.Emit(d, cs)
	d.fail(err, "copying")
	return ls
}

func launch(d *Driver, ls []gpu.Launch) {
	for i := range ls {
		d.Launch(&ls[i])
	}
}

// submissions counts those of what is done.
func submissions(t *testing.T, d *Driver, do func()) uint64 {
	t.Helper()
	if err := d.Wait(); err != nil {
		t.Fatal(err)
	}
	before := d.sent
	do()
	if err := d.Wait(); err != nil {
		t.Fatal(err)
	}
	return d.sent - before
}

// TestMostGroups: more workgroups than a driver allows are an error, not sent to it.
func TestMostGroups(t *testing.T) {
	d, s, a := copier(t)
	d.phys.properties.Limits.MaxComputeWorkGroupCount = [3]uint32{3, 65535, 65535}
	launch(d, copies(d, s, a, 1))
	if err := d.Wait(); err == nil || !strings.Contains(err.Error(), "workgroups, its driver allows 3") {
		t.Errorf("too many workgroups: %v", err)
	}
}

// TestWholeSubgroups: where subgroups have 64 lanes, only kernels whose workgroups are made of whole ones ask for them;
// the others exchange values through shared memory.
func TestWholeSubgroups(t *testing.T) {
	for name, code := range modules(t) {
		if x := localSize(code); x%64 != 0 && x != 1 && !narrow[name] { // 1: a constant says it
			t.Errorf("%s has workgroups of %d", name, x)
		}
	}
	d := openFirst(t, Options{})
	defer d.Close()
	d.shuffles, d.phys.p11.SubgroupSize = true, 64
	for name, want := range map[string]uint32{"select_merge": 0, "select_route": 0, "add_pack": 1, "rows_q4k_1": 1} {
		var flags, shuffles uint32
		d.f.createPipelines = fn(purego.NewCallback(func(_, _, _ uintptr, p *computePipeline) uintptr {
			flags, shuffles = p.stage.flags, *(*uint32)(p.stage.spec.data)
			if r := (*requiredSubgroup)(p.stage.next); r != nil && r.size != 64 {
				t.Errorf("%s: subgroups of %d", name, r.size)
			}
			return 0
		}))
		k := &kernel{name: name, shader: named(t, name).Shader()}
		if err := d.compile(k); err != nil || shuffles != want || flags != 2*want {
			t.Errorf("%s: shuffles %d, flags %d, want %d and %d; %v", name, shuffles, flags, want, 2*want, err)
		}
	}
}

// TestSmallScales: the self-test multiplies with halves that some drivers take for zero.
func TestSmallScales(t *testing.T) {
	d := openFirst(t, Options{})
	defer d.Close()
	trial, err := gpu.NewTrial(d, quant.Q6_K, 4, 256, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer trial.Close()
	for r := range 4 {
		most := float32(0)
		for _, v := range trial.Values[r*256:][:256] {
			most = max(most, v, -v)
		}
		if scale := most / (32 * 127); !(scale > 0x1p-24 && scale < 0x1p-14) { // codes and scales of sub-blocks
			t.Errorf("the scale of row %d is %g", r, scale)
		}
	}
}

// TestExactArithmetic: no driver may make one rounding of a product and a sum: it would not do so in every kernel that
// computes the same. Kernels that want one rounding say fma.
func TestExactArithmetic(t *testing.T) {
	const opDecorate, noContraction = 71, 42
	arithmetic := map[uint32]string{129: "sum", 131: "difference", 133: "product", 142: "product with a vector"}
	found := 0
	for name, code := range modules(t) {
		exact := map[uint32]bool{}
		for op, words := range instructions(code) {
			if op == opDecorate && words[1] == noContraction {
				exact[words[0]] = true
			}
			if arithmetic[op] != "" {
				found++
				if !exact[words[1]] {
					t.Errorf("%s: the rounding of a %s may be left out", name, arithmetic[op])
					break
				}
			}
		}
	}
	if found == 0 {
		t.Error("no kernel computes anything")
	}
}

// modules are the compiled kernels.
func modules(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := spvFiles.ReadDir("kernel/spv")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".spv.gz")
		if all[name], err = spirv(name); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// instructions are those of a module: their codes and what follows.
func instructions(code []byte) iter.Seq2[uint32, []uint32] {
	return func(yield func(op uint32, words []uint32) bool) {
		for b := code[20:]; len(b) >= 4; {
			first := binary.LittleEndian.Uint32(b)
			words := make([]uint32, first>>16-1)
			for i := range words {
				words[i] = binary.LittleEndian.Uint32(b[4+4*i:])
			}
			if !yield(first&0xffff, words) {
				return
			}
			b = b[first>>16*4:]
		}
	}
}

// localSize is the size of workgroups that a module declares.
func localSize(code []byte) uint32 {
	const opExecutionMode, modeLocalSize = 16, 17
	for op, words := range instructions(code) {
		if op == opExecutionMode && words[1] == modeLocalSize {
			return words[2]
		}
	}
	return 0
}

// TestLargeCache: a file of compiled kernels that has become too large begins anew.
func TestLargeCache(t *testing.T) {
	d := openFirst(t, Options{Cache: t.TempDir()})
	if d.writeCache(); d.readCache() == nil {
		t.Fatal("nothing was kept")
	}
	d.f.cacheData = fn(purego.NewCallback(func(_, _ uintptr, n *uint64, _ unsafe.Pointer) uintptr {
		*n = mostCached + 1
		return 0
	}))
	name := d.cacheFile()
	d.Close()
	if _, err := os.Stat(name); !os.IsNotExist(err) {
		t.Errorf("the old file is still there: %v", err)
	}
}

// TestAlone: what takes long is a submission by itself, launched or recorded, and the device does not learn from it how
// long others take.
func TestAlone(t *testing.T) {
	d, s, a := copier(t)
	ls := copies(d, s, a, 5)
	d.pace = pace{} // nothing is cut because it is slow
	ls[1].Alone, ls[2].Alone = true, true
	if n := submissions(t, d, func() { launch(d, ls) }); n != 4 {
		t.Errorf("%d submissions of launches, want 4", n)
	}
	rec, err := d.Record(ls)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	if n := submissions(t, d, func() { d.Replay(rec) }); n != 4 {
		t.Errorf("%d submissions of a recording, want 4", n)
	}
	for i, c := range rec.(*recording).list {
		if alone := i == 1 || i == 2; (c.groups == 0) != alone {
			t.Errorf("part %d counts %d workgroups", i, c.groups)
		}
	}
}

// TestCut: launches that are estimated to take long are several submissions, launched or recorded; a recording that
// took too long after all is cut before it is sent again.
func TestCut(t *testing.T) {
	d, s, a := copier(t)
	ls := copies(d, s, a, 8)
	d.pace = pace{perGroup: float64(longest)}
	if n := submissions(t, d, func() { launch(d, ls) }); n != 8 {
		t.Errorf("%d submissions of 8 slow launches", n)
	}
	slow := recorded(t, d, ls)
	if n := submissions(t, d, func() { d.Replay(slow) }); n != 8 {
		t.Errorf("%d submissions of a recording of 8 slow launches", n)
	}
	d.pace = pace{}
	if n := submissions(t, d, func() { launch(d, ls) }); n != 1 {
		t.Errorf("%d submissions of fast launches", n)
	}
	var took time.Duration
	only := uint64(0) // the command buffer that takes so long; 0: all do
	d.f.queryResults = fn(purego.NewCallback(func(_, pool, _, _, _ uintptr, t *[2]uint64, _, _ uintptr) uintptr {
		if *t = [2]uint64{1, 2}; only == 0 || only == uint64(pool) {
			t[1] += uint64(took)
		}
		return 0
	}))
	d.pace = pace{period: 1}
	rec := recorded(t, d, ls)
	data := make([]byte, 1<<18)
	for _, c := range []struct {
		took time.Duration // as measured of each submission before; the first time there was none
		want uint64
	}{{6 * longest, 1}, {longest, 1}, {6 * longest, 4}, {longest, 4}, {6 * longest, 8}, {6 * longest, 8}} {
		took = c.took
		for i := range data {
			data[i] = byte(int(c.took/longest) + i*7)
		}
		d.Upload(a+1<<19, data)
		list := &rec.list[0]
		if n := submissions(t, d, func() { d.Replay(rec) }); n != c.want {
			t.Errorf("%d submissions of a recording that took %v, want %d", n, c.took, c.want)
		}
		if c.took < tooLong && list != &rec.list[0] {
			t.Errorf("a recording that took %v is made anew", c.took)
		}
		got := make([]byte, len(data))
		if err := d.Download(got, a); err != nil || string(got) != string(data) {
			t.Errorf("a recording that took %v does not copy: %v", c.took, err)
		}
	}
	// It was somebody else who kept the device busy.
	took = 0
	n := uint64(8)
	for range 10 {
		n = submissions(t, d, func() { d.Replay(rec) })
	}
	if n != 1 {
		t.Errorf("%d submissions of a recording that has become fast", n)
	}
	took = 6 * longest
	// One of 20 parts is slow: it is the one that counts.
	ls = copies(d, s, a, 40)
	d.pace = pace{1, 0.6 * float64(longest) / float64(ls[0].Grid[0])}
	rec = recorded(t, d, ls)
	only = rec.list[0].queries
	for _, want := range []uint64{20, 40} {
		if n := submissions(t, d, func() { d.Replay(rec) }); n != want {
			t.Errorf("%d submissions of a recording with a slow part, want %d", n, want)
		}
	}
	// What cannot be cut is sent as it is.
	for i := range ls {
		ls[i].Alone = true
	}
	only, rec = 0, recorded(t, d, ls)
	list := &rec.list[0]
	for range 2 {
		if d.Replay(rec); list != &rec.list[0] {
			t.Error("a recording of launches that are alone is made anew")
		}
	}
	// Others use its command buffers when it is closed.
	if rec.Close(); d.done < d.sent {
		t.Errorf("a recording is closed when %d of %d submissions are done", d.done, d.sent)
	}
}

func recorded(t *testing.T, d *Driver, ls []gpu.Launch) *recording {
	t.Helper()
	rec, err := d.Record(ls)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rec.Close)
	return rec.(*recording)
}
