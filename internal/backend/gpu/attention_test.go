package gpu_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// world is a cache on a device and a plain copy of what it holds.
type world struct {
	*rig
	shape backend.KVDims
	heads int
	pages *gpu.Pages
	at    *gpu.Attention
	sinks []float32
	tile  func(*gpu.Tiling) // changes how work is dealt
	// unpack lets pages be unpacked once, and sparse is which blocks are seen of prompts of so many tokens.
	unpack bool
	sparse *backend.Sparse
	shares int // launches that share the work
	turn   int
}

// sequence is keys and values by slot, [KV head][dim], as the cache can hold them.
type sequence struct {
	table []int32
	k, v  [][]float32
}

const layer = 1 // of two, so that offsets matter

// older is a device without what Hopper brought.
type older struct{ gpu.Driver }

func (o older) Props() gpu.Props {
	p := o.Driver.Props()
	p.Major, p.Minor = 8, 0
	return p
}

func newWorld(t testing.TB, heads int, s backend.KVDims) *world {
	return newWorldOn(t, openDevice(t), heads, s)
}

func newWorldOn(t testing.TB, d gpu.Driver, heads int, s backend.KVDims) *world {
	w := &world{rig: &rig{t, d, rand.New(rand.NewPCG(1, uint64(heads*s.KeyDim)))}, shape: s, heads: heads}
	var err error
	w.pages, err = gpu.NewPages(w.d, backend.KVLayout{Page: 64,
		Layers: []backend.KVDims{{Heads: 1, KeyDim: 64, ValueDim: 64, Key: quant.F16, Value: quant.F16}, s}}, nil)
	w.must(err)
	w.at, err = gpu.NewAttention(w.d.Props(), heads, s)
	w.must(err)
	return w
}

// tablesOf makes the tables of a plan.
func (w *world) tablesOf(p *backend.KVPlan, t gpu.Tiling) *gpu.KVTables {
	w.t.Helper()
	var first []int32
	w.turn++
	for _, ids := range p.Tables {
		at, err := w.pages.List(ids, w.turn)
		w.must(err)
		first = append(first, at)
	}
	var tokens []int
	if w.sparse != nil {
		t.Block, tokens = w.sparse.Block, w.sparse.Tokens
	}
	k, err := gpu.NewKVTables(p, t, w.pages.Addr, first, tokens)
	w.must(err)
	return k
}

// part is the keys or the values of a head.
type part struct {
	t       quant.Type
	dim     int
	rotated bool
}

func (w *world) keys() part { return part{w.shape.Key, w.shape.KeyDim, w.shape.Key.RotatesKeys()} }
func (w *world) values() part {
	return part{w.shape.Value, w.shape.ValueDim, w.shape.Value.RotatesValues()}
}

// row is a row of one head as package quant stores it.
func (p part) row(x []float32) []byte {
	x, b := slices.Clone(x), make([]byte, p.t.RowBytes(len(x)))
	if p.rotated {
		quant.Rotate(x)
	}
	quant.EncodeKV(p.t, b, x)
	return b
}

// stored rounds the heads of a row to what the type can hold.
func (p part) stored(x []float32) []float32 {
	var all []float32
	for h := 0; h < len(x); h += p.dim {
		y := make([]float32, p.dim)
		quant.DecodeKV(p.t, y, p.row(x[h:h+p.dim]))
		if p.rotated {
			quant.Unrotate(y)
		}
		all = append(all, y...)
	}
	return all
}

