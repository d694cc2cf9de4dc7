package gpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
)

// randomPlan is a plan of chains and trees of several sequences, and the length of each segment's prompt. A sequence
// may have dropped its first pages, and end exactly with its last page. Trees are left out for sparse attention.
func randomPlan(r *rand.Rand, trees bool) (p *backend.KVPlan, tokens []int) {
	p = &backend.KVPlan{}
	segments := 1 + r.IntN(4)
	isTree := make([]bool, segments)
	for seg := range segments {
		isTree[seg] = trees && r.IntN(2) == 0
		if isTree[seg] && p.Extra == nil {
			p.Extra = make([][]int32, len(p.Seg))
		}
		pages := 1 + r.IntN(40)
		rows := min(1+r.IntN(64), 64*pages)
		start := r.IntN(64*pages - rows + 1)
		if r.IntN(3) == 0 {
			start = 64*pages - rows
		}
		low := 0
		if r.IntN(2) == 0 {
			low = r.IntN(start + 1)
		}
		table := make([]int32, pages)
		for i := range table {
			if table[i] = int32(1000*seg + i); i < low/64 {
				table[i] = -1
			}
		}
		p.Tables = append(p.Tables, table)
		tokens = append(tokens, start+rows+r.IntN(300))
		ancestors := make([][]int32, rows)
		for row := range rows {
			slot := int32(start + row)
			p.Seg, p.Slot = append(p.Seg, int32(seg)), append(p.Slot, slot)
			p.Lo = append(p.Lo, int32(low))
			if !isTree[seg] {
				p.Hi = append(p.Hi, slot+1)
				if p.Extra != nil {
					p.Extra = append(p.Extra, nil)
				}
				continue
			}
			ancestors[row] = []int32{slot}
			if parent := r.IntN(row+2) - 1; parent >= 0 && parent < row {
				ancestors[row] = append(slices.Clone(ancestors[parent]), slot)
			} else if row > 0 && r.IntN(2) == 0 { // long paths, too
				ancestors[row] = append(slices.Clone(ancestors[row-1]), slot)
			}
			p.Hi, p.Extra = append(p.Hi, int32(start)), append(p.Extra, ancestors[row])
		}
	}
	return p, tokens
}

// read takes the tables out of the bytes that a device is given.
func (k *KVTables) read(t *testing.T, r KVRoom) (counts []int32, out KVTables) {
	t.Helper()
	block := make([]byte, r.Bytes())
	k.Put(block, r)
	at := r.At(0)
	counts = append(counts, make([]int32, 5)...)
	copy(bytesOf(counts), block)
	out.items = make([]seenItem, counts[0])
	out.rows, out.at = make([]seenRow, r.Rows), make([]writeAt, r.Rows)
	out.paths = make([][pathSlots]int32, r.Paths)
	out.spans, out.queries = make([]pageSpan, counts[1]), make([]queryBlock, counts[4])
	copy(bytesOf(out.items), block[at.Items+itemBytes:])
	copy(bytesOf(out.rows), block[at.Seen:])
	copy(bytesOf(out.at), block[at.At:])
	copy(bytesOf(out.paths), block[at.Paths:])
	copy(bytesOf(out.spans), block[at.Spans:])
	copy(bytesOf(out.queries), block[at.Queries:])
	for what, n := range map[string][2]int{"items": {r.Items, int(counts[0])}, "paths": {r.Paths, len(k.paths)},
		"spans": {r.Spans, int(counts[1])}, "queries": {max(1, r.Queries), int(counts[4])}} {
		if n[0] < n[1] || n[0]&(n[0]-1) != 0 {
			t.Fatalf("room for %d %s, which are %d", n[0], what, n[1])
		}
	}
	return counts, out
}

