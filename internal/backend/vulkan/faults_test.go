//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// validate has the validation layer check every call.
var validate = os.Getenv("STROBE_VULKAN_VALIDATE") != ""

// tryFirst opens the first device, in a test that is long therefore. What the validation layer says fails the test.
func tryFirst(t *testing.T, opt Options) (*Driver, error) {
	t.Helper()
	testkit.Long(t)
	opt.Validate = validate
	t.Cleanup(func() {
		i, err := instanceOf(validate)
		if err != nil {
			return
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		for _, m := range i.messages {
			t.Errorf("the validation layer says: %s", m)
		}
		i.messages = nil
	})
	d, err := Open(0, opt)
	if err != nil {
		return nil, err
	}
	return d.(*Driver), nil
}

// openFirst opens the first device.
func openFirst(t *testing.T, opt Options) *Driver {
	t.Helper()
	d, err := tryFirst(t, opt)
	if err != nil {
		refused(t, err)
	}
	return d
}

// refused ends a test that needs a device: it is skipped where there is none, unless $STROBE_REQUIRE_VULKAN is set.
func refused(t *testing.T, err error) {
	t.Helper()
	if ds, _ := Devices(); os.Getenv("STROBE_REQUIRE_VULKAN") == "" && len(ds) == 0 {
		t.Skipf("needs a Vulkan driver, such as mesa-vulkan-drivers: %v", err)
	}
	t.Fatal(err)
}

// TestSelf: the self-test chooses shuffles where they are right and wanted.
func TestSelf(t *testing.T) {
	d := openFirst(t, Options{})
	t.Logf("%s (%s): subgroups of %d, %s", d.dev.Name, d.dev.Driver, d.phys.p11.SubgroupSize, d.Paths())
	for _, s := range d.phys.shapes {
		t.Logf("cooperative matrices: %d x %d x %d, components %d and %d to %d, scope %d", s.M, s.N, s.K, s.A, s.B, s.Result, s.Scope)
	}
	if can := d.canShuffle(); d.shuffles != can {
		t.Errorf("shuffles are used: %t; the device has them: %t", d.shuffles, can)
	}
	d.Close()
	if d := openFirst(t, Options{Shared: true}); d.shuffles {
		t.Error("shuffles are used though nobody wanted them")
	} else {
		d.Close()
	}
}

// TestWrongKernels: a device that sums or multiplies wrongly is refused; one whose shuffles or matrices are wrong does
// without them.
func TestWrongKernels(t *testing.T) {
	good := openFirst(t, Options{})
	good.Close()
	const q2k, q4k = uint32(gpu.TileQ2K), uint32(gpu.TileQ4K)
	for name, c := range map[string]struct {
		wrong []uint32 // constants
		want  string
	}{
		"small_norm_short": {[]uint32{32, 64}, "sums are off"}, // half of the threads it counts on
		"small_norm_long":  {[]uint32{256, 128}, "sums are off"},
		"rows_q4k_3":       {[]uint32{q2k, 3}, "products of 3 rows with Q4_K are off"},
		"rows_q6k_3":       {[]uint32{q4k, 3}, "products of 3 rows with Q6_K are off"},
		"rows_q8_3":        {[]uint32{q4k, 3}, "products of 3 rows with Q8_0 are off"},
		"rows_q8_1":        {[]uint32{q4k, 1}, "products of 1 rows with Q8_0 are off"},
		"tiles_q4k_16_128": {[]uint32{q2k, 16, 128}, ""},
		"tiles_q6k_8_128":  {[]uint32{q4k, 8, 128}, ""},
	} {
		shaderOf = func(k gpu.Kernel) gpu.Shader {
			s := k.Shader()
			if k.Name() == name {
				s.Constants = c.wrong
			}
			return s
		}
		d, err := tryFirst(t, Options{Loops: true})
		shaderOf = gpu.Kernel.Shader
		switch {
		case err == nil:
			if matrices := d.Props().Matrices; c.want != "" || matrices {
				t.Errorf("%s is wrong: the device is opened, want an error %q; with matrices: %t", name, c.want, matrices)
			}
			d.Close()
		case c.want == "" || !strings.Contains(err.Error(), "it computes wrongly: "+c.want):
			t.Errorf("%s is wrong: %v, want %q", name, err, c.want)
		}
	}
	if !good.canShuffle() {
		t.Skipf("needs a Vulkan device whose subgroups have shuffles, as Mesa's lavapipe; %s has none", good.dev.Name)
	}
	// The norm of long rows, with fewer threads where values are shuffled: other sums, or the same in another order.
	for _, wrong := range [][2]uint32{{256, 128}, {128, 128}} {
		changed := false
		create := func(real fn) fn {
			return fn(purego.NewCallback(func(a, b, n uintptr, p *computePipeline, c, out uintptr) uintptr {
				const shuffled, each, size = 0, 1, 2
				v := unsafe.Slice((*uint32)(p.stage.spec.data), p.stage.spec.n)
				if len(v) == 3 && v[shuffled] == 1 && v[each] == 256 && v[size] == 256 {
					v[each], v[size], changed = wrong[0], wrong[1], true
				}
				return real.call(a, b, n, uintptr(unsafe.Pointer(p)), c, out)
			}))
		}
		t.Run(fmt.Sprint(wrong), func(t *testing.T) {
			planted(t, map[string]func(fn) fn{"vkCreateComputePipelines": create})
			d := openFirst(t, Options{})
			defer d.Close()
			if d.shuffles || !changed {
				t.Errorf("shuffles are used: %t; they are wrong: %t", d.shuffles, changed)
			}
		})
	}
}

// TestOnce: a card that two drivers have is one device, with the better driver; software comes last.
func TestOnce(t *testing.T) {
	card, soft := [16]byte{1}, [16]byte{2}
	got := once([]Device{
		{Name: "software", kind: kindSoftware, uuid: soft, number: 0},
		{Name: "card, AMD's driver", kind: kindDiscrete, uuid: card, rank: 1, number: 1},
		{Name: "card, Mesa's driver", kind: kindDiscrete, uuid: card, rank: 0, number: 2},
		{Name: "chip", kind: kindIntegrated, uuid: [16]byte{3}, number: 3},
		{Name: "other card, Mesa's old driver", kind: kindDiscrete, uuid: [16]byte{4}, Missing: "Vulkan 1.3", number: 6},
		{Name: "other card, AMD's driver", kind: kindDiscrete, uuid: [16]byte{4}, rank: 2, number: 7},
		{Name: "no UUID", kind: kindIntegrated, number: 4}, {Name: "no UUID either", kind: kindIntegrated, number: 5},
	})
	var names []string
	for i, d := range got {
		if names = append(names, d.Name); d.Index != i {
			t.Errorf("%s has the index %d, want %d", d.Name, d.Index, i)
		}
	}
	const want = "card, Mesa's driver; other card, AMD's driver; chip; no UUID; no UUID either; software"
	if s := strings.Join(names, "; "); s != want {
		t.Errorf("devices: %s", s)
	}
}

// failing replaces a function of the driver by one that returns r from the n-th call on.
func failing(f *fn, n int, r result) {
	real, calls := *f, 0
	*f = fn(purego.NewCallback(func(a, b, c, d uintptr) uintptr {
		if calls++; calls > n {
			return uintptr(uint32(r))
		}
		return real.call(a, b, c, d)
	}))
}

// planted has Vulkan answer with other functions until the test ends: of each name the one that make makes of the real
// one.
func planted(t *testing.T, plants map[string]func(real fn) fn) {
	t.Helper()
	testkit.Long(t)
	inst, err := instanceOf(validate)
	if err != nil {
		refused(t, err)
	}
	finder := func(real fn) func(of uintptr, name unsafe.Pointer) uintptr {
		return func(of uintptr, name unsafe.Pointer) uintptr {
			f := fn(real.call(of, uintptr(name)))
			if plant := plants[cString(name)]; plant != nil {
				f = plant(f)
			}
			return uintptr(f)
		}
	}
	plants["vkGetDeviceProcAddr"] = func(real fn) fn { return fn(purego.NewCallback(finder(real))) }
	was := inst.proc
	inst.proc = fn(purego.NewCallback(finder(was)))
	t.Cleanup(func() { inst.proc = was })
}

// TestMissingFunction: a driver without a function that is needed is not opened, and one line names the function.
func TestMissingFunction(t *testing.T) {
	for _, name := range []string{"vkWaitSemaphores", "vkDeviceWaitIdle", "vkDestroyDevice", "vkGetDeviceQueue"} {
		t.Run(name, func(t *testing.T) {
			planted(t, map[string]func(fn) fn{name: func(fn) fn { return 0 }})
			if _, err := tryFirst(t, Options{}); err == nil || !strings.HasSuffix(err.Error(), ": its driver has no "+name) {
				t.Errorf("opened: %v", err)
			}
		})
	}
}

// TestLostInTest: a device that is lost while it is tried out is refused, unless matrices did it: then it is opened
// anew and does without them.
func TestLostInTest(t *testing.T) {
	opened, calls, lost := 0, 0, math.MaxInt // the first device is lost at that call
	planted(t, map[string]func(fn) fn{"vkQueueSubmit2": func(real fn) fn {
		opened, calls = opened+1, 0
		first := opened == 1
		return fn(purego.NewCallback(func(a, b, c, d uintptr) uintptr {
			if calls++; first && calls >= lost {
				r := deviceLost
				return uintptr(uint32(r))
			}
			return real.call(a, b, c, d)
		}))
	}})
	openFirst(t, Options{Plain: true}).Close()
	plain := calls
	openFirst(t, Options{Loops: true}).Close()
	all := calls
	if plain < 3 || all < plain+2 {
		t.Fatalf("%d submissions without matrices, %d with them", plain, all)
	}
	for _, lost = range []int{1, plain, plain + 1} {
		opened = 0
		d, err := tryFirst(t, Options{Loops: true})
		if lost <= plain {
			if err == nil || !errors.Is(err, deviceLost) || !strings.HasPrefix(err.Error(), "the self-test failed: ") {
				t.Errorf("lost at submission %d: %v", lost, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("lost at submission %d, by matrices: %v", lost, err)
			continue
		}
		if err := d.Wait(); err != nil || opened != 2 || d.Props().Matrices {
			t.Errorf("lost at submission %d, by matrices: %v, opened %d times, with matrices: %t", lost, err, opened,
				d.Props().Matrices)
		}
		d.Close()
	}
}

// work does a little of everything on a backend.
func work(b *gpu.Backend) error {
	w := make([]float32, 8*512)
	raw := make([]byte, 8*quant.Q4_K.RowBytes(512))
	if err := quant.Quantize(quant.Q4_K, raw, w); err != nil {
		return err
	}
	m, err := b.Weight(backend.Matrix{Name: "w", Type: quant.Q4_K, Rows: 8, Cols: 512, Experts: 1, Data: raw})
	if err != nil {
		return err
	}
	x, err := b.Alloc(2, 512)
	if err != nil {
		return err
	}
	if _, err := b.Alloc(1024, 1024); err != nil { // a buffer of its own
		return err
	}
	y, err := b.Alloc(2, 8)
	if err != nil {
		return err
	}
	kv, err := b.NewKVPool(backend.KVLayout{Page: 64,
		Layers: []backend.KVDims{{Heads: 1, KeyDim: 64, ValueDim: 64, Key: quant.F16, Value: quant.F16}}})
	if err != nil {
		return err
	}
	if _, err := kv.Alloc(); err != nil {
		return err
	}
	for range 6 { // launched one by one, then recorded
		b.BeginStep(nil)
		b.MatMul(x, backend.Product{W: m, Y: y})
		b.Add(y, y, y)
		b.EndStep()
		b.Read(y)
	}
	return b.Sync()
}

// TestWords: results that users meet have words, others a number.
func TestWords(t *testing.T) {
	for r, want := range map[result]string{
		-1: "out of host memory", -2: "out of device memory", -3: "initialisation failed", -4: "the device is lost",
		-5: "memory cannot be mapped", -6: "a layer is not present", -7: "an extension is not present",
		-8: "a feature is not present", -9: "the driver is incompatible", -10: "too many objects",
		-11: "a format is not supported", -12: "a pool is fragmented", -13: "unknown error of the driver",
		-14: "Vulkan error -14", -1000161000: "Vulkan error -1000161000",
	} {
		if got := r.Error(); got != want {
			t.Errorf("result %d: %q, want %q", int32(r), got, want)
		}
	}
}

// TestFaults: memory that runs out at any allocation and a device that is lost at any submission end in an error that
// says so, and the device can be closed.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(d *Driver) *fn
		r    result
		want string
	}{
		{"memory", func(d *Driver) *fn { return &d.f.allocate }, outOfDevice, "out of memory"},
		{"submit", func(d *Driver) *fn { return &d.f.submit }, deviceLost, "and what follows: the device is lost"},
		{"wait", func(d *Driver) *fn { return &d.f.waitSemaphores }, deviceLost, "waiting: the device is lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			failed := 0
			for n := 0; ; n++ {
				d := openFirst(t, Options{})
				failing(c.f(d), n, c.r)
				b, err := gpu.New(d)
				if err == nil {
					err = work(b)
				}
				if err == nil {
					b.Close()
					break
				}
				failed++
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("call %d fails: %v, want %q in it", n, err, c.want)
				}
				if c.r == deviceLost && !errors.Is(d.Wait(), deviceLost) {
					t.Errorf("call %d fails: afterwards the device says %v", n, d.Wait())
				}
				if b != nil {
					b.Close()
				}
			}
			if failed < 2 {
				t.Errorf("only %d calls failed", failed)
			}
		})
	}
}

