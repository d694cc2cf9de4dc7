package cuda_test

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"strobe/internal/backend/cuda"
	"strobe/internal/backend/gpu"
)

// TestDevice: the driver of a real GPU, if $STROBE_CUDA is "cuda": every kernel compiles, memory comes back as it was
// sent, and recorded launches that begin early follow each other.
func TestDevice(t *testing.T) {
	if os.Getenv("STROBE_CUDA") != "cuda" {
		t.Skip("needs a GPU: set STROBE_CUDA=cuda")
	}
	ds, err := cuda.Devices()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("devices: %+v", ds)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	t.Logf("properties: %+v", d.Props())
	var all []gpu.Launch
	for _, kind := range gpu.Kernels() {
		if !slices.Contains(cuda.KernelNames(), kind.Name()) {
			continue
		}
		k, err := d.Kernel(kind)
		if err != nil {
			t.Error(err)
		}
		all = append(all, gpu.Launch{Kernel: k, Name: kind.Name()})
	}
	if err := d.(gpu.Preparer).Prepare(all); err != nil {
		t.Error(err)
	}
	data := make([]byte, 100<<20+17)
	for i := range data {
		data[i] = byte(i * 31 >> 4)
	}
	a, err := d.Alloc(len(data))
	if err != nil {
		t.Fatal(err)
	}
	d.Upload(a, data)
	got := make([]byte, len(data))
	if err := d.Download(got, a); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("what was uploaded does not come back: %v", err)
	}
	d.Release(a)
	s := gpu.NewSmall(d.Props())
	// x is doubled 20 times in each of three replays.
	x, err := d.Alloc(4 << 10)
	if err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 4<<10)
	for i := 0; i < len(one); i += 4 {
		copy(one[i:], []byte{0, 0, 0x80, 0x3f})
	}
	d.Upload(x, one)
	var calls []gpu.Call
	for range 20 {
		calls = s.Add(calls, gpu.Out{P: x, Stride: 1024}, gpu.Rows(x, 1024), gpu.Rows(x, 1024), 1, 1024)
	}
	ls, err := gpu.Emit(d, calls)
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Record(ls)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		d.Replay(r)
	}
	r.Close()
	if err := d.Download(one, x); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(one); i += 4 {
		if !bytes.Equal(one[i:][:4], []byte{0, 0, 0x80, 0x5d}) { // 2^60
			t.Fatalf("value %d is %x after three replays, want 2^60", i/4, one[i:][:4])
		}
	}
	if _, err := d.Alloc(1 << 50); err == nil {
		t.Error("2^50 bytes of memory")
	}
	if err := d.Wait(); err != nil {
		t.Error(err)
	}
}
