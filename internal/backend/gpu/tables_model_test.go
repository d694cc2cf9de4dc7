package gpu

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// brk is a driver that only hands out addresses, one piece of memory right behind the other.
type brk struct {
	Driver
	next     Addr
	allocs   []int
	released []Addr
	full     bool
}

func (d *brk) Alloc(bytes int) (Addr, error) {
	if d.full {
		return 0, errors.New("brk: out of memory")
	}
	d.allocs = append(d.allocs, bytes)
	a := d.next
	d.next += Addr(bytes)
	return a, nil
}

func (d *brk) Release(a Addr) { d.released = append(d.released, a) }

// TestScratchAgainstAModel: what is taken lies in the first gap that holds it and in nothing that is in use, and what
// is given back is one gap with its neighbours.
func TestScratchAgainstAModel(t *testing.T) {
	type piece struct{ from, to Addr }
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 81))
		d := &brk{next: 4096}
		s := scratch{b: &Backend{d: d}}
		var chunks, used []piece
		// gap is the first place of so many bytes between what is used.
		gap := func(n Addr) (Addr, bool) {
			for _, c := range chunks {
				at := c.from
				for _, u := range used {
					if u.from < c.from || u.from >= c.to {
						continue
					}
					if u.from-at >= n {
						break
					}
					at = u.to
				}
				if c.to-at >= n {
					return at, true
				}
			}
			return 0, false
		}
		for step := range 300 {
			switch op := r.IntN(20); {
			case op == 0 && step > 200:
				s.reset()
				used = nil
			case op < 8 && len(used) > 0:
				i := r.IntN(len(used))
				s.give(used[i].from)
				used = slices.Delete(used, i, i+1)
			default:
				bytes := r.IntN(3 * scratchChunk / 4)
				if r.IntN(3) == 0 {
					bytes = r.IntN(600)
				} else if r.IntN(10) == 0 {
					bytes = scratchChunk + r.IntN(3)*scratchAlign // a chunk of its own
				}
				n := Addr(max(bytes, 1)+scratchAlign-1) / scratchAlign * scratchAlign
				want, fits := gap(n)
				d.full = r.IntN(8) == 0
				chunk := piece{d.next, d.next + max(n, scratchChunk)}
				got, err := s.take(bytes)
				if !fits && d.full {
					if err == nil {
						t.Fatalf("seed %d, step %d: %d bytes of a full device", seed, step, bytes)
					}
					continue
				}
				if !fits {
					want, chunks = chunk.from, append(chunks, chunk)
				}
				if err != nil || got != want || len(d.allocs) != len(chunks) || d.next != chunks[len(chunks)-1].to {
					t.Fatalf("seed %d, step %d: %d bytes lie at %d, want %d; %d chunks, want %d; error %v", seed, step, bytes, got,
						want, len(d.allocs), len(chunks), err)
				}
				used = append(used, piece{got, got + n})
				slices.SortFunc(used, func(a, b piece) int { return int(a.from) - int(b.from) })
			}
		}
	}
}