// cacheAt returns where in a page the bytes of value d of a slot lie, counted from the head's first key or value. It
// is written from the description in kv.h, not from the code that it checks. For Q8_0 the scale lies at the second
// place.
func cacheAt(t quant.Type, dim, slot, d int) (int, int) {
	switch {
	case t == quant.F32:
		return (slot*dim + d) * 4, 0
	case t == quant.F16 && dim%64 == 0:
		return d/64*8192 + slot*128 + (d%64/8^slot%8)*16 + d%8*2, 0
	case t == quant.F16:
		return (slot*dim + d) * 2, 0
	case t == quant.Q8_0:
		return slot*dim + d, 64*dim + (slot*dim+d)/32*2
	case t == quant.Q4_0:
		return slot*dim/2 + d/2, 32*dim + (slot*dim+d)/32*2
	case t == quant.Q4_1:
		return slot*dim/2 + d/2, 32*dim + (slot*dim+d)/32*4
	case t == quant.Turbo4:
		return slot*dim/2 + d/2, 32*dim + (slot*dim+d)/128*2
	}
	return slot*dim*3/8 + d/4, 24*dim + (slot*dim+d)/128*2
}

// highBit is where the third bit of a value of turbo3 lies.
func highBit(dim, slot, d int) int { return slot*dim*3/8 + dim/4 + d/8 }

// encode puts a row of one head into a page's bytes.
func (p part) encode(b []byte, slot int, x []float32) {
	row := p.row(x)
	for d := range x {
		at, scale := cacheAt(p.t, len(x), slot, d)
		nibble := func(v byte) { b[at] = b[at]&^(15<<(d%2*4)) | v&15<<(d%2*4) }
		switch p.t {
		case quant.F32:
			copy(b[at:at+4], row[4*d:])
		case quant.F16:
			copy(b[at:at+2], row[2*d:])
		case quant.Q8_0:
			copy(b[scale:scale+2], row[d/32*34:])
			b[at] = row[d/32*34+2+d%32]
		case quant.Q4_0:
			copy(b[scale:scale+2], row[d/32*18:])
			nibble(row[d/32*18+2+d%16] >> (d / 16 % 2 * 4))
		case quant.Q4_1:
			copy(b[scale:scale+4], row[d/32*20:])
			nibble(row[d/32*20+4+d%16] >> (d / 16 % 2 * 4))
		case quant.Turbo4:
			copy(b[scale:scale+2], row[d/128*66:])
			nibble(row[d/128*66+2+d%128/2] >> (d % 2 * 4))
		case quant.Turbo3:
			block, i, high := row[d/128*50:], d%128, highBit(len(x), slot, d)
			copy(b[scale:scale+2], block)
			b[at] = b[at]&^(3<<(d%4*2)) | block[2+i/4]>>(i%4*2)&3<<(d%4*2)
			b[high] = b[high]&^(1<<(d%8)) | block[34+i/8]>>(i%8)&1<<(d%8)
		}
	}
}

// junk is what a page may hold where nobody looks: any numbers, and for F32 not even that.
func (w *world) junk(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 2 {
		binary.LittleEndian.PutUint16(b[i:], uint16(w.r.Uint32())&0xbbff)
	}
	if w.shape.Key == quant.F32 && w.shape.Value == quant.F32 {
		for i := range b {
			b[i] = 0xff
		}
	}
	return b
}

// sequence makes a sequence of so many slots with room for more, its pages scattered over the pool.
func (w *world) sequence(slots, room int) *sequence {
	s := &sequence{}
	for range slots {
		s.k = append(s.k, w.normal(w.shape.Heads*w.shape.KeyDim, 1))
		s.v = append(s.v, w.normal(w.shape.Heads*w.shape.ValueDim, 1))
	}
	w.place(s, slots+room)
	return s
}

func (w *world) place(s *sequence, room int) {
	var ids []int32
	for range (room+63)/64 + 2 {
		id, err := w.pages.Alloc()
		w.must(err)
		ids = append(ids, id)
	}
	w.r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	s.table = ids[:len(ids)-2]
	w.fill(s)
}

// fill writes a sequence to its pages.
func (w *world) fill(s *sequence) {
	place := w.pages.Layout.Places[layer]
	kd, vd := w.shape.KeyDim, w.shape.ValueDim
	for p, id := range s.table {
		b := w.junk(w.pages.PageBytes())
		for at := p * 64; at < min(p*64+64, len(s.k)); at++ {
			for h := range w.shape.Heads {
				head := b[int(place.Off)+h*int(place.Head):]
				w.keys().encode(head, at%64, s.k[at][h*kd:][:kd])
				w.values().encode(head[place.Values:], at%64, s.v[at][h*vd:][:vd])
			}
		}
		w.pages.WritePage(id, b)
	}
	for i := range s.k {
		s.k[i], s.v[i] = w.keys().stored(s.k[i]), w.values().stored(s.v[i])
	}
}

