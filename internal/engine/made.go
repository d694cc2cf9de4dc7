package engine

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"strobe/internal/gguf"
)

// A drafter that was trained with another model of the same family fits by its shapes and its vocabulary, and guesses
// badly. Files do not say which model it was. Names tell, and the sections of rotary positions (M-RoPE), which a
// drafter has from its target.
var (
	family  = regexp.MustCompile(`(qwen|gemma|llama)[ -]?(\d+(?:\.\d+)?)(?:([ -])(\d)\b)?(b?)`)
	variant = regexp.MustCompile(`\b(base|pt|instruct|it|chat|thinking|coder)\b`)
	kindOf  = map[string]string{"pt": "base", "it": "instruct", "chat": "instruct"}
)

// names are what a file calls its model.
func names(f *gguf.File) string {
	all := filepath.Base(f.Path())
	for _, key := range []string{"general.name", "general.basename", "general.finetune"} {
		s, _, _ := f.String(key)
		all += " " + s
	}
	return strings.ToLower(strings.ReplaceAll(all, "_", " "))
}

// generation is the family and the generation that a name says: "qwen 3.5" for Qwen3.5-4B, qwen35-4b and qwen3_5-4b. A
// number of billions is none.
func generation(name string) (of, number string) {
	m := family.FindStringSubmatch(name)
	if m == nil || m[5] != "" {
		return "", ""
	}
	switch number = m[2]; {
	case len(number) == 2:
		number = number[:1] + "." + number[1:]
	case len(number) == 1 && m[3] == " ": // it was an underscore, in names where a point cannot be
		number += "." + m[4]
	}
	return m[1], number
}

// MadeForAnother says why a drafter that fits a target was probably trained with another one: another generation of
// the family, another architecture, or a base model where the target follows instructions. "" means that the files say
// nothing of the kind.
func MadeForAnother(drafter, target *gguf.File) string {
	d, t := names(drafter), names(target)
	dFamily, dNumber := generation(d)
	tFamily, tNumber := generation(t)
	if dFamily != "" && tFamily != "" && (dFamily != tFamily || dNumber != tNumber) {
		return fmt.Sprintf("the drafter was made for %s %s, the model is %s %s", dFamily, dNumber, tFamily, tNumber)
	}
	const sections = ".rope.dimension_sections"
	if drafter.Has(drafter.Arch()+sections) && !target.Has(target.Arch()+sections) {
		return fmt.Sprintf("the drafter was made for an architecture with M-RoPE (%s), %s has none", drafter.Arch()+sections,
			target.Arch())
	}
	kinds := func(s string) map[string]bool {
		m := map[string]bool{}
		for _, w := range variant.FindAllString(s, -1) {
			if k := kindOf[w]; k != "" {
				w = k
			}
			m[w] = true
		}
		return m
	}
	of, is := kinds(d), kinds(t)
	for _, k := range []string{"base", "coder", "thinking"} {
		switch {
		case of[k] && !is[k]:
			return fmt.Sprintf("the drafter was made for a model called %q, which this one is not", k)
		case is[k] && !of[k]:
			return fmt.Sprintf("the model is called %q, the one that the drafter was made for is not", k)
		}
	}
	// Gemma's base models have no word for it and no chat template. Those that follow instructions have a template, even
	// where somebody left the word out of a name.
	if tFamily == "gemma" && of["instruct"] && !is["instruct"] && !target.Has("tokenizer.chat_template") {
		return "the drafter was made for a model that follows instructions (it), the model seems to be a base model"
	}
	return ""
}