// TestTablesSayWhatRowsSee: kernels that read the tables as kernel/kv.h says find, for every row, exactly the slots of
// the plan in their order, write where it says, and have each split of a row once.
func TestTablesSayWhatRowsSee(t *testing.T) {
	k := &KVTables{} // the same memory for all
	cut, shared, sparse := 0, 0, 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 71))
		tiling := Tiling{Rows: 1 + r.IntN(20), Splits: 1 + r.IntN(12), Blocks: 1 + r.IntN(200), Heads: 1 + r.IntN(8),
			Partials: r.IntN(400)}
		if r.IntN(3) == 0 {
			tiling.Block = 64 << r.IntN(2)
		}
		p, tokens := randomPlan(r, tiling.Block == 0)
		first := make([]int32, len(p.Tables))
		for i := range first {
			first[i] = int32(10_000 * (i + 1))
		}
		addr := func(page int32) Addr { return Addr(page)<<20 + 1 }
		if err := k.fill(p, tiling, addr, first, tokens); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		rows := len(p.Seg)
		padded := rows + r.IntN(20)
		k.pad(padded, 77)
		counts, got := k.read(t, k.Room())
		fail := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("seed %d: %s", seed, fmt.Sprintf(format, args...))
		}
		if len(got.rows) != padded {
			fail("%d rows, want %d", len(got.rows), padded)
		}
		slots := map[int32]bool{}
		for i := rows; i < padded; i++ {
			if s := got.rows[i]; s.lo < s.hi || s.part >= 0 || s.path >= 0 || got.at[i].page != 77 || slots[got.at[i].slot] ||
				got.at[i].slot < 0 || got.at[i].slot >= PageSlots {
				fail("padding row %d sees %+v, writes to %+v", i, s, got.at[i])
			}
			slots[got.at[i].slot] = true
		}
		checkSpans(fail, p, counts, &got, first)
		if tiling.Block > 0 {
			sparse++
			checkQueries(fail, p, k, counts, &got, tiling.Block, tokens)
		} else if len(got.queries) > 0 || k.Keys > 0 {
			fail("%d blocks of queries without sparse attention", len(got.queries))
		}
		partials := map[int32]bool{}
		for i := range rows {
			c := checkRow(fail, p, &got, i, first[p.Seg[i]], addr, tiling, partials)
			cut += c
		}
		if len(partials) != k.Partials || k.Partials > tiling.Partials {
			fail("%d partial results are written, room for %d of at most %d", len(partials), k.Partials, tiling.Partials)
		}
		shared += checkItems(fail, p, k, &got, tiling)
	}
	if cut < 100 || shared < 100 || sparse < 50 {
		t.Errorf("%d rows cut, %d paths shared, %d sparse plans: the test says little", cut, shared, sparse)
	}
}

type failer func(format string, args ...any)

