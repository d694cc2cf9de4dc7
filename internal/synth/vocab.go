package synth

import (
	"fmt"
	"strings"

	"strobe/internal/gguf"
)

// Token types as stored in tokenizer.ggml.token_type.
const (
	normal      int32 = 1
	unknown     int32 = 2
	control     int32 = 3
	userDefined int32 = 4
	unused      int32 = 5
	byteToken   int32 = 6
)

const chatML = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' " +
	"}}{%- endfor %}" +
	"{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"

// parts is a message's content, which is text or a list of texts and images.
func parts(image string) string {
	return "{%- if m.content is string %}{{- m.content }}{%- else %}{%- for p in m.content %}" +
		"{%- if p.type == 'image' %}{{- '" + image + "' }}{%- else %}{{- p.text }}{%- endif %}{%- endfor %}{%- endif %}"
}

// chatMLParts is chatML of models that see.
var chatMLParts = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}" +
	parts("<|vision_start|><|image_pad|><|vision_end|>") + "{{- '<|im_end|>\\n' }}{%- endfor %}" +
	"{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"

var gemmaTurns = "{{- bos_token }}{%- for m in messages %}{{- '<|turn>' + ('model' if m.role == 'assistant' else " +
	"m.role) + '\\n' }}" + parts("<|image|>") + "{{- '<turn|>\\n' }}{%- endfor %}" +
	"{%- if add_generation_prompt %}{{- '<|turn>model\\n' }}{%- endif %}"

// vocabulary is a tokenizer in the making.
type vocabulary struct {
	tokens []string
	types  []int32
	merges []string
	seen   map[string]bool
}

func (v *vocabulary) add(text string, typ int32) bool {
	if v.seen[text] {
		return false
	}
	v.seen[text] = true
	v.tokens = append(v.tokens, text)
	v.types = append(v.types, typ)
	return true
}

// letters are characters in about the order of their frequency in English and
// code, so that the first merges are useful ones.
const letters = "etaoinsrlhdcumpfgwybvkxjqzETAOINSRLHDCUMPFGWYBVKXJQZ0123456789_.,;:()[]{}<>=+-*/\"'!?#$%&@|\\^~`"

// grow adds merged tokens until there are n: every pair of earlier tokens, the
// frequent ones first. parts are the texts to start from; each merge's halves
// are tokens, so text becomes tokens of several characters.
func (v *vocabulary) grow(parts []string, n int) {
	for limit := 512; ; limit *= 2 {
		for sum := 0; sum < 2*limit; sum++ {
			for i := max(0, sum-limit+1); i <= min(sum, limit-1); i++ {
				j := sum - i
				if len(v.tokens) >= n {
					return
				}
				if i >= len(parts) || j >= len(parts) {
					continue
				}
				if text := parts[i] + parts[j]; v.add(text, normal) {
					v.merges = append(v.merges, parts[i]+" "+parts[j])
					parts = append(parts, text)
				}
			}
		}
	}
}

// byteLevel maps bytes to printable characters as GPT-2 does, in id order.
func byteLevel() []string {
	var direct, rest []string
	next := rune(256)
	for b := rune(0); b < 256; b++ {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			direct = append(direct, string(b))
		} else {
			rest = append(rest, string(next))
			next++
		}
	}
	return append(direct, rest...)
}

// qwenSpecials are the special tokens of Qwen in id order; the first follows the
// last ordinary token.
var qwenSpecials = []string{
	"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
	"<|box_end|>",
	"<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
	"<|video_pad|>",
	"<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
	"<|file_sep|>",
	"<tool_response>", "</tool_response>", "<think>", "</think>",
}

const llamaTurns = "{{- bos_token }}{%- for m in messages %}{{- '<|start_header_id|>' + m.role + " +
	"'<|end_header_id|>\\n\\n' + m.content + '<|eot_id|>' }}{%- endfor %}" +
	"{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"

// llamaSpecials are the special tokens of Llama 3 in id order.
var llamaSpecials = []string{
	"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
	"<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
	"<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
}

