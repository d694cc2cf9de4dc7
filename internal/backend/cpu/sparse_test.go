package cpu

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// heads is queries, keys and values of a layer.
type heads struct {
	q, k, v              []float32
	n, heads, kvHeads, d int
}

// attend runs a prompt in chunks of the given size through attention, sparse if s is not nil.
func (x *heads) attend(t *testing.T, b *Backend, key, value quant.Type, chunk int, s *backend.Sparse) []float32 {
	t.Helper()
	pool, err := b.NewKVPool(backend.KVLayout{Page: 64, Layers: []backend.KVDims{
		{Heads: x.kvHeads, KeyDim: x.d, ValueDim: x.d, Key: key, Value: value}}})
	if err != nil {
		t.Fatal(err)
	}
	tensor := func(v []float32, from, n int) backend.Tensor {
		cols := len(v) / x.n
		y, err := b.Alloc(n, cols)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(y, v[from*cols:][:n*cols])
		return y
	}
	var table []int32
	var out []float32
	p := backend.AttnParams{Heads: x.heads, KVHeads: x.kvHeads, Scale: float32(1 / math.Sqrt(float64(x.d)))}
	for from := 0; from < x.n; from += chunk {
		n := min(chunk, x.n-from)
		plan := backend.KVPlan{Pool: pool}
		for r := from; r < from+n; r++ {
			if r%64 == 0 {
				page, err := pool.Alloc()
				if err != nil {
					t.Fatal(err)
				}
				table = append(table, page)
			}
			plan.Seg, plan.Slot = append(plan.Seg, 0), append(plan.Slot, int32(r))
			plan.Lo, plan.Hi = append(plan.Lo, 0), append(plan.Hi, int32(r+1))
		}
		plan.Tables = [][]int32{table}
		q, dst := tensor(x.q, from, n), tensor(x.q, from, n)
		b.BeginStep(&backend.Plan{KV: []backend.KVPlan{plan}})
		b.KVWrite(0, 0, tensor(x.k, from, n), tensor(x.v, from, n))
		if s == nil {
			b.Attention(dst, q, 0, 0, p)
		} else if !b.SparseAttention(dst, q, 0, 0, p, s) {
			t.Fatal("no sparse attention")
		}
		if _, err := b.EndStep(); err != nil {
			t.Fatal(err)
		}
		out = append(out, b.Read(dst)...)
	}
	return out
}

// recorder sees what a model attends with.
type recorder struct {
	*Backend
	layers map[int]*heads
}

func (r *recorder) KVWrite(group, layer int, k, v backend.Tensor) {
	x := r.layers[layer]
	if x == nil {
		x = &heads{}
		r.layers[layer] = x
	}
	x.k, x.v = append(x.k, r.Read(k)...), append(x.v, r.Read(v)...)
	r.Backend.KVWrite(group, layer, k, v)
}

func (r *recorder) Attention(dst, q backend.Tensor, group, layer int, p backend.AttnParams) {
	x := r.layers[layer]
	x.q = append(x.q, r.Read(q)...)
	x.heads, x.kvHeads, x.d = p.Heads, p.KVHeads, q.Cols/p.Heads
	r.Backend.Attention(dst, q, group, layer, p)
}