// checkRow walks over the items of a row as a kernel does. It returns 1 for a row whose splits are computed apart.
func checkRow(fail failer, p *backend.KVPlan, got *KVTables, row int, table int32, addr func(int32) Addr, tiling Tiling,
	partials map[int32]bool) int {
	s := got.rows[row]
	pages := p.Tables[p.Seg[row]]
	if w := (writeAt{page: addr(pages[p.Slot[row]/PageSlots]), slot: p.Slot[row] % PageSlots}); got.at[row] != w {
		fail("row %d writes to %+v, want %+v", row, got.at[row], w)
	}
	var want, see []int32
	for slot := p.Lo[row]; slot < p.Hi[row]; slot++ {
		want = append(want, slot)
	}
	if p.Extra != nil {
		want = append(want, p.Extra[row]...)
	}
	firstPage := p.Lo[row] / PageSlots
	lastPage := (p.Lo[row] + int32(len(want)) - 1) / PageSlots
	per := (lastPage - firstPage + int32(tiling.Splits)) / int32(tiling.Splits) // a function of the row alone
	var items []seenItem
	for _, it := range got.items {
		if int(it.row) <= row && row < int(it.row+it.rows) {
			items = append(items, it)
		}
	}
	slices.SortFunc(items, func(a, b seenItem) int { return int(a.p0 - b.p0) })
	ended := 0
	for _, it := range items {
		if it.table != table || it.per != per {
			fail("row %d: pages at %d in splits of %d, want %d and %d", row, it.table, it.per, table, per)
		}
		for page := it.p0; page < it.p1; page++ {
			for slot := page * PageSlots; slot < (page+1)*PageSlots; slot++ {
				if slot < s.lo || slot >= s.hi {
					continue
				}
				from := slot
				if i := slot - s.base; s.path >= 0 && i >= 0 && i < pathSlots && got.paths[s.path][i] >= 0 {
					from = got.paths[s.path][i]
				}
				see = append(see, from)
			}
			if page+1 < it.p1 && (page+1)/it.per == page/it.per {
				continue
			}
			nth := page/it.per - s.split0
			if nth < 0 || nth >= s.splits {
				continue
			}
			if int(nth) != ended {
				fail("row %d: split %d ends, want %d", row, nth, ended)
			}
			ended++
			if s.part >= 0 {
				if partials[s.part+nth] {
					fail("row %d: partial result %d is written twice", row, s.part+nth)
				}
				partials[s.part+nth] = true
			}
		}
	}
	if !slices.Equal(see, want) {
		fail("row %d sees %d slots %v, want %d %v", row, len(see), see, len(want), want)
	}
	if ended != int(s.splits) || s.part < 0 && len(items) != 1 {
		fail("row %d: %d of %d splits end, in %d items (part %d)", row, ended, s.splits, len(items), s.part)
	}
	if s.part >= 0 {
		return 1
	}
	return 0
}

// checkSpans: every segment's span has all pages that its rows see or write, and no others but those between them.
func checkSpans(fail failer, p *backend.KVPlan, counts []int32, got *KVTables, first []int32) {
	if len(got.spans) != len(p.Tables) {
		fail("%d spans of %d segments", len(got.spans), len(p.Tables))
	}
	before := int32(0)
	for seg, span := range got.spans {
		low, high, slots := int32(1<<30), int32(0), int32(0)
		for row := range p.Seg {
			if int(p.Seg[row]) != seg {
				continue
			}
			end := p.Lo[row] + int32(p.Visible(row))
			low, slots = min(low, p.Lo[row]/PageSlots), max(slots, end)
			high = max(high, (end-1)/PageSlots, p.Slot[row]/PageSlots)
		}
		if span.table != first[seg] || span.first != low || span.pages != high-low+1 || span.before != before ||
			span.slots != slots {
			fail("segment %d sees pages %d to %d, %d slots; its span is %+v", seg, low, high, slots, span)
		}
		before += span.pages
	}
	if counts[2] != before {
		fail("%d pages are seen, want %d", counts[2], before)
	}
	// What is reserved for unpacked pages holds them, and little more.
	if n := seenPages(p); n < int(before) || n > int(before)+len(got.spans) {
		fail("%d pages are reserved for %d", n, before)
	}
}

