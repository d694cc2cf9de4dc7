//go:build nogpu

package device

const withGPUs = false
