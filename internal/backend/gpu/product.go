package gpu

import (
	"iter"
	"slices"
)

// Products chooses kernels for the products of a device: by the number of rows, the formats and the capability.
type Products struct {
	Units  int  // multiprocessors
	Shared int  // bytes of shared memory a block may have
	Bulk   bool // copies that complete on barriers, dependent launch (9.0 and later)
	Groups bool // products of warpgroups (9.0 alone)
	Ahead  int  // bytes of the next product's weights that a block asks for; 0: none
	// SelfPacks: products of few rows pack their input themselves; otherwise it is packed before.
	SelfPacks     bool
	NoTensorCores bool // see notensorcores.go
	Matrices      bool // without tensor cores: cooperative matrices instead of products of bytes, for many rows
}

// NewProducts returns the choices for a device.
func NewProducts(p Props) *Products {
	return &Products{Units: p.Units, Shared: p.SharedBlock, Bulk: p.Major >= 9, Groups: p.Major == 9 && p.Minor == 0,
		NoTensorCores: p.NoTensorCores, Matrices: p.Matrices, Ahead: askAhead, SelfPacks: true}
}

// askAhead is how much of the next product's weights a block asks for. With 64 KiB a layer of a 27B model took 1 % less
// for 8 to 32 rows and one of a 4B model up to 3 %, for one row the same; with 256 KiB a block delays those that still
// load.
const askAhead = 64 << 10

// selfPackedJobs is how many rows and stages of activations a block packs itself, at most: one for each of its 16
// warps. That took 0.6 us off a layer of a 27B model for one row and 1.6 off one of a 4B model; twice as much made a
// layer of the 27B 1.6 us slower for two rows.
const selfPackedJobs = 16

// mergedJobs is the same where it adds the splits of attention: two columns for each thread.
const mergedJobs = 4

// Bytes of activations: the halves of 256 columns for a tile of eight rows, and all of it; a tile of 64 for prompts
// has as much as eight.
const (
	actHalf0  = 2048
	actHalf1  = 2336
	actTile   = actHalf0 + actHalf1
	actPrompt = 8 * actTile
)

// ActLayout is how rows of activations are packed for products.
type ActLayout struct {
	Rows, Cols int
	NT         int // tiles of eight rows in a chunk; 0: tiles of 64 rows, for products of warpgroups; rowsLayout
}

// KB is the number of stages of 256 columns.
func (a ActLayout) KB() int { return (a.Cols + stageCols - 1) / stageCols }

// chunks is the number of parts that a product works on one after the other.
func (a ActLayout) chunks() int {
	if a.NT == 0 {
		return (a.Rows + 63) / 64
	}
	return (a.Rows + 8*a.NT - 1) / (8 * a.NT)
}

// Bytes is the memory the activations take.
func (a ActLayout) Bytes() int {
	switch a.NT {
	case 0:
		return a.chunks() * a.KB() * actPrompt
	case rowsLayout:
		return a.Rows * a.KB() * actRow
	}
	return a.chunks() * a.KB() * a.NT * actTile
}

// SumsBytes is the memory for the sums of squares that AddPack leaves.
func (a ActLayout) SumsBytes() int { return a.Rows * a.KB() * 4 }

// groupRows is the number of rows from which products of warpgroups are faster.
const groupRows = 41

// groupFormat reports whether a format has kernels for products of warpgroups: those whose sums are scaled once for 256
// columns.
func groupFormat(f Format) bool {
	return f == TileQ4K || f == TileQ5K || f == TileQ6K || f == TileQ3K || f == TileNV4
}

// Acts returns how rows of activations are packed for products with all of these matrices.
func (p *Products) Acts(rows int, ws ...WeightLayout) ActLayout {
	a := ActLayout{Rows: rows, Cols: ws[0].Cols}
	if p.NoTensorCores {
		a.NT = rowsLayout
		return a
	}
	other := func(w WeightLayout) bool { return !groupFormat(w.Format) }
	if p.Groups && rows >= groupRows && !slices.ContainsFunc(ws, other) {
		return a
	}
	a.NT = p.tiles(rows, ws)
	return a
}

// tiles is the number of tiles of eight rows in a chunk: those of a kernel that exists and finds room in shared memory.
func (p *Products) tiles(rows int, ws []WeightLayout) int {
	sizes := pipeTiles
	if p.Bulk {
		sizes = soloTiles(setOf(ws))
	}
	best := 1
	for _, nt := range sizes {
		if p.depth(nt, ws) < 2 {
			break
		}
		best = nt
		if 8*nt >= rows {
			break
		}
	}
	return best
}

