package cpu

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"strobe/backend"
	"strobe/backend/cpu/kernel/vec"
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
		if bl := l.Type.BlockLen(); d.KeyDim%bl != 0 || d.ValueDim%bl != 0 {
			return nil, fmt.Errorf("cache type %s needs head sizes that are multiples of %d; layer %d has %d and %d",
				l.Type, bl, i, d.KeyDim, d.ValueDim)
		}
		y := kvLayer{kRow: l.Type.RowBytes(d.KeyDim), vRow: l.Type.RowBytes(d.ValueDim)}
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

func (p *kvPool) CopyRow(dst int32, dstRow int, src int32, srcRow int) {
	d, s := p.page(dst), p.page(src)
	for i, y := range p.layers {
		for h := range p.layout.Layers[i].Heads {
			k, v := y.kOff+h*y.kHead, y.vOff+h*y.vHead
			copy(d[k+dstRow*y.kRow:][:y.kRow], s[k+srcRow*y.kRow:])
			copy(d[v+dstRow*y.vRow:][:y.vRow], s[v+srcRow*y.vRow:])
		}
	}
}

// KVWrite stores the keys and values of the batch at their slots.
func (b *Backend) KVWrite(pool backend.KVPool, layer int, k, v backend.Tensor, plan *backend.KVPlan) {
	p := pool.(*kvPool)
	y, d := p.layers[layer], p.layout.Layers[layer]
	b.rowsOf(len(plan.Slot), 4*d.Heads*(d.KeyDim+d.ValueDim), func(r int) {
		slot := int(plan.Slot[r])
		page := p.page(plan.Tables[plan.Seg[r]][slot/p.layout.Page])
		at := slot % p.layout.Page
		kr, vr := row(k, r), row(v, r)
		for h := range d.Heads {
			vec.Store(p.layout.Type, page[y.kOff+h*y.kHead+at*y.kRow:][:y.kRow], kr[h*d.KeyDim:][:d.KeyDim])
			vec.Store(p.layout.Type, page[y.vOff+h*y.vHead+at*y.vRow:][:y.vRow], vr[h*d.ValueDim:][:d.ValueDim])
		}
	})
}

// Attention computes softmax(q k) v for every row and head over the slots the row sees.
// Scores are laid out in slot order and reduced in that order, whatever the batch.
func (b *Backend) Attention(dst, q backend.Tensor, pool backend.KVPool, layer int, plan *backend.KVPlan, ap backend.AttnParams) {
	p := pool.(*kvPool)
	d := p.layout.Layers[layer]
	group := ap.Heads / ap.KVHeads
	sinks := values(ap.Sinks)
	n := len(plan.Slot)
	work := 0
	for r := range n {
		work += int(plan.Hi[r]-plan.Lo[r]) + 16
	}
	do := func(w, t int) {
		r, kvh := t/ap.KVHeads, t%ap.KVHeads
		for g := range group {
			h := kvh*group + g
			a := head{
				pool: p, layer: layer, head: kvh, table: plan.Tables[plan.Seg[r]],
				lo: int(plan.Lo[r]), hi: int(plan.Hi[r]),
			}
			if plan.Extra != nil {
				a.extra = plan.Extra[r]
			}
			var sink *float32
			if sinks != nil {
				sink = &sinks[h]
			}
			out := row(dst, r)[h*d.ValueDim:][:d.ValueDim]
			b.workers[w].attend(out, row(q, r)[h*d.KeyDim:][:d.KeyDim], a, ap.Scale, sink)
		}
	}
	if work*group*ap.KVHeads*d.KeyDim < inlineMACs {
		for t := range n * ap.KVHeads {
			do(0, t)
		}
		return
	}
	b.pool.each(n*ap.KVHeads, do)
}

// head is the part of a cache that one query head sees.
type head struct {
	pool        *kvPool
	layer, head int
	table       []int32
	lo, hi      int
	extra       []int32
}

// runs calls fn for every contiguous run of visible slots: the index of its first score,
// its page, the row in the page and the number of rows.
func (a *head) runs(fn func(i int, page []byte, at, n int)) int {
	size := a.pool.layout.Page
	i := 0
	for s := a.lo; s < a.hi; {
		n := min(a.hi-s, size-s%size)
		fn(i, a.pool.page(a.table[s/size]), s%size, n)
		s, i = s+n, i+n
	}
	for _, s := range a.extra {
		fn(i, a.pool.page(a.table[int(s)/size]), int(s)%size, 1)
		i++
	}
	return i
}

func (w *worker) attend(out, q []float32, a head, scale float32, sink *float32) {
	y := a.pool.layers[a.layer]
	typ := a.pool.layout.Type
	n := a.hi - a.lo + len(a.extra)
	if cap(w.scores) < n {
		w.scores = make([]float32, n+n/2+256)
	}
	sc := w.scores[:n]
	a.runs(func(i int, page []byte, at, n int) {
		vec.Scores(sc[i:i+n], q, typ, page[y.kOff+a.head*y.kHead+at*y.kRow:], y.kRow, n, scale)
	})
	if sink == nil {
		vec.Softmax(sc)
	} else {
		softmaxSink(sc, *sink)
	}
	clear(out)
	a.runs(func(i int, page []byte, at, n int) {
		vec.Accum(out, sc[i:i+n], typ, page[y.vOff+a.head*y.vHead+at*y.vRow:], y.vRow, n)
	})
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
