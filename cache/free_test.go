package cache_test

import (
	"testing"

	"strobe/backend/cpu"
	"strobe/cache"
	"strobe/internal/testkit"
)

// TestFree: what a sequence allocated on the device is given back: its state, and its tape however
// often it grew.
func TestFree(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	for name, spec := range shapes {
		d := testkit.NewDevice(t, dev)
		m := memory(t, d, spec)
		s := m.NewSeq()
		for _, rows := range []int{1, 3, 9, 2} {
			b, err := m.Begin([]cache.Segment{{Seq: s, Rows: rows}})
			if err != nil {
				t.Fatal(err)
			}
			b.Done()
			if err := s.CommitFirst(1); err != nil {
				t.Fatal(err)
			}
		}
		if s.Close(); d.Live() != 0 {
			t.Errorf("%s: %d values left behind", name, d.Live())
		}
		if s.Close(); d.Live() != 0 {
			t.Errorf("%s: freed twice", name)
		}
	}
}
