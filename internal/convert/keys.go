package convert

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"strobe/internal/gguf"
)

// keyList collects metadata in file order. Setting a key again changes its
// value but not its place, which is what the reference converter's writer does
// and what decides the order of several Gemma keys.
type keyList struct {
	kvs   []gguf.KV
	index map[string]int
}

func (l *keyList) set(key string, v any) {
	if l.index == nil {
		l.index = map[string]int{}
	}
	if i, ok := l.index[key]; ok {
		l.kvs[i].Value = v
		return
	}
	l.index[key] = len(l.kvs)
	l.kvs = append(l.kvs, gguf.KV{Key: key, Value: v})
}

// setString and setList leave out empty values.
func (l *keyList) setString(key, v string) {
	if v != "" {
		l.set(key, v)
	}
}

func setList[T any](l *keyList, key string, v []T) {
	if len(v) > 0 {
		l.set(key, v)
	}
}

// modelKeys writes the keys of one model under its architecture's prefix.
type modelKeys struct {
	*keyList
	prefix string
}

func (k modelKeys) u32(key string, v int)                   { k.set(k.prefix+key, uint32(v)) }
func (k modelKeys) f32(key string, v float64)               { k.set(k.prefix+key, float32(v)) }
func (k modelKeys) maybeU32(key string, v int, ok bool)     { k.when(ok, func() { k.u32(key, v) }) }
func (k modelKeys) maybeF32(key string, v float64, ok bool) { k.when(ok, func() { k.f32(key, v) }) }
func (k modelKeys) i32s(key string, v []int)                { setList(k.keyList, k.prefix+key, toInt32s(v)) }

func (k modelKeys) when(ok bool, f func()) {
	if ok {
		f()
	}
}

func toInt32s(v []int) []int32 {
	out := make([]int32, len(v))
	for i, x := range v {
		out[i] = int32(x)
	}
	return out
}

// rope is the rotary part of a configuration in one shape, wherever the
// checkpoint keeps its values.
type rope struct {
	config        // rope_parameters, or the older rope_scaling
	full   config // the full-attention entry where layers differ, else the same
}

func ropeOf(c config) rope {
	r := c.object("rope_parameters")
	if r.m == nil {
		r = c.object("rope_scaling")
	}
	m := make(map[string]any, len(r.m)+4)
	for k, v := range r.m {
		m[k] = v
	}
	r.m = m
	if !r.has("full_attention") && !r.has("sliding_attention") {
		mirror := func(to string, from ...string) {
			if _, v := c.first(from...); v != nil && !r.has(to) {
				m[to] = v
			}
		}
		mirror("rope_theta", "global_rope_theta", "rope_theta")
		mirror("partial_rotary_factor", "partial_rotary_factor")
		mirror("original_max_position_embeddings", "original_max_position_embeddings")
		if !r.has("rope_type") && r.has("type") {
			m["rope_type"] = m["type"]
		}
	}
	out := rope{config: r, full: r}
	if r.has("full_attention") {
		out.full = r.object("full_attention")
	}
	return out
}

// model is what conversion knows of a checkpoint once its config is read.
type model struct {
	*arch
	class  string
	dir    string
	c      config
	rope   rope
	layers int    // of the trunk
	mtp    int    // NextN layers in the checkpoint that are converted
	target config // drafters: the target's config
}

func (m *model) blocks() int { return m.layers + m.mtp }

// headDim is the width of one attention head.
func (m *model) headDim() int {
	if d := m.arch.headDim(); d == 0 && !m.c.has("head_dim") {
		return m.c.need("hidden_size", "n_embd") / m.c.need("num_attention_heads")
	}
	return m.c.need("head_dim")
}

// setKeys writes the architecture's keys, from block_count on.
func (m *model) setKeys(l *keyList, fileType uint32) error {
	k := modelKeys{l, m.name + "."}
	m.commonKeys(k, fileType)
	switch m.family {
	case llama:
		vocab, ok := m.c.int("vocab_size")
		k.maybeU32("vocab_size", vocab, ok)
		k.u32("rope.dimension_count", m.headDim())
	case qwen3:
		if m.moe {
			m.expertKeys(k)
		}
		m.poolingKey(k)
	case qwen35, qwen3next:
		m.hybridKeys(k)
	case gemma4, gemma4Assistant:
		m.gemmaKeys(k)
	case dflash:
		m.drafterKeys(k)
	case eagle3:
		m.eagle3Keys(k)
	case gptOSS:
		m.gptOSSKeys(k)
	}
	if err := m.c.failed(); err != nil {
		return err
	}
	return m.target.failed()
}

