package convert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// TestMultimodal: the text part of a multimodal checkpoint gives the same file
// as the text model alone.
func TestMultimodal(t *testing.T) {
	c := golden(t, "qwen35")
	text := c.config
	delete(text, "architectures")
	c.config = map[string]any{
		"architectures": []string{"Qwen3_5ForConditionalGeneration"}, "model_type": "qwen3_5", "text_config": text,
		"vision_config": map[string]any{"hidden_size": 7, "num_hidden_layers": 99}, "tie_word_embeddings": true,
	}
	for i := range c.tensors {
		if rest, ok := strings.CutPrefix(c.tensors[i].Name, "model."); ok {
			c.tensors[i].Name = "model.language_model." + rest
		}
	}
	c.addF32("model.visual.blocks.0.attn.qkv.weight", []int{2, 2}, 1, 2, 3, 4)
	c.addF32("model.visual.patch_embed.proj.bias", []int{1}, 1)
	compareFiles(t, convertTo(t, c.write(), Options{}), testkit.Golden(t, "qwen35/model.gguf"))
}

// TestSharded: a sharded checkpoint has the same tensors, shard by shard.
func TestSharded(t *testing.T) {
	c := golden(t, "qwen3")
	dir := c.writeSharded(func(name string) bool {
		return strings.Contains(name, "layers.0.") || name == "model.norm.weight"
	})
	got := openGGUF(t, convertTo(t, dir, Options{}))
	want := openGGUF(t, testkit.Golden(t, "qwen3/model.gguf"))
	for _, x := range want.Tensors() {
		y := got.Tensor(x.Name)
		if y == nil || !cmp.Equal(x.Data, y.Data) {
			t.Errorf("%s differs", x.Name)
		}
	}
	if name := got.Tensors()[1].Name; !strings.HasPrefix(name, "blk.1.") {
		t.Errorf("second tensor is %s, want the rest of the first shard", name)
	}
}

// TestStackedExperts: experts stored fused and stacked give the same file as
// experts stored one by one, which the golden checkpoints have.
func TestStackedExperts(t *testing.T) {
	for _, model := range []string{"qwen35moe", "qwen3next"} {
		c := golden(t, model)
		experts := c.remove(func(name string) bool { return strings.Contains(name, ".mlp.experts.") })
		part := func(layer, e int, proj string) safetensors.Tensor {
			name := fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s.weight", layer, e, proj)
			for _, x := range experts {
				if x.Name == name {
					return x
				}
			}
			t.Fatalf("no tensor %s", name)
			return safetensors.Tensor{}
		}
		const n = 4
		for layer := range 4 {
			var fused, down []byte
			for e := range n {
				fused = append(append(fused, part(layer, e, "gate_proj").Data...), part(layer, e, "up_proj").Data...)
				down = append(down, part(layer, e, "down_proj").Data...)
			}
			base := fmt.Sprintf("model.layers.%d.mlp.experts.", layer)
			c.tensors = append(c.tensors,
				safetensors.Tensor{Name: base + "gate_up_proj", DType: "BF16", Shape: []int{n, 64, 64}, Data: fused},
				safetensors.Tensor{Name: base + "down_proj", DType: "BF16", Shape: []int{n, 64, 32}, Data: down})
		}
		compareFiles(t, convertTo(t, c.write(), Options{}), testkit.Golden(t, model+"/model.gguf"))
	}
}

// TestGemmaExperts: single experts of a Gemma become separate stacks, and a
// double-wide MLP a list of widths.
func TestGemmaExperts(t *testing.T) {
	c := golden(t, "gemma4moe")
	for _, x := range c.remove(func(name string) bool { return strings.Contains(name, ".experts.") }) {
		base, proj := x.Name[:strings.LastIndexByte(x.Name, '.')], x.Name[strings.LastIndexByte(x.Name, '.')+1:]
		size := len(x.Data) / x.Shape[0]
		for e := range x.Shape[0] {
			part := x.Data[e*size : (e+1)*size]
			add := func(proj string, rows int, data []byte) {
				c.tensors = append(c.tensors, safetensors.Tensor{
					Name: fmt.Sprintf("%s.%d.%s.weight", base, e, proj), DType: x.DType, Shape: []int{rows, x.Shape[2]}, Data: data})
			}
			if proj == "gate_up_proj" {
				add("gate_proj", x.Shape[1]/2, part[:size/2])
				add("up_proj", x.Shape[1]/2, part[size/2:])
			} else {
				add(proj, x.Shape[1], part)
			}
		}
	}
	c.config["use_double_wide_mlp"], c.config["num_kv_shared_layers"] = true, 1
	f := openGGUF(t, convertTo(t, c.write(), Options{}))
	want := openGGUF(t, testkit.Golden(t, "gemma4moe/model.gguf"))
	for i := range 4 {
		fused := want.Tensor(fmt.Sprintf("blk.%d.ffn_gate_up_exps.weight", i)).Data
		gate := f.Tensor(fmt.Sprintf("blk.%d.ffn_gate_exps.weight", i)).Data
		up := f.Tensor(fmt.Sprintf("blk.%d.ffn_up_exps.weight", i)).Data
		half := len(fused) / 8 // of one expert
		for e := range 4 {
			if !cmp.Equal(fused[2*e*half:(2*e+1)*half], gate[e*half:(e+1)*half]) ||
				!cmp.Equal(fused[(2*e+1)*half:(2*e+2)*half], up[e*half:(e+1)*half]) {
				t.Errorf("layer %d expert %d differs", i, e)
			}
		}
		name := fmt.Sprintf("blk.%d.ffn_down_exps.weight", i)
		if !cmp.Equal(want.Tensor(name).Data, f.Tensor(name).Data) {
			t.Errorf("%s differs", name)
		}
	}
	widths, _, err := f.Ints("gemma4.feed_forward_length")
	if d := cmp.Diff([]int64{128, 128, 128, 256}, widths); d != "" || err != nil {
		t.Errorf("widths: %s, %v", d, err)
	}
	if f.Keys()[7] != want.Keys()[7] {
		t.Errorf("the list is at %s, not in its place", f.Keys()[7])
	}
}