// TestHangs: a device that does not answer is given up on, when it has done nothing for a while, and closing it neither
// waits for it nor takes away what it may use.
func TestHangs(t *testing.T) {
	for _, software := range []bool{false, true} {
		d := openFirst(t, Options{})
		d.dev.Software = software
		a, err := d.Alloc(4)
		if err != nil {
			t.Fatal(err)
		}
		real := d.f
		never := func(what string) fn {
			return fn(purego.NewCallback(func(_, _, _, _ uintptr) uintptr {
				t.Errorf("software: %t: %s is called", software, what)
				return 0
			}))
		}
		asked, done := 0, uint64(0)
		d.f.counter = fn(purego.NewCallback(func(_, _ uintptr, v *uint64) uintptr { *v = done; return 0 }))
		d.f.waitIdle, d.f.destroy, d.f.destroyBuffer = never("vkDeviceWaitIdle"), never("vkDestroyDevice"),
			never("vkDestroyBuffer")
		for range 2 {
			d.Fill(a, 1, 4)
			d.flush(nil)
		}
		patience := d.patience()
		d.f.waitSemaphores = fn(purego.NewCallback(func(_, _, _ uintptr) uintptr {
			if asked++; asked == patience-1 {
				done = d.sent - 1
			}
			return uintptr(timeout)
		}))
		err = d.Wait()
		if want := "waiting: no answer for "; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("software: %t: %v, want %q in it", software, err, want)
		}
		if want := 2*patience - 1; asked != want {
			t.Errorf("software: %t: asked %d times, want %d", software, asked, want)
		}
		left := *d
		if d.Close(); t.Failed() {
			return // some of it may be gone
		}
		left.f, left.hangs = real, false
		left.Close()
	}
}

