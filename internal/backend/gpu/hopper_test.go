package gpu_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// onDevice says that tests run on a GPU and not on the emulation.
var onDevice = os.Getenv("STROBE_CUDA") == "cuda"

// few says that tests try every kernel once or twice, because they run slowly: on the emulation, or with -short under a
// program that looks for races.
func few() bool { return !onDevice || testing.Short() }

// older is the same device with kernels for 8.0 only.
func (r *productRig) older() *productRig {
	props := r.d.Props()
	props.Major, props.Minor, props.SharedBlock = 8, 0, min(props.SharedBlock, 163<<10)
	return &productRig{r.t, r.d, gpu.NewProducts(props)}
}

// newer is a rig with kernels for 9.0; the emulation has those for some formats.
func newer(t testing.TB) (r *productRig, types []quant.Type) {
	r = newProductRig(t)
	if r.p.Bulk {
		return r, gpu.BlockTypes
	}
	if onDevice {
		t.Skip("needs a GPU of compute capability 9.0 or later, or the emulation of one: it compares their kernels with older ones")
	}
	props := r.d.Props()
	props.Major = 9
	r.p = gpu.NewProducts(props)
	return r, []quant.Type{quant.Q4_K, quant.Q6_K}
}

// TestKernelsAgree: products have the same bits whichever kernel computes them.
func TestKernelsAgree(t *testing.T) {
	r, types := newer(t)
	for i, typ := range types {
		t.Run(typ.String(), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(typ), 1))
			rows, cols := 300, 1280
			if i%2 == 1 {
				rows, cols = 100, 2560
			}
			r.t = t
			m := r.productMatrix(rnd, typ, rows, cols, 1)
			defer r.release(m.w)
			cut := r.p.Cut(m.WeightLayout)
			if i%2 == 1 {
				cut[0] = 2 // so few that blocks share the rows of prompts
			}
			x := randomRows(rnd, 300*cols)
			ns := []int{1, 2, 8, 9, 16, 17, 24, 33, 40, 41, 48, 64, 65, 128, 130, 200, 300}
			if few() {
				ns = []int{1, 9, 41, 130}
			}
			for _, n := range ns {
				want := r.older().product(x, n, []*productMatrix{m}, cut, 0.25)[0]
				if n == 1 {
					exact := plain(m.values, rows, cols, x[:cols])
					for k := range exact {
						exact[k] /= 4
					}
					if e := apart(want, exact); !(e < half) {
						t.Errorf("relative error %.2e", e)
					}
				}
				got := r.product(x, n, []*productMatrix{m}, cut, 0.25)[0]
				if !sameBits(got, want) {
					differ := 0
					for k := range got {
						if got[k] != want[k] {
							differ++
						}
					}
					t.Errorf("%d rows: %d of %d values differ", n, differ, len(got))
				}
			}
		})
	}
}

// TestMadeRows: a product that makes its own input has the bits of one that reads it packed.
func TestMadeRows(t *testing.T) {
	r, _ := newer(t)
	types, ns := []quant.Type{quant.Q4_K, quant.Q6_K, quant.Q5_K}, []int{1, 3, 8}
	if testing.Short() {
		types, ns = types[:1], ns[1:2]
	}
	for i, typ := range types {
		rnd := rand.New(rand.NewPCG(uint64(typ), 3))
		rows, cols := 300+400*(i%2), 1280
		m := r.productMatrix(rnd, typ, rows, cols, 1)
		w := upload(r, randomRows(rnd, cols))
		const most = 8
		x, y := r.plainRows(rnd, most, cols, cols+8, 0), r.pieces(rnd, most, 11, 7, 13, 264)
		wide := r.plainRows(rnd, most, 2*cols, 2*cols, 0)
		for _, n := range ns {
			for _, blocks := range []int{1, r.p.Cut(m.WeightLayout)[0]} { // all stages, and a few
				lay := r.p.Acts(n, m.WeightLayout)
				act := r.room(lay.Bytes())
				to := gpu.Packed{ActLayout: lay, P: act}
				for _, c := range []struct {
					made   gpu.SelfPacked
					packed []gpu.Call
				}{
					{gpu.SelfPacked{Kind: gpu.PackRows, X: y.in}, r.p.Pack(nil, to, y.in, 1)},
					{gpu.SelfPacked{Kind: gpu.PackSiLU, X: y.in, Gate: x.in}, r.p.GatedPack(nil, to, x.in, y.in, false)},
					{gpu.SelfPacked{Kind: gpu.PackGELU, X: x.in, Gate: y.in}, r.p.GatedPack(nil, to, y.in, x.in, true)},
					{gpu.SelfPacked{Kind: gpu.PackSigmoid, X: y.in, Gate: wide.in, Dim: 128, Step: 256},
						r.p.SigmoidPack(nil, to, y.in, wide.in, 128, 256)},
					{gpu.SelfPacked{Kind: gpu.PackHeads, X: x.in, Gate: y.in, W: w, Dim: 128, Eps: 1e-6},
						r.p.HeadPack(nil, to, x.in, y.in, w, 128, 1e-6)},
				} {
					if can := r.p.CanSelfPack(&c.made, n, m.WeightLayout, blocks); can != (n < 8 || blocks > 1) {
						t.Fatalf("%v, %d rows in %d blocks: kind %d can be made: %v", typ, n, blocks, c.made.Kind, can)
					} else if !can {
						continue // eight rows of all stages are too many
					}
					cut := []int{blocks}
					want := r.multiply(c.packed, gpu.MatMulInput{ActLayout: lay, P: act}, []*productMatrix{m}, cut, 0.5)[0]
					got := r.multiply(nil, gpu.MatMulInput{ActLayout: lay, SelfPacked: &c.made}, []*productMatrix{m}, cut, 0.5)[0]
					if !sameBits(got, want) {
						t.Errorf("%v, %d rows in %d blocks: kind %d has other bits", typ, n, blocks, c.made.Kind)
					}
				}
				r.release(act)
			}
		}
		r.release(m.w)
	}
}

