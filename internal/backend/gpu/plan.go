package gpu

import (
	"math"
	"slices"

	"strobe/internal/backend"
)

// layout says where the parts of a step's block lie: everything that launches know of it. Room for tables is a power of
// two, so that the layout stays the same while sequences grow, come and go. Two steps of the same operations and the
// same layout are the same launches.
type layout struct {
	base  Addr
	bytes int
	sets  int // integers that the host set: entries at the start, then their values
	ints  int
	uses  []kvUse
	delta deltaUse
}

// same reports whether two layouts are equal.
func (lay *layout) same(o *layout) bool {
	return lay.base == o.base && lay.bytes == o.bytes && lay.sets == o.sets && lay.ints == o.ints &&
		lay.delta == o.delta && slices.Equal(lay.uses, o.uses)
}

// kvUse is the tables of one kind of attention over one plan.
type kvUse struct {
	group          int32
	heads, kvHeads int32 // 0: keys and values are only written
	used           int32 // values of a head that are not padding; 0: all
	shape          backend.KVDims
	longest        int // rows of the longest segment, or of any that the same kernels run
	room           KVRoom
	partials       int   // room for partial results
	unpack         int   // room for unpacked pages; 0: blocks unpack what they read
	block          int32 // of sparse attention; 0: rows see everything
	keys, words    int   // its SparseCall
	shares         int   // launches that share the work
	at             int   // in the block
}

// deltaUse is the tables of the recurrent layers.
type deltaUse struct {
	room DeltaRoom
	at   int
}

// setBytes is an entry for integers: address, place in the block, count.
const setBytes = 16

// block returns the bytes that the step changes, and their layout.
func (b *Backend) block(l *list, s *step) ([]byte, layout, error) {
	var lay layout
	lay.sets, lay.ints = len(l.sets), len(s.data)
	lay.bytes = align16(setBytes*lay.sets + 4*lay.ints)
	tables, err := b.kvTables(l, s, &lay)
	if err != nil {
		return nil, lay, err
	}
	var dt *DeltaTables
	if s.plan != nil && s.plan.State != nil {
		if dt, err = s.plan.State.(*States).pass(s.plan.Delta, l.delta); err != nil {
			return nil, lay, err
		}
		lay.delta = deltaUse{dt.Room(), lay.bytes}
		lay.bytes = align16(lay.bytes + lay.delta.room.Bytes())
	}
	if err := b.growBlock(lay.bytes); err != nil {
		return nil, lay, err
	}
	lay.base = b.blockAddr
	blk := b.blockHost[:lay.bytes]
	at := setBytes * lay.sets
	for i, e := range l.sets {
		copy(blk[setBytes*i:], bytesOf([]SetEntry{{e.dst, int32(at - setBytes*e.first), int32(e.n)}}))
		at += copy(blk[at:], bytesOf(s.data[e.from:][:e.n]))
	}
	for i, t := range tables {
		t.Put(blk[lay.uses[i].at:], lay.uses[i].room)
	}
	if dt != nil {
		dt.Put(blk[lay.delta.at:], lay.delta.room)
	}
	return blk, lay, nil
}

func align16(n int) int { return (n + 15) / 16 * 16 }

// growBlock makes room for a block of so many bytes. Recordings know its address, so those of a smaller block are
// forgotten.
func (b *Backend) growBlock(bytes int) error {
	if bytes <= len(b.blockHost) {
		return nil
	}
	size := 1 << 16
	for size < bytes {
		size *= 2
	}
	a, err := b.d.Alloc(size)
	if err != nil {
		return err
	}
	if b.blockAddr != 0 {
		b.forget(span{b.blockAddr, len(b.blockHost)})
		b.d.Release(b.blockAddr)
	}
	b.blockAddr, b.blockHost = a, make([]byte, size)
	return nil
}

// kvTables makes the tables of every kind of attention in a list.
func (b *Backend) kvTables(l *list, s *step, lay *layout) ([]*KVTables, error) {
	plan := s.plan
	if plan == nil {
		return nil, nil
	}
	lay.uses = make([]kvUse, len(l.uses))
	for len(b.tables) < len(l.uses) {
		b.tables = append(b.tables, &KVTables{})
	}
	first := make([][]int32, len(l.uses)) // of each table of a plan: its pages in the pool's table
	for i, u := range l.uses {
		pool := plan.KV[u.group].Pool.(*Pages)
		for _, ids := range plan.KV[u.group].Tables {
			at, err := pool.List(ids, b.turn)
			if err != nil {
				return nil, err
			}
			first[i] = append(first[i], at)
		}
		lay.uses[i] = kvUse{group: u.group, heads: u.heads, kvHeads: u.kvHeads, used: u.used,
			shape: pool.Layout.Shapes[u.layer], block: u.sparse.block}
	}
	if err := b.unpackRoom(plan, lay.uses); err != nil {
		return nil, err
	}
	for i, u := range l.uses {
		p := &plan.KV[u.group]
		pool := p.Pool.(*Pages)
		k := &lay.uses[i]
		k.at = lay.bytes
		tiling := Tiling{Rows: 1, Splits: 1, Blocks: 1, Heads: 1}
		if k.heads > 0 {
			a, err := b.attentionOf(int(k.heads), k.shape, int(k.used))
			if err != nil {
				return nil, err
			}
			if k.unpack > 0 {
				a = a.halves
			}
			if k.longest = a.alike(longestSegment(p)); k.block > 0 {
				a = a.sparse()
				k.longest = a.sparseLongest()
			}
			tiling = a.Tiling(k.longest)
			tiling.Block = int(k.block)
		}
		t := b.tables[i]
		if err := t.fill(p, tiling, pool.Addr, first[i], s.tokens); err != nil {
			return nil, err
		}
		t.pad(l.rows[u.group], pool.waste)
		if t.Partials > 0 {
			k.partials = roomFor(t.Partials, leastPartials)
		}
		if k.heads > 0 {
			k.shares = tiling.shares(t)
		}
		if k.block > 0 {
			k.keys, k.words = roomFor(t.Keys, 64), roomFor(t.Longest, 64)/64
		}
		k.room = t.Room()
		lay.bytes = align16(lay.bytes + k.room.Bytes())
	}
	return b.tables[:len(l.uses)], nil
}

