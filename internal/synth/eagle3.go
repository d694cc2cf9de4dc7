package synth

import (
	"encoding/binary"

	"strobe/internal/quant"
)

const (
	eagleClass  = "LlamaForCausalLMEagle3"
	eagleSuffix = "-eagle3"
)

// eagles are EAGLE-3 drafters of the targets. That of Llama 3.1 8B is the authors'; the others are made up in its
// style. The tiny ones have what published files have: a reduced vocabulary, another width than the target's, norms in
// other places, the target's final state among the features.
var eagles = []shape{
	{target: "llama-3.1-8b", heads: 32, kv: 8, ff: 14336, outputs: 32000, theta: 5e5},
	{target: "qwen3-30b-a3b", heads: 32, kv: 4, ff: 6144, outputs: 32000, theta: 1e6},
	{target: "gemma-4-26b-a4b", heads: 16, kv: 8, ff: 8448, outputs: 32000, theta: 1e4, normed: true,
		capture: []int{2, 15, 29}},
	{target: "gemma-4-31b", heads: 32, kv: 8, ff: 16128, outputs: 32000, theta: 1e4, normed: true,
		capture: []int{2, 30, 59}},
	{target: "tiny-llama", heads: 4, kv: 2, headDim: 64, ff: 512, outputs: 512, theta: 5e5, capture: []int{0, 1, 2}},
	{target: "tiny-qwen3", heads: 4, kv: 2, headDim: 64, ff: 512, theta: 1e6, normed: true, capture: []int{0, 1, 2}},
	{target: "tiny-qwen35", heads: 4, kv: 2, headDim: 64, ff: 512, outputs: 512, theta: 1e7, capture: []int{1, 2, 3}},
	{target: "tiny-gemma4", hidden: 768, heads: 4, kv: 4, headDim: 64, ff: 512, outputs: 768, theta: 1e4, normed: true,
		encoded: true, capture: []int{1, 2, 4}},
}

// eagle is the drafter of a target.
func eagle(d, t shape) shape {
	d.name, d.title, d.class = t.name+eagleSuffix, t.title+" EAGLE-3", eagleClass
	d.layers, d.width, d.vocab, d.context = 1, t.hidden, t.vocab, t.context
	d.pieces = t.class != llamaClass || t.pieces // the waves of Llama 3 are stretched
	if d.hidden == 0 {
		d.hidden = t.hidden
	}
	if d.headDim == 0 {
		d.headDim = 128
	}
	if d.capture == nil {
		d.capture = []int{2, t.layers / 2, t.layers - 3}
	}
	return d
}

// eagleTensors lists the weights of an EAGLE-3 drafter. One of another width than its target has embeddings of its own.
func (s *shape) eagleTensors() []tensor {
	const p = "blk.0."
	l := &list{}
	l.matrix("fc", len(s.capture)*s.width, s.hidden)
	if s.encoded {
		l.norm("enc.output_norm", len(s.capture)*s.width)
	}
	if s.hidden != s.width {
		l.matrix("token_embd", s.hidden, s.vocab)
	}
	if s.outputs > 0 {
		l.matrix("output", s.hidden, s.outputs)
		l.add("d2t", tokenIDs, float64(s.vocab), s.outputs)
	}
	if !s.pieces {
		l.add("rope_freqs.weight", stretched, 8, s.headDim/2)
	}
	l.norm("output_norm", s.hidden)
	for _, name := range []string{"attn_norm", "attn_norm_2", "ffn_norm"} {
		l.norm(p+name, s.hidden)
	}
	l.matrix(p+"attn_q", 2*s.hidden, s.heads*s.headDim)
	l.matrix(p+"attn_k", 2*s.hidden, s.kv*s.headDim)
	l.matrix(p+"attn_v", 2*s.hidden, s.kv*s.headDim)
	l.matrix(p+"attn_output", s.heads*s.headDim, s.hidden)
	l.matrix(p+"ffn_gate", s.hidden, s.ff)
	l.matrix(p+"ffn_up", s.hidden, s.ff)
	l.matrix(p+"ffn_down", s.ff, s.hidden)
	return l.out
}

// eagleConfig adds what the config.json of an EAGLE-3 drafter has.
func (s *shape) eagleConfig(c, rope map[string]any) {
	c["draft_vocab_size"], c["target_hidden_size"] = s.vocab, s.width
	if s.outputs > 0 {
		c["draft_vocab_size"] = s.outputs
	}
	c["eagle_aux_hidden_state_layer_ids"] = s.capture
	c["norm_before_residual"], c["norm_before_fc"] = s.normed, s.encoded
	delete(c, "layer_types")
	if !s.pieces {
		stretchedRope(rope, s.context)
	}
}

// stretchedRope is the rotary embedding of Llama 3.1.
func stretchedRope(rope map[string]any, context int) {
	rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"] = "llama3", 8.0, context/16
	rope["low_freq_factor"], rope["high_freq_factor"] = 1.0, 4.0
}

// tokenMap is the target's id of each output, spread over its vocabulary.
func tokenMap(t tensor) []byte {
	n := t.shape[0]
	data := make([]byte, 0, quant.I64.RowBytes(n))
	for i := range n {
		data = binary.LittleEndian.AppendUint64(data, uint64(i*int(t.scale)/n))
	}
	return data
}
