package gpu

import (
	"fmt"
	"slices"

	"strobe/internal/backend"
)

// DeltaMemory is where the recurrent memory of a sequence lies on the device.
type DeltaMemory struct {
	State     Addr // of all layers
	Read      Addr // tape with the pending rows
	Write     Addr // tape for this step's rows
	ReadRows  int  // rows that the tapes have room for
	WriteRows int
	Path      []int32 // rows of the tape that are pending, in order; nil means the first ones
}

// DeltaTables says what the kernels of the recurrent layers do in a step; all layers share them. delta.h describes the
// integers.
type DeltaTables struct {
	ints   []int32
	segs   int
	chains bool
}

// Numbers of delta.h.
const (
	deltaSeg     = 24
	flagPrompt   = 1
	flagShift    = 2
	entryRestart = 1 << 30
	entryQuiet   = 1 << 29
	maxEntryRow  = 0xffffff
	fromBatch    = 0
	fromInputs   = 1
	fromTape     = 2
)

// DeltaRoom is the room for tables in a step's block: powers of two, so that it stays the same while segments come and
// go.
type DeltaRoom struct {
	Ints, Segs int
	Chains     bool // all segments are chains of one to wholeRows rows
}

// Bytes is the size of the room.
func (r DeltaRoom) Bytes() int { return 4 * r.Ints }

// Room returns the room that the tables need.
func (t *DeltaTables) Room() DeltaRoom {
	segs := 1
	for segs < t.segs {
		segs *= 2
	}
	return DeltaRoom{roomFor(len(t.ints), leastInts), segs, t.chains}
}

// leastInts is room for eight sequences with a few tokens each.
const leastInts = 512

// Put writes the tables to their room.
func (t *DeltaTables) Put(b []byte, r DeltaRoom) { copy(b[:r.Bytes()], bytesOf(t.ints)) }

// NewDeltaTables makes the tables of a step over so many rows. The segments are in order of rows and have all of them,
// except for padding at the end.
func NewDeltaTables(d backend.DeltaDims, segs []backend.DeltaSeg, total int,
	memory func(slot int32) DeltaMemory) (*DeltaTables,
	error) {
	rows := 0
	for i := range segs {
		s := &segs[i]
		if s.Row != rows || s.N < 0 || s.N > maxEntryRow {
			return nil, fmt.Errorf("segment %d of the recurrent layers has %d rows from %d on, want them from %d on",
				i, s.N, s.Row, rows)
		}
		rows += s.N
	}
	all := len(segs)
	if total > rows {
		all++
	}
	t := &DeltaTables{segs: len(segs), chains: true}
	t.ints = make([]int32, 4+deltaSeg*all+max(rows, total)*(d.Kernel+1))
	t.ints[0], t.ints[1] = int32(len(segs)), int32(max(rows, total))
	if total > rows {
		t.pad(d, rows, total)
	}
	for i := range segs {
		s := &segs[i]
		m := memory(s.Slot)
		path := m.Path
		if path == nil {
			path = make([]int32, m.ReadRows)
			for j := range path {
				path[j] = int32(j)
			}
		}
		if s.Pending < 0 || s.Pending > len(path) || s.Pending > m.ReadRows {
			return nil, fmt.Errorf("segment %d of the recurrent layers has %d pending rows, more than its tape", i,
				s.Pending)
		}
		if !s.Prompt && s.N > 0 && (m.Write == 0 || m.WriteRows < s.N) {
			return nil, fmt.Errorf("segment %d of the recurrent layers has %d rows, its tape has room for %d", i, s.N,
				m.WriteRows)
		}
		if err := t.segment(d, i, s, m, path[:s.Pending]); err != nil {
			return nil, fmt.Errorf("segment %d of the recurrent layers: %w", i, err)
		}
	}
	t.ints[2] = int32(len(t.ints))
	t.ints = append(t.ints, make([]int32, d.KHeads)...) // counters
	return t, nil
}