// TestMTP: NextN layers become a further block with their own tensors.
func TestMTP(t *testing.T) {
	c := golden(t, "qwen35")
	for _, x := range append([]safetensors.Tensor(nil), c.tensors...) {
		if rest, ok := strings.CutPrefix(x.Name, "model.layers.3."); ok {
			x.Name = "mtp.layers.0." + rest
			c.tensors = append(c.tensors, x)
		}
	}
	c.addF32("mtp.fc.weight", []int{64, 128}, make([]float32, 64*128)...)
	for _, n := range []string{"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"} {
		c.addF32("mtp."+n+".weight", []int{64}, make([]float32, 64)...)
	}
	c.config["mtp_num_hidden_layers"] = 1
	dir := c.write()
	f := openGGUF(t, convertTo(t, dir, Options{}))
	for key, want := range map[string]int64{"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1} {
		if v, _, _ := f.Int(key); v != want {
			t.Errorf("%s = %d, want %d", key, v, want)
		}
	}
	rec, _, _ := f.Bools("qwen35.attention.recurrent_layers")
	if d := cmp.Diff([]bool{true, true, true, false, false}, rec); d != "" {
		t.Error(d)
	}
	for _, name := range []string{"eh_proj", "enorm", "hnorm", "shared_head_norm"} {
		if f.Tensor("blk.4.nextn."+name+".weight") == nil {
			t.Errorf("no blk.4.nextn.%s.weight", name)
		}
	}
	// The norms are zero in the checkpoint and hold one more in the file.
	x := f.Tensor("blk.4.nextn.enorm.weight")
	v := make([]float32, 64)
	if err := quant.Dequantize(x.Type, v, x.Data); err != nil || v[0] != 1 || v[63] != 1 {
		t.Errorf("enorm is %v, %v", v[:2], err)
	}
	if !cmp.Equal(f.Tensor("blk.4.attn_q.weight").Data, f.Tensor("blk.3.attn_q.weight").Data) {
		t.Error("the attention of the NextN layer was changed")
	}
	// Without them the file is the one of the plain checkpoint.
	compareFiles(t, convertTo(t, dir, Options{NoMTP: true}), testkit.Golden(t, "qwen35/model.gguf"))
	// Alone they have the keys of the whole file and its tensors outside the other blocks.
	only := openGGUF(t, convertTo(t, dir, Options{MTPOnly: true}))
	if d := cmp.Diff(f.Keys(), only.Keys()); d != "" {
		t.Errorf("keys differ (-whole +alone):\n%s", d)
	}
	for _, x := range f.Tensors() {
		bid, inside := blockOf(x.Name)
		y := only.Tensor(x.Name)
		if keep := !inside || bid == 4; keep != (y != nil) || keep && !cmp.Equal(x.Data, y.Data) {
			t.Errorf("%s: kept %v, or changed", x.Name, y != nil)
		}
	}
	err := HF(t.Context(), testkit.Golden(t, "qwen35/hf"), filepath.Join(t.TempDir(), "none.gguf"),
		Options{MTPOnly: true})
	if err == nil || !strings.Contains(err.Error(), "no multi-token-prediction layers") {
		t.Errorf("a checkpoint without them: %v", err)
	}

	// They may be all there is: the rest is the target's, with the tokenizer.
	c.tensors = slices.DeleteFunc(c.tensors, func(x safetensors.Tensor) bool { return !strings.HasPrefix(x.Name, "mtp.") })
	dir = c.write()
	if err := os.Remove(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	opt := Options{MTPOnly: true, NoVocab: true, Target: testkit.Golden(t, "qwen35/hf")}
	block := openGGUF(t, convertTo(t, dir, opt))
	for _, x := range only.Tensors() {
		_, inside := blockOf(x.Name)
		y := block.Tensor(x.Name)
		if inside != (y != nil) || inside && !cmp.Equal(x.Data, y.Data) {
			t.Errorf("%s of the block alone: kept %v, or changed", x.Name, y != nil)
		}
	}
	convertFails(t, c.write(), Options{}, "layer 0", "has no tensors")
	c.tensors = slices.DeleteFunc(c.tensors,
		func(x safetensors.Tensor) bool { return strings.HasPrefix(x.Name, "mtp.layers.") })
	convertFails(t, c.write(), opt, "no multi-token-prediction layers")
}

// TestMTPGolden: the files are those of the reference converter, whole and alone.
func TestMTPGolden(t *testing.T) {
	for _, arch := range []string{"qwen35", "qwen35moe", "qwen3next"} {
		t.Run(arch, func(t *testing.T) {
			dir := testkit.Shared(t, "golden/mtp/"+arch+"-mtp")
			compareFiles(t, convertTo(t, filepath.Join(dir, "hf"), Options{}), filepath.Join(dir, "model.gguf"))
			if arch != "qwen35moe" { // of which there is no such file
				compareFiles(t, convertTo(t, filepath.Join(dir, "hf"), Options{MTPOnly: true}), testkit.Shared(t,
					"golden/mtp/mtp-only/"+arch+".gguf"))
			}
		})
	}
}

// TestFloat8: FP8 weights are multiplied with the scale of their block.
func TestFloat8(t *testing.T) {
	c := golden(t, "qwen3")
	const name = "model.layers.0.mlp.down_proj.weight"
	x := c.tensor(name)
	rows, cols := x.Shape[0], x.Shape[1] // 64 x 128, blocks of 32 x 48
	x.DType, x.Data = "F8_E4M3", make([]byte, rows*cols)
	for i := range x.Data {
		x.Data[i] = byte(i % 0x7e) // all positive finite values
	}
	down, across := 2, 3
	scales := make([]float32, down*across)
	for i := range scales {
		scales[i] = float32(i + 1)
	}
	c.addF32(name+"_scale_inv", []int{down, across}, scales...)
	c.config["quantization_config"] = map[string]any{"quant_method": "fp8", "weight_block_size": []int{32, 48}}
	f := openGGUF(t, convertTo(t, c.write(), Options{Type: "f32"}))
	y := f.Tensor("blk.0.ffn_down.weight")
	got := make([]float32, rows*cols)
	if err := quant.Dequantize(y.Type, got, y.Data); err != nil {
		t.Fatal(err)
	}
	plain, err := c.tensor(name).Float32s()
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		r, col := i/cols, i%cols
		if want := plain[i] * scales[r/32*across+col/48]; v != want {
			t.Fatalf("value %d,%d is %g, want %g", r, col, v, want)
		}
	}
}