// rows is a segment of a batch: the last rows of a sequence, as a chain or as a tree.
type rows struct {
	s       *sequence
	n       int     // rows; the sequence has them already
	parents []int32 // tree, or nil
	window  int
}

// plan is what package cache would make of these segments.
func plan(segs []rows) *backend.KVPlan {
	p := &backend.KVPlan{}
	for i, g := range segs {
		p.Tables = append(p.Tables, g.s.table)
		first := len(g.s.k) - g.n
		depth := make([]int, g.n)
		for r := range g.n {
			depth[r] = r
			if g.parents != nil {
				depth[r] = 0
				if up := g.parents[r]; up >= 0 {
					depth[r] = depth[up] + 1
				}
			}
			pos := first + depth[r]
			lo, hi := 0, pos+1
			if g.window > 0 {
				lo = max(0, pos+1-g.window)
			}
			var extra []int32
			if g.parents != nil {
				hi = max(lo, first)
				for a := int32(r); a >= 0; a = g.parents[a] {
					if first+depth[a] >= lo {
						extra = append([]int32{int32(first) + a}, extra...)
					}
				}
			}
			p.Seg = append(p.Seg, int32(i))
			p.Slot = append(p.Slot, int32(first+r))
			p.Lo, p.Hi, p.Extra = append(p.Lo, int32(lo)), append(p.Hi, int32(hi)), append(p.Extra, extra)
		}
	}
	return p
}

// attend runs attention for the segments; q has a row for every row of the batch.
func (w *world) attend(segs []rows, q [][]float32) [][]float32 {
	w.t.Helper()
	return w.attendPlan(plan(segs), q)
}

func (w *world) attendPlan(p *backend.KVPlan, q [][]float32) [][]float32 {
	w.t.Helper()
	longest, run := 0, 0
	for r := range p.Seg {
		if r > 0 && p.Seg[r] != p.Seg[r-1] {
			run = 0
		}
		run++
		longest = max(longest, run)
	}
	at := w.at
	if w.unpack {
		at = at.Halves()
	}
	if w.sparse != nil {
		at, longest = at.Sparsely()
	}
	tiling := at.Tiling(longest)
	if w.tile != nil {
		w.tile(&tiling)
	}
	k := w.tablesOf(p, tiling)
	room := k.Room()
	block := make([]byte, room.Bytes())
	k.Put(block, room)
	n, kd, vd := len(q), w.heads*w.shape.KeyDim, w.heads*w.shape.ValueDim
	alloc := func(bytes int) gpu.Addr {
		a, err := w.d.Alloc(bytes)
		w.must(err)
		w.d.Fill(a, 0xff, bytes)
		return a
	}
	bp, qp, op, kp := alloc(len(block)), alloc(n*(kd+8)*4), alloc(n*(vd+4)*4), gpu.Addr(0)
	sp := alloc(max(16, w.at.ScratchBytes(k.Partials)))
	w.d.Upload(bp, block)
	for i, x := range q {
		w.d.Upload(qp+gpu.Addr(i*(kd+8)*4), rawBytes(x))
	}
	if w.sinks != nil {
		kp = alloc(4 * len(w.sinks))
		w.d.Upload(kp, rawBytes(w.sinks))
	}
	c := gpu.AttnCall{Q: qp, QStride: kd + 8, Out: op, OStride: vd + 4, Rows: n, Longest: longest,
		Tables: room.At(bp), Merge: k.Partials > 0, Scratch: sp, Partials: k.Partials, Sinks: kp,
		Shares: w.shares, Place: w.pages.Layout.Places[layer], Scale: float32(1 / math.Sqrt(float64(w.shape.KeyDim)))}
	c.Tables.Pages, c.Entries = w.pages.Table()
	c.Rotated = alloc(4 * n * kd)
	used := []gpu.Addr{bp, qp, op, sp, kp, c.Rotated}
	if w.unpack {
		c.Unpack = alloc(w.at.UnpackBytes(k.Pages, c.Entries))
		used = append(used, c.Unpack)
	}
	if s := w.sparse; s != nil {
		c.Sparse = &gpu.SparseCall{Block: s.Block, Sink: s.Sink, Window: s.Window, Last: s.Last, Alpha: s.Alpha, Keys: k.Keys,
			Words: (k.Longest + 63) / 64, Queries: room.Queries}
		c.Sparse.Scratch = alloc(w.at.SparseBytes(c.Sparse))
		used = append(used, c.Sparse.Scratch)
	}
	for _, l := range emitted(w.t, w.d, w.at.Launches(nil, c)) {
		w.d.Launch(&l)
	}
	out := make([][]float32, n)
	for i := range out {
		b := make([]byte, vd*4)
		w.must(w.d.Download(b, op+gpu.Addr(i*(vd+4)*4)))
		out[i] = floats(b)
	}
	w.must(w.d.Wait())
	for _, a := range used {
		w.d.Release(a)
	}
	return out
}

