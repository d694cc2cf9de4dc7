package gpu

import "strobe/internal/quant"

// Bytes of a row of 256 columns of activations for experts, and of its larger half.
const (
	actRow     = 576
	actRowHalf = 320
)

// rowsLayout marks activations that lie row by row.
const rowsLayout = -1

// ExpertActs returns how rows of activations are packed for products with stacks of experts: row by row, since which
// rows meet in a tile is only known when experts are chosen.
func (p *Products) ExpertActs(rows int, ws ...WeightLayout) ActLayout {
	return ActLayout{Rows: rows, Cols: ws[0].Cols, NT: rowsLayout}
}

// expertTiles is the number of tiles of eight pairs that share one reading of an expert: enough for twice what
// experts have on average.
func expertTiles(pairs, experts int) int {
	if pairs > 4*experts {
		return 4
	}
	return 1
}

// expertItems bounds the work items of pairs: the experts that are chosen, and more where tiles are full.
func expertItems(pairs, experts int) int { return min(pairs, experts) + pairs/8 }

// ExpertTableBytes is the memory for the tables that GroupExperts makes, in whole units of what is copied at a time.
func ExpertTableBytes(pairs, experts int) int {
	return (4*(4+4*expertItems(pairs, experts)+pairs) + 15) &^ 15
}

type groupArgs struct {
	tables, ids                Addr
	pairs, experts, tile, most int32
}

func groupsOf(tables, ids Addr, pairs, experts int) groupArgs {
	return groupArgs{tables, ids, int32(pairs), int32(experts), int32(8 * expertTiles(pairs, experts)),
		int32(expertItems(pairs, experts))}
}

// GroupExperts appends the grouping of pairs of a row and an expert by their experts; ids[t*used+j] is the j-th
// expert of row t.
func (p *Products) GroupExperts(ls []Call, tables, ids Addr, pairs, experts int) []Call {
	a := groupsOf(tables, ids, pairs, experts)
	if p.NoTensorCores {
		a.tile = pairsAtOnce
	}
	const sums = 8 * 1024 / 32 // of the warps
	return append(ls, Call{kernelGroup, &a, Config{Grid: [3]int{1, 1, 1}, Threads: 1024,
		Shared: (4*experts+15)&^15 + sums, Early: p.Bulk}})
}

// maxCuts bounds the pieces of an expert's row. The kernel that reads the result adds them.
const maxCuts = 12

// ExpertCut says in how many pieces the matrices of a launch cut their columns, those of the experts and of the one
// that all rows share (if there is one), so that one row alone, with so many experts, is dealt evenly to the
// multiprocessors, which both share by their bytes. It depends on the matrices alone.
func (p *Products) ExpertCut(experts int, ws, shared []WeightLayout) (cuts, sharedCuts int) {
	one, two := 0, 0
	for _, w := range ws {
		one += experts * w.MatrixBytes()
	}
	for _, w := range shared {
		two += w.MatrixBytes()
	}
	units := (two*p.Units + one + two - 1) / (one + two)
	return cutFor(max(1, p.Units-units), experts, ws), cutFor(units, 1, shared)
}

// cutFor deals experts to so many multiprocessors. A piece more, which every reader must add, is worth half a stage
// that no multiprocessor has to wait for.
func cutFor(units, experts int, ws []WeightLayout) int {
	groups, stages := 0, 0
	for _, w := range ws {
		groups, stages = groups+w.Groups(), w.Stages()
	}
	best, least := 1, 0
	for cuts := 1; cuts <= min(stages, maxCuts); cuts++ {
		most := (experts*groups*cuts + units - 1) / units * ((stages + cuts - 1) / cuts) // stages that one may get
		if cost := 2*most + cuts; least == 0 || cost < least {
			best, least = cuts, cost
		}
	}
	return best
}

// ExpertJob is one stack of a launch, or a matrix of the expert that all rows share.
type ExpertJob struct {
	WeightLayout
	W      Addr
	Cuts   int     // what ExpertCut gave it
	Scale  float32 // of the results
	Scales Addr    // of the results of each expert; 0 for none
	Part   Addr    // where the pieces go
}

