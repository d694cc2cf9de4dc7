package gpu_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
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
	// Repeating knows both by their names. Integers that are missing are zero; more than there were is another list.
	if ok, err := b.Repeat(long, nil, []int32{7, 7}, []int32{8}); !ok || err != nil ||
		fmt.Sprint(d.sets(2)) != "[[7 7 0 0 0] [8 0 0 0]]" {
		t.Errorf("fewer integers: %t, %v, the device is given %v", ok, err, d.sets(2))
	}
	for _, v := range [][][]int32{{{1, 2, 3, 4, 5, 6}, {1}}, {{1}, {1, 2, 3, 4, 5}}, {{1}}, {{1}, {1}, {1}}} {
		if ok, err := b.Repeat(long, nil, v...); ok || err != nil {
			t.Errorf("repeating with %v: %t, %v; want another list", v, ok, err)
		}
	}
	if ok, err := b.Repeat(other+1, nil, []int32{1}, []int32{1}); ok || err != nil {
		t.Errorf("repeating a list that is not there: %t, %v", ok, err)
	}
	for name, v := range map[int][2][]int32{long: {{5, 4, 3, 2, 1}, {9, 8, 7, 6}},
		other: {{5, 4, 3, 2}, {9, 8, 7, 6, 5}}} {
		if ok, err := b.Repeat(name, nil, v[0], v[1]); !ok || err != nil {
			t.Errorf("repeating: %t, %v", ok, err)
		}
		if got, want := fmt.Sprint(d.sets(2)), fmt.Sprint(v); got != want {
			t.Errorf("repeating gives the device integers %s, want %s", got, want)
		}
	}
}

// closing counts recordings that are given back.
type closing struct {
	idleDriver
	open, closed int
}

func (d *closing) Record([]gpu.Launch) (gpu.Recording, error) {
	d.open++
	return recordingOf{d}, nil
}

func (d *closing) Replay(gpu.Recording) {}

type recordingOf struct{ d *closing }

func (r recordingOf) Close() { r.d.closed++ }

// TestRecordingsAreBounded: a device keeps so many lists of launches; the one that was not used for longest goes, with
// its recording.
func TestRecordingsAreBounded(t *testing.T) {
	d := &closing{idleDriver: idleDriver{&idle{}}}
	b, err := gpu.New(d)
	if err != nil {
		t.Fatal(err)
	}
	x, err1 := b.Alloc(4, 64)
	y, err2 := b.Alloc(4, 64)
	rows, err3 := b.AllocInts(gpu.MaxRecorded + 10)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	step := func(n int) int {
		b.BeginStep(nil)
		b.SetInts(rows, make([]int32, n))
		b.Gather(y, x, rows)
		b.Gather(x, y, rows)
		name, err := b.EndStep()
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	first := step(1)
	step(1) // now it is recorded
	names := map[int]int{}
	for n := 2; n <= gpu.MaxRecorded; n++ {
		names[n] = step(n)
	}
	if b.Recorded() != gpu.MaxRecorded || d.open != 1 || d.closed != 0 {
		t.Fatalf("%d lists are kept, want %d; %d recordings, %d given back", b.Recorded(), gpu.MaxRecorded, d.open, d.closed)
	}
	step(2) // used again: the next one in line is the first
	step(gpu.MaxRecorded + 1)
	if b.Recorded() != gpu.MaxRecorded || d.closed != 1 {
		t.Errorf("%d lists are kept, want %d; %d recordings are given back, want 1", b.Recorded(), gpu.MaxRecorded, d.closed)
	}
	if ok, err := b.Repeat(first, nil, []int32{0}); ok || err != nil {
		t.Errorf("the oldest list is still there: %t, %v", ok, err)
	}
	step(gpu.MaxRecorded + 2) // and now the third goes, not the second
	for n, kept := range map[int]bool{2: true, 3: false, 4: true} {
		if ok, err := b.Repeat(names[n], nil, []int32{0}); ok != kept || err != nil {
			t.Errorf("list %d is there: %t, want %t; error %v", n, ok, kept, err)
		}
	}
}

// TestBadDelta: a step whose recurrent segments are wrong fails with one line, and the next one is run.
func TestBadDelta(t *testing.T) {
	b, err := gpu.New(idleDriver{&idle{}})
	if err != nil {
		t.Fatal(err)
	}
	pool, err1 := b.NewStatePool(backend.DeltaDims{KHeads: 1, VHeads: 2, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6}, 1)
	x, err2 := b.Alloc(4, 64)
	y, err3 := b.Alloc(4, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		seg  backend.DeltaSeg
		want string
	}{
		{backend.DeltaSeg{Slot: 9, N: 1}, "has the slot 9"},
		{backend.DeltaSeg{}, ""},
	} {
		p := &backend.Plan{State: pool, Delta: []backend.DeltaSeg{c.seg}}
		if c.want == "" {
			p.State, p.Delta = nil, nil
		}
		b.BeginStep(p)
		for range 3 {
			b.Add(y, x, y)
		}
		if _, err := b.EndStep(); c.want == "" && err != nil || c.want != "" && (err == nil ||
			!strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: error %v, want %q", c.seg, err, c.want)
		}
	}
}