func floats(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// reference is attention in float64.
func (w *world) reference(segs []rows, q [][]float32) [][]float64 {
	p := plan(segs)
	kd, vd, group := w.shape.KeyDim, w.shape.ValueDim, w.heads/w.shape.Heads
	out := make([][]float64, len(q))
	for r := range q {
		s := segs[p.Seg[r]].s
		var seen []int32
		for i := p.Lo[r]; i < p.Hi[r]; i++ {
			seen = append(seen, i)
		}
		seen = append(seen, p.Extra[r]...)
		out[r] = make([]float64, w.heads*vd)
		for h := range w.heads {
			score, top := make([]float64, len(seen)), math.Inf(-1)
			if w.sinks != nil {
				top = float64(w.sinks[h])
			}
			for i, at := range seen {
				for d := range kd {
					score[i] += float64(q[r][h*kd+d]) * float64(s.k[at][h/group*kd+d])
				}
				score[i] /= math.Sqrt(float64(kd))
				top = max(top, score[i])
			}
			sum := 0.0
			if w.sinks != nil {
				sum = math.Exp(float64(w.sinks[h]) - top)
			}
			for i := range seen {
				score[i] = math.Exp(score[i] - top)
				sum += score[i]
			}
			for i, at := range seen {
				for d := range vd {
					out[r][h*vd+d] += score[i] / sum * float64(s.v[at][h/group*vd+d])
				}
			}
		}
	}
	return out
}

// tolerance is the relative error that the types allow: halves round queries, weights and what is made from Q8_0.
func (w *world) tolerance() float64 {
	s := w.shape
	plain := func(t quant.Type) bool { return !t.Quantized() || t == quant.Q8_0 }
	switch {
	case plain(s.Key) && plain(s.Value) &&
		(s.Key == quant.F32 || s.Value == quant.F32 || s.KeyDim != s.ValueDim || s.KeyDim < 64):
		return 2e-6
	case !plain(s.Key):
		return 2e-3 // small numbers of codebooks, rounded to halves
	}
	return 1e-3
}

func (w *world) queries(segs []rows) [][]float32 {
	var q [][]float32
	for _, s := range segs {
		for range s.n {
			q = append(q, w.normal(w.heads*w.shape.KeyDim, 1))
		}
	}
	return q
}

// check compares a batch with the reference, and dealt to blocks in two other ways.
func (w *world) check(what string, segs []rows, q [][]float32) [][]float32 {
	w.t.Helper()
	got, want := w.attend(segs, q), w.reference(segs, q)
	for r := range got {
		var e, n float64
		for i, x := range got[r] {
			e += (float64(x) - want[r][i]) * (float64(x) - want[r][i])
			n += want[r][i] * want[r][i]
		}
		if e = math.Sqrt(e / n); !(e < w.tolerance()) {
			w.t.Fatalf("%s: row %d is off by %.2e", what, r, e)
		}
	}
	for name, tile := range map[string]func(*gpu.Tiling){
		"a block per split": func(t *gpu.Tiling) { t.Blocks = 1 << 20 },
		"a block per row":   func(t *gpu.Tiling) { t.Blocks = 0 },
		"no room":           func(t *gpu.Tiling) { t.Blocks, t.Partials = 1<<20, 3 },
	} {
		w.tile = tile
		same(w.t, what+", "+name, w.attend(segs, q), got)
		w.tile = nil
	}
	if w.at.Halves() != nil {
		w.unpack = true
		same(w.t, what+", unpacked once", w.attend(segs, q), got)
		w.unpack = false
	}
	return got
}

func same(t testing.TB, what string, got, want [][]float32) {
	t.Helper()
	for r := range want {
		for i := range want[r] {
			if math.Float32bits(got[r][i]) != math.Float32bits(want[r][i]) {
				t.Fatalf("%s: row %d, value %d: %x, want the bits %x", what, r, i,
					math.Float32bits(got[r][i]), math.Float32bits(want[r][i]))
			}
		}
	}
}

// alone runs every row of a chain or tree by itself: as the last row of a sequence that is its path and nothing else.
func (w *world) alone(what string, g rows, q, want [][]float32) {
	w.t.Helper()
	first := len(g.s.k) - g.n
	for r := range g.n {
		var path []int
		for a := r; a >= 0; {
			path = append(path, first+a)
			if g.parents == nil {
				a--
			} else {
				a = int(g.parents[a])
			}
		}
		slices.Reverse(path)
		s := &sequence{k: slices.Clone(g.s.k[:first]), v: slices.Clone(g.s.v[:first])}
		for _, at := range path {
			s.k, s.v = append(s.k, g.s.k[at]), append(s.v, g.s.v[at])
		}
		w.place(s, len(s.k))
		got := w.attend([]rows{{s: s, n: 1, window: g.window}}, q[r:r+1])
		same(w.t, fmt.Sprintf("%s, row %d alone", what, r), got, want[r:r+1])
		for _, id := range s.table {
			w.pages.Free(id)
		}
	}
}

func tree(r *rand.Rand, n int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32(r.IntN(i+1)) - 1
		if i > 2 && r.IntN(2) == 0 {
			p[i] = int32(i) - 1
		}
	}
	return p
}