// Result describes the pieces of the job's product: a row for every pair.
func (j *ExpertJob) Result(pairs int) In {
	return ResultOf(j.WeightLayout, j.Groups()*j.Cuts, pairs, j.Part)
}

// ExpertProduct is a launch of products with experts: row t*used+j of each result is W[ids[t*used+j]] x.
type ExpertProduct struct {
	X      MatMulInput // has a row for each t, or for each pair; without an address:
	Gated  [2]GatedRows
	Shared MatMulInput // X of the expert that all rows share
	GELU   bool
	Tables Addr
	Choice *Router // without tables: of one row. Every block chooses for itself, or knows it from the product before
	Pairs  int
	Early  bool           // tables or logits were complete before the launch before this one began
	Jobs   [2][]ExpertJob // of the experts, and of the one that all rows share: one or two, alike in their format
}

// GatedRows is a product's input that its kernel makes itself: act(Gate) * Up. There are those of the pairs and those
// of the rows, for the shared expert.
type GatedRows struct{ Gate, Up In }

type expertJob struct {
	w, part, scales     Addr
	groups, cuts, table int32
	scale               float32
}

func (j ExpertJob) args() expertJob {
	return expertJob{j.W, j.Part, j.Scales, int32(j.Groups()), int32(j.Cuts), int32(j.Table), j.Scale * j.one()}
}

// expertArgs mirrors MoeArgs of moe.h.
type expertArgs struct {
	job          [4]expertJob
	act          [2]Addr
	gated        [2]GatedRows
	tables       Addr
	route        routeArgs
	sumsq        [2]Addr
	jobs, format [2]int32
	halves       [2][2]int32
	cost         [2]int32
	rows, pairs  int32
	div, most    int32
	kb           [2][2]int32 // and columns
	kept, depth  int32
	gelu, early  int32
	eps, mean    [2]float32
}

// Shared memory of the kernels: what lies in front of the tables, and how much of them may lie there.
const (
	expertFront  = 2048
	expertTables = 8 << 10
)

// alike reports whether matrices can be in one launch.
func alike(a, b WeightLayout) bool { return a.Format == b.Format && a.Table == b.Table }

// ExpertMatMul appends products of packed rows, two in a launch where that is possible.
func (p *Products) ExpertMatMul(ls []Call, x MatMulInput, tables Addr, pairs int, jobs ...ExpertJob) []Call {
	for len(jobs) > 0 {
		n := 1
		if len(jobs) > 1 && alike(jobs[0].WeightLayout, jobs[1].WeightLayout) {
			n = 2
		}
		if p.NoTensorCores {
			ls = append(ls, rowsExpertsCall(x, tables, pairs, jobs[:n]))
			jobs = jobs[n:]
			continue
		}
		ls = p.Experts(ls, ExpertProduct{X: x, Tables: tables, Pairs: pairs, Jobs: [2][]ExpertJob{jobs[:n]}})
		jobs = jobs[n:]
	}
	return ls
}

