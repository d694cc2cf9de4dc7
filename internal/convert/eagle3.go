package convert

import (
	"path/filepath"
	"slices"
	"strings"
)

// EAGLE-3 drafters are published in two layouts. SpecForge and the authors call the layer "midlayer" and keep the
// captured layers, if at all, in eagle_config, counted by output. Speculators (vLLM, Red Hat) call it "layers.0", nest
// the layer's configuration, and count captured layers by input, as files do.

// drafts reports whether the model is a drafter that is converted for a target.
func (a *arch) drafts() bool { return a.family == dflash || a.family == eagle3 }

// asEagle3 reports whether a checkpoint that calls itself a Llama is an EAGLE-3 drafter: the authors' own do so.
func asEagle3(c config, class string) bool {
	return strings.HasPrefix(class, "Llama") && c.has("draft_vocab_size")
}

// eagle3Name brings a tensor's name to the form of the tables; keep is false for what only training needs.
func eagle3Name(name string) (clean string, keep bool) {
	name = strings.TrimPrefix(name, "model.")
	if name == "t2d" || strings.HasPrefix(name, "verifier_") {
		return "", false
	}
	if rest, ok := strings.CutPrefix(name, "midlayer."); ok {
		name = "layers.0." + rest
	}
	return "model." + name, true
}

// eagle3Keys writes what an EAGLE-3 drafter adds to the keys of a Llama layer.
func (m *model) eagle3Keys(k modelKeys) {
	c := m.c
	if m.layers != 1 {
		c.fail("num_hidden_layers", "is %d; EAGLE-3 drafters with one layer are supported", m.layers)
	}
	if act, ok := c.str("hidden_act"); ok && act != "silu" {
		c.fail("hidden_act", "is %q; EAGLE-3 drafters are supported with silu", act)
	}
	if part, ok := m.rope.float("partial_rotary_factor"); ok && part != 1 {
		c.fail("partial_rotary_factor", "is %g; EAGLE-3 drafters turn whole heads", part)
	}
	k.u32("vocab_size", c.need("vocab_size"))
	k.u32("rope.dimension_count", m.headDim())
	k.i32s("target_layers", m.eagle3Layers())
	k.u32("target_hidden_size", m.targetWidth())
	for _, key := range []string{"norm_before_residual", "norm_before_fc"} {
		on, _ := c.bool(key)
		k.set(k.prefix+key, on)
	}
}

// eagle3Layers is the list of target layers whose inputs the drafter reads; the number of layers stands for the final
// state. Without a list it is the one that all trainers begin with.
func (m *model) eagle3Layers() []int {
	if ids, ok := m.c.ints("eagle_aux_hidden_state_layer_ids"); ok && len(ids) > 0 {
		return ids
	}
	if ids, ok := m.c.object("eagle_config").ints("eagle_aux_hidden_state_layer_ids"); ok && len(ids) > 0 {
		ids = slices.Clone(ids)
		for i := range ids {
			ids[i]++ // named by output
		}
		return ids
	}
	n := m.target.need("num_hidden_layers")
	return []int{2, n / 2, n - 3}
}

// targetWidth is the width of the target that the drafter was trained for.
func (m *model) targetWidth() int {
	if n, ok := m.c.int("target_hidden_size"); ok {
		return n
	}
	return m.target.need("hidden_size")
}

// addEagle3 converts one tensor of a drafter. The layer is a Llama's, with the norm of the features beside.
func (b *builder) addEagle3(name string, s *source) error {
	switch name {
	case "model.fc.weight":
		b.fc, b.fcFile = s.shape, s.file
	case "model.input_norm.weight":
		return b.emit("enc.output_norm.weight", s)
	case "model.layers.0.hidden_norm.weight":
		return b.emit("blk.0.attn_norm_2.weight", s)
	}
	if _, rest, ok := splitLayer(name); ok && (strings.HasPrefix(rest, "self_attn.q_norm") ||
		strings.HasPrefix(rest, "self_attn.k_norm") || strings.HasPrefix(rest, "mlp.") && strings.HasSuffix(rest, ".bias")) {
		return s.fail("belongs to a kind of EAGLE-3 layer that is not supported")
	}
	return b.addLlama(name, s)
}

// checkEagle3 compares a drafter with the target it is converted for, and says what is missing.
func (m *model) checkEagle3(b *builder, file string) error {
	ids := m.eagle3Layers()
	trained, width, layers := m.targetWidth(), m.target.need("hidden_size"), m.target.need("num_hidden_layers")
	hidden, vocab := m.c.need("hidden_size"), m.c.need("vocab_size")
	outputs, _ := m.c.int("draft_vocab_size")
	if err := m.c.failed(); err != nil {
		return err
	}
	if err := m.target.failed(); err != nil {
		return err
	}
	target := filepath.Dir(m.target.path)
	if trained != width {
		return fieldErr(m.c.path, "target_hidden_size", "is %d, but %s has width %d; is this drafter for another target?",
			trained, target, width)
	}
	if len(b.fc) != 2 || b.fc[0] != hidden || b.fc[1] != len(ids)*width {
		return fieldErr(b.fcFile, "fc.weight",
			"shape is %v, but %d layers of %s give [%d, %d]; is this drafter for another target?", b.fc,
			len(ids), target, hidden, len(ids)*width)
	}
	for _, id := range ids {
		if id < 0 || id > layers {
			return fieldErr(m.c.path, "eagle_aux_hidden_state_layer_ids", "layer %d is not in the target, which has %d layers",
				id, layers)
		}
	}
	need := []string{"blk.0.attn_norm.weight", "blk.0.attn_norm_2.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight",
		"blk.0.attn_v.weight", "blk.0.attn_output.weight", "blk.0.ffn_norm.weight", "blk.0.ffn_gate.weight",
		"blk.0.ffn_up.weight", "blk.0.ffn_down.weight"}
	if on, _ := m.c.bool("norm_before_fc"); on {
		need = append(need, "enc.output_norm.weight")
	}
	if outputs > 0 && outputs < vocab {
		need = append(need, "d2t", "output.weight")
	}
	if hidden != width {
		need = append(need, "token_embd.weight", "output.weight")
	}
	for _, name := range need {
		if b.names[name] == "" {
			return fieldErr(file, "tensor "+name, "is missing from the checkpoint; an EAGLE-3 drafter needs it")
		}
	}
	return nil
}