var (
	f16  = quant.F16
	f32  = quant.F32
	q8   = quant.Q8_0
	q40  = quant.Q4_0
	q41  = quant.Q4_1
	t3   = quant.Turbo3
	t4   = quant.Turbo4
	kind = []struct {
		heads int
		s     backend.KVDims
	}{
		{12, backend.KVDims{Heads: 2, KeyDim: 64, ValueDim: 64, Key: f16, Value: f16}},
		{4, backend.KVDims{Heads: 1, KeyDim: 128, ValueDim: 128, Key: f16, Value: f16}},
		{6, backend.KVDims{Heads: 1, KeyDim: 256, ValueDim: 256, Key: f16, Value: f16}},
		{2, backend.KVDims{Heads: 1, KeyDim: 512, ValueDim: 512, Key: f16, Value: f16}},
		{4, backend.KVDims{Heads: 2, KeyDim: 64, ValueDim: 64, Key: q8, Value: q8}},
		{2, backend.KVDims{Heads: 1, KeyDim: 512, ValueDim: 512, Key: q8, Value: q8}},
		{4, backend.KVDims{Heads: 1, KeyDim: 128, ValueDim: 128, Key: f16, Value: q8}},
		{4, backend.KVDims{Heads: 1, KeyDim: 256, ValueDim: 256, Key: q8, Value: f16}},
		{4, backend.KVDims{Heads: 2, KeyDim: 16, ValueDim: 16, Key: f32, Value: f32}},
		{4, backend.KVDims{Heads: 2, KeyDim: 32, ValueDim: 32, Key: f16, Value: f16}},
		{4, backend.KVDims{Heads: 2, KeyDim: 32, ValueDim: 32, Key: q8, Value: q8}},
		{2, backend.KVDims{Heads: 1, KeyDim: 64, ValueDim: 128, Key: f32, Value: f16}},
		{34, backend.KVDims{Heads: 1, KeyDim: 24, ValueDim: 40, Key: f16, Value: f32}},
		{4, backend.KVDims{Heads: 2, KeyDim: 128, ValueDim: 128, Key: t3, Value: t3}},
		{6, backend.KVDims{Heads: 1, KeyDim: 256, ValueDim: 256, Key: t4, Value: t4}},
		{4, backend.KVDims{Heads: 2, KeyDim: 64, ValueDim: 64, Key: q40, Value: q41}},
		{4, backend.KVDims{Heads: 1, KeyDim: 128, ValueDim: 128, Key: q41, Value: t3}},
		{2, backend.KVDims{Heads: 1, KeyDim: 512, ValueDim: 512, Key: q8, Value: t4}},
		{4, backend.KVDims{Heads: 2, KeyDim: 96, ValueDim: 256, Key: q40, Value: t3}},
	}
)

