package gpu_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
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

// full is a lending device on which there are so many bytes left.
type full struct {
	*lending
	left int
}

func (d *full) Alloc(bytes int) (gpu.Addr, error) {
	if bytes > d.left {
		return 0, errors.New("the device is full")
	}
	d.left -= bytes
	return d.lending.Alloc(bytes)
}

func (d *full) Release(a gpu.Addr) {
	d.left += d.lent[a]
	d.lending.Release(a)
}

// attending is a device with one layer of quantised pages.
type attending struct {
	*full
	t     testing.TB
	dev   *gpu.Backend
	pool  *gpu.Pages
	pages []int32
	kv, q backend.Tensor
}

func newAttending(t testing.TB) *attending {
	t.Helper()
	a := &attending{full: &full{newLending(t), 1 << 40}, t: t}
	var err error
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a.dev, err = gpu.New(a.full)
	must(err)
	d := backend.KVDims{Heads: 2, KeyDim: 128, ValueDim: 128, Key: quant.Q8_0, Value: quant.Q8_0}
	pool, err := a.dev.NewKVPool(backend.KVLayout{Page: 64, Layers: []backend.KVDims{d}})
	must(err)
	a.pool = pool.(*gpu.Pages)
	for range 200 {
		id, err := a.pool.Alloc()
		must(err)
		a.pages = append(a.pages, id)
	}
	a.kv, err = a.dev.Alloc(64, 2*128)
	must(err)
	a.q, err = a.dev.Alloc(64, 4*128)
	must(err)
	return a
}

// attend runs a step of rows that lie from a slot on, in as many sequences of all pages, until it is replayed.
func (a *attending) attend(rows, slot, seqs int) {
	a.t.Helper()
	p := backend.KVPlan{Pool: a.pool}
	for s := range seqs {
		ids := slices.Clone(a.pages)
		ids[0], ids[s] = ids[s], ids[0]
		p.Tables = append(p.Tables, ids)
		for r := range rows {
			addRow(&p, s, slot+r)
		}
	}
	kv, q := a.kv, a.q
	kv.Rows, q.Rows = seqs*rows, seqs*rows
	for range 3 {
		a.dev.BeginStep(&backend.Plan{KV: []backend.KVPlan{p}})
		a.dev.KVWrite(0, 0, kv, kv)
		a.dev.Attention(q, q, 0, 0, backend.AttnParams{Heads: 4, KVHeads: 2, Scale: 1})
		a.dev.Scale(q, q, 2)
		if name, err := a.dev.EndStep(); name == 0 || err != nil {
			a.t.Fatalf("step %d: %v", name, err)
		}
	}
}

// TestTableMoves: steps that were recorded before the table of pages moved, to make room for more sequences, do not
// read where it was.
func TestTableMoves(t *testing.T) {
	a := newAttending(t)
	a.attend(1, 0, 1)
	before, _ := a.pool.Table()
	a.attend(1, 0, 16)
	if at, _ := a.pool.Table(); at == before {
		t.Fatal("the table did not move: the test says nothing")
	}
	a.attend(1, 0, 1)
}

// TestUnpackedMoves: steps that were recorded before the memory for unpacked pages grew do not use what it was.
func TestUnpackedMoves(t *testing.T) {
	a := newAttending(t)
	a.attend(64, 0, 1)
	if len(a.gone) > 0 {
		t.Fatal("something was given back")
	}
	a.attend(64, 180*64, 1)
	if len(a.gone) != 1 {
		t.Fatalf("%d pieces of memory were given back, want those for unpacked pages", len(a.gone))
	}
	a.attend(64, 0, 1)
}

// TestUnpackedGivesWay: on a full device the memory for unpacked pages becomes some for pages, once and for good, and
// steps go on without it.
func TestUnpackedGivesWay(t *testing.T) {
	a := newAttending(t)
	a.attend(64, 180*64, 1)
	a.left = 0
	var err error
	for err == nil && a.pool.Used() < 1000 {
		_, err = a.pool.Alloc()
	}
	if err == nil || err.Error() != "cache has no free page: the device is full" {
		t.Errorf("%d pages, error %v", a.pool.Used(), err)
	}
	if len(a.gone) != 1 || a.pool.Used() != 2*256 {
		t.Errorf("%d pages in the place of %d other pieces of memory, want 512 and 1", a.pool.Used(), len(a.gone))
	}
	a.left = 1 << 40
	lent := a.bytes()
	a.attend(64, 180*64, 1)
	if a.bytes() != lent {
		t.Error("the memory was taken again")
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
