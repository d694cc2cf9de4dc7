package gpu

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
)

// onCounter is a backend of which only the memory is looked at.
func onCounter(limit int) (*Backend, *Counter) {
	card := NewCounter(Props{}, limit)
	b := &Backend{d: card}
	b.spare.b = b
	return b, card
}

// TestScratch: what is taken lies in the smallest gap that holds it, or at the end, and in nothing that is in use.
func TestScratch(t *testing.T) {
	type piece struct{ at, end int }
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		b, _ := onCounter(0)
		s := &b.spare
		s.at = 1 << 30
		var used []piece // in order
		need := 0
		// place is where n bytes belong.
		place := func(n int) int {
			best, size, from := -1, 0, 0
			for _, u := range append(slices.Clone(used), piece{need, need}) {
				if gap := u.at - from; gap >= n && (best < 0 || gap < size) {
					best, size = from, gap
				}
				from = u.end
			}
			if best < 0 && len(used) > 0 {
				best = used[len(used)-1].end
			}
			return max(0, best)
		}
		for step := range 300 {
			switch {
			case random.IntN(60) == 0:
				s.reset()
				used, need = nil, 0
			case random.IntN(5) < 2 && len(used) > 0:
				i := random.IntN(len(used))
				s.give(s.at + Addr(used[i].at))
				used = slices.Delete(used, i, i+1)
			default:
				bytes := random.IntN(4000)
				n := max(1, (bytes+scratchAlign-1)/scratchAlign) * scratchAlign
				want := place(n)
				if got := s.take(bytes); got != s.at+Addr(want) {
					t.Fatalf("seed %d, step %d: %d bytes lie at %d, want %d of %v", seed, step, bytes, got-s.at, want, used)
				}
				used = append(used, piece{want, want + n})
				slices.SortFunc(used, func(a, b piece) int { return a.at - b.at })
				need = max(need, want+n)
			}
			if s.need != need {
				t.Fatalf("seed %d, step %d: the list needs %d bytes, want %d", seed, step, s.need, need)
			}
		}
	}
}

// TestScratchGrows: a list that needs more than there is gets one piece of memory for all of it in place of the old
// one, whose recordings are forgotten.
func TestScratchGrows(t *testing.T) {
	b, card := onCounter(0)
	s := &b.spare
	recording := func(a Addr) *list {
		return &list{recorded: []*recorded{{launches: []Launch{{Args: binary.LittleEndian.AppendUint64(nil, uint64(a))}}}}}
	}
	for _, c := range []struct {
		bytes  int
		enough bool
		size   int
	}{
		{1, false, scratchGrain}, {scratchGrain, true, scratchGrain}, {scratchGrain + 1, false, 2 * scratchGrain},
		{5, true, 2 * scratchGrain}, {2 * scratchGrain, true, 2 * scratchGrain}, {7 * scratchGrain, false, 7 * scratchGrain},
	} {
		had := s.size
		b.lists = []*list{recording(s.at + Addr(max(0, s.size-1))), recording(1 << 60)}
		s.reset()
		s.take(c.bytes)
		enough, err := s.enough()
		if err != nil || enough != c.enough || s.size != c.size || card.Used() != c.size {
			t.Errorf("%d bytes: enough %t, error %v, %d bytes of %d in use; want %t and %d", c.bytes, enough, err, s.size,
				card.Used(), c.enough, c.size)
		}
		if left := len(b.lists); had > 0 && !c.enough && left != 1 || c.enough && left != 2 {
			t.Errorf("%d bytes: %d of 2 recordings are left", c.bytes, left)
		}
		s.reset()
		s.take(c.bytes)
		if enough, err := s.enough(); !enough || err != nil {
			t.Errorf("%d bytes again: enough %t, error %v", c.bytes, enough, err)
		}
	}
}

// TestScratchWithoutRoom: a list that needs more than the device has fails; those that ran before still can.
func TestScratchWithoutRoom(t *testing.T) {
	b, card := onCounter(3 * scratchGrain)
	s := &b.spare
	s.take(scratchGrain)
	if enough, err := s.enough(); enough || err != nil {
		t.Fatalf("enough %t, error %v", enough, err)
	}
	s.reset()
	s.take(4 * scratchGrain)
	if _, err := s.enough(); err == nil {
		t.Fatal("there was room for more than the device has")
	}
	s.reset()
	s.take(scratchGrain)
	if enough, err := s.enough(); !enough || err != nil || card.Used() != scratchGrain {
		t.Errorf("the list before: enough %t, error %v, %d bytes in use", enough, err, card.Used())
	}
}

// TestSpareTapes: tapes of common lengths are kept for the next sequence, longer ones go back to the device.
func TestSpareTapes(t *testing.T) {
	card := NewCounter(Props{Major: 9, Units: 132, SharedBlock: 227 << 10}, 0)
	p, err := NewStates(card, backend.DeltaDims{KHeads: 1, VHeads: 1, KDim: 128, VDim: 128, Kernel: 4}, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, rows := range []int{spareTape, spareTape + 1} {
		a, err := card.Alloc(1000)
		if err != nil {
			t.Fatal(err)
		}
		before := card.Used()
		p.giveTape(stateTape{a, rows})
		if freed := card.Used() < before; freed != (rows > spareTape) {
			t.Errorf("a tape of %d rows: freed %t", rows, freed)
		}
	}
	if len(p.spare) != 1 {
		t.Errorf("%d sizes are kept, want 1", len(p.spare))
	}
}
