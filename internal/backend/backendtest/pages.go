package backendtest

import (
	"fmt"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

func pageCases(o Options) []testCase {
	list := []testCase{{"KVPool Alloc and Free", func(s *suite) { pageNumbers(s) }}}
	for i, t := range o.KV {
		pair := [2]quant.Type{t, o.KV[(i+1)%len(o.KV)]} // of different types where there are several
		add := func(name string, run func(s *suite, types [2]quant.Type)) {
			list = append(list, testCase{fmt.Sprintf("%s, %v and %v", name, pair[0], pair[1]), func(s *suite) { run(s, pair) }})
		}
		add("Attention of a path through a tree", treePath)
		add("Attention of layers with different types", mixedLayers)
		add("KVPool Move", movedRows)
		add("KVPool Copy", copiedPage)
		add("KVPool ReadPage and WritePage", storedPage)
	}
	return list
}

func pageNumbers(s *suite) {
	k := s.device()
	pool := k.book([2]quant.Type{s.KV[0], s.KV[0]}, 0).pool
	if pool.Used() != 0 || pool.PageBytes() <= 0 {
		s.Errorf("a new pool uses %d pages of %d bytes", pool.Used(), pool.PageBytes())
	}
	seen := map[int32]bool{}
	for range 9 {
		p, err := pool.Alloc()
		k.check(err)
		if p < 0 || seen[p] {
			s.Fatalf("page %d was given twice", p)
		}
		seen[p] = true
	}
	for p := range seen {
		pool.Free(p)
		delete(seen, p)
		if len(seen) == 4 {
			break
		}
	}
	if pool.Used() != 4 {
		s.Errorf("%d pages in use, want 4", pool.Used())
	}
	for range 3 {
		p, err := pool.Alloc()
		k.check(err)
		if seen[p] {
			s.Fatalf("page %d was given while it is in use", p)
		}
		seen[p] = true
	}
}

// book is pages with rows whose contents are known by number: content[p*pageTokens+i] is the number of row i of page p.
type book struct {
	k       *kit
	pool    backend.KVPool
	layers  []backend.KVDims
	pages   []int32
	content []int
}

// book makes pages with rows numbered in order, of two layers.
func (k *kit) book(types [2]quant.Type, pages int) *book {
	k.Helper()
	dim := max(64, types[0].BlockLen(), types[1].BlockLen())
	layers := []backend.KVDims{
		{Heads: 2, KeyDim: dim, ValueDim: dim, Key: types[0], Value: types[1]},
		{Heads: 1, KeyDim: 128, ValueDim: 128, Key: types[1], Value: types[0]},
	}
	for i := range layers {
		if d := &layers[i]; !slices.Contains(k.Heads, d.KeyDim) {
			d.KeyDim, d.ValueDim = k.Heads[0], k.Heads[0]
		}
	}
	return k.bookOf(layers, pages)
}

func (k *kit) bookOf(layers []backend.KVDims, pages int) *book {
	k.Helper()
	b := &book{k: k, layers: layers}
	pool, err := k.NewKVPool(backend.KVLayout{Page: pageTokens, Layers: b.layers})
	k.check(err)
	b.pool = pool
	content := make([]int, pages*pageTokens)
	for i := range content {
		content[i] = i
	}
	for range pages {
		p, err := pool.Alloc()
		k.check(err)
		b.pages = append(b.pages, p)
	}
	if pages > 0 {
		b.write(content)
	}
	return b
}

// plan is a step over all slots of the book; row r sees its slot and the next one.
func (b *book) plan() *backend.Plan {
	p := backend.KVPlan{Pool: b.pool, Tables: [][]int32{b.pages}}
	n := len(b.pages) * pageTokens
	for s := range n {
		p.Seg, p.Slot = append(p.Seg, 0), append(p.Slot, int32(s))
		p.Lo, p.Hi = append(p.Lo, int32(s)), append(p.Hi, int32(min(s+2, n)))
	}
	return &backend.Plan{KV: []backend.KVPlan{p}}
}

// write gives every slot the row of a number.
func (b *book) write(content []int) {
	b.content = slices.Clone(content)
	var areas []*area
	for l, d := range b.layers {
		for i, n := range []int{d.Heads * d.KeyDim, d.Heads * d.ValueDim} {
			rows := make([][]float32, len(content))
			for s, c := range content {
				rows[s] = values(fmt.Sprint("page ", l, i), c, n)
			}
			areas = append(areas, b.k.input(rows))
		}
	}
	b.k.BeginStep(b.plan())
	for l := range b.layers {
		b.k.KVWrite(0, l, areas[2*l].Tensor, areas[2*l+1].Tensor)
	}
	b.k.EndStep()
	b.k.finish()
}

// read shows the pages through attention over pairs of neighbouring slots.
func (b *book) read() [][]float32 {
	k := b.k
	var all [][]float32
	for l, d := range b.layers {
		n := len(b.pages) * pageTokens
		rows := make([][]float32, n)
		for s := range rows {
			rows[s] = values(fmt.Sprint("query ", l), s, d.Heads*d.KeyDim)
		}
		q, dst := k.input(rows), k.place(n, d.Heads*d.ValueDim)
		k.BeginStep(b.plan())
		k.Attention(dst.Tensor, q.Tensor, 0, l, backend.AttnParams{Heads: d.Heads, KVHeads: d.Heads, Scale: 0.3})
		k.EndStep()
		all = append(all, k.finish(dst)[0]...)
	}
	return all
}

// mixedLayers: layers of one pool that differ in nothing but their types, in one step and each in its own.
func mixedLayers(s *suite, types [2]quant.Type) {
	k, n := s.device(), 2*pageTokens
	dim := max(k.Heads[0], types[0].BlockLen(), types[1].BlockLen())
	var layers []backend.KVDims
	for _, t := range [][2]quant.Type{types, {types[1], types[0]}, {types[1], types[1]}} {
		layers = append(layers, backend.KVDims{Heads: 1, KeyDim: dim, ValueDim: dim, Key: t[0], Value: t[1]})
	}
	b := k.bookOf(layers, 2)
	want := b.read()
	var outs []*area
	var run []func()
	for l, d := range b.layers {
		rows := make([][]float32, n)
		for s := range rows {
			rows[s] = values(fmt.Sprint("query ", l), s, d.Heads*d.KeyDim)
		}
		q, dst := k.input(rows), k.place(n, d.Heads*d.ValueDim)
		outs = append(outs, dst)
		run = append(run, func() {
			k.Attention(dst.Tensor, q.Tensor, 0, l, backend.AttnParams{Heads: d.Heads, KVHeads: d.Heads, Scale: 0.3})
		})
	}
	k.BeginStep(b.plan())
	for _, f := range run {
		f()
	}
	k.EndStep()
	k.equal("layers in one step", slices.Concat(k.finish(outs...)...), want)
}

// shows fails when the pages do not hold the rows of the given numbers: pages of a fresh device do.
func (b *book) shows(what string, types [2]quant.Type, content []int) {
	b.k.Helper()
	fresh := b.k.device().book(types, len(b.pages))
	fresh.write(content)
	b.k.equal(what, b.read(), fresh.read())
}

// move says that the row at one slot becomes that at another.
func (b *book) move(to, from int) backend.RowMove {
	return backend.RowMove{
		To: b.pages[to/pageTokens], Dst: to % pageTokens, From: b.pages[from/pageTokens], Src: from % pageTokens,
	}
}

// movedRows: in the given order, so that a row may move to where another one has just left.
func movedRows(s *suite, types [2]quant.Type) {
	b := s.device().book(types, 3)
	content := slices.Clone(b.content)
	var moves []backend.RowMove
	for _, m := range [][2]int{
		{0, 3}, {1, 5}, {2, 3}, {3, 0}, {62, 66}, {63, 67}, {64, 127}, {65, 64}, {128, 63}, {129, 128}, {191, 2}, {191, 191},
	} {
		moves = append(moves, b.move(m[0], m[1]))
		content[m[0]] = content[m[1]]
	}
	b.pool.Move(moves)
	b.shows("after Move", types, content)
	b.pool.Move(nil)
	b.shows("after Move of nothing", types, content)
}

func copiedPage(s *suite, types [2]quant.Type) {
	b := s.device().book(types, 3)
	b.pool.Copy(b.pages[2], b.pages[0])
	content := slices.Clone(b.content)
	copy(content[2*pageTokens:], content[:pageTokens])
	b.shows("after Copy", types, content)
}

// storedPage: the bytes of a page bring it back in another page of another pool of the same kind.
func storedPage(s *suite, types [2]quant.Type) {
	b := s.device().book(types, 2)
	other := b.k.book(types, 3)
	raw := make([]byte, b.pool.PageBytes())
	b.pool.ReadPage(b.pages[1], raw)
	other.pool.WritePage(other.pages[2], slices.Clone(raw))
	content := slices.Clone(other.content)
	copy(content[2*pageTokens:], b.content[pageTokens:])
	clear(raw)
	other.shows("after WritePage", types, content)
	b.shows("after ReadPage", types, b.content)
}

// treePath: a row at the end of a path through a tree sees what it sees when the path has become a chain, with the same
// bits.
func treePath(s *suite, types [2]quant.Type) {
	b := s.device().book(types, 2)
	const n = 62 // committed; the tree goes over the border of the page
	path := []int32{0, 2, 5, 6}
	for _, window := range []int{0, 40, 3, 1} {
		lo := 0
		if window > 0 {
			lo = n + len(path) - window
		}
		tree := backend.KVPlan{Seg: []int32{0}, Slot: []int32{n + path[3]}}
		tree.Lo, tree.Hi = []int32{int32(lo)}, []int32{int32(max(lo, n))}
		var extra []int32
		for depth, r := range path {
			if n+depth >= lo {
				extra = append(extra, n+r)
			}
		}
		tree.Extra = [][]int32{extra}
		before := b.see(tree)
		var moves []backend.RowMove
		for to, from := range path {
			moves = append(moves, b.move(n+to, int(n+from)))
		}
		b.pool.Move(moves)
		end := int32(n + len(path))
		chain := backend.KVPlan{Seg: []int32{0}, Slot: []int32{end - 1}, Lo: tree.Lo, Hi: []int32{end}}
		b.k.equal(fmt.Sprint("window ", window), b.see(chain), before)
		b.write(b.content)
	}
}

// see is what one row sees of every layer.
func (b *book) see(p backend.KVPlan) [][]float32 {
	p.Pool, p.Tables = b.pool, [][]int32{b.pages}
	var out [][]float32
	for l, d := range b.layers {
		q, dst := b.k.input([][]float32{values("query", l, d.Heads*d.KeyDim)}), b.k.place(1, d.Heads*d.ValueDim)
		b.k.BeginStep(&backend.Plan{KV: []backend.KVPlan{p}})
		b.k.Attention(dst.Tensor, q.Tensor, 0, l, backend.AttnParams{Heads: d.Heads, KVHeads: d.Heads, Scale: 0.3})
		b.k.EndStep()
		out = append(out, b.k.finish(dst)[0]...)
	}
	return out
}
