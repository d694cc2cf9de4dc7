package synth

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// shape holds the dimensions of one model, named as in its config.json.
type shape struct {
	name  string
	title string
	class string

	hidden, layers, heads, kv, headDim, ff int
	vocab, context                         int
	theta                                  float64
	tied                                   bool
	pieces                                 bool // Llama: a vocabulary of SentencePiece's, as Llama 2 and Mistral have it

	// Gated delta-net layers.
	linK, linV, linDim int
	// Mixture of experts.
	experts, used, expertFF, sharedFF int
	// Gemma and gpt-oss: full-attention layers, which are every period-th one.
	fullDim, fullKV, window, period int
	mtp                             int // layers for multi-token prediction
	// Drafters.
	target  string
	mask    int
	capture []int
	width   int // of the target, for assistants and EAGLE-3
	// EAGLE-3 drafters: tokens they guess (0 for all), and norms before the residual stream and before the projection.
	outputs         int
	normed, encoded bool
}

const (
	llamaClass     = "LlamaForCausalLM"
	qwen2Class     = "Qwen2ForCausalLM"
	qwen3Class     = "Qwen3ForCausalLM"
	qwen3MoEClass  = "Qwen3MoeForCausalLM"
	qwen35Class    = "Qwen3_5ForCausalLM"
	qwen35MoEClass = "Qwen3_5MoeForCausalLM"
	nextClass      = "Qwen3NextForCausalLM"
	gemmaClass     = "Gemma4ForCausalLM"
	gptOSSClass    = "GptOssForCausalLM"
	drafterClass   = "DFlashDraftModel"
	assistantClass = "Gemma4AssistantForCausalLM"
)

const block = 16 // tokens a drafter drafts at a time, anchor included

