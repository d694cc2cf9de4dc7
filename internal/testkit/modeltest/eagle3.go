package modeltest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit/edit"
)

// Eagle3Reference computes in float64 what an EAGLE-3 drafter says after a text, from the definition of the network:
// for each token of path, which begins with the newest token, the log-probability of every token after it. Tokens
// that the drafter cannot guess have minus infinity.
func Eagle3Reference(t testing.TB, target, drafter *gguf.File, text, path []int32) (logp [][]float64) {
	t.Helper()
	of, _ := run(t, target, text)
	r := &reference{t: t, f: drafter, arch: "eagle3", decoded: map[string][]float64{}}
	r.kept = make([]kept, 1)
	embed := r.values("token_embd.weight")
	if embed == nil {
		embed = of.values("token_embd.weight")
	}
	hidden := int(r.key("embedding_length"))
	ids, _, err := drafter.Ints("eagle3.target_layers")
	if err != nil {
		t.Fatal(err)
	}
	// Every token but the first, and those of the path, has an input: its embedding, and what comes before it.
	var g []float64
	for i, id := range slices.Concat(text, path)[1:] {
		if i < len(text) {
			g = r.fused(of, ids, i)
		}
		out := r.eagleLayer(embed[int(id)*hidden:][:hidden], g, i)
		if i+1 >= len(text) {
			g = out
			logp = append(logp, r.guesses(of, out))
		}
	}
	return logp
}

// fused is the projection of the target's features of token i.
func (r *reference) fused(of *reference, ids []int64, i int) []float64 {
	var features []float64
	for _, id := range ids {
		x := of.inputs[id][i]
		if int(id) == len(of.inputs)-1 {
			x = of.norm("output_norm.weight", x)
		}
		features = append(features, x...)
	}
	if on, _, _ := r.f.Bool("eagle3.norm_before_fc"); on {
		features = r.norm("enc.output_norm.weight", features)
	}
	return r.times("fc.weight", features)
}

// eagleLayer is the layer's output for an embedding and what comes before it, at a position.
func (r *reference) eagleLayer(embedding, g []float64, pos int) []float64 {
	const p = "blk.0."
	normed := r.norm(p+"attn_norm_2.weight", g)
	in := slices.Concat(r.norm(p+"attn_norm.weight", embedding), normed)
	x := slices.Clone(g)
	if on, _, _ := r.f.Bool("eagle3.norm_before_residual"); on {
		x = normed
	}
	heads := int(r.key("attention.head_count"))
	kv := int(r.or("attention.head_count_kv", float64(heads)))
	dim := int(r.or("attention.key_length", float64(len(g)/heads)))
	project := func(name string) []float64 {
		y := r.times(p+name+".weight", in)
		if bias := r.values(p + name + ".bias"); bias != nil {
			add(y, bias, 1)
		}
		return y
	}
	q, k, v := project("attn_q"), project("attn_k"), project("attn_v")
	turn := rotation{int(r.or("rope.dimension_count", float64(dim))), r.or("rope.freq_base", 10000),
		r.values("rope_freqs.weight")}
	for _, y := range [][]float64{q, k} {
		for at := 0; at < len(y); at += dim {
			r.turn(y[at:at+dim], [3]int{pos, pos, pos}, turn)
		}
	}
	c := &r.kept[0]
	c.keys, c.values = append(c.keys, k), append(c.values, v)
	o := r.times(p+"attn_output.weight", attend(q, *c, nil, 0, len(c.keys), heads, kv, dim, 1/math.Sqrt(float64(dim))))
	if bias := r.values(p + "attn_output.bias"); bias != nil {
		add(o, bias, 1)
	}
	add(x, o, 1)
	add(x, r.dense(p, "", r.norm(p+"ffn_norm.weight", x), silu), 1)
	return x
}

// guesses are the log-probabilities of the target's tokens after an output of the layer.
func (r *reference) guesses(of *reference, x []float64) []float64 {
	head := r.values("output.weight")
	if head == nil {
		if head = of.values("output.weight"); head == nil {
			head = of.values("token_embd.weight")
		}
	}
	logits := product(head, r.norm("output_norm.weight", x))
	top, sum := slices.Max(logits), 0.0
	for _, v := range logits {
		sum += math.Exp(v - top)
	}
	all := make([]float64, len(of.values("token_embd.weight"))/int(of.key("embedding_length")))
	for i := range all {
		all[i] = math.Inf(-1)
	}
	d2t := r.f.Tensor("d2t")
	for i, v := range logits {
		id := i
		if d2t != nil {
			id = int(binary.LittleEndian.Uint64(d2t.Data[8*i:]))
		}
		all[id] = max(all[id], v-top-math.Log(sum))
	}
	return all
}

// Eagle3For makes up an EAGLE-3 drafter for a golden model: with a reduced vocabulary, all norms, and features of the
// embeddings, a layer between and the final state.
func Eagle3For(t testing.TB, target *gguf.File) *edit.File {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 3))
	number := func(key string) int {
		n, _, err := target.Uint(target.Arch() + "." + key)
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	const hidden, heads, kv, dim, width, outputs = 32, 2, 1, 32, 32, 48
	vocab := target.Tensor("token_embd.weight").Shape[1]
	features := 3 * number("embedding_length")
	e := &edit.File{}
	e.Set("general.architecture", "eagle3")
	for key, n := range map[string]int{"block_count": 1, "embedding_length": hidden, "attention.head_count": heads,
		"attention.head_count_kv": kv, "attention.key_length": dim, "feed_forward_length": width} {
		e.Set("eagle3."+key, uint32(n))
	}
	layers := number("block_count")
	e.Set("eagle3.target_layers", []int32{0, int32(layers / 2), int32(layers)})
	e.Set("eagle3.norm_before_residual", true)
	e.Set("eagle3.norm_before_fc", true)
	put := func(name string, mean, dev float64, shape ...int) {
		n := 1
		for _, s := range shape {
			n *= s
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(mean + dev*rng.NormFloat64())
		}
		e.Put(name+".weight", v, shape...)
	}
	for name, n := range map[string]int{"enc.output_norm": features, "output_norm": hidden, "blk.0.attn_norm": hidden,
		"blk.0.attn_norm_2": hidden, "blk.0.ffn_norm": hidden} {
		put(name, 1, 0, n)
	}
	for _, m := range []struct {
		name    string
		in, out int
	}{{"fc", features, hidden}, {"token_embd", hidden, vocab}, {"output", hidden, outputs},
		{"blk.0.attn_q", 2 * hidden, heads * dim}, {"blk.0.attn_k", 2 * hidden, kv * dim},
		{"blk.0.attn_v", 2 * hidden, kv * dim}, {"blk.0.attn_output", heads * dim, hidden},
		{"blk.0.ffn_gate", hidden, width}, {"blk.0.ffn_up", hidden, width}, {"blk.0.ffn_down", width, hidden}} {
		put(m.name, 0, 2/math.Sqrt(float64(m.in)), m.in, m.out)
	}
	var data []byte
	for i := range outputs {
		data = binary.LittleEndian.AppendUint64(data, uint64(i*vocab/outputs))
	}
	e.Tensors = append(e.Tensors, &gguf.Tensor{Name: "d2t", Type: quant.I64, Shape: []int{outputs}, Data: data})
	return e
}