// TestReopened: a device that was lost in the middle of its work can be closed and opened anew, and computes as before.
func TestReopened(t *testing.T) {
	product := func(d *Driver) ([]float32, error) {
		trial, err := gpu.NewTrial(d, quant.Q4_K, 40, 512, 3)
		if err != nil {
			return nil, err
		}
		defer trial.Close()
		return trial.Product(3, false), trial.Err
	}
	d := openFirst(t, Options{})
	want, err := product(d)
	if err != nil {
		t.Fatal(err)
	}
	failing(&d.f.submit, 0, deviceLost)
	if _, err := product(d); !errors.Is(err, deviceLost) || !strings.Contains(err.Error(), "submitting pack and what") {
		t.Errorf("a lost device: %v", err)
	}
	d.Close()
	d = openFirst(t, Options{})
	defer d.Close()
	if got, err := product(d); err != nil || !gpu.SameBits(got, want) {
		t.Errorf("opened anew: %v, the same bits: %t", err, gpu.SameBits(got, want))
	}
}

// TestPace: what takes long is cut; what was thought to take long and does not is cut less.
func TestPace(t *testing.T) {
	p := newPace(1)
	if p.full(1000) || !p.full(10_000) {
		t.Errorf("at first a workgroup is thought to take %v ns", p.perGroup)
	}
	p.took(1000, longest*2)
	if p.full(400) || !p.full(600) {
		t.Errorf("after a slow submission a workgroup is thought to take %v ns", p.perGroup)
	}
	p.took(10, tooLong-1) // says little
	p.took(0, tooLong)    // says nothing
	if p.full(400) || !p.full(600) {
		t.Errorf("after few workgroups one is thought to take %v ns", p.perGroup)
	}
	for range 100 {
		p.took(1000, longest/1000)
	}
	if p.full(500_000) {
		t.Errorf("after fast submissions a workgroup is thought to take %v ns", p.perGroup)
	}
	if p.took(10, tooLong); !p.full(3) {
		t.Errorf("after a few slow workgroups one is thought to take %v ns", p.perGroup)
	}
}