// targets are the models people run. What all Qwen hybrids share is filled in by
// hybrid.
var targets = []shape{
	{name: "qwen3-0.6b", title: "Qwen3 0.6B", class: qwen3Class, hidden: 1024, layers: 28, heads: 16, kv: 8, headDim: 128,
		ff: 3072, vocab: 151936, context: 40960, theta: 1e6, tied: true},
	{name: "qwen3-30b-a3b", title: "Qwen3 30B A3B", class: qwen3MoEClass, hidden: 2048, layers: 48, heads: 32, kv: 4,
		headDim: 128, ff: 6144, vocab: 151936, context: 40960, theta: 1e6, experts: 128, used: 8, expertFF: 768},
	{name: "qwen2.5-7b", title: "Qwen2.5 7B", class: qwen2Class, hidden: 3584, layers: 28, heads: 28, kv: 4, headDim: 128,
		ff: 18944, vocab: 152064, context: 32768, theta: 1e6},
	{name: "llama-3.1-8b", title: "Llama 3.1 8B", class: llamaClass, hidden: 4096, layers: 32, heads: 32, kv: 8,
		headDim: 128, ff: 14336, vocab: 128256, context: 131072, theta: 5e5},
	hybrid(shape{name: "qwen3.5-0.8b", title: "Qwen3.5 0.8B", class: qwen35Class, hidden: 1024, layers: 24, heads: 8,
		kv: 2, ff: 3584, linK: 16, linV: 16, tied: true}),
	hybrid(shape{name: "qwen3.5-4b", title: "Qwen3.5 4B", class: qwen35Class, hidden: 2560, layers: 32, heads: 16, kv: 4,
		ff: 9216, linK: 16, linV: 32, tied: true}),
	hybrid(shape{name: "qwen3.5-27b", title: "Qwen3.5 27B", class: qwen35Class, hidden: 5120, layers: 64, heads: 24, kv: 4,
		ff: 17408, linK: 16, linV: 48}),
	hybrid(shape{name: "qwen3.6-27b", title: "Qwen3.6 27B", class: qwen35Class, hidden: 5120, layers: 64, heads: 24, kv: 4,
		ff: 17408, linK: 16, linV: 48}),
	hybrid(shape{name: "qwen3.6-35b-a3b", title: "Qwen3.6 35B A3B", class: qwen35MoEClass, hidden: 2048, layers: 40,
		heads: 16, kv: 2, linK: 16, linV: 32, experts: 256, used: 8, expertFF: 512, sharedFF: 512}),
	hybrid(shape{name: "qwen3.5-122b-a10b", title: "Qwen3.5 122B A10B", class: qwen35MoEClass, hidden: 3072, layers: 48,
		heads: 32, kv: 2, linK: 16, linV: 64, experts: 256, used: 8, expertFF: 1024, sharedFF: 1024}),
	hybrid(shape{name: "qwen3-coder-next", title: "Qwen3 Coder Next", class: nextClass, hidden: 2048, layers: 48,
		heads: 16, kv: 2, ff: 5120,
		linK: 16, linV: 32, experts: 512, used: 10, expertFF: 512, sharedFF: 512, vocab: 151936, theta: 5e6}),
	{name: "gemma-4-31b", title: "Gemma 4 31B", class: gemmaClass, hidden: 5376, layers: 60, heads: 32, kv: 16,
		headDim: 256, ff: 21504,
		vocab: 262144, context: 262144, tied: true, fullDim: 512, fullKV: 4, window: 1024, period: 6},
	{name: "gemma-4-26b-a4b", title: "Gemma 4 26B A4B", class: gemmaClass, hidden: 2816, layers: 30, heads: 16, kv: 8,
		headDim: 256, ff: 2112,
		vocab: 262144, context: 262144, tied: true, fullDim: 512, fullKV: 2, window: 1024, period: 6, experts: 128, used: 8,
		expertFF: 704},
	{name: "gpt-oss-20b", title: "gpt-oss 20B", class: gptOSSClass, hidden: 2880, layers: 24, heads: 64, kv: 8,
		headDim: 64, vocab: 201088, context: 131072, theta: 150000, window: 128, period: 2, experts: 32, used: 4,
		expertFF: 2880},
	{name: "gpt-oss-120b", title: "gpt-oss 120B", class: gptOSSClass, hidden: 2880, layers: 36, heads: 64, kv: 8,
		headDim: 64, vocab: 201088, context: 131072, theta: 150000, window: 128, period: 2, experts: 128, used: 4,
		expertFF: 2880},

	// Small ones with every kind of layer, for tests. Widths are multiples of 256
	// so that all quantised types fit.
	{name: "tiny-qwen3", title: "Tiny Qwen3", class: qwen3Class, hidden: 256, layers: 3, heads: 4, kv: 2, headDim: 64,
		ff: 512, vocab: 2048, context: 4096, theta: 1e6, tied: true},
	{name: "tiny-qwen3moe", title: "Tiny Qwen3 MoE", class: qwen3MoEClass, hidden: 256, layers: 2, heads: 4, kv: 2,
		headDim: 64, ff: 512, vocab: 2048, context: 4096, theta: 1e6, experts: 8, used: 2, expertFF: 256},
	{name: "tiny-qwen2", title: "Tiny Qwen2", class: qwen2Class, hidden: 256, layers: 3, heads: 4, kv: 2, headDim: 64,
		ff: 512, vocab: 2048, context: 4096, theta: 1e6, tied: true},
	{name: "tiny-llama", title: "Tiny Llama", class: llamaClass, hidden: 256, layers: 3, heads: 4, kv: 2, headDim: 64,
		ff: 512, vocab: 2048, context: 4096, theta: 5e5},
	{name: "tiny-mistral", title: "Tiny Mistral", class: llamaClass, hidden: 256, layers: 3, heads: 4, kv: 2, headDim: 64,
		ff: 512, vocab: 2048, context: 4096, theta: 1e6, pieces: true},
	hybrid(shape{name: "tiny-qwen35", title: "Tiny Qwen3.5", class: qwen35Class, hidden: 256, layers: 4, heads: 4, kv: 2,
		headDim: 64, ff: 512, linK: 2, linV: 4, linDim: 64, vocab: 2048, context: 4096}),
	hybrid(shape{name: "tiny-qwen35moe", title: "Tiny Qwen3.5 MoE", class: qwen35MoEClass, hidden: 256, layers: 4,
		heads: 4, kv: 2, headDim: 64,
		linK: 2, linV: 4, linDim: 64, experts: 8, used: 2, expertFF: 256, sharedFF: 256, vocab: 2048, context: 4096}),
	hybrid(shape{name: "tiny-qwen3next", title: "Tiny Qwen3 Next", class: nextClass, hidden: 256, layers: 4, heads: 4,
		kv: 2, headDim: 64, ff: 512,
		linK: 2, linV: 4, linDim: 64, experts: 8, used: 2, expertFF: 256, sharedFF: 256, vocab: 2048, context: 4096,
		theta: 5e6}),
	{name: "tiny-gemma4", title: "Tiny Gemma 4", class: gemmaClass, hidden: 256, layers: 4, heads: 4, kv: 2, headDim: 64,
		ff: 512, vocab: 2048, context: 4096, tied: true, fullDim: 128, fullKV: 1, window: 64, period: 2},
	{name: "tiny-gemma4moe", title: "Tiny Gemma 4 MoE", class: gemmaClass, hidden: 256, layers: 4, heads: 4, kv: 2,
		headDim: 64, ff: 512,
		vocab: 2048, context: 4096, tied: true, fullDim: 128, fullKV: 1, window: 64, period: 2, experts: 8, used: 2,
		expertFF: 256},
	{name: "tiny-gpt-oss", title: "Tiny gpt-oss", class: gptOSSClass, hidden: 256, layers: 2, heads: 4, kv: 2,
		headDim: 64, vocab: 2048, context: 4096, theta: 150000, window: 5, period: 2, experts: 8, used: 2, expertFF: 256},
}

