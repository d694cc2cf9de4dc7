package convert

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// towerCheckpoint is a tiny multimodal checkpoint: a text tensor that must not be in the file, and a tower whose values
// count through all of it, so that each value says where it belongs.
func towerCheckpoint(t *testing.T, class string, vision map[string]any, tensors ...any) *checkpoint {
	t.Helper()
	c := &checkpoint{t: t, files: map[string]string{
		"preprocessor_config.json": `{"image_mean": [0.25, 0.5, 0.75], "image_std": [1, 2, 4]}`,
	}, config: map[string]any{
		"architectures": []any{class}, "vision_config": vision,
		"text_config": map[string]any{"hidden_size": 6, "rms_norm_eps": 1e-5},
	}}
	c.addF32("model.language_model.embed_tokens.weight", []int{2, 6}, make([]float32, 12)...)
	next := float32(1)
	for i := 0; i < len(tensors); i += 2 {
		shape := tensors[i+1].([]int)
		n := 1
		for _, d := range shape {
			n *= d
		}
		values := make([]float32, n)
		for j := range values {
			values[j] = next
			next++
		}
		c.addF32(tensors[i].(string), shape, values...)
	}
	return c
}

// qwenCheckpoint: 2 blocks, width 4, patches of 2 pixels, a table of 3x3 positions. Names are in the order of the file.
func qwenCheckpoint(t *testing.T) *checkpoint {
	var tensors []any
	for i := range 2 {
		block := fmt.Sprintf("model.visual.blocks.%d.", i)
		tensors = append(tensors,
			block+"attn.proj.bias", []int{4}, block+"attn.proj.weight", []int{4, 4},
			block+"attn.qkv.bias", []int{12}, block+"attn.qkv.weight", []int{12, 4},
			block+"mlp.linear_fc1.bias", []int{8}, block+"mlp.linear_fc1.weight", []int{8, 4},
			block+"mlp.linear_fc2.bias", []int{4}, block+"mlp.linear_fc2.weight", []int{4, 8},
			block+"norm1.bias", []int{4}, block+"norm1.weight", []int{4},
			block+"norm2.bias", []int{4}, block+"norm2.weight", []int{4})
	}
	tensors = append(tensors,
		"model.visual.merger.linear_fc1.bias", []int{16}, "model.visual.merger.linear_fc1.weight", []int{16, 16},
		"model.visual.merger.linear_fc2.bias", []int{6}, "model.visual.merger.linear_fc2.weight", []int{6, 16},
		"model.visual.merger.norm.bias", []int{4}, "model.visual.merger.norm.weight", []int{4},
		"model.visual.patch_embed.proj.bias", []int{4}, "model.visual.patch_embed.proj.weight", []int{4, 3, 2, 2, 2},
		"model.visual.pos_embed.weight", []int{9, 4})
	return towerCheckpoint(t, "Qwen3_5ForConditionalGeneration", map[string]any{
		"depth": 2, "hidden_size": 4, "intermediate_size": 8, "num_heads": 2, "patch_size": 2, "spatial_merge_size": 2,
		"num_position_embeddings": 9, "deepstack_visual_indexes": []any{},
	}, tensors...)
}

var gemmaParts = []struct {
	from, to string
	shape    []int
}{
	{"input_layernorm.weight", "ln1.weight", []int{4}},
	{"mlp.down_proj.input_max", "ffn_down.input_max", []int{}},
	{"mlp.down_proj.linear.weight", "ffn_down.weight", []int{4, 8}},
	{"mlp.gate_proj.linear.weight", "ffn_gate.weight", []int{8, 4}},
	{"mlp.up_proj.linear.weight", "ffn_up.weight", []int{8, 4}},
	{"post_attention_layernorm.weight", "attn_post_norm.weight", []int{4}},
	{"post_feedforward_layernorm.weight", "ffn_post_norm.weight", []int{4}},
	{"pre_feedforward_layernorm.weight", "ln2.weight", []int{4}},
	{"self_attn.k_norm.weight", "attn_k_norm.weight", []int{2}},
	{"self_attn.k_proj.linear.weight", "attn_k.weight", []int{4, 4}},
	{"self_attn.o_proj.linear.weight", "attn_out.weight", []int{4, 4}},
	{"self_attn.q_norm.weight", "attn_q_norm.weight", []int{2}},
	{"self_attn.q_proj.input_min", "attn_q.input_min", []int{}},
	{"self_attn.q_proj.linear.weight", "attn_q.weight", []int{4, 4}},
	{"self_attn.q_proj.output_max", "attn_q.output_max", []int{}},
	{"self_attn.v_proj.linear.weight", "attn_v.weight", []int{4, 4}},
}

