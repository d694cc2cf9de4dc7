package convert

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// Sizes of the drafters below. Their target is the golden Qwen3.
const (
	eagleHeads, eagleKV, eagleDim = 4, 2, 16
	eagleFF, eagleOutputs         = 48, 40
)

// specForge is an EAGLE-3 checkpoint as SpecForge and the authors write it.
func specForge(t *testing.T) *checkpoint {
	t.Helper()
	target := golden(t, "qwen3")
	hidden, vocab := int(target.config["hidden_size"].(float64)), int(target.config["vocab_size"].(float64))
	c := &checkpoint{t: t, files: map[string]string{}, config: map[string]any{
		"architectures": []string{"LlamaForCausalLMEagle3"}, "model_type": "llama", "hidden_size": hidden,
		"num_hidden_layers": 1, "num_attention_heads": eagleHeads, "num_key_value_heads": eagleKV, "head_dim": eagleDim,
		"intermediate_size": eagleFF, "vocab_size": vocab, "draft_vocab_size": eagleOutputs, "rms_norm_eps": 1e-6,
		"max_position_embeddings": 2048, "rope_theta": 1e6, "hidden_act": "silu",
		"eagle_config": map[string]any{"use_aux_hidden_state": true, "eagle_aux_hidden_state_layer_ids": []int{0, 1, 2}},
	}}
	rng := rand.New(rand.NewPCG(1, 1))
	add := func(name string, shape ...int) {
		n := 1
		for _, s := range shape {
			n *= s
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64() / math.Sqrt(float64(shape[len(shape)-1])))
		}
		c.addF32(name, shape, v...)
	}
	add("fc.weight", hidden, 3*hidden)
	add("norm.weight", hidden)
	add("lm_head.weight", eagleOutputs, hidden)
	for _, name := range []string{"input_layernorm", "hidden_norm", "post_attention_layernorm"} {
		add("midlayer."+name+".weight", hidden)
	}
	add("midlayer.self_attn.q_proj.weight", eagleHeads*eagleDim, 2*hidden)
	add("midlayer.self_attn.k_proj.weight", eagleKV*eagleDim, 2*hidden)
	add("midlayer.self_attn.v_proj.weight", eagleKV*eagleDim, 2*hidden)
	add("midlayer.self_attn.o_proj.weight", hidden, eagleHeads*eagleDim)
	add("midlayer.mlp.gate_proj.weight", eagleFF, hidden)
	add("midlayer.mlp.up_proj.weight", eagleFF, hidden)
	add("midlayer.mlp.down_proj.weight", hidden, eagleFF)
	var d2t []byte
	for i := range eagleOutputs {
		d2t = binary.LittleEndian.AppendUint64(d2t, uint64(i)) // output i is token 2i
	}
	c.tensors = append(c.tensors, safetensors.Tensor{Name: "d2t", DType: "I64", Shape: []int{eagleOutputs}, Data: d2t},
		safetensors.Tensor{Name: "t2d", DType: "BOOL", Shape: []int{vocab}, Data: make([]byte, vocab)})
	return c
}

// speculators is the same drafter as that library writes it.
func speculators(t *testing.T) *checkpoint {
	t.Helper()
	c := specForge(t)
	layer := maps.Clone(c.config)
	for _, key := range []string{"architectures", "draft_vocab_size", "eagle_config"} {
		delete(layer, key)
	}
	c.config = map[string]any{"architectures": []string{"Eagle3Speculator"}, "speculators_model_type": "eagle3",
		"transformer_layer_config": layer, "draft_vocab_size": eagleOutputs, "norm_before_residual": false,
		"target_hidden_size": nil, "eagle_aux_hidden_state_layer_ids": []int{1, 2, 3}}
	for i := range c.tensors {
		c.tensors[i].Name = strings.Replace(c.tensors[i].Name, "midlayer.", "layers.0.", 1)
	}
	c.addF32("verifier_norm.weight", []int{1}, 1) // of training
	return c
}

// TestEagle3: both layouts become the same file, which loads beside its target.
func TestEagle3(t *testing.T) {
	opt := Options{Type: "f32", Target: testkit.Golden(t, "qwen3/hf")}
	path := convertTo(t, specForge(t).write(), opt)
	f := openGGUF(t, path)
	if ids, _, err := f.Ints("eagle3.target_layers"); err != nil || !slices.Equal(ids, []int64{1, 2, 3}) {
		t.Errorf("target layers %v, %v", ids, err)
	}
	if f.Arch() != "eagle3" || f.Tensor("t2d") != nil || f.Tensor("token_embd.weight") != nil {
		t.Errorf("architecture %q, or tensors that should not be there", f.Arch())
	}
	if d := f.Tensor("d2t"); d == nil || d.Type != quant.I64 || binary.LittleEndian.Uint64(d.Data[8*7:]) != 14 {
		t.Error("output 7 is not token 14")
	}
	// Values that turn together lie side by side: row 1 of a head was the first of its second half.
	q, from := f.Tensor("blk.0.attn_q.weight"), specForge(t).tensor("midlayer.self_attn.q_proj.weight")
	row := q.Type.RowBytes(q.Shape[0])
	if !bytes.Equal(q.Data[row:2*row], from.Data[eagleDim/2*row:][:row]) {
		t.Error("rows of queries are not in the order of files")
	}
	other := openGGUF(t, convertTo(t, speculators(t).write(), opt))
	for _, x := range f.Tensors() {
		if y := other.Tensor(x.Name); y == nil || !bytes.Equal(x.Data, y.Data) {
			t.Errorf("tensor %s differs in the other layout", x.Name)
		}
	}
	for _, key := range f.Keys() {
		a, _, _ := f.Value(key)
		b, _, _ := other.Value(key)
		if strings.HasPrefix(key, "eagle3.") && !reflect.DeepEqual(a, b) {
			t.Errorf("key %s is %v, in the other layout %v", key, a, b)
		}
	}
	m, err := engine.Load(testkit.Golden(t, "qwen3/model.gguf"), engine.Options{Device: "cpu", Threads: 1, Drafter: path})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if ds := m.Drafters(); len(ds) != 1 || ds[0].Name() != "eagle3" || !slices.Equal(ds[0].Capture(), []int{0, 1, 2}) {
		t.Errorf("drafters %v", ds)
	}
}

