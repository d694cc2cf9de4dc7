package gpu

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"strobe/internal/backend"
)

// Tiling says how the rows of a step are dealt to blocks.
type Tiling struct {
	Rows     int // of a block, at most
	Splits   int // parts that what a row sees is cut into; a row has at most one more
	Blocks   int // that run side by side
	Heads    int // blocks of the same rows: KV heads, or more
	Partials int // partial results there is room for
	Work     int // a launch may do, in pages that a block reads; 0: any
	Block    int // sparse attention: tokens of a block, which the rows of a tile share; 0: rows see everything
}

// seenItem and seenRow mirror Item and Seen of kernel/kv.h.
type seenItem struct {
	row, rows   int32
	table       int32
	p0, p1      int32
	per         int32
	fresh       int32
	base        int32
	path, paths int32
	lo, hi      int32
}

type seenRow struct {
	lo, hi         int32
	part           int32
	split0, splits int32
	path, base     int32
	block          int32 // sparse attention: its block of queries
}

// pageSpan mirrors Span of kernel/kv.h: the pages of a sequence that rows of the step see.
type pageSpan struct {
	table, first  int32
	pages, before int32
	slots         int32
	means         int32
	_             [2]int32
}

// queryBlock mirrors Queries of kernel/sparse.cu: rows that are, or are a part of, a block of queries.
type queryBlock struct {
	row, rows int32
	first     int32 // position of the first
	n         int32 // which block of its sequence
	all       int32 // blocks of the prompt
	means     int32 // its sequence's first block of keys
	_         [2]int32
}

type writeAt struct {
	page    Addr
	slot, _ int32
}

// pathSlots is how far the rows of a tree may reach: slots of a path, from the item's base on.
const pathSlots = 64

// noBase stands for a base behind everything.
const noBase = math.MaxInt32

// KVTables is what attention must know of a step: where rows write, what they see, and how that is dealt to
// blocks. It changes with every step, so kernels read it from the step's plan block.
type KVTables struct {
	items    []seenItem
	rows     []seenRow
	at       []writeAt
	paths    [][pathSlots]int32
	spans    []pageSpan
	queries  []queryBlock
	Partials int // partial results that the step needs room for; 0: no merging
	Pages    int // pages that rows see
	Keys     int // sparse attention: blocks of keys, of all sequences
	Longest  int // and of the longest of them
	work     int // pages that all blocks read

	tiles []seenItem // before they are dealt
}

// NewKVTables makes the tables of one plan. pageAddr says where a page lies, first where the pages of each segment
// begin in the table of pages, and tokens, if attention is sparse, how long the prompt is that each is a part of.
//
// Splits of a row are a function of what that row sees: bits must not depend on the batch. Whether a block has one
// split or all of them changes no bits, so that is decided by how much there is to do.
func NewKVTables(p *backend.KVPlan, t Tiling, pageAddr func(int32) Addr, first []int32,
	tokens []int) (*KVTables, error) {
	k := &KVTables{}
	return k, k.fill(p, t, pageAddr, first, tokens)
}

// fill makes the tables anew, in the memory of those before.
func (k *KVTables) fill(p *backend.KVPlan, t Tiling, pageAddr func(int32) Addr, first []int32, tokens []int) error {
	n := len(p.Slot)
	*k = KVTables{rows: slices.Grow(k.rows[:0], n)[:n], at: slices.Grow(k.at[:0], n)[:n], items: k.items[:0],
		paths: k.paths[:0], spans: k.spans[:0], queries: k.queries[:0], tiles: k.tiles[:0]}
	for r := 0; r < n; {
		seg := p.Seg[r]
		if int(seg) >= len(p.Tables) || len(p.Tables[seg]) == 0 {
			return fmt.Errorf("row %d has no pages", r)
		}
		end, fresh := r, int32(math.MaxInt32)
		for ; end < n && p.Seg[end] == seg; end++ {
			if err := k.see(p, end, pageAddr); err != nil {
				return err
			}
			fresh = min(fresh, p.Slot[end]/PageSlots)
		}
		k.span(p, r, end, first[seg])
		if t.Block > 0 {
			k.block(p, r, end, t.Block, tokens[seg])
		}
		for r < end { // rows that split alike, of one block of queries
			to, per := r+1, perSplit(k.rows[r], t.Splits)
			for to < end && perSplit(k.rows[to], t.Splits) == per && k.rows[to].block == k.rows[r].block {
				to++
			}
			for parts := (to - r + t.Rows - 1) / t.Rows; r < to; parts-- {
				rows := (to - r + parts - 1) / parts
				it := seenItem{row: int32(r), rows: int32(rows), table: first[seg], per: per, fresh: fresh}
				if err := k.tile(p, &it); err != nil {
					return err
				}
				k.tiles = append(k.tiles, it)
				r += rows
			}
		}
	}
	k.deal(k.tiles, t)
	return nil
}

