package modeltest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// reference computes a transformer in float64 from the published definitions of Llama, Qwen2, Qwen3 and Qwen3-MoE, a
// position after the other, one value after the other. It shares no code with package model.
type reference struct {
	t    testing.TB
	f    *gguf.File
	arch string
}

// Reference returns the logits of all positions.
func Reference(t testing.TB, f *gguf.File, tokens []int32) (logits []float32) {
	t.Helper()
	r := &reference{t, f, f.Arch()}
	hidden, layers := int(r.key("embedding_length")), int(r.key("block_count"))
	embed := r.values("token_embd.weight")
	xs := make([][]float64, len(tokens))
	for i, id := range tokens {
		xs[i] = slices.Clone(embed[int(id)*hidden:][:hidden])
	}
	for il := range layers {
		r.layer(fmt.Sprintf("blk.%d.", il), xs)
	}
	head := "output.weight"
	if f.Tensor(head) == nil {
		head = "token_embd.weight"
	}
	for _, x := range xs {
		for _, v := range r.times(head, r.norm("output_norm.weight", x)) {
			logits = append(logits, float32(v))
		}
	}
	return logits
}

func (r *reference) key(name string) float64 {
	r.t.Helper()
	v, ok, err := r.f.Float(r.arch + "." + name)
	if err != nil || !ok {
		r.t.Fatalf("key %s: %v", name, err)
	}
	return v
}

// values are those of a tensor, nil if there is none.
func (r *reference) values(name string) []float64 {
	r.t.Helper()
	x := r.f.Tensor(name)
	if x == nil {
		return nil
	}
	v := make([]float32, x.Elems())
	if err := quant.Dequantize(x.Type, v, x.Data); err != nil {
		r.t.Fatal(err)
	}
	out := make([]float64, len(v))
	for i := range v {
		out[i] = float64(v[i])
	}
	return out
}

func (r *reference) times(name string, x []float64) []float64 {
	r.t.Helper()
	return r.slice(r.values(name), x)
}

// slice multiplies a matrix of rows as long as x.
func (r *reference) slice(w, x []float64) []float64 {
	y := make([]float64, len(w)/len(x))
	for i := range y {
		for j, v := range x {
			y[i] += w[i*len(x)+j] * v
		}
	}
	return y
}

func (r *reference) norm(name string, x []float64) []float64 {
	w, sum := r.values(name), 0.0
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(sum/float64(len(x))+r.key("attention.layer_norm_rms_epsilon")) * w[i]
	}
	return y
}

// turn rotates the pairs of a head: neighbours in Llama files, halves elsewhere.
func (r *reference) turn(x []float64, pos int) {
	n := len(x)
	factors := r.values("rope_freqs.weight")
	for i := range n / 2 {
		a, b := i, i+n/2
		if r.arch == "llama" {
			a, b = 2*i, 2*i+1
		}
		angle := float64(pos) / math.Pow(r.key("rope.freq_base"), float64(2*i)/float64(n))
		if factors != nil {
			angle /= factors[i]
		}
		sin, cos := math.Sincos(angle)
		x[a], x[b] = x[a]*cos-x[b]*sin, x[a]*sin+x[b]*cos
	}
}

func (r *reference) layer(p string, xs [][]float64) {
	heads, kv, dim := int(r.key("attention.head_count")), int(r.key("attention.head_count_kv")),
		int(r.key("attention.key_length"))
	var keys, values [][]float64
	for pos, x := range xs {
		h := r.norm(p+"attn_norm.weight", x)
		project := func(name string) []float64 {
			y := r.times(p+name+".weight", h)
			for i, b := range r.values(p + name + ".bias") {
				y[i] += b
			}
			return y
		}
		ready := func(y []float64, norm string) {
			for at := 0; at < len(y); at += dim {
				if r.f.Tensor(p+norm) != nil {
					copy(y[at:], r.norm(p+norm, y[at:at+dim]))
				}
				r.turn(y[at:at+dim], pos)
			}
		}
		q, k := project("attn_q"), project("attn_k")
		ready(q, "attn_q_norm.weight")
		ready(k, "attn_k_norm.weight")
		keys, values = append(keys, k), append(values, project("attn_v"))
		out := make([]float64, heads*dim)
		for head := range heads {
			at := head / (heads / kv) * dim
			weights, sum := make([]float64, pos+1), 0.0
			for i := range weights {
				score := 0.0
				for d := range dim {
					score += q[head*dim+d] * keys[i][at+d]
				}
				weights[i] = math.Exp(score / math.Sqrt(float64(dim)))
				sum += weights[i]
			}
			for i, w := range weights {
				for d := range dim {
					out[head*dim+d] += w / sum * values[i][at+d]
				}
			}
		}
		add(x, r.times(p+"attn_output.weight", out), 1)
		add(x, r.feed(p, r.norm(p+"ffn_norm.weight", x)), 1)
	}
}

func add(x, y []float64, scale float64) {
	for i := range x {
		x[i] += scale * y[i]
	}
}

// feed is the feed-forward layer: SwiGLU, or the sum of the most probable experts weighted by their probabilities among
// each other.
func (r *reference) feed(p string, h []float64) []float64 {
	glu := func(gate, up, down []float64) []float64 {
		g, u := r.slice(gate, h), r.slice(up, h)
		for i, v := range g {
			g[i] = v / (1 + math.Exp(-v)) * u[i]
		}
		return r.slice(down, g)
	}
	if r.f.Tensor(p+"ffn_gate_inp.weight") == nil {
		return glu(r.values(p+"ffn_gate.weight"), r.values(p+"ffn_up.weight"), r.values(p+"ffn_down.weight"))
	}
	scores := r.times(p+"ffn_gate_inp.weight", h)
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if scores[a] > scores[b] {
			return -1
		}
		return 1
	})
	order = order[:int(r.key("expert_used_count"))]
	sum := 0.0
	for _, e := range order {
		sum += math.Exp(scores[e])
	}
	y := make([]float64, len(h))
	part := func(name string, e int) []float64 {
		all := r.values(p + name)
		n := len(all) / len(scores)
		return all[e*n:][:n]
	}
	for _, e := range order {
		add(y, glu(part("ffn_gate_exps.weight", e), part("ffn_up_exps.weight", e), part("ffn_down_exps.weight", e)),
			math.Exp(scores[e])/sum)
	}
	return y
}