// TestEagle3Kinds: what else is published: the authors' class, no list of layers, norms before the projection, a
// drafter with all of the target's tokens, one for a target's file.
func TestEagle3Kinds(t *testing.T) {
	dir := testkit.Golden(t, "qwen3/hf")
	of := func(opt Options, change func(c *checkpoint)) *gguf.File {
		t.Helper()
		c := specForge(t)
		change(c)
		opt.Type = "f32"
		return openGGUF(t, convertTo(t, c.write(), opt))
	}
	f := of(Options{Target: dir}, func(c *checkpoint) {
		c.config["architectures"] = []string{"LlamaForCausalLM"}
		delete(c.config, "eagle_config")
		c.config["norm_before_fc"] = true
		hidden := c.tensor("norm.weight").Shape[0]
		c.addF32("input_norm.weight", []int{3 * hidden}, slices.Repeat([]float32{1}, 3*hidden)...)
	})
	layers := int(golden(t, "qwen3").config["num_hidden_layers"].(float64))
	if ids, _, _ := f.Ints("eagle3.target_layers"); !slices.Equal(ids, []int64{2, int64(layers / 2), int64(layers - 3)}) {
		t.Errorf("target layers %v of %d", ids, layers)
	}
	if on, _, _ := f.Bool("eagle3.norm_before_fc"); !on || f.Tensor("enc.output_norm.weight") == nil {
		t.Error("the norm before the projection is missing")
	}
	f = of(Options{TargetFile: openGGUF(t, testkit.Golden(t, "qwen3/model.gguf"))}, func(c *checkpoint) {
		c.config["draft_vocab_size"] = c.config["vocab_size"]
		c.remove(func(name string) bool {
			return strings.HasSuffix(name, "2d") || name == "d2t" || name == "lm_head.weight"
		})
	})
	if f.Tensor("output.weight") != nil || !f.Has("tokenizer.ggml.tokens") {
		t.Error("the drafter has an output matrix, or no tokenizer")
	}
}

// TestEagle3Refusals: what cannot run is refused with the name of what is missing.
func TestEagle3Refusals(t *testing.T) {
	opt := Options{Target: testkit.Golden(t, "qwen3/hf")}
	lacks := func(name string) func(*checkpoint) {
		return func(c *checkpoint) { c.remove(func(n string) bool { return n == name }) }
	}
	set := func(key string, v any) func(*checkpoint) {
		return func(c *checkpoint) { c.config[key] = v }
	}
	for name, x := range map[string]struct {
		change func(*checkpoint)
		words  []string
	}{
		"projection": {lacks("fc.weight"), []string{"fc.weight", "missing"}},
		"map":        {lacks("d2t"), []string{"d2t", "missing"}},
		"outputs":    {lacks("lm_head.weight"), []string{"output.weight", "missing"}},
		"norm":       {lacks("midlayer.hidden_norm.weight"), []string{"attn_norm_2", "missing"}},
		"last norm":  {lacks("norm.weight"), []string{"output_norm", "missing"}},
		"layers":     {set("num_hidden_layers", 2), []string{"num_hidden_layers", "2"}},
		"activation": {set("hidden_act", "gelu"), []string{"hidden_act", "gelu"}},
		"target":     {set("target_hidden_size", 9999), []string{"target_hidden_size", "9999", "another target"}},
		"captured":   {set("eagle_aux_hidden_state_layer_ids", []int{1, 2, 99}), []string{"hidden_state_layer_ids", "99"}},
		"count":      {set("eagle_aux_hidden_state_layer_ids", []int{1, 2}), []string{"fc.weight", "another target"}},
		"before fc":  {set("norm_before_fc", true), []string{"enc.output_norm", "missing"}},
		"head norms": {func(c *checkpoint) {
			c.addF32("midlayer.self_attn.q_norm.weight", []int{eagleDim}, slices.Repeat([]float32{1}, eagleDim)...)
		}, []string{"q_norm", "not supported"}},
		"token outside": {func(c *checkpoint) { c.tensor("d2t").Data[1] = 1 << 6 }, []string{"d2t", "outside"}},
		"no target":     {func(c *checkpoint) {}, []string{"--target"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, opt := specForge(t), opt
			x.change(c)
			if name == "no target" {
				opt.Target = ""
			}
			convertFails(t, c.write(), opt, x.words...)
		})
	}
}
