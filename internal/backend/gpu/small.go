package gpu

import (
	"fmt"

	"strobe/internal/backend"
)

// Small chooses the kernels of small.cu and select.cu: what is done to rows of activations beside products, attention
// and recurrence. Its methods append calls to a list.
type Small struct {
	units         int
	noTensorCores bool // see notensorcores.go
}

// NewSmall returns the choices for a device.
func NewSmall(p Props) *Small { return &Small{units: p.Units, noTensorCores: p.NoTensorCores} }

func (s *Small) launch(ls []Call, kernel Kernel, grid [3]int, threads, shared int, args any) []Call {
	return append(ls, Call{kernel, args, Config{Grid: grid, Threads: threads, Shared: shared, Early: true}})
}

// perThread bounds the rounds of a thread when there is more work than one block per multiprocessor does in one. Until
// then small kernels stay at that size: more blocks would take the room in which the next product begins early.
const perThread = 8

// flat is the grid for work that threads take one after the other.
func (s *Small) flat(total, threads int) [3]int {
	blocks := (total + threads - 1) / threads
	return [3]int{max(1, min(blocks, max(s.units, (blocks+perThread-1)/perThread))), 1, 1}
}

// Out is where a kernel writes rows.
type Out struct {
	P      Addr
	Stride int // values from one row to the next
}

func (o Out) aligned() bool { return o.P%16 == 0 && o.Stride%4 == 0 }

func (in In) aligned() bool {
	if in.Groups > 0 {
		return in.P%16 == 0 && in.First%4 == 0
	}
	return in.P%16 == 0 && in.Stride%4 == 0
}

type elemArgs struct {
	dst, w, index  Addr
	a, b           In
	rows, cols, ds int32
	quads          int32
	s, t           float32
}

func (s *Small) elements(ls []Call, kernel Kernel, dst Out, rows, cols int, e elemArgs) []Call {
	e.dst, e.ds, e.rows, e.cols = dst.P, int32(dst.Stride), int32(rows), int32(cols)
	total := rows * cols
	if cols%4 == 0 && dst.aligned() && (e.a.P == 0 || e.a.aligned()) && (e.b.P == 0 || e.b.aligned() ||
		kernel == kernelAddGated) {
		e.quads = 1
		total /= 4
	}
	return s.launch(ls, kernel, s.flat(total, 256), 256, 0, &e)
}

// Copy copies rows. With a product's pieces it adds them up.
func (s *Small) Copy(ls []Call, dst Out, x In, rows, cols int) []Call {
	return s.elements(ls, kernelCopy, dst, rows, cols, elemArgs{a: x})
}

// Add adds two tensors.
func (s *Small) Add(ls []Call, dst Out, x, y In, rows, cols int) []Call {
	return s.elements(ls, kernelAdd, dst, rows, cols, elemArgs{a: x, b: y})
}

// AddBias adds a vector to every row.
func (s *Small) AddBias(ls []Call, dst Out, x In, bias Addr, rows, cols int) []Call {
	return s.elements(ls, kernelBias, dst, rows, cols, elemArgs{a: x, w: bias})
}

// ExpertBias adds to every row that row of bias which its index names.
func (s *Small) ExpertBias(ls []Call, dst Out, x In, index, bias Addr, rows, cols int) []Call {
	return s.elements(ls, kernelExpertBias, dst, rows, cols, elemArgs{a: x, w: bias, index: index})
}

// Scale multiplies every value by f.
func (s *Small) Scale(ls []Call, dst Out, x In, f float32, rows, cols int) []Call {
	return s.elements(ls, kernelScale, dst, rows, cols, elemArgs{a: x, s: f})
}

// Gather copies the rows of src, which are plain, that index names.
func (s *Small) Gather(ls []Call, dst Out, src In, index Addr, rows, cols int) []Call {
	return s.elements(ls, kernelGather, dst, rows, cols, elemArgs{a: src, index: index})
}

// Activate computes act(x).
func (s *Small) Activate(ls []Call, dst Out, x In, act backend.Activation, rows, cols int) []Call {
	return s.elements(ls, kernelsOnly[act], dst, rows, cols, elemArgs{a: x})
}