// TestDeltaTablesSayWhatRowsRead: kernels that read the tables as kernel/delta.h says find the inputs of every tap,
// apply the pending rows in order, and compute each row of a tree once, after its ancestors.
func TestDeltaTablesSayWhatRowsRead(t *testing.T) {
	trees, padded := 0, 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 91))
		d := backend.DeltaDims{KHeads: 1 + r.IntN(3), VHeads: 4, KDim: 16, VDim: 16, Kernel: 1 + r.IntN(5)}
		var segs []backend.DeltaSeg
		memory := map[int32]DeltaMemory{}
		rows := 0
		chains := true
		for i := range 1 + r.IntN(5) {
			s := backend.DeltaSeg{Row: rows, N: r.IntN(12), Slot: int32(10 + i), Prompt: r.IntN(3) == 0}
			if r.IntN(6) == 0 {
				s.N = wholeRows + r.IntN(2)
			}
			m := DeltaMemory{State: Addr(i+1) << 40, Read: Addr(i+1)<<40 + 1<<33, Write: Addr(i+1)<<40 + 1<<34,
				ReadRows: 1 + r.IntN(8), WriteRows: s.N}
			if r.IntN(2) == 0 {
				m.Path = make([]int32, r.IntN(m.ReadRows+1))
				for j := range m.Path {
					m.Path[j] = r.Int32N(int32(m.ReadRows))
				}
				s.Pending = r.IntN(len(m.Path) + 1)
			} else {
				s.Pending = r.IntN(m.ReadRows + 1)
			}
			straight := true
			if !s.Prompt && r.IntN(2) == 0 {
				s.Parents = make([]int32, s.N)
				for row := range s.Parents {
					if s.Parents[row] = int32(row) - 1; r.IntN(3) == 0 {
						s.Parents[row] = r.Int32N(int32(row)+1) - 1
					}
					straight = straight && int(s.Parents[row]) == row-1
				}
			}
			chains = chains && !s.Prompt && straight && s.N > 0 && s.N <= wholeRows
			if !straight {
				trees++
			}
			segs, memory[s.Slot], rows = append(segs, s), m, rows+s.N
		}
		total := rows
		if r.IntN(2) == 0 {
			total += r.IntN(4)
		}
		table, err := NewDeltaTables(d, segs, total, func(slot int32) DeltaMemory { return memory[slot] })
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		room := table.Room()
		ints := make([]int32, room.Ints)
		table.Put(bytesOf(ints), room)
		if n := len(table.ints); room.Chains != chains || room.Ints < n || room.Segs < len(segs) ||
			room.Segs&(room.Segs-1) != 0 || room.Segs/2 >= len(segs) || room.Bytes() != 4*room.Ints {
			t.Fatalf("seed %d: room %+v for %d integers of %d segments, chains %t", seed, room, n, len(segs), chains)
		}
		fail := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("seed %d: %s", seed, fmt.Sprintf(format, args...))
		}
		if int(ints[0]) != len(segs) || int(ints[1]) != total {
			fail("%d segments and %d rows, want %d and %d", ints[0], ints[1], len(segs), total)
		}
		counters := int(ints[2])
		if counters+d.KHeads != len(table.ints) ||
			slices.ContainsFunc(ints[counters:], func(v int32) bool { return v != 0 }) {
			fail("the counters begin at %d of %d, or are not zero", counters, len(table.ints))
		}
		rowOf := func(row int) []int32 { return ints[4+row*(d.Kernel+1):][:d.Kernel+1] }
		segOf := func(seg int) []int32 { return ints[4+total*(d.Kernel+1)+deltaSeg*seg:][:deltaSeg] }
		for i, s := range segs {
			g, m := segOf(i), memory[s.Slot]
			addr := func(at int) Addr { return Addr(uint32(g[at])) | Addr(uint32(g[at+1]))<<32 }
			if int(g[0]) != s.Row || int(g[1]) != s.N || int(g[2]) != s.Pending || addr(4) != m.State || addr(6) != m.Read ||
				addr(8) != m.Write || int(g[10]) != m.ReadRows || int(g[11]) != m.WriteRows || (g[3]&flagPrompt != 0) != s.Prompt {
				fail("segment %d is %v", i, g)
			}
			pending := ints[g[14]:][:g[2]]
			var history []int32 // sources of the newest inputs, the oldest first
			for n := range d.Kernel - 1 {
				history = append(history, int32(n)<<2|fromInputs)
			}
			for n, row := range pending {
				if m.Path != nil && row != m.Path[n] || m.Path == nil && int(row) != n {
					fail("segment %d: pending row %d is %d", i, n, row)
				}
				history = append(history, row<<2|fromTape)
			}
			after := slices.Clone(history)
			for row := range s.N {
				line := []int32{int32(s.Row+row)<<2 | fromBatch}
				for at := row; ; {
					if s.Parents != nil {
						at = int(s.Parents[at])
					} else {
						at--
					}
					if at < 0 {
						break
					}
					line = append(line, int32(s.Row+at)<<2|fromBatch)
				}
				slices.Reverse(line)
				line = append(slices.Clone(history), line...)
				if got := rowOf(s.Row + row); int(got[0]) != i || !slices.Equal(got[1:], line[len(line)-d.Kernel:]) {
					fail("row %d of segment %d reads %v, want %v", row, i, got, line[len(line)-d.Kernel:])
				}
				if s.Prompt {
					after = append(after, int32(s.Row+row)<<2|fromBatch)
				}
			}
			moved := len(pending)
			if s.Prompt {
				moved += s.N
			}
			if (g[3]&flagShift != 0) != (moved > 0) {
				fail("segment %d: newest inputs move by %d, flags %x", i, moved, g[3])
			}
			if want := after[len(after)-(d.Kernel-1):]; !slices.Equal(g[16:][:d.Kernel-1], want) {
				fail("segment %d: the newest inputs become %v, want %v", i, g[16:][:d.Kernel-1], want)
			}
			checkOrder(fail, s, ints[g[12]:][:g[13]])
		}
		for row := rows; row < total; row++ {
			padded++
			got := rowOf(row)
			if int(got[0]) != len(segs) || segOf(int(got[0]))[3] != flagPrompt {
				fail("padding row %d belongs to segment %d", row, got[0])
			}
			for _, from := range got[1:] {
				if from != int32(row)<<2|fromBatch {
					fail("padding row %d reads %v", row, got)
				}
			}
		}
	}
	if trees < 50 || padded < 50 {
		t.Errorf("%d trees, %d rows of padding: the test says little", trees, padded)
	}
}

