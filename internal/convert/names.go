package convert

import (
	"strconv"
	"strings"
)

// dropped lists name parts of the vision, audio and projector weights of
// multimodal checkpoints, which a text model does not have.
var dropped = []string{
	"visual.", "vision.", "vision_", "audio.", "audio_", "talker.", "token2wav.", "code2wav.", "projector.",
	"pre_mm_projector_norm", "image_newline", "view_seperator", "patch_embed", "patch_merger.",
	"patch_merge_mlp.", "model.connector.",
}

// ignored lists suffixes of tensors that hold nothing to convert.
var ignored = []string{".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq"}

// mtpNames are the tensors around a NextN layer.
var mtpNames = map[string]string{
	"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm",
}

// cleanName brings a checkpoint's tensor name to the form model.layers.N.… that
// the tables below use; keep is false for tensors that are not converted.
func (m *model) cleanName(name string) (clean string, keep bool) {
	switch m.family {
	case eagle3:
		return eagle3Name(name)
	case dflash:
		if name == "t2d" || name == "model.t2d" {
			return "", false
		}
		if !strings.HasPrefix(name, "model.") {
			name = "model." + name
		}
		if name == "model.embed_tokens.weight" && dspark(m.class) {
			return "", false // the target's
		}
		if strings.Contains(name, "sink") && !strings.HasSuffix(name, ".weight") || strings.HasSuffix(name, "layer_scalar") {
			name += ".weight"
		}
	case gemma4, gemma4Assistant:
		if strings.Contains(name, "masked_embedding") && m.family == gemma4Assistant {
			return "", false
		}
		if strings.HasSuffix(name, "layer_scalar") ||
			strings.Contains(name, ".experts.") && !strings.HasSuffix(name, ".weight") &&
				!strings.HasSuffix(name, "_scale_inv") {
			name += ".weight"
		}
	}
	for _, part := range dropped {
		if strings.Contains(name, part) {
			return "", false
		}
	}
	for _, end := range ignored {
		if strings.HasSuffix(name, end) {
			return "", false
		}
	}
	if strings.HasPrefix(name, "mlp") {
		return "", false
	}
	name = strings.ReplaceAll(name, "language_model.", "")
	if m.hybrid() {
		return m.mtpName(name)
	}
	if m.class == "Qwen3Model" {
		name = "model." + name
	}
	return name, true
}

// mtpName gives the NextN tensors of a Qwen hybrid the number of the block they
// become.
func (m *model) mtpName(name string) (string, bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(name, "model."), "mtp.")
	if !ok {
		return name, true
	}
	if m.mtp == 0 {
		return "", false
	}
	parts := strings.SplitN(rest, ".", 3)
	if parts[0] == "layers" && len(parts) == 3 {
		if i, err := strconv.Atoi(parts[1]); err == nil && i >= 0 {
			return "model.layers." + strconv.Itoa(m.layers+i) + "." + parts[2], true
		}
	}
	if to := mtpNames[parts[0]]; to != "" && len(parts) == 2 {
		return "model.layers." + strconv.Itoa(m.layers) + "." + to + "." + parts[1], true
	}
	return name, true
}

// mtpLayer is the index of the NextN layer a tensor belongs to, or -1.
func mtpLayer(name string) int {
	name = strings.ReplaceAll(name, "language_model.", "")
	rest, ok := strings.CutPrefix(strings.TrimPrefix(name, "model."), "mtp.layers.")
	if !ok {
		return -1
	}
	digits, _, _ := strings.Cut(rest, ".")
	if i, err := strconv.Atoi(digits); err == nil {
		return i
	}
	return -1
}

// Tensors outside the blocks. The part before .weight or .bias is looked up.
var globalNames = map[string]string{
	"model.embed_tokens":               "token_embd",
	"model.norm":                       "output_norm",
	"lm_head":                          "output",
	"model.lm_head":                    "output",
	"model.embed_tokens_per_layer":     "per_layer_token_embd",
	"model.per_layer_model_projection": "per_layer_model_proj",
	"model.per_layer_projection_norm":  "per_layer_proj_norm",
	"pre_projection":                   "nextn.pre_projection",
	"post_projection":                  "nextn.post_projection",
	"model.fc":                         "fc",
	"model.hidden_norm":                "enc.output_norm",

	"model.markov_head.markov_w1": "markov_w1",
	"model.markov_head.markov_w2": "markov_w2",
	"model.confidence_head.proj":  "conf_proj",

	"model.candidate_selector.hidden_projection":    "selector_hidden",
	"model.candidate_selector.predecessor_codebook": "selector_predecessor",
	"model.candidate_selector.successor_codebook":   "selector_successor",
}

// Tensors of a block, common to all families.
var layerNames = map[string]string{
	"input_layernorm":  "attn_norm",
	"self_attn.q_proj": "attn_q",
	"self_attn.k_proj": "attn_k",
	"self_attn.v_proj": "attn_v",
	"self_attn.o_proj": "attn_output",
	"self_attn.q_norm": "attn_q_norm",
	"self_attn.k_norm": "attn_k_norm",
	"mlp.gate_proj":    "ffn_gate",
	"mlp.up_proj":      "ffn_up",
	"mlp.down_proj":    "ffn_down",
}

