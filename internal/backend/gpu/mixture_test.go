package gpu_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// spy is a device that notes the kernels that are launched.
type spy struct {
	gpu.Driver
	names []string
}

func (d *spy) Launch(l *gpu.Launch) {
	d.names = append(d.names, l.Name)
	d.Driver.Launch(l)
}

// layers is a small model of layers with experts on a device. Both layers have the same weights, and memory on the way:
// what the first leaves behind is overwritten, and what the second does is not.
type layers struct {
	t                                   *testing.T
	b                                   *gpu.Backend
	d                                   *spy
	norm, norm2, norm3, scale           backend.Vector
	router, sharedGate, head            backend.Weight
	gate, up, both, down                backend.Weight
	sharedGateUp                        [2]backend.Weight
	sharedDown                          backend.Weight
	hidden, width, experts, used, vocab int
	sharedWidth                         int
}

func newLayers(t *testing.T, d gpu.Driver, gemma bool) *layers {
	l := &layers{t: t, d: &spy{Driver: d}, hidden: 768, width: 512, experts: 20, used: 3, vocab: 48, sharedWidth: 512}
	var err error
	if l.b, err = gpu.New(l.d); err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(4, 2))
	weight := func(typ quant.Type, rows, cols, experts int, scale ...float32) backend.Weight {
		data := gpu.RandomBlocks(rnd, typ, rows*cols*experts)
		if typ == quant.F32 {
			v := make([]float32, rows*cols)
			for i := range v {
				v[i] = float32(rnd.NormFloat64() / 8)
			}
			data = slices.Clone(rawBytes(v))
		}
		w, err := l.b.Weight(backend.Matrix{Name: "w", Type: typ, Rows: rows, Cols: cols, Experts: experts, Data: data,
			Scale: scale})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	vector := func(n int) backend.Vector {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(0.5 + rnd.Float64())
		}
		w, err := l.b.Vector(v)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	l.norm, l.norm2, l.norm3, l.scale = vector(l.hidden), vector(l.hidden), vector(l.hidden), vector(l.experts)
	l.router, l.head = weight(quant.F32, l.experts, l.hidden, 1), weight(quant.Q4_K, l.vocab, l.hidden, 1)
	l.down = weight(quant.Q6_K, l.hidden, l.width, l.experts, 0.01)
	if gemma {
		l.sharedWidth = 1280
	}
	l.sharedGateUp = [2]backend.Weight{weight(quant.Q6_K, l.sharedWidth, l.hidden, 1, 0.05),
		weight(quant.Q6_K, l.sharedWidth, l.hidden, 1, 0.05)}
	l.sharedDown = weight(quant.Q4_K, l.hidden, l.sharedWidth, 1, 0.01)
	if gemma {
		l.both = weight(quant.Q4_K, 2*l.width, l.hidden, l.experts, 0.05)
		return l
	}
	l.gate = weight(quant.Q4_K, l.width, l.hidden, l.experts, 0.05)
	l.up = weight(quant.Q4_K, l.width, l.hidden, l.experts, 0.05)
	l.sharedGate = weight(quant.F32, 1, l.hidden, 1)
	return l
}

// run takes rows through both layers and returns the residual stream and a product of it.
func (l *layers) run(rows []float32) (out, logits []float32) {
	l.t.Helper()
	n, b := len(rows)/l.hidden, l.b
	var mine []backend.Tensor
	room := func(rows, cols int) backend.Tensor {
		x, err := b.Alloc(rows, cols)
		if err != nil {
			l.t.Fatal(err)
		}
		mine = append(mine, x)
		return x
	}
	x, h, in, sum, y := room(n, l.hidden), room(n, l.hidden), room(n, l.hidden), room(n, l.hidden), room(n, l.hidden)
	weights, choice := room(n, l.used), room(n, l.experts)
	gate, up, both := room(n*l.used, l.width), room(n*l.used, l.width), room(n*l.used, 2*l.width)
	each := room(n*l.used, l.hidden)
	sg, su, shared, one := room(n, l.sharedWidth), room(n, l.sharedWidth), room(n, l.hidden), room(n, 1)
	own, last := room(n, l.hidden), room(n, l.vocab)
	ids, err := b.AllocInts(n * l.used)
	if err != nil {
		l.t.Fatal(err)
	}
	b.Write(x, rows)
	const eps = 1e-5
	b.BeginStep(nil)
	b.Copy(y, x)
	for range 2 {
		b.Add(x, x, y)
		b.RMSNorm(h, x, l.norm, eps)
		if l.both != nil { // as Gemma does it
			b.RMSNorm(in, x, l.norm2, eps)
			b.Scale(in, in, 0.5)
			b.RMSNorm(own, x, l.norm3, eps)
			b.MatMul(h, backend.Product{W: l.sharedGateUp[0], Y: sg}, backend.Product{W: l.sharedGateUp[1], Y: su})
			b.Gated(sg, sg, su, backend.GELU)
			b.MatMul(sg, backend.Product{W: l.sharedDown, Y: shared})
			b.RMSNorm(shared, shared, l.norm3, eps)
			b.MatMul(in, backend.Product{W: l.router, Y: choice})
			b.Route(ids, weights, choice, l.used, 1)
			b.ExpertMatMul(own, ids, l.used, backend.Product{W: l.both, Y: both})
			b.Gated(gate, both.Columns(0, l.width), both.Columns(l.width, l.width), backend.GELU)
			b.ExpertMatMul(gate, ids, l.used, backend.Product{W: l.down, Y: each})
			b.ExpertSum(sum, each, weights, ids, l.used, l.scale)
			b.RMSNorm(sum, sum, l.norm2, eps)
			b.Add(shared, shared, sum)
			b.RMSNorm(shared, shared, l.norm, eps)
			b.Add(x, x, shared)
		} else {
			b.MatMul(h, backend.Product{W: l.sharedGateUp[0], Y: sg}, backend.Product{W: l.sharedGateUp[1], Y: su})
			b.Gated(sg, sg, su, backend.SiLU)
			b.MatMul(sg, backend.Product{W: l.sharedDown, Y: shared})
			b.MatMul(h, backend.Product{W: l.sharedGate, Y: one})
			b.MatMul(h, backend.Product{W: l.router, Y: choice})
			b.Route(ids, weights, choice, l.used, 1)
			b.ExpertMatMul(h, ids, l.used, backend.Product{W: l.gate, Y: gate}, backend.Product{W: l.up, Y: up})
			b.Gated(gate, gate, up, backend.SiLU)
			b.ExpertMatMul(gate, ids, l.used, backend.Product{W: l.down, Y: each})
			b.ExpertSum(sum, each, weights, ids, l.used, nil)
			b.AddGated(sum, shared, one)
			b.Add(x, x, sum)
		}
		b.RMSNorm(in, x, l.norm2, eps)
		b.MatMul(in, backend.Product{W: l.head, Y: last})
		b.Scale(y, x, 0.25) // stands for what a layer does before its experts
		b.Copy(sum, y)
	}
	b.EndStep()
	if err := b.Sync(); err != nil {
		l.t.Fatal(err)
	}
	out, logits = b.Read(x), b.Read(last)
	for _, t := range mine {
		b.Free(t)
	}
	return out, logits
}

