//go:build !linux

package bench

// resident is unknown here.
func resident() (now, peak int) { return 0, 0 }
