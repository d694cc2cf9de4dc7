package gpu

import (
	"slices"
	"time"
)

// Vulkan devices have no tensor cores that kernels could count on (Props.NoTensorCores). Their kernels have the
// arguments of the others, but products take activations as signed bytes, row by row, in launches of one format;
// attention computes in float32.

// stageQuarters is how many workgroups share the rows of a stage, and pairsAtOnce how many pairs share one reading of
// an expert.
const (
	stageQuarters = 4
	pairsAtOnce   = 8
)

// rowsAtOnce are the numbers of rows that kernels exist for.
var rowsAtOnce = []int{1, 2, 3, 4, 6, 8, 12, 16}

// rowsPerReading is the number of rows that share one reading of a matrix, the same for all parts of a prompt.
func rowsPerReading(rows int) int {
	most := rowsAtOnce[len(rowsAtOnce)-1]
	parts := (rows + most - 1) / most
	each := (rows + parts - 1) / parts
	return rowsAtOnce[slices.IndexFunc(rowsAtOnce, func(n int) bool { return n >= each })]
}

// From matrixFrom rows on cooperative matrices are faster, where a device has them; maxMatrixRows is the most rows that
// share one reading of a matrix.
const (
	matrixFrom    = 5
	maxMatrixRows = 64
)

// matrixShared is the shared memory of products by cooperative matrices with 16 rows or more, as matrix.comp has it; 16
// have two buffers.
func matrixShared(rows int) int {
	const area, packed, exchanged = 3072, 304, 4 // of 32 lanes, of 256 columns of a row, of a thread
	return matrixThreads(rows)*(area+32*exchanged)/32 + max(rows, 32)*packed + rows*4
}

// matrixThreads is the size of their workgroups: with more of them more rows of the matrix share activations.
func matrixThreads(rows int) int {
	if rows == maxMatrixRows {
		return 256
	}
	return 128
}

// matrixRows is the number of rows that share one reading.
func (p *Products) matrixRows(rows int) int {
	n := 8
	for n < rows && n < maxMatrixRows && matrixShared(2*n) <= p.Shared {
		n *= 2
	}
	return n
}

// matrixFormat reports whether a format's products add integers: those are the same bits however they are computed.
func matrixFormat(f Format) bool { return f <= TileQ3K }

// rowsMatMul appends the products of x with all matrices, a launch for each format.
func (p *Products) rowsMatMul(ls []Call, x MatMulInput, jobs []MatMulJob) []Call {
	first := len(ls)
	for f, of := range byFormat(jobs) {
		a, grid, _ := productArgsOf(x, of)
		tokens := rowsPerReading(x.Rows)
		c := Call{rowsProduct{f, tokens}, &a, Config{Threads: 128, Beside: len(ls) > first}}
		if p.Matrices && x.Rows >= matrixFrom && matrixFormat(f) {
			tokens = p.matrixRows(x.Rows)
			c.Threads = matrixThreads(tokens)
			c.Kernel = matrixProduct{f, tokens, c.Threads}
		}
		c.Grid = [3]int{grid, (x.Rows + tokens - 1) / tokens, strips * 32 / c.Threads}
		ls = append(ls, c)
	}
	return ls
}

// maxGroups is how many workgroups a dimension may have on any device, with room to spare; where there is more to do
// they take it one after the other.
const maxGroups = 1 << 15

type rowsExpertArgs struct {
	job                [2]expertJob
	act, tables, sumsq Addr
	eps, mean          float32
	kb, jobs, pairs    int32
	div, most          int32
	_                  int32
}

// rowsExpertsCall is the launch of products with one or two stacks of experts, which are alike.
func rowsExpertsCall(x MatMulInput, tables Addr, pairs int, jobs []ExpertJob) Call {
	a := rowsExpertArgs{act: x.P, tables: tables, sumsq: x.Sums, eps: x.Eps, mean: 1 / float32(x.Cols), kb: int32(x.KB()),
		jobs: int32(len(jobs)), pairs: int32(pairs), div: int32(pairs / x.Rows),
		most: int32(expertItems(pairs, jobs[0].Experts))}
	units := 0
	for i, j := range jobs {
		a.job[i] = j.args()
		units += j.Groups() * j.Cuts
	}
	return Call{rowsExperts{jobs[0].Format, pairsAtOnce}, &a,
		Config{Grid: [3]int{min(maxGroups, int(a.most)*units), 1, stageQuarters}, Threads: 128}}
}

// longWork is how many operations an attention launch may have: a third of a second where attention reaches a tenth of
// a teraflop a second, a small chip. Devices are given up on after two seconds, or less.
const longWork = 1 << 35

// paddedHead is the size of heads that a kernel of attention exists for.
func paddedHead(dim int) int {
	n := 128
	for n < dim {
		n *= 2
	}
	return n
}

// fewAttentionRows is the number of rows (tokens x heads) of an attention kernel for one token; for more of them
// it has twice as many. With 8 and 16, whose instructions are twice as long, a layer with 1,024 slots took an H200
// 11 us more for one token, 24 for 8 and 31 for 16; with 4 rows for all of them prompts and 16 tokens were slower.
const fewAttentionRows = 4

type readArgs struct {
	p, to Addr
	quads int32 // of 16 bytes
	_     int32
}

// ReadSpeed measures how many bytes a second a kernel of such a device reads.
func (b *Backend) ReadSpeed(bytes, rounds int) (float64, error) {
	from, err := b.d.Alloc(bytes)
	if err != nil {
		return 0, err
	}
	defer b.d.Release(from)
	b.d.Fill(from, 0, bytes)
	// Sixteen workgroups for each multiprocessor, so that there is always one that waits for memory.
	l, err := b.emit([]Call{{kernelRead, &readArgs{p: from, to: b.counter, quads: int32(bytes / 16)},
		Config{Grid: [3]int{16 * b.props.Units, 1, 1}, Threads: 256}}})
	if err != nil {
		return 0, err
	}
	b.d.Launch(&l[0])
	if err := b.d.Wait(); err != nil {
		return 0, err
	}
	start := time.Now()
	for range rounds {
		b.d.Launch(&l[0])
	}
	err = b.d.Wait()
	return float64(rounds*bytes) / time.Since(start).Seconds(), err
}