// see fills in what row r sees and where it writes.
func (k *KVTables) see(p *backend.KVPlan, r int, pageAddr func(int32) Addr) error {
	pages := p.Tables[p.Seg[r]]
	room := int32(len(pages) * PageSlots)
	s := seenRow{lo: p.Lo[r], hi: p.Hi[r], part: -1, path: -1, base: noBase}
	if p.Slot[r] < 0 || p.Slot[r] >= room || s.lo < 0 || s.hi > room {
		return fmt.Errorf("row %d: slot %d, visible %d to %d, in %d slots", r, p.Slot[r], s.lo, s.hi, room)
	}
	if p.Extra != nil {
		for _, x := range p.Extra[r] {
			if x < 0 || x >= room {
				return fmt.Errorf("row %d sees slot %d of %d", r, x, room)
			}
		}
		s.hi += int32(len(p.Extra[r]))
	}
	if s.hi > room {
		return fmt.Errorf("row %d sees %d slots of %d", r, s.hi, room)
	}
	s.lo = min(s.lo, s.hi)
	if first, last := pagesOf(s); pages[first] < 0 || pages[last] < 0 || pages[p.Slot[r]/PageSlots] < 0 {
		return fmt.Errorf("row %d: slot %d, visible %d to %d, in pages that were dropped", r, p.Slot[r], s.lo, s.hi)
	}
	k.rows[r] = s
	k.at[r] = writeAt{page: pageAddr(pages[p.Slot[r]/PageSlots]), slot: p.Slot[r] % PageSlots}
	return nil
}

// span adds the pages that a segment's rows see, and those that they write to: a tree's rows lie behind each other,
// whatever they see.
func (k *KVTables) span(p *backend.KVPlan, from, to int, table int32) {
	s := pageSpan{table: table, first: math.MaxInt32, before: int32(k.Pages)}
	last := int32(0)
	for r := from; r < to; r++ {
		lo, hi := pagesOf(k.rows[r])
		s.first, last = min(s.first, lo), max(last, hi, p.Slot[r]/PageSlots)
		s.slots = max(s.slots, k.rows[r].hi)
	}
	s.pages = last - s.first + 1
	k.Pages += int(s.pages)
	k.spans = append(k.spans, s)
}

// block adds the blocks of queries of a segment whose rows see everything before them, and its blocks of keys.
func (k *KVTables) block(p *backend.KVPlan, from, to, block, tokens int) {
	s := &k.spans[len(k.spans)-1]
	s.means = int32(k.Keys)
	keys := (int(s.slots) + block - 1) / block
	k.Keys += keys
	k.Longest = max(k.Longest, keys)
	for r := from; r < to; r++ {
		n := p.Slot[r] / int32(block)
		if r == from || k.queries[len(k.queries)-1].n != n {
			k.queries = append(k.queries, queryBlock{row: int32(r), first: p.Slot[r], n: n,
				all: int32((tokens + block - 1) / block), means: s.means})
		}
		k.queries[len(k.queries)-1].rows++
		k.rows[r].block = int32(len(k.queries) - 1)
	}
}