// hybrid fills in what all Qwen hybrids have in common.
func hybrid(s shape) shape {
	def := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	def(&s.headDim, 256)
	def(&s.linDim, 128)
	def(&s.vocab, 248320)
	def(&s.context, 262144)
	if s.theta == 0 {
		s.theta = 1e7
	}
	return s
}

// drafters of the targets above. Where no drafter was released (0.6B, 0.8B, Qwen2.5
// and the tiny models), or its shape is not known here (Llama), the dimensions are made up in the style of the others.
var drafters = []shape{
	{target: "qwen3-0.6b", layers: 5, heads: 16, kv: 8, ff: 3072, mask: 151669, theta: 1e6},
	{target: "qwen3-30b-a3b", layers: 8, heads: 32, kv: 4, ff: 6144, mask: 151669, theta: 1e6},
	{target: "qwen2.5-7b", layers: 5, heads: 28, kv: 4, ff: 18944, mask: 151669, theta: 1e6},
	{target: "llama-3.1-8b", layers: 5, heads: 32, kv: 8, ff: 14336, mask: 128002, theta: 5e5},
	{target: "qwen3.5-0.8b", layers: 5, heads: 16, kv: 4, ff: 3584, mask: 248070, theta: 1e7},
	{target: "qwen3.5-4b", layers: 5, heads: 32, kv: 8, ff: 9216, mask: 248070, theta: 1e7},
	{target: "qwen3.5-27b", layers: 5, heads: 32, kv: 8, ff: 17408, mask: 248070, theta: 1e7},
	{target: "qwen3.6-27b", layers: 5, heads: 32, kv: 8, ff: 17408, mask: 248070, theta: 1e7, window: 2048},
	{target: "qwen3.6-35b-a3b", layers: 8, heads: 32, kv: 4, ff: 6144, mask: 248070, theta: 1e7, window: 4096},
	{target: "qwen3.5-122b-a10b", layers: 6, heads: 32, kv: 8, ff: 9216, mask: 248077, theta: 1e7, window: 4096,
		capture: []int{1, 7, 14, 20, 26, 32, 39, 45}},
	{target: "qwen3-coder-next", layers: 8, heads: 32, kv: 4, ff: 6144, mask: 151669, theta: 5e6, window: 4096},
	{target: "gemma-4-31b", layers: 5, heads: 64, kv: 8, ff: 10752, mask: 4, theta: 1e6, window: 2048,
		capture: []int{1, 12, 23, 35, 46, 57}},
	{target: "gemma-4-26b-a4b", layers: 5, heads: 32, kv: 8, ff: 5632, mask: 4, theta: 1e6, window: 2048,
		capture: []int{1, 6, 11, 17, 22, 27}},
	{target: "gpt-oss-20b", layers: 8, heads: 32, kv: 8, ff: 7680, mask: 200000, theta: 150000},
	{target: "gpt-oss-120b", layers: 8, heads: 32, kv: 8, ff: 7680, mask: 200000, theta: 150000},
	{target: "tiny-qwen3", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, theta: 1e6, capture: []int{0, 1}},
	{target: "tiny-qwen3moe", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, theta: 1e6, capture: []int{0}},
	{target: "tiny-qwen2", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, theta: 1e6, capture: []int{0, 1}},
	{target: "tiny-llama", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, theta: 5e5, capture: []int{0, 1}},
	{target: "tiny-mistral", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, theta: 1e6, capture: []int{0, 1}},
	{target: "tiny-qwen35", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, theta: 1e7, window: 64,
		capture: []int{0, 1, 2}},
	{target: "tiny-qwen35moe", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, theta: 1e7, window: 64,
		capture: []int{0, 1, 2}},
	{target: "tiny-qwen3next", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, theta: 5e6, window: 64,
		capture: []int{0, 1, 2}},
	{target: "tiny-gemma4", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, mask: 4, theta: 1e6, window: 64,
		capture: []int{0, 1, 2}},
	{target: "tiny-gemma4moe", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, mask: 4, theta: 1e6, window: 64,
		capture: []int{0, 1, 2}},
	{target: "tiny-gpt-oss", layers: 2, heads: 4, kv: 2, headDim: 64, ff: 512, theta: 150000, capture: []int{0}},
}