// Gated computes act(gate)*up.
func (s *Small) Gated(ls []Call, dst Out, gate, up In, act backend.Activation, rows, cols int) []Call {
	return s.elements(ls, kernelsGated[act], dst, rows, cols, elemArgs{a: gate, b: up})
}

// SigmoidGate computes x*sigmoid(gate).
func (s *Small) SigmoidGate(ls []Call, dst Out, x, gate In, rows, cols int) []Call {
	return s.elements(ls, kernelSigmoid, dst, rows, cols, elemArgs{a: x, b: gate})
}

// AddGated computes dst += sigmoid(gate)*x, where gate has one column.
func (s *Small) AddGated(ls []Call, dst Out, x, gate In, rows, cols int) []Call {
	return s.elements(ls, kernelAddGated, dst, rows, cols, elemArgs{a: x, b: gate})
}

// Softcap computes c*tanh(x/c).
func (s *Small) Softcap(ls []Call, dst Out, x In, c float32, rows, cols int) []Call {
	return s.elements(ls, kernelSoftcap, dst, rows, cols, elemArgs{a: x, s: c})
}

// Clamp bounds values to [least, most].
func (s *Small) Clamp(ls []Call, dst Out, x In, least, most float32, rows, cols int) []Call {
	return s.elements(ls, kernelClamp, dst, rows, cols, elemArgs{a: x, s: least, t: most})
}

// HeadsIn reads the heads of tokens: head h of a token begins at column h*Step. A tensor of plain rows is one of one
// head.
type HeadsIn struct {
	In
	Step int
}

// HeadsOut is where heads are written: a token begins Stride values after the one before it, a head Step values.
type HeadsOut struct {
	P            Addr
	Stride, Step int
}

type headsArgs struct {
	dst, w            Addr
	x, y              In
	rows, cols, heads int32
	xs, ys, ds, dhs   int32
	eps               float32
}

// shortRow is the length up to which a warp has a row. The kernel, and with it the order of sums, depends on the length
// alone.
const shortRow = 512

// RMSNorm normalises heads of dim values; w may be 0.
func (s *Small) RMSNorm(ls []Call, dst HeadsOut, x HeadsIn, w Addr, eps float32, tokens, heads, dim int) []Call {
	a := &headsArgs{dst: dst.P, w: w, x: x.In, rows: int32(tokens * heads), cols: int32(dim), heads: int32(heads),
		xs: int32(x.Step), ds: int32(dst.Stride), dhs: int32(dst.Step), eps: eps}
	row := (dim + 3) / 4 * 16
	if dim <= shortRow {
		// Four rows to a block: more would leave multiprocessors idle when there are few.
		return s.launch(ls, kernelNormShort, [3]int{(tokens*heads + 3) / 4, 1, 1}, 128, 4*row, a)
	}
	return s.launch(ls, kernelNormLong, [3]int{tokens * heads, 1, 1}, 256, row+32, a)
}

type layerNormArgs struct {
	dst, w, bias   Addr
	x              In
	rows, cols, ds int32
	eps            float32
}

// LayerNorm is backend.LayerNorm.
func (s *Small) LayerNorm(ls []Call, dst Out, x In, w, bias Addr, eps float32, rows, cols int) []Call {
	a := &layerNormArgs{dst.P, w, bias, x, int32(rows), int32(cols), int32(dst.Stride), eps}
	return s.launch(ls, kernelLayerNorm, [3]int{rows, 1, 1}, 256, 64, a)
}

// HeadsSigmoid is SigmoidGate for heads.
func (s *Small) HeadsSigmoid(ls []Call, dst HeadsOut, x, gate HeadsIn, tokens, heads, dim int) []Call {
	a := &headsArgs{dst: dst.P, x: x.In, y: gate.In, rows: int32(tokens * heads), cols: int32(dim), heads: int32(heads),
		xs: int32(x.Step), ys: int32(gate.Step), ds: int32(dst.Stride), dhs: int32(dst.Step)}
	return s.launch(ls, kernelHeadGate, s.flat(tokens*heads*dim, 256), 256, 0, a)
}

type anglesArgs struct {
	cos, sin, pos, inv Addr
	rows, cols, cs, ss int32
	scale              float32
}

