package cpu

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu/kernel/vec"
	"strobe/internal/quant"
)

// kvPool keeps every page in memory of its own, so that a cache grows without moving.
// Inside a page each layer has its keys, then its values, head by head: the rows that
// one head of attention reads are contiguous.
type kvPool struct {
	layout backend.KVLayout
	layers []kvLayer
	bytes  int
	mu     sync.Mutex // guards pages and free: metrics are read while the device runs
	pages  [][]byte
	free   []int32
	view   atomic.Pointer[[][]byte] // pages as workers see them, without the lock
}

type kvLayer struct {
	kOff, vOff int // of the first head
	kRow, vRow int // bytes of one head's row
	kHead      int // bytes from one head to the next
	vHead      int
}

// NewKVPool returns an empty pool.
func (b *Backend) NewKVPool(l backend.KVLayout) (backend.KVPool, error) {
	p := &kvPool{layout: l}
	for i, d := range l.Layers {
		if err := d.Check(i); err != nil {
			return nil, err
		}
		y := kvLayer{kRow: d.Key.RowBytes(d.KeyDim), vRow: d.Value.RowBytes(d.ValueDim)}
		y.kHead, y.vHead = l.Page*y.kRow, l.Page*y.vRow
		y.kOff = p.bytes
		y.vOff = y.kOff + d.Heads*y.kHead
		p.bytes = y.vOff + d.Heads*y.vHead
		p.layers = append(p.layers, y)
	}
	return p, nil
}

func (p *kvPool) PageBytes() int { return p.bytes }

func (p *kvPool) Alloc() (int32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		id := p.free[n-1]
		p.free = p.free[:n-1]
		return id, nil
	}
	if len(p.pages) == math.MaxInt32 {
		return 0, fmt.Errorf("cache has no free page")
	}
	p.pages = append(p.pages, make([]byte, p.bytes))
	view := p.pages
	p.view.Store(&view)
	return int32(len(p.pages) - 1), nil
}

func (p *kvPool) Free(page int32) {
	p.mu.Lock()
	p.free = append(p.free, page)
	p.mu.Unlock()
}

func (p *kvPool) Used() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pages) - len(p.free)
}

func (p *kvPool) page(i int32) []byte { return (*p.view.Load())[i] }

func (p *kvPool) Copy(dst, src int32)              { copy(p.page(dst), p.page(src)) }
func (p *kvPool) ReadPage(page int32, dst []byte)  { copy(dst, p.page(page)) }
func (p *kvPool) WritePage(page int32, src []byte) { copy(p.page(page), src) }

func (p *kvPool) Move(rows []backend.RowMove) {
	for _, m := range rows {
		d, s := p.page(m.To), p.page(m.From)
		for i, y := range p.layers {
			for h := range p.layout.Layers[i].Heads {
				k, v := y.kOff+h*y.kHead, y.vOff+h*y.vHead
				copy(d[k+m.Dst*y.kRow:][:y.kRow], s[k+m.Src*y.kRow:])
				copy(d[v+m.Dst*y.vRow:][:y.vRow], s[v+m.Src*y.vRow:])
			}
		}
	}
}

// KVWrite stores the keys and values of the batch at their slots.
func (b *Backend) KVWrite(group, layer int, k, v backend.Tensor) {
	plan := &b.plan.KV[group]
	p := plan.Pool.(*kvPool)
	y, d := p.layers[layer], p.layout.Layers[layer]
	b.rowsOf(len(plan.Slot), 4*d.Heads*(d.KeyDim+d.ValueDim), func(r int) {
		slot := int(plan.Slot[r])
		page := p.page(plan.Tables[plan.Seg[r]][slot/p.layout.Page])
		at := slot % p.layout.Page
		kr, vr := row(k, r), row(v, r)
		for h := range d.Heads {
			store(d.Key, page[y.kOff+h*y.kHead+at*y.kRow:][:y.kRow], kr[h*d.KeyDim:][:d.KeyDim], d.Key.RotatesKeys())
			store(d.Value, page[y.vOff+h*y.vHead+at*y.vRow:][:y.vRow], vr[h*d.ValueDim:][:d.ValueDim], d.Value.RotatesValues())
		}
	})
}

// store writes a head's row, rotated where its type wants that.
func store(t quant.Type, dst []byte, src []float32, rotated bool) {
	if rotated {
		var room [512]float32
		turned := append(room[:0], src...)
		quant.Rotate(turned)
		src = turned
	}
	vec.Store(t, dst, src)
}

// Attention reads keys and values in blocks of slots; all query rows of a tile use a block while it is in the
// second-level cache. Sums are rescaled from block to block (an online softmax), so that the memory of a tile does not
// depend on the context.
const (
	blockSlots = 256 // four pages: few rescalings, and scores of a tile that stay in the cache
	tileRows   = 64  // query rows of a tile, tokens times heads
)

