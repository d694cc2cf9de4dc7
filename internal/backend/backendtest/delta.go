package backendtest

import (
	"fmt"
	"math"
	"slices"

	"strobe/internal/backend"
)

// recurrent is a stack of Gated DeltaNet layers with the memory of its sequences. The input of a token depends on its
// name and the layer; the layers do not feed each other.
type recurrent struct {
	k       *kit
	d       backend.DeltaDims
	pool    backend.StatePool
	w, dt   [][]float32 // per layer
	a       [][]float32
	vectors [][3]backend.Vector
}

const recurrentLayers = 2

func (k *kit) recurrent(d backend.DeltaDims) *recurrent {
	k.Helper()
	pool, err := k.NewStatePool(d, recurrentLayers)
	k.check(err)
	r := &recurrent{k: k, d: d, pool: pool}
	for l := range recurrentLayers {
		r.w = append(r.w, values("taps", l, d.ConvDim()*d.Kernel))
		r.dt = append(r.dt, values("dt", l, d.VHeads))
		a := values("a", l, d.VHeads)
		for h := range a {
			a[h] = -0.4 * (0.2 + a[h]*a[h]) // decays, neither at once nor never
			if l > 0 {                      // and in the second layer heads that never forget, at once, and almost so
				a[h] = []float32{a[h], -1e-12, -1e6, -60}[h%4]
			}
		}
		r.a = append(r.a, a)
		r.vectors = append(r.vectors, [3]backend.Vector{k.vector(r.w[l]), k.vector(r.a[l]), k.vector(r.dt[l])})
	}
	return r
}

func (r *recurrent) newSlot() int32 {
	r.k.Helper()
	s, err := r.pool.Alloc()
	r.k.check(err)
	return s
}

// token is a token of a sequence, by the number of its input.
type token struct{ seq, number int }

// inputs of a token: what ShortConv gets, alpha and beta.
func (r *recurrent) inputs(layer int, t token) (u, alpha, beta []float32) {
	name := "x"
	if t.number != poisonedToken {
		name = fmt.Sprint("token ", t.number)
	}
	u = r.k.row(name, t.seq, r.d.ConvDim())
	if layer > 0 {
		u = values(fmt.Sprint("token ", t.number, " layer ", layer), t.seq, r.d.ConvDim())
	}
	key := fmt.Sprint(t, " layer ", layer)
	return u, values("alpha "+key, 0, r.d.VHeads), values("beta "+key, 0, r.d.VHeads)
}

// poisonedToken is the number of the token whose input may be poisoned.
const poisonedToken = 77

// piece is the part of a pass that belongs to one sequence.
type piece struct {
	slot    int32
	tokens  []token
	parents []int32
	prompt  bool
	pending int
}

// pass runs the layers over pieces of several sequences. A row of the result holds the outputs of all layers.
func (r *recurrent) pass(pieces ...piece) [][]float32 {
	k := r.k
	k.Helper()
	plan := &backend.Plan{State: r.pool}
	var tokens []token
	for _, p := range pieces {
		plan.Delta = append(plan.Delta, backend.DeltaSeg{Row: len(tokens), N: len(p.tokens),
			Parents: p.parents, Prompt: p.prompt, Slot: p.slot, Pending: p.pending})
		tokens = append(tokens, p.tokens...)
		if !p.prompt {
			k.check(r.pool.Reserve(p.slot, len(p.tokens)))
		}
	}
	n := len(tokens)
	var u, alpha, beta, qkv, dst [recurrentLayers]*area
	for l := range recurrentLayers {
		var uv, av, bv [][]float32
		for _, t := range tokens {
			ut, at, bt := r.inputs(l, t)
			uv, av, bv = append(uv, ut), append(av, at), append(bv, bt)
		}
		u[l], alpha[l], beta[l] = k.input(uv), k.input(av), k.input(bv)
		qkv[l], dst[l] = k.place(n, r.d.ConvDim()), k.place(n, r.d.VHeads*r.d.VDim)
	}
	k.BeginStep(plan)
	for l, v := range r.vectors {
		if l > 0 && n%2 == 0 { // a pass may take several steps
			k.EndStep()
			k.BeginStep(plan)
		}
		k.ShortConv(qkv[l].Tensor, u[l].Tensor, v[0], l)
		k.GatedDelta(dst[l].Tensor, qkv[l].Tensor, alpha[l].Tensor, beta[l].Tensor, v[1], v[2], l)
	}
	k.EndStep()
	layers := k.finish(dst[:]...)
	out := layers[0]
	for i := range out {
		out[i] = slices.Concat(out[i], layers[1][i])
	}
	return out
}

// memory is what a layer remembers of a sequence, by definition.
type memory struct {
	inputs [][]float64   // of the convolution, all of them
	state  [][][]float64 // [VHeads][VDim][KDim]
}

func silu(x float64) float64 { return x * sigmoid(x) }