// TestFloat8Scales: one scale per row, per tensor, and what does not fit.
func TestFloat8Scales(t *testing.T) {
	weight := &safetensors.Tensor{Name: "w", DType: "F8_E4M3", Shape: []int{2, 4},
		Data: []byte{0x38, 0x38, 0x38, 0x38, 0x40, 0x40, 0x40, 0xc0}}
	s, err := newSource("f", weight)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		scales []float32
		block  []int
		want   []float32
	}{
		{[]float32{3}, nil, []float32{3, 3, 3, 3, 6, 6, 6, -6}},
		{[]float32{3, 5}, nil, []float32{3, 3, 3, 3, 10, 10, 10, -10}},
		{[]float32{1, 2}, []int{2, 3}, []float32{1, 1, 1, 2, 2, 2, 2, -4}},
		{[]float32{1, 2, 3}, nil, nil},
		{[]float32{1}, []int{1, 1}, nil},
	} {
		x, err := s.scaled(&safetensors.Tensor{Name: "s", DType: "F32", Shape: []int{len(c.scales)},
			Data: f32Bytes(c.scales)}, c.block)
		if c.want == nil {
			if err == nil {
				t.Errorf("%v with blocks %v is accepted", c.scales, c.block)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		got := make([]float32, 8)
		for r := range 2 {
			if err := x.row(got[4*r:4*r+4], r); err != nil {
				t.Fatal(err)
			}
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%v with blocks %v: %s", c.scales, c.block, d)
		}
	}
}

// TestFloat8Experts: each of several stacked matrices has scales of its own, in blocks, per row and one for each.
func TestFloat8Experts(t *testing.T) {
	const experts, height, width = 3, 3, 4
	one := bytes.Repeat([]byte{0x38}, experts*height*width)
	s, err := newSource("f", &safetensors.Tensor{Name: "w", DType: "F8_E4M3", Shape: []int{experts, height, width},
		Data: one})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		block []int
		n     int
		at    func(e, r, col int) int // the scale of a value
	}{
		{"blocks", []int{2, 3}, experts * 4, func(e, r, col int) int { return e*4 + r/2*2 + col/3 }},
		{"rows", nil, experts * height, func(e, r, col int) int { return e*height + r }},
		{"experts", nil, experts, func(e, r, col int) int { return e }},
	} {
		scales := make([]float32, c.n)
		for i := range scales {
			scales[i] = float32(i + 1)
		}
		x, err := s.scaled(&safetensors.Tensor{Name: "s", DType: "F32", Shape: []int{c.n}, Data: f32Bytes(scales)}, c.block)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		row := make([]float32, width)
		for i := range experts * height {
			if err := x.row(row, i); err != nil {
				t.Fatal(err)
			}
			for col, v := range row {
				if want := scales[c.at(i/height, i%height, col)]; v != want {
					t.Errorf("%s: expert %d, row %d, column %d is %g, want %g", c.name, i/height, i%height, col, v, want)
				}
			}
		}
	}
}

// TestPooling: embedding models keep how they pool.
func TestPooling(t *testing.T) {
	c := golden(t, "qwen3")
	c.files["modules.json"] = `[{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]`
	c.files["1_Pooling/config.json"] = `{"pooling_mode_cls_token": false, "pooling_mode_lasttoken": true}`
	f := openGGUF(t, convertTo(t, c.write(), Options{}))
	if v, ok, err := f.Uint("qwen3.pooling_type"); v != 3 || !ok || err != nil {
		t.Errorf("pooling type is %d, %v, %v", v, ok, err)
	}
}

// TestHalfArithmetic: "+1" on a half-precision norm happens in half precision.
func TestHalfArithmetic(t *testing.T) {
	c := golden(t, "qwen35")
	x := c.tensor("model.norm.weight")
	values, _ := x.Float32s()
	x.DType, x.Data = "F16", nil
	for i := range values {
		values[i] = 0.00012345 * float32(i+1)
		h := quant.F32ToF16(values[i])
		x.Data = append(x.Data, byte(h), byte(h>>8))
	}
	f := openGGUF(t, convertTo(t, c.write(), Options{}))
	y := f.Tensor("output_norm.weight")
	got := make([]float32, len(values))
	if err := quant.Dequantize(y.Type, got, y.Data); err != nil {
		t.Fatal(err)
	}
	for i, v := range values {
		stored := quant.F16ToF32(quant.F32ToF16(v))
		if want := quant.F16ToF32(quant.F32ToF16(stored + 1)); got[i] != want {
			t.Fatalf("value %d is %g, want %g", i, got[i], want)
		}
	}
}