// byteLevelVocab is a vocabulary of the given size with special tokens from the id first on.
func byteLevelVocab(size, first int, specials []string, pre string) []gguf.KV {
	v := &vocabulary{seen: map[string]bool{}}
	for _, b := range byteLevel() {
		v.add(b, normal)
	}
	const space, newline = "\u0120", "\u010a"
	v.grow(append([]string{space, newline}, strings.Split(letters, "")...), first)
	for _, s := range specials {
		typ := userDefined
		if strings.HasPrefix(s, "<|") {
			typ = control
		}
		v.add(s, typ)
	}
	for len(v.tokens) < size {
		v.add(fmt.Sprintf("[PAD%d]", len(v.tokens)), unused)
	}
	return []gguf.KV{
		{Key: "tokenizer.ggml.model", Value: "gpt2"},
		{Key: "tokenizer.ggml.pre", Value: pre},
		{Key: "tokenizer.ggml.tokens", Value: v.tokens},
		{Key: "tokenizer.ggml.token_type", Value: v.types},
		{Key: "tokenizer.ggml.merges", Value: v.merges},
	}
}

// qwenKeys is the tokenizer of a Qwen model.
func qwenKeys(size int, pre string) []gguf.KV {
	first := size - 64 // in a small vocabulary: specials, then some padding
	switch size {
	case 248320:
		first = 248044
	case 151936, 152064:
		first = 151643
	}
	template := chatML
	if pre == "qwen35" {
		template = chatMLParts
	}
	return append(byteLevelVocab(size, first, qwenSpecials, pre),
		gguf.KV{Key: "tokenizer.ggml.eos_token_id", Value: uint32(first + 2)},
		gguf.KV{Key: "tokenizer.ggml.padding_token_id", Value: uint32(first)},
		gguf.KV{Key: "tokenizer.ggml.add_bos_token", Value: false},
		gguf.KV{Key: "tokenizer.chat_template", Value: template})
}

// llamaKeys is the tokenizer of Llama 3, whose last 256 tokens are special or padding here.
func llamaKeys(size int) []gguf.KV {
	first := size - 256
	return append(byteLevelVocab(size, first, llamaSpecials, "llama-bpe"),
		gguf.KV{Key: "tokenizer.ggml.bos_token_id", Value: uint32(first)},
		gguf.KV{Key: "tokenizer.ggml.eos_token_id", Value: uint32(first + 9)},
		gguf.KV{Key: "tokenizer.ggml.add_bos_token", Value: true},
		gguf.KV{Key: "tokenizer.chat_template", Value: llamaTurns})
}

const gptOSSTurns = "{%- for m in messages %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}" +
	"{%- endfor %}{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"

// gptOSSSpecials are the special tokens of gpt-oss in id order.
var gptOSSSpecials = []string{
	"<|startoftext|>", "<|endoftext|>", "<|reserved_200000|>", "<|reserved_200001|>", "<|return|>", "<|constrain|>",
	"<|reserved_200004|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|reserved_200009|>",
	"<|reserved_200010|>", "<|reserved_200011|>", "<|call|>",
}

// gptOSSKeys is the tokenizer of gpt-oss.
func gptOSSKeys(size int) []gguf.KV {
	first := size - 64
	if size == 201088 {
		first = 199998
	}
	return append(byteLevelVocab(size, first, gptOSSSpecials, "gpt-4o"),
		gguf.KV{Key: "tokenizer.ggml.bos_token_id", Value: uint32(first)},
		gguf.KV{Key: "tokenizer.ggml.eos_token_id", Value: uint32(first + 4)},
		gguf.KV{Key: "tokenizer.ggml.padding_token_id", Value: uint32(first + 1)},
		gguf.KV{Key: "tokenizer.ggml.add_bos_token", Value: false},
		gguf.KV{Key: "tokenizer.chat_template", Value: gptOSSTurns})
}

const mistralTurns = "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'assistant' %}{{- m.content + eos_token }}" +
	"{%- else %}{{- '[INST] ' + m.content + '[/INST]' }}{%- endif %}{%- endfor %}"

// pieceKeys is a SentencePiece vocabulary as Mistral has it: specials, bytes, single characters, and what earlier
// tokens merge to, with falling scores.
func pieceKeys(size int) []gguf.KV {
	v := &vocabulary{seen: map[string]bool{}}
	v.add("<unk>", unknown)
	for _, s := range []string{"<s>", "</s>", "[INST]", "[/INST]"} {
		v.add(s, control)
	}
	for b := range 256 {
		v.add(fmt.Sprintf("<0x%02X>", b), byteToken)
	}
	const space = "\u2581"
	parts := append([]string{space}, strings.Split(letters, "")...)
	for _, p := range parts {
		v.add(p, normal)
	}
	v.grow(parts, size)
	scores := make([]float32, size)
	for i := range scores {
		scores[i] = -float32(i)
	}
	return []gguf.KV{
		{Key: "tokenizer.ggml.model", Value: "llama"},
		{Key: "tokenizer.ggml.pre", Value: "default"},
		{Key: "tokenizer.ggml.tokens", Value: v.tokens},
		{Key: "tokenizer.ggml.scores", Value: scores},
		{Key: "tokenizer.ggml.token_type", Value: v.types},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)},
		{Key: "tokenizer.ggml.unknown_token_id", Value: uint32(0)},
		{Key: "tokenizer.ggml.add_bos_token", Value: true},
		{Key: "tokenizer.ggml.add_eos_token", Value: false},
		{Key: "tokenizer.chat_template", Value: mistralTurns},
	}
}

