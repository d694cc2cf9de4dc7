package backendtest

import (
	"fmt"
	"math"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// pageTokens is the size of a page, as package cache has it.
const pageTokens = 64

// view is a sequence and the rows that a pass adds to it.
type view struct {
	n       int // committed tokens
	rows    int
	parents []int32 // of a tree
	window  int     // tokens a row sees, itself included; 0 for all
	block   bool    // rows see each other in both directions
	fork    bool    // shares its full pages with the sequence before it
}

// attended are views of every kind: borders of pages, windows, trees, blocks, forks.
var attended = []view{
	{n: 0, rows: 1},
	{n: 0, rows: 3},
	{n: 63, rows: 1},
	{n: 64, rows: 1},
	{n: 65, rows: 2},
	{n: 62, rows: 5}, // over the border
	{n: 130, rows: 3, window: 40},
	{n: 100, rows: 6, parents: []int32{-1, 0, 0, 1, 2, -1}},
	{n: 127, rows: 5, parents: []int32{-1, 0, 1, 2, 1}, window: 3}, // a window that ends inside the tree
	{n: 70, rows: 4, block: true},
	{n: 90, rows: 2, fork: true},
	{n: 200, rows: 3, block: true, window: 66},
	{n: 300, rows: 1},
	{n: 40, rows: 33},
	{n: 5, rows: 4, window: 1}, // only itself
	{n: 515, rows: 1, window: 512},
}

// plan says what row r of the pass sees, by the rules of package cache: slots [lo, hi) and more of them behind hi.
func (v *view) plan(r int) (lo, hi int, extra []int32) {
	depth := r
	if v.parents != nil {
		depth = 0
		for a := v.parents[r]; a >= 0; a = v.parents[a] {
			depth++
		}
	}
	pos := v.n + depth
	hi = pos + 1
	if v.window > 0 {
		lo = max(0, pos+1-v.window)
	}
	if v.block {
		hi = v.n + v.rows
	}
	if v.parents != nil {
		hi = max(lo, v.n)
		at := depth
		for a := int32(r); a >= 0; a = v.parents[a] {
			if v.n+at >= lo {
				extra = append([]int32{int32(v.n) + a}, extra...)
			}
			at--
		}
	}
	return lo, hi, extra
}

// first is the first slot that any row of the pass sees.
func (v *view) first() int {
	lo, _, _ := v.plan(0)
	return lo
}

// attention is a layer of the cache and how it is used.
type attention struct {
	heads int
	dims  backend.KVDims
	sinks bool
}

func (a attention) String() string {
	d := a.dims
	s := fmt.Sprintf("%d/%d heads of %d and %d in %v and %v", a.heads, d.Heads, d.KeyDim, d.ValueDim, d.Key, d.Value)
	if a.sinks {
		s += " with sinks"
	}
	return s
}

func attentionCases(o Options) []testCase {
	var list []testCase
	add := func(a attention) {
		if slices.Contains(o.Heads, a.dims.KeyDim) && slices.Contains(o.Heads, a.dims.ValueDim) {
			list = append(list, testCase{"Attention " + a.String(), func(s *suite) { attend(s, a) }})
		}
	}
	kv := func(i int) quant.Type { return o.KV[i%len(o.KV)] }
	// Operations know keys and values apart, so every type for both and one other pair for each will do.
	for i, key := range o.KV {
		for j, value := range []quant.Type{key, kv(i + 1)} {
			dim := max(64, key.BlockLen(), value.BlockLen())
			add(attention{4, backend.KVDims{Heads: 2, KeyDim: dim, ValueDim: dim, Key: key, Value: value}, (i+j)%2 == 1})
		}
	}
	for i, z := range [][4]int{
		{3, 3, 32, 32}, {6, 1, 128, 128}, {4, 2, 256, 256}, {4, 1, 512, 512}, {8, 2, 96, 64}, {5, 5, 64, 128},
	} {
		n := i + 1
		for z[2]%kv(n).BlockLen() != 0 || z[3]%kv(n).BlockLen() != 0 {
			n++
		}
		add(attention{z[0], backend.KVDims{Heads: z[1], KeyDim: z[2], ValueDim: z[3], Key: kv(n), Value: kv(n)}, false})
	}
	return list
}

// sequences are views in the pages of a pool that has a layer in front of the one under test.
type sequences struct {
	k      *kit
	a      attention
	pool   backend.KVPool
	tables [][]int32
	views  []view
	keep   bool // never poison keys and values
	cached map[[2]int][2][]float64
}

// testLayer is the layer under test; another one lies before it.
const testLayer = 1

// sequences makes the pages of the views: NaN wherever nothing was written, then the committed keys and values that a
// row may see.
func (k *kit) sequences(a attention, views []view) *sequences {
	k.Helper()
	other := a.dims
	other.Heads = 3
	pool, err := k.NewKVPool(backend.KVLayout{Page: pageTokens, Layers: []backend.KVDims{other, a.dims}})
	k.check(err)
	q := &sequences{k: k, a: a, pool: pool, views: views, cached: map[[2]int][2][]float64{}}
	for i, v := range views {
		pages := (v.n + v.rows + pageTokens - 1) / pageTokens
		table := make([]int32, pages)
		for p := range table {
			at := len(table) - 1 - p // pages do not come in order
			if v.fork && at < v.n/pageTokens {
				table[at] = q.tables[i-1][at]
				continue
			}
			table[at], err = pool.Alloc()
			k.check(err)
		}
		q.tables = append(q.tables, table)
		q.stale(i, v)
		var slots []int
		for s := v.first(); s < v.n; s++ {
			if !v.fork || s >= v.n/pageTokens*pageTokens {
				slots = append(slots, s)
			}
		}
		q.write([]int{i}, func(int) []int { return slots })
		for p := range v.first() / pageTokens {
			pool.Free(table[p])
			table[p] = -1 // as package cache drops pages that left the window
		}
	}
	return q
}

// stale fills the pages of a sequence that are its own with NaN.
func (q *sequences) stale(i int, v view) {
	var slots []int
	for s := range len(q.tables[i]) * pageTokens {
		if !v.fork || s >= v.n/pageTokens*pageTokens {
			slots = append(slots, s)
		}
	}
	d := q.a.dims
	bad := func(n int) [][]float32 {
		rows := make([][]float32, len(slots))
		for r := range rows {
			rows[r] = slices.Repeat([]float32{float32(math.NaN())}, n)
		}
		return rows
	}
	kt, vt := q.k.input(bad(d.Heads*d.KeyDim)), q.k.input(bad(d.Heads*d.ValueDim))
	q.step([]int{i}, func(int) []int { return slots }, func() { q.k.KVWrite(1, testLayer, kt.Tensor, vt.Tensor) })
	q.k.finish()
}

// owner is the sequence whose key and value is at a slot: a fork sees those of the sequence before it.
func (q *sequences) owner(i, slot int) int {
	if v := q.views[i]; v.fork && slot < v.n/pageTokens*pageTokens {
		return i - 1
	}
	return i
}

// key and value of a slot, as they are written. Those of the first row of a pass are poisoned with its query.
func (q *sequences) key(i, slot int) []float32 {
	return q.poisoned(i, slot, values(fmt.Sprint("key ", q.owner(i, slot)), slot, q.a.dims.Heads*q.a.dims.KeyDim))
}

func (q *sequences) value(i, slot int) []float32 {
	return q.poisoned(i, slot, values(fmt.Sprint("value ", q.owner(i, slot)), slot, q.a.dims.Heads*q.a.dims.ValueDim))
}

func (q *sequences) poisoned(i, slot int, v []float32) []float32 {
	if p, ok := q.k.poison[i]; ok && slot == q.views[i].n && !q.keep {
		v[0] = p
	}
	return v
}

// step runs do in a step whose rows write the given slots of some sequences and see what the views say.
func (q *sequences) step(items []int, slots func(item int) []int, do func()) {
	p := backend.KVPlan{Pool: q.pool}
	trees := false
	for si, i := range items {
		v := &q.views[i]
		p.Tables = append(p.Tables, q.tables[i])
		for _, s := range slots(i) {
			lo, hi, extra := 0, 0, []int32(nil)
			if r := s - v.n; r >= 0 && r < v.rows {
				lo, hi, extra = v.plan(r)
			}
			trees = trees || extra != nil
			p.Seg, p.Slot = append(p.Seg, int32(si)), append(p.Slot, int32(s))
			p.Lo, p.Hi, p.Extra = append(p.Lo, int32(lo)), append(p.Hi, int32(hi)), append(p.Extra, extra)
		}
	}
	if !trees {
		p.Extra = nil
	}
	decoy := p // another group of layers, whose rows see something else
	decoy.Lo, decoy.Hi, decoy.Extra = make([]int32, len(p.Lo)), p.Lo, nil
	q.k.BeginStep(&backend.Plan{KV: []backend.KVPlan{decoy, p}})
	do()
	q.k.EndStep()
}

// write stores the keys and values of some slots.
func (q *sequences) write(items []int, slots func(item int) []int) {
	var keys, vals [][]float32
	for _, i := range items {
		for _, s := range slots(i) {
			keys, vals = append(keys, q.key(i, s)), append(vals, q.value(i, s))
		}
	}
	if len(keys) == 0 {
		return
	}
	k := q.k
	kt, vt := k.input(keys), k.input(vals)
	q.step(items, slots, func() { k.KVWrite(1, testLayer, kt.Tensor, vt.Tensor) })
	k.finish()
}

// params are those of the attention operation.
func (q *sequences) params() backend.AttnParams {
	p := backend.AttnParams{Heads: q.a.heads, KVHeads: q.a.dims.Heads, Scale: q.scale()}
	if q.a.sinks {
		p.Sinks = q.k.vector(values("sinks", 0, q.a.heads))
	}
	return p
}

func (q *sequences) scale() float32 { return float32(2 / math.Sqrt(float64(q.a.dims.KeyDim))) }

// attend: an item is a sequence with all rows of its pass.
func attend(s *suite, a attention) {
	k := s.device()
	q := k.sequences(a, attended)
	d := a.dims
	query := func(k *kit, item, row int) []float32 {
		name := "x"
		if row > 0 {
			name = fmt.Sprint("query ", row)
		}
		return k.row(name, item, a.heads*d.KeyDim)
	}
	// attend runs a step over the given rows of some sequences, which writes their keys and values first if asked to.
	attend := func(k *kit, items []int, rows func(item int) []int, write bool) [][]float32 {
		var qs, keys, vals [][]float32
		for _, i := range items {
			for _, slot := range rows(i) {
				qs = append(qs, query(k, i, slot-attended[i].n))
				keys, vals = append(keys, q.key(i, slot)), append(vals, q.value(i, slot))
			}
		}
		kt, vt, qt, dst := k.input(keys), k.input(vals), k.input(qs), k.place(len(qs), a.heads*d.ValueDim)
		p := q.params()
		q.step(items, rows, func() {
			if write {
				k.KVWrite(1, testLayer, kt.Tensor, vt.Tensor)
			}
			k.Attention(dst.Tensor, qt.Tensor, 1, testLayer, p)
		})
		return k.finish(dst)[0]
	}
	k.obey(op{
		items: len(attended), bound: s.Attention(d.Key, d.Value),
		run: func(k *kit, items []int, _ int) [][]float32 {
			return grouped(attend(k, items, q.pass, true), items, func(i int) int { return attended[i].rows })
		},
		want: func(k *kit, i int) []float64 {
			var out []float64
			for r := range attended[i].rows {
				out = append(out, q.attended(i, r, wide(query(k, i, r)), func(int, int) bool { return true })...)
			}
			return out
		},
	})
	// A row of a sequence has the same bits without the other rows of its pass, and beside a query with NaN.
	q.keep = true
	for i, v := range attended {
		whole := attend(k, []int{i}, q.pass, true)
		k.poison = map[int]float32{i: float32(math.NaN())}
		beside := attend(k, []int{i}, q.pass, true)
		k.poison = nil
		k.equal(fmt.Sprintf("rows of sequence %d beside a NaN", i), beside[1:], whole[1:])
		for r := 0; r < v.rows; r += 1 + v.rows/8 {
			alone := attend(k, []int{i}, func(int) []int { return []int{v.n + r} }, false)
			k.equal(fmt.Sprintf("row %d of sequence %d alone", r, i), alone, whole[r:r+1])
		}
	}
}

// pass lists the slots of a sequence's pass.
func (q *sequences) pass(i int) []int {
	var s []int
	for r := range q.views[i].rows {
		s = append(s, q.views[i].n+r)
	}
	return s
}

// at is the key and the value of a slot as the cache keeps them.
func (q *sequences) at(i, slot int) (key, value []float64) {
	kv, ok := q.cached[[2]int{i, slot}]
	if !ok {
		d := q.a.dims
		kv = [2][]float64{
			stored(d.Key, q.key(i, slot), d.KeyDim, d.Key.RotatesKeys()),
			stored(d.Value, q.value(i, slot), d.ValueDim, d.Value.RotatesValues()),
		}
		q.cached[[2]int{i, slot}] = kv
	}
	return kv[0], kv[1]
}

// attended is a row of attention by definition, whose heads see no more slots than keep says.
func (q *sequences) attended(i, r int, query []float64, keep func(head, slot int) bool) []float64 {
	lo, hi, extra := q.views[i].plan(r)
	var slots []int
	var keys, vals [][]float64
	see := func(s int) {
		key, value := q.at(i, s)
		slots, keys, vals = append(slots, s), append(keys, key), append(vals, value)
	}
	for s := lo; s < hi; s++ {
		see(s)
	}
	for _, s := range extra {
		see(int(s))
	}
	d := q.a.dims
	var out []float64
	for h := range q.a.heads {
		shared := h / (q.a.heads / d.Heads)
		weights := make([]float64, len(keys))
		sum := 0.0
		if q.a.sinks {
			sum = math.Exp(float64(values("sinks", 0, q.a.heads)[h]))
		}
		for t, key := range keys {
			if !keep(h, slots[t]) {
				continue
			}
			dot := 0.0
			for c := range d.KeyDim {
				dot += query[h*d.KeyDim+c] * key[shared*d.KeyDim+c]
			}
			weights[t] = math.Exp(dot * float64(q.scale()))
			sum += weights[t]
		}
		for c := range d.ValueDim {
			v := 0.0
			for t := range vals {
				v += weights[t] / sum * vals[t][shared*d.ValueDim+c]
			}
			out = append(out, v)
		}
	}
	return out
}

// stored is a row of heads as the cache keeps it, rotated back.
func stored(t quant.Type, v []float32, dim int, rotated bool) (out []float64) {
	raw, back := make([]byte, t.RowBytes(dim)), make([]float32, dim)
	for h := 0; h < len(v); h += dim {
		x := slices.Clone(v[h : h+dim])
		if rotated {
			quant.Rotate(x)
		}
		quant.EncodeKV(t, raw, x)
		quant.DecodeKV(t, back, raw)
		if rotated {
			quant.Unrotate(back)
		}
		out = append(out, wide(back)...)
	}
	return out
}
