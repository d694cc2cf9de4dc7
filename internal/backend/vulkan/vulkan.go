// Package vulkan runs kernels on any GPU with a Vulkan 1.3 driver (AMD, Intel, NVIDIA, Apple through MoltenVK), and
// on the processor through Mesa's lavapipe, which is how the kernels are tested. It calls the Vulkan loader without
// cgo; the kernels are embedded as SPIR-V.
//
// A Driver is used by one goroutine at a time, from any thread. The build tag nogpu leaves all of it out.
package vulkan

import (
	"errors"
	"fmt"

	"strobe/internal/backend/gpu"
)

// ErrNoDriver says that this system has no Vulkan, or none that the program can use.
var ErrNoDriver = errors.New("no Vulkan driver")

// Device is a device as Vulkan lists it, once even if two drivers have it. Software comes last.
type Device struct {
	Index    int
	Name     string
	Driver   string // its name and version
	Memory   int    // bytes of its own, or shared with the processor
	Software bool   // it is the processor
	Card     bool   // it has memory of its own
	Missing  string // what it lacks to be used; empty if nothing
	number   int    // in Vulkan's list
	uuid     [16]byte
	rank     int // of drivers for the same card, less is better
	kind     uint32
}

// Supported returns nil, or one line that says why the device cannot be used.
func (d Device) Supported() error {
	if d.Missing != "" {
		return fmt.Errorf("%s lacks %s", d.Name, d.Missing)
	}
	return nil
}

// Options says how to use a device.
type Options struct {
	Cache    string // folder for compiled kernels; empty: they are compiled every time
	Validate bool   // have the Khronos layer check every call, if it is installed; Messages has what it says
	Loops    bool   // instead of cooperative matrices loops that do the same, for tests
	Plain    bool   // do not ask for cooperative matrices, nor use them
	Shared   bool   // exchange values through shared memory even where shuffles pass the self-test
}

// Devices lists the devices of this system, also those that are not supported.
func Devices() ([]Device, error) { return devices(false) }

// Open opens the device with the given index in the list of Devices, and tests whether it computes rightly.
func Open(index int, opt Options) (gpu.Driver, error) {
	ds, err := devices(opt.Validate)
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= len(ds) {
		return nil, fmt.Errorf("no Vulkan device %d: there are %d", index, len(ds))
	}
	if err := ds[index].Supported(); err != nil {
		return nil, err
	}
	return open(ds[index], opt)
}