// gemmaSpecials are Gemma 4's special tokens by id.
var gemmaSpecials = map[int]string{
	0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 4: "<mask>", 46: "<|tool>", 47: "<tool|>", 98: "<|think|>",
	105: "<|turn>", 106: "<turn|>",
	255999: "<|image>", 256000: "<|audio>", 258880: "<|image|>", 258881: "<|audio|>", 258882: "<image|>",
	258883: "<audio|>", 258884: "<|video|>",
}

// smallGemmaSpecials are those of them that a small vocabulary has elsewhere.
var smallGemmaSpecials = map[int]string{5: "<|image>", 6: "<|image|>", 7: "<image|>"}

// gemmaVisible are special tokens that programs read in the output.
var gemmaVisible = map[int]string{
	48: "<|tool_call>", 49: "<tool_call|>", 50: "<|tool_response>", 51: "<tool_response|>", 52: `<|"|>`, 100: "<|channel>",
	101: "<channel|>",
}

// gemmaKeys is a Gemma 4 vocabulary of the given size: specials, newlines and
// byte tokens where the real one has them, then single characters and merges.
func gemmaKeys(size int) []gguf.KV {
	v := &vocabulary{seen: map[string]bool{}}
	fillers := 0
	special := func() bool {
		id := len(v.tokens)
		if s := gemmaSpecials[id]; s != "" {
			return v.add(s, control)
		}
		if s := smallGemmaSpecials[id]; s != "" && size < 255999 {
			return v.add(s, control)
		}
		if s := gemmaVisible[id]; s != "" {
			return v.add(s, userDefined)
		}
		return false
	}
	pad := func(to int) {
		for len(v.tokens) < to {
			if !special() {
				v.add(fmt.Sprintf("<unused%d>", fillers), normal)
				fillers++
			}
		}
	}
	pad(107)
	for n := 1; n <= 31; n++ {
		v.add(strings.Repeat("\n", n), normal)
	}
	pad(238)
	for b := range 256 {
		v.add(fmt.Sprintf("<0x%02X>", b), byteToken)
	}
	const space = "\u2581"
	parts := append([]string{space}, strings.Split(letters, "")...)
	for _, p := range parts {
		v.add(p, normal)
	}
	v.grow(parts, min(size, 255999))
	pad(size)
	scores := make([]float32, size)
	for i := range scores {
		scores[i] = -1000
	}
	return []gguf.KV{
		{Key: "tokenizer.ggml.model", Value: "gemma4"},
		{Key: "tokenizer.ggml.tokens", Value: v.tokens},
		{Key: "tokenizer.ggml.scores", Value: scores},
		{Key: "tokenizer.ggml.token_type", Value: v.types},
		{Key: "tokenizer.ggml.merges", Value: v.merges},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(2)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(106)},
		{Key: "tokenizer.ggml.unknown_token_id", Value: uint32(3)},
		{Key: "tokenizer.ggml.padding_token_id", Value: uint32(0)},
		{Key: "tokenizer.ggml.mask_token_id", Value: uint32(4)},
		{Key: "tokenizer.chat_template", Value: gemmaTurns},
		{Key: "tokenizer.ggml.add_space_prefix", Value: false},
		{Key: "tokenizer.ggml.add_bos_token", Value: true},
	}
}

// tokenizerKeys is the tokenizer of a shape; a drafter has its target's.
func (s *shape) tokenizerKeys(target *shape) []gguf.KV {
	owner := s
	if target != nil {
		owner = target
	}
	switch {
	case owner.pieces:
		return pieceKeys(owner.vocab)
	case owner.class == llamaClass:
		return llamaKeys(owner.vocab)
	case owner.class == gptOSSClass:
		return gptOSSKeys(owner.vocab)
	case owner.class == gemmaClass:
		return gemmaKeys(owner.vocab)
	case owner.class == qwen35Class || owner.class == qwen35MoEClass:
		return qwenKeys(owner.vocab, "qwen35")
	}
	return qwenKeys(owner.vocab, "qwen2")
}