// pagesOf returns the first and the last page that a row sees. A row that sees nothing looks at one page all the
// same, so that its output is written.
func pagesOf(s seenRow) (first, last int32) {
	last = max(s.hi-1, 0) / PageSlots
	return min(s.lo/PageSlots, last), last
}

// perSplit is the number of pages of a row's splits.
func perSplit(s seenRow, splits int) int32 {
	first, last := pagesOf(s)
	return (last - first + int32(splits)) / int32(splits)
}

// tile completes an item that covers all pages of its rows: ranges, and the paths of a tree.
func (k *KVTables) tile(p *backend.KVPlan, it *seenItem) error {
	it.p0, it.lo, it.hi, it.base = math.MaxInt32, 0, math.MaxInt32, noBase
	for r := it.row; r < it.row+it.rows; r++ {
		s := &k.rows[r]
		first, last := pagesOf(*s)
		it.p0, it.p1 = min(it.p0, first), max(it.p1, last+1)
		it.lo, it.hi = max(it.lo, s.lo), min(it.hi, s.hi)
		s.split0 = first / it.per
		s.splits = last/it.per - s.split0 + 1
		if p.Extra != nil && len(p.Extra[r]) > 0 {
			it.base = min(it.base, p.Hi[r])
		}
	}
	if it.base == noBase {
		return nil
	}
	// Rows share a path if none needs another slot in the same place. Those that see most come first.
	order := make([]int32, it.rows)
	for i := range order {
		order[i] = it.row + int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(k.rows[b].hi, k.rows[a].hi) })
	it.path = int32(len(k.paths))
	for _, r := range order {
		var need [pathSlots]int32
		for i := range need {
			need[i] = -1
		}
		s := &k.rows[r]
		for v := max(it.base, s.lo); v < s.hi; v++ {
			if v-it.base >= pathSlots {
				return fmt.Errorf("row %d sees slot %d of a tree of at most %d rows", r, v-it.base, pathSlots)
			}
			need[v-it.base] = v
			if v >= p.Hi[r] {
				need[v-it.base] = p.Extra[r][v-p.Hi[r]]
			}
		}
		s.base, s.path = it.base, -1
		for i := it.path; i < int32(len(k.paths)) && s.path < 0; i++ {
			if join(&k.paths[i], &need) {
				s.path = i
			}
		}
		if s.path < 0 {
			s.path = int32(len(k.paths))
			k.paths = append(k.paths, need)
		}
	}
	it.paths = int32(len(k.paths)) - it.path
	return nil
}

// join lets a path serve another row's needs, if it can.
func join(path, need *[pathSlots]int32) bool {
	for i, v := range need {
		if v >= 0 && path[i] >= 0 && path[i] != v {
			return false
		}
	}
	for i, v := range need {
		if v >= 0 {
			path[i] = v
		}
	}
	return true
}

// visits is the number of pages that a block reads for an item.
func (it *seenItem) visits() int {
	n := int(it.p1 - it.p0)
	if tail := it.p1 - max(it.p0, it.base/PageSlots); tail > 0 {
		n += int(tail) * int(it.paths-1)
	}
	return n
}

// deal turns tiles into items: a tile that would keep one block busy for more than twice its share is cut into its
// splits, as long as there is room for their results. How much of a tile sparse attention leaves is not known here.
func (k *KVTables) deal(tiles []seenItem, t Tiling) {
	total := 0
	for i := range tiles {
		total += tiles[i].visits() * t.Heads
	}
	k.work = total
	for _, it := range tiles {
		parts, most := 0, int32(0)
		for r := it.row; r < it.row+it.rows; r++ {
			parts += int(k.rows[r].splits)
			most = max(most, k.rows[r].splits)
		}
		if most == 1 || t.Block > 0 || it.visits()*t.Blocks <= 2*total || k.Partials+parts > t.Partials {
			k.items = append(k.items, it)
			continue
		}
		for r := it.row; r < it.row+it.rows; r++ {
			k.rows[r].part = int32(k.Partials)
			k.Partials += int(k.rows[r].splits)
		}
		for s := it.p0 / it.per; s*it.per < it.p1; s++ {
			part := it
			part.p0, part.p1 = max(it.p0, s*it.per), min(it.p1, (s+1)*it.per)
			k.items = append(k.items, part)
		}
	}
	slices.SortStableFunc(k.items, func(a, b seenItem) int { return cmp.Compare(b.visits(), a.visits()) })
}

