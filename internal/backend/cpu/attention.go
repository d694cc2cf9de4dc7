package cpu

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu/kernel/vec"
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
		if k, v := d.Key.BlockLen(), d.Value.BlockLen(); d.KeyDim%k != 0 || d.ValueDim%v != 0 {
			return nil, fmt.Errorf("cache types %s and %s need head sizes that are multiples of %d and %d; layer %d "+
				"has %d and %d",
				d.Key, d.Value, k, v, i, d.KeyDim, d.ValueDim)
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
			vec.Store(d.Key, page[y.kOff+h*y.kHead+at*y.kRow:][:y.kRow], kr[h*d.KeyDim:][:d.KeyDim])
			vec.Store(d.Value, page[y.vOff+h*y.vHead+at*y.vRow:][:y.vRow], vr[h*d.ValueDim:][:d.ValueDim])
		}
	})
}

// tileScores bounds the scores one worker holds at a time, so that they stay in its cache.
const tileScores = 1 << 16

// Attention computes softmax(q k) v for every row and head over the slots the row sees.
// Scores are laid out in slot order and reduced in that order, whatever the batch. Heads that
// share keys, and neighbouring rows of a sequence, are computed together so that a page of
// keys is read once for all of them.
func (b *Backend) Attention(dst, q backend.Tensor, group, layer int, ap backend.AttnParams) {
	plan := &b.plan.KV[group]
	p := plan.Pool.(*kvPool)
	d := p.layout.Layers[layer]
	n := len(plan.Slot)
	work, longest := 0, 0
	for r := range n {
		seen := plan.Visible(r)
		work += seen + 16
		longest = max(longest, seen)
	}
	shared := ap.Heads / ap.KVHeads
	heads := shared // query heads per task
	for heads > 1 && heads%2 == 0 && n*ap.Heads/heads < 2*b.pool.n {
		heads /= 2
	}
	rows := max(1, min(8, tileScores/(heads*max(1, longest)), n*ap.Heads/heads/(2*b.pool.n)))
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
}

// attend computes one tile.
func (w *worker) attend(dst, q backend.Tensor, a *tile, plan *backend.KVPlan, ap backend.AttnParams) {
	y, d := a.pool.layers[a.layer], a.pool.layout.Layers[a.layer]
	stride := 0 // scores of one head of one row
	for r := a.rows[0]; r < a.rows[1]; r++ {
		stride = max(stride, plan.Visible(r))
	}
	w.scores = grow(w.scores, (a.rows[1]-a.rows[0])*a.heads*stride)
	scores := func(r int) []float32 { return w.scores[(r-a.rows[0])*a.heads*stride:][:a.heads*stride] }

	// Pages that every row of the tile sees are multiplied with all their queries at once.
	rows := a.rows[1] - a.rows[0]
	w.queries = grow(w.queries, rows*a.heads*d.KeyDim)
	for r := range rows {
		copy(w.queries[r*a.heads*d.KeyDim:][:a.heads*d.KeyDim], row(q, a.rows[0]+r)[a.head*d.KeyDim:])
	}
	w.sums = grow(w.sums, rows*a.heads*d.ValueDim)
	clear(w.sums)

	a.runs(plan, func(r, i int, page []byte, at, n int) {
		keys := page[y.kOff+a.kvHead*y.kHead+at*y.kRow:]
		if r < 0 {
			vec.ScoresN(w.scores[i:], stride, w.queries, d.KeyDim, rows*a.heads, d.KeyDim, d.Key, keys, y.kRow, n, ap.Scale)
			return
		}
		vec.ScoresN(scores(r)[i:], stride, w.queries[(r-a.rows[0])*a.heads*d.KeyDim:], d.KeyDim, a.heads, d.KeyDim, d.Key,
			keys, y.kRow, n, ap.Scale)
	})
	sinks := values(ap.Sinks)
	for r := a.rows[0]; r < a.rows[1]; r++ {
		for h := range a.heads {
			s := scores(r)[h*stride:][:plan.Visible(r)]
			if sinks != nil {
				softmaxSink(s, sinks[a.head+h])
			} else {
				vec.Softmax(s)
			}
		}
	}
	a.runs(plan, func(r, i int, page []byte, at, n int) {
		vals := page[y.vOff+a.kvHead*y.vHead+at*y.vRow:]
		if r < 0 {
			vec.AccumN(w.sums, d.ValueDim, w.scores[i:], stride, rows*a.heads, d.ValueDim, d.Value, vals, y.vRow, n)
			return
		}
		vec.AccumN(w.sums[(r-a.rows[0])*a.heads*d.ValueDim:], d.ValueDim, scores(r)[i:], stride, a.heads, d.ValueDim, d.Value,
			vals, y.vRow, n)
	})
	for r := range rows {
		copy(row(dst, a.rows[0]+r)[a.head*d.ValueDim:][:a.heads*d.ValueDim], w.sums[r*a.heads*d.ValueDim:])
	}
}

// runs calls fn for every contiguous run of slots that a row of the tile sees, page by page: the
// row, the index of the run's first score, its page, the row in the page and the number of rows.
// Row -1 stands for all rows at once, where all see the run at the same index. Each row sees its
// runs in slot order.
func (a *tile) runs(plan *backend.KVPlan, fn func(r, i int, page []byte, at, n int)) {
	size := a.pool.layout.Page
	table := plan.Tables[plan.Seg[a.rows[0]]]
	lo, hi := int(plan.Lo[a.rows[0]]), int(plan.Hi[a.rows[0]])
	together, until := true, hi // rows that begin at the same slot, and how far all of them see
	for r := a.rows[0]; r < a.rows[1]; r++ {
		together = together && int(plan.Lo[r]) == lo
		lo, hi, until = min(lo, int(plan.Lo[r])), max(hi, int(plan.Hi[r])), min(until, int(plan.Hi[r]))
	}
	for p := lo / size; p*size < hi; p++ {
		start := p * size
		if from, end := max(lo, start), min(start+size, until); together && from < end {
			fn(-1, from-lo, a.pool.page(table[p]), from-start, end-from)
			start = end
		}
		for r := a.rows[0]; r < a.rows[1]; r++ {
			from, to := max(int(plan.Lo[r]), start), min(int(plan.Hi[r]), (p+1)*size)
			if from < to {
				fn(r, from-int(plan.Lo[r]), a.pool.page(table[p]), from-p*size, to-from)
			}
		}
	}
	if plan.Extra == nil {
		return
	}
	for r := a.rows[0]; r < a.rows[1]; r++ {
		for i, s := range plan.Extra[r] {
			fn(r, int(plan.Hi[r]-plan.Lo[r])+i, a.pool.page(table[int(s)/size]), int(s)%size, 1)
		}
	}
}

// softmaxSink is softmax with one more logit that takes weight but has no value.
func softmaxSink(x []float32, sink float32) {
	m := sink
	for _, v := range x {
		m = max(m, v)
	}
	sum := math.Exp(float64(sink - m))
	for i, v := range x {
		e := math.Exp(float64(v - m))
		x[i] = float32(e)
		sum += e
	}
	vec.Scale(x, x, float32(1/sum))
}