// Bytes of shared memory in front of a ring: barriers and factors, or factors alone.
const (
	soloFront = 1024
	pipeFront = 256
)

// slot is the size of half a stage with its activations, for the largest of the formats.
func slot(nt int, ws []WeightLayout) int {
	n := 0
	for _, w := range ws {
		n = max(n, strips*max(tileHalves[w.Format][0], tileHalves[w.Format][1])+nt*actHalf1)
	}
	return n
}

// depth is how many slots the ring of a kernel has.
func (p *Products) depth(nt int, ws []WeightLayout) int {
	if p.Bulk {
		return min(8, (p.Shared-soloFront)/slot(nt, ws))
	}
	if depth, _, _ := p.ownRing(nt, ws); depth > 0 {
		return depth
	}
	return min(4, (p.Shared-pipeFront)/slot(nt, ws))
}

// ownRing is how a product whose warps copy their own tiles uses shared memory: the depth of the rings, how many stages
// of activations are copied at a time, to one of two places, and the bytes of all. Four halves keep enough copies under
// way; more activations at a time mean fewer barriers. Activations are asked for one part ahead, as early as the ring
// is deep at least. The depth is 0 where there is no such kernel, or no room for it: all warps share a ring then.
func (p *Products) ownRing(nt int, ws []WeightLayout) (depth, stages, shared int) {
	if !slices.Contains(ownTiles, nt) {
		return 0, 0, 0
	}
	tile := 0
	for _, w := range ws {
		tile = max(tile, tileHalves[w.Format][0], tileHalves[w.Format][1])
	}
	for n := 4; n >= 1; n /= 2 {
		acts := 2 * n * nt * actTile
		if d := min(8, 2*n+1, (p.Shared-pipeFront-acts)/(strips*tile)); min(d, 4) > min(depth, 4) {
			depth, stages, shared = d, n, pipeFront+acts+d*strips*tile
		}
	}
	if depth < 2 {
		return 0, 0, 0
	}
	return depth, stages, shared
}

// maxPieces bounds the pieces of a row. The kernel that reads the result adds them.
const maxPieces = 10

// Cut deals the multiprocessors to matrices that are multiplied in one launch, by their bytes: how many blocks each
// gets. This decides where its sums are cut, so it belongs to the matrix and not to a batch.
//
// A device without tensor cores says three for every two multiprocessors: six workgroups of a product fit on one, if
// they have few registers. Those of Q6_K have more, and four fit. With as many as fit an H200 takes 27.0 instead of
// 29.1 us for one row, 8.23 instead of 8.41 ms for a pass of a 27B model, but 11.96 instead of 11.75 for one of eight
// rows.
func (p *Products) Cut(ws ...WeightLayout) []int {
	total, units := 0, p.Units
	for _, w := range ws {
		total += w.MatrixBytes()
	}
	if p.NoTensorCores && !slices.ContainsFunc(ws, func(w WeightLayout) bool { return w.Format != TileQ6K }) {
		units = max(1, units*2/3)
	}
	left := units
	blocks := make([]int, len(ws))
	if len(ws) == 1 {
		if n := p.cluster(ws[0]); n > 0 {
			return []int{n * ws[0].Groups()}
		}
	}
	for i, w := range ws {
		n := max(1, (w.MatrixBytes()*units+total/2)/total)
		if i == len(ws)-1 {
			n = max(1, left)
		}
		left -= n
		blocks[i] = min(n, maxPieces*w.Groups(), w.Groups()*w.Stages())
	}
	return blocks
}

// A cluster lies within one part of a device. There are at least clusterParts parts of clusterUnits multiprocessors.
// Every device allows clusters of clusterMost blocks; with fewer than clusterLeast too few multiprocessors would work.
const (
	clusterParts              = 8
	clusterUnits              = 16
	clusterMost, clusterLeast = 8, 4
)

// cluster is how many blocks share each group of a matrix that is multiplied by itself, so that they can be a cluster:
// 0 if there is no room for all of them at once, or if a block had more to do than without. With a stage more for each
// block, as the products of 9216 columns of a 4B model would have, a pass of one row took 1 % to 3 % longer.
func (p *Products) cluster(w WeightLayout) int {
	if !p.Groups || p.Units < clusterParts*clusterUnits {
		return 0
	}
	total := w.Groups() * w.Stages()
	blocks := min(p.Units, maxPieces*w.Groups(), total)
	for n := min(clusterMost, w.Stages()); n >= clusterLeast; n-- {
		if w.Groups() <= clusterParts*(clusterUnits/n) && (w.Stages()+n-1)/n <= (total+blocks-1)/blocks {
			return n
		}
	}
	return 0
}

