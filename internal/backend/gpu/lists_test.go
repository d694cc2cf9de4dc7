package gpu_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"strobe/internal/backend/gpu"
)

// uploads keeps the last block of bytes that a step uploaded.
type uploads struct {
	idleDriver
	last []byte
}

func (d *uploads) Upload(_ gpu.Addr, b []byte) { d.last = slices.Clone(b) }

// sets reads the integers that the host set: n entries at the start of the block, each with the place of its values.
func (d *uploads) sets(n int) (out [][]int32) {
	for i := range n {
		e := d.last[16*i:]
		at, count := int(binary.LittleEndian.Uint32(e[8:])), int(binary.LittleEndian.Uint32(e[12:]))
		v := make([]int32, count)
		for k := range v {
			v[k] = int32(binary.LittleEndian.Uint32(d.last[at+4*k:]))
		}
		out = append(out, v)
	}
	return out
}

// TestListsBySets: steps are the same list only if their integers have the same lengths, even where the operations are
// equal and all integers together are as many.
func TestListsBySets(t *testing.T) {
	d := &uploads{idleDriver: idleDriver{&idle{}}}
	b, err := gpu.New(d)
	if err != nil {
		t.Fatal(err)
	}
	x, err1 := b.Alloc(4, 64)
	y, err2 := b.Alloc(4, 64)
	first, err3 := b.AllocInts(8)
	second, err4 := b.AllocInts(8)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			t.Fatal(err)
		}
	}
	step := func(a, c []int32) int {
		b.BeginStep(nil)
		b.SetInts(first, a)
		b.SetInts(second, c)
		b.Gather(y, x, first)
		b.Gather(x, y, second)
		name, err := b.EndStep()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprint(d.sets(2)), fmt.Sprint([][]int32{a, c}); got != want {
			t.Errorf("the device is given integers %s, want %s", got, want)
		}
		return name
	}
	long := step([]int32{1, 2, 3, 4, 5}, []int32{6, 7, 8, 9})
	if again := step([]int32{3, 3, 3, 3, 3}, []int32{1, 1, 1, 1}); again != long {
		t.Errorf("integers of the same lengths make list %d, want %d", again, long)
	}
	other := step([]int32{1, 2, 3, 4}, []int32{5, 6, 7, 8, 9})
	if other == long {
		t.Error("integers of other lengths are taken for the same list")
	}
	// Repeating knows both by their names.
	for name, v := range map[int][2][]int32{long: {{5, 4, 3, 2, 1}, {9, 8, 7, 6}}, other: {{5, 4, 3, 2}, {9, 8, 7, 6, 5}}} {
		if ok, err := b.Repeat(name, nil, v[0], v[1]); !ok || err != nil {
			t.Errorf("repeating: %t, %v", ok, err)
		}
		if got, want := fmt.Sprint(d.sets(2)), fmt.Sprint(v); got != want {
			t.Errorf("repeating gives the device integers %s, want %s", got, want)
		}
	}
}
