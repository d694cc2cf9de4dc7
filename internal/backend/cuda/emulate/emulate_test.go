//go:build linux && (amd64 || arm64)

package emulate

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"strobe/internal/backend/gpu"
)

// parts opens a device with the kernels of testdata.
func parts(t *testing.T) *Device {
	t.Helper()
	t.Setenv("STROBE_RACES", "") // some are wrong on purpose
	return Emulated(t, Options{Sources: "testdata"})
}

func bytesOf[T any](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
}

func upload[T any](t *testing.T, d gpu.Driver, v []T) gpu.Addr {
	t.Helper()
	a, err := d.Alloc(len(bytesOf(v)))
	if err != nil {
		t.Fatal(err)
	}
	d.Upload(a, bytesOf(v))
	return a
}

func download[T any](t *testing.T, d gpu.Driver, a gpu.Addr, n int) []T {
	t.Helper()
	v := make([]T, n)
	if err := d.Download(bytesOf(v), a); err != nil {
		t.Fatal(err)
	}
	return v
}

// call launches a kernel with the given arguments.
func call[T any](t *testing.T, d gpu.Driver, name string, grid, threads, shared int, args T) {
	t.Helper()
	k, err := d.Kernel(named(name))
	if err != nil {
		t.Fatal(err)
	}
	d.Launch(&gpu.Launch{Kernel: k, Name: name, Args: bytesOf([]T{args}),
		Config: gpu.Config{Grid: [3]int{grid, 1, 1}, Threads: threads, Shared: shared}})
}

// named is a kernel by its name alone.
type named string

func (k named) Name() string     { return string(k) }
func (named) Shader() gpu.Shader { return gpu.Shader{} }
func (named) Args() any          { return nil }

type outArgs struct {
	out, in gpu.Addr
	n       int32
}

func floats(n int, f func(i int) float32) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = f(i)
	}
	return v
}

func TestWarpsAndBarriers(t *testing.T) {
	d := parts(t)
	in := floats(5*64, func(i int) float32 { return float32(i % 97) })
	out := upload(t, d, make([]float32, 5))
	for range 2 { // forwards and backwards
		call(t, d, "test_sum", 5, 64, 8, outArgs{out, upload(t, d, in), 0})
		for b, got := range download[float32](t, d, out, 5) {
			want := float32(0)
			for _, x := range in[b*64 : b*64+64] {
				want += x
			}
			if got != want {
				t.Errorf("block %d: sum %v, want %v", b, got, want)
			}
		}
	}
	out = upload(t, d, make([]float32, 64))
	call(t, d, "test_named", 1, 96, 128, outArgs{out, upload(t, d, in), 0})
	for i, got := range download[float32](t, d, out, 64) {
		want := 2 * in[i%32]
		if i >= 32 {
			want = 2 * in[63-i]
		}
		if got != want {
			t.Errorf("value %d handed over by a named barrier: %v, want %v", i, got, want)
		}
	}
	call(t, d, "test_votes", 1, 32, 0, outArgs{out, out, 0})
	for i, got := range download[float32](t, d, out, 32) {
		if want := float32(1101+7) + float32(i^1)/64; got != want { // lanes 0, 3, ... 30
			t.Errorf("lane %d: %v, want %v", i, got, want)
		}
	}
}

// half returns the bits of a half nearest to x, by trying all of them.
func half(x float64) uint16 {
	if x == 0 && math.Signbit(x) {
		return 0x8000
	}
	best, dist := uint16(0), math.Inf(1)
	for h := range 0x7c01 {
		v := halfValue(uint16(h))
		if h == 0x7c00 {
			v = 65536
		}
		if e := math.Abs(math.Abs(x) - v); e < dist || e == dist && h&1 == 0 {
			best, dist = uint16(h), e
		}
	}
	if math.Signbit(x) {
		best |= 0x8000
	}
	return best
}

func halfValue(h uint16) float64 {
	sign := 1.
	if h&0x8000 != 0 {
		sign = -1
	}
	e, m := int(h>>10&31), float64(h&1023)
	if e == 0 {
		return sign * math.Ldexp(m, -24)
	}
	return sign * math.Ldexp(1024+m, e-25)
}