// clusterThen has the product that was launched last add its results to a residual stream, and pack them, if it can:
// the blocks of a group must be a cluster, which reads pieces in shared memory instead of leaving them.
func (p *Products) clusterThen(ls []Call, t addPackArgs) bool {
	if len(ls) == 0 || !p.Groups || t.w == 0 || t.rows > 8 || t.act.p == 0 || t.dst == 0 {
		return false
	}
	c := &ls[len(ls)-1]
	k, ok := c.Kernel.(soloProduct)
	if !ok || !k.selfPacked || k.then {
		return false
	}
	a := productOf(c)
	j := &a.job[0]
	n := int(j.blocks / j.groups)
	out := Out{t.dst, int(t.dstStride)}
	if j.part != t.y.P || t.y.First != 0 || t.cols != 256*j.groups || t.rows != a.n || j.blocks != int32(n)*j.groups ||
		n < clusterLeast || n > clusterMost || t.x.Groups > 0 || !t.x.aligned() || !out.aligned() || t.w%16 != 0 {
		return false
	}
	const room = 3 << 10 // for the norm's weights and the rows that a block adds to
	slot := slot(0, []WeightLayout{{Format: Format(j.format)}})
	if c.Shared += room; c.Shared > p.Shared {
		a.depth--
		c.Shared -= slot
	}
	k.then = true
	c.Kernel, c.Cluster = k, n
	switch a := c.Args.(type) {
	case *selfPackedArgs:
		c.Args = &selfPackedThenArgs{*a, t}
	case *mergedArgs:
		c.Args = &mergedThenArgs{*a, t}
	}
	return true
}

// MatMulJob is one matrix of a launch.
type MatMulJob struct {
	WeightLayout
	W      Addr
	Blocks int     // what Cut gave it
	Scale  float32 // of the results
	Part   Addr    // where the pieces go
}

// Result describes the pieces of the job's product with so many rows.
func (j *MatMulJob) Result(rows int) In { return ResultOf(j.WeightLayout, j.Blocks, rows, j.Part) }

// ResultOf describes the pieces of a product.
func ResultOf(w WeightLayout, blocks, rows int, part Addr) In {
	return In{P: part, Groups: int32(w.Groups()), KB: int32(w.Stages()), Grid: int32(blocks), N: int32(rows)}
}

// PieceBytes is the memory that the pieces of a product take.
func PieceBytes(in In) int { return in.Pieces() * int(in.N) * int(in.Groups) * stageRows * 4 }

// MatMulInput is packed activations.
type MatMulInput struct {
	ActLayout
	P          Addr
	Sums       Addr        // sums of squares, if results are to be divided by the root mean square of the rows
	Eps        float32     // of that
	SelfPacked *SelfPacked // the product packs the rows itself: there is no address
}

// SelfPacked is rows that a product computes and packs itself instead of reading them packed.
type SelfPacked struct {
	Kind      PackKind
	X, Gate   In
	W         Addr // of the norm of heads
	Dim, Step int  // heads have Dim values, and their gates begin Step values after each other; 0: no heads
	Eps       float32
	Splits    *Splits // X is attention's output with some rows still in splits; nil: it is not
}

// Splits is where attention left the partial results of rows, as in splits.h.
type Splits struct {
	part, ml, sinks, seen Addr
	heads, dim            int32
}

// PackKind is what is packed.
type PackKind int32

// The kinds, as in pack.h.
const (
	PackRows    PackKind = iota // X
	PackSiLU                    // silu(Gate) * X
	PackGELU                    // gelu(Gate) * X
	PackSigmoid                 // X * sigmoid(Gate), head by head
	PackHeads                   // RMSNorm of the heads of X, times W and silu(Gate)
)

type makeArgs struct {
	x, gate    In
	w          Addr
	kind, cols int32
	dim, step  int32
	eps        float32
	_          int32
}

type selfPackedArgs struct {
	productArgs
	make makeArgs
}

type mergedArgs struct {
	selfPackedArgs
	splits Splits
}

type selfPackedThenArgs struct {
	selfPackedArgs
	then addPackArgs
}

type mergedThenArgs struct {
	mergedArgs
	then addPackArgs
}