// TestKernelsAgreeOnNorms: the same with several matrices and the factor of a norm.
func TestKernelsAgreeOnNorms(t *testing.T) {
	r, _ := newer(t)
	rnd := rand.New(rand.NewPCG(1, 1))
	const cols = 9472 // more than 32 sums of squares
	groups := [][]quant.Type{{quant.Q4_K, quant.Q4_K}, {quant.Q6_K, quant.Q4_K, quant.Q5_K},
		{quant.Q8_0, quant.Q4_K, quant.Q4_0}}
	ns := []int{1, 5, 16, 40, 64, 65, 200}
	if few() {
		groups, ns = [][]quant.Type{{quant.Q6_K, quant.Q4_K}}, []int{3, 66}
	}
	for _, types := range groups {
		var ms []*productMatrix
		var ws []gpu.WeightLayout
		for i, typ := range types {
			m := r.productMatrix(rnd, typ, 20+300*i, cols, 1)
			ms, ws = append(ms, m), append(ws, m.WeightLayout)
		}
		cut := r.p.Cut(ws...)
		w := upload(r, randomRows(rnd, cols))
		x, y := r.plainRows(rnd, 200, cols, cols, 0), r.plainRows(rnd, 200, cols, cols, 0)
		for _, n := range ns {
			do := func(r *productRig) [][]float32 {
				lay := r.p.Acts(n, ws...)
				act, sums := r.room(lay.Bytes()), r.room(lay.SumsBytes())
				defer r.release(act, sums)
				ls := r.p.AddPack(nil, gpu.Packed{ActLayout: lay, P: act}, gpu.Sum{X: x.in, Y: y.in, Sums: sums, W: w})
				return r.multiply(ls, gpu.MatMulInput{ActLayout: lay, P: act, Sums: sums, Eps: 1e-5}, ms, cut, 1)
			}
			got, want := do(r), do(r.older())
			for i := range ms {
				if !sameBits(got[i], want[i]) {
					t.Errorf("%v, %d rows: matrix %d has other bits", types, n, i)
				}
			}
		}
		for _, m := range ms {
			r.release(m.w)
		}
	}
}

// TestExpertKernelsAgree: the same for experts.
func TestExpertKernelsAgree(t *testing.T) {
	r, types := newer(t)
	if testing.Short() {
		types = []quant.Type{quant.Q4_K, quant.Q6_K}
	}
	for _, typ := range types {
		rnd := rand.New(rand.NewPCG(uint64(typ), 7))
		const rows, cols, experts, used = 300, 768, 5, 2
		m, o := r.productMatrix(rnd, typ, rows, cols, experts), r.productMatrix(rnd, typ, rows/2, cols, experts)
		for _, n := range []int{1, 4, 13, 200} {
			if n > 13 && few() {
				break
			}
			x, ids := randomRows(rnd, n*cols), choose(rnd, n, used, experts)
			got, want := r.experts(x, ids, []*productMatrix{m, o}, nil), r.older().experts(x, ids, []*productMatrix{m, o}, nil)
			if !sameBits(got[0], want[0]) || !sameBits(got[1], want[1]) {
				t.Errorf("%v, %d rows: other bits", typ, n)
			}
		}
		r.release(m.w, o.w)
	}
}