// Attention computes softmax(q k) v for every row and head over the slots the row sees. Blocks begin at multiples of
// blockSlots tokens of the sequence, and inside of a block scores are reduced in order of tokens: the order of sums
// depends on what a row sees alone, and a path through a tree has that of the chain it may become.
func (b *Backend) Attention(dst, q backend.Tensor, group, layer int, ap backend.AttnParams) {
	plan := &b.plan.KV[group]
	p := plan.Pool.(*kvPool)
	d := p.layout.Layers[layer]
	n := len(plan.Slot)
	work := 0
	for r := range n {
		work += plan.Visible(r) + 16
	}
	shared := ap.Heads / ap.KVHeads
	heads := min(shared, tileRows) // query heads per task
	for shared%heads != 0 {
		heads--
	}
	for heads > 1 && heads%2 == 0 && n*ap.Heads/heads < 2*b.pool.n {
		heads /= 2
	}
	rows := max(1, min(tileRows/heads, n*ap.Heads/heads/(2*b.pool.n)))
	b.tiles = b.tiles[:0]
	for r := 0; r < n; {
		end := r + 1
		for end < n && end-r < rows && plan.Seg[end] == plan.Seg[r] {
			end++
		}
		for h := 0; h < ap.Heads; h += heads {
			b.tiles = append(b.tiles, tile{rows: [2]int{r, end}, head: h})
		}
		r = end
	}
	do := func(w, t int) {
		a := b.tiles[t]
		a.pool, a.layer, a.heads, a.kvHead = p, layer, heads, a.head/shared
		b.workers[w].attend(dst, q, &a, plan, ap)
	}
	if work*ap.Heads*d.KeyDim < inlineMACs {
		for t := range b.tiles {
			do(0, t)
		}
		return
	}
	b.pool.each(len(b.tiles), do)
}

// tile is the part of an attention operation that one task computes.
type tile struct {
	pool        *kvPool
	layer       int
	rows        [2]int // of the batch, one sequence
	head, heads int    // query heads, all sharing kvHead
	kvHead      int

	keep  []bool // which blocks of so many tokens the rows see of those they might; nil for all
	block int
}

// sparse calls fn for the parts of a run of slots that the tile's rows see, if they do not see all.
func (a *tile) sparse(token, slots int, fn func(from, n int)) {
	if a.keep == nil {
		fn(0, slots)
		return
	}
	for at := 0; at < slots; {
		n := min(slots-at, a.block-(token+at)%a.block)
		if a.keep[(token+at)/a.block] {
			fn(at, n)
		}
		at += n
	}
}

// sees reports whether the rows see anything of n tokens.
func (a *tile) sees(token, n int) bool {
	if a.keep == nil {
		return true
	}
	return slices.Contains(a.keep[token/a.block:min((token+n-1)/a.block+1, len(a.keep))], true)
}

// attend computes one tile.
func (w *worker) attend(dst, q backend.Tensor, a *tile, plan *backend.KVPlan, ap backend.AttnParams) {
	y, d := a.pool.layers[a.layer], a.pool.layout.Layers[a.layer]
	rows := a.rows[1] - a.rows[0]
	n := rows * a.heads
	w.queries = grow(w.queries, n*d.KeyDim)
	for r := range rows {
		copy(w.queries[r*a.heads*d.KeyDim:][:a.heads*d.KeyDim], row(q, a.rows[0]+r)[a.head*d.KeyDim:])
	}
	if d.Key.RotatesKeys() {
		for i := range n {
			quant.Rotate(w.queries[i*d.KeyDim:][:d.KeyDim])
		}
	}
	w.sums, w.scores = grow(w.sums, n*d.ValueDim), grow(w.scores, n*blockSlots)
	clear(w.sums)
	w.soft = grow(w.soft, n)
	sinks := values(ap.Sinks)
	for i := range w.soft[:n] {
		w.soft[i] = softmax{top: float32(math.Inf(-1))}
		if sinks != nil { // one more logit, without a value
			w.soft[i] = softmax{top: sinks[a.head+i%a.heads], sum: 1}
		}
	}
	first, last := a.span(plan)
	for from := first / blockSlots * blockSlots; from < last; from += blockSlots {
		if !a.sees(from, blockSlots) {
			continue
		}
		if a.keep != nil { // what is not seen weighs nothing
			for i := range w.scores[:n*blockSlots] {
				w.scores[i] = float32(math.Inf(-1))
			}
		}
		a.runs(plan, from, func(r, m, i int, page []byte, at, slots int) {
			keys := page[y.kOff+a.kvHead*y.kHead+at*y.kRow:]
			c := r * a.heads
			a.sparse(from+i, slots, func(f, slots int) {
				vec.ScoresN(w.scores[c*blockSlots+i+f:], blockSlots, w.queries[c*d.KeyDim:], d.KeyDim, m*a.heads, d.KeyDim,
					d.Key, keys[f*y.kRow:], y.kRow, slots, ap.Scale)
			})
		})
		for r := range rows {
			lo, hi := seen(plan, a.rows[0]+r)
			if lo, hi = max(lo-from, 0), min(hi-from, blockSlots); lo >= hi {
				continue
			}
			for i := r * a.heads; i < (r+1)*a.heads; i++ {
				w.soft[i].take(w.scores[i*blockSlots:][lo:hi], w.sums[i*d.ValueDim:][:d.ValueDim])
			}
		}
		a.runs(plan, from, func(r, m, i int, page []byte, at, slots int) {
			vals := page[y.vOff+a.kvHead*y.vHead+at*y.vRow:]
			c := r * a.heads
			a.sparse(from+i, slots, func(f, slots int) {
				vec.AccumN(w.sums[c*d.ValueDim:], d.ValueDim, w.scores[c*blockSlots+i+f:], blockSlots, m*a.heads, d.ValueDim,
					d.Value, vals[f*y.vRow:], y.vRow, slots)
			})
		})
	}
	for i := range n {
		sums := w.sums[i*d.ValueDim:][:d.ValueDim]
		if w.soft[i].sum != 0 {
			vec.Scale(sums, sums, float32(1/w.soft[i].sum))
		}
		if d.Value.RotatesValues() {
			quant.Unrotate(sums)
		}
	}
	for r := range rows {
		copy(row(dst, a.rows[0]+r)[a.head*d.ValueDim:][:a.heads*d.ValueDim], w.sums[r*a.heads*d.ValueDim:])
	}
}