// poolingKey marks embedding models, which say in modules.json how the states
// of a text become one vector.
func (m *model) poolingKey(k modelKeys) {
	data, err := readFile(filepath.Join(m.dir, "modules.json"))
	if err != nil {
		return
	}
	var modules []struct{ Type, Path string }
	if err := json.Unmarshal(data, &modules); err != nil {
		return
	}
	for _, mod := range modules {
		if !strings.HasSuffix(mod.Type, "Pooling") {
			continue
		}
		path := filepath.Join(m.dir, filepath.Base(mod.Path), "config.json")
		c, ok, err := readJSON(path)
		if err != nil || !ok {
			m.c.fail("modules.json", "names a pooling module, but %s cannot be read", path)
			return
		}
		for i, mode := range []string{"mean_tokens", "cls_token", "lasttoken"} {
			if on, _ := c.bool("pooling_mode_" + mode); on {
				k.u32("pooling_type", i+1)
				return
			}
		}
	}
}

func (m *model) commonKeys(k modelKeys, fileType uint32) {
	c := m.c
	k.u32("block_count", m.blocks())
	k.u32("context_length", c.need("max_position_embeddings", "n_ctx", "n_positions", "max_length"))
	k.u32("embedding_length", c.need("hidden_size", "n_embd"))
	if _, ok := c.int("intermediate_size"); ok || !m.moe {
		k.u32("feed_forward_length", c.need("intermediate_size"))
	}
	k.u32("attention.head_count", c.need("num_attention_heads"))
	n, ok := c.int("num_key_value_heads")
	k.maybeU32("attention.head_count_kv", n, ok)
	if causal, ok := c.bool("is_causal"); ok && !causal {
		k.set(k.prefix+"attention.causal", false)
	}
	m.ropeKeys(k)
	eps, ok := c.float("rms_norm_eps", "norm_eps")
	if !ok {
		eps = 1e-6 // the default of all these classes; llama.cpp does not load a file without the key
	}
	k.f32("attention.layer_norm_rms_epsilon", eps)
	n, ok = c.int("num_local_experts", "num_experts")
	k.maybeU32("expert_count", n, ok)
	n, ok = c.int("num_experts_per_tok", "experts_per_token", "top_k_experts")
	k.maybeU32("expert_used_count", n, ok)
	if d, ok := c.int("head_dim"); ok {
		k.u32("attention.key_length", d)
		k.u32("attention.value_length", d)
	}
	k.set("general.file_type", fileType)
}

func (m *model) ropeKeys(k modelKeys) {
	full := m.rope.full
	factor, scaled := full.float("factor")
	switch kind, _ := full.str("rope_type"); kind {
	case "linear":
		if scaled {
			k.set(k.prefix+"rope.scaling.type", "linear")
			k.f32("rope.scaling.factor", factor)
		}
	case "yarn":
		if scaled {
			k.set(k.prefix+"rope.scaling.type", "yarn")
			k.f32("rope.scaling.factor", factor)
			k.u32("rope.scaling.original_context_length", full.need("original_max_position_embeddings"))
			for _, p := range []struct {
				to   string
				from []string
			}{
				{"yarn_ext_factor", []string{"extrapolation_factor"}},
				{"yarn_attn_factor", []string{"attention_factor", "attn_factor"}},
				{"yarn_beta_fast", []string{"beta_fast"}},
				{"yarn_beta_slow", []string{"beta_slow"}},
			} {
				v, ok := full.float(p.from...)
				k.maybeF32("rope.scaling."+p.to, v, ok)
			}
		}
	case "su", "longrope":
		full.fail("rope_type", "%q is not supported", kind)
	}
	if sections, ok := m.rope.ints("mrope_section"); ok {
		for len(sections) < 4 {
			sections = append(sections, 0)
		}
		k.i32s("rope.dimension_sections", sections[:4])
	}
	theta, ok := full.float("rope_theta")
	k.maybeF32("rope.freq_base", theta, ok)
	if m.rope.has("sliding_attention") && m.family != dflash { // no layer of a drafter turns by it
		theta, ok := m.rope.object("sliding_attention").float("rope_theta")
		k.maybeF32("rope.freq_base_swa", theta, ok)
	}
}

