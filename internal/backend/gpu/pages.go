package gpu

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// PageSlots is the number of tokens a cache page holds.
const PageSlots = 64

// KVPlace is one layer's place in a page, as the kernels know it.
type KVPlace struct {
	Off, Head, Values int32 // of the first head; bytes of a head; from its keys to its values
	KType, VType      int32
	KDim, VDim        int32
}

// PageLayout says how a page is laid out; kernel/kv.h describes it.
type PageLayout struct {
	Shapes []backend.KVDims
	Places []KVPlace
	Bytes  int
	strips []strip
}

// strip is the same bytes of every slot of a page.
type strip struct {
	off   int32
	bytes int32 // of a slot, slots following each other; 0: 128 bytes in chunks as F16 lies
}

// kvTypes are the numbers of the types in kernel/kv.h.
var kvTypes = map[quant.Type]int32{
	quant.F32: 0, quant.F16: 1, quant.Q8_0: 2, quant.Q4_0: 3, quant.Q4_1: 4, quant.Turbo4: 5, quant.Turbo3: 6,
}

// quantBytes is what the quants of a row take; its scales take the rest.
func quantBytes(t quant.Type, dim int) int {
	switch t {
	case quant.Q8_0:
		return dim
	case quant.Turbo3:
		return dim * 3 / 8
	}
	return dim / 2
}

// NewPageLayout lays out a page of a pool.
func NewPageLayout(pool backend.KVLayout) (*PageLayout, error) {
	if pool.Page != PageSlots {
		return nil, fmt.Errorf("cache pages of %d tokens; the device has pages of %d", pool.Page, PageSlots)
	}
	l := &PageLayout{Shapes: pool.Layers}
	for i, s := range pool.Layers {
		if err := s.Check(i); err != nil {
			return nil, err
		}
		for _, d := range []struct {
			dim int
			typ quant.Type
		}{{s.KeyDim, s.Key}, {s.ValueDim, s.Value}} {
			if n := max(8, d.typ.BlockLen()); d.dim%n != 0 || d.dim <= 0 || d.dim > 512 {
				return nil, fmt.Errorf("cache type %s needs head sizes that are multiples of %d up to 512; layer %d has %d",
					d.typ, n, i, d.dim)
			}
		}
		kb, vb := PageSlots*s.Key.RowBytes(s.KeyDim), PageSlots*s.Value.RowBytes(s.ValueDim)
		l.Places = append(l.Places, KVPlace{Off: int32(l.Bytes), Head: int32(kb + vb), Values: int32(kb),
			KType: kvTypes[s.Key], VType: kvTypes[s.Value], KDim: int32(s.KeyDim), VDim: int32(s.ValueDim)})
		for h := range s.Heads {
			off := l.Bytes + h*(kb+vb)
			l.addStrips(off, s.Key, s.KeyDim)
			l.addStrips(off+kb, s.Value, s.ValueDim)
		}
		l.Bytes += s.Heads * (kb + vb)
		if l.Bytes > math.MaxInt32 {
			return nil, fmt.Errorf("cache pages of more than %d bytes", math.MaxInt32)
		}
	}
	return l, nil
}

func (l *PageLayout) addStrips(off int, t quant.Type, dim int) {
	add := func(off, bytes int) { l.strips = append(l.strips, strip{int32(off), int32(bytes)}) }
	switch {
	case t == quant.F16 && dim%64 == 0:
		for d := 0; d < dim; d += 64 {
			add(off+d*2*PageSlots, 0)
		}
	case t.Quantized():
		n := quantBytes(t, dim)
		add(off, n)
		add(off+n*PageSlots, t.RowBytes(dim)-n)
	default:
		add(off, t.RowBytes(dim))
	}
}

// chunkBytes is how much memory pages are allocated in: few calls of the driver, and little unused memory.
const chunkBytes = 64 << 20

// Pages is device memory for cache pages. A page's memory is cleared when it is made and never given back before
// Close: slots that were never written must hold numbers, since they are multiplied by zero.
type Pages struct {
	Layout *PageLayout
	d      Driver
	per    int    // pages of a chunk
	chunks []Addr // memory of pages per*i ...
	n      int32  // pages that exist
	free   []int32
	used   atomic.Int32
	owner  *Backend // nil: nothing else uses the device's memory
	strips Addr
	moves  Addr // room for maxMoves of them
	waste  Addr // a page for the rows of padding

	table   Addr // addresses of pages, for kernels: a list for each sequence
	entries int  // of the table
	lists   []pageList
}

