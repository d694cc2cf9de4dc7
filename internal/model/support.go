package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"strobe/internal/gguf"
)

// missing says of architectures that people have files of what it would take to run them.
var missing = map[string]string{
	"clip": "it describes images to another model", "bert": "it makes embeddings", "nomic-bert": "it makes embeddings",
	"llama4": "its attention comes in chunks", "deepseek2": "its keys are latent",
	"phi3": "its projections are joined", "gemma2": "its attention is capped", "gemma3": "it has norms after layers",
	"mamba": "it has no attention", "mamba2": "it has no attention", "rwkv7": "it has no attention",
	"qwen2vl": "its positions have several dimensions", "qwen3vl": "its positions have several dimensions",
	"qwen2moe": "its shared experts are not Qwen3's", "t5": "it has an encoder",
}

// WhyNot says why a file cannot be run, "" if its architecture can.
func WhyNot(f *gguf.File) string {
	arch := f.Arch()
	kind, _, _ := f.String("general.type")
	switch {
	case kind == "adapter":
		return "an adapter (LoRA) changes a model and is none; adapters are not supported"
	case slices.ContainsFunc(f.Keys(), func(key string) bool { return strings.HasPrefix(key, "prism.hadamard.") }):
		return "its weights are rotated (prism.hadamard), as those of Bonsai 2; such files are not supported"
	case Supported(arch):
		return ""
	case arch == "":
		return "the key general.architecture is missing"
	}
	known := strings.Join(slices.Sorted(maps.Keys(architectures)), ", ")
	if why := missing[arch]; why != "" {
		return fmt.Sprintf("architecture %q is not supported: %s (supported: %s)", arch, why, known)
	}
	return fmt.Sprintf("architecture %q is not supported (supported: %s)", arch, known)
}