// layerTypes is the configured kind of every layer, filled in from the interval
// for the hybrids whose config leaves it out.
func (m *model) layerTypes() []string {
	types, ok := m.c.strings("layer_types")
	if !ok && m.hybrid() {
		every := 4
		if n, ok := m.c.int("full_attention_interval"); ok && n > 0 {
			every = n
		}
		for i := range m.layers {
			if (i+1)%every == 0 {
				types = append(types, "full_attention")
			} else {
				types = append(types, "linear_attention")
			}
		}
		ok = true
	}
	if first, set := m.c.int("max_window_layers"); !ok && m.family == dflash && set {
		for i := range m.layers {
			if i >= first {
				types = append(types, "sliding_attention")
			} else {
				types = append(types, "full_attention")
			}
		}
		ok = true
	}
	if !ok {
		m.c.fail("layer_types", "is missing")
	} else if len(types) != m.layers {
		m.c.fail("layer_types", "has %d entries, num_hidden_layers is %d", len(types), m.layers)
	}
	return types
}

// kindsOf reports for every layer whether it is of the given kind.
func kindsOf(types []string, kind string) []bool {
	out := make([]bool, len(types))
	for i, t := range types {
		out[i] = t == kind
	}
	return out
}

// expertKeys writes the widths of experts. Files have no key for weights that do not add up to one.
func (m *model) expertKeys(k modelKeys) {
	n, ok := m.c.int("moe_intermediate_size")
	k.maybeU32("expert_feed_forward_length", n, ok)
	n, ok = m.c.int("shared_expert_intermediate_size")
	k.maybeU32("expert_shared_feed_forward_length", n, ok)
	if norm, ok := m.c.bool("norm_topk_prob"); ok && !norm {
		m.c.fail("norm_topk_prob", "is false, which %s files cannot express", m.name)
	}
}

func (m *model) hybridKeys(k modelKeys) {
	c := m.c
	m.expertKeys(k)
	if m.mtp > 0 {
		k.u32("nextn_predict_layers", m.mtp)
	}
	k.u32("ssm.conv_kernel", c.need("linear_conv_kernel_dim"))
	k.u32("ssm.state_size", c.need("linear_key_head_dim"))
	k.u32("ssm.group_count", c.need("linear_num_key_heads"))
	k.u32("ssm.time_step_rank", c.need("linear_num_value_heads"))
	k.u32("ssm.inner_size", c.need("linear_value_head_dim")*c.need("linear_num_value_heads"))
	recurrent := kindsOf(m.layerTypes(), "linear_attention")
	k.set(k.prefix+"attention.recurrent_layers", append(recurrent, make([]bool, m.mtp)...))
	every := 4
	if n, ok := c.int("full_attention_interval"); ok {
		every = n
	}
	k.u32("full_attention_interval", every)
	part, ok := m.rope.float("partial_rotary_factor")
	if !ok {
		part = 0.25
	}
	k.u32("rope.dimension_count", int(float64(m.headDim())*part))
	if m.family == qwen35 && !m.rope.has("mrope_section") {
		k.i32s("rope.dimension_sections", []int{11, 11, 10, 0})
	}
}

// fullLayer finds a value of the full-attention layers: under a key of its own,
// or in the first entry of per_layer_config that belongs to such a layer.
func (m *model) fullLayer(own, perLayer string, types []string) (int, bool) {
	if n, ok := m.c.int(own); ok {
		return n, true
	}
	per := m.c.object("per_layer_config")
	var layers []int
	for name := range per.m {
		if i, err := strconv.Atoi(name); err == nil {
			layers = append(layers, i)
		}
	}
	slices.Sort(layers)
	for _, i := range layers {
		entry := per.object(strconv.Itoa(i))
		if i >= 0 && i < len(types) && types[i] == "full_attention" && entry.has(perLayer) {
			return entry.int(perLayer)
		}
	}
	return 0, false
}

