package gpu_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// TestMadeOfSplits: a product that adds the splits of attention itself has the bits of one after a launch that does.
func TestMadeOfSplits(t *testing.T) {
	s := backend.KVDims{Heads: 2, KeyDim: 256, ValueDim: 256, Key: quant.F16, Value: quant.F16}
	for _, c := range []struct {
		heads  int
		slots  []int
		window int
	}{{4, []int{500}, 0}, {12, []int{330}, 0}, {8, []int{700, 65}, 300}} {
		t.Run(fmt.Sprintf("%d heads, %v", c.heads, c.slots), func(t *testing.T) {
			w := newWorldOn(t, hopper(t), c.heads, s)
			n, kd, width := len(c.slots), s.KeyDim, c.heads*s.KeyDim
			var segs []rows
			for _, slots := range c.slots {
				segs = append(segs, rows{s: w.sequence(slots, 60), n: 1, window: c.window})
			}
			gates := w.floats(w.normal(n*2*width, 1))
			call, ls := w.merged(plan(segs), n, width)
			// Without the launch that adds splits, which the product does.
			r := &productRig{t, w.d, gpu.NewProducts(w.d.Props())}
			m := r.productMatrix(rand.New(rand.NewPCG(5, 5)), quant.Q4_K, 300, width, 1)
			defer r.release(m.w)
			for _, made := range []gpu.SelfPacked{{Kind: gpu.PackRows, X: gpu.Rows(call.Out, width)},
				{Kind: gpu.PackSigmoid, X: gpu.Rows(call.Out, width), Gate: gpu.Rows(gates, 2*width), Dim: kd, Step: 2 * kd}} {
				cut := r.p.Cut(m.WeightLayout)
				x := gpu.MatMulInput{ActLayout: r.p.Acts(n, m.WeightLayout), SelfPacked: &made}
				want := r.multiply(slices.Clone(ls), x, []*productMatrix{m}, cut, 1)[0]
				if made.Splits = w.at.Splits(call); !r.p.CanSelfPack(&made, n, m.WeightLayout, cut[0]) {
					t.Fatalf("%d rows in %d blocks cannot be made", n, cut[0])
				}
				w.d.Fill(call.Out, 0xff, 4*n*width)
				got := r.multiply(slices.Clone(ls[:len(ls)-1]), x, []*productMatrix{m}, cut, 1)[0]
				w.same("product of splits", got, want)
			}
		})
	}
}

// TestClusters: a product whose clusters add its results to a residual stream and pack them leaves what a launch of its
// own would.
func TestClusters(t *testing.T) {
	r, _ := newer(t)
	rnd := rand.New(rand.NewPCG(8, 8))
	const rows, cols = 512, 2048
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q6_K} {
		m := r.productMatrix(rnd, typ, rows, cols, 1)
		w := upload(r, randomRows(rnd, rows))
		for _, c := range []struct{ n, cluster int }{{1, 8}, {2, 5}, {8, 8}, {7, 4}} {
			gate, up := upload(r, randomRows(rnd, c.n*cols)), upload(r, randomRows(rnd, c.n*cols))
			x := randomRows(rnd, c.n*rows)
			made := gpu.SelfPacked{Kind: gpu.PackSiLU, X: gpu.Rows(up, cols), Gate: gpu.Rows(gate, cols)}
			blocks := c.cluster * m.Groups()
			if !r.p.CanSelfPack(&made, c.n, m.WeightLayout, blocks) {
				t.Fatalf("%d rows in %d blocks cannot be made", c.n, blocks)
			}
			for _, next := range []gpu.ActLayout{{Rows: c.n, Cols: rows, NT: 1},
				r.p.ExpertActs(c.n, gpu.WeightLayout{Cols: rows})} {
				run := func(last bool) (out [3][]byte, launches int) {
					j := gpu.MatMulJob{WeightLayout: m.WeightLayout, W: m.w, Blocks: blocks, Scale: 0.5}
					j.Part = r.room(gpu.PieceBytes(j.Result(c.n)))
					dst, act, sums := upload(r, x), r.room(next.Bytes()), r.room(next.SumsBytes())
					ls := r.p.MatMul(nil, gpu.MatMulInput{ActLayout: r.p.Acts(c.n, m.WeightLayout), SelfPacked: &made}, j)
					ls = r.p.AddPack(ls, gpu.Packed{ActLayout: next, P: act}, gpu.Sum{X: gpu.Rows(dst, rows), Y: j.Result(c.n),
						Dst: dst, DstStride: rows, W: w, Sums: sums, Last: last})
					r.run(ls)
					for i, a := range []gpu.Addr{dst, act, sums} {
						out[i] = make([]byte, []int{4 * c.n * rows, next.Bytes(), next.SumsBytes()}[i])
						if err := r.d.Download(out[i], a); err != nil {
							t.Fatal(err)
						}
						r.release(a)
					}
					r.release(j.Part)
					return out, len(ls)
				}
				want, two := run(false)
				got, one := run(true)
				if two != 2 || one != 1 {
					t.Fatalf("%d and %d launches", two, one)
				}
				for i, what := range []string{"sum", "packed rows", "sums of squares"} {
					if !bytes.Equal(got[i], want[i]) {
						t.Errorf("%v, %d rows, clusters of %d: other %s at byte %d", typ, c.n, c.cluster, what,
							firstDifference(got[i], want[i]))
					}
				}
			}
			r.release(gate, up)
		}
		r.release(m.w, w)
	}
}

