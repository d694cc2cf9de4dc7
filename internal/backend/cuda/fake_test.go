//go:build !nogpu && linux && (amd64 || arm64)

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"strobe/internal/backend/gpu"
)

// inFake runs the test again in a process whose driver library is testdata/fakecuda.c, and reports whether this is that
// process. wrong says what goes wrong there.
func inFake(t *testing.T, wrong string) bool {
	t.Helper()
	if os.Getenv("FAKE_CUDA_TEST") == t.Name() {
		return true
	}
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		if os.Getenv("STROBE_REQUIRE_EMULATION") != "" {
			t.Fatal(err)
		}
		t.Skipf("a driver library for tests: %v", err)
	}
	dir := t.TempDir()
	if out, err := exec.Command(clang, "-shared", "-fPIC", "-O1", "-o", filepath.Join(dir, "libcuda.so.1"),
		"testdata/fakecuda.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "FAKE_CUDA="+wrong, "FAKE_CUDA_TEST="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		t.Errorf("with the fake driver: %v\n%s", err, out)
	}
	return false
}

// fakeCall calls a function of the fake library that takes nothing.
func fakeCall(t *testing.T, name string) uintptr {
	t.Helper()
	lib, err := openLibrary()
	if err != nil {
		t.Fatal(err)
	}
	f, err := symbol(lib, name)
	if err != nil {
		t.Fatal(err)
	}
	r, _, _ := purego.SyscallN(f)
	return r
}

func fakeLog(t *testing.T) string {
	t.Helper()
	at := fakeCall(t, "fake_log")
	return cString(*(*unsafe.Pointer)(unsafe.Pointer(&at)))
}

func openFake(t *testing.T) *Driver {
	t.Helper()
	ds, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	d, err := open(ds[0], "", nil) // without a self-test: its kernels compute nothing
	if err != nil {
		t.Fatal(err)
	}
	return d.(*Driver)
}