// timed returns the microseconds of one of `count` launches that follow each other in a recording, the best of
// several times.
func (r *productRig) timed(ls []gpu.Call, count int) float64 {
	r.t.Helper()
	rec, err := r.d.Record(emitted(r.t, r.d, ls))
	if err != nil {
		r.t.Fatal(err)
	}
	defer rec.Close()
	var us []float64
	for i := range 9 {
		start := time.Now()
		for range 5 {
			r.d.Replay(rec)
		}
		if err := r.d.Wait(); err != nil {
			r.t.Fatal(err)
		}
		if i >= 2 { // the clock rises
			us = append(us, float64(time.Since(start).Nanoseconds())/1e3/5/float64(count))
		}
	}
	best := us[0]
	for _, u := range us {
		best = min(best, u)
	}
	return best
}

// fill makes a matrix of the given size by repeating a few random rows: its bytes are what counts.
func (r *productRig) fill(typ quant.Type, rows, cols, experts int) *productMatrix {
	r.t.Helper()
	rnd := rand.New(rand.NewPCG(1, uint64(rows)))
	l, err := gpu.LayoutOf(typ, rows, cols, experts, typ.RowBytes(rows*cols*experts))
	if err != nil {
		r.t.Fatal(err)
	}
	group := l
	group.Rows, group.Experts = 256, 1
	m := &productMatrix{WeightLayout: l, w: r.room(l.Bytes())}
	group.Upload(r.d, m.w, gpu.RandomBlocks(rnd, typ, 256*cols))
	for at := group.Bytes(); at < l.Bytes(); at += group.Bytes() {
		r.d.Copy(m.w+gpu.Addr(at), m.w, group.Bytes())
	}
	return m
}

// rotate is how many bytes of weights a benchmark goes through before it uses the first again: more than any cache.
const rotate = 320 << 20

// BenchmarkProducts prints microseconds and bytes a second for the shapes of a 27B model, on a device only.
func BenchmarkProducts(b *testing.B) {
	if !onDevice {
		b.Skip("needs a GPU: set STROBE_CUDA=cuda")
	}
	d := emulate.Open(b)
	r := &productRig{b, d, gpu.NewProducts(d.Props())}
	fmt.Printf("%-22s %-5s %7s %6s  microseconds, TB/s of weights, TFLOP/s by rows\n", "matrix", "type", "rows", "cols")
	for _, c := range []struct {
		what       string
		typ        quant.Type
		rows, cols int
	}{
		{"gate and up", quant.Q4_K, 34816, 5120},
		{"gate and up", quant.Q8_0, 34816, 5120},
		{"gate and up", quant.Q5_K, 34816, 5120},
		{"gate and up", quant.Q4_0, 34816, 5120},
		{"gate and up", quant.NVFP4, 34816, 5120},
		{"gate and up", quant.Q2_K, 34816, 5120},
		{"down", quant.Q4_K, 5120, 17408},
		{"down", quant.Q6_K, 5120, 17408},
		{"qkv", quant.Q4_K, 10240, 5120},
		{"out", quant.Q4_K, 5120, 6144},
		{"vocabulary", quant.Q6_K, 248320, 5120},
	} {
		var ms []*productMatrix
		for i := 0; i == 0 || i*ms[0].Bytes() < rotate; i++ {
			ms = append(ms, r.fill(c.typ, c.rows, c.cols, 1))
		}
		bytes, cut := ms[0].Bytes(), r.p.Cut(ms[0].WeightLayout)[0]
		for _, v := range []string{"", "older"} {
			if v == "older" && (c.typ != quant.Q4_K || c.what != "gate and up") {
				continue
			}
			q := r
			if v == "older" {
				q = r.older()
			}
			fmt.Printf("%-22s %-5v %7d %6d ", c.what+" "+v, c.typ, c.rows, c.cols)
			for _, n := range []int{1, 4, 8, 16, 24, 32, 48, 64, 128, 512} {
				lay := q.p.Acts(n, ms[0].WeightLayout)
				act := r.room(lay.Bytes())
				x := upload(r, randomRows(rand.New(rand.NewPCG(1, 1)), n*c.cols))
				q.run(q.p.Pack(nil, gpu.Packed{ActLayout: lay, P: act}, gpu.Rows(x, c.cols), 1))
				j := gpu.MatMulJob{WeightLayout: ms[0].WeightLayout, Blocks: cut, Scale: 1}
				j.Part = r.room(gpu.PieceBytes(j.Result(n)))
				var ls []gpu.Call
				count := max(2*len(ms), 12)
				for i := range count {
					j.W = ms[i%len(ms)].w
					ls = q.p.MatMul(ls, gpu.MatMulInput{ActLayout: lay, P: act}, j)
				}
				us := q.timed(ls, count)
				fmt.Printf(" | %d: %.1f us %.2f", n, us, float64(bytes)/us/1e6)
				if n >= 48 {
					fmt.Printf(" %.0f TF", 2*float64(c.rows)*float64(c.cols)*float64(n)/us/1e6)
				}
				r.release(act, x, j.Part)
			}
			fmt.Println()
		}
		for _, m := range ms {
			r.release(m.w)
		}
	}
}

