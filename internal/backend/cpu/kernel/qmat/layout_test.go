package qmat

import (
	"testing"
	"unsafe"
)

// TestLayout holds the record to the offsets that _asm/main.go has as constants.
func TestLayout(t *testing.T) {
	var r record
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"q", unsafe.Offsetof(r.q), 0},
		{"xs", unsafe.Offsetof(r.xs), 256},
		{"init32", unsafe.Offsetof(r.init32), 288},
		{"ms32", unsafe.Offsetof(r.ms32), 320},
		{"init16", unsafe.Offsetof(r.init16), 352},
		{"ms16", unsafe.Offsetof(r.ms16), 416},
		{"size", unsafe.Sizeof(r), 480},
	} {
		if c.got != c.want {
			t.Errorf("record: %s at %d, kernels expect %d", c.name, c.got, c.want)
		}
	}
}