// assistants of Gemma targets: three sliding layers and a full one. Of the released ones the width is known; the rest
// is made up in their style. None is as wide as its target, which llama.cpp takes for a mistake.
var assistants = []shape{
	{target: "gemma-4-31b", hidden: 1024, heads: 16, ff: 4096},
	{target: "gemma-4-26b-a4b", hidden: 1024, heads: 16, ff: 4096},
	{target: "tiny-gemma4", hidden: 768, heads: 4, ff: 768},
	{target: "tiny-gemma4moe", hidden: 768, heads: 4, ff: 768},
}

// What a name ends with: a DFlash drafter, a target with its layer for multi-token prediction, an assistant.
const (
	drafterSuffix   = "-dflash"
	mtpSuffix       = "-mtp"
	assistantSuffix = "-assistant"
)

// Shapes lists the names Write knows: targets first, then their drafters and vision towers.
func Shapes() []string {
	var names []string
	for _, s := range targets {
		names = append(names, s.name)
	}
	for _, s := range targets {
		if s.linear() {
			names = append(names, s.name+mtpSuffix)
		}
	}
	for _, d := range drafters {
		names = append(names, d.target+drafterSuffix)
	}
	for _, d := range assistants {
		names = append(names, d.target+assistantSuffix)
	}
	for _, d := range eagles {
		names = append(names, d.target+eagleSuffix)
	}
	for _, t := range towers {
		names = append(names, t.target+towerSuffix)
	}
	return names
}

// find looks a shape up. For a drafter, target is the shape it belongs to.
func find(name string) (s shape, target *shape, err error) {
	name = strings.ToLower(name)
	if !slices.Contains(Shapes(), name) {
		return shape{}, nil, fmt.Errorf("unknown shape %q; known are %s", name, strings.Join(Shapes(), ", "))
	}
	base, suffix := name, ""
	for _, end := range []string{drafterSuffix, mtpSuffix, assistantSuffix, eagleSuffix} {
		if rest, ok := strings.CutSuffix(name, end); ok {
			base, suffix = rest, end
		}
	}
	t := targets[slices.IndexFunc(targets, func(s shape) bool { return s.name == base })]
	switch suffix {
	case "":
		return t, nil, nil
	case mtpSuffix:
		t.name, t.mtp = name, 1
		return t, nil, nil
	case assistantSuffix:
		a := assistants[slices.IndexFunc(assistants, func(a shape) bool { return a.target == base })]
		a.name, a.title, a.class = name, t.title+" assistant", assistantClass
		a.layers, a.period, a.width, a.tied = 4, 4, t.hidden, true
		a.kv, a.fullKV, a.headDim, a.fullDim, a.window = t.kv, t.fullKV, t.headDim, t.fullDim, t.window
		a.vocab, a.context = t.vocab, t.context
		return a, &t, nil
	case eagleSuffix:
		return eagle(eagles[slices.IndexFunc(eagles, func(d shape) bool { return d.target == base })], t), &t, nil
	}
	d := drafters[slices.IndexFunc(drafters, func(d shape) bool { return d.target == base })]
	d.name, d.title, d.class = name, t.title+" DFlash", drafterClass
	d.hidden, d.vocab, d.context = t.hidden, t.vocab, t.context
	if d.headDim == 0 {
		d.headDim = 128
	}
	if d.mask == 0 {
		d.mask = t.vocab - 1
	}
	if d.capture == nil {
		d.capture = captureLayers(t.layers, 5)
	}
	return d, &t, nil
}