// unpackFrom is the rows of a segment from which unpacking pages once is faster than by every block that reads them:
// at 16 rows both take about as long, at 64 once is faster. unpackShare is the part of a device's memory that may be
// spent on it.
const unpackFrom, unpackShare = 32, 16

// unpackRoom makes room for pages of halves where attention unpacks them once for all rows. Where there is no memory
// for that they are unpacked by every block that reads them, which changes no bits.
func (b *Backend) unpackRoom(plan *backend.Plan, uses []kvUse) error {
	need := make([]int, len(uses))
	most := 0
	for i := range uses {
		k := &uses[i]
		p := &plan.KV[k.group]
		if k.heads == 0 || longestSegment(p) < unpackFrom {
			continue
		}
		a, err := b.attentionOf(int(k.heads), k.shape, int(k.used))
		if err != nil {
			return err
		}
		if a.halves == nil {
			continue
		}
		k.unpack = roomFor(seenPages(p), leastUnpacked)
		need[i] = a.UnpackBytes(k.unpack, p.Pool.(*Pages).entries)
		if need[i] <= b.props.Memory/unpackShare && (b.refused == 0 || need[i] < b.refused) {
			most = max(most, need[i])
		}
	}
	if most > b.unpackedBytes {
		b.dropUnpacked()
		if at, err := b.d.Alloc(most); err != nil {
			b.refused = most
		} else {
			b.unpacked, b.unpackedBytes = at, most
		}
	}
	for i := range uses {
		if need[i] > b.unpackedBytes {
			uses[i].unpack = 0
		}
	}
	return nil
}

func (b *Backend) dropUnpacked() {
	if b.unpacked == 0 {
		return
	}
	b.forget(span{b.unpacked, b.unpackedBytes})
	b.d.Release(b.unpacked)
	b.unpacked, b.unpackedBytes = 0, 0
}

// makeRoom gives the memory of unpacked pages back for good, because there is none left for pages themselves. It
// reports whether that made any free.
func (b *Backend) makeRoom() bool {
	if b.unpacked == 0 {
		return false
	}
	b.refused = b.unpackedBytes
	b.dropUnpacked()
	return true
}

// seenPages is at least the number of pages that the rows of a plan see, and write to.
func seenPages(p *backend.KVPlan) int {
	pages := 0
	for r := 0; r < len(p.Seg); {
		lo, hi := int32(math.MaxInt32), int32(0)
		for seg := p.Seg[r]; r < len(p.Seg) && p.Seg[r] == seg; r++ {
			lo, hi = min(lo, p.Lo[r], p.Hi[r]), max(hi, p.Hi[r], p.Slot[r]+1)
		}
		pages += int(hi/PageSlots-lo/PageSlots) + 1
	}
	return pages
}

// leastUnpacked is the least room for unpacked pages: 4,096 tokens.
const leastUnpacked = 64

// leastPartials is the least room for partial results: those of a few rows.
const leastPartials = 256

// use finds the tables for an operation on a layer, -1 for none. Keys and values are written by any tables of their
// group.
func (lay *layout) use(a attnOp, shape backend.KVDims) int {
	for i := range lay.uses {
		u := &lay.uses[i]
		if u.room.Rows > 0 && u.group == a.group &&
			(a.heads == 0 || u.heads == a.heads && u.kvHeads == a.kvHeads && u.used == a.used && u.shape == shape &&
				u.block == a.sparse.block) {
			return i
		}
	}
	return -1
}

func longestSegment(p *backend.KVPlan) int {
	longest, n := 0, 0
	for r := range p.Seg {
		if r > 0 && p.Seg[r] != p.Seg[r-1] {
			n = 0
		}
		n++
		longest = max(longest, n)
	}
	return longest
}

// attentionOf returns the kernels for a kind of attention.
func (b *Backend) attentionOf(heads int, d backend.KVDims, used int) (*Attention, error) {
	key := attentionKey{heads, d, used}
	if a := b.attn[key]; a != nil {
		return a, nil
	}
	a, err := NewAttention(b.props, heads, d)
	if err == nil {
		a = a.used(used)
		b.attn[key] = a
	}
	return a, err
}

type attentionKey struct {
	heads int
	dims  backend.KVDims
	used  int
}

// NewKVPool returns an empty pool.
func (b *Backend) NewKVPool(l backend.KVLayout) (backend.KVPool, error) {
	return NewPages(b.d, l, b)
}