func TestHalves(t *testing.T) {
	d := parts(t)
	r := rand.New(rand.NewPCG(1, 2))
	const n = 200
	var a, b, c [n]uint32
	pick := func() uint32 {
		h := uint32(r.IntN(0x7c00)) | uint32(r.IntN(2))<<15
		if r.IntN(3) == 0 {
			h &= 0x83ff // subnormal
		}
		return h
	}
	for i := range n {
		a[i], b[i], c[i] = pick()|pick()<<16, pick()|pick()<<16, pick()|pick()<<16
	}
	out := upload(t, d, make([]uint32, 4*n))
	type args struct {
		out, a, b, c gpu.Addr
		n            int32
	}
	call(t, d, "test_halves", 1, 32, 0, args{out, upload(t, d, a[:]), upload(t, d, b[:]), upload(t, d, c[:]), n})
	got := download[uint32](t, d, out, 4*n)
	for i := range n {
		for s := 0; s < 32; s += 16 {
			x, y, z := halfValue(uint16(a[i]>>s)), halfValue(uint16(b[i]>>s)), halfValue(uint16(c[i]>>s))
			last := halfValue(uint16(a[i])) * 1.5
			if s == 16 {
				last = y
			}
			for j, want := range []float64{x*y + z, x + y, x * y, last} {
				if h := uint16(got[4*i+j] >> s); h != half(want) {
					t.Fatalf("operation %d of %v, %v, %v: %#x, want %#x (%v)", j, x, y, z, h, half(want), want)
				}
			}
		}
	}
}

func TestTensorCores(t *testing.T) {
	d := parts(t)
	r := rand.New(rand.NewPCG(3, 4))
	type args struct {
		d, a, b gpu.Addr
		bf      int32
	}
	for name, bf := range map[string]int32{"test_mma": 0, "test_mma ": 1, "test_ldmatrix": 0} {
		var a [256]uint16
		var b [128]uint16
		value := func() uint16 {
			if bf != 0 {
				return uint16(math.Float32bits(r.Float32()-0.5) >> 16)
			}
			return uint16(r.IntN(0x4000) | r.IntN(2)<<15)
		}
		of := func(h uint16) float64 {
			if bf != 0 {
				return float64(math.Float32frombits(uint32(h) << 16))
			}
			return halfValue(h)
		}
		for i := range a {
			a[i] = value()
		}
		for i := range b {
			b[i] = value()
		}
		c := floats(128, func(int) float32 { return r.Float32() })
		out := upload(t, d, c)
		call(t, d, strings.TrimSpace(name), 1, 32, 1024, args{out, upload(t, d, a[:]), upload(t, d, b[:]), bf})
		for i, got := range download[float32](t, d, out, 128) {
			sum := 0.
			for k := range 16 {
				sum += of(a[i/8*16+k]) * of(b[i%8*16+k])
			}
			if want := float32(sum + float64(c[i])); got != want {
				t.Fatalf("%s, element %d: %v, want %v", name, i, got, want)
			}
		}
	}
	var a [512]int8
	var b [256]int8
	for i := range a {
		a[i] = int8(r.IntN(256) - 128)
	}
	for i := range b {
		b[i] = int8(r.IntN(256) - 128)
	}
	out := upload(t, d, make([]int32, 128))
	call(t, d, "test_mma_s8", 1, 32, 0, struct{ d, a, b gpu.Addr }{out, upload(t, d, a[:]), upload(t, d, b[:])})
	for i, got := range download[int32](t, d, out, 128) {
		want := int32(0)
		for k := range 32 {
			want += int32(a[i/8*32+k]) * int32(b[i%8*32+k])
		}
		if got != want {
			t.Fatalf("bytes, element %d: %v, want %v", i, got, want)
		}
	}
}

// TestCopies: an asynchronous copy is there when its group was waited for, and not before.
func TestCopies(t *testing.T) {
	d := parts(t)
	in := floats(128, func(i int) float32 { return float32(i + 1) })
	out := upload(t, d, make([]float32, 160))
	call(t, d, "test_copy", 1, 32, 1024, outArgs{out, upload(t, d, in), 0})
	got := download[float32](t, d, out, 160)
	for i := range 32 {
		if !math.IsNaN(float64(got[i])) || !math.IsNaN(float64(got[64+i])) {
			t.Fatalf("lane %d read %v and %v before waiting", i, got[i], got[64+i])
		}
		if got[32+i] != in[4*i+1] || got[96+i] != in[4*i+1] || got[128+i] != 0 {
			t.Fatalf("lane %d copied %v, %v, %v", i, got[32+i], got[96+i], got[128+i])
		}
	}
}

