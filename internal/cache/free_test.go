package cache_test

import (
	"errors"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
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

// TestPackFrees: packing a sequence gives its tape back, and closing it the rest.
func TestPackFrees(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	d := testkit.NewDevice(t, dev)
	m := memory(t, d, shapes["recurrent"])
	s := m.NewSeq()
	b, err := m.Begin([]cache.Segment{{Seq: s, Rows: 3}})
	if err != nil {
		t.Fatal(err)
	}
	b.Done()
	if err := s.CommitFirst(1); err != nil {
		t.Fatal(err)
	}
	held := d.Live()
	if b, err = m.Begin([]cache.Segment{{Seq: s, Rows: 3}}); err != nil {
		t.Fatal(err)
	}
	b.Done() // the rows are not committed
	if s.Pack(); d.Live() != held-3 || s.Open() != 0 {
		t.Errorf("%d of 3 rows of the tape given back", held-d.Live())
	}
	if s.Close(); d.Live() != 0 {
		t.Errorf("%d left behind", d.Live())
	}
}

// TestNoRoom: a device that refuses memory at any point costs the pass that asked for it, not the sequence, and nothing
// leaks.
func TestNoRoom(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	for name, spec := range shapes {
		for refused := 0; ; refused++ {
			d := testkit.NewDevice(t, dev)
			asked, failed := 0, false
			d.Fail = func() error {
				if asked++; asked-1 == refused {
					failed = true
					return errors.New("no room")
				}
				return nil
			}
			m := memory(t, d, spec)
			s := m.NewSeq()
			for range 2 {
				b, err := m.Begin([]cache.Segment{{Seq: s, Rows: 70}})
				if err != nil {
					if !errors.Is(err, backend.ErrNoMemory) {
						t.Errorf("%s: error %v with request %d refused", name, err, refused)
					}
					continue // once; the second time there is room
				}
				b.Done()
				if err := s.CommitFirst(70); err != nil {
					t.Fatal(err)
				}
			}
			if failed && s.Len() != 70 || !failed && s.Len() != 140 {
				t.Errorf("%s: %d tokens with request %d refused", name, s.Len(), refused)
			}
			if s.Close(); d.Live() != 0 {
				t.Errorf("%s: %d left behind with request %d refused", name, d.Live(), refused)
			}
			if !failed {
				break
			}
		}
	}
}
