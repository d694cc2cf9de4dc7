package gpu

import "fmt"

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

// ExpertTableBytes is the memory for the tables that GroupExperts makes.
func ExpertTableBytes(pairs, experts int) int { return 4 * (4 + 4*expertItems(pairs, experts) + pairs) }

type groupArgs struct {
	tables, ids                Addr
	pairs, experts, tile, most int32
}

// GroupExperts appends the grouping of pairs of a row and an expert by their experts; ids[t*used+j] is the j-th
// expert of row t.
func (p *Products) GroupExperts(ls []Launch, tables, ids Addr, pairs, experts int) []Launch {
	a := groupArgs{tables, ids, int32(pairs), int32(experts), int32(8 * expertTiles(pairs, experts)),
		int32(expertItems(pairs, experts))}
	if p.Plain {
		a.tile = plainTile
	}
	const sums = 8 * 1024 / 32 // of the warps
	return append(ls, Launch{Name: "moe_group", Grid: [3]int{1, 1, 1}, Threads: 1024, Shared: (4*experts+15)&^15 + sums,
		Early: p.Bulk, Args: Args(a)})
}

// usedExperts is how many experts a row is assumed to use, to have enough units of work for all multiprocessors when
// there is one row alone.
const usedExperts = 8

// ExpertCut says in how many pieces each matrix of a launch cuts its columns. It depends on the matrices alone.
func (p *Products) ExpertCut(ws ...WeightLayout) []int {
	groups := 0
	for _, w := range ws {
		groups += w.Groups()
	}
	cuts := make([]int, len(ws))
	for i, w := range ws {
		cuts[i] = max(1, min((p.Units+usedExperts*groups/2)/(usedExperts*groups), w.Stages(), maxPieces))
	}
	return cuts
}

// ExpertJob is one stack of a launch.
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

type expertJob struct {
	w, part, scales     Addr
	groups, cuts, table int32
	scale               float32
}

type expertArgs struct {
	job              [2]expertJob
	act, tables      Addr
	kb, format, jobs int32
	pairs, div, most int32
	depth            int32
	_                int32
}

// ExpertMatMul appends the products of pairs with their experts: row t*used+j of each result is W[ids[t*used+j]] x. x
// has a row for each t, or for each pair.
func (p *Products) ExpertMatMul(ls []Launch, x MatMulInput, tables Addr, pairs int, jobs ...ExpertJob) []Launch {
	for i := 0; i < len(jobs); i++ {
		j := jobs[i]
		a := expertArgs{act: x.P, tables: tables, kb: int32(x.KB()), format: int32(j.Format), jobs: 1, pairs: int32(pairs),
			div: int32(pairs / x.Rows), most: int32(expertItems(pairs, j.Experts))}
		a.job[0] = j.args()
		if i+1 < len(jobs) && jobs[i+1].Format == j.Format {
			i++
			a.jobs, a.job[1] = 2, jobs[i].args()
		}
		if p.Plain {
			ls = append(ls, plainExperts(a, j.Format))
			continue
		}
		nt := expertTiles(pairs, j.Experts)
		slot := strips*max(tileHalves[j.Format][0], tileHalves[j.Format][1]) + nt*8*actRowHalf
		l := Launch{Grid: [3]int{p.Units, 1, 1}, Threads: 512, Early: p.Bulk}
		if p.Bulk {
			set := formatSet([]WeightLayout{j.WeightLayout})
			if set == "q4k" {
				set = "k"
			}
			a.depth = int32(min(8, (p.Shared-soloFront)/slot))
			l.Name, l.Shared = fmt.Sprintf("moe_%s_%d", set, nt), soloFront+int(a.depth)*slot
		} else {
			a.depth = int32(min(4, p.Shared/slot))
			l.Name, l.Shared = fmt.Sprintf("moe_pipe_%d", nt), int(a.depth)*slot
		}
		l.Args = Args(a)
		ls = append(ls, l)
	}
	return ls
}

func (j *ExpertJob) args() expertJob {
	return expertJob{j.W, j.Part, j.Scales, int32(j.Groups()), int32(j.Cuts), int32(j.Table), j.Scale}
}
