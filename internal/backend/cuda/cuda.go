// Package cuda runs kernels on NVIDIA GPUs through the driver's own library, without cgo and without a CUDA SDK. The
// kernels are embedded as PTX, which the driver compiles for its device when they are first used.
//
// A Driver is used by one goroutine at a time, from any thread. The build tag nogpu leaves all of it out, and with it
// the only reason for the program to be linked to the C library.
package cuda

import (
	"errors"
	"fmt"
	"os"

	"strobe/internal/backend/gpu"
)

// The least compute capability that the kernels are written for.
const minMajor, minMinor = 8, 0

// ErrNoDriver says that this system has no NVIDIA driver, or none that the program can use.
var ErrNoDriver = errors.New("no NVIDIA driver")

// Device is a GPU as the driver lists it.
type Device struct {
	Index        int
	Name         string
	Memory       int // bytes
	Major, Minor int // compute capability
}

// Supported returns nil, or one line that says why the device cannot be used.
func (d Device) Supported() error {
	if d.Major > minMajor || d.Major == minMajor && d.Minor >= minMinor {
		return nil
	}
	return fmt.Errorf("%s has compute capability %d.%d, at least %d.%d is needed", d.Name, d.Major, d.Minor, minMajor,
		minMinor)
}

// Devices lists the GPUs of this system, also those that are not supported.
func Devices() ([]Device, error) { return devices() }

// NoDevice says that there are Count devices and not the one with the index.
type NoDevice struct{ Index, Count int }

func (e NoDevice) Error() string { return fmt.Sprintf("no GPU %d: there are %d", e.Index, e.Count) }

// Missing reports whether an error says that there is no such GPU, and not that something is wrong with it.
func Missing(err error) bool {
	var none NoDevice
	return errors.Is(err, ErrNoDriver) || errors.As(err, &none)
}

// Open opens the GPU with the given index in the list of Devices.
func Open(index int) (gpu.Driver, error) {
	ds, err := devices()
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= len(ds) {
		return nil, NoDevice{index, len(ds)}
	}
	if err := ds[index].Supported(); err != nil {
		return nil, err
	}
	return openTested(ds[index], open, gpu.SelfTest)
}

// opener opens a device, with the kernels for a compute capability if one is named; why is what failed without it.
type opener func(dev Device, as string, why error) (gpu.Driver, error)

// openTested opens a device and tests whether it computes rightly. Where the kernels for compute capability 9.0 and up
// do not, those for 8.0 are used, which need less of a device.
func openTested(dev Device, open opener, test func(gpu.Driver) error) (gpu.Driver, error) {
	d, err := open(dev, os.Getenv(asVariable), nil)
	if err != nil {
		return nil, err
	}
	failed := test(d)
	if failed == nil {
		return d, nil
	}
	newer := d.Props().Major >= 9
	d.Close()
	if newer {
		if d, err := open(dev, "8.0", failed); err == nil {
			if test(d) == nil {
				return d, nil
			}
			d.Close()
		}
	}
	return nil, fmt.Errorf("opening %s: the self-test failed: %w", dev.Name, failed)
}
