package convert

import (
	"encoding/json"
	"fmt"
	"strings"
)

// splitPatterns maps the pattern a tokenizer.json splits text with to the name
// GGUF has for it.
var splitPatterns = map[string]string{
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ` +
		`?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: "qwen2",
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ` +
		`?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: "qwen35",
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ` +
		`?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: "llama-bpe",
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`: "gpt-2",
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ` +
		`?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: "tekken",
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: "gpt-4o",
	`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`: "gpt-2",
}

// spelledOut is how engines without inline flags write the contractions.
const spelledOut = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`

// PreTokenizers lists the names a pattern can be recognised as.
func PreTokenizers() []string {
	return []string{"qwen2", "qwen35", "llama-bpe", "gpt-2", "gpt-4o", "tekken", "smollm"}
}

// recognisePre names the way the tokenizer splits text, from the pattern in
// tokenizer.json itself. A pattern nobody knows is an error that shows it:
// guessing would give wrong tokens without any sign of it.
func (t *hfTokenizer) recognisePre(m *model) (string, error) {
	if !t.fast {
		// The older files do not say; the class of the tokenizer does.
		class, _ := t.cfg.str("tokenizer_class")
		if strings.HasPrefix(class, "Qwen") {
			if m.family == qwen35 {
				return "qwen35", nil
			}
			return "qwen2", nil
		}
		return "", fieldErr(t.path, "", "does not say how text is split; name it with --pre (%s)",
			strings.Join(PreTokenizers(), ", "))
	}
	var steps []preStep
	if err := flattenPre(t.pre, &steps); err != nil {
		return "", fieldErr(t.path, "pre_tokenizer", "%v", err)
	}
	var patterns []string
	builtin, digits := false, false
	for _, s := range steps {
		switch {
		case s.Type == "Split":
			p := s.Pattern.Regex
			if p == "" {
				p = s.Pattern.String
			}
			patterns = append(patterns, p)
		case s.Type == "ByteLevel":
			builtin = s.UseRegex == nil || *s.UseRegex
		case s.Type == "Digits" && s.Individual:
			digits = true
		default:
			return "", fieldErr(t.path, "pre_tokenizer", "step %s is not supported; name a known splitter with --pre (%s)",
				s.Type, strings.Join(PreTokenizers(), ", "))
		}
	}
	if len(patterns) == 0 && builtin {
		if digits {
			return "smollm", nil
		}
		if m.family == llama {
			return "gpt-2", nil // what ByteLevel does by itself
		}
		// ByteLevel alone names no pattern: it is the trainer's default and no
		// released Qwen has it. Files made from such checkpoints carry qwen35.
		t.note = t.path + ": names no split pattern, using qwen35; change it with --pre"
		return "qwen35", nil
	}
	if len(patterns) == 1 && !builtin && !digits {
		p := strings.ReplaceAll(patterns[0], spelledOut, `(?i:'s|'t|'re|'ve|'m|'ll|'d)`)
		if name := splitPatterns[p]; name != "" {
			return name, nil
		}
	}
	return "", fieldErr(t.path, "pre_tokenizer",
		"unknown split pattern %s; if it equals a known one, name that with --pre (%s)",
		strings.Join(patterns, " then "), strings.Join(PreTokenizers(), ", "))
}

type preStep struct {
	Type    string `json:"type"`
	Pattern struct {
		Regex  string `json:"Regex"`
		String string `json:"String"`
	} `json:"pattern"`
	UseRegex   *bool             `json:"use_regex"`
	Individual bool              `json:"individual_digits"`
	Steps      []json.RawMessage `json:"pretokenizers"`
}

func flattenPre(raw json.RawMessage, out *[]preStep) error {
	if len(raw) == 0 || string(raw) == "null" {
		return fmt.Errorf("is missing")
	}
	var s preStep
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("not valid: %v", shortJSON(err))
	}
	if s.Type != "Sequence" {
		*out = append(*out, s)
		return nil
	}
	for _, sub := range s.Steps {
		if err := flattenPre(sub, out); err != nil {
			return err
		}
	}
	return nil
}
