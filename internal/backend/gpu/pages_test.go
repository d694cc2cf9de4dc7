package gpu_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
)

// memory is an idle device that keeps what is uploaded, and counts it.
type memory struct {
	idleDriver
	at       map[gpu.Addr]uint64
	uploaded int
}

func (m *memory) Upload(dst gpu.Addr, src []byte) {
	m.uploaded += len(src)
	for i := 0; i+8 <= len(src); i += 8 {
		m.at[dst+gpu.Addr(i)] = binary.LittleEndian.Uint64(src[i:])
	}
}

func (m *memory) Copy(dst, src gpu.Addr, bytes int) {
	for i := gpu.Addr(0); i < gpu.Addr(bytes); i += 8 {
		m.at[dst+i] = m.at[src+i]
	}
}

func newLists(t testing.TB) (*memory, *gpu.Pages) {
	t.Helper()
	m := &memory{idleDriver: idleDriver{&idle{}}, at: map[gpu.Addr]uint64{}}
	p, err := gpu.NewPages(m, backend.KVLayout{Page: 64, Layers: []backend.KVDims{
		{Heads: 1, KeyDim: 64, ValueDim: 64, Key: f16, Value: f16}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m, p
}

// TestListGrows: what a growing sequence hands to the device is proportional to its length, also beside another.
func TestListGrows(t *testing.T) {
	m, p := newLists(t)
	m.uploaded = 0
	const pages = 4096
	var a, b []int32
	for turn := range pages {
		for _, ids := range []*[]int32{&a, &b} {
			id, err := p.Alloc()
			if err != nil {
				t.Fatal(err)
			}
			*ids = append(*ids, id)
			if _, err := p.List(*ids, turn); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Each page once, and once more whenever a list moves to twice the room.
	if most := 2 * 2 * pages * 8; m.uploaded > most {
		t.Errorf("%d bytes were uploaded for 2 sequences of %d pages, want at most %d", m.uploaded, pages, most)
	}
}

// TestLists: whatever sequences do between steps, each finds its pages in the table during a step.
func TestLists(t *testing.T) {
	m, p := newLists(t)
	r := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		if _, err := p.Alloc(); err != nil {
			t.Fatal(err)
		}
	}
	seqs := [][]int32{nil}
	for turn := range 3000 {
		for i := range seqs {
			s := &seqs[i]
			switch r.IntN(8) {
			case 0: // rolled back, and other pages after that
				*s = (*s)[:max(0, len(*s)-r.IntN(12))]
			case 1: // a window
				for j := range len(*s) - min(len(*s), 20) {
					(*s)[j] = -1
				}
			case 2:
				*s = nil
			}
			for range r.IntN(30) {
				*s = append(*s, r.Int32N(3000))
			}
		}
		switch {
		case r.IntN(10) == 0 && len(seqs) < 12:
			seqs = append(seqs, append([]int32(nil), seqs[r.IntN(len(seqs))]...)) // a fork
		case r.IntN(30) == 0 && len(seqs) > 1:
			seqs = seqs[1:]
		}
		type use struct {
			ids []int32
			at  int32
		}
		var uses []use
		for range 1 + r.IntN(2*len(seqs)) {
			ids := seqs[r.IntN(len(seqs))]
			ids = ids[:len(ids)-r.IntN(len(ids)/4+1)]
			at, err := p.List(ids, turn)
			if err != nil {
				t.Fatal(err)
			}
			uses = append(uses, use{ids, at})
		}
		table, entries := p.Table()
		for _, u := range uses {
			if int(u.at)+len(u.ids) > entries {
				t.Fatalf("step %d: a list of %d at %d of %d", turn, len(u.ids), u.at, entries)
			}
			for i, id := range u.ids {
				if got := m.at[table+gpu.Addr(8*(int(u.at)+i))]; id >= 0 && got != uint64(p.Addr(id)) {
					t.Fatalf("step %d: entry %d of a list is %x, want %x", turn, i, got, p.Addr(id))
				}
			}
		}
	}
	if _, entries := p.Table(); entries > 1<<16 {
		t.Errorf("the table grew to %d entries", entries)
	}
}

// BenchmarkList times what a step does about the pages of a sequence of 256K tokens.
func BenchmarkList(b *testing.B) {
	_, p := newLists(b)
	ids := make([]int32, 4096)
	for i := range ids {
		var err error
		if ids[i], err = p.Alloc(); err != nil {
			b.Fatal(err)
		}
	}
	turn := 0
	for b.Loop() {
		turn++
		if _, err := p.List(ids, turn); err != nil {
			b.Fatal(err)
		}
	}
}
