package convert

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"strobe/internal/engine"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// withoutNorms makes the golden Qwen3 checkpoint one of another class: the same without norms of heads.
func withoutNorms(t *testing.T, class string) *checkpoint {
	c := golden(t, "qwen3")
	c.config["architectures"] = []string{class}
	c.remove(func(name string) bool { return strings.Contains(name, "_norm.") })
	return c
}

// TestLlama: rotary pairs lie side by side in the file, and the waves of Llama 3.1 have factors.
func TestLlama(t *testing.T) {
	c := withoutNorms(t, "LlamaForCausalLM")
	dim := int(c.config["head_dim"].(float64))
	c.config["rope_parameters"] = map[string]any{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
		"high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_theta": 5e5}
	q := c.tensor("model.layers.0.self_attn.q_proj.weight")
	bias := make([]float32, q.Shape[0])
	for i := range bias {
		bias[i] = float32(i)
	}
	c.addF32("model.layers.0.self_attn.k_proj.bias", []int{len(bias)}, bias...)
	f := openGGUF(t, convertTo(t, c.write(), Options{Type: "f32"}))
	if f.Arch() != "llama" {
		t.Errorf("architecture %q", f.Arch())
	}
	if n, _, _ := f.Uint("llama.rope.dimension_count"); int(n) != dim {
		t.Errorf("rope.dimension_count is %d", n)
	}
	want, err := q.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	width := q.Shape[1]
	x := f.Tensor("blk.0.attn_q.weight")
	got := make([]float32, x.Elems())
	if err := quant.Dequantize(x.Type, got, x.Data); err != nil {
		t.Fatal(err)
	}
	for h := range q.Shape[0] / dim {
		for i := range dim / 2 {
			for half := range 2 {
				row, from := h*dim+2*i+half, h*dim+half*dim/2+i
				if !slices.Equal(got[row*width:][:width], want[from*width:][:width]) {
					t.Fatalf("row %d is not row %d of the checkpoint", row, from)
				}
			}
		}
	}
	y := f.Tensor("blk.0.attn_k.bias")
	v := make([]float32, y.Elems())
	if err := quant.Dequantize(y.Type, v, y.Data); err != nil {
		t.Fatal(err)
	}
	if v[0] != 0 || v[1] != float32(dim/2) || v[2] != 1 || v[dim] != float32(dim) {
		t.Errorf("the bias begins %v", v[:3])
	}
	// The last wave is hundreds of thousands of tokens long, far beyond 8192; the first is shorter than 2048.
	fs := f.Tensor("rope_freqs.weight")
	factors := make([]float32, fs.Elems())
	if err := quant.Dequantize(fs.Type, factors, fs.Data); err != nil {
		t.Fatal(err)
	}
	if len(factors) != dim/2 || factors[0] != 1 || factors[len(factors)-1] != 8 {
		t.Errorf("factors are %v", factors)
	}
	middle := 0
	for i, f := range factors {
		wave := 2 * math.Pi * math.Pow(5e5, 2*float64(i)/float64(dim))
		if wave > 2048 && wave < 8192 {
			middle++
			// The published rule, in frequencies: mix of the frequency and an eighth of it.
			s := (8192/wave - 1) / 3
			mixed := (1-s)*(1/wave)/8 + s*(1/wave)
			if math.Abs(float64(f)-(1/wave)/mixed) > 1e-5 {
				t.Errorf("factor %d is %g, want %g", i, f, (1/wave)/mixed)
			}
		}
	}
	if middle == 0 {
		t.Error("no factor between 1 and 8")
	}
}

// TestQwen2: biases are kept; heads are as wide as the hidden size gives.
func TestQwen2(t *testing.T) {
	c := withoutNorms(t, "Qwen2ForCausalLM")
	c.addF32("model.layers.0.self_attn.v_proj.bias", []int{2}, 1, 2)
	delete(c.config, "head_dim")
	f := openGGUF(t, convertTo(t, c.write(), Options{}))
	if f.Arch() != "qwen2" || f.Tensor("blk.0.attn_v.bias") == nil || f.Tensor("blk.0.attn_q_norm.weight") != nil {
		t.Errorf("architecture %q with other tensors than expected", f.Arch())
	}
	if n, ok, _ := f.Uint("qwen2.attention.key_length"); ok {
		t.Errorf("key_length is %d, which the checkpoint does not say", n)
	}
}