// pageList is the pages of a sequence in the table: kernels read it at [at, at+room), and ids says what is there.
type pageList struct {
	at, room int
	ids      []int32
	turn     int // of the last use
	fixed    int // entries that somebody needs in that turn
}

// A list has room for leastPages, or the next power of two. The last maxChanged pages of a sequence may have become
// others since the step before: what a pass wrote and was taken back.
const leastPages, maxChanged = 256, 16

// List returns where in the table the pages of a sequence lie, for a step with this number. What is there from the
// steps before stays: only new pages are looked up and uploaded, so that a prompt costs no more than its length.
func (p *Pages) List(ids []int32, turn int) (int32, error) {
	best, agree := -1, 0
	for i := range p.lists {
		l := &p.lists[i]
		n := min(len(ids), len(l.ids))
		if !bytes.Equal(bytesOf(ids[:n]), bytesOf(l.ids[:n])) { // several times as fast as one by one
			all := n
			for n = 0; n < all && (ids[n] == l.ids[n] || ids[n] < 0); n++ { // one that was dropped is not read
			}
		}
		kept := len(l.ids) - maxChanged
		if l.turn == turn {
			kept = l.fixed
		}
		if n >= min(kept, len(ids)) && len(ids) <= l.room && (best < 0 || n > agree) {
			best, agree = i, n
		}
		if best >= 0 && agree == len(ids) {
			break
		}
	}
	if best < 0 {
		at, err := p.listRoom(roomFor(len(ids), leastPages), turn)
		if err != nil {
			return 0, err
		}
		best = len(p.lists)
		p.lists = append(p.lists, pageList{at: at, room: roomFor(len(ids), leastPages)})
	}
	l := &p.lists[best]
	if agree < len(ids) {
		addrs := make([]Addr, len(ids)-agree)
		for i := range addrs {
			addrs[i] = p.Addr(ids[agree+i])
		}
		l.ids = append(l.ids[:agree], ids[agree:]...)
		p.d.Upload(p.table+Addr(8*(l.at+agree)), bytesOf(addrs))
	}
	if l.turn != turn {
		l.turn, l.fixed = turn, 0
	}
	l.fixed = max(l.fixed, len(ids))
	return int32(l.at), nil
}

// listRoom finds so many entries of the table that no list has; those that were not used for longest go first.
func (p *Pages) listRoom(n, turn int) (int, error) {
	for {
		slices.SortFunc(p.lists, func(a, b pageList) int { return cmp.Compare(a.at, b.at) })
		at := 0
		for _, l := range p.lists {
			if l.at-at >= n {
				break
			}
			at = l.at + l.room
		}
		if at+n <= p.entries {
			return at, nil
		}
		oldest := -1
		for i, l := range p.lists {
			if l.turn != turn && (oldest < 0 || l.turn < p.lists[oldest].turn) {
				oldest = i
			}
		}
		if oldest < 0 {
			break
		}
		p.lists = slices.Delete(p.lists, oldest, oldest+1)
	}
	entries := 2 * (p.entries + n) // lists in use stay where they are
	a, err := p.d.Alloc(8 * entries)
	if err != nil {
		return 0, err
	}
	if p.table != 0 {
		p.d.Copy(a, p.table, 8*p.entries)
		if p.owner != nil {
			p.owner.forget(span{p.table, 8 * p.entries})
		}
		p.d.Release(p.table)
	}
	at := p.entries
	p.table, p.entries = a, entries
	return at, nil
}

// maxMoves is how many slots one launch moves.
const maxMoves, moveBytes = 256, 24

var _ backend.KVPool = (*Pages)(nil)

// NewPages returns an empty pool of a backend, or of none.
func NewPages(d Driver, pool backend.KVLayout, owner *Backend) (*Pages, error) {
	l, err := NewPageLayout(pool)
	if err != nil {
		return nil, err
	}
	p := &Pages{Layout: l, d: d, owner: owner, per: max(1, min(256, chunkBytes/max(1, l.Bytes)))}
	var b []byte
	for _, s := range l.strips {
		b = binary.LittleEndian.AppendUint32(b, uint32(s.off))
		b = binary.LittleEndian.AppendUint32(b, uint32(s.bytes))
	}
	if p.moves, err = d.Alloc(maxMoves*moveBytes + len(b)); err != nil {
		return nil, err
	}
	p.strips = p.moves + maxMoves*moveBytes
	d.Upload(p.strips, b)
	if p.waste, err = d.Alloc(l.Bytes); err != nil {
		d.Release(p.moves)
		return nil, err
	}
	return p, nil
}

