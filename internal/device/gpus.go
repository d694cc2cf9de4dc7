//go:build !nogpu

package device

const withGPUs = true