// recorded runs a prompt through the tiny qwen3 model.
func recorded(t *testing.T, b *Backend, ids []int32) map[int]*heads {
	t.Helper()
	f, err := gguf.Open(testkit.Golden(t, "qwen3/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := &recorder{b, map[int]*heads{}}
	m, err := model.Open(f, r, model.Options{KV: cache.Uniform(quant.F32)})
	if err != nil {
		t.Fatal(err)
	}
	seq := m.NewSeq()
	for from := 0; from < len(ids); from += model.MaxRows {
		part := ids[from:min(len(ids), from+model.MaxRows)]
		if _, err := m.Forward([]model.Segment{{Seq: seq, Tokens: part, Prompt: true}}); err != nil {
			t.Fatal(err)
		}
		if err := seq.CommitAll(); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range r.layers {
		x.n = len(ids)
	}
	return r.layers
}

// synthetic makes the case whose numbers come from SplitMix64.
func synthetic(t *testing.T, seed uint64, n int, sums map[string]string) *heads {
	t.Helper()
	const dim, queryHeads, block = 128, 2, 128
	bell := func(n int) []float64 {
		out := make([]float64, n)
		for i := range out {
			seed += 0x9E3779B97F4A7C15
			z := seed
			z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
			z = (z ^ z>>27) * 0x94D049BB133111EB
			z ^= z >> 31
			sum := float64(z&65535+z>>16&65535+z>>32&65535+z>>48) / 65536
			out[i] = float64(float32((sum - 2) * math.Sqrt(3)))
		}
		return out
	}
	x := &heads{n: n, heads: queryHeads, kvHeads: 1, d: dim}
	u := bell((n + block - 1) / block * dim)
	// Conversions keep compilers of other processors from fusing products and sums.
	for i, v := range bell(n * dim) {
		x.k = append(x.k, float32(float64(0.8*v)+float64(0.6*u[i/dim/block*dim+i%dim])))
	}
	for _, v := range bell(n * dim) {
		x.v = append(x.v, float32(v))
	}
	for i, v := range bell(n * queryHeads * dim) {
		m, h := i/dim/queryHeads/block, i/dim%queryHeads
		x.q = append(x.q, float32(float64(0.8*v)+float64(0.12*u[(m*(3+h)+1)%(m+1)*dim+i%dim])))
	}
	for name, v := range map[string][]float32{"q": x.q, "k": x.k, "v": x.v} {
		if sum := sha256.Sum256(bytesOf(v)); hex.EncodeToString(sum[:]) != sums[name] {
			t.Fatalf("%s is not what it should be", name)
		}
	}
	return x
}

// TestSparseAttention compares weights and choice of blocks, and attention over them, with an independent
// implementation in float64.
func TestSparseAttention(t *testing.T) {
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
		Sums   map[string]string `json:"sha256_f32"`
		Seed   uint64
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	open := func(name string) func(string) []float32 {
		f, err := safetensors.Open(testkit.Shared(t, "golden/pflash/"+name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return func(name string) []float32 {
			x := f.Tensor(name)
			if x == nil {
				return nil
			}
			switch x.DType {
			case "F32":
				v, err := x.Float32s()
				if err != nil {
					t.Fatal(err)
				}
				return v
			case "I32":
				v := make([]float32, x.Elems())
				for i := range v {
					v[i] = float32(uint32(x.Data[4*i]) | uint32(x.Data[4*i+1])<<8)
				}
				return v
			}
			v := make([]float32, x.Elems())
			for i := range v {
				v[i] = float32(x.Data[i])
			}
			return v
		}
	}
	numbers, prompts := open("flashprefill.safetensors"), open("score_qwen3.safetensors")
	b := New(Options{Threads: 2})
	defer b.Close()
	for name, c := range cases {
		if name == "sparse_forward" {
			continue // package pflash
		}
		var x *heads
		var layer, n int
		if _, err := fmt.Sscanf(name, "qwen3.layer%d.n%d.", &layer, &n); err == nil {
			var ids []int32
			for _, id := range prompts(fmt.Sprintf("n%d.ids", n)) {
				ids = append(ids, int32(id))
			}
			x = recorded(t, b, ids)[layer]
		} else {
			x = synthetic(t, c.Seed, 1400, c.Sums)
		}
		if stored := numbers(name + ".q"); stored != nil {
			x.q, x.k, x.v = stored, numbers(name+".k"), numbers(name+".v")
		}
		for alpha := range c.Alphas {
			s := &backend.Sparse{Block: c.Block, Sink: c.Params.Sink, Window: c.Params.Window, Last: c.Params.Last,
				Tokens: []int{x.n}}
			fmt.Sscan(alpha, &s.Alpha)
			compareBlocks(t, name, alpha, x, s, numbers)
			for _, chunk := range []int{x.n, 384} {
				out := x.attend(t, b, quant.F32, quant.F32, chunk, s)
				dense := x.attend(t, b, quant.F32, quant.F32, chunk, nil)
				for what, got := range map[string][]float32{"out." + alpha: out, "dense": dense} {
					want := numbers(name + "." + what)
					for i, r := range numbers(name + ".rows") {
						row := got[(int(r)*x.heads+c.Head)*x.d:][:x.d]
						if d := testkit.RelL2(row, want[i*x.d:][:x.d]); d > 1e-4 {
							t.Errorf("%s.%s in chunks of %d: row %v is off by %g", name, what, chunk, r, d)
							break
						}
					}
				}
			}
		}
	}
}

// compareBlocks compares the weights of blocks and which are chosen.
func compareBlocks(t *testing.T, name, alpha string, x *heads, s *backend.Sparse, numbers func(string) []float32) {
	t.Helper()
	blocks := (x.n + s.Block - 1) / s.Block
	weights, mask := numbers(name+".w"), numbers(name+".mask."+alpha)
	for h := range x.heads {
		kv := h / (x.heads / x.kvHeads)
		for m := range blocks {
			rows := min(x.n, (m+1)*s.Block) - m*s.Block
			z := make([]float32, rows*(m+1))
			for n := range m + 1 {
				mean := make([]float64, x.d)
				keys := min(x.n, (n+1)*s.Block) - n*s.Block
				for j := n * s.Block; j < n*s.Block+keys; j++ {
					for c := range mean {
						mean[c] += float64(x.k[(j*x.kvHeads+kv)*x.d+c]) / float64(keys)
					}
				}
				for r := range rows {
					dot := 0.0
					for c := range mean {
						dot += float64(x.q[((m*s.Block+r)*x.heads+h)*x.d+c]) * mean[c]
					}
					z[r*(m+1)+n] = float32(dot / math.Sqrt(float64(x.d)))
				}
			}
			w := blockWeights(z, m+1, m*s.Block, s.Block)
			keep := make([]bool, m+1)
			keepBlocks(keep, w, s, x.n)
			for n := range m + 1 {
				at := (h*blocks+m)*blocks + n
				if weights != nil && math.Abs(w[n]-float64(weights[at])) > 1e-4*float64(weights[at])+1e-9 {
					t.Errorf("%s: weight of block %d for %d in head %d: %g, want %g", name, n, m, h, w[n], weights[at])
					return
				}
				if keep[n] != (mask[at] != 0) {
					t.Errorf("%s, alpha %s: block %d for %d in head %d: kept %v", name, alpha, n, m, h, keep[n])
					return
				}
			}
		}
	}
}

// TestSparseKeepsAll: with all blocks kept the result has the bits of full attention, whatever the types.
func TestSparseKeepsAll(t *testing.T) {
	b := New(Options{Threads: 2})
	defer b.Close()
	x := &heads{n: 450, heads: 4, kvHeads: 2, d: 128}
	fill := func(n int, f float64) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(math.Sin(float64(i)*f) + math.Cos(float64(i*i%1013)))
		}
		return v
	}
	x.q, x.k, x.v = fill(x.n*4*x.d, 0.37), fill(x.n*2*x.d, 0.11), fill(x.n*2*x.d, 0.73)
	for i, key := range quant.CacheTypes {
		for _, value := range []quant.Type{key, quant.CacheTypes[(i+3)%len(quant.CacheTypes)]} {
			for _, block := range []int{128, 48} { // one that divides nothing, too
				s := &backend.Sparse{Block: block, Tokens: []int{x.n}}
				name := strings.ToLower(fmt.Sprintf("%s/%s, blocks of %d", key, value, block))
				want := x.attend(t, b, key, value, 300, nil)
				if got := x.attend(t, b, key, value, 300, s); string(bytesOf(got)) != string(bytesOf(want)) {
					t.Errorf("%s: not full attention (off by %g)", name, testkit.RelL2(got, want))
				}
				s.Alpha = 2 // nothing but what every block sees
				if got := x.attend(t, b, key, value, 300, s); string(bytesOf(got)) == string(bytesOf(want)) {
					t.Errorf("%s: nothing is sparse", name)
				}
			}
		}
	}
}
