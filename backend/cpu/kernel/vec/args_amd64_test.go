//go:build !noasm

package vec

import (
	"testing"
	"unsafe"
)

// TestArgumentOffsets pins the structures whose offsets the generator repeats.
func TestArgumentOffsets(t *testing.T) {
	var m matArgs
	var a accArgs
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"matArgs.w", unsafe.Offsetof(m.w), 0},
		{"matArgs.stride", unsafe.Offsetof(m.stride), 8},
		{"matArgs.next", unsafe.Offsetof(m.next), 16},
		{"matArgs.x", unsafe.Offsetof(m.x), 24},
		{"matArgs.xs", unsafe.Offsetof(m.xs), 32},
		{"matArgs.k", unsafe.Offsetof(m.k), 40},
		{"matArgs.y", unsafe.Offsetof(m.y), 48},
		{"matArgs.ys", unsafe.Offsetof(m.ys), 56},
		{"matArgs.alpha", unsafe.Offsetof(m.alpha), 64},
		{"matArgs.add", unsafe.Offsetof(m.add), 68},
		{"matArgs.adv", unsafe.Offsetof(m.adv), 72},
		{"accArgs.v", unsafe.Offsetof(a.v), 0},
		{"accArgs.stride", unsafe.Offsetof(a.stride), 8},
		{"accArgs.n", unsafe.Offsetof(a.n), 16},
		{"accArgs.p", unsafe.Offsetof(a.p), 24},
		{"accArgs.ps", unsafe.Offsetof(a.ps), 32},
		{"accArgs.out", unsafe.Offsetof(a.out), 40},
		{"accArgs.os", unsafe.Offsetof(a.os), 48},
		{"accArgs.width", unsafe.Offsetof(a.width), 56},
	} {
		if c.got != c.want {
			t.Errorf("%s is at offset %d, the generator has %d", c.name, c.got, c.want)
		}
	}
}
