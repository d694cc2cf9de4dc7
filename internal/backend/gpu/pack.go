package gpu

import "math/bits"

// Packed is where a kernel leaves packed activations.
type Packed struct {
	ActLayout
	P Addr
}

// act mirrors Act of pack.h.
type actArgs struct {
	p      Addr
	kb, nt int32
}

func (a *Packed) args() actArgs { return actArgs{a.P, int32(a.KB()), int32(a.NT)} }

// small is the launch of a kernel between products, with a warp for each row and 256 columns. Blocks have two warps, so
// that they find room beside a product that runs; for few rows there are at most two of them for each multiprocessor,
// which leaves room for the next product. Without tensor cores a block has one row and 256 columns at a time.
func (p *Products) small(k Kernel, a *Packed, args any) Call {
	grid := min(2*p.Units*(1+a.Rows/9), (a.Rows*a.KB()+1)/2)
	if p.NoTensorCores {
		grid = min(maxGroups, a.Rows*a.KB())
	}
	return Call{k, args, Config{Grid: [3]int{grid, 1, 1}, Threads: 64, Early: p.Bulk}}
}

func asInt(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

type packArgs struct {
	act                actArgs
	x                  In
	rows, cols, div, _ int32
}

// Pack appends the packing of rows of x: row r is row r/div of x.
func (p *Products) Pack(ls []Call, to Packed, x In, div int) []Call {
	a := packArgs{to.args(), x, int32(to.Rows), int32(to.Cols), int32(div), 0}
	return append(ls, p.small(kernelPack, &to, &a))
}

type addPackArgs struct {
	act                      actArgs
	x, y                     In
	dst, w, sumsq            Addr
	dstStride, rows, cols, _ int32
}

// Sum is a sum of rows that is packed: dst = x + y, where y and dst may be missing.
type Sum struct {
	X, Y      In
	Dst       Addr
	DstStride int
	W         Addr // the norm's weights, or 0
	Sums      Addr // gets the sums of squares
	Last      bool // nothing else reads Y
}

func (s *Sum) args(to *Packed) addPackArgs {
	return addPackArgs{to.args(), s.X, s.Y, s.Dst, s.W, s.Sums, int32(s.DstStride), int32(to.Rows), int32(to.Cols), 0}
}

// AddPack appends a residual addition whose sum is stored, multiplied with the norm's weights and packed. The product
// divides by the root mean square.
func (p *Products) AddPack(ls []Call, to Packed, s Sum) []Call {
	a := s.args(&to)
	if s.Last && p.clusterThen(ls, a) {
		return ls
	}
	return append(ls, p.small(kernelAddPack, &to, &a))
}

type addNormArgs struct {
	p         addPackArgs
	out       Addr
	outStride int32
	eps, mean float32
	_         int32
}

// AddNorm is AddPack that also writes the normalised rows; nothing is packed if to has no address.
func (p *Products) AddNorm(ls []Call, to Packed, s Sum, out Addr, outStride int, eps float32) []Call {
	a := addNormArgs{p: s.args(&to), out: out, outStride: int32(outStride), eps: eps, mean: 1 / float32(to.Cols)}
	return append(ls, Call{kernelAddNorm, &a, p.rowBlocks(to)})
}

// rowBlocks has a block for each row, with a warp for each 256 columns.
func (p *Products) rowBlocks(to Packed) Config {
	return Config{Grid: [3]int{min(to.Rows, 4*p.Units), 1, 1}, Threads: 32 * min(16, to.KB()), Early: p.Bulk}
}

type gatedPackArgs struct {
	act                 actArgs
	gate, up            In
	rows, cols, gelu, _ int32
}

// GatedPack appends act(gate) * up, packed.
func (p *Products) GatedPack(ls []Call, to Packed, gate, up In, gelu bool) []Call {
	a := gatedPackArgs{to.args(), gate, up, int32(to.Rows), int32(to.Cols), asInt(gelu), 0}
	return append(ls, p.small(kernelGatedPack, &to, &a))
}

type sigmoidPackArgs struct {
	act           actArgs
	x, gate       In
	rows, cols, _ int32
	dim, step     int32
	_             int32
}

// SigmoidPack appends x * sigmoid(gate), packed. Heads of x have dim values, a multiple of 8, and their gates begin
// step values after each other.
func (p *Products) SigmoidPack(ls []Call, to Packed, x, gate In, dim, step int) []Call {
	a := sigmoidPackArgs{act: to.args(), x: x, gate: gate, rows: int32(to.Rows), cols: int32(to.Cols),
		dim: int32(dim), step: int32(step)}
	return append(ls, p.small(kernelSigmoidPack, &to, &a))
}

type mergePackArgs struct {
	act                   actArgs
	gate                  In
	x                     Addr
	part, ml, sinks, seen Addr
	stride, rows, cols    int32
	dim, step             int32
	_                     int32
}

// MergePack is SigmoidPack for an attention output that has some rows still in splits, without tensor cores.
func (p *Products) MergePack(ls []Call, to Packed, s *Splits, x, gate In, step int) []Call {
	a := mergePackArgs{act: to.args(), gate: gate, x: x.P, part: s.part, ml: s.ml, sinks: s.sinks, seen: s.seen,
		stride: x.Stride, rows: int32(to.Rows), cols: int32(to.Cols), dim: s.dim, step: int32(step)}
	return append(ls, p.small(kernelMergePack, &to, &a))
}

type headPackArgs struct {
	act                actArgs
	x, gate            In
	w                  Addr
	rows, cols, dim, _ int32
	eps, mean          float32
}

// CanHeadPack reports whether HeadPack takes heads of dim values.
func CanHeadPack(dim int) bool {
	return dim >= 16 && dim <= stageCols && bits.OnesCount(uint(dim)) == 1
}

// HeadPack appends the RMSNorm of every head, times w and silu(gate), packed.
func (p *Products) HeadPack(ls []Call, to Packed, x, gate In, w Addr, dim int, eps float32) []Call {
	a := headPackArgs{to.args(), x, gate, w, int32(to.Rows), int32(to.Cols), int32(dim), 0, eps, 1 / float32(dim)}
	return append(ls, p.small(kernelHeadPack, &to, &a))
}

type reduceArgs struct {
	x                  In
	dst                Addr
	stride, rows, cols int32
	_                  int32
}

// Reduce appends the addition of pieces to plain rows.
func (p *Products) Reduce(ls []Call, dst Addr, stride int, x In, rows, cols int) []Call {
	size := Packed{ActLayout: ActLayout{Rows: rows, Cols: cols}}
	a := reduceArgs{x: x, dst: dst, stride: int32(stride), rows: int32(rows), cols: int32(cols)}
	return append(ls, p.small(kernelReduce, &size, &a))
}