// shares is how many launches share the work of a step, a power of two. What blocks do side by side is not divided.
func (t Tiling) shares(k *KVTables) int {
	if t.Work == 0 {
		return 1
	}
	return min(roomFor((k.work+t.Work-1)/t.Work, 1), roomFor((len(k.items)*t.Heads+t.Blocks-1)/t.Blocks, 1))
}

// KVRoom is the room that tables have in a plan block, in entries.
type KVRoom struct {
	Rows, Items, Paths, Spans, Queries int
}

// pad adds rows that see nothing and write to a page that is never read, until there are so many: fewer than a page has
// slots, so that each has its own.
func (k *KVTables) pad(rows int, page Addr) {
	for len(k.rows) < rows {
		k.at = append(k.at, writeAt{page: page, slot: int32(len(k.rows) % PageSlots)})
		k.rows = append(k.rows, seenRow{part: -1, path: -1, base: noBase})
	}
}

// Room returns what the tables need, in powers of two but for rows: it stays the same while sequences grow, come and
// go.
func (k *KVTables) Room() KVRoom {
	r := KVRoom{Rows: len(k.rows), Items: roomFor(len(k.items), leastItems), Paths: roomFor(len(k.paths), leastPaths),
		Spans: roomFor(len(k.spans), leastSpans)}
	if len(k.queries) > 0 {
		r.Queries = roomFor(len(k.queries), leastQueries)
	}
	return r
}

// The least room of tables: what a few streams need, so that their number and what they see changes little; a few
// kilobytes in all.
const leastItems, leastPaths, leastSpans, leastQueries = 64, 16, 16, 8

const itemBytes, rowBytes, atBytes, spanBytes, queryBytes, pathBytes = 48, 32, 16, 32, 32, 4 * pathSlots

// Bytes is the size of the tables, a multiple of 16.
func (r KVRoom) Bytes() int {
	return itemBytes*(1+r.Items) + (rowBytes+atBytes)*r.Rows + pathBytes*r.Paths + spanBytes*r.Spans + queryBytes*r.Queries
}

// KVAddrs is where tables lie on the device. That of pages belongs to the pool.
type KVAddrs struct {
	Items, Seen, At, Paths, Spans, Queries Addr
	Pages                                  Addr
}

// At returns the addresses of tables that begin at a, a multiple of 16.
func (r KVRoom) At(a Addr) KVAddrs {
	var k KVAddrs
	for _, f := range []struct {
		dst   *Addr
		bytes int
	}{{&k.Items, itemBytes * (1 + r.Items)}, {&k.Seen, rowBytes * r.Rows}, {&k.At, atBytes * r.Rows},
		{&k.Paths, pathBytes * r.Paths}, {&k.Spans, spanBytes * r.Spans}, {&k.Queries, queryBytes * r.Queries}} {
		*f.dst = a
		a += Addr(f.bytes)
	}
	return k
}

// Put writes the tables to the bytes that are copied to the address given to At.
func (k *KVTables) Put(dst []byte, r KVRoom) {
	at := r.At(0)
	counts := [5]int{len(k.items), len(k.spans), k.Pages, k.Keys, len(k.queries)}
	for i, n := range counts {
		binary.LittleEndian.PutUint32(dst[4*i:], uint32(n))
	}
	copy(dst[itemBytes:], bytesOf(k.items))
	copy(dst[at.Seen:], bytesOf(k.rows))
	copy(dst[at.At:], bytesOf(k.at))
	copy(dst[at.Paths:], bytesOf(k.paths))
	copy(dst[at.Spans:], bytesOf(k.spans))
	copy(dst[at.Queries:], bytesOf(k.queries))
}
