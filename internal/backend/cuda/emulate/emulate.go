// Package emulate is a GPU for tests that have none: it compiles the kernels of backend/cuda for the processor and runs
// them thread by thread. It is a gpu.Driver that is slow and strict: memory begins as NaN, launches that name free
// memory fail, accesses outside of an allocation fail (to the page before it, to 256 bytes behind it), allocations
// and launches can be made to fail on purpose, and every other launch runs its threads in reverse. With $STROBE_RACES
// set, launches fail whose accesses nothing orders (kernel/races.h).
//
// Kernels of all devices run one after the other; each device is used by one goroutine at a time.
package emulate

import (
	"errors"
	"os"
	"testing"

	"strobe/internal/backend/cuda"
	"strobe/internal/backend/gpu"
	"strobe/internal/testkit"
)

// Open returns the device that a test of kernels runs on: an emulated one, or the first real one if $STROBE_CUDA is
// "cuda". The test is skipped if long tests are. Without a compiler it is skipped, or fails if
// $STROBE_REQUIRE_EMULATION is set.
func Open(t testing.TB) gpu.Driver {
	t.Helper()
	if os.Getenv("STROBE_CUDA") != "cuda" {
		return Emulated(t, Options{})
	}
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// Emulated returns an emulated device, whatever device the environment names. Tests of our own kernels are long:
// compiling them takes a minute, and running them minutes.
func Emulated(t testing.TB, o Options) *Device {
	t.Helper()
	if o.Sources == "" {
		testkit.Long(t)
	}
	d, err := New(o)
	NeedCompiler(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

// NeedCompiler ends a test that failed with err; it is only skipped if the compiler is missing and not
// required.
func NeedCompiler(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, ErrNoCompiler) && os.Getenv("STROBE_REQUIRE_EMULATION") == "":
		t.Skipf("emulation of kernels: %v", err)
	default:
		t.Fatal(err)
	}
}