// CanSelfPack reports whether a product of so many rows with w, cut over so many blocks, can pack its own input: it
// must be little for every block, which shares it with none.
func (p *Products) CanSelfPack(m *SelfPacked, rows int, w WeightLayout, blocks int) bool {
	jobs := selfPackedJobs
	if m.Splits != nil {
		if jobs = mergedJobs; w.Format != TileQ4K { // no other format has such a kernel
			return false
		}
	}
	return p.Bulk && p.SelfPacks && setOf([]WeightLayout{w}) != setAll && rows <= 8 &&
		rows*selfPackedStages(w, blocks) <= jobs &&
		p.selfPackedDepth(w, blocks) >= 4 && w.Cols%8 == 0 &&
		m.X.fast() && (m.Gate.P == 0 || m.Gate.fast()) && (m.Kind != PackSigmoid || m.Dim%8 == 0 && m.Step%8 == 0)
}

// selfPackedStages is the largest number of stages of activations that a block has.
func selfPackedStages(w WeightLayout, blocks int) int {
	return min(w.Stages(), (w.Groups()*w.Stages()+blocks-1)/blocks)
}

// selfPackedFront is what lies in front of the ring of a product that makes its activations.
func selfPackedFront(w WeightLayout, blocks int) int {
	return soloFront + (selfPackedStages(w, blocks)*actTile+127)&^127
}

func (p *Products) selfPackedDepth(w WeightLayout, blocks int) int {
	return min(8, (p.Shared-selfPackedFront(w, blocks))/slot(0, []WeightLayout{w}))
}

// fast reports whether kernels can read eight columns at a time.
func (in In) fast() bool { return in.aligned() && (in.Groups == 0 || in.First%8 == 0) }

// maxJobs is the number of matrices of one launch.
const maxJobs = 8

type productJob struct {
	w, part        Addr
	groups, blocks int32
	format, table  int32
	scale          float32
	_              int32
}

type productNext struct {
	w              Addr
	stages, blocks int32
	bytes, most    int32
}

type productArgs struct {
	job        [maxJobs]productJob
	next       [2]productNext
	act, sumsq Addr
	eps, mean  float32
	kb, n      int32
	depth      int32
	most       int32
}

// product is the part that all arguments of a soloProduct begin with.
func (a *productArgs) product() *productArgs { return a }

func productOf(c *Call) *productArgs { return c.Args.(interface{ product() *productArgs }).product() }

// MatMul appends the products of x with all matrices, which have its columns.
func (p *Products) MatMul(ls []Call, x MatMulInput, jobs ...MatMulJob) []Call {
	for len(jobs) > maxJobs {
		ls = p.MatMul(ls, x, jobs[:maxJobs]...)
		jobs = jobs[maxJobs:]
	}
	if p.NoTensorCores {
		return p.rowsMatMul(ls, x, jobs)
	}
	if x.NT == 0 {
		return p.prompt(ls, x, jobs)
	}
	if x.SelfPacked != nil {
		return append(ls, p.selfPacked(x, jobs[0]))
	}
	a, grid, ws := productArgsOf(x, jobs)
	a.depth = int32(p.depth(x.NT, ws))
	c := Call{soloProduct{set: setOf(ws), tiles: x.NT}, &a, Config{Grid: [3]int{grid, x.chunks(), 1}, Threads: 512,
		Shared: soloFront + int(a.depth)*slot(x.NT, ws), Early: p.Bulk}}
	if !p.Bulk {
		c.Kernel, c.Shared = pipeProduct{tiles: x.NT}, pipeFront+int(a.depth)*slot(x.NT, ws)
		if depth, stages, shared := p.ownRing(x.NT, ws); depth > 0 {
			a.most, c.Kernel, c.Shared = int32(stages), pipeProduct{tiles: x.NT, own: true}, shared
		}
	}
	return append(ls, c)
}

// selfPacked is the product of rows that it packs itself.
func (p *Products) selfPacked(x MatMulInput, j MatMulJob) Call {
	a, grid, ws := productArgsOf(x, []MatMulJob{j})
	a.depth, a.most = int32(p.selfPackedDepth(j.WeightLayout, j.Blocks)), int32(selfPackedStages(j.WeightLayout, j.Blocks))
	m := *x.SelfPacked
	if m.Dim == 0 {
		m.Dim = max(8, x.Cols)
	}
	if m.Step == 0 {
		m.Step = m.Dim
	}
	args := selfPackedArgs{a, makeArgs{x: m.X, gate: m.Gate, w: m.W, kind: int32(m.Kind), cols: int32(x.Cols),
		dim: int32(m.Dim), step: int32(m.Step), eps: m.Eps}}
	k := soloProduct{set: setOf(ws), selfPacked: true}
	c := Call{k, &args, Config{Grid: [3]int{grid, 1, 1}, Threads: 512, Early: true,
		Shared: selfPackedFront(j.WeightLayout, j.Blocks) + int(a.depth)*slot(0, ws)}}
	if m.Splits != nil {
		k.merged = true
		c.Kernel, c.Args = k, &mergedArgs{args, *m.Splits}
	}
	return c
}