// TestTypes: every output type can be chosen, and auto follows the checkpoint.
func TestTypes(t *testing.T) {
	dir := golden(t, "qwen35moe").write()
	for name, want := range map[string]quant.Type{
		"f32": quant.F32, "f16": quant.F16, "bf16": quant.BF16, "auto": quant.BF16, "": quant.BF16, "q8_0": quant.Q8_0,
		"Q8_0": quant.Q8_0,
		"q4_0": quant.Q4_0, "q5_1": quant.Q5_1,
	} {
		f := openGGUF(t, convertTo(t, dir, Options{Type: name}))
		if got := f.Tensor("blk.0.attn_qkv.weight").Type; got != want {
			t.Errorf("type %q gives %v, want %v", name, got, want)
		}
		for _, keep := range []string{"blk.0.ffn_gate_inp.weight", "blk.0.attn_norm.weight", "blk.0.ssm_conv1d.weight",
			"blk.0.ssm_a"} {
			if got := f.Tensor(keep).Type; got != quant.F32 {
				t.Errorf("type %q makes %s %v", name, keep, got)
			}
		}
	}
}

// TestQuantizeEqualsConvert: converting to a mix is the same as converting and
// quantising the result.
func TestQuantizeEqualsConvert(t *testing.T) {
	for _, name := range []string{"qwen35moe", "gemma4e", "qwen3"} {
		for _, mix := range []string{"q4_k_m", "q5_0", "iq4_xs"} {
			dir := testkit.Golden(t, name+"/hf")
			direct := convertTo(t, dir, Options{Type: mix})
			two := filepath.Join(t.TempDir(), "two.gguf")
			if err := Quantize(t.Context(), testkit.Golden(t, name+"/model.gguf"), two, QuantizeOptions{Type: mix}); err != nil {
				t.Fatal(err)
			}
			compareFiles(t, direct, two)
		}
	}
}

// TestQuantizeKeeps: quantising changes types and the two keys that name them,
// and nothing else.
func TestQuantizeKeeps(t *testing.T) {
	in := testkit.Golden(t, "qwen35/model.gguf")
	out := filepath.Join(t.TempDir(), "q.gguf")
	if err := Quantize(t.Context(), in, out, QuantizeOptions{Type: "q8_0"}); err != nil {
		t.Fatal(err)
	}
	a, b := openGGUF(t, in), openGGUF(t, out)
	if n := len(b.Keys()); n != len(a.Keys()) {
		t.Errorf("%d keys, want %d", n, len(a.Keys()))
	}
	if last := b.Keys()[len(b.Keys())-2:]; last[0] != "general.quantization_version" || last[1] != "general.file_type" {
		t.Errorf("the file ends with keys %v", last)
	}
	for _, key := range a.Keys() {
		va, _, _ := a.Value(key)
		vb, _, _ := b.Value(key)
		if key == "general.file_type" {
			va = uint32(7)
		}
		if d := cmp.Diff(va, vb); d != "" {
			t.Errorf("%s changed: %s", key, d)
		}
	}
	for _, x := range a.Tensors() {
		y := b.Tensor(x.Name)
		n := x.Elems()
		va, vb := make([]float32, n), make([]float32, n)
		if err := errors.Join(quant.Dequantize(x.Type, va, x.Data), quant.Dequantize(y.Type, vb, y.Data)); err != nil {
			t.Fatal(err)
		}
		if e := testkit.RelL2(vb, va); e > 0.01 {
			t.Errorf("%s: error %g", x.Name, e)
		}
		if x.Type == quant.F32 && !cmp.Equal(x.Data, y.Data) {
			t.Errorf("%s is not the same", x.Name)
		}
	}
}

