package gpu_test

import (
	"encoding/binary"
	"math"
	"os"
	"strings"
	"testing"

	"strobe/internal/backend/gpu"
)

// TestSelfTest: the device passes it, and so does Hopper in emulation; it leaves no memory behind.
func TestSelfTest(t *testing.T) {
	devices := []gpu.Driver{openDevice(t)}
	if os.Getenv("STROBE_GPU") != "vulkan" {
		devices = append(devices, hopper(t))
	}
	for _, device := range devices {
		d := &spoiling{Driver: device, live: map[gpu.Addr]bool{}}
		if err := gpu.SelfTest(d); err != nil {
			t.Errorf("%+v: %v", d.Props(), err)
		}
		if len(d.live) > 0 || d.products < 15 {
			t.Errorf("%+v: %d allocations are left; %d results", d.Props(), len(d.live), d.products)
		}
	}
}

// TestSelfTestFinds: one bit of the result of any product or sum is wrong, and the self-test says so.
func TestSelfTestFinds(t *testing.T) {
	for _, at := range []int{1, 2, 5, 16} { // a sum; products with one row, with 130, and the last
		for _, by := range []float32{1e9, 1 + 1e-6} {
			if at == 1 && by < 2 {
				continue // sums are compared with real numbers alone
			}
			d := &spoiling{Driver: openDevice(t), live: map[gpu.Addr]bool{}, spoil: at, by: by}
			if err := gpu.SelfTest(d); err == nil || !strings.Contains(err.Error(), "it computes wrongly") {
				t.Errorf("result %d times %g: %v", at, by, err)
			}
			if len(d.live) > 0 {
				t.Errorf("result %d: %d allocations are left", at, len(d.live))
			}
		}
	}
}

// spoiling counts allocations and results, and spoils the first value of one of them.
type spoiling struct {
	gpu.Driver
	live     map[gpu.Addr]bool
	products int
	spoil    int
	by       float32
}

func (c *spoiling) Alloc(n int) (gpu.Addr, error) {
	a, err := c.Driver.Alloc(n)
	c.live[a] = true
	return a, err
}

func (c *spoiling) Release(a gpu.Addr) {
	delete(c.live, a)
	c.Driver.Release(a)
}

func (c *spoiling) Download(dst []byte, src gpu.Addr) error {
	err := c.Driver.Download(dst, src)
	if c.products++; c.products == c.spoil {
		v := math.Float32frombits(binary.LittleEndian.Uint32(dst))
		binary.LittleEndian.PutUint32(dst, math.Float32bits(v*c.by))
	}
	return err
}