// checkQueries: every row belongs to the block of queries of its slot, and tiles have rows of one block.
func checkQueries(fail failer, p *backend.KVPlan, k *KVTables, counts []int32, got *KVTables, block int, tokens []int) {
	keys, longest := 0, 0
	for seg, span := range got.spans {
		n := (int(span.slots) + block - 1) / block
		if int(span.means) != keys {
			fail("segment %d: its blocks of keys begin at %d, want %d", seg, span.means, keys)
		}
		keys, longest = keys+n, max(longest, n)
	}
	if int(counts[3]) != keys || k.Keys != keys || k.Longest != longest {
		fail("%d blocks of keys, %d of the longest; want %d and %d", counts[3], k.Longest, keys, longest)
	}
	inBlock := map[int32]int32{}
	for row := range p.Seg {
		b := got.rows[row].block
		if int(b) >= len(got.queries) {
			fail("row %d: block of queries %d of %d", row, b, len(got.queries))
		}
		q := got.queries[b]
		seg := p.Seg[row]
		if q.n != p.Slot[row]/int32(block) || q.first != p.Slot[q.row] || int32(row) != q.row+inBlock[b] ||
			p.Seg[q.row] != seg || q.means != got.spans[seg].means || int(q.all) != (tokens[seg]+block-1)/block {
			fail("row %d at slot %d: block of queries %+v", row, p.Slot[row], q)
		}
		inBlock[b]++
	}
	for i, q := range got.queries {
		if inBlock[int32(i)] != q.rows || i > 0 && q.n == got.queries[i-1].n && q.means == got.queries[i-1].means {
			fail("block of queries %d has %d rows: %+v", i, inBlock[int32(i)], q)
		}
	}
	for _, it := range got.items {
		if a, b := got.rows[it.row].block, got.rows[it.row+it.rows-1].block; a != b {
			fail("an item has rows of blocks %d and %d", a, b)
		}
	}
}

// checkItems: what items say of all their rows is true, long ones come first, and those are cut that would keep a
// block busy for more than twice its share while there is room for their results. It returns how many rows of trees
// see by a path of another row.
func checkItems(fail failer, p *backend.KVPlan, k *KVTables, got *KVTables, tiling Tiling) (shared int) {
	visits := func(it seenItem) int {
		n := 0
		for page := it.p0; page < it.p1; page++ {
			n++
			if it.base != noBase && page >= it.base/PageSlots {
				n += int(it.paths) - 1
			}
		}
		return n
	}
	tiles := map[int32]seenItem{} // by first row
	parts := map[int32]int{}
	for i, it := range got.items {
		if i > 0 && visits(it) > visits(got.items[i-1]) {
			fail("item %d is longer than the one before", i)
		}
		lo, hi, base, fresh := int32(0), int32(noBase), int32(noBase), int32(noBase)
		paths, leaves := map[int32]bool{}, 0
		for row := it.row; row < it.row+it.rows; row++ {
			s := got.rows[row]
			lo, hi = max(lo, s.lo), min(hi, s.hi)
			if p.Extra == nil || len(p.Extra[row]) == 0 {
				continue
			}
			base = min(base, p.Hi[row])
			if s.path < it.path || s.path >= it.path+it.paths {
				fail("row %d has path %d, its item %d from %d on", row, s.path, it.paths, it.path)
			}
			if paths[s.path] {
				shared++
			}
			paths[s.path] = true
			leaf := true
			for other := it.row; other < it.row+it.rows; other++ {
				leaf = leaf && (other == row || !slices.Contains(p.Extra[other], p.Slot[row]))
			}
			if leaf {
				leaves++
			}
		}
		for row, seg := range p.Seg {
			if seg == p.Seg[it.row] {
				fresh = min(fresh, p.Slot[row]/PageSlots)
			}
		}
		if it.lo != lo || it.hi != hi || it.base != base || it.fresh != fresh || int(it.rows) > tiling.Rows || it.rows < 1 ||
			int(it.paths) != len(paths) || len(paths) > leaves {
			fail("item %+v: all see %d to %d, base %d, fresh %d, %d paths of %d leaves", it, lo, hi, base, fresh, len(paths),
				leaves)
		}
		if tile, ok := tiles[it.row]; ok {
			it.p0, it.p1 = min(it.p0, tile.p0), max(it.p1, tile.p1)
		}
		tiles[it.row] = it
		parts[it.row]++
	}
	total := 0
	for _, it := range tiles {
		total += visits(it) * tiling.Heads
	}
	if k.work != total {
		fail("%d pages are read, want %d", k.work, total)
	}
	used := 0
	for row := int32(0); int(row) < len(p.Seg); row += tiles[row].rows {
		it := tiles[row]
		splits, most := 0, int32(0)
		for i := it.row; i < it.row+it.rows; i++ {
			splits, most = splits+int(got.rows[i].splits), max(most, got.rows[i].splits)
		}
		cut := most > 1 && tiling.Block == 0 && visits(it)*tiling.Blocks > 2*total && used+splits <= tiling.Partials
		if got.rows[row].part >= 0 != cut || cut != (parts[row] > 1) {
			fail("the tile of row %d is in %d parts (partial results from %d on), want them apart: %t", row, parts[row],
				got.rows[row].part, cut)
		}
		if cut {
			used += splits
		}
	}
	return shared
}

