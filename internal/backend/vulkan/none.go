//go:build nogpu || !((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import "strobe/internal/backend/gpu"

func devices(bool) ([]Device, error) { return nil, ErrNoDriver }

func open(Device, Options) (gpu.Driver, error) { return nil, ErrNoDriver }