// Tensors of a block that one family adds or names differently.
var familyNames = map[family]map[string]string{
	llama:  {"post_attention_layernorm": "ffn_norm"},
	eagle3: {"post_attention_layernorm": "ffn_norm"},
	qwen3: {
		"post_attention_layernorm": "ffn_norm",
		"mlp.gate":                 "ffn_gate_inp",
		"mlp.experts.gate_proj":    "ffn_gate_exps",
		"mlp.experts.up_proj":      "ffn_up_exps",
		"mlp.experts.down_proj":    "ffn_down_exps",
	},
	gptOSS:    gptOSSNames,
	qwen35:    hybridNames,
	qwen3next: hybridNames,
	gemma4:    gemmaNames, gemma4Assistant: gemmaNames,
	dflash: {
		"post_attention_layernorm":         "ffn_norm",
		"self_attn.sinks":                  "attn_sinks",
		"attention_conv.base_kernel":       "attn_conv_base",
		"attention_conv.kernel_projection": "attn_conv_proj",
		"mlp_conv.base_kernel":             "ffn_conv_base",
		"mlp_conv.kernel_projection":       "ffn_conv_proj",
	},
}

var hybridNames = map[string]string{
	"post_attention_layernorm":    "post_attention_norm",
	"linear_attn.A_log":           "ssm_a",
	"linear_attn.conv1d":          "ssm_conv1d",
	"linear_attn.dt_proj":         "ssm_dt",
	"linear_attn.in_proj_a":       "ssm_alpha",
	"linear_attn.in_proj_b":       "ssm_beta",
	"linear_attn.in_proj_ba":      "ssm_ba",
	"linear_attn.in_proj_qkv":     "attn_qkv",
	"linear_attn.in_proj_z":       "attn_gate",
	"linear_attn.norm":            "ssm_norm",
	"linear_attn.out_proj":        "ssm_out",
	"mlp.gate":                    "ffn_gate_inp",
	"mlp.experts.gate_proj":       "ffn_gate_exps",
	"mlp.experts.up_proj":         "ffn_up_exps",
	"mlp.experts.down_proj":       "ffn_down_exps",
	"mlp.shared_expert.gate_proj": "ffn_gate_shexp",
	"mlp.shared_expert.up_proj":   "ffn_up_shexp",
	"mlp.shared_expert.down_proj": "ffn_down_shexp",
	"mlp.shared_expert_gate":      "ffn_gate_inp_shexp",
	"eh_proj":                     "nextn.eh_proj",
	"enorm":                       "nextn.enorm",
	"hnorm":                       "nextn.hnorm",
	"embed_tokens":                "nextn.embed_tokens",
	"shared_head.norm":            "nextn.shared_head_norm",
	"shared_head.head":            "nextn.shared_head_head",
}

var gemmaNames = map[string]string{
	"post_attention_layernorm":     "post_attention_norm",
	"pre_feedforward_layernorm":    "ffn_norm",
	"post_feedforward_layernorm":   "post_ffw_norm",
	"pre_feedforward_layernorm_2":  "pre_ffw_norm_2",
	"post_feedforward_layernorm_1": "post_ffw_norm_1",
	"post_feedforward_layernorm_2": "post_ffw_norm_2",
	"layer_scalar":                 "layer_output_scale",
	"per_layer_input_gate":         "inp_gate",
	"per_layer_projection":         "proj",
	"post_per_layer_input_norm":    "post_norm",
	"router.proj":                  "ffn_gate_inp",
	"experts.gate_up_proj":         "ffn_gate_up_exps",
	"experts.gate_proj":            "ffn_gate_exps",
	"experts.up_proj":              "ffn_up_exps",
	"experts.down_proj":            "ffn_down_exps",
}

// ggufName looks up the GGUF name of a clean name; ok is false when no table
// knows it.
func (m *model) ggufName(clean string) (string, bool) {
	base, suffix := clean, ""
	for _, end := range []string{".weight", ".bias"} {
		if b, ok := strings.CutSuffix(clean, end); ok {
			base, suffix = b, end
		}
	}
	if bid, rest, ok := splitLayer(base); ok {
		to := familyNames[m.family][rest]
		if m.class == gemmaDSpark {
			to = gemmaNames[rest]
		}
		if to == "" {
			to = layerNames[rest]
		}
		if to == "" {
			return "", false
		}
		return "blk." + strconv.Itoa(bid) + "." + to + suffix, true
	}
	to := globalNames[base]
	if strings.HasPrefix(to, "selector_") && suffix == "" {
		suffix = ".weight"
	}
	return to + suffix, to != ""
}

// splitLayer splits "model.layers.7.mlp.gate" into 7 and "mlp.gate".
func splitLayer(name string) (bid int, rest string, ok bool) {
	s, ok := strings.CutPrefix(name, "model.layers.")
	if !ok {
		return 0, "", false
	}
	digits, rest, ok := strings.Cut(s, ".")
	if !ok {
		return 0, "", false
	}
	bid, err := strconv.Atoi(digits)
	return bid, rest, err == nil && bid >= 0
}