// TestOneRow: an attention layer as models write it is seven launches for one row and the end of a pass four, and the
// row has the bits that it has before eight others, where there are more of them.
func TestOneRow(t *testing.T) {
	d := &spy{Driver: emulate.Emulated(t, emulate.Options{Hopper: true, Units: 128})}
	if os.Getenv("STROBE_CUDA") == "cuda" {
		d.Driver = hopper(t)
	}
	dev, err := gpu.New(d)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	const hidden, heads, dim, half, slot, more = 1024, 4, 256, 32, 500, 9
	rnd := rand.New(rand.NewPCG(4, 4))
	bind := func(rows int) backend.Weight {
		w, err := dev.Weight(backend.Matrix{Type: quant.Q4_K, Rows: rows, Cols: hidden, Experts: 1,
			Data: gpu.RandomBlocks(rnd, quant.Q4_K, rows*hidden)})
		must(err)
		return w
	}
	vector := func(n int) backend.Vector {
		v, err := dev.Vector(randomRows(rnd, n))
		must(err)
		return v
	}
	wq, wk, wv, wo := bind(2*heads*dim), bind(dim), bind(dim), bind(hidden)
	gate, up, down, head := bind(hidden), bind(hidden), bind(hidden), bind(300)
	norms, byHead, turn := [3]backend.Vector{vector(hidden), vector(hidden), vector(hidden)}, vector(dim), vector(half)
	pool, err := dev.NewKVPool(backend.KVLayout{Page: 64, Layers: []backend.KVDims{{Heads: 1, KeyDim: dim, ValueDim: dim,
		Key: quant.F16, Value: quant.F16}}})
	must(err)
	w := &world{rig: &rig{t, d, rnd}}
	var table []int32
	var content [][]byte
	for range (slot+more)/64 + 1 {
		id, err := pool.Alloc()
		must(err)
		page := w.junk(pool.PageBytes())
		for i := 1; i < len(page); i += 2 {
			page[i] = page[i]&0x83 | 0x38 // halves from 0.5 to 1 and their negatives, so that all of them matter
		}
		table, content = append(table, id), append(content, page)
	}
	input := randomRows(rnd, more*hidden)
	run := func(n int) (logits, x []float32, best int32) {
		for i, id := range table {
			pool.WritePage(id, content[i])
		}
		rows := func(cols int) backend.Tensor {
			x, err := dev.Alloc(n, cols)
			must(err)
			return x
		}
		ints := func() backend.Ints {
			x, err := dev.AllocInts(n)
			must(err)
			return x
		}
		stream, h, both, k, v, q, o := rows(hidden), rows(hidden), rows(2*heads*dim), rows(dim), rows(dim), rows(heads*dim),
			rows(heads*dim)
		g, u, y, last, out := rows(hidden), rows(hidden), rows(hidden), rows(hidden), rows(300)
		cos, sin, pos, pick, ids := rows(half), rows(half), ints(), ints(), ints()
		p := &backend.KVPlan{Pool: pool, Tables: [][]int32{table}}
		for r := range n {
			addRow(p, 0, slot+r)
		}
		spare := map[int]backend.Tensor{}
		for _, cols := range []int{dim, hidden, 2 * hidden} {
			spare[cols] = rows(cols)
		}
		dev.Write(stream, input[:n*hidden])
		d.names = nil
		dev.BeginStep(&backend.Plan{KV: []backend.KVPlan{*p}})
		var at, all []int32
		for r := range int32(n) {
			at, all = append(at, slot+r), append(all, r)
		}
		dev.SetInts(pos, at)
		dev.SetInts(pick, all)
		dev.Angles(cos, sin, pos, turn, 1)
		dev.RMSNorm(h, stream, norms[0], 1e-6)
		dev.MatMul(h, backend.Product{W: wq, Y: both}, backend.Product{W: wk, Y: k}, backend.Product{W: wv, Y: v})
		dev.RMSNorm(q.Split(heads), both.Split(heads).Columns(0, dim), byHead, 1e-6)
		dev.RoPE(q.Split(heads), heads, cos, sin)
		dev.RMSNorm(k.Split(1), k.Split(1), byHead, 1e-6)
		dev.RoPE(k, 1, cos, sin)
		dev.KVWrite(0, 0, k, v)
		dev.Attention(o, q, 0, 0, backend.AttnParams{Heads: heads, KVHeads: 1, Scale: 0.06})
		oh := o.Split(heads)
		dev.SigmoidGate(oh, oh, both.Split(heads).Columns(dim, dim))
		dev.MatMul(o, backend.Product{W: wo, Y: y})
		dev.Add(stream, stream, y)
		dev.RMSNorm(h, stream, norms[1], 1e-6)
		dev.MatMul(h, backend.Product{W: gate, Y: g}, backend.Product{W: up, Y: u})
		dev.Gated(g, g, u, backend.SiLU)
		dev.MatMul(g, backend.Product{W: down, Y: y})
		dev.Add(stream, stream, y)
		dev.Gather(last, stream, pick)
		dev.RMSNorm(last, last, norms[2], 1e-6)
		dev.MatMul(last, backend.Product{W: head, Y: out})
		dev.ArgMax(ids, out)
		// What lies between is not wanted any more.
		for _, x := range []backend.Tensor{h, both, k, v, q, o, g, u, y} {
			dev.Copy(x, spare[x.Cols])
		}
		dev.EndStep()
		must(dev.Sync())
		return dev.Read(out)[:300], dev.Read(stream)[:hidden], dev.Ints(ids)[0]
	}
	wantLogits, wantX, wantBest := run(more)
	logits, x, best := run(1)
	w.same("residual stream", x, wantX)
	w.same("logits", logits, wantLogits)
	if best != wantBest {
		t.Errorf("best %d, want %d", best, wantBest)
	}
	want := []string{"add_pack", "solo_q4k_1", "qkv_write_floats", "flash256x1", "solo_q4k_merged_then", "solo_q4k_1",
		"solo_q4k_made", "add_norm", "solo_q4k_1", "select_max_parts", "select_merge"}
	if got := d.names[2:][:len(want)]; !slices.Equal(got, want) {
		t.Errorf("launches %v, want %v", got, want)
	}
}

