package convert

import (
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"strobe/internal/gguf"
)

// drafterKeys writes what a DFlash drafter adds to a Qwen3-like body. Captured
// layers are stored by the layer whose input is captured, one more than the
// output the checkpoint names.
func (m *model) drafterKeys(k modelKeys) {
	c, d := m.c, m.c.object("dflash_config")
	if m.class == gemmaDSpark {
		m.gemmaDrafterKeys(k)
	} else if part, ok := m.rope.float("partial_rotary_factor"); ok {
		k.u32("rope.dimension_count", int(float64(m.headDim())*part))
	}
	k.u32("block_size", m.drafterBlock())
	for _, part := range [][]string{{"conv_kernel_size", "conv_group_size"}, {"selector_rank", "selector_top_k"}} {
		if d.has(part[0]) {
			k.u32(part[0], d.need(part[0]))
			k.u32(part[1], d.need(part[1]))
		}
	}
	if dspark(m.class) {
		// The first slot guesses, too, unless the checkpoint is of the kind that speculators writes.
		anchor, ok := c.bool("sample_from_anchor")
		if !ok {
			anchor = !c.has("transformer_layer_config") && !c.has("aux_hidden_state_layer_ids")
		}
		k.set(k.prefix+"sample_from_anchor", anchor)
	}
	either := func(name string) (float64, bool) {
		if v, ok := d.float(name); ok {
			return v, true
		}
		return c.float(name)
	}
	v, ok := either("output_multiplier")
	k.maybeF32("logit_scale", v, ok)
	v, ok = either("final_logit_softcapping")
	k.maybeF32("final_logit_softcapping", v, ok && v > 0)
	v, ok = either("input_embedding_scale")
	if !ok && (m.gemmaTarget() || m.class == gemmaDSpark) { // embeddings are the target's, which scales them
		v, ok = math.Sqrt(float64(c.need("hidden_size"))), true
	}
	k.maybeF32("embedding_scale", v, ok)

	ids := m.captured()
	for i := range ids {
		ids[i]++
	}
	k.i32s("target_layers", ids)

	sliding, _ := c.bool("use_sliding_window")
	all, _ := d.bool("use_swa")
	window, ok := d.int("swa_window_size")
	if !ok || window == 0 {
		window, ok = c.int("sliding_window")
	}
	if (sliding || all) && ok && window > 0 {
		pattern := make([]bool, m.layers)
		if all {
			for i := range pattern {
				pattern[i] = true
			}
		} else {
			pattern = kindsOf(m.layerTypes(), "sliding_attention")
		}
		if slices.Contains(pattern, true) {
			k.u32("attention.sliding_window", window)
			k.set(k.prefix+"attention.sliding_window_pattern", pattern)
		}
	}
	causal, ok := c.bool("is_causal")
	if !ok {
		causal, ok = d.bool("causal")
	}
	if ok {
		k.set(k.prefix+"attention.causal", causal)
	}
	// The drafter turns only with time: a degenerate form of its target's M-RoPE.
	if ropeOf(m.target).has("mrope_section") {
		k.i32s("rope.dimension_sections", []int{m.headDim() / 2, 0, 0, 0})
	}
}

// gemmaDrafterKeys writes what a drafter made of Gemma 4's full-attention layers has instead of Qwen3's: their width of
// heads, no scale of attention, GELU, and values that are the keys, which files show by having no tensor for them.
func (m *model) gemmaDrafterKeys(k modelKeys) {
	c := m.c
	types := m.layerTypes()
	if i := slices.Index(kindsOf(types, "full_attention"), false); i >= 0 {
		c.fail("layer_types", "layer %d is %s; drafters of this class are supported with full attention only", i, types[i])
	}
	if same, _ := c.bool("attention_k_eq_v"); !same {
		c.fail("attention_k_eq_v", "is not true: drafters of this class are supported only if values are the keys")
	}
	for _, key := range []string{"enable_moe_block", "use_double_wide_mlp", "attention_bias"} {
		if on, _ := c.bool(key); on {
			c.fail(key, "is true, which is not supported in a drafter")
		}
	}
	dim := m.gemmaHeadDim()
	k.u32("attention.key_length", dim)
	k.u32("attention.value_length", dim)
	k.u32("rope.dimension_count", dim)
	k.u32("attention.head_count_kv", c.need("num_global_key_value_heads"))
	k.f32("attention.scale", 1)
	act, ok := c.str("hidden_activation")
	if !ok {
		act = "gelu_pytorch_tanh" // what the class has
	}
	k.set(k.prefix+"hidden_activation", act)
}