func TestQuantizeOverrides(t *testing.T) {
	in := testkit.Golden(t, "qwen3/model.gguf")
	out := filepath.Join(t.TempDir(), "q.gguf")
	var opt QuantizeOptions
	opt.Type = "q8_0"
	for _, s := range []string{`attn_v=q4_0`, `^blk\.0\..*=f16`} {
		o, err := ParseTypeOverride(s)
		if err != nil {
			t.Fatal(err)
		}
		opt.Overrides = append(opt.Overrides, o)
	}
	if err := Quantize(t.Context(), in, out, opt); err != nil {
		t.Fatal(err)
	}
	f := openGGUF(t, out)
	for name, want := range map[string]quant.Type{
		"blk.0.attn_v.weight": quant.Q4_0, "blk.0.attn_q.weight": quant.F16, "blk.1.attn_q.weight": quant.Q8_0,
		"blk.0.attn_norm.weight": quant.F32, "blk.2.attn_v.weight": quant.Q4_0,
	} {
		if got := f.Tensor(name).Type; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for _, bad := range []string{"attn_v", "=q8_0", "(=q8_0", "x=q9"} {
		if _, err := ParseTypeOverride(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestRequantize(t *testing.T) {
	dir := t.TempDir()
	q8, q4 := filepath.Join(dir, "q8.gguf"), filepath.Join(dir, "q4.gguf")
	if err := Quantize(t.Context(), testkit.Golden(t, "qwen3/model.gguf"), q8, QuantizeOptions{Type: "q8_0"}); err != nil {
		t.Fatal(err)
	}
	err := Quantize(t.Context(), q8, q4, QuantizeOptions{Type: "q4_0"})
	if err == nil || !strings.Contains(err.Error(), "already Q8_0") ||
		!strings.Contains(err.Error(), "--allow-requantize") {
		t.Errorf("quantising twice: %v", err)
	}
	if _, err := os.Stat(q4); err == nil {
		t.Error("a file was written")
	}
	if err := Quantize(t.Context(), q8, q4, QuantizeOptions{Type: "q4_0", AllowRequantize: true}); err != nil {
		t.Error(err)
	}
	if err := Quantize(t.Context(), q8, q8, QuantizeOptions{Type: "q4_0", AllowRequantize: true}); err == nil {
		t.Error("a file was quantised onto itself")
	}
}

func TestSplitOutput(t *testing.T) {
	out := filepath.Join(t.TempDir(), "m.gguf")
	if err := HF(t.Context(), testkit.Golden(t, "qwen3/hf"), out, Options{SplitBytes: 150_000}); err != nil {
		t.Fatal(err)
	}
	parts, _ := filepath.Glob(filepath.Join(filepath.Dir(out), "m-*-of-*.gguf"))
	if len(parts) < 3 {
		t.Fatalf("parts: %v", parts)
	}
	f := openGGUF(t, parts[0])
	want := openGGUF(t, testkit.Golden(t, "qwen3/model.gguf"))
	for _, x := range want.Tensors() {
		if y := f.Tensor(x.Name); y == nil || !cmp.Equal(x.Data, y.Data) {
			t.Errorf("%s differs", x.Name)
		}
	}
	// Quantising joins the parts again and leaves no trace of the split.
	one := filepath.Join(t.TempDir(), "one.gguf")
	if err := Quantize(t.Context(), parts[0], one, QuantizeOptions{Type: "q8_0"}); err != nil {
		t.Fatal(err)
	}
	if g := openGGUF(t, one); g.Has("split.count") || len(g.Tensors()) != len(want.Tensors()) {
		t.Error("the joined file is not whole")
	}
}

// TestKeepsInput: nothing is written over what is being read, whatever the output is called.
func TestKeepsInput(t *testing.T) {
	dir := t.TempDir()
	split := QuantizeOptions{Type: "f32", SplitBytes: 400e3, AllowRequantize: true}
	whole := filepath.Join(dir, "m.gguf")
	if err := Quantize(t.Context(), testkit.Golden(t, "qwen35/model.gguf"), whole, split); err != nil {
		t.Fatal(err)
	}
	parts, _ := filepath.Glob(filepath.Join(dir, "m-*.gguf"))
	if len(parts) < 2 {
		t.Fatalf("%d parts", len(parts))
	}
	c := golden(t, "qwen35").write()
	for _, try := range []func() error{
		func() error { return Quantize(t.Context(), parts[0], parts[1], QuantizeOptions{Type: "f32"}) },
		func() error { return Quantize(t.Context(), parts[0], whole, split) },
		func() error { return HF(t.Context(), c, filepath.Join(c, "config.json"), Options{}) },
		func() error { return HF(t.Context(), c, filepath.Join(c, "model.safetensors"), Options{}) },
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "both input and output") {
			t.Errorf("error is %v", err)
		}
	}
	if err := HF(t.Context(), c, dir, Options{}); err == nil || !strings.Contains(err.Error(), "is a folder") {
		t.Errorf("a folder as output: error is %v", err)
	}
	if f, err := gguf.Open(parts[0]); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
}

// TestMissingConfig: what a class has a default for may be missing from config.json; what no file can run without may
// not.
func TestMissingConfig(t *testing.T) {
	c := golden(t, "qwen3")
	delete(c.config, "rms_norm_eps")
	f := openGGUF(t, convertTo(t, c.write(), Options{}))
	if eps, _, _ := f.Float("qwen3.attention.layer_norm_rms_epsilon"); float32(eps) != 1e-6 {
		t.Errorf("the norms' epsilon is %g", eps)
	}
	delete(c.config, "intermediate_size")
	convertFails(t, c.write(), Options{}, "config.json", "intermediate_size", "is missing")
}

// TestKilled: what a quantiser that was killed left behind is gone after the next one.
func TestKilled(t *testing.T) {
	in, out := testkit.Golden(t, "qwen35/model.gguf"), os.Getenv("STROBE_KILLED_OUT")
	if out != "" { // the process that is killed
		Quantize(t.Context(), in, out, QuantizeOptions{Type: "q8_0", AllowRequantize: true, Progress: func(int64) {
			p, _ := os.FindProcess(os.Getpid())
			p.Kill()
			select {}
		}})
		t.Fatal("it is still there")
	}
	dir := t.TempDir()
	out = filepath.Join(dir, "out.gguf")
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), "STROBE_KILLED_OUT="+out)
	said, err := cmd.CombinedOutput()
	left, _ := filepath.Glob(out + ".tmp-*")
	if err == nil || len(left) != 1 {
		t.Fatalf("a quantiser that was killed left %d temporary files: %v\n%s", len(left), err, said)
	}
	if err := Quantize(t.Context(), in, out, QuantizeOptions{Type: "q8_0", AllowRequantize: true}); err != nil {
		t.Fatal(err)
	}
	if all, _ := filepath.Glob(filepath.Join(dir, "*")); len(all) != 1 || all[0] != out {
		t.Errorf("files are %v, want the output alone", all)
	}
}

// TestCancel: a conversion that is cancelled or fails half-way leaves nothing behind.
func TestCancel(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "model.gguf")
	err := Quantize(t.Context(), testkit.Golden(t, "qwen35/model.gguf"), whole,
		QuantizeOptions{Type: "f32", AllowRequantize: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, job := range map[string]func(ctx context.Context, out string, progress func(int64)) error{
		"convert": func(ctx context.Context, out string, progress func(int64)) error {
			return HF(ctx, testkit.Golden(t, "qwen35/hf"), out, Options{Progress: progress})
		},
		"quantize": func(ctx context.Context, out string, progress func(int64)) error {
			return Quantize(ctx, whole, out, QuantizeOptions{Type: "q8_0", Progress: progress})
		},
		"quantize to parts": func(ctx context.Context, out string, progress func(int64)) error {
			return Quantize(ctx, whole, out, QuantizeOptions{Type: "q8_0", SplitBytes: 100e3, Progress: progress})
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		dir := t.TempDir()
		during := 0
		err := job(ctx, filepath.Join(dir, "out.gguf"), func(int64) {
			entries, _ := os.ReadDir(dir)
			during = len(entries)
			cancel()
		})
		if !errors.Is(err, context.Canceled) || during == 0 {
			t.Errorf("%s: error is %v, %d files before it", name, err, during)
		}
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			t.Errorf("%s: %s was left behind", name, entries[0].Name())
		}
	}
}

// TestDrafterChecks: a drafter that does not fit its target is refused.
func TestDrafterChecks(t *testing.T) {
	target := testkit.Golden(t, "qwen35/hf")
	t.Run("no target", func(t *testing.T) {
		convertFails(t, testkit.Golden(t, "dflash-qwen35/hf"), Options{}, "DFlash drafter", "--target")
	})
	t.Run("other width", func(t *testing.T) {
		c := golden(t, "qwen35")
		c.config["hidden_size"] = 128
		convertFails(t, testkit.Golden(t, "dflash-qwen35/hf"), Options{Target: c.write()}, "fc.weight", "192 features", "384",
			"another target")
	})
	t.Run("missing layer", func(t *testing.T) {
		c := golden(t, "dflash-qwen35")
		c.config["dflash_config"].(map[string]any)["target_layer_ids"] = []int{0, 1, 4}
		convertFails(t, c.write(), Options{Target: target}, "config.json", "target_layer_ids", "layer 4", "4 layers")
	})
	t.Run("mask", func(t *testing.T) {
		c := golden(t, "dflash-qwen35")
		c.config["dflash_config"].(map[string]any)["mask_token_id"] = 512
		convertFails(t, c.write(), Options{Target: target}, "mask_token_id", "512")
	})
	t.Run("block", func(t *testing.T) {
		for _, n := range []int{0, 1, 257} {
			c := golden(t, "dflash-qwen35")
			c.config["dflash_config"].(map[string]any)["block_size"] = n
			convertFails(t, c.write(), Options{Target: target}, "block_size", fmt.Sprintf("a block of %d tokens", n))
		}
	})
	t.Run("drafter as target", func(t *testing.T) {
		d := testkit.Golden(t, "dflash-qwen35/hf")
		convertFails(t, d, Options{Target: d}, "drafter itself")
	})
}

// TestDrafterKeys: keys the golden drafters do not have.
func TestDrafterKeys(t *testing.T) {
	c := golden(t, "dflash-qwen3")
	d := c.config["dflash_config"].(map[string]any)
	d["selector_rank"], d["selector_top_k"] = 8, 4
	d["use_swa"], d["swa_window_size"], d["causal"], d["block_size"] = true, 33, true, 12
	c.config["input_embedding_scale"], c.config["output_multiplier"], c.config["final_logit_softcapping"] = 8.0, 0.5, 20.0
	c.config["rope_parameters"] = map[string]any{
		"rope_type": "yarn", "rope_theta": 1e6, "factor": 32.0, "original_max_position_embeddings": 8192, "beta_fast": 32.0}
	f := openGGUF(t, convertTo(t, c.write(), Options{Target: testkit.Golden(t, "qwen3/hf")}))
	got := map[string]any{}
	for _, key := range f.Keys() {
		v, _, _ := f.Value(key)
		if a, ok := v.(gguf.Array); ok {
			v = a.Values
		}
		got[key] = v
	}
	for key, want := range map[string]any{
		"dflash.block_size": uint32(12), "dflash.embedding_scale": float32(8), "dflash.logit_scale": float32(0.5),
		"dflash.final_logit_softcapping": float32(20), "dflash.attention.causal": true,
		"dflash.attention.sliding_window": uint32(33), "dflash.attention.sliding_window_pattern": []bool{true, true, true},
		"dflash.selector_rank": uint32(8), "dflash.selector_top_k": uint32(4),
		"dflash.rope.scaling.type": "yarn", "dflash.rope.scaling.factor": float32(32),
		"dflash.rope.scaling.original_context_length": uint32(8192), "dflash.rope.scaling.yarn_beta_fast": float32(32),
	} {
		if d := cmp.Diff(want, got[key]); d != "" {
			t.Errorf("%s: %s", key, d)
		}
	}
}

// TestDrafterWithoutTokenizer: a drafter may leave the tokenizer to its target, and nothing else may.
func TestDrafterWithoutTokenizer(t *testing.T) {
	target := testkit.Golden(t, "qwen35/hf")
	f := openGGUF(t, convertTo(t, testkit.Golden(t, "dflash-qwen35/hf"), Options{Target: target, NoVocab: true}))
	for _, key := range f.Keys() {
		if strings.HasPrefix(key, "tokenizer.") && key != "tokenizer.ggml.mask_token_id" {
			t.Errorf("key %s", key)
		}
	}
	if n, ok, err := f.Uint("dflash.vocab_size"); n != 512 || !ok || err != nil {
		t.Errorf("vocabulary of %d tokens (%v)", n, err)
	}
	convertFails(t, target, Options{NoVocab: true}, "no drafter")
}

// TestInterleavedRope: rotary pairs stored side by side are moved apart.
func TestInterleavedRope(t *testing.T) {
	c := golden(t, "dflash-qwen3")
	c.config["rope_is_neox_style"] = false
	norm := c.tensor("layers.0.self_attn.q_norm.weight")
	values := make([]float32, 32)
	for i := range values {
		values[i] = float32(i)
	}
	norm.Data = f32Bytes(values)
	f := openGGUF(t, convertTo(t, c.write(), Options{Target: testkit.Golden(t, "qwen3/hf"), Type: "f32"}))
	x := f.Tensor("blk.0.attn_q_norm.weight")
	got := make([]float32, 32)
	if err := quant.Dequantize(x.Type, got, x.Data); err != nil {
		t.Fatal(err)
	}
	if got[0] != 0 || got[1] != 2 || got[15] != 30 || got[16] != 1 || got[31] != 31 {
		t.Errorf("norm is %v", got)
	}
	q, w := f.Tensor("blk.0.attn_q.weight"), c.tensor("layers.0.self_attn.q_proj.weight")
	want, _ := w.Float32s()
	all := make([]float32, q.Elems())
	if err := quant.Dequantize(q.Type, all, q.Data); err != nil {
		t.Fatal(err)
	}
	// Row 17 of head 1 is its second odd row: row 3.
	if !cmp.Equal(all[(32+17)*64:(32+18)*64], want[(32+3)*64:(32+4)*64]) {
		t.Error("rows of q_proj are in the wrong order")
	}
}

// TestBadCheckpoints: everything that can be wrong with a checkpoint gives one
// line that names the file and the field, and no output.
func TestBadCheckpoints(t *testing.T) {
	cases := []struct {
		name   string
		model  string
		change func(c *checkpoint)
		words  []string
	}{
		{"unknown class", "qwen3", func(c *checkpoint) { c.config["architectures"] = []string{"BloomForCausalLM"} },
			[]string{"config.json", "architectures", "BloomForCausalLM", "Qwen3ForCausalLM"}},
		{"DSpark", "qwen3", func(c *checkpoint) { c.config["architectures"] = []string{"DeepseekV4DSparkModel"} },
			[]string{"config.json", "architectures", "DeepseekV4DSparkModel", "Qwen3's or Gemma 4's"}},
		{"no class", "qwen3", func(c *checkpoint) { delete(c.config, "architectures") },
			[]string{"config.json", "architectures", "missing"}},
		{"no layers", "qwen3", func(c *checkpoint) { delete(c.config, "num_hidden_layers") },
			[]string{"config.json", "num_hidden_layers", "missing"}},
		{"no width", "qwen3", func(c *checkpoint) { delete(c.config, "hidden_size") },
			[]string{"config.json", "hidden_size", "missing"}},
		{"wrong type", "qwen3", func(c *checkpoint) { c.config["hidden_size"] = "big" },
			[]string{"config.json", "hidden_size", `"big"`, "whole number"}},
		{"negative", "qwen3", func(c *checkpoint) { c.config["num_attention_heads"] = -4 },
			[]string{"num_attention_heads", "-4"}},
		{"no linear heads", "qwen35", func(c *checkpoint) { delete(c.config, "linear_num_key_heads") },
			[]string{"config.json", "linear_num_key_heads", "missing"}},
		{"odd heads", "qwen35", func(c *checkpoint) { c.config["linear_num_value_heads"] = 3 },
			[]string{"linear_num_value_heads", "multiple"}},
		{"other heads", "qwen35", func(c *checkpoint) { c.config["linear_num_value_heads"] = 6 },
			[]string{"model.safetensors", "linear_attn", "6"}},
		{"layer types", "qwen35", func(c *checkpoint) { c.config["layer_types"] = []string{"full_attention"} },
			[]string{"config.json", "layer_types", "1 entries"}},
		{"no rope", "gemma4", func(c *checkpoint) { delete(c.config, "rope_parameters") },
			[]string{"config.json", "rope_parameters", "proportional"}},
		{"no head dim", "gemma4", func(c *checkpoint) { delete(c.config, "per_layer_config") },
			[]string{"config.json", "global_head_dim", "missing"}},
		{"no backbone", "gemma4-assistant", func(c *checkpoint) { delete(c.config, "backbone_hidden_size") },
			[]string{"config.json", "backbone_hidden_size", "missing"}},
		{"unknown tensor", "qwen3", func(c *checkpoint) {
			c.addF32("model.layers.0.self_attn.g_proj.weight", []int{1, 2}, 1, 2)
		},
			[]string{"model.safetensors", "model.layers.0.self_attn.g_proj.weight", "qwen3"}},
		{"too many layers", "qwen3", func(c *checkpoint) { c.config["num_hidden_layers"] = 3 },
			[]string{"config.json", "num_hidden_layers", "3", "layers.3."}},
		{"too few layers", "qwen3", func(c *checkpoint) { c.config["num_hidden_layers"] = 6 },
			[]string{"layer 4", "no tensors"}},
		{"no embedding", "qwen3", func(c *checkpoint) {
			c.remove(func(n string) bool { return n == "model.embed_tokens.weight" })
		},
			[]string{"model.safetensors", "token_embd.weight", "missing"}},
		{"missing expert", "qwen35moe", func(c *checkpoint) {
			c.remove(func(n string) bool { return strings.Contains(n, "layers.1.mlp.experts") })
			c.addF32("model.layers.1.mlp.experts.0.up_proj.weight", []int{1, 2}, 1, 2)
		}, []string{"model.safetensors", "layer 1", "1 expert"}},
		{"NaN", "qwen3", func(c *checkpoint) {
			x := c.tensor("model.layers.2.mlp.up_proj.weight")
			x.Data[64*2*3+10], x.Data[64*2*3+11] = 0xc0, 0x7f
		}, []string{"model.safetensors", "model.layers.2.mlp.up_proj.weight", "row 3", "not a number"}},
		{"NaN in a norm", "qwen35", func(c *checkpoint) {
			copy(c.tensor("model.norm.weight").Data[8:], f32Bytes([]float32{float32(math.NaN())}))
		},
			[]string{"model.norm.weight", "not a number"}},
		{"integer weights", "qwen3", func(c *checkpoint) {
			x := c.tensor("model.norm.weight")
			x.DType, x.Shape = "I32", []int{64}
		},
			[]string{"model.norm.weight", "I32"}},
		{"MXFP4", "qwen3", func(c *checkpoint) { c.config["quantization_config"] = map[string]any{"quant_method": "mxfp4"} },
			[]string{"config.json", "quantization_config.quant_method", "mxfp4"}},
		{"NVFP4", "qwen3", func(c *checkpoint) {
			c.config["quantization_config"] = map[string]any{"quant_method": "modelopt", "quant_algo": "NVFP4"}
		}, []string{"config.json", "quant_algo", "NVFP4"}},
		{"NVFP4 packed", "qwen3", func(c *checkpoint) {
			c.config["quantization_config"] = map[string]any{"quant_method": "compressed-tensors",
				"format": "nvfp4-pack-quantized"}
		}, []string{"config.json", "quantization_config.format", "nvfp4"}},
		{"no tokenizer", "qwen3", func(c *checkpoint) { c.files["tokenizer.json"] = "" }, []string{"no tokenizer.json"}},
		{"broken tokenizer", "qwen3", func(c *checkpoint) { c.files["tokenizer.json"] = `{"model":` },
			[]string{"tokenizer.json", "not valid"}},
		{"unigram", "qwen3", func(c *checkpoint) {
			c.files["tokenizer.json"] = `{"model": {"type": "Unigram", "vocab": []}}`
		}, []string{"tokenizer.json", "model.type", "Unigram"}},
		{"vocabulary too small", "qwen3", func(c *checkpoint) { c.config["vocab_size"] = 510 },
			[]string{"tokenizer.json", "has id 51", "510"}},
		{"broken config", "qwen3", func(c *checkpoint) { c.config = nil; c.files["config.json"] = "{" },
			[]string{"config.json", "not valid"}},
		{"config list", "qwen3", func(c *checkpoint) { c.config = nil; c.files["config.json"] = "[1]" },
			[]string{"config.json", "not valid"}},
		{"no config", "qwen3", func(c *checkpoint) { c.config = nil }, []string{"no config.json"}},
		{"SentencePiece for Qwen", "qwen3", func(c *checkpoint) { c.files["tokenizer.json"] = spacedTokenizer },
			[]string{"tokenizer.json", "SentencePiece"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ck := golden(t, c.model)
			c.change(ck)
			convertFails(t, ck.write(), Options{}, c.words...)
		})
	}
	t.Run("missing shard", func(t *testing.T) {
		ck := golden(t, "qwen3")
		dir := ck.writeSharded(func(name string) bool { return strings.Contains(name, "layers.0.") })
		if err := os.Remove(filepath.Join(dir, "model-00002-of-00002.safetensors")); err != nil {
			t.Fatal(err)
		}
		convertFails(t, dir, Options{}, "model-00002-of-00002.safetensors")
	})
	t.Run("tensor missing from shard", func(t *testing.T) {
		ck := golden(t, "qwen3")
		dir := ck.writeSharded(func(name string) bool { return strings.Contains(name, "layers.0.") })
		var index map[string]map[string]string
		path := filepath.Join(dir, "model.safetensors.index.json")
		if err := json.Unmarshal(readBytes(t, path), &index); err != nil {
			t.Fatal(err)
		}
		index["weight_map"]["ghost.weight"] = "model-00001-of-00002.safetensors"
		b, _ := json.Marshal(index)
		if err := os.WriteFile(path, b, 0o666); err != nil {
			t.Fatal(err)
		}
		convertFails(t, dir, Options{}, "ghost.weight", "missing")
	})
	t.Run("path in index", func(t *testing.T) {
		ck := golden(t, "qwen3")
		ck.files["model.safetensors.index.json"] = `{"weight_map": {"a": "../../secret.safetensors"}}`
		convertFails(t, ck.write(), Options{}, "weight_map", "secret")
	})
	t.Run("truncated", func(t *testing.T) {
		dir := golden(t, "qwen3").write()
		path := filepath.Join(dir, "model.safetensors")
		for _, n := range []int64{0, 7, 100, 5000, 100_000} {
			full := readBytes(t, path)
			if err := os.Truncate(path, n); err != nil {
				t.Fatal(err)
			}
			convertFails(t, dir, Options{}, "model.safetensors")
			if err := os.WriteFile(path, full, 0o666); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("not a folder", func(t *testing.T) {
		convertFails(t, testkit.Golden(t, "qwen3/model.gguf"), Options{}, "not a folder")
		convertFails(t, filepath.Join(t.TempDir(), "nothing"), Options{}, "nothing")
	})
	t.Run("unknown type", func(t *testing.T) {
		convertFails(t, testkit.Golden(t, "qwen3/hf"), Options{Type: "q7"}, "q7", "Q4_K_M")
	})
}
