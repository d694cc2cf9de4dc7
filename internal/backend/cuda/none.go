//go:build nogpu || !((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import "strobe/internal/backend/gpu"

func devices() ([]Device, error) { return nil, ErrNoDriver }

func open(Device, string, error) (gpu.Driver, error) { return nil, ErrNoDriver }

// KernelNames lists the embedded kernels: none.
func KernelNames() []string { return nil }