// Angles computes cosines and sines of pos[r]*inv[c], times scale.
func (s *Small) Angles(ls []Call, cos, sin Out, pos, inv Addr, scale float32, rows, cols int) []Call {
	a := &anglesArgs{cos: cos.P, sin: sin.P, pos: pos, inv: inv, rows: int32(rows), cols: int32(cols),
		cs: int32(cos.Stride), ss: int32(sin.Stride), scale: scale}
	return s.launch(ls, kernelAngles, s.flat(rows*cols, 128), 128, 0, a)
}

type ropeArgs struct {
	x, cos, sin                   Addr
	rows, heads, half, xs, cs, ss int32
}

// RoPE rotates the first 2*half columns of every row of x; row r belongs to row r/heads of the angles.
func (s *Small) RoPE(ls []Call, x Out, cos, sin Out, rows, heads, half int) []Call {
	a := &ropeArgs{x.P, cos.P, sin.P, int32(rows), int32(heads), int32(half), int32(x.Stride), int32(cos.Stride),
		int32(sin.Stride)}
	return s.launch(ls, kernelRoPE, s.flat(rows*half, 256), 256, 0, a)
}

type blockConvArgs struct {
	dst, x, dyn, base, index             Addr
	rows, cols, taps, groups, ds, xs, ys int32
}

// BlockConv is backend.BlockConv. x and dyn are plain rows.
func (s *Small) BlockConv(ls []Call, dst, x, dyn Out, base, index Addr, rows, cols, taps, groups int) []Call {
	a := &blockConvArgs{dst.P, x.P, dyn.P, base, index, int32(rows), int32(cols), int32(taps), int32(groups),
		int32(dst.Stride), int32(x.Stride), int32(dyn.Stride)}
	return s.launch(ls, kernelBlockConv, s.flat(rows*cols, 256), 256, 0, a)
}

type sumArgs struct {
	dst, w, scale, ids       Addr
	y                        In
	rows, cols, used, ds, ws int32
}

// ExpertSum adds the outputs of each row's experts with their weights; scale, one per expert, may be 0.
func (s *Small) ExpertSum(ls []Call, dst Out, y In, weights Out, ids, scale Addr, rows, cols, used int) []Call {
	a := &sumArgs{dst.P, weights.P, scale, ids, y, int32(rows), int32(cols), int32(used), int32(dst.Stride),
		int32(weights.Stride)}
	return s.launch(ls, kernelExpertSum, s.flat(rows*cols, 256), 256, 0, a)
}

// SetEntry is an entry at the start of a step's block: N integers At bytes from its start belong at Dst.
type SetEntry struct {
	Dst   Addr
	At, N int32
}

// Scatter puts the integers of a block where they belong.
func (s *Small) Scatter(ls []Call, block Addr, entries int) []Call {
	if entries == 0 {
		return ls
	}
	return s.launch(ls, kernelScatter, [3]int{entries, 1, 1}, 128, 0, &scatterArgs{block})
}

type scatterArgs struct{ block Addr }

type routeArgs struct {
	ids, weights            Addr
	x                       In
	rows, experts, used, ws int32
	scale                   float32
}

// Route chooses the used best experts of each row.
func (s *Small) Route(ls []Call, ids Addr, weights Out, logits In, rows, experts, used int, scale float32) []Call {
	a := &routeArgs{ids, weights.P, logits, int32(rows), int32(experts), int32(used), int32(weights.Stride), scale}
	return s.launch(ls, kernelRoute, [3]int{rows, 1, 1}, 32, 4*((experts+3)&^3), a)
}

// selectPart is the number of columns a block looks at, as in select.cu.
const selectPart = 8192

type selectArgs struct {
	ids, logp, keys, sums          Addr
	x                              In
	rows, cols, k, parts, ls, keep int32
}

// SelectScratch is the memory that ArgMax (k = 1) and TopK need between their two kernels.
func SelectScratch(rows, cols, k int) int {
	parts := (cols + selectPart - 1) / selectPart
	return rows * parts * (8*k + 8)
}

// mergeShared is the shared memory that every device has for a block without asking.
const mergeShared = 32 << 10

// MaxTopK bounds k of TopK: the kernels take that many rounds.
const MaxTopK = 256