// TestQwen3MoE: experts are stacked, and weights that do not add up to one refused.
func TestQwen3MoE(t *testing.T) {
	c := golden(t, "qwen3")
	c.config["architectures"] = []string{"Qwen3MoeForCausalLM"}
	c.config["num_experts"], c.config["num_experts_per_tok"], c.config["moe_intermediate_size"] = 2, 1, 32
	c.config["norm_topk_prob"] = true
	for _, x := range c.remove(func(name string) bool { return strings.Contains(name, ".mlp.") }) {
		for e := range 2 {
			y := x
			y.Name = strings.Replace(x.Name, ".mlp.", fmt.Sprintf(".mlp.experts.%d.", e), 1)
			c.tensors = append(c.tensors, y)
		}
		if strings.Contains(x.Name, "gate_proj") {
			c.tensors = append(c.tensors, safetensors.Tensor{Name: strings.Replace(x.Name, "gate_proj", "gate", 1),
				DType: x.DType, Shape: []int{2, x.Shape[1]}, Data: x.Data[:len(x.Data)/x.Shape[0]*2]})
		}
	}
	f := openGGUF(t, convertTo(t, c.write(), Options{}))
	for _, name := range []string{"blk.0.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight"} {
		if x := f.Tensor(name); x == nil || x.Shape[2] != 2 {
			t.Errorf("%s is not a stack of two", name)
		}
	}
	if n, _, _ := f.Uint("qwen3moe.expert_feed_forward_length"); n != 32 {
		t.Errorf("expert_feed_forward_length is %d", n)
	}
	c.config["norm_topk_prob"] = false
	convertFails(t, c.write(), Options{}, "norm_topk_prob", "false")
}

// TestMistral: a Mistral becomes a llama file, and its window of attention, which such files cannot say, is mentioned.
func TestMistral(t *testing.T) {
	c := withoutNorms(t, "MistralForCausalLM")
	for _, window := range []any{nil, 4096} {
		c.config["sliding_window"] = window
		said := ""
		f := openGGUF(t, convertTo(t, c.write(), Options{Warn: func(s string) { said += s }}))
		if f.Arch() != "llama" || strings.Contains(said, "sliding_window is 4096") != (window != nil) {
			t.Errorf("window %v: architecture %s, %q", window, f.Arch(), said)
		}
	}
}

// TestTargetFile: a drafter converted with its target's GGUF file is the drafter converted with the target's
// checkpoint.
func TestTargetFile(t *testing.T) {
	for drafter, target := range drafterTargets {
		dir := testkit.Golden(t, drafter+"/hf")
		f := openGGUF(t, testkit.Golden(t, target+"/model.gguf"))
		want := openGGUF(t, convertTo(t, dir, Options{Type: "q8_0", Target: testkit.Golden(t, target+"/hf")}))
		got := openGGUF(t, convertTo(t, dir, Options{Type: "q8_0", TargetFile: f}))
		for _, key := range want.Keys() {
			a, _, _ := want.Value(key)
			if b, ok, _ := got.Value(key); !ok || !cmp.Equal(a, b) {
				t.Errorf("%s: %s differs", drafter, key)
			}
		}
		for _, x := range want.Tensors() {
			if y := got.Tensor(x.Name); y == nil || !cmp.Equal(x.Data, y.Data) {
				t.Errorf("%s: %s differs", drafter, x.Name)
			}
		}
	}
}

