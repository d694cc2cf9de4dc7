package gpu_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// ffnShape is the feed-forward layer of a model with experts.
type ffnShape struct {
	name                               string
	hidden, width, stack, used, shared int // shared: the width of the shared expert, 0 for none
	down                               quant.Type
}

var ffnShapes = []ffnShape{
	{"35B-A3B", 2048, 512, 256, 8, 512, quant.Q4_K},
	{"35B-A3B", 2048, 512, 256, 8, 512, quant.Q6_K},
	{"Coder-Next", 2048, 512, 512, 10, 512, quant.Q4_K},
	{"122B-A10B", 3072, 1024, 256, 8, 1024, quant.Q4_K},
	{"26B-A4B", 2816, 704, 128, 8, 2112, quant.Q8_0},
}

// BenchmarkMixtures prints microseconds of layers of experts on a GPU: all launches from the router to the norm after
// the sum, and each of them alone. Every layer has other rows, and so other experts, that are not in the cache. It
// asserts nothing.
func BenchmarkMixtures(b *testing.B) {
	if !onDevice {
		b.Skip("times need a GPU: set STROBE_CUDA=cuda")
	}
	d := emulate.Open(b)
	for _, s := range ffnShapes {
		b.Run(fmt.Sprintf("%s-%v", s.name, s.down), func(b *testing.B) {
			r := &productRig{b, d, gpu.NewProducts(d.Props())}
			f := newFFN(r, s)
			for _, n := range []int{1, 2, 4, 8, 16, 32, 64} {
				if n*s.used <= 4*s.stack {
					f.times(n, [2]int{})
				}
			}
			for _, n := range []int{1, 16} { // cut in other numbers of pieces
				for _, cuts := range [][2]int{{1, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 2}, {4, 1}, {4, 3}, {6, 1}, {8, 1}, {11, 3}} {
					f.times(n, cuts)
				}
			}
			f.close()
		})
	}
}

// ffn is a layer on a device.
type ffn struct {
	*productRig
	ffnShape
	gateUp, down, sharedUp, sharedDown []*productMatrix
	router, gate                       gpu.FloatMatrix
	counter                            gpu.Addr
	w                                  gpu.Addr // of the norm
}

func newFFN(r *productRig, s ffnShape) *ffn {
	f := &ffn{productRig: r, ffnShape: s}
	f.gateUp = []*productMatrix{r.fill(quant.Q4_K, s.width, s.hidden, s.stack),
		r.fill(quant.Q4_K, s.width, s.hidden, s.stack)}
	f.down = []*productMatrix{r.fill(s.down, s.hidden, s.width, s.stack)}
	if s.shared > 0 {
		f.sharedUp = []*productMatrix{r.fill(quant.Q4_K, s.shared, s.hidden, 1), r.fill(quant.Q4_K, s.shared, s.hidden, 1)}
		f.sharedDown = []*productMatrix{r.fill(s.down, s.hidden, s.shared, 1)}
	}
	rnd := rand.New(rand.NewPCG(3, 3))
	f.router = gpu.FloatMatrix{Type: quant.F32, W: upload(r, randomRows(rnd, s.stack*s.hidden)), Rows: s.stack,
		Cols: s.hidden, Scale: 1}
	if s.shared > 0 {
		f.gate = gpu.FloatMatrix{Type: quant.F32, W: upload(r, randomRows(rnd, s.hidden)), Rows: 1, Cols: s.hidden, Scale: 1}
	}
	f.w, f.counter = upload(r, randomRows(rnd, s.hidden)), upload(r, make([]int32, gpu.RouterCounters))
	return f
}

func (f *ffn) close() {
	for _, m := range slices.Concat(f.gateUp, f.down, f.sharedUp, f.sharedDown) {
		f.release(m.w)
	}
	f.release(f.router.W, f.w, f.counter)
	if f.shared > 0 {
		f.release(f.gate.W)
	}
}

// jobs are the products of a launch, with room for their pieces.
func (f *ffn) jobs(ms []*productMatrix, cuts, rows int) (jobs []gpu.ExpertJob) {
	for _, m := range ms {
		j := gpu.ExpertJob{WeightLayout: m.WeightLayout, W: m.w, Cuts: cuts, Scale: 1}
		j.Part = f.room(gpu.PieceBytes(j.Result(rows)))
		jobs = append(jobs, j)
	}
	return jobs
}

func layoutsOf(ms []*productMatrix) (ws []gpu.WeightLayout) {
	for _, m := range ms {
		ws = append(ws, m.WeightLayout)
	}
	return ws
}

