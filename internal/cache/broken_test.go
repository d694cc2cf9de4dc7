package cache_test

import (
	"errors"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
)

// TestHalfPass: a sequence whose pass ended before Done cannot be used again in any way, and gives back all
// it holds.
func TestHalfPass(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	for name, spec := range shapes {
		m := memory(t, dev, spec)
		s := m.NewSeq()
		if _, err := m.Begin([]cache.Segment{{Seq: s, Rows: 3}}); err != nil {
			t.Fatal(err)
		}
		_, again := m.Begin([]cache.Segment{{Seq: s, Rows: 1}})
		_, fork := s.Fork()
		for what, err := range map[string]error{"pass": again, "commit": s.CommitAll(), "cut": s.Truncate(0), "fork": fork} {
			if err == nil {
				t.Errorf("%s: %s after half a pass", name, what)
			}
		}
		if s.Close(); m.UsedBytes() != 0 {
			t.Errorf("%s: %d bytes are in use", name, m.UsedBytes())
		}
	}
}

// full is a device that has a few pages.
type full struct {
	backend.Backend
	pages int
}

type fullPool struct {
	backend.KVPool
	b *full
}

var errFull = errors.New("no free page")

func (b *full) NewKVPool(l backend.KVLayout) (backend.KVPool, error) {
	p, err := b.Backend.NewKVPool(l)
	return &fullPool{p, b}, err
}

func (p *fullPool) Alloc() (int32, error) {
	if p.b.pages == 0 {
		return 0, errFull
	}
	p.b.pages--
	return p.KVPool.Alloc()
}

// TestNoRoomForAnother: a pass that could not begin because one sequence has no room leaves the others as
// they were.
func TestNoRoomForAnother(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	for name, spec := range shapes {
		if len(spec.Layers) == 0 {
			continue // it needs no pages
		}
		b := &full{Backend: dev, pages: 1 << 20}
		m := memory(t, b, spec)
		one, two := m.NewSeq(), m.NewSeq()
		pass := func(segs ...cache.Segment) error {
			p, err := m.Begin(segs)
			if err == nil {
				p.Done()
			}
			return err
		}
		if err := pass(cache.Segment{Seq: one, Rows: 3, Prompt: true}); err != nil {
			t.Fatal(err)
		}
		if err := one.CommitAll(); err != nil {
			t.Fatal(err)
		}
		b.pages = 0
		if err := pass(cache.Segment{Seq: one, Rows: 2}, cache.Segment{Seq: two, Rows: 2}); !errors.Is(err, errFull) {
			t.Fatalf("%s: error %v", name, err)
		}
		if one.Len() != 3 || one.Open() != 0 {
			t.Errorf("%s: %d tokens, %d open", name, one.Len(), one.Open())
		}
		if err := pass(cache.Segment{Seq: one, Rows: 2}); err != nil {
			t.Errorf("%s: the sequence with room: %v", name, err)
		}
		if err := one.CommitFirst(1); err != nil || one.Len() != 4 {
			t.Errorf("%s: %d tokens, error %v", name, one.Len(), err)
		}
		one.Close()
		two.Close()
	}
}