// TestPlanBorders: a plan may use the last slot of its pages and the last of a path, and nothing behind or before them.
func TestPlanBorders(t *testing.T) {
	const room = 3 * PageSlots
	base := func() *backend.KVPlan {
		return &backend.KVPlan{Tables: [][]int32{{4, 5, 6}}, Seg: []int32{0}, Slot: []int32{room - 1}, Lo: []int32{0},
			Hi: []int32{room}}
	}
	for name, c := range map[string]struct {
		change func(p *backend.KVPlan)
		ok     bool
	}{
		"the last slot":           {func(*backend.KVPlan) {}, true},
		"a slot behind":           {func(p *backend.KVPlan) { p.Slot[0] = room }, false},
		"a slot before":           {func(p *backend.KVPlan) { p.Slot[0] = -1 }, false},
		"seen from before":        {func(p *backend.KVPlan) { p.Lo[0] = -1 }, false},
		"seen behind":             {func(p *backend.KVPlan) { p.Hi[0] = room + 1 }, false},
		"an ancestor behind":      {func(p *backend.KVPlan) { p.Hi[0], p.Extra = 100, [][]int32{{room}} }, false},
		"an ancestor before":      {func(p *backend.KVPlan) { p.Hi[0], p.Extra = 100, [][]int32{{-1}} }, false},
		"the last ancestor":       {func(p *backend.KVPlan) { p.Hi[0], p.Extra = 100, [][]int32{{0, room - 1}} }, true},
		"ancestors that just fit": {func(p *backend.KVPlan) { p.Hi[0], p.Extra = room-1, [][]int32{{room - 1}} }, true},
		"one ancestor too many":   {func(p *backend.KVPlan) { p.Extra = [][]int32{{room - 1}} }, false},
		"no such segment":         {func(p *backend.KVPlan) { p.Seg[0] = 1 }, false},
		"a first page dropped":    {func(p *backend.KVPlan) { p.Tables[0][0] = -1 }, false},
		"an own page dropped":     {func(p *backend.KVPlan) { p.Tables[0][2], p.Hi[0] = -1, 64 }, false},
		"a last page dropped":     {func(p *backend.KVPlan) { p.Tables[0][2], p.Slot[0] = -1, 64 }, false},
		"a page dropped unseen":   {func(p *backend.KVPlan) { p.Tables[0][0], p.Lo[0] = -1, 64 }, true},
		"a full path": {func(p *backend.KVPlan) {
			p.Hi[0], p.Extra = 0, [][]int32{make([]int32, pathSlots)}
		}, true},
		"a path that is too long": {func(p *backend.KVPlan) {
			p.Hi[0], p.Extra = 0, [][]int32{make([]int32, pathSlots+1)}
		}, false},
		"a row that sees nothing": {func(p *backend.KVPlan) { p.Lo[0], p.Hi[0] = 70, 70 }, true},
	} {
		p := base()
		c.change(p)
		k, err := NewKVTables(p, Tiling{Rows: 8, Splits: 4, Blocks: 8, Heads: 2, Partials: 100},
			func(int32) Addr { return 16 }, []int32{0, 0}, nil)
		if (err == nil) != c.ok {
			t.Errorf("%s: error %v", name, err)
		}
		if err == nil && len(k.items) == 0 {
			t.Errorf("%s: no block computes the row", name)
		}
	}
}