func (m *model) drafterBlock() int {
	if n, ok := m.c.object("dflash_config").int("block_size"); ok {
		return n
	}
	if n, ok := m.c.int("block_size"); ok {
		return n
	}
	return 16
}

// captured is the list of target layers whose output the drafter reads, as the
// checkpoint counts them.
func (m *model) captured() []int {
	d := m.c.object("dflash_config")
	ids, ok := d.ints("target_layer_ids")
	if !ok {
		ids, ok = m.c.ints("target_layer_ids")
	}
	if !ok {
		if ids, ok = m.c.ints("aux_hidden_state_layer_ids"); ok { // by input, counted as files count
			ids = append([]int(nil), ids...)
			for i := range ids {
				ids[i]--
			}
		}
	}
	if !ok || len(ids) == 0 {
		d.fail("target_layer_ids", "is missing")
	}
	return append([]int(nil), ids...)
}

// maskID is the token that fills the block to be drafted.
func (m *model) maskID() (int, bool) {
	if id, ok := m.c.object("dflash_config").int("mask_token_id"); ok {
		return id, true
	}
	return m.c.int("mask_token_id")
}

// checkDrafter compares a drafter with the target it is converted for. fc is the
// shape of its feature projection in torch order.
func (m *model) checkDrafter(fc []int, path string) error {
	ids := m.captured()
	width, hidden := m.target.need("hidden_size"), m.c.need("hidden_size")
	layers, vocab := m.target.need("num_hidden_layers"), m.c.need("vocab_size")
	mask, hasMask := m.maskID()
	if err := m.c.failed(); err != nil {
		return err
	}
	if err := m.target.failed(); err != nil {
		return err
	}
	cfg := m.c.path
	switch {
	case len(fc) != 2 || fc[0] != hidden:
		return fieldErr(path, "fc.weight", "shape is %v, expected [%d, captured features]", fc, hidden)
	case fc[1] != len(ids)*width:
		return fieldErr(path, "fc.weight",
			"takes %d features, but %d captured layers of %s give %d; is this drafter for another target?",
			fc[1], len(ids), filepath.Dir(m.target.path), len(ids)*width)
	}
	for _, id := range ids {
		if id < 0 || id >= layers {
			return fieldErr(cfg, "dflash_config.target_layer_ids", "layer %d is not in the target, which has %d layers", id,
				layers)
		}
	}
	if hasMask && (mask < 0 || mask >= vocab) {
		return fieldErr(cfg, "dflash_config.mask_token_id", "%d is outside the vocabulary of %d", mask, vocab)
	}
	if n := m.drafterBlock(); n < 2 || n > 256 { // as package dflash loads them
		return fieldErr(cfg, "dflash_config.block_size", "a block of %d tokens; want 2 to 256", n)
	}
	return nil
}

// targetConfig is as much of a target's config.json as a drafter needs, from the target's GGUF file.
func targetConfig(f *gguf.File) config {
	c := config{path: f.Path(), m: map[string]any{}, err: new(error)}
	number := func(key string) int {
		n, _, err := f.Uint(f.Arch() + "." + key)
		if err != nil && *c.err == nil {
			*c.err = err
		}
		return int(min(n, 1<<31))
	}
	layers := number("block_count") - number("nextn_predict_layers")
	c.m["hidden_size"] = json.Number(strconv.Itoa(number("embedding_length")))
	c.m["num_hidden_layers"] = json.Number(strconv.Itoa(layers))
	for _, a := range archs {
		if a.name == f.Arch() {
			c.m["architectures"] = []any{a.classes[0]}
		}
	}
	if sections, ok, _ := f.Ints(f.Arch() + ".rope.dimension_sections"); ok && len(sections) > 0 {
		c.m["rope_parameters"] = map[string]any{"mrope_section": []any{}}
	}
	return c
}