// TestArena: pieces that are given back become one again.
func TestArena(t *testing.T) {
	a := &arena{&buffer{addr: 4096}, []span{{0, 4 * align}}, map[gpu.Addr]int{}}
	var got []gpu.Addr
	for range 4 {
		at, ok := a.take(align)
		if !ok {
			t.Fatal("no room")
		}
		got = append(got, at)
	}
	if _, ok := a.take(align); ok {
		t.Error("more room than there is")
	}
	for _, i := range []int{1, 3, 0, 2} {
		a.give(int(got[i]-a.addr), align)
	}
	if at, ok := a.take(4 * align); !ok || at != 4096 {
		t.Errorf("all of it: %v at %d, free %v", ok, at, a.free)
	}
}

// TestMemory: what is uploaded comes back, through staging memory and past it, and copies and fills happen in order.
func TestMemory(t *testing.T) {
	d := openFirst(t, Options{})
	defer d.Close()
	n := stagingBytes + 17*4
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * 31 >> 4)
	}
	a, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, visible := range []bool{true, false} {
		if !visible { // as on a card whose memory the host does not see
			for _, m := range d.buffers {
				if m.addr == a || m.addr == b {
					m.host, m.cached = nil, false
				}
			}
		}
		d.Fill(b, 0xff, n)
		d.Upload(a, data)
		d.Copy(b, a, n)
		d.Fill(a, 0, n)
		got := make([]byte, n)
		if err := d.Download(got, b); err != nil || string(got) != string(data) {
			t.Errorf("host sees the memory: %t: what was uploaded does not come back: %v", visible, err)
		}
		if err := d.Download(got, a); err != nil || string(got) != string(make([]byte, n)) {
			t.Errorf("host sees the memory: %t: what was filled is not 0: %v", visible, err)
		}
	}
	if _, err := d.Alloc(1 << 50); err == nil {
		t.Error("2^50 bytes of memory")
	}
	d.Release(a)
	d.Release(b)
	if err := d.Wait(); err != nil || len(d.dead) > 0 {
		t.Errorf("after everything: %v, %d buffers wait to be freed", err, len(d.dead))
	}
}

