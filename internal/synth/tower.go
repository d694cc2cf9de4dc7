package synth

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"strobe/internal/convert"
	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// tower holds the dimensions of a vision tower, which is written as an mmproj file.
type tower struct {
	target, title, class             string
	width, blocks, heads, ff, places int // places: rows of a table of positions
	out                              int // width of the text model
	std, clamps                      bool
}

const (
	qwenTower    = "Qwen3_5ForConditionalGeneration"
	gemmaTower   = "Gemma4ForConditionalGeneration"
	unifiedTower = "Gemma4UnifiedForConditionalGeneration"

	towerPatch = 16 // side of a patch in pixels, of all of them
	towerPool  = 3  // patches in each direction that become one token, of Gemma's
)

var towers = []tower{
	{target: "qwen3.5-0.8b", title: "Qwen3.5 0.8B", class: qwenTower, width: 768, blocks: 12, heads: 12, ff: 3072,
		places: 2304, out: 1024},
	{target: "qwen3.5-4b", title: "Qwen3.5 4B", class: qwenTower, width: 1024, blocks: 24, heads: 16, ff: 4096,
		places: 2304, out: 2560},
	{target: "qwen3.5-27b", title: "Qwen3.5 27B", class: qwenTower, width: 1152, blocks: 27, heads: 16, ff: 4304,
		places: 2304, out: 5120},
	{target: "qwen3.6-27b", title: "Qwen3.6 27B", class: qwenTower, width: 1152, blocks: 27, heads: 16, ff: 4304,
		places: 2304, out: 5120},
	{target: "gemma-4-31b", title: "Gemma 4 31B", class: gemmaTower, width: 1152, blocks: 27, heads: 16, ff: 4304,
		places: 10240, out: 5376, std: true},
	{target: "gemma-4-e4b", title: "Gemma 4 E4B", class: gemmaTower, width: 768, blocks: 16, heads: 12, ff: 3072,
		places: 10240, out: 2560, clamps: true},
	{target: "gemma-4-12b", title: "Gemma 4 12B", class: unifiedTower, width: 3840, places: 1120, out: 3840},

	// Small ones of each kind. They go with the tiny text models.
	{target: "tiny-qwen35", title: "Tiny Qwen3.5", class: qwenTower, width: 64, blocks: 2, heads: 4, ff: 128, places: 36,
		out: 256},
	{target: "tiny-gemma4", title: "Tiny Gemma 4", class: gemmaTower, width: 64, blocks: 2, heads: 4, ff: 128,
		places: 4096, out: 256, std: true},
	{target: "tiny-gemma4e", title: "Tiny Gemma 4 E", class: gemmaTower, width: 64, blocks: 2, heads: 4, ff: 128,
		places: 4096, out: 256, clamps: true},
	{target: "tiny-gemma4u", title: "Tiny Gemma 4 unified", class: unifiedTower, width: 64, places: 1120, out: 256},
}

const towerSuffix = "-mmproj"

// findTower looks a vision tower up by the name of its shape.
func findTower(name string) (*tower, bool) {
	base, ok := strings.CutSuffix(strings.ToLower(name), towerSuffix)
	i := slices.IndexFunc(towers, func(t tower) bool { return t.target == base })
	if !ok || i < 0 {
		return nil, false
	}
	return &towers[i], true
}

// config is the config.json of a checkpoint with this tower.
func (t *tower) config() []byte {
	vision := map[string]any{
		"hidden_size": t.width, "intermediate_size": t.ff, "num_hidden_layers": t.blocks, "num_attention_heads": t.heads,
		"patch_size": towerPatch, "pooling_kernel_size": towerPool,
	}
	switch t.class {
	case qwenTower:
		vision["spatial_merge_size"], vision["num_position_embeddings"] = 2, t.places
	case unifiedTower:
		vision["mm_embed_dim"] = t.width
	}
	b, err := json.Marshal(map[string]any{
		"architectures": []string{t.class}, "vision_config": vision,
		"text_config": map[string]any{"hidden_size": t.out, "rms_norm_eps": 1e-6},
	})
	if err != nil {
		panic(err) // it is made of numbers and strings
	}
	return b
}