// BenchmarkExperts does the same for a model with 256 experts of which 8 are used: both products of a layer with all
// that is between.
func BenchmarkExperts(b *testing.B) {
	if !onDevice {
		b.Skip("needs a GPU: set STROBE_CUDA=cuda")
	}
	d := emulate.Open(b)
	r := &productRig{b, d, gpu.NewProducts(d.Props())}
	const experts, used, hidden, ffn = 256, 8, 2048, 512
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q8_0} {
		var gates, ups, downs []*productMatrix
		for range 3 {
			gates, ups = append(gates, r.fill(typ, ffn, hidden, experts)), append(ups, r.fill(typ, ffn, hidden, experts))
			downs = append(downs, r.fill(typ, hidden, ffn, experts))
		}
		for _, n := range []int{1, 4, 8, 16, 32, 64, 512, 1024} {
			pairs := n * used
			ids := choose(rnd, n, used, experts)
			live := map[int32]bool{}
			for _, e := range ids {
				live[e] = true
			}
			dids, x := upload(r, ids), upload(r, randomRows(rnd, n*hidden))
			tables := r.room(gpu.ExpertTableBytes(pairs, experts))
			lay, mid := r.p.ExpertActs(n, gates[0].WeightLayout), r.p.ExpertActs(pairs, downs[0].WeightLayout)
			act, act2 := r.room(lay.Bytes()), r.room(mid.Bytes())
			cuts, _ := r.p.ExpertCut(used, []gpu.WeightLayout{gates[0].WeightLayout, ups[0].WeightLayout}, nil)
			cut2, _ := r.p.ExpertCut(used, []gpu.WeightLayout{downs[0].WeightLayout}, nil)
			job := func(m *productMatrix, cuts int) gpu.ExpertJob {
				j := gpu.ExpertJob{WeightLayout: m.WeightLayout, W: m.w, Cuts: cuts, Scale: 1}
				j.Part = r.room(gpu.PieceBytes(j.Result(pairs)))
				return j
			}
			g, u, dn := job(gates[0], cuts), job(ups[0], cuts), job(downs[0], cut2)
			var group, first, second, all []gpu.Call
			const count = 12
			for i := range count {
				k := i % len(gates)
				g.W, u.W, dn.W = gates[k].w, ups[k].w, downs[k].w
				at := len(all)
				all = r.p.Pack(all, gpu.Packed{ActLayout: lay, P: act}, gpu.Rows(x, hidden), 1)
				all = r.p.GroupExperts(all, tables, dids, pairs, experts)
				group = append(group, all[len(all)-1])
				all = r.p.ExpertMatMul(all, gpu.MatMulInput{ActLayout: lay, P: act}, tables, pairs, g, u)
				first = append(first, all[len(all)-1])
				all = r.p.GatedPack(all, gpu.Packed{ActLayout: mid, P: act2}, g.Result(pairs), u.Result(pairs), false)
				all = r.p.ExpertMatMul(all, gpu.MatMulInput{ActLayout: mid, P: act2}, tables, pairs, dn)
				second = append(second, all[len(all)-1])
				if i == 0 {
					r.run(all[at:])
				}
			}
			bytes := float64(len(live)) * float64(gates[0].MatrixBytes()+ups[0].MatrixBytes()+downs[0].MatrixBytes())
			us := r.timed(all, count)
			fmt.Printf("%v, %d experts of %dx%d, %3d rows, %3d distinct: layer %.1f us %.2f TB/s;",
				typ, experts, ffn, hidden, n, len(live), us, bytes/us/1e6)
			fmt.Printf(" group %.1f, gate and up %.1f, down %.1f us\n",
				r.timed(group, count), r.timed(first, count), r.timed(second, count))
			r.release(dids, x, tables, act, act2, g.Part, u.Part, dn.Part)
		}
		for i := range gates {
			r.release(gates[i].w, ups[i].w, downs[i].w)
		}
	}
}
