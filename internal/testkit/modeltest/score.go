package modeltest

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/pflash"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// Scorer: a prompt is scored on the device as on the processor, with full and with sparse attention.
func (s Suite) Scorer(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		ids := make([]int32, 40)
		for i := range ids {
			ids[i] = int32(i*i%487 + 3)
		}
		var scores [2][2][]float64
		host := cpu.New(cpu.Options{})
		defer host.Close()
		for i, b := range []backend.Backend{host, s.Backend} {
			scorer, err := pflash.NewScorer(File(t, testkit.Golden(t, name+"/model.gguf")), b, quant.F32)
			if err != nil {
				t.Fatal(err)
			}
			for k, alpha := range []float32{0, 0.9} {
				scorer.Sparse = backend.Sparse{Block: 5, Sink: 1, Window: 1, Last: 1, Alpha: alpha}
				if scores[i][k], err = scorer.Tokens(t.Context(), ids); err != nil {
					t.Fatal(err)
				}
			}
		}
		for k, how := range []string{"full", "sparse"} {
			for j, want := range scores[0][k] {
				if got := scores[1][k][j]; math.Abs(got-want) > 1e-3*want {
					t.Fatalf("%s, %s attention: token %d scores %g, on the processor %g", name, how, j, got, want)
				}
			}
		}
		if d := math.Abs(scores[1][0][3] - scores[1][1][3]); name == "qwen3" && d < 1e-6 {
			t.Errorf("sparse attention is full")
		}
	}
}

// SparseAttention compares attention over chosen blocks with an independent implementation in float64.
func (s Suite) SparseAttention(t *testing.T) {
	raw, err := os.ReadFile(testkit.Shared(t, "golden/pflash/flashprefill.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string]struct {
		Block, Head int
		Params      struct {
			Sink, Window int
			Last         int `json:"last_full"`
		}
		Alphas map[string]any
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(testkit.Shared(t, "golden/pflash/flashprefill.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const name = "qwen3.layer2.n300.b16"
	numbers := func(what string) []float32 {
		x := f.Tensor(name + "." + what)
		if x == nil {
			t.Fatalf("no tensor %s.%s", name, what)
		}
		v, err := x.Float32s()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	c := cases[name]
	q, k, v := numbers("q"), numbers("k"), numbers("v")
	rows := f.Tensor(name + ".rows")
	shape, few := f.Tensor(name+".q").Shape, f.Tensor(name+".k").Shape
	n, heads, dim, kvHeads := shape[0], shape[1], shape[2], few[1]
	b := s.Backend
	pool, err := b.NewKVPool(backend.KVLayout{Page: 64, Layers: []backend.KVDims{
		{Heads: kvHeads, KeyDim: dim, ValueDim: dim, Key: quant.F32, Value: quant.F32}}})
	if err != nil {
		t.Fatal(err)
	}
	plan := backend.KVPlan{Pool: pool, Tables: [][]int32{nil}}
	for r := range n {
		if r%64 == 0 {
			page, err := pool.Alloc()
			if err != nil {
				t.Fatal(err)
			}
			plan.Tables[0] = append(plan.Tables[0], page)
		}
		plan.Seg, plan.Slot = append(plan.Seg, 0), append(plan.Slot, int32(r))
		plan.Lo, plan.Hi = append(plan.Lo, 0), append(plan.Hi, int32(r+1))
	}
	tensor := func(v []float32) backend.Tensor {
		y, err := b.Alloc(n, len(v)/n)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(y, v)
		return y
	}
	p := backend.AttnParams{Heads: heads, KVHeads: kvHeads, Scale: float32(1 / math.Sqrt(float64(dim)))}
	for alpha := range c.Alphas {
		sp := &backend.Sparse{Block: c.Block, Sink: c.Params.Sink, Window: c.Params.Window, Last: c.Params.Last,
			Tokens: []int{n}}
		fmt.Sscan(alpha, &sp.Alpha)
		dst := tensor(q)
		b.BeginStep(&backend.Plan{KV: []backend.KVPlan{plan}})
		b.KVWrite(0, 0, tensor(k), tensor(v))
		if !b.SparseAttention(dst, tensor(q), 0, 0, p, sp) {
			t.Fatal("no sparse attention")
		}
		if _, err := b.EndStep(); err != nil {
			t.Fatal(err)
		}
		got, want := b.Read(dst), numbers("out."+alpha)
		for i := range rows.Elems() {
			r := int(rows.Data[4*i]) | int(rows.Data[4*i+1])<<8
			if d := testkit.RelL2(got[(r*heads+c.Head)*dim:][:dim], want[i*dim:][:dim]); d > 1e-4 {
				t.Errorf("%s, alpha %s: row %d is off by %g", name, alpha, r, d)
				break
			}
		}
	}
}