// softmax is a softmax in progress: the largest logit so far, and the sum of exponentials relative to it.
type softmax struct {
	top float32
	sum float64
}

// take replaces more logits by their weights and rescales what was summed up with the weights before.
func (s *softmax) take(x, sums []float32) {
	if m := vec.Max(x); m > s.top {
		if s.sum != 0 {
			f := float32(math.Exp(float64(s.top - m)))
			s.sum *= float64(f)
			vec.Scale(sums, sums, f)
		}
		s.top = m
	}
	if math.IsInf(float64(s.top), -1) { // weights of nothing, but NaN stays
		for i, v := range x {
			if v == v {
				x[i] = 0
			}
		}
		return
	}
	s.sum += vec.ExpSum(x, s.top)
}

// seen returns the tokens [lo, hi) that a row sees. Those behind the plan's Hi are at the slots of its Extra.
func seen(plan *backend.KVPlan, r int) (lo, hi int) {
	lo = int(plan.Lo[r])
	return lo, lo + plan.Visible(r)
}

// span returns the tokens that any row of the tile sees.
func (a *tile) span(plan *backend.KVPlan) (lo, hi int) {
	lo, hi = seen(plan, a.rows[0])
	for r := a.rows[0] + 1; r < a.rows[1]; r++ {
		l, h := seen(plan, r)
		lo, hi = min(lo, l), max(hi, h)
	}
	return lo, hi
}

// runs calls fn for every contiguous run of slots that rows of the tile see in the block that begins at a token, page
// by page: the first row in the tile, the number of rows, the place of the run in the block, its page, the row in the
// page and the number of slots. Slots that all rows see are one run for all of them. Each row sees its runs in order.
func (a *tile) runs(plan *backend.KVPlan, from int, fn func(r, m, i int, page []byte, at, slots int)) {
	size, end := a.pool.layout.Page, from+blockSlots
	table := plan.Tables[plan.Seg[a.rows[0]]]
	lo, hi := int(plan.Lo[a.rows[0]]), int(plan.Hi[a.rows[0]])
	all0, all1 := lo, hi // what all rows see
	for r := a.rows[0]; r < a.rows[1]; r++ {
		l, h := int(plan.Lo[r]), int(plan.Hi[r])
		lo, hi, all0, all1 = min(lo, l), max(hi, h), max(all0, l), min(all1, h)
	}
	if all0 >= all1 {
		all0, all1 = lo, lo
	}
	run := func(r, m, f, t, p int) {
		if f, t = max(f, p*size), min(t, (p+1)*size); f < t {
			fn(r, m, f-from, a.pool.page(table[p]), f-p*size, t-f)
		}
	}
	for p := max(lo, from) / size; p*size < min(hi, end); p++ {
		for r := a.rows[0]; r < a.rows[1]; r++ {
			run(r-a.rows[0], 1, int(plan.Lo[r]), min(int(plan.Hi[r]), all0), p)
		}
		run(0, a.rows[1]-a.rows[0], all0, all1, p)
		for r := a.rows[0]; r < a.rows[1]; r++ {
			run(r-a.rows[0], 1, max(int(plan.Lo[r]), all1), int(plan.Hi[r]), p)
		}
	}
	if plan.Extra == nil {
		return
	}
	for r := a.rows[0]; r < a.rows[1]; r++ {
		for i, s := range plan.Extra[r] {
			if at := int(plan.Hi[r]) + i; at >= from && at < end {
				fn(r-a.rows[0], 1, at-from, a.pool.page(table[int(s)/size]), int(s)%size, 1)
			}
		}
	}
}