// gemmaCheckpoint: 2 blocks, width 4, patches of 2 pixels, 5 places in each direction.
func gemmaCheckpoint(t *testing.T) *checkpoint {
	tensors := []any{
		"model.audio_tower.output_proj.weight", []int{2, 2},
		"model.embed_audio.embedding_projection.weight", []int{6, 2},
		"model.embed_vision.embedding_projection.weight", []int{6, 4},
	}
	for i := range 2 {
		for _, p := range gemmaParts {
			tensors = append(tensors, fmt.Sprintf("model.vision_tower.encoder.layers.%d.%s", i, p.from), p.shape)
		}
	}
	return towerCheckpoint(t, "Gemma4ForConditionalGeneration", map[string]any{
		"num_hidden_layers": 2, "hidden_size": 4, "intermediate_size": 8, "num_attention_heads": 2, "patch_size": 2,
	}, append(tensors,
		"model.vision_tower.patch_embedder.input_proj.weight", []int{4, 12},
		"model.vision_tower.patch_embedder.position_embedding_table", []int{2, 5, 4},
		"model.vision_tower.std_bias", []int{4}, "model.vision_tower.std_scale", []int{4})...)
}

// unifiedCheckpoint: width 4, patches of 2 times 2 pixels, 3 places in each direction, no blocks.
func unifiedCheckpoint(t *testing.T) *checkpoint {
	const v = "model.vision_embedder."
	return towerCheckpoint(t, "Gemma4UnifiedForConditionalGeneration", map[string]any{
		"mm_embed_dim": 4, "patch_size": 2, "pooling_kernel_size": 2,
	}, "model.embed_vision.embedding_projection.weight", []int{6, 4},
		v+"patch_dense.bias", []int{4}, v+"patch_dense.weight", []int{4, 48},
		v+"patch_ln1.bias", []int{48}, v+"patch_ln1.weight", []int{48},
		v+"patch_ln2.bias", []int{4}, v+"patch_ln2.weight", []int{4},
		v+"pos_embedding", []int{3, 2, 4}, v+"pos_norm.bias", []int{4}, v+"pos_norm.weight", []int{4})
}

// layout is every tensor of a file, in order: name, type and shape.
func layout(f *gguf.File) (list []string) {
	for _, x := range f.Tensors() {
		list = append(list, fmt.Sprintf("%s %v %v", x.Name, x.Type, x.Shape))
	}
	return list
}

func wantLines(t *testing.T, got []string, want string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(want), "\n")
	for i := range max(len(got), len(lines)) {
		g, w := "nothing", "nothing"
		if i < len(got) {
			g = got[i]
		}
		if i < len(lines) {
			w = strings.TrimSpace(lines[i])
		}
		if g != w {
			t.Errorf("line %d: %s, want %s", i+1, g, w)
		}
	}
}

// keysFrom lists the keys of a file from one key on, with their values.
func keysFrom(t *testing.T, f *gguf.File, first string) (list []string) {
	t.Helper()
	kvs, err := f.KVs()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(kvs, func(kv gguf.KV) bool { return kv.Key == first })
	if at < 0 {
		t.Fatalf("no key %s", first)
	}
	for _, kv := range kvs[at:] {
		list = append(list, fmt.Sprintf("%s %T %v", kv.Key, kv.Value, kv.Value))
	}
	return list
}