func name(heads int, s backend.KVDims) string {
	return fmt.Sprintf("%d/%d heads %d %s %d %s", heads, s.Heads, s.KeyDim, s.Key, s.ValueDim, s.Value)
}

// TestAttention: chains, trees and windows around the borders of pages and splits, against float64; each row has the
// same bits alone.
func TestAttention(t *testing.T) {
	for _, c := range kind {
		t.Run(name(c.heads, c.s), func(t *testing.T) {
			w := newWorld(t, c.heads, c.s)
			sizes := [][2]int{{17, 60}, {3, 253}, {1, 0}, {1, 300}, {2, 63}, {5, 60}, {8, 64}} // rows, and slots before
			if c.s.KeyDim >= 256 {
				sizes = sizes[:3] // these take long
			}
			for _, n := range sizes {
				what := fmt.Sprintf("%d rows after %d", n[0], n[1])
				s := w.sequence(n[0]+n[1], 0)
				for _, g := range []rows{{s: s, n: n[0]}, {s: s, n: n[0], window: 70}, {s: s, n: n[0], parents: tree(w.r, n[0])}} {
					q := w.queries([]rows{g})
					got := w.check(what, []rows{g}, q)
					if n[0] == 3 || n[0] == 5 {
						w.alone(what, g, q, got)
					}
				}
				for _, id := range s.table {
					w.pages.Free(id)
				}
			}
		})
	}
}

// TestSequences: several sequences in one batch, some of which share pages, with sinks. Every segment has the bits it
// has alone.
func TestSequences(t *testing.T) {
	for _, c := range kind {
		t.Run(name(c.heads, c.s), func(t *testing.T) {
			w := newWorld(t, c.heads, c.s)
			w.sinks = w.normal(c.heads, 2)
			a, b, long := w.sequence(150, 0), w.sequence(64, 0), w.sequence(330, 0)
			fork := &sequence{k: slices.Clone(a.k[:128]), v: slices.Clone(a.v[:128])} // shares the pages that are full
			for range 7 {
				fork.k = append(fork.k, w.keys().stored(w.normal(c.s.Heads*c.s.KeyDim, 1)))
				fork.v = append(fork.v, w.values().stored(w.normal(c.s.Heads*c.s.ValueDim, 1)))
			}
			w.place(fork, 192)
			copy(fork.table, a.table[:2])
			segs := []rows{{s: a, n: 3}, {s: b, n: 1}, {s: long, n: 33, window: 200},
				{s: fork, n: 7, parents: tree(w.r, 7)}, {s: long, n: 1}}
			q := w.queries(segs)
			got := w.check("together", segs, q)
			first := 0
			for i, g := range segs {
				same(t, fmt.Sprintf("segment %d alone", i), w.attend(segs[i:i+1], q[first:first+g.n]), got[first:first+g.n])
				first += g.n
			}
		})
	}
}