// TestMixture: layers of experts in few launches are those in many, and a row has the same bits in any batch, also in
// one so large that it is done in many.
func TestMixture(t *testing.T) {
	for _, gemma := range []bool{false, true} {
		t.Run(fmt.Sprintf("gemma=%t", gemma), func(t *testing.T) {
			var d gpu.Driver = emulate.Open(t)
			old := d
			if d.Props().Major < 9 {
				d = emulate.Emulated(t, emulate.Options{Hopper: true})
			} else {
				old = older{d}
			}
			few, many := newLayers(t, d, gemma), newLayers(t, old, gemma)
			const most = 28 // times three is more than four for each expert
			rnd := rand.New(rand.NewPCG(1, 8))
			x := randomRows(rnd, most*few.hidden)
			want, wantLogits := few.run(x)
			if slices.Contains(few.d.names, "gated_k") || !slices.Contains(few.d.names, "experts_k_4") {
				t.Errorf("%d rows: launches %v", most, few.d.names)
			}
			exact, exactLogits := many.run(x)
			for i, v := range [][2][]float32{{want, exact}, {wantLogits, exactLogits}} {
				wide := make([]float64, len(v[1]))
				for k := range wide {
					wide[k] = float64(v[1][k])
				}
				// Sums are cut elsewhere, and a value that is rounded to the next half is another one in the next layer.
				if e := apart(v[0], wide); !(e < half) {
					t.Errorf("output %d: %.1e from many launches", i, e)
				}
			}
			for _, n := range []int{1, 2, 11} {
				few.d.names = nil
				at := most - n
				got, logits := few.run(x[at*few.hidden:])
				if !sameBits(got, want[at*few.hidden:]) || !sameBits(logits, wantLogits[at*few.vocab:]) {
					t.Errorf("%d rows: not the bits they have among %d", n, most)
				}
				// Whatever nobody else reads is left out: in the second layer somebody may.
				all, need := strings.Join(few.d.names, " "), "add_pack router_8 experts_k_1 gated_k moe_add_pack solo"
				if n == 1 {
					need = strings.NewReplacer("router_8", "router_1", "gated_k", "gated_k_one").Replace(need)
				}
				if gemma {
					need = strings.Replace(need, "moe_add_pack", "post_pack", 1)
				}
				if !strings.Contains(all, need) {
					t.Errorf("%d rows: no %s among %s", n, need, all)
				}
			}
		})
	}
}

// TestMixtureRows: on any device layers of experts run, and a row has the same bits in any batch.
func TestMixtureRows(t *testing.T) {
	for _, gemma := range []bool{false, true} {
		l := newLayers(t, openDevice(t), gemma)
		const most = 28
		x := randomRows(rand.New(rand.NewPCG(1, 8)), most*l.hidden)
		want, wantLogits := l.run(x)
		for _, n := range []int{1, 2, 11} {
			at := most - n
			got, logits := l.run(x[at*l.hidden:])
			if !sameBits(got, want[at*l.hidden:]) || !sameBits(logits, wantLogits[at*l.vocab:]) {
				t.Errorf("gemma: %t, %d rows: not the bits they have among %d", gemma, n, most)
			}
		}
	}
}