// TestKernels: every module is there and some kernel uses it.
func TestKernels(t *testing.T) {
	used := map[string]bool{matrixModule: true}
	for _, k := range gpu.Kernels() {
		s := k.Shader()
		if s.Module != "" {
			used[s.Module] = true
		}
		if size := reflect.TypeOf(k.Args()).Size(); s.Pushed && size > pushBytes {
			t.Errorf("%s pushes %d bytes, want at most %d", k.Name(), size, pushBytes)
		}
	}
	files, err := spvFiles.ReadDir("kernel/spv")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".spv.gz")
		b, err := spirv(name)
		if err != nil || len(b)%4 != 0 || !used[name] {
			t.Errorf("%s: %d bytes, used: %t, %v", f.Name(), len(b), used[name], err)
		}
		delete(used, name)
		if i, err := f.Info(); err == nil {
			total += int(i.Size())
		}
	}
	if len(used) > 0 || total > 1<<20 {
		t.Errorf("modules that are missing: %v; %d bytes in all, want at most 1 MiB", used, total)
	}
	d := &Driver{kernels: map[gpu.Kernel]*kernel{}}
	if _, err := d.Kernel(named(t, "post_pack")); err == nil || !strings.Contains(err.Error(), "post_pack is for CUDA") {
		t.Errorf("a kernel without a shader: error %v", err)
	}
}

// named is a kernel of the catalogue.
func named(t *testing.T, name string) gpu.Kernel {
	t.Helper()
	for _, k := range gpu.Kernels() {
		if k.Name() == name {
			return k
		}
	}
	t.Fatalf("there is no kernel %s", name)
	return nil
}

// TestCache: what was compiled is kept, given to the driver again, and thrown away when it is damaged.
func TestCache(t *testing.T) {
	dir := t.TempDir()
	d := openFirst(t, Options{Cache: dir})
	name := d.cacheFile()
	d.Close()
	if d.readCache() == nil { // the self-test compiled kernels
		t.Fatal("nothing was kept")
	}
	kept, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string][]byte{"a damaged file": append(kept[:len(kept)-1:len(kept)-1], kept[len(kept)-1]^1),
		"half a file": kept[:len(kept)/2], "an empty file": {}} {
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if d.readCache() != nil {
			t.Errorf("%s is used", what)
		}
		openFirst(t, Options{Cache: dir}).Close()
		if d.readCache() == nil {
			t.Errorf("%s is not replaced", what)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%d files are left, want one: %v", len(list), err)
	}
	if d := openFirst(t, Options{Cache: name + "/no folder"}); d.Close() != nil {
		t.Error("a device without a folder cannot be closed")
	}
}
