package gpu

import (
	"fmt"
	"math"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// maxPartialBytes bounds the memory for partial results: what does not fit is computed by one block per row.
const maxPartialBytes = 192 << 20

// Attention is one kind of attention operation on a device: which kernels run it, and how. It is a function of the
// model and of the device alone, except for the number of rows a block has, which changes no bits.
type Attention struct {
	Heads, KVHeads int
	Shape          backend.KVDims
	props          Props
	family         int
	chunk, chunks  int        // query heads of a block, and blocks of a KV head
	padded         bool       // heads are zero from paddedUsed on
	halves         *Attention // the same over keys and values that were unpacked to halves; nil if there is no need
}

const (
	anyAttention    = iota // any type and size
	tensorAttention        // tensor cores of compute capability 8.0: F16 and what becomes F16
	flashAttention         // warpgroup products (9.0): the same types
)

// NewAttention chooses the kernels for heads query heads on a layer of the given shape.
func NewAttention(p Props, heads int, s backend.KVDims) (*Attention, error) {
	if s.Heads <= 0 || heads <= 0 || heads%s.Heads != 0 {
		return nil, fmt.Errorf("attention: %d query heads for %d KV heads", heads, s.Heads)
	}
	a := &Attention{Heads: heads, KVHeads: s.Heads, Shape: s, props: p, chunk: 1}
	half := func(t quant.Type) bool { return t != quant.F32 }
	most := 16 // rows that every kernel of the family has
	switch dim := s.KeyDim; {
	case p.NoTensorCores:
		most = fewAttentionRows
	case dim != s.ValueDim || !half(s.Key) || !half(s.Value) || !slices.Contains(tensorHeads, dim):
	case p.Major == 9 && p.Minor == 0 && (dim > 64 || !a.packed()): // few large models have heads of 64
		a.family, most = flashAttention, 64
	case a.shared(1, 2) > p.SharedBlock: // 512 dimensions of two types on a small device
	default:
		a.family = tensorAttention
	}
	if a.family != anyAttention && a.packed() {
		f16 := s
		f16.Key, f16.Value = quant.F16, quant.F16
		h, err := NewAttention(p, heads, f16)
		if err != nil {
			return nil, err
		}
		if h.family == a.family {
			a.halves = h
		}
	}
	group := heads / s.Heads
	a.chunks = (group + most - 1) / most
	a.chunk = (group + a.chunks - 1) / a.chunks
	return a, nil
}

// paddedUsed is how much of padded heads a kernel computes: image encoders have heads of 72.
const paddedUsed = 80

// used returns the kernels for heads that are zero from value n on; 0: none is.
func (a *Attention) used(n int) *Attention {
	if n == 0 || n > paddedUsed || a.family != flashAttention || a.packed() || a.Shape.KeyDim != 128 {
		return a
	}
	p := *a
	p.padded = true
	return &p
}

// tensorTiles is how many tiles of 16 rows a block has when there are many rows: what its registers hold.
func tensorTiles(dim int) int {
	if dim == 512 {
		return 2
	}
	return 4
}

// tensorHeads are the sizes of heads that tensor cores have kernels for.
var tensorHeads = []int{64, 128, 256, 512}

// PadHead is the least size of heads that tensor cores have kernels for.
func (b *Backend) PadHead(dim int) int {
	for _, n := range tensorHeads {
		if dim <= n && !b.props.NoTensorCores {
			return n
		}
	}
	return dim
}

// form is how a step runs: the kernel, its threads, and the rows (tokens x heads) of a block.
type form struct {
	kernel        Kernel
	threads, rows int
	tiles         int
	perUnit       int // blocks on a multiprocessor
}

// form chooses for segments of at most rows tokens.
func (a *Attention) form(rows int) form {
	dim := a.Shape.KeyDim
	switch a.family {
	case flashAttention:
		k, few := flashAttend{dim: dim, groups: 2, packed: a.packed()}, 160 // a warpgroup, and a warp that copies
		if k.packed {
			few = 256 // or four that unpack
		}
		if dim == 512 {
			return form{k, 384, 64, 4, 1}
		}
		if rows*a.chunk <= 64 {
			k.groups = 1
			return form{k, few, 64, 4, 1}
		}
		if a.padded && rows*a.chunk > 128 {
			k.groups, k.used = 3, paddedUsed
			return form{k, 512, 192, 12, 1}
		}
		return form{k, 384, 128, 8, 1}
	case tensorAttention:
		if n := tensorTiles(dim); rows*a.chunk > 16 && a.shared(n, 2) <= a.props.SharedBlock {
			return form{tensorAttend{dim: dim, tiles: n}, 128, 16 * n, n, 2}
		}
		return form{tensorAttend{dim: dim, tiles: 1}, 128, 16, 1, 2}
	}
	if a.props.NoTensorCores {
		n := paddedHead(max(dim, a.Shape.ValueDim))
		most := fewAttentionRows
		if rows*a.chunk > most {
			most *= 2
		}
		return form{floatAttend{most, n, kvTypes[a.Shape.Key], kvTypes[a.Shape.Value]}, 128, most, 1, 2}
	}
	return form{kernelAttend, 128, 16, 1, 2}
}

// packed says that keys or values must be unpacked.
func (a *Attention) packed() bool { return a.Shape.Key.Quantized() || a.Shape.Value.Quantized() }

// alike stands for all longest segments that the same kernels run.
func (a *Attention) alike(longest int) int {
	if a.form(longest) == a.form(1) {
		return 1
	}
	return math.MaxInt32
}

// Tiling says how to deal the rows of a step whose longest segment has so many rows.
func (a *Attention) Tiling(longest int) Tiling {
	f := a.form(longest)
	work := 0
	if a.props.NoTensorCores {
		work = max(1, longWork/(2*f.rows*PageSlots*(a.Shape.KeyDim+a.Shape.ValueDim)))
	}
	return Tiling{
		Work: work,
		Rows: max(1, f.rows/a.chunk),
		// One wave of blocks for one sequence. Fewer than 4 would leave most of the device idle, more than 64 only
		// make work for merge.
		Splits:   min(64, max(4, a.props.Units/a.KVHeads)),
		Blocks:   f.perUnit * a.props.Units,
		Heads:    a.KVHeads * a.chunks,
		Partials: maxPartialBytes / a.partialBytes(),
	}
}

func (a *Attention) partialBytes() int { return a.Heads * (4*a.Shape.ValueDim + 8) }

// ScratchBytes is the memory that partial results take.
func (a *Attention) ScratchBytes(partials int) int { return partials * a.partialBytes() }

// unit is the size of a copy to shared memory: 32 slots of keys or values as they are stored.
func (a *Attention) unit() int {
	return 32 * max(a.Shape.Key.RowBytes(a.Shape.KeyDim), a.Shape.Value.RowBytes(a.Shape.ValueDim))
}

// shared is the shared memory of the tensor-core kernel with so many tiles and copies in flight; see kernel/attend.h.
func (a *Attention) shared(tiles, ring int) int {
	n := 16*tiles*(2*a.Shape.KeyDim+128+16+64+48) + ring*a.unit()
	if a.packed() {
		n += 64 * a.Shape.KeyDim
	}
	return n
}

// UnpackBytes is the memory that so many pages take as halves, with a table of addresses of so many entries; 0 where
// nothing is to be unpacked.
func (a *Attention) UnpackBytes(pages, entries int) int {
	if a.halves == nil {
		return 0
	}
	return a.unpackTable(entries) + pages*PageSlots*a.KVHeads*2*2*a.Shape.KeyDim
}

func (a *Attention) unpackTable(entries int) int { return (8*entries + 1023) / 1024 * 1024 }

// sparse returns the same kernels with one query head in a block: each head sees blocks of its own.
func (a *Attention) sparse() *Attention {
	s := *a
	s.chunk, s.chunks = 1, a.Heads/a.KVHeads
	return &s
}

// promptTiles is how many tiles of 128 rows the chunk of a prompt has that models are given.
const promptTiles = 4

// sparseLongest is the longest segment that tiles of sparse attention are made for. Tiles of 64 rows of a head leave
// less of the device idle where all of a chunk run at once; else those of 128 are faster.
func (a *Attention) sparseLongest() int {
	if 2*promptTiles*a.Heads <= a.props.Units {
		return 64
	}
	return math.MaxInt32
}

type attnArgs struct {
	q, out           Addr
	items, seen      Addr
	pages, paths     Addr
	part, ml         Addr
	sinks            Addr
	qstride, ostride int32
	at               KVPlace
	kvheads, group   int32
	chunk, chunks    int32
	ring, unit       int32 // no tensor cores: which launch it is, and of how many that share the work
	scale            float32
	kept             Addr // sparse: a bit for each block of keys; 0: all are seen
	words, block     int32
}

// AttnCall is one attention operation.
type AttnCall struct {
	Q, Out           Addr // [rows][heads][dim]
	QStride, OStride int  // values from one row to the next; addresses and strides are multiples of 16 bytes
	Rows             int
	Longest          int // rows of the longest segment, as given to Tiling
	Tables           KVAddrs
	Merge            bool // some rows have partial results
	Scratch          Addr // for ScratchBytes(Partials)
	Partials         int  // room in Scratch
	Place            KVPlace
	Sinks            Addr // one per head, or 0
	Scale            float32
	Rotated          Addr // room for the queries, where keys are unpacked or judged
	Unpack           Addr // for UnpackBytes: pages are unpacked once for all rows. 0: by every block that reads them
	Entries          int  // of the table of pages
	Sparse           *SparseCall
	Shares           int  // launches that share the work, without tensor cores; 0: one
	after            bool // what it reads was made by the launch before
}

// SparseCall is which blocks of keys an attention operation sees, and memory to find them. Tables and Tiling must be
// made for blocks of this size.
type SparseCall struct {
	Block, Sink, Window, Last int
	Alpha                     float32
	Keys                      int  // room for blocks of keys
	Words                     int  // room for those of one sequence, in bits
	Queries                   int  // room for blocks of queries
	Scratch                   Addr // for SparseBytes
}

// The parts of its scratch: means [Keys][KV heads][dim], weights [Queries][heads][64*Words][2], bits
// [Queries][heads][Words].
func (s *SparseCall) weightBytes(heads int) int { return 512 * s.Queries * heads * s.Words }
func (s *SparseCall) kept(heads int) Addr       { return s.Scratch + Addr(s.weightBytes(heads)) }
func (s *SparseCall) means(heads int) Addr      { return s.kept(heads) + Addr(8*s.Queries*heads*s.Words) }

// SparseBytes is the memory that choosing blocks takes.
func (a *Attention) SparseBytes(s *SparseCall) int {
	return s.weightBytes(a.Heads) + 8*s.Queries*a.Heads*s.Words + 4*s.Keys*a.KVHeads*a.Shape.KeyDim
}

type unpackArgs struct {
	count, spans, pages, unpacked, to Addr
	at                                KVPlace
	heads                             int32
}

type sparseArgs struct {
	q, count, spans, queries, pages Addr
	means, weights, kept            Addr
	at                              KVPlace
	qstride, kvheads, group         int32
	words, block                    int32
	sink, window, last              int32
	alpha, scale                    float32
}

// Launches appends the kernels of an attention operation.
func (a *Attention) Launches(ls []Call, c AttnCall) []Call {
	judged := c // what blocks are chosen by
	if (c.Unpack != 0 || c.Sparse != nil) && a.Shape.Key.RotatesKeys() {
		judged.Q, judged.QStride = c.Rotated, a.Heads*a.Shape.KeyDim
		x := &attnArgs{q: c.Q, out: c.Rotated, qstride: int32(c.QStride), ostride: int32(judged.QStride), at: c.Place,
			kvheads: int32(a.KVHeads), group: int32(a.Heads / a.KVHeads)}
		ls = append(ls, Call{kernelRotate, x, a.headBlocks(c)})
	}
	if c.Unpack == 0 {
		if c.Sparse != nil {
			ls = a.choose(ls, judged)
			a, c.after = a.sparse(), true
		}
		ls = a.over(ls, c)
		return a.unrotate(ls, c)
	}
	part := 2 * PageSlots * a.Shape.KeyDim
	u := judged
	u.Tables.Pages, u.Unpack, u.after = c.Unpack, 0, true
	u.Place = KVPlace{Head: int32(2 * part), Values: int32(part), KType: kvTypes[quant.F16], VType: kvTypes[quant.F16],
		KDim: c.Place.KDim, VDim: c.Place.VDim}
	// Eight blocks of 256 threads are as many as a multiprocessor has at once.
	ls = append(ls, Call{kernelUnpack, &unpackArgs{c.Tables.Items, c.Tables.Spans, c.Tables.Pages, c.Unpack,
		c.Unpack + Addr(a.unpackTable(c.Entries)), c.Place, int32(a.KVHeads)},
		Config{Grid: [3]int{8 * a.props.Units, 1, 1}, Threads: 256, Early: true}})
	h := a.halves
	if c.Sparse != nil {
		ls = h.choose(ls, u)
		h = h.sparse()
	}
	return a.unrotate(h.over(ls, u), c)
}

// choose appends the kernels that choose blocks.
func (a *Attention) choose(ls []Call, c AttnCall) []Call {
	s := c.Sparse
	x := &sparseArgs{q: c.Q, count: c.Tables.Items, spans: c.Tables.Spans, queries: c.Tables.Queries,
		pages: c.Tables.Pages, means: s.means(a.Heads), weights: s.Scratch, kept: s.kept(a.Heads), at: c.Place,
		qstride: int32(c.QStride), kvheads: int32(a.KVHeads), group: int32(a.Heads / a.KVHeads), words: int32(s.Words),
		block: int32(s.Block), sink: int32(s.Sink), window: int32(s.Window), last: int32(s.Last), alpha: s.Alpha,
		scale: c.Scale * math.Log2E}
	return append(ls,
		Call{kernelSparseMeans, x, Config{Grid: [3]int{16 * a.props.Units, 1, 1}, Threads: 128, Shared: 4096}},
		Call{kernelSparseWeights, x, Config{Grid: [3]int{s.Words, a.Heads, s.Queries}, Threads: 256,
			Shared: 2 * 64 * 36 * 4}},
		Call{kernelSparseKeep, x, Config{Grid: [3]int{s.Queries, a.Heads, 1}, Threads: 128, Shared: 32}})
}

// over appends attention over pages as they are.
func (a *Attention) over(ls []Call, c AttnCall) []Call {
	f := a.form(c.Longest)
	args := attnArgs{q: c.Q, out: c.Out, items: c.Tables.Items, seen: c.Tables.Seen,
		pages: c.Tables.Pages, paths: c.Tables.Paths,
		part: c.Scratch, ml: c.Scratch + Addr(c.Partials*a.Heads*a.Shape.ValueDim*4), sinks: c.Sinks,
		qstride: int32(c.QStride), ostride: int32(c.OStride), at: c.Place,
		kvheads: int32(a.KVHeads), group: int32(a.Heads / a.KVHeads),
		chunk: int32(a.chunk), chunks: int32(a.chunks), unit: int32(a.unit()), scale: c.Scale * math.Log2E}
	if s := c.Sparse; s != nil {
		args.kept, args.words, args.block = s.kept(a.Heads), int32(s.Words), int32(s.Block)
	}
	l := Config{Grid: [3]int{f.perUnit * a.props.Units, 1, 1}, Threads: f.threads, Early: !c.after}
	dim := a.Shape.KeyDim
	switch a.family {
	case flashAttention:
		l.Shared = flashShared(dim, (f.threads-32)/128)
	case tensorAttention:
		// Two blocks on a multiprocessor if possible, with as many copies in flight as fit.
		rings := []int32{8, 4, 3, 2}
		if dim >= 256 {
			rings = rings[1:]
		}
		for _, half := range []int{2, 1} {
			for _, r := range rings {
				if s := a.shared(f.tiles, int(r)); l.Shared == 0 && s <= a.props.SharedBlock/half {
					args.ring, l.Shared = r, s
				}
			}
		}
	default:
		l.Shared = 4 * 16 * (dim + a.Shape.ValueDim + 64 + 5)
	}
	shares := 1
	if a.props.NoTensorCores {
		shares = max(1, c.Shares)
		args.unit, l.Alone = int32(shares), shares > 1
	}
	for range shares {
		x := args
		ls = append(ls, Call{f.kernel, &x, l})
		args.ring++
	}
	if c.Merge {
		fit := 128 / (a.Shape.ValueDim / 4)
		ls = append(ls, Call{kernelMerge, &args, Config{Grid: [3]int{c.Rows, (a.Heads + fit - 1) / fit, 1}, Threads: 128,
			Early: true}})
	}
	return ls
}

// Splits describes what the kernel of an operation with partial results leaves for merge to add.
func (a *Attention) Splits(c AttnCall) *Splits {
	return &Splits{part: c.Scratch, ml: c.Scratch + Addr(c.Partials*a.Heads*a.Shape.ValueDim*4), sinks: c.Sinks,
		seen: c.Tables.Seen, heads: int32(a.Heads), dim: int32(a.Shape.ValueDim)}
}

// unrotate turns results back where values are rotated.
func (a *Attention) unrotate(ls []Call, c AttnCall) []Call {
	if !a.Shape.Value.RotatesValues() {
		return ls
	}
	x := &attnArgs{out: c.Out, ostride: int32(c.OStride), at: c.Place, kvheads: int32(a.KVHeads),
		group: int32(a.Heads / a.KVHeads)}
	return append(ls, Call{kernelUnrotate, x, a.headBlocks(c)})
}

// headBlocks has a warp for each head of a row.
func (a *Attention) headBlocks(c AttnCall) Config {
	return Config{Grid: [3]int{c.Rows, (a.Heads + 3) / 4, 1}, Threads: 128, Early: true}
}

// flashShared is the shared memory of the kernel for Hopper with so many warpgroups: queries, a ring of pages, two
// barriers for each place in it, what rows have so far, and what it takes to begin at a multiple of 1024; see
// kernel/flash.h.
func flashShared(dim, groups int) int {
	page, ring := 128*min(dim, 256), map[int]int{64: 16, 128: 10, 256: 5, 512: 5}[dim]
	return 1024 + (groups+ring)*page + 16*ring + groups*64*8
}

type kvWriteArgs struct {
	k, v  In
	at    Addr
	place KVPlace
	heads int32
}

// KVWrite writes rows of keys and values, heads side by side, to their slots.
func KVWrite(ls []Call, k, v In, rows, heads int, t KVAddrs, place KVPlace) []Call {
	return append(ls, Call{kernelKVWrite, &kvWriteArgs{k, v, t.At, place, int32(heads)},
		Config{Grid: [3]int{rows, 1, 1}, Threads: 128, Early: true}})
}

// HeadRows is rows of activations with heads in them.
type HeadRows struct {
	In
	Step int32 // values from one head to the next
	Norm Addr  // weights of each head's RMSNorm, or 0: no norm
}

// QKV is what stands between the products of an attention layer and attention itself.
type QKV struct {
	Q, K, V        HeadRows
	NormValues     bool // RMSNorm of each value head, without weights
	Eps            float32
	Cos, Sin       Addr // [rows][Half] with Turn values from row to row, or 0: no rotation
	Half, Turn     int
	Rows           int
	Heads, KVHeads int
	Out            Addr // queries, heads side by side
	OutStride      int  // addresses and strides are multiples of 16 bytes
	Tables         KVAddrs
	Place          KVPlace
}

type qkvArgs struct {
	q, k, v             In
	at                  Addr
	qw, kw              Addr
	cos, sin            Addr
	out                 Addr
	place               KVPlace
	heads, kvheads      int32
	qstep, kstep, vstep int32
	half, turn          int32
	ostride             int32
	vnorm               int32
	eps                 float32
}

// Write normalises and rotates queries and keys, and writes keys and values to their slots.
func (c QKV) Write(ls []Call) []Call {
	args := &qkvArgs{q: c.Q.In, k: c.K.In, v: c.V.In, at: c.Tables.At, qw: c.Q.Norm, kw: c.K.Norm,
		cos: c.Cos, sin: c.Sin, out: c.Out, place: c.Place, heads: int32(c.Heads), kvheads: int32(c.KVHeads),
		qstep: c.Q.Step, kstep: c.K.Step, vstep: c.V.Step, half: int32(c.Half),
		turn: int32(c.Turn), ostride: int32(c.OutStride), eps: c.Eps}
	if c.NormValues {
		args.vnorm = 1
	}
	k := kernelQKV
	if max(c.Place.KType, c.Place.VType) <= kvTypes[quant.F16] {
		k = kernelQKVFloats
	}
	return append(ls, Call{k, args, Config{Grid: [3]int{c.Rows, (c.Heads + 2*c.KVHeads + 3) / 4, 1}, Threads: 128,
		Shared: 4 * 4 * int(c.Place.KDim), Early: true}})
}
