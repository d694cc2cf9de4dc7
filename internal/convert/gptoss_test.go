package convert

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	target "strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
)

const (
	ossHidden, ossWidth, ossExperts = 64, 32, 2
)

// gptOSSCheckpoint makes the golden Qwen3 checkpoint one of gpt-oss, with experts in MXFP4.
func gptOSSCheckpoint(t *testing.T) *checkpoint {
	c := withoutNorms(t, "GptOssForCausalLM")
	c.remove(func(name string) bool { return strings.Contains(name, ".mlp.") })
	if n := c.config["hidden_size"].(float64); n != ossHidden {
		t.Fatalf("the golden checkpoint has rows of %v", n)
	}
	layers, heads := int(c.config["num_hidden_layers"].(float64)), int(c.config["num_attention_heads"].(float64))
	var kinds []string
	for i := range layers {
		kinds = append(kinds, []string{"sliding_attention", "full_attention"}[i%2])
	}
	for key, v := range map[string]any{"num_local_experts": ossExperts, "experts_per_token": 1, "sliding_window": 128,
		"intermediate_size": ossWidth, "swiglu_limit": 7.0, "layer_types": kinds, "rope_parameters": nil,
		"rope_theta": 150000, "quantization_config": map[string]any{"quant_method": "mxfp4"},
		"rope_scaling": map[string]any{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
			"original_max_position_embeddings": 4096, "truncate": false}} {
		c.config[key] = v
	}
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add := func(name string, shape ...int) {
			n := 1
			for _, d := range shape {
				n *= d
			}
			v := make([]float32, n)
			for k := range v {
				v[k] = float32(k%17)/8 - 1
			}
			c.addF32(p+name, shape, v...)
		}
		add("self_attn.sinks", heads)
		add("self_attn.o_proj.bias", ossHidden)
		add("mlp.router.weight", ossExperts, ossHidden)
		add("mlp.router.bias", ossExperts)
		add("mlp.experts.gate_up_proj_bias", ossExperts, 2*ossWidth)
		add("mlp.experts.down_proj_bias", ossExperts, ossHidden)
		c.addBlocks(p+"mlp.experts.gate_up_proj", 2*ossWidth, ossHidden/32)
		c.addBlocks(p+"mlp.experts.down_proj", ossHidden, ossWidth/32)
	}
	return c
}

// addBlocks appends codes and scales of a stack of experts.
func (c *checkpoint) addBlocks(name string, rows, blocks int) {
	n := ossExperts * rows * blocks
	codes, scales := make([]byte, 16*n), make([]byte, n)
	for i := range codes {
		codes[i] = byte(i*7 + i/16*3)
	}
	for i := range scales {
		scales[i] = byte(120 + i%5)
	}
	c.tensors = append(c.tensors,
		safetensors.Tensor{Name: name + "_blocks", DType: "U8", Shape: []int{ossExperts, rows, blocks, 16}, Data: codes},
		safetensors.Tensor{Name: name + "_scales", DType: "U8", Shape: []int{ossExperts, rows, blocks}, Data: scales})
}

// expert is a value of a stack of experts, from the definition of the format.
func (c *checkpoint) expert(name string, e, row, col int) float32 {
	codes, scales := c.tensor(name+"_blocks"), c.tensor(name+"_scales")
	at := (e*codes.Shape[1]+row)*codes.Shape[2] + col/32
	code := codes.Data[16*at+col%32/2] >> (4 * (col % 2)) & 15
	v := []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[code%8] * math.Pow(2, float64(scales.Data[at])-127)
	if code >= 8 {
		v = -v
	}
	return float32(v)
}

func floats(t *testing.T, f *gguf.File, name string) []float32 {
	t.Helper()
	x := f.Tensor(name)
	if x == nil {
		t.Fatalf("no tensor %s", name)
	}
	v := make([]float32, x.Elems())
	if err := quant.Dequantize(x.Type, v, x.Data); err != nil {
		t.Fatal(err)
	}
	return v
}

// checkExperts compares a converted layer with the checkpoint, value by value.
func checkExperts(t *testing.T, c *checkpoint, f *gguf.File, typ quant.Type) {
	t.Helper()
	const from, to = "model.layers.1.mlp.experts.", "blk.1."
	for _, part := range []struct {
		name, stack   string
		rows, cols    int
		times, offset int // of a row
	}{
		{"ffn_gate_exps", "gate_up_proj", ossWidth, ossHidden, 2, 0},
		{"ffn_up_exps", "gate_up_proj", ossWidth, ossHidden, 2, 1},
		{"ffn_down_exps", "down_proj", ossHidden, ossWidth, 1, 0},
	} {
		x := f.Tensor(to + part.name + ".weight")
		if x == nil || x.Type != typ || !slices.Equal(x.Shape, []int{part.cols, part.rows, ossExperts}) {
			t.Fatalf("%s is %+v", part.name, x)
		}
		got, bias := floats(t, f, x.Name), floats(t, f, to+part.name+".bias")
		all, err := c.tensor(from + part.stack + "_bias").Float32s()
		if err != nil {
			t.Fatal(err)
		}
		for e := range ossExperts {
			for r := range part.rows {
				row := part.times*r + part.offset
				for k := range part.cols {
					if g, want := got[(e*part.rows+r)*part.cols+k], c.expert(from+part.stack, e, row, k); g != want {
						t.Fatalf("%s: value %d of row %d of expert %d is %v, want %v", part.name, k, r, e, g, want)
					}
				}
				if g, want := bias[e*part.rows+r], all[e*part.times*part.rows+row]; g != want {
					t.Fatalf("%s: bias %d of expert %d is %v, want %v", part.name, r, e, g, want)
				}
			}
		}
	}
}