// after applies a token and returns the output and the memory behind it. The memory before it stays as it is.
func (r *recurrent) after(m memory, layer int, t token) ([]float64, memory) {
	d := r.d
	u, alpha, beta := r.inputs(layer, t)
	next := memory{inputs: append(slices.Clip(m.inputs), wide(u))}
	qkv := make([]float64, d.ConvDim())
	for c := range qkv {
		for j := range d.Kernel {
			if at := len(next.inputs) - d.Kernel + j; at >= 0 {
				qkv[c] += float64(r.w[layer][c*d.Kernel+j]) * next.inputs[at][c]
			}
		}
		qkv[c] = silu(qkv[c])
	}
	unit := func(v []float64) []float64 {
		sum := float64(d.Eps)
		for _, x := range v {
			sum += x * x
		}
		out := make([]float64, len(v))
		for i, x := range v {
			out[i] = x / math.Sqrt(sum)
		}
		return out
	}
	var out []float64
	for h := range d.VHeads {
		kh := h % d.KHeads
		if d.Grouped {
			kh = h / (d.VHeads / d.KHeads)
		}
		q, key := unit(qkv[kh*d.KDim:][:d.KDim]), unit(qkv[(d.KHeads+kh)*d.KDim:][:d.KDim])
		value := qkv[2*d.KHeads*d.KDim+h*d.VDim:][:d.VDim]
		decay := math.Exp(float64(r.a[layer][h]) * math.Log1p(math.Exp(float64(alpha[h])+float64(r.dt[layer][h]))))
		b := sigmoid(float64(beta[h]))
		head := make([][]float64, d.VDim)
		for v := range head {
			head[v] = make([]float64, d.KDim)
			seen := 0.0 // what the state says of the key
			for i := range head[v] {
				if m.state != nil {
					head[v][i] = decay * m.state[h][v][i]
				}
				seen += head[v][i] * key[i]
			}
			o := 0.0
			for i := range head[v] {
				head[v][i] += b * (value[v] - seen) * key[i]
				o += head[v][i] * q[i]
			}
			out = append(out, o/math.Sqrt(float64(d.KDim)))
		}
		next.state = append(next.state, head)
	}
	return out, next
}

// story is a sequence up to a pass: tokens that were a prompt, then a chain of which some were accepted.
type story struct {
	prompt  int
	chain   int
	accept  int
	rows    int // of the pass
	parents []int32
	certain bool // the pass is a prompt too
}

var stories = []story{
	{rows: 1},
	{rows: 3, certain: true},
	{prompt: 5, rows: 4},
	{prompt: 5, chain: 1, accept: 1, rows: 1},
	{prompt: 2, chain: 5, accept: 3, rows: 3},
	{prompt: 4, chain: 4, accept: 2, rows: 5, parents: []int32{-1, 0, 0, 2, 1}},
	{chain: 4, accept: 4, rows: 5, certain: true},
	{prompt: 7, rows: 6, parents: []int32{-1, -1, 0, 1, 2, 2}},
	{prompt: 1, rows: 17, certain: true},
	{prompt: 3, chain: 6, accept: 6, rows: 8},
	{chain: 3, accept: 0, rows: 2},
	{rows: 4, parents: []int32{-1, 0, -1, 2}},
	{prompt: 1, rows: 16},
	{prompt: 3, rows: 66, certain: true}, // long enough for a device that takes prompts in chunks
}

func deltaCases(o Options) []testCase {
	var list []testCase
	for _, d := range o.Delta {
		list = append(list, testCase{deltaName("GatedDelta", d), func(s *suite) { gatedDelta(s, d) }})
	}
	return list
}

func deltaName(what string, d backend.DeltaDims) string {
	name := fmt.Sprintf("%s %d/%d heads of %d and %d, %d taps", what, d.KHeads, d.VHeads, d.KDim, d.VDim, d.Kernel)
	if d.Grouped {
		name += ", grouped"
	}
	return name
}

// tokens of a story: those before the pass that count, those that were refused, those of the pass.
func (y *story) tokens(seq int) (before, refused, pass []token) {
	for i := range y.prompt + y.accept {
		before = append(before, token{seq, i})
	}
	for i := y.accept; i < y.chain; i++ {
		refused = append(refused, token{seq, 500 + i})
	}
	for i := range y.rows {
		pass = append(pass, token{seq, poisonedToken + i})
	}
	return before, refused, pass
}

// gatedDelta: an item is a sequence with its story.
func gatedDelta(s *suite, d backend.DeltaDims) {
	k := s.device()
	r := k.recurrent(d)
	k.obey(op{
		items: len(stories), bound: 1e-5,
		run: func(k *kit, items []int, _ int) [][]float32 {
			var prompts, chains, passes []piece
			var slots []int32
			for _, i := range items {
				y := &stories[i]
				before, refused, pass := y.tokens(i)
				p := piece{slot: r.newSlot()}
				slots = append(slots, p.slot)
				if y.prompt > 0 {
					p.tokens, p.prompt = before[:y.prompt], true
					prompts = append(prompts, p)
				}
				if y.chain > 0 {
					p.tokens, p.prompt = append(before[y.prompt:], refused...), false
					chains = append(chains, p)
				}
				p.tokens, p.prompt, p.parents, p.pending = pass, y.certain, y.parents, y.accept
				passes = append(passes, p)
			}
			for _, p := range [][]piece{prompts, chains} {
				if len(p) > 0 {
					r.pass(p...)
				}
			}
			out := grouped(r.pass(passes...), items, func(i int) int { return stories[i].rows })
			for _, slot := range slots {
				r.pool.Free(slot)
			}
			return out
		},
		want: func(k *kit, i int) []float64 {
			y := &stories[i]
			before, _, pass := y.tokens(i)
			rows := make([][]float64, y.rows)
			for l := range recurrentLayers {
				var root memory
				for _, t := range before {
					_, root = r.after(root, l, t)
				}
				at := make([]memory, y.rows)
				for row, t := range pass {
					from, up := root, row-1
					if y.parents != nil {
						up = int(y.parents[row])
					}
					if up >= 0 {
						from = at[up]
					}
					var o []float64
					o, at[row] = r.after(from, l, t)
					rows[row] = append(rows[row], o...)
				}
			}
			return slices.Concat(rows...)
		},
	})
}