// TestMistakes: wrong kernels and wrong launches end with a line that tells what happened.
func TestMistakes(t *testing.T) {
	gone := func(d *Device, a *outArgs) { d.Release(a.out) }
	for _, c := range []struct {
		kernel, want string
		n            int32
		change       func(d *Device, a *outArgs)
	}{
		{"test_deadlock", "deadlock: threads 0 to 31 wait at barrier 0 for 64, threads 32 to 63 ended", 0, nil},
		{"test_diverged", "other lanes of the warp", 0, nil},
		{"test_shared", "behind shared memory", 1, nil},
		{"test_shared_address", "4 bytes of shared memory at offset 128 of 128", 1, nil},
		{"test_global", "no memory at", 64, nil},
		{"test_odd", "odd address", 0, nil},
		{"test_global", "which is not in an allocation", 0, gone},
	} {
		d := parts(t)
		a := outArgs{upload(t, d, make([]float32, 64)), 0, c.n}
		threads := 32
		if c.kernel == "test_deadlock" {
			threads = 64
		}
		if c.change != nil {
			c.change(d, &a)
		}
		call(t, d, c.kernel, 1, threads, 128, a)
		if err := d.Wait(); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(),
			c.kernel) {
			t.Errorf("%s: error %v, want one with %q", c.kernel, err, c.want)
		}
	}
	d := parts(t)
	call(t, d, "test_sum", 1, 64, 8, uint64(0))
	if err := d.Wait(); err == nil || !strings.Contains(err.Error(), "8 bytes of arguments, kernel test_sum takes 24") {
		t.Errorf("arguments of the wrong size: %v", err)
	}
	if _, err := d.Kernel(named("nothing")); err == nil || err.Error() != `no kernel "nothing"` {
		t.Errorf("a kernel that does not exist: %v", err)
	}
	d = parts(t)
	out := upload(t, d, make([]float32, 32))
	call(t, d, "test_uninitialised", 1, 32, 128, outArgs{out, out, 0})
	if got := download[float32](t, d, out, 1)[0]; !math.IsNaN(float64(got)) {
		t.Errorf("shared memory begins as %v, want NaN", got)
	}
}

// TestMissingBarrier: warps run ahead of each other as far as barriers let them.
func TestMissingBarrier(t *testing.T) {
	d := parts(t)
	for range 2 {
		out := upload(t, d, make([]float32, 64))
		call(t, d, "test_race", 1, 64, 256, outArgs{out, out, 0})
		if got := download[float32](t, d, out, 64); !slices.Contains(got, 0) {
			t.Error("a kernel without a barrier that it needs works")
		}
	}
}

func TestFailuresOnPurpose(t *testing.T) {
	d := parts(t)
	d.FailAlloc = 2
	a, err := d.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc(100); err == nil {
		t.Error("the second allocation did not fail")
	}
	if _, err := d.Alloc(9 << 30); err == nil || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("allocating more than there is: %v", err)
	}
	free, total := d.Free()
	if d.Live() != 1 || total-free != 100 {
		t.Errorf("%d allocations of %d bytes live, want 1 of 100", d.Live(), total-free)
	}
	d.Release(a)
	if d.Live() != 0 {
		t.Errorf("%d allocations live after the release", d.Live())
	}
	out := upload(t, d, make([]float32, 32))
	k, err := d.Kernel(named("test_votes"))
	if err != nil {
		t.Fatal(err)
	}
	args := bytesOf([]outArgs{{out, out, 0}})
	r, err := d.Record([]gpu.Launch{{Kernel: k, Name: "vote", Args: args,
		Config: gpu.Config{Grid: [3]int{1, 1, 1}, Threads: 32}}})
	if err != nil {
		t.Fatal(err)
	}
	clear(args) // the recording has its own
	d.Replay(r)
	if err := d.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := download[float32](t, d, out, 1)[0]; got < 1000 {
		t.Errorf("the recorded kernel left %v", got)
	}
	d.FailLaunch = 2
	d.Replay(r)
	if err := d.Wait(); err != nil {
		t.Fatal(err)
	}
	d.Replay(r)
	if err := d.Wait(); err == nil || err.Error() != "launching vote: failing on purpose" {
		t.Errorf("the second launch: %v", err)
	}
}
