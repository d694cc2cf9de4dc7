//go:build (amd64 || arm64) && !noasm

package vec

import (
	"testing"
	"unsafe"
)

// TestArgumentOffsets pins the structures whose offsets the generator repeats.
func TestArgumentOffsets(t *testing.T) {
	var m matArgs
	var a accArgs
	var d deltaToken
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
		{"matArgs.tiles", unsafe.Offsetof(m.tiles), 80},
		{"deltaToken.k", unsafe.Offsetof(d.k), 0},
		{"deltaToken.q", unsafe.Offsetof(d.q), 24},
		{"deltaToken.v", unsafe.Offsetof(d.v), 48},
		{"deltaToken.d", unsafe.Offsetof(d.d), 72},
		{"deltaToken.o", unsafe.Offsetof(d.o), 96},
		{"deltaToken.g", unsafe.Offsetof(d.g), 120},
		{"deltaToken.beta", unsafe.Offsetof(d.beta), 124},
		{"deltaToken.scale", unsafe.Offsetof(d.scale), 128},
		{"deltaToken.qk", unsafe.Offsetof(d.qk), 132},
		{"size of deltaToken", unsafe.Sizeof(d), 136},
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