// ArgMax finds the largest value of every row. With tensor cores, if rowsTo has an address,
// it also gets the rows: the sums of pieces.
func (s *Small) ArgMax(ls []Call, ids Addr, x In, rowsTo Out, rows, cols int, scratch Addr) []Call {
	a, shared := s.selection(ids, Out{}, x, rows, cols, 1, scratch)
	if s.noTensorCores {
		return s.choose(ls, kernelMaxOnly, &a, a, shared)
	}
	return s.choose(ls, kernelMaxParts, &maxArgs{selectArgs: a, rowsTo: rowsTo.P, stride: int32(rowsTo.Stride)}, a, shared)
}

type maxArgs struct {
	selectArgs
	rowsTo, groups Addr
	stride, _      int32
}

type candidateArgs struct {
	dst, keys, groups, sums, x, table Addr
	cols, parts, stride, _            int32
}

// CandidateScratch is the memory that Candidates needs between its kernels: the best of every part, the maxima of its
// groups, and its weight.
func CandidateScratch(rows, cols int) int {
	parts := (cols + selectPart - 1) / selectPart
	return rows * parts * (8 + 4*selectThreads + 8)
}

// selectThreads is the size of a block, each of whose threads has a group of columns.
const selectThreads = 256

// Candidates finds the largest values of every row of x, and with a table (weight.Table) the weight of the row. plain
// gets the rows if x has pieces, and is x otherwise.
func (s *Small) Candidates(ls []Call, dst Addr, x In, plain Out, rows, cols int, table, scratch Addr) []Call {
	parts := (cols + selectPart - 1) / selectPart
	n := Addr(rows * parts)
	a := candidateArgs{dst: dst, keys: scratch, sums: scratch + 8*n, groups: scratch + 16*n, x: plain.P, table: table,
		cols: int32(cols), parts: int32(parts), stride: int32(plain.Stride)}
	if table == 0 {
		a.sums = 0
	}
	first := maxArgs{selectArgs: selectArgs{keys: a.keys, x: x, rows: int32(rows), cols: int32(cols), k: 1,
		parts: int32(parts)}, groups: a.groups, stride: int32(plain.Stride)}
	if x.Groups > 0 {
		first.rowsTo = plain.P
	}
	ls = s.launch(ls, kernelGroups, [3]int{parts, rows, 1}, selectThreads, 64+4*(selectPart/256+1), &first)
	if table != 0 {
		ls = s.launch(ls, kernelWeights, [3]int{parts, rows, 1}, selectThreads, 64, &a)
	}
	shared := 8*backend.MaxCandidates + 4*256 + 16
	return s.launch(ls, kernelCandidates, [3]int{rows, 1, 1}, selectThreads, shared, &a)
}

// TopK finds the k largest values of every row and their log-softmax.
func (s *Small) TopK(ls []Call, ids Addr, logp Out, x In, rows, cols, k int, scratch Addr) ([]Call, error) {
	if k < 1 || k > MaxTopK {
		return ls, fmt.Errorf("the %d largest values of a row: want 1 to %d", k, MaxTopK)
	}
	a, shared := s.selection(ids, logp, x, rows, cols, k, scratch)
	return s.choose(ls, kernelTopParts, &a, a, shared), nil
}

// selection is the arguments of ArgMax and TopK, and the shared memory of their second kernel.
func (s *Small) selection(ids Addr, logp Out, x In, rows, cols, k int, scratch Addr) (a selectArgs, shared int) {
	parts := (cols + selectPart - 1) / selectPart
	a = selectArgs{ids, logp.P, scratch, scratch + Addr(8*rows*parts*k), x, int32(rows), int32(cols), int32(k),
		int32(parts), int32(logp.Stride), 0}
	shared = 4 * parts
	if n := 8 * parts * k; n <= mergeShared {
		a.keep = 1
		shared += n
	}
	return a, shared
}

// choose finds the best values of every part, then of every row.
func (s *Small) choose(ls []Call, kernel Kernel, first any, a selectArgs, shared int) []Call {
	ls = s.launch(ls, kernel, [3]int{int(a.parts), int(a.rows), 1}, 256, 64+4*(selectPart/256+1), first)
	return s.launch(ls, kernelMerged, [3]int{int(a.rows), 1, 1}, 32, shared, &a)
}