// Experts appends one launch.
func (p *Products) Experts(ls []Call, e ExpertProduct) []Call {
	first := e.Jobs[0][0]
	x, nt := e.X, expertTiles(e.Pairs, first.Experts)
	a := expertArgs{gated: e.Gated, tables: e.Tables, rows: int32(x.Rows), pairs: int32(e.Pairs),
		div: int32(e.Pairs / x.Rows), most: int32(expertItems(e.Pairs, first.Experts)), gelu: asInt(e.GELU)}
	slot, ws := 0, []WeightLayout{}
	for i, jobs := range e.Jobs {
		if len(jobs) == 0 {
			continue
		}
		bytes, x := 0, [2]MatMulInput{e.X, e.Shared}[i]
		a.act[i], a.sumsq[i], a.kb[i] = x.P, x.Sums, [2]int32{int32(x.KB()), int32(x.Cols)}
		a.eps[i], a.mean[i] = x.Eps, 1/float32(x.Cols)
		for k, j := range jobs {
			a.job[2*i+k] = j.args()
			bytes += j.MatrixBytes()
			slot = max(slot, strips*max(tileHalves[j.Format][0], tileHalves[j.Format][1]))
			ws = append(ws, j.WeightLayout)
			a.format[i] = int32(j.Format)
			a.halves[i] = [2]int32{int32(tileHalves[j.Format][0]), int32(tileHalves[j.Format][1])}
		}
		a.jobs[i], a.cost[i] = int32(len(jobs)), int32((bytes+1023)>>10)
	}
	if x.P != 0 {
		slot += nt * 8 * actRowHalf
	}
	if !p.Bulk {
		a.depth = int32(min(4, p.Shared/slot))
		return append(ls, Call{pipeExperts{tiles: nt}, &a, Config{Grid: [3]int{p.Units, 1, 1}, Threads: 512,
			Shared: int(a.depth) * slot}})
	}
	front := expertFront
	if x.P == 0 {
		front += int(max(a.kb[0][0], a.kb[1][0])) * 8 * actRow
	}
	if n := ExpertTableBytes(e.Pairs, first.Experts); n <= expertTables && front+n+2*slot <= p.Shared {
		a.kept, a.early = int32(n), asInt(e.Early) // others are read where they lie, past no cache
		front += n
	}
	if e.Choice != nil {
		a.route = e.Choice.routes(1)
	}
	k := expertProduct{set: setOf(ws), tiles: nt}
	if k.set == setQ4K {
		k.set = setK
	}
	if x.P == 0 {
		k.tiles, k.gated, k.choose = 0, true, e.Choice != nil
	}
	a.depth = int32(min(8, (p.Shared-front)/slot) &^ 1)
	return append(ls, Call{k, &a, Config{Grid: [3]int{p.Units, 1, 1}, Threads: 544,
		Shared: front + int(a.depth)*slot, Early: true}})
}

// canGate reports whether tables and the rows of eight pairs fit beside a ring, for products with ws.
func (p *Products) canGate(ws ...WeightLayout) bool {
	slot, stages := 0, 0
	for _, w := range ws {
		slot = max(slot, strips*max(tileHalves[w.Format][0], tileHalves[w.Format][1]))
		stages = max(stages, w.Stages())
	}
	return expertFront+expertTables+stages*8*actRow+2*slot <= p.Shared
}

// Router is a product with float32 weights that chooses experts: their numbers, weights and tables.
type Router struct {
	W       FloatMatrix
	X       Out // its input
	Norm    RowNorm
	Logits  Out
	Gate    FloatMatrix // one more row with the same input; no address for none
	GateOut Out
	IDs     Addr
	Weights Out
	Tables  Addr
	Counter Addr // RouterCounters integers that are zero between launches
	Used    int
	Scale   float32
}

// RowNorm makes the router's input on the way: X * W / rms(X) * Scale. Without sums the input is X.
type RowNorm struct {
	W          Addr // aligned to quads
	Sums       Addr // of squares, as AddPack left them
	Eps, Scale float32
}

// normArgs mirrors NormArgs of route.cu.
type normArgs struct {
	w, sums          Addr
	kb, cols         int32
	eps, mean, scale float32
	_                int32
}

// routerArgs mirrors RouterArgs of route.cu.
type routerArgs struct {
	router, gate floatArgs
	route        routeArgs
	group        groupArgs
	norm         normArgs
	counter      Addr
}

// RouterCounters is for every eight rows that experts are chosen for at once, and one more.
const RouterCounters = 1 + mixtureRows/8

// routes are the arguments of the choice for n rows.
func (r *Router) routes(n int) routeArgs {
	return routeArgs{r.IDs, r.Weights.P, Rows(r.Logits.P, r.Logits.Stride), int32(n), int32(r.W.Rows), int32(r.Used),
		int32(r.Weights.Stride), r.Scale}
}