// TestDSpark: a drafter with a Markov and a confidence head converts, in both ways its configuration is written, and
// leaves embedding and head to its target.
func TestDSpark(t *testing.T) {
	const rank, vocab, hidden = 4, 512, 64
	c := golden(t, "dflash-qwen3")
	c.config["architectures"] = []string{"Qwen3DSparkModel"}
	d := c.config["dflash_config"].(map[string]any)
	c.config["target_layer_ids"], c.config["mask_token_id"] = d["target_layer_ids"], d["mask_token_id"]
	delete(c.config, "dflash_config")
	for _, name := range []string{"markov_head.markov_w1.weight", "markov_head.markov_w2.weight"} {
		c.addF32(name, []int{vocab, rank}, make([]float32, vocab*rank)...)
	}
	c.addF32("confidence_head.proj.weight", []int{1, hidden + rank}, make([]float32, hidden+rank)...)
	c.addF32("confidence_head.proj.bias", []int{1}, 0.5)
	for _, name := range []string{"embed_tokens.weight", "lm_head.weight"} {
		c.addF32(name, []int{vocab, hidden}, make([]float32, vocab*hidden)...)
	}
	target := testkit.Golden(t, "qwen3/hf")
	f := openGGUF(t, convertTo(t, c.write(), Options{Type: "f32", Target: target}))
	for name, shape := range map[string][]int{"markov_w1.weight": {rank, vocab}, "markov_w2.weight": {rank, vocab},
		"conf_proj.weight": {hidden + rank, 1}, "conf_proj.bias": {1}} {
		if x := f.Tensor(name); x == nil || !slices.Equal(x.Shape, shape) {
			t.Errorf("%s: %v, want shape %v", name, x, shape)
		}
	}
	if f.Tensor("output.weight") != nil || f.Tensor("token_embd.weight") != nil {
		t.Error("it has an embedding or a head of its own")
	}
	layers, _, _ := f.Ints("dflash.target_layers")
	mask, _, _ := f.Uint("tokenizer.ggml.mask_token_id")
	if anchor, ok, _ := f.Bool("dflash.sample_from_anchor"); !anchor || !ok {
		t.Error("the first slot does not guess")
	}
	// As speculators writes it: layers apart, and counted by their input.
	body := map[string]any{}
	for _, key := range []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
		"head_dim", "intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_parameters"} {
		body[key] = c.config[key]
		delete(c.config, key)
	}
	c.config["architectures"], c.config["transformer_layer_config"] = []string{"DSparkSpeculator"}, body
	c.config["aux_hidden_state_layer_ids"] = layers
	delete(c.config, "target_layer_ids")
	g := openGGUF(t, convertTo(t, c.write(), Options{Type: "f32", Target: target}))
	again, _, _ := g.Ints("dflash.target_layers")
	if n, _, _ := g.Uint("tokenizer.ggml.mask_token_id"); n != mask || mask == 0 || !slices.Equal(again, layers) {
		t.Errorf("mask %d and layers %v, want %d and %v", n, again, mask, layers)
	}
	if anchor, ok, _ := g.Bool("dflash.sample_from_anchor"); anchor || !ok {
		t.Error("the first slot guesses")
	}
}