// setOf is the smallest set of kernels that has all formats.
func setOf(ws []WeightLayout) formatSet {
	set := setQ4K
	for _, w := range ws {
		switch w.Format {
		case TileQ4K:
		case TileQ5K, TileQ6K:
			set = setK
		default:
			return setAll
		}
	}
	return set
}

// LookAhead tells products of a list what the product after them reads first, if they are of the kind that asks for it.
func (p *Products) LookAhead(ls []Call) {
	if p.Ahead == 0 {
		return
	}
	var next *productArgs
	for i := len(ls) - 1; i >= 0; i-- {
		switch k := ls[i].Kernel.(type) {
		case soloProduct:
			a := productOf(&ls[i])
			if next != nil {
				for k := range a.next {
					j := &next.job[k]
					a.next[k] = productNext{j.w, j.groups * next.kb, j.blocks, int32(Format(j.format).stageBytes()), int32(p.Ahead)}
				}
			}
			next = a
		case promptProduct, pipeExperts:
			next = nil // they read much in between
		case *single:
			if k == kernelGroup || k == kernelMixPack || k == kernelMixNorm { // and so do experts
				next = nil
			}
		}
	}
}

func productArgsOf(x MatMulInput, jobs []MatMulJob) (a productArgs, grid int, ws []WeightLayout) {
	a = productArgs{act: x.P, sumsq: x.Sums, eps: x.Eps, mean: 1 / float32(x.Cols), kb: int32(x.KB()), n: int32(x.Rows)}
	for i, j := range jobs {
		a.job[i] = productJob{w: j.W, part: j.Part, groups: int32(j.Groups()), blocks: int32(j.Blocks),
			format: int32(j.Format), table: int32(j.Table), scale: j.Scale * j.one()}
		grid += j.Blocks
		ws = append(ws, j.WeightLayout)
	}
	return a, grid, ws
}

// wideRows is the number of rows from which the kernel with tiles of 128 rows is faster than that with 64.
const wideRows = 65

// byFormat goes through jobs by the format of their weights.
func byFormat(jobs []MatMulJob) iter.Seq2[Format, []MatMulJob] {
	return func(yield func(Format, []MatMulJob) bool) {
		for f := range tileFormats {
			of := slices.DeleteFunc(slices.Clone(jobs), func(j MatMulJob) bool { return j.Format != f })
			if len(of) > 0 && !yield(f, of) {
				return
			}
		}
	}
}

// prompt appends products of warpgroups, one launch for each format.
func (p *Products) prompt(ls []Call, x MatMulInput, jobs []MatMulJob) []Call {
	for f, of := range byFormat(jobs) {
		a, grid, _ := productArgsOf(x, of)
		k, threads, tiles, parts := promptProduct{format: f}, 512, 1, 1
		if x.Rows >= wideRows {
			k.wide, threads, tiles = true, 256, 2
			parts = max(1, min(p.Units/grid, (x.Rows+127)/128))
		}
		const activations = 16384 + 2304 // of a half, for 64 rows
		one := (tiles*activations + strips/tiles*tileHalves[f][1] + 1023) &^ 1023
		a.depth = int32(min(8, (p.Shared-2048)/one))
		ls = append(ls, Call{k, &a, Config{Grid: [3]int{grid, parts, 1}, Threads: threads,
			Shared: 2048 + int(a.depth)*one, Early: true}})
	}
	return ls
}

type embedArgs struct {
	dst, w, ids Addr
	stride      int32
	rows, cols  int32 // of the matrix
	n           int32
	format      int32
	table       int32
	scale       float32
	_           int32
}

// Embed appends the look-up of n rows: dst[i] = scale * row ids[i]. Rows that do not exist are zero.
func (p *Products) Embed(ls []Call, dst Addr, stride int, l WeightLayout, w, ids Addr, n int,
	scale float32) []Call {
	a := embedArgs{dst: dst, w: w, ids: ids, stride: int32(stride), rows: int32(l.Rows), cols: int32(l.Cols), n: int32(n),
		format: int32(l.Format), table: int32(l.Table), scale: scale * l.one()}
	return append(ls, Call{kernelEmbed, &a, Config{Grid: [3]int{l.Stages(), n, 1}, Threads: 256, Early: p.Bulk}})
}
