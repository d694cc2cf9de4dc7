package engine

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"strobe/internal/gguf"
)

// A drafter that was trained with another model of the same family fits by its shapes and its vocabulary, and guesses
// badly. Names are all there is to tell by.
var (
	family  = regexp.MustCompile(`(qwen|gemma|llama)[ _-]?(\d+(?:\.\d+)?)`)
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

// MadeForAnother says why a drafter that fits a target was probably trained with another one: another generation of
// the family, or a base model where the target follows instructions. "" means that the names say nothing of the kind.
func MadeForAnother(drafter, target *gguf.File) string {
	d, t := names(drafter), names(target)
	if x, y := family.FindStringSubmatch(d), family.FindStringSubmatch(t); x != nil && y != nil &&
		(x[1] != y[1] || x[2] != y[2]) {
		return fmt.Sprintf("the drafter was made for %s %s, the model is %s %s", x[1], x[2], y[1], y[2])
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
	return ""
}