func (m *model) gemmaHeadDim() int {
	n, ok := m.fullLayer("global_head_dim", "head_dim", m.layerTypes())
	if !ok {
		m.c.fail("global_head_dim", "is missing, and per_layer_config gives no head_dim for a full-attention layer")
		return 1
	}
	return n
}

func (m *model) gemmaKeys(k modelKeys) {
	c := m.c
	if v, ok := c.float("final_logit_softcapping"); ok && v != 0 {
		k.f32("final_logit_softcapping", v)
	}
	k.u32("attention.sliding_window", c.need("sliding_window"))
	shared, ok := c.int("num_kv_shared_layers")
	if !ok {
		c.fail("num_kv_shared_layers", "is missing")
	}
	k.u32("attention.shared_kv_layers", shared)
	ple, _ := c.int("hidden_size_per_layer_input")
	k.u32("embedding_length_per_layer_input", ple)
	types := m.layerTypes()
	sliding := kindsOf(types, "sliding_attention")
	k.set(k.prefix+"attention.sliding_window_pattern", sliding)

	full, swa := m.gemmaHeadDim(), c.need("head_dim")
	k.u32("attention.key_length", full)
	k.u32("attention.value_length", full)
	k.u32("attention.key_length_swa", swa)
	k.u32("attention.value_length_swa", swa)
	n, ok := c.int("expert_intermediate_size", "moe_intermediate_size")
	k.maybeU32("expert_feed_forward_length", n, ok)

	if wide, _ := c.bool("use_double_wide_mlp"); wide {
		ff := make([]int, m.layers)
		for i := range ff {
			ff[i] = c.need("intermediate_size")
			if i >= m.layers-shared {
				ff[i] *= 2
			}
		}
		k.i32s("feed_forward_length", ff)
	}
	kvFull, ok1 := m.fullLayer("num_global_key_value_heads", "num_key_value_heads", types)
	kvSWA, ok2 := c.int("num_key_value_heads")
	if ok1 && ok2 {
		kv := make([]int, len(sliding))
		for i, s := range sliding {
			if kv[i] = kvFull; s {
				kv[i] = kvSWA
			}
		}
		k.i32s("attention.head_count_kv", kv)
	}
	part, ok := m.rope.float("partial_rotary_factor")
	if !ok {
		part = 1
	}
	k.u32("rope.dimension_count", full)
	k.u32("rope.dimension_count_swa", int(float64(swa)*part))

	if m.class == "Gemma4UnifiedForConditionalGeneration" {
		if gen, ok, _ := readJSON(filepath.Join(m.dir, "generation_config.json")); ok {
			if ids, ok := gen.ints("suppress_tokens"); ok {
				setList(k.keyList, "tokenizer.ggml.suppress_tokens", toInt32s(ids))
			}
		}
	}
	if m.family == gemma4Assistant {
		k.u32("embedding_length_out", c.need("backbone_hidden_size"))
		k.u32("nextn_predict_layers", m.layers)
	}
}

// gemmaTarget reports whether a drafter's target is a Gemma.
func (m *model) gemmaTarget() bool {
	names, _ := m.target.strings("architectures")
	return len(names) > 0 && strings.HasPrefix(names[0], "Gemma")
}

// Keys gives the architecture and the keys a checkpoint with this config.json
// gets, without the tokenizer and without names. target is the target's
// config.json for a drafter, else nil.
func Keys(configJSON, target []byte, fileType uint32) (arch string, kvs []gguf.KV, err error) {
	c, err := parseConfig("config.json", configJSON)
	if err != nil {
		return "", nil, err
	}
	a, class, err := findArch(c)
	if err != nil {
		return "", nil, err
	}
	m := &model{arch: a, class: class, c: c, rope: ropeOf(c)}
	m.layers = c.need("num_hidden_layers")
	m.mtp, _ = c.int("mtp_num_hidden_layers") // there are no tensors to count
	if target != nil {
		if m.target, err = parseConfig("target config.json", target); err != nil {
			return "", nil, err
		}
	}
	l := &keyList{}
	err = m.setKeys(l, fileType)
	return a.name, l.kvs, err
}