// TestDriverCalls: what reaches the driver's library, in which order.
func TestDriverCalls(t *testing.T) {
	if !inFake(t, "") {
		return
	}
	ds, err := Devices()
	if err != nil || len(ds) != 1 || ds[0] != (Device{0, "Fake GPU", 1 << 30, 9, 0}) {
		t.Fatalf("devices %v, %v", ds, err)
	}
	if _, err := Open(1); err == nil || err.Error() != "no GPU 1: there are 1" {
		t.Errorf("a device that is not there: %v", err)
	}
	d := openFake(t)
	if p := d.Props(); p != (gpu.Props{Name: "Fake GPU", Major: 9, Units: 132, Memory: 1 << 30, SharedBlock: 232448}) {
		t.Errorf("properties %+v", p)
	}
	if free, total := d.Free(); free != 1<<29 || total != 1<<30 {
		t.Errorf("free memory %d of %d", free, total)
	}
	if _, err := d.Alloc(2 << 30); err == nil ||
		err.Error() != fmt.Sprintf("Fake GPU: allocating %d bytes: out of memory, %d of %d are free", 2<<30, 1<<29,
			1<<30) {
		t.Errorf("too much memory: %v", err)
	}
	// More than the staging memory has, so that it goes around.
	data := make([]byte, 5*stagingBytes+12345)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	a, err := d.Alloc(len(data))
	if err != nil {
		t.Fatal(err)
	}
	d.Upload(a, data[:1000])
	d.Upload(a+1000, data[1000:])
	got := make([]byte, len(data))
	if err := d.Download(got, a); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("what was uploaded does not come back: %v", err)
	}
	d.Copy(a, a+500, 100)
	d.Fill(a+100, 9, 50)
	if err := d.Download(got[:200], a); err != nil || !bytes.Equal(got[:100], data[500:600]) || got[100] != 9 ||
		got[149] != 9 || got[150] != data[150] {
		t.Errorf("copying and filling: %v", err)
	}
	if n := strings.Count(fakeLog(t), "wait for event\n"); n != 2 {
		t.Errorf("%d waits for staging memory, want 2:\n%s", n, fakeLog(t))
	}
	before := len(fakeLog(t))
	k, err := d.Kernel(named("small_add"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d.Kernel(named("small_add")); again != k || err != nil {
		t.Errorf("the same kernel again: %v, %v", again, err)
	}
	if _, err := d.Kernel(named("nothing")); err == nil {
		t.Error("a kernel that does not exist")
	}
	args := make([]byte, 16)
	args[0] = 0xab
	l := gpu.Launch{Kernel: k, Name: "add", Args: args,
		Config: gpu.Config{Grid: [3]int{3, 2, 1}, Threads: 64, Shared: 70000, Early: true}}
	d.Launch(&l)
	l.Early, l.Shared = false, 0
	r, err := d.Record([]gpu.Launch{l, l})
	if err != nil {
		t.Fatal(err)
	}
	d.Replay(r)
	d.Replay(r)
	r.Close()
	r.Close()
	if err := d.Wait(); err != nil {
		t.Error(err)
	}
	want := `load sm_90
launch small_add grid 3,2,1 threads 64 shared 70000 early 1 first ab
captured launch small_add grid 3,2,1 threads 64 shared 0 early 0 first ab
captured launch small_add grid 3,2,1 threads 64 shared 0 early 0 first ab
graph of 2
graph of 2
`
	if log := fakeLog(t)[before:]; log != want {
		t.Errorf("the driver was called so:\n%s\nwant:\n%s", log, want)
	}
	d.Release(a)
	d.Release(0)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n := fakeCall(t, "fake_live"); n != 0 {
		t.Errorf("%d things of the driver are left after Close", n)
	}
}

// TestDriverHangs: a kernel that does not end is given up on, wherever that is noticed, and closing waits for nothing.
func TestDriverHangs(t *testing.T) {
	if !inFake(t, "hang") {
		return
	}
	for doing, notice := range map[string]func(d *Driver, a gpu.Addr) error{
		"waiting":                func(d *Driver, _ gpu.Addr) error { return d.Wait() },
		"waiting for a download": func(d *Driver, a gpu.Addr) error { return d.Download(make([]byte, 4), a) },
		"waiting for earlier uploads": func(d *Driver, a gpu.Addr) error {
			d.Upload(a, make([]byte, (stagingSegments+1)*stagingBytes))
			return d.err
		},
		"closing": func(d *Driver, _ gpu.Addr) error { return d.Close() },
	} {
		fakeCall(t, "fake_recover")
		d := openFake(t)
		d.patience = 20 * time.Millisecond
		a, err := d.Alloc((stagingSegments + 1) * stagingBytes)
		if err != nil {
			t.Fatal(err)
		}
		k, err := d.Kernel(named("small_add"))
		if err != nil {
			t.Fatal(err)
		}
		d.Launch(&gpu.Launch{Kernel: k, Name: "add", Args: make([]byte, 16), Config: oneWarp})
		want := "Fake GPU: " + strings.Replace(doing, "closing", "waiting", 1) + ": no answer for 20ms"
		if err := notice(d, a); err == nil || err.Error() != want {
			t.Errorf("%s: %v", doing, err)
		}
		before := fakeCall(t, "fake_live")
		d.Release(a)
		if _, err := d.Alloc(1); err == nil {
			t.Errorf("%s: it can be used again", doing)
		}
		if err := d.Close(); err == nil || err.Error() != want {
			t.Errorf("%s: closed with %v", doing, err)
		}
		if after := fakeCall(t, "fake_live"); after != before {
			t.Errorf("%s: a call that waits for the device was made: %d things are left of %d", doing, after, before)
		}
	}
}

// named is a kernel by its name alone.
type named string

func (k named) Name() string     { return string(k) }
func (named) Shader() gpu.Shader { return gpu.Shader{} }
func (named) Args() any          { return nil }

// oneWarp is the smallest launch.
var oneWarp = gpu.Config{Grid: [3]int{1, 1, 1}, Threads: 32}

// every is a launch of each kernel that is embedded.
func every(t *testing.T, d *Driver) (ls []gpu.Launch) {
	t.Helper()
	for _, name := range KernelNames() {
		k, err := d.Kernel(named(name))
		if err != nil {
			t.Fatal(err)
		}
		ls = append(ls, gpu.Launch{Kernel: k, Name: name})
	}
	return ls
}

// TestEveryKernelLoads: all kernels that are embedded can be asked for, and are loaded once.
func TestEveryKernelLoads(t *testing.T) {
	if !inFake(t, "") {
		return
	}
	d := openFake(t)
	ls := every(t, d)
	for range 2 {
		if err := d.Prepare(ls); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(fakeLog(t), "load sm_"); n != len(ls) || n < 100 {
		t.Errorf("%d modules were loaded for %d kernels", n, len(ls))
	}
}

// TestCompileBeside: kernels that the driver has not kept are compiled in several contexts at once, each of them once,
// and none of the contexts stays.
func TestCompileBeside(t *testing.T) {
	if inFake(t, "slow roomy") {
		compileBeside(t, runtime.NumCPU() > 1)
	}
}

// TestCompileWithoutRoom: where there is no memory for other contexts, ours compiles.
func TestCompileWithoutRoom(t *testing.T) {
	if inFake(t, "slow") {
		compileBeside(t, false)
	}
}

// TestCompileAlone: where the driver has no other contexts, ours compiles.
func TestCompileAlone(t *testing.T) {
	if inFake(t, "slow roomy one") {
		compileBeside(t, false)
	}
}

func compileBeside(t *testing.T, together bool) {
	d := openFake(t)
	ls := every(t, d)[:20]
	before := int(fakeCall(t, "fake_live"))
	if err := d.Prepare(ls); err != nil {
		t.Fatal(err)
	}
	if n := int(fakeCall(t, "fake_compiled")); n != len(ls) {
		t.Errorf("%d kernels were compiled, want %d", n, len(ls))
	}
	if n := int(fakeCall(t, "fake_together")); n > 1 != together || n > maxBeside {
		t.Errorf("%d contexts compiled at once; several: want %t", n, together)
	}
	if n := int(fakeCall(t, "fake_live")); n != before+len(ls) {
		t.Errorf("%d things of the driver after compiling %d kernels, %d before", n, len(ls), before)
	}
	if d.Compiling() == 0 {
		t.Error("compiling took no time")
	}
	closed := func(d *Driver) {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if n := fakeCall(t, "fake_live"); n != 0 {
			t.Errorf("%d things of the driver are left after Close", n)
		}
	}
	closed(d)
	// What the driver has kept needs no other contexts.
	d = openFake(t)
	logged := len(fakeLog(t))
	if err := d.Prepare(every(t, d)[:len(ls)]); err != nil {
		t.Error(err)
	}
	if n := strings.Count(fakeLog(t)[logged:], "load sm_"); n != len(ls) {
		t.Errorf("%d modules were loaded for %d kernels that the driver had kept", n, len(ls))
	}
	closed(d)
}

// TestDriverFaults: a fault of a kernel is found by whoever waits, and stays the answer.
func TestDriverFaults(t *testing.T) {
	if !inFake(t, "fault") {
		return
	}
	d := openFake(t)
	k, err := d.Kernel(named("small_add"))
	if err != nil {
		t.Fatal(err)
	}
	d.Launch(&gpu.Launch{Kernel: k, Name: "add", Args: make([]byte, 8), Config: oneWarp})
	want := "Fake GPU: waiting: an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)"
	if err := d.Wait(); err == nil || err.Error() != want {
		t.Fatalf("waiting: %v, want %s", err, want)
	}
	if _, err := d.Alloc(1); err == nil || err.Error() != want {
		t.Errorf("allocating afterwards: %v", err)
	}
	if err := d.Download(make([]byte, 4), 0); err == nil || err.Error() != want {
		t.Errorf("downloading afterwards: %v", err)
	}
	if _, err := d.Record(nil); err == nil {
		t.Error("recording afterwards")
	}
	if err := d.Close(); err == nil || err.Error() != want {
		t.Errorf("closing: %v", err)
	}
}

// TestTwoOnOneDevice: what one has goes when it is closed, and when one fails the other lives.
func TestTwoOnOneDevice(t *testing.T) {
	if !inFake(t, "fault") {
		return
	}
	other := openFake(t)
	before := fakeCall(t, "fake_live")
	d := openFake(t)
	if _, err := d.Alloc(1000); err != nil {
		t.Fatal(err)
	}
	k, err := d.Kernel(named("small_add"))
	if err != nil {
		t.Fatal(err)
	}
	d.Launch(&gpu.Launch{Kernel: k, Name: "add", Args: make([]byte, 8), Config: oneWarp})
	if d.Wait() == nil {
		t.Fatal("a kernel that fails")
	}
	d.Close()
	if n := fakeCall(t, "fake_live"); n != before {
		t.Errorf("%d things of the driver after Close, %d before", n, before)
	}
	if err := other.Wait(); err != nil {
		t.Errorf("the other: %v", err)
	}
	if again := openFake(t); again.Wait() != nil {
		t.Errorf("the device opened again: %v", again.Wait())
	}
}

// TestNoRoomForGraph: without memory for a graph the device lives, and kernels are launched one by one.
func TestNoRoomForGraph(t *testing.T) {
	if !inFake(t, "graphs") {
		return
	}
	d := openFake(t)
	k, err := d.Kernel(named("small_add"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Record([]gpu.Launch{{Kernel: k, Name: "add", Args: make([]byte, 8), Config: oneWarp}})
	if r != nil || err != nil || d.Wait() != nil {
		t.Errorf("recording %v, %v; then %v", r, err, d.Wait())
	}
	d.Close()
	if n := fakeCall(t, "fake_live"); n != 0 {
		t.Errorf("%d things of the driver are left after Close", n)
	}
}

func TestDriverRefusesLaunch(t *testing.T) {
	if !inFake(t, "launch") {
		return
	}
	d := openFake(t)
	k, err := d.Kernel(named("small_add"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Record([]gpu.Launch{{Kernel: k, Name: "add", Args: make([]byte, 8), Config: oneWarp}})
	if err == nil || !strings.Contains(err.Error(),
		"launching add (kernel small_add, grid [1 1 1], 32 threads, 0 bytes of shared memory): error 1") {
		t.Errorf("a launch that the driver refuses: %v", err)
	}
	d.Close()
	if n := fakeCall(t, "fake_live"); n != 0 {
		t.Errorf("%d things of the driver are left after Close", n)
	}
}

func TestDriverCompileError(t *testing.T) {
	if !inFake(t, "ptx") {
		return
	}
	d := openFake(t)
	const want = `Fake GPU: compiling kernel "small_add" (sm_90): ` +
		"a PTX JIT compilation failed (CUDA_ERROR_INVALID_PTX): line 7: unknown instruction"
	k, err := d.Kernel(named("small_add"))
	if err != nil {
		t.Fatal(err)
	}
	ls := []gpu.Launch{{Kernel: k, Name: "add", Args: make([]byte, 8), Config: oneWarp}}
	if err := d.Prepare(ls); err == nil || err.Error() != want {
		t.Errorf("PTX that the driver refuses: %v", err)
	}
	if err := d.Wait(); err != nil { // the device is well
		t.Error(err)
	}
	d.Launch(&ls[0])
	if err := d.Wait(); err == nil || err.Error() != want {
		t.Errorf("launching what the driver refuses: %v", err)
	}
	d.Close()
	if n := fakeCall(t, "fake_live"); n != 0 {
		t.Errorf("%d things of the driver are left after Close", n)
	}
}

func TestOldDevice(t *testing.T) {
	if !inFake(t, "old") {
		return
	}
	if _, err := Open(0); err == nil || err.Error() != "Fake GPU has compute capability 7.0, at least 8.0 is needed" {
		t.Errorf("an old device: %v", err)
	}
}

func TestDriverWithoutDevice(t *testing.T) {
	if !inFake(t, "nodevice") {
		return
	}
	if ds, err := Devices(); len(ds) != 0 || err != nil {
		t.Errorf("devices %v, %v", ds, err)
	}
	if _, err := Open(0); err == nil || errors.Is(err, ErrNoDriver) {
		t.Errorf("opening: %v", err)
	}
}