// header is the metadata and the tensor list.
func (t *tower) header(tensors []tensor, m quant.Mix) ([]gguf.KV, []gguf.TensorSpec, error) {
	keys, err := convert.TowerKeys(t.config(), m.FileType())
	if err != nil {
		return nil, nil, err
	}
	specs := make([]gguf.TensorSpec, len(tensors))
	for i, x := range tensors {
		specs[i] = gguf.TensorSpec{Name: x.name, Shape: x.shape}
	}
	if err := convert.SetTowerTypes(specs, m); err != nil {
		return nil, nil, err
	}
	kvs := []gguf.KV{
		{Key: "general.architecture", Value: "clip"},
		{Key: "general.type", Value: "mmproj"},
		{Key: "general.name", Value: t.title + " vision (random weights)"},
		{Key: "general.size_label", Value: convert.SizeLabel(specs)},
	}
	kvs = append(kvs, keys...)
	return append(kvs, gguf.KV{Key: "general.quantization_version", Value: uint32(2)}), specs, nil
}

// tensors lists the weights of a tower.
func (t *tower) tensors() []tensor {
	l := &list{}
	switch t.class {
	case qwenTower:
		t.qwen(l)
	case gemmaTower:
		t.gemma(l)
	default:
		t.unified(l)
	}
	return l.out
}

// biased adds a matrix or a norm with its bias.
func (l *list) biased(name string, n int) { l.add(name+".bias", spread, 0.1, n) }

// kernel adds a convolution over patches.
func (l *list) kernel(name string, width int) {
	l.add(name, random, 1/math.Sqrt(3*towerPatch*towerPatch), towerPatch, towerPatch, 3, width)
}

func (t *tower) qwen(l *list) {
	l.kernel("v.patch_embd.weight", t.width)
	l.kernel("v.patch_embd.weight.1", t.width)
	l.biased("v.patch_embd", t.width)
	l.add("v.position_embd.weight", random, 0.1, t.width, t.places)
	for i := range t.blocks {
		p := fmt.Sprintf("v.blk.%d.", i)
		for _, norm := range []string{"ln1", "ln2"} {
			l.norm(p+norm, t.width)
			l.biased(p+norm, t.width)
		}
		for _, x := range []struct {
			name    string
			in, out int
		}{
			{"attn_qkv", t.width, 3 * t.width}, {"attn_out", t.width, t.width},
			{"ffn_up", t.width, t.ff}, {"ffn_down", t.ff, t.width},
		} {
			l.matrix(p+x.name, x.in, x.out)
			l.biased(p+x.name, x.out)
		}
	}
	l.norm("v.post_ln", t.width)
	l.biased("v.post_ln", t.width)
	l.matrix("mm.0", 4*t.width, 4*t.width)
	l.biased("mm.0", 4*t.width)
	l.matrix("mm.2", 4*t.width, t.out)
	l.biased("mm.2", t.out)
}

func (t *tower) gemma(l *list) {
	l.kernel("v.patch_embd.weight", t.width)
	l.add("v.position_embd.weight", random, 0.1, t.width, t.places, 2)
	dim := t.width / t.heads
	clamped := func(name string, in, out int) {
		l.matrix(name, in, out)
		if t.clamps { // wide enough for most values
			for i, end := range []string{".input_min", ".input_max", ".output_min", ".output_max"} {
				l.add(name+end, constant, []float64{-3, 3, -4, 4}[i], 1)
			}
		}
	}
	for i := range t.blocks {
		p := fmt.Sprintf("v.blk.%d.", i)
		for _, norm := range []string{"ln1", "attn_post_norm", "ln2", "ffn_post_norm"} {
			l.norm(p+norm, t.width)
		}
		for _, name := range []string{"attn_q", "attn_k", "attn_v", "attn_out"} {
			clamped(p+name, t.width, t.width)
		}
		l.norm(p+"attn_q_norm", dim)
		l.add(p+"attn_k_norm.weight", nearOne, 1/math.Sqrt(float64(dim)), dim) // scores are not scaled
		clamped(p+"ffn_gate", t.width, t.ff)
		clamped(p+"ffn_up", t.width, t.ff)
		clamped(p+"ffn_down", t.ff, t.width)
	}
	if t.std {
		l.add("v.std_bias", spread, 0.1, t.width)
		l.add("v.std_scale", nearOne, 1, t.width)
	}
	l.matrix("mm.input_projection", t.width, t.out)
}

func (t *tower) unified(l *list) {
	pixels := 3 * towerPatch * towerPool * towerPatch * towerPool
	l.matrix("v.patch_embd", pixels, t.width)
	l.biased("v.patch_embd", t.width)
	for i, n := range []int{pixels, t.width, t.width} {
		norm := fmt.Sprintf("v.patch_norm.%d", i+1)
		l.norm(norm, n)
		l.biased(norm, n)
	}
	l.add("v.position_embd.weight", random, 0.1, t.width, t.places, 2)
	l.matrix("mm.input_projection", t.width, t.out)
}
