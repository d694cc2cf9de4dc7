//go:build !noasm && !linux

package kernel

// mayUseTiles says no: how other systems handle tiles was not tested.
func mayUseTiles() bool { return false }