// Alone reports whether the blocks that multiply with the experts of n rows choose them, each for itself. They have a
// lane for each expert that is chosen, and 16 registers in each for all of them.
func (r *Router) Alone(n int) bool {
	return n == 1 && r.Used <= 32 && r.W.Rows <= 16*32 && r.W.Rows%4 == 0 && r.Logits.P%16 == 0 &&
		r.Weights.Stride == r.Used
}

// CanRoute reports whether there is a kernel for such a router, which sums as Floats.Product does.
func (p *Products) CanRoute(w FloatMatrix, x Out) bool {
	return p.Bulk && w.Type == quant.F32 && w.Rows < narrowRows*p.Units && w.Cols%4 == 0 && w.W%16 == 0 && x.aligned()
}

// Route appends the choice of experts for n rows; of one row alone only the logits.
func (p *Products) Route(ls []Call, r Router, n int) []Call {
	args := func(m FloatMatrix, y Out) floatArgs {
		return floatArgs{y: y.P, w: m.W, x: r.X.P, n: int32(n), rows: int32(m.Rows), cols: int32(m.Cols),
			xs: int32(r.X.Stride),
			ys: int32(y.Stride), all: m.Scale}
	}
	experts, pairs := r.W.Rows, n*r.Used
	a := routerArgs{router: args(r.W, r.Logits),
		route: r.routes(n),
		group: groupsOf(r.Tables, r.IDs, pairs, experts),
		norm: normArgs{r.Norm.W, r.Norm.Sums, int32((r.W.Cols + stageCols - 1) / stageCols), int32(r.W.Cols), r.Norm.Eps,
			1 / float32(r.W.Cols), r.Norm.Scale, 0},
		counter: r.Counter}
	tokens, grid := 8, (experts+3)/4
	if r.Alone(n) {
		tokens = 1
	}
	if r.Gate.W != 0 {
		a.gate = args(r.Gate, r.GateOut)
		grid++
	}
	const warps = 8
	return append(ls, Call{router{rows: tokens}, &a, Config{Grid: [3]int{grid, (n + tokens - 1) / tokens, 1},
		Threads: 32 * warps, Shared: max(4*warps*((experts+3)&^3)+8*warps+16, warps*4*tokens*4), Early: true}})
}

// Mixed is the end of a mixture of experts: the weighted sum of every row's experts and the gated output of the one
// they share, if there is one, are added to X. The sum goes to Dst and is normalised and packed as in AddPack.
type Mixed struct {
	X       In
	Y       In // of the pairs
	Used    int
	Weights Out
	Scale   Addr // of every expert, or 0
	IDs     Addr
	Shared  In
	Gate    Out // of Shared, one value for each row
	Dst     Out
	W       Addr // of the norm
	Sums    Addr
	Eps     float32
	Out     Out // gets the normalised rows, unless it has no address
}

// mixArgs mirrors MixArgs of moe_sum.cu.
type mixArgs struct {
	act                       actArgs
	x, y, shared              In
	weights, scale, ids, gate Addr
	dst, w, sumsq, out        Addr
	rows, cols, used, ws, gs  int32
	dstStride, outStride      int32
	eps, mean                 float32
	_                         int32
}

// Mix appends the end of a mixture.
func (p *Products) Mix(ls []Call, to Packed, m Mixed) []Call {
	a := &mixArgs{act: to.args(), x: m.X, y: m.Y, shared: m.Shared, weights: m.Weights.P, scale: m.Scale, ids: m.IDs,
		gate: m.Gate.P, dst: m.Dst.P, w: m.W, sumsq: m.Sums, out: m.Out.P, rows: int32(to.Rows), cols: int32(to.Cols),
		used: int32(m.Used), ws: int32(m.Weights.Stride), gs: int32(m.Gate.Stride), dstStride: int32(m.Dst.Stride),
		outStride: int32(m.Out.Stride), eps: m.Eps, mean: 1 / float32(to.Cols)}
	if m.Out.P == 0 {
		return append(ls, p.small(kernelMixPack, &to, a))
	}
	return append(ls, Call{kernelMixNorm, a, p.rowBlocks(to)})
}