// Alloc returns a page that no one uses. What it holds is anything, but numbers.
func (p *Pages) Alloc() (int32, error) {
	if n := len(p.free); n > 0 {
		id := p.free[n-1]
		p.free = p.free[:n-1]
		p.used.Add(1)
		return id, nil
	}
	if p.n == math.MaxInt32 {
		return 0, fmt.Errorf("cache has no free page")
	}
	if int(p.n) == len(p.chunks)*p.per {
		a, err := p.d.Alloc(p.per * p.Layout.Bytes)
		if err != nil && p.owner != nil && p.owner.makeRoom() {
			a, err = p.d.Alloc(p.per * p.Layout.Bytes)
		}
		if err != nil {
			return 0, fmt.Errorf("cache has no free page: %w", err)
		}
		p.d.Fill(a, 0, p.per*p.Layout.Bytes)
		p.chunks = append(p.chunks, a)
	}
	p.n++
	p.used.Add(1)
	return p.n - 1, nil
}

// Free gives a page back.
func (p *Pages) Free(page int32) {
	p.free = append(p.free, page)
	p.used.Add(-1)
}

// Used is the number of pages in use; it may be called from any goroutine.
func (p *Pages) Used() int { return int(p.used.Load()) }

// Table is where the lists lie, and how many entries it has. Both may change with List.
func (p *Pages) Table() (Addr, int) { return p.table, p.entries }

// PageBytes is the size of a page.
func (p *Pages) PageBytes() int { return p.Layout.Bytes }

// Addr is where a page lies; 0 for one that left a window: no row sees it.
func (p *Pages) Addr(page int32) Addr {
	if page < 0 {
		return 0
	}
	return p.chunks[int(page)/p.per] + Addr(int(page)%p.per*p.Layout.Bytes)
}

// Copy makes dst equal to src.
func (p *Pages) Copy(dst, src int32) { p.d.Copy(p.Addr(dst), p.Addr(src), p.Layout.Bytes) }

// ReadPage copies a page as it lies to the host. What failed is reported by the driver's Wait.
func (p *Pages) ReadPage(page int32, dst []byte) {
	_ = p.d.Download(dst[:p.Layout.Bytes], p.Addr(page)) // the driver remembers the failure
}

// WritePage sets a page to what ReadPage of such a pool gave.
func (p *Pages) WritePage(page int32, src []byte) { p.d.Upload(p.Addr(page), src[:p.Layout.Bytes]) }

type moveArgs struct {
	moves, strips   Addr
	nmoves, nstrips int32
}

// Move moves slots of all layers, in the given order.
func (p *Pages) Move(rows []backend.RowMove) {
	n := len(p.Layout.strips)
	for ; len(rows) > 0 && n > 0; rows = rows[min(len(rows), maxMoves):] {
		var b []byte
		for _, m := range rows[:min(len(rows), maxMoves)] {
			b = binary.LittleEndian.AppendUint64(b, uint64(p.Addr(m.To)))
			b = binary.LittleEndian.AppendUint64(b, uint64(p.Addr(m.From)))
			b = binary.LittleEndian.AppendUint32(b, uint32(m.Dst))
			b = binary.LittleEndian.AppendUint32(b, uint32(m.Src))
		}
		p.d.Upload(p.moves, b)
		launchNow(p.d, Call{kernelMove, &moveArgs{p.moves, p.strips, int32(len(b) / moveBytes), int32(n)},
			Config{Grid: [3]int{(n + 3) / 4, 1, 1}, Threads: 128}})
	}
}

// Close gives all memory back.
func (p *Pages) Close() {
	for _, a := range append(p.chunks, p.moves, p.waste, p.table) {
		p.d.Release(a)
	}
	p.chunks = nil
}

// roomFor is least, a power of two, or the next one that holds n: what changes from step to step keeps its place while
// it grows.
func roomFor(n, least int) int {
	r := least
	for r < n {
		r *= 2
	}
	return r
}