// checkOrder follows the order of a tree's rows: before each row the state has seen its ancestors and nothing else.
func checkOrder(fail func(string, ...any), s backend.DeltaSeg, order []int32) {
	straight := true
	for row, parent := range s.Parents {
		straight = straight && int(parent) == row-1
	}
	if straight {
		if len(order) > 0 {
			fail("a chain has the order %v", order)
		}
		return
	}
	var seen []int32
	done := map[int32]bool{}
	for _, e := range order {
		row := e & maxEntryRow
		if e&entryRestart != 0 {
			seen = nil
		}
		var want []int32
		for p := s.Parents[row]; p >= 0; p = s.Parents[p] {
			want = append(want, p)
		}
		slices.Reverse(want)
		if !slices.Equal(seen, want) || done[row] != (e&entryQuiet != 0) {
			fail("row %d comes after %v, want %v; computed before: %t, entry %x", row, seen, want, done[row], e)
		}
		seen, done[row] = append(seen, row), true
	}
	if len(done) != s.N {
		fail("%d of %d rows are computed", len(done), s.N)
	}
}

// TestBadDeltaTables: segments that do not fit what they are about are refused, and those that just fit are not.
func TestBadDeltaTables(t *testing.T) {
	d := backend.DeltaDims{KHeads: 1, VHeads: 2, KDim: 16, VDim: 16, Kernel: 4}
	type segment = backend.DeltaSeg
	type memory = DeltaMemory
	for name, c := range map[string]struct {
		change func(s *segment, m *memory)
		want   string // of the error; empty for none
	}{
		"as it is":         {func(*segment, *memory) {}, ""},
		"rows elsewhere":   {func(s *segment, _ *memory) { s.Row = 1 }, "want them from 0 on"},
		"negative rows":    {func(s *segment, _ *memory) { s.N = -1 }, "has -1 rows"},
		"no rows":          {func(s *segment, m *memory) { s.N, m.Write = 0, 0 }, ""},
		"all pending":      {func(s *segment, _ *memory) { s.Pending = 5 }, ""},
		"too many":         {func(s *segment, _ *memory) { s.Pending = 6 }, "6 pending rows"},
		"less than none":   {func(s *segment, _ *memory) { s.Pending = -1 }, "-1 pending rows"},
		"all of a path":    {func(s *segment, m *memory) { s.Pending, m.Path = 2, []int32{1, 3} }, ""},
		"more than a path": {func(s *segment, m *memory) { s.Pending, m.Path = 3, []int32{1, 3} }, "3 pending rows"},
		"a path longer than the tape": {func(s *segment, m *memory) { s.Pending, m.Path = 6, make([]int32, 8) },
			"6 pending rows"},
		"a short tape":        {func(_ *segment, m *memory) { m.WriteRows = 2 }, "room for 2"},
		"no tape":             {func(_ *segment, m *memory) { m.Write = 0 }, "room for 3"},
		"a prompt needs none": {func(s *segment, m *memory) { s.Prompt, m.Write, m.WriteRows = true, 0, 0 }, ""},
		"a tree":              {func(s *segment, _ *memory) { s.Parents = []int32{-1, 0, 0} }, ""},
		"a tree as prompt": {func(s *segment, _ *memory) { s.Prompt, s.Parents = true, []int32{-1, 0, 0} },
			"3 parents"},
		"too few parents": {func(s *segment, _ *memory) { s.Parents = []int32{-1, 0} }, "2 parents"},
		"its own parent":  {func(s *segment, _ *memory) { s.Parents = []int32{-1, 1, 0} }, "row 1 has the parent 1"},
		"no such parent":  {func(s *segment, _ *memory) { s.Parents = []int32{-1, 0, -2} }, "row 2 has the parent -2"},
	} {
		seg := backend.DeltaSeg{N: 3}
		m := DeltaMemory{State: 1, Read: 2, Write: 3, ReadRows: 5, WriteRows: 3}
		c.change(&seg, &m)
		_, err := NewDeltaTables(d, []backend.DeltaSeg{seg}, 0, func(int32) DeltaMemory { return m })
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// TestLayoutsDiffer: layouts are the same only if everything that launches know of is.
func TestLayoutsDiffer(t *testing.T) {
	base := func() layout {
		return layout{base: 1, bytes: 2, sets: 3, ints: 4, uses: []kvUse{{group: 5}}, delta: deltaUse{at: 6}}
	}
	a := base()
	for name, change := range map[string]func(l *layout){
		"base": func(l *layout) { l.base++ }, "bytes": func(l *layout) { l.bytes++ }, "sets": func(l *layout) { l.sets++ },
		"ints": func(l *layout) { l.ints++ }, "uses": func(l *layout) { l.uses[0].room.Rows++ },
		"delta": func(l *layout) { l.delta.room.Segs++ },
	} {
		b := base()
		if !a.same(&b) || !b.same(&a) {
			t.Fatal("equal layouts are not the same")
		}
		if change(&b); a.same(&b) || b.same(&a) {
			t.Errorf("layouts that differ in %s are the same", name)
		}
	}
}

// TestTablesOfAKind: attention finds the tables of its own kind only, writing those of its group.
func TestTablesOfAKind(t *testing.T) {
	shape := backend.KVDims{Heads: 2, KeyDim: 64, ValueDim: 64, Key: quant.F16, Value: quant.F16}
	other := shape
	other.KeyDim = 128
	kind := func(group, heads, kvHeads, block int32) attnOp {
		return attnOp{group: group, heads: heads, kvHeads: kvHeads, sparse: sparseOp{block: block}}
	}
	lay := layout{uses: []kvUse{{group: 1, heads: 8, kvHeads: 2, shape: shape, block: 64, room: KVRoom{Rows: 1}}}}
	for name, c := range map[string]struct {
		a     attnOp
		shape backend.KVDims
		want  int
	}{
		"its own":         {kind(1, 8, 2, 64), shape, 0},
		"another group":   {kind(2, 8, 2, 64), shape, -1},
		"other heads":     {kind(1, 4, 2, 64), shape, -1},
		"other KV heads":  {kind(1, 8, 4, 64), shape, -1},
		"other blocks":    {kind(1, 8, 2, 0), shape, -1},
		"another shape":   {kind(1, 8, 2, 64), other, -1},
		"writing":         {kind(1, 0, 0, 0), other, 0},
		"another's write": {kind(2, 0, 0, 0), shape, -1},
	} {
		if got := lay.use(c.a, c.shape); got != c.want {
			t.Errorf("%s: tables %d, want %d", name, got, c.want)
		}
	}
	lay.uses[0].room.Rows = 0 // tables without rows are not there
	if got := lay.use(kind(1, 8, 2, 64), shape); got != -1 {
		t.Errorf("tables without rows: %d", got)
	}
	// The list of a step has each kind once.
	pool := &Pages{Layout: &PageLayout{Shapes: []backend.KVDims{shape, shape, other}}}
	s := &step{plan: &backend.Plan{KV: []backend.KVPlan{{Pool: pool}, {Pool: pool}}}}
	add := func(kind opKind, a attnOp, rows int32) {
		s.ops = append(s.ops, op{kind: kind, attn: a, a: view{rows: rows}})
	}
	add(opKVWrite, attnOp{group: 0}, 3)
	add(opAttention, kind(0, 8, 2, 0), 2)
	second := kind(0, 8, 2, 0)
	second.layer = 1 // of the same shape
	add(opAttention, second, 4)
	add(opShortConv, attnOp{}, 7)
	add(opGatedDelta, attnOp{}, 6)
	add(opKVWrite, attnOp{group: 1}, 9)
	add(opKVWrite, attnOp{group: 1}, 9)
	l := newList(1, s)
	if len(l.uses) != 2 || l.uses[0].heads != 8 || l.uses[1].heads != 0 || l.uses[1].group != 1 || l.rows[0] != 4 ||
		l.rows[1] != 9 || l.delta != 7 {
		t.Errorf("kinds %+v, rows %v, recurrent rows %d", l.uses, l.rows, l.delta)
	}
	for name, a := range map[string]attnOp{"heads": kind(0, 4, 2, 0), "KV heads": kind(0, 8, 1, 0),
		"blocks": kind(0, 8, 2, 64), "group": kind(1, 8, 2, 0), "shape": {heads: 8, kvHeads: 2, layer: 2}} {
		add(opAttention, a, 1)
		// In group 1 attention replaces the tables for writing alone.
		if n := len(newList(1, s).uses); n != 3 && (name != "group" || n != 2) {
			t.Errorf("attention that differs in %s: %d kinds, want 3", name, n)
		}
		s.ops = s.ops[:len(s.ops)-1]
	}
}

// TestPageSizes: pages of head sizes that the kernels do not have are refused with the layer and its size.
func TestPageSizes(t *testing.T) {
	for name, c := range map[string]struct {
		dims backend.KVDims
		want string
	}{
		"halves of 8":   {backend.KVDims{Heads: 1, KeyDim: 8, ValueDim: 8, Key: quant.F16, Value: quant.F16}, ""},
		"halves of 512": {backend.KVDims{Heads: 1, KeyDim: 512, ValueDim: 512, Key: quant.F16, Value: quant.F16}, ""},
		"halves of 12": {backend.KVDims{Heads: 1, KeyDim: 12, ValueDim: 8, Key: quant.F16, Value: quant.F16},
			"cache type F16 needs head sizes that are multiples of 8 up to 512; layer 1 has 12"},
		"halves of 520": {backend.KVDims{Heads: 1, KeyDim: 8, ValueDim: 520, Key: quant.F16, Value: quant.F16},
			"cache type F16 needs head sizes that are multiples of 8 up to 512; layer 1 has 520"},
	} {
		good := backend.KVDims{Heads: 2, KeyDim: 64, ValueDim: 64, Key: quant.Q8_0, Value: quant.F32}
		l, err := NewPageLayout(backend.KVLayout{Page: PageSlots, Layers: []backend.KVDims{good, c.dims}})
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
		if err == nil && (len(l.Places) != 2 || int(l.Places[1].Off) != 2*PageSlots*(68+256)) {
			t.Errorf("%s: places %+v", name, l.Places)
		}
	}
}

// TestLongestSegment: the rows of the longest segment, wherever it stands.
func TestLongestSegment(t *testing.T) {
	for _, c := range []struct {
		seg  []int32
		want int
	}{{nil, 0}, {[]int32{0}, 1}, {[]int32{0, 0, 0, 1}, 3}, {[]int32{0, 1, 1, 2}, 2}, {[]int32{0, 1, 2, 2, 2}, 3}} {
		if got := longestSegment(&backend.KVPlan{Seg: c.seg}); got != c.want {
			t.Errorf("segments %v: %d, want %d", c.seg, got, c.want)
		}
	}
}

// TestUnpackRoom: pages are unpacked once from 32 rows of a segment on, where there is memory for it: not more than a
// part of the device's, and not as much as was refused before.
func TestUnpackRoom(t *testing.T) {
	d := &brk{next: 4096}
	b := &Backend{d: d, props: Props{Major: 9, Units: 132, SharedBlock: 227 << 10, Memory: 1 << 40},
		attn: map[attentionKey]*Attention{}}
	packed := backend.KVDims{Heads: 2, KeyDim: 128, ValueDim: 128, Key: quant.Q8_0, Value: quant.Q8_0}
	halves := packed
	halves.Key, halves.Value = quant.F16, quant.F16
	room := func(rows, slot int, shapes ...backend.KVDims) (out []int) {
		t.Helper()
		p := backend.KVPlan{Pool: &Pages{entries: 512}}
		for r := range rows {
			at := int32(slot + r)
			p.Seg, p.Slot, p.Lo, p.Hi = append(p.Seg, 0), append(p.Slot, at), append(p.Lo, 0), append(p.Hi, at+1)
		}
		var uses []kvUse
		for _, s := range shapes {
			uses = append(uses, kvUse{heads: 4, kvHeads: 2, shape: s})
		}
		if err := b.unpackRoom(&backend.Plan{KV: []backend.KVPlan{p}}, uses); err != nil {
			t.Fatal(err)
		}
		for _, u := range uses {
			out = append(out, u.unpack)
		}
		return out
	}
	check := func(what string, got []int, want ...int) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: room for %v pages, want %v", what, got, want)
		}
	}
	check("31 rows", room(31, 0, packed), 0)
	if len(d.allocs) > 0 {
		t.Error("memory was taken for nothing")
	}
	check("32 rows", room(32, 0, packed), 64)
	check("what is halves already", room(64, 0, halves, packed), 0, 64)
	if len(d.allocs) != 1 || b.unpackedBytes != d.allocs[0] || b.unpacked != 4096 {
		t.Errorf("memory of %v bytes was taken", d.allocs)
	}
	small := b.unpackedBytes
	check("63 pages", room(64, 64*62, packed), 64)
	check("65 pages", room(64, 64*64, packed), 128)
	if len(d.released) != 1 || len(d.allocs) != 2 {
		t.Errorf("%d pieces were taken, %d given back", len(d.allocs), len(d.released))
	}
	large := b.unpackedBytes
	// As much as the share of the device, and a byte more.
	if !b.makeRoom() || b.makeRoom() || b.unpacked != 0 || b.unpackedBytes != 0 || len(d.released) != 2 {
		t.Error("the memory is not given back, or twice")
	}
	check("as much as was given back", room(64, 64*64, packed), 0)
	check("less than that", room(64, 0, packed), 64)
	b.refused = 0
	b.dropUnpacked()
	b.props.Memory = unpackShare * large
	check("all of the share", room(64, 64*64, packed), 128)
	b.dropUnpacked()
	b.props.Memory--
	check("more than the share", room(64, 64*64, packed), 0)
	check("one of two", append(room(64, 64*64, packed), room(64, 0, packed)...), 0, 64)
	b.dropUnpacked()
	b.props.Memory, d.full = 1<<40, true
	check("a full device", room(64, 64*64, packed), 0)
	d.full = false
	check("what was refused", room(64, 64*64, packed), 0)
	check("less than what was refused", room(64, 0, packed), 64)
	if b.unpackedBytes != small {
		t.Errorf("%d bytes are taken, want %d", b.unpackedBytes, small)
	}
}