// TestGPTOSS: blocks of MXFP4 keep their values whatever the type of the file, and the model runs.
func TestGPTOSS(t *testing.T) {
	c := gptOSSCheckpoint(t)
	dir := c.write()
	for _, typ := range []string{"auto", "q8_0", "q4_k_m", "mxfp4_moe"} {
		checkExperts(t, c, openGGUF(t, convertTo(t, dir, Options{Type: typ})), quant.MXFP4)
	}
	f := openGGUF(t, convertTo(t, dir, Options{}))
	for key, want := range map[string]float64{"attention.sliding_window": 128, "expert_feed_forward_length": ossWidth,
		"expert_count": ossExperts, "expert_used_count": 1, "rope.scaling.factor": 32, "rope.freq_base": 150000,
		"rope.scaling.original_context_length": 4096, "rope.scaling.yarn_beta_fast": 32} {
		if v, _, err := f.Float("gpt-oss." + key); err != nil || v != want {
			t.Errorf("%s is %v, want %v (%v)", key, v, want, err)
		}
	}
	if _, ok := f.Kind("gpt-oss.attention.sliding_window_pattern"); ok {
		t.Error("the usual pattern of windows is written down, which older programs may not know")
	}
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	m, err := target.Open(f, b, target.Options{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.Forward([]target.Segment{{Seq: m.NewSeq(), Tokens: []int32{1, 2, 3}, Logits: target.LogitsAll}})
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range b.Read(out.Logits) {
		if v-v != 0 {
			t.Fatalf("logit %d is %v", i, v)
		}
	}
}

// TestGPTOSSFloats: experts in floats, whose inputs and outputs are exchanged, become the same.
func TestGPTOSSFloats(t *testing.T) {
	c := gptOSSCheckpoint(t)
	blocks := *c
	delete(c.config, "quantization_config")
	c.config["layer_types"].([]string)[0] = "full_attention"
	c.remove(func(name string) bool {
		return strings.HasSuffix(name, "_blocks") || strings.HasSuffix(name, "_scales")
	})
	for i := range len(c.config["layer_types"].([]string)) {
		for _, s := range []struct {
			name      string
			outs, ins int
		}{{"gate_up_proj", 2 * ossWidth, ossHidden}, {"down_proj", ossHidden, ossWidth}} {
			name := fmt.Sprintf("model.layers.%d.mlp.experts.%s", i, s.name)
			var v []float32
			for e := range ossExperts {
				for k := range s.ins {
					for r := range s.outs {
						v = append(v, blocks.expert(name, e, r, k))
					}
				}
			}
			c.addF32(name, []int{ossExperts, s.ins, s.outs}, v...)
		}
	}
	f := openGGUF(t, convertTo(t, c.write(), Options{Type: "f32"}))
	checkExperts(t, &blocks, f, quant.F32)
	slides, ok, err := f.Bools("gpt-oss.attention.sliding_window_pattern")
	if err != nil || !ok || slides[0] || slides[1] {
		t.Errorf("windows are %v, %v", slides, err)
	}
}

// TestGPTOSSFails: what is not as it should be is named.
func TestGPTOSSFails(t *testing.T) {
	const down = "model.layers.0.mlp.experts.down_proj"
	for _, c := range []struct {
		name   string
		change func(c *checkpoint)
		words  []string
	}{
		{"no scales", func(c *checkpoint) { c.remove(func(n string) bool { return n == down+"_scales" }) },
			[]string{down + "_blocks", "no scales", down + "_scales"}},
		{"no blocks", func(c *checkpoint) { c.remove(func(n string) bool { return n == down+"_blocks" }) },
			[]string{down + "_scales", "missing"}},
		{"other scales", func(c *checkpoint) {
			x := c.tensor(down + "_scales")
			x.Shape = []int{x.Shape[0], x.Shape[1] / 2, 2 * x.Shape[2]}
		}, []string{down, "scales of U8"}},
		{"other blocks", func(c *checkpoint) {
			x := c.tensor(down + "_blocks")
			x.Shape = []int{x.Shape[0], x.Shape[1], 2, 8}
		}, []string{down + "_blocks", "16 bytes"}},
		{"no number", func(c *checkpoint) { c.tensor(down + "_scales").Data[3] = 0xff },
			[]string{down + "_blocks", "row 3", "not a number"}},
		{"odd rows", func(c *checkpoint) {
			x := c.tensor("model.layers.0.mlp.experts.gate_up_proj_bias")
			x.Shape, x.Data = []int{1, 3}, x.Data[:12]
		}, []string{"gate_up_proj_bias", "[1 3]"}},
		{"flat experts", func(c *checkpoint) { c.addF32("model.layers.0.mlp.experts.x_proj", []int{2}, 1, 2) },
			[]string{"x_proj", "[2]"}},
		{"limit", func(c *checkpoint) { c.config["swiglu_limit"] = 6.5 }, []string{"config.json", "swiglu_limit", "6.5"}},
		{"no window", func(c *checkpoint) { delete(c.config, "sliding_window") }, []string{"sliding_window", "missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ck := gptOSSCheckpoint(t)
			c.change(ck)
			convertFails(t, ck.write(), Options{}, c.words...)
		})
	}
}