// times prints the times for n rows. cuts: pieces of gate and up, and of down, if not as products choose them.
func (f *ffn) times(n int, cuts [2]int) {
	stages := [2]int{f.gateUp[0].Stages(), f.down[0].Stages()}
	if cuts[0] > stages[0] || cuts[1] > stages[1] {
		return
	}
	const count = 12
	pairs := n * f.used
	rnd := rand.New(rand.NewPCG(9, uint64(n)))
	x := upload(f.productRig, randomRows(rnd, count*n*f.hidden))
	lay := f.p.ExpertActs(n, f.gateUp[0].WeightLayout)
	next := f.p.Acts(n, f.gateUp[0].WeightLayout)
	act, out, sums := f.room(count*lay.Bytes()), f.room(next.Bytes()), f.room(next.SumsBytes())
	ids, weights, logits := f.room(4*pairs), f.room(4*pairs), f.room(4*n*f.stack)
	one, tables := f.room(4*n), f.room(gpu.ExpertTableBytes(pairs, f.stack))
	dst := f.room(4 * n * f.hidden)
	router := gpu.Router{W: f.router, Logits: gpu.Out{P: logits, Stride: f.stack}, Gate: f.gate,
		GateOut: gpu.Out{P: one, Stride: 1}, IDs: ids,
		Weights: gpu.Out{P: weights, Stride: f.used}, Tables: tables, Counter: f.counter, Used: f.used, Scale: 1}
	up := gpu.ExpertProduct{Tables: tables, Pairs: pairs}
	down := gpu.ExpertProduct{X: gpu.MatMulInput{ActLayout: f.p.ExpertActs(n, f.down[0].WeightLayout)}, Tables: tables,
		Pairs: pairs, Early: true}
	if f.shared > 0 {
		down.Shared = gpu.MatMulInput{ActLayout: f.p.ExpertActs(n, f.sharedDown[0].WeightLayout)}
	}
	if router.Alone(n) {
		up.Choice, down.Choice = &router, &router
	}
	parts := [2]struct {
		up, down []*productMatrix
		rows     int
	}{{f.gateUp, f.down, pairs}, {f.sharedUp, f.sharedDown, n}}
	bytes := f.router.Rows * f.router.Cols * 4
	var upCuts, downCuts [2]int // of the experts, and of the shared one
	upCuts[0], upCuts[1] = f.p.ExpertCut(f.used, layoutsOf(f.gateUp), layoutsOf(f.sharedUp))
	downCuts[0], downCuts[1] = f.p.ExpertCut(f.used, layoutsOf(f.down), layoutsOf(f.sharedDown))
	if cuts[0] > 0 {
		upCuts, downCuts = [2]int{cuts[0], cuts[0]}, [2]int{cuts[1], cuts[1]}
	}
	for k, p := range parts {
		if len(p.up) == 0 {
			continue
		}
		up.Jobs[k] = f.jobs(p.up, upCuts[k], p.rows)
		down.Jobs[k] = f.jobs(p.down, downCuts[k], p.rows)
		down.Gated[k] = gpu.GatedRows{Gate: up.Jobs[k][0].Result(p.rows), Up: up.Jobs[k][1].Result(p.rows)}
		if k == 1 {
			bytes += 2*p.up[0].MatrixBytes() + p.down[0].MatrixBytes()
		}
	}
	mix := gpu.Mixed{Y: down.Jobs[0][0].Result(pairs), Used: f.used, Weights: gpu.Out{P: weights, Stride: f.used},
		IDs: ids,
		Dst: gpu.Out{P: dst, Stride: f.hidden}, W: f.w, Sums: sums, Eps: 1e-6}
	if f.shared > 0 {
		mix.Shared, mix.Gate = down.Jobs[1][0].Result(n), gpu.Out{P: one, Stride: 1}
	}
	// Before the layers: rows are packed, and what is chosen is counted.
	distinct := 0
	for i := range count {
		rows := x + gpu.Addr(4*i*n*f.hidden)
		router.X = gpu.Out{P: rows, Stride: f.hidden}
		packed := gpu.Packed{ActLayout: lay, P: act + gpu.Addr(i*lay.Bytes())}
		up.X = gpu.MatMulInput{ActLayout: lay, P: packed.P}
		up.Shared = up.X
		f.run(f.p.Experts(f.p.Route(f.p.Pack(nil, packed, gpu.Rows(rows, f.hidden), 1), router, n), up))
		chosen := make([]int32, pairs)
		if err := f.d.Download(bytesOf(chosen), ids); err != nil {
			f.t.Fatal(err)
		}
		slices.Sort(chosen)
		distinct += len(slices.Compact(chosen))
	}
	bytes += distinct * (2*f.gateUp[0].MatrixBytes() + f.down[0].MatrixBytes()) / count
	layers := func() (all, kinds []gpu.Call) {
		for i := range count {
			rows := x + gpu.Addr(4*i*n*f.hidden)
			router.X, mix.X = gpu.Out{P: rows, Stride: f.hidden}, gpu.Rows(rows, f.hidden)
			up.X = gpu.MatMulInput{ActLayout: lay, P: act + gpu.Addr(i*lay.Bytes())}
			up.Shared = up.X
			at := len(all)
			all = f.p.Route(all, router, n)
			all = f.p.Experts(all, up)
			all = f.p.Experts(all, down)
			all = f.p.Mix(all, gpu.Packed{ActLayout: next, P: out}, mix)
			kinds = all[at:]
		}
		return all, kinds
	}
	all, kinds := layers()
	us := f.timed(all, count)
	line := fmt.Sprintf("%s %v, %2d rows, %.1f distinct experts, in %v and %v pieces: layer %.1f us, %.2f TB/s;", f.name,
		f.down[0].Type, n, float64(distinct)/count, upCuts, downCuts, us, float64(bytes)/us/1e6)
	for k := range kinds {
		var same []gpu.Call
		for i := range count {
			same = append(same, all[i*len(kinds)+k])
		}
		line += fmt.Sprintf(" %s %.1f,", kinds[k].Kernel.Name(), f.timed(same, count))
	}
	fmt.Println(strings.TrimSuffix(line, ",")) // a benchmark logs ten lines at most
	f.release(x, act, out, sums, ids, weights, logits, one, tables, dst)
	for k := range parts {
		for _, j := range slices.Concat(up.Jobs[k], down.Jobs[k]) {
			f.release(j.Part)
		}
	}
}
