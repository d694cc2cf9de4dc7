package modeltest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/draft/eagle3"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
)

// drawEagle3 draws an EAGLE-3 drafter, of any width. It has random numbers of its own.
func (d *drawing) drawEagle3(seed uint64) {
	arch, hidden, source := d.arch, d.hidden, d.Rand
	d.Rand = rand.New(rand.NewPCG(seed, 78))
	d.begin(eagle3.Arch)
	d.eagle = d.File
	if d.odds(2) {
		d.hidden = pick(d, d.from(10, 100), 64, 96)
	}
	taps := make([]int32, d.from(1, 4))
	for i := range taps {
		taps[i] = int32(d.from(0, d.layers))
	}
	features := len(taps) * hidden
	heads, kv := d.heads()
	dim, width := d.headDim(), d.width()
	d.key("block_count", 1)
	d.key("embedding_length", d.hidden)
	d.key("attention.head_count", heads)
	d.key("attention.head_count_kv", kv)
	d.key("attention.key_length", dim)
	d.key("feed_forward_length", width)
	d.key("target_layers", taps)
	d.key("target_hidden_size", hidden)
	d.key("norm_before_residual", d.odds(2))
	rot := d.rotated(dim)
	d.key("rope.dimension_count", rot)
	d.rope(rot)
	if d.odds(2) {
		d.key("norm_before_fc", true)
		d.norm("enc.output_norm", features)
	}
	d.matrix("fc", features, d.hidden)
	d.norm("output_norm", d.hidden)
	own := d.hidden != hidden
	if own || d.odds(3) {
		d.matrix("token_embd", d.hidden, d.vocab)
	}
	if own || d.odds(2) {
		outputs := d.vocab
		if d.odds(2) {
			outputs = d.from(1, d.vocab)
			var data []byte
			for _, id := range d.Perm(d.vocab)[:outputs] {
				data = binary.LittleEndian.AppendUint64(data, uint64(id))
			}
			d.Tensors = append(d.Tensors, &gguf.Tensor{Name: "d2t", Type: quant.I64, Shape: []int{outputs}, Data: data})
		}
		d.matrix("output", d.hidden, outputs)
	}
	const p = "blk.0."
	for _, name := range []string{"attn_norm", "attn_norm_2", "ffn_norm"} {
		d.norm(p+name, d.hidden)
	}
	d.matrix(p+"attn_q", 2*d.hidden, heads*dim)
	d.matrix(p+"attn_k", 2*d.hidden, kv*dim)
	d.matrix(p+"attn_v", 2*d.hidden, kv*dim)
	if d.odds(3) {
		d.vector(p+"attn_q.bias", 0, 0.5, heads*dim)
		d.vector(p+"attn_k.bias", 0, 0.5, kv*dim)
		d.vector(p+"attn_v.bias", 0, 0.5, kv*dim)
		d.vector(p+"attn_output.bias", 0, 0.3, d.hidden)
	}
	d.matrix(p+"attn_output", heads*dim, d.hidden)
	d.dense(p, "", width)
	d.arch, d.hidden, d.Rand = arch, hidden, source
}

// eagleReference: an EAGLE-3 drafter guesses what the reference does, along the paths of its tree.
func (d *drawing) eagleReference(t *testing.T, target *gguf.File, b backend.Backend) {
	if !d.exact || d.eagle == nil {
		return
	}
	f := File(t, d.eagle.Write(t))
	m, err := model.Open(target, b, model.Options{KV: cache.Uniform(quant.F32)})
	d.opened(t, err)
	x, err := eagle3.Open(f, m, eagle3.Options{KV: cache.Uniform(quant.F32)})
	d.opened(t, err)
	text := d.tokens(d.budget(3, 5))
	p := alone(t, m, x, text, 4, min(3, d.vocab))
	known, last := text[:len(text)-1], text[len(text)-1]
	check := func(path []int32, from int) { // from: the first token after which something new is guessed
		all := Eagle3Reference(t, target, f, known, path)
		for i := from; i < len(path); i++ {
			at, want := p.At[0], all[i]
			if i > 0 {
				at = p.After(i, path[i])
			}
			for _, c := range at {
				if e := math.Abs(float64(c.LogP) - want[c.ID]); !(e <= 2e-3) {
					t.Errorf("after %v token %d has %g, want %g", path[:i+1], c.ID, c.LogP, want[c.ID])
				}
			}
			if best := slices.Max(want); !(float64(at[0].LogP) >= best-2e-3) {
				t.Errorf("after %v the best has %g, want %g", path[:i+1], at[0].LogP, best)
			}
		}
	}
	best := p.Chain([]int32{last})
	check(best[:len(p.At)], 0)
	if p.Next == nil || len(p.At[0]) < 2 {
		return
	}
	// The paths that leave the best one: after the second best token for the first, and for the second place.
	second := p.At[0][1].ID
	check([]int32{last, second}, 1)
	if p.At[1][1].ID != p.After(1, second)[0].ID { // else another path to the same token may be more probable
		check([]int32{last, best[1], p.At[1][1].ID}, 2)
	}
}