// copying is a device that counts what is copied on it, and fails when it is waited for at a time.
type copying struct {
	brk
	copied int
	waits  int
	fails  int // the wait that fails
}

func (d *copying) Copy(_, _ Addr, bytes int) { d.copied += bytes }

func (d *copying) Wait() error {
	if d.waits++; d.waits == d.fails {
		return errors.New("copying: lost")
	}
	return nil
}

// TestBandwidth: measuring the memory's speed gives back what it takes, also where something fails.
func TestBandwidth(t *testing.T) {
	for fails := range 4 {
		d := &copying{brk: brk{next: 4096}, fails: fails}
		speed, err := (&Backend{d: d}).Bandwidth()
		failed := fails == 1 || fails == 2
		if (err != nil) != failed || len(d.released) != len(d.allocs) || len(d.allocs) != 2 || d.waits != 2 && !failed {
			t.Errorf("wait %d fails: %v, %d of %d pieces given back", fails, err, len(d.released), len(d.allocs))
		}
		if !failed && (speed <= 0 || d.copied < 2<<30) {
			t.Errorf("%g bytes a second, %d copied", speed, d.copied)
		}
	}
	d := &copying{brk: brk{next: 4096, full: true}}
	if _, err := (&Backend{d: d}).Bandwidth(); err == nil || d.copied > 0 {
		t.Errorf("a full device: %v", err)
	}
}