// TestGemmaDSpark: a DSpark drafter whose layers are Gemma 4's converts to a file that fits its target.
func TestGemmaDSpark(t *testing.T) {
	const rank, vocab, hidden, heads, wide, dim = 4, 512, 64, 4, 2, 32
	make32 := func(n int, v float32) []float32 { return slices.Repeat([]float32{v}, n) }
	fresh := func() *checkpoint {
		c := golden(t, "dflash-gemma4")
		d := c.config["dflash_config"].(map[string]any)
		delete(c.config, "dflash_config")
		for key, v := range map[string]any{
			"architectures": []string{"Gemma4DSparkModel"}, "model_type": "gemma4_text",
			"target_layer_ids": d["target_layer_ids"], "mask_token_id": d["mask_token_id"],
			"head_dim": dim / 2, "global_head_dim": dim, "num_key_value_heads": 1,
			"num_global_key_value_heads": wide, "attention_k_eq_v": true, "hidden_activation": "gelu_pytorch_tanh",
			"final_logit_softcapping": 30.0, "layer_types": slices.Repeat([]string{"full_attention"}, 3),
			"use_sliding_window": false, "enable_moe_block": false, "use_double_wide_mlp": false,
			"rope_parameters": map[string]any{
				"full_attention":    map[string]any{"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
				"sliding_attention": map[string]any{"rope_type": "default", "rope_theta": 1e4}},
		} {
			c.config[key] = v
		}
		c.remove(func(name string) bool { return strings.Contains(name, "v_proj") })
		for i := range 3 {
			p := fmt.Sprintf("layers.%d.", i)
			c.addF32(p+"pre_feedforward_layernorm.weight", []int{hidden}, make32(hidden, 1.5)...)
			c.addF32(p+"post_feedforward_layernorm.weight", []int{hidden}, make32(hidden, 0.5)...)
			c.addF32(p+"layer_scalar", []int{1}, 0.75)
		}
		for _, name := range []string{"markov_head.markov_w1.weight", "markov_head.markov_w2.weight"} {
			c.addF32(name, []int{vocab, rank}, make32(vocab*rank, 0.1)...)
		}
		for _, name := range []string{"embed_tokens.weight", "lm_head.weight"} {
			c.addF32(name, []int{vocab, hidden}, make32(vocab*hidden, 0)...)
		}
		return c
	}
	target := Options{Type: "f32", Target: testkit.Golden(t, "gemma4/hf")}
	path := convertTo(t, fresh().write(), target)
	f := openGGUF(t, path)
	for key, want := range map[string]float64{"attention.key_length": dim, "attention.value_length": dim,
		"attention.head_count": heads, "attention.head_count_kv": wide, "rope.dimension_count": dim, "attention.scale": 1,
		"embedding_scale": 8, "final_logit_softcapping": 30, "rope.freq_base": 1e6} {
		got, ok, err := f.Float("dflash." + key)
		if !ok || err != nil {
			n, _, _ := f.Uint("dflash." + key)
			got = float64(n)
		}
		if got != want {
			t.Errorf("%s is %g, want %g", key, got, want)
		}
	}
	if act, _, _ := f.String("dflash.hidden_activation"); act != "gelu_pytorch_tanh" {
		t.Errorf("the activation is %q", act)
	}
	if f.Has("dflash.rope.freq_base_swa") || f.Has("dflash.attention.sliding_window") {
		t.Error("there are keys of sliding layers, and no layer slides")
	}
	value := func(name string, i int) float32 { // not a number if it is not there
		if x := f.Tensor(name); x != nil && len(x.Data) >= 4*(i+1) {
			return math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:]))
		}
		return float32(math.NaN())
	}
	for name, want := range map[string]float32{"ffn_norm": 1.5, "post_ffw_norm": 0.5, "layer_output_scale": 0.75} {
		if got := value("blk.2."+name+".weight", 0); got != want {
			t.Errorf("%s is %g, want %g", name, got, want)
		}
	}
	if f.Tensor("blk.0.post_attention_norm.weight") == nil || f.Tensor("blk.0.attn_v.weight") != nil ||
		f.Tensor("output.weight") != nil || f.Tensor("token_embd.weight") != nil {
		t.Error("norms are missing, or values, an embedding or a head are there")
	}
	for i, want := range map[int]float32{0: 1, 3: 1, 4: 1e30, dim/2 - 1: 1e30} { // a quarter of the pairs turns
		if got := value("rope_freqs.weight", i); got != want {
			t.Errorf("factor %d of the frequencies is %g, want %g", i, got, want)
		}
	}
	m, err := engine.Load(testkit.Golden(t, "gemma4/model.gguf"), engine.Options{Device: "cpu", Threads: 1, Drafter: path})
	if err != nil {
		t.Fatal(err)
	}
	if ds := m.Drafters(); len(ds) != 1 || ds[0].Name() != "dflash" {
		t.Errorf("drafters %v", ds)
	}
	m.Close()
	for name, change := range map[string]func(*checkpoint){
		"attention_k_eq_v": func(c *checkpoint) { c.config["attention_k_eq_v"] = false },
		"enable_moe_block": func(c *checkpoint) { c.config["enable_moe_block"] = true },
		"layer_types":      func(c *checkpoint) { c.config["layer_types"].([]string)[1] = "sliding_attention" },
		"rope_parameters":  func(c *checkpoint) { delete(c.config, "rope_parameters") },
		"v_proj": func(c *checkpoint) {
			c.addF32("layers.0.self_attn.v_proj.weight", []int{hidden, hidden}, make32(hidden*hidden, 0)...)
		},
		"global_head_dim": func(c *checkpoint) { delete(c.config, "global_head_dim") },
	} {
		c := fresh()
		change(c)
		convertFails(t, c.write(), target, name)
	}
}