func f32Values(t *testing.T, f *gguf.File, name string) []float32 {
	t.Helper()
	x := f.Tensor(name)
	if x == nil || x.Type != quant.F32 {
		t.Fatalf("%s: %v, want F32", name, x)
	}
	out := make([]float32, len(x.Data)/4)
	if err := quant.Dequantize(quant.F32, out, x.Data); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestQwenTower(t *testing.T) {
	c := qwenCheckpoint(t)
	f := openGGUF(t, convertTo(t, c.write(), Options{Type: "f32", MMProj: true}))
	if kind, _, _ := f.String("general.type"); f.Arch() != "clip" || kind != "mmproj" {
		t.Errorf("architecture %s, type %s", f.Arch(), kind)
	}
	wantLines(t, keysFrom(t, f, "general.file_type"), `
		general.file_type uint32 0
		clip.has_vision_encoder bool true
		clip.vision.projection_dim uint32 6
		clip.vision.image_size uint32 6
		clip.vision.patch_size uint32 2
		clip.vision.embedding_length uint32 4
		clip.vision.feed_forward_length uint32 8
		clip.vision.block_count uint32 2
		clip.vision.attention.head_count uint32 2
		clip.vision.image_mean gguf.Array {float32 [0.25 0.5 0.75]}
		clip.vision.image_std gguf.Array {float32 [1 2 4]}
		clip.projector_type string qwen3vl_merger
		clip.use_gelu bool true
		clip.vision.spatial_merge_size uint32 2
		clip.vision.attention.layer_norm_epsilon float32 1e-05
		clip.vision.is_deepstack_layers gguf.Array {bool [false false]}
		general.quantization_version uint32 2`)
	var want strings.Builder
	for i := range 2 {
		for _, part := range []string{"attn_out.bias F32 [4]", "attn_out.weight F32 [4 4]", "attn_qkv.bias F32 [12]",
			"attn_qkv.weight F32 [4 12]", "ffn_up.bias F32 [8]", "ffn_up.weight F32 [4 8]", "ffn_down.bias F32 [4]",
			"ffn_down.weight F32 [8 4]", "ln1.bias F32 [4]", "ln1.weight F32 [4]", "ln2.bias F32 [4]", "ln2.weight F32 [4]"} {
			fmt.Fprintf(&want, "v.blk.%d.%s\n", i, part)
		}
	}
	wantLines(t, layout(f), want.String()+`mm.0.bias F32 [16]
		mm.0.weight F32 [16 16]
		mm.2.bias F32 [6]
		mm.2.weight F32 [16 6]
		v.post_ln.bias F32 [4]
		v.post_ln.weight F32 [4]
		v.patch_embd.bias F32 [4]
		v.patch_embd.weight F32 [2 2 3 4]
		v.patch_embd.weight.1 F32 [2 2 3 4]
		v.position_embd.weight F32 [4 9]`)
	stored := tensorValues(c.tensor("model.visual.patch_embed.proj.weight").Data)
	for frame, name := range []string{"v.patch_embd.weight", "v.patch_embd.weight.1"} {
		for i, v := range f32Values(t, f, name) {
			pixel, plane := i%4, i/4
			if want := stored[(plane*2+frame)*4+pixel]; v != want {
				t.Fatalf("%s[%d] is %v, want %v", name, i, v, want)
			}
		}
	}
	last := tensorValues(c.tensor("model.visual.merger.linear_fc2.weight").Data)
	if !slices.Equal(f32Values(t, f, "mm.2.weight"), last) {
		t.Error("mm.2.weight differs")
	}
}

func tensorValues(data []byte) []float32 {
	out := make([]float32, len(data)/4)
	if err := quant.Dequantize(quant.F32, out, data); err != nil {
		panic(err)
	}
	return out
}

// TestDeepstack: Qwen3-VL hands the output of some blocks to the text model, counted by block in the file.
func TestDeepstack(t *testing.T) {
	c := qwenCheckpoint(t)
	c.config["architectures"] = []any{"Qwen3VLForConditionalGeneration"}
	c.config["vision_config"].(map[string]any)["deepstack_visual_indexes"] = []any{1}
	c.addF32("model.visual.deepstack_merger_list.0.linear_fc1.weight", []int{1, 2}, 7, 8)
	c.addF32("model.visual.deepstack_merger_list.0.norm.bias", []int{2}, 9, 10)
	f := openGGUF(t, convertTo(t, c.write(), Options{Type: "f32", MMProj: true}))
	if v := f32Values(t, f, "v.deepstack.1.fc1.weight"); !slices.Equal(v, []float32{7, 8}) {
		t.Errorf("%v", v)
	}
	if v := f32Values(t, f, "v.deepstack.1.norm.bias"); !slices.Equal(v, []float32{9, 10}) {
		t.Errorf("%v", v)
	}
	key := keysFrom(t, f, "clip.vision.is_deepstack_layers")[0]
	if key != "clip.vision.is_deepstack_layers gguf.Array {bool [false true]}" {
		t.Error(key)
	}
}

func TestGemmaTower(t *testing.T) {
	c := gemmaCheckpoint(t)
	var notes []string
	f := openGGUF(t, convertTo(t, c.write(), Options{Type: "f32", MMProj: true,
		Warn: func(msg string) { notes = append(notes, msg) }}))
	if len(notes) != 1 || !strings.Contains(notes[0], "audio tower is left out") {
		t.Errorf("notes %q", notes)
	}
	wantLines(t, keysFrom(t, f, "clip.vision.attention.head_count"), `
		clip.vision.attention.head_count uint32 2
		clip.vision.image_mean gguf.Array {float32 [0.25 0.5 0.75]}
		clip.vision.image_std gguf.Array {float32 [1 2 4]}
		clip.vision.projector_type string gemma4v
		clip.vision.attention.layer_norm_epsilon float32 1e-06
		general.quantization_version uint32 2`)
	var want strings.Builder
	want.WriteString("mm.input_projection.weight F32 [4 6]\n")
	for i := range 2 {
		for _, p := range gemmaParts {
			shape := slices.Clone(p.shape)
			slices.Reverse(shape)
			if len(shape) == 0 {
				shape = []int{1}
			}
			fmt.Fprintf(&want, "v.blk.%d.%s F32 %v\n", i, p.to, shape)
		}
	}
	wantLines(t, layout(f), want.String()+`v.patch_embd.weight F32 [2 2 3 4]
		v.position_embd.weight F32 [4 5 2]
		v.std_bias F32 [4]
		v.std_scale F32 [4]`)
	stored := tensorValues(c.tensor("model.vision_tower.patch_embedder.input_proj.weight").Data)
	for i, v := range f32Values(t, f, "v.patch_embd.weight") {
		x, y, colour, out := i%2, i/2%2, i/4%3, i/12
		if want := stored[out*12+(y*2+x)*3+colour]; v != want {
			t.Fatalf("v.patch_embd.weight[%d] is %v, want %v", i, v, want)
		}
	}
	if v := f32Values(t, f, "v.blk.1.attn_q.output_max"); len(v) != 1 ||
		v[0] != tensorValues(c.tensor("model.vision_tower.encoder.layers.1.self_attn.q_proj.output_max").Data)[0] {
		t.Errorf("a bound is %v", v)
	}
}

func TestUnifiedTower(t *testing.T) {
	c := unifiedCheckpoint(t)
	f := openGGUF(t, convertTo(t, c.write(), Options{Type: "f32", MMProj: true}))
	wantLines(t, keysFrom(t, f, "clip.has_vision_encoder"), `
		clip.has_vision_encoder bool true
		clip.vision.projection_dim uint32 6
		clip.vision.image_size uint32 224
		clip.vision.patch_size uint32 2
		clip.vision.embedding_length uint32 4
		clip.vision.feed_forward_length uint32 0
		clip.vision.block_count uint32 0
		clip.vision.attention.head_count uint32 0
		clip.vision.image_mean gguf.Array {float32 [0.25 0.5 0.75]}
		clip.vision.image_std gguf.Array {float32 [1 2 4]}
		clip.vision.projector_type string gemma4uv
		clip.vision.attention.layer_norm_epsilon float32 1e-06
		general.quantization_version uint32 2`)
	wantLines(t, layout(f), `mm.input_projection.weight F32 [4 6]
		v.patch_embd.bias F32 [4]
		v.patch_embd.weight F32 [48 4]
		v.patch_norm.1.bias F32 [48]
		v.patch_norm.1.weight F32 [48]
		v.patch_norm.2.bias F32 [4]
		v.patch_norm.2.weight F32 [4]
		v.position_embd.weight F32 [4 3 2]
		v.patch_norm.3.bias F32 [4]
		v.patch_norm.3.weight F32 [4]`)
	for from, to := range map[string]string{
		"patch_dense.weight": "v.patch_embd.weight", "patch_ln1.bias": "v.patch_norm.1.bias",
		"patch_ln1.weight": "v.patch_norm.1.weight",
	} {
		stored := tensorValues(c.tensor("model.vision_embedder." + from).Data)
		for i, v := range f32Values(t, f, to) {
			x, y, colour, out := i%4, i/4%4, i/16%3, i/48
			if want := stored[out*48+(y*4+x)*3+colour]; v != want {
				t.Fatalf("%s[%d] is %v, want %v", to, i, v, want)
			}
		}
	}
	stored := tensorValues(c.tensor("model.vision_embedder.pos_embedding").Data)
	for i, v := range f32Values(t, f, "v.position_embd.weight") {
		if want := stored[(i/4%3*2+i/12)*4+i%4]; v != want {
			t.Fatalf("v.position_embd.weight[%d] is %v, want %v", i, v, want)
		}
	}
}

// TestTowerTypes: which tensors have which type in which file.
func TestTowerTypes(t *testing.T) {
	c := qwenCheckpoint(t)
	c.remove(func(name string) bool { return strings.HasSuffix(name, "mlp.linear_fc2.weight") })
	for i := range 2 { // 40 values are no whole blocks of 32
		c.addF32(fmt.Sprintf("model.visual.blocks.%d.mlp.linear_fc2.weight", i), []int{4, 40}, make([]float32, 160)...)
	}
	qkv := c.tensor("model.visual.blocks.0.attn.qkv.weight")
	qkv.Shape, qkv.Data = []int{12, 32}, make([]byte, 12*32*4)
	dir := c.write()
	for file, want := range map[string]string{
		"f32":  "F32 F32 F32 F32 F32",
		"f16":  "F16 F16 F16 F32 F16",
		"bf16": "F32 F32 BF16 F32 BF16",
		"q8_0": "F32 F32 Q8_0 F32 F16",
		"auto": "F16 F16 F16 F32 F16", // the checkpoint is float32
	} {
		f := openGGUF(t, convertTo(t, dir, Options{Type: file, MMProj: true}))
		var got []string
		for _, name := range []string{"v.patch_embd.weight", "v.patch_embd.weight.1", "v.blk.0.attn_qkv.weight",
			"v.position_embd.weight", "v.blk.1.ffn_down.weight"} {
			got = append(got, f.Tensor(name).Type.String())
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s, want %s", file, s, want)
		}
	}
	convertFails(t, dir, Options{Type: "q4_k_m", MMProj: true}, "f32, f16, bf16 or q8_0, not as q4_k_m")
}

func TestTowerRefused(t *testing.T) {
	change := func(f func(c *checkpoint)) string {
		c := qwenCheckpoint(t)
		f(c)
		return c.write()
	}
	for _, x := range []struct {
		dir   string
		words []string
	}{
		{golden(t, "qwen3").write(), []string{"Qwen3ForCausalLM has no vision tower that can be converted"}},
		{change(func(c *checkpoint) { delete(c.config, "vision_config") }), []string{"vision_config", "no vision tower"}},
		{change(func(c *checkpoint) {
			c.remove(func(name string) bool { return strings.HasSuffix(name, "merger.norm.weight") })
		}), []string{"v.post_ln.weight", "is missing"}},
		{change(func(c *checkpoint) {
			c.remove(func(name string) bool { return strings.Contains(name, "visual.") })
		}), []string{"no tensors of a vision tower"}},
		{change(func(c *checkpoint) { c.config["vision_config"].(map[string]any)["depth"] = 1 }),
			[]string{"blocks.1.", "belongs to block 1, but the tower has 1"}},
		{change(func(c *checkpoint) { c.config["vision_config"].(map[string]any)["depth"] = 3 }),
			[]string{"v.blk.2.ln1.weight", "is missing"}},
		{change(func(c *checkpoint) { c.config["text_config"].(map[string]any)["hidden_size"] = 7 }),
			[]string{"merger.linear_fc2.weight", "width of 7"}},
		{change(func(c *checkpoint) { c.addF32("model.visual.blocks.0.attn.gate.weight", []int{1}, 1) }),
			[]string{"attn.gate.weight", "no such tensor"}},
		{change(func(c *checkpoint) { c.tensor("model.visual.patch_embed.proj.weight").Shape = []int{4, 3, 1, 4, 2} }),
			[]string{"patch_embed.proj.weight", "[width, 3, 2, patch, patch]"}},
		{change(func(c *checkpoint) { c.files["preprocessor_config.json"] = `{"image_mean": [1], "image_std": [1]}` }),
			[]string{"image_mean", "expected 3"}},
		{change(func(c *checkpoint) {
			c.config["vision_config"].(map[string]any)["deepstack_visual_indexes"] = []any{2}
			c.addF32("model.visual.deepstack_merger_list.0.norm.bias", []int{2}, 9, 10)
		}), []string{"deepstack_visual_indexes"}},
	} {
		convertFails(t, x.dir, Options{Type: "f32", MMProj: true}, x.words...)
	}
}

// TestCompareTower: a file is what its checkpoint says, and a changed or missing tensor is noticed.
func TestCompareTower(t *testing.T) {
	c := gemmaCheckpoint(t)
	dir := c.write()
	path := convertTo(t, dir, Options{Type: "f32", MMProj: true})
	differences := func(dir string) (same int, other []string) {
		f := openGGUF(t, path)
		err := Compare(t.Context(), f, dir, Options{}, func(d Difference) {
			if d.Reason == "" && d.Error == 0 {
				same++
			} else {
				other = append(other, d.Name)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return same, other
	}
	if same, other := differences(dir); same != 37 || other != nil {
		t.Errorf("%d tensors are the checkpoint's, these are not: %v", same, other)
	}
	c.tensor("model.vision_tower.patch_embedder.input_proj.weight").Data[3] ^= 0x40
	c.addF32("model.vision_tower.encoder.layers.0.layer_scalar", []int{1}, 1)
	if same, other := differences(c.write()); same != 36 ||
		!slices.Equal(other, []string{"v.patch_embd.weight", "v.blk.0.out_scale.weight"}) {
		t.Errorf("%d tensors are the checkpoint's, these are not: %v", same, other)
	}
}