// pad makes the rows from one on padding. They belong to a segment behind those that the kernels go through, and read
// nothing but themselves; as rows of a prompt they are not taped.
func (t *DeltaTables) pad(d backend.DeltaDims, from, to int) {
	t.ints[4+to*(d.Kernel+1)+deltaSeg*t.segs+3] = flagPrompt
	for r := from; r < to; r++ {
		row := t.ints[4+r*(d.Kernel+1):][:d.Kernel+1]
		row[0] = int32(t.segs)
		for j := range d.Kernel {
			row[1+j] = int32(r)<<2 | fromBatch
		}
	}
}

func (t *DeltaTables) segment(d backend.DeltaDims, i int, s *backend.DeltaSeg, m DeltaMemory, path []int32) error {
	if s.Parents != nil && (s.Prompt || len(s.Parents) != s.N) {
		return fmt.Errorf("%d parents for %d rows (prompt: %t)", len(s.Parents), s.N, s.Prompt)
	}
	order, err := treeOrder(s.Parents)
	if err != nil {
		return err
	}
	t.chains = t.chains && !s.Prompt && order == nil && s.N > 0 && s.N <= wholeRows
	at := len(t.ints)
	t.ints = append(append(t.ints, order...), path...)
	g := t.ints[4+int(t.ints[1])*(d.Kernel+1)+deltaSeg*i:][:deltaSeg]
	flags := int32(0)
	settled := len(path) // tokens by which the newest inputs move
	if s.Prompt {
		flags |= flagPrompt
		settled += s.N
	}
	if settled > 0 {
		flags |= flagShift
	}
	copy(g, []int32{int32(s.Row), int32(s.N), int32(len(path)), flags,
		int32(uint32(m.State)), int32(m.State >> 32), int32(uint32(m.Read)), int32(m.Read >> 32),
		int32(uint32(m.Write)), int32(m.Write >> 32),
		int32(m.ReadRows), int32(m.WriteRows), int32(at), int32(len(order)), int32(at + len(order))})
	// before is the source of the input so many tokens before the first row: the last pending one is 1.
	before := func(n int) int32 {
		if n <= len(path) {
			return path[len(path)-n]<<2 | fromTape
		}
		return int32(d.Kernel-1-(n-len(path)))<<2 | fromInputs
	}
	for j := range d.Kernel - 1 {
		n := d.Kernel - 1 - j // 1 is the newest
		if s.Prompt {
			if n <= s.N {
				g[16+j] = int32(s.Row+s.N-n)<<2 | fromBatch
				continue
			}
			n -= s.N
		}
		g[16+j] = before(n)
	}
	for r := range s.N {
		row := t.ints[4+(s.Row+r)*(d.Kernel+1):][:d.Kernel+1]
		row[0] = int32(i)
		for j, at, back := d.Kernel, r, 0; j > 0; j-- {
			if at >= 0 {
				row[j] = int32(s.Row+at)<<2 | fromBatch
				if s.Parents != nil {
					at = int(s.Parents[at])
				} else {
					at--
				}
			} else {
				back++
				row[j] = before(back)
			}
		}
	}
	return nil
}

// treeOrder lists the rows of a tree so that every chain begins again at the state and passes its ancestors quietly. A
// chain needs no list.
func treeOrder(parents []int32) ([]int32, error) {
	chain := true
	for r, p := range parents {
		if p < -1 || int(p) >= r {
			return nil, fmt.Errorf("row %d has the parent %d", r, p)
		}
		chain = chain && int(p) == r-1
	}
	if chain {
		return nil, nil
	}
	children := make([][]int32, len(parents)+1) // the last ones are the roots
	for r, p := range parents {
		if p < 0 {
			p = int32(len(parents))
		}
		children[p] = append(children[p], int32(r))
	}
	var order []int32
	last := int32(-1) // the row whose state the kernel has
	stack := slices.Clone(children[len(parents)])
	slices.Reverse(stack)
	for len(stack) > 0 {
		r := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if parents[r] != last {
			var path []int32
			for p := parents[r]; p >= 0; p = parents[p] {
				path = append(path, p|entryQuiet)
			}
			slices.Reverse(path)
			path = append(path, r)
			path[0] |= entryRestart
			order = append(order, path...)
		} else {
			order = append(order, r)
		}
		last = r
		below := children[r]
		for i := len(below) - 1; i >= 0; i-- {
			stack = append(stack, below[i])
		}
	}
	return order, nil
}