// merged is attention of a row of each sequence whose last launch adds splits.
func (w *world) merged(p *backend.KVPlan, rows, width int) (gpu.AttnCall, []gpu.Call) {
	w.t.Helper()
	k := w.tablesOf(p, w.at.Tiling(1))
	call := gpu.AttnCall{Q: w.floats(w.normal(rows*width, 1)), Out: w.alloc(rows * width), QStride: width, OStride: width,
		Rows: rows, Longest: 1, Tables: w.put(k), Merge: k.Partials > 0, Partials: k.Partials, Scale: 0.07,
		Place: w.pages.Layout.Places[layer], Scratch: w.alloc(max(4, w.at.ScratchBytes(k.Partials)/4))}
	call.Tables.Pages, _ = w.pages.Table()
	ls := w.at.Launches(nil, call)
	if !call.Merge || ls[len(ls)-1].Kernel != kernelNamed(w.t, "merge") {
		w.t.Fatalf("no splits are left to add: %d partial results", k.Partials)
	}
	return call, ls
}

// TestMergePack: attention's splits that are added where they are gated and packed are the bytes of those that a launch
// of their own adds; also of rows that have no splits.
func TestMergePack(t *testing.T) {
	d := openPlain(t)
	for _, c := range []struct {
		heads, dim int
		slots      []int
	}{{4, 256, []int{500}}, {6, 64, []int{700, 65, 3}}, {2, 24, []int{330}}} {
		s := backend.KVDims{Heads: 2, KeyDim: c.dim, ValueDim: c.dim, Key: quant.F16, Value: quant.F16}
		w := newWorldOn(t, d, c.heads, s)
		n, width := len(c.slots), c.heads*c.dim
		var segs []rows
		for _, slots := range c.slots {
			segs = append(segs, rows{s: w.sequence(slots, 60), n: 1})
		}
		call, ls := w.merged(plan(segs), n, width)
		p, x := gpu.NewProducts(d.Props()), gpu.Rows(call.Out, width)
		gates := gpu.Rows(w.floats(w.normal(n*2*width, 1)), 2*width)
		to := gpu.Packed{ActLayout: p.Acts(n, gpu.WeightLayout{Cols: width})}
		packed := func(ls []gpu.Call) []float32 {
			w.run(ls)
			return w.readFloats(to.P, to.Bytes()/4)
		}
		to.P = w.alloc(to.Bytes() / 4)
		want := packed(p.SigmoidPack(slices.Clone(ls), to, x, gates, c.dim, 2*c.dim))
		to.P = w.alloc(to.Bytes() / 4)
		got := packed(p.MergePack(slices.Clone(ls[:len(ls)-1]), to, w.at.Splits(call), x, gates, 2*c.dim))
		w.same(fmt.Sprintf("%d heads of %d", c.heads, c.dim), got, want)
	}
}
