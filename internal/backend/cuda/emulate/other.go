//go:build !(linux && (amd64 || arm64))

package emulate

import (
	"errors"

	"strobe/internal/backend/gpu"
)

// Compiler compiles kernels, for the emulation and for devices.
const Compiler = "clang-19"

// ErrNoCompiler says that the emulation cannot be built here.
var ErrNoCompiler = errors.New("kernels are emulated on Linux (amd64, arm64) only")

// Options configures a device.
type Options struct {
	Units   int
	Memory  int
	Sources string
	Races   bool
	Hopper  bool
}

// Device is an emulated GPU; there is none on this system.
type Device struct {
	gpu.Driver
	Allocs, Launches, FailAlloc, FailLaunch int
}

// Live returns the number of allocations that were not released.
func (d *Device) Live() int { return 0 }

// New fails.
func New(Options) (*Device, error) { return nil, ErrNoCompiler }
