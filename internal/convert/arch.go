package convert

import (
	"path/filepath"
	"slices"
	"strings"
)

// family groups the architectures that share rules.
type family int

const (
	llama family = iota
	qwen3        // and Qwen2, whose rules are the same
	qwen35
	qwen3next
	gemma4
	gemma4Assistant
	dflash
	eagle3
	gptOSS
)

// arch is one supported kind of checkpoint.
type arch struct {
	name    string // general.architecture
	family  family
	moe     bool
	classes []string // "architectures" in config.json
}

var archs = []arch{
	{"llama", llama, false, []string{"LlamaForCausalLM", mistral}},
	{"qwen2", qwen3, false, []string{"Qwen2ForCausalLM"}},
	{"qwen3", qwen3, false, []string{"Qwen3ForCausalLM", "Qwen3Model"}},
	{"qwen3moe", qwen3, true, []string{"Qwen3MoeForCausalLM"}},
	{"qwen35", qwen35, false, []string{"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"}},
	{"qwen35moe", qwen35, true, []string{"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"}},
	{"qwen3next", qwen3next, true, []string{"Qwen3NextForCausalLM"}},
	{"gemma4", gemma4, false, []string{"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration",
		"Gemma4UnifiedForConditionalGeneration"}},
	{"gemma4-assistant", gemma4Assistant, false,
		[]string{"Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"}},
	{"gpt-oss", gptOSS, true, []string{"GptOssForCausalLM"}},
	{"dflash", dflash, false, []string{"DFlashDraftModel", "DFlash2DraftModel", "Qwen3DSparkModel", "DSparkDraftModel",
		"DSparkSpeculator", gemmaDSpark}},
	{"eagle3", eagle3, false, []string{"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator",
		"Eagle3DraftModel"}},
}

// hybrid reports whether the model has gated delta-net layers.
func (a *arch) hybrid() bool { return a.family == qwen35 || a.family == qwen3next }

// headDim is the width of a head where the config leaves it out: the default of
// the model's class, 0 where that is hidden size by heads.
func (a *arch) headDim() int {
	switch {
	case a.family == llama || a.family == eagle3 || a.name == "qwen2":
		return 0
	case a.family == qwen3 || a.family == dflash:
		return 128
	case a.family == gptOSS:
		return 64
	}
	return 256
}

// mistral is a Llama whose first versions had a window of attention.
const mistral = "MistralForCausalLM"

// gemmaDSpark is the class of DSpark's drafters whose layers are Gemma 4's full-attention ones instead of Qwen3's.
const gemmaDSpark = "Gemma4DSparkModel"

// dspark reports whether a checkpoint of this class has a Markov head.
func dspark(class string) bool { return strings.Contains(class, "DSpark") }

// gemma reports whether the model is a Gemma 4 or its assistant.
func (a *arch) gemma() bool { return a.family == gemma4 || a.family == gemma4Assistant }

// Classes lists the model classes of config.json that HF converts.
func Classes() []string {
	var out []string
	for _, a := range archs {
		out = append(out, a.classes...)
	}
	return out
}

// findArch recognises the checkpoint by its model class. A multimodal
// checkpoint may name the class of its text part, too.
func findArch(c config) (*arch, string, error) {
	names, _ := c.strings("architectures")
	inner, _ := c.object("text_config").strings("architectures")
	if err := c.failed(); err != nil {
		return nil, "", err
	}
	for _, list := range [][]string{inner, names} {
		if len(list) == 0 {
			continue
		}
		for i := range archs {
			a := &archs[i]
			if eagle := asEagle3(c, list[0]); slices.Contains(a.classes, list[0]) && !eagle || a.family == eagle3 && eagle {
				return a, list[0], nil
			}
		}
	}
	if len(names) == 0 {
		return nil, "", fieldErr(c.path, "architectures", "is missing")
	}
	if strings.Contains(names[0], "DSpark") {
		return nil, "", fieldErr(c.path, "architectures", "%s drafters are not supported, only those with layers like Qwen3's or Gemma 4's", names[0])
	}
	return nil, "", fieldErr(c.path, "architectures", "%s is not supported; supported are %s", names[0],
		strings.Join(Classes(), ", "))
}

// isReranker recognises Qwen3 rerankers, whose output layer is something else.
func isReranker(dir, class string) bool {
	return strings.Contains(strings.ToLower(filepath.Base(dir)), "qwen3-reranker") ||
		strings.Contains(class, "SequenceClassification")
}