// TestLongSplits: splits of several pages, and rows of one segment that split differently.
func TestLongSplits(t *testing.T) {
	for _, c := range []int{1, 8} { // of either family
		t.Run(name(kind[c].heads, kind[c].s), func(t *testing.T) {
			w := newWorld(t, kind[c].heads, kind[c].s)
			s := w.sequence(1000, 0)
			g := rows{s: &sequence{table: s.table, k: s.k[:515], v: s.v[:515]}, n: 9} // 8 splits of a page end with slot 511
			q := w.queries([]rows{g})
			w.alone("around slot 512", g, q, w.check("around slot 512", []rows{g}, q))
			w.check("1000 slots", []rows{{s: s, n: 2}}, q[:2])
		})
	}
}

// hopper is a device of compute capability 9.0.
func hopper(t *testing.T) gpu.Driver {
	if os.Getenv("STROBE_CUDA") != "cuda" {
		return emulate.Emulated(t, emulate.Options{Hopper: true})
	}
	d := emulate.Open(t)
	if d.Props().Major != 9 {
		t.Skip("needs a GPU of compute capability 9.0: its kernels use warpgroup products")
	}
	return d
}

// TestFlash: the kernel for Hopper gives the bits of the one for all devices. Without a GPU its instructions are
// emulated.
func TestFlash(t *testing.T) {
	for _, c := range kind {
		if c.s.KeyDim != c.s.ValueDim || c.s.KeyDim < 64 || c.s.KeyDim == 64 && c.s.Key != f16 {
			continue // another kernel
		}
		t.Run(name(c.heads, c.s), func(t *testing.T) {
			d := hopper(t)
			w := newWorldOn(t, d, c.heads, c.s)
			flash := w.at
			tensor, err := gpu.NewAttention(older{d}.Props(), c.heads, c.s)
			w.must(err)
			short, long := w.sequence(70, 0), w.sequence(330, 0)
			for _, segs := range [][]rows{
				{{s: long, n: 1}},
				{{s: short, n: 3}, {s: long, n: 30}},
				{{s: long, n: 17, parents: tree(w.r, 17)}, {s: short, n: 1}},
				{{s: long, n: 9, window: 100}, {s: short, n: 9, parents: tree(w.r, 9), window: 3}},
			} {
				q := w.queries(segs)
				w.at = flash
				got := w.attend(segs, q)
				if c.s.Key == f16 { // how blocks share the work is the same for all types
					got = w.check("flash", segs, q)
				}
				if w.unpack = flash.Halves() != nil; w.unpack {
					same(t, "unpacked once", w.attend(segs, q), got)
					w.unpack = false
				}
				w.at = tensor
				same(t, "tensor cores without warpgroups", w.attend(segs, q), got)
			}
		})
	}
}

// little is a device whose blocks may have less shared memory.
type little struct{ gpu.Driver }

func (l little) Props() gpu.Props {
	p := l.Driver.Props()
	p.Major, p.Minor, p.SharedBlock = 8, 6, 99<<10
	return p
}

// TestAttentionInLittleMemory: fewer copies in flight and smaller tiles change no bits; what does not fit is computed
// by the plain kernel.
func TestAttentionInLittleMemory(t *testing.T) {
	mixed := backend.KVDims{Heads: 1, KeyDim: 512, ValueDim: 512, Key: f16, Value: q8}
	for i, c := range append(slices.Clone(kind[:8]), struct {
		heads int
		s     backend.KVDims
	}{2, mixed}) {
		t.Run(name(c.heads, c.s), func(t *testing.T) {
			w := newWorld(t, c.heads, c.s)
			segs := []rows{{s: w.sequence(70, 0), n: 9}}
			q := w.queries(segs)
			want := w.attend(segs, q)
			var err error
			w.at, err = gpu.NewAttention(little{w.d}.Props(), c.heads, c.s)
			w.must(err)
			got := w.check("little memory", segs, q)
			if i < 8 {
				same(t, "little memory", got, want)
			}
		})
	}
}