// captureLayers spreads n captured layers over a target as the reference does.
func captureLayers(layers, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = int(math.RoundToEven(1 + float64(i*(layers-4))/float64(n-1)))
	}
	return out
}

func (s *shape) gemma() bool  { return s.class == gemmaClass || s.class == assistantClass }
func (s *shape) linear() bool { return s.linK > 0 }

// full reports whether layer i attends to everything.
func (s *shape) full(i int) bool {
	switch {
	case s.linear():
		return (i+1)%4 == 0 || i >= s.layers // the latter for multi-token prediction
	case s.gemma() || s.class == gptOSSClass:
		return (i+1)%s.period == 0
	case s.class == drafterClass:
		return s.window == 0 || i == s.layers-1
	}
	return true
}

// config is the config.json a checkpoint of this shape would have.
func (s *shape) config() []byte {
	c := map[string]any{
		"architectures": []string{s.class}, "hidden_size": s.hidden, "num_hidden_layers": s.layers,
		"num_attention_heads": s.heads, "num_key_value_heads": s.kv, "head_dim": s.headDim, "vocab_size": s.vocab,
		"max_position_embeddings": s.context, "rms_norm_eps": 1e-6, "tie_word_embeddings": s.tied,
	}
	if s.ff > 0 {
		c["intermediate_size"] = s.ff
	}
	rope := map[string]any{"rope_type": "default", "rope_theta": s.theta}
	if s.experts > 0 {
		c["num_experts"], c["num_experts_per_tok"], c["moe_intermediate_size"] = s.experts, s.used, s.expertFF
	}
	kinds := make([]string, s.layers)
	other := "sliding_attention"
	if s.linear() {
		other = "linear_attention"
	}
	for i := range kinds {
		if kinds[i] = other; s.full(i) {
			kinds[i] = "full_attention"
		}
	}
	c["layer_types"] = kinds
	switch {
	case s.linear():
		if s.mtp > 0 {
			c["mtp_num_hidden_layers"] = s.mtp
		}
		c["linear_conv_kernel_dim"], c["full_attention_interval"] = convTaps, 4
		c["linear_num_key_heads"], c["linear_num_value_heads"] = s.linK, s.linV
		c["linear_key_head_dim"], c["linear_value_head_dim"] = s.linDim, s.linDim
		if s.sharedFF > 0 {
			c["shared_expert_intermediate_size"] = s.sharedFF
		}
		rope["partial_rotary_factor"] = 0.25
		if s.class != nextClass {
			n := s.headDim / 8 // rotated pairs, dealt to time, height and width in turn
			rope["mrope_section"] = []int{(n + 2) / 3, (n + 1) / 3, n / 3}
		}
	case s.gemma():
		c["global_head_dim"], c["num_global_key_value_heads"] = s.fullDim, s.fullKV
		c["sliding_window"], c["num_kv_shared_layers"], c["hidden_size_per_layer_input"] = s.window, 0, 0
		c["attention_k_eq_v"] = true
		if s.class == assistantClass {
			c["backbone_hidden_size"], c["num_kv_shared_layers"] = s.width, s.layers
		} else {
			c["final_logit_softcapping"] = 30.0
		}
		rope = map[string]any{
			"full_attention":    map[string]any{"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
			"sliding_attention": map[string]any{"rope_type": "default", "rope_theta": 1e4},
		}
	case s.class == gptOSSClass:
		c["num_local_experts"], c["intermediate_size"], c["sliding_window"] = s.experts, s.expertFF, s.window
		c["rms_norm_eps"] = 1e-5
		rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"] = "yarn", 32.0, s.context/32
		rope["beta_fast"], rope["beta_slow"] = 32.0, 1.0
	case s.class == llamaClass && !s.pieces: // as Llama 3.1 has it
		stretchedRope(rope, s.context)
	case s.class == eagleClass:
		s.eagleConfig(c, rope)
	case s.class == drafterClass:
		c["block_size"] = block
		c["dflash_config"] = map[string]any{"mask_token_id": s.mask, "target_layer_ids": s.capture}
		if s.window > 0 {
			c["use_sliding_window"], c["sliding_window"] = true, s.window
		}
	}
	c["rope_parameters"] = rope
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // only plain values above
	}
	return b
}
